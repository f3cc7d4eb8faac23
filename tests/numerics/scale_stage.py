"""The scaling stage alone, with the same structure as in the pipeline."""

from amaranth.hdl import Elaboratable, Module, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.fuse.requant_scale import ScaleControl, ScaleLane


class ScaleStage(wiring.Component):
    """Scaling stage with one control and one lane.

    Latency: equals that of `ScaleLane`. Throughput: one value per cycle.

    Parameters
    ----------
    x_width : int
        Width of the scaled value in bits.

    Members
    -------
    x, mult, exponent, ls, rounding, raw : In
        Operands of the scaling.
    o : Out(signed(32))
        Scaled result.
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
        """Connect control and lane."""
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
