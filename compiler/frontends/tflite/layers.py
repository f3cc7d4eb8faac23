"""Conversion of TFLite layers: convolutions, dense layers, products, pools, softmax, reductions, resizing."""

from typing import Any

import numpy as np
import tflite

from compiler.frontends.builder import same_pads
from compiler.frontends.tflite.registry import TfliteConversion, converts
from compiler.ir.tensor import Quantization, Tensor


def window(
    c: TfliteConversion,
    x: Tensor,
    kernel: tuple[int, int],
    channels: int,
    options: Any,
    dilations: tuple[int, int] = (1, 1),
) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """Return the strides and pads of a window over images, after checking the output's shape and its `channels`."""
    strides = (options.StrideH(), options.StrideW())
    if len(x.shape) != 4 or min(*strides, *dilations, *kernel) < 1:
        raise c.error(f"no window {kernel} by {strides} over shape {list(x.shape)}")
    valid = options.Padding() == tflite.Padding.VALID
    edges, sizes = [], []
    for size, k, stride, dilation in zip(x.shape[1:3], kernel, strides, dilations, strict=True):
        extent = (k - 1) * dilation
        sizes.append(-(-(size - extent * valid) // stride))
        edges.append((0, 0) if valid else same_pads(size, k, stride, dilation))
    c.expect((x.shape[0], *sizes, channels))
    (top, bottom), (left, right) = edges
    return strides, (top, left, bottom, right)


def _bias(c: TfliteConversion, x: Tensor, weights: Tensor, bias: Tensor, count: int) -> Tensor:
    """Return a constant bias; a bias without a quantization gets the scale of the products of x and weights."""
    if bias.data is None or bias.shape != (count,):
        raise c.error(f"its bias must be {count} constants, not shape {list(bias.shape)}")
    if bias.quantization is not None or x.quantization is None or weights.quantization is None:
        return bias
    scales = tuple(
        float(np.float32(x.quantization.scale[0]) * np.float32(s)) for s in weights.quantization.scale
    )
    meaning = Quantization(scales, (0,) * len(scales), 0 if len(scales) > 1 else None)
    return c.build.constant(f"{bias.name}:scaled", bias.data, meaning)


@converts("CONV_2D")
def _conv(c: TfliteConversion) -> None:
    options = c.options(tflite.Conv2DOptions)
    x, weights, *bias = c.given(2)
    dilations = (options.DilationHFactor(), options.DilationWFactor())
    if len(weights.shape) != 4 or not x.shape or x.shape[-1] % weights.shape[3]:
        raise c.error(f"weights {list(weights.shape)} do not fit x {list(x.shape)}")
    strides, pads = window(c, x, weights.shape[1:3], weights.shape[0], options, dilations)
    biases = [_bias(c, x, weights, b, weights.shape[0]) for b in bias]
    c.make_activated(
        "conv2d",
        [x, weights, *biases],
        options.FusedActivationFunction(),
        strides=strides,
        pads=pads,
        dilations=dilations,
        groups=x.shape[-1] // weights.shape[3],
    )


@converts("DEPTHWISE_CONV_2D")
def _depthwise(c: TfliteConversion) -> None:
    options = c.options(tflite.DepthwiseConv2DOptions)
    x, weights, *bias = c.given(2)
    dilations = (options.DilationHFactor(), options.DilationWFactor())
    if len(weights.shape) != 4 or weights.data is None or not x.shape or weights.shape[3] % x.shape[-1]:
        raise c.error(f"weights {list(weights.shape)} do not fit x {list(x.shape)}")
    strides, pads = window(c, x, weights.shape[1:3], weights.shape[3], options, dilations)
    attributes: dict[str, Any] = {"strides": strides, "pads": pads, "dilations": dilations}
    q = weights.quantization
    if weights.shape[3] == x.shape[-1]:
        op, data, axis = "depthwise_conv2d", weights.data[0], 2
    else:  # several outputs per channel require a grouped convolution
        op, data, axis = "conv2d", weights.data.transpose(3, 1, 2, 0), 0
        attributes |= {"groups": x.shape[-1]}
    filter_q = None if q is None else Quantization(q.scale, q.zero_point, None if q.whole else axis)
    filters = c.build.constant(f"{weights.name}:filters", data, filter_q)
    biases = [_bias(c, x, weights, b, weights.shape[3]) for b in bias]
    c.make_activated(op, [x, filters, *biases], options.FusedActivationFunction(), **attributes)


@converts("TRANSPOSE_CONV")
def _transposed(c: TfliteConversion) -> None:
    """Convert a transposed convolution, with the padding of the convolution that maps its output to its input.

    The first operand, which gives the output's shape, is ignored, because the output tensor already has a shape.
    """
    options = c.options(tflite.TransposeConvOptions)
    _, weights, x, *bias = c.given(3)
    y, strides = c.output, (options.StrideH(), options.StrideW())
    if len(weights.shape) != 4 or len(x.shape) != 4 or weights.shape[3] != x.shape[3] or min(strides) < 1:
        raise c.error(f"weights {list(weights.shape)} by {strides} do not fit x {list(x.shape)}")
    if len(y.shape) != 4 or (y.shape[0], y.shape[3]) != (x.shape[0], weights.shape[0]):
        raise c.error(f"cannot make {list(y.shape)} of {list(x.shape)} with weights {list(weights.shape)}")
    edges = []
    for axis, stride in zip((1, 2), strides, strict=True):
        size = y.shape[axis]
        extent = (x.shape[axis] - 1) * stride + weights.shape[axis]
        sizes = -(-size // stride), -(-(size - weights.shape[axis] + 1) // stride)
        if x.shape[axis] != sizes[options.Padding() == tflite.Padding.VALID]:
            raise c.error(f"{size} pixels along axis {axis} do not come from {x.shape[axis]} by {stride}")
        before = max(extent - size, 0) // 2
        edges.append((before, max(extent - size, 0) - before, max(size - extent, 0)))
    (top, bottom, extra_rows), (left, right, extra_columns) = edges
    biases = [_bias(c, x, weights, b, weights.shape[0]) for b in bias]
    c.make_activated(
        "conv_transpose2d",
        [x, weights, *biases],
        options.FusedActivationFunction(),
        strides=strides,
        pads=(top, left, bottom, right),
        dilations=(1, 1),
        groups=1,
        output_pads=(extra_rows, extra_columns),
    )


@converts("FULLY_CONNECTED")
def _dense(c: TfliteConversion) -> None:
    options = c.options(tflite.FullyConnectedOptions)
    x, weights, *bias = c.given(2)
    if len(weights.shape) != 2 or x.elements % weights.shape[1]:
        raise c.error(f"weights {list(weights.shape)} do not fit x {list(x.shape)}")
    rows = (x.elements // weights.shape[1], weights.shape[1])
    if x.shape != rows and x.shape[-1:] != weights.shape[1:]:
        x = c.reshaped("rows", x, rows)
    shape, output = (*x.shape[:-1], weights.shape[0]), c.output
    operands = [x, weights, *(_bias(c, x, weights, b, weights.shape[0]) for b in bias)]
    if shape == output.shape:
        c.make_activated("dense", operands, options.FusedActivationFunction())
        return
    flat = c.build.between(output, f"{output.name}:rows", shape)
    c.make_activated("dense", operands, options.FusedActivationFunction(), flat)
    if flat.elements != output.elements:
        raise c.error(f"makes shape {list(shape)}, but {output.name!r} is {list(output.shape)}")
    c.build.node(f"{c.operator.name}:shape", "reshape", [flat], output, shape=output.shape)


@converts("BATCH_MATMUL")
def _batch_matmul(c: TfliteConversion) -> None:
    """Convert to a dense node if the second operand is one constant float32 matrix, otherwise to a matrix product."""
    options = c.options(tflite.BatchMatMulOptions)
    a, b = c.given(2)[:2]
    if min(len(a.shape), len(b.shape)) < 2:
        raise c.error(f"{list(a.shape)} and {list(b.shape)} are not stacks of matrices")
    if options.AdjX():
        a = _transposed_matrices(c, a, "first")
    weights = b.data is not None and b.dtype == "float32" and b.elements == b.shape[-1] * b.shape[-2]
    if options.AdjY() and not weights:
        b = _transposed_matrices(c, b, "second")
    k, n = b.shape[-2:][:: -1 if options.AdjY() and weights else 1]
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        batch = None
    if batch is None or a.shape[-1] != k:
        raise c.error(f"shapes {list(a.shape)} and {list(b.shape)} cannot be multiplied")
    c.expect((*batch, a.shape[-2], n))
    if weights and b.data is not None and len(b.shape) <= len(a.shape):
        matrix = b.data.reshape(b.shape[-2:])
        flat = matrix if options.AdjY() else np.ascontiguousarray(matrix.T)
        c.make("dense", [a, c.build.constant(f"{b.name}:matrix", flat)])
        return
    c.make("matmul", [a, b])


def _transposed_matrices(c: TfliteConversion, x: Tensor, part: str) -> Tensor:
    """Return a stack of matrices with each matrix transposed."""
    rank = len(x.shape)
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return c.step(part, "transpose", [x], tuple(x.shape[i] for i in perm), perm=perm)


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
