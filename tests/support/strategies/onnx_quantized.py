"""Comparison of the accelerator with onnxruntime, layer by layer, for random ONNX models that onnxruntime quantized."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from tests.support.onnx_layers import cut, differing

#: Permitted reasons for an integer node on the host (onnxruntime leaves some nodes in float): the accelerator does
#: not
#: support batches and the rarer kinds of broadcasting.
KNOWN = (
    "its stage would consist of reshapes only",
    "a batch of .*",
    "an operand of shape .* spread over .*",
    "a summand of one channel spread over several",
    "the first operand of a difference must have the shape of the result",
)
#: Minimum fraction of the layers that run entirely on the accelerator.
SHARE = 0.6


class _Sample(CalibrationDataReader):
    """Calibration reader with one sample."""

    def __init__(self, inputs: dict[str, np.ndarray]):
        self.left = [inputs]

    def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
        return self.left.pop() if self.left else None


@dataclass
class LayerComparison:
    """Counts over all layers checked.

    Parameters
    ----------
    folder : Path
        Folder for the models' files.
    """

    folder: Path
    layers: int = 0
    whole: int = 0
    values: int = 0
    apart: int = 0

    def check(self, made: tuple[onnx.ModelProto, dict[str, np.ndarray]]) -> None:
        """Quantize a model, cut it into layers, and compare each layer; no value may differ by more than one."""
        plain, path = self.folder / "plain.onnx", self.folder / "quantized.onnx"
        onnx.save(made[0], plain)
        quantize_static(
            str(plain),
            str(path),
            _Sample(made[1]),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
        )
        for layer in cut(onnx.load(path), made[1]):
            count, host = differing(layer, self.folder)
            real = any(re.search("float32|are not integers", text) for text in host)
            for reason in (text.split(": ", 2)[2] for text in host):
                assert real or any(re.fullmatch(known, reason) for known in KNOWN), f"on the host: {host}"
            self.layers, self.whole = self.layers + 1, self.whole + (not host)
            self.values, self.apart = self.values + layer.wanted.size, self.apart + count

    def finish(self) -> None:
        """Assert that few values differed and that most layers ran on the accelerator."""
        assert self.layers and self.whole >= SHARE * self.layers, f"too much on the host: {self}"
        assert self.apart <= 0.01 * self.values, f"too much apart: {self}"

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, {self.whole} of them wholly on the accelerator, "
            f"{self.apart} of {self.values:,} values a unit off"
        )
