"""Rewrites of the graph, each one small and named; `simplify` runs them all."""

from compiler.ir.graph import Graph
from compiler.passes.axes import turn_axes
from compiler.passes.dead import remove_dead
from compiler.passes.fold import fold_constants
from compiler.passes.pads import fold_pads

#: In the order in which they run.
PASSES = (fold_constants, fold_pads, turn_axes, remove_dead)


def simplify(graph: Graph, seen: dict[str, Graph] | None = None) -> Graph:
    """The graph after all passes; `seen` takes the one after each, by the name of the pass."""
    for each in PASSES:
        graph = each(graph)
        if seen is not None:
            seen[each.__name__] = graph
    return graph
