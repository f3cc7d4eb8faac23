"""What a program may be: how long, for which machine, in which place of a stream of calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from compiler.llm.assembly.field_ranges import field_span, part_spans
from compiler.llm.assembly.lexicon import HEADS, PAIRS, Head
from compiler.llm.assembly.operands import Rules, Spans
from compiler.llm.assembly.token_groups import GROUPS, HEAD
from compiler.validate.explore import LIMIT
from compiler.validate.macro_call import MacroCall
from cosim.semantics.command_checks import DramWindow
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import FIELD_INDEX_BITS
from hw.isa.enums import Unit
from hw.isa.fields import Packed
from hw.isa.micro_instruction import FORMS, LOOP_IMM, MAX_OPERANDS, MicroOp

#: A semaphore: producer, consumer (4: the sequencer), index.
Semaphore = tuple[int, int, int]
#: Operations that go on elsewhere.
JUMPS = frozenset(
    op for op, form in FORMS.items() if "target" in form.operands and op is not MicroOp.LOOP
) | {MicroOp.RET}
_UNIT_OF = {packed: Unit[packed.split(".")[0].upper()] for packed in PAIRS}


@dataclass(frozen=True, kw_only=True)
class ProgramLimits:
    """What a program may be. Without a machine it is whatever assembly text can say.

    Parameters
    ----------
    tokens : int
        Most words of the language, the last one (`stop`) included. On a machine some are held back for a proper end.
    instructions : int
        Most micro-instructions.
    config : MlaConfig or None
        The machine. With one, the program ends in `halt`, and is one that the validator takes as far as can be told
        while it is written: everything but jumps is followed.
    operands : tuple of int or None
        32-bit words that the macro-instruction carries; None: any.
    tag : int
        Tag of the macro-instruction.
    windows : sequence of (first byte, last byte, permissions)
        DRAM that the program may touch, as in `compiler.validate.validate`.
    before : sequence of Call
        Macro-instructions that come before it in the stream.
    leaves : dict
        Tokens that it leaves in each semaphore; none in those that are not named.
    jumps : bool
        Whether there may be branches, calls and traps. What follows the first of them is not followed any more.
    written : bool
        Whether registers may be read only when the program has written them (all hold 0 before).
    """

    tokens: int = 1 << 20
    instructions: int = 1 << 14
    config: MlaConfig | None = None
    operands: tuple[int | None, ...] = ()
    tag: int = 0
    windows: Sequence[DramWindow] = ()
    before: Sequence[MacroCall] = ()
    leaves: Mapping[Semaphore, int] = field(default_factory=dict)
    jumps: bool = False
    written: bool = False

    def __post_init__(self) -> None:
        for name in ("tokens", "instructions"):
            least = 2 if name == "tokens" else 1
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if len(self.operands) > MAX_OPERANDS:
            raise InputError(f"operands must be at most {MAX_OPERANDS}, not {len(self.operands)}")

    @cached_property
    def rules(self) -> Rules:
        """What operands may be."""
        most = min(self.tokens, self.instructions)
        return MachineRules(self.config, most, self.jumps) if self.config else Rules()


class MachineRules(Rules):
    """What operands may be on a machine.

    Parameters
    ----------
    config : MlaConfig
        It.
    instructions : int
        Most micro-instructions of a program.
    jumps : bool
        Whether there may be branches, calls and traps.
    """

    nameless = False

    def __init__(self, config: MlaConfig, instructions: int, jumps: bool):
        self._config, self._instructions, self._jumps = config, instructions, jumps

    @cached_property
    def _groups(self) -> dict[str, tuple[str, ...]]:
        """Words that may be used."""
        heads = [word for word, head in HEADS.items() if self._jumps or head.op not in (*JUMPS, MicroOp.TRAP)]
        allowed = {
            word
            for name, words in PAIRS.items()
            for word, (index, value) in words.items()
            if value is None or self._has(name, index, value)
        }
        pairs = {word for words in PAIRS.values() for word in words}
        return {
            name: tuple(word for word in words if word not in pairs or word in allowed)
            for name, words in (GROUPS | {HEAD: tuple(heads)}).items()
        }

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The words that may be used, by the name of their group."""
        return self._groups

    def _has(self, packed: str, index: int, value: int) -> bool:
        spans = list(part_spans(self._config, _UNIT_OF[packed], packed.split(".")[1]).values())[index]
        return any(low <= value <= high for low, high in spans)

    def constants(self, head: Head) -> Spans:
        """What a field may be set to."""
        assert head.field
        return (field_span(self._config, Unit(head.d >> FIELD_INDEX_BITS), head.field.name),)

    def hidden(self, head: Head) -> Spans:
        """What text must add to register 0 to set a field to it: all that does not fit it."""
        return ()

    def parts(self, packed: Packed) -> dict[str, Spans]:
        """What each part of a packed field may be."""
        return part_spans(self._config, _UNIT_OF[packed.name], packed.name.split(".")[1])

    def numbers(self, head: Head, turns: int) -> Spans:
        """What the only number of an instruction may be, in loops that make so many turns together."""
        if head.op is MicroOp.LOOP:
            return ((1, self.most_turns(turns)),)
        if head.op is MicroOp.TAG:
            return ((0, self._config.tags - 1),)
        return super().numbers(head, turns)

    def most_turns(self, turns: int) -> int:
        """How many turns a loop may make in loops that make so many together."""
        return max(1, min(LOOP_IMM.fields[1].high, LIMIT // self._instructions // max(turns, 1)))

    def distances(self, pc: int) -> Spans:
        """How far from an instruction the program may go on."""
        return ((-pc, self._instructions - 1 - pc),)

    def loop_ends(self, pc: int) -> Spans:
        """How far away a loop without a body may end."""
        return ()
