"""What the machine tells the host, decoded: completions, traps, refusals."""

from dataclasses import dataclass

from hw.errors import WorkError
from hw.isa.enums import Trap
from hw.isa.macro_instruction import RECORD

NO_SEGMENT = 0xFF
#: Meaning of LOADER_ERROR.
LOADER_ERRORS = (
    "no error",
    "a running program uses the segment, or it is pinned, or the loader is busy",
    "the segment's number, base or length is out of range",
    "the segment is not open",
    "the CRC of the words read back is not the expected one",
    "the bus answered with an error",
    "it overlaps another segment",
)


def trap_name(cause: int) -> str:
    """Name of a cause, or its number."""
    return Trap(cause).name if cause in set(Trap) else f"cause {cause}"


@dataclass(frozen=True)
class Completion:
    """A completion record."""

    trap: int
    program: int
    candidate: int
    sequence: int
    started: int
    retired: int
    micros: int

    @staticmethod
    def from_words(words: list[int]) -> "Completion | None":
        """Decode the words of a slot's record; None while it has not been written."""
        parts = RECORD.unpack(words[0])
        if not parts["done"]:
            return None
        del parts["done"]
        return Completion(**parts, started=words[1], retired=words[2], micros=words[3])

    @property
    def cycles(self) -> int:
        """Cycles from start to retirement."""
        return self.retired - self.started & 0xFFFFFFFF


@dataclass(frozen=True)
class TrapReport:
    """The trap record, and the instruction it names."""

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
    """A program trapped; `report` says where. The machine waits for `Driver.resume`."""

    def __init__(self, report: TrapReport):
        super().__init__(f"the machine trapped: {report}")
        self.report = report
