"""Each stage of an attention head agrees with floating-point arithmetic."""

import math

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from tests.support.graphs import Draft, check


def attention(seed: int, heads: int, rows: int, depth: int) -> tuple[Draft, list[Tensor]]:
    """Build Softmax(Q x K^T / sqrt(depth)) x V with the heads side by side; return the draft and stage outputs."""
    draft = Draft(np.random.default_rng(seed))
    q, k, v = (draft.input((1, rows, heads, depth)) for _ in range(3))
    apart = (1, heads, rows, depth)
    a = draft.node("transpose", [q], apart, like=q, perm=(0, 2, 1, 3))
    b = draft.node("transpose", [k], (1, heads, depth, rows), like=k, perm=(0, 2, 3, 1))
    spread = 0.1 * 0.1 * 74**2 * math.sqrt(depth) / 30
    scores = draft.node("matmul", [a, b], (1, heads, rows, rows), scale=spread)
    factor = draft.constant((), quantization=Quantization.per_tensor(1 / math.sqrt(depth) / 64))
    scaled = draft.node("mul", [scores, factor], scores.shape, scale=spread / math.sqrt(depth) * 2)
    share = Tensor("share", scores.shape, "int8", Quantization.per_tensor(1 / 256, -128))
    draft.into("softmax", [scaled], share, axis=3, beta=1.0)
    c = draft.node("transpose", [v], apart, like=v, perm=(0, 2, 1, 3))
    mixed = draft.node("matmul", [share, c], apart, scale=0.1 * 74 / 90)
    y = draft.node("transpose", [mixed], q.shape, like=mixed, perm=(0, 2, 1, 3))
    return draft, [scores, scaled, share, y]


@pytest.mark.parametrize("target", ["n4", "n8", "n16"])
@pytest.mark.parametrize(("heads", "rows", "depth"), [(1, 9, 16), (3, 20, 10), (2, 33, 32)])
def test_attention(target: str, heads: int, rows: int, depth: int) -> None:
    """Each stage is within 1 of the floating-point function of the previous stage's result."""
    draft, stages = attention(heads, heads, rows, depth)
    graph = draft.graph.finish([tensor.name for tensor in stages])
    network, inputs = compile(graph, target, strict=True), draft.random_inputs()
    assert [layer.ops.count("transpose") for layer in network.layers] == [2, 0, 0, 2]
    found = network(**inputs)
    real = {name: dequantized(graph, name, array) for name, array in (inputs | found).items()}
    q, k, v = (real[name].swapaxes(1, 2) for name in graph.inputs)
    scores, scaled, share, y = (tensor.name for tensor in stages)
    factor = next(t for t in graph.tensors.values() if t.constant)
    assert factor.data is not None
    number = dequantized(graph, factor.name, factor.data)
    powers = np.exp(real[scaled] - real[scaled].max(-1, keepdims=True))
    wanted = {
        scores: q @ k.swapaxes(2, 3),
        scaled: real[scores] * number,
        share: powers / powers.sum(-1, keepdims=True),
        y: (real[share] @ v).swapaxes(1, 2),
    }
    for name, array in wanted.items():
        off = np.abs(stored(graph, name, array) - found[name])
        assert off.max() <= 1, f"{target}: {name} is {off.max()} off\n{graph}"


def dequantized(graph: Graph, name: str, array: np.ndarray) -> np.ndarray:
    q = graph.tensors[name].quantization
    assert q is not None
    return q.dequantized(array).astype(np.float64)


def stored(graph: Graph, name: str, real: np.ndarray) -> np.ndarray:
    tensor = graph.tensors[name]
    assert tensor.quantization is not None
    limits, (scale,), (zero,) = (
        np.iinfo(tensor.dtype),
        tensor.quantization.scale,
        tensor.quantization.zero_point,
    )
    return np.clip(np.rint(real / scale) + zero, limits.min, limits.max).astype(int)


@pytest.mark.parametrize("op", ["mul", "tanh"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_functions_of_a_product_are_tables_in_its_drain(op: str, dtype: str) -> None:
    draft = Draft(np.random.default_rng(4))
    a, b = draft.input((1, 3, 10, 9)), draft.input((1, 3, 9, 20))
    product = draft.node("matmul", [a, b], (1, 3, 10, 20), scale=0.5)
    others = [draft.constant((), quantization=Quantization.per_tensor(0.01))] if op == "mul" else []
    scaled = draft.node(op, [product, *others], product.shape, scale=0.02, dtype=dtype)
    y = draft.node("transpose", [scaled], (1, 10, 3, 20), like=scaled, dtype=dtype, perm=(0, 2, 1, 3))
    network = check(draft, [y])
    assert [layer.ops for layer in network.layers] == [("matmul", op, "transpose")]
