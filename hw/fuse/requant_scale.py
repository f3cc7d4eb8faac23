"""`scale` of docs/machine.md: multiply by a 32-bit multiplier, shift, round, saturate; then zero point and clip.

With the exact product p = x * m and the shift s = min(max(31 - ls - e, 0), 63), the rounding modes saturate the
following results to int32:

* single: up(p, s), where up(p, s) = floor(p / 2**s + 1/2), halves towards plus infinity;
* away: away(p, s), where away(p, s) = sign(p) * floor(abs(p) / 2**s + 1/2), halves away from zero;
* even: even(even(p, t) * 2**t, s), where even(p, s) is p / 2**s rounded to the nearest integer, halves to even, and t =
  min(max(bits(p) - 24, 0), s), where bits(p) is the smallest number with abs(p) < 2**bits(p);
* double: up(p, s) if e >= 0, else away(sat(up(p, 31 - ls)), min(-e, 31)), where sat saturates to int32.

`ScaleControl` derives shift amounts and rounding for lanes with the same exponent; `ScaleLane` is the data path of a
lane.
"""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.isa.enums import Rounding
from hw.lib.pipeline import pipeline_delay, pipeline_register

#: Width in bits of the sum of the exponents of a requantization and of a float32 value.
EXPONENT_SUM_BITS = 10

#: Controls of a lane of `scale`; the number in a name is the cycle, counted from the operands, in which the control is
#: used.
SCALE_STEPS = data.StructLayout(
    {
        "coarse_2": 7,  # shift in bytes, as a thermometer code
        "even_2": 1,  # shift at most until 24 significant bits of the product remain
        "fine_4": 7,  # remaining shift in bits, as a thermometer code
        "shift_4": 6,  # total shift
        "second_4": 5,  # shift of the second rounding in mode double
        "away_4": 1,
        "even_4": 1,
        "wrap_5": 1,  # return the low 32 bits instead of saturating
        "even_5": 1,
    }
)


def most_shift(x_width: int) -> int:
    """Return the maximum useful shift; a larger shift always reduces a product of 32 + x_width bits to zero."""
    return min(63, x_width + 33)


class ScaleControl(wiring.Component):
    """Derives the shift amounts and the rounding of `scale`, which lanes with the same exponent share.

    Latency: the members of `steps` are valid 2 to 5 cycles after the inputs. Throughput: one operation per cycle.

    Parameters
    ----------
    x_width : int
        Width in bits of the value to scale: 32, or less if the value has fewer bits.

    Members
    -------
    exponent : In(signed(EXPONENT_BITS)), ls : In(5), rounding : In(2)
        Exponent, left shift and rounding mode, as in the definition of `scale`.
    raw : In(1)
        If high, only multiply and return the low 32 bits of the product.
    steps : Out(SCALE_STEPS)
        Controls of the lanes, for `ScaleLane.steps`.
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
    """Return the thermometer code of a three-bit number: bit i is set if the number exceeds i."""
    return Cat(number > i for i in range(7))


#: Cycles from the operands to the result, and to the product rounded once.
SCALE_LATENCY = 7
ROUNDED = 5
_MAX = (1 << 31) - 1
#: Number of bits kept after the shift by bytes: the bits of the result, its rounding bit, and the bits that the shift
#: by bits can drop.
_COARSE_BITS = 40
#: Significant bits of a product after the first rounding of mode even.
_SINGLE_BITS = 24
#: Index of the lowest byte of a product, shifted left by one, that can contain its top bit if the product has more than
#: _SINGLE_BITS bits.
_FIRST_LONG_BYTE = _SINGLE_BITS // 8 + 1


@dataclass(frozen=True)
class _Amounts:
    """Shift amounts of a product.

    Attributes
    ----------
    used : Value
        Mask of the product's bytes with a bit that differs from the sign.
    ones, number : Value
        Amount of the shift by bytes, as a thermometer code and as a number.
    all, less : Value
        Flags that select the amount of the bit shift that follows the byte shift. If `all` is set, the control
        specifies the amount. If `less` is set, the amount is the number of bits of the product beyond _SINGLE_BITS,
        even if the control's amount is smaller. Otherwise, it is the smaller of the two.
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
        Low _COARSE_BITS bits of the product after the shift.
    sticky, excess : Value
        Flags, set if a bit below `kept` is set, and if a bit above `kept` differs from the sign.
    negative : Value
        Sign of the product.
    bytes : Value
        Amount of the completed shift, in bytes.
    spare : Value
        Maximum shift by bits, as a thermometer code.
    less : Value
        Set if the amount of the shift by bits is `spare`, even if the control's amount is smaller.
    """

    kept: Value
    sticky: Value
    excess: Value
    negative: Value
    bytes: Value
    spare: Value
    less: Value


class ScaleLane(wiring.Component):
    """Data path of one lane of `scale`.

    The product is shifted by bytes and then by bits, and reduced to the bits that are needed for the result and its
    rounding: 32 bits, the bit below them, a sticky flag that is set if a lower bit is set, and an overflow flag that is
    set if a higher bit differs from the sign. The reduced product is then rounded.

    Latency: SCALE_LATENCY. Throughput: one value per cycle.

    Parameters
    ----------
    x_width : int
        Width of `x` in bits; must be equal to `x_width` of the ScaleControl.

    Members
    -------
    x : In(signed(x_width)), mult : In(signed(32))
        Value to scale, and multiplier.
    steps : In(SCALE_STEPS)
        Output of a ScaleControl whose inputs are valid in the cycle of the operands.
    o : Out(signed(32))
        Scaled, rounded and saturated product.
    rounded : Out(signed(33)), dropped : Out(6)
        Product after its first rounding, and number of dropped bits, ROUNDED cycles after the operands.
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
        # The product has an additional bit below it, which is the rounding bit if the shift is 0.
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
        # If more than 24 bits of a 24-bit number are dropped, the result is always 0.
        second = Mux(steps.even_4, Mux(left[5], 31, left[:5]), steps.second_4)
        second_5 = pipeline_register(m, "second_5", second, unsigned(5))
        short = Signal(signed(32))
        with m.If(steps.wrap_5 | ~(excess_5 | (total[32] ^ total[31]))):
            m.d.comb += short.eq(total)
        with m.Else():  # rounding can exceed only the upper limit
            m.d.comb += short.eq(Mux(excess_5 & negative_5, -_MAX - 1, _MAX))
        # Half of the divisor, minus one unit if a tie must be rounded down, is added by a single addition with a carry.
        below, carry = Const((1 << 30) - 1, 30) >> ~second_5, Signal()
        up = Mux(steps.even_5, (total[: _SINGLE_BITS + 2] >> second_5)[0], ~short[-1])
        m.d.comb += carry.eq((second_5 != 0) & up)
        sum_ = Cat(Const(1, 1), short).as_signed() + Cat(carry, below)
        lowered = pipeline_register(m, "lowered", sum_[1:34].as_signed())
        shift_6 = pipeline_register(m, "shift_6", second_5)
        m.d.comb += self.o.eq(pipeline_register(m, "result", lowered >> shift_6, signed(32)))
        return m

    def _bytes(self, m: Module, value: Value) -> _Amounts:
        """Return the amount of the shift by bytes, and the flags for the shift by bits."""
        steps, sign = self.steps, value[-1]
        # The loop covers only those bytes of the product that can contain the top bit of a product of more than 24
        # bits, or a bit above _COARSE_BITS.
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
        """Return the product after the shift by bytes."""
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
        """Shift by bits, and return the result in four parts.

        The parts are the 32 bits rounded down, a signal that is high if one must be added, a signal that is high if the
        result is outside int32, and the total shift of the product.
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
        """Return the exact product, formed from 16-bit parts with registers after the multipliers and after the
        adders.
        """
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
    """Split a value into parts that fit a signed 18-bit multiplier, and return (part, position) for each part. A value
    of up to 18 bits is a single part.
    """
    if len(value) <= 18:
        return [(value, 0)]
    return [(Cat(value[:16], Const(0, 1)).as_signed(), 0), (value[16:].as_signed(), 16)]


def _window(value: Value, first: int, count: int) -> Value:
    """Return `count` bits of the sign-extended value, from bit `first` on."""
    inside = value[first : first + count]
    return Cat(inside, value[-1].replicate(count - len(inside)))


def _count(ones: Value) -> Value:
    """Return the number of ones in a thermometer code."""
    odd = Cat(ones[i] & ~ones[i + 1] for i in (0, 2, 4)).any() | ones[6]
    return Cat(odd, Mux(ones[3], ones[5], ones[1]), ones[3])


def _shift(m: Module, name: str, value: Value, amount: Value, unit: int, width: int) -> Value:
    """Return `width` bits of value >> (amount * unit). The stage with the largest step is first, and no stage is wider
    than the remaining stages require.
    """
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
    """Return a register with the exact sum of value and zero point."""
    return pipeline_register(m, f"{name}_total", value + zero_point, signed(33))


def clip(m: Module, name: str, total: Value, lo: Value, hi: Value) -> tuple[Signal, Signal]:
    """Return `total` limited to lo..hi, and a signal that is high if the limits change it, both combinational; lo must
    not exceed hi.
    """
    above, below = Signal(name=f"{name}_above"), Signal(name=f"{name}_below")
    limited, changed = Signal(signed(32), name=f"{name}_limited"), Signal(name=f"{name}_changed")
    m.d.comb += [
        above.eq(total > hi),
        below.eq(total < lo),
        limited.eq(Mux(above, hi, Mux(below, lo, total[:32].as_signed()))),
        changed.eq(above | below),
    ]
    return limited, changed
