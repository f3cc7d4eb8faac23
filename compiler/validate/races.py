"""Conflicting accesses that nothing orders."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from compiler.validate.errors import Place
from compiler.validate.regions import Region, overlap
from hw.isa.enums import Unit

#: How many commands of each unit are known to have retired.
Clock = tuple[int, int, int, int]
START: Clock = (0, 0, 0, 0)
_UNITS = tuple(Unit)
#: Accesses up to which one comparison after the other is faster than numpy.
_FEW = 24


class Clash(NamedTuple):
    """A conflicting access that nothing orders."""

    unit: Unit
    place: Place
    region: Region


class Races(Protocol):
    """Who is told of commands as they start."""

    def clash(self, unit: Unit, known: Clock, regions: Sequence[Region]) -> tuple[Region, Clash] | None:
        """An access of a command that clashes with an earlier one, and that; `known` has retired for certain."""
        ...

    def enter(self, unit: Unit, number: int, regions: Sequence[Region], place: Place) -> None:
        """Enter the accesses of a command, which is so many of its unit's."""
        ...

    def forget(self, known: Clock) -> "Races":
        """A copy without what every later command knows to have retired."""
        ...


class _Log:
    """Accesses of one kind by one unit, in the order in which its commands start."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.regions: list[Region] = []
        self.places: list[Place] = []
        self._boxes = np.zeros((2, 0), np.int64)
        self._boxed = 0

    def add(self, number: int, region: Region, place: Place) -> None:
        self.numbers.append(number)
        self.regions.append(region)
        self.places.append(place)

    def clash(self, known: int, region: Region) -> int:
        """Index of an access by command `known` or a later one that shares an address with `region`; -1 if none."""
        first = bisect_left(self.numbers, known)
        if first == len(self.numbers):
            return -1
        candidates = range(first, len(self.numbers))
        if len(candidates) > _FEW:
            self._extend()
            low, high = self._boxes[:, first : len(self.numbers)]
            candidates = (first + np.flatnonzero((low <= region.high) & (high >= region.low))).tolist()
        return next((index for index in candidates if overlap(self.regions[index], region)), -1)

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

    def __init__(self) -> None:
        self._logs: dict[tuple[Unit, str, bool], _Log] = {}

    def clash(self, unit: Unit, known: Clock, regions: Sequence[Region]) -> tuple[Region, Clash] | None:
        """An access of a command that clashes with an earlier one, and that.

        Parameters
        ----------
        known : Clock
            What has certainly retired when the command starts.
        """
        for region in regions:
            for other in _UNITS:
                # Within a unit writes keep their order, and their place behind earlier reads; only a read may come too
                # soon for an earlier write.
                if unit == other and region.write:
                    continue
                for write in (True, False) if region.write else (True,):
                    log = self._logs.get((other, region.space, write))
                    index = -1 if log is None else log.clash(known[other], region)
                    if log and index >= 0:
                        return region, Clash(other, log.places[index], log.regions[index])
        return None

    def enter(self, unit: Unit, number: int, regions: Sequence[Region], place: Place) -> None:
        """Enter the accesses of a command, which is so many of its unit's."""
        for region in regions:
            self._logs.setdefault((unit, region.space, region.write), _Log()).add(number, region, place)

    def forget(self, known: Clock) -> "Accesses":
        """A copy without what every later command knows to have retired."""
        accesses = Accesses()
        accesses._logs = {key: log.forget(known[key[0]]) for key, log in self._logs.items()}
        return accesses
