"""Operators on float32 tensors on the host equal onnxruntime for random shapes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.ir.ops import OPS
from compiler.reference.evaluate import OPERATORS
from tests.support.onnx_operator import channels_first, channels_last, on_host, run

TRIALS = 12
Rng = np.random.Generator
Case = Callable[[Rng], tuple[np.ndarray, np.ndarray]]
CASES: dict[str, Case] = {}
INFINITE = float("inf")


def normal(rng: Rng, *shape: int, scale: float = 2) -> np.ndarray:
    """Return random values of a normal distribution."""
    return rng.normal(0, scale, shape).astype(np.float32)


def sizes(rng: Rng, count: int, most: int = 6) -> tuple[int, ...]:
    """Return random dimensions."""
    return tuple(int(size) for size in rng.integers(1, most + 1, count))


def case(function: Case) -> Case:
    """Register a case under the name of its operator."""
    CASES[function.__name__.removeprefix("of_")] = function
    return function


def _window(rng: Rng, *, dilated: bool = True) -> tuple[dict[str, Any], dict[str, Any], tuple[int, int]]:
    """Return the attributes of a random window for the graph and for ONNX, and the size of its image."""
    kernel, strides = sizes(rng, 2, 4), sizes(rng, 2, 3)
    dilations = sizes(rng, 2, 2) if dilated else (1, 1)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel))
    least = [max(1, r - pads[i] - pads[2 + i]) for i, r in enumerate(reach)]
    size = tuple(int(low + rng.integers(0, 8)) for low in least)
    graph = {"strides": strides, "pads": pads}
    theirs = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if dilated:
        graph, theirs = graph | {"dilations": dilations}, theirs | {"dilations": dilations}
    return graph, theirs, (size[0], size[1])


@case
def of_conv2d(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs, size = _window(rng)
    groups = int(rng.integers(1, 4))
    in_c, out_c = (int(c) for c in rng.integers(1, 6, 2))
    x, bias = normal(rng, 2, *size, groups * in_c), normal(rng, groups * out_c)
    weights = normal(rng, groups * out_c, *theirs["kernel_shape"], in_c)
    want = channels_last(
        run("Conv", channels_first(x), channels_first(weights), bias, group=groups, **theirs)
    )
    return on_host("conv2d", x, weights, bias, makes=want.shape, groups=groups, **ours), want


@case
def of_depthwise_conv2d(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs, size = _window(rng)
    count = int(rng.integers(1, 8))
    x, weights = normal(rng, 2, *size, count), normal(rng, *theirs["kernel_shape"], count)
    filters = np.ascontiguousarray(weights.transpose(2, 0, 1)[:, None])
    want = channels_last(run("Conv", channels_first(x), filters, group=count, **theirs))
    return on_host("depthwise_conv2d", x, weights, makes=want.shape, **ours), want


@case
def of_conv_transpose2d(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs, _ = _window(rng)
    groups = int(rng.integers(1, 4))
    in_c, out_c = (int(c) for c in rng.integers(1, 6, 2))
    size = tuple(int(s) for s in rng.integers(4, 8, 2))
    extra = tuple(int(rng.integers(0, stride)) for stride in ours["strides"])
    x, bias = normal(rng, 2, *size, groups * in_c), normal(rng, groups * out_c)
    weights = normal(rng, groups * out_c, *theirs["kernel_shape"], in_c)
    split = weights.reshape(groups, out_c, *theirs["kernel_shape"], in_c).transpose(0, 4, 1, 2, 3)
    filters = np.ascontiguousarray(split.reshape(groups * in_c, out_c, *theirs["kernel_shape"]))
    want = channels_last(
        run("ConvTranspose", channels_first(x), filters, bias, group=groups, output_padding=extra, **theirs)
    )
    attributes = ours | {"groups": groups, "output_pads": extra}
    return on_host("conv_transpose2d", x, weights, bias, makes=want.shape, **attributes), want


@case
def of_dense(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = sizes(rng, 3, 40)
    x, weights, bias = normal(rng, m, k), normal(rng, n, k), normal(rng, n)
    return on_host("dense", x, weights, bias, makes=(m, n)), run("Gemm", x, weights, bias, transB=1)


@case
def of_matmul(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    b, c, m, n, k = sizes(rng, 5, 9)
    a, b_matrix = normal(rng, b, c, m, k), normal(rng, *([c] if rng.integers(2) else [b, 1]), k, n)
    return on_host("matmul", a, b_matrix, makes=(b, c, m, n)), run("MatMul", a, b_matrix)


def _binary(operator: str) -> Case:
    def compare(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
        shape = sizes(rng, 3)
        other = [size if rng.integers(2) else 1 for size in shape][int(rng.integers(0, 3)) :]
        a, b = normal(rng, *shape), normal(rng, *other)
        return on_host(operator.lower(), a, b, makes=shape), run(operator, a, b)

    return compare


def _unary(op: str, operator: str, settings: dict[str, Any] | None = None, **attributes: Any) -> Case:
    def compare(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
        x = normal(rng, *sizes(rng, 3), scale=5)
        return on_host(op, x, makes=x.shape, **attributes), run(operator, x, **(settings or {}))

    return compare


for name in ("Add", "Sub", "Mul"):
    CASES[name.lower()] = _binary(name)
CASES["leaky_relu"] = _unary("leaky_relu", "LeakyRelu", {"alpha": 0.3}, alpha=0.3)
CASES["sigmoid"] = _unary("sigmoid", "Sigmoid")
CASES["tanh"] = _unary("tanh", "Tanh")
CASES["hard_swish"] = _unary("hard_swish", "HardSwish")
CASES["exp"] = _unary("exp", "Exp")
CASES["abs"] = _unary("abs", "Abs")
CASES["elu"] = _unary("elu", "Elu", {"alpha": 0.7}, alpha=0.7)
CASES["softplus"] = _unary("softplus", "Softplus")
CASES["mish"] = _unary("mish", "Mish")
CASES["gelu"] = _unary("gelu", "Gelu", tanh=False)
CASES["gelu, tanh"] = _unary("gelu", "Gelu", {"approximate": "tanh"}, tanh=True)
CASES["clip"] = _unary("clip", "Relu", low=0.0, high=INFINITE)


@case
def of_prelu(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    x = normal(rng, *sizes(rng, 4))
    slope = normal(rng, x.shape[-1])
    return on_host("prelu", x, slope, makes=x.shape), run("PRelu", x, slope)


@case
def of_silu(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    x = normal(rng, *sizes(rng, 3), scale=5)
    return on_host("silu", x, makes=x.shape), run("Mul", x, run("Sigmoid", x))


@case
def of_max_pool2d(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs, size = _window(rng, dilated=False)
    x = normal(rng, 2, *size, int(rng.integers(1, 6)))
    want = channels_last(run("MaxPool", channels_first(x), **theirs))
    return on_host("max_pool2d", x, makes=want.shape, kernel=theirs["kernel_shape"], **ours), want


@case
def of_avg_pool2d(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    (ours, theirs, size), counted = _window(rng, dilated=False), bool(rng.integers(2))
    x = normal(rng, 2, *size, int(rng.integers(1, 6)))
    want = channels_last(run("AveragePool", channels_first(x), count_include_pad=int(counted), **theirs))
    attributes = ours | {"kernel": theirs["kernel_shape"], "count_pads": counted}
    return on_host("avg_pool2d", x, makes=want.shape, **attributes), want


def _reduction(name: str) -> Case:
    def compare(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
        x, keep = normal(rng, *sizes(rng, 4)), bool(rng.integers(2))
        axes = tuple(
            int(a) for a in rng.choice(4, int(rng.integers(1, 5)), replace=False) - 4 * rng.integers(2)
        )
        want = run(f"Reduce{name}", x, np.array(axes, np.int64), keepdims=int(keep))
        return on_host(f"reduce_{name.lower()}", x, makes=want.shape, axes=axes, keep=keep), want

    return compare


for name in ("Sum", "Mean", "Max", "Min"):
    CASES[f"reduce_{name.lower()}"] = _reduction(name)


@case
def of_cumsum(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    x, axis = normal(rng, *sizes(rng, 3)), int(rng.integers(-3, 3))
    exclusive, reverse = (bool(rng.integers(2)) for _ in range(2))
    want = run("CumSum", x, np.array(axis), exclusive=int(exclusive), reverse=int(reverse))
    return on_host("cumsum", x, makes=x.shape, axis=axis, exclusive=exclusive, reverse=reverse), want


@case
def of_softmax(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    x, axis = normal(rng, *sizes(rng, 3), scale=30), int(rng.integers(-3, 3))
    return on_host("softmax", x, makes=x.shape, axis=axis, beta=0.5), run("Softmax", x / 2, axis=axis)


@case
def of_layer_norm(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    x, axis = normal(rng, *sizes(rng, 3)), int(rng.integers(-3, 3))
    gamma, beta = (normal(rng, *x.shape[axis:]) for _ in range(2))
    want = run("LayerNormalization", x, gamma, beta, axis=axis, epsilon=1e-3)
    return on_host("layer_norm", x, gamma, beta, makes=x.shape, axis=axis, epsilon=1e-3), want


@case
def of_rms_norm(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    x, axis = normal(rng, *sizes(rng, 3)), int(rng.integers(-3, 3))
    gamma = normal(rng, *x.shape[axis:])
    want = run("RMSNormalization", x, gamma, axis=axis, epsilon=1e-3)
    return on_host("rms_norm", x, gamma, makes=x.shape, axis=axis, epsilon=1e-3), want


@pytest.mark.parametrize("name", CASES)
def test_operator_equals_onnxruntime(rng: Rng, name: str) -> None:
    for _ in range(TRIALS):
        got, want = CASES[name](rng)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_every_operator_has_an_implementation() -> None:
    assert OPERATORS.keys() == {op for op, spec in OPS.items() if not spec.bodies}
