"""The scaling stage alone, as the pipeline builds it."""

from amaranth.hdl import Elaboratable, Module, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.fuse.requant_scale import ScaleControl, ScaleLane


class ScaleStage(wiring.Component):
    """One control and one lane.

    Latency: that of `ScaleLane`. Throughput: one value in each cycle.

    Parameters
    ----------
    x_width : int
        Bits of the value scaled.

    Members
    -------
    x, mult, exponent, ls, rounding, raw : In
        Operands.
    o : Out(signed(32))
        Result.
    """

    def __init__(self, x_width: int):
        self._x_width = x_width
        super().__init__(
            {
                "x": In(signed(x_width)),
                "mult": In(signed(32)),
                "exponent": In(signed(8)),
                "ls": In(5),
                "rounding": In(2),
                "raw": In(1),
                "o": Out(signed(32)),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        """Join control and lane."""
        m = Module()
        m.submodules.control = control = ScaleControl(x_width=self._x_width)
        m.submodules.lane = lane = ScaleLane(x_width=self._x_width)
        m.d.comb += [getattr(control, n).eq(getattr(self, n)) for n in ("exponent", "ls", "rounding", "raw")]
        m.d.comb += [
            lane.steps.eq(control.steps),
            lane.x.eq(self.x),
            lane.mult.eq(self.mult),
            self.o.eq(lane.o),
        ]
        return m
