"""The multipliers, which the bounds checks and the scalar MUL share, and the divider of the checkers."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

#: Number of multiplications that start in the same cycle.
LANES = 4
X_BITS = 17
Y_BITS = 21


class Multipliers(wiring.Component):
    """Multipliers with registered operands and registered products.

    Latency: 2 cycles from operand to product. Throughput: four products per cycle.

    Members
    -------
    en : In
        High to sample new operands; while it is low, the products of the previous operands remain valid.
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


ROW_BITS = 20
_DIVISOR = 16
_PER_CYCLE = 2


class Divider(wiring.Component):
    """Unsigned divider that finds two bits of the quotient in each cycle.

    Latency: `done` is set 11 cycles after `start`. Throughput: one division at a time. The quotient of a division by
    zero is undefined.

    Members
    -------
    start : In
        Start a division and sample the operands.
    dividend, divisor : In
        Operands of the division, 20 and 16 bits wide.
    done : Out
        High if the quotient is valid; remains high until the next `start`.
    quotient : Out
        Result of the division.
    """

    start: In(1)
    dividend: In(ROW_BITS)
    divisor: In(_DIVISOR)
    done: Out(1)
    quotient: Out(ROW_BITS)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        divisor, rest = Signal(_DIVISOR), Signal(_DIVISOR)
        work = Signal(ROW_BITS)  # dividend bits not yet processed, above the quotient bits found
        left = Signal(range(ROW_BITS // _PER_CYCLE + 1))
        next_rest, bits = rest, []
        for i in range(_PER_CYCLE):
            wide, less = Signal(_DIVISOR + 1, name=f"wide{i}"), Signal(_DIVISOR + 2, name=f"less{i}")
            kept = Signal(_DIVISOR, name=f"kept{i}")
            m.d.comb += [
                wide.eq(Cat(work[ROW_BITS - 1 - i], next_rest)),
                less.eq(wide - divisor),
                kept.eq(Mux(less[-1], wide, less)),
            ]
            next_rest = kept
            bits.insert(0, ~less[-1])
        with m.If(self.start):
            m.d.sync += [
                work.eq(self.dividend),
                divisor.eq(self.divisor),
                rest.eq(0),
                left.eq(ROW_BITS // _PER_CYCLE),
            ]
        with m.Elif(left != 0):
            m.d.sync += [
                work.eq(Cat(*bits, work[: ROW_BITS - _PER_CYCLE])),
                rest.eq(next_rest),
                left.eq(left - 1),
            ]
        m.d.comb += [self.done.eq(left == 0), self.quotient.eq(work)]
        return m
