"""Steps that add elementwise functions, pooling, or functions of rows to a random graph."""

import math
from typing import Any

import numpy as np

from compiler.ir.tensor import Quantization, Tensor
from tests.support.strategies.array_operators import window
from tests.support.strategies.graph_builder import PROBABILITY, GraphBuilder, Shape

#: Elementwise functions, each with the attributes to choose from.
UNARY: dict[str, list[dict]] = {
    "clip": [{"low": 0.0, "high": math.inf}, {"low": 0.0, "high": 6.0}, {"low": -0.7, "high": 1.3}],
    "leaky_relu": [{"alpha": 0.125}, {"alpha": 0.3}],
    "sigmoid": [{}],
    "tanh": [{}],
    "hard_swish": [{}],
    "silu": [{}],
    "exp": [{}],
    "requantize": [{}],
    "abs": [{}],
    "log": [{}],
    "sqrt": [{}],
    "rsqrt": [{}],
    "gelu": [{"tanh": False}, {"tanh": True}],
    "elu": [{"alpha": 1.0}],
    "softplus": [{}],
    "mish": [{}],
}


def unary(g: GraphBuilder) -> Tensor:
    """Add an elementwise function; a clip usually keeps the quantization, so that it is fused into its producer."""
    x, op = g.rows(), g.choose((*UNARY, "prelu"))
    if op == "prelu":
        slopes = g.rng.integers(-128, 128, g.choose((x.shape[-1], 1))).astype(np.int8)
        return g.made(op, [x, g.held(slopes, Quantization.per_tensor(0.01))], x.shape, within=1, share=0.2)
    kept = op == "clip" and g.chance()
    return g.made(op, [x], x.shape, like=x if kept else None, **g.choose(UNARY[op]))


def binary(g: GraphBuilder) -> Tensor:
    """Add a sum, difference or product of two activations, or of an activation and a constant."""
    x, op = g.rows(), g.choose(("add", "add", "mul", "sub"))
    other = _second(g, x, op)
    # At ties, rounding a * -b differs from negating the rounded a * b.
    inexact = op != "mul" and (op == "sub" or g.rounding == "onnxruntime")
    operands = [other, x] if op != "sub" and g.chance() else [x, other]
    return g.made(op, operands, x.shape, within=int(inexact))


def _second(g: GraphBuilder, x: Tensor, op: str) -> Tensor:
    """Return a second operand: of the same shape, per channel, scalar or, for products, per pixel."""
    shapes: list[Shape] = [x.shape, x.shape, x.shape, x.shape[-1:]]
    shapes += [(*x.shape[:-1], 1)] if op == "mul" else []
    shape = g.choose(shapes)
    if g.chance():
        return g.any(lambda t: t.shape == shape and t.dtype == x.dtype, lambda: shape)
    shape = g.choose((shape[-1:], ()))
    limits = np.iinfo(x.dtype)
    data = np.asarray(g.rng.integers(limits.min, limits.max + 1, shape)).astype(x.dtype)
    return g.held(data, g.quantization(g.scale(), x.dtype))


def pool(g: GraphBuilder) -> Tensor:
    """Add maximum or average pooling."""
    x = g.image()
    n, h, w, c = x.shape
    if g.choose((0, 0, 1)):
        kernel, out = (h, w), (1, 1)
        attributes: dict[str, Any] = {"strides": (1, 1), "pads": (0,) * 4}
    else:
        kernel, attributes, out = window(g, (h, w), dilated=False)
    if g.chance():
        return g.made("max_pool2d", [x], (n, *out, c), like=x, kernel=kernel, **attributes)
    # LiteRT averages stored integers. onnxruntime averages dequantized values, into any quantization if all taps
    # count.
    real = g.rounding == "onnxruntime"
    counted = real and g.chance()
    like = None if real and (counted or not any(attributes["pads"])) and g.chance() else x
    # The last bits of dequantized float32 values decide ties; with four taps a quarter of the averages are ties.
    return g.made(
        "avg_pool2d",
        [x],
        (n, *out, c),
        like=like,
        within=int(real),
        share=0.5,
        kernel=kernel,
        **attributes,
        count_pads=counted,
    )


def reduction(g: GraphBuilder) -> Tensor:
    """Add a reduction over random axes."""
    x = g.rows()
    rank = len(x.shape)
    axes = tuple(sorted({g.whole(0, rank - 1) for _ in range(g.whole(1, rank))}))
    keep = g.chance() or len(axes) == rank
    shape = tuple(1 if i in axes else size for i, size in enumerate(x.shape) if keep or i not in axes)
    op = g.choose(("mean", "sum", "max", "min"))
    like = x if op in ("max", "min") and g.chance() else None
    return g.made(f"reduce_{op}", [x], shape, like=like, axes=axes, keep=keep)


def cumsum(g: GraphBuilder) -> Tensor:
    """Add a cumulative sum along an axis."""
    x = g.rows()
    axis = g.whole(0, len(x.shape) - 1)
    return g.made("cumsum", [x], x.shape, axis=axis, exclusive=g.chance(), reverse=g.chance())


def softmax(g: GraphBuilder) -> Tensor:
    """Add a softmax along the last axis; its output has the scale 1/256, as in LiteRT, or a random one."""
    x = g.any(lambda t: len(t.shape) > 1, lambda: (g.size(9), g.size(40)))
    q = g.choose((PROBABILITY, None))
    return g.made("softmax", [x], x.shape, q=q, within=1, axis=len(x.shape) - 1, beta=1.0)


def norm(g: GraphBuilder) -> Tensor:
    """Add a layer or RMS normalization of rows."""
    x = g.any(lambda t: t.shape[-1:] > (1,), lambda: (g.size(9), 1 + g.size(60)))
    op, columns = g.choose(("layer_norm", "rms_norm")), x.shape[-1]
    rows = [g.rng.normal(1, 0.4, columns), g.rng.normal(0, 0.5, columns)][: 1 + (op == "layer_norm")]
    operands = [x, *(g.held(row.astype(np.float32), None) for row in rows[: g.whole(0, len(rows))])]
    # Constant rows produce ties, since values equal beta or repeat.
    return g.made(op, operands, x.shape, within=1, share=0.2, axis=len(x.shape) - 1, epsilon=1e-5)


FUNCTIONS = {
    "unary": unary,
    "binary": binary,
    "pool": pool,
    "reduction": reduction,
    "cumsum": cumsum,
    "softmax": softmax,
    "norm": norm,
}
