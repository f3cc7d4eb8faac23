"""Multiplication of tensors with different scales, as TFLite's MUL."""

from compiler.kernel_library.elementwise import Elementwise, source_word, stage_word
from compiler.util.scaling import Affine, bytes_word, float32_multiplier, float32_ratio, halves_word
from hw.isa.enums import Dtype, Op, Requant, Rounding


def mul(
    a: Affine,
    b: Affine,
    y: Affine,
    *,
    clip: tuple[int, int] = (-128, 127),
    rounding: Rounding = Rounding.DOUBLE,
    dtype: Dtype = Dtype.I8,
) -> Elementwise:
    """Return the operation y = a * b; sources and result have the same type.

    `Rounding.DOUBLE` is TFLite's reference kernel, `Rounding.EVEN` is XNNPACK's.
    """
    # Unlike elsewhere, TFLite's reference kernel also uses single precision here.
    mult, exponent = float32_multiplier(float32_ratio(a.scale, b.scale, y.scale))
    return Elementwise(
        src=source_word(dtype, dtype, op=Op.MUL, requant=Requant.IMM, rounding=rounding),
        stage=stage_word(dtype),
        sources=2,
        zp_ab=halves_word(a.zero_point, b.zero_point),
        mult=mult,
        shifts=bytes_word(exponent),
        zp=y.zero_point,
        clip=clip,
    )
