"""TFLite image resizing."""

import numpy as np
import tflite

from compiler.frontends.tflite.registry import TfliteConversion, converts


@converts("RESIZE_NEAREST_NEIGHBOR")
def _nearest(c: TfliteConversion) -> None:
    """LiteRT computes positions in float32: where that matters, or corners are aligned, rows are gathered."""
    options = c.options(tflite.ResizeNearestNeighborOptions)
    x, given = c.given(2)[:2]
    height, width = size = c.numbers(given, "size", 2)
    if len(x.shape) != 4 or min(size) < 1:
        raise c.error(f"cannot make {list(size)} pixels of {list(x.shape)}")
    c.expect((x.shape[0], height, width, x.shape[3]))
    centers = bool(options.HalfPixelCenters())
    lines = [
        _sources(total, wanted, corners=bool(options.AlignCorners()), centers=centers)
        for total, wanted in zip(x.shape[1:3], size, strict=True)
    ]
    exact = [
        (2 * np.arange(wanted) + int(centers)) * total // (2 * wanted)
        for total, wanted in zip(x.shape[1:3], size, strict=True)
    ]
    if all(map(np.array_equal, lines, exact)):
        c.make("resize_nearest", [x], size=size, centers=centers)
        return
    c.make_rows(x, [(axis, line.tolist()) for axis, line in enumerate(lines, 1)])


def _sources(total: int, wanted: int, *, corners: bool, centers: bool) -> np.ndarray:
    """The pixel of `total` that each of `wanted` shows, in LiteRT's arithmetic."""
    ratio = np.float32(total) / np.float32(wanted)
    if corners and wanted > 1:
        ratio = np.float32(total - 1) / np.float32(wanted - 1)
    places = (np.arange(wanted, dtype=np.float32) + np.float32(0.5 if centers else 0)) * ratio
    whole = np.floor(places + np.float32(0.5)) if corners else np.floor(places)
    return np.clip(whole.astype(np.int64), 0, total - 1)
