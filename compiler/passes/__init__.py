"""Graph passes; `simplify` runs all of them."""

from dataclasses import replace

from compiler.ir.graph import Graph, rebuild
from compiler.passes.canonicalize import (
    canonicalize_axes,
    fold_pads,
    materialize_broadcasts,
    split_weight_zero_points,
)
from compiler.passes.constant_folding import fold_constants, remove_dead
from compiler.passes.control_flow import trim_control, unroll_control_flow


def simplify_bodies(graph: Graph) -> Graph:
    """Run all passes on the subgraphs of control flow."""
    if not any(node.bodies for node in graph):
        return graph
    return rebuild(
        graph, [replace(node, bodies=tuple(simplify(body) for body in node.bodies)) for node in graph]
    )


#: Passes in order. Dead nodes are removed before control flow is trimmed, because subgraphs may then need fewer
#: operands.
PASSES = (
    fold_constants,
    unroll_control_flow,
    remove_dead,
    trim_control,
    simplify_bodies,
    trim_control,
    fold_pads,
    canonicalize_axes,
    split_weight_zero_points,
    materialize_broadcasts,
    remove_dead,
)


def pass_names() -> list[str]:
    """Return the names of the passes in order; the second run of a pass has the suffix `_2`."""
    names = [each.__name__ for each in PASSES]
    counts = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return [name if count == 1 else f"{name}_{count}" for name, count in zip(names, counts, strict=True)]


#: Current names of passes by their former names, which `mla graph --stage` accepts as well.
FORMER_NAMES = {
    "resolve_control": "unroll_control_flow",
    "turn_axes": "canonicalize_axes",
    "split_zeros": "split_weight_zero_points",
    "spread_operands": "materialize_broadcasts",
}


def simplify(graph: Graph, seen: dict[str, Graph] | None = None) -> Graph:
    """Run all passes; store the graph after each pass in `seen`, by name of the pass."""
    for each, name in zip(PASSES, pass_names(), strict=True):
        graph = each(graph)
        if seen is not None:
            seen[name] = graph
    return graph
