"""Addition of tensors with different scales, as TFLite's ADD: the residual path of FUSE."""

import math
from typing import TypedDict

import numpy as np

from compiler.kernel_library.elementwise import Elementwise, source_word, stage_word
from compiler.util.scaling import Affine, bytes_word, halves_word, quantize_multiplier
from hw.isa.enums import Dtype, Rounding


class ResidualScales(TypedDict):
    """Command fields of FUSE's residual add."""

    zp_xr: int
    x_mult: int
    r_mult: int
    o_mult: int
    r_shifts: int
    o_zp: int


#: Left shift of the inputs of TFLite's ADD, and bits of XNNPACK's multipliers.
LEFT_SHIFT = 20


def raw_fields(x: Affine, r: Affine, y: Affine) -> ResidualScales:
    """Return the fields of XNNPACK's addition: 21-bit products without rounding, and one final shift."""
    ratios = [np.float32(part.scale) / np.float32(y.scale) for part in (x, r)]
    shift = LEFT_SHIFT + 1 - math.frexp(float(max(ratios)))[1]
    x_mult, r_mult = (round(float(ratio) * 2.0**shift) for ratio in ratios)
    return {
        "zp_xr": halves_word(x.zero_point, r.zero_point),
        "x_mult": x_mult,
        "r_mult": r_mult,
        "o_mult": 1,
        "r_shifts": bytes_word(0, 0, 31 - shift),
        "o_zp": y.zero_point,
    }


def residual_fields(x: Affine, r: Affine, y: Affine) -> ResidualScales:
    """Return the fields of FUSE's residual add: `x` is the main value, `r` the residual, `y` the sum."""
    twice = 2 * max(x.scale, r.scale)
    (x_mult, x_exp), (r_mult, r_exp) = (quantize_multiplier(part.scale / twice) for part in (x, r))
    o_mult, o_exp = quantize_multiplier(twice / ((1 << LEFT_SHIFT) * y.scale))
    return {
        "zp_xr": halves_word(x.zero_point, r.zero_point),
        "x_mult": x_mult,
        "r_mult": r_mult,
        "o_mult": o_mult,
        "r_shifts": bytes_word(x_exp, r_exp, o_exp),
        "o_zp": y.zero_point,
    }


def add(
    a: Affine,
    b: Affine,
    y: Affine,
    *,
    clip: tuple[int, int] = (-128, 127),
    rounding: Rounding = Rounding.DOUBLE,
    dtype: Dtype = Dtype.I8,
) -> Elementwise:
    """Return the operation y = a + b; sources and result have the same type.

    `Rounding.DOUBLE` is TFLite's reference kernel, `Rounding.SINGLE` is XNNPACK's, which rounds once.
    """
    raw = rounding == Rounding.SINGLE
    stage = stage_word(dtype, residual=1, r_dtype=dtype, r_raw=int(raw), r_ls=0 if raw else LEFT_SHIFT)
    fields = (raw_fields if raw else residual_fields)(a, b, y)
    return Elementwise(
        src=source_word(dtype, rounding=rounding), stage=stage, sources=2, r_clip=clip, **fields
    )
