"""Each layer against onnxruntime, fed what the machine fed it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx.utils import Extractor

from scripts.sim_network import SHAPES

#: Tensors that each layer reads.
_INPUTS = {
    "conv1": ["image"],
    "conv2": ["conv1"],
    "pool1": ["conv2"],
    "conv3": ["pool1"],
    "add": ["conv3", "pool1"],
    "pool2": ["add"],
    "scores": ["pool2"],
}
#: Units by which a layer may differ: onnxruntime computes in floating point, the machine in integers.
_ALLOWED = dict.fromkeys(SHAPES, 1) | {"pool1": 0, "pool2": 0}


@dataclass(frozen=True)
class LayerCheck:
    """How a layer's output compares."""

    name: str
    values: int
    equal: int
    greatest: int
    allowed: int

    @property
    def passed(self) -> bool:
        """Whether the difference is as small as promised."""
        return self.greatest <= self.allowed


def _tensor(name: str) -> str:
    return name if name in ("image", "scores") else f"{name}_int8"


def _planes(x: np.ndarray) -> np.ndarray:
    """Channels first, as ONNX wants them."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if x.ndim == 4 else x


def check_layers(path: Path, tensors: dict[str, np.ndarray]) -> list[LayerCheck]:
    """Compare every layer of the network in `path`.

    Parameters
    ----------
    tensors : dict
        The image (images, 8, 8, 1) and each layer's output, channels last.

    Raises
    ------
    ImportError
        onnxruntime is not installed.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    extractor = Extractor(onnx.shape_inference.infer_shapes(onnx.load(path)))
    checks = []
    for name in SHAPES:
        feeds = {_tensor(source): _planes(tensors[source]) for source in _INPUTS[name]}
        model = extractor.extract_model(list(feeds), [_tensor(name)])
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        (expected,) = session.run(None, feeds)
        found = _planes(tensors[name])
        difference = np.abs(found.astype(int) - np.asarray(expected).astype(int))
        greatest, equal = int(difference.max()), int(np.count_nonzero(difference == 0))
        checks.append(LayerCheck(name, found.size, equal, greatest, _ALLOWED[name]))
    return checks
