"""Last stage of the bounds checker: compares boxes with their spaces."""

from amaranth.hdl import Elaboratable, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.checker.values import AddressSpace, address_bits
from hw.config import MlaConfig
from hw.layouts import windows_layout
from hw.lib.pipeline import pipeline_register

#: Bits of an end of a box.
SUM_BITS = 52


class BoxVerdict(wiring.Component):
    """Remembers the box outside its space that comes first in the order of checks.

    Latency: 1 cycle. Throughput: one box a cycle; with `serial_commands` the ends and the kind stand
    for the cycle before `valid`, too.

    Parameters
    ----------
    config : MlaConfig
        Sizes of the memories.

    Members
    -------
    start : In
        Forgets the last command.
    valid : In
        A box is there.
    kind, order : In
        Its space and its place among the streams of the space.
    low, high : In
        Its ends.
    windows : In
        DRAM windows; with `serial_commands` whether one permits the access (`permitted`) instead.
    fail, fail_kind, fail_address : Out
        The first box outside its space and its offending address.
    """

    def __init__(self, config: MlaConfig):
        self.config = config
        super().__init__(
            {
                "start": In(1),
                "valid": In(1),
                "kind": In(AddressSpace.BITS),
                "order": In(2),
                "low": In(signed(SUM_BITS)),
                "high": In(signed(SUM_BITS)),
                **(
                    {"permitted": In(1)}
                    if config.serial_commands
                    else {"windows": In(windows_layout(config))}
                ),
                "fail": Out(1),
                "fail_kind": Out(AddressSpace.BITS),
                "fail_address": Out(32),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        beyond, outside, below = Signal(SUM_BITS), Signal(), Signal()
        fail_order = Signal(2)
        earlier = Signal()
        m.d.comb += below.eq(self.low[-1])
        with m.Switch(self.kind):
            for kind, bits in address_bits(self.config).items():
                with m.Case(kind):
                    m.d.comb += beyond.eq(self.high >> bits)
        reaches, permitted = beyond.any(), self._permitted(m)
        if self.config.serial_commands:
            reaches, permitted = (
                pipeline_register(m, "reaches", reaches),
                pipeline_register(m, "inside", permitted),
            )
        dram = self.kind[2:] == AddressSpace.DRAM_READ >> 2
        m.d.comb += [
            outside.eq(Mux(dram, below | ~permitted, below | reaches)),
            earlier.eq(
                (self.kind[2:] < self.fail_kind[2:])
                | ((self.kind[2:] == self.fail_kind[2:]) & (self.order < fail_order))
            ),
        ]
        with m.If(self.start):
            m.d.sync += self.fail.eq(0)
        with m.Elif(self.valid & outside & (~self.fail | earlier)):
            m.d.sync += [
                self.fail.eq(1),
                self.fail_kind.eq(self.kind),
                fail_order.eq(self.order),
                self.fail_address.eq(Mux(below | dram, self.low, self.high)),
            ]
        return m

    def _permitted(self, m: Module) -> Signal:
        """Whether one window holds both ends and allows the access."""
        found, wide = Signal(), self.low[32:].any() | self.high[32:].any()
        if self.config.serial_commands:
            m.d.comb += found.eq(self.permitted & ~wide)
            return found
        permitted = Signal(self.config.windows)
        for i in range(self.config.windows):
            window = self.windows[i]
            m.d.comb += permitted[i].eq(
                Mux(self.kind[0], window.perm[1], window.perm[0])
                & (self.low[:32] >= window.base)
                & (self.high[:32] <= window.last)
            )
        m.d.comb += found.eq(permitted.any() & ~self.low[32:].any() & ~self.high[32:].any())
        return found
