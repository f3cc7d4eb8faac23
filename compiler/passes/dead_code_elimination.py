"""Dead code elimination."""

from compiler.ir.graph import Graph
from compiler.ir.rebuild import rebuild


def remove_dead(graph: Graph) -> Graph:
    """Remove nodes whose results are not used."""
    needed = set(graph.outputs)
    kept = []
    for node in reversed(list(graph)):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            kept.append(node)
    return graph if len(kept) == len(graph.nodes) else rebuild(graph, reversed(kept))
