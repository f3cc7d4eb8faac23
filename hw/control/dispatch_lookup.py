"""Registers of dispatch."""

from amaranth.hdl import Signal

from hw.control.layouts import ENTRY_LAYOUT


class Lookup:
    """Registers of one look-up."""

    def __init__(self, candidate_bits: int):
        self.entry = Signal(ENTRY_LAYOUT)
        self.candidate = Signal(candidate_bits)
        #: Candidate asked for in this cycle.
        self.asked = Signal(candidate_bits)
        #: The look-up ended in a trap in the cycle before.
        self.trapped = Signal()
        self.cause, self.segment, self.address = Signal(5), Signal(8), Signal(32)
