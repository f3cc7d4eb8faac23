"""The layers and programs of a network that the language model is asked about."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from compiler.llm.asking import chief
from compiler.llm.describe import Subject
from compiler.llm.outline import outline_words
from compiler.lower.layer import Layer
from compiler.schedule.heuristic import spots_of
from compiler.schedule.spot import Spot
from compiler.specialize.edits.workshop import Piece, Workshop
from compiler.specialize.task import Task
from hw.isa.counters import CAUSES


def subjects_of(task: Task) -> dict[str, Subject]:
    """The layers that a task is about, the slowest first."""
    found: dict[str, Subject] = {}
    cycles: dict[str, int] = {}
    for name, (layer, spot) in _placed(task).items():
        if name in task.layers:
            entry = task.measured.of(name)
            found[name] = Subject(layer, spot, task.schedule.layers[name], entry.where)
            cycles[name] = entry.cycles
    return dict(sorted(found.items(), key=lambda each: -cycles[each[0]]))


def _placed(task: Task) -> dict[str, tuple[Layer, Spot]]:
    """All layers, and what each finds."""
    config, dram = task.prepared.config, task.conditions.dram
    return {
        layer.name: (layer, spot)
        for stage in task.prepared.lowered(task.schedule.fusions)
        for layer, spot in zip(stage.layers, spots_of(config, stage, dram), strict=True)
    }


@dataclass(eq=False)
class Programs:
    """The programs of a task that can be edited.

    Parameters
    ----------
    task : Task
        Which; its programs as they are, texts among them.
    measured : bool
        Whether the task's measurement is of its schedule.
    """

    task: Task
    measured: bool = True

    @cached_property
    def workshop(self) -> Workshop:
        """Makes others of them."""
        return Workshop(self.task.network)

    @cached_property
    def pieces(self) -> list[Piece]:
        """Those that have a part in the layers that are asked about, the slowest first."""
        found = [each for each in self.workshop.pieces if set(each.layers) & set(self.task.layers)]
        found = [each for each in found if each.unrolled.commands]
        return sorted(found, key=lambda each: -each.cycles(self.task.measured)) if self.measured else found

    def subject(self, piece: Piece) -> Subject:
        """The layer that a program is asked about as, with the program's cycles."""
        named: Mapping[str, tuple[Layer, Spot]] = self._placed
        layer = chief([named[name][0] for name in piece.layers])
        return Subject(*named[layer.name], self.task.schedule.layers[layer.name], self._where(piece))

    def outline(self, piece: Piece) -> list[str]:
        """Of a program."""
        return outline_words(piece.unrolled.commands, self.workshop.config.n)

    @cached_property
    def _placed(self) -> dict[str, tuple[Layer, Spot]]:
        return _placed(self.task)

    def _where(self, piece: Piece) -> dict[str, int]:
        if not self.measured:
            return {}
        entries = [each for each in self.task.measured.layers if set(piece.layers) & set(each.names)]
        return {cause: sum(each.where.get(cause, 0) for each in entries) for cause in CAUSES}
