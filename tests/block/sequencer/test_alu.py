"""The small ALU gives the same results as the fast one."""

import random

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hw.isa.micro_instruction import MicroOp
from hw.sequencer.alu import Alu
from hw.sequencer.alu_serial import SerialAlu
from tests.support.testbench import simulate

_SUBTRACTING = (MicroOp.SUB, MicroOp.MIN, MicroOp.MAX, MicroOp.SLT, MicroOp.SLTU, MicroOp.SEQ)


class AluPair(wiring.Component):
    """The small and the fast ALU with the same operands."""

    op: In(6)
    a: In(32)
    b: In(32)
    imm: In(32)
    product: In(32)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.fast = self.fast = Alu()
        m.submodules.small = self.small = SerialAlu()
        for name in ("op", "a", "b", "imm", "product"):
            m.d.comb += [getattr(alu, name).eq(getattr(self, name)) for alu in (self.fast, self.small)]
        return m


def test_same_results():
    rng, dut = random.Random(1), AluPair()

    def word() -> int:
        return (
            rng.choice((rng.getrandbits(32), rng.getrandbits(5), -rng.getrandbits(5), 1 << 31)) & 0xFFFFFFFF
        )

    async def testbench(ctx):
        for _ in range(200):
            for op in MicroOp:
                a, b, imm = word(), word(), rng.choice((0, word()))
                values = {"a": rng.choice((a, (b + imm) & 0xFFFFFFFF)), "b": b, "imm": imm, "product": word()}
                ctx.set(dut.op, int(op))
                for name, value in values.items():
                    ctx.set(getattr(dut, name), value)
                await ctx.tick()
                names = ["result", "taken", "second"] + ["sum"] * (op not in _SUBTRACTING)
                for name in names:
                    fast, small = ctx.get(getattr(dut.fast, name)), ctx.get(getattr(dut.small, name))
                    assert fast == small, (op, values, name)

    simulate(dut, testbench)
