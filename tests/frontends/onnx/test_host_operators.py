"""Tests of ONNX operators that only the host supports, and of functions of one operand, which become tables."""

import base64
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler.api import compile
from compiler.frontends.onnx import read_onnx
from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Tensor
from compiler.reference import evaluate
from compiler.runtime.package_writer import read_package, to_bytes
from hw.errors import InputError
from tests.support.onnx_models import model, node, reference, small

ROWS = (4, 30)


def normal(*shape: int) -> np.ndarray:
    """Return seeded, normally distributed values."""
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def sorted_rows() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model of two layers with a TopK between them, and the model's inputs."""
    inputs = {"x": normal(*ROWS)}
    nodes = [node("MatMul", "x w", "a"), node("TopK", "a k", "b places"), node("MatMul", "b v", "y")]
    held = {"w": normal(30, 16), "k": np.array([9]), "v": normal(9, 5)}
    return model(nodes, inputs, ["y", "places"], held), inputs


def test_host_operator_between_accelerator_layers(tmp_path: Path) -> None:
    made, inputs = sorted_rows()
    network = compile(read_onnx(made), "n4", calibration=[inputs])
    reasons = {each.op: each.reason for each in network.host if not each.edge}
    assert reasons == dict.fromkeys(("top_values", "top_indices"), "9 elements, more than 8")
    steps = ("dense", "quantize", "dense")  # the host makes float32 values
    assert [layer.ops for layer in network.infos] == [(op,) for op in steps]
    found, wanted = network(**inputs), reference(made, inputs)
    assert np.mean(found["places"] == wanted["places"]) > 0.8 and found["places"].dtype == np.int64
    assert np.abs(found["y"] - wanted["y"]).max() < 0.1 * np.abs(wanted["y"]).max()
    path = tmp_path / "network.mla"
    path.write_bytes(to_bytes(network))
    again = read_package(path)(**inputs)
    np.testing.assert_array_equal(again["y"], found["y"])
    with pytest.raises(InputError, match=r"not for the accelerator: .*\(top_values\): 9 elements"):
        compile(read_onnx(made), "n4", calibration=[inputs], strict=True)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("Erf", {}), ("Celu", {"alpha": 0.7}), ("Softsign", {}), ("Sin", {}), ("Reciprocal", {}), ("Pow", {})],
)
def test_function_of_one_operand_is_a_table(op: str, attributes: dict) -> None:
    inputs, held = {"x": np.abs(normal(3, 50)) + 1}, {"e": np.array(1.5, np.float32)} if op == "Pow" else {}
    made = model([node(op, " ".join(["x", *held]), "y", **attributes)], inputs, ["y"], held)
    graph = read_onnx(made)
    assert [each.op for each in graph] == ["function"]
    np.testing.assert_allclose(evaluate(graph, inputs)["y"], reference(made, inputs)["y"], rtol=1e-5)
    network = compile(graph, "n4", calibration=[inputs])
    assert [layer.ops for layer in network.infos] == [("function",)]
    wanted = reference(made, inputs)["y"]
    assert np.abs(network(**inputs)["y"] - wanted).max() < 0.02 * np.abs(wanted).max()


def _node(text: str) -> Graph:
    graph = Graph("one")
    graph.add_input(Tensor("x", (2, 3), "float32"))
    graph.add_tensor(Tensor("y", (2, 3), "float32"))
    attributes = {"operator": "Any", "model": text, "number": 0, "why": "a test"}
    graph.add_node(Node("node", "onnx", ("x",), ("y",), attributes))
    return graph.finish(["y"])


@pytest.mark.parametrize("text", ["", "no base 64", base64.b64encode(b"no protocol buffer").decode()])
def test_damaged_node_in_a_package_is_rejected(text: str) -> None:
    """A compiled file with invalid data in place of an ONNX node is rejected."""
    with pytest.raises(InputError, match="node 'node'"):
        evaluate(_node(text), {"x": np.zeros((2, 3), np.float32)})


def test_control_flow_in_a_host_node_is_rejected() -> None:
    """A node with a subgraph is rejected, since the subgraph could contain an endless loop."""
    (held,) = (each for each in read_onnx(small(node("Erf", "x", "y"))) if each.op == "function")
    made = onnx.ModelProto.FromString(base64.b64decode(held.attributes["model"]))
    made.graph.node[0].attribute.append(onnx.helper.make_attribute("body", made.graph))
    text = base64.b64encode(made.SerializeToString()).decode()
    with pytest.raises(InputError, match="must hold no graphs"):
        evaluate(_node(text), {"x": np.zeros((2, 3), np.float32)})
    assert replace(held, name="other").operator == "Erf"


def test_shape_that_depends_on_values_is_rejected() -> None:
    """A shape is not taken from a trial run if other values give another shape."""
    made = model(
        [node("Pad", "x p", "y"), node("Relu", "y", "z")],
        {"x": normal(1, 3), "p": np.array([0, 2, 0, 1])},
        ["z"],
    )
    with pytest.raises(InputError, match="Pad: the shape of its output depends on the values of its inputs"):
        compile(read_onnx(made), "n4")


def test_padding_of_real_numbers_runs_on_the_host() -> None:
    """An int16 graph between DequantizeLinear and QuantizeLinear pads float32 values."""
    scales = {"s": np.array(0.01, np.float32), "o": np.array(0, np.int16), "p": np.array([0, 2, 0, 1])}
    nodes = [
        node("DequantizeLinear", "xq s o", "x"),
        node("DequantizeLinear", "vq s o", "v"),
        node("Pad", "x p v", "y"),
        node("QuantizeLinear", "y s o", "yq"),
    ]
    inputs = {"xq": np.arange(-8, 7, dtype=np.int16).reshape(3, 5)}
    made = model(nodes, inputs, ["yq"], scales | {"vq": np.array(300, np.int16)}, opset=21)
    network = compile(read_onnx(made), "n4")
    np.testing.assert_array_equal(network(**inputs)["yq"], reference(made, inputs)["yq"])
