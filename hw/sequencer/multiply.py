"""The scalar MUL where bounds checks do not lend it their multipliers."""

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class ScalarMultiply(wiring.Component):
    """Low half of a product of 32 bits, of three products of halves.

    Latency: 2 cycles. Throughput: one a cycle.

    Members
    -------
    mul : In
        Takes new factors; the product of the last ones stays otherwise.
    mul_a, mul_b : In
        Factors.
    mul_product : Out
        Low half.
    """

    mul: In(1)
    mul_a: In(32)
    mul_b: In(32)
    mul_product: Out(32)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        halves = {name: (word[:16], word[16:]) for name, word in (("a", self.mul_a), ("b", self.mul_b))}
        products = []
        for i, (high_a, high_b) in enumerate(((0, 0), (0, 1), (1, 0))):
            x, y = Signal(16, name=f"x_{i}"), Signal(16, name=f"y_{i}")
            product = Signal(32, name=f"p_{i}")
            with m.If(self.mul):
                m.d.sync += [x.eq(halves["a"][high_a]), y.eq(halves["b"][high_b])]
            m.d.sync += product.eq(x * y)
            products.append(product)
        cross = Signal(16)
        m.d.comb += [
            cross.eq(products[1][:16] + products[2][:16]),
            self.mul_product.eq(products[0] + (cross << 16)),
        ]
        return m
