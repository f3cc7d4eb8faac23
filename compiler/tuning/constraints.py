"""Search objectives, targets and constraints."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from compiler.profile.measurement import Measurement, Result
from compiler.schedule.schedule import LayerSchedule, Schedule
from hw.errors import InputError, shown


class Objective(StrEnum):
    """Metric to minimize."""

    LATENCY = "latency"
    ENERGY = "energy"
    THROUGHPUT = "throughput"

    def cost(self, measured: Measurement) -> float:
        """Return the cost of a measurement: cycles per sample, or microjoules."""
        return measured.energy_uj if self is Objective.ENERGY else float(measured.cycles)

    def layer_costs(self, measured: Measurement) -> list[float]:
        """Return the cost of each entry of a measurement's layers, in cycles or nanojoules.

        In measurements of earlier versions, which have no energy of layers, the energy is divided in proportion to the
        cycles.
        """
        if self is not Objective.ENERGY:
            return [float(entry.cycles) for entry in measured.layers]
        if any(entry.energy_uj for entry in measured.layers):
            return [1e3 * entry.energy_uj for entry in measured.layers]
        each = 1e3 * measured.energy_uj / max(measured.cycles, 1)
        return [each * entry.cycles for entry in measured.layers]


@dataclass(frozen=True)
class Targets:
    """Values of a measurement at which a search ends, since nothing better is needed.

    Parameters
    ----------
    cycles : float or None
        Maximum number of cycles per request, measured as for the goal; None: no such target.
    energy_uj : float or None
        Maximum energy per request in microjoules; None: no such target.

    Raises
    ------
    InputError
        A target is not a number above 0.
    """

    cycles: float | None = None
    energy_uj: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("target_latency", self.cycles), ("target_energy", self.energy_uj)):
            if value is not None and not (isinstance(value, int | float) and 0 < value < float("inf")):
                raise InputError(f"{name} must be a number above 0 or None, not {shown(value)}")

    def __bool__(self) -> bool:
        return self.cycles is not None or self.energy_uj is not None

    def met(self, result: Result) -> bool:
        """Return True if there are targets and a valid measurement meets all of them."""
        return (
            bool(self)
            and isinstance(result, Measurement)
            and result.valid
            and (self.cycles is None or result.cycles <= self.cycles)
            and (self.energy_uj is None or result.energy_uj <= self.energy_uj)
        )


#: Targets of a search that ends only with its trials.
NO_TARGETS = Targets()

#: Transformations by name, with the fields of a layer's schedule that each one changes.
TRANSFORMATIONS: dict[str, frozenset[str]] = {
    "tiling": frozenset(
        {"rows", "rows_per_load", "width", "strip_width", "columns", "depth", "param_blocks"}
    ),
    "order": frozenset({"order"}),
    "layout": frozenset({"pixels_per_pass"}),
    "decomposition": frozenset({"fold_kernel_width", "im2col"}),  # direct convolution, or by patches
    "buffers": frozenset({"x_buffers", "w_buffers", "y_buffers", "acc_buffers", "param_buffers"}),
    "prefetch": frozenset({"prefetch"}),
    "split_tiles": frozenset({"split_first_tile", "split_last_tile"}),
    "scale": frozenset({"common_scale"}),
    "on_chip": frozenset({"on_chip"}),
    "kept_weights": frozenset({"kept_weights"}),
    "packed_weights": frozenset({"packed_weights"}),
    "channel_blocks": frozenset({"stream_channel_blocks"}),
    "row_blocks": frozenset({"stream_row_blocks"}),
    "interleave": frozenset({"interleave"}),
    "same_program": frozenset({"same_program_as_previous"}),
    "counter_tag": frozenset({"own_counter_tag"}),
    "chain": frozenset(),  # fusion of nodes into layers
    "micro-program": frozenset(),  # assembly texts that replace the code generator's programs
}
#: Former names of transformations, which are still accepted.
_ALIASES = {
    "ramp": "split_tiles",
    "planes": "channel_blocks",
    "turns": "interleave",
    "program": "same_program",
    "tag": "counter_tag",
}


@dataclass(frozen=True)
class Constraints:
    """Set of transformations that a search must not use.

    Parameters
    ----------
    forbidden : frozenset of str
        Forbidden transformations: keys of TRANSFORMATIONS. Former names are replaced by the current ones.

    Raises
    ------
    InputError
        A transformation does not exist.
    """

    forbidden: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "forbidden", frozenset(_ALIASES.get(name, name) for name in self.forbidden))
        for name in sorted(self.forbidden):
            if name not in TRANSFORMATIONS:
                raise InputError(
                    f"a transformation is one of {', '.join(TRANSFORMATIONS)}, not {shown(name)}"
                )

    @property
    def frozen_fields(self) -> frozenset[str]:
        """Fields of layer schedules that must not change."""
        return frozenset(name for each in self.forbidden for name in TRANSFORMATIONS[each])

    def violation(self, schedule: Schedule, first: Schedule) -> str | None:
        """Return a forbidden transformation by which a schedule differs from `first`; None if there is none."""
        if "chain" in self.forbidden and set(schedule.fusions) != set(first.fusions):
            return "chain"
        if "micro-program" in self.forbidden and schedule.programs:
            return "micro-program"
        frozen = self.frozen_fields
        for name in schedule.layers.keys() & first.layers.keys():
            changed = _changed(schedule.layers[name], first.layers[name], frozen)
            if changed is not None:
                return next(each for each in self.forbidden if changed in TRANSFORMATIONS[each])
        return None


def _changed(schedule: LayerSchedule, first: LayerSchedule, names: Iterable[str]) -> str | None:
    return next((name for name in names if getattr(schedule, name) != getattr(first, name)), None)


#: Constraints that forbid no transformation.
UNCONSTRAINED = Constraints()
