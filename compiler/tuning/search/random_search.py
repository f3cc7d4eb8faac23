"""Random search, the baseline for all other methods."""

from dataclasses import replace

from compiler.schedule.schedule import Schedule
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
