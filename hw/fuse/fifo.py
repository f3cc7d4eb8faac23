"""First in, first out, between parts joined by credits; and a two-entry stream buffer."""

from amaranth.hdl import Elaboratable, Module, Shape, Signal, ValueLike, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.memory.ram import Ram


class CreditFifo(wiring.Component):
    """Queue whose producer holds a credit for every entry it pushes, so that pushing needs no handshake.

    Latency: an entry is at the head in the cycle after its push. Throughput: one push and one pop in each
    cycle.

    Parameters
    ----------
    layout : data.StructLayout
        Entry.
    depth : int
        Entries, a power of two.

    Members
    -------
    push : In(1), w_data : In(layout)
        Entry coming in.
    valid : Out(1), r_data : Out(layout), pop : In(1)
        Head of the queue.
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
        m.submodules.ram = ram = Ram(width=Shape.cast(self._layout).width, depth=self._depth, comb=True)
        bits = (self._depth - 1).bit_length()
        head, tail = Signal(unsigned(bits + 1)), Signal(unsigned(bits + 1))
        m.d.sync += [tail.eq(tail + self.push), head.eq(head + self.pop)]
        m.d.comb += [
            ram.w_addr.eq(tail[:bits]),
            ram.w_data.eq(self.w_data.as_value()),
            ram.w_en.eq(self.push),
            ram.r0_addr.eq(head[:bits]),
            self.r_data.as_value().eq(ram.r0_data),
            self.valid.eq(head != tail),
        ]
        return m


class SkidBuffer(wiring.Component):
    """Stream register that cuts the path of `ready` as well.

    Latency: one cycle. Throughput: one transfer in each cycle.

    Parameters
    ----------
    layout : data.StructLayout
        Payload.

    Members
    -------
    i : In(stream), o : Out(stream)
        Streams of the payload.
    """

    def __init__(self, layout: data.StructLayout):
        self._layout = layout
        super().__init__({"i": In(stream.Signature(layout)), "o": Out(stream.Signature(layout))})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        spare = Signal(self._layout)
        spare_valid = Signal()
        m.d.comb += self.i.ready.eq(~spare_valid)
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [
                self.o.valid.eq(spare_valid | self.i.valid),
                self.o.payload.eq(_choose(m, spare_valid, spare, self.i.payload)),
                spare_valid.eq(0),
            ]
        with m.Elif(self.i.valid & self.i.ready):
            m.d.sync += [spare.eq(self.i.payload), spare_valid.eq(1)]
        return m


def _choose(m: Module, select: ValueLike, yes: data.View, no: data.View) -> data.View:
    chosen = Signal(yes.shape(), name="chosen")
    m.d.comb += chosen.eq(no)
    with m.If(select):
        m.d.comb += chosen.eq(yes)
    return chosen
