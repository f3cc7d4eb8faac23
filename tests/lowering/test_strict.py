"""`strict` requires every operator to run on the accelerator, except conversions of float inputs and outputs."""

import numpy as np
import pytest

from compiler.api import compile
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError

Q = Quantization.per_tensor(0.05)


def add(graph: Graph, op: str, inputs: list[str], out: Tensor, **attributes: object) -> str:
    graph.add_tensor(out)
    graph.add_node(Node(f"{op} {out.name}", op, tuple(inputs), (out.name,), dict(attributes)))
    return out.name


def floating(name: str, *shape: int) -> Tensor:
    return Tensor(name, shape, "float32")


def integers(name: str, *shape: int) -> Tensor:
    return Tensor(name, shape, "int8", Q)


def model(*, inside: bool = False, scores: bool = False) -> Graph:
    """Return a model with float inputs and outputs, and optional float operators.

    Parameters
    ----------
    inside : bool
        Convert to float and back between two layers.
    scores : bool
        End with a float operator.
    """
    graph = Graph("edges")
    graph.add_input(floating("image", 1, 3, 6, 6))
    x = add(graph, "transpose", ["image"], floating("nhwc", 1, 6, 6, 3), perm=(0, 2, 3, 1))
    x = add(graph, "quantize", [x], integers("q", 1, 6, 6, 3))
    x = add(graph, "clip", [x], integers("c", 1, 6, 6, 3), low=0.0, high=6.0)
    if inside:
        x = add(graph, "dequantize", [x], floating("f", 1, 6, 6, 3))
        x = add(graph, "quantize", [x], integers("r", 1, 6, 6, 3))
        x = add(graph, "tanh", [x], integers("t", 1, 6, 6, 3))
    x = add(graph, "dequantize", [x], floating("real", 1, 6, 6, 3))
    if scores:
        x = add(graph, "exp", [x], floating("e", 1, 6, 6, 3))
    return graph.finish([add(graph, "reshape", [x], floating("flat", 1, 108), shape=(1, 108))])


def test_strict_accepts_float_inputs_and_outputs():
    network = compile(model(), "n4", strict=True)
    assert {each.op for each in network.host} == {"transpose", "quantize", "dequantize", "reshape"}
    assert all(each.edge for each in network.host)
    image = np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)
    wanted = compile(model(), "n4")(image)["flat"]
    np.testing.assert_array_equal(network(image)["flat"], wanted)


def test_inner_conversions_run_on_the_accelerator():
    network = compile(model(inside=True), "n4", strict=True)
    assert all(each.edge for each in network.host)
    assert not {"dequantize f", "quantize r"} & {each.node for each in network.host}


def test_strict_rejects_a_final_float_operator():
    with pytest.raises(InputError) as refused:
        compile(model(scores=True), "n4", strict=True)
    text = str(refused.value)
    assert text.startswith("edges: not for the accelerator: ")
    assert "exp e (exp): " in text and "dequantize real" not in text and "flat" not in text


def test_strict_accepts_a_quantized_float_model():
    graph = Graph("dense")
    graph.add_input(floating("x", 1, 8))
    weights = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    graph.add_tensor(Tensor("w", (4, 8), "float32", None, weights))
    graph.finish([add(graph, "dense", ["x", "w"], floating("y", 1, 4))])
    assert {each.op for each in compile(graph, "n4", strict=True).host} == {"quantize", "dequantize"}
