"""Address ranges of a command, represented by the bounding box of each of its streams."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from cosim.semantics.command_fields import CommandFields
from cosim.semantics.coordinates import coordinate_ranges, unpadded_range
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS
from hw.isa.enums import DTYPE_BYTES, PAIRS, BSource, Post, Reduce, Requant, Space, Unit


@dataclass(frozen=True)
class BoundingBox:
    """Bounding box of a stream: its lowest and highest address, and the loops that generate its addresses.

    Parameters
    ----------
    space : str
        Address space: sp, acc, param, table, slot (parameter slots by index) or dram.
    low, high : int
        Lowest and highest element accessed; an element is a byte, row or slot, depending on the space.
    write : bool
        True if the stream writes.
    steps : tuple of (int, int)
        Count and stride of each loop of the stream; empty if every element of the box is accessed.
    touched : int
        Number of consecutive elements accessed in each iteration.
    """

    space: str
    low: int
    high: int
    write: bool = False
    steps: tuple[tuple[int, int], ...] = ()
    touched: int = 0

    @cached_property
    def comb(self) -> tuple[int, int]:
        """Period and width of a periodic pattern that covers the stream: (address - low) % period < width."""
        size = self.high - self.low + 1
        strides = [(count, abs(stride)) for count, stride in self.steps if count > 1 and stride]
        for period in sorted({stride for _, stride in strides}):
            inside = ((count - 1) * stride for count, stride in strides if stride % period)
            width = self.touched + sum(inside)
            if width < period:
                return period, width
        return size, size

    def meets(self, other: "BoundingBox") -> bool:
        """Return False if the two streams certainly have no element in common, and True if they may have one.

        Interleaved patterns without overlap are recognized, for example disjoint channels of the same image.
        """
        if self.space != other.space or self.low > other.high or other.low > self.high:
            return False
        offset = other.low - self.low
        return all(_combs_meet(mine, its, offset) for mine in self.combs for its in other.combs)

    @cached_property
    def combs(self) -> tuple[tuple[int, int], ...]:
        """Patterns that each cover the stream: the periodic pattern, and a single interval from `low` to `high`."""
        size = self.high - self.low + 1
        return (self.comb,) if self.comb[0] == size else (self.comb, (size, size))

    def moved(self, by: int) -> "BoundingBox":
        """Return the box of the same stream `by` elements later, with the patterns computed so far."""
        out: BoundingBox = object.__new__(BoundingBox)
        vars(out).update(vars(self), low=self.low + by, high=self.high + by)
        return out


def _combs_meet(a: tuple[int, int], b: tuple[int, int], offset: int) -> bool:
    """Return whether two periodic patterns may overlap if the second begins `offset` elements after the first."""
    mine, its = _with_common_period(a, b), _with_common_period(b, a)
    period = gcd(mine[0], its[0])
    offset %= period
    return offset < mine[1] or offset + its[1] > period


def _with_common_period(comb: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return `comb` with the period of `other` if `comb` is a single interval that is shorter than this period; else
    return it unchanged.
    """
    return (other[0], comb[1]) if comb[0] == comb[1] < other[0] else comb


def box(
    space: str, base: int, steps: Sequence[tuple[int, int]], touched: int, write: bool = False
) -> BoundingBox:
    """Return the bounding box of a loop nest that starts at `base` and accesses `touched` elements in each iteration.

    Parameters
    ----------
    space : str
        Address space of the stream.
    base : int
        Address of the first iteration.
    steps : Sequence of (int, int)
        Count and stride of each loop.
    touched : int
        Number of consecutive elements accessed in each iteration.
    write : bool
        True if the stream writes.
    """
    low = base + sum(min(0, (count - 1) * stride) for count, stride in steps)
    high = base + sum(max(0, (count - 1) * stride) for count, stride in steps)
    return BoundingBox(space, low, high + touched - 1, write, tuple(steps), touched)


def boxes(config: MlaConfig, unit: Unit, c: CommandFields) -> Iterator[BoundingBox]:
    """Return the bounding boxes of all streams that a command reads or writes."""
    return (_load, _matrix, _fuse, _store)[unit](config, c)


def _load(config: MlaConfig, c: CommandFields) -> Iterator[BoundingBox]:
    space = ("sp", "param", "table")[Space(c.space)]
    if c.transpose:
        yield box(space, c.dst, [(c.z_count, c.dst_z), (c.len, c.dst_y)], c.y_count, True)
    else:
        line = 2 * config.n if c.packed else c.len
        yield box(space, c.dst, [(c.z_count, c.dst_z), (c.y_count, c.dst_y)], line, True)
    if not c.fill:
        yield box("dram", c.dram, [(c.z_count, c.dram_z), (c.y_count, c.dram_y)], c.len)


def _store(config: MlaConfig, c: CommandFields) -> Iterator[BoundingBox]:
    yield box("sp", c.src, [(c.z_count, c.src_z), (c.y_count, c.src_y)], c.len)
    yield box("dram", c.dram, [(c.z_count, c.dram_z), (c.y_count, c.dram_y)], c.len, True)


def _padded(
    unit: Unit, space: str, c: CommandFields, steps: list[tuple[int, int]], touched: int
) -> Iterator[BoundingBox]:
    """Return the bounding box of a stream that is addressed by image coordinates, or no box if the whole stream is
    padding.
    """
    whole_u, whole_v = coordinate_ranges(unit, c)
    u, v = unpadded_range(whole_u, c.u_lim), unpadded_range(whole_v, c.v_lim)
    if u is None or v is None:
        return
    low = c.a_base + min(u[0] * c.a_u, u[1] * c.a_u) + min(v[0] * c.a_v, v[1] * c.a_v)
    high = c.a_base + max(u[0] * c.a_u, u[1] * c.a_u) + max(v[0] * c.a_v, v[1] * c.a_v)
    rest = box(space, 0, steps, touched)
    walk = ((u[1] - u[0] + 1, c.a_u), (v[1] - v[0] + 1, c.a_v), *steps)
    yield BoundingBox(space, low + rest.low, high + rest.high, steps=walk, touched=touched)


def _matrix(config: MlaConfig, c: CommandFields) -> Iterator[BoundingBox]:
    n = config.n
    if c.dw:
        yield from _padded(Unit.MATRIX, "sp", c, [(c.oc_count, c.a_oc)], n)
        yield box("sp", c.w_base, [(c.oc_count, c.w_oc), (c.taps * c.groups, c.w_row)], n)
        rows = (c.dw_len - c.dw_lead - 1) // c.x_count // c.dw_sy + 1
        steps = [(c.oc_count, c.acc_oc), (rows, c.acc_y), (c.dw_out_w, c.acc_x)]
        yield box("acc", c.acc_base, steps, 1, True)
        return
    blocks = [(c.oc_count, c.a_oc), (c.ic_count, c.a_ic)]
    yield from _padded(Unit.MATRIX, "sp", c, blocks, 2 * n if c.wide or c.sparse else n)
    if c.w_transpose:
        lines = _max_active(c.n_cols, c.n_tail, c.oc_count, n)
    else:
        lines = _max_active(c.k_rows, c.k_tail, c.ic_count, n)
    steps = [
        (c.oc_count, c.w_oc),
        (c.ic_count, c.w_ic),
        (c.ky_count, c.w_ky),
        (c.kx_count, c.w_kx),
        (lines + rows_after(c, n), c.w_row),
    ]
    yield box("sp", c.w_base, steps, n)
    yield box(
        "acc", c.acc_base, [(c.oc_count, c.acc_oc), (c.y_count, c.acc_y), (c.x_count, c.acc_x)], 1, True
    )


def rows_after(c: CommandFields, n: int) -> int:
    """Return the number of rows after the weight rows of each tile: indices of sparse tiles, and factors."""
    return (n // 4 if c.sparse else 0) + c.scaled


def _max_active(count: int, tail: int, blocks: int, n: int) -> int:
    """Return the maximum number of active rows or columns of any block."""
    count = count or n
    tail = tail or count
    return tail if blocks == 1 else max(count, tail)


def _walk(c: CommandFields, stream: str) -> list[tuple[int, int]]:
    return [(getattr(c, f"{dim}_count"), getattr(c, f"{stream}_{dim}")) for dim in FUSE_DIMS]


def _fuse(config: MlaConfig, c: CommandFields) -> Iterator[BoundingBox]:
    n = config.n
    touched = n * DTYPE_BYTES[c.a_dtype] if c.a_src else 1
    yield from _padded(Unit.FUSE, "sp" if c.a_src else "acc", c, [(c.n_count, c.a_n)], touched)
    if c.b_src == BSource.SP:
        yield box("sp", c.b_base, _walk(c, "b"), n * DTYPE_BYTES[c.b_dtype])
    elif c.b_src == BSource.ACC:
        yield box("acc", c.b_base, _walk(c, "b"), 1)
    if c.residual:
        yield box("sp", c.r_base, _walk(c, "r"), n * DTYPE_BYTES[c.r_dtype])
    if reads_slots(c):
        yield box("slot", c.p_base, [(c.x_count, c.p_x), (c.n_count, c.p_n)], 1)
    if not c.d_dst:
        yield box("acc", c.d_base, _walk(c, "d"), 1, True)
        return
    size = DTYPE_BYTES[c.d_dtype]
    lanes = max(c.lanes or n, (c.lanes_tail or n) if c.tail_dim < len(FUSE_DIMS) else 0)
    elements = 1 if c.lane_reduce != Reduce.NONE else lanes
    yield box("sp", c.d_base, _walk(c, "d"), elements * size, True)


def is_scalar_pair(c: CommandFields) -> bool:
    """Return whether the command's result is a multiplier and an exponent."""
    return c.post in PAIRS


def reads_row(c: CommandFields) -> bool:
    """Return whether lanes rq_lane and rq_lane + 1 of operand B are parameters of a FUSE command."""
    return c.requant == Requant.ROW or c.post in (Post.ROW, Post.VAR_RSQRT)


def reads_slots(c: CommandFields) -> bool:
    """Return whether a FUSE command reads parameter slots."""
    return c.requant == Requant.SLOT or c.post == Post.SLOT
