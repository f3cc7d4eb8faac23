"""Why a stream of macro-instructions is refused."""

from typing import NamedTuple

from hw.errors import InputError
from hw.isa.enums import Trap

#: What a refusal is about: stable names, for tools that learn from them.
KINDS = {
    "size": "a program is empty or does not fit the instruction store",
    "operand": "an operand, statistic or tag that is not there",
    "illegal": "an instruction that is none",
    "pc": "execution leaves the program",
    "segment": "a call of code that is not pinned",
    "loop": "loops nested too deep, an empty body, a break without a loop",
    "call": "calls nested too deep, a return without a call",
    "trap": "a software trap",
    "endless": "more instructions, or more work, than a macro-instruction may take",
    "statistics": "an address, count or mode depends on the data, or too many ways through the program do",
    "command": "a unit command whose fields contradict each other or the machine",
    "bounds": "an access outside scratchpad, accumulator, parameter slots or tables",
    "window": "an access outside the DRAM windows",
    "deadlock": "nobody can move any more",
    "semaphore": "tokens are left over at the end",
    "race": "two accesses that nothing orders, or a statistic read while it may change",
    "uninitialized": "something is read that was never written",
}

#: Kind of the refusal that stands for a trap.
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
        Name of the program the instruction is in; for pinned code not that of the call.
    instruction : int
        Its index in that program; -1 for the program as a whole.
    line : int
        Its line in the source text, 0 if unknown.
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
    """A stream of macro-instructions is not safe.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    place : Place
        The instruction that would do harm.
    reason : str
        What is wrong and what would be right, one sentence.
    """

    def __init__(self, kind: str, place: InstructionLocation, reason: str):
        super().__init__(f"{place}: {kind}: {reason}")
        self.kind = kind
        self.place = place
        self.reason = reason
        #: Stage of the compiled network that the stream is of, if it is of one.
        self.stage: int | None = None

    def __reduce__(self) -> tuple:
        return ValidationError, (self.kind, self.place, self.reason)

    @property
    def call(self) -> int:
        """Index of the call."""
        return self.place.call

    @property
    def program(self) -> str:
        """Name of the program the instruction is in."""
        return self.place.program

    @property
    def instruction(self) -> int:
        """Index of the instruction in its program; -1 for the program as a whole."""
        return self.place.instruction

    @property
    def line(self) -> int | None:
        """Line in the source text, if known."""
        return self.place.line or None

    def to_json(self) -> dict[str, str | int | None]:
        """The refusal as a document."""
        return {
            "kind": self.kind,
            "stage": self.stage,
            "call": self.call,
            "program": self.program,
            "instruction": self.instruction,
            "line": self.line,
            "reason": self.reason,
        }
