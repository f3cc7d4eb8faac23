"""Addition with own scales, as TFLite's ADD: the residual path of FUSE."""

from typing import TypedDict

from compiler.kernels.elementwise import Elementwise, source_word, stage_word
from compiler.kernels.scaling import Affine, bytes_word, halves_word, quantize_multiplier
from hw.isa.enums import Dtype, Rounding


class Residual(TypedDict):
    """Fields of FUSE's residual add."""

    zp_xr: int
    x_mult: int
    r_mult: int
    o_mult: int
    r_shifts: int
    o_zp: int


#: Left shift of the inputs of TFLite's ADD.
LEFT_SHIFT = 20


def residual_fields(x: Affine, r: Affine, y: Affine) -> Residual:
    """Fields of FUSE's residual add: `x` is the main value, `r` the residual, `y` the sum."""
    twice = 2 * max(x.scale, r.scale)
    (x_mult, x_exp), (r_mult, r_exp) = (quantize_multiplier(part.scale / twice) for part in (x, r))
    o_mult, o_exp = quantize_multiplier(twice / ((1 << LEFT_SHIFT) * y.scale))
    return {
        "zp_xr": halves_word(x.zero_point, r.zero_point),
        "x_mult": x_mult, "r_mult": r_mult, "o_mult": o_mult, "r_shifts": bytes_word(x_exp, r_exp, o_exp),
        "o_zp": y.zero_point,
    }  # fmt: skip


def add(
    a: Affine,
    b: Affine,
    y: Affine,
    *,
    clip: tuple[int, int] = (-128, 127),
    rounding: Rounding = Rounding.DOUBLE,
    dtype: Dtype = Dtype.I8,
) -> Elementwise:
    """Give y = a + b; the two sources and the result have one type."""
    stage = stage_word(dtype, residual=1, r_dtype=dtype, r_ls=LEFT_SHIFT)
    fields = residual_fields(a, b, y)
    return Elementwise(
        src=source_word(dtype, rounding=rounding), stage=stage, sources=2, r_clip=clip, **fields
    )
