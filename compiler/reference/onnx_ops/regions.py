"""Operators on regions of images."""

from collections.abc import Sequence
from typing import Any

import numpy as np

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
