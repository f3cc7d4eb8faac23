"""Entries of the database, and their keys, which consist of digests of subgraph, conditions and options."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from compiler.cache.digest import name
from compiler.codegen.executable import StageExecutable
from compiler.ir.graph import Graph
from compiler.ir.identity import identity
from compiler.layers.base import Layer
from compiler.options import UNLIMITED, MemoryLimits
from compiler.profile.measurement import HardwareProfile, Measurement, Result
from compiler.schedule.schedule import LayerSchedule, Schedule
from hw.errors import InputError, shown

_DIGEST = re.compile(r"[0-9a-f]{64}")
#: Version of the keys, which is part of each key: entries of other versions are not found. Replace it by any other
#: string when the measured cycles of an unchanged schedule change (tests/fixtures/v1/cycles.json). Version 2: buffers
#: keep the addresses that they have under the initial schedule. Version 3: other passes of softmax and normalizations.
#: Version 4: shorter latencies of the machine, other strips of convolutions, other orders of depthwise convolutions.
#: Version 5: outputs of several rows in one block.
KEY_VERSION = "7"


@identity("Key", "subgraph", "profile", "options")
@dataclass(frozen=True, order=True)
class EntryKey:
    """Key of a database entry; each field is a SHA-256 digest in hexadecimal.

    Parameters
    ----------
    subgraph : str
        Digest of the workload: `subgraph_of`, or `shape_of` for a layer.
    profile : str
        Digest of the machine and the DRAM timing: `HardwareProfile.key`.
    options : str
        Digest of all other options: `options_of`.

    Raises
    ------
    InputError
        A field is not a digest.
    """

    subgraph: str
    profile: str
    options: str

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if not is_digest(value):
                message = f"{item.name} must be a SHA-256 in hexadecimal (64 digits of 0-9a-f), not"
                raise InputError(f"{message} {shown(value)}")


def is_digest(value: Any) -> bool:
    """Return True if a value is a SHA-256 digest in hexadecimal."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def options_of(**options: Any) -> str:
    """Return the digest of `KEY_VERSION` and of options, given by name (rounding, batch, goal and others)."""
    return name("options", KEY_VERSION, options)


def options_within(limits: MemoryLimits, **options: object) -> str:
    """Return the digest of options and, unless they are unlimited, of memory limits."""
    return options_of(**options) if limits == UNLIMITED else options_of(**options, limits=limits)


def subgraph_of(what: Graph | Sequence[Layer]) -> str:
    """Return the Merkle digest of the names, shapes and weights of a graph or layers, for keys of stored programs."""
    return name("subgraph", what if isinstance(what, Graph) else tuple(what))


#: Schedule of a network or of one layer.
AnySchedule: TypeAlias = Schedule | LayerSchedule


@dataclass(frozen=True, kw_only=True)
class TrialEntry:
    """Trial of a candidate.

    Parameters
    ----------
    key : EntryKey
        Subgraph, conditions and options.
    schedule : Schedule or LayerSchedule
        Schedule that was tried.
    result : Measurement or Rejected
        Measurement of the schedule, or the reason for its rejection.
    seed : int
        Random seed of the search.
    method, generator : str
        Names of the search method and of the candidate generator.
    when : float
        Time of the trial, in seconds since 1970 (UTC).
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
    """Promising schedule, which must be measured before use.

    Parameters
    ----------
    trial : TrialEntry
        Trial of the schedule, possibly under other conditions.
    trusted : bool
        True if this user measured the trial.
    distance : float
        Distance between the conditions of the trial and the requested conditions (`compiler.tuning_db.machines`);
        infinite if unknown.
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
        Value of the metric that is minimized: cycles, unless the options in the key name another goal.
    result : Measurement
        Measurement from which the cost is computed.
    codes : tuple of StageExecutable
        Code of each accelerator stage, in order; the memory images are read-only.
    when : float
        Time at which the program was stored, in seconds since 1970 (UTC).
    proposers : dict of str to str
        Name of the search method that proposed the schedule of each changed layer, by name of the layer.
    """

    key: EntryKey
    schedule: AnySchedule
    cost: float
    result: Measurement
    codes: tuple[StageExecutable, ...]
    when: float = 0.0
    proposers: dict[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Approximate memory size of the entry in bytes."""
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
    "network",
    "macro",
    added=("network", "macro"),
)
@dataclass(frozen=True, kw_only=True)
class Execution:
    """Execution of a subgraph; the executions of a subgraph form its execution profile.

    Parameters
    ----------
    key : EntryKey
        Subgraph, conditions and options.
    when : float
        Time of the execution, in seconds since 1970 (UTC).
    cycles : int
        Number of cycles that the execution took.
    utilization : float
        Share of the array's multiply-accumulates that were useful.
    where : dict
        Number of cycles by cause.
    load_bytes, store_bytes : int
        Bytes read from and written to DRAM.
    conflicts : int
        Number of accesses delayed by bank conflicts.
    reuse : float
        Number of multiply-accumulates per DRAM byte.
    energy_uj : float
        Estimated energy in microjoules.
    bound : str
        Name of the main bottleneck.
    network : str
        Name of the network that contains the subgraph; empty if unknown.
    macro : str
        Name of the learned macro-instruction that was executed; empty if the static compiler's program was.
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
    network: str = ""
    macro: str = ""


@identity("Violation", "cascade", "budget", "audited", "changed", "lower", "when")
@dataclass(frozen=True, kw_only=True)
class BudgetViolation:
    """Accuracy budget that a cascade has violated on the requests of a server.

    Parameters
    ----------
    cascade : str
        Digest of the cascade and its budget (`violation_key`).
    budget : float
        Largest permitted share of requests whose label differs from that of the exact network.
    audited, changed : int
        Number of audited requests, and of those among them whose label differed.
    lower : float
        Lower bound of the share of changed labels.
    when : float
        Time of the violation, in seconds since 1970 (UTC).
    """

    cascade: str
    budget: float
    audited: int
    changed: int
    lower: float
    when: float


def violation_key(network: str, threshold: int, budget: float) -> str:
    """Return the key of violations by a cascade: a digest of its programs and constants, its threshold and budget."""
    return name("cascade", network, threshold, budget)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Hardware profile of a machine.

    Parameters
    ----------
    conditions : HardwareProfile
        Machine and DRAM timing.
    behaviour : dict
        Measured properties of the machine, by name.
    when : float
        Time of the measurement, in seconds since 1970 (UTC).
    trusted : bool
        True if this user measured the profile.
    """

    conditions: HardwareProfile
    behaviour: dict[str, float] = field(default_factory=dict)
    when: float = 0.0
    trusted: bool = field(default=True, compare=False)


def measured_key_of(
    graph: Graph,
    rounding: str,
    conditions: HardwareProfile,
    limits: MemoryLimits = UNLIMITED,
    *,
    stream: bool = False,
) -> EntryKey:
    """Return the key of a model's measurements and executions.

    Parameters
    ----------
    graph : Graph
        Graph of the model after all passes, with the batch size in its shapes.
    rounding : str
        Rounding mode from the compiler options.
    conditions : HardwareProfile
        Machine configuration and DRAM timing.
    limits : MemoryLimits
        Memory limits of the compilation, since the same schedule may compile to other programs under other limits.
    stream : bool
        True for measurements of back-to-back requests, which differ from measurements of single requests.
    """
    options: dict[str, object] = {"rounding": rounding}
    if stream:
        options["stream"] = True
    return EntryKey(subgraph_of(graph), conditions.key, options_within(limits, **options))


#: Version of the acceptance of program texts (`compiler.tuning.measure.equivalence`), which is part of the keys of
#: schedules with texts: texts that earlier versions accepted are not used.
ACCEPTANCE = 2


class BestKeys(NamedTuple):
    """Keys of the best program of a model for a goal: of schedules without and of schedules with program texts."""

    plain: EntryKey
    texts: EntryKey


def best_keys_of(
    graph: Graph, rounding: str, conditions: HardwareProfile, limits: MemoryLimits, goal: str
) -> BestKeys:
    """Return the keys of a model's best programs for a goal; the other parameters are those of `measured_key_of`."""
    subgraph, options = subgraph_of(graph), {"rounding": rounding, "goal": goal}
    plain, texts = (options_within(limits, **each) for each in (options, options | {"accepted": ACCEPTANCE}))
    return BestKeys(*(EntryKey(subgraph, conditions.key, each) for each in (plain, texts)))


def best_of(find: Callable[[EntryKey], Entry | None], keys: BestKeys) -> Entry | None:
    """Return the cheapest entry that `find` returns for the keys.

    An entry with program texts under the key of schedules without them was accepted by an earlier version.
    """
    plain, texts = map(find, keys)
    if plain is not None and has_texts(plain):
        plain = None
    return min(filter(None, (plain, texts)), key=lambda entry: entry.cost, default=None)


def has_texts(entry: Entry) -> bool:
    """Return True if the schedule of an entry contains program texts."""
    return isinstance(entry.schedule, Schedule) and bool(entry.schedule.programs)
