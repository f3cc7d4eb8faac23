"""Prompts for the layers of a trajectory."""

from collections.abc import Mapping
from dataclasses import replace

from compiler.layers.base import Layer
from compiler.llm.data.machines import MACHINES
from compiler.llm.data.trajectories import Trajectory
from compiler.llm.tokens.layer_prompt import BEST, PromptSubject
from compiler.llm.tokens.prompt_tokens import chief
from compiler.pipeline import ModelCompiler
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.scheduler.initial import tiling_contexts
from compiler.tuning.edits.editable_programs import EditableProgram
from hw.isa.counters import CAUSES


class TrajectoryPrompts:
    """Builds prompts for layers under the schedules of a trajectory.

    Parameters
    ----------
    walk : Trajectory
        Trajectory with the network.
    """

    def __init__(self, walk: Trajectory):
        machine = MACHINES[walk.machine]
        self._prepared = ModelCompiler(walk.point.graph(), machine.conditions.config, machine.options)
        (stage,) = self._prepared.lowered(self._prepared.fusions)
        self.walk, self.layers = walk, stage.layers
        self._spots = tiling_contexts(self._prepared.config, stage, machine.conditions.dram)
        self._schedules: dict[int, list[LayerSchedule]] = {}

    def schedules(self, number: int) -> list[LayerSchedule]:
        """Return the schedules of all layers in a step."""
        if number not in self._schedules:
            self._schedules[number] = self.walk.schedules(number)
        return self._schedules[number]

    def network(self, number: int) -> CompiledNetwork:
        """Return the network compiled with the schedule of a step.

        Raises
        ------
        InputError
            The schedule is not legal for this compiler version.
        """
        named = {layer.name: each for layer, each in zip(self.layers, self.schedules(number), strict=True)}
        return self._prepared.network(Schedule(self._prepared.fusions, named))

    def of(self, number: int, layer: int) -> PromptSubject | None:
        """Return the prompt of a layer in a step; None if it has no own counter there or a size without tokens."""
        step = self.walk.steps[number]
        if not step.layers.get(layer):
            return None
        return self._subject(number, layer, dict(zip(CAUSES, step.where[layer], strict=True)))

    def of_program(self, number: int, piece: EditableProgram) -> PromptSubject | None:
        """Return the prompt of a program of a step, without its cost; None as in `of`."""
        named: Mapping[str, Layer] = {layer.name: layer for layer in self.layers}
        layer = chief([named[name] for name in piece.layers])
        return self._subject(number, self.layers.index(layer), {})

    def _subject(self, number: int, layer: int, where: dict[str, int]) -> PromptSubject | None:
        subject = PromptSubject(self.layers[layer], self._spots[layer], self.schedules(number)[layer], where)
        try:
            subject.words(BEST)
        except ValueError:
            return None
        return subject


def costing(subject: PromptSubject, where: list[int]) -> PromptSubject:
    """Return a prompt subject with the given cycles by cause."""
    return replace(subject, where=dict(zip(CAUSES, where, strict=True)))
