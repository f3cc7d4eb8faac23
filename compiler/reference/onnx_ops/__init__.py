"""ONNX operators that compute like onnxruntime, where ONNX's numpy reference differs or is slow."""

from compiler.reference.onnx_ops import products, recurrent, regions, resize, row_ops, scatter_gather, windows
from compiler.reference.onnx_ops.registry import Array, OnnxNodeSpec, own

__all__ = [
    "Array",
    "OnnxNodeSpec",
    "own",
    "products",
    "recurrent",
    "regions",
    "resize",
    "row_ops",
    "scatter_gather",
    "windows",
]
