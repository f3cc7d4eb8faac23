"""Stream register that registers both directions of the handshake."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out


class SkidBuffer(wiring.Component):
    """Stream register without a combinational path from `o.ready` to `i.ready`.

    Latency: one cycle. Throughput: one transfer per cycle.

    Parameters
    ----------
    layout : data.StructLayout
        Layout of the payload.

    Members
    -------
    i : In(stream), o : Out(stream)
        Input and output stream of the payload.
    clear : In
        Discard all buffered data.
    """

    def __init__(self, layout: data.StructLayout):
        self._layout = layout
        super().__init__(
            {
                "i": In(stream.Signature(layout)),
                "o": Out(stream.Signature(layout)),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        spare = Signal(self._layout, reset_less=True)
        spare_valid = Signal()
        m.d.comb += self.i.ready.eq(~spare_valid)
        with m.If(self.clear):
            m.d.sync += [self.o.valid.eq(0), spare_valid.eq(0)]
        with m.Elif(~self.o.valid | self.o.ready):
            m.d.sync += [
                self.o.valid.eq(spare_valid | self.i.valid),
                self.o.payload.as_value().eq(Mux(spare_valid, spare.as_value(), self.i.payload.as_value())),
                spare_valid.eq(0),
            ]
        with m.Elif(self.i.valid & self.i.ready):
            m.d.sync += [spare.eq(self.i.payload), spare_valid.eq(1)]
        return m
