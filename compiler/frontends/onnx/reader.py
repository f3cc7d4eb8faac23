"""Interface of the ONNX importer for conversions of nodes with subgraphs."""

from collections.abc import Mapping
from typing import Protocol

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import OnnxModel
from compiler.frontends.onnx.values import ConstantValue, Value


class OnnxReader(Protocol):
    """Who converts the nodes of a graph of the file, and of subgraphs (`convert.py`)."""

    def inside(self, model: OnnxModel, constants: Mapping[str, ConstantValue]) -> "OnnxReader":
        """The same for a subgraph, some of whose inputs and captured values are known."""
        ...

    def emitter(self, room: int) -> OnnxGraphBuilder:
        """What builds a graph of its own for the nodes."""
        ...

    def convert(self, emitter: OnnxGraphBuilder, values: dict[str, Value]) -> None:
        """Add what the nodes become; values get what they make. Raises UnsupportedError if that cannot be done."""
        ...
