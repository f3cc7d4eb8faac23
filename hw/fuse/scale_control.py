"""What the lanes of `scale` (docs/machine.md) are told: shift amounts and rounding."""

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.isa.enums import Rounding
from hw.lib.pipeline import delay

#: Bits of an exponent: of a requantization's with that of a float32 number added.
EXPONENT_BITS = 10

#: What a lane of `scale` is told, each part in the cycle that needs it (cycles after the operands in its name).
SCALE_STEPS = data.StructLayout(
    {
        "coarse_2": 7,  # shift in bytes, as that many ones
        "even_2": 1,  # at most the shift: as far as the product has more than 24 bits
        "fine_4": 7,  # the rest of the shift, as that many ones
        "shift_4": 6,  # the whole shift
        "second_4": 5,  # shift of the second rounding of the double mode
        "away_4": 1,
        "even_4": 1,
        "wrap_5": 1,  # keep the low 32 bits instead of saturating
        "even_5": 1,
    }
)


def most_shift(x_width: int) -> int:
    """Greatest shift needed: a product of 32 + x_width bits leaves nothing but zero beyond it."""
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
        Only multiply, and keep the low 32 bits.
    steps : Out(SCALE_STEPS)
        For the lanes.
    """

    def __init__(self, *, x_width: int = 32):
        self._most = most_shift(x_width)
        super().__init__(
            {
                "exponent": In(signed(EXPONENT_BITS)),
                "ls": In(5),
                "rounding": In(2),
                "raw": In(1),
                "steps": Out(SCALE_STEPS),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        twice, total, first, second = Signal(), Signal(signed(EXPONENT_BITS)), Signal(6), Signal(5)
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
            steps.second_4.eq(delay(m, "second", second, 3)),
            steps.away_4.eq(delay(m, "away", self.rounding == Rounding.AWAY, 3)),
            even_3.eq(steps.even_2),
            steps.even_4.eq(even_3),
            steps.wrap_5.eq(delay(m, "wrap", self.raw, 4)),
            steps.even_5.eq(steps.even_4),
        ]
        return m


def _ones(number: Value) -> Value:
    """As many ones as the number of three bits says."""
    return Cat(number > i for i in range(7))
