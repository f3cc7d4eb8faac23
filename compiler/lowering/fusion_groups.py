"""Operator fusion: which nodes become one layer, which chains one lookup table, and which need no layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.ops import BINARY_OPS, TABLE_OPS
from compiler.ir.tensor import Tensor
from compiler.layers.base import Layer
from compiler.layers.lowering_context import (
    _INNER,
    EIGHT_BITS,
    Group,
    LoweringContext,
    anchor_of,
    image_of,
    is_unary,
)
from compiler.layers.matmul import transposes_around
from compiler.layers.move import concat, reshape
from compiler.layers.registry import LOWERINGS
from compiler.reference import Kernels, evaluate
from hw.errors import InputError

if TYPE_CHECKING:
    from compiler.lowering.lower import LoweredNetwork


def _reshape(out: "LoweredNetwork", low: LoweringContext) -> list[Layer]:
    """Another view of the same bytes; a copy where these have gaps, where the user wants a part by itself, or where a
    program would have nothing to do.
    """
    image_of(low.x)  # of a type that the machine has
    part, graph = out.part(low.x.name), out.graph
    idle = not out.layers and out.root(low.x.name) in graph.inputs
    if (part and part.gaps) or (low.y.name in graph.outputs and (part or idle)):
        return [reshape(low)]
    out.views[low.y.name] = low.x.name
    return []


def _slice(out: "LoweredNetwork", low: LoweringContext) -> list[Layer]:
    """A copy, unless the part is read where it is."""
    part = out.parts.get(low.y.name)
    return [] if part and part.of == low.x.name else [LOWERINGS["slice"].lower(low)]


def _concat(out: "LoweredNetwork", low: LoweringContext) -> list[Layer]:
    """A copy of what is not made where it is wanted."""
    there = {name for name, part in out.parts.items() if part.of == low.y.name}
    made = concat(low, there)
    return [made] if made else []


#: What adds the layers they need, and notes views.
IN_PLACE: dict[str, Callable[["LoweredNetwork", LoweringContext], list[Layer]]] = {
    "reshape": _reshape,
    "slice": _slice,
    "concat": _concat,
}

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


def chains_as_tables(graph: Graph, rounding: str) -> Graph:
    """One table for each chain between a dequantization and a quantization whose results nobody else reads.

    All its operators are functions of one number, perhaps with a constant that is one number too; both ends have 8 bits
    and one scale. A single operator is no chain: whoever left it between conversions wanted it so. Without chains it is
    the graph itself.
    """
    made, gone = dict[str, Node](), set[str]()
    for node in graph:
        chain = _chain(graph, node)
        if len(chain) > 3:
            made[node.name] = _table(graph, chain, rounding)
            gone.update(each.name for each in chain[1:-1])
    inner = {
        node.name: replace(node, bodies=tuple(chains_as_tables(body, rounding) for body in node.bodies))
        for node in graph
        if node.bodies
    }
    if not made and all(body is old for n in inner for body, old in _bodies(graph, inner, n)):
        return graph
    nodes = [made.get(each.name, inner.get(each.name, each)) for each in graph if each.name not in gone]
    read = {name for node in nodes for name in node.inputs} | set(graph.outputs)
    # Dequantizations whose numbers nobody reads any more.
    return rebuild(graph, [n for n in nodes if n.op != "dequantize" or read.intersection(n.outputs)])


def _bodies(graph: Graph, inner: dict[str, Node], name: str) -> list[tuple[Graph, Graph]]:
    """Subgraphs as they are now, each beside what it was."""
    return list(zip(inner[name].bodies, graph.nodes[name].bodies, strict=True))


def _chain(graph: Graph, last: Node) -> list[Node]:
    """From the dequantization to the quantization `last`; empty if there is no such chain."""
    if last.op != "quantize" or not _bytes(graph.out(last)):
        return []
    chain = [last]
    while chain[0].op != "dequantize":
        source = _flowing(graph, chain[0])
        maker = None if source is None else graph.producer(source.name)
        if source is None or maker is None or source.dtype != "float32":
            return []
        alone = len(graph.consumers(source.name)) == 1 and source.name not in graph.outputs
        if maker.op != "dequantize" and not (alone and maker.op in TABLE_OPS | BINARY_OPS):
            return []
        chain.insert(0, maker)
    return chain if _bytes(graph.ins(chain[0])[0]) else []


def _flowing(graph: Graph, node: Node) -> Tensor | None:
    """The one operand that is no constant, if it has the output's shape and the others are single numbers."""
    inputs = graph.ins(node)
    flowing = [tensor for tensor in inputs if not tensor.constant]
    single = all(tensor.elements == 1 for tensor in inputs if tensor.constant)
    if len(flowing) != 1 or not single or flowing[0].shape != graph.out(node).shape:
        return None
    return flowing[0]


def _bytes(tensor: Tensor) -> bool:
    """True if a tensor has 8-bit integers with one scale."""
    return tensor.dtype in EIGHT_BITS and tensor.quantization is not None and tensor.quantization.whole


def _table(graph: Graph, chain: Sequence[Node], rounding: str) -> Node:
    """The chain as one node; entry q & 255 of its table is what it makes of q."""
    (source,), out = graph.ins(chain[0]), graph.out(chain[-1])
    limits = np.iinfo(source.dtype)
    every = np.arange(limits.min, limits.max + 1).astype(source.dtype)
    small = Graph(graph.name)
    small.add_input(replace(source, shape=every.shape))
    for node in chain:
        for tensor in graph.ins(node):
            if tensor.constant:
                one = cast(NDArray, tensor.data).reshape(())
                if tensor.name not in small.tensors:
                    small.add_tensor(replace(tensor, shape=(), data=one))
        small.add_tensor(replace(graph.out(node), shape=every.shape))
        small.add_node(node)
    results = evaluate(small.finish([out.name]), {source.name: every}, rounding=cast(Kernels, rounding))
    table = np.zeros(256, np.int64)
    table[every.astype(np.int64) & 255] = results[out.name]
    said = ", ".join(dict.fromkeys(node.operator for node in chain[1:-1]))
    entries = tuple(int(entry) for entry in table)
    return Node(chain[-2].name, "table", (source.name,), (out.name,), {"table": entries, "operator": said})
