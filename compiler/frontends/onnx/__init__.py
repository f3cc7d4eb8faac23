"""ONNX files: `read_onnx` makes a graph of a model.

What happens to a file, in this order: `file.py` reads it as plain data, `fold.py` computes what is known beforehand,
`rewrite.py`, `patterns.py` and `fuse.py` turn nodes into others, `operators` converts each, `finish.py` adds outputs.
"""

from compiler.frontends.onnx.importer import read_onnx
from compiler.frontends.onnx.node import UnsupportedNodesError

__all__ = ["UnsupportedNodesError", "read_onnx"]
