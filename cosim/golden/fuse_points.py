"""FUSE: the points of a command, the addresses of each, and step 1 (operands A and B)."""

from dataclasses import dataclass

import numpy as np

from cosim.golden.command import Config
from cosim.golden.floats import unpack
from cosim.golden.memory import Memories, gather
from cosim.golden.scale import wrap32
from hw.isa.commands import FUSE_DIMS
from hw.isa.enums import BSource, Dtype, Op

#: Axes of a block of points, outermost first.
AXES = FUSE_DIMS[::-1]


def signed16(word: int, position: int) -> int:
    """Signed half word of a packed pair."""
    value = word >> position & 0xFFFF
    return value - (1 << 16 if value >= 1 << 15 else 0)


def signed8(word: int, position: int) -> int:
    """Signed byte of a packed word."""
    value = word >> position & 0xFF
    return value - (1 << 8 if value >= 1 << 7 else 0)


@dataclass
class Block:
    """Some points of a command: whole windows, in loop order.

    Parameters
    ----------
    index : dict
        For each of `AXES`, the loop index of every point.
    valid : numpy.ndarray
        Which points are not padding.
    u, v : numpy.ndarray
        Coordinates.
    lanes : numpy.ndarray
        Active lanes of every point.
    width : int
        Greatest number of active lanes.
    """

    index: dict[str, np.ndarray]
    valid: np.ndarray
    u: np.ndarray
    v: np.ndarray
    lanes: np.ndarray
    width: int

    def address(self, c: Config, stream: str) -> np.ndarray:
        """Address of every point in stream b, r or d."""
        base = np.full(self.valid.shape, getattr(c, f"{stream}_base"), np.int64)
        for dim in AXES:
            stride = getattr(c, f"{stream}_{dim}")
            if stride:
                base += self.index[dim] * stride
        return base

    @property
    def active(self) -> np.ndarray:
        """Which lanes of which points are in use, shape (point, width)."""
        return np.arange(self.width) < self.lanes[:, None]


def points(c: Config, n: int, first: int, last: int) -> Block:
    """Points of the windows first..last-1 (a window is one (n, y, x))."""
    size = c.wy_count * c.wx_count
    shape = (c.n_count, c.y_count, c.x_count, c.wy_count, c.wx_count)
    index: dict[str, np.ndarray] = dict(
        zip(AXES, np.unravel_index(np.arange(first * size, last * size), shape), strict=True)
    )
    u = c.u0 + index["y"] * c.u_y + index["wy"] * c.u_wy
    v = c.v0 + index["x"] * c.v_x + index["wx"] * c.v_wx
    valid = np.ones(u.shape, bool)
    if c.u_lim:
        valid &= (u >= 0) & (u < c.u_lim)
    if c.v_lim:
        valid &= (v >= 0) & (v < c.v_lim)
    lanes = np.full(u.shape, c.lanes or n)
    if c.tail_dim < len(FUSE_DIMS):
        dim = FUSE_DIMS[c.tail_dim]
        lanes[index[dim] == getattr(c, f"{dim}_count") - 1] = c.lanes_tail or n
    return Block(index, valid, u, v, lanes, int(lanes.max()))


def operand_a(memories: Memories, c: Config, block: Block) -> tuple[np.ndarray, np.ndarray | int]:
    """Operand A, zero where the point is padding, and the exponents of its elements: of float32 numbers the
    operand is the significand.
    """
    address = np.where(
        block.valid, c.a_base + block.index["n"] * c.a_n + block.u * c.a_u + block.v * c.a_v, 0
    )
    exponent: np.ndarray | int = 0
    if c.a_src:
        a = gather(memories.sp, address, block.width, Dtype(c.a_dtype)).astype(np.int64)
    else:
        a = memories.acc[address, : block.width].astype(np.int64)
    if c.a_float:
        a, exponent = unpack(a)
    elif c.a_src:
        a = a - signed16(c.zp_ab, 0)
        a = wrap32(a) if c.a_dtype == Dtype.I32 else a
    if not block.valid.all():
        a[~block.valid] = 0
        if c.a_float:
            exponent = np.where(block.valid[:, None], exponent, 0)
    return a, exponent


def operand_b(memories: Memories, c: Config, block: Block, n: int) -> np.ndarray | None:
    """All lanes of operand B, or None without one."""
    if c.b_src == BSource.NONE:
        return None
    address = block.address(c, "b")
    if c.b_src == BSource.ACC:
        return memories.acc[address].astype(np.int64)
    b = gather(memories.sp, address, n, Dtype(c.b_dtype)).astype(np.int64) - signed16(c.zp_ab, 16)
    return wrap32(b) if c.b_dtype == Dtype.I32 else b


def combine(c: Config, a: np.ndarray, row: np.ndarray | None) -> np.ndarray:
    """A op B."""
    if c.op == Op.PASS:
        return a
    if c.op == Op.SQUARE:
        return _product(a, a, c.op_shift)
    assert row is not None
    b = row[:, c.b_lane : c.b_lane + 1] if c.b_bcast else row[:, : a.shape[1]]
    if c.op == Op.MUL:
        return _product(a, b, c.op_shift)
    return wrap32(a + b if c.op == Op.ADD else a - b)


def _product(a: np.ndarray, b: np.ndarray, shift: int) -> np.ndarray:
    return wrap32(_low18(a) * _low18(b) >> shift)


def _low18(value: np.ndarray) -> np.ndarray:
    return (value & 0x3FFFF ^ 0x20000) - 0x20000
