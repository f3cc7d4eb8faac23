"""One affine address along the five loops of FUSE, by additions only."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.isa.commands import FUSE_DIMS
from hw.lib.pipeline import register


class Walk(wiring.Component):
    """base + the sum of index * stride over some loop dimensions, kept up to date step by step.

    A step that advances dimension L adds L's stride to the value at the start of that dimension's current
    step and restarts the dimensions inside L from there.

    Latency: `value` follows `load` and `step` by one cycle. Throughput: one step in each cycle.

    Parameters
    ----------
    width : int
        Bits of the value; arithmetic is modulo 2**width.
    dims : tuple of str
        Dimensions with a stride, innermost first; the value stays constant along the others.
    late : int
        1: what a step adds to what is in registers before it; `level` stands for a cycle before a step.

    Members
    -------
    load : In(1), base : In
        Start value; `load` goes with the strides of the new command, which stay valid until the next load.
    step : In(1), level : In(3)
        Advance dimension number `level` of FUSE_DIMS.
    stride_{dim} : In
        Strides.
    value : Out
        Current value.
    """

    def __init__(self, *, width: int, dims: tuple[str, ...], late: int = 0):
        self._width, self._dims, self._late = width, dims, late
        strides = {f"stride_{dim}": In(signed(width)) for dim in dims}
        super().__init__(
            {
                "load": In(1),
                "base": In(signed(width)),
                "step": In(1),
                "level": In(3),
                "value": Out(signed(width)),
                **strides,
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        starts = {dim: Signal(signed(self._width), name=f"start_{dim}") for dim in self._dims}
        first = Signal(signed(self._width))
        origin, stride = Signal(signed(self._width)), Signal(signed(self._width))
        following = Signal(signed(self._width))
        with m.Switch(self.level):
            for level, dim in enumerate(FUSE_DIMS):
                with m.Case(level):
                    outer = [d for d in FUSE_DIMS[level:] if d in self._dims]
                    m.d.comb += origin.eq(starts[outer[0]] if outer else first)
                    if dim in self._dims:
                        m.d.comb += stride.eq(getattr(self, f"stride_{dim}"))
        if self._late:
            origin, stride = register(m, "origin_held", origin), register(m, "stride_held", stride)
        m.d.comb += following.eq(origin + stride)
        with m.If(self.load):
            m.d.sync += first.eq(self.base)
        for dim, start in starts.items():
            with m.If(self.load | (self.step & (self.level >= FUSE_DIMS.index(dim)))):
                m.d.sync += start.eq(Mux(self.load, self.base, following))
        m.d.comb += self.value.eq(starts[self._dims[0]])
        return m
