"""Graphs of float ONNX models give the same results as onnxruntime and consist of the expected nodes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler.frontends.onnx import read_onnx
from tests.support.onnx_models import check, evaluated, model, node, ops

IMAGE, SIGNAL, ROWS = (2, 4, 7, 6), (2, 4, 9), (2, 3, 5)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return seeded, normally distributed float32 values around zero."""
    return np.random.default_rng(seed + sum(shape)).normal(size=shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    """Return an int64 constant, such as a shape or axes."""
    return np.array(values, np.int64)


#: Operator, attributes, shape of x, further constants, number of nodes by operator (None: any).
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], list[Any], dict[str, int] | None]] = {
    "conv": (
        "Conv",
        {"pads": [1, 0, 2, 1], "strides": [2, 1]},
        IMAGE,
        [normal(5, 4, 3, 2), normal(5)],
        {"transpose": 2, "conv2d": 1},
    ),
    "conv_dilated": (
        "Conv",
        {"dilations": [2, 1]},
        IMAGE,
        [normal(5, 4, 3, 2)],
        {"transpose": 2, "conv2d": 1},
    ),
    "conv_groups": ("Conv", {"group": 2}, IMAGE, [normal(6, 2, 3, 3)], {"transpose": 2, "conv2d": 1}),
    "conv_depthwise": (
        "Conv",
        {"group": 4},
        IMAGE,
        [normal(4, 1, 3, 3), normal(4)],
        {"transpose": 2, "depthwise_conv2d": 1},
    ),
    "conv_multiplied": ("Conv", {"group": 4}, IMAGE, [normal(8, 1, 3, 3)], {"transpose": 2, "conv2d": 1}),
    "conv_upper": ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, IMAGE, [normal(3, 4, 4, 4)], None),
    "conv_lower": ("Conv", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, IMAGE, [normal(3, 4, 4, 4)], None),
    "conv_valid": ("Conv", {"auto_pad": "VALID"}, IMAGE, [normal(3, 4, 2, 2)], None),
    "conv_1d": (
        "Conv",
        {"pads": [2, 1], "strides": [2]},
        SIGNAL,
        [normal(3, 4, 3), normal(3)],
        {"transpose": 2, "reshape": 2, "conv2d": 1},
    ),
    "conv_1d_depthwise": ("Conv", {"group": 4, "dilations": [2]}, SIGNAL, [normal(4, 1, 3)], None),
    "transposed": (
        "ConvTranspose",
        {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 2]},
        IMAGE,
        [normal(4, 5, 3, 3), normal(5)],
        {"transpose": 2, "conv_transpose2d": 1},
    ),
    "transposed_groups": ("ConvTranspose", {"group": 2}, IMAGE, [normal(4, 3, 3, 3)], None),
    "transposed_same": (
        "ConvTranspose",
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        IMAGE,
        [normal(4, 2, 3, 3)],
        None,
    ),
    "transposed_same_small_kernel": (
        "ConvTranspose",
        {"strides": [4, 3], "auto_pad": "SAME_LOWER"},
        IMAGE,
        [normal(4, 2, 1, 2), normal(2)],
        {"transpose": 2, "conv_transpose2d": 1},
    ),
    "transposed_to_shape": (
        "ConvTranspose",
        {"strides": [2, 1], "output_shape": [14, 6]},
        IMAGE,
        [normal(4, 2, 3, 2), normal(2)],
        {"transpose": 2, "conv_transpose2d": 1},
    ),
    "transposed_1d": ("ConvTranspose", {"strides": [2]}, SIGNAL, [normal(4, 2, 3)], None),
    "gemm": (
        "Gemm",
        {"transB": 1, "alpha": 0.5, "beta": 2.0},
        (3, 4),
        [normal(6, 4), normal(6)],
        {"dense": 1},
    ),
    "gemm_turned": ("Gemm", {"transA": 1}, (4, 3), [normal(4, 6), normal(1)], {"transpose": 1, "dense": 1}),
    "gemm_added": ("Gemm", {}, (3, 4), [normal(4, 6), normal(3, 1)], {"dense": 1, "add": 1}),
    "matmul": ("MatMul", {}, ROWS, [normal(5, 4)], {"dense": 1}),
    "matmul_vector": ("MatMul", {}, ROWS, [normal(5)], None),
    "matmul_stack": ("MatMul", {}, ROWS, [normal(2, 5, 4)], {"matmul": 1}),
    "add_channels": ("Add", {}, IMAGE, [normal(4, 1, 1)], {"transpose": 2, "add": 1}),
    "div": ("Div", {}, ROWS, [normal(5)], {"mul": 1}),
    "pow": ("Pow", {}, ROWS, [np.float32(2)], {"mul": 1}),
    "relu": ("Relu", {}, ROWS, [], {"clip": 1}),
    "clip": ("Clip", {}, ROWS, [np.float32(-0.5), np.float32(0.75)], {"clip": 1}),
    "max": ("Max", {}, ROWS, [np.float32(0.25)], {"clip": 1}),
    "leaky": ("LeakyRelu", {"alpha": 0.2}, ROWS, [], {"leaky_relu": 1}),
    "prelu": ("PRelu", {}, IMAGE, [normal(4, 1, 1)], {"transpose": 2, "prelu": 1}),
    "sigmoid": ("Sigmoid", {}, ROWS, [], {"sigmoid": 1}),
    "tanh": ("Tanh", {}, ROWS, [], {"tanh": 1}),
    "hard_swish": ("HardSwish", {}, ROWS, [], {"hard_swish": 1}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": 0.3}, ROWS, [], {"mul": 1, "add": 1, "clip": 1}),
    "gelu": ("Gelu", {"domain": "com.microsoft"}, ROWS, [], {"gelu": 1}),
    "exp": ("Exp", {}, ROWS, [], {"exp": 1}),
    "elu": ("Elu", {"alpha": 0.7}, ROWS, [], {"elu": 1}),
    "softplus": ("Softplus", {}, ROWS, [], {"softplus": 1}),
    "cumsum": ("CumSum", {"reverse": 1}, IMAGE, [np.array(-3)], {"cumsum": 1}),
    "cumsum_exclusive": ("CumSum", {"exclusive": 1}, ROWS, [np.array(1)], {"cumsum": 1}),
    "max_pool": (
        "MaxPool",
        {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]},
        IMAGE,
        [],
        None,
    ),
    "max_pool_up": ("MaxPool", {"kernel_shape": [2, 4], "strides": [2, 3], "ceil_mode": 1}, IMAGE, [], None),
    "max_pool_1d": ("MaxPool", {"kernel_shape": [3], "strides": [2]}, SIGNAL, [], None),
    "mean_pool": ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, IMAGE, [], None),
    "mean_pool_counted": (
        "AveragePool",
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        IMAGE,
        [],
        {"transpose": 2, "pad": 1, "avg_pool2d": 1},
    ),
    "global_mean": ("GlobalAveragePool", {}, IMAGE, [], {"reduce_mean": 1}),
    "global_max": ("GlobalMaxPool", {}, IMAGE, [], {"reduce_max": 1}),
    "sum": ("ReduceSum", {"keepdims": 0}, IMAGE, [ints(1, -1)], {"reduce_sum": 1}),
    "minimum": ("ReduceMin", {"axes": [2]}, IMAGE, [], {"reduce_min": 1}),
    "softmax": ("Softmax", {"axis": 1}, IMAGE, [], {"softmax": 1}),
    "layer_norm": (
        "LayerNormalization",
        {"axis": -2, "epsilon": 0.01},
        ROWS,
        [normal(3, 5), normal(3, 5)],
        {"layer_norm": 1, "reshape": 2},
    ),
    "rms_norm": ("SimplifiedLayerNormalization", {}, ROWS, [normal(5)], {"rms_norm": 1}),
    "batch_norm": (
        "BatchNormalization",
        {},
        IMAGE,
        [normal(4), normal(4), normal(4), np.abs(normal(4))],
        {"transpose": 2, "mul": 1, "add": 1},
    ),
    "instance_norm": (
        "InstanceNormalization",
        {"epsilon": 0.01},
        IMAGE,
        [normal(4), normal(4)],
        {"reshape": 2, "layer_norm": 1, "transpose": 2, "mul": 1, "add": 1},
    ),
    "instance_norm_1d": (
        "InstanceNormalization",
        {},
        SIGNAL,
        [np.ones(4, np.float32), np.zeros(4, np.float32)],
        {"layer_norm": 1},
    ),
    "transpose": ("Transpose", {"perm": [2, 0, 1]}, ROWS, [], {"transpose": 1}),
    "reshape": ("Reshape", {}, ROWS, [ints(0, -1)], {"reshape": 1}),
    "flatten": ("Flatten", {"axis": 2}, IMAGE, [], {"reshape": 1}),
    "squeeze": ("Squeeze", {}, (2, 1, 3, 1), [ints(1)], {"reshape": 1}),
    "unsqueeze": ("Unsqueeze", {}, ROWS, [ints(0, -1)], {"reshape": 1}),
    "slice": ("Slice", {}, IMAGE, [ints(5, -3), ints(-100, 100), ints(2, 3), ints(-2, 2)], None),
    "pad": ("Pad", {}, IMAGE, [ints(0, 1, 0, 2, 0, 0, 3, 0), np.float32(1.5)], {"pad": 1}),
    "pad_cut": ("Pad", {}, ROWS, [ints(0, -1, 1, 0, -1, 1)], {"slice": 1, "pad": 1}),
    "gather": ("Gather", {"axis": 1}, ROWS, [np.array([[2, 0], [-1, 1]])], {"gather": 1}),
    "gather_one": ("Gather", {"axis": 1}, ROWS, [np.array(-1)], {"slice": 1, "reshape": 1}),
    "resize": (
        "Resize",
        {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
        IMAGE,
        [np.empty(0, np.float32), np.array([1, 1, 2, 3], np.float32)],
        {"transpose": 2, "resize_nearest": 1},
    ),
    "resize_sizes": (
        "Resize",
        {"mode": "nearest"},
        IMAGE,
        [np.empty(0, np.float32), np.empty(0, np.float32), ints(2, 4, 14, 12)],
        None,
    ),
    "identity": ("Identity", {}, ROWS, [], {"reshape": 1}),
    "depth_to_space": ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}, IMAGE, [], None),
}


@pytest.mark.parametrize("name", CASES)
def test_operator_equals_onnxruntime(tmp_path: Path, name: str) -> None:
    op, attributes, shape, constants, wanted = CASES[name]
    inputs = {"x": normal(*shape)}
    held = {f"c{i}": array for i, array in enumerate(constants)}
    opset = 20 if op == "Gelu" else 17
    made = model([node(op, " ".join(["x", *held]), "y", **attributes)], inputs, ["y"], held, opset)
    graph = check(tmp_path, made, inputs)
    if wanted is not None:
        assert ops(graph) == wanted


@pytest.mark.parametrize(
    ("op", "attributes", "inputs", "opset"),
    [
        ("Softmax", {"axis": 1}, ["x"], 11),
        ("Clip", {"min": -0.5, "max": 0.5}, ["x"], 10),
        ("Squeeze", {"axes": [0]}, ["x"], 11),
        ("Slice", {"axes": [1], "starts": [1], "ends": [3]}, ["x"], 9),
        ("Pad", {"pads": [0, 1, 0, 0, 0, 2], "value": 0.5}, ["x"], 10),
        ("ReduceSum", {"axes": [-1], "keepdims": 0}, ["x"], 11),
        ("Upsample", {"mode": "nearest", "scales": [1.0, 1.0, 2.0]}, ["x"], 7),
    ],
)
def test_old_operator_sets(tmp_path: Path, op: str, attributes: dict, inputs: list[str], opset: int) -> None:
    x = normal(1, 4, 5)
    if op == "Upsample":
        x, attributes = x[..., None], {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 3.0]}
    made = model([node(op, " ".join(inputs), "y", **attributes)], {"x": x}, ["y"], opset=opset)
    check(tmp_path, made, {"x": x})


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "MatMul", "Concat"])
def test_two_inputs(tmp_path: Path, op: str) -> None:
    a, b = normal(2, 3, 4), normal(2, 4, 4, seed=1) if op in ("MatMul", "Concat") else normal(3, 4)
    inputs = {"a": a, "b": b}
    attributes = {"axis": 1} if op == "Concat" else {}
    graph = check(tmp_path, model([node(op, "a b", "y", **attributes)], inputs, ["y"]), inputs)
    assert ops(graph) == {op.lower(): 1}  # an operand that is repeated along leading dimensions is not copied


@pytest.mark.parametrize(("opset", "scales"), [(18, 2), (21, 6)])
def test_group_normalization_has_scales_by_group_then_by_channel(
    tmp_path: Path, opset: int, scales: int
) -> None:
    made = node("GroupNormalization", "x c d", "y", num_groups=2, epsilon=0.01)
    inputs, held = {"x": normal(2, 6, 4, 3)}, {"c": normal(scales), "d": normal(scales, seed=1)}
    graph = check(tmp_path, model([made], inputs, ["y"], held, opset), inputs)
    assert ops(graph) == {"reshape": 2, "layer_norm": 1, "transpose": 2, "mul": 1, "add": 1}


def test_several_outputs(tmp_path: Path) -> None:
    nodes = [node("Split", "x sizes", "a b c", axis=1), node("Identity", "a", "d"), node("Mul", "b c", "e")]
    inputs = {"x": normal(2, 5, 3)}
    made = model(nodes, inputs, ["d", "a", "e", "x"], {"sizes": ints(1, 2, 2)})
    check(tmp_path, made, inputs)


def test_embedding(tmp_path: Path) -> None:
    inputs = {"tokens": np.array([[3, 1, 2]], np.int64)}
    made = model([node("Gather", "table tokens", "y")], inputs, ["y"], {"table": normal(7, 4)})
    assert ops(check(tmp_path, made, inputs)) == {"gather": 1}


def test_batch_norm_is_merged_into_the_convolution(tmp_path: Path) -> None:
    held = {
        "w": normal(3, 4, 3, 3),
        "b": normal(3),
        "s": normal(3, seed=1),
        "o": normal(3, seed=2),
        "m": normal(3, seed=3),
        "v": np.abs(normal(3, seed=4)),
    }
    nodes = [node("Conv", "x w b", "c"), node("BatchNormalization", "c s o m v", "n"), node("Relu", "n", "y")]
    inputs = {"x": normal(*IMAGE)}
    graph = check(tmp_path, model(nodes, inputs, ["y"], held), inputs)
    assert ops(graph) == {"transpose": 2, "conv2d": 1, "clip": 1}


def test_shape_arithmetic_is_folded(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "batch"),
        node("Unsqueeze", "batch axis", "first"),
        node("Div", "minus_five two", "half_down"),
        node("Neg", "half_down", "half"),
        node("Concat", "first half minus", "sizes", axis=0),
        node("Reshape", "x sizes", "y"),
    ]
    held = {"zero": np.array(0), "axis": ints(0), "minus_five": ints(-5), "two": ints(2), "minus": ints(-1)}
    inputs = {"x": normal(*IMAGE)}
    assert ops(check(tmp_path, model(nodes, inputs, ["y"], held), inputs)) == {"reshape": 1}


def test_fast_gelu_with_bias(tmp_path: Path) -> None:
    inputs, held = {"x": normal(3, 8)}, {"b": normal(8)}
    made = model([node("FastGelu", "x b", "y", domain="com.microsoft")], inputs, ["y"], held)
    assert ops(check(tmp_path, made, inputs)) == {"add": 1, "gelu": 1}


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (2, 4, 6), (2, 4, 5, 4)])
def test_prelu_with_a_vector_of_slopes(shape: tuple[int, ...]) -> None:
    """A vector of slopes applies to channels, as in old exports, even if its shape does not broadcast."""
    slope = np.array([0.1, 0.5, -0.25, 2], np.float32)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("PRelu", ["x", "s"], ["y"])],
        "prelu",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(slope, "s")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=8)
    along = slope if shape[-1] == 4 else slope.reshape(-1, *(1,) * (len(shape) - 2))
    found = evaluated(read_onnx(made), {"x": x})["y"]
    np.testing.assert_allclose(found, np.where(x < 0, x * along, x), rtol=1e-6)
