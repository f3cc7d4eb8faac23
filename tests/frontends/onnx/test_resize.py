"""Resize and Upsample equal onnxruntime in all modes."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.onnx_models import check, model, node, ops

MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
)
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
#: Scales, some inexact in float32; 1 / 3, 2 / 3 and 0.6 give positions close to the middle of two elements.
SCALES = (0.3, 1 / 3, 0.4, 0.5, 0.6, 2 / 3, 0.7, 0.9, 1.3, 1.7, 2.0, 2.3, 3.7)


def image(height: int, width: int) -> np.ndarray:
    """Return an image whose values identify their positions."""
    return np.arange(2 * height * width, dtype=np.float32).reshape(1, 2, height, width)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_nearest(tmp_path: Path, mode: str, rounding: str) -> None:
    attributes = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": rounding}
    for scale in SCALES:
        x, scales = {"x": image(7, 13)}, np.array([1, 1, scale, scale], np.float32)
        resize = node("Resize", "x - s", "y", **attributes)
        graph = check(tmp_path, model([resize], x, ["y"], {"s": scales}, opset=19), x)
        assert "onnx" not in ops(graph), str(scale)


@pytest.mark.parametrize("scale", SCALES)
def test_nearest_of_old_operator_sets(tmp_path: Path, scale: float) -> None:
    x = {"x": image(4, 9)}
    resize = node("Resize", "x s", "y", mode="nearest")
    check(tmp_path, model([resize], x, ["y"], {"s": np.array([1, 1, 1, scale], np.float32)}, opset=10), x)


def _resized(tmp_path: Path, size: list[int] | None, scales: tuple[float, ...], **attributes: object) -> None:
    """Compare one Resize by products with onnxruntime."""
    x, opset = {"x": np.random.default_rng(1).standard_normal((1, 2, 6, 7)).astype(np.float32)}, 19
    held = {"s": np.array([1, 1, *scales], np.float32)} if size is None else {"z": np.array([1, 2, *size])}
    names = "x - s" if size is None else "x - - z"
    if attributes["coordinate_transformation_mode"] == "tf_half_pixel_for_nn":
        held, names, opset = (
            held | {"r": np.zeros(0, np.float32), "s": np.zeros(0, np.float32)},
            "x r s z",
            11,
        )
    made = model([node("Resize", names, "y", **attributes)], x, ["y"], held, opset)
    assert "onnx" not in ops(check(tmp_path, made, x))


@pytest.mark.parametrize("smooth", [0, 1])
@pytest.mark.parametrize("kind", ["linear", "cubic"])
@pytest.mark.parametrize("mode", MODES)
def test_interpolation(tmp_path: Path, mode: str, kind: str, smooth: int) -> None:
    old = mode == "tf_half_pixel_for_nn"
    attributes: dict[str, object] = {"mode": kind, "coordinate_transformation_mode": mode}
    attributes |= {"antialias": 1} if smooth and not old else {}
    for size in ([9, 13], [3, 4], [1, 14], [6, 2]):
        _resized(tmp_path, size, (), **attributes)
    for scales in () if old or mode == "align_corners" else ((1.5, 1.3), (0.6, 0.4), (2.0, 2.0)):
        _resized(tmp_path, None, scales, **attributes)


def test_cubic_with_excluded_outside(tmp_path: Path) -> None:
    for mode in ("half_pixel", "asymmetric"):
        _resized(
            tmp_path,
            None,
            (1.5, 0.5),
            mode="cubic",
            coordinate_transformation_mode=mode,
            exclude_outside=1,
            cubic_coeff_a=-0.5,
        )


def test_crop_and_resize(tmp_path: Path) -> None:
    x = {"x": np.random.default_rng(1).standard_normal((1, 2, 6, 7)).astype(np.float32)}
    held = {"r": np.array([0, 0, 0.2, -0.1, 1, 1, 0.8, 1.3], np.float32), "z": np.array([1, 2, 9, 4])}
    for kind in ("nearest", "linear", "cubic"):
        attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
        check(tmp_path, model([node("Resize", "x r - z", "y", mode=kind, **attributes)], x, ["y"], held), x)


def test_empty_scales_and_regions(tmp_path: Path) -> None:
    """Exporters write empty scales and regions in addition to sizes; such nodes are accepted."""
    x, empty = {"x": image(6, 7)}, np.zeros(0, np.float32)
    held = {"r": empty, "s": empty, "z": np.array([1, 2, 12, 14])}
    for kind, opset in (("linear", 11), ("linear", 13), ("cubic", 11)):
        resize = node(
            "Resize", "x r s z", "y", mode=kind, coordinate_transformation_mode="pytorch_half_pixel"
        )
        check(tmp_path, model([resize], x, ["y"], held, opset), x)


def test_linear_upsample(tmp_path: Path) -> None:
    x, held = {"x": image(6, 7)}, {"s": np.array([1, 1, 2, 3], np.float32)}
    check(tmp_path, model([node("Upsample", "x s", "y", mode="linear")], x, ["y"], held, 9), x)
    check(tmp_path, model([node("Resize", "x s", "y", mode="linear")], x, ["y"], held, 10), x)
