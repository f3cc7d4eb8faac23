"""Command ring in DRAM: addresses of slots, and completion records."""

import numpy as np

from cosim.golden.program import InFlightMacro
from hw.isa.enums import Trap
from hw.isa.macro_instruction import RECORD, RECORD_WORD, RECORD_WORDS, SLOT_BYTES


class CommandRing:
    """Command ring, with the host's head and the machine's tail.

    Parameters
    ----------
    dram : numpy.ndarray
        DRAM image that contains the ring, as uint8.
    """

    def __init__(self, dram: np.ndarray):
        self.dram = dram
        self.base = self.log2 = 0
        self.head = self.dispatched = self.tail = 0

    @property
    def empty(self) -> bool:
        """True if every enqueued slot has been dispatched."""
        return self.dispatched == self.head

    def pop(self, cycle: int) -> InFlightMacro:
        """Remove the macro-instruction in the next slot and return it, without reading the slot's header."""
        number = self.dispatched
        self.dispatched = number + 1 & 0xFFFFFFFF
        return InFlightMacro(
            number, self.base + (number & (1 << self.log2) - 1) * SLOT_BYTES, 0, False, cycle
        )

    def complete(self, macro: InFlightMacro, cause: Trap, cycle: int) -> None:
        """Write the completion record of a macro-instruction to its slot."""
        word = RECORD.pack(
            trap=int(cause),
            program=macro.program,
            candidate=macro.candidate,
            done=1,
            sequence=macro.number & 0x7FF,
        )
        at = macro.slot + 4 * RECORD_WORD
        values = np.array([word, macro.dispatched & 0xFFFFFFFF, cycle & 0xFFFFFFFF, macro.micros], "<u4")
        if at + 4 * RECORD_WORDS <= self.dram.size:
            self.dram[at : at + 4 * RECORD_WORDS] = values.view(np.uint8)
        self.tail = self.tail + 1 & 0xFFFFFFFF
