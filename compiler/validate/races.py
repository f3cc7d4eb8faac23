"""Detection of data races, which are conflicting accesses that are unordered: command by command, or vectorized."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from compiler.validate.errors import InstructionLocation
from compiler.validate.footprint import StridedRegion, overlap, runs
from hw.isa.enums import Unit

if TYPE_CHECKING:
    from compiler.validate.call_trace import Kind, Log

#: Vector clock: number of commands of each unit that are known to have retired.
Clock = tuple[int, int, int, int]
START: Clock = (0, 0, 0, 0)
_UNITS = tuple(Unit)
#: Number of accesses up to which a Python loop is faster than numpy.
_FEW = 24
#: Maximum number of unordered accesses at a time.
MAX_ACCESSES = 1 << 18
#: Maximum weight of the comparisons in a call; a comparison is weighted by the runs that it examines.
MAX_COMPARED = 1 << 31
#: Fixed weight of an exact comparison of two regions, in addition to their runs.
_EXACT = 1 << 11
#: Number of accesses above which the accesses of retired commands are dropped.
_CROWDED = 1 << 14


class ComparisonLimitError(Exception):
    """Error raised if the weight of the comparisons in a call exceeds `MAX_COMPARED`."""


class Clash(NamedTuple):
    """Earlier access that conflicts with an access of a command and is not ordered with it."""

    unit: Unit
    location: InstructionLocation
    region: StridedRegion


class Races(Protocol):
    """Interface for recording commands as they start."""

    #: Weight of the comparisons made during this call.
    compared: int

    @property
    def total(self) -> int:
        """Number of recorded accesses."""
        ...

    @property
    def crowded(self) -> bool:
        """True if `forget` should be called."""
        ...

    def clash(
        self, unit: Unit, known: Clock, regions: Sequence[StridedRegion]
    ) -> tuple[StridedRegion, Clash] | None:
        """Return an access of a command that races and the earlier access with which it races; None if none races.

        `known` is the vector clock of the commands that have retired when the command starts.
        """
        ...

    def enter(
        self, unit: Unit, number: int, regions: Sequence[StridedRegion], location: InstructionLocation
    ) -> None:
        """Record the accesses of command `number` of a unit."""
        ...

    def forget(self, known: Clock) -> "Races":
        """Return a copy without the commands that have retired according to `known`."""
        ...


class _Log:
    """Accesses of one kind by one unit, in the order in which their commands start."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.regions: list[StridedRegion] = []
        self.locations: list[InstructionLocation] = []
        self._boxes = np.zeros((2, 0), np.int64)
        self._boxed = 0

    def add(self, number: int, region: StridedRegion, location: InstructionLocation) -> None:
        self.numbers.append(number)
        self.regions.append(region)
        self.locations.append(location)

    def clash(self, known: int, region: StridedRegion, allowed: int) -> tuple[int, int]:
        """Return the index of an access that overlaps `region`, or -1, and the weight of the comparisons made.

        Only accesses by command `known` and later commands are considered.

        Raises
        ------
        ComparisonLimitError
            The weight of the comparisons would exceed `allowed`.
        """
        first = bisect_left(self.numbers, known)
        if first == len(self.numbers):
            return -1, 0
        candidates = range(first, len(self.numbers))
        weight = len(candidates)
        if weight > allowed:
            raise ComparisonLimitError
        if len(candidates) > _FEW:
            self._extend()
            low, high = self._boxes[:, first : len(self.numbers)]
            candidates = (first + np.flatnonzero((low <= region.high) & (high >= region.low))).tolist()
        for index in candidates:
            weight += _EXACT + runs(self.regions[index]) + runs(region)
            if weight > allowed:
                raise ComparisonLimitError
            if overlap(self.regions[index], region):
                return index, weight
        return -1, weight

    def _extend(self) -> None:
        """Append the bounding boxes of the new regions to the array of bounding boxes."""
        total = len(self.regions)
        if total > self._boxes.shape[1]:
            boxes = np.zeros((2, 2 * total), np.int64)
            boxes[:, : self._boxed] = self._boxes[:, : self._boxed]
            self._boxes = boxes
        fresh = self.regions[self._boxed :]
        self._boxes[0, self._boxed : total] = [item.low for item in fresh]
        self._boxes[1, self._boxed : total] = [item.high for item in fresh]
        self._boxed = total

    def forget(self, known: int) -> "_Log":
        """Return a copy without the commands before `known`."""
        first = bisect_left(self.numbers, known)
        log = _Log()
        log.numbers, log.regions, log.locations = (
            self.numbers[first:],
            self.regions[first:],
            self.locations[first:],
        )
        return log


class Accesses:
    """All earlier accesses with which a command may still race."""

    def __init__(self, compared: int = 0) -> None:
        self._logs: dict[tuple[Unit, str, bool], _Log] = {}
        self._limit = _CROWDED
        #: Weight of the comparisons made during this call.
        self.compared = compared
        #: Number of recorded accesses.
        self.total = 0

    @property
    def crowded(self) -> bool:
        """True if `forget` should be called."""
        return self.total > self._limit

    def clash(
        self, unit: Unit, known: Clock, regions: Sequence[StridedRegion]
    ) -> tuple[StridedRegion, Clash] | None:
        """Return an access of a command that races and the earlier access with which it races, or None.

        Parameters
        ----------
        known : Clock
            Vector clock of the commands that have retired when the command starts, under any timing.

        Raises
        ------
        ComparisonLimitError
            The weight of the comparisons in this call exceeds `MAX_COMPARED`.
        """
        for region in regions:
            for other in _UNITS:
                # Within a unit, writes stay in order and after earlier reads; only a read may run before an
                # earlier write has finished.
                if unit == other and region.write:
                    continue
                for write in (True, False) if region.write else (True,):
                    log = self._logs.get((other, region.space, write))
                    if log is None:
                        continue
                    index, weight = log.clash(known[other], region, MAX_COMPARED - self.compared)
                    self.compared += weight
                    if index >= 0:
                        return region, Clash(other, log.locations[index], log.regions[index])
        return None

    def enter(
        self, unit: Unit, number: int, regions: Sequence[StridedRegion], location: InstructionLocation
    ) -> None:
        """Record the accesses of command `number` of a unit."""
        for region in regions:
            self._logs.setdefault((unit, region.space, region.write), _Log()).add(number, region, location)
        self.total += len(regions)

    def forget(self, known: Clock) -> "Accesses":
        """Return a copy without the commands that have retired according to `known`."""
        accesses = Accesses(self.compared)
        accesses._logs = {key: log.forget(known[key[0]]) for key, log in self._logs.items()}
        accesses.total = sum(len(log.numbers) for log in accesses._logs.values())
        accesses._limit = max(_CROWDED, 2 * accesses.total)
        return accesses


#: Limits on the access pairs compared at once, and on the total runs of pairs whose bounding boxes intersect.
_MAX_PAIRS, _MAX_RUNS = 1 << 20, 1 << 26


def in_order(logs: "Mapping[Kind, Log]", clocks: Sequence[NDArray[np.int64]]) -> bool:
    """Return True if every pair of conflicting accesses is ordered; may also return False if there are too many pairs.

    Parameters
    ----------
    logs : dict
        Accesses by unit, memory and direction; the commands of each unit are numbered from 0.
    clocks : sequence of array [commands, units]
        Vector clocks for each unit: the number of commands of every unit that have retired when each command of the
        unit starts.
    """
    kinds = list(logs)
    return all(
        _disjoint(logs[one], logs[other], *_unordered(logs[one], one, other, clocks))
        for one in kinds
        for other in kinds
        if one[1] == other[1] and (one[2] or other[2]) and _counts(one, other)
    )


def _counts(one: "Kind", other: "Kind") -> bool:
    """Return True if two kinds of accesses must be compared in this order, so that each pair is compared only once.

    Within a unit, writes stay in order and reads stay before later writes, but a read may run before an earlier write
    has finished.
    """
    if one[0] != other[0]:
        return one[0] < other[0]
    return not one[2] and other[2]


def _unordered(
    log: "Log", one: "Kind", other: "Kind", clocks: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each access in a log, the half-open range of the other unit's commands that are unordered with it."""
    first = clocks[one[0]][log.numbers, other[0]]
    if one[0] == other[0]:
        return first, log.numbers
    # A unit's clock never decreases: the commands that start before this one has retired are the first ones.
    return first, np.searchsorted(clocks[other[0]][:, one[0]], log.numbers, "right")


def _disjoint(log: "Log", other: "Log", first: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
    """Return True if no access in `log` overlaps an access in `other` by commands first..end-1; False if undecided."""
    start = np.searchsorted(other.numbers, first)
    counts = np.maximum(np.searchsorted(other.numbers, end) - start, 0)
    total = int(counts.sum())
    if total > _MAX_PAIRS:
        return False
    if not total:
        return True
    mine = np.repeat(np.arange(len(counts)), counts)
    its = np.arange(total) + np.repeat(start - np.cumsum(counts) + counts, counts)
    meet = (log.low[mine] <= other.high[its]) & (other.low[its] <= log.high[mine])
    pairs = list(zip(mine[meet].tolist(), its[meet].tolist(), strict=True))
    if sum(runs(log.regions[a]) + runs(other.regions[b]) for a, b in pairs) > _MAX_RUNS:
        return False
    return not any(overlap(log.regions[a], other.regions[b]) for a, b in pairs)
