"""Requantization of a tensor to another scale, zero point and type, with an optional scale for negative values."""

from compiler.kernel_library.elementwise import Elementwise, source_word, stage_word
from compiler.util.scaling import Affine, bytes_word, halves_word, quantize_multiplier
from hw.isa.enums import Dtype, Requant, Rounding


def requantize(
    a: Affine,
    y: Affine,
    *,
    negative_slope: float = 1.0,
    clip: tuple[int, int] = (-128, 127),
    rounding: Rounding = Rounding.DOUBLE,
    a_dtype: Dtype = Dtype.I8,
    y_dtype: Dtype = Dtype.I8,
) -> Elementwise:
    """Return the operation y = a, times `negative_slope` (at least 0) where negative: LeakyRelu."""
    mult, exponent = quantize_multiplier(a.scale / y.scale)
    neg_mult, neg_exponent = quantize_multiplier(a.scale * negative_slope / y.scale)
    return Elementwise(
        src=source_word(a_dtype, requant=Requant.IMM, rounding=rounding, neg_en=int(negative_slope != 1.0)),
        stage=stage_word(y_dtype),
        zp_ab=halves_word(a.zero_point, 0),
        mult=mult,
        neg_mult=neg_mult,
        shifts=bytes_word(exponent, neg_exponent),
        zp=y.zero_point,
        clip=clip,
    )
