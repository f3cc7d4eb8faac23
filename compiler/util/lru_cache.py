"""Thread-safe LRU cache bounded by the total weight of its values."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """Thread-safe mapping that evicts the least recently used values.

    Parameters
    ----------
    max_weight : int
        Maximum total weight; a single value that exceeds it is not stored.
    """

    def __init__(self, max_weight: int):
        self.max_weight, self.weight = max_weight, 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """Return the value of a key and mark it as most recently used; return None if the key is missing."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Value, weight: int = 1) -> None:
        """Store a value, replacing the previous value of the key, and evict values until the limit is met."""
        with self._lock:
            before = self._values.pop(key, None)
            self.weight -= before[1] if before else 0
            if weight > self.max_weight:
                return
            self._values[key] = value, weight
            self.weight += weight
            while self.weight > self.max_weight:
                _, (_, lost) = self._values.popitem(last=False)
                self.weight -= lost
