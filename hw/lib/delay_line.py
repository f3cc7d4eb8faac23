"""Long delay line in a ring memory: a cycle accesses two words, whereas a shift register copies all words."""

from amaranth.hdl import Elaboratable, Module, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.lib.ram import Ram


class DelayLine(wiring.Component):
    """Delay line of `cycles` cycles; its output is undefined in the first `cycles` cycles.

    Latency: `cycles`. Throughput: one value per cycle.

    Parameters
    ----------
    width : int
        Width of the signal in bits.
    cycles : int
        Delay in cycles, at least 2.

    Members
    -------
    i, o : In, Out
        Value at the input, and delayed value at the output.
    """

    def __init__(self, *, width: int, cycles: int):
        if cycles < 2:
            raise ValueError(f"cycles must be at least 2, not {cycles!r}")
        self._width, self._cycles = width, cycles
        super().__init__({"i": In(width), "o": Out(width)})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        bits = (self._cycles - 1).bit_length()
        # The word that is written is never the word that is read in the same cycle.
        m.submodules.ram = ram = Ram(width=self._width, depth=1 << bits, exclusive=True)
        position = Signal(unsigned(bits))
        m.d.sync += position.eq(position + 1)
        m.d.comb += [
            ram.w_addr.eq(position),
            ram.w_data.eq(self.i),
            ram.w_en.eq(1),
            ram.r0_addr.eq(position - (self._cycles - 1)),
            self.o.eq(ram.r0_data),
        ]
        return m
