"""Scalar arithmetic and comparisons."""

from collections.abc import Callable

from hw.isa.micro_instruction import MicroOp

MASK = 0xFFFFFFFF


def signed(value: int) -> int:
    """Return the signed value of a 32-bit word."""
    return (value & MASK ^ 1 << 31) - (1 << 31)


#: Scalar operations on two 32-bit words; the result is the low 32 bits of the value.
ALU: dict[MicroOp, Callable[[int, int], int]] = {
    MicroOp.ADD: lambda a, b: a + b,
    MicroOp.SUB: lambda a, b: a - b,
    MicroOp.MUL: lambda a, b: a * b,
    MicroOp.MIN: lambda a, b: min(signed(a), signed(b)),
    MicroOp.MAX: lambda a, b: max(signed(a), signed(b)),
    MicroOp.AND: lambda a, b: a & b,
    MicroOp.OR: lambda a, b: a | b,
    MicroOp.XOR: lambda a, b: a ^ b,
    MicroOp.SHL: lambda a, b: a << (b & 31),
    MicroOp.SHR: lambda a, b: a >> (b & 31),
    MicroOp.SAR: lambda a, b: signed(a) >> (b & 31),
    MicroOp.SLT: lambda a, b: signed(a) < signed(b),
    MicroOp.SLTU: lambda a, b: a < b,
    MicroOp.SEQ: lambda a, b: a == b,
}
#: Branch conditions on two 32-bit words.
BRANCH: dict[MicroOp, Callable[[int, int], bool]] = {
    MicroOp.BEQ: lambda a, b: a == b,
    MicroOp.BNE: lambda a, b: a != b,
    MicroOp.BLT: lambda a, b: signed(a) < signed(b),
    MicroOp.BGE: lambda a, b: signed(a) >= signed(b),
    MicroOp.BLTU: lambda a, b: a < b,
    MicroOp.BGEU: lambda a, b: a >= b,
}
