"""Divider for the image rows of a depthwise stream."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

BITS = 20
_DIVISOR = 16
_PER_CYCLE = 2


class Divider(wiring.Component):
    """Unsigned quotient, two bits a cycle.

    Latency: `done` is set 11 cycles after `start`. Throughput: one division at a time. A division by zero
    ends with an undefined quotient.

    Members
    -------
    start : In
        Takes the operands.
    dividend, divisor : In
        20 and 16 bits.
    done : Out
        The quotient is there; stays until the next start.
    quotient : Out
        Result.
    """

    start: In(1)
    dividend: In(BITS)
    divisor: In(_DIVISOR)
    done: Out(1)
    quotient: Out(BITS)

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        divisor, rest = Signal(_DIVISOR), Signal(_DIVISOR)
        work = Signal(BITS)  # dividend bits still to come, above the quotient bits found
        left = Signal(range(BITS // _PER_CYCLE + 1))
        next_rest, bits = rest, []
        for i in range(_PER_CYCLE):
            wide, less = Signal(_DIVISOR + 1, name=f"wide{i}"), Signal(_DIVISOR + 2, name=f"less{i}")
            kept = Signal(_DIVISOR, name=f"kept{i}")
            m.d.comb += [
                wide.eq(Cat(work[BITS - 1 - i], next_rest)),
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
                left.eq(BITS // _PER_CYCLE),
            ]
        with m.Elif(left != 0):
            m.d.sync += [
                work.eq(Cat(*bits, work[: BITS - _PER_CYCLE])),
                rest.eq(next_rest),
                left.eq(left - 1),
            ]
        m.d.comb += [self.done.eq(left == 0), self.quotient.eq(work)]
        return m
