"""Value types of database entries."""

from dataclasses import dataclass, field
from typing import TypeAlias

from compiler.codegen.executable import StageExecutable
from compiler.ir.identity import identity
from compiler.profile.hardware_profile import HardwareProfile
from compiler.profile.measurement import Measurement, Result
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning_db.keys import EntryKey

#: Schedule of a network or of one layer.
AnySchedule: TypeAlias = Schedule | LayerSchedule


@dataclass(frozen=True, kw_only=True)
class TrialEntry:
    """A candidate that has been tried.

    Parameters
    ----------
    key : EntryKey
        Subgraph, conditions and options.
    schedule : Schedule or LayerSchedule
        Schedule that was tried.
    result : Measurement or Rejected
        Measurement or reason for rejection.
    seed : int
        Random seed of the search.
    method, generator : str
        Names of the search method and of the candidate generator.
    when : float
        Seconds since 1970 (UTC).
    """

    key: EntryKey
    schedule: AnySchedule
    result: Result
    seed: int = 0
    method: str = ""
    generator: str = ""
    when: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StoredCandidate:
    """A promising schedule, which must be measured before use.

    Parameters
    ----------
    trial : TrialEntry
        Trial of the schedule, possibly under other conditions.
    trusted : bool
        True if measured by this user.
    distance : float
        Distance of its conditions from the requested ones (`compiler.tuning_db.machines`); infinite if unknown.
    """

    trial: TrialEntry
    trusted: bool
    distance: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """Best known program of a key.

    Parameters
    ----------
    key : EntryKey
        Subgraph, conditions, options and goal.
    schedule : Schedule or LayerSchedule
        Schedule that the program implements.
    cost : float
        Value of the minimized goal: cycles, unless the options name another goal.
    result : Measurement
        Measurement that the cost comes from.
    codes : tuple of StageExecutable
        Code of each accelerator stage, in order; images are read-only.
    when : float
        Seconds since 1970 (UTC).
    """

    key: EntryKey
    schedule: AnySchedule
    cost: float
    result: Measurement
    codes: tuple[StageExecutable, ...]
    when: float = 0.0

    @property
    def bytes(self) -> int:
        """Approximate size in memory in bytes."""
        words = sum(len(program.words) for code in self.codes for program in code.programs)
        return sum(code.image.nbytes for code in self.codes) + 40 * words


@identity(
    "Execution",
    "key",
    "when",
    "cycles",
    "utilization",
    "where",
    "load_bytes",
    "store_bytes",
    "conflicts",
    "reuse",
    "energy_uj",
    "bound",
)
@dataclass(frozen=True, kw_only=True)
class Execution:
    """One execution of a subgraph; their history is its execution profile.

    Parameters
    ----------
    key : EntryKey
        Subgraph, conditions and options.
    when : float
        Seconds since 1970 (UTC).
    cycles : int
        Cycles of the execution.
    utilization : float
        Share of the array's multiply-accumulates that were useful.
    where : dict
        Cycles by cause.
    load_bytes, store_bytes : int
        Bytes read from and written to DRAM.
    conflicts : int
        Accesses delayed by bank conflicts.
    reuse : float
        Multiply-accumulates per DRAM byte.
    energy_uj : float
        Estimated energy in microjoules.
    bound : str
        Name of the main bottleneck.
    """

    key: EntryKey
    when: float
    cycles: int
    utilization: float = 0.0
    where: dict[str, int] = field(default_factory=dict)
    load_bytes: int = 0
    store_bytes: int = 0
    conflicts: int = 0
    reuse: float = 0.0
    energy_uj: float = 0.0
    bound: str = ""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A hardware profile.

    Parameters
    ----------
    conditions : HardwareProfile
        Machine and DRAM timing.
    behaviour : dict
        Measured properties by name.
    when : float
        Seconds since 1970 (UTC).
    trusted : bool
        True if measured by this user.
    """

    conditions: HardwareProfile
    behaviour: dict[str, float] = field(default_factory=dict)
    when: float = 0.0
    trusted: bool = field(default=True, compare=False)
