"""`scale` of docs/machine.md: multiply by a 32-bit multiplier, shift, round, saturate."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.fuse.layouts import delay, register
from hw.isa.enums import Rounding

#: Cycles from the operands to the result.
LATENCY = 6
_MAX = (1 << 31) - 1


def most_shift(x_width: int) -> int:
    """Greatest shift needed: a product of 32 + x_width bits leaves nothing but zero beyond it."""
    return min(63, x_width + 33)


def scale_steps(x_width: int) -> data.StructLayout:
    """What a lane of `scale` is told, each part in the cycle that needs it (cycles after the operands in
    its name).
    """
    return data.StructLayout(
        {
            "bit_2": unsigned(
                most_shift(x_width) + 1
            ),  # one-hot: the least significant bit kept by the shift
            "away_2": 1,
            "even_2": 1,
            "shift_3": 6,
            "wrap_4": 1,  # keep the low 32 bits instead of saturating
            "half_4": 32,
            "away_4": 1,  # second rounding of the double mode
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
    steps : Out(scale_steps)
        For the lanes.
    """

    def __init__(self, *, x_width: int = 32):
        self._most = most_shift(x_width)
        self._layout = scale_steps(x_width)
        super().__init__(
            {
                "exponent": In(signed(8)),
                "ls": In(5),
                "rounding": In(2),
                "raw": In(1),
                "steps": Out(self._layout),
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
        away_1, even_1 = (Signal(name=f"{n}_1", reset_less=True) for n in ("away", "even"))
        second_1, second_2, second_3, second_4 = (
            Signal(5, name=f"second_{i}", reset_less=True) for i in range(1, 5)
        )
        wrap = delay(m, "wrap", self.raw, 3)
        steps = Signal(self._layout, reset_less=True)
        m.d.comb += self.steps.eq(steps)
        one = Const(1, 1)
        m.d.sync += [
            shift_1.eq(first),
            second_1.eq(second),
            away_1.eq(self.rounding == Rounding.AWAY),
            even_1.eq(self.rounding == Rounding.EVEN),
            steps.bit_2.eq(one << shift_1),
            steps.away_2.eq(away_1 & (shift_1 != 0)),
            steps.even_2.eq(even_1 & (shift_1 != 0)),
            shift_2.eq(shift_1),
            steps.shift_3.eq(shift_2),
            second_2.eq(second_1),
            second_3.eq(second_2),
            second_4.eq(second_3),
            steps.shift_5.eq(second_4),
            steps.half_4.eq((Const(1, 32) << second_3)[1:]),
            steps.away_4.eq(second_3 != 0),
            steps.wrap_4.eq(wrap),
        ]
        return m


class ScaleLane(wiring.Component):
    """One lane of `scale`.

    Rounding is one addition before an arithmetic shift: half of the last bit kept, less one unit where a
    tie must go down.

    Latency: LATENCY. Throughput: one value in each cycle.

    Parameters
    ----------
    x_width : int
        Bits of `x`; the same as of the ScaleControl.

    Members
    -------
    x : In(signed(x_width)), mult : In(signed(32))
        Operands.
    steps : In(scale_steps)
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
                "steps": In(scale_steps(x_width)),
                "o": Out(signed(32)),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        steps, wide = self.steps, most_shift(self._x_width) + 1
        product = self._product(m)
        exact, rounded = Signal(unsigned(wide)), Signal(unsigned(wide), reset_less=True)
        kept, down = Signal(), Signal()
        m.d.comb += [
            exact.eq(product),
            kept.eq((exact & steps.bit_2).any()),
            down.eq((steps.away_2 & product[-1]) | (steps.even_2 & ~kept)),
        ]
        m.d.sync += rounded.eq(exact + steps.bit_2[1:] - down)
        below = register(m, "below", product[-1])
        # Only a negative product gives a negative sum; the greatest positive one may set the top bit.
        negative = Signal()
        magnitude = Signal(unsigned(wide))
        m.d.comb += [
            negative.eq(below & rounded[-1]),
            magnitude.eq(rounded ^ negative.replicate(wide)),
        ]
        shifted = register(m, "shifted", magnitude >> steps.shift_3)
        negative_4 = register(m, "negative_4", negative)
        limited, short = Signal(32), Signal(signed(32))
        m.d.comb += limited.eq(shifted[:32])
        with m.If(~steps.wrap_4 & shifted[31:].any()):
            m.d.comb += limited.eq(_MAX)
        m.d.comb += short.eq(limited ^ negative_4.replicate(32))
        lowered = register(m, "lowered", short + steps.half_4 - (steps.away_4 & short[-1]), signed(33))
        m.d.comb += self.o.eq(register(m, "result", lowered >> steps.shift_5, signed(32)))
        return m

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
