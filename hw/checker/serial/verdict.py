"""Verdict of the serial checker; another component compares the box with the DRAM windows, one limit at a time."""

from amaranth.hdl import Module, Signal, Value
from amaranth.lib.wiring import In

from hw.checker.box_verdict import BoxVerdict
from hw.config import MlaConfig
from hw.lib.pipeline import pipeline_register


class SerialVerdict(BoxVerdict):
    """`BoxVerdict` with a register after each of its two comparisons.

    Latency: 1 cycle from `valid`. Throughput: one box every two cycles. Ends, kind and permission of the box must
    already be valid in the cycle before `valid`.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    permitted : In
        High if a window that permits the access contains the low 32 bits of both ends.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(config, {"permitted": In(1)})

    def _judge(self, m: Module, reaches: Value) -> tuple[Value, Value]:
        found, wide = Signal(), self.low[32:].any() | self.high[32:].any()
        m.d.comb += found.eq(self.permitted & ~wide)
        return pipeline_register(m, "reaches", reaches), pipeline_register(m, "inside", found)
