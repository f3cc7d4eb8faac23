"""A small network under one schedule after another, each of which differs from an earlier one in one layer.

And one program of it under one edit after another.
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
    """A schedule and what it cost.

    Parameters
    ----------
    base : int
        Number of the step it was made from; the first one, which is the static compiler's, has -1.
    layer : int
        Number of the layer that is other than there.
    changes : dict
        Fields of its schedule that are, and their values now.
    cycles : int
        Of the network.
    layers : dict
        Cycles of each tag, by the number of its first layer.
    where : dict
        The same by cause, in the order of hw.isa.counters.CAUSES.
    """

    base: int
    layer: int
    changes: dict[str, Any]
    cycles: int
    layers: dict[int, int]
    where: dict[int, list[int]]


@dataclass(frozen=True)
class EditVariant:
    """A program after an edit.

    Parameters
    ----------
    base : int
        Number of the variant it was made from; the first one, which is the program as compiled, has -1.
    edit : Edit or None
        What is other than there; None: nothing, it is the first.
    cycles : int
        Of the program's tags.
    where : list of int
        The same by cause, in the order of hw.isa.counters.CAUSES.
    """

    base: int
    edit: Edit | None
    cycles: int
    where: list[int]


@dataclass(frozen=True)
class EditWalk:
    """What was measured of variants of a program.

    Parameters
    ----------
    step : int
        Number of the step whose schedule it was compiled from.
    program : str
        Its name.
    variants : list of Variant
        In the order they were measured.
    """

    step: int
    program: str
    variants: list[EditVariant]

    def edits(self, number: int) -> tuple[Edit, ...]:
        """All that lead from the program as compiled to a variant."""
        variant = self.variants[number]
        return () if variant.edit is None else (*self.edits(variant.base), variant.edit)

    def as_json(self) -> list[Any]:
        """As numbers and text."""
        variants = [[each.base, _numbers(each.edit), each.cycles, each.where] for each in self.variants]
        return [self.step, self.program, variants]

    @staticmethod
    def of(data: list[Any]) -> "EditWalk":
        """From what `as_json` gives; ValueError, TypeError: it is something else."""
        step, program, variants = data
        walk = EditWalk(int(step), str(program), [_variant(*each) for each in variants])
        for number, variant in enumerate(walk.variants):
            first = variant.edit is None and variant.base == -1
            if first != (number == 0) or not (first or (variant.edit and 0 <= variant.base < number)):
                raise ValueError("a variant must be made from an earlier one")
        return walk


@dataclass(frozen=True)
class Trajectory:
    """All that was measured of one network on one machine.

    Parameters
    ----------
    machine : str
        A key of compiler.llm.data.machines.MACHINES.
    index : int
        Of the network among those that are drawn for the machine.
    point : Point
        The network.
    first : list of dict
        Fields of each layer's schedule in the first step that are other than LayerSchedule's defaults.
    steps : list of Step
        In the order they were measured.
    edited : EditWalk or None
        Of one of its programs; None: not measured, or none can be edited.
    """

    machine: str
    index: int
    point: CalibrationNetwork
    first: list[dict[str, Any]]
    steps: list[TrajectoryStep] = field(default_factory=list)
    edited: EditWalk | None = None

    def schedules(self, number: int) -> list[LayerSchedule]:
        """Those of all layers in a step."""
        step = self.steps[number]
        if step.base < 0:
            return [restored(LayerSchedule, each) for each in self.first]
        layers = self.schedules(step.base)
        values = stored(layers[step.layer]) | step.changes
        return [*layers[: step.layer], restored(LayerSchedule, values), *layers[step.layer + 1 :]]

    def as_json(self) -> dict[str, Any]:
        """As numbers and text."""
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
    def of(data: dict[str, Any]) -> "Trajectory":
        """From what `as_json` gives.

        Raises
        ------
        ValueError
            It is something else.
        """
        try:
            steps = [_step(*each) for each in data["steps"]]
            edited = EditWalk.of(data["edited"]) if "edited" in data else None
            walk = Trajectory(
                str(data["machine"]),
                int(data["index"]),
                CalibrationNetwork.of(data["point"]),
                list(data["first"]),
                steps,
                edited,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no measurements of a network: {error}") from None
        if any(not -1 <= step.base < number for number, step in enumerate(steps)):
            raise ValueError("a step must be made from an earlier one")
        if edited is not None and not 0 <= edited.step < len(steps):
            raise ValueError("edits must be of the program of a step")
        return walk


def _step(base: int, layer: int, changes: dict, cycles: int, layers: list, where: list) -> TrajectoryStep:
    found = {int(number): int(each) for number, each in layers}
    causes = dict(zip(found, where, strict=True))
    if any(len(each) != len(CAUSES) for each in causes.values()):
        raise ValueError(f"cycles by cause are {len(CAUSES)} numbers")
    return TrajectoryStep(int(base), int(layer), dict(changes), int(cycles), found, causes)


def _variant(base: int, edit: list[int], cycles: int, where: list[int]) -> EditVariant:
    if len(where) != len(CAUSES):
        raise ValueError(f"cycles by cause are {len(CAUSES)} numbers")
    return EditVariant(int(base), _edit(edit), int(cycles), [int(each) for each in where])


def _numbers(edit: Edit | None) -> list[int]:
    return [] if edit is None else list(vars(edit).values())


def _edit(numbers: list[int]) -> Edit | None:
    """A move has two numbers, a split four."""
    if not numbers:
        return None
    found = [int(each) for each in numbers]
    return Move(*found) if len(found) == len(fields(Move)) else Split(*found)


def unusual(schedule: LayerSchedule) -> dict[str, Any]:
    """Fields that are other than the defaults."""
    return different(schedule, _DEFAULT)


def different(schedule: LayerSchedule, base: LayerSchedule) -> dict[str, Any]:
    """Fields that are other than in another schedule, by their stable names."""
    now = dict(items(base))
    return {name: value for name, value in items(schedule) if value != now[name]}
