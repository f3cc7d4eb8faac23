"""Cycles of a whole network under a schedule, predicted before anything is compiled."""

from dataclasses import replace
from typing import NamedTuple

from compiler.cost.learned.features import RowMaker
from compiler.cost.learned.model import CycleModel
from compiler.lowering.lower import LoweredNetwork
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.scheduler.initial import tiling_contexts
from compiler.tuning.fusion.channel_streaming import FusedPair, PlanePair, streaming_pairs

#: Relative error that is expected of the estimate of a pair that hands planes over, and at least of the model.
_PLANES, _LEAST = 0.1, 0.03


class NetworkPrediction(NamedTuple):
    """Cycles, and the error to be expected of them, in cycles."""

    cycles: float
    error: float


class _Stage:
    """What is kept of a stage from one schedule to the next."""

    def __init__(self, stage: LoweredNetwork, conditions: HardwareProfile, pairs: dict[int, PlanePair]):
        self.rows, self.pairs = RowMaker(stage, conditions), pairs
        self._ways: dict[int, dict[tuple[LayerSchedule, LayerSchedule], FusedPair]] = {}

    def estimate(self, number: int, schedules: dict[str, LayerSchedule]) -> float | None:
        """Of a pair that hands planes over, by its first layer; None: the estimate does not know this way."""
        if number not in self.pairs:
            return None
        pair = self.pairs[number]
        if number not in self._ways:
            self._ways[number] = {(each.first, each.second): each for each in pair.candidates()}
        first, second = (_alone(schedules[each.name]) for each in (pair.first, pair.second))
        way = self._ways[number].get((first, second))
        return None if way is None else way.estimate - min(way.start, self.rows.lead(number, schedules))


def _alone(schedule: LayerSchedule) -> LayerSchedule:
    """Without what the pair has no part in."""
    return replace(schedule, same_program_as_previous=False, own_counter_tag=True)


class NetworkCostModel:
    """Predicts the cycles of a network under schedules.

    Parameters
    ----------
    prepared : Prepared
        The network.
    conditions : Conditions
        The machine and its memory.
    model : Model
        What is known of them.
    """

    def __init__(self, prepared: ModelCompiler, conditions: HardwareProfile, model: CycleModel):
        self.prepared, self.conditions, self.model = prepared, conditions, model
        self._stages: dict[int, _Stage] = {}

    def predict(self, schedule: Schedule) -> NetworkPrediction:
        """Of the network.

        Raises
        ------
        InputError
            Its fusions cannot be carried out.
        """
        layers = self.predict_layers(schedule).values()
        return NetworkPrediction(
            sum(each.cycles for each in layers), sum(each.error**2 for each in layers) ** 0.5
        )

    def predict_layers(self, schedule: Schedule) -> dict[str, NetworkPrediction]:
        """Of each layer; of a pair that hands planes over the first has the cycles of both. Errors as above."""
        out: dict[str, NetworkPrediction] = {}
        for stage in self.prepared.lowered(schedule.fusions):
            out |= self._layers(stage, schedule.layers)
        return out

    def _layers(
        self, stage: LoweredNetwork, schedules: dict[str, LayerSchedule]
    ) -> dict[str, NetworkPrediction]:
        known = self._known(stage)
        rows = known.rows.rows(schedules)
        each = zip(rows, *self.model.predict_many(list(rows.values())), strict=True)
        out = {
            name: NetworkPrediction(float(cycles), float(cycles * max(spread, _LEAST)))
            for name, cycles, spread in each
        }
        for number, layer in enumerate(stage.layers):
            if schedules[layer.name].stream_channel_blocks:
                cycles = known.estimate(number, schedules)
                if cycles is not None:
                    out[layer.name] = NetworkPrediction(cycles, cycles * _PLANES)
                    out[stage.layers[number + 1].name] = NetworkPrediction(0.0, 0.0)
        return out

    def _known(self, stage: LoweredNetwork) -> _Stage:
        if id(stage) not in self._stages:  # `prepared` keeps its stages, so that none has another's place
            pairs = streaming_pairs(stage, tiling_contexts(self.prepared.config, stage, self.conditions.dram))
            self._stages[id(stage)] = _Stage(stage, self.conditions, pairs)
        return self._stages[id(stage)]
