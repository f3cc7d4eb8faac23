"""Operator fusion: which nodes of the graph become one layer."""

from collections.abc import Sequence
from itertools import pairwise

import networkx as nx

from compiler.ir.graph import Graph, Node
from compiler.layers.lookup_tables import is_unary
from compiler.layers.lowering_context import _INNER, Group, anchor_of
from compiler.layers.matmul import transposes_around
from compiler.layers.registry import LOWERINGS
from hw.errors import InputError

#: Operators whose sums leave through FUSE and may take others along.
ANCHORS = frozenset(op for op, lowering in LOWERINGS.items() if lowering.epilogue)


def fuse_epilogues(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Chains of an anchor and what its drain can do: a clip, a function by table, an addition, a clip after it.

    A product of activations goes with the transposes around it and with a function by table.
    """
    taken: set[str] = set()
    out = []
    for node in reversed(list(graph)):
        if node.op == "matmul":
            names = tuple(name for name in transposes_around(graph, node) if name not in taken)
            taken.update(names)
            if len(names) > 1:
                out.append(names)
        if node.op not in ANCHORS:
            continue
        chain = [node]
        for fits in (_is_clip, is_unary, _is_sum, _is_clip):
            following = _only_consumer(graph, chain[-1])
            if following is not None and following.name not in taken and fits(graph, following):
                chain.append(following)
            elif fits is _is_sum:
                break
        if len(chain) > 1:
            names = tuple(n.name for n in chain)
            taken.update(names)
            out.append(names)
    return tuple(reversed(out))


def _only_consumer(graph: Graph, node: Node) -> Node | None:
    out = graph.out(node)
    consumers = graph.consumers(out.name)
    return consumers[0] if len(consumers) == 1 and out.name not in graph.outputs else None


def _is_clip(graph: Graph, node: Node) -> bool:
    """A clip that changes no quantization: limits of what it follows."""
    if node.op != "clip":
        return False
    x, y = graph.ins(node)[0], graph.out(node)
    return x.dtype == y.dtype and x.quantization == y.quantization


def _is_sum(graph: Graph, node: Node) -> bool:
    """True if a node adds two different activations of one shape and type."""
    if node.op != "add":
        return False
    a, b = graph.ins(node)
    return a.name != b.name and not (a.constant or b.constant) and a.shape == b.shape and a.dtype == b.dtype


def refusal(graph: Graph, nodes: Group) -> str:
    """Why some nodes can be no layer; empty if they can."""
    if len(nodes) == 1:
        return ""
    anchor = anchor_of(nodes)
    if anchor.op in _INNER:
        return _refused_around(graph, anchor, nodes)
    if anchor.op not in ANCHORS:
        return f"{anchor.op} takes no other operators along"
    steps = [_is_clip, is_unary, _is_sum, _is_clip]
    for before, node in pairwise(nodes):
        if _only_consumer(graph, before) is not node:
            return f"{node.name!r} is not the only reader of {before.name!r}"
        while steps and not steps[0](graph, node):
            if steps.pop(0) is _is_sum:
                steps.clear()
        if not steps:
            return f"a drain cannot do {node.op} {node.name!r} here"
        steps.pop(0)
    return ""


def _refused_around(graph: Graph, product: Node, nodes: Group) -> str:
    """The same of a product and what goes with it."""
    names, able = {node.name for node in nodes}, transposes_around(graph, product)
    for node in nodes:
        beside = [graph.producer(name) for name in node.inputs] + graph.consumers(graph.out(node).name)
        if node.name not in able or not any(each is not None and each.name in names for each in beside):
            return f"{product.op} {product.name!r} cannot take {node.op} {node.name!r} along"
    return ""


def group(graph: Graph, fusions: Sequence[Sequence[str]]) -> list[Group]:
    """All nodes in groups, in an order in which they can run; a node that no fusion names is a group of its own.

    Raises
    ------
    InputError
        A fusion names no node, one node is in two, some cannot be one layer, or groups need each other's results.
    """
    belongs: dict[str, int] = {}
    groups: dict[int, list[Node]] = {}
    for number, names in enumerate(fusions):
        for name in names:
            if name not in graph.nodes or name in belongs:
                what = "there is no such node" if name not in graph.nodes else "it is in two fusions"
                raise InputError(f"schedule: fusion of {name!r}: {what}")
            belongs[name] = number
    for node in graph:
        number = belongs.setdefault(node.name, len(fusions) + len(belongs))
        groups.setdefault(number, []).append(node)
    for nodes in groups.values():
        if why := refusal(graph, tuple(nodes)):
            raise InputError(f"schedule: fusion of {nodes[0].name!r}: {why}")
    order = {number: i for i, number in enumerate(groups)}
    view = nx.DiGraph()
    view.add_nodes_from(groups)
    for node in graph:
        for name in node.inputs:
            maker = graph.producer(name)
            if maker is not None and belongs[maker.name] != belongs[node.name]:
                view.add_edge(belongs[maker.name], belongs[node.name])
    try:
        sequence = list(nx.lexicographical_topological_sort(view, key=order.__getitem__))
    except nx.NetworkXUnfeasible:
        raise InputError("schedule: its fusions need each other's results") from None
    return [tuple(groups[number]) for number in sequence]
