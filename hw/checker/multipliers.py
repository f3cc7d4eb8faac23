"""The four multipliers that bounds checks and the scalar MUL share."""

from amaranth.hdl import Elaboratable, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.checker.parallel.schedule import LANES

X_BITS = 17
Y_BITS = 21


class Multipliers(wiring.Component):
    """Registered operands, registered products.

    Latency: 2 cycles from operand to product. Throughput: four products a cycle.

    Members
    -------
    en : In
        Takes new operands; the products of the last ones stay otherwise.
    x{i}, y{i} : In
        Operands of lane i, signed.
    p{i} : Out
        Product of lane i.
    """

    def __init__(self) -> None:
        super().__init__(
            {"en": In(1)}
            | {
                name: port
                for i in range(LANES)
                for name, port in (
                    (f"x{i}", In(signed(X_BITS))),
                    (f"y{i}", In(signed(Y_BITS))),
                    (f"p{i}", Out(signed(X_BITS + Y_BITS))),
                )
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        for i in range(LANES):
            x = Signal(signed(X_BITS), name=f"x_{i}")
            y = Signal(signed(Y_BITS), name=f"y_{i}")
            with m.If(self.en):
                m.d.sync += [x.eq(getattr(self, f"x{i}")), y.eq(getattr(self, f"y{i}"))]
            m.d.sync += getattr(self, f"p{i}").eq(x * y)
        return m
