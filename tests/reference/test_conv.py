"""Quantized convolutions, dense layers, products and pools on the host equal LiteRT with either rounding.

Every other trial has scales that are powers of two, so that ties are frequent.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from compiler.frontends.builder import same_pads
from compiler.ir.tensor import Quantization, Tensor
from tests.support.one_operator import RESOLVERS, OneOperator, constant, options, quantized, scale_of

OPERATOR = schema.BuiltinOperator
TRIALS = 20
Rng = np.random.Generator
Case = Callable[[Rng, str, bool], OneOperator]


class Window:
    """A random window with SAME or VALID padding and a non-empty output."""

    def __init__(self, rng: Rng, *, dilated: bool = True, one_stride: bool = False):
        while True:
            self.size = [int(s) for s in rng.integers(1, 12, 2)]
            self.kernel = tuple(int(k) for k in rng.integers(1, 5, 2))
            self.strides = tuple(int(s) for s in rng.integers(1, 4, 2))
            if one_stride:
                self.strides = (self.strides[0],) * 2
            self.dilations = (1, 1)
            if dilated and self.strides == (1, 1) and rng.integers(2):
                self.dilations = tuple(int(d) for d in rng.integers(1, 4, 2))
            self.same = bool(rng.integers(2))
            parts = list(zip(self.size, self.kernel, self.strides, self.dilations, strict=True))
            sides = [same_pads(*part) if self.same else (0, 0) for part in parts]
            self.out = [
                (size + sum(side) - (k - 1) * d - 1) // stride + 1
                for (size, k, stride, d), side in zip(parts, sides, strict=True)
            ]
            self.pads = (sides[0][0], sides[1][0], sides[0][1], sides[1][1])
            if min(self.out) > 0:
                return

    @property
    def fields(self) -> dict[str, Any]:
        """Return the options of a TFLite operator."""
        return {"padding": int(not self.same), "strideH": self.strides[0], "strideW": self.strides[1]}

    @property
    def dilated_fields(self) -> dict[str, Any]:
        """Return the options of a TFLite operator with dilations."""
        return self.fields | {"dilationHFactor": self.dilations[0], "dilationWFactor": self.dilations[1]}

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the attributes of a graph node."""
        return {"strides": self.strides, "pads": self.pads, "dilations": self.dilations}


def weights_of(
    rng: Rng, x: Tensor, shape: tuple[int, ...], axis: int, terms: int, ties: bool, *, channels: bool = True
) -> tuple[Tensor, Tensor, float]:
    """Return weights, a bias for each index of `axis`, and an output scale for which most sums are in range."""
    count = shape[axis]
    scales = 2.0 ** rng.integers(-9, -5, count) if ties else rng.uniform(0.002, 0.02, count)
    if x.dtype == "uint8" or not channels:
        zero = int(rng.integers(0, 256)) if x.dtype == "uint8" else 0
        q = Quantization.per_tensor(scales[0], zero)
    else:
        q = Quantization(tuple(float(s) for s in scales.astype(np.float32)), (0,) * count, axis)
    dtype = "uint8" if x.dtype == "uint8" else "int8"
    values = rng.integers(*((0, 256) if dtype == "uint8" else (-127, 128)), shape).astype(dtype)
    products = tuple(float(np.float32(scale_of(x)) * np.float32(s)) for s in q.scale)
    meaning = Quantization(products, (0,) * len(products), 0 if len(products) > 1 else None)
    wide = np.int64 if x.dtype == "int16" else np.int32
    bias = rng.integers(-200 * terms, 200 * terms + 1, count).astype(wide)
    greatest = 127 if x.dtype == "int16" else 1
    scale = scale_of(x) * float(np.mean(q.scale)) * 74 * 74 * np.sqrt(terms) / 60
    return (
        constant("w", values, q),
        constant("b", bias, meaning),
        scale * greatest / (257 if greatest > 1 else 1),
    )


def conv(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    window, groups = Window(rng), int(rng.choice([1, 1, 2])) if dtype != "uint8" else 1
    in_c, out_c = (groups * int(c) for c in rng.integers(1, 12, 2))
    x = quantized(rng, "x", (2, *window.size, in_c), dtype, ties=ties)
    terms = window.kernel[0] * window.kernel[1] * in_c // groups
    weights, bias, scale = weights_of(rng, x, (out_c, *window.kernel, in_c // groups), 0, terms, ties)
    y = quantized(rng, "y", (2, *window.out, out_c), dtype, ties=ties, scale=scale)
    return OneOperator(
        OPERATOR.CONV_2D,
        options("Conv2D", **window.dilated_fields),
        "conv2d",
        [x],
        y,
        window.attributes | {"groups": groups},
        constants=[weights, bias],
        version=5 if dtype == "int16" else 3,
    )


def depthwise(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    window, channels = Window(rng, one_stride=True), int(rng.integers(1, 20))
    x = quantized(rng, "x", (2, *window.size, channels), dtype, ties=ties)
    shape = (*window.kernel, channels)
    weights, bias, scale = weights_of(rng, x, shape, 2, window.kernel[0] * window.kernel[1], ties)
    y = quantized(rng, "y", (2, *window.out, channels), dtype, ties=ties, scale=scale)
    q = weights.quantization
    assert weights.data is not None and q is not None
    moved = constant("w", weights.data[None], Quantization(q.scale, q.zero_point, None if q.whole else 3))
    return OneOperator(
        OPERATOR.DEPTHWISE_CONV_2D,
        options("DepthwiseConv2D", depthMultiplier=1, **window.dilated_fields),
        "depthwise_conv2d",
        [x],
        y,
        window.attributes,
        constants=[weights, bias],
        stored=[moved, bias],
        version=5 if dtype == "int16" else 3,
    )


def transposed(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    """Return a transposed convolution; the underlying convolution maps the output's shape to the shape of x."""
    window = Window(rng, dilated=False)
    while any(k < stride for k, stride in zip(window.kernel, window.strides, strict=True)):
        window = Window(
            rng, dilated=False
        )  # XNNPACK rejects this with SAME padding, but graphs contain only explicit padding
    in_c, out_c = (int(c) for c in rng.integers(1, 12, 2))
    x = quantized(rng, "x", (2, *window.out, in_c), dtype, ties=ties)
    terms = window.kernel[0] * window.kernel[1] * in_c
    weights, bias, scale = weights_of(rng, x, (out_c, *window.kernel, in_c), 0, terms, ties)
    y = quantized(rng, "y", (2, *window.size, out_c), dtype, ties=ties, scale=scale)
    extra = tuple(
        size + before + after - ((out - 1) * stride + k)
        for size, out, stride, k, before, after in zip(
            window.size,
            window.out,
            window.strides,
            window.kernel,
            window.pads[:2],
            window.pads[2:],
            strict=True,
        )
    )
    attributes = window.attributes | {"groups": 1, "output_pads": extra}
    return OneOperator(
        OPERATOR.TRANSPOSE_CONV,
        options("TransposeConv", **window.fields),
        "conv_transpose2d",
        [x],
        y,
        attributes,
        constants=[weights, bias],
        parameters=[constant("shape", np.array(y.shape, np.int32))],
        order=[3, 1, 0, 2],
        version=3,
    )


def dense(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    m, n, k = (int(size) for size in rng.integers(1, 60, 3))
    x = quantized(rng, "x", (m, k), dtype, ties=ties)
    weights, bias, scale = weights_of(rng, x, (n, k), 0, k, ties, channels=False)
    y = quantized(rng, "y", (m, n), dtype, ties=ties, scale=scale)
    return OneOperator(
        OPERATOR.FULLY_CONNECTED,
        options("FullyConnected"),
        "dense",
        [x],
        y,
        constants=[weights, bias],
        version=7 if dtype == "int16" else 4,
    )


def matmul(rng: Rng, dtype: str, ties: bool) -> OneOperator:
    b, m, n, k = (int(size) for size in rng.integers(1, 20, 4))
    left = quantized(rng, "x", (b, m, k), dtype, ties=ties)
    right = quantized(rng, "w", (b, k, n), dtype, ties=ties, zero=0 if rng.integers(2) else None)
    scale = scale_of(left) * scale_of(right) * 74 * 74 * np.sqrt(k) / 60
    y = quantized(rng, "y", (b, m, n), dtype, ties=ties, scale=scale)
    return OneOperator(OPERATOR.BATCH_MATMUL, options("BatchMatMul"), "matmul", [left, right], y)


def pool(kind: str, op: str, **attributes: bool) -> Case:
    def case(rng: Rng, dtype: str, ties: bool) -> OneOperator:
        window, channels = Window(rng, dilated=False), int(rng.integers(1, 20))
        x = quantized(rng, "x", (2, *window.size, channels), dtype, ties=ties)
        y = Tensor("y", (2, *window.out, channels), dtype, x.quantization)
        fields = window.fields | {"filterHeight": window.kernel[0], "filterWidth": window.kernel[1]}
        known = {"kernel": window.kernel, "strides": window.strides, "pads": window.pads}
        return OneOperator(
            getattr(OPERATOR, kind),
            options("Pool2D", **fields),
            op,
            [x],
            y,
            known | attributes,
            version=3 if dtype == "int16" else 2,
        )

    return case


BYTES, ALL = ("int8", "uint8"), ("int8", "uint8", "int16")
CASES: dict[str, tuple[Case, tuple[str, ...]]] = {
    "conv2d": (conv, ALL),
    "depthwise_conv2d": (depthwise, ALL),
    "conv_transpose2d": (transposed, BYTES),
    "dense": (dense, ALL),
    "matmul": (matmul, ("int8",)),
    "max_pool2d": (pool("MAX_POOL_2D", "max_pool2d"), ALL),
    "avg_pool2d": (pool("AVERAGE_POOL_2D", "avg_pool2d", count_pads=False), ALL),
}
COMBINATIONS = [
    (name, dtype, kernels) for name, (_, types) in CASES.items() for dtype in types for kernels in RESOLVERS
]


@pytest.mark.parametrize(("name", "dtype", "kernels"), COMBINATIONS)
def test_operator_equals_litert(rng: Rng, name: str, dtype: str, kernels: str) -> None:
    for trial in range(TRIALS):
        one = CASES[name][0](rng, dtype, trial % 2 == 0)
        got, want = one.both(rng, kernels)
        np.testing.assert_array_equal(
            got, want, f"{one.attributes} {[t.quantization for t in (*one.inputs, one.output)]}"
        )
