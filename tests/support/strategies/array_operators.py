"""Steps that add convolutions, dense layers and matrix products to a random graph."""

import math

import numpy as np

from compiler.ir.tensor import Quantization, Tensor
from tests.support.strategies.graph_builder import MOST, GraphBuilder, Shape


def _weights(g: GraphBuilder, shape: Shape, channels: int | None) -> Tensor:
    """Return weights with a scale for each channel along an axis, or with one scale and a random zero point."""
    if channels is None:
        dtype = g.dtype()
        limits = np.iinfo(dtype)
        data = g.rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
        middle = (limits.min + limits.max + 1) // 2
        return g.held(data, Quantization.per_tensor(g.scale(), middle + g.choose((0, 3, -70))))
    scales = g.rng.uniform(0.001, 0.02, shape[channels])
    if g.chance():
        scales = 2.0 ** np.rint(np.log2(scales))
    meaning = tuple(float(np.float32(s)) for s in scales)
    data = g.rng.integers(-127, 128, shape).astype(np.int8)
    return g.held(data, Quantization(meaning, (0,) * len(meaning), channels))


def _operands(g: GraphBuilder, x: Tensor, weights: Tensor, channels: int, axis: int) -> list[Tensor]:
    """Return x, the weights and, at random, a bias."""
    if g.chance():
        return [x, weights]
    assert x.quantization is not None and weights.quantization is not None
    scales = np.float32(x.quantization.scale[0]) * np.array(weights.quantization.scale, np.float32)
    steps = g.rng.integers(-3000, 3000, channels).astype(np.int32)
    whole = len(scales) == 1
    return [
        x,
        weights,
        g.held(
            steps, Quantization(tuple(float(s) for s in scales), (0,) * len(scales), None if whole else axis)
        ),
    ]


def window(g: GraphBuilder, sizes: Shape, *, dilated: bool, most: int = 4) -> tuple[Shape, dict, Shape]:
    """Return kernel, attributes and output size of random windows over an image of the given size."""
    kernel, strides, dilations, before, after, out = [], [], [], [], [], []
    for size in sizes:
        k, d = g.whole(1, most), g.choose((1, 1, 2, 3)) if dilated else 1
        reach = (k - 1) * d + 1
        lead, trail = g.whole(0, reach - 1), g.whole(0, reach - 1)
        if size + lead + trail < reach:
            lead = trail = reach - 1
        s = g.choose((1, 1, 2, 3))
        for part, value in zip(
            (kernel, strides, dilations, before, after, out),
            (k, s, d, lead, trail, (size + lead + trail - reach) // s + 1),
            strict=True,
        ):
            part.append(value)
    attributes = {"strides": tuple(strides), "pads": (*before, *after)}
    return tuple(kernel), attributes | ({"dilations": tuple(dilations)} if dilated else {}), tuple(out)


def conv(g: GraphBuilder) -> Tensor:
    """Add a convolution in one or more groups."""
    x = g.image()
    n, h, w, c = x.shape
    kernel, attributes, out = window(g, (h, w), dilated=True)
    groups = g.choose([k for k in (1, 1, 1, 2, 3, c) if c % k == 0])
    outputs = groups * g.size(max(20 // groups, 1))
    zero = groups == 1 and g.chance()
    weights = _weights(g, (outputs, *kernel, c // groups), None if zero else 0)
    operands = _operands(g, x, weights, outputs, 0)
    return g.made("conv2d", operands, (n, *out, outputs), groups=groups, **attributes)


def conv_1d(g: GraphBuilder) -> Tensor:
    """Add a convolution over one dimension in the form that front ends produce: on an image with a single row."""
    x = g.line()
    n, w, c = x.shape
    line = g.made("reshape", [x], (n, 1, w, c), like=x, shape=(n, 1, w, c))
    (kernel,), a, (out,) = window(g, (w,), dilated=True)
    groups, outputs = g.choose([k for k in (1, 1, 2) if c % k == 0]), 2 * g.size(10)
    weights = _weights(g, (outputs, 1, kernel, c // groups), 0)
    lead, trail = a["pads"]
    y = g.made(
        "conv2d",
        _operands(g, line, weights, outputs, 0),
        (n, 1, out, outputs),
        groups=groups,
        strides=(1, *a["strides"]),
        dilations=(1, *a["dilations"]),
        pads=(0, lead, 0, trail),
    )
    return g.made("reshape", [y], (n, out, outputs), like=y, shape=(n, out, outputs))


def depthwise(g: GraphBuilder) -> Tensor:
    """Add a depthwise convolution."""
    x = g.image()
    n, h, w, c = x.shape
    kernel, attributes, out = window(g, (h, w), dilated=True)
    weights = _weights(g, (*kernel, c), 2)
    return g.made("depthwise_conv2d", _operands(g, x, weights, c, 0), (n, *out, c), **attributes)


def conv_transpose(g: GraphBuilder) -> Tensor:
    """Add a transposed convolution."""
    x = g.image()
    n, *sizes, c = x.shape
    groups = g.choose([k for k in (1, 1, 2) if c % k == 0])
    outputs = groups * g.size(8)
    kernel, strides, dilations = (tuple(g.whole(1, most) for _ in sizes) for most in (4, 3, 2))
    extra = tuple(g.whole(0, stride - 1) for stride in strides)
    full = [
        (size - 1) * s + (k - 1) * d + 1 + more
        for size, s, k, d, more in zip(sizes, strides, kernel, dilations, extra, strict=True)
    ]
    before, after = ([g.whole(0, min(2, (size - 1) // 2)) for size in full] for _ in range(2))
    out = [size - a - b for size, a, b in zip(full, before, after, strict=True)]
    operands = _operands(g, x, _weights(g, (outputs, *kernel, c // groups), 0), outputs, 0)
    return g.made(
        "conv_transpose2d",
        operands,
        (n, *out, outputs),
        groups=groups,
        strides=strides,
        dilations=dilations,
        pads=(*before, *after),
        output_pads=extra,
    )


def dense(g: GraphBuilder) -> Tensor:
    """Add a product with constants."""
    x = g.rows()
    outputs = g.size(24)
    weights = _weights(g, (outputs, x.shape[-1]), 0 if g.chance() else None)
    return g.made("dense", _operands(g, x, weights, outputs, 0), (*x.shape[:-1], outputs))


def matmul(g: GraphBuilder) -> Tensor:
    """Add a product of two activations; the right operand may also be a constant or a transpose of an existing
    tensor.
    """
    x = g.any(
        lambda t: len(t.shape) > 1 and math.prod(t.shape[:-1]) * 24 < MOST,
        lambda: (*(g.size(3) for _ in range(g.whole(0, 2))), g.size(12), g.size(24)),
    )
    *lead, m, k = x.shape
    n = g.size(24)
    lead = [g.choose((size, 1)) for size in lead][g.whole(0, len(lead)) :]
    if g.chance():
        other = g.given((*lead, n, k))
        perm = (*range(len(lead)), len(lead) + 1, len(lead))
        other = g.made("transpose", [other], (*lead, k, n), like=other, perm=perm)
    elif g.chance():
        other = _weights(g, (*lead, k, n), None)
    else:
        other = g.given((*lead, k, n))
    return g.made("matmul", [x, other], (*x.shape[:-2], m, n))


SUMS = {
    "conv": conv,
    "conv_1d": conv_1d,
    "depthwise": depthwise,
    "conv_transpose": conv_transpose,
    "dense": dense,
    "matmul": matmul,
}
