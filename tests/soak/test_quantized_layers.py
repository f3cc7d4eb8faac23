"""Layers of published architectures, quantized by onnxruntime, are correct on the golden model (`make soak`)."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from compiler.bench.architectures import model_file
from tests.support.onnx_layers import cut, differing

SAMPLES = 2
NETWORKS = ("resnet18", "resnet50", "mobilenet_v1", "mobilenet_v2", "bert_layer")
#: Fraction of the values that may differ by one unit in layers with a normalization.
MAX_DIFFERENCE = {"LayerNormalization": 0.02}
#: Suffixes of the names of the nodes that form one GELU, which is quantized as a whole.
_GELU = (".scaled", ".erf", ".more", ".twice", ".gelu")


class _Samples(CalibrationDataReader):
    """Calibration reader with random inputs."""

    def __init__(self, model: onnx.ModelProto):
        value = model.graph.input[0]
        self.name, rng = value.name, np.random.default_rng(0)
        shape = [each.dim_value for each in value.type.tensor_type.shape.dim]
        self.samples = [rng.standard_normal(shape).astype(np.float32) for _ in range(SAMPLES)]
        self.left = iter(self.samples)

    def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
        sample = next(self.left, None)
        return None if sample is None else {self.name: sample}


def quantized(name: str, folder: Path) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a network in QDQ form with scales of weights per channel, and a sample."""
    plain, made = folder / "plain.onnx", folder / "quantized.onnx"
    quant_pre_process(str(model_file(name)), str(plain), skip_symbolic_shape=True)
    samples = _Samples(onnx.load(plain))
    quantize_static(
        str(plain),
        str(made),
        samples,
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=[node.name for node in onnx.load(plain).graph.node if node.name.endswith(_GELU)],
    )
    return onnx.load(made), {samples.name: samples.samples[0]}


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_with_inputs_from_onnxruntime(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    values = apart = layers = 0
    left: list[str] = []
    for layer in cut(*quantized(name, tmp_path)):
        count, host = differing(layer, tmp_path)
        most = next((share for op, share in MAX_DIFFERENCE.items() if op in layer.name), 0.001)
        assert count <= most * layer.wanted.size, f"{layer.name}: {count} of {layer.wanted.size} are one off"
        values, apart, layers, left = values + layer.wanted.size, apart + count, layers + 1, left + host
    with capfd.disabled():
        print(
            f"\n{name}: {layers} layers, {apart} of {values:,} values a unit off; on the host: {left or 'nothing'}",
            file=sys.stderr,
            flush=True,
        )
    assert layers and not left
