"""Prediction of a network's cycles under a schedule: layer by layer, or by the timeline of its compiled commands."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from compiler.cost.features import FeatureRow, row_maker
from compiler.cost.learned_model import CycleModel
from compiler.cost.timeline import timeline_cycles
from compiler.initial_schedule.block_streaming import ChannelBlockPair, FusedPair, attentions, streaming_pairs
from compiler.initial_schedule.initial import FUSE_ONLY, attention_tilings, tiling_contexts
from compiler.layers.base import Layer
from compiler.lowering.lower import LoweredNetwork
from compiler.pipeline import CompilationTrace, ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.util.lru_cache import LruCache
from compiler.util.tiles import ceil_div
from hw.config import MlaConfig
from hw.errors import InputError

#: Expected relative error of the estimate of a channel-streaming pair; minimum relative error of the learned model.
_PAIR_ERROR, _MIN_ERROR = 0.1, 0.03


#: Capacity of the cache of simulated schedules.
_MAX_SIMULATED = 1 << 8

#: Share of the cycles of the shorter layer of an interleaved pair that overlap the other layer, except in its last
#: tile; 0.43 to 0.66 in pairs with 4 and 8 tiles on n16 (`python -m scripts.study_fusion --seed 20261`).
_OVERLAP = 0.5
#: Cycles per tile that do not overlap, because FUSE waits for the results of the tile.
_TILE_START = 60


def _tile_count(layer: Layer, schedule: LayerSchedule) -> int:
    """Return the number of tiles of a layer along its rows."""
    height = layer.shapes[layer.y].h
    return ceil_div(height, min(schedule.rows, height))


class NetworkPrediction(NamedTuple):
    """Predicted cycles and their expected error in cycles."""

    cycles: float
    error: float


class SimulatedNetwork(NamedTuple):
    """Cycles and number of the compiled commands of a network, and the words of its programs."""

    cycles: float
    commands: int
    programs: tuple[tuple[int, ...], ...]


class _Stage:
    """Data of a stage that are reused for different schedules."""

    def __init__(self, stage: LoweredNetwork, config: MlaConfig, conditions: HardwareProfile):
        self.stage, self.config, self.dram = stage, config, conditions.dram
        self.rows = row_maker(stage, conditions)
        #: Predictions by the identity of the features, which are kept so that identities remain unique.
        self.predictions: dict[int, tuple[FeatureRow, NetworkPrediction]] = {}
        self._candidates: dict[int, dict[tuple[LayerSchedule, LayerSchedule], FusedPair]] = {}
        self._attentions: dict[int, dict[tuple[LayerSchedule, ...], float]] = {}

    @cached_property
    def useful(self) -> dict[str, float]:
        """Cycles of the multiply-accumulates of each layer on the full array, by name."""
        return {layer.name: layer.macs / self.config.n**2 for layer in self.stage.layers}

    def bounded(self, name: str, predicted: NetworkPrediction) -> NetworkPrediction:
        """Return the prediction for a layer, at least its lower bound, which the learned model does not know."""
        return predicted._replace(cycles=max(predicted.cycles, self.useful[name]))

    def overlapped(
        self, number: int, schedules: dict[str, LayerSchedule], predicted: dict[str, NetworkPrediction]
    ) -> dict[str, NetworkPrediction]:
        """Return the prediction for the layer of an interleaved pair that uses only FUSE, less the overlapping cycles.

        The pair consists of the layer with the given index and the next one. While FUSE executes a tile of one layer,
        MATRIX computes the next tile of the other. The learned model does not know which layers are interleaved with
        each other. The result is empty for other pairs.
        """
        pair = self.stage.layers[number : number + 2]
        alone = [layer for layer in pair if isinstance(layer, FUSE_ONLY)]
        if len(pair) < 2 or len(alone) != 1 or not all(schedules[layer.name].interleave for layer in pair):
            return {}
        if self.stage.root(pair[0].y) not in map(self.stage.root, pair[1].inputs):
            return {}
        tiles = min(_tile_count(layer, schedules[layer.name]) for layer in pair)
        shorter = min(predicted[layer.name].cycles for layer in pair)
        hidden = (1 - 1 / tiles) * _OVERLAP * max(shorter - tiles * _TILE_START, 0.0)
        before = predicted[alone[0].name]
        error = (before.error**2 + (hidden / 2) ** 2) ** 0.5
        return {alone[0].name: NetworkPrediction(before.cycles - hidden, error)}

    @cached_property
    def pairs(self) -> dict[int, ChannelBlockPair]:
        """Pairs of layers that may stream channel blocks."""
        return streaming_pairs(self.stage, tiling_contexts(self.config, self.stage, self.dram))

    def estimate(self, number: int, schedules: dict[str, LayerSchedule]) -> float | None:
        """Estimate the cycles of the streaming pair whose first layer has index `number`; return None if unknown."""
        if number not in self.pairs:
            return None
        pair = self.pairs[number]
        if number not in self._candidates:
            self._candidates[number] = {(each.first, each.second): each for each in pair.candidates()}
        first, second = (_normalized(schedules[each.name]) for each in (pair.first, pair.second))
        fused = self._candidates[number].get((first, second))
        return None if fused is None else fused.estimate - min(fused.start, self.rows.lead(number, schedules))

    def attention(self, number: int, schedules: dict[str, LayerSchedule]) -> float | None:
        """Estimate the cycles of the products and the softmax of attention whose first layer has index `number`; None
        if they do not stream blocks of rows, or if their tiling is unknown.
        """
        layers = self.stage.layers[number : number + 3]
        if not schedules[layers[0].name].stream_row_blocks or number not in attentions(self.stage):
            return None
        mine = tuple(_normalized(schedules[each.name]) for each in layers)
        if number not in self._attentions:
            tilings = attention_tilings(self.config, self.stage, number, self.dram)
            self._attentions[number] = {each.schedules: each.cycles for each in tilings}
        return self._attentions[number].get(mine)


def _normalized(schedule: LayerSchedule) -> LayerSchedule:
    """Reset the fields of a layer schedule that do not affect how layers stream blocks to each other."""
    return replace(schedule, same_program_as_previous=False, own_counter_tag=True)


class NetworkCostModel:
    """Cost model that predicts the cycles of a network under any schedule.

    Parameters
    ----------
    prepared : ModelCompiler
        Compiler of the model.
    conditions : HardwareProfile
        Machine configuration and DRAM timing.
    model : CycleModel
        Learned cost model for these conditions.
    """

    def __init__(self, prepared: ModelCompiler, conditions: HardwareProfile, model: CycleModel):
        self.prepared, self.conditions, self.model = prepared, conditions, model
        self._stages: dict[int, _Stage] = {}
        self._simulated: LruCache[tuple[SimulatedNetwork | None]] = LruCache(_MAX_SIMULATED)

    @property
    def simulates(self) -> bool:
        """True if the timeline of commands has been compared with measurements on this kind of machine."""
        return not (self.prepared.config.pipelined or self.prepared.config.serial_commands)

    def simulate(self, schedule: Schedule) -> SimulatedNetwork | None:
        """Compile the network and simulate its commands (`compiler.cost.timeline`); None if it does not compile.

        The cycles do not include those of programs that are given as text.
        """
        key = schedule.to_json()
        found = self._simulated.get(key)
        if found is None:
            trace = CompilationTrace()
            try:
                codes = self.prepared.network(schedule, trace).codes
            except InputError:
                found = (None,)
            else:
                taken = timeline_cycles(self.prepared.config, trace.streams, self.conditions.dram)
                words = tuple(program.words for code in codes for program in code.all_programs)
                count = sum(len(stream.commands) for stream in trace.streams)
                found = (SimulatedNetwork(taken, count, words),)
            self._simulated.put(key, found)
        return found[0]

    def predict(self, schedule: Schedule) -> NetworkPrediction:
        """Predict the cycles of the network under a schedule.

        Raises
        ------
        InputError
            The fusions of the schedule are not possible.
        """
        layers = self.predict_layers(schedule).values()
        return NetworkPrediction(
            sum(each.cycles for each in layers), sum(each.error**2 for each in layers) ** 0.5
        )

    def predict_layers(self, schedule: Schedule) -> dict[str, NetworkPrediction]:
        """Predict the cycles of each layer, by layer name; raise the errors of `predict`.

        The first layer of a streaming pair gets the cycles of both layers.
        """
        (found,) = self.predict_many([schedule])
        if isinstance(found, InputError):
            raise found
        return found

    def predict_many(self, schedules: Sequence[Schedule]) -> list[dict[str, NetworkPrediction] | InputError]:
        """Predict the cycles of each layer under several schedules at once, which takes little longer than for one.

        The result of a schedule whose fusions are not possible is the error.
        """
        stages: list[list[LoweredNetwork] | InputError] = []
        new: dict[int, tuple[_Stage, FeatureRow]] = {}
        for schedule in schedules:
            try:
                stages.append(self.prepared.lowered(schedule.fusions))
            except InputError as error:
                stages.append(error)
                continue
            for stage in map(self._stage, self.prepared.lowered(schedule.fusions)):
                for row in stage.rows.rows(schedule.layers).values():
                    if id(row) not in stage.predictions:
                        new[id(row)] = stage, row
        each = zip(new.values(), *self.model.predict_many([row for _, row in new.values()]), strict=True)
        for (stage, row), cycles, spread in each:
            error = float(cycles * max(spread, _MIN_ERROR))
            stage.predictions[id(row)] = row, NetworkPrediction(float(cycles), error)
        return [
            its if isinstance(its, InputError) else self._combined(its, schedule.layers)
            for schedule, its in zip(schedules, stages, strict=True)
        ]

    def _combined(
        self, stages: Sequence[LoweredNetwork], schedules: dict[str, LayerSchedule]
    ) -> dict[str, NetworkPrediction]:
        out: dict[str, NetworkPrediction] = {}
        for stage in stages:
            out |= self._layers(stage, schedules)
        return out

    def _layers(
        self, stage: LoweredNetwork, schedules: dict[str, LayerSchedule]
    ) -> dict[str, NetworkPrediction]:
        known = self._stage(stage)
        out = {
            name: known.bounded(name, known.predictions[id(row)][1])
            for name, row in known.rows.rows(schedules).items()
        }
        for number, layer in enumerate(stage.layers):
            out |= known.overlapped(number, schedules, out)
            if schedules[layer.name].stream_channel_blocks:
                cycles = known.estimate(number, schedules)
                if cycles is not None:
                    out[layer.name] = NetworkPrediction(cycles, cycles * _PAIR_ERROR)
                    out[stage.layers[number + 1].name] = NetworkPrediction(0.0, 0.0)
            cycles = known.attention(number, schedules)
            if cycles is not None:
                out[layer.name] = NetworkPrediction(cycles, cycles * _PAIR_ERROR)
                for other in stage.layers[number + 1 : number + 3]:
                    out[other.name] = NetworkPrediction(0.0, 0.0)
        return out

    def _stage(self, stage: LoweredNetwork) -> _Stage:
        if id(stage) not in self._stages:  # `prepared` keeps its stages alive, so ids are not reused
            self._stages[id(stage)] = _Stage(stage, self.prepared.config, self.conditions)
        return self._stages[id(stage)]
