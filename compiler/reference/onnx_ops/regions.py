"""RoiAlign, MaxRoiPool and GridSample."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.reference.onnx_ops.registry import Array, OnnxNodeSpec, computes
from hw.errors import InputError

_F = np.float32
#: Limit on the number of samples along each side of a region.
_MAX_SAMPLES = 1 << 12


@computes("RoiAlign")
def _roi_align(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    """Compute RoiAlign: the mean or maximum of interpolated samples in each bin of regions (count, 4) of x."""
    x, regions, images = inputs
    mode = spec.text("mode", "avg", "avg", "max")
    half = spec.version >= 16 and (
        spec.text("coordinate_transformation_mode", "half_pixel", "half_pixel", "output_half_pixel")
        == "half_pixel"
    )
    height, width = spec.get("output_height", 1), spec.get("output_width", 1)
    ratio, scale = spec.get("sampling_ratio", 0), _F(spec.get("spatial_scale", 1.0))
    result = np.zeros((len(regions), x.shape[1], height, width), x.dtype)
    for number, (region, image) in enumerate(zip(regions, images, strict=True)):
        left, top, right, bottom = region.astype(_F) * scale - _F(0.5 if half else 0)
        rows = _samples(top, bottom, height, x.shape[2], ratio, half)
        columns = _samples(left, right, width, x.shape[3], ratio, half)
        if rows is None or columns is None:
            continue
        result[number] = _region(x[_image(image, len(x))], rows, columns, (height, width), mode)
    return (result,)


def _image(image: Any, count: int) -> int:
    if not 0 <= int(image) < count:
        raise InputError(f"a region must be of image 0..{count - 1}, not {int(image)}")
    return int(image)


def _samples(low: Any, high: Any, count: int, size: int, ratio: int, half: bool) -> list[Array] | None:
    """Return indices and weights of the two pixels around each sample along one side; None if there are no samples."""
    length = high - low if half else np.maximum(high - low, _F(1))
    each = length / _F(count)
    grid = ratio if ratio > 0 else int(np.ceil(each))
    if grid > _MAX_SAMPLES:
        raise InputError(
            f"a region of {float(length):.6g} pixels takes {grid:,} samples, more than {_MAX_SAMPLES:,}"
        )
    if grid < 1:
        return None
    bins = np.repeat(np.arange(count, dtype=_F), grid)
    positions = low + bins * each + (np.tile(np.arange(grid, dtype=_F), count) + _F(0.5)) * each / _F(grid)
    inside = (positions >= -1) & (positions <= size)
    positions = np.maximum(positions, 0)
    first = np.minimum(positions.astype(np.int64), size - 1)
    second = np.minimum(first + 1, size - 1)
    fraction = np.where(first >= size - 1, 0, positions - first).astype(_F)
    return [first, second, (1 - fraction) * inside, fraction * inside]


def _region(
    image: Array, rows: list[Array], columns: list[Array], shape: tuple[int, int], mode: str
) -> Array:
    """Return the mean or maximum of the samples in each bin of one region."""
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
def _max_roi_pool(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    """Return the maximum pixel in each bin of regions (count, 5), whose first column is the image index."""
    x, regions = inputs
    height, width = spec.get("pooled_shape", (1, 1))
    scale = _F(spec.get("spatial_scale", 1.0))
    result = np.zeros((len(regions), x.shape[1], height, width), x.dtype)
    for number, (image, *region) in enumerate(regions):
        left, top, right, bottom = (int(np.floor(_F(v) * scale + _F(0.5))) for v in region)
        source = x[_image(image, len(x))]
        for row, (y0, y1) in enumerate(_bins(top, bottom, height, x.shape[2])):
            for column, (x0, x1) in enumerate(_bins(left, right, width, x.shape[3])):
                if y1 > y0 and x1 > x0:
                    result[number, :, row, column] = source[:, y0:y1, x0:x1].max((1, 2))
    return (result,)


def _bins(first: int, last: int, count: int, size: int) -> list[tuple[int, int]]:
    """Return the first pixel of each bin along one side, and the pixel after its last one."""
    each = _F(max(last - first + 1, 1)) / _F(count)
    starts = [int(np.floor(_F(i) * each)) + first for i in range(count)]
    ends = [int(np.ceil(_F(i + 1) * each)) + first for i in range(count)]
    return [(min(max(a, 0), size), min(max(b, 0), size)) for a, b in zip(starts, ends, strict=True)]


Positions = NDArray[np.float32]
#: Number of coordinates processed at once, which bounds the memory use.
_BLOCK = 1 << 16
#: Coefficient a of cubic interpolation.
_A = _F(-0.75)


@computes("GridSample")
def _grid_sample(spec: OnnxNodeSpec, inputs: list[Any]) -> Sequence[Array]:
    """Sample x (N, C, sizes) at a grid (N, counts, dimensions), whose coordinates begin with the last dimension."""
    x, grid = inputs
    mode = spec.text("mode", "linear", "linear", "bilinear", "nearest", "cubic", "bicubic")
    padding = spec.text("padding_mode", "zeros", "zeros", "border", "reflection")
    corners = bool(spec.get("align_corners", 0))
    if grid.shape[-1] != x.ndim - 2:
        raise InputError(f"a grid for {x.ndim - 2} dimensions must end with that size, not {grid.shape[-1]}")
    result = np.empty((*x.shape[:2], math.prod(grid.shape[1:-1])), x.dtype)
    for image, positions in enumerate(grid.reshape(len(grid), -1, grid.shape[-1])):
        for first in range(0, len(positions), _BLOCK):
            block = positions[first : first + _BLOCK].astype(_F)
            result[image, :, first : first + _BLOCK] = _sampled(x[image], block, mode, padding, corners)
    return (result.reshape(*x.shape[:2], *grid.shape[1:-1]),)


def _sampled(image: Array, grid: Positions, mode: str, padding: str, corners: bool) -> Array:
    """Return samples (C, count) of one image at normalized coordinates (count, dimensions)."""
    sizes = image.shape[1:]
    positions = [_unnormalized(grid[:, -1 - i], size, corners) for i, size in enumerate(sizes)]
    if mode == "nearest":
        positions = [np.rint(position) for position in positions]
    ends = [(_F(0), _F(n - 1)) if corners else (_F(-0.5), _F(n - 0.5)) for n in sizes]
    if padding == "reflection" or (padding == "border" and "cubic" not in mode):
        positions = _moved_inside(positions, ends, sizes, padding)
    total = np.zeros((image.shape[0], len(grid)), _F)
    for taps in itertools.product(*(_taps(position, mode) for position in positions)):
        weight, where = np.ones(len(grid), _F), list[Array]()
        for (position, factor), size, end in zip(taps, sizes, ends, strict=True):
            position, inside = _pixel(position, size, end, padding)
            weight = weight * factor * inside
            where.append(position)
        total += image[(slice(None), *where)] * weight
    return total


def _unnormalized(normal: Positions, size: int, corners: bool) -> Positions:
    """Convert coordinates in -1..1 to pixel coordinates."""
    return (
        (normal + _F(1)) / _F(2) * _F(size - 1) if corners else ((normal + _F(1)) * _F(size) - _F(1)) / _F(2)
    )


def _moved_inside(
    positions: list[Positions], ends: list[tuple[np.float32, np.float32]], sizes: Sequence[int], padding: str
) -> list[Positions]:
    """Clip or reflect all coordinates of each position that is outside the image along at least one dimension."""
    pairs = list(zip(positions, ends, strict=True))
    outside = np.logical_or.reduce([(position < low) | (position > high) for position, (low, high) in pairs])
    if padding == "border":
        moved = [np.clip(position, 0, size - 1) for position, size in zip(positions, sizes, strict=True)]
    else:
        moved = [_reflected(position, *end) for position, end in pairs]
    return [np.where(outside, new, position) for new, position in zip(moved, positions, strict=True)]


def _reflected(position: Positions, low: np.float32, high: np.float32) -> Positions:
    """Reflect positions at `low` and `high` until they are between the two."""
    span = high - low
    if span <= 0:
        return np.full_like(position, low)
    beyond = np.maximum(low - position, position - high)
    times = np.trunc(beyond / span)
    rest, even, below = beyond - times * span, times % 2 == 0, position < low
    moved = np.where(even == below, low + rest, high - rest)
    return np.where(beyond > 0, moved, position).astype(_F)


def _taps(position: Positions, mode: str) -> list[tuple[Positions, Positions]]:
    """Return the pixel positions along one dimension that contribute to a sample, with their weights."""
    if mode == "nearest":
        return [(position, np.ones_like(position))]
    first = np.floor(position)
    fraction = position - first
    if mode in ("linear", "bilinear"):
        return [(first, 1 - fraction), (first + 1, fraction)]
    return [(first + i, _cubic(fraction - _F(i))) for i in range(-1, 3)]


def _cubic(distance: Positions) -> Positions:
    d = np.abs(distance)
    near = ((_A + 2) * d - (_A + 3)) * d * d + 1
    return np.where(d <= 1, near, ((_A * d - 5 * _A) * d + 8 * _A) * d - 4 * _A).astype(_F)


def _pixel(
    position: Positions, size: int, end: tuple[np.float32, np.float32], padding: str
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the index of the pixel at an integer coordinate, and a mask that is False outside the image."""
    inside = np.ones(position.shape, bool)
    if padding == "zeros":
        inside = (position >= 0) & (position <= size - 1)
    elif padding == "reflection":
        position = _reflected(position, *end)
    position = np.where(np.isfinite(position), position, 0)
    return np.clip(position, 0, size - 1).astype(np.int64), inside
