"""Dead code."""

from compiler.ir.graph import Graph
from compiler.ir.rebuild import rebuild


def remove_dead(graph: Graph) -> Graph:
    """Leave out nodes whose results nobody needs."""
    needed = set(graph.outputs)
    kept = []
    for node in reversed(list(graph)):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            kept.append(node)
    return graph if len(kept) == len(graph.nodes) else rebuild(graph, reversed(kept))
