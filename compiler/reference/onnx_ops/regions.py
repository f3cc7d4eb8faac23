"""Operators on regions of images, and GridSample."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.reference.onnx_ops.registry import Array, Asked, computes
from hw.errors import InputError

_F = np.float32
#: A region may be sampled in so many places along each side.
_MOST = 1 << 12


@computes("RoiAlign")
def _roi_align(asked: Asked, inputs: list[Any]) -> Sequence[Array]:
    """Regions (count, 4) of images x, each in pooled rows and columns of samples between the pixels."""
    x, regions, images = inputs
    mode = asked.text("mode", "avg", "avg", "max")
    half = asked.version >= 16 and (
        asked.text("coordinate_transformation_mode", "half_pixel", "half_pixel", "output_half_pixel")
        == "half_pixel"
    )
    height, width = asked.get("output_height", 1), asked.get("output_width", 1)
    ratio, scale = asked.get("sampling_ratio", 0), _F(asked.get("spatial_scale", 1.0))
    made = np.zeros((len(regions), x.shape[1], height, width), x.dtype)
    for number, (region, image) in enumerate(zip(regions, images, strict=True)):
        left, top, right, bottom = region.astype(_F) * scale - _F(0.5 if half else 0)
        rows = _samples(top, bottom, height, x.shape[2], ratio, half)
        columns = _samples(left, right, width, x.shape[3], ratio, half)
        if rows is None or columns is None:
            continue
        made[number] = _region(x[_image(image, len(x))], rows, columns, (height, width), mode)
    return (made,)


def _image(image: Any, count: int) -> int:
    if not 0 <= int(image) < count:
        raise InputError(f"a region must be of image 0..{count - 1}, not {int(image)}")
    return int(image)


def _samples(low: Any, high: Any, count: int, size: int, ratio: int, half: bool) -> list[Array] | None:
    """Along one side: the pixels before and behind each sample, and their weights; None if there are no samples."""
    length = high - low if half else np.maximum(high - low, _F(1))
    each = length / _F(count)
    grid = ratio if ratio > 0 else int(np.ceil(each))
    if grid > _MOST:
        raise InputError(
            f"a region of {float(length):.6g} pixels takes {grid:,} samples; {_MOST:,} are the most"
        )
    if grid < 1:
        return None
    bins = np.repeat(np.arange(count, dtype=_F), grid)
    places = low + bins * each + (np.tile(np.arange(grid, dtype=_F), count) + _F(0.5)) * each / _F(grid)
    inside = (places >= -1) & (places <= size)
    places = np.maximum(places, 0)
    first = np.minimum(places.astype(np.int64), size - 1)
    second = np.minimum(first + 1, size - 1)
    part = np.where(first >= size - 1, 0, places - first).astype(_F)
    return [first, second, (1 - part) * inside, part * inside]


def _region(
    image: Array, rows: list[Array], columns: list[Array], shape: tuple[int, int], mode: str
) -> Array:
    """One region: the mean or the greatest of the samples of each bin."""
    parts = [
        image[:, rows[i][:, None], columns[j]] * (rows[i + 2][:, None] * columns[j + 2])
        for i in (0, 1)
        for j in (0, 1)
    ]
    height, width = shape
    samples = np.sum(parts, 0) if mode == "avg" else np.max(parts, 0)
    bins = samples.reshape(image.shape[0], height, len(rows[0]) // height, width, len(columns[0]) // width)
    return bins.mean((2, 4)) if mode == "avg" else bins.max((2, 4))


@computes("MaxRoiPool")
def _max_roi_pool(asked: Asked, inputs: list[Any]) -> Sequence[Array]:
    """The greatest pixel in each of pooled rows and columns of regions (count, 5), the image first."""
    x, regions = inputs
    height, width = asked.get("pooled_shape", (1, 1))
    scale = _F(asked.get("spatial_scale", 1.0))
    made = np.zeros((len(regions), x.shape[1], height, width), x.dtype)
    for number, (image, *region) in enumerate(regions):
        left, top, right, bottom = (int(np.floor(_F(v) * scale + _F(0.5))) for v in region)
        source = x[_image(image, len(x))]
        for row, (y0, y1) in enumerate(_bins(top, bottom, height, x.shape[2])):
            for column, (x0, x1) in enumerate(_bins(left, right, width, x.shape[3])):
                if y1 > y0 and x1 > x0:
                    made[number, :, row, column] = source[:, y0:y1, x0:x1].max((1, 2))
    return (made,)


def _bins(first: int, last: int, count: int, size: int) -> list[tuple[int, int]]:
    """The pixels of each bin along one side."""
    each = _F(max(last - first + 1, 1)) / _F(count)
    starts = [int(np.floor(_F(i) * each)) + first for i in range(count)]
    ends = [int(np.ceil(_F(i + 1) * each)) + first for i in range(count)]
    return [(min(max(a, 0), size), min(max(b, 0), size)) for a, b in zip(starts, ends, strict=True)]


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
