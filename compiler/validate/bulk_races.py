"""Whether all accesses of a stream that conflict are in order, looked at all at once."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.validate.strided_regions import overlap, runs
from compiler.validate.trace import Kind, Log

#: Pairs of accesses that are compared at once, and runs of all of them whose boxes meet.
_MOST_PAIRS, _MOST_RUNS = 1 << 20, 1 << 26


def in_order(logs: Mapping[Kind, Log], clocks: Sequence[NDArray[np.int64]]) -> bool:
    """Whether no two accesses that conflict are without order; may be False where there are too many to be sure.

    Parameters
    ----------
    logs : dict
        Accesses by unit, memory and direction; their commands counted from 0.
    clocks : sequence of array [commands, units]
        For each unit how many commands of every unit have retired when each of its own starts.
    """
    kinds = list(logs)
    return all(
        _apart(logs[one], logs[other], *_beside(logs[one], one, other, clocks))
        for one in kinds
        for other in kinds
        if one[1] == other[1] and (one[2] or other[2]) and _counts(one, other)
    )


def _counts(one: Kind, other: Kind) -> bool:
    """Each pair once. In a unit writes keep their order, and reads the one before later writes; reads may be early."""
    if one[0] != other[0]:
        return one[0] < other[0]
    return not one[2] and other[2]


def _beside(
    log: Log, one: Kind, other: Kind, clocks: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Commands of the other kind's unit, first and behind the last, that nothing orders with those of a log."""
    first = clocks[one[0]][log.numbers, other[0]]
    if one[0] == other[0]:
        return first, log.numbers
    # A unit never knows less than before: those that do not know this command's end are the first ones.
    return first, np.searchsorted(clocks[other[0]][:, one[0]], log.numbers, "right")


def _apart(log: Log, other: Log, first: NDArray[np.int64], behind: NDArray[np.int64]) -> bool:
    """Whether no access of a log shares an address with those of the other one by certain commands."""
    start = np.searchsorted(other.numbers, first)
    counts = np.maximum(np.searchsorted(other.numbers, behind) - start, 0)
    total = int(counts.sum())
    if total > _MOST_PAIRS:
        return False
    if not total:
        return True
    mine = np.repeat(np.arange(len(counts)), counts)
    its = np.arange(total) + np.repeat(start - np.cumsum(counts) + counts, counts)
    meet = (log.low[mine] <= other.high[its]) & (other.low[its] <= log.high[mine])
    pairs = list(zip(mine[meet].tolist(), its[meet].tolist(), strict=True))
    if sum(runs(log.regions[a]) + runs(other.regions[b]) for a, b in pairs) > _MOST_RUNS:
        return False
    return not any(overlap(log.regions[a], other.regions[b]) for a, b in pairs)
