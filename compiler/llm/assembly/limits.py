"""Limits of programs: length, hardware configuration, and position in a sequence of calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from compiler.llm.assembly.field_ranges import field_span, part_spans
from compiler.llm.assembly.operands import Rules, Spans
from compiler.llm.tokens.assembly_tokens import ANY_HEAD, GROUPS, HEADS, PAIRS, Head
from compiler.validate.explore import LIMIT
from compiler.validate.macro_call import MacroCall
from cosim.semantics.command_checks import DramWindow
from hw.config import MlaConfig
from hw.errors import InputError
from hw.isa.commands import FIELD_INDEX_BITS
from hw.isa.enums import Unit
from hw.isa.fields import Packed
from hw.isa.micro_instruction import FORMS, LOOP_IMM, MAX_OPERANDS, MicroOp

#: Semaphore: producer, consumer (4: the sequencer), index.
Semaphore = tuple[int, int, int]
#: Operations that transfer control.
JUMPS = frozenset(
    op for op, form in FORMS.items() if "target" in form.operands and op is not MicroOp.LOOP
) | {MicroOp.RET}
_UNIT_OF = {packed: Unit[packed.split(".")[0].upper()] for packed in PAIRS}


@dataclass(frozen=True, kw_only=True)
class ProgramLimits:
    """Limits of a program; without a hardware configuration any assembly program is allowed.

    Parameters
    ----------
    tokens : int
        Maximum number of tokens, including the final `stop`. With a hardware configuration, tokens for a valid
        completion are reserved.
    instructions : int
        Maximum number of micro-instructions.
    config : MlaConfig or None
        Hardware configuration. If given, the program ends with `halt`, and only programs that the validator is expected
        to accept are allowed; the machine state is tracked except after jumps.
    operands : tuple of int or None
        32-bit operands of the macro-instruction; None for unknown values.
    tag : int
        Counter tag of the macro-instruction.
    windows : sequence of (first byte, last byte, permissions)
        DRAM windows of the program, as in `compiler.validate.validate`.
    before : sequence of MacroCall
        Macro-instructions that precede the program.
    leaves : dict
        Final count of each semaphore; 0 for semaphores that are not listed.
    jumps : bool
        True to allow branches, calls and traps; instructions after the first of these are not tracked.
    written : bool
        True to allow reading only those registers that the program has written; all registers are initially 0.
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
            minimum = 2 if name == "tokens" else 1
            if getattr(self, name) < minimum:
                raise InputError(f"{name} must be at least {minimum}, not {getattr(self, name)}")
        if len(self.operands) > MAX_OPERANDS:
            raise InputError(f"operands must be at most {MAX_OPERANDS}, not {len(self.operands)}")

    @cached_property
    def rules(self) -> Rules:
        """Rules for the operands of instructions."""
        maximum = min(self.tokens, self.instructions)
        return MachineRules(self.config, maximum, self.jumps) if self.config else Rules()


class MachineRules(Rules):
    """Operand rules for a hardware configuration.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the programs.
    instructions : int
        Maximum number of micro-instructions of a program.
    jumps : bool
        True to allow branches, calls and traps.
    """

    nameless = False

    def __init__(self, config: MlaConfig, instructions: int, jumps: bool):
        self._config, self._instructions, self._jumps = config, instructions, jumps

    @cached_property
    def _groups(self) -> dict[str, tuple[str, ...]]:
        """Usable tokens by group name."""
        heads = [
            token for token, head in HEADS.items() if self._jumps or head.op not in (*JUMPS, MicroOp.TRAP)
        ]
        allowed = {
            token
            for name, tokens in PAIRS.items()
            for token, (index, value) in tokens.items()
            if value is None or self._has(name, index, value)
        }
        pairs = {token for tokens in PAIRS.values() for token in tokens}
        return {
            name: tuple(token for token in tokens if token not in pairs or token in allowed)
            for name, tokens in (GROUPS | {ANY_HEAD: tuple(heads)}).items()
        }

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Usable tokens by group name."""
        return self._groups

    def _has(self, packed: str, index: int, value: int) -> bool:
        spans = list(part_spans(self._config, _UNIT_OF[packed], packed.split(".")[1]).values())[index]
        return any(low <= value <= high for low, high in spans)

    def constants(self, head: Head) -> Spans:
        """Return the legal values of a field."""
        assert head.field
        return (field_span(self._config, Unit(head.d >> FIELD_INDEX_BITS), head.field.name),)

    def hidden(self, head: Head) -> Spans:
        """Return an empty tuple, because a field cannot be set to values outside its range."""
        return ()

    def parts(self, packed: Packed) -> dict[str, Spans]:
        """Return the legal values of each part of a packed field."""
        return part_spans(self._config, _UNIT_OF[packed.name], packed.name.split(".")[1])

    def numbers(self, head: Head, iterations: int) -> Spans:
        """Return the legal values of a single-number operand, inside loops with `iterations` iterations in total."""
        if head.op is MicroOp.LOOP:
            return ((1, self.max_iterations(iterations)),)
        if head.op is MicroOp.TAG:
            return ((0, self._config.tags - 1),)
        return super().numbers(head, iterations)

    def max_iterations(self, iterations: int) -> int:
        """Return the maximum iteration count of a loop inside loops with `iterations` iterations in total."""
        return max(1, min(LOOP_IMM.fields[1].high, LIMIT // self._instructions // max(iterations, 1)))

    def distances(self, pc: int) -> Spans:
        """Return the legal jump distances from an instruction."""
        return ((-pc, self._instructions - 1 - pc),)

    def loop_ends(self, pc: int) -> Spans:
        """Return an empty tuple, because every loop has a body."""
        return ()
