"""Sums, means and extremes over axes."""

import math
from dataclasses import dataclass
from typing import Any

from compiler.ir.identity import identity
from compiler.kernels.scaling import quantize_multiplier
from compiler.lower.layer import Layer
from compiler.lower.lowering import Lowering, UnsupportedError, affine, clip_range, same_meaning
from compiler.lower.parity import float32_scale
from hw.isa.enums import Post, Reduce, Rounding

#: Most elements of a sum: of bytes, it must be an int32, and division by multiplication must be exact.
_MOST = 1 << 22
#: Greatest count and stride of a dimension that shares a coordinate with another (docs/machine.md).
_COUNT, _STEP = 0xFFFF, 0x7FF


@identity("ReduceLayer", "how", "dims", "lanes", "x_zp", "post", "rounding", "fields")
@dataclass(frozen=True, kw_only=True, eq=False)
class ReduceLayer(Layer):
    """Reduction of a tensor seen as kept x reduced x kept x reduced x channels.

    Parameters
    ----------
    how : Reduce
        What is done to the elements.
    dims : (int, int, int, int, int)
        The tensor's dimensions, of which neighbours that share a fate are one: k0, r0, k1, r1, c.
    lanes : bool
        The channels c are reduced as well; r1 is 1 then.
    x_zp : int
        Subtracted from each element before.
    post : Post
        NONE: the result is as it is; SCALE: scaled as `fields` say.
    rounding : Rounding
        Of that scale.
    fields : dict
        Fields of FUSE for it.
    """

    how: Reduce
    dims: tuple[int, int, int, int, int]
    lanes: bool
    x_zp: int = 0
    post: Post = Post.NONE
    rounding: Rounding = Rounding.DOUBLE
    fields: dict[str, int]


def lower_reduce(low: Lowering) -> ReduceLayer:
    """The layer of a reduction.

    Raises
    ------
    UnsupportedError
        Sizes or axes that it has no way for.
    """
    op, a = low.anchor.op.removeprefix("reduce_"), low.anchor.attributes
    x, y = low.x, low.y
    dims, lanes = _dims(x.shape, a["axes"])
    count = x.elements // y.elements
    fields: dict[str, Any] = {"dims": dims, "lanes": lanes, **low.common()}
    if op in ("max", "min"):
        how = Reduce.MAX if op == "max" else Reduce.MIN
        if same_meaning(x, y):
            return ReduceLayer(**fields, how=how, fields={})
        return ReduceLayer(**fields, how=how, **scaled(low, 1))
    if count > _MOST:
        raise UnsupportedError(f"a sum of {count:,} elements, more than {_MOST:,}")
    return ReduceLayer(**fields, how=Reduce.SUM, **scaled(low, count if op == "mean" else 1))


def lower_global_average(low: Lowering) -> ReduceLayer:
    """An average over a whole image, whatever its size.

    The multiplier is the reciprocal of the number of pixels rounded up: so what is halfway is rounded away from zero,
    and what is not is too far from halfway for a 31-bit multiplier to matter.

    Raises
    ------
    UnsupportedError
        Too many pixels.
    """
    batch, h, w, c = low.x.shape
    count = h * w
    if count > _MOST:
        raise UnsupportedError(f"an average over {count:,} pixels, more than {_MOST:,}")
    exponent = 1 - (count - 1).bit_length()
    mult = min(-(-(1 << (31 - exponent)) // count), (1 << 31) - 1)
    if low.rounding == "onnxruntime":
        return ReduceLayer(
            **low.common(), how=Reduce.SUM, dims=(batch, count, 1, 1, c), lanes=False, **scaled(low, count)
        )
    clip = clip_range(low.y)
    return ReduceLayer(
        **low.common(), how=Reduce.SUM, dims=(batch, count, 1, 1, c), lanes=False, post=Post.SCALE,
        rounding=Rounding.AWAY,
        fields={"post_mult": mult, "post_shift": exponent, "post_lo": clip[0], "post_hi": clip[1]},
    )  # fmt: skip


def scaled(low: Lowering, count: int) -> dict[str, Any]:
    """The scale of a sum, divided by `count`: as LiteRT's reference kernel divides its multiplier.

    Fields of a ReduceLayer.
    """
    x, y = affine(low.x), affine(low.y)
    mult, exponent = quantize_multiplier(x.scale / y.scale)
    clip = clip_range(low.y)
    rounding, x_zp, y_zp = Rounding.DOUBLE, x.zero_point, y.zero_point
    extreme = low.anchor.op in ("reduce_max", "reduce_min")
    if low.rounding == "reference" or (extreme and low.rounding == "xnnpack"):
        shift = min(count.bit_length() - 1, 32, 31 + exponent)
        mult, exponent = (mult << shift) // count, exponent - shift
    elif low.rounding == "xnnpack":
        rounding = Rounding.EVEN
        mult, exponent, x_zp, y_zp = float32_scale(
            x, y, low.x.dtype, low.x.elements // low.y.elements, count, clip
        )
    else:
        mult, exponent = quantize_multiplier(x.scale / y.scale / count)
        rounding = Rounding.EVEN
    return {
        "x_zp": x_zp, "post": Post.SCALE, "rounding": rounding,
        "fields": {
            "post_mult": mult, "post_shift": exponent, "post_zp": y_zp, "post_lo": clip[0],
            "post_hi": clip[1],
        },
    }  # fmt: skip


def _dims(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[tuple[int, int, int, int, int], bool]:
    """The five dimensions, and whether the last is reduced."""
    reduced = {axis % len(shape) for axis in axes} if shape else set()
    runs: list[tuple[bool, int]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if runs and runs[-1][0] == (axis in reduced):
            runs[-1] = (runs[-1][0], runs[-1][1] * size)
        else:
            runs.append((axis in reduced, size))
    lanes, c = runs.pop() if runs else (False, 1)
    if runs and runs[0][0]:
        runs.insert(0, (False, 1))
    outer = [size for _, size in runs]
    if len(outer) > (3 if lanes else 4):
        raise UnsupportedError(f"a reduction of {list(shape)} over axes {list(axes)} has too many strides")
    k0, r0, k1, r1 = outer + [1] * (4 - len(outer))
    if max(r0, k1, k1 * r1) > _COUNT or (k1 > 1 and r1 > _STEP) or math.prod(outer) > 1 << 31:
        raise UnsupportedError(f"a reduction of {list(shape)} over axes {list(axes)} has too long strides")
    return (k0, r0, k1, r1, c), lanes
