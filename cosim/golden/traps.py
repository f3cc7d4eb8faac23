"""Traps: the exception that raises a trap, and the trap record that the host reads."""

from dataclasses import dataclass

from hw.isa.enums import Trap

#: Segment in a trap record if no program was running.
NO_SEGMENT = 0xFF


class TrapRaisedError(Exception):
    """Trap that an instruction or a dispatch raises.

    Parameters
    ----------
    cause : Trap
        Cause of the trap.
    address : int
        Address or value that the trap record reports.
    segment : int or None
        Segment that the trap record reports; None for the segment of the running program, if a program is running.
    """

    def __init__(self, cause: Trap, address: int = 0, segment: int | None = None):
        super().__init__(cause.name)
        self.cause = cause
        self.address = address & 0xFFFFFFFF
        self.segment = segment


@dataclass
class TrapRecord:
    """Values of the TRAP registers; `count` is the number of traps since reset."""

    cause: int = 0
    pc: int = 0
    segment: int = 0
    tag: int = 0
    macro: int = 0
    address: int = 0
    count: int = 0

    def fill(self, cause: Trap, pc: int, segment: int, tag: int, macro: int, address: int) -> None:
        """Record a trap and count it."""
        self.cause, self.pc, self.segment = int(cause), pc, segment
        self.tag, self.macro, self.address = tag, macro & 0xFFFFFFFF, address
        self.count += 1
