"""The digits network as `make sim` runs it: its quantized layers, read from ONNX."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.kernels.scaling import Affine, float32_multiplier, float32_ratio, param_image

#: Layers in order, and the shape (height, width, channels) of what each gives for one image.
SHAPES: dict[str, tuple[int, ...]] = {
    "conv1": (8, 8, 16), "conv2": (8, 8, 32), "pool1": (4, 4, 32), "conv3": (4, 4, 32), "add": (4, 4, 32),
    "pool2": (2, 2, 32), "scores": (10,),
}  # fmt: skip
IMAGE_SHAPE = (8, 8, 1)
MACS = 64 * 9 * 16 + 64 * 9 * 16 * 32 + 16 * 9 * 32 * 32 + 128 * 10


@dataclass(frozen=True)
class Layer:
    """A layer with weights: (out channels, kernel h, kernel w, channels), a scale for each out channel."""

    weights: np.ndarray
    bias: np.ndarray
    multipliers: np.ndarray
    exponents: np.ndarray

    def params(self, n: int) -> np.ndarray:
        """Its parameters as the machine wants them."""
        return param_image(n, self.bias, self.multipliers, self.exponents)


class Network:
    """The network's constants.

    Attributes
    ----------
    affine : dict
        Scale and zero point of the image and of each layer's output.
    layers : dict
        conv1, conv2, conv3 and scores.
    """

    def __init__(self, path: Path):
        initializers = onnx.load(path).graph.initializer
        self._values = {each.name: numpy_helper.to_array(each) for each in initializers}
        self.affine = {
            name: Affine(float(self._values[f"{name}_scale"]), int(self._values[f"{name}_zero_point"]))
            for name in ("image", *SHAPES)
        }
        before = {"conv1": "image", "conv2": "conv1", "conv3": "pool1", "scores": "pool2"}
        self.layers = {name: self._layer(name, source) for name, source in before.items()}

    def _layer(self, name: str, source: str) -> Layer:
        weights = self._values[f"{name}_weight"]
        if name == "scores":  # columns are in the order channel, row, column
            weights = weights.reshape(len(weights), 32, 2, 2)
        x, y = self.affine[source].scale, self.affine[name].scale
        ratios = [float32_ratio(x, float(scale), y) for scale in self._values[f"{name}_weight_scale"]]
        pairs = np.array([float32_multiplier(ratio) for ratio in ratios], np.int64)
        return Layer(
            np.ascontiguousarray(weights.transpose(0, 2, 3, 1)),
            self._values[f"{name}_bias"],
            pairs[:, 0],
            pairs[:, 1],
        )
