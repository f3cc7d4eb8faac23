"""Construction of quantized ONNX models in QDQ form."""

from pathlib import Path

import numpy as np
import onnx

from compiler.ir.graph import Graph
from tests.support.onnx_models import check, model, node

Held = dict[str, np.ndarray]


def integers(*shape: int, dtype: str = "int8", seed: int = 0) -> np.ndarray:
    """Return seeded random integers over the whole range of a type."""
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)


class Qdq:
    """A model in QDQ form under construction."""

    def __init__(self, dtype: str = "int8"):
        self.dtype, self.nodes, self.held = dtype, list[onnx.NodeProto](), Held()

    def scale(self, name: str, scale: float | np.ndarray, zero: int | np.ndarray, dtype: str = "") -> str:
        """Add constants for a scale and a zero point and return their names."""
        self.held[f"{name}_s"] = np.array(scale, np.float32)
        self.held[f"{name}_z"] = np.array(zero, dtype or self.dtype)
        return f"{name}_s {name}_z"

    def real(self, name: str, scale: float = 0.05, zero: int = 3) -> str:
        """Dequantize an input and return the name of the floating-point value."""
        self.nodes.append(node("DequantizeLinear", f"{name} {self.scale(name, scale, zero)}", f"{name}_r"))
        return f"{name}_r"

    def weights(self, name: str, data: np.ndarray, scale: np.ndarray | float, axis: int = 0) -> str:
        """Add dequantized constants and return the name of the floating-point value."""
        self.held[name] = data
        zeros = np.zeros(np.shape(scale), np.int64)
        constants = self.scale(name, scale, zeros, data.dtype.name)
        self.nodes.append(node("DequantizeLinear", f"{name} {constants}", f"{name}_r", axis=axis))
        return f"{name}_r"

    def quantized(self, name: str, scale: float = 0.1, zero: int = -7) -> str:
        """Quantize a floating-point value into the output y."""
        self.nodes.append(node("QuantizeLinear", f"{name} {self.scale('y', scale, zero)}", "y"))
        return "y"

    def add(self, op: str, inputs: str, output: str, **attributes: object) -> str:
        """Add a node and return the name of its output."""
        self.nodes.append(node(op, inputs, output, **attributes))
        return output

    def check(self, folder: Path, inputs: Held) -> Graph:
        """Return the graph after a comparison of its outputs with onnxruntime's."""
        opset = 17 if self.dtype != "int16" else 21
        return check(folder, model(self.nodes, inputs, ["y"], self.held, opset), inputs)


def all_integers(graph: Graph) -> bool:
    """Return True if no tensor of the graph is float32."""
    return all(t.dtype != "float32" for t in graph.tensors.values())
