"""Graph passes: `simplify` runs those of imported graphs, `reduce_graph` those of quantized graphs."""

from collections.abc import Callable, Collection
from dataclasses import replace

from compiler.ir.graph import Graph, Node, rebuild
from compiler.passes.canonicalize import (
    canonicalize_axes,
    fold_pads,
    materialize_broadcasts,
    transpose_floats,
)
from compiler.passes.channels import remove_channels
from compiler.passes.control_flow import trim_control, unroll_control_flow
from compiler.passes.redundant_nodes import (
    Removed,
    fold_constants,
    join_moves,
    merge_equal_nodes,
    remove_dead,
    remove_no_ops,
)
from compiler.reference import Kernels


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
    transpose_floats,
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
    "spread_operands": "materialize_broadcasts",
}


def simplify(graph: Graph, seen: dict[str, Graph] | None = None) -> Graph:
    """Run all passes; store the graph after each pass in `seen`, by name of the pass."""
    for each, name in zip(PASSES, pass_names(), strict=True):
        graph = each(graph)
        if seen is not None:
            seen[name] = graph
    return graph


#: Maximum number of repetitions of the passes of `reduce_graph`; each repetition but the last removes something.
_MAX_REPETITIONS = 16


def reduce_graph(
    graph: Graph,
    rounding: Kernels,
    pinned: Collection[str] = (),
    multiple: int | None = 1,
    runs: Callable[[str], bool] = lambda _: True,
) -> tuple[Graph, tuple[Removed, ...]]:
    """Remove redundant nodes and channels from a quantized graph until nothing changes; all outputs remain equal.

    Parameters
    ----------
    graph : Graph
        Graph after quantization.
    rounding : "reference", "xnnpack" or "onnxruntime"
        Rounding of quantized operators, with which constants are computed.
    pinned : collection of str
        Names of tensors that remain as they are.
    multiple : int or None
        Number to whose multiple remaining channels are completed, since fewer do not make the accelerator faster;
        None: all channels remain.
    runs : function
        Returns whether the pass of this name (a key of `compiler.options.PASSES`) runs.

    Returns
    -------
    graph, removed
        The new graph, which is the same object if nothing was removed, and a description of what was removed.
    """
    removed: dict[str, Removed] = {}
    channels: dict[str, Removed] = {}
    passes: list[tuple[str, Callable[[Graph], Graph]]] = [
        ("its result is constant", lambda graph: fold_constants(graph, rounding)),
        ("its result is not read", remove_dead),
    ]
    if runs("join_moves"):
        passes.insert(1, ("it is joined with the next one", lambda graph: join_moves(graph, pinned)))
    if runs("remove_no_ops"):
        passes.insert(1, ("it has no effect", lambda graph: remove_no_ops(graph, rounding, pinned)))
    if runs("merge_equal_nodes"):
        passes.insert(1, ("another node computes the same", lambda graph: merge_equal_nodes(graph, pinned)))

    def run(reason: str, each: Callable[[Graph], Graph], before: Graph) -> Graph:
        after = each(before)
        if after is not before:
            removed.update(_missing(before, after, reason))
        return after

    for _ in range(_MAX_REPETITIONS):
        before = graph
        for reason, each in passes:
            graph = run(reason, each, graph)
        if multiple is not None and runs("remove_channels"):
            narrow, found = remove_channels(graph, rounding, pinned, multiple)
            removed |= _missing(graph, narrow, "its result is constant or not read")
            graph = narrow
            for each in found:
                _add(channels, each)
        if graph is before:
            break
    graph, inside = _reduced_bodies(graph, rounding, multiple, runs)
    kept = [each for each in channels.values() if each.node in graph.nodes]
    return graph, (*kept, *removed.values(), *inside)


def _missing(before: Graph, after: Graph, reason: str) -> dict[str, Removed]:
    """Describe the nodes that a pass has removed."""
    gone: list[Node] = [node for node in before if node.name not in after.nodes]
    return {node.name: Removed(node.name, node.op, reason) for node in gone}


def _add(channels: dict[str, Removed], found: Removed) -> None:
    """Add a description of removed channels to that of a former repetition."""
    former = channels.get(found.node)
    if former is None or former.removed is None or found.removed is None:
        channels[found.node] = found
    else:
        reason = f"{former.reason}, then {found.reason}"
        channels[found.node] = replace(former, removed=former.removed + found.removed, reason=reason)


def _reduced_bodies(
    graph: Graph, rounding: Kernels, multiple: int | None, runs: Callable[[str], bool]
) -> tuple[Graph, tuple[Removed, ...]]:
    """Remove redundant nodes and channels from the subgraphs of control flow."""
    removed: list[Removed] = []
    nodes: list[Node] = []
    for node in graph:
        each = [reduce_graph(body, rounding, (), multiple, runs) for body in node.bodies]
        removed += [one for _, found in each for one in found]
        changed = any(new is not old for (new, _), old in zip(each, node.bodies, strict=True))
        nodes.append(replace(node, bodies=tuple(body for body, _ in each)) if changed else node)
    same = all(new is old for new, old in zip(nodes, graph, strict=True))
    return (graph if same else rebuild(graph, nodes)), tuple(removed)
