"""Scalar reciprocal and reciprocal square root, digit by digit."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

_DIGITS = 31
_ROOT_DIGITS = 32


class Reciprocal(wiring.Component):
    """Computes recip(x) and rsqrt(x) of docs/machine.md as a multiplier and an exponent.

    x is normalized in binary steps; then its square root (for rsqrt) and the quotient are computed, one bit per cycle,
    with a shared remainder register. A value x < 1 is treated as 1.

    Latency: 38 cycles for recip, 69 for rsqrt, from `start` to `done`. Throughput: one result at a time.

    Members
    -------
    start : In(1), x : In(signed(32)), root : In(1), shift : In(signed(8))
        Start a computation with operand `x`; `root` selects the reciprocal square root, and `shift` is added to the
        exponent. A start is ignored while a computation is in progress.
    done : Out(1), mult : Out(32), exponent : Out(signed(8))
        Multiplier and exponent of the result, held until `taken`.
    taken : In(1)
        High if the result has been used.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "start": In(1),
                "x": In(signed(32)),
                "root": In(1),
                "shift": In(signed(8)),
                "done": Out(1),
                "mult": Out(32),
                "exponent": Out(signed(8)),
                "taken": In(1),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        value, quotient = Signal(32), Signal(32)
        rest, count, is_root = Signal(36), Signal(range(_ROOT_DIGITS)), Signal()
        m.d.comb += self.mult.eq(quotient)
        with m.FSM():
            with m.State("idle"), m.If(self.start):
                m.d.sync += [
                    value.eq(Mux(self.x < 1, 1, self.x)),
                    is_root.eq(self.root),
                    count.eq(4),
                    # Normalization subtracts 31 - k for recip, or 15 - k for rsqrt.
                    self.exponent.eq(self.shift - Mux(self.root, 15, 31)),
                ]
                m.next = "normalize"
            with m.State("normalize"):
                self._normalize(m, value, count, is_root)
                with m.If(count == 0):
                    m.d.sync += [quotient.eq(0), rest.eq(Mux(is_root, 0, 1 << 31))]
                    m.d.sync += count.eq(Mux(is_root, _ROOT_DIGITS - 1, _DIGITS - 1))
                    m.next = "divide"
                    with m.If(is_root):
                        m.next = "root"
            with m.State("root"):
                self._root_digit(m, value, quotient, rest)
                m.d.sync += count.eq(count - 1)
                with m.If(count == 0):
                    m.next = "divisor"
            with m.State("divisor"):
                m.d.sync += [value.eq(quotient), quotient.eq(0), rest.eq(1 << 31), count.eq(_DIGITS - 1)]
                m.next = "divide"
            with m.State("divide"):
                self._digit(m, value, quotient, rest)
                m.d.sync += count.eq(count - 1)
                with m.If(count == 0):
                    m.next = "done"
            with m.State("done"):
                m.d.comb += self.done.eq(1)
                with m.If(self.taken):
                    m.next = "idle"
        return m

    def _normalize(self, m: Module, value: Signal, count: Value, is_root: Value) -> None:
        """Execute step `count` of the normalization: shift left by 2**count if that many high bits are 0; for a root,
        only by even amounts.
        """
        m.d.sync += count.eq(count - 1)
        for step in range(5):
            amount = 1 << step
            with m.If((count == step) & ~value[32 - amount :].any() & ~(is_root & (step == 0))):
                m.d.sync += [
                    value.eq(value << amount),
                    self.exponent.eq(self.exponent + Mux(is_root, Const(amount // 2, 6), Const(amount, 6))),
                ]

    def _root_digit(self, m: Module, value: Signal, quotient: Signal, rest: Signal) -> None:
        """Compute the next bit of the square root of value << 32; each cycle shifts two bits of value << 32 into the
        remainder.
        """
        longer, trial, difference = Signal(36), Signal(36), Signal(signed(37))
        m.d.comb += [
            longer.eq(Cat(value[30:], rest[:34])),
            trial.eq(Cat(Const(1, 2), quotient)),
            difference.eq(longer - trial),
        ]
        m.d.sync += [
            value.eq(value << 2),
            quotient.eq(Cat(~difference[-1], quotient[:31])),
            rest.eq(Mux(difference[-1], longer, difference[:36])),
        ]

    def _digit(self, m: Module, value: Signal, quotient: Signal, rest: Signal) -> None:
        """Compute the next bit of 2**62 // value; the first bit is the second highest bit of the quotient, so the
        quotient is at most 2**31 - 1.
        """
        doubled, remainder = Signal(33), Signal(signed(34))
        m.d.comb += [doubled.eq(rest[:32] << 1), remainder.eq(doubled - value)]
        m.d.sync += [
            quotient.eq(Cat(~remainder[-1], quotient[:31])),
            rest.eq(Mux(remainder[-1], doubled, remainder[:33])),
        ]
