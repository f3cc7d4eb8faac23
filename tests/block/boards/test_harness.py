"""The scan harness reaches every port bit and preserves the chip's timing between registers."""

import random

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import SimulatorContext

from hw.boards.harness import ScanHarness
from tests.support.testbench import simulate

PAYLOAD = data.StructLayout({"low": 5, "high": 3})


class Adder(wiring.Component):
    """Component with inputs and outputs, both in an interface and as single signals."""

    i: In(stream.Signature(PAYLOAD))
    carry: In(1)
    sum: Out(6)

    def elaborate(self, platform):
        """Add the two fields of the payload, and `valid` while `carry` is high; `carry` also drives `ready`."""
        m = Module()
        m.d.comb += self.i.ready.eq(self.carry)
        m.d.sync += self.sum.eq(self.i.payload.low + self.i.payload.high + (self.i.valid & self.carry))
        return m


def test_scan_in_run_scan_out():
    dut = ScanHarness(Adder())
    rng = random.Random(1)

    async def shift(ctx: SimulatorContext, bits: list[int]) -> list[int]:
        seen = []
        ctx.set(dut.shift, 1)
        for bit in bits:
            ctx.set(dut.scan_in, bit)
            seen.append(ctx.get(dut.scan_out))
            await ctx.tick()
        ctx.set(dut.shift, 0)
        return seen

    async def bench(ctx: SimulatorContext) -> None:
        for _ in range(20):
            low, high, valid, carry = (rng.getrandbits(w) for w in (5, 3, 1, 1))
            # The scan chain holds the payload (8), valid, carry, and the outputs ready and sum (7), in this order.
            # The bit that is shifted in first moves furthest.
            word = low | high << 5 | valid << 8 | carry << 9
            await shift(ctx, [word >> i & 1 for i in reversed(range(10))])
            await ctx.tick()
            await ctx.tick()
            seen = await shift(ctx, [0] * 7)
            value = sum(bit << i for i, bit in enumerate(reversed(seen)))
            assert value == carry | (low + high + (valid & carry)) << 1

    simulate(dut, bench)
