"""Operators of ONNX as onnxruntime computes them, where ONNX's own reference in numpy does otherwise or takes long."""

from compiler.host.operators import grid, places, pool, products, regions, resize, rows, spectrum
from compiler.host.operators.registry import Array, Asked, own

__all__ = [
    "Array",
    "Asked",
    "grid",
    "own",
    "places",
    "pool",
    "products",
    "regions",
    "resize",
    "rows",
    "spectrum",
]
