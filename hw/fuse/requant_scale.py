"""`scale` of docs/machine.md: multiply by a 32-bit multiplier, shift, round, saturate; then zero point and clip.

`ScaleControl` derives shift amounts and rounding for lanes with one exponent; `ScaleLane` is the data path of a lane.
"""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.isa.enums import Rounding
from hw.lib.pipeline import pipeline_delay, pipeline_register

#: Bits of an exponent: of a requantization's with that of a float32 number added.
EXPONENT_SUM_BITS = 10

#: Controls of a lane of `scale`; the number in a name is the cycle of its use, counted from that of the operands.
SCALE_STEPS = data.StructLayout(
    {
        "coarse_2": 7,  # shift in bytes, as that many ones
        "even_2": 1,  # at most the shift: as far as the product has more than 24 bits
        "fine_4": 7,  # the rest of the shift, as that many ones
        "shift_4": 6,  # the whole shift
        "second_4": 5,  # shift of the second rounding of the double mode
        "away_4": 1,
        "even_4": 1,
        "wrap_5": 1,  # return the low 32 bits instead of saturating
        "even_5": 1,
    }
)


def most_shift(x_width: int) -> int:
    """Maximum useful shift: beyond it a product of 32 + x_width bits always becomes zero."""
    return min(63, x_width + 33)


class ScaleControl(wiring.Component):
    """Shift amounts and rounding of one `scale`; lanes with the same exponent share it.

    Latency: the parts of `steps` come 2 to 5 cycles after the inputs. Throughput: one each cycle.

    Parameters
    ----------
    x_width : int
        Bits of the value scaled: 32, or less for a value known to be short.

    Members
    -------
    exponent : In(signed(EXPONENT_BITS)), ls : In(5), rounding : In(2)
        As in the definition of `scale`.
    raw : In(1)
        Only multiply, and return the low 32 bits.
    steps : Out(SCALE_STEPS)
        For the lanes.
    """

    def __init__(self, *, x_width: int = 32):
        self._most = most_shift(x_width)
        super().__init__(
            {
                "exponent": In(signed(EXPONENT_SUM_BITS)),
                "ls": In(5),
                "rounding": In(2),
                "raw": In(1),
                "steps": Out(SCALE_STEPS),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        twice, total, first, second = Signal(), Signal(signed(EXPONENT_SUM_BITS)), Signal(6), Signal(5)
        m.d.comb += [
            twice.eq((self.rounding == Rounding.DOUBLE) & (self.exponent < 0) & ~self.raw),
            total.eq(31 - self.ls - self.exponent),
        ]
        with m.If(self.raw):
            m.d.comb += first.eq(0)
        with m.Elif(twice):
            m.d.comb += first.eq(31 - self.ls)
        with m.Elif(total < 0):
            m.d.comb += first.eq(0)
        with m.Elif(total > self._most):
            m.d.comb += first.eq(self._most)
        with m.Else():
            m.d.comb += first.eq(total)
        with m.If(twice):
            m.d.comb += second.eq(Mux(self.exponent < -31, 31, -self.exponent))
        shift_1, shift_2, shift_3 = (Signal(6, name=f"shift_{i}", reset_less=True) for i in (1, 2, 3))
        even_1, even_3 = Signal(reset_less=True), Signal(reset_less=True)
        steps = Signal(SCALE_STEPS, reset_less=True)
        m.d.comb += self.steps.eq(steps)
        m.d.sync += [
            shift_1.eq(first),
            steps.coarse_2.eq(_ones(shift_1[3:])),
            even_1.eq(self.rounding == Rounding.EVEN),
            steps.even_2.eq(even_1),
            shift_2.eq(shift_1),
            shift_3.eq(shift_2),
            steps.fine_4.eq(_ones(shift_3[:3])),
            steps.shift_4.eq(shift_3),
            steps.second_4.eq(pipeline_delay(m, "second", second, 3)),
            steps.away_4.eq(pipeline_delay(m, "away", self.rounding == Rounding.AWAY, 3)),
            even_3.eq(steps.even_2),
            steps.even_4.eq(even_3),
            steps.wrap_5.eq(pipeline_delay(m, "wrap", self.raw, 4)),
            steps.even_5.eq(steps.even_4),
        ]
        return m


def _ones(number: Value) -> Value:
    """Thermometer code of a number of three bits: bit i is set if the number exceeds i."""
    return Cat(number > i for i in range(7))


#: Cycles from the operands to the result, and to the product rounded once.
SCALE_LATENCY = 7
ROUNDED = 5
_MAX = (1 << 31) - 1
#: Bits left by the shift by bytes: a result, the bit that rounds it, and the bits that the shift by bits can drop.
_COARSE_BITS = 40
#: Significant bits of a product after the first rounding of the even mode.
_SINGLE_BITS = 24
#: The first byte of a product, shifted left by one, in which more than _SINGLE_BITS bits can begin.
_FIRST_LONG_BYTE = _SINGLE_BITS // 8 + 1


@dataclass(frozen=True)
class _Amounts:
    """Shift amounts of a product.

    Attributes
    ----------
    used : Value
        Bytes of the product with a bit that differs from the sign.
    ones, number : Value
        The shift by bytes, as a thermometer code and as a number.
    all, less : Value
        The shift by bits that follows is the amount of the control with `all`; the bits of the product beyond
        _SINGLE_BITS with `less`, even if the control has a smaller amount; with neither the smaller of the two.
    """

    used: Value
    ones: Value
    number: Value
    all: Value
    less: Value


@dataclass(frozen=True)
class _CoarseProduct:
    """Product after the shift by whole bytes.

    Attributes
    ----------
    kept : Value
        The low _COARSE_BITS bits after the shift.
    sticky, excess : Value
        Set if a bit below `kept` is set; set if a bit above it differs from the sign.
    negative : Value
        Sign of the product.
    bytes : Value
        Number of bytes of the shift.
    spare : Value
        Largest shift by bits, as a thermometer code.
    less : Value
        The shift is `spare`, even if the control has a smaller amount.
    """

    kept: Value
    sticky: Value
    excess: Value
    negative: Value
    bytes: Value
    spare: Value
    less: Value


class ScaleLane(wiring.Component):
    """One lane of `scale`.

    The product is shifted first, by bytes and then by bits, reduced to the bits that the result and its
    rounding need: 32 bits, the bit below them, a flag that a lower bit is set, and a flag that a bit above
    differs from the sign.

    Latency: LATENCY. Throughput: one value in each cycle.

    Parameters
    ----------
    x_width : int
        Bits of `x`; the same as of the ScaleControl.

    Members
    -------
    x : In(signed(x_width)), mult : In(signed(32))
        Factors of the product.
    steps : In(SCALE_STEPS)
        Output of a ScaleControl whose inputs come in the cycle of the operands.
    o : Out(signed(32))
        Scaled, rounded and saturated product.
    rounded : Out(signed(33)), dropped : Out(6)
        ROUNDED cycles after the operands: the product after its first rounding, and the number of dropped bits.
    """

    def __init__(self, *, x_width: int = 32):
        self._x_width = x_width
        super().__init__(
            {
                "x": In(signed(x_width)),
                "mult": In(signed(32)),
                "steps": In(SCALE_STEPS),
                "o": Out(signed(32)),
                "rounded": Out(signed(33)),
                "dropped": Out(6),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        steps = self.steps
        # One bit below the product is the bit that rounds when nothing is shifted.
        doubled = Cat(Const(0, 1), self._product(m))
        part = self._coarse(m, doubled, self._bytes(m, doubled))
        floor, rounds, excess, done = self._fine(m, part)
        total = pipeline_register(m, "total", floor + rounds, signed(33))
        m.d.comb += [self.rounded.eq(total), self.dropped.eq(pipeline_register(m, "dropped_5", done))]
        excess_5, negative_5 = (
            pipeline_register(m, "excess_5", excess),
            pipeline_register(m, "negative_5", part.negative),
        )
        left = Signal(6)
        m.d.comb += left.eq(steps.shift_4 - done)
        # Dropping more than 24 bits of a 24-bit number always leaves 0.
        second = Mux(steps.even_4, Mux(left[5], 31, left[:5]), steps.second_4)
        second_5 = pipeline_register(m, "second_5", second, unsigned(5))
        short = Signal(signed(32))
        with m.If(steps.wrap_5 | ~(excess_5 | (total[32] ^ total[31]))):
            m.d.comb += short.eq(total)
        with m.Else():  # a total in the range of the shift can only pass the greatest number
            m.d.comb += short.eq(Mux(excess_5 & negative_5, -_MAX - 1, _MAX))
        # Plus half, less one unit where a tie must go down: one addition with a carry.
        below, carry = Const((1 << 30) - 1, 30) >> ~second_5, Signal()
        up = Mux(steps.even_5, (total[: _SINGLE_BITS + 2] >> second_5)[0], ~short[-1])
        m.d.comb += carry.eq((second_5 != 0) & up)
        sum_ = Cat(Const(1, 1), short).as_signed() + Cat(carry, below)
        lowered = pipeline_register(m, "lowered", sum_[1:34].as_signed())
        shift_6 = pipeline_register(m, "shift_6", second_5)
        m.d.comb += self.o.eq(pipeline_register(m, "result", lowered >> shift_6, signed(32)))
        return m

    def _bytes(self, m: Module, value: Value) -> _Amounts:
        """Bytes to shift by."""
        steps, sign = self.steps, value[-1]
        # Bytes of the product in use, of those that the first of over 24 bits or a bit above _COARSE_BITS can be in.
        used, spare, ones = Signal(8), Signal(7), Signal(7)
        for byte in range(_FIRST_LONG_BYTE, 8):
            m.d.comb += used[byte].eq((_window(value, 8 * byte, 8) ^ sign.replicate(8)).any())
        m.d.comb += [
            spare.eq(Cat(used[byte:].any() for byte in range(_FIRST_LONG_BYTE, 8))),
            ones.eq(steps.coarse_2 & (spare | ~steps.even_2.replicate(7))),
        ]
        return _Amounts(
            used=pipeline_register(m, "used", used),
            ones=pipeline_register(m, "ones", ones),
            number=pipeline_register(m, "bytes_3", _count(ones)),
            all=pipeline_register(m, "all_3", ~steps.even_2 | (spare & ~steps.coarse_2).any()),
            less=pipeline_register(m, "less_3", steps.even_2 & (steps.coarse_2 & ~spare).any()),
        )

    def _coarse(self, m: Module, doubled: Value, amounts: _Amounts) -> _CoarseProduct:
        """Shift by bytes."""
        value = pipeline_register(m, "value_3", doubled)
        negative, ones = value[-1], amounts.ones
        below = [_window(value, 8 * byte, 8).any() & ones[byte] for byte in range(7)]
        above = [amounts.used[byte] & ~ones[byte - _COARSE_BITS // 8] for byte in range(_COARSE_BITS // 8, 8)]
        kept = _shift(m, "coarse", value, amounts.number, 8, _COARSE_BITS)
        top = kept[_SINGLE_BITS : _SINGLE_BITS + 8] ^ negative.replicate(8)
        return _CoarseProduct(
            kept=pipeline_register(m, "kept", kept),
            sticky=pipeline_register(m, "sticky", Cat(below).any()),
            excess=pipeline_register(m, "excess", Cat(above).any()),
            negative=pipeline_register(m, "negative", negative),
            bytes=pipeline_register(m, "bytes_4", amounts.number),
            spare=pipeline_register(
                m, "spare", Cat(top[i:].any() for i in range(1, 8)) | amounts.all.replicate(7)
            ),
            less=pipeline_register(m, "less_4", amounts.less),
        )

    def _fine(self, m: Module, part: _CoarseProduct) -> tuple[Value, Value, Value, Value]:
        """Shift by bits: the 32 bits of the result rounded down, flags to add one and that it leaves int32, and
        the shift of the product.
        """
        kept, steps = part.kept, self.steps
        amount, low, high = Signal(7), Signal(7), Signal(8)
        m.d.comb += amount.eq(part.spare & (steps.fine_4 | part.less.replicate(7)))
        bits = _count(amount)
        shifted = _shift(m, "fine", kept, bits, 1, 33)
        m.d.comb += [
            low.eq(kept[:7] & amount),
            high.eq((kept[32:] ^ part.negative.replicate(8)) & ~Cat(amount, Const(0, 1))),
        ]
        half, sticks, floor = shifted[0], part.sticky | low.any(), shifted[1:].as_signed()
        up = Signal()
        m.d.comb += up.eq(
            half & Mux(steps.away_4, ~part.negative | sticks, Mux(steps.even_4, sticks | floor[0], 1))
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
                terms.append((pipeline_register(m, f"part_{i}{j}", x * y), x_at + y_at))
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
        return pipeline_register(m, "product", outer_sum + (middle_sum << 16), signed(width))


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


#: Cycles of `add_zero_point` followed by `clip`.
CLIP_LATENCY = 2


def add_zero_point(m: Module, name: str, value: Value, zero_point: Value) -> Signal:
    """Register of the exact sum."""
    return pipeline_register(m, f"{name}_total", value + zero_point, signed(33))


def clip(m: Module, name: str, total: Value, lo: Value, hi: Value) -> tuple[Signal, Signal]:
    """`total` limited to lo..hi (combinational), and a flag of a change; lo must not exceed hi."""
    above, below = Signal(name=f"{name}_above"), Signal(name=f"{name}_below")
    limited, changed = Signal(signed(32), name=f"{name}_limited"), Signal(name=f"{name}_changed")
    m.d.comb += [
        above.eq(total > hi),
        below.eq(total < lo),
        limited.eq(Mux(above, hi, Mux(below, lo, total[:32].as_signed()))),
        changed.eq(above | below),
    ]
    return limited, changed
