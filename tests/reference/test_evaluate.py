"""Evaluation of graphs on the host gives the expected results, and messages for invalid graphs and inputs."""

from typing import Any

import numpy as np
import pytest

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.reference import evaluate, run_node
from hw.errors import InputError

STEP = Quantization.per_tensor(0.5, 3)


def chain() -> Graph:
    """Return the graph of z = clip(x + bias), in which the sum is a separate tensor."""
    graph = Graph("chain")
    graph.add_input(Tensor("x", (2, 3), "float32"))
    graph.add_tensor(Tensor("bias", (3,), "float32", None, np.array([1, 2, 3], np.float32)))
    for name in ("y", "z"):
        graph.add_tensor(Tensor(name, (2, 3), "float32"))
    graph.add_node(Node("sum", "add", ("x", "bias"), ("y",)))
    graph.add_node(Node("cut", "clip", ("y",), ("z",), {"low": 0.0, "high": 4.0}))
    return graph.finish(["z"])


def single(op: str, inputs: list[Tensor], output: Tensor, **attributes: object) -> Graph:
    """Return a graph of one node."""
    graph = Graph("one")
    for tensor in inputs:
        graph.add_input(tensor)
    graph.add_tensor(output)
    graph.add_node(Node("n", op, tuple(graph.inputs), (output.name,), attributes))
    return graph.finish([output.name])


def zeros(graph: Graph) -> dict[str, np.ndarray]:
    return {name: np.zeros(graph.tensors[name].shape, graph.tensors[name].dtype) for name in graph.inputs}


def test_outputs_or_all_tensors() -> None:
    graph, x = chain(), np.array([[-5, 0, 1], [2, 3, 4]], np.float32)
    assert list(evaluate(graph, {"x": x})) == ["z"]
    kept = evaluate(graph, {"x": x}, keep=True)
    assert list(kept) == ["x", "y", "z"]
    np.testing.assert_array_equal(kept["y"], [[-4, 2, 4], [3, 5, 7]])
    np.testing.assert_array_equal(kept["z"], [[0, 2, 4], [3, 4, 4]])


def test_inputs_and_constants_may_be_outputs() -> None:
    graph = chain()
    graph.finish(["bias", "x", "y"])
    made = evaluate(graph, zeros(graph))
    np.testing.assert_array_equal(made["bias"], [1, 2, 3])
    np.testing.assert_array_equal(made["x"], np.zeros((2, 3)))
    np.testing.assert_array_equal(made["y"], [[1, 2, 3]] * 2)


def test_one_node() -> None:
    graph = chain()
    (made,) = run_node(graph, graph.nodes["cut"], [np.full((2, 3), 9, np.float32)])
    np.testing.assert_array_equal(made, np.full((2, 3), 4))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"input 'x' is missing; 'chain' has 'x': float32\[2, 3\]"),
        ({"w": np.zeros(1)}, r"there is no input 'w'; 'chain' has 'x': float32\[2, 3\]"),
        ({"x": np.zeros((3, 2), np.float32)}, r"input 'x' must be float32\[2, 3\], not float32\[3, 2\]"),
        ({"x": np.zeros((2, 3))}, r"input 'x' must be float32\[2, 3\], not float64\[2, 3\]"),
        ({"x": [[0.0] * 3] * 2}, r"input 'x' must be float32\[2, 3\], not a list"),
    ],
)
def test_invalid_inputs_are_rejected(inputs: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(chain(), inputs)


def test_invalid_rounding_is_rejected() -> None:
    with pytest.raises(InputError, match="rounding must be reference or xnnpack or onnxruntime, not 'up'"):
        evaluate(chain(), zeros(chain()), rounding="up")  # type: ignore[arg-type]


def test_invalid_operands_of_a_node_are_rejected() -> None:
    graph = chain()
    with pytest.raises(InputError, match="node 'sum' takes 2 inputs, not 1"):
        run_node(graph, graph.nodes["sum"], [np.zeros((2, 3), np.float32)])
    with pytest.raises(
        InputError, match=r"node 'cut': its input 'y' must be float32\[2, 3\], not int8\[2, 3\]"
    ):
        run_node(graph, graph.nodes["cut"], [np.zeros((2, 3), np.int8)])


IMAGE = Tensor("x", (1, 4, 4, 2), "int8", STEP)
MANY = Tensor("x", (2,), "int8", Quantization((0.5, 0.25), (0, 0), 0))
WINDOW = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)}


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            single("max_pool2d", [IMAGE], Tensor("y", (1, 3, 2, 2), "int8", STEP), **WINDOW),
            r"node 'n' \(max_pool2d\): 3 windows along axis 1 take 6 pixels, but padded there are 4",
        ),
        (
            single(
                "avg_pool2d",
                [IMAGE],
                Tensor("y", (1, 1, 1, 2), "int8", STEP),
                kernel=(1, 1),
                strides=(1, 1),
                pads=(1, 0, 0, 0),
                count_pads=False,
            ),
            "a window contains only padding",
        ),
        (
            single("transpose", [IMAGE], Tensor("y", (1, 4, 4, 2), "int8", STEP), perm=(0, 3, 1, 2)),
            r"makes shape \[1, 2, 4, 4\], but 'y' is \[1, 4, 4, 2\]",
        ),
        (
            single("transpose", [IMAGE], Tensor("y", (1, 4, 4, 2), "int8", STEP), perm=(0, 1)),
            "cannot be computed",
        ),
        (
            single("reduce_sum", [IMAGE], Tensor("y", (1, 4, 4), "int8", STEP), axes=(4,), keep=False),
            "cannot be computed",
        ),
        (
            single("slice", [MANY], Tensor("y", (2,), "int8", STEP), starts=(1,), sizes=(2,), steps=(1,)),
            r"axis 0 has indices 0\.\.1, not 1\.\.2",
        ),
        (
            single("gather", [MANY, Tensor("i", (1,), "int64")], Tensor("y", (1,), "int8", STEP), axis=1),
            "cannot be computed",
        ),
        (
            single("rms_norm", [IMAGE], Tensor("y", IMAGE.shape, "int8", STEP), axis=4, epsilon=0.0),
            "cannot be computed",
        ),
        (single("tanh", [MANY], Tensor("y", (2,), "int8", STEP)), "tensor 'x' must have one scale, not many"),
        (
            single("hard_swish", [IMAGE], Tensor("y", IMAGE.shape, "int8", Quantization.per_tensor(1e-4))),
            r"the output's scale must be above 0\.00391, 1/128 of the input's, not 0\.0001",
        ),
    ],
)
def test_invalid_nodes_are_rejected(graph: Graph, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(graph, zeros(graph))


def test_invalid_indices_are_rejected() -> None:
    x, indices = Tensor("x", (2,), "float32"), Tensor("i", (2,), "int64")
    graph = single("gather", [x, indices], Tensor("y", (2,), "float32"), axis=0)
    with pytest.raises(InputError, match=r"indices must be within -2\.\.1, not 0\.\.2"):
        evaluate(graph, {"x": np.zeros(2, np.float32), "i": np.array([0, 2])})


def test_unquantized_integers() -> None:
    big = np.array([1 << 60, -7], np.int64)
    pair = [Tensor(name, (2,), "int64") for name in "ab"]
    for op, want in (("add", [(1 << 60) + 3, -4]), ("sub", [(1 << 60) - 3, -10]), ("mul", [3 << 60, -21])):
        graph = single(op, pair, Tensor("y", (2,), "int64"))
        np.testing.assert_array_equal(evaluate(graph, {"a": big, "b": np.array([3, 3])})["y"], want)
    graph = single(
        "clip", [Tensor("a", (2,), "int64")], Tensor("y", (2,), "int64"), low=-2.5, high=float("inf")
    )
    np.testing.assert_array_equal(evaluate(graph, {"a": big})["y"], [1 << 60, -2])


def test_products_of_wide_integers_are_exact() -> None:
    """Products of int32 and wider integers are exact, even beyond the precision of float64."""
    a, b = np.array([[(1 << 40) + 1, 3]], np.int64), np.array([[(1 << 20) + 1], [5]], np.int64)
    graph = single(
        "matmul", [Tensor("a", (1, 2), "int64"), Tensor("b", (2, 1), "int64")], Tensor("y", (1, 1), "int64")
    )
    made = evaluate(graph, {"a": a, "b": b})["y"]
    np.testing.assert_array_equal(made, [[((1 << 40) + 1) * ((1 << 20) + 1) + 15]])


@pytest.mark.parametrize("kernels", ["reference", "xnnpack", "onnxruntime"])
def test_functions_that_overflow_saturate(kernels: Any) -> None:
    x, y = (
        Tensor("x", (2,), "int8", Quantization.per_tensor(1.0)),
        Tensor("y", (2,), "int8", Quantization.per_tensor(0.01)),
    )
    made = evaluate(single("exp", [x], y), {"x": np.array([127, -128], np.int8)}, rounding=kernels)["y"]
    np.testing.assert_array_equal(made, [127, 0])


def test_unquantized_sums_of_products() -> None:
    """Unquantized sums of products, as in ONNX's MatMulInteger and ConvInteger, only subtract zero points."""
    x, weights = (
        Tensor("x", (1, 2), "uint8", Quantization.per_tensor(1, 200)),
        Tensor("w", (1, 2), "int8", Quantization.per_tensor(1)),
    )
    graph = single("dense", [x, weights], Tensor("y", (1, 1), "int32"))
    made = evaluate(graph, {"x": np.array([[0, 255]], np.uint8), "w": np.array([[-128, 127]], np.int8)})["y"]
    np.testing.assert_array_equal(made, [[200 * 128 + 55 * 127]])


def test_float_operators_on_quantized_tensors() -> None:
    """Operators without an integer kernel in LiteRT are computed in floating point."""
    x, y = Tensor("x", (1, 4), "int8", STEP), Tensor("y", (1, 4), "int8", Quantization.per_tensor(1 / 64, -5))
    graph = single("layer_norm", [x], y, axis=-1, epsilon=0.0)
    made = evaluate(graph, {"x": np.array([[3, 5, 7, 9]], np.int8)})["y"]
    real = np.array([-3, -1, 1, 3]) / np.sqrt(5)
    np.testing.assert_array_equal(made, [np.clip(np.round(real * 64) - 5, -128, 127)])


def test_counted_padding_of_quantized_images_represents_zero() -> None:
    x, y = Tensor("x", (1, 2, 2, 1), "int8", STEP), Tensor("y", (1, 2, 2, 1), "int8", STEP)
    window = {"kernel": (2, 2), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    values = np.array([43, 23, -37, 9], np.int8).reshape(1, 2, 2, 1)  # 40, 20, -40 and 6 steps
    for counted, want in ((True, [13, 8, -7, 5]), (False, values.ravel())):
        made = evaluate(single("avg_pool2d", [x], y, count_pads=counted, **window), {"x": values})["y"]
        np.testing.assert_array_equal(made.ravel(), want)


def test_quantization_of_infinities_and_nans() -> None:
    x, y = Tensor("x", (4,), "float32"), Tensor("y", (4,), "int8", STEP)
    values = np.array([np.inf, -np.inf, 1e30, np.nan], np.float32)
    made = evaluate(single("quantize", [x], y), {"x": values})["y"]
    np.testing.assert_array_equal(made, [127, -128, 127, 3])
