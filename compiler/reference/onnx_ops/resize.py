"""Resize and Upsample: source coordinates, and interpolation of one dimension at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.reference.onnx_ops.registry import Array, OnnxNodeSpec, computes
from hw.errors import InputError, shown

Floats = NDArray[np.float32]
_F = np.float32


@dataclass(frozen=True)
class ResizeAxis:
    """One dimension of an image to resize.

    Parameters
    ----------
    size, count : int
        Size of the input and of the output.
    scale : float
        Ratio of the output's size to the input's.
    start, end : float
        Region to crop, as fractions of the input's size; for tf_crop_and_resize only.
    length : float or None
        Fractional output size for align_corners; None to use `count`.
    """

    size: int
    count: int
    scale: float
    start: float = 0.0
    end: float = 1.0
    length: float | None = None


def resized(size: int, scale: float) -> int:
    """Return the output size for an input size and a scale, rounded down."""
    return int(np.floor(_F(size) * _F(scale)))


def coordinates(mode: str, axis: ResizeAxis) -> Floats:
    """Return the source coordinate of each output, not clipped to the input.

    Raises
    ------
    InputError
        The mode does not exist.
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
    """Return half-pixel coordinates that are symmetric about the center of the fractional output size."""
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

#: Tolerance within which a coordinate is considered halfway between two elements.
_TIE_TOLERANCE = _F(1e-6)


def _rounded(positions: Floats, sign: int) -> Floats:
    """Round to the nearest element; ties go to the preceding element (sign -1) or the following one (sign 1)."""
    below = np.floor(positions)
    return below + ((positions - below) - _F(0.5) > -sign * _TIE_TOLERANCE)


#: Rounding functions of coordinates by nearest_mode; "simple" is that of operator sets before 11.
_ROUNDINGS: dict[str, Callable[[Floats, ResizeAxis], Floats]] = {
    "round_prefer_floor": lambda v, _: _rounded(v, -1),
    "round_prefer_ceil": lambda v, _: _rounded(v, 1),
    "floor": lambda v, _: np.floor(v),
    "ceil": lambda v, _: np.ceil(v),
    "simple": lambda v, axis: np.ceil(v) if axis.scale < 1 else np.trunc(v),
}


def nearest(mode: str, rounding: str, axis: ResizeAxis) -> NDArray[np.int64]:
    """Return the index of the input nearest to each output.

    Raises
    ------
    InputError
        The mode or the rounding does not exist.
    """
    if rounding not in _ROUNDINGS:
        raise InputError(
            f"nearest_mode must be one of {', '.join(list(_ROUNDINGS)[:-1])}, not {shown(rounding)}"
        )
    found = _ROUNDINGS[rounding](coordinates(mode, axis), axis)
    return np.clip(found, 0, axis.size - 1).astype(np.int64)


@dataclass(frozen=True)
class _Taps:
    """Inputs that contribute to each output along an axis, with their weights.

    Parameters
    ----------
    indices : (count, taps) int64 array
        Indices of the inputs.
    weights : (count, taps) float32 array
        Weights of the inputs.
    outside : (count,) bool array
        True for outputs whose position is outside the input.
    """

    indices: NDArray[np.int64]
    weights: NDArray[np.float32]
    outside: NDArray[np.bool_]


@computes("Resize", "Upsample")
def resize(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    """Resize an image."""
    x, axes = inputs[0], _axes(spec, inputs)
    if all(axis.count == axis.size for axis in axes) and not _crops(spec):
        return (x.copy(),)
    mode = spec.text("mode", "nearest", "nearest", "linear", "cubic")
    if mode != "nearest":
        axes = _with_fractions(axes)
    taps = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}[mode]
    made = x if mode == "nearest" else x.astype(_F)
    outside = np.zeros((1,) * x.ndim, bool)
    for number, axis in enumerate(axes):
        if axis.count == axis.size and axis.scale == 1 and not _crops(spec):
            continue
        each = taps(spec, axis)
        made = _combined(made, each, number)
        outside = outside | each.outside.reshape(-1, *(1,) * (x.ndim - number - 1))
    if _crops(spec):
        made = np.where(outside, _F(spec.get("extrapolation_value", 0.0)), made)
    return (_stored(made, x.dtype),)


@dataclass(frozen=True, eq=False)
class InterpolationPart:
    """Part of the outputs along an axis, as a product of a matrix with adjacent inputs.

    Parameters
    ----------
    start : int
        Index of the first input.
    matrix : (outputs, inputs) float32 array
        Weights of the inputs.
    """

    start: int
    matrix: Floats


#: Number of outputs of a part, and maximum number of parts.
_PART, _MAX_PARTS = 512, 256


def interpolation(
    spec: OnnxNodeSpec, inputs: list[Any], most: int
) -> dict[int, list[InterpolationPart]] | None:
    """Return the matrices by which interpolation multiplies each resized axis: one, or several for a long axis.

    Parameters
    ----------
    spec : OnnxNodeSpec
        A Resize or Upsample node of mode linear or cubic.
    inputs : list
        Inputs of the node; only the shape of the image is used.
    most : int
        Maximum number of elements of the matrices of an axis.

    Returns
    -------
    matrices
        Parts by axis; None if they would be too large, or if outputs outside the input have a value other than 0.
    """
    if _crops(spec) and spec.get("extrapolation_value", 0.0):
        return None
    taps = {"linear": _linear, "cubic": _cubic}[spec.text("mode", "", "linear", "cubic")]
    matrices: dict[int, list[InterpolationPart]] = {}
    for number, axis in enumerate(_with_fractions(_axes(spec, inputs))):
        if axis.count == axis.size and axis.scale == 1 and not _crops(spec):
            continue
        if max(axis.size, axis.count) > most:
            return None
        whole = axis.size * max(axis.size, axis.count) <= most
        parts = _parts(taps(spec, axis), axis.size if whole else None, crops=_crops(spec), most=most)
        if parts is None:
            return None
        matrices[number] = parts
    return matrices


def _parts(taps: _Taps, size: int | None, *, crops: bool, most: int) -> list[InterpolationPart] | None:
    """Return the matrices of an axis: one of all inputs, if their number `size` is given, or else several."""
    count = len(taps.indices)
    step = count if size is not None else _PART
    parts: list[InterpolationPart] = []
    for first in range(0, count, max(step, 1)):
        rows = slice(first, first + step)
        indices, weights, outside = taps.indices[rows], taps.weights[rows], taps.outside[rows]
        start, end = (0, size) if size is not None else (int(indices.min()), int(indices.max()) + 1)
        most -= len(indices) * (end - start)
        if most < 0 or len(parts) == _MAX_PARTS or (size is None and (end - start) ** 2 > _MAX_IDENTITY):
            return None
        matrix = np.asarray(
            _combined(np.eye(end - start, dtype=_F), _Taps(indices - start, weights, outside), 0)
        )
        parts.append(InterpolationPart(start, np.where(outside[:, None], _F(0), matrix) if crops else matrix))
    return parts


#: Maximum number of elements of the identity matrix from which a part is computed.
_MAX_IDENTITY = 1 << 22


def _with_fractions(axes: Sequence[ResizeAxis]) -> list[ResizeAxis]:
    """Return axes with fractional output sizes, which ONNX's node tests use for align_corners, unlike onnxruntime."""
    return [replace(axis, length=float(_F(axis.size) * _F(axis.scale))) for axis in axes]


def _stored(made: Array, dtype: np.dtype) -> Array:
    """Convert values to the image's type; integers are truncated and saturated."""
    if dtype.kind in "iu" and made.dtype.kind == "f":
        limits = np.iinfo(dtype)
        made = np.clip(np.trunc(made), limits.min, limits.max)
    return made.astype(dtype)


def _mode(spec: OnnxNodeSpec) -> str:
    """Return the coordinate transformation mode of a node, which is asymmetric before operator set 11."""
    if spec.op == "Upsample" or spec.version < 11:
        return "asymmetric"
    return spec.text("coordinate_transformation_mode", "half_pixel")


def _crops(spec: OnnxNodeSpec) -> bool:
    return _mode(spec) == "tf_crop_and_resize"


def _axes(spec: OnnxNodeSpec, inputs: list[Any]) -> list[ResizeAxis]:
    """Return the resize parameters of each dimension."""
    x = inputs[0]
    old = spec.op == "Upsample" or spec.version < 11
    _, second, third, fourth = [*inputs, None, None, None][:4]
    roi, scales, sizes = (None, second, None) if old else (second, third, fourth)
    chosen = [axis % x.ndim for axis in spec.get("axes", range(x.ndim))]
    part = np.tile([0.0, 1.0], (x.ndim, 1))
    if roi is not None and roi.size:
        part[chosen] = roi.reshape(2, -1).T
    counts, factors = list(x.shape), [1.0] * x.ndim
    if sizes is not None and sizes.size:
        ratios = [float(_F(n) / _F(x.shape[axis])) for n, axis in zip(sizes, chosen, strict=True)]
        policy = spec.text("keep_aspect_ratio_policy", "stretch")
        one = {"not_larger": min, "not_smaller": max}.get(policy)
        for axis, ratio, size in zip(chosen, ratios, sizes, strict=True):
            factors[axis] = one(ratios) if one else ratio
            counts[axis] = int(np.floor(factors[axis] * x.shape[axis] + 0.5)) if one else int(size)
    else:
        given = spec.get("scales", ()) if scales is None else scales
        for axis, factor in zip(chosen, given, strict=True):
            factors[axis], counts[axis] = float(factor), resized(x.shape[axis], float(factor))
    return [
        ResizeAxis(size, count, factor, float(start), float(end))
        for size, count, factor, (start, end) in zip(x.shape, counts, factors, part, strict=True)
    ]


def _combined(x: Array, taps: _Taps, axis: int) -> Array:
    """Compute weighted sums of inputs along an axis; with a single tap, select an input."""
    if taps.indices.shape[1] == 1:
        return np.take(x, taps.indices[:, 0], axis)
    shape = (-1, *(1,) * (x.ndim - axis - 1))
    total = np.zeros((), _F)
    for indices, weights in zip(taps.indices.T, taps.weights.T, strict=True):
        total = total + np.take(x, indices, axis) * weights.reshape(shape)
    return total


def _nearest(spec: OnnxNodeSpec, axis: ResizeAxis) -> _Taps:
    old = spec.op == "Upsample" or spec.version < 11
    rounding = "simple" if old else spec.text("nearest_mode", "round_prefer_floor")
    indices = nearest(_mode(spec), rounding, axis)[:, None]
    return _Taps(indices, np.ones(indices.shape, _F), _outside(coordinates(_mode(spec), axis), axis))


def _outside(positions: Array, axis: ResizeAxis) -> NDArray[np.bool_]:
    return (positions < 0) | (positions > axis.size - 1)


def _linear(spec: OnnxNodeSpec, axis: ResizeAxis) -> _Taps:
    positions = coordinates(_mode(spec), axis)
    outside = _outside(positions, axis)
    if spec.get("antialias", 0) and axis.scale < 1:
        return _antialiased(spec, axis, positions, 1, lambda v: np.maximum(1 - np.abs(v), 0))
    positions = np.clip(positions, 0, axis.size - 1)
    first = np.minimum(positions.astype(np.int64), axis.size - 1)
    second = np.minimum(first + 1, axis.size - 1)
    weight = (positions - first).astype(_F)
    return _Taps(np.stack([first, second], 1), np.stack([1 - weight, weight], 1), outside)


def _kernel(spec: OnnxNodeSpec) -> Callable[[Array], Array]:
    """Return the kernel of cubic interpolation, which maps the distance of an input to its weight."""
    a = spec.get("cubic_coeff_a", -0.75)

    def weight(distance: Array) -> Array:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return weight


def _cubic(spec: OnnxNodeSpec, axis: ResizeAxis) -> _Taps:
    positions = coordinates(_mode(spec), axis)
    if spec.get("antialias", 0) and axis.scale < 1:
        return _antialiased(spec, axis, positions, 2, _kernel(spec))
    found = np.floor(positions).astype(np.int64)[:, None] + np.arange(-1, 3)
    weights = _kernel(spec)(found - positions[:, None].astype(np.float64))
    return _limited(spec, axis, found, weights, _outside(positions, axis))


def _antialiased(
    spec: OnnxNodeSpec, axis: ResizeAxis, positions: Array, support: int, kernel: Callable[[Array], Array]
) -> _Taps:
    """Return taps for antialiased reduction: the kernel is stretched by 1 / scale and its weights sum to 1."""
    radius = support / axis.scale
    center = positions.astype(np.float64)
    first = np.floor(center - radius + 1).astype(np.int64)
    found = first[:, None] + np.arange(int(np.ceil(2 * radius)) + 1)
    weights = kernel((found - center[:, None]) * axis.scale)
    weights = weights / weights.sum(1, keepdims=True)
    return _limited(spec, axis, found, weights, _outside(positions, axis))


def _limited(
    spec: OnnxNodeSpec, axis: ResizeAxis, found: Array, weights: Array, outside: NDArray[np.bool_]
) -> _Taps:
    """Clip tap indices beyond the edges, or set their weights to 0 if `exclude_outside` is set."""
    if spec.get("exclude_outside", 0):
        weights = np.where((found >= 0) & (found < axis.size), weights, 0)
        weights = weights / weights.sum(1, keepdims=True)
    return _Taps(np.clip(found, 0, axis.size - 1), weights.astype(_F), outside)
