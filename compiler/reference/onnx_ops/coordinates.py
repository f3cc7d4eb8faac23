"""Source coordinates of resized images, in single precision as in onnxruntime."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
