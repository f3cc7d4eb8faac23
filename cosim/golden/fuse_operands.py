"""FUSE step 1: operands A and B of the points, and the binary operator on them."""

import numpy as np

from cosim.golden.floats import unpack
from cosim.golden.memory import Memories, gather
from cosim.semantics.command_fields import CommandFields
from cosim.semantics.fixed_point import wrap32
from cosim.semantics.fuse_points import PointBlock
from hw.isa.enums import BSource, Dtype, Op


def signed16(word: int, position: int) -> int:
    """Return the signed 16-bit field of a packed word that starts at bit `position`."""
    value = word >> position & 0xFFFF
    return value - (1 << 16 if value >= 1 << 15 else 0)


def signed8(word: int, position: int) -> int:
    """Return the signed 8-bit field of a packed word that starts at bit `position`."""
    value = word >> position & 0xFF
    return value - (1 << 8 if value >= 1 << 7 else 0)


def operand_a(memories: Memories, c: CommandFields, block: PointBlock) -> tuple[np.ndarray, np.ndarray | int]:
    """Return operand A of each point, which is zero for padding, and the exponents of its elements.

    For a float32 element, the operand is the significand. Integers have exponent 0.
    """
    address = np.where(block.valid, block.address(c, "a"), 0)
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


def operand_b(memories: Memories, c: CommandFields, block: PointBlock, n: int) -> np.ndarray | None:
    """Return operand B of each point on all lanes; None if the command has no operand B."""
    if c.b_src == BSource.NONE:
        return None
    address = block.address(c, "b")
    if c.b_src == BSource.ACC:
        return memories.acc[address].astype(np.int64)
    b = gather(memories.sp, address, n, Dtype(c.b_dtype)).astype(np.int64) - signed16(c.zp_ab, 16)
    return wrap32(b) if c.b_dtype == Dtype.I32 else b


def combine(c: CommandFields, a: np.ndarray, row: np.ndarray | None) -> np.ndarray:
    """Apply the command's operator to operand A and, for binary operators, the row of operand B."""
    if c.op == Op.PASS:
        return a
    if c.op == Op.SQUARE:
        return _product(a, a, c.op_shift)
    assert row is not None
    b = row[:, c.b_lane : c.b_lane + 1] if c.b_bcast else row[:, : a.shape[1]]
    if c.op == Op.MUL:
        return _product(a, b, c.op_shift)
    if c.op == Op.MUL_SUB:
        return wrap32(_product(a, np.array([c.mult], np.int64), c.op_shift) - b)
    return wrap32(a + b if c.op == Op.ADD else a - b)


def _product(a: np.ndarray, b: np.ndarray, shift: int) -> np.ndarray:
    return wrap32(_low18(a) * _low18(b) >> shift)


def _low18(value: np.ndarray) -> np.ndarray:
    return (value & 0x3FFFF ^ 0x20000) - 0x20000


def row_parameters(c: CommandFields, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the multiplier and the exponent of each row of operand B, int64 of shape (row, 1)."""
    exponent = row[:, c.rq_lane + 1 : c.rq_lane + 2].astype(np.int8).astype(np.int64)
    return row[:, c.rq_lane : c.rq_lane + 1], exponent
