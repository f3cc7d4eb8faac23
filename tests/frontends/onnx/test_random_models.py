"""Random ONNX models agree with onnxruntime, both in floating point on the host and quantized on the accelerator."""

from pathlib import Path

from tests.support.onnx_models import check
from tests.support.strategies.examples import ONNX, TENTH, check_examples
from tests.support.strategies.onnx_floats import models
from tests.support.strategies.onnx_quantized import LayerComparison

FLOAT = 40


def test_random_float_models(tmp_path: Path) -> None:
    check_examples(models(), lambda made: check(tmp_path, *made, tolerance=1e-4), FLOAT)


def test_random_quantized_models(tmp_path: Path) -> None:
    layers = LayerComparison(tmp_path)
    check_examples(models(most=8, batch=1), layers.check, ONNX // TENTH)
    layers.finish()
