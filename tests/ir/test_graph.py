"""The graph rejects invalid nodes and tensors, and describes its contents."""

import numpy as np
import pytest

from compiler.ir.graph import Graph, GraphError, Node
from compiler.ir.tensor import Quantization, Tensor

IMAGE = (1, 4, 4, 8)


def chain() -> Graph:
    """Return the graph of z = x + clip(x)."""
    graph = Graph("chain")
    graph.add_input(Tensor("x", IMAGE, "int8", Quantization.per_tensor(0.5, 3)))
    for name in ("y", "z"):
        graph.add_tensor(Tensor(name, IMAGE, "int8", Quantization.per_tensor(0.25)))
    graph.add_node(Node("cut", "clip", ("x",), ("y",), {"low": 0.0, "high": 6.0}))
    graph.add_node(Node("sum", "add", ("x", "y"), ("z",)))
    return graph.finish(["z"])


def test_producers_and_consumers() -> None:
    graph = chain()
    assert graph.producer("x") is None
    assert graph.producer("y") is graph.nodes["cut"]
    assert [node.name for node in graph.consumers("x")] == ["cut", "sum"]
    assert graph.out(graph.nodes["sum"]) is graph.tensors["z"]


def test_text_of_a_graph() -> None:
    assert str(chain()).splitlines() == [
        "graph chain(",
        "    %x: int8[1, 4, 4, 8] * 0.5 @ 3",
        ") {",
        "    %y: int8[1, 4, 4, 8] * 0.25 = clip(%x) [low=0.0, high=6.0]  ; cut",
        "    %z: int8[1, 4, 4, 8] * 0.25 = add(%x, %y)  ; sum",
        "    return %z",
        "}",
    ]


def test_networkx_view() -> None:
    view = chain().networkx()
    assert list(view.edges(data="bytes")) == [("cut", "sum", 128)]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (("n", "conv3d", ("x",), ("z",), {}), "node 'n': operator must be one of .*, not 'conv3d'"),
        (("n", "add", ("x",), ("z",), {}), "node 'n': add takes 2 inputs, not 1"),
        (("n", "concat", (), ("z",), {"axis": 0}), "node 'n': concat takes 1 or more inputs, not 0"),
        (("n", "clip", ("x",), ("z",), {"low": 0.0}), "attributes of clip must be high, low, not low"),
        (("n", "clip", ("x",), ("z",), {"low": 0.0, "high": "6"}), "high must be a number, not '6'"),
        (
            ("n", "max_pool2d", ("x",), ("z",), {"kernel": (2, 0), "strides": (1, 1), "pads": (0, 0, 0, 0)}),
            r"kernel must be two positive integers, not \(2, 0\)",
        ),
        (("n", "add", ("x", "q"), ("z",), {}), "node 'n': there is no tensor 'q'"),
        (("n", "add", ("x", "y"), ("z",), {}), "node 'n': its input 'y' is not computed before it runs"),
        (("n", "tanh", ("x",), ("x",), {}), "node 'n': its output 'x' already has a producer"),
    ],
)
def test_invalid_nodes_are_rejected(node: tuple, message: str) -> None:
    graph = Graph("g")
    graph.add_input(Tensor("x", IMAGE, "int8"))
    for name in ("y", "z"):
        graph.add_tensor(Tensor(name, IMAGE, "int8"))
    with pytest.raises(GraphError, match=message):
        graph.add_node(Node(*node))


def test_invalid_graphs_are_rejected() -> None:
    graph = chain()
    with pytest.raises(GraphError, match="tensor 'x' is defined twice"):
        graph.add_tensor(Tensor("x", (1,), "int8"))
    with pytest.raises(GraphError, match="node 'cut' is defined twice"):
        graph.add_node(Node("cut", "tanh", ("x",), ("z",)))
    with pytest.raises(GraphError, match="no node computes the output 'w'"):
        graph.finish(["w"])


@pytest.mark.parametrize(
    ("shape", "quantization", "data", "message"),
    [
        ((2, 0), None, None, "a dimension must be positive, not 0"),
        ((2,), Quantization.per_tensor(1.0, 128), None, "the zero point of int8 cannot be 128"),
        ((1 << 20, 1 << 20), None, None, "has more than 2,147,483,648 elements"),
        ((2,), None, np.zeros(3, np.int8), r"data must be int8\[2\], not int8\[3\]"),
        (
            (2,),
            Quantization((1.0, 2.0, 3.0), (0, 0, 0), 0),
            None,
            r"3 scales along axis 0 do not fit shape \[2\]",
        ),
    ],
)
def test_invalid_tensors_are_rejected(
    shape: tuple, quantization: Quantization | None, data: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Tensor("t", shape, "int8", quantization, data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1.0,), (0, 1)), "1 scales need as many zero points, not 2"),
        (((1.0, 2.0), (0, 0)), "2 scales need an axis"),
        (((float("nan"),), (0,)), "a scale must be finite and positive, not nan"),
        (((0.0,), (0,)), "a scale must be finite and positive, not 0.0"),
    ],
)
def test_invalid_quantizations_are_rejected(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Quantization(*arguments)


def test_dequantized_values() -> None:
    values = np.array([[-128, 127], [0, 1]], np.int8)
    np.testing.assert_array_equal(
        Quantization.per_tensor(0.5, -128).dequantized(values), [[0, 127.5], [64, 64.5]]
    )
    by_row = Quantization((1.0, 0.25), (0, 1), 0)
    np.testing.assert_array_equal(by_row.dequantized(values), [[-128, 127], [-0.25, 0]])
