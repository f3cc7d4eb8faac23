"""Additions of two convolutions' results: either of them may carry the sum in its drain."""

from compiler.ir.graph import Graph
from compiler.lowering.fusion_groups import ANCHORS

Fusions = tuple[tuple[str, ...], ...]


def carried(graph: Graph, fusions: Fusions) -> list[str]:
    """Additions that another maker of their operands could carry."""
    return [name for names in fusions for name in names[1:] if _other(graph, fusions, name)]


def with_other_carrier(graph: Graph, fusions: Fusions, addition: str) -> Fusions:
    """Fusions in which an addition, and what goes with it, is carried by the other maker; the same if there is none.

    The carrier is carried out last. Where it is the longer one, draining, and a pool behind, are hidden by its work.
    """
    other = _other(graph, fusions, addition)
    if other is None:
        return fusions
    groups = {names[0]: names for names in fusions}
    mine = next(names for names in fusions if addition in names)
    at = mine.index(addition)
    groups |= {mine[0]: mine[:at], other[0]: other + mine[at:]}
    return tuple(group for group in groups.values() if len(group) > 1)


def _other(graph: Graph, fusions: Fusions, addition: str) -> tuple[str, ...] | None:
    """The group that could carry an addition and does not."""
    node = graph.nodes.get(addition)
    if node is None or node.op != "add":
        return None
    mine = next((names for names in fusions if addition in names), ())
    heads = (_head(graph, operand, fusions) for operand in node.inputs)
    return next((head for head in heads if head and mine and head[0] != mine[0]), None)


def _head(graph: Graph, operand: str, fusions: Fusions) -> tuple[str, ...] | None:
    """The group that ends in an operand that nobody else reads, if a convolution or the like begins it."""
    maker = graph.producer(operand)
    if maker is None or len(graph.consumers(operand)) > 1 or operand in graph.outputs:
        return None
    group = next((names for names in fusions if names[-1] == maker.name), (maker.name,))
    return group if graph.nodes[group[0]].op in ANCHORS else None
