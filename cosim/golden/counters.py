"""Performance counters, with one set per tag."""

from collections.abc import Mapping

import numpy as np

from hw.isa.counters import COUNTERS

_INDEX = {counter.name: index for index, counter in enumerate(COUNTERS)}


class TaggedCounters:
    """64-bit counters, one set per tag, of which only the architectural counters ever change.

    Parameters
    ----------
    tags : int
        Number of counter sets; events under a tag are counted in set `tag % tags`.
    """

    def __init__(self, tags: int):
        self.values = np.zeros((tags, len(COUNTERS)), np.uint64)

    def add(self, tag: int, events: Mapping[str, int]) -> None:
        """Increment counters of a tag by the given amounts, by counter name."""
        row = self.values[tag % len(self.values)]
        for name, amount in events.items():
            row[_INDEX[name]] += np.uint64(amount)

    def read(self, tag: int, index: int) -> int:
        """Return the value of a counter; 0 if the counter does not exist."""
        return int(self.values[tag % len(self.values), index]) if index < len(COUNTERS) else 0
