"""Prediction of a network's cycles under a schedule, without compiling the network."""

from dataclasses import replace
from typing import NamedTuple

from compiler.cost.learned.features import RowMaker
from compiler.cost.learned.model import CycleModel
from compiler.initial_schedule.initial import tiling_contexts
from compiler.lowering.lower import LoweredNetwork
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.fusion.channel_streaming import ChannelBlockPair, FusedPair, streaming_pairs

#: Expected relative error of the estimate of a channel-streaming pair; minimum relative error of the learned model.
_PAIR_ERROR, _MIN_ERROR = 0.1, 0.03


class NetworkPrediction(NamedTuple):
    """Predicted cycles and their expected error in cycles."""

    cycles: float
    error: float


class _Stage:
    """Data of a stage that are reused for different schedules."""

    def __init__(
        self, stage: LoweredNetwork, conditions: HardwareProfile, pairs: dict[int, ChannelBlockPair]
    ):
        self.rows, self.pairs = RowMaker(stage, conditions), pairs
        self._candidates: dict[int, dict[tuple[LayerSchedule, LayerSchedule], FusedPair]] = {}

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


def _normalized(schedule: LayerSchedule) -> LayerSchedule:
    """Reset the fields of a layer schedule that do not affect how a pair streams channel blocks."""
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
        out: dict[str, NetworkPrediction] = {}
        for stage in self.prepared.lowered(schedule.fusions):
            out |= self._layers(stage, schedule.layers)
        return out

    def _layers(
        self, stage: LoweredNetwork, schedules: dict[str, LayerSchedule]
    ) -> dict[str, NetworkPrediction]:
        known = self._stage(stage)
        rows = known.rows.rows(schedules)
        each = zip(rows, *self.model.predict_many(list(rows.values())), strict=True)
        out = {
            name: NetworkPrediction(float(cycles), float(cycles * max(spread, _MIN_ERROR)))
            for name, cycles, spread in each
        }
        for number, layer in enumerate(stage.layers):
            if schedules[layer.name].stream_channel_blocks:
                cycles = known.estimate(number, schedules)
                if cycles is not None:
                    out[layer.name] = NetworkPrediction(cycles, cycles * _PAIR_ERROR)
                    out[stage.layers[number + 1].name] = NetworkPrediction(0.0, 0.0)
        return out

    def _stage(self, stage: LoweredNetwork) -> _Stage:
        if id(stage) not in self._stages:  # `prepared` keeps its stages alive, so ids are not reused
            pairs = streaming_pairs(stage, tiling_contexts(self.prepared.config, stage, self.conditions.dram))
            self._stages[id(stage)] = _Stage(stage, self.conditions, pairs)
        return self._stages[id(stage)]
