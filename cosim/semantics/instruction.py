"""Decoding of micro-instruction words and operand selectors."""

from functools import lru_cache

from hw.isa.micro_instruction import STATISTIC_BASE, MicroOp, Statistic, decode


@lru_cache(maxsize=1 << 16)
def decode_instruction(word: int) -> tuple[MicroOp, int, int, int, int]:
    """Return the operation and the fields d, a, b and imm of a 64-bit word; an unknown operation becomes ILLEGAL."""
    parts = decode(word)
    try:
        op = MicroOp(parts["opcode"])
    except ValueError:
        op = MicroOp.ILLEGAL
    return op, parts["d"], parts["a"], parts["b"], parts["imm"]


def selected_statistic(selector: int) -> Statistic | None:
    """Return the statistic that an operand selector names, or None if it names another operand."""
    number = selector - STATISTIC_BASE
    return Statistic(number) if 0 <= number < len(Statistic) else None
