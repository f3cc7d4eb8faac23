"""Rewrites of the graph, each one small and named; `simplify` runs them all."""

from compiler.ir.graph import Graph
from compiler.passes.axes import turn_axes
from compiler.passes.dead import remove_dead
from compiler.passes.fold import fold_constants
from compiler.passes.pads import fold_pads

#: In the order in which they run.
PASSES = (fold_constants, fold_pads, turn_axes, remove_dead)


def simplify(graph: Graph) -> Graph:
    """The graph after all passes."""
    for each in PASSES:
        graph = each(graph)
    return graph
