"""Resize and Upsample in all modes, against onnxruntime."""

from pathlib import Path

import numpy as np
import pytest

from tests.compiler.onnx_models import check, model, node, ops

MODES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
#: Not all of them exact in single precision; 1 / 3, 2 / 3 and 0.6 make places a little off the middle of two elements.
SCALES = (0.3, 1 / 3, 0.4, 0.5, 0.6, 2 / 3, 0.7, 0.9, 1.3, 1.7, 2.0, 2.3, 3.7)


def image(height: int, width: int) -> np.ndarray:
    """Numbers that tell their places."""
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
def test_nearest_before_there_were_modes(tmp_path: Path, scale: float) -> None:
    x = {"x": image(4, 9)}
    resize = node("Resize", "x s", "y", mode="nearest")
    check(tmp_path, model([resize], x, ["y"], {"s": np.array([1, 1, 1, scale], np.float32)}, opset=10), x)
