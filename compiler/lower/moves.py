"""Operators that move elements, as copies."""

import math
from collections.abc import Callable, Set
from itertools import product
from typing import cast

import numpy as np

from compiler.host.call import Kernels, quantize_real
from compiler.host.fixed import half_away
from compiler.ir.tensor import Tensor
from compiler.kernels.scaling import quantize_multiplier
from compiler.lower.copies import (
    along,
    exact,
    expect,
    layer,
    moved,
    rescale,
    rescale_exactly,
    strides_of,
    walks,
    whole,
)
from compiler.lower.elementwise import lower_unary
from compiler.lower.layer import Layer
from compiler.lower.lowering import Lowering, UnsupportedError, affine, image_of
from compiler.lower.unary import is_unary
from compiler.lower.walk import Copy, Rescale, Stretch, stretches
from cosim.golden.scale import scale
from hw.isa.enums import Rounding

#: Quotients of scales that XNNPACK converts with a multiplier in 1/256.
_LEAST, _MOST = 1 / 256, 128


def _requantize(low: Lowering) -> Layer:
    expect(low, low.x.shape)
    ratio = affine(low.x).scale / affine(low.y).scale
    if is_unary(low.graph, low.anchor) and not exact(low, low.x, rescale(low, low.x)):
        return lower_unary(low)
    change = rescale_exactly(low, low.x)
    delegated = low.rounding == "xnnpack" and low.x.dtype == low.y.dtype and _LEAST <= ratio <= _MOST
    if change and delegated:
        eighths = float(np.rint(np.float32(256) * np.float32(ratio))) / 256
        change = Rescale(change.x_zp, change.y_zp, *quantize_multiplier(eighths), Rounding.SINGLE)
    step = strides_of(low.x.shape)
    axes = [whole(size) for size in low.x.shape]
    return layer(low, [Copy(low.x.name, walk, change) for walk in walks(step, step, axes)])


def reshape(low: Lowering) -> Layer:
    """A copy, for where the other shape cannot be another view of the same bytes."""
    if low.x.elements != low.y.elements:
        raise UnsupportedError(f"{list(low.x.shape)} cannot become {list(low.y.shape)}")
    step = strides_of(low.x.shape)
    return layer(low, moved(low, step, step, [whole(size) for size in low.x.shape]))


def _transpose(low: Lowering) -> Layer:
    perm, shape = low.anchor.attributes["perm"], low.x.shape
    if sorted(perm) != list(range(len(shape))):
        raise UnsupportedError(f"perm must order dimensions 0..{len(shape) - 1}, not {list(perm)}")
    expect(low, [shape[i] for i in perm])
    x = strides_of(shape)
    axes = [whole(size) for size in low.y.shape]
    return layer(low, moved(low, [x[i] for i in perm], strides_of(low.y.shape), axes))


def concat_starts(low: Lowering) -> list[int]:
    """Where each summand begins along the axis."""
    inputs, axis = low.graph.ins(low.anchor), along(low, len(low.y.shape))
    starts = np.cumsum([0, *(t.shape[axis] if axis < len(t.shape) else 0 for t in inputs)]).tolist()
    wanted = list(low.y.shape)
    for tensor in inputs:
        fits = [*tensor.shape[:axis], *tensor.shape[axis + 1 :]] == [*wanted[:axis], *wanted[axis + 1 :]]
        if len(tensor.shape) != len(wanted) or not fits:
            raise UnsupportedError(
                f"{tensor.name!r} of shape {list(tensor.shape)} is no part of {wanted} along axis {axis}"
            )
    if starts.pop() != wanted[axis]:
        raise UnsupportedError(f"its inputs together are not {wanted[axis]} long along axis {axis}")
    return starts


def _joined(low: Lowering, x: Tensor) -> Rescale | None:
    """As LiteRT's concatenation: sums of float32 products, halves away from zero, for each of the 256 values.

    Where scales make halves, float32's error decides: a neighbouring multiplier decides likewise, or none does.
    """
    change, y = rescale_exactly(low, x), low.y
    if change is None or low.rounding == "onnxruntime":
        return change
    if not {x.dtype, y.dtype} <= {"int8", "uint8"}:
        raise UnsupportedError(f"{x.name!r} of {x.dtype} joins {y.dtype} of another quantization")
    ratio = np.float32(affine(x).scale) * (np.float32(1) / np.float32(affine(y).scale))
    given, limits = np.iinfo(x.dtype), np.iinfo(y.dtype)
    values = np.arange(given.min, given.max + 1, dtype=np.int64)
    real = values.astype(np.float32) * ratio + np.float32(-change.x_zp) * ratio
    wanted = np.clip(half_away(real.astype(np.float64)) + change.y_zp, limits.min, limits.max)
    mult, exponent = quantize_multiplier(float(ratio))
    for offset, rounding in product((0, 1, -1, 8, -8, 64, -64), (Rounding.AWAY, Rounding.SINGLE)):
        found = scale(values - change.x_zp, mult + offset, exponent, 0, rounding) + change.y_zp
        if mult + offset < 1 << 31 and np.array_equal(np.clip(found, limits.min, limits.max), wanted):
            return Rescale(change.x_zp, change.y_zp, mult + offset, exponent, rounding)
    raise UnsupportedError(f"no multiplier rounds {x.name!r} as LiteRT's sums of float32 products do")


def concat(low: Lowering, there: Set[str]) -> Layer | None:
    """Copies of the summands that are not there yet; None if all are."""
    axis, step = along(low, len(low.y.shape)), strides_of(low.y.shape)
    copies = []
    for tensor, start in zip(low.graph.ins(low.anchor), concat_starts(low), strict=True):
        if tensor.name in there:
            continue
        axes = [whole(size) for size in tensor.shape]
        axes[axis] = [Stretch(((tensor.shape[axis], 1, 1),), 0, start)]
        change = _joined(low, tensor)
        copies += [Copy(tensor.name, walk, change) for walk in walks(strides_of(tensor.shape), step, axes)]
    return layer(low, copies) if copies else None


def _slice(low: Lowering) -> Layer:
    a, shape = low.anchor.attributes, low.x.shape
    parts = [a["starts"], a["sizes"], a["steps"]]
    if any(len(part) != len(shape) for part in parts):
        raise UnsupportedError(f"starts, sizes and steps must be {len(shape)} numbers each")
    for axis, (start, size, step, total) in enumerate(zip(*parts, shape, strict=True)):
        last = start + (size - 1) * step
        if size < 1 or not (0 <= start < total and 0 <= last < total):
            raise UnsupportedError(f"axis {axis} has indices 0..{total - 1}, not {start}..{last}")
    expect(low, a["sizes"])
    axes = [[Stretch(((size, step, 1),), start, 0)] for start, size, step in zip(*parts, strict=True)]
    return layer(low, moved(low, strides_of(shape), strides_of(low.y.shape), axes))


def _fill_byte(low: Lowering, value: float) -> int:
    """The byte that an element of y consists of where it stands for `value` as x would."""
    x, y = low.x, low.y
    image_of(x)
    limits = np.iinfo(x.dtype)
    if math.isinf(value):
        stored = limits.max if value > 0 else limits.min
    elif x.quantization is None:
        stored = int(value)
    else:
        stored = int(quantize_real(np.array(value), x, cast(Kernels, low.rounding)))
    stored = int(np.clip(stored, limits.min, limits.max))
    change, limits = rescale_exactly(low, x), np.iinfo(y.dtype)
    if change:
        centred = np.array([stored - change.x_zp], np.int64)
        scaled = scale(centred, change.mult, change.exponent, 0, change.rounding)
        stored = int(np.clip(int(scaled[0]) + change.y_zp, limits.min, limits.max))
    pieces = set(np.array(stored, y.dtype).tobytes())
    if len(pieces) > 1:
        raise UnsupportedError(f"padding of {y.dtype} must be bytes that are all the same, not {stored}")
    return pieces.pop()


def _pad(low: Lowering) -> Layer:
    pads, shape = low.anchor.attributes["pads"], low.x.shape
    if len(pads) != len(shape):
        raise UnsupportedError(f"pads must be {len(shape)} pairs, not {len(pads)}")
    expect(low, [size + sum(pair) for size, pair in zip(shape, pads, strict=True)])
    step = strides_of(low.y.shape)
    inside = [[Stretch(((size, 1, 1),), 0, pair[0])] for size, pair in zip(shape, pads, strict=True)]
    copies = moved(low, strides_of(shape), step, inside)
    value = _fill_byte(low, low.anchor.attributes["value"])
    for axis, (before, after) in enumerate(pads):
        for start, size in ((0, before), (before + shape[axis], after)):
            if size:
                edge = [Stretch(((size, 0, 1),), 0, start)]
                axes = [*inside[:axis], edge, *(whole(total) for total in low.y.shape[axis + 1 :])]
                copies += [Copy(None, walk, fill=value) for walk in walks([0] * len(shape), step, axes)]
    return layer(low, copies)


def _gather(low: Lowering) -> Layer:
    x, indices = low.graph.ins(low.anchor)
    axis = along(low, len(x.shape))
    if indices.data is None:
        raise UnsupportedError("its indices are not constants: no unit takes addresses from data")
    if indices.dtype not in ("int32", "int64"):
        raise UnsupportedError(f"indices must be int32 or int64, not {indices.dtype}")
    total = x.shape[axis]
    chosen = indices.data.astype(np.int64).reshape(-1)
    if chosen.min() < -total or chosen.max() >= total:
        raise UnsupportedError(f"indices must be within {-total}..{total - 1}")
    expect(low, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
    flat = (*x.shape[:axis], chosen.size, *x.shape[axis + 1 :])
    axes = [whole(size) for size in x.shape]
    axes[axis] = stretches((chosen % total).tolist())
    return layer(low, moved(low, strides_of(x.shape), strides_of(flat), axes))


def _resize(low: Lowering) -> Layer:
    size, half, shape = low.anchor.attributes["size"], int(low.anchor.attributes["centers"]), low.x.shape
    if len(shape) != 4:
        raise UnsupportedError(f"an image has 4 dimensions, not {len(shape)}")
    expect(low, (shape[0], *size, shape[3]))
    axes = [whole(total) for total in shape]
    for axis, wanted in zip((1, 2), size, strict=True):
        axes[axis] = stretches(((2 * np.arange(wanted) + half) * shape[axis] // (2 * wanted)).tolist())
    return layer(low, moved(low, strides_of(shape), strides_of(low.y.shape), axes))


MOVES: dict[str, Callable[[Lowering], Layer]] = {
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "gather": _gather,
    "resize_nearest": _resize,
    "requantize": _requantize,
}
