"""Multiplication with own scales, as TFLite's MUL."""

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
    """Give y = a * b; the two sources and the result have one type.

    `Rounding.DOUBLE` is that of TFLite's reference kernel, `Rounding.EVEN` that of XNNPACK.
    """
    # TFLite's reference kernel too has single precision here, unlike elsewhere.
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
