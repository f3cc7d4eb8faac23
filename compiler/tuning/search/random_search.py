"""Random search: what every other method has to be better than."""

from dataclasses import replace

from compiler.schedule.schedule import Schedule
from compiler.tuning.search.method import SearchMethod, Trial

#: Part of the layers of a network that are drawn anew; of one with a single layer, that one.
_SHARE = 0.25
#: Changes after a draw, at most.
_CHANGES = 2
#: Draws until one is new.
_PATIENCE = 100


class RandomSearch(SearchMethod):
    """Draws schedules independently of what came of others, around the static compiler's."""

    def propose(self) -> Schedule:
        """Some layers drawn from all their tilings, then changed a little."""
        first = self.first
        for _ in range(_PATIENCE):
            names = [name for name in self.spaces if self.rng.random() < _SHARE] or [
                self.rng.choice(list(self.spaces))
            ]
            layers = dict(first.layers)
            for name in names:
                space = self.spaces[name]
                layers[name] = space.draw(self.rng, layers[name])
                for _ in range(self.rng.randint(0, _CHANGES)):
                    layers[name] = space.change(self.rng, layers[name])
            schedule = replace(first, layers=layers)
            if self.register(schedule):
                return schedule
        return first

    def learn(self, trial: Trial) -> None:
        """Nothing: draws are independent."""
