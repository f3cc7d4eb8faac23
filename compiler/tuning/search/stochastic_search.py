"""Searches by chance: random search, the baseline for all other methods, and evolution with layers as genes."""

from dataclasses import replace

from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.method import SearchMethod, Trial

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
