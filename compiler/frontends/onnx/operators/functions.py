"""ONNX operators that are functions of single numbers: tables, once they are quantized to 8 bits."""

from collections.abc import Sequence
from typing import Any

from compiler.frontends.onnx.emit import Emitter
from compiler.frontends.onnx.host import function
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.registry import converts
from compiler.frontends.onnx.values import Value

_FUNCTIONS = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Erf", "Floor",
    "Log", "Reciprocal", "Round", "Selu", "Shrink", "Sign", "Sin", "Sinh", "Softsign", "Sqrt",
    "Tan", "ThresholdedRelu",
)  # fmt: skip


@converts(*_FUNCTIONS, inputs=(1, 1))
def _function(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [function(emitter, node, inputs[0])]
