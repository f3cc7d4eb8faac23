"""Thread-safe LRU cache bounded by the total weight of its values."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """Values by key. Threads may share it.

    Parameters
    ----------
    most : int
        What all values together may weigh; one that weighs more by itself is not kept.
    """

    def __init__(self, most: int):
        self.most, self.weight = most, 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """The value of a key, which is the most recently used from now on; None if there is none."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Value, weight: int = 1) -> None:
        """Keep a value in place of the one that the key has."""
        with self._lock:
            before = self._values.pop(key, None)
            self.weight -= before[1] if before else 0
            if weight > self.most:
                return
            self._values[key] = value, weight
            self.weight += weight
            while self.weight > self.most:
                _, (_, lost) = self._values.popitem(last=False)
                self.weight -= lost
