"""Verdict of the parallel checker, which compares a box with all DRAM windows in the same cycle."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib.wiring import In

from hw.checker.box_verdict import BoxVerdict
from hw.config import MlaConfig
from hw.layouts import windows_layout


class ParallelVerdict(BoxVerdict):
    """`BoxVerdict` with comparators for both limits of every window.

    Latency: 1 cycle. Throughput: one box per cycle.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses the sizes of the memories and the number of windows.

    Members
    -------
    windows : In
        Limits and permissions of the DRAM windows.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(config, {"windows": In(windows_layout(config))})

    def _judge(self, m: Module, reaches: Value) -> tuple[Value, Value]:
        found, permitted = Signal(), Signal(self.config.windows)
        for i in range(self.config.windows):
            window = self.windows[i]
            m.d.comb += permitted[i].eq(
                Mux(self.kind[0], window.perm[1], window.perm[0])
                & (self.low[:32] >= window.base)
                & (self.high[:32] <= window.last)
            )
        m.d.comb += found.eq(permitted.any() & ~self.low[32:].any() & ~self.high[32:].any())
        return reaches, found
