"""Lowering of a graph to layers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from compiler.ir.graph import Graph
from compiler.layers.base import Layer
from compiler.layers.lowering_context import Group, LoweringContext, SubTensor, UnsupportedLoweringError
from compiler.layers.registry import LOWERINGS
from compiler.lowering.aliasing import find_parts
from compiler.lowering.element_types import check_types
from compiler.lowering.view_elision import IN_PLACE


@dataclass
class LoweredNetwork:
    """A network of layers.

    Parameters
    ----------
    graph : Graph
        Graph that was lowered.
    layers : list of Layer
        Layers in an order in which they can run.
    views : dict
        Tensors that are views of others: name -> name of the tensor whose bytes they are.
    parts : dict
        Tensors that are contained in others, by name.
    refused : dict
        Nodes that the accelerator cannot execute, with the reason.
    """

    graph: Graph
    layers: list[Layer] = field(default_factory=list)
    views: dict[str, str] = field(default_factory=dict)
    parts: dict[str, SubTensor] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def root(self, name: str) -> str:
        """The tensor whose bytes a tensor is, or is a part of."""
        while name in self.views or name in self.parts:
            name = self.views[name] if name in self.views else self.parts[name].of
        return name

    def part(self, name: str) -> SubTensor | None:
        """Part of another tensor that a tensor is, perhaps in another shape; None if it is none."""
        while name in self.views:
            name = self.views[name]
        return self.parts.get(name)


def lower(graph: Graph, groups: Sequence[Group], rounding: str) -> LoweredNetwork:
    """Layers of all groups; nodes that have none are in `refused`."""
    out = LoweredNetwork(graph, parts=find_parts(graph, groups))
    for nodes in groups:
        lowering = LoweringContext(graph, nodes, rounding)
        try:
            op = lowering.anchor.op
            if all(t.constant for node in nodes for t in graph.ins(node)):
                raise UnsupportedLoweringError("all it reads is constant")
            if op == "onnx":
                raise UnsupportedLoweringError(lowering.anchor.attributes["why"])
            for node in nodes:
                check_types(graph, node)
            out.layers += IN_PLACE[op](out, lowering) if op in IN_PLACE else [LOWERINGS[op].lower(lowering)]
        except UnsupportedLoweringError as error:
            out.refused |= {node.name: str(error) for node in nodes}
    return out
