"""Ranks schedules written by the language model with the cost model."""

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.cost.learned.model_lookup import find_model
from compiler.cost.learned.online_model import OnlineCostModel
from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.generators.task import GeneratorTask

#: Optimism in units of the expected prediction error, as in the model-guided search.
_EXPLORE = 1.0

Fusions = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class PredictedCost:
    """Predicted effect of a layer schedule.

    Parameters
    ----------
    gain : float
        Optimistic saving as a fraction of the network's cycles.
    cycles : float
        Predicted cycles of the layer.
    """

    gain: float
    cycles: float


class CostReranker:
    """Predicts the cost of layer schedules and learns from measured ones."""

    def __init__(self) -> None:
        self._known: dict[Fusions, OnlineCostModel] = {}

    def promises(
        self, task: GeneratorTask, name: str, schedules: Sequence[LayerSchedule]
    ) -> list[PredictedCost]:
        """Predict the effect of schedules of a layer, with all other layers unchanged.

        Parameters
        ----------
        task : GeneratorTask
            Network, current schedule and measurement.
        name : str
            Name of the layer.
        schedules : sequence of LayerSchedule
            Alternative schedules of the layer, at least one.
        """
        foresight, layers = self._foresight(task), task.schedule.layers
        now = _cycles(foresight, task.measured, name, layers)
        guess = foresight.guess(name, schedules, layers)
        hoped = guess.cycles * (1 - _EXPLORE * guess.spread)
        whole = task.measured.cycles
        pairs = zip(hoped, guess.cycles, strict=True)
        return [PredictedCost((now - float(least)) / whole, float(cycles)) for least, cycles in pairs]

    def learn(self, task: GeneratorTask, name: str, schedule: LayerSchedule, cycles: float) -> None:
        """Learn from the measured cycles of a network with one changed layer, which gets the whole difference."""
        foresight, layers = self._foresight(task), task.schedule.layers
        (promise,) = self.promises(task, name, [schedule])
        now, before = _cycles(foresight, task.measured, name, layers), task.measured.cycles
        foresight.learn(name, schedule, layers, now + cycles - before)
        foresight.trial(max(before - now + promise.cycles, 1.0), float(cycles))

    def _foresight(self, task: GeneratorTask) -> OnlineCostModel:
        """Return the online cost model of the network's layers, initialized with the current measurement."""
        fusions = task.schedule.fusions
        if fusions not in self._known:
            stages = task.prepared.lowered(fusions)
            foresight = OnlineCostModel(task.conditions, stages, find_model(task.conditions), task.seed)
            layers = task.schedule.layers
            if not task.schedule.programs:
                for name in layers:
                    foresight.learn(
                        name, layers[name], layers, _cycles(foresight, task.measured, name, layers)
                    )
            self._known[fusions] = foresight
        return self._known[fusions]


def _cycles(
    foresight: OnlineCostModel, measured: Measurement, name: str, layers: dict[str, LayerSchedule]
) -> float:
    """Return the cycles of a layer; cycles counted for several layers are apportioned by prediction."""
    entry = measured.of(name)
    guesses = {each: float(foresight.guess(each, [layers[each]], layers).cycles[0]) for each in entry.names}
    return entry.cycles * guesses[name] / sum(guesses.values())
