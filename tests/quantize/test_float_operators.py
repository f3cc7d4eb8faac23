"""Errors of quantized operators that are defined on real numbers are within the bounds of docs/numerics.md.

The expected result is computed in double precision from the dequantized inputs and rounded to the steps of the output.
"""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import erf

from compiler.api import compile
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor

Array = np.ndarray
GRAPHS = 20
#: Largest error in units in the last place, and largest fraction of results with an error, by operator.
BOUNDS = {
    "softmax": (1, 0.001),
    "layer_norm": (1, 0.002),
    "rms_norm": (1, 0.002),
    "gelu": (1, 0.001),
    "tanh gelu": (1, 0.001),
}


def _softmax(x: Array, *_: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
    off = x - x.mean(-1, keepdims=True)
    return off / np.sqrt((off**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta


def _rms_norm(x: Array, gamma: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gamma


def _tanh_gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


#: Operator of the graph, its attributes, number of constant operands, real function.
CASES: dict[str, tuple[str, dict, int, Callable[..., Array]]] = {
    "softmax": ("softmax", {"axis": 1, "beta": 1.0}, 0, _softmax),
    "layer_norm": ("layer_norm", {"axis": 1, "epsilon": 1e-5}, 2, _layer_norm),
    "rms_norm": ("rms_norm", {"axis": 1, "epsilon": 1e-5}, 1, _rms_norm),
    "gelu": ("gelu", {"tanh": False}, 0, lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2)))),
    "tanh gelu": ("gelu", {"tanh": True}, 0, _tanh_gelu),
}


def differences(name: str, rng: np.random.Generator) -> Array:
    """Return the errors, in units in the last place, of one graph of random size and scales."""
    op, attributes, factors, function = CASES[name]
    shape = (int(rng.integers(1, 40)), int(rng.choice([3, 10, 64, 197, 768])))
    x = Quantization.per_tensor(float(2.0 ** rng.uniform(-7, -2)), int(rng.integers(-128, 128)))
    values = rng.integers(-128, 128, shape, np.int8)
    held = [rng.normal(1 - i, 0.3, shape[1]).astype(np.float32) for i in range(factors)]
    wanted = function(x.dequantized(values).astype(np.float64), *(v.astype(np.float64) for v in held))
    low, high = min(wanted.min(), 0), max(wanted.max(), 0)
    scale = float(np.float32((high - low) / 255))
    y = (
        Quantization.per_tensor(1 / 256, -128)
        if op == "softmax"
        else Quantization.per_tensor(scale, round(-128 - low / scale))
    )
    graph = Graph(op)
    graph.add_input(Tensor("x", shape, "int8", x))
    for i, data in enumerate(held):
        graph.add_tensor(Tensor(f"f{i}", data.shape, "float32", data=data))
    graph.add_tensor(Tensor("y", shape, "int8", y))
    graph.add_node(Node("node", op, ("x", *(f"f{i}" for i in range(factors))), ("y",), attributes))
    network = compile(graph.finish(["y"]), "n16", rounding="onnxruntime")
    assert not network.host
    steps = np.clip(np.rint(wanted / y.scale[0]) + y.zero_point[0], -128, 127)
    return network(values)["y"].astype(int) - steps.astype(int)


@pytest.mark.parametrize("name", CASES)
def test_errors_are_within_the_bounds(name: str) -> None:
    units, part = BOUNDS[name]
    off = [differences(name, np.random.default_rng(seed)).ravel() for seed in range(GRAPHS)]
    for seed, each in enumerate(off):
        assert np.abs(each).max() <= units, f"seed {seed}"
    every = np.concatenate(off)
    print(f"{name}: {np.count_nonzero(every):,} of {every.size:,} differ")
    assert np.count_nonzero(every) <= part * every.size
