"""Scalar reciprocal and reciprocal square root, digit by digit, in several units."""

from amaranth.hdl import Array, Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import MlaConfig


def _members(width: int) -> dict[str, wiring.Member]:
    """Return the members that one unit and several units have in common."""
    return {
        "start": In(1),
        "x": In(signed(width)),
        "root": In(1),
        "done": Out(1),
        "mult": Out(width),
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
    width : int
        Width of the operand and of the multiplier, a power of two. docs/machine.md defines the results for 32 bits; for
        w bits, w - 1 takes the place of 31.

    Members
    -------
    start : In(1), x : In(signed(width)), root : In(1)
        Start a computation with operand `x`; `root` selects the reciprocal square root. A start is ignored while a
        computation is in progress.
    idle : Out(1)
        High if no computation is in progress and no result is held.
    done : Out(1), mult : Out(width), exponent : Out(signed(8))
        Multiplier and exponent of the result, held until `taken`.
    taken : In(1)
        High if the result has been used.
    """

    def __init__(self, *, digits: int, width: int = 32):
        self._per_cycle, self._width = digits, width
        self._shifts = (width - 1).bit_length()  # number of steps of the normalization
        super().__init__({**_members(width), "idle": Out(1)})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        width = self._width
        value, quotient = Signal(width), Signal(width)
        rest, count, is_root = Signal(width + 4), Signal(range(width)), Signal()
        divide = -(-(width - 1) // self._per_cycle) - 1
        m.d.comb += self.mult.eq(quotient)
        with m.FSM():
            with m.State("idle"):
                m.d.comb += self.idle.eq(1)
                with m.If(self.start):
                    m.d.sync += [
                        value.eq(Mux(self.x < 1, 1, self.x)),
                        is_root.eq(self.root),
                        count.eq(self._shifts - 1),
                        # Normalization subtracts 31 - k for recip, or 15 - k for rsqrt.
                        self.exponent.eq(-Mux(self.root, width // 2 - 1, width - 1)),
                    ]
                    m.next = "normalize"
            with m.State("normalize"):
                self._normalize(m, value, count, is_root)
                with m.If(count == 0):
                    m.d.sync += [quotient.eq(0), rest.eq(Mux(is_root, 0, 1 << width - 1))]
                    m.d.sync += count.eq(Mux(is_root, width // self._per_cycle - 1, divide))
                    m.next = "divide"
                    with m.If(is_root):
                        m.next = "root"
            with m.State("root"):
                self._root_digits(m, value, quotient, rest)
                m.d.sync += count.eq(count - 1)
                with m.If(count == 0):
                    m.next = "divisor"
            with m.State("divisor"):
                m.d.sync += [
                    value.eq(quotient),
                    quotient.eq(0),
                    rest.eq(1 << width - 1),
                    count.eq(divide),
                ]
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
        for step in range(self._shifts):
            amount = 1 << step
            with m.If((count == step) & ~value[self._width - amount :].any() & ~(is_root & (step == 0))):
                m.d.sync += [
                    value.eq(value << amount),
                    self.exponent.eq(self.exponent + Mux(is_root, Const(amount // 2, 6), Const(amount, 6))),
                ]

    def _root_digits(self, m: Module, value: Signal, quotient: Signal, rest: Signal) -> None:
        """Compute the next bits of the square root of value << width; each bit shifts two bits of value << width into
        the remainder.
        """
        width = self._width
        found: Value = quotient
        left: Value = rest
        for digit in range(self._per_cycle):
            longer = Signal(width + 4, name=f"longer_{digit}")
            difference = Signal(signed(width + 5), name=f"root_difference_{digit}")
            high = value[width - 2 - 2 * digit : width - 2 * digit]
            m.d.comb += [
                longer.eq(Cat(high, left[: width + 2])),
                difference.eq(longer - Cat(Const(1, 2), found[:width])),
            ]
            found = Cat(~difference[-1], found[: width - 1])
            left = Mux(difference[-1], longer, difference[: width + 4])
        m.d.sync += [value.eq(value << 2 * self._per_cycle), quotient.eq(found), rest.eq(left)]

    def _digits(self, m: Module, value: Signal, quotient: Signal, rest: Signal, last: Value) -> None:
        """Compute the next bits of 2**62 // value; the first bit is the second highest bit of the quotient, so the
        quotient is at most 2**31 - 1. In the `last` cycle, only one bit is left.
        """
        width = self._width
        found: Value = quotient
        left: Value = rest
        for digit in range(self._per_cycle):
            doubled = Signal(width + 1, name=f"doubled_{digit}")
            difference = Signal(signed(width + 2), name=f"difference_{digit}")
            m.d.comb += [doubled.eq(left[:width] << 1), difference.eq(doubled - value)]
            now = Cat(~difference[-1], found[: width - 1])
            after = Mux(difference[-1], doubled, difference[: width + 1])
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
    width : int
        Width of the operand and of the multiplier, as for `Reciprocal`.

    Members
    -------
    start : In(1), x : In(signed(width)), root : In(1)
        Start a computation, as for `Reciprocal`; only while `ready` is high.
    ready : Out(1)
        High if the next unit is free.
    done : Out(1), mult : Out(width), exponent : Out(signed(8))
        Oldest result, held until `taken`.
    taken : In(1)
        High if the oldest result has been used.

    Attributes
    ----------
    units : list of Reciprocal
        Units, which compute in the order of their indices.
    first, oldest : Signal
        Index of the unit that starts next, and of the unit with the oldest result.
    """

    def __init__(self, config: MlaConfig, *, width: int = 32):
        count, digits = config.reciprocal_units, config.reciprocal_digits
        self.units = [Reciprocal(digits=digits, width=width) for _ in range(count)]
        first, oldest = Signal(range(count)), Signal(range(count))  # `count` is a power of two
        self.first, self.oldest = first, oldest
        super().__init__({**_members(width), "ready": Out(1)})

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        units, first, oldest = self.units, self.first, self.oldest
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
