"""First-in first-out buffer between two streams."""

from amaranth.hdl import Elaboratable, Module, Shape, ShapeLike, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.lib.ram import Ram


class StreamFifo(wiring.Component):
    """Buffer in a small memory with combinational reads.

    Latency: a payload taken in one cycle is offered in the next. Throughput: one payload per cycle while not
    full.

    Parameters
    ----------
    shape : ShapeLike
        Payload.
    depth : int
        Payloads it holds; a power of two.

    Members
    -------
    w : In(stream)
        Input.
    r : Out(stream)
        Output.
    clear : In
        Forget everything.
    level : Out
        Payloads held.
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
        # One bit more than an address, so that their difference tells full from empty.
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
