"""Operators of ONNX as onnxruntime computes them, where ONNX's own reference in numpy does otherwise or takes long."""

from compiler.reference.onnx_ops import products, regions, resize, row_ops, scatter_gather, windows
from compiler.reference.onnx_ops.registry import Array, Asked, own

__all__ = [
    "Array",
    "Asked",
    "own",
    "products",
    "regions",
    "resize",
    "row_ops",
    "scatter_gather",
    "windows",
]
