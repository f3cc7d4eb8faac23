"""Multiplication with own scales, as TFLite's MUL."""

import numpy as np

from compiler.kernels.elementwise import Elementwise, source_word, stage_word
from compiler.kernels.scaling import Affine, bytes_word, halves_word, quantize_multiplier
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
    # TFLite multiplies and divides the scales in single precision here, unlike elsewhere.
    scale = np.float32(a.scale) * np.float32(b.scale) / np.float32(y.scale)
    mult, exponent = quantize_multiplier(float(scale))
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
