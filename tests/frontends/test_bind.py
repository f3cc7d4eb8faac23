"""Inputs bound to constants are no longer network inputs, and outputs depend on the bound values."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.api import compile
from compiler.cache.model_source import ModelSource
from compiler.frontends.model import read_model
from compiler.frontends.onnx import read_onnx
from compiler.reference import evaluate
from hw.errors import InputError
from tests.support.one_operator import options
from tests.support.onnx_models import node, reference
from tests.support.tflite_models import Draft, litert


def rates(path: Path) -> onnx.ModelProto:
    """Write and return a model that computes one function for a rate of 16,000 and another function for other rates."""
    branches = [
        helper.make_graph([each], name, [], [onnx.ValueInfoProto(name=each.output[0])])
        for name, each in (
            ("then", node("Relu", "x", "t")),
            ("else", node("ReduceMax", "x", "e", keepdims=0)),
        )
    ]
    nodes = [
        node("Equal", "rate known", "same"),
        helper.make_node("If", ["same"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    graph = helper.make_graph(
        nodes,
        "rates",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 8)),
            helper.make_tensor_value_info("rate", TensorProto.INT64, ()),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(16000), "known")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    return made


@pytest.mark.parametrize("rate", [16000, 8000])
def test_bound_input_of_an_onnx_model(rate: int, tmp_path: Path) -> None:
    path = tmp_path / "rates.onnx"
    made, x = rates(path), np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    graph = read_model(path, bind={"rate": np.array(rate)})
    assert graph.inputs == ["x"] and not any(each.bodies for each in graph)
    want = reference(made, {"x": x, "rate": np.array(rate)})["y"]
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], want)


@pytest.mark.parametrize("value", [7, np.arange(-4, 4, dtype=np.int8)])
def test_bound_input_of_a_tflite_model(value: int | np.ndarray, tmp_path: Path) -> None:
    """Values bound to a quantized TFLite input are stored integers, not the values that they represent."""
    draft = Draft(np.random.default_rng(0), "int8")
    a, b = draft.input((3, 8)), draft.input((8,))
    draft.op("ADD", [a, b], (3, 8), options("Add", fusedActivationFunction=0, potScaleInt16=False))
    path, x = tmp_path / "add.tflite", draft.values(a)
    path.write_bytes(draft.file())
    network = compile(path, "n8", bind={b: value})
    assert [tensor.name for tensor in network.inputs] == [a]
    (want,) = litert(draft.file(), [x, np.broadcast_to(np.asarray(value, np.int8), 8)], "reference")
    np.testing.assert_array_equal(network(x)[draft.outputs[0]], want)


def test_network_with_all_inputs_bound(tmp_path: Path) -> None:
    """A network without inputs runs without arguments, and the refusal of an argument says that there are none."""
    path = tmp_path / "rates.onnx"
    made, x = rates(path), np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    network = compile(path, "n8", bind={"x": x, "rate": np.array(8000)})
    want = reference(made, {"x": x, "rate": np.array(8000)})["y"]
    np.testing.assert_array_equal(network()["y"], want)
    with pytest.raises(InputError, match="inputs must be none, not x"):
        network(x=x)


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ({"speed": np.array(1)}, "there is no input 'speed'; inputs are 'x', 'rate'"),
        ({"rate": np.array(0.5)}, r"bound input 'rate' must be int64; \[0.5\] is not"),
        ({"x": np.zeros(3)}, r"bound input 'x' must be one number or of shape \[2, 8\], not \[3\]"),
    ],
)
def test_invalid_bindings_are_named(bind: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    rates(tmp_path / "rates.onnx")
    with pytest.raises(InputError, match=message):
        read_model(tmp_path / "rates.onnx", bind=bind)


def test_digest_depends_on_bound_values(tmp_path: Path) -> None:
    """Graphs with different bound values have different cache keys."""
    rates(tmp_path / "rates.onnx")
    sources = [
        ModelSource(tmp_path / "rates.onnx", bind={"rate": np.array(rate)}) for rate in (16000, 8000, 16000)
    ]
    first, other, again = (source.digest for source in sources)
    assert first == again != other
    assert sources[0]._key() != sources[1]._key()


def test_variable_trip_counts_can_be_bound(tmp_path: Path) -> None:
    """A loop whose number of iterations is an input names the option that makes it constant."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["cond"], ["more"]),
            helper.make_node("Relu", ["s"], ["r"]),
            helper.make_node("Identity", ["r"], ["slice"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("cond", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("r", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("slice", TensorProto.FLOAT, [3]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["M", "", "x"], ["last", "all"], body=body)],
        "loop",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("M", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("last", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("all", TensorProto.FLOAT, ["M", 3]),
        ],
    )
    path = tmp_path / "loop.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    with pytest.raises(InputError, match=r"make the number constant with --bind M=\.\.\."):
        read_onnx(path)
    assert read_onnx(path, bind={"M": np.array(2)}).outputs == ["last", "all"]
