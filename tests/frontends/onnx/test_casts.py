"""Casts between integer types, and arithmetic on their results, equal onnxruntime."""

import numpy as np
import onnx
import pytest

from compiler.api import compile
from tests.support.float_graphs import numbers
from tests.support.onnx_models import Arrays, check, model, node, ops, read, reference

TYPES = {
    name: getattr(onnx.TensorProto, name.upper())
    for name in ("float", "int32", "int64", "uint16", "uint32", "uint64")
}
WIDE = np.array([2**33 + 5, -(2**31) - 1, 7, 2**31, -(2**52) - 3])
NARROW = np.array([5, -(2**20), 70_001, 2**31 - 1, -(2**31)], np.int32)


def _cast(inputs: str, outputs: str, to: str) -> onnx.NodeProto:
    return node("Cast", inputs, outputs, to=TYPES[to])


def _same(folder, nodes, given: Arrays, outputs, constants=None, **rest) -> None:
    made = model(nodes, given, outputs, constants)
    found = compile(read(folder, made), "n8", **rest)(*given.values())
    for name, wanted in reference(made, given).items():
        assert found[name].dtype == wanted.dtype
        np.testing.assert_array_equal(found[name], wanted)


#: Nodes, input, outputs, constants.
CASES = {
    "wraps": ([_cast("x", "y", "int32")], WIDE, "y", {}),
    "wraps_then_real": ([_cast("x", "a", "int32"), _cast("a", "y", "float")], WIDE, "y", {}),
    "widens": ([_cast("x", "y", "int64")], NARROW, "y", {}),
    "widens_for_a_product": (
        [_cast("x", "a", "int64"), node("Mul", "a k", "y"), _cast("y", "z", "float")],
        NARROW,
        "y z",
        {"k": np.array(300_001)},
    ),
    "widens_to_compare": (
        [
            _cast("x", "a", "int64"),
            node("Mul", "a k", "b"),
            node("Equal", "b j", "y"),
            _cast("b", "z", "float"),
        ],
        NARROW,
        "y z",
        {"k": np.array(300_001), "j": NARROW.astype(np.int64) * 300_001},
    ),
    "product_wraps": (
        [_cast("x", "a", "int32"), node("Mul", "a k", "b"), _cast("b", "y", "float")],
        WIDE,
        "y",
        {"k": np.array(3, np.int32)},
    ),
    "sum_wraps": (
        [node("Add", "x k", "b"), _cast("b", "y", "float")],
        NARROW,
        "y",
        {"k": np.array(2**31 - 1, np.int32)},
    ),
    "running_sum_wraps": (
        [node("CumSum", "x k", "b"), _cast("b", "y", "float")],
        NARROW,
        "y",
        {"k": np.array(0)},
    ),
    "bytes_wrap": (
        [node("Sub", "x k", "b"), _cast("b", "y", "float")],
        np.array([5, 7], np.uint8),
        "y",
        {"k": np.array([9, 5], np.uint8)},
    ),
    "constant_wraps": (
        [_cast("k", "a", "uint16"), _cast("a", "b", "int64"), node("Add", "x b", "y")],
        WIDE,
        "y",
        {"k": np.array([-1, 70_000, 3, 0, 65_535])},
    ),
    "like": ([node("CastLike", "x k", "y")], WIDE, "y", {"k": np.array(0, np.int32)}),
}


@pytest.mark.parametrize("name", CASES)
def test_casts_equal_onnxruntime(tmp_path, name):
    nodes, x, outputs, constants = CASES[name]
    _same(tmp_path, nodes, {"x": x}, outputs.split(), constants)


def test_argmax_has_the_declared_type(tmp_path):
    """ArgMax gives the declared integer type, as at the end of segmentation networks exported from TensorFlow."""
    nodes = [
        node("Conv", "x w", "c", pads=[1] * 4),
        node("ArgMax", "c", "a", axis=1, keepdims=0),
        _cast("a", "y", "int32"),
    ]
    given = {"x": numbers(1, 3, 6, 6)}
    made = model(nodes, given, ["y"], {"w": numbers(5, 3, 3, 3)})
    network = compile(read(tmp_path, made), "n8", calibration=[given])
    found, wanted = network(**given)["y"], reference(made, given)["y"]
    assert found.dtype == wanted.dtype == np.int32
    assert (found == wanted).mean() > 0.9
    assert {"conv2d", "key_index"} <= {op for info in network.infos for op in info.ops}
    assert all(each.edge for each in network.host)


@pytest.mark.parametrize("to", ["uint16", "uint32", "uint64"])
def test_casts_to_wide_unsigned_types_wrap_on_the_host(tmp_path, to):
    nodes = [_cast("x", "a", to), node("Add", "a a", "b"), _cast("b", "y", "int64")]
    graph = check(tmp_path, model(nodes, {"x": WIDE}, ["y"]), {"x": WIDE})
    assert ops(graph) == {"onnx": 3}
