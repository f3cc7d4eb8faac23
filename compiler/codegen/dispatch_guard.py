"""Guards of the dispatch table, and the programs that they select."""

from dataclasses import dataclass

from compiler.ir.identity import identity
from cosim.semantics.alu import MASK, signed
from hw.errors import shown
from hw.isa.enums import Compare
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, STATISTIC_BASE, Statistic
from hw.isa.program import Program

_SIGNS = {
    Compare.EQ: "==",
    Compare.NE: "!=",
    Compare.LT: "<",
    Compare.GE: ">=",
    Compare.LTU: "<u",
    Compare.GEU: ">=u",
}


@identity("Guard", "compare", "selector", "value")
@dataclass(frozen=True)
class Guard:
    """Comparison that the hardware evaluates before a program starts (docs/machine.md, Ring and dispatch).

    Parameters
    ----------
    compare : Compare
        Kind of comparison, other than ALWAYS.
    selector : int
        Operand of the macro-instruction, or statistic, to compare; encoded as a selector in micro-instructions.
    value : int
        32-bit word with which the operand or statistic is compared.

    Raises
    ------
    ValueError
        A field has a value that the hardware does not support.
    """

    compare: Compare
    selector: int
    value: int

    def __post_init__(self) -> None:
        if self.compare not in _SIGNS:
            raise ValueError(f"a guard must compare, not {shown(self.compare)}")
        if self.operand is None and self.statistic is None:
            raise ValueError(
                f"a guard must test an operand or a statistic, not selector {shown(self.selector)}"
            )
        if not 0 <= self.value <= MASK:
            raise ValueError(f"a guard's value must be a word of 32 bits, not {shown(self.value)}")

    @property
    def operand(self) -> int | None:
        """Index of the operand that the guard tests; None for a statistic."""
        index = self.selector - OPERAND_BASE
        return index if 0 <= index < MAX_OPERANDS else None

    @property
    def statistic(self) -> Statistic | None:
        """Statistic that the guard tests; None for an operand."""
        index = self.selector - STATISTIC_BASE
        return Statistic(index) if index in set(Statistic) else None

    def holds(self, word: int) -> bool:
        """Return True if the comparison holds for a word."""
        x, v = word & MASK, self.value
        return {
            Compare.EQ: x == v,
            Compare.NE: x != v,
            Compare.LTU: x < v,
            Compare.GEU: x >= v,
            Compare.LT: signed(x) < signed(v),
            Compare.GE: signed(x) >= signed(v),
        }[self.compare]

    def __str__(self) -> str:
        what = f"op{self.operand}" if self.statistic is None else f"%{self.statistic.name.lower()}"
        unsigned = self.compare in (Compare.LTU, Compare.GEU)
        return f"{what} {_SIGNS[self.compare]} {self.value if unsigned else signed(self.value)}"


def at_most(operand: int, most: int) -> Guard:
    """Return the guard that holds if an operand, compared as an unsigned number, is at most `most`."""
    return Guard(Compare.LTU, OPERAND_BASE + operand, most + 1)


def equal(statistic: Statistic, value: int) -> Guard:
    """Return the guard that holds if a statistic has the given value."""
    return Guard(Compare.EQ, STATISTIC_BASE + statistic, value & MASK)


def at_least(statistic: Statistic, value: int) -> Guard:
    """Return the guard that holds if a statistic, compared as a signed number, is at least `value`."""
    return Guard(Compare.GE, STATISTIC_BASE + statistic, value & MASK)


@dataclass(frozen=True)
class GuardedProgram:
    """Program that runs instead of another program if its guard holds."""

    guard: Guard
    program: Program
