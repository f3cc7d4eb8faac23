"""Scalar reciprocal and reciprocal square root, digit by digit, in several units."""

from amaranth.hdl import Array, Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig

_DIGITS = 31
_ROOT_DIGITS = 32


#: Members of one unit and of several units.
_MEMBERS = {
    "start": In(1),
    "x": In(signed(32)),
    "root": In(1),
    "done": Out(1),
    "mult": Out(32),
    "exponent": Out(signed(8)),
    "taken": In(1),
}


class Reciprocal(wiring.Component):
    """Computes recip(x) and rsqrt(x) of docs/machine.md as a multiplier and an exponent.

    x is normalized in binary steps; then its square root (for rsqrt) and the quotient are computed, some bits per
    cycle, with a shared remainder register. A value x < 1 is treated as 1.

    Latency: 6 + 31 / digits cycles, rounded up, from `start` to `done`; 1 + 32 / digits more for rsqrt. Throughput: one
    result at a time.

    Parameters
    ----------
    digits : int
        Number of bits computed per cycle: 1 or 2.

    Members
    -------
    start : In(1), x : In(signed(32)), root : In(1)
        Start a computation with operand `x`; `root` selects the reciprocal square root. A start is ignored while a
        computation is in progress.
    idle : Out(1)
        High if no computation is in progress and no result is held.
    done : Out(1), mult : Out(32), exponent : Out(signed(8))
        Multiplier and exponent of the result, held until `taken`.
    taken : In(1)
        High if the result has been used.
    """

    def __init__(self, *, digits: int):
        self._per_cycle = digits
        super().__init__({**_MEMBERS, "idle": Out(1)})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        value, quotient = Signal(32), Signal(32)
        rest, count, is_root = Signal(36), Signal(range(_ROOT_DIGITS)), Signal()
        divide = -(-_DIGITS // self._per_cycle) - 1
        m.d.comb += self.mult.eq(quotient)
        with m.FSM():
            with m.State("idle"):
                m.d.comb += self.idle.eq(1)
                with m.If(self.start):
                    m.d.sync += [
                        value.eq(Mux(self.x < 1, 1, self.x)),
                        is_root.eq(self.root),
                        count.eq(4),
                        # Normalization subtracts 31 - k for recip, or 15 - k for rsqrt.
                        self.exponent.eq(-Mux(self.root, 15, 31)),
                    ]
                    m.next = "normalize"
            with m.State("normalize"):
                self._normalize(m, value, count, is_root)
                with m.If(count == 0):
                    m.d.sync += [quotient.eq(0), rest.eq(Mux(is_root, 0, 1 << 31))]
                    m.d.sync += count.eq(Mux(is_root, _ROOT_DIGITS // self._per_cycle - 1, divide))
                    m.next = "divide"
                    with m.If(is_root):
                        m.next = "root"
            with m.State("root"):
                self._root_digits(m, value, quotient, rest)
                m.d.sync += count.eq(count - 1)
                with m.If(count == 0):
                    m.next = "divisor"
            with m.State("divisor"):
                m.d.sync += [value.eq(quotient), quotient.eq(0), rest.eq(1 << 31), count.eq(divide)]
                m.next = "divide"
            with m.State("divide"):
                self._digits(m, value, quotient, rest, count == 0)
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

    def _root_digits(self, m: Module, value: Signal, quotient: Signal, rest: Signal) -> None:
        """Compute the next bits of the square root of value << 32; each bit shifts two bits of value << 32 into the
        remainder.
        """
        found: Value = quotient
        left: Value = rest
        for digit in range(self._per_cycle):
            longer = Signal(36, name=f"longer_{digit}")
            difference = Signal(signed(37), name=f"root_difference_{digit}")
            high = value[30 - 2 * digit : 32 - 2 * digit]
            m.d.comb += [
                longer.eq(Cat(high, left[:34])),
                difference.eq(longer - Cat(Const(1, 2), found[:32])),
            ]
            found = Cat(~difference[-1], found[:31])
            left = Mux(difference[-1], longer, difference[:36])
        m.d.sync += [value.eq(value << 2 * self._per_cycle), quotient.eq(found), rest.eq(left)]

    def _digits(self, m: Module, value: Signal, quotient: Signal, rest: Signal, last: Value) -> None:
        """Compute the next bits of 2**62 // value; the first bit is the second highest bit of the quotient, so the
        quotient is at most 2**31 - 1. In the `last` cycle, only one bit is left.
        """
        found: Value = quotient
        left: Value = rest
        for digit in range(self._per_cycle):
            doubled = Signal(33, name=f"doubled_{digit}")
            difference = Signal(signed(34), name=f"difference_{digit}")
            m.d.comb += [doubled.eq(left[:32] << 1), difference.eq(doubled - value)]
            now = Cat(~difference[-1], found[:31])
            after = Mux(difference[-1], doubled, difference[:33])
            one_less = last if digit else Const(0, 1)
            found, left = Mux(one_less, found, now), Mux(one_less, left, after)
        m.d.sync += [quotient.eq(found), rest.eq(left)]


class Reciprocals(wiring.Component):
    """`reciprocal_units` units that compute reciprocals in turn; results are returned in the order of the operands.

    Latency: that of a unit. Throughput: one result per `MlaConfig.reciprocal_cycles` cycles.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.

    Members
    -------
    start : In(1), x : In(signed(32)), root : In(1)
        Start a computation, as for `Reciprocal`; only while `ready` is high.
    ready : Out(1)
        High if the next unit is free.
    done : Out(1), mult : Out(32), exponent : Out(signed(8))
        Oldest result, held until `taken`.
    taken : In(1)
        High if the oldest result has been used.
    """

    def __init__(self, config: MlaConfig):
        self._config = config
        super().__init__({**_MEMBERS, "ready": Out(1)})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        count = self._config.reciprocal_units
        units = [Reciprocal(digits=self._config.reciprocal_digits) for _ in range(count)]
        first, oldest = Signal(range(count)), Signal(range(count))  # `count` is a power of two
        for index, unit in enumerate(units):
            m.submodules[f"unit_{index}"] = unit
            m.d.comb += [
                unit.start.eq(self.start & (first == index)),
                unit.x.eq(self.x),
                unit.root.eq(self.root),
                unit.taken.eq(self.taken & (oldest == index)),
            ]
        m.d.comb += [
            self.ready.eq(Array(unit.idle for unit in units)[first]),
            self.done.eq(Array(unit.done for unit in units)[oldest]),
            self.mult.eq(Array(unit.mult for unit in units)[oldest]),
            self.exponent.eq(Array(unit.exponent for unit in units)[oldest]),
        ]
        m.d.sync += [first.eq(first + self.start), oldest.eq(oldest + self.taken)]
        return m
