"""Performance counters, with one set per tag."""

from collections.abc import Mapping

from hw.isa.counters import COUNTERS

_MASK = (1 << 64) - 1
_INDEX = {counter.name: index for index, counter in enumerate(COUNTERS)}


class TaggedCounters:
    """64-bit counters, one set per tag, of which only the architectural counters ever change.

    Parameters
    ----------
    tags : int
        Number of counter sets; events under a tag are counted in set `tag % tags`.
    """

    def __init__(self, tags: int):
        self._values = [[0] * len(COUNTERS) for _ in range(tags)]

    def add(self, tag: int, events: Mapping[str, int]) -> None:
        """Increment counters of a tag by the given amounts, by counter name."""
        row = self._values[tag % len(self._values)]
        for name, amount in events.items():
            row[_INDEX[name]] += amount

    def read(self, tag: int, index: int) -> int:
        """Return the value of a counter; 0 if the counter does not exist."""
        if index >= len(COUNTERS):
            return 0
        return int(self._values[tag % len(self._values)][index]) & _MASK
