"""Branches of an ONNX If that are never taken may contain unsupported operators."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.frontends.onnx import UnsupportedNodesError, read_onnx
from compiler.reference import evaluate
from tests.support.onnx_models import node, reference

SHAPE = (5, 2, 3)
CONSTANTS = {"no": np.array(False), "few": np.array(3)}


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    """Return a subgraph whose output is the output of the last node."""
    made = onnx.ValueInfoProto(name=nodes[-1].output[0])
    return helper.make_graph(list(nodes), name, [], [made])


def model(nodes: list[onnx.NodeProto], condition: str, then: onnx.GraphProto) -> onnx.ModelProto:
    """Return a model that runs `then` if the condition holds, and otherwise a ReLU of x."""
    other = branch("else", node("Relu", "x", "e"))
    chosen = helper.make_node("If", [condition], ["y"], then_branch=then, else_branch=other)
    graph = helper.make_graph(
        [*nodes, chosen],
        "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(data, name) for name, data in CONSTANTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def inside(unsupported: onnx.NodeProto) -> onnx.GraphProto:
    return branch("then", unsupported, node("Identity", "h", "t"))


#: A node whose output shape depends on the data, which neither the accelerator nor the host supports.
UNIQUE = node("Unique", "x", "h")
OUTSIDE = branch("then", node("Identity", "h", "t"))
SIZE = [node("Size", "x", "n"), node("Less", "n few", "small")]
CASES = {
    "inside": model([], "no", inside(UNIQUE)),
    "optional outputs": model([], "no", inside(node("Unique", "x", "h - - count"))),
    "read by the branch alone": model([UNIQUE], "no", OUTSIDE),
    "by a condition that follows from shapes": model([UNIQUE, *SIZE], "small", OUTSIDE),
}


@pytest.mark.parametrize("name", CASES)
def test_unsupported_operator_in_a_branch_never_taken(name: str) -> None:
    x = np.linspace(-1, 1, 30, dtype=np.float32).reshape(SHAPE)
    graph = read_onnx(CASES[name])
    assert [each.op for each in graph] == ["clip"]
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], reference(CASES[name], {"x": x})["y"])


def test_unsupported_operator_in_a_branch_taken() -> None:
    """The message names an unsupported operator in a branch that is taken."""
    made = model([UNIQUE], "yes", OUTSIDE)
    made.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    with pytest.raises(UnsupportedNodesError, match="Unique"):
        read_onnx(made)
