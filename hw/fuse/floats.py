"""Conversion of float32 values in FUSE: unpacking in step 1, packing at the end of step 2."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from hw.lib.pipeline import pipeline_register

#: Width in bits of the exponent e of a float32 value s * 2**e with integer significand s.
EXPONENT_BITS = 9

_FRACTION = 23
_BIAS = 127
_ALL = 255  # exponent field of infinity
#: Offset of an exponent of `scale`, which multiplies by 2**(exponent - 31).
_ONE = 31


@dataclass(frozen=True)
class Unpacked:
    """A float32 value, significand * 2**exponent."""

    significand: Signal
    exponent: Signal


def unpack(m: Module, lane: int, bits: Value) -> Unpacked:
    """Unpack a float32 bit pattern, combinationally. Infinity and NaN are treated as values one binade above the
    largest finite values.
    """
    field, fraction = bits[_FRACTION : _FRACTION + 8], bits[:_FRACTION]
    normal = Signal(name=f"normal_{lane}")
    significand = Signal(signed(_FRACTION + 2), name=f"significand_{lane}")
    exponent = Signal(signed(EXPONENT_BITS), name=f"float_exponent_{lane}")
    magnitude = Cat(fraction, normal)
    m.d.comb += [
        normal.eq(field != 0),
        significand.eq(Mux(bits[31], -magnitude, magnitude)),
        exponent.eq(Cat(field[0] | ~normal, field[1:]) - (_BIAS + _FRACTION)),
    ]
    return Unpacked(significand, exponent)


def pack(m: Module, lane: int, value: Value, dropped: Value, exponent: Value) -> Signal:
    """Return the float32 bit pattern of value * 2**(dropped + exponent - 31), delayed by three cycles. `value` is a
    product rounded to 24 bits. Underflow gives 0, and overflow gives infinity.
    """
    sign_1 = pipeline_register(m, f"float_sign_1_{lane}", value[-1])
    magnitude = pipeline_register(
        m, f"float_magnitude_{lane}", Mux(value[-1], -value, value)[: _FRACTION + 2]
    )
    exponent_1 = pipeline_register(
        m, f"float_exponent_1_{lane}", exponent + dropped + (_BIAS - _ONE + _FRACTION + 1)
    )
    coarse, by = _normal(magnitude, (16, 8))
    sign_2 = pipeline_register(m, f"float_sign_2_{lane}", sign_1)
    coarse_2 = pipeline_register(m, f"float_coarse_{lane}", coarse)
    exponent_2 = pipeline_register(m, f"float_exponent_2_{lane}", (exponent_1 - by).as_signed())
    fine, by = _normal(coarse_2, (4, 2, 1))
    sign_3 = pipeline_register(m, f"float_sign_3_{lane}", sign_2)
    fine_3 = pipeline_register(m, f"float_fine_{lane}", fine)
    exponent_3 = pipeline_register(m, f"float_exponent_3_{lane}", (exponent_2 - by).as_signed())
    packed = Signal(signed(32), name=f"float_{lane}")
    with m.If(fine_3[-1] & (exponent_3 > 0)):
        large = exponent_3 >= _ALL
        fraction = Mux(large, 0, fine_3[1 : _FRACTION + 1])
        m.d.comb += packed.eq(Cat(fraction, Mux(large, Const(_ALL, 8), exponent_3[:8]), sign_3))
    return packed


def _normal(value: Value, steps: tuple[int, ...]) -> tuple[Value, Value]:
    """Return `value` shifted left by all `steps` that its leading zeros permit, and the total shift."""
    by = Const(0)
    for step in steps:
        empty = ~value[-step:].any()
        value = Mux(empty, Cat(Const(0, step), value[:-step]), value)
        by = by + Mux(empty, step, 0)
    return value, by
