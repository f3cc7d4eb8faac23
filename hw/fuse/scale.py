"""`scale` of docs/machine.md: multiply by a 32-bit multiplier, shift, round, saturate."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.isa.enums import Rounding
from hw.registers import delay, register

#: Cycles from the operands to the result.
LATENCY = 6
_MAX = (1 << 31) - 1
#: Bits left by the shift by bytes: a result, the bit that rounds it, and what the shift by bits can still drop.
_KEPT = 40


def most_shift(x_width: int) -> int:
    """Greatest shift needed: a product of 32 + x_width bits leaves nothing but zero beyond it."""
    return min(63, x_width + 33)


#: What a lane of `scale` is told, each part in the cycle that needs it (cycles after the operands in its name).
SCALE_STEPS = data.StructLayout(
    {
        "coarse_2": 3,  # shift, in bytes
        "fine_3": 3,  # the rest of the shift
        "away_3": 1,
        "even_3": 1,
        "wrap_4": 1,  # keep the low 32 bits instead of saturating
        "below_4": signed(33),  # second rounding of the double mode: half of the last bit kept, less one
        "away_4": 1,
        "shift_5": 5,
    }
)


class ScaleControl(wiring.Component):
    """Shift amounts and rounding of one `scale`; lanes with the same exponent share it.

    Latency: the parts of `steps` come 2 to 5 cycles after the inputs. Throughput: one each cycle.

    Parameters
    ----------
    x_width : int
        Bits of the value scaled: 32, or less for a value known to be short.

    Members
    -------
    exponent : In(signed(8)), ls : In(5), rounding : In(2)
        As in the definition of `scale`.
    raw : In(1)
        Only multiply, and keep the low 32 bits.
    steps : Out(SCALE_STEPS)
        For the lanes.
    """

    def __init__(self, *, x_width: int = 32):
        self._most = most_shift(x_width)
        super().__init__(
            {
                "exponent": In(signed(8)),
                "ls": In(5),
                "rounding": In(2),
                "raw": In(1),
                "steps": Out(SCALE_STEPS),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        twice, total, first, second = Signal(), Signal(signed(10)), Signal(6), Signal(5)
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
        shift_1, shift_2 = (Signal(6, name=f"shift_{i}", reset_less=True) for i in (1, 2))
        second_1, second_2, second_3, second_4 = (
            Signal(5, name=f"second_{i}", reset_less=True) for i in range(1, 5)
        )
        steps = Signal(SCALE_STEPS, reset_less=True)
        m.d.comb += self.steps.eq(steps)
        m.d.sync += [
            shift_1.eq(first),
            steps.coarse_2.eq(shift_1[3:]),
            shift_2.eq(shift_1),
            steps.fine_3.eq(shift_2[:3]),
            steps.away_3.eq(delay(m, "away", self.rounding == Rounding.AWAY, 2)),
            steps.even_3.eq(delay(m, "even", self.rounding == Rounding.EVEN, 2)),
            steps.wrap_4.eq(delay(m, "wrap", self.raw, 3)),
            second_1.eq(second),
            second_2.eq(second_1),
            second_3.eq(second_2),
            second_4.eq(second_3),
            steps.below_4.eq((Const(1, 32) << second_3)[1:] - 1),
            steps.away_4.eq(second_3 != 0),
            steps.shift_5.eq(second_4),
        ]
        return m


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
        kept, sticky, excess, negative = self._coarse(m, doubled)
        floor, rounds, excess, negative = self._fine(m, kept, sticky, excess, negative)
        total = register(m, "total", floor + rounds, signed(33))
        excess_4, negative_4 = register(m, "excess_4", excess), register(m, "negative_4", negative)
        short = Signal(signed(32))
        with m.If(steps.wrap_4 | ~(excess_4 | (total[32] ^ total[31]))):
            m.d.comb += short.eq(total)
        with m.Else():  # a total in the range of the shift can only pass the greatest number
            m.d.comb += short.eq(Mux(excess_4 & negative_4, -_MAX - 1, _MAX))
        # Plus half, less one unit where a tie must go down: one addition with a carry.
        carry = ~(steps.away_4 & short[-1])
        sum_ = Cat(Const(1, 1), short).as_signed() + Cat(carry, steps.below_4).as_signed()
        lowered = register(m, "lowered", sum_[1:34].as_signed())
        m.d.comb += self.o.eq(register(m, "result", lowered >> steps.shift_5, signed(32)))
        return m

    def _coarse(self, m: Module, value: Value) -> tuple[Signal, Signal, Signal, Signal]:
        """Shift by bytes. Registers: the _KEPT bits at the bottom of what is left, whether a bit below them is
        set, whether one above them differs from the sign, and the sign.
        """
        amount, sign = self.steps.coarse_2, value[-1]
        below, above = [], []
        for byte in range(7):
            below.append(_window(value, 8 * byte, 8).any() & (amount > byte))
        for byte in range((len(value) - _KEPT + 7) // 8):
            differs = _window(value, _KEPT + 8 * byte, 8) ^ sign.replicate(8)
            above.append(differs.any() & (amount <= byte))
        kept = _shift(m, "coarse", value, amount, 8, _KEPT)
        return (
            register(m, "kept", kept),
            register(m, "sticky", Cat(below).any()),
            register(m, "excess", Cat(above).any() if above else Const(0)),
            register(m, "negative", sign),
        )

    def _fine(
        self, m: Module, kept: Signal, sticky: Value, excess: Value, negative: Value
    ) -> tuple[Value, Value, Value, Value]:
        """Shift by bits: the 32 bits of the result rounded down, whether to add one, whether it leaves int32, and
        the sign.
        """
        amount = self.steps.fine_3
        shifted = _shift(m, "fine", kept, amount, 1, 33)
        low, high = Signal(7), Signal(8)
        m.d.comb += [
            low.eq(Cat(kept[i] & (amount > i) for i in range(7))),
            high.eq(Cat((kept[32 + i] ^ negative) & (amount <= i) for i in range(8))),
        ]
        half, sticks, floor = shifted[0], sticky | low.any(), shifted[1:].as_signed()
        up = Signal()
        m.d.comb += up.eq(
            half & Mux(self.steps.away_3, ~negative | sticks, Mux(self.steps.even_3, sticks | floor[0], 1))
        )
        return floor, up, excess | high.any(), negative

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
