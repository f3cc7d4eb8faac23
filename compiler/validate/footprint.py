"""Access footprints of commands as strided regions, and a record of the memory that a stream has written."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from compiler.util.lru_cache import LruCache
from cosim.semantics.bounding_box import reads_row, reads_slots, rows_after
from cosim.semantics.command_fields import CommandFields
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS
from hw.isa.enums import DTYPE_BYTES, BSource, Reduce, Space, Unit

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
        Name of the memory: sp, param, table or dram (addresses in bytes), or acc (addresses in rows).
    low, high : int
        First and last address accessed.
    steps : Steps
        Dimensions with gaps; empty if every address from `low` to `high` is accessed.
    run : int
        Number of contiguous addresses accessed at each step.
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
    """Return the region that a nested loop over (count, stride) dimensions accesses.

    The loop starts at address `base` and accesses `run` contiguous addresses at each step.
    """
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
    """Return True if two regions of one memory share an address; may also return True above MAX_RUNS runs."""
    if a.low > b.high or b.low > a.high:
        return False
    if not a.steps and not b.steps:
        return True
    return _overlap(a.steps, a.run, a.high - a.low, b.steps, b.run, b.high - b.low, b.low - a.low)


@lru_cache(maxsize=1 << 14)
def _overlap(
    a_steps: Steps, a_run: int, a_last: int, b_steps: Steps, b_run: int, b_last: int, shift: int
) -> bool:
    """Return True if the regions of two walks, which start at addresses 0 and `shift`, share an address."""
    a, b = intervals(a_steps, a_run, a_last), intervals(b_steps, b_run, b_last)
    first = np.searchsorted(a[1], b[0] + shift, "right")
    inside = first < len(a[0])
    return bool((a[0][first[inside]] < b[1][inside] + shift).any())


def runs(item: StridedRegion) -> int:
    """Return the number of contiguous runs that `overlap` examines, at most MAX_RUNS."""
    count = 1
    for steps, _ in item.steps:
        count *= steps
    return min(count, MAX_RUNS)


def intervals(steps: Steps, run: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted starts and ends (exclusive) of the disjoint intervals that a walk from 0 to `last` accesses."""
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


_SPACES = ("sp", "param", "table")
#: Maximum number of coordinates enumerated one by one; a larger set is approximated by its range.
_MAX_COORDINATES = 1 << 12
#: Bytes per lane of a parameter slot: with bias, multiplier and exponent; also with the second multiplier and exponent.
_SLOT_PARTS = (9, 14)
Dims = list[tuple[int, int]]


def streams(config: MlaConfig, unit: Unit, c: CommandFields, *, used: bool = False) -> list[StridedRegion]:
    """Return all regions that a legal command accesses; if `used`, without activation lanes that have no effect."""
    if unit == Unit.MATRIX:
        return list(_matrix(config, c, used))
    return list((_load if unit == Unit.LOAD else _store if unit == Unit.STORE else _fuse)(config, c))


def accumulates(unit: Unit, c: CommandFields) -> bool:
    """Return True if a MATRIX command also reads the accumulator rows that it writes."""
    return unit == Unit.MATRIX and bool(c.accumulate or c.shift8)


def _load(config: MlaConfig, c: CommandFields) -> Iterator[StridedRegion]:
    space = _SPACES[Space(c.space)]
    if c.transpose:
        yield region(space, c.dst, [(c.z_count, c.dst_z), (c.len, c.dst_y)], c.y_count, write=True)
    else:
        line = 2 * config.n if c.packed else c.len
        yield region(space, c.dst, [(c.z_count, c.dst_z), (c.y_count, c.dst_y)], line, write=True)
    if not c.fill:
        planes = 1 if c.packed else c.z_count
        yield region("dram", c.dram, [(planes, c.dram_z), (c.y_count, c.dram_y)], c.len)


def _store(config: MlaConfig, c: CommandFields) -> Iterator[StridedRegion]:
    yield region("sp", c.src, [(c.z_count, c.src_z), (c.y_count, c.src_y)], c.len)
    yield region("dram", c.dram, [(c.z_count, c.dram_z), (c.y_count, c.dram_y)], c.len, write=True)


@lru_cache(maxsize=1 << 12)
def coordinate_steps(start: int, steps: tuple[tuple[int, int], ...], limit: int) -> tuple[int, Dims] | None:
    """Return the first coordinate that is not padding, and the dimensions of all such coordinates.

    If the coordinates without padding are an irregular set, all coordinates between its first and last member are
    included. The result is None if all coordinates are padding.
    """
    low = start + sum(min(0, (count - 1) * stride) for count, stride in steps)
    high = start + sum(max(0, (count - 1) * stride) for count, stride in steps)
    if not limit or (low >= 0 and high < limit):
        return start, [(count, stride) for count, stride in steps if count > 1 and stride]
    low, high = max(low, 0), min(high, limit - 1)
    if low > high:
        return None
    values = {start}
    for count, stride in steps:
        if len(values) * count > _MAX_COORDINATES:
            return low, [(high - low + 1, 1)]
        values = {value + index * stride for value in values for index in range(count)}
    inside = sorted(value for value in values if 0 <= value < limit)
    if not inside:
        return None
    step = min((b - a for a, b in pairwise(inside)), default=1)
    if any((value - inside[0]) % step for value in inside):
        step = 1
    return inside[0], [((inside[-1] - inside[0]) // step + 1, step)]


def _padded(
    space: str, c: CommandFields, u_steps: tuple, v_steps: tuple, others: Dims, run: int
) -> Iterator[StridedRegion]:
    """Yield the region of a stream that is addressed by coordinates, unless all coordinates are padding."""
    u, v = coordinate_steps(c.u0, u_steps, c.u_lim), coordinate_steps(c.v0, v_steps, c.v_lim)
    if u is None or v is None:
        return
    steps = [(count, stride * c.a_u) for count, stride in u[1]]
    steps += [(count, stride * c.a_v) for count, stride in v[1]]
    yield region(space, c.a_base + u[0] * c.a_u + v[0] * c.a_v, steps + others, run)


def _padded_blocks(
    space: str,
    c: CommandFields,
    coordinates: tuple[tuple, tuple],
    others: Dims,
    block: tuple[int, int],
    runs: tuple[int, int],
) -> Iterator[StridedRegion]:
    """Yield the regions of a stream in which the last step of dimension `block` accesses a different address count."""
    count, stride = block
    if runs[0] == runs[1]:
        yield from _padded(space, c, *coordinates, [*others, block], runs[0])
        return
    if count > 1:
        yield from _padded(space, c, *coordinates, [*others, (count - 1, stride)], runs[0])
    for last in _padded(space, c, *coordinates, others, runs[1]):
        shift = (count - 1) * stride
        yield last._replace(low=last.low + shift, high=last.high + shift)


def _matrix(config: MlaConfig, c: CommandFields, used: bool) -> Iterator[StridedRegion]:
    if c.dw:
        yield from _depthwise(config.n, c, used)
        return
    yield from _activations(config.n, c, used)
    yield from _weights(config.n, c)
    rows = [(c.oc_count, c.acc_oc), (c.y_count, c.acc_y), (c.x_count, c.acc_x)]
    yield region("acc", c.acc_base, rows, 1, write=True)


def _activations(n: int, c: CommandFields, used: bool) -> Iterator[StridedRegion]:
    u, v = ((c.y_count, c.u_y), (c.ky_count, c.u_ky)), ((c.x_count, c.v_x), (c.kx_count, c.v_kx))
    runs = (c.k_rows or n, c.k_tail or c.k_rows or n) if used else (n, n)
    halves: Dims = []
    if c.sparse:  # pairs of array rows use four activations
        runs = ((runs[0] + 1) // 2 * 4, (runs[1] + 1) // 2 * 4)
    elif c.wide and runs == (n, n):
        runs = (2 * n, 2 * n)
    elif c.wide:
        halves = [(2, n)]
    yield from _padded_blocks("sp", c, (u, v), [(c.oc_count, c.a_oc), *halves], (c.ic_count, c.a_ic), runs)


def _weights(n: int, c: CommandFields) -> Iterator[StridedRegion]:
    kernel = [(c.ky_count, c.w_ky), (c.kx_count, c.w_kx)]
    if c.w_transpose:
        split, step, others = c.oc_count, c.w_oc, [(c.ic_count, c.w_ic), *kernel]
        lines, tail = c.n_cols or n, c.n_tail or c.n_cols or n
    else:
        split, step, others = c.ic_count, c.w_ic, [(c.oc_count, c.w_oc), *kernel]
        lines, tail = (rows + rows_after(c, n) for rows in (c.k_rows or n, c.k_tail or c.k_rows or n))
    if lines == tail:
        yield region("sp", c.w_base, [*others, (split, step), (lines, c.w_row)], n)
    else:
        if split > 1:
            yield region("sp", c.w_base, [*others, (split - 1, step), (lines, c.w_row)], n)
        yield region("sp", c.w_base + (split - 1) * step, [*others, (tail, c.w_row)], n)


def _depthwise(n: int, c: CommandFields, used: bool) -> Iterator[StridedRegion]:
    u = (((c.dw_len - 1) // c.x_count + 1, c.u_y),)
    v = ((min(c.x_count, c.dw_len), c.v_x),)
    lanes = c.n_cols or n
    runs = (lanes, c.n_tail or lanes) if used else (n, n)
    yield from _padded_blocks("sp", c, (u, v), [], (c.oc_count, c.a_oc), runs)
    yield region("sp", c.w_base, [(c.oc_count, c.w_oc), (c.taps * c.groups, c.w_row)], n)
    rows = (c.dw_len - c.dw_lead - 1) // c.x_count // c.dw_sy + 1
    steps = [(c.oc_count, c.acc_oc), (rows, c.acc_y), (c.dw_out_w, c.acc_x)]
    yield region("acc", c.acc_base, steps, 1, write=True)


def _fuse(config: MlaConfig, c: CommandFields) -> Iterator[StridedRegion]:
    n = config.n
    yield from _operand_a(n, c)
    if c.b_src == BSource.ACC:
        yield region("acc", c.b_base, _walk(c, "b"), 1)
    elif c.b_src == BSource.SP:
        size = DTYPE_BYTES[c.b_dtype]
        whole = c.b_bcast or reads_row(c)
        yield from _lanes(n, c, "b", size, n if whole else 0)
    if c.residual:
        yield from _lanes(n, c, "r", DTYPE_BYTES[c.r_dtype])
    if reads_slots(c):
        slot = 16 * n
        steps = [(c.x_count, c.p_x * slot), (c.n_count, c.p_n * slot)]
        yield region("param", c.p_base * slot, steps, _SLOT_PARTS[c.neg_en] * n)
    if c.table or c.table2:
        yield region("table", c.table_slot * 512, (), 1024 if c.table_wide else 512)
    if not c.d_dst:
        base, dims = _results(c)
        yield region("acc", base, dims, 1, write=True)
    else:
        scalar = c.lane_reduce != Reduce.NONE
        yield from _lanes(n, c, "d", DTYPE_BYTES[c.d_dtype], 1 if scalar else 0)


def _walk(c: CommandFields, stream: str) -> Dims:
    """Return the dimensions of stream b, r or d, innermost dimension first."""
    return [(getattr(c, f"{dim}_count"), getattr(c, f"{stream}_{dim}")) for dim in FUSE_DIMS]


def _results(c: CommandFields) -> tuple[int, Dims]:
    """Return the base and the dimensions of the results; a reduced window has one result, at its last step."""
    base, dims = c.d_base, _walk(c, "d")
    if c.reduce != Reduce.NONE:
        base += sum((count - 1) * stride for count, stride in dims[:2])
        dims[:2] = [(1, 0), (1, 0)]
    return base, dims


def _operand_a(n: int, c: CommandFields) -> Iterator[StridedRegion]:
    space, size = ("sp", DTYPE_BYTES[c.a_dtype]) if c.a_src else ("acc", 0)
    u, v = ((c.y_count, c.u_y), (c.wy_count, c.u_wy)), ((c.x_count, c.v_x), (c.wx_count, c.v_wx))
    lanes, tail = c.lanes or n, c.lanes_tail or n
    if c.tail_dim >= len(FUSE_DIMS):
        tail = lanes
    elif FUSE_DIMS[c.tail_dim] != "n":
        lanes = tail = max(lanes, tail)
    runs = (lanes * size or 1, tail * size or 1)
    yield from _padded_blocks(space, c, (u, v), [], (c.n_count, c.a_n), runs)


def _lanes(n: int, c: CommandFields, stream: str, size: int, elements: int = 0) -> Iterator[StridedRegion]:
    """Yield the regions of a scratchpad stream with `elements` elements per step; 0: as many as active lanes."""
    write = stream == "d"
    base, dims = _results(c) if write else (getattr(c, f"{stream}_base"), _walk(c, stream))
    lanes, tail = c.lanes or n, c.lanes_tail or n
    if elements or c.tail_dim >= len(FUSE_DIMS) or lanes == tail:
        yield region("sp", base, dims, (elements or lanes) * size, write=write)
        return
    count, stride = dims[c.tail_dim]
    if count > 1:
        dims[c.tail_dim] = (count - 1, stride)
        yield region("sp", base, dims, lanes * size, write=write)
    dims[c.tail_dim] = (1, 0)
    yield region("sp", base + (count - 1) * stride, dims, tail * size, write=write)


class InitializedMemory:
    """Record of the bytes of scratchpad, slots and tables, and of the accumulator rows, that have been written.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration, which determines the memory sizes.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        self._flags = {
            "sp": np.zeros(config.sp_bytes, bool),
            "acc": np.zeros(config.acc_rows, bool),
            "param": np.zeros(config.param_slots * 16 * config.n, bool),
            "table": np.zeros(config.table_slots * 512, bool),
        }

    @property
    def size(self) -> int:
        """Total size of the flags in bytes."""
        return sum(flags.nbytes for flags in self._flags.values())

    def copy(self) -> "InitializedMemory":
        """Return a copy of the record, with which another path can continue."""
        other = InitializedMemory(self._config)
        other._flags = {space: flags.copy() for space, flags in self._flags.items()}
        return other

    def digest(self) -> bytes:
        """Return the SHA-256 digest of the record."""
        return hashlib.sha256(b"".join(flags.tobytes() for flags in self._flags.values())).digest()

    def enter(self, unit: Unit, c: CommandFields) -> tuple[str, int] | None:
        """Record a command and return None, or if it reads an unwritten address, return the memory and the address."""
        regions = streams(self._config, unit, c, used=True)
        for item in regions:
            if item.space == "dram" or (item.write and not accumulates(unit, c)):
                continue
            for start, end in _stretches(item):
                missing = np.flatnonzero(~self._flags[item.space][start:end])
                if missing.size:
                    return item.space, start + int(missing[0])
        for item in regions:
            if item.write and item.space != "dram":
                for start, end in _stretches(item):
                    self._flags[item.space][start:end] = True
        return None


def _stretches(item: StridedRegion) -> Iterator[tuple[int, int]]:
    starts, ends = intervals(item.steps, item.run, item.high - item.low)
    return zip((starts + item.low).tolist(), (ends + item.low).tolist(), strict=True)
