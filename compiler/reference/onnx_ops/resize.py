"""Resize and Upsample: source coordinates, then one dimension after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.reference.onnx_ops.registry import Array, Asked, computes
from hw.errors import InputError, shown

Floats = NDArray[np.float32]
_F = np.float32


@dataclass(frozen=True)
class ResizeAxis:
    """One dimension of an image that is resized: sizes, the scale between them, and the part that is taken.

    Attributes
    ----------
    length : float or None
        The new size with its fraction, if corners are measured by that.
    """

    size: int
    count: int
    scale: float
    start: float = 0.0
    end: float = 1.0
    length: float | None = None


def resized(size: int, scale: float) -> int:
    """The size that a scale makes of a size."""
    return int(np.floor(_F(size) * _F(scale)))


def coordinates(mode: str, axis: ResizeAxis) -> Floats:
    """Source coordinate of each output, not clipped to the input.

    Raises
    ------
    InputError
        There is no such mode.
    """
    i = np.arange(axis.count, dtype=_F)
    if axis.scale == 1:
        return i
    if mode not in _MODES:
        raise InputError(
            f"coordinate_transformation_mode must be one of {', '.join(_MODES)}, not {shown(mode)}"
        )
    return _MODES[mode](i, axis).astype(_F)


def _half_pixel(i: Floats, axis: ResizeAxis) -> Floats:
    return (i + _F(0.5)) / _F(axis.scale) - _F(0.5)


def _symmetric(i: Floats, axis: ResizeAxis) -> Floats:
    """Half a pixel off, about the centre of what a size with a fraction would be; the sum in double precision."""
    adjustment = _F(axis.count) / (_F(axis.scale) * _F(axis.size))
    offset = _F(axis.size / 2) * (_F(1) - adjustment)
    return (np.float64(offset) + (i.astype(np.float64) + 0.5) / _F(axis.scale) - 0.5).astype(_F)


def _pytorch(i: Floats, axis: ResizeAxis) -> Floats:
    return _half_pixel(i, axis) if axis.count > 1 else i * 0


def _corners(i: Floats, axis: ResizeAxis) -> Floats:
    last = _F(axis.count if axis.length is None else axis.length) - _F(1)
    return i * _F(axis.size - 1) / last if axis.count > 1 else i * 0


def _cropped(i: Floats, axis: ResizeAxis) -> Floats:
    last, start, end = _F(axis.size - 1), _F(axis.start), _F(axis.end)
    if axis.count > 1:
        return start * last + i * (end - start) * last / _F(axis.count - 1)
    return i * 0 + _F(0.5) * (start + end) * last


_MODES: dict[str, Callable[[Floats, ResizeAxis], Floats]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": _pytorch,
    "align_corners": _corners,
    "asymmetric": lambda i, axis: i / _F(axis.scale),
    "tf_half_pixel_for_nn": lambda i, axis: (i + _F(0.5)) / _F(axis.scale),
    "tf_crop_and_resize": _cropped,
}

#: What is so near the middle between two elements counts as the middle.
_MIDDLE = _F(1e-6)


def _rounded(places: Floats, sign: int) -> Floats:
    """The nearer element; of two that are as near, the one before (-1) or behind (1)."""
    below = np.floor(places)
    return below + ((places - below) - _F(0.5) > -sign * _MIDDLE)


#: From places to the nearest elements. "simple" is what there was before there were others.
_ROUNDINGS: dict[str, Callable[[Floats, ResizeAxis], Floats]] = {
    "round_prefer_floor": lambda v, _: _rounded(v, -1),
    "round_prefer_ceil": lambda v, _: _rounded(v, 1),
    "floor": lambda v, _: np.floor(v),
    "ceil": lambda v, _: np.ceil(v),
    "simple": lambda v, axis: np.ceil(v) if axis.scale < 1 else np.trunc(v),
}


def nearest(mode: str, rounding: str, axis: ResizeAxis) -> NDArray[np.int64]:
    """Index of the input nearest to each output.

    Raises
    ------
    InputError
        There is no such mode, or no such rounding.
    """
    if rounding not in _ROUNDINGS:
        raise InputError(
            f"nearest_mode must be one of {', '.join(list(_ROUNDINGS)[:-1])}, not {shown(rounding)}"
        )
    found = _ROUNDINGS[rounding](coordinates(mode, axis), axis)
    return np.clip(found, 0, axis.size - 1).astype(np.int64)


@dataclass(frozen=True)
class _Taps:
    """For each output along an axis the inputs that make it, their weights, and whether it lies outside."""

    places: NDArray[np.int64]
    weights: NDArray[np.float32]
    outside: NDArray[np.bool_]


@computes("Resize", "Upsample")
def resize(asked: Asked, inputs: list[Any]) -> Sequence[Array]:
    """An image in another size."""
    x, axes = inputs[0], _axes(asked, inputs)
    if all(axis.count == axis.size for axis in axes) and not _crops(asked):
        return (x.copy(),)
    mode = asked.text("mode", "nearest", "nearest", "linear", "cubic")
    if mode != "nearest":
        axes = _with_fractions(axes)
    taps = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}[mode]
    made = x if mode == "nearest" else x.astype(_F)
    outside = np.zeros((1,) * x.ndim, bool)
    for number, axis in enumerate(axes):
        if axis.count == axis.size and axis.scale == 1 and not _crops(asked):
            continue
        each = taps(asked, axis)
        made = _combined(made, each, number)
        outside = outside | each.outside.reshape(-1, *(1,) * (x.ndim - number - 1))
    if _crops(asked):
        made = np.where(outside, _F(asked.get("extrapolation_value", 0.0)), made)
    return (_stored(made, x.dtype),)


def _with_fractions(axes: Sequence[ResizeAxis]) -> list[ResizeAxis]:
    """Between corners ONNX's node tests measure to sizes with their fraction, which onnxruntime leaves out."""
    return [replace(axis, length=float(_F(axis.size) * _F(axis.scale))) for axis in axes]


def _stored(made: Array, dtype: np.dtype) -> Array:
    """Numbers in the type of the image; integers without their fraction."""
    if dtype.kind in "iu" and made.dtype.kind == "f":
        limits = np.iinfo(dtype)
        made = np.clip(np.trunc(made), limits.min, limits.max)
    return made.astype(dtype)


def _mode(asked: Asked) -> str:
    """How places are measured; there was one way before operator set 11."""
    if asked.op == "Upsample" or asked.version < 11:
        return "asymmetric"
    return asked.text("coordinate_transformation_mode", "half_pixel")


def _crops(asked: Asked) -> bool:
    return _mode(asked) == "tf_crop_and_resize"


def _axes(asked: Asked, inputs: list[Any]) -> list[ResizeAxis]:
    """Sizes and scale of each dimension."""
    x = inputs[0]
    old = asked.op == "Upsample" or asked.version < 11
    _, second, third, fourth = [*inputs, None, None, None][:4]
    roi, scales, sizes = (None, second, None) if old else (second, third, fourth)
    chosen = [axis % x.ndim for axis in asked.get("axes", range(x.ndim))]
    part = np.tile([0.0, 1.0], (x.ndim, 1))
    if roi is not None and roi.size:
        part[chosen] = roi.reshape(2, -1).T
    counts, factors = list(x.shape), [1.0] * x.ndim
    if sizes is not None and sizes.size:
        ratios = [float(_F(n) / _F(x.shape[axis])) for n, axis in zip(sizes, chosen, strict=True)]
        policy = asked.text("keep_aspect_ratio_policy", "stretch")
        one = {"not_larger": min, "not_smaller": max}.get(policy)
        for axis, ratio, size in zip(chosen, ratios, sizes, strict=True):
            factors[axis] = one(ratios) if one else ratio
            counts[axis] = int(np.floor(factors[axis] * x.shape[axis] + 0.5)) if one else int(size)
    else:
        given = asked.get("scales", ()) if scales is None else scales
        for axis, factor in zip(chosen, given, strict=True):
            factors[axis], counts[axis] = float(factor), resized(x.shape[axis], float(factor))
    return [
        ResizeAxis(size, count, factor, float(start), float(end))
        for size, count, factor, (start, end) in zip(x.shape, counts, factors, part, strict=True)
    ]


def _combined(x: Array, taps: _Taps, axis: int) -> Array:
    """The sums of weighted inputs along an axis; one tap without a weight is the input itself."""
    if taps.places.shape[1] == 1:
        return np.take(x, taps.places[:, 0], axis)
    shape = (-1, *(1,) * (x.ndim - axis - 1))
    total = np.zeros((), _F)
    for places, weights in zip(taps.places.T, taps.weights.T, strict=True):
        total = total + np.take(x, places, axis) * weights.reshape(shape)
    return total


def _nearest(asked: Asked, axis: ResizeAxis) -> _Taps:
    old = asked.op == "Upsample" or asked.version < 11
    rounding = "simple" if old else asked.text("nearest_mode", "round_prefer_floor")
    places = nearest(_mode(asked), rounding, axis)[:, None]
    return _Taps(places, np.ones(places.shape, _F), _outside(coordinates(_mode(asked), axis), axis))


def _outside(places: Array, axis: ResizeAxis) -> NDArray[np.bool_]:
    return (places < 0) | (places > axis.size - 1)


def _linear(asked: Asked, axis: ResizeAxis) -> _Taps:
    places = coordinates(_mode(asked), axis)
    outside = _outside(places, axis)
    if asked.get("antialias", 0) and axis.scale < 1:
        return _smoothed(asked, axis, places, 1, lambda v: np.maximum(1 - np.abs(v), 0))
    places = np.clip(places, 0, axis.size - 1)
    first = np.minimum(places.astype(np.int64), axis.size - 1)
    second = np.minimum(first + 1, axis.size - 1)
    weight = (places - first).astype(_F)
    return _Taps(np.stack([first, second], 1), np.stack([1 - weight, weight], 1), outside)


def _kernel(asked: Asked) -> Callable[[Array], Array]:
    """The weight of an input by its distance, for cubic interpolation."""
    a = asked.get("cubic_coeff_a", -0.75)

    def weight(distance: Array) -> Array:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return weight


def _cubic(asked: Asked, axis: ResizeAxis) -> _Taps:
    places = coordinates(_mode(asked), axis)
    if asked.get("antialias", 0) and axis.scale < 1:
        return _smoothed(asked, axis, places, 2, _kernel(asked))
    found = np.floor(places).astype(np.int64)[:, None] + np.arange(-1, 3)
    weights = _kernel(asked)(found - places[:, None].astype(np.float64))
    return _limited(asked, axis, found, weights, _outside(places, axis))


def _smoothed(
    asked: Asked, axis: ResizeAxis, places: Array, support: int, kernel: Callable[[Array], Array]
) -> _Taps:
    """Where an image gets smaller: the kernel is as much wider, and its weights add up to one."""
    reach = support / axis.scale
    center = places.astype(np.float64)
    first = np.floor(center - reach + 1).astype(np.int64)
    found = first[:, None] + np.arange(int(np.ceil(2 * reach)) + 1)
    weights = kernel((found - center[:, None]) * axis.scale)
    weights = weights / weights.sum(1, keepdims=True)
    return _limited(asked, axis, found, weights, _outside(places, axis))


def _limited(
    asked: Asked, axis: ResizeAxis, found: Array, weights: Array, outside: NDArray[np.bool_]
) -> _Taps:
    """Inputs beyond the edges are those at the edges, or with `exclude_outside` none."""
    if asked.get("exclude_outside", 0):
        weights = np.where((found >= 0) & (found < axis.size), weights, 0)
        weights = weights / weights.sum(1, keepdims=True)
    return _Taps(np.clip(found, 0, axis.size - 1), weights.astype(_F), outside)
