"""Ranges of image coordinates over a walk, and the rows that a depthwise stream covers."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.checker.arithmetic import ROW_BITS, X_BITS, Y_BITS, Divider

_PRODUCT = X_BITS + Y_BITS
_SUM = _PRODUCT + 2


class CoordinateRange(wiring.Component):
    """Computes the minimum and the maximum of a coordinate over two loop dimensions, clipped to the coordinates that
    are not padding.

    Latency: 1 cycle. Throughput: one range per cycle.

    Members
    -------
    capture : In
        Sample the inputs for a new range.
    origin : In
        Coordinate of the first step.
    limit : In
        Size of the image: coordinates 0 to limit - 1 are inside, all others are padding; 0 for an image without
        padding.
    p0, p1 : In
        Extent of the coordinate over each dimension: (count - 1) * step.
    low, high : Out
        Minimum and maximum coordinate.
    empty : Out
        High if all coordinates are padding.
    wide : Out
        High if the range before clipping does not fit 17 bits.
    """

    capture: In(1)
    origin: In(signed(16))
    limit: In(16)
    p0: In(signed(_PRODUCT))
    p1: In(signed(_PRODUCT))
    low: Out(signed(X_BITS))
    high: Out(signed(X_BITS))
    empty: Out(1)
    wide: Out(1)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        low, high = Signal(signed(_SUM)), Signal(signed(_SUM))
        below, limited, too_high = Signal(), Signal(), Signal()
        m.d.comb += [
            low.eq(self.origin + (Mux(self.p0[-1], self.p0, 0) + Mux(self.p1[-1], self.p1, 0))),
            high.eq(self.origin + (Mux(self.p0[-1], 0, self.p0) + Mux(self.p1[-1], 0, self.p1))),
            limited.eq(self.limit != 0),
            below.eq(limited & low[-1]),
            too_high.eq(limited & (high >= self.limit)),
        ]
        with m.If(self.capture):
            m.d.sync += [
                self.low.eq(Mux(below, 0, low)),
                self.high.eq(Mux(too_high, self.limit - 1, high)),
                self.empty.eq(limited & (high[-1] | (low >= self.limit))),
                self.wide.eq(_outside(low) | _outside(high)),
            ]
        return m


def _outside(value: Signal) -> Signal:
    """Return a value that is high if `value` does not fit X_BITS signed bits."""
    top = value[X_BITS - 1 :]
    return top.any() & ~top.all()


class DepthwiseRows(wiring.Component):
    """Computes the last image row, (length - 1) // width, and the last output row, ((length - 1 - lead) // width) //
    stride.

    Latency: 12 cycles from `start` to `done`, 23 for a stride other than 1. Throughput: one computation at a time.

    Members
    -------
    start : In
        Start a computation; the operands must be held until `done`.
    length, lead, width, stride : In
        The command's dw_len, dw_lead, x_count and dw_sy.
    done : Out
        One-cycle pulse when the results are valid.
    rows, out_rows : Out
        Last image row and last output row, valid from `done` to the next `start`.
    clear : In
        Abandon the computation in progress.
    """

    start: In(1)
    length: In(ROW_BITS)
    lead: In(16)
    width: In(16)
    stride: In(4)
    done: Out(1)
    rows: Out(ROW_BITS)
    out_rows: Out(ROW_BITS)
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
