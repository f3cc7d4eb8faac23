"""Conflicting accesses that nothing orders."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from compiler.validate.errors import InstructionLocation
from compiler.validate.strided_regions import StridedRegion, overlap, runs
from hw.isa.enums import Unit

#: How many commands of each unit are known to have retired.
Clock = tuple[int, int, int, int]
START: Clock = (0, 0, 0, 0)
_UNITS = tuple(Unit)
#: Accesses up to which one comparison after the other is faster than numpy.
_FEW = 24
#: Accesses that may be without order at a time.
MAX_ACCESSES = 1 << 18
#: Comparisons of accesses in a call, weighted by the addresses that they look at.
MAX_COMPARED = 1 << 31
#: Weight of an exact comparison of two regions, besides their runs.
_EXACT = 1 << 11
#: Accesses above which those that every later command knows to have retired are dropped.
_CROWDED = 1 << 14


class ComparisonLimitError(Exception):
    """More comparisons than a call may take."""


class Clash(NamedTuple):
    """A conflicting access that nothing orders."""

    unit: Unit
    place: InstructionLocation
    region: StridedRegion


class Races(Protocol):
    """Who is told of commands as they start."""

    #: Weight of the comparisons made during this call.
    compared: int

    @property
    def total(self) -> int:
        """Number of accesses held."""
        ...

    @property
    def crowded(self) -> bool:
        """Whether it is time for `forget`."""
        ...

    def clash(
        self, unit: Unit, known: Clock, regions: Sequence[StridedRegion]
    ) -> tuple[StridedRegion, Clash] | None:
        """An access of a command that clashes with an earlier one, and that; `known` has retired for certain."""
        ...

    def enter(
        self, unit: Unit, number: int, regions: Sequence[StridedRegion], place: InstructionLocation
    ) -> None:
        """Enter the accesses of a command, which is so many of its unit's."""
        ...

    def forget(self, known: Clock) -> "Races":
        """A copy without what every later command knows to have retired."""
        ...


class _Log:
    """Accesses of one kind by one unit, in the order in which its commands start."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.regions: list[StridedRegion] = []
        self.places: list[InstructionLocation] = []
        self._boxes = np.zeros((2, 0), np.int64)
        self._boxed = 0

    def add(self, number: int, region: StridedRegion, place: InstructionLocation) -> None:
        self.numbers.append(number)
        self.regions.append(region)
        self.places.append(place)

    def clash(self, known: int, region: StridedRegion, allowed: int) -> tuple[int, int]:
        """Index of an access by command `known` or a later one that shares an address with `region`; -1 if none.

        Returns the index and the weight of the comparisons made.

        Raises
        ------
        ComparisonLimitError
            The weight would exceed `allowed`.
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
        """Bring the array of boxes up to date."""
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
        """A copy without the commands before `known`."""
        first = bisect_left(self.numbers, known)
        log = _Log()
        log.numbers, log.regions, log.places = self.numbers[first:], self.regions[first:], self.places[first:]
        return log


class Accesses:
    """All accesses that some later command might still race with."""

    def __init__(self, compared: int = 0) -> None:
        self._logs: dict[tuple[Unit, str, bool], _Log] = {}
        self._limit = _CROWDED
        #: Weight of the comparisons made during this call.
        self.compared = compared
        #: Number of accesses held.
        self.total = 0

    @property
    def crowded(self) -> bool:
        """Whether it is time for `forget`."""
        return self.total > self._limit

    def clash(
        self, unit: Unit, known: Clock, regions: Sequence[StridedRegion]
    ) -> tuple[StridedRegion, Clash] | None:
        """An access of a command that clashes with an earlier one, and that.

        Parameters
        ----------
        known : Clock
            What has certainly retired when the command starts.

        Raises
        ------
        ComparisonLimitError
            The comparisons of this call exceed `MAX_COMPARED`.
        """
        for region in regions:
            for other in _UNITS:
                # Within a unit writes keep their order, and their place behind earlier reads; only a read may come too
                # soon for an earlier write.
                if unit == other and region.write:
                    continue
                for write in (True, False) if region.write else (True,):
                    log = self._logs.get((other, region.space, write))
                    if log is None:
                        continue
                    index, weight = log.clash(known[other], region, MAX_COMPARED - self.compared)
                    self.compared += weight
                    if index >= 0:
                        return region, Clash(other, log.places[index], log.regions[index])
        return None

    def enter(
        self, unit: Unit, number: int, regions: Sequence[StridedRegion], place: InstructionLocation
    ) -> None:
        """Enter the accesses of a command, which is so many of its unit's."""
        for region in regions:
            self._logs.setdefault((unit, region.space, region.write), _Log()).add(number, region, place)
        self.total += len(regions)

    def forget(self, known: Clock) -> "Accesses":
        """A copy without what every later command knows to have retired."""
        accesses = Accesses(self.compared)
        accesses._logs = {key: log.forget(known[key[0]]) for key, log in self._logs.items()}
        accesses.total = sum(len(log.numbers) for log in accesses._logs.values())
        accesses._limit = max(_CROWDED, 2 * accesses.total)
        return accesses
