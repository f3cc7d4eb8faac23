"""Quantized host operators with onnxruntime's rounding equal a float operator between dequantization and
quantization.
"""

from typing import Any

import numpy as np
import pytest

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import evaluate
from tests.support.one_operator import quantized, random_values, scale_of
from tests.support.onnx_operator import channels_first, channels_last, run

TRIALS = 10
SHAPE = (3, 6, 7, 10)
Rng = np.random.Generator
#: onnxruntime's float32 sums differ in their last bits, which may create or break a tie.
SUMMED = (
    "conv2d",
    "dense",
    "matmul",
    "avg_pool2d",
    "reduce_mean",
    "softmax",
    "layer_norm",
    "gelu",
    "softplus",
    "mish",
)


def operands(tensor: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale and zero point as operands of ONNX's operators."""
    q = tensor.quantization
    assert q is not None
    whole = q.whole
    scales, zeros = np.array(q.scale, np.float32), np.array(q.zero_point, tensor.dtype)
    return (scales.reshape(()), zeros.reshape(())) if whole else (scales, zeros)


def real(tensor: Tensor, values: np.ndarray) -> np.ndarray:
    """Return the dequantized values of a tensor."""
    q = tensor.quantization
    assert q is not None
    return run("DequantizeLinear", values, *operands(tensor), axis=q.axis or 0)


def host(
    op: str, inputs: list[Tensor], values: list[np.ndarray], output: Tensor, attributes: dict[str, Any]
) -> np.ndarray:
    """Return the host's result of a node."""
    graph = Graph("one")
    for tensor in inputs:
        graph.add_input(tensor)
    graph.add_tensor(output)
    graph.add_node(Node("n", op, tuple(graph.inputs), (output.name,), attributes))
    named = {tensor.name: value for tensor, value in zip(inputs, values, strict=True)}
    return evaluate(graph.finish([output.name]), named, rounding="onnxruntime")[output.name]


#: Inputs, attributes of the node, ONNX's operator and its attributes.
ELEMENTWISE: dict[str, tuple[int, dict[str, Any], str, dict[str, Any]]] = {
    "add": (2, {}, "Add", {}),
    "sub": (2, {}, "Sub", {}),
    "mul": (2, {}, "Mul", {}),
    "prelu": (2, {}, "PRelu", {}),
    "sigmoid": (1, {}, "Sigmoid", {}),
    "tanh": (1, {}, "Tanh", {}),
    "hard_swish": (1, {}, "HardSwish", {}),
    "gelu": (1, {"tanh": False}, "Gelu", {}),
    "elu": (1, {"alpha": 0.7}, "Elu", {"alpha": 0.7}),
    "softplus": (1, {}, "Softplus", {}),
    "mish": (1, {}, "Mish", {}),
    "leaky_relu": (1, {"alpha": 0.1}, "LeakyRelu", {"alpha": 0.1}),
    "clip": (1, {"low": 0.0, "high": float("inf")}, "Relu", {}),
    "softmax": (1, {"axis": -1, "beta": 1.0}, "Softmax", {"axis": -1}),
    "requantize": (1, {}, "Identity", {}),
    "transpose": (1, {"perm": (0, 2, 1, 3)}, "Transpose", {"perm": (0, 2, 1, 3)}),
    "concat": (2, {"axis": 1}, "Concat", {"axis": 1}),
    "reduce_mean": (1, {"axes": (0, 1), "keep": True}, "ReduceMean", {}),
    "reduce_max": (1, {"axes": (0, 1), "keep": True}, "ReduceMax", {}),
}


def trial(rng: Rng, name: str, dtype: str, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the results of an operator in `ELEMENTWISE` on the host and in onnxruntime."""
    count, attributes, operator, settings = ELEMENTWISE[name]
    inputs = [quantized(rng, f"x{i}", SHAPE, dtype, ties=ties) for i in range(count)]
    values = [random_values(rng, tensor) for tensor in inputs]
    reals = [real(tensor, value) for tensor, value in zip(inputs, values, strict=True)]
    axes = [np.array((0, 1), np.int64)] if name.startswith("reduce") else []
    result = run(operator, *reals, *axes, **settings)
    y = quantized(rng, "y", result.shape, dtype, ties=ties)
    return host(name, inputs, values, y, attributes), run("QuantizeLinear", result, *operands(y))


def compare(name: str, pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Check that results are equal; for operators with float32 sums, one value in a thousand may differ by 1."""
    different = sum(int((got != want).sum()) for got, want in pairs)
    assert max(np.abs(got.astype(int) - want).max() for got, want in pairs) <= 1
    assert different <= (0.001 * sum(got.size for got, _ in pairs) if name in SUMMED else 0)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_operator_equals_onnxruntime(rng: Rng, name: str, dtype: str) -> None:
    compare(name, [trial(rng, name, dtype, t % 2 == 0) for t in range(TRIALS)])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_convolution_equals_onnxruntime(rng: Rng, dtype: str) -> None:
    """The host's convolution equals QLinearConv, which scales integer sums in float32."""
    for t in range(TRIALS):
        x = quantized(rng, "x", (2, 7, 6, 5), dtype, ties=t % 2 == 0)
        scales = 2.0 ** rng.integers(-9, -5, 4) if t % 2 == 0 else rng.uniform(0.002, 0.02, 4)
        w = Tensor(
            "w",
            (4, 3, 3, 5),
            "int8",
            Quantization(tuple(float(s) for s in scales.astype(np.float32)), (0,) * 4, 0),
        )
        b = Tensor("b", (4,), "int32")
        y = quantized(rng, "y", (2, 7, 6, 4), dtype, ties=t % 2 == 0, scale=scale_of(x) * scales.mean() * 900)
        values = [random_values(rng, x), random_values(rng, w), rng.integers(-5000, 5000, 4).astype(np.int32)]
        window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
        got = host("conv2d", [x, w, b], values, y, window)
        want = run(
            "QLinearConv",
            channels_first(values[0]),
            *operands(x),
            channels_first(values[1]),
            *operands(w),
            *operands(y),
            values[2],
            pads=(1, 1, 1, 1),
            constants=True,
        )
        np.testing.assert_array_equal(got, channels_last(want))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_matmul_equals_onnxruntime(rng: Rng, dtype: str) -> None:
    """The host's matrix product equals QLinearMatMul."""
    for t in range(TRIALS):
        m, n, k = (int(size) for size in rng.integers(1, 40, 3))
        a, b = (
            quantized(rng, "a", (m, k), dtype, ties=t % 2 == 0),
            quantized(rng, "b", (k, n), dtype, ties=t % 2 == 0),
        )
        y = quantized(
            rng, "y", (m, n), dtype, ties=t % 2 == 0, scale=scale_of(a) * scale_of(b) * 90 * np.sqrt(k)
        )
        values = [random_values(rng, a), random_values(rng, b)]
        want = run(
            "QLinearMatMul", values[0], *operands(a), values[1], *operands(b), *operands(y), constants=True
        )
        np.testing.assert_array_equal(host("matmul", [a, b], values, y, {}), want)


@pytest.mark.parametrize(("op", "kind"), [("max_pool2d", "Max"), ("avg_pool2d", "Average")])
def test_pools_equal_onnxruntime(rng: Rng, op: str, kind: str) -> None:
    pairs = []
    for t in range(TRIALS):
        x = quantized(rng, "x", SHAPE, "int8", ties=t % 2 == 0)
        values = random_values(rng, x)
        window = {"strides": (2, 1), "pads": (1, 0, 1, 1)}
        result = channels_last(
            run(f"{kind}Pool", channels_first(real(x, values)), kernel_shape=(3, 2), **window)
        )
        y = quantized(rng, "y", result.shape, "int8", ties=t % 2 == 0)
        extra = {"count_pads": False} if kind == "Average" else {}
        got = host(op, [x], [values], y, {"kernel": (3, 2), **window, **extra})
        pairs.append((got, run("QuantizeLinear", np.ascontiguousarray(result), *operands(y))))
    compare(op, pairs)
