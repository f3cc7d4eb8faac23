"""The layers of a walk as the language model is shown them."""

from collections.abc import Mapping
from dataclasses import replace

from compiler.llm.asking import chief
from compiler.llm.corpus.machines import MACHINES
from compiler.llm.corpus.walk import Walk
from compiler.llm.describe import BEST, Subject
from compiler.lower.layer import Layer
from compiler.network import Network
from compiler.pipeline import Prepared
from compiler.schedule.heuristic import spots_of
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.specialize.edits.workshop import Piece
from hw.isa.counters import CAUSES


class Subjects:
    """The layers of a walk under its steps.

    Parameters
    ----------
    walk : Walk
        Which.
    """

    def __init__(self, walk: Walk):
        machine = MACHINES[walk.machine]
        self._prepared = Prepared(walk.point.graph(), machine.conditions.config, machine.options)
        (stage,) = self._prepared.lowered(self._prepared.fusions)
        self.walk, self.layers = walk, stage.layers
        self._spots = spots_of(self._prepared.config, stage, machine.conditions.dram)
        self._schedules: dict[int, list[LayerSchedule]] = {}

    def schedules(self, number: int) -> list[LayerSchedule]:
        """Those of all layers in a step."""
        if number not in self._schedules:
            self._schedules[number] = self.walk.schedules(number)
        return self._schedules[number]

    def network(self, number: int) -> Network:
        """What is compiled of a step.

        Raises
        ------
        InputError
            The schedule is not legal, which it was for the compiler that measured it.
        """
        named = {layer.name: each for layer, each in zip(self.layers, self.schedules(number), strict=True)}
        return self._prepared.network(Schedule(self._prepared.fusions, named))

    def of(self, number: int, layer: int) -> Subject | None:
        """A layer in a step; None: it was not counted by itself there, or has a size without words."""
        step = self.walk.steps[number]
        if not step.layers.get(layer):
            return None
        return self._subject(number, layer, dict(zip(CAUSES, step.where[layer], strict=True)))

    def of_program(self, number: int, piece: Piece) -> Subject | None:
        """The layer that a program of a step is asked about as, nothing known of its cost; None as in `of`."""
        named: Mapping[str, Layer] = {layer.name: layer for layer in self.layers}
        layer = chief([named[name] for name in piece.layers])
        return self._subject(number, self.layers.index(layer), {})

    def _subject(self, number: int, layer: int, where: dict[str, int]) -> Subject | None:
        subject = Subject(self.layers[layer], self._spots[layer], self.schedules(number)[layer], where)
        try:
            subject.words(BEST)
        except ValueError:
            return None
        return subject


def costing(subject: Subject, where: list[int]) -> Subject:
    """A layer that costs so many cycles by cause."""
    return replace(subject, where=dict(zip(CAUSES, where, strict=True)))
