"""ONNX operators that compute like onnxruntime, where ONNX's numpy reference differs or is slow."""

from compiler.reference.onnx_ops import axis_ops, recurrent, regions, resize, windows
from compiler.reference.onnx_ops.registry import Array, OnnxNodeSpec, own

__all__ = [
    "Array",
    "OnnxNodeSpec",
    "axis_ops",
    "own",
    "recurrent",
    "regions",
    "resize",
    "windows",
]
