"""`scale` of docs/machine.md: multiply by a 32-bit multiplier, shift, round, saturate."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.fuse.scale_control import SCALE_STEPS
from hw.registers import register

#: Cycles from the operands to the result.
LATENCY = 6
_MAX = (1 << 31) - 1
#: Bits left by the shift by bytes: a result, the bit that rounds it, and what the shift by bits can still drop.
_KEPT = 40
#: Significant bits of a product after the first rounding of the even mode.
_SINGLE = 24
#: The first byte of a product, shifted left by one, in which more than that many bits can begin.
_LEAST = _SINGLE // 8 + 1


@dataclass(frozen=True)
class _Part:
    """A product after the shift by bytes: the _KEPT bits at the bottom of what is left, whether a bit below them is
    set, whether one above them differs from the sign, the sign, the bytes shifted, and how many bits may follow: all
    that the control says, or less, as only those which the product has beyond _SINGLE bits.
    """

    kept: Signal
    sticky: Signal
    excess: Signal
    negative: Signal
    bytes: Signal
    all: Signal
    less: Signal


class ScaleLane(wiring.Component):
    """One lane of `scale`.

    The product is shifted first, by bytes and then by bits, and only as much of it is kept as the result and its
    rounding need: 32 bits, the bit below them, whether any bit further below is set, and whether any bit above
    differs from the sign.

    Latency: LATENCY. Throughput: one value in each cycle.

    Parameters
    ----------
    x_width : int
        Bits of `x`; the same as of the ScaleControl.

    Members
    -------
    x : In(signed(x_width)), mult : In(signed(32))
        Operands.
    steps : In(SCALE_STEPS)
        From a ScaleControl given its inputs together with the operands.
    o : Out(signed(32))
        Result.
    """

    def __init__(self, *, x_width: int = 32):
        self._x_width = x_width
        super().__init__(
            {
                "x": In(signed(x_width)),
                "mult": In(signed(32)),
                "steps": In(SCALE_STEPS),
                "o": Out(signed(32)),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        steps = self.steps
        # One bit below the product is the bit that rounds when nothing is shifted.
        doubled = Cat(Const(0, 1), self._product(m))
        part = self._coarse(m, doubled)
        floor, rounds, excess, done = self._fine(m, part)
        total = register(m, "total", floor + rounds, signed(33))
        excess_4, negative_4 = register(m, "excess_4", excess), register(m, "negative_4", part.negative)
        left = Signal(6)
        m.d.comb += left.eq(steps.shift_3 - done)
        # More than 24 bits to drop of a number of 24 bits leave nothing, however many they are.
        second = Mux(steps.even_3, Mux(left[5], 31, left[:5]), steps.second_3)
        second_4 = register(m, "second_4", second, unsigned(5))
        short = Signal(signed(32))
        with m.If(steps.wrap_4 | ~(excess_4 | (total[32] ^ total[31]))):
            m.d.comb += short.eq(total)
        with m.Else():  # a total in the range of the shift can only pass the greatest number
            m.d.comb += short.eq(Mux(excess_4 & negative_4, -_MAX - 1, _MAX))
        # Plus half, less one unit where a tie must go down: one addition with a carry.
        below, carry = Const((1 << 30) - 1, 30) >> ~second_4, Signal()
        up = Mux(steps.even_4, (total[: _SINGLE + 2] >> second_4)[0], ~short[-1])
        m.d.comb += carry.eq((second_4 != 0) & up)
        sum_ = Cat(Const(1, 1), short).as_signed() + Cat(carry, below)
        lowered = register(m, "lowered", sum_[1:34].as_signed())
        shift_5 = register(m, "shift_5", second_4)
        m.d.comb += self.o.eq(register(m, "result", lowered >> shift_5, signed(32)))
        return m

    def _coarse(self, m: Module, value: Value) -> "_Part":
        """Shift by bytes."""
        steps, sign, width = self.steps, value[-1], len(value)
        # Whether bytes of the product are in use: those that 24 bits of it can begin in, and those above _KEPT bits.
        used = Signal(8)
        for byte in range(_LEAST, 8):
            m.d.comb += used[byte].eq((_window(value, 8 * byte, 8) ^ sign.replicate(8)).any())
        spare, amount = Signal(7), Signal(7)
        m.d.comb += [
            spare.eq(Cat(used[byte:].any() for byte in range(_LEAST, 8))),
            amount.eq(steps.coarse_2 & (spare | ~steps.even_2.replicate(7))),
        ]
        below = [_window(value, 8 * byte, 8).any() & amount[byte] for byte in range(7)]
        above = [
            used[byte] & ~amount[byte - _KEPT // 8] for byte in range(_KEPT // 8, min((width + 7) // 8, 8))
        ]
        bytes_ = _count(amount)
        return _Part(
            kept=register(m, "kept", _shift(m, "coarse", value, bytes_, 8, _KEPT)),
            sticky=register(m, "sticky", Cat(below).any()),
            excess=register(m, "excess", Cat(above).any()),
            negative=register(m, "negative", sign),
            bytes=register(m, "bytes", bytes_),
            all=register(m, "all", ~steps.even_2 | (spare & ~steps.coarse_2).any()),
            less=register(m, "less", steps.even_2 & (steps.coarse_2 & ~spare).any()),
        )

    def _fine(self, m: Module, part: "_Part") -> tuple[Value, Value, Value, Value]:
        """Shift by bits: the 32 bits of the result rounded down, whether to add one, whether it leaves int32, and
        by how much the product was shifted.
        """
        kept, steps = part.kept, self.steps
        top = kept[_SINGLE : _SINGLE + 8] ^ part.negative.replicate(8)
        spare, amount = Signal(7), Signal(7)
        m.d.comb += [
            spare.eq(Cat(top[i:].any() for i in range(1, 8))),
            amount.eq((spare | part.all.replicate(7)) & (steps.fine_3 | part.less.replicate(7))),
        ]
        bits = _count(amount)
        shifted = _shift(m, "fine", kept, bits, 1, 33)
        low, high = Signal(7), Signal(8)
        m.d.comb += [
            low.eq(kept[:7] & amount),
            high.eq((kept[32:] ^ part.negative.replicate(8)) & ~Cat(amount, Const(0, 1))),
        ]
        half, sticks, floor = shifted[0], part.sticky | low.any(), shifted[1:].as_signed()
        up = Signal()
        m.d.comb += up.eq(
            half & Mux(steps.away_3, ~part.negative | sticks, Mux(steps.even_3, sticks | floor[0], 1))
        )
        return floor, up, part.excess | high.any(), Cat(bits, part.bytes)

    def _product(self, m: Module) -> Value:
        """Exact product, from 16-bit parts: a register after the multipliers, one after the adders."""
        x_parts = _split(self.x)
        m_parts = _split(self.mult)
        width = self._x_width + 32
        terms = []
        for i, (x, x_at) in enumerate(x_parts):
            for j, (y, y_at) in enumerate(m_parts):
                terms.append((register(m, f"part_{i}{j}", x * y), x_at + y_at))
        outer = [t for t in terms if t[1] != 16]
        middle = [t for t in terms if t[1] == 16]
        middle_sum = Signal(signed(36))
        outer_sum = Signal(signed(width))
        m.d.comb += middle_sum.eq(middle[0][0] + (middle[1][0] if len(middle) > 1 else 0))
        if len(outer) > 1:
            low = outer[0][0][:32]
            m.d.comb += outer_sum.eq(Cat(low, outer[1][0]).as_signed())
        else:
            m.d.comb += outer_sum.eq(outer[0][0])
        return register(m, "product", outer_sum + (middle_sum << 16), signed(width))


def _split(value: Value) -> list[tuple[Value, int]]:
    """Parts that fit a signed 18-bit multiplier: (part, its position); a value of up to 18 bits is one
    part.
    """
    if len(value) <= 18:
        return [(value, 0)]
    return [(Cat(value[:16], Const(0, 1)).as_signed(), 0), (value[16:].as_signed(), 16)]


def _window(value: Value, first: int, count: int) -> Value:
    """`count` bits from `first` on; beyond its end the value has copies of its sign."""
    inside = value[first : first + count]
    return Cat(inside, value[-1].replicate(count - len(inside)))


def _count(ones: Value) -> Value:
    """The number of ones of a word that has them all at its bottom."""
    odd = Cat(ones[i] & ~ones[i + 1] for i in (0, 2, 4)).any() | ones[6]
    return Cat(odd, Mux(ones[3], ones[5], ones[1]), ones[3])


def _shift(m: Module, name: str, value: Value, amount: Value, unit: int, width: int) -> Value:
    """`width` bits of value >> (amount * unit), the greatest step first, nothing wider than the rest needs."""
    for bit in reversed(range(len(amount))):
        step, rest = unit << bit, unit * ((1 << bit) - 1)
        node = Signal(width + rest, name=f"{name}_{bit}")
        m.d.comb += node.eq(
            Mux(amount[bit], _window(value, step, width + rest), _window(value, 0, width + rest))
        )
        value = node
    return value
