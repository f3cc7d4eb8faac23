"""MatMulInteger and ConvInteger run on the accelerator and give exactly the integers that ONNX specifies."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

from compiler.frontends.onnx.node import one_node
from compiler.onnx_backend import MlaBackend
from tests.support.onnx_models import reference

BYTES = ("int8", "uint8")
#: Shapes of both operands of a product, by name.
MATRICES = {
    "matrix": ((5, 40), (40, 23)),
    "row": ((1, 300), (300, 7)),
    "stack": ((2, 3, 17, 33), (33, 50)),
    "vector": ((19,), (19, 4)),
    "deep": ((3, 2000), (2000, 5)),
}
IMAGES = {
    "3x3": ((1, 5, 9, 7), (12, 5, 3, 3), {"pads": [1, 1, 1, 1]}),
    "stride": ((1, 20, 9, 8), (3, 20, 2, 3), {"strides": [2, 1]}),
    "groups": ((1, 6, 8, 8), (9, 2, 3, 3), {"group": 3, "dilations": [2, 2]}),
    "depthwise": ((1, 8, 8, 8), (8, 1, 3, 3), {"group": 8}),
    "signal": ((1, 4, 30), (6, 4, 5), {}),
}


def random_integers(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Return random integers, among which the maximum is frequent."""
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return np.where(rng.random(shape) < 0.2, limits.max, values).astype(dtype)


def test_zero_point_per_channel() -> None:
    """Zero points that differ by channel are supported if the shifted weights fit in 8 bits."""
    rng = np.random.default_rng(1)
    zeros = rng.integers(-9, 10, 6, np.int8)
    w = (rng.integers(-110, 110, (6, 3, 3, 3)) + zeros.reshape(6, 1, 1, 1)).astype(np.int8)
    x = random_integers(rng, "uint8", 1, 3, 7, 7)
    arrays = {"x": x, "w": w, "xz": np.uint8(0), "wz": zeros}
    model = one_node(helper.make_node("ConvInteger", list(arrays), ["y"]), arrays, ["x"], 21)
    with MlaBackend.prepare(model, "MLA:n4") as ready:
        assert not ready.network.host
        (found,) = ready.run(x)
    window = np.lib.stride_tricks.sliding_window_view(x[0].astype(int), (3, 3), (1, 2))
    wanted = np.einsum("chwij,ocij->ohw", window, w.astype(int) - zeros.reshape(6, 1, 1, 1))
    np.testing.assert_array_equal(found[0], wanted)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(("groups", "share"), [(1, 3), (2, 3), (6, 1)])
def test_distant_zero_points_per_channel(dtype: str, groups: int, share: int) -> None:
    """Zero points may differ so much that shifted weights need 9 bits; the lower bound counts the model's MACs."""
    rng, limits = np.random.default_rng(groups), np.iinfo(dtype)
    x, w = (
        random_integers(rng, "uint8", 1, groups * share, 7, 7),
        random_integers(rng, dtype, 12, share, 3, 3),
    )
    zeros = rng.permutation(np.linspace(limits.min, limits.max, 12).astype(dtype))
    for channel, number in ((0, limits.max), (1, limits.min)):
        w[channel, 0, 0, 0] = number
        zeros[channel] = limits.min + limits.max - number
    arrays = {"x": x, "w": w, "xz": np.uint8(7), "wz": zeros}
    node = helper.make_node("ConvInteger", list(arrays), ["y"], group=groups)
    with MlaBackend.prepare(one_node(node, arrays, ["x"], 21), "MLA:n4") as ready:
        assert not ready.network.host
        assert ready.network.floor.macs == 25 * w.size
        (found,) = ready.run(x)
    window = np.lib.stride_tricks.sliding_window_view(x[0].astype(int) - 7, (3, 3), (1, 2))
    centred = (w.astype(int) - zeros.astype(int).reshape(12, 1, 1, 1)).reshape(groups, -1, share, 3, 3)
    parts = window.reshape(groups, share, *window.shape[1:])
    wanted = np.einsum("gchwij,gocij->gohw", parts, centred).reshape(found[0].shape)
    np.testing.assert_array_equal(found[0], wanted)


def test_distant_zero_points_per_column() -> None:
    rng = np.random.default_rng(4)
    x, w = random_integers(rng, "int8", 5, 40), random_integers(rng, "uint8", 40, 8)
    arrays = {
        "x": x,
        "w": w,
        "xz": np.int8(-3),
        "wz": rng.permutation(np.linspace(0, 255, 8).astype(np.uint8)),
    }
    node = helper.make_node("MatMulInteger", list(arrays), ["y"])
    with MlaBackend.prepare(one_node(node, arrays, ["x"], 21), "MLA:n8") as ready:
        assert not ready.network.host
        (found,) = ready.run(x)
    np.testing.assert_array_equal(found, (x.astype(int) + 3) @ (w.astype(int) - arrays["wz"].astype(int)))


def check(op: str, seed: int, dtypes: tuple[str, str], shapes: Any, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(seed)
    x, w = (random_integers(rng, dtype, *shape) for dtype, shape in zip(dtypes, shapes, strict=True))
    zeros = [random_integers(rng, dtype) for dtype in dtypes]
    arrays = {"x": x, "w": w, "xz": zeros[0], "wz": zeros[1]}
    node = helper.make_node(op, list(arrays), ["y"], **attributes)
    model = one_node(node, arrays, ["x"], 21)
    with MlaBackend.prepare(model, "MLA:n8") as ready:
        assert not ready.network.host, f"seed {seed}"
        (found,) = ready.run(x)
    # The kernels of onnxruntime support different types, so exact integers in floating point are the reference.
    shift = [array.astype(np.float64) - zero for array, zero in zip((x, w), zeros, strict=True)]
    if op == "MatMulInteger":
        wanted = shift[0] @ shift[1]
    else:
        plain = one_node(
            helper.make_node("Conv", ["x", "w"], ["y"], **attributes),
            {"x": shift[0].astype(np.float32), "w": shift[1].astype(np.float32)},
            ["x"],
            21,
        )
        plain.ir_version = 8  # a type combination that onnxruntime supports
        wanted = reference(plain, {"x": shift[0].astype(np.float32)})["y"]
    np.testing.assert_array_equal(found, wanted.astype(np.int32), f"seed {seed}")
    assert found.dtype == np.int32


@pytest.mark.parametrize("w", BYTES)
@pytest.mark.parametrize("x", BYTES)
@pytest.mark.parametrize("case", MATRICES)
def test_matmul_integer(case: str, x: str, w: str) -> None:
    for seed in range(2):
        check("MatMulInteger", seed, (x, w), MATRICES[case], {})


@pytest.mark.parametrize("w", BYTES)
@pytest.mark.parametrize("x", BYTES)
@pytest.mark.parametrize("case", IMAGES)
def test_conv_integer(case: str, x: str, w: str) -> None:
    *shapes, attributes = IMAGES[case]
    for seed in range(2):
        check("ConvInteger", seed, (x, w), shapes, attributes)
