"""Tests of operators that ONNX's reference implementation computes: results, and features that it lacks."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler.frontends.onnx import read_onnx
from compiler.reference import evaluate
from hw.errors import InputError
from tests.support.onnx_models import check, model, node, ops, read, small


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return seeded, normally distributed values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    """Return seeded random uint8 values."""
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("opset", [11, 19, 21, 22])
def test_counted_padding_with_rounding_up(tmp_path: Path, opset: int) -> None:
    """With count_include_pad, averages count padding but not the extension by ceil_mode, in all operator sets."""
    for kernel, strides, pads in (
        ([1, 4], [3, 4], [0, 2, 0, 2]),
        ([3, 3], [2, 2], [1, 1, 0, 1]),
        ([3, 2], [3, 4], [0] * 4),
    ):
        x = {"x": normal(1, 2, 9, 10)}
        pool = node(
            "AveragePool",
            "x",
            "y",
            kernel_shape=kernel,
            strides=strides,
            pads=pads,
            ceil_mode=1,
            count_include_pad=1,
        )
        assert "onnx" not in ops(check(tmp_path, model([pool], x, ["y"], opset=opset), x))


def linear(op: str, names: str, flowing: dict[str, np.ndarray], held: dict[str, Any]) -> onnx.ModelProto:
    return model([node(op, names, "y")], flowing, ["y"], held)


def test_integer_operators_with_variable_operands(tmp_path: Path) -> None:
    """Integer operators may have a variable right operand, and scales and zero points along an axis."""
    images = {"x": integers(1, 3, 8, 8), "w": integers(4, 3, 3, 3, seed=1)}
    rows = {"x": integers(5, 8), "w": integers(8, 4, seed=1)}
    zeros = {"xz": np.uint8(7), "wz": np.uint8(100)}
    scales = {"xs": np.float32(0.1), "ws": np.float32(0.02), "ys": np.float32(0.7), "yz": np.uint8(90)}
    channels = {"ws": np.linspace(0.01, 0.02, 4, dtype=np.float32), "wz": np.full(4, 100, np.uint8)}
    every = "x xs xz w ws wz ys yz"
    for op, names, flowing, held in (
        ("QLinearConv", every, images, zeros | scales),
        ("QLinearConv", every, images, zeros | scales | channels),
        ("ConvInteger", "x w xz wz", images, zeros),
        ("QLinearMatMul", every, rows, zeros | scales | channels),
        ("MatMulInteger", "x w xz wz", rows, zeros | {"wz": integers(4, seed=2)}),
        ("MatMulInteger", "x w xz wz", rows | {"wz": integers(4, seed=2)}, {"xz": np.uint8(7)}),
    ):
        assert set(ops(check(tmp_path, linear(op, names, flowing, held), flowing))) == {"onnx"}, op


def test_scale_per_channel_of_a_signal(tmp_path: Path) -> None:
    """Scales per channel of one-dimensional signals apply to channels; ONNX's reference would use another dimension."""
    names = "x xs xz w ws wz ys yz"
    held = {
        "xs": np.float32(0.1),
        "xz": np.uint8(7),
        "ws": np.linspace(0.01, 0.02, 4, dtype=np.float32),
        "wz": np.full(4, 9, np.uint8),
        "ys": np.float32(0.7),
        "yz": np.uint8(90),
    }
    flowing = {"x": integers(1, 4, 8), "w": integers(4, 4, 3, seed=1)}
    assert set(ops(check(tmp_path, linear("QLinearConv", names, flowing, held), flowing))) == {"onnx"}


def test_zero_point_per_row() -> None:
    """A vector of zero points applies to the rows of a square operand, where ONNX's reference would use the columns."""
    one = helper.make_tensor_value_info
    zeros = integers(4)
    graph = helper.make_graph(
        [node("MatMulInteger", "x w xz", "y")],
        "test",
        [one("x", onnx.TensorProto.UINT8, [4, 4]), one("w", onnx.TensorProto.UINT8, [4, 4])],
        [one("y", onnx.TensorProto.INT32, [4, 4])],
        [numpy_helper.from_array(zeros, "xz")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    x, w = integers(4, 4, seed=1), integers(4, 4, seed=2)
    wanted = (x.astype(int) - zeros.astype(int)[:, None]) @ w.astype(int)
    np.testing.assert_array_equal(evaluate(read_onnx(made), {"x": x, "w": w})["y"], wanted)


def test_future_operator_sets_are_rejected(tmp_path: Path) -> None:
    made, last = small(node("Relu", "x", "y")), onnx.defs.onnx_opset_version()
    made.opset_import[0].version = last
    read(tmp_path, made)
    made.opset_import[0].version = last + 1
    with pytest.raises(InputError, match=rf"operator set must be {last} or earlier, .*, not {last + 1}"):
        read(tmp_path, made)
