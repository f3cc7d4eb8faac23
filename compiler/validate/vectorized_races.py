"""Vectorized test that all conflicting accesses of a stream are ordered."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.validate.call_trace import Kind, Log
from compiler.validate.footprint import overlap, runs

#: Limits on the access pairs compared at once, and on the total runs of pairs whose bounding boxes intersect.
_MAX_PAIRS, _MAX_RUNS = 1 << 20, 1 << 26


def in_order(logs: Mapping[Kind, Log], clocks: Sequence[NDArray[np.int64]]) -> bool:
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


def _counts(one: Kind, other: Kind) -> bool:
    """Return True if two kinds of accesses must be compared in this order, so that each pair is compared only once.

    Within a unit, writes stay in order and reads stay before later writes, but a read may run before an earlier write
    has finished.
    """
    if one[0] != other[0]:
        return one[0] < other[0]
    return not one[2] and other[2]


def _unordered(
    log: Log, one: Kind, other: Kind, clocks: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each access in a log, the half-open range of the other unit's commands that are unordered with it."""
    first = clocks[one[0]][log.numbers, other[0]]
    if one[0] == other[0]:
        return first, log.numbers
    # A unit's clock never decreases: the commands that start before this one has retired are the first ones.
    return first, np.searchsorted(clocks[other[0]][:, one[0]], log.numbers, "right")


def _disjoint(log: Log, other: Log, first: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
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
