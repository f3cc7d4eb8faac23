"""Evolution: the fittest schedules mate layer by layer, and mutate."""

from dataclasses import replace

from compiler.profile.measurement import Measurement
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.search.method import SearchMethod, Trial

#: Schedules that may have offspring.
_POPULATION = 8
#: Each parent is the best of so many of them.
_TOURNAMENT = 2
#: Layers that change in a child, on average.
_MUTATIONS = 2.0
_PATIENCE = 100


class EvolutionarySearch(SearchMethod):
    """Steady-state evolution: a child that is better than the worst of the population takes its place.

    Layers are genes: a child has each layer from one of its two parents, then a few change.
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
        """A child of two of the best so far."""
        for _ in range(_PATIENCE):
            mother, father = (self._parent() for _ in range(2))
            genes = {
                name: (mother if self.rng.random() < 0.5 else father).schedule.layers[name]
                for name in self.spaces
            }
            child = replace(self.first, layers=self._mutated(genes))
            if self.register(child):
                return child
        return self.first

    def learn(self, trial: Trial) -> None:
        """A trial that could be measured joins those that may have offspring."""
        if trial.cost is not None:
            self._measured.append(trial)
            self._measured = sorted(self._measured, key=lambda each: each.cost or 0.0)[:_POPULATION]

    def _parent(self) -> Trial:
        return min(self.rng.choices(self._measured, k=_TOURNAMENT), key=lambda each: each.cost or 0.0)

    def _mutated(self, genes: dict[str, LayerSchedule]) -> dict[str, LayerSchedule]:
        chance = _MUTATIONS / len(genes)
        chosen = [name for name in genes if self.rng.random() < chance] or [self.rng.choice(list(genes))]
        return genes | {name: self.spaces[name].change(self.rng, genes[name]) for name in chosen}
