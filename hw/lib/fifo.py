"""FIFOs: one between two streams, and one for a producer that holds credits."""

from amaranth.hdl import Elaboratable, Module, Mux, Shape, ShapeLike, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.lib.pipeline import pipeline_register
from hw.lib.ram import Ram


class StreamFifo(wiring.Component):
    """FIFO between two streams, stored in a small memory with combinational reads.

    Latency: a payload accepted in one cycle is offered in the next. Throughput: one payload per cycle while not full.

    `amaranth.lib.fifo.SyncFIFO` has the same timing, but counts its level in a register in addition to the pointers.
    Here the level is the difference of the pointers, so the two cannot be inconsistent; the inductive proofs in
    tests/formal depend on this property.

    Parameters
    ----------
    shape : ShapeLike
        Shape of the payload.
    depth : int
        Capacity in payloads; a power of two.

    Members
    -------
    w : In(stream)
        Stream of payloads to store.
    r : Out(stream)
        Stream of the stored payloads, in the same order.
    clear : In
        Empty the FIFO; a payload offered in the same cycle is also discarded.
    level : Out
        Number of payloads in the FIFO.
    """

    def __init__(self, shape: ShapeLike, depth: int):
        self._shape, self._depth = shape, depth
        super().__init__(
            {
                "w": In(stream.Signature(shape)),
                "r": Out(stream.Signature(shape)),
                "clear": In(1),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.ram = ram = Ram(width=Shape.cast(self._shape).width, depth=self._depth, comb=True)
        # The pointers have one bit more than an address, so that full and empty are distinguishable.
        head, tail = Signal(range(2 * self._depth)), Signal(range(2 * self._depth))
        push, pop = Signal(), Signal()
        m.d.comb += [
            self.level.eq(tail - head),
            self.w.ready.eq(~self.level[-1]),
            self.r.valid.eq(head != tail),
            push.eq(self.w.valid & self.w.ready),
            pop.eq(self.r.valid & self.r.ready),
            ram.w_addr.eq(tail[:-1]),
            ram.w_data.eq(self.w.payload),
            ram.w_en.eq(push),
            ram.r0_addr.eq(head[:-1]),
            self.r.payload.eq(ram.r0_data),
        ]
        with m.If(self.clear):
            m.d.sync += [head.eq(0), tail.eq(0)]
        with m.Else():
            m.d.sync += [head.eq(head + pop), tail.eq(tail + push)]
        return m


#: Depth in words of an FPGA's LUT memory; a deeper memory consists of several, followed by multiplexers.
_LUT_WORDS = 16


class CreditFifo(wiring.Component):
    """Queue whose producer holds a credit for every entry it pushes, so that pushing needs no handshake.

    Latency: an entry is at the head in the cycle after its push, even if a deep queue is stored in block RAM.
    `amaranth.lib.fifo.SyncFIFOBuffered` would take one more cycle, and its level output is not needed with credits.
    Throughput: one push and one pop per cycle.

    Parameters
    ----------
    layout : data.StructLayout
        Layout of an entry.
    depth : int
        Capacity in entries, a power of two.

    Members
    -------
    push : In(1), w_data : In(layout)
        `push` stores the entry `w_data`.
    valid : Out(1), r_data : Out(layout), pop : In(1)
        `valid` is high if there is an entry, `r_data` is the entry at the head, and `pop` removes this entry.
    """

    def __init__(self, layout: data.StructLayout, depth: int):
        self._layout, self._depth = layout, depth
        super().__init__(
            {
                "push": In(1),
                "w_data": In(layout),
                "valid": Out(1),
                "r_data": Out(layout),
                "pop": In(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        width, small = Shape.cast(self._layout).width, self._depth <= _LUT_WORDS
        m.submodules.ram = ram = Ram(width=width, depth=self._depth, comb=small, exclusive=not small)
        bits = (self._depth - 1).bit_length()
        head, tail = Signal(unsigned(bits + 1)), Signal(unsigned(bits + 1))
        m.d.sync += [tail.eq(tail + self.push), head.eq(head + self.pop)]
        m.d.comb += [
            ram.w_addr.eq(tail[:bits]),
            ram.w_data.eq(self.w_data.as_value()),
            ram.w_en.eq(self.push),
            self.valid.eq(head != tail),
        ]
        if small:
            m.d.comb += [ram.r0_addr.eq(head[:bits]), self.r_data.as_value().eq(ram.r0_data)]
        else:
            self._prefetch(m, ram, head, tail)
        return m

    def _prefetch(self, m: Module, ram: Ram, head: Signal, tail: Signal) -> None:
        """Read the entry that is the head in the next cycle; an entry that becomes the head when it is pushed bypasses
        the memory.
        """
        bits = len(ram.r0_addr)
        following, passes = Signal(unsigned(bits + 1)), Signal()
        newest = pipeline_register(m, "newest", self.w_data.as_value())
        m.d.sync += passes.eq(self.push & (following == tail))
        m.d.comb += [
            following.eq(head + self.pop),
            ram.r0_addr.eq(following[:bits]),
            self.r_data.as_value().eq(Mux(passes, newest, ram.r0_data)),
        ]
