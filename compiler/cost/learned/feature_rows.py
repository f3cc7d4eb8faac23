"""Features of the layers of a stage, under one schedule after another."""

from collections.abc import Mapping, Sequence
from typing import Any

from compiler.cost.learned.features import FeatureRow, LayerFeatures, row_of
from compiler.layers.layer_context import LayerContext
from compiler.layers.registry import kind_number, kind_of
from compiler.layers.tile_pipeline import PipelineTiming, simulate_pipeline
from compiler.lowering.lower import LoweredNetwork
from compiler.profile.hardware_profile import HardwareProfile
from compiler.schedule.schedule import LayerSchedule

#: So many layers before a neighbour say how far ahead LOAD is.
_BACK = 2


class RowMaker:
    """Features of the layers of a stage, memoized from schedule to schedule.

    Parameters
    ----------
    stage : LoweredNetwork
        Layers of the stage.
    conditions : HardwareProfile
        Configuration of the machine and timing of its memory.
    """

    def __init__(self, stage: LoweredNetwork, conditions: HardwareProfile):
        self.layers, self.conditions = stage.layers, conditions
        graph = stage.graph
        self._outside = {stage.root(name) for name in (*graph.inputs, *graph.outputs)}
        names = {name for layer in stage.layers for name in (*layer.inputs, layer.y, *layer.shapes)}
        self._root = {name: stage.root(name) for name in names}
        self._tensors = [
            tuple(dict.fromkeys((layer.x, layer.y, *layer.inputs, *layer.shapes))) for layer in stage.layers
        ]
        self._numbers = {layer.name: number for number, layer in enumerate(stage.layers)}
        self._fixed = [LayerFeatures(layer, conditions.config.n) for layer in stage.layers]
        self._states: dict[tuple, int] = {}
        self._paces: dict[tuple, PipelineTiming] = {}
        self._rows: dict[tuple, FeatureRow] = {}

    def rows(
        self, schedules: Mapping[str, LayerSchedule], only: Sequence[str] | None = None
    ) -> dict[str, FeatureRow]:
        """Features of all layers, or `only` of some, by name."""
        contexts = _Contexts(self, schedules)
        numbers = range(len(self.layers)) if only is None else (self._numbers[name] for name in only)
        return {self.layers[number].name: self._row(number, contexts) for number in numbers}

    def lead(self, number: int, schedules: Mapping[str, LayerSchedule]) -> float:
        """Cycles before the end of the previous layer from which on LOAD is idle; 0 if there is no previous layer."""
        return self.pace(number - 1, _BACK, _Contexts(self, schedules)).lead if number else 0.0

    def place(self, number: int, inside: frozenset[str], **beside: Any) -> LayerContext:
        """Context of a layer if the tensors `inside` stay on chip; `beside` describes its neighbours."""
        layer, root, conditions = self.layers[number], self._root, self.conditions
        return LayerContext(
            conditions.config,
            conditions.dram,
            root[layer.x] in inside,
            root[layer.y] in inside,
            lambda name: root[name] in inside,
            **beside,
        )

    def inside(self, schedules: Mapping[str, LayerSchedule]) -> frozenset[str]:
        """Tensors that stay on the chip."""
        return frozenset(
            {self._root[layer.y] for layer in self.layers if schedules[layer.name].on_chip} - self._outside
        )

    def state(self, number: int, schedules: Mapping[str, LayerSchedule], inside: frozenset[str]) -> int:
        """Number of the state that the timing of a layer by itself depends on."""
        root = self._root
        here = tuple(root[name] in inside for name in self._tensors[number])
        return self._states.setdefault((schedules[self.layers[number].name], here), len(self._states))

    def pace(self, number: int, back: int, contexts: "_Contexts") -> PipelineTiming:
        """Timing of a layer behind `back` others."""
        first = max(number - back, 0)
        key = (number, back, *(contexts.state(each) for each in range(first, number + 1)))
        if key not in self._paces:
            place = self.place(number, contexts.inside)
            before = self.pace(number - 1, back - 1, contexts).lead if back and number else None
            layer = self.layers[number]
            pipeline = kind_of(layer).tile_model(layer, contexts.schedules[layer.name], place)
            self._paces[key] = simulate_pipeline(pipeline, place.beat, place.dram.latency, before, last=False)
        return self._paces[key]

    def _row(self, number: int, contexts: "_Contexts") -> FeatureRow:
        layers = self.layers
        first, last = max(number - 1 - _BACK, 0), min(number + 1, len(layers) - 1)
        key = (number, *(contexts.state(each) for each in range(first, last + 1)))
        if key not in self._rows:
            beside: dict[str, Any] = {}
            if number:
                beside |= {
                    "before": self.pace(number - 1, 0, contexts).total,
                    "lead": self.pace(number - 1, _BACK, contexts).lead,
                    "kind_before": kind_number(layers[number - 1]),
                    "turns_before": contexts.schedules[layers[number - 1].name].interleave,
                }
            if number < last:
                behind = contexts.schedules[layers[last].name]
                beside |= {
                    "after": self.pace(last, 0, contexts).total,
                    "kind_after": kind_number(layers[last]),
                    "turns_after": behind.interleave,
                    "joined_after": behind.same_program_as_previous,
                }
            place, schedule = (
                self.place(number, contexts.inside, **beside),
                contexts.schedules[layers[number].name],
            )
            self._rows[key] = row_of(layers[number], self._fixed[number], schedule, place)
        return self._rows[key]


class _Contexts:
    """Contexts of the layers of a stage under their schedules."""

    def __init__(self, maker: RowMaker, schedules: Mapping[str, LayerSchedule]):
        self.maker, self.schedules, self.inside = maker, schedules, maker.inside(schedules)
        self._states: dict[int, int] = {}

    def state(self, number: int) -> int:
        """State number of one layer."""
        if number not in self._states:
            self._states[number] = self.maker.state(number, self.schedules, self.inside)
        return self._states[number]


def rows_of(
    lowered: LoweredNetwork,
    schedules: Mapping[str, LayerSchedule],
    conditions: HardwareProfile,
    only: Sequence[str] | None = None,
) -> dict[str, FeatureRow]:
    """Features of the layers of a stage under their schedules, or `only` of some, by name."""
    return RowMaker(lowered, conditions).rows(schedules, only)
