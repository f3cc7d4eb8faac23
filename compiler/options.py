"""Options of a compilation: rounding, memory limits and DRAM timing."""

import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compiler.ir.identity import identity
from compiler.schedule.schedule import Schedule
from hw.config import MlaConfig
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.quantize.ranges import Calibration

#: Kernels whose rounding can be reproduced: LiteRT's reference kernels, LiteRT's default kernels (XNNPACK),
#: onnxruntime.
ROUNDINGS = ("reference", "xnnpack", "onnxruntime")


@identity("Limits", "sp_bytes", "acc_bytes", "dram_bytes")
@dataclass(frozen=True)
class MemoryLimits:
    """Limits on memory use in bytes; None means no limit.

    Parameters
    ----------
    sp_bytes, acc_bytes : int or None
        Usable bytes of scratchpad and accumulator from address 0, rounded down to a power of two.
    dram_bytes : int or None
        Maximum DRAM use of the model: weights and intermediate tensors, without inputs and outputs.
    """

    sp_bytes: int | None = None
    acc_bytes: int | None = None
    dram_bytes: int | None = None

    def within(self, config: MlaConfig) -> MlaConfig:
        """Return the hardware configuration reduced to the limits; bank sizes are unchanged if two banks fit.

        Raises
        ------
        InputError
            A limit is below the minimum size of its memory.
        """
        for item in fields(self)[:2]:
            limit, size = getattr(self, item.name), getattr(config, item.name)
            if limit is not None and limit < size:
                config = _cut(config, item.name, limit)
        return config

    def check(self, memory: int) -> None:
        """Check the DRAM use of a network, in bytes.

        Raises
        ------
        InputError
            The DRAM use exceeds the limit.
        """
        if self.dram_bytes is not None and memory > self.dram_bytes:
            raise InputError(
                f"the network needs {memory:,} bytes of DRAM, but the limit is {self.dram_bytes:,}"
            )


#: No limits.
UNLIMITED = MemoryLimits()


def _cut(config: MlaConfig, name: str, limit: int) -> MlaConfig:
    """Reduce one memory of a hardware configuration."""
    banks = name.replace("bytes", "banks")
    bank = getattr(config, name) // getattr(config, banks)
    size = 1 << max(limit, 1).bit_length() - 1
    try:
        return replace(config, **{name: size, banks: min(getattr(config, banks), max(size // bank, 2))})
    except InputError:
        lowest = (16 if name == "sp_bytes" else 64) * config.n * 2
        memory = "scratchpad" if name == "sp_bytes" else "accumulator"
        raise InputError(
            f"the limit of the {memory} must be at least {lowest:,} bytes, not {limit:,}"
        ) from None


@identity("Dram", "latency", "bytes_per_cycle", "throttle", added=("throttle",))
@dataclass(frozen=True)
class DramTiming:
    """Timing of the DRAM and of the chip's clock, which affects issue order and tiling, but not the results.

    Parameters
    ----------
    latency : int
        Cycles from the address of a read to its first data beat.
    bytes_per_cycle : float or None
        Total bandwidth of reads and writes; None: one beat of the bus per cycle.
    throttle : float
        Share of the cycles in which the clock of the chip is stalled while the DRAM continues (docs/machine.md).
        Latency and bandwidth refer to all cycles, those that are stalled included.
    """

    latency: int = 100
    bytes_per_cycle: float | None = None
    throttle: float = 0.0

    def beat(self, width: int) -> float:
        """Return the number of cycles of the chip's clock per beat of a bus of `width` bytes, which is at least 1."""
        return max(1.0, (1 - self.throttle) * width / (self.bytes_per_cycle or width))

    @property
    def chip_latency(self) -> float:
        """Latency in cycles of the chip's clock, without stalled cycles."""
        return self.latency * (1 - self.throttle)

    @property
    def stretch(self) -> float:
        """Number of cycles, those that are stalled included, per cycle of the chip's clock."""
        return 1 / (1 - self.throttle)


#: Default DRAM timing.
DEFAULT_DRAM = DramTiming()


class PassInfo(NamedTuple):
    """A graph pass that can be switched on and off.

    Parameters
    ----------
    default : bool
        True if the pass runs unless it is switched off.
    text : str
        What the pass does, for lists of the passes.
    """

    default: bool
    text: str


#: Graph passes that can be switched on and off, by name and in the order in which they run (docs/passes.md).
PASSES: dict[str, PassInfo] = {
    "merge_equal_nodes": PassInfo(True, "compute common subexpressions once"),
    "remove_no_ops": PassInfo(True, "remove nodes whose result always equals their operand"),
    "join_moves": PassInfo(True, "join consecutive transposes, and consecutive reshapes"),
    "remove_channels": PassInfo(True, "remove channels that are constant or not read"),
    "shrink_kernels": PassInfo(True, "remove taps of convolutions that are zero or read only padding"),
    "compose_convolutions": PassInfo(True, "join two convolutions whose intermediate result is not rounded"),
    "move_strides": PassInfo(True, "compute only the pixels that later convolutions with strides read"),
    "repeat_channels": PassInfo(True, "compute several outputs per channel as those of repeated channels"),
    "absorb_shuffles": PassInfo(True, "store channels in orders that make channel shuffles vanish"),
    "approximate_softmax": PassInfo(
        False, "compute softmaxes with fewer passes where results differ by at most one step"
    ),
    "unroll_loops": PassInfo(True, "choose by estimated costs how far loops are unrolled"),
    "place_on_host": PassInfo(
        False, "run layers on the host where measured costs of both sides show a clear gain"
    ),
}


@identity("HostCosts", "operators", "other", "stage", "clock")
@dataclass(frozen=True)
class HostCosts:
    """Time that operators take on the host, and the clock of the accelerator that it is compared with.

    Parameters
    ----------
    operators : tuple of (str, float, float, float)
        Name of an operator, its microseconds per node, nanoseconds per element of its operands and results, and
        nanoseconds per multiply-accumulate, or per element of the windows of a pool.
    other : (float, float, float)
        Costs of the operators that `operators` does not contain.
    stage : float
        Microseconds of the host to start a stage on the accelerator and to wait for it.
    clock : float
        Clock frequency of the accelerator in MHz.
    """

    operators: tuple[tuple[str, float, float, float], ...] = ()
    other: tuple[float, float, float] = (200.0, 50.0, 1.0)
    stage: float = 50.0
    clock: float = 100.0

    def microseconds(self, op: str, elements: int, products: int) -> float:
        """Return the time of a node with a number of elements and of products, as counted in `operators`."""
        found = {name: each for name, *each in self.operators}
        fixed, element, product = found.get(op, self.other)
        return fixed + (element * elements + product * products) / 1e3


#: Costs of one core of a server of 2026, measured by `mla calibrate --host`, for dense layers with weights that are not
#: in the cache. They are the same everywhere, so that compilation without measured costs is reproducible.
DEFAULT_HOST_COSTS = HostCosts(
    (
        ("add", 44.754, 2.272, 0.0),
        ("avg_pool2d", 51.354, 0.0, 1.015),
        ("clip", 12.704, 0.838, 0.0),
        ("conv2d", 101.969, 2.114, 0.142),
        ("dense", 39.68, 6.5, 0.123),
        ("depthwise_conv2d", 115.124, 16.778, 0.0),
        ("layer_norm", 35.601, 3.369, 0.0),
        ("matmul", 45.314, 0.833, 0.054),
        ("max_pool2d", 0.0, 1.609, 0.0),
        ("mul", 0.0, 17.393, 0.0),
        ("reduce_mean", 23.353, 0.376, 0.0),
        ("reshape", 7.597, 0.398, 0.0),
        ("softmax", 184.093, 2.615, 0.0),
        ("tanh", 32.635, 0.876, 0.0),
        ("transpose", 7.21, 0.0, 0.0),
    )
)


def host_costs_path() -> Path:
    """Return the path of the costs that `mla calibrate --host` measured on this machine."""
    from cosim.rtl.cache import cache_folder

    return cache_folder() / "hpm" / "host.json"


def read_host_costs(path: Path) -> HostCosts:
    """Read measured costs of the host; the default costs if there is no file.

    Raises
    ------
    InputError
        The file is damaged.
    """
    if not path.exists():
        return DEFAULT_HOST_COSTS
    try:
        values = json.loads(path.read_bytes())
        operators = tuple((str(op), float(a), float(b), float(c)) for op, a, b, c in values["operators"])
        fixed, element, product = (float(each) for each in values["other"])
        stage, clock = float(values["stage"]), float(values["clock"])
        made = HostCosts(operators, (fixed, element, product), stage, clock)
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        made = None
    numbers = (
        [] if made is None else [*made.other, made.stage, *(x for _, *each in made.operators for x in each)]
    )
    if made is None or not all(0 <= each < 1e12 for each in numbers) or not 0 < made.clock < 1e12:
        raise InputError(
            f"{path} contains no costs of the host: remove it, or run mla calibrate --host again"
        )
    return made


def unroll_factors(unroll: int | Mapping[str, int] | None) -> tuple[tuple[str, int], ...]:
    """Return the factors of the parameter `unroll` of `compiler.compile`, as in `CompileOptions`.

    Raises
    ------
    InputError
        A factor is not an integer of at least 0, or a name is no string.
    """
    factors = {} if unroll is None else {"loop": unroll} if isinstance(unroll, int) else unroll
    if not isinstance(factors, Mapping):
        raise InputError(f"unroll must be an integer or a dict of integers, not {type(unroll).__name__}")
    for name, factor in factors.items():
        if not isinstance(name, str) or type(factor) is not int or factor < 0:
            raise InputError(
                f"unroll must have a name and an integer of at least 0, not {name!r}: {factor!r}"
            )
    return tuple(sorted(factors.items()))


@identity("LengthRange", "name", "values")
@dataclass(frozen=True)
class LengthRange:
    """Lengths of a dynamic dimension for which a network has programs.

    Parameters
    ----------
    name : str
        Name of the dimension.
    values : tuple of int
        Lengths in ascending order, at least two.
    """

    name: str
    values: tuple[int, ...]


@identity("AccuracyBudget", "worse", "sqnr_db", "labels", "share", added=("share",))
@dataclass(frozen=True)
class AccuracyBudget:
    """Loss of accuracy that a user permits for weights with fewer bits, on the calibration samples and on others.

    It is measured on samples to which the weights are not fitted, if there are at least eight different ones.
    The loss is relative to the model with 8-bit weights, or to the float model if the compiler also chooses the results
    that become int16 ("auto"). A share of requests makes the network a cascade (docs/quantization.md).

    Parameters
    ----------
    worse : int or None
        Largest number of samples that 8-bit weights label rightly and weights with fewer bits do not, at most the
        number of samples.
    sqnr_db : float or None
        Smallest signal-to-noise ratio of each output in dB, relative to the outputs with 8-bit weights.
    labels : sequence of int
        Label of each calibration sample, for `worse`.
    share : float or None
        Largest share of requests whose label may differ from that with 8-bit weights, between 0 and 1.

    Raises
    ------
    InputError
        Not exactly one of `worse`, `sqnr_db` and `share` is given, or it is out of range, or labels are missing or not
        integers.

    Examples
    --------
    >>> budget = compiler.AccuracyBudget(worse=2, labels=labels)
    >>> network = compiler.compile("network.tflite", calibration=samples, accuracy_budget=budget)
    """

    worse: int | None = None
    sqnr_db: float | None = None
    labels: Sequence[int] = ()
    share: float | None = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.worse, self.sqnr_db, self.share)) != 1:
            raise InputError(
                "accuracy_budget must have either a number of labels (worse), decibels (sqnr_db) or a share of "
                "requests (share)"
            )
        worse, decibels = self.worse, self.sqnr_db
        if worse is not None:
            if isinstance(worse, bool) or not isinstance(worse, Integral) or worse < 0:
                raise InputError(
                    f"accuracy_budget: worse must be an integer of at least 0, not {shown(worse)}"
                )
            object.__setattr__(self, "worse", int(worse))
        if decibels is not None:
            if isinstance(decibels, bool) or not isinstance(decibels, Real) or not 0 < decibels < math.inf:
                raise InputError(f"accuracy_budget: sqnr_db must be a positive number, not {shown(decibels)}")
            object.__setattr__(self, "sqnr_db", float(decibels))
        share = self.share
        if share is not None:
            if isinstance(share, bool) or not isinstance(share, Real) or not 0 < share < 1:
                raise InputError(f"accuracy_budget: share must be between 0 and 1, not {shown(share)}")
            object.__setattr__(self, "share", float(share))
        try:
            labels = tuple(operator.index(label) for label in self.labels)
        except TypeError:
            raise InputError("accuracy_budget: labels must be integers") from None
        object.__setattr__(self, "labels", labels)
        if self.worse is not None and not labels:
            raise InputError(
                "accuracy_budget: a budget in labels needs the labels of the calibration samples"
            )
        if self.worse is not None and self.worse > len(labels):
            raise InputError(
                f"accuracy_budget: {self.worse:,} labels cannot be worse than before with only {len(labels):,} samples"
            )


#: Value of option `reuse` to compute only what depends on changed pixels.
REGIONS = "regions"


@identity(
    "Options",
    "rounding",
    "schedule",
    "strict",
    "calibration",
    "seed",
    "offset",
    "batch",
    "batches",
    "skip",
    "keep_float",
    "int16",
    "single",
    "dram",
    "limits",
    "fuse",
    "enable",
    "disable",
    "host",
    "keep_on_accelerator",
    "host_costs",
    "unroll",
    "accuracy_budget",
    "reuse",
    "lengths",
    "batch_schedules",
    added=(
        "fuse",
        "enable",
        "disable",
        "host",
        "keep_on_accelerator",
        "host_costs",
        "unroll",
        "accuracy_budget",
        "reuse",
        "lengths",
        "batch_schedules",
    ),
)
@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Compiler options for `compiler.tune`; most are described under the parameters of `compile`.

    Parameters
    ----------
    rounding : str
        Kernels whose rounding to reproduce: "reference", "xnnpack" or "onnxruntime".
    schedule, strict, calibration, seed, offset, batch, batches, skip, reuse, keep_float, int16, dram, limits
        Same as the parameters of `compile`.
    fuse, enable, disable, host, keep_on_accelerator, host_costs, accuracy_budget
        Same as the parameters of `compile`.
    unroll : tuple of (str, int)
        Names of loops and the factors by which they are unrolled, as `unroll_factors` returns them.
    single : bool
        True to compile each stage to one program, for dispatch by guards, whatever the schedule says.
    lengths : LengthRange or None
        Lengths given by the parameter `sizes` of `compile`; the model has the longest of them.
    batch_schedules : tuple of (int, Schedule)
        Schedules of some of the sizes in `batches`.

    Examples
    --------
    >>> options = compiler.CompileOptions(rounding="reference", batch=4)
    >>> result = compiler.tune("network.tflite", "n4", trials=20, options=options)

    Raises
    ------
    InputError
        `rounding` is none of these names, or a pass to switch is none of `PASSES`.
    """

    rounding: str
    schedule: Schedule | None = None
    strict: bool = False
    calibration: "Calibration | None" = None
    seed: int = 0
    offset: int = 0
    batch: int = 1
    batches: tuple[int, ...] = ()
    skip: str | None = None
    keep_float: tuple[str, ...] = ()
    int16: tuple[str, ...] = ()
    single: bool = False
    dram: DramTiming = DEFAULT_DRAM
    limits: MemoryLimits = UNLIMITED
    fuse: bool = False
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    keep_on_accelerator: tuple[str, ...] = ()
    host_costs: HostCosts = DEFAULT_HOST_COSTS
    unroll: tuple[tuple[str, int], ...] = ()
    accuracy_budget: AccuracyBudget | None = None
    reuse: bool | str = False
    lengths: LengthRange | None = None
    batch_schedules: tuple[tuple[int, Schedule], ...] = ()

    def __post_init__(self) -> None:
        if self.rounding not in ROUNDINGS:
            raise InputError(f"rounding must be {' or '.join(ROUNDINGS)}, not {shown(self.rounding)}")
        for option, names in (("enable", self.enable), ("disable", self.disable)):
            for name in names:
                if name not in PASSES:
                    raise InputError(f"{option} must be {', '.join(PASSES)}, not {shown(name)}")
                if name in self.enable and name in self.disable:
                    raise InputError(f"{option}: pass {name} cannot be both on and off")
        if self.accuracy_budget is not None and self.calibration is None:
            raise InputError(
                "accuracy_budget needs calibration samples (--calibrate, `calibration` in Python)"
            )

    @property
    def bits_budget(self) -> AccuracyBudget | None:
        """Budget within which the weights of the network have fewer bits; None for a cascade or without a budget."""
        budget = self.accuracy_budget
        return None if budget is None or budget.share is not None else budget

    @property
    def cascades(self) -> bool:
        """True for a budget that makes the network a cascade."""
        return self.accuracy_budget is not None and self.accuracy_budget.share is not None

    def runs(self, name: str) -> bool:
        """Return whether a pass of `PASSES` runs."""
        return name in self.enable or (PASSES[name].default and name not in self.disable)


@dataclass(frozen=True)
class PerformanceTargets:
    """Targets of the user for one inference; None for those that are not given.

    Parameters
    ----------
    cycles : float or None
        Largest number of cycles from the doorbell to the interrupt.
    energy_uj : float or None
        Largest energy in microjoules.
    rate : float or None
        Smallest number of inferences per second at `clock`, back to back.
    clock : float or None
        Clock frequency in MHz, for targets that are times or rates.
    """

    cycles: float | None = None
    energy_uj: float | None = None
    rate: float | None = None
    clock: float | None = None

    def judged(
        self, cycles: float | None, steady: float | None, energy_uj: float | None, *, bound: bool = False
    ) -> list[dict[str, Any]]:
        """Return one entry of the JSON field `performance_targets` for each target.

        Parameters
        ----------
        cycles, steady, energy_uj : float or None
            Cycles of an inference alone, cycles of an inference back to back (None: the same), and energy; None if not
            measured.
        bound : bool
            True if the cycles are a lower bound, so that a target can be missed, but not be met.
        """
        rate = (
            None
            if self.clock is None or not (steady or cycles)
            else self.clock * 1e6 / (steady or cycles or 1)
        )
        found = []
        for name, limit, value in (
            ("latency_cycles", self.cycles, cycles),
            ("energy_uj", self.energy_uj, energy_uj),
            ("inferences_per_second", self.rate, rate),
        ):
            if limit is None:
                continue
            good = (
                None
                if value is None
                else value >= limit
                if name == "inferences_per_second"
                else value <= limit
            )
            entry = {"target": name, "limit": limit, "value": value, "met": None if bound and good else good}
            entry["ratio"] = None if value is None else value / limit
            found.append(entry | {"clock_mhz": self.clock, "lower_bound": bound})
        return found


def target_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line of text for each entry of `PerformanceTargets.judged`."""
    lines = []
    for each in found:
        name, clock = each["target"].replace("_", " "), each["clock_mhz"]
        at = "" if clock is None else f" at {clock:g} MHz"
        if each["value"] is None:
            lines.append(f"target {name} {each['limit']:,.6g}{at}: not measured")
            continue
        verdict = {True: "met", False: "missed", None: "possible"}[each["met"]]
        kind = "bound" if each["lower_bound"] else "measured"
        lines.append(
            f"target {name} {each['limit']:,.6g}{at}: {verdict}, {kind} {each['value']:,.6g} "
            f"({each['ratio']:.1%} of the target)"
        )
    return lines
