"""Builds quantized ONNX models in QDQ form."""

from pathlib import Path

import numpy as np
import onnx

from compiler.ir.graph import Graph
from tests.support.onnx_models import check, model, node

Held = dict[str, np.ndarray]


def integers(*shape: int, dtype: str = "int8", seed: int = 0) -> np.ndarray:
    """Seeded integers over the whole range of a type."""
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)


class Qdq:
    """Builds a model in QDQ form."""

    def __init__(self, dtype: str = "int8"):
        self.dtype, self.nodes, self.held = dtype, list[onnx.NodeProto](), Held()

    def scale(self, name: str, scale: float | np.ndarray, zero: int | np.ndarray, dtype: str = "") -> str:
        """Constants of a scale and a zero point; their names."""
        self.held[f"{name}_s"] = np.array(scale, np.float32)
        self.held[f"{name}_z"] = np.array(zero, dtype or self.dtype)
        return f"{name}_s {name}_z"

    def real(self, name: str, scale: float = 0.05, zero: int = 3) -> str:
        """Dequantize an input; the name of the real number."""
        self.nodes.append(node("DequantizeLinear", f"{name} {self.scale(name, scale, zero)}", f"{name}_r"))
        return f"{name}_r"

    def weights(self, name: str, data: np.ndarray, scale: np.ndarray | float, axis: int = 0) -> str:
        """Quantized constants."""
        self.held[name] = data
        zeros = np.zeros(np.shape(scale), np.int64)
        constants = self.scale(name, scale, zeros, data.dtype.name)
        self.nodes.append(node("DequantizeLinear", f"{name} {constants}", f"{name}_r", axis=axis))
        return f"{name}_r"

    def quantized(self, name: str, scale: float = 0.1, zero: int = -7) -> str:
        """Quantize a real number into y."""
        self.nodes.append(node("QuantizeLinear", f"{name} {self.scale('y', scale, zero)}", "y"))
        return "y"

    def add(self, op: str, inputs: str, output: str, **attributes: object) -> str:
        """A node; its output."""
        self.nodes.append(node(op, inputs, output, **attributes))
        return output

    def check(self, folder: Path, inputs: Held) -> Graph:
        """The graph, which must agree with onnxruntime."""
        opset = 17 if self.dtype != "int16" else 21
        return check(folder, model(self.nodes, inputs, ["y"], self.held, opset), inputs)


def all_integers(graph: Graph) -> bool:
    """No tensor holds real numbers."""
    return all(t.dtype != "float32" for t in graph.tensors.values())
