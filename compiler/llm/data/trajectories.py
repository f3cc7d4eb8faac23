"""Trajectories of a small network: successive schedules, each of which changes one layer of an earlier schedule.

A trajectory may include variants of one program, each of which adds an edit to an earlier variant.
"""

from dataclasses import dataclass, field, fields
from typing import Any

from compiler.ir.identity import items, restored, stored
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork
from compiler.tuning.edits.edit import Edit, Move, Split
from hw.isa.counters import CAUSES

_DEFAULT = LayerSchedule()


@dataclass(frozen=True)
class TrajectoryStep:
    """Schedule with its measured cost.

    Parameters
    ----------
    base : int
        Index of the step from which this step was derived; -1 for the first step, the static compiler's schedule.
    layer : int
        Index of the layer that differs from the base.
    changes : dict
        Changed fields of the layer's schedule with their new values.
    cycles : int
        Cycles of the network.
    layers : dict
        Cycles of each counter tag, keyed by the index of the first layer with that tag.
    where : dict
        Cycles by cause, in the order of hw.isa.counters.CAUSES, with the same keys.
    """

    base: int
    layer: int
    changes: dict[str, Any]
    cycles: int
    layers: dict[int, int]
    where: dict[int, list[int]]


@dataclass(frozen=True)
class EditVariant:
    """Program variant with its measured cost.

    Parameters
    ----------
    base : int
        Index of the variant from which this variant was derived; -1 for the first variant, the compiled program.
    edit : Edit or None
        Edit applied to the base; None for the first variant.
    cycles : int
        Cycles of the program's counter tags.
    where : list of int
        Cycles by cause, in the order of hw.isa.counters.CAUSES.
    """

    base: int
    edit: Edit | None
    cycles: int
    where: list[int]


@dataclass(frozen=True)
class EditTrajectory:
    """Measured variants of one program, each derived from an earlier one.

    Parameters
    ----------
    step : int
        Index of the step with whose schedule the program was compiled.
    program : str
        Name of the program.
    variants : list of EditVariant
        Variants in the order of measurement.
    """

    step: int
    program: str
    variants: list[EditVariant]

    def edits(self, number: int) -> tuple[Edit, ...]:
        """Return the edits that lead from the compiled program to a variant."""
        variant = self.variants[number]
        return () if variant.edit is None else (*self.edits(variant.base), variant.edit)

    def as_json(self) -> list[Any]:
        """Return the variants as JSON values."""
        variants = [[each.base, _numbers(each.edit), each.cycles, each.where] for each in self.variants]
        return [self.step, self.program, variants]

    @staticmethod
    def from_json(data: list[Any]) -> "EditTrajectory":
        """Parse JSON values as returned by `as_json`; raise ValueError or TypeError if they are invalid."""
        step, program, variants = data
        trajectory = EditTrajectory(int(step), str(program), [_variant(*each) for each in variants])
        for number, variant in enumerate(trajectory.variants):
            first = variant.edit is None and variant.base == -1
            if first != (number == 0) or not (first or (variant.edit and 0 <= variant.base < number)):
                raise ValueError("a variant must be derived from an earlier one")
        return trajectory


@dataclass(frozen=True)
class Trajectory:
    """All measurements of one network on one hardware configuration.

    Parameters
    ----------
    machine : str
        Name of the configuration, a key of compiler.llm.data.held_out.MACHINES.
    index : int
        Number of the network among those sampled for the configuration.
    point : CalibrationNetwork
        Network that was measured.
    first : list of dict
        Non-default schedule fields of each layer in the first step.
    steps : list of TrajectoryStep
        Steps in the order of measurement.
    edited : EditTrajectory or None
        Measured edits of one program; None if no edits were measured or no program can be edited.
    """

    machine: str
    index: int
    point: CalibrationNetwork
    first: list[dict[str, Any]]
    steps: list[TrajectoryStep] = field(default_factory=list)
    edited: EditTrajectory | None = None

    def schedules(self, number: int) -> list[LayerSchedule]:
        """Return the schedules of all layers in a step."""
        step = self.steps[number]
        if step.base < 0:
            return [restored(LayerSchedule, each) for each in self.first]
        layers = self.schedules(step.base)
        values = stored(layers[step.layer]) | step.changes
        return [*layers[: step.layer], restored(LayerSchedule, values), *layers[step.layer + 1 :]]

    def as_json(self) -> dict[str, Any]:
        """Return the trajectory as a JSON object."""
        steps = [
            [
                each.base,
                each.layer,
                each.changes,
                each.cycles,
                list(each.layers.items()),
                list(each.where.values()),
            ]
            for each in self.steps
        ]
        edited = {} if self.edited is None else {"edited": self.edited.as_json()}
        return {
            "machine": self.machine,
            "index": self.index,
            "point": self.point.as_json(),
            "first": self.first,
            "steps": steps,
            **edited,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Trajectory":
        """Parse a trajectory from a JSON object as returned by `as_json`.

        Raises
        ------
        ValueError
            The object is not a valid trajectory.
        """
        try:
            steps = [_step(*each) for each in data["steps"]]
            edited = EditTrajectory.from_json(data["edited"]) if "edited" in data else None
            trajectory = Trajectory(
                str(data["machine"]),
                int(data["index"]),
                CalibrationNetwork.from_json(data["point"]),
                list(data["first"]),
                steps,
                edited,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not measurements of a network: {error}") from None
        if any(not -1 <= step.base < number for number, step in enumerate(steps)):
            raise ValueError("a step must be derived from an earlier one")
        if edited is not None and not 0 <= edited.step < len(steps):
            raise ValueError("edits must refer to an existing step")
        return trajectory


def _step(base: int, layer: int, changes: dict, cycles: int, layers: list, where: list) -> TrajectoryStep:
    found = {int(number): int(each) for number, each in layers}
    causes = dict(zip(found, where, strict=True))
    if any(len(each) != len(CAUSES) for each in causes.values()):
        raise ValueError(f"cycles by cause must be {len(CAUSES)} values")
    return TrajectoryStep(int(base), int(layer), dict(changes), int(cycles), found, causes)


def _variant(base: int, edit: list[int], cycles: int, where: list[int]) -> EditVariant:
    if len(where) != len(CAUSES):
        raise ValueError(f"cycles by cause must be {len(CAUSES)} values")
    return EditVariant(int(base), _edit(edit), int(cycles), [int(each) for each in where])


def _numbers(edit: Edit | None) -> list[int]:
    return [] if edit is None else list(vars(edit).values())


def _edit(numbers: list[int]) -> Edit | None:
    """Parse an edit from its field values: two for a move, four for a split."""
    if not numbers:
        return None
    found = [int(each) for each in numbers]
    return Move(*found) if len(found) == len(fields(Move)) else Split(*found)


def non_default(schedule: LayerSchedule) -> dict[str, Any]:
    """Return the fields that differ from the defaults."""
    return changed_fields(schedule, _DEFAULT)


def changed_fields(schedule: LayerSchedule, base: LayerSchedule) -> dict[str, Any]:
    """Return the fields that differ from `base`, by stable name."""
    now = dict(items(base))
    return {name: value for name, value in items(schedule) if value != now[name]}
