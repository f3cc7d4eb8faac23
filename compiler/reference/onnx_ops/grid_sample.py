"""GridSample: interpolates an image at the coordinates given by a second input."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.reference.onnx_ops.registry import Array, Asked, computes
from hw.errors import InputError

_F = np.float32
Places = NDArray[np.float32]
#: Number of coordinates processed at once, which bounds the memory use.
_PART = 1 << 16
#: The constant of cubic interpolation.
_A = _F(-0.75)


@computes("GridSample")
def _grid_sample(asked: Asked, inputs: list[Any]) -> Sequence[Array]:
    """X is (N, C, sizes), the grid (N, counts, dimension), the last of its dimensions first."""
    x, grid = inputs
    mode = asked.text("mode", "linear", "linear", "bilinear", "nearest", "cubic", "bicubic")
    padding = asked.text("padding_mode", "zeros", "zeros", "border", "reflection")
    corners = bool(asked.get("align_corners", 0))
    if grid.shape[-1] != x.ndim - 2:
        raise InputError(f"a grid for {x.ndim - 2} dimensions must end with that size, not {grid.shape[-1]}")
    made = np.empty((*x.shape[:2], math.prod(grid.shape[1:-1])), x.dtype)
    for image, places in enumerate(grid.reshape(len(grid), -1, grid.shape[-1])):
        for first in range(0, len(places), _PART):
            part = places[first : first + _PART].astype(_F)
            made[image, :, first : first + _PART] = _sampled(x[image], part, mode, padding, corners)
    return (made.reshape(*x.shape[:2], *grid.shape[1:-1]),)


def _sampled(image: Array, grid: Places, mode: str, padding: str, corners: bool) -> Array:
    """Some places (count, dimension) of one image: (C, count)."""
    sizes = image.shape[1:]
    places = [_place(grid[:, -1 - i], size, corners) for i, size in enumerate(sizes)]
    if mode == "nearest":
        places = [np.rint(place) for place in places]
    ends = [(_F(0), _F(n - 1)) if corners else (_F(-0.5), _F(n - 0.5)) for n in sizes]
    if padding == "reflection" or (padding == "border" and "cubic" not in mode):
        places = _brought_in(places, ends, sizes, padding)
    total = np.zeros((image.shape[0], len(grid)), _F)
    for chosen in itertools.product(*(_taps(place, mode) for place in places)):
        weight, where = np.ones(len(grid), _F), list[Array]()
        for (place, factor), size, end in zip(chosen, sizes, ends, strict=True):
            place, inside = _pixel(place, size, end, padding)
            weight = weight * factor * inside
            where.append(place)
        total += image[(slice(None), *where)] * weight
    return total


def _place(normal: Places, size: int, corners: bool) -> Places:
    """Convert coordinates in -1..1 to pixel coordinates."""
    return (
        (normal + _F(1)) / _F(2) * _F(size - 1) if corners else ((normal + _F(1)) * _F(size) - _F(1)) / _F(2)
    )


def _brought_in(
    places: list[Places], ends: list[tuple[np.float32, np.float32]], sizes: Sequence[int], padding: str
) -> list[Places]:
    """Places of which one number lies outside are moved to the border, or reflected there, in all of them."""
    pairs = list(zip(places, ends, strict=True))
    outside = np.logical_or.reduce([(place < low) | (place > high) for place, (low, high) in pairs])
    if padding == "border":
        moved = [np.clip(place, 0, size - 1) for place, size in zip(places, sizes, strict=True)]
    else:
        moved = [_reflected(place, *end) for place, end in pairs]
    return [np.where(outside, there, place) for there, place in zip(moved, places, strict=True)]


def _reflected(place: Places, low: np.float32, high: np.float32) -> Places:
    """Places between two ends that are mirrors."""
    span = high - low
    if span <= 0:
        return np.full_like(place, low)
    beyond = np.maximum(low - place, place - high)
    times = np.trunc(beyond / span)
    rest, even, below = beyond - times * span, times % 2 == 0, place < low
    moved = np.where(even == below, low + rest, high - rest)
    return np.where(beyond > 0, moved, place).astype(_F)


def _taps(place: Places, mode: str) -> list[tuple[Places, Places]]:
    """Along one dimension: the pixels that count, and with what weight."""
    if mode == "nearest":
        return [(place, np.ones_like(place))]
    first = np.floor(place)
    part = place - first
    if mode in ("linear", "bilinear"):
        return [(first, 1 - part), (first + 1, part)]
    return [(first + i, _cubic(part - _F(i))) for i in range(-1, 3)]


def _cubic(distance: Places) -> Places:
    d = np.abs(distance)
    near = ((_A + 2) * d - (_A + 3)) * d * d + 1
    return np.where(d <= 1, near, ((_A * d - 5 * _A) * d + 8 * _A) * d - 4 * _A).astype(_F)


def _pixel(
    place: Places, size: int, end: tuple[np.float32, np.float32], padding: str
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The pixel at an integer coordinate, and whether it is inside the image."""
    inside = np.ones(place.shape, bool)
    if padding == "zeros":
        inside = (place >= 0) & (place <= size - 1)
    elif padding == "reflection":
        place = _reflected(place, *end)
    place = np.where(np.isfinite(place), place, 0)
    return np.clip(place, 0, size - 1).astype(np.int64), inside
