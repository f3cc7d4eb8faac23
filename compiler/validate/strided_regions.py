"""Strided address sets and their intersection test."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from compiler.util.lru_cache import LruCache

#: Dimensions of a walk: (count, stride) with counts above 1 and growing strides above 0.
Steps = tuple[tuple[int, int], ...]
#: Maximum number of runs examined one by one; a larger walk is approximated by its address range.
MAX_RUNS = 1 << 16
#: Capacity of the cache of `intervals`, in intervals.
_MAX_CACHED = 1 << 22


class StridedRegion(NamedTuple):
    """Addresses `low + sum(index * stride) + 0..run-1` in one memory.

    Parameters
    ----------
    space : str
        Memory: sp, param, table, dram (addresses in bytes) or acc (in rows).
    low, high : int
        First and last address touched.
    steps : Steps
        Dimensions with gaps; empty if every address from low to high is touched.
    run : int
        Contiguous addresses touched at each step.
    write : bool
        True if the addresses are written, False if read.
    """

    space: str
    low: int
    high: int
    steps: Steps
    run: int
    write: bool


_intervals: LruCache[tuple[np.ndarray, np.ndarray]] = LruCache(_MAX_CACHED)


def region(
    space: str, base: int, steps: Sequence[tuple[int, int]], run: int, *, write: bool = False
) -> StridedRegion:
    """Region of a walk from `base` with any (count, stride) dimensions that touches `run` addresses at each step."""
    high = base + run - 1
    gaps: list[tuple[int, int]] = []
    for count, stride in sorted((s if s[1] >= 0 else (s[0], -s[1]) for s in _moving(steps)), key=_stride):
        high += (count - 1) * stride
        if stride <= run:
            run += (count - 1) * stride
        elif gaps and stride == gaps[-1][0] * gaps[-1][1]:
            gaps[-1] = (gaps[-1][0] * count, gaps[-1][1])
        else:
            gaps.append((count, stride))
    shift = sum((count - 1) * stride for count, stride in steps if stride < 0)
    return StridedRegion(space, base + shift, high + shift, tuple(gaps), run, write)


def _moving(steps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [step for step in steps if step[0] > 1 and step[1]]


def _stride(step: tuple[int, int]) -> int:
    return step[1]


def overlap(a: StridedRegion, b: StridedRegion) -> bool:
    """Return True if two regions of one memory share an address; conservative above MAX_RUNS runs."""
    if a.low > b.high or b.low > a.high:
        return False
    if not a.steps and not b.steps:
        return True
    return _overlap(a.steps, a.run, a.high - a.low, b.steps, b.run, b.high - b.low, b.low - a.low)


@lru_cache(maxsize=1 << 14)
def _overlap(
    a_steps: Steps, a_run: int, a_last: int, b_steps: Steps, b_run: int, b_last: int, shift: int
) -> bool:
    """Return True if a walk from 0 and one from `shift` share an address."""
    a, b = intervals(a_steps, a_run, a_last), intervals(b_steps, b_run, b_last)
    first = np.searchsorted(a[1], b[0] + shift, "right")
    inside = first < len(a[0])
    return bool((a[0][first[inside]] < b[1][inside] + shift).any())


def runs(item: StridedRegion) -> int:
    """Number of contiguous runs that `overlap` examines, at most MAX_RUNS."""
    count = 1
    for steps, _ in item.steps:
        count *= steps
    return min(count, MAX_RUNS)


def intervals(steps: Steps, run: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends (exclusive) of the disjoint intervals that a walk from 0 to `last` touches, sorted."""
    found = _intervals.get((steps, run, last))
    if found is None:
        found = _walked(steps, run, last)
        _intervals.put((steps, run, last), found, len(found[0]))
    return found


def _walked(steps: Steps, run: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    starts, ends = np.zeros(1, np.int64), np.full(1, run, np.int64)
    for count, stride in steps:
        if len(starts) * count > MAX_RUNS:
            return np.zeros(1, np.int64), np.full(1, last + 1, np.int64)
        offsets = np.arange(count, dtype=np.int64)[:, None] * stride
        starts, ends = _merged((starts + offsets).reshape(-1), (ends + offsets).reshape(-1))
    return starts, ends


def _merged(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort intervals and merge those that touch or overlap."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    fresh = np.concatenate([[True], starts[1:] > ends[:-1]])
    return starts[fresh], ends[np.concatenate([fresh[1:], [True]])]
