"""Known-bits abstract domain: 32-bit words in which some bits may depend on the data."""

from dataclasses import dataclass

from cosim.semantics.alu import ALU, BRANCH, MASK
from hw.isa.micro_instruction import MicroOp

_SIGN = 1 << 31
_COMPARISONS = (MicroOp.SLT, MicroOp.SLTU, MicroOp.SEQ)
_SHIFTS = (MicroOp.SHL, MicroOp.SHR, MicroOp.SAR)


@dataclass(frozen=True)
class KnownBits:
    """Word in which the bits set in `unknown` may have any value; these bits are 0 in `value`."""

    value: int
    unknown: int


#: Abstract value of a register: a known word or a partly known word.
Word = int | KnownBits
UNKNOWN = KnownBits(0, MASK)


def parts(word: Word) -> tuple[int, int]:
    """Split a word into its value and its mask of unknown bits."""
    return (word, 0) if isinstance(word, int) else (word.value, word.unknown)


def word_of(value: int, unknown: int) -> Word:
    """Make a word from its value and its mask of unknown bits."""
    unknown &= MASK
    return KnownBits(value & MASK & ~unknown, unknown) if unknown else value & MASK


def add(a: Word, b: Word, carry: int = 0) -> Word:
    """Return the sum of two words, in which a bit is known if both operand bits and the carry into it are known."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b + carry & MASK
    (va, ua), (vb, ub) = parts(a), parts(b)
    low, high = va + vb + carry, (va | ua) + (vb | ub) + carry
    carries = (low ^ va ^ vb) ^ (high ^ (va | ua) ^ (vb | ub))
    return word_of(low, ua | ub | carries)


def compute(op: MicroOp, a: Word, b: Word) -> Word:
    """Return the result of a scalar operation on words in which bits may be unknown."""
    if isinstance(a, int) and isinstance(b, int):
        return int(ALU[op](a, b)) & MASK  # the result of a comparison is a bool
    (va, ua), (vb, ub) = parts(a), parts(b)
    if op == MicroOp.ADD:
        return add(a, b)
    if op == MicroOp.SUB:
        return add(a, word_of(~vb & ~ub, ub), 1)
    if op == MicroOp.XOR:
        return word_of(va ^ vb, ua | ub)
    if op in (MicroOp.AND, MicroOp.OR):
        fixed = ~va & ~ua | ~vb & ~ub if op == MicroOp.AND else va | vb
        return word_of(va & vb if op == MicroOp.AND else va | vb, (ua | ub) & ~fixed)
    if op in _SHIFTS and not ub:
        return _shifted(op, va, ua, vb & 31)
    if op == MicroOp.MUL and (a == 0 or b == 0):
        return 0
    if op in _COMPARISONS:
        return KnownBits(0, 1)
    return UNKNOWN


def _shifted(op: MicroOp, value: int, unknown: int, count: int) -> Word:
    shift = ALU[op]
    return word_of(shift(value, count), shift(unknown, count))


def taken(op: MicroOp, a: Word, b: Word) -> bool | None:
    """Return True if a branch is taken, False if not, None if unknown."""
    if isinstance(a, int) and isinstance(b, int):
        return bool(BRANCH[op](a, b))
    (va, ua), (vb, ub) = parts(a), parts(b)
    if op in (MicroOp.BEQ, MicroOp.BNE):
        return op == MicroOp.BNE if (va ^ vb) & ~(ua | ub) else None
    if op in (MicroOp.BLT, MicroOp.BGE):
        va, vb = va ^ _SIGN & ~ua, vb ^ _SIGN & ~ub
    below = True if va | ua < vb else False if va >= vb | ub else None
    return below if below is None or op in (MicroOp.BLT, MicroOp.BLTU) else not below
