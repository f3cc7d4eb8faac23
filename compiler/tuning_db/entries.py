"""What the database holds, as values."""

from dataclasses import dataclass, field
from typing import TypeAlias

from compiler.codegen.executable import StageExecutable
from compiler.ir.identity import identity
from compiler.profile.hardware_profile import HardwareProfile
from compiler.profile.measurement import Measurement, Result
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning_db.keys import EntryKey

#: How a network, or one layer, is carried out.
AnySchedule: TypeAlias = Schedule | LayerSchedule


@dataclass(frozen=True, kw_only=True)
class TrialEntry:
    """A candidate that has been tried.

    Parameters
    ----------
    key : Key
        Of what, under which conditions.
    schedule : Schedule or LayerSchedule
        The candidate.
    result : Measurement or Rejected
        What came of it.
    seed : int
        Of the search.
    method, generator : str
        The search, and what proposed the candidate.
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
    """A schedule that was good somewhere, to be measured before anything is made of it.

    Parameters
    ----------
    trial : Trial
        Where it was good; its key may be that of other conditions.
    trusted : bool
        This user measured it.
    distance : float
        Of those conditions from the ones asked for (`compiler.tuning_db.machine_distance`); infinite if they are unknown.
    """

    trial: TrialEntry
    trusted: bool
    distance: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """The best program known.

    Parameters
    ----------
    key : Key
        What for.
    schedule : Schedule or LayerSchedule
        How it is carried out.
    cost : float
        What the goal wants little of: cycles, unless the options name another goal.
    result : Measurement
        Of the run that it was kept for.
    codes : tuple of Code
        For each stage on the accelerator, in order; images are read-only.
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
        """About what it takes in memory."""
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
    """How a subgraph ran once: an execution profile is their history.

    Parameters
    ----------
    key : Key
        What ran, under which conditions.
    when : float
        Seconds since 1970 (UTC).
    cycles : int
        It took.
    utilization : float
        Share of the array's multiply-accumulates that were useful.
    where : dict
        Cycles by what took them.
    load_bytes, store_bytes : int
        From and to DRAM; over `cycles` its bandwidth.
    conflicts : int
        Accesses that waited for a bank.
    reuse : float
        Multiply-accumulates a byte from DRAM.
    energy_uj : float
        Estimated, in microjoules.
    bound : str
        What binds it.
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
    conditions : Conditions
        A machine and its memory.
    behaviour : dict
        What was measured of it, by name.
    when : float
        Seconds since 1970 (UTC).
    trusted : bool
        This user measured it.
    """

    conditions: HardwareProfile
    behaviour: dict[str, float] = field(default_factory=dict)
    when: float = 0.0
    trusted: bool = field(default=True, compare=False)
