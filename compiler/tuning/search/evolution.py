"""Evolutionary search with layers as genes."""

from dataclasses import replace

from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.method import SearchMethod, Trial

#: Number of schedules in the population.
_POPULATION_SIZE = 8
#: Number of random members from which the best one is selected as a parent.
_TOURNAMENT_SIZE = 2
#: Average number of layers that mutate in a child.
_MEAN_MUTATIONS = 2.0
#: Maximum number of children per proposal.
_MAX_ATTEMPTS = 100


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
        for _ in range(_MAX_ATTEMPTS):
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
