"""Each layer against onnxruntime, fed what the machine fed it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx.utils import Extractor

from scripts.sim_programs import quantized_names

#: Units by which a layer may differ: onnxruntime computes in floating point, the machine in integers.
_ALLOWED = 1
#: Operators that leave no room for that.
_EXACT = {"MaxPool", "Flatten", "QuantizeLinear", "DequantizeLinear"}


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


def check_layers(path: Path, tensors: Mapping[str, np.ndarray]) -> list[LayerCheck]:
    """Compare every layer of the network in `path`.

    Parameters
    ----------
    tensors : dict
        The input as the file has it, and each layer's output for all images, channels last, by the compiler's names.

    Raises
    ------
    ImportError
        onnxruntime is not installed.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    model = onnx.load(path)
    extractor = Extractor(onnx.shape_inference.infer_shapes(model))
    stored = {name: own for name, own in quantized_names(model).items() if name in tensors}
    values = {own: _planes(tensors[name]) for name, own in stored.items()}
    values |= {each.name: tensors[each.name] for each in model.graph.input}
    checks = []
    for name in stored.values():
        sources, operators = _above(model, name, values)
        part = extractor.extract_model(sources, [name])
        session = onnxruntime.InferenceSession(part.SerializeToString(), options, ["CPUExecutionProvider"])
        (expected,) = session.run(None, {source: values[source] for source in sources})
        difference = np.abs(values[name].astype(int) - np.asarray(expected).astype(int))
        greatest, equal = int(difference.max()), int(np.count_nonzero(difference == 0))
        allowed = 0 if operators <= _EXACT else _ALLOWED
        checks.append(LayerCheck(name.removesuffix("_int8"), difference.size, equal, greatest, allowed))
    return checks


def _above(model: onnx.ModelProto, output: str, known: Mapping[str, object]) -> tuple[list[str], set[str]]:
    """The known tensors that one is made from, and the operators between."""
    maker = {name: node for node in model.graph.node for name in node.output}
    sources: list[str] = []
    operators: set[str] = set()
    waiting = [output]
    while waiting:
        node = maker[waiting.pop()]
        operators.add(node.op_type)
        sources += [name for name in node.input if name in known and name not in sources]
        waiting += [name for name in node.input if name in maker and name not in known]
    return sources, operators


def _planes(x: np.ndarray) -> np.ndarray:
    """Channels first, as ONNX wants them."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if x.ndim == 4 else x
