"""Input of the validator: checked and decoded macro-instructions."""

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.codegen.dispatch_guard import GuardedProgram
from compiler.validate.errors import InstructionLocation, ValidationError
from compiler.validate.execution_path import DecodedProgram, code_of
from compiler.validate.known_bits import UNKNOWN
from compiler.validate.sequencer import SymbolicSequencer
from cosim.semantics.command_checks import DramWindow
from hw.config import MlaConfig
from hw.errors import InputError, shown
from hw.isa.micro_instruction import MAX_OPERANDS
from hw.isa.program import Program


@dataclass(frozen=True)
class MacroCall:
    """Macro-instruction to validate.

    Parameters
    ----------
    program : Program
        Micro-program that the macro-instruction runs.
    operands : tuple of int or None
        Operands, which are signed or unsigned 32-bit words; None for an operand that may have any value.
    tag : int
        Tag under which the events of the macro-instruction are counted.
    instead : tuple of GuardedProgram
        Alternative programs; the first program whose guard holds runs instead of `program`.
    """

    program: Program
    operands: tuple[int | None, ...] = ()
    tag: int = 0
    instead: tuple[GuardedProgram, ...] = ()

    @property
    def programs(self) -> tuple[Program, ...]:
        """All programs that the call may run, in the order in which the hardware tests them."""
        return (*(variant.program for variant in self.instead), self.program)


class CallStream:
    """Checked and decoded calls, windows and pinned programs; invalid arguments raise the errors of `validate`."""

    def __init__(
        self,
        config: MlaConfig,
        calls: Sequence[MacroCall],
        windows: Sequence[DramWindow],
        pinned: Sequence[Program],
        limit: int,
    ):
        if limit < 1:
            raise InputError(f"limit must be at least 1, not {shown(limit)}")
        if len(windows) > config.windows:
            raise InputError(f"there may be at most {config.windows} windows, not {len(windows)}")
        if len(pinned) > config.segments - bool(calls):
            raise InputError(f"{len(pinned)} pinned programs do not fit {config.segments} segments")
        self.config, self.calls, self.limit = config, calls, limit
        self.windows = list(windows)
        taken = sum(len(program.words) for program in pinned)
        codes: dict[int, DecodedProgram] = {}
        known: dict[int, list[SymbolicSequencer]] = {}
        for program in pinned:
            _check_words(program, InstructionLocation(0, program.name, -1))
        self.pinned = [code_of(program) for program in pinned]
        #: For each call, one sequencer per program that it may run; equal calls may be one object, with one list.
        self.sequencers = [
            known[id(call)]
            if id(call) in known
            else known.setdefault(
                id(call),
                [self._sequencer(index, call, program, taken, codes) for program in call.programs],
            )
            for index, call in enumerate(calls)
        ]

    def _sequencer(
        self, index: int, call: MacroCall, program: Program, taken: int, codes: dict[int, DecodedProgram]
    ) -> SymbolicSequencer:
        location = InstructionLocation(index, program.name, -1)
        if len(call.instead) >= self.config.candidates:
            reason = f"an opcode has at most {self.config.candidates} candidates, not {len(call.programs)}"
            raise ValidationError("size", location, reason)
        most = self.config.wis_words - taken
        if not 1 <= len(program.words) <= most:
            reason = f"the program must have 1..{most} instructions, not {len(program.words)}"
            raise ValidationError("size", location, reason)
        if len(call.operands) > MAX_OPERANDS:
            reason = f"a call has at most {MAX_OPERANDS} operands, not {len(call.operands)}"
            raise ValidationError("operand", location, reason)
        for number, value in enumerate(call.operands):
            if value is not None and not -(1 << 31) <= value < 1 << 32:
                reason = f"operand {number} must fit 32 bits, not {shown(value)}"
                raise ValidationError("operand", location, reason)
        if not 0 <= call.tag < self.config.tags:
            reason = f"the tag must be in 0..{self.config.tags - 1}, not {shown(call.tag)}"
            raise ValidationError("operand", location, reason)
        if id(program) not in codes:
            _check_words(program, location)
            codes[id(program)] = code_of(program)
        code = codes[id(program)]
        operands = tuple(UNKNOWN if value is None else int(value) & 0xFFFFFFFF for value in call.operands)
        return SymbolicSequencer(self.config, self.windows, code, self.pinned, operands, self.limit)


def _check_words(program: Program, location: InstructionLocation) -> None:
    if all(0 <= word < 1 << 64 for word in (min(program.words, default=0), max(program.words, default=0))):
        return
    for number, word in enumerate(program.words):
        if not 0 <= word < 1 << 64:
            reason = f"a word must be in 0..2**64-1, not {shown(word)}"
            raise ValidationError("illegal", location._replace(instruction=number), reason)
