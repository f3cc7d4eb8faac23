"""ONNX front end: `read_onnx` imports a model as a graph.

Stages, in order: `file.py` parses the file into plain data, `constant_folding.py` evaluates constant nodes,
`rewrite.py` and `patterns.py` rewrite and fuse nodes, and `ops` converts each node. `importer.py` drives the stages and
adds the outputs.
"""

from compiler.frontends.onnx.importer import read_onnx
from compiler.frontends.onnx.node import UnsupportedNodesError

__all__ = ["UnsupportedNodesError", "read_onnx"]
