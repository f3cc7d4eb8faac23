"""A sample of the models that the onnx package ships runs as the generated page says; tensors without elements."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from compiler.frontends.onnx import read_onnx
from compiler.onnx_backend import MlaBackend
from compiler.reference import evaluate
from hw.errors import InputError
from scripts.onnx_nodes.case import run
from scripts.onnx_nodes.page import SHIPPED_PAGE, shipped_row
from scripts.onnx_nodes.suite import shipped_tests
from tests.support.onnx_models import node

#: Every how many models one is run; the soak tests run all.
_EACH = 4


def test_models_run_as_the_page_says() -> None:
    tests = shipped_tests()
    rows = SHIPPED_PAGE.read_text().splitlines()
    made = [shipped_row(test, run(test)).rstrip("\n") for test in tests[::_EACH]]
    missing = [row for row in made if row not in rows]
    assert not missing, "run `python -m scripts.onnx_nodes --shipped --page`"
    assert len(tests) == sum(row.startswith(("| pytorch-", "| simple/")) for row in rows)


def _split_model(shape: list, sizes: int | str = 3):
    """Return a model that splits x into a sequence and returns the sequence's length."""
    nodes = [node("SplitToSequence", "x sizes", "parts"), node("SequenceLength", "parts", "count")]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("sizes", TensorProto.INT64, [sizes]),
    ]
    outputs = [helper.make_tensor_value_info("count", TensorProto.INT64, [])]
    graph = helper.make_graph(nodes, "lengths", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("shape", [["n"], ["n", 4], [None]])
def test_input_without_elements_is_bound(shape: list) -> None:
    """A bound array defines open sizes; tensors without elements are constants."""
    empty = np.zeros([size if isinstance(size, int) else 0 for size in shape], np.float32)
    graph = read_onnx(_split_model(shape), {}, {"x": empty, "sizes": np.zeros(3, np.int64)})
    assert not graph.inputs and evaluate(graph, {})["count"] == 3


def test_empty_part_of_a_sequence_with_elements() -> None:
    parts = node("SplitToSequence", "x sizes", "parts")
    nodes = [parts, node("ConcatFromSequence", "parts", "y", axis=0)]
    info = helper.make_tensor_value_info
    sizes = helper.make_tensor("sizes", TensorProto.INT64, [3], [2, 0, 3])
    inputs, outputs = [info("x", TensorProto.INT32, [5, 2])], [info("y", TensorProto.INT32, [5, 2])]
    graph = helper.make_graph(nodes, "parts", inputs, outputs, [sizes])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    x = np.arange(10, dtype=np.int32).reshape(5, 2)
    np.testing.assert_array_equal(MlaBackend.run_model(made, [x])[0], x)


def test_messages() -> None:
    with pytest.raises(InputError, match=r"input 'sizes' of shape \[0\] has no elements; .* --bind sizes=0"):
        read_onnx(_split_model(["n"], "n"), {}, {"x": np.zeros(0, np.float32)})
    with pytest.raises(InputError, match=r"the sizes \[1, 1, 0\] must add up to 5, the size of axis 0"):
        read_onnx(_split_model([5]), {}, {"sizes": np.array([1, 1, 0])})
    with pytest.raises(InputError, match="must be one number or of shape"):
        read_onnx(_split_model(["n"]), {"n": 5}, {"x": np.zeros(4, np.float32)})
