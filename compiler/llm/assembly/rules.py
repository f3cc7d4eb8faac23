"""What operands may be: all that assembly text can say. Limits of a machine are narrower rules."""

from compiler.llm.assembly.groups import GROUPS
from compiler.llm.assembly.lexicon import Head
from compiler.llm.assembly.operand import (
    Constant,
    LoopEnd,
    Operand,
    Register,
    Selector,
    Semaphores,
    Values,
)
from compiler.llm.assembly.sources import PackedSources, Sources
from compiler.llm.assembly.spans import Spans
from hw.isa.fields import Packed
from hw.isa.micro_instruction import LOOP_IMM, WORD, MicroOp

_IMM, _D = WORD.fields[0], WORD.fields[3]
_END, _COUNT = LOOP_IMM.fields
#: A signed and an unsigned number of 32 bits.
SIGNED = ((_IMM.low, _IMM.high),)
UNSIGNED = ((0, (1 << _IMM.width) - 1),)


class Rules:
    """The operands of each instruction, and what they may be."""

    #: Whether selectors without a name may be used.
    nameless = True

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The words that may be used, by the name of their group."""
        return GROUPS

    def constants(self, head: Head) -> Spans:
        """What a field may be set to."""
        assert head.field
        return ((head.field.low, head.field.high),)

    def hidden(self, head: Head) -> Spans:
        """What text must add to register 0 to set a field to it: all that does not fit it."""
        assert head.field
        field = head.field
        if head.packed or not field.signed:
            return ((field.high + 1, UNSIGNED[0][1]),) if field.high < UNSIGNED[0][1] else ()
        return tuple(
            (low, high)
            for low, high in ((_IMM.low, field.low - 1), (field.high + 1, _IMM.high))
            if low <= high
        )

    def parts(self, packed: Packed) -> dict[str, Spans]:
        """What each part of a packed field may be."""
        return {part.name: ((part.low, part.high),) for part in packed.fields}

    def numbers(self, head: Head, turns: int) -> Spans:
        """What the only number of an instruction may be, in loops that make so many turns together."""
        return ((_COUNT.low, _COUNT.high),) if head.op is MicroOp.LOOP else SIGNED

    def most_turns(self, turns: int) -> int:
        """How many turns a loop may make in loops that make so many together."""
        return _COUNT.high

    def distances(self, pc: int) -> Spans:
        """How far from an instruction the program may go on."""
        return ((_IMM.low - pc, _IMM.high - pc),)

    def loop_ends(self, pc: int) -> Spans:
        """How far away a loop without a body may end."""
        return ((_END.low - pc, _END.high - pc),)

    def operands(self, head: Head, values: Values, pc: int, turns: int) -> list[Operand]:
        """The operands of an instruction, in their order.

        Parameters
        ----------
        head : Head
            Its first word.
        values : dict
            Where they put what they say.
        pc : int
            Where it stands.
        turns : int
            How often it is executed, for all that its loops say.
        """
        kinds = [kind for kind in head.kinds if not (kind in ("a", "b") and "imm" in head.kinds)]
        return [self._operand(head, values, kind, pc, turns) for kind in kinds]

    def _operand(self, head: Head, values: Values, kind: str, pc: int, turns: int) -> Operand:
        if kind == "d":
            return Register(values)
        if kind in ("a", "b"):
            return Selector(values, kind, nameless=self.nameless)
        if kind == "imm":
            return self._sources(head, values, turns)
        if kind == "segment":
            return Constant(values, "d", ((_D.low, _D.high),))
        if kind == "target" and head.op is MicroOp.LOOP:
            return LoopEnd(values, self.loop_ends(pc), pc)
        if kind == "target":
            return Constant(values, "imm", self.distances(pc), pc)
        return Semaphores(values, kind)

    def _sources(self, head: Head, values: Values, turns: int) -> Operand:
        """What is added up, or a number alone."""
        slots = [kind for kind in head.kinds if kind in ("a", "b")]
        if not slots:
            return Constant(values, "imm", self.numbers(head, turns))
        if head.op is MicroOp.LOOP:
            return Sources(
                values, slots, "count", alone=self.numbers(head, turns), behind=self.numbers(head, 2 * turns),
                nameless=self.nameless,
            )  # fmt: skip
        if head.packed:
            return PackedSources(
                values, slots, head.packed, self.parts(head.packed),
                behind=SIGNED, hidden=self.hidden(head), nameless=self.nameless,
            )  # fmt: skip
        if head.field:
            return Sources(
                values, slots, "imm", alone=self.constants(head), behind=SIGNED, hidden=self.hidden(head),
                nameless=self.nameless,
            )  # fmt: skip
        numbers = self.numbers(head, turns)
        return Sources(values, slots, "imm", alone=numbers, behind=SIGNED, nameless=self.nameless)
