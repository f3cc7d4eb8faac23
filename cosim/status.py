"""Decoding of the machine's status: completion records, trap records, loader errors."""

from dataclasses import dataclass

from hw.errors import WorkError
from hw.isa.enums import Trap
from hw.isa.macro_instruction import RECORD

#: Segment of a trap record when no program ran.
NO_SEGMENT = 0xFF
#: Descriptions of the values of LOADER_ERROR.
LOADER_ERRORS = (
    "no error",
    "a running program uses the segment, or it is pinned, or the loader is busy",
    "the segment's number, base or length is out of range",
    "the segment is not open",
    "the CRC of the words read back is not the expected one",
    "the bus answered with an error",
    "the range overlaps another segment",
)


def trap_name(cause: int) -> str:
    """Return the name of a cause, or its number if it is unknown."""
    return Trap(cause).name if cause in set(Trap) else f"cause {cause}"


@dataclass(frozen=True)
class Completion:
    """Completion record that the machine writes to a ring slot.

    Parameters
    ----------
    trap : int
        Cause of the trap that ended the macro-instruction; 0 if it completed.
    program, candidate : int
        Segment of the program that ran, and its index among the opcode's candidates.
    sequence : int
        Low bits of the macro-instruction's sequence number.
    started, retired : int
        Low 32 bits of the cycle counter at dispatch and at completion.
    micros : int
        Number of micro-instructions executed.
    """

    trap: int
    program: int
    candidate: int
    sequence: int
    started: int
    retired: int
    micros: int

    @staticmethod
    def from_words(words: list[int]) -> "Completion | None":
        """Decode the completion record of a slot; return None if the record has not been written completely yet.

        The words are written in order, over several beats on a narrow bus. A program executes at least one instruction,
        so the last word is 0 only before it is written, or if the macro-instruction trapped in dispatch.
        """
        parts = RECORD.unpack(words[0])
        if not parts["done"] or (not parts["trap"] and not words[3]):
            return None
        del parts["done"]
        return Completion(**parts, started=words[1], retired=words[2], micros=words[3])

    @property
    def cycles(self) -> int:
        """Number of cycles from dispatch to completion."""
        return self.retired - self.started & 0xFFFFFFFF


@dataclass(frozen=True)
class TrapReport:
    """Trap record, and the instruction at its program counter.

    Parameters
    ----------
    cause : int
        Number of the trap (`hw.isa.enums.Trap`).
    pc : int
        Word address of the instruction within its segment.
    segment : int
        Segment of the program; `NO_SEGMENT` if no program ran.
    tag, macro : int
        Tag in effect, and number of the macro-instruction.
    address : int
        Address or value that caused the trap.
    instruction : str
        Disassembled instruction, empty if it is not known.
    """

    cause: int
    pc: int
    segment: int
    tag: int
    macro: int
    address: int
    instruction: str = ""

    def __str__(self) -> str:
        where = (
            "outside any program" if self.segment == NO_SEGMENT else f"segment {self.segment} word {self.pc}"
        )
        text = f" `{self.instruction}`" if self.instruction else ""
        return (
            f"{trap_name(self.cause)} in macro-instruction {self.macro} (tag {self.tag}), {where}{text}, "
            f"address or value {self.address:#x}"
        )


class TrapError(WorkError):
    """Trap of a program; `report` is the trap record. After a trap, the machine waits for `Driver.resume`."""

    def __init__(self, report: TrapReport):
        super().__init__(f"the machine trapped: {report}")
        self.report = report
