"""A small network under one schedule after another, each of which differs from an earlier one in one layer."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from compiler.hpm.points import Point
from compiler.schedule.schedule import LayerSchedule
from hw.isa.counters import CAUSES

_DEFAULT = LayerSchedule()


@dataclass(frozen=True)
class Step:
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
class Walk:
    """All that was measured of one network on one machine.

    Parameters
    ----------
    machine : str
        A key of compiler.llm.corpus.machines.MACHINES.
    index : int
        Of the network among those that are drawn for the machine.
    point : Point
        The network.
    first : list of dict
        Fields of each layer's schedule in the first step that are other than LayerSchedule's defaults.
    steps : list of Step
        In the order they were measured.
    """

    machine: str
    index: int
    point: Point
    first: list[dict[str, Any]]
    steps: list[Step] = field(default_factory=list)

    def schedules(self, number: int) -> list[LayerSchedule]:
        """Those of all layers in a step."""
        step = self.steps[number]
        if step.base < 0:
            return [LayerSchedule(**each) for each in self.first]
        layers = self.schedules(step.base)
        values = asdict(layers[step.layer]) | step.changes
        return [*layers[: step.layer], LayerSchedule(**values), *layers[step.layer + 1 :]]

    def as_json(self) -> dict[str, Any]:
        """As numbers and text."""
        steps = [
            [each.base, each.layer, each.changes, each.cycles, list(each.layers.items()), list(each.where.values())]
            for each in self.steps
        ]  # fmt: skip
        return {
            "machine": self.machine, "index": self.index, "point": self.point.as_json(), "first": self.first,
            "steps": steps,
        }  # fmt: skip

    @staticmethod
    def of(data: dict[str, Any]) -> "Walk":
        """From what `as_json` gives.

        Raises
        ------
        ValueError
            It is something else.
        """
        try:
            steps = [_step(*each) for each in data["steps"]]
            walk = Walk(
                str(data["machine"]), int(data["index"]), Point.of(data["point"]), list(data["first"]), steps
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no measurements of a network: {error}") from None
        if any(not -1 <= step.base < number for number, step in enumerate(steps)):
            raise ValueError("a step must be made from an earlier one")
        return walk


def _step(base: int, layer: int, changes: dict, cycles: int, layers: list, where: list) -> Step:
    found = {int(number): int(each) for number, each in layers}
    causes = dict(zip(found, where, strict=True))
    if any(len(each) != len(CAUSES) for each in causes.values()):
        raise ValueError(f"cycles by cause are {len(CAUSES)} numbers")
    return Step(int(base), int(layer), dict(changes), int(cycles), found, causes)


def unusual(schedule: LayerSchedule) -> dict[str, Any]:
    """Fields that are other than the defaults."""
    return different(schedule, _DEFAULT)


def different(schedule: LayerSchedule, base: LayerSchedule) -> dict[str, Any]:
    """Fields that are other than in another schedule."""
    return {
        item.name: getattr(schedule, item.name)
        for item in fields(LayerSchedule)
        if getattr(schedule, item.name) != getattr(base, item.name)
    }
