"""Random ONNX models compute what onnxruntime does: in float on the host, quantized on the accelerator."""

from pathlib import Path

from tests.compiler.growing.examples import ONNX, TENTH, try_out
from tests.compiler.growing.onnx_floats import models
from tests.compiler.growing.onnx_quantized import Layers
from tests.compiler.onnx_models import check

FLOAT = 40


def test_random_float_models(tmp_path: Path) -> None:
    try_out(models(), lambda made: check(tmp_path, *made, tolerance=1e-4), FLOAT)


def test_random_quantized_models(tmp_path: Path) -> None:
    layers = Layers(tmp_path)
    try_out(models(most=8, batch=1), layers.check, ONNX // TENTH)
    layers.finish()
