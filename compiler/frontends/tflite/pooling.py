"""Conversion of TFLite pooling, softmax, reductions and resizing."""

from typing import Any

import numpy as np
import tflite

from compiler.frontends.tflite.convolution import window
from compiler.frontends.tflite.registry import TfliteConversion, converts

_REDUCTIONS = {
    "SUM": "reduce_sum",
    "MEAN": "reduce_mean",
    "REDUCE_MAX": "reduce_max",
    "REDUCE_MIN": "reduce_min",
}


@converts("AVERAGE_POOL_2D", "MAX_POOL_2D", stored=True)
def _pool(c: TfliteConversion) -> None:
    options = c.options(tflite.Pool2DOptions)
    x = c.given(1)[0]
    kernel = (options.FilterHeight(), options.FilterWidth())
    strides, pads = window(c, x, kernel, x.shape[-1] if x.shape else 0, options)
    attributes: dict[str, Any] = {"kernel": kernel, "strides": strides, "pads": pads}
    if c.kind == "AVERAGE_POOL_2D":
        attributes["count_pads"] = False
    op = "avg_pool2d" if c.kind == "AVERAGE_POOL_2D" else "max_pool2d"
    c.make_activated(op, [x], options.FusedActivationFunction(), **attributes)


@converts("SOFTMAX")
def _softmax(c: TfliteConversion) -> None:
    x = c.given(1)[0]
    c.expect(x.shape)
    if not x.shape:
        raise c.error("a scalar has no softmax")
    beta = float(c.options(tflite.SoftmaxOptions).Beta())
    c.make("softmax", [x], axis=len(x.shape) - 1, beta=beta)


@converts(*_REDUCTIONS)
def _reduce(c: TfliteConversion) -> None:
    x, axes = c.given(2)[:2]
    keep = bool(c.options(tflite.ReducerOptions).KeepDims())
    rank = len(x.shape)
    reduced = tuple(dict.fromkeys(c.axis(axis, rank) for axis in c.numbers(axes, "axes")))
    shape = [1 if i in reduced else size for i, size in enumerate(x.shape) if keep or i not in reduced]
    c.expect(shape)
    if c.kind in ("REDUCE_MAX", "REDUCE_MIN"):
        c.expect_equal_scales(x, c.output)
    c.make(_REDUCTIONS[c.kind], [x], axes=reduced, keep=keep)


@converts("CUMSUM")
def _cumulated(c: TfliteConversion) -> None:
    x, along = c.given(2)[:2]
    options = c.options(tflite.CumsumOptions)
    c.expect(x.shape)
    axis = c.axis(c.numbers(along, "axis", 1)[0], len(x.shape))
    c.make("cumsum", [x], axis=axis, exclusive=bool(options.Exclusive()), reverse=bool(options.Reverse()))


@converts("RESIZE_NEAREST_NEIGHBOR", stored=True)
def _nearest(c: TfliteConversion) -> None:
    """Convert nearest-neighbor resizing; use gathers if LiteRT's float32 positions differ from the exact ones."""
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


@converts("RESIZE_BILINEAR", stored=True)
def _bilinear(c: TfliteConversion) -> None:
    options = c.options(tflite.ResizeBilinearOptions)
    x, given = c.given(2)[:2]
    size = c.numbers(given, "size", 2)
    if len(x.shape) != 4 or min(size) < 1:
        raise c.error(f"cannot make {list(size)} pixels of {list(x.shape)}")
    c.expect((x.shape[0], *size, x.shape[3]))
    if x.quantization is None and x.dtype != "float32":
        raise c.error(f"is supported for float32 and quantized tensors only, not {x.dtype}")
    corners, centers = bool(options.AlignCorners()), bool(options.HalfPixelCenters())
    c.make("resize_bilinear", [x], size=size, corners=corners, centers=centers)


def _sources(total: int, wanted: int, *, corners: bool, centers: bool) -> np.ndarray:
    """Return the source, among `total` pixels, of each of `wanted` pixels, in LiteRT's float32 arithmetic."""
    ratio = np.float32(total) / np.float32(wanted)
    if corners and wanted > 1:
        ratio = np.float32(total - 1) / np.float32(wanted - 1)
    positions = (np.arange(wanted, dtype=np.float32) + np.float32(0.5 if centers else 0)) * ratio
    indices = np.floor(positions + np.float32(0.5)) if corners else np.floor(positions)
    return np.clip(indices.astype(np.int64), 0, total - 1)
