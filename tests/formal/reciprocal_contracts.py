"""Contracts of the reciprocal units as circuits with assertions."""

from collections.abc import Iterator
from functools import partial
from math import isqrt
from types import ModuleType

from amaranth.hdl import Array, Assert, Assume, Cat, Module, Signal, Value

from hw.config import MlaConfig
from tests.formal.axi_contracts import Contract

#: Width of operands and multipliers where the time of a proof depends on it.
WIDTH = 4
FULL, TWO, ONE = MlaConfig(n=4), MlaConfig(n=4, reciprocal_units=2), MlaConfig(n=4, reciprocal_units=1)
#: Cycles of the longest computation with two digits per cycle: normalization, root, divisor, quotient.
LONGEST = (WIDTH - 1).bit_length() + WIDTH // 2 + 1 + WIDTH // 2


def expected(x: int, *, root: bool) -> tuple[int, int]:
    """Return multiplier and exponent of x by the definitions of docs/machine.md with WIDTH - 1 in place of 31."""
    most, x = WIDTH - 1, max(x, 1)
    if root:
        k = (x.bit_length() - 1) // 2
        divisor = isqrt(x << 2 * (most - k))
    else:
        k = x.bit_length() - 1
        divisor = x << most - k
    return min((1 << 2 * most) // divisor, (1 << most) - 1), -k


def looked_up(x: Value, root: Value) -> Value:
    """Return the concatenation of the expected multiplier and exponent of a signed operand."""
    half = 1 << WIDTH - 1
    pairs = [
        expected(value, root=bool(is_root))
        for is_root in range(2)
        for value in (*range(half), *range(-half, 0))
    ]
    return Array(mult | (exponent & 0xFF) << WIDTH for mult, exponent in pairs)[Cat(x, root)]


class UnitsContract(Contract):
    """Contract of several units whose user obeys `ready` and `done`.

    Parameters
    ----------
    source : module
        `hw.fuse.reciprocal`, or a mutant of it.
    config : MlaConfig
        Configuration of the machine.
    width : int
        Width of operands and multipliers.
    """

    def __init__(self, source: ModuleType, config: MlaConfig, width: int):
        super().__init__(source.Reciprocals(config, width=width))

    def count(self, m: Module, block) -> tuple[Signal, Signal]:
        """Return the numbers of requests and of results so far, both modulo 256."""
        starts, takes = Signal(8), Signal(8)
        m.d.sync += [starts.eq(starts + block.start), takes.eq(takes + block.taken)]
        m.d.comb += [Assume(~block.start | block.ready), Assume(~block.taken | block.done)]
        return starts, takes

    def places(self, block) -> Iterator[tuple[int, Signal]]:
        """Yield, for each unit, its index and its distance from the unit with the oldest result."""
        for index in range(len(block.units)):
            distance = Signal.like(block.oldest, name=f"distance_{index}")
            yield index, distance


class NoneLostContract(UnitsContract):
    """The units in use are those of the requests without a result; a request never reaches a unit in use."""

    def claim(self, m: Module, block) -> None:
        starts, takes = self.count(m, block)
        inside = Signal(8)
        m.d.comb += [
            inside.eq(starts - takes),
            Assert(inside <= len(block.units)),
            Assert(block.ready == (inside != len(block.units))),
            Assert(~block.done | (inside != 0)),
            Assert(block.first == (block.oldest + inside)[: len(block.first)]),
        ]
        for index, distance in self.places(block):
            m.d.comb += [
                distance.eq(index - block.oldest),
                Assert(block.units[index].idle == (distance >= inside)),
                Assert(~block.units[index].start | block.units[index].idle),
            ]


class OrderContract(UnitsContract):
    """Results leave in the order of the requests: the unit with the oldest result computes the oldest request."""

    def claim(self, m: Module, block) -> None:
        starts, takes = self.count(m, block)
        inside = Signal(8)
        m.d.comb += [
            inside.eq(starts - takes),
            Assert(inside <= len(block.units)),
            Assert(block.first == (block.oldest + inside)[: len(block.first)]),
        ]
        for index, distance in self.places(block):
            unit, number = block.units[index], Signal(8, name=f"number_{index}")
            with m.If(unit.start):
                m.d.sync += number.eq(starts)
            m.d.comb += [
                distance.eq(index - block.oldest),
                Assert(unit.idle == (distance >= inside)),
                Assert(unit.idle | (number == (takes + distance)[:8])),
            ]


class HeldContract(UnitsContract):
    """A result that is not taken remains, unchanged."""

    def claim(self, m: Module, block) -> None:
        self.count(m, block)
        waits, result = Signal(), Cat(block.mult, block.exponent)
        before = Signal.like(result)
        m.d.sync += [waits.eq(block.done & ~block.taken), before.eq(result)]
        m.d.comb += Assert(~waits | (block.done & (result == before)))


class AnsweredContract(UnitsContract):
    """Every unit ends its computation at most LONGEST cycles after its first cycle."""

    def claim(self, m: Module, block) -> None:
        self.count(m, block)
        for index, unit in enumerate(block.units):
            age = Signal(range(LONGEST + 2), name=f"age_{index}")
            with m.If(unit.start & unit.idle):
                m.d.sync += age.eq(0)
            with m.Elif(age != LONGEST + 1):
                m.d.sync += age.eq(age + 1)
            m.d.comb += Assert(unit.idle | unit.done | (age < LONGEST))


class ValueContract(UnitsContract):
    """The result of a unit that computes without a pause is that of the definition for its operand."""

    def claim(self, m: Module, block) -> None:
        self.count(m, block)
        later, wanted = Signal(), Signal(WIDTH + 8)
        m.d.sync += later.eq(1)
        m.d.comb += [Assume(block.start == (later & block.ready)), Assume(block.taken == block.done)]
        with m.If(block.start):
            m.d.sync += wanted.eq(looked_up(block.x.as_unsigned(), block.root))
        m.d.comb += Assert(~block.done | (Cat(block.mult, block.exponent) == wanted))


CONTRACTS = {
    "none_lost": partial(NoneLostContract, config=FULL, width=32),
    "order": partial(OrderContract, config=FULL, width=32),
    "held": partial(HeldContract, config=FULL, width=32),
    "answered": partial(AnsweredContract, config=TWO, width=WIDTH),
    "value": partial(ValueContract, config=ONE, width=WIDTH),
}
