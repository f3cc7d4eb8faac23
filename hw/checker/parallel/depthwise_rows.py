"""Rows that a depthwise stream covers."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.checker.divider import BITS, Divider


class DepthwiseRows(wiring.Component):
    """Last image row, (length - 1) // width, and last output row, ((length - 1 - lead) // width) // stride.

    Latency: `done` comes 12 cycles after `start`, 23 for a stride other than 1. Throughput: one at a time.

    Members
    -------
    start : In
        Begins; the operands stay unchanged until `done`.
    length, lead, width, stride : In
        The command's dw_len, dw_lead, x_count and dw_sy.
    done : Out
        Pulse.
    rows, out_rows : Out
        Results, valid from `done` to the next start.
    clear : In
        Gives up.
    """

    start: In(1)
    length: In(BITS)
    lead: In(16)
    width: In(16)
    stride: In(4)
    done: Out(1)
    rows: Out(BITS)
    out_rows: Out(BITS)
    clear: In(1)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        m.submodules.image = image = Divider()
        m.submodules.output = output = Divider()
        m.d.comb += [
            image.start.eq(self.start),
            image.dividend.eq(self.length - 1),
            image.divisor.eq(self.width),
            self.rows.eq(image.quotient),
            self.out_rows.eq(output.quotient),
        ]
        busy, again = Signal(), Signal()
        ready = Signal()
        m.d.comb += [
            ready.eq(busy & output.done),
            output.start.eq(self.start | (ready & again)),
            output.dividend.eq(Mux(self.start, self.length - 1 - self.lead, output.quotient)),
            output.divisor.eq(Mux(self.start, self.width, self.stride)),
            self.done.eq(ready & ~again),
        ]
        with m.If(self.clear):
            m.d.sync += busy.eq(0)
        with m.Elif(self.start):
            m.d.sync += [busy.eq(1), again.eq(self.stride != 1)]
        with m.Elif(ready):
            m.d.sync += [busy.eq(again), again.eq(0)]
        return m
