"""Validation errors: kinds, location and message."""

from typing import NamedTuple

from hw.errors import InputError
from hw.isa.enums import Trap

#: Kinds of validation errors by stable name; tools classify errors by them.
KINDS = {
    "size": "a program is empty or does not fit the instruction store",
    "operand": "an operand, statistic or tag that does not exist",
    "illegal": "a word that is not a valid instruction",
    "pc": "execution leaves the program",
    "segment": "a call into a segment without pinned code",
    "loop": "loops nested too deep, an empty body, a break without a loop",
    "call": "calls nested too deep, a return without a call",
    "trap": "a software trap",
    "endless": "more instructions or cycles than the limit of one macro-instruction",
    "statistics": "an address, count or mode depends on the data, or the data can select too many paths",
    "command": "a unit command whose fields contradict each other or the hardware configuration",
    "bounds": "an access outside scratchpad, accumulator, parameter slots or tables",
    "window": "an access outside the DRAM windows",
    "deadlock": "the sequencer and all units wait for each other",
    "semaphore": "a semaphore is not 0 at the end",
    "race": "two conflicting accesses are unordered, or a statistic is read while it may change",
    "uninitialized": "on-chip memory is read before it is written",
}

#: Error kind that corresponds to each hardware trap.
KIND_OF_TRAP = {
    Trap.ILLEGAL_INSTRUCTION: "illegal",
    Trap.PC_RANGE: "pc",
    Trap.SEGMENT_INVALID: "segment",
    Trap.LOOP_STACK: "loop",
    Trap.CALL_STACK: "call",
    Trap.BAD_OPERAND: "operand",
    Trap.BAD_COMMAND: "command",
    Trap.SP_BOUNDS: "bounds",
    Trap.ACC_BOUNDS: "bounds",
    Trap.SLOT_BOUNDS: "bounds",
    Trap.DRAM_WINDOW: "window",
    Trap.DEADLOCK: "deadlock",
    Trap.STEP_LIMIT: "endless",
    Trap.SOFTWARE: "trap",
}


class InstructionLocation(NamedTuple):
    """An instruction of a call.

    Parameters
    ----------
    call : int
        Index of the call.
    program : str
        Name of the program that contains the instruction; for pinned code, the pinned program's name.
    instruction : int
        Index of the instruction in that program; -1 for the program as a whole.
    line : int
        Line number in the source text; 0 if unknown.
    """

    call: int
    program: str
    instruction: int
    line: int = 0

    def __str__(self) -> str:
        line = f" (line {self.line})" if self.line else ""
        where = f", instruction {self.instruction}{line}" if self.instruction >= 0 else ""
        return f"call {self.call}, program {self.program!r}{where}"


class ValidationError(InputError):
    """A stream of macro-instructions that is not proved safe.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    location : InstructionLocation
        The offending instruction.
    reason : str
        One sentence: what is wrong and what would be right.
    """

    def __init__(self, kind: str, location: InstructionLocation, reason: str):
        super().__init__(f"{location}: {kind}: {reason}")
        self.kind = kind
        self.location = location
        self.reason = reason
        #: Index of the compiled network's stage that contains the stream, if any.
        self.stage: int | None = None

    def __reduce__(self) -> tuple:
        return ValidationError, (self.kind, self.location, self.reason)

    @property
    def call(self) -> int:
        """Index of the call."""
        return self.location.call

    @property
    def program(self) -> str:
        """Name of the program the instruction is in."""
        return self.location.program

    @property
    def instruction(self) -> int:
        """Index of the instruction in its program; -1 for the program as a whole."""
        return self.location.instruction

    @property
    def line(self) -> int | None:
        """Line in the source text, if known."""
        return self.location.line or None

    def to_json(self) -> dict[str, str | int | None]:
        """Return the error as a JSON-serializable dict."""
        return {
            "kind": self.kind,
            "stage": self.stage,
            "call": self.call,
            "program": self.program,
            "instruction": self.instruction,
            "line": self.line,
            "reason": self.reason,
        }
