"""What methods of search have in common: they ask for trials and learn from them."""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from compiler.cost.learned.model import PredictionErrors
from compiler.profile.measurement import Measurement, Result
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.search.layer_space import LayerSpace, spaces_of


@dataclass(frozen=True)
class Trial:
    """A schedule that was measured, and what it cost by the goal (None: it could not be, or must not be used)."""

    schedule: Schedule
    result: Result
    cost: float | None


class SearchMethod(ABC):
    """Search strategy: proposes schedules of one network and learns from their measurements.

    A subclass defines `propose` and `learn`; `compiler.tune(method=...)` and `mla tune --method module:Class` use it.

    Parameters
    ----------
    measurer : Measurer
        Measurer of the network; a method may read what is known of the network before anything is measured.
    goal : Goal
        Metric to minimize.
    baseline : Measurement
        Measurement of the first schedule.
    seed : int
        Seed of the method's random choices.
    constraints : Constraints
        Transformations that no proposal may use.

    Attributes
    ----------
    first : Schedule
        The static compiler's schedule, where the search starts.
    best : Trial
        The best trial so far.
    spaces : dict of str to LayerSpace
        Schedules of each layer: `change(rng, layer)` alters one field, `draw(rng, layer)` picks a tiling.
    rng : random.Random
        Random generator of the given seed.

    Examples
    --------
    >>> class Halve(compiler.SearchMethod):
    ...     "Halves the rows of one layer at a time."
    ...     def propose(self):
    ...         schedule = self.best.schedule
    ...         name = self.rng.choice(list(schedule.layers))
    ...         layer = schedule.layers[name]
    ...         layer = dataclasses.replace(layer, rows=max(1, layer.rows // 2))
    ...         return dataclasses.replace(schedule, layers=schedule.layers | {name: layer})
    ...     def learn(self, trial):
    ...         pass
    >>> result = compiler.tune("network.tflite", "n4", method=Halve, trials=10)
    """

    def __init__(
        self,
        measurer: Measurer,
        goal: Objective,
        baseline: Measurement,
        seed: int,
        constraints: Constraints = UNCONSTRAINED,
    ):
        self.constraints = constraints
        self.rng, self.goal = random.Random(seed), goal
        self.conditions, self.prepared = measurer.conditions, measurer.prepared
        self.first = first = measurer.first.schedule
        stages = self.prepared.lowered(first.fusions)
        self.spaces: dict[str, LayerSpace] = spaces_of(
            self.prepared.config, stages, self.conditions.dram, constraints.frozen_fields
        )
        self.best = Trial(first, baseline, goal.cost(baseline))
        self._seen = {first.to_json()}

    @abstractmethod
    def propose(self) -> Schedule:
        """The next schedule to try."""

    @abstractmethod
    def learn(self, trial: Trial) -> None:
        """Called with every trial, in the order of the proposals."""

    @property
    def predictor(self) -> PredictionErrors | None:
        """How good its predictions of trials were; None: it makes none."""
        return None

    def record(self, schedule: Schedule, result: Result) -> Trial:
        """A trial's result; the best so far is kept."""
        cost = self.goal.cost(result) if isinstance(result, Measurement) and result.believable else None
        trial = Trial(schedule, result, cost)
        self.learn(trial)
        if trial.cost is not None and self.best.cost is not None and trial.cost < self.best.cost:
            self.best = trial
        return trial

    def register(self, schedule: Schedule) -> bool:
        """Whether a schedule may be used and has not been proposed before; from now on it has."""
        text = schedule.to_json()
        new = text not in self._seen and self.constraints.violation(schedule, self.first) is None
        self._seen.add(text)
        return new


def with_layer(schedule: Schedule, name: str, layer: LayerSchedule) -> Schedule:
    """A schedule with another one for one layer."""
    return replace(schedule, layers=schedule.layers | {name: layer})
