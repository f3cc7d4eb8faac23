"""Base class of search methods, and searches by chance: random search, the baseline, and evolution."""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise

from compiler.cost.learned_model import PredictionErrors
from compiler.profile.measurement import Measurement, Result
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.generators.generator import GeneratorFailure
from compiler.tuning.layer_space import LayerSpace, spaces_of
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.strategies import strategies_between


@dataclass(frozen=True)
class Trial:
    """Schedule with its measurement result and its origin.

    Parameters
    ----------
    schedule : Schedule
        Schedule that was measured.
    result : Measurement or Rejected
        Result of the measurement.
    cost : float or None
        Cost for the goal; None if the result is not valid.
    proposer : str
        Name of the search method that proposed the schedule; a member's name if the method is a portfolio.
    strategy : str or None
        Names of the strategies (`compiler.tuning.strategies.STRATEGIES`), joined by "+", by which the schedule differs
        from the best one at the time of the proposal; None if it does not differ.
    """

    schedule: Schedule
    result: Result
    cost: float | None
    proposer: str = ""
    strategy: str | None = None


class SearchMethod(ABC):
    """Base class of search methods, which propose schedules of one network and learn from their measurements.

    A subclass defines `propose` and `learn`. Pass it to `compiler.tune(method=...)` or `mla tune --method
    module:Class`.

    Parameters
    ----------
    measurer : Measurer
        Measurer of the network; a method may inspect the network before the first measurement.
    goal : Objective
        Metric to minimize.
    baseline : Measurement
        Measurement of the first schedule.
    seed : int
        Seed of the method's random choices.
    constraints : Constraints
        Transformations that no proposal may use.

    Attributes
    ----------
    name : str
        Name of the method in reports.
    first : Schedule
        Schedule of the static compiler, from which the search starts.
    best : Trial
        Best trial so far.
    spaces : dict of str to LayerSpace
        Search space of each layer: `change(rng, schedule)` makes one random change to a layer schedule, and
        `draw(rng, schedule)` selects a random tiling.
    rng : random.Random
        Random number generator with the given seed.

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
        self.name = type(self).__qualname__
        self.constraints = constraints
        self.rng, self.goal = random.Random(seed), goal
        self.conditions, self.prepared = measurer.conditions, measurer.prepared
        self.first = first = measurer.first.schedule
        stages = self.prepared.lowered(first.fusions)
        self.spaces: dict[str, LayerSpace] = spaces_of(
            self.prepared.config, stages, self.conditions.dram, constraints.frozen_fields
        )
        self.best = Trial(first, baseline, goal.cost(baseline))
        self._registered = {first.to_json()}
        #: Best trials so far, in chronological order.
        self._bests = [self.best]
        #: Best schedules at the times at which the schedules without a result were registered.
        self._origins: dict[str, Schedule] = {}

    @abstractmethod
    def propose(self) -> Schedule:
        """Return the next schedule to try."""

    @abstractmethod
    def learn(self, trial: Trial) -> None:
        """Update the method with the result of a trial; `record` calls this for every trial, in order of proposal."""

    @property
    def predictor(self) -> PredictionErrors | None:
        """Errors of the method's predictions; None if the method makes no predictions."""
        return None

    @property
    def exhausted(self) -> bool:
        """True if the method has nothing more to propose, which ends the search; False by default."""
        return False

    def proposer_of(self, schedule: Schedule) -> str:
        """Return the name of the method that proposed a schedule."""
        return self.name

    def proposers_of_best(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the methods that proposed the parts of the best schedule that differ from the first one.

        The first result has their names by layer, the second by program that has a text. Each field of a layer's
        schedule counts for the trial since which all best trials have its value; the layer counts for the method whose
        trials with fields of this layer brought the greatest gain.
        """
        owners: dict[str, dict[str, Trial]] = {}
        gains: dict[int, float] = {}
        programs: dict[str, str] = {}
        first, best = self._bests[0].schedule.layers, self.best.schedule.layers
        for before, trial in pairwise(self._bests):
            gains[id(trial)] = (before.cost or 0.0) - (trial.cost or 0.0)
            old, new = before.schedule, trial.schedule
            for name, layer in new.layers.items():
                fields, former = vars(layer), vars(old.layers[name]) if name in old.layers else {}
                changed = {key for key, value in fields.items() if key not in former or former[key] != value}
                owners.setdefault(name, {}).update(dict.fromkeys(changed, trial))
            texts = {name for name, text in new.programs.items() if text != old.programs.get(name)}
            programs.update(dict.fromkeys(texts, trial.proposer))
        layers = {}
        for name, fields in owners.items():
            kept = {
                id(trial): trial
                for key, trial in fields.items()
                if name in best
                and (name not in first or getattr(first[name], key) != getattr(best[name], key))
            }
            gained: dict[str, float] = {}
            for number, trial in kept.items():
                gained[trial.proposer] = gained.get(trial.proposer, 0.0) + gains[number]
            if gained:
                layers[name] = max(gained, key=lambda each: gained[each])
        return layers, programs

    @property
    def left_out(self) -> tuple[GeneratorFailure, ...]:
        """Failures of generators, which the method no longer queries."""
        return ()

    def record(self, schedule: Schedule, result: Result) -> Trial:
        """Record the measurement result of a schedule: call `learn`, update `best` and return the trial.

        `learn` is not called if the method does not accept the schedule, which then comes from another search.
        """
        cost = self.goal.cost(result) if isinstance(result, Measurement) and result.valid else None
        origin = self._origins.pop(schedule.to_json(), self.best.schedule)
        trial = Trial(
            schedule, result, cost, self.proposer_of(schedule), strategies_between(origin, schedule)
        )
        if self.accepts(schedule):
            self.learn(trial)
        if trial.cost is not None and self.best.cost is not None and trial.cost < self.best.cost:
            self.best = trial
            self._bests.append(trial)
        return trial

    def withdraw(self, schedule: Schedule) -> None:
        """Restore the best trial before a schedule that failed in use; the first schedule is never withdrawn."""
        first, *others = self._bests
        self._bests = [first, *(trial for trial in others if trial.schedule != schedule)]
        self.best = self._bests[-1]

    def accepts(self, schedule: Schedule) -> bool:
        """Return True if the method can learn from a schedule: by default, if it has a schedule for each layer.

        A method that changes fusions, and therefore layers, overrides this.
        """
        return self.spaces.keys() <= schedule.layers.keys()

    def register(self, schedule: Schedule) -> bool:
        """Register a schedule as proposed; return False if it was registered before or violates a constraint."""
        text = schedule.to_json()
        accepted = text not in self._registered and self.constraints.violation(schedule, self.first) is None
        self._registered.add(text)
        if accepted:
            self._origins[text] = self.best.schedule
        return accepted


def with_layer(schedule: Schedule, name: str, layer: LayerSchedule) -> Schedule:
    """Return a schedule with the schedule of one layer replaced."""
    return replace(schedule, layers=schedule.layers | {name: layer})


#: Fraction of a network's layers whose schedules are drawn; at least one layer.
_DRAWN_FRACTION = 0.25
#: Maximum number of random changes after a draw.
_MAX_CHANGES = 2
#: Maximum number of draws per proposal.
_MAX_ATTEMPTS = 100


class RandomSearch(SearchMethod):
    """Search method that varies the static compiler's schedule at random, independently of earlier results."""

    def propose(self) -> Schedule:
        """Return a schedule with random tilings of some layers and a few more random changes."""
        first = self.first
        for _ in range(_MAX_ATTEMPTS):
            names = [name for name in self.spaces if self.rng.random() < _DRAWN_FRACTION] or [
                self.rng.choice(list(self.spaces))
            ]
            layers = dict(first.layers)
            for name in names:
                space = self.spaces[name]
                layers[name] = space.draw(self.rng, layers[name])
                for _ in range(self.rng.randint(0, _MAX_CHANGES)):
                    layers[name] = space.change(self.rng, layers[name])
            schedule = replace(first, layers=layers)
            if self.register(schedule):
                return schedule
        return first

    def learn(self, trial: Trial) -> None:
        """Do nothing, since draws are independent of results."""


#: Number of schedules in the population.
_POPULATION_SIZE = 8
#: Number of random members from which the best one is selected as a parent.
_TOURNAMENT_SIZE = 2
#: Average number of layers that mutate in a child.
_MEAN_MUTATIONS = 2.0
#: Maximum number of children per proposal.
_MAX_CHILDREN = 100


class EvolutionarySearch(SearchMethod):
    """Steady-state evolution: a child replaces the worst member of the population if it is better.

    Layers are genes: the schedule of each layer of a child comes from one of the child's two parents, then the
    schedules of a few layers mutate.
    """

    def __init__(
        self,
        measurer: Measurer,
        goal: Objective,
        baseline: Measurement,
        seed: int,
        constraints: Constraints = UNCONSTRAINED,
    ):
        super().__init__(measurer, goal, baseline, seed, constraints)
        self._measured = [self.best]

    def propose(self) -> Schedule:
        """Return a new child of two members of the population."""
        for _ in range(_MAX_CHILDREN):
            mother, father = (self._parent() for _ in range(2))
            genes = {
                name: (mother if self.rng.random() < 0.5 else father).schedule.layers[name]
                for name in self.spaces
            }
            child = replace(self.first, layers=self._mutate(genes))
            if self.register(child):
                return child
        return self.first

    def learn(self, trial: Trial) -> None:
        """Add a successful trial to the population; if the population is then too large, drop the worst member."""
        if trial.cost is not None:
            self._measured.append(trial)
            self._measured = sorted(self._measured, key=lambda each: each.cost or 0.0)[:_POPULATION_SIZE]

    def _parent(self) -> Trial:
        return min(self.rng.choices(self._measured, k=_TOURNAMENT_SIZE), key=lambda each: each.cost or 0.0)

    def _mutate(self, genes: dict[str, LayerSchedule]) -> dict[str, LayerSchedule]:
        chance = _MEAN_MUTATIONS / len(genes)
        chosen = [name for name in genes if self.rng.random() < chance] or [self.rng.choice(list(genes))]
        return genes | {name: self.spaces[name].change(self.rng, genes[name]) for name in chosen}
