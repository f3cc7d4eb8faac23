"""The order in which the language model's schedules are tried: by what the performance model says they cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.cost.learned.model_lookup import find_model
from compiler.cost.learned.online_model import OnlineCostModel
from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.generators.task import GeneratorTask

#: As in the search that this model guides: how many of its expected errors better than predicted a schedule counts.
_EXPLORE = 1.0

Fusions = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class PredictedCost:
    """What a schedule of a layer promises.

    Parameters
    ----------
    gain : float
        The part of the network's cycles that it is hoped to save.
    cycles : float
        Those that the layer is predicted to take.
    """

    gain: float
    cycles: float


class CostReranker:
    """Predicts schedules of layers, and learns from those that were measured."""

    def __init__(self) -> None:
        self._known: dict[Fusions, OnlineCostModel] = {}

    def promises(
        self, task: GeneratorTask, name: str, schedules: Sequence[LayerSchedule]
    ) -> list[PredictedCost]:
        """What schedules of a layer promise, all others as they are.

        Parameters
        ----------
        task : Task
            The network, and what it takes now.
        name : str
            The layer.
        schedules : sequence of LayerSchedule
            Others for it, at least one.
        """
        foresight, layers = self._foresight(task), task.schedule.layers
        now = _cycles(foresight, task.measured, name, layers)
        guess = foresight.guess(name, schedules, layers)
        hoped = guess.cycles * (1 - _EXPLORE * guess.spread)
        whole = task.measured.cycles
        pairs = zip(hoped, guess.cycles, strict=True)
        return [PredictedCost((now - float(least)) / whole, float(cycles)) for least, cycles in pairs]

    def learn(self, task: GeneratorTask, name: str, schedule: LayerSchedule, cycles: float) -> None:
        """The network took so many cycles with another schedule of a layer: that has all the difference."""
        foresight, layers = self._foresight(task), task.schedule.layers
        (promise,) = self.promises(task, name, [schedule])
        now, before = _cycles(foresight, task.measured, name, layers), task.measured.cycles
        foresight.learn(name, schedule, layers, now + cycles - before)
        foresight.trial(max(before - now + promise.cycles, 1.0), float(cycles))

    def _foresight(self, task: GeneratorTask) -> OnlineCostModel:
        """Of a network's layers; what it knows of them at first is what they take now."""
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
    """A layer's part of a measurement: what is counted for several layers is shared out by prediction."""
    entry = measured.of(name)
    guesses = {each: float(foresight.guess(each, [layers[each]], layers).cycles[0]) for each in entry.names}
    return entry.cycles * guesses[name] / sum(guesses.values())
