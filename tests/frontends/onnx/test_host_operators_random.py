"""ONNX operators that the host computes, or that are expanded, equal onnxruntime; others are rejected on import."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from compiler.api import compile
from compiler.frontends.onnx import read_onnx
from compiler.runtime.package_writer import read_package, to_bytes
from hw.errors import InputError
from tests.support.onnx_models import check, model, node, ops, small

IMAGE, VOLUME = (1, 3, 6, 7), (1, 4, 5, 6, 7)
SEED = 5


def normal(*shape: int, seed: int = SEED) -> np.ndarray:
    """Return seeded, normally distributed values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def indices(*shape: int, most: int) -> np.ndarray:
    """Return random indices in -most..most - 1."""
    return np.random.default_rng(SEED).integers(-most, most, shape)


REGIONS = np.array([[0, 0, 4, 4], [1, 1, 5, 3.3], [-1, 2, 0.5, 9]], np.float32)
OF_IMAGE = np.zeros(3, np.int64)
POINTS = np.random.default_rng(SEED).uniform(-1.6, 1.6, (1, 4, 5, 2)).astype(np.float32)
#: Operator, operator set, first input, constants, attributes.
CASES: dict[str, tuple[str, int, np.ndarray, list[np.ndarray], dict[str, Any]]] = {
    "log_softmax": ("LogSoftmax", 17, normal(*IMAGE), [], {"axis": 1}),
    "log_softmax_of_all_behind": ("LogSoftmax", 11, normal(*IMAGE), [], {"axis": 1}),
    "hardmax": ("Hardmax", 13, normal(*IMAGE), [], {"axis": 1}),
    "hardmax_of_all_behind": ("Hardmax", 11, normal(*IMAGE), [], {"axis": 1}),
    "lp_1": ("LpNormalization", 17, normal(*IMAGE), [], {"axis": 1, "p": 1}),
    "lp_2": ("LpNormalization", 17, normal(*IMAGE), [], {"axis": 0}),
    "mean_variance": ("MeanVarianceNormalization", 13, normal(2, 3, 4, 5), [], {}),
    "mean_variance_axes": ("MeanVarianceNormalization", 13, normal(2, 3, 4, 5), [], {"axes": [1]}),
    "global_lp": ("GlobalLpPool", 17, normal(*IMAGE), [], {"p": 3}),
    "lrn": ("LRN", 13, normal(2, 5, 3, 4), [], {"size": 3, "alpha": 0.3, "beta": 0.6, "bias": 1.5}),
    "gather_fewer": ("GatherElements", 13, normal(3, 4, 5), [indices(2, 2, 2, most=3)], {"axis": 0}),
    "scatter": ("Scatter", 9, normal(3, 4), [np.array([[2, 0], [1, 2]]), normal(2, 2)], {"axis": 0}),
    "one_hot": (
        "OneHot",
        11,
        indices(4, most=5),
        [np.array([5]), np.array([0.5, 2], np.float32)],
        {"axis": 0},
    ),
    "pad_reflect": ("Pad", 18, normal(*IMAGE), [np.array([0, 0, -1, 2, 0, 0, 2, -2])], {"mode": "reflect"}),
    "pad_wrap": ("Pad", 19, normal(*IMAGE), [np.array([0, 0, -1, 2, 0, 0, 2, 0])], {"mode": "wrap"}),
    "roi_old": (
        "RoiAlign",
        10,
        normal(*IMAGE),
        [REGIONS, OF_IMAGE],
        {"output_height": 2, "sampling_ratio": 2},
    ),
    "roi_half": (
        "RoiAlign",
        16,
        normal(*IMAGE),
        [REGIONS, OF_IMAGE],
        {"output_height": 2, "output_width": 3},
    ),
    "roi_max": ("RoiAlign", 16, normal(*IMAGE), [REGIONS, OF_IMAGE], {"mode": "max", "output_width": 3}),
    "roi_pool": ("MaxRoiPool", 17, normal(*IMAGE), [np.insert(REGIONS, 0, 0, 1)], {"pooled_shape": [2, 3]}),
    "grid_16": ("GridSample", 16, normal(*IMAGE), [POINTS], {"mode": "bilinear", "padding_mode": "border"}),
    "grid_cubic": (
        "GridSample",
        20,
        normal(*IMAGE),
        [POINTS],
        {"mode": "cubic", "padding_mode": "reflection"},
    ),
    "grid_nearest": ("GridSample", 20, normal(*IMAGE), [POINTS], {"mode": "nearest", "align_corners": 1}),
    "grid_volume": ("GridSample", 20, normal(2, 3, 4, 5, 6), [normal(2, 2, 3, 2, 3)], {}),
    "pool_volume": (
        "MaxPool",
        17,
        normal(*VOLUME),
        [],
        {"kernel_shape": [2, 3, 2], "pads": [1, 0, 1, 0, 1, 1]},
    ),
    "pool_volume_same": (
        "MaxPool",
        17,
        normal(*VOLUME),
        [],
        {"kernel_shape": [2, 3, 2], "strides": [2, 2, 2], "auto_pad": "SAME_LOWER"},
    ),
    "average_volume": (
        "AveragePool",
        17,
        normal(*VOLUME),
        [],
        {"kernel_shape": [2, 3, 2], "pads": [1, 0, 1] * 2},
    ),
    "lp_pool": (
        "LpPool",
        18,
        normal(*IMAGE),
        [],
        {"kernel_shape": [2, 3], "strides": [2, 2], "ceil_mode": 1},
    ),
    "conv_volume": ("Conv", 17, normal(*VOLUME), [normal(6, 2, 2, 3, 2), normal(6)], {"group": 2}),
    "transposed_volume": ("ConvTranspose", 17, normal(*VOLUME), [normal(4, 3, 2, 2, 2)], {"group": 2}),
    "stft": ("STFT", 17, normal(1, 32, 1), [np.array(4), np.hanning(8).astype(np.float32)], {}),
    "stft_both_sides": (
        "STFT",
        17,
        normal(2, 32, 1),
        [np.array(3), np.ones(8, np.float32)],
        {"onesided": 0},
    ),
    "reduce_nothing": ("ReduceL1", 18, normal(3, 4), [np.zeros(0, np.int64)], {"noop_with_empty_axes": 1}),
}


#: Cases that are expanded into operators of the graph.
EXPANDED = {
    "average_volume",
    "conv_volume",
    "gather_fewer",
    "lp_1",
    "lp_2",
    "lrn",
    "mean_variance",
    "mean_variance_axes",
    "pool_volume",
    "pool_volume_same",
    "reduce_nothing",
    "stft",
    "stft_both_sides",
    "transposed_volume",
}


@pytest.mark.parametrize("case", CASES)
def test_rare_operator_equals_onnxruntime(tmp_path: Path, case: str) -> None:
    op, opset, x, constants, attributes = CASES[case]
    names = [f"c{i}" for i in range(len(constants))]
    held = dict(zip(names, constants, strict=True))
    made = model([node(op, " ".join(["x", *names]), "y", **attributes)], {"x": x}, ["y"], held, opset)
    found = ops(check(tmp_path, made, {"x": x}))
    assert "onnx" not in found if case in EXPANDED else found == {"onnx": 1}


@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 2], "pads": [1, 0, 1, 1]}, {"storage_order": 1}])
def test_max_pool_indices(tmp_path: Path, attributes: dict[str, Any]) -> None:
    x = {"x": normal(2, 3, 6, 7)}
    pool = node("MaxPool", "x", "y i", kernel_shape=[2, 2], **attributes)
    check(tmp_path, model([pool], x, ["y", "i"]), x)


def test_quantized_convolution_over_three_dimensions(tmp_path: Path) -> None:
    random = np.random.default_rng(SEED)
    x = {"x": random.integers(-128, 128, (1, 2, 4, 5, 6)).astype(np.int8)}
    held = {
        "xs": np.float32(0.03),
        "xz": np.int8(1),
        "w": random.integers(-128, 128, (3, 2, 2, 2, 2)).astype(np.int8),
        "ws": np.float32(0.02),
        "wz": np.int8(0),
        "ys": np.float32(0.3),
        "yz": np.int8(0),
    }
    made = model([node("QLinearConv", "x xs xz w ws wz ys yz", "y")], x, ["y"], held)
    assert ops(check(tmp_path, made, x)) == {"onnx": 1}


def test_transposed_convolution_with_a_variable_kernel(tmp_path: Path) -> None:
    x = {"x": normal(1, 4, 3, 4), "w": normal(4, 2, 2, 2)}
    check(tmp_path, model([node("ConvTranspose", "x w", "y", group=2)], x, ["y"]), x)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            small(node("Einsum", "x x x x x", "y", equation="a,b,c,d,e->abcde"), shape=(1000,)),
            "more than 2,147,483,648 elements",
        ),
        (
            small(
                node("GridSample", "i x", "y", mode="bicubic"),
                shape=(1, 8000, 8000, 2),
                i=normal(1, 1, 9, 9),
            ),
            "it takes the host 45,056,000,000 steps, more than 17,179,869,184",
        ),
        (
            small(
                node("MaxPool", "x", "y", kernel_shape=[2, 2, 2], strides=[1 << 10] * 3, pads=[1 << 10] * 6),
                shape=(1, 1, 8, 8, 8),
            ),
            "[8, 8, 8] would be more than 2,147,483,648 elements",
        ),
        (
            small(node("GatherND", "x i", "y", batch_dims=1), shape=(4, 3), i=np.array([[7], [7], [7], [7]])),
            "indices must be within -3..2",
        ),
        (
            small(node("Tile", "x n", "y"), n=np.array([1 << 30, 1])),
            "its output would have shape [2147483648, 3]",
        ),
        (small(node("NonZero", "x", "y")), "the shape of its output depends on the values of its inputs"),
        (small(node("Einsum", "x", "y", equation="no equation")), "'Einsum:y'"),
        (small(node("Gather", "x i", "y", axis=9), i=np.array([1])), "'Gather:y': axis must be within"),
        (small(node("ArgMax", "x", "y", axis=77)), "'ArgMax:y'"),
    ],
)
def test_operators_that_cannot_run_are_rejected_on_import(made: onnx.ModelProto, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_onnx(made)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_steps_of_host_operators_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled file, whatever its origin, is rejected if its host operators exceed the step limit."""
    path = tmp_path / "much.mla"
    made = small(node("LogSoftmax", "x", "y"), shape=(40, 30))
    path.write_bytes(to_bytes(compile(read_onnx(made), "n4")))
    assert read_package(path)
    monkeypatch.setattr("compiler.reference.onnx_node_model.MAX_STEPS", 1000)
    with pytest.raises(
        InputError, match=r"\(LogSoftmax\): it takes the host 19,200 steps, more than 1,000; compile"
    ):
        read_package(path)
