"""Models of other frameworks, converted as docs/other_frameworks.md describes, agree with the frameworks."""

from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile
from tests.support.trained_networks import Reference

FOLDER = Path(__file__).parents[1] / "fixtures" / "converters"
SAMPLES = dict(np.load(FOLDER / "samples.npz"))


@pytest.mark.parametrize("name", ["keras", "saved_model", "jax"])
def test_quantized_by_the_converter(name: str) -> None:
    """Results equal LiteRT's, and are close to the framework's float results."""
    path = FOLDER / f"{name}.tflite"
    network, reference = compile(path, "n4", cache=False), Reference(path)
    assert network.infos and not network.host
    (tensor,), (output,) = network.inputs, network.outputs
    assert tensor.quantization is not None and output.quantization is not None
    scale, zero = tensor.quantization.scale[0], tensor.quantization.zero_point[0]
    for x, wanted in zip(SAMPLES["x"], SAMPLES["jax" if name == "jax" else "keras"], strict=True):
        stored = np.clip(np.rint(x / scale) + zero, -128, 127).astype(np.int8)[None]
        (found,) = network(stored).values()
        assert np.array_equal(found, reference({tensor.name: stored})[0])
        assert np.abs(output.quantization.dequantized(found) - wanted).max() < 0.05


@pytest.mark.parametrize("name", ["keras_float.tflite", "saved_model.onnx"])
def test_quantized_by_the_compiler(name: str) -> None:
    network = compile(FOLDER / name, "n4", calibration=list(SAMPLES["x"]), cache=False)
    assert network.infos and not [each for each in network.host if not each.edge]
    assert network.quantization is not None
    for x, wanted in zip(SAMPLES["x"], SAMPLES["keras"], strict=True):
        (found,) = network(x[None]).values()
        assert np.abs(found - wanted).max() < 0.02
