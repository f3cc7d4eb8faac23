"""Operator fusion: epilogues fused into layers, function chains as lookup tables, operators that need no layer."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, cast

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
from compiler.layers.matmul import nodes_around
from compiler.layers.move import concat, reshape
from compiler.layers.registry import LOWERINGS
from compiler.reference import Kernels, evaluate
from compiler.util.scaling import DENSE
from hw.errors import InputError

if TYPE_CHECKING:
    from compiler.lowering.lower import LoweredNetwork


def _reshape(out: "LoweredNetwork", low: LoweringContext) -> list[Layer]:
    """Make the output a view of the input's bytes.

    A copy is made if the bytes are not contiguous, if the output is an output of the model and aliases another tensor,
    or if the program would otherwise be empty.
    """
    image_of(low.x)  # raises an error for a type that the hardware does not support
    part, graph = out.part(low.x.name), out.graph
    idle = not out.layers and out.root(low.x.name) in graph.inputs
    if (part and part.gaps) or (low.y.name in graph.outputs and (part or idle)):
        return [reshape(low)]
    out.views[low.y.name] = low.x.name
    return []


def _slice(out: "LoweredNetwork", low: LoweringContext) -> list[Layer]:
    """Lower a slice to a copy, or to no layer if it is read in place."""
    part = out.parts.get(low.y.name)
    return [] if part and part.container == low.x.name else [LOWERINGS["slice"].lower(low)]


def _concat(out: "LoweredNetwork", low: LoweringContext) -> list[Layer]:
    """Lower a concatenation to a copy of the operands that are not written in place."""
    in_place = {name for name, part in out.parts.items() if part.container == low.y.name}
    copies = concat(low, in_place)
    return [copies] if copies else []


#: Lowerings of operators that may alias tensors instead of copying them.
IN_PLACE: dict[str, Callable[["LoweredNetwork", LoweringContext], list[Layer]]] = {
    "reshape": _reshape,
    "slice": _slice,
    "concat": _concat,
}

#: Operators whose results pass through FUSE, so that other operators can be fused into their epilogue.
ANCHORS = frozenset(op for op, lowering in LOWERINGS.items() if lowering.epilogue)


#: Operators whose layers can compute further functions of their results. A requantization is lowered as a move.
_ELEMENTWISE = BINARY_OPS | (TABLE_OPS - {"requantize"})


def has_epilogue(op: str) -> bool:
    """Return True if other operators can be fused after an operator, into its layer."""
    return op in ANCHORS or op in _ELEMENTWISE


def fuse_epilogues(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Return the names of fused nodes: an anchor, then a clip, a table, an addition and a clip, each optional.

    Sums, products and functions that are not fused in this way are fused with the functions that follow them.

    The low bytes' product of an int16 activation is fused with the addition of the high bytes' product instead.

    A product of activations is fused with the surrounding transposes, a function and an addition.
    """
    taken: set[str] = set()
    out = []
    for node in reversed(list(graph)):
        if node.op == "matmul":
            names = nodes_around(graph, node, taken)
            taken.update(names)
            if len(names) > 1:
                out.append(names)
        if node.op not in ANCHORS:
            continue
        chain = [node]
        following = _only_consumer(graph, node)
        if following is not None and following.name not in taken and _adds_product(graph, following, node):
            taken.update((node.name, following.name))
            out.append((node.name, following.name))
            continue
        for fits in _steps(node.op):
            following = _only_consumer(graph, chain[-1])
            if following is not None and following.name not in taken and fits(graph, following):
                if fits is _is_sum and _other_takes_longer(graph, following, chain, taken):
                    break
                chain.append(following)
            elif fits is _is_sum:
                break
        if len(chain) > 1:
            names = tuple(n.name for n in chain)
            taken.update(names)
            out.append(names)
    for node in graph:
        names = (node.name, *(name for name in _functions_after(graph, node) if name not in taken))
        if len(names) > 1 and node.name not in taken:
            taken.update(names)
            out.append(names)
    return tuple(reversed(out))


def _functions_after(graph: Graph, node: Node) -> Iterator[str]:
    """Yield the functions of one operand that can be fused into the layer of a sum, a product or a function."""
    if node.op not in _ELEMENTWISE or not (node.op in BINARY_OPS or is_unary(graph, node)):
        return
    following = _only_consumer(graph, node)
    while following is not None and (_is_clip(graph, following) or is_unary(graph, following)):
        yield following.name
        following = _only_consumer(graph, following)


def _steps(op: str) -> tuple[Callable[[Graph, Node], bool], ...]:
    """Return the checks of the nodes that can follow an anchor, in order; each of the nodes is optional.

    The phases of a transposed convolution, whose pixels are apart, cannot read a second summand.
    """
    return (_is_clip, is_unary) if op == "conv_transpose2d" else (_is_clip, is_unary, _is_sum, _is_clip)


def _only_consumer(graph: Graph, node: Node) -> Node | None:
    out = graph.out(node)
    consumers = graph.consumers(out.name)
    return consumers[0] if len(consumers) == 1 and out.name not in graph.outputs else None


#: Products whose epilogue can add other sums.
_ADDING = ("conv2d", "depthwise_conv2d", *DENSE)


def _adds_product(graph: Graph, node: Node, low: Node) -> bool:
    """Return True if a node adds the sums of another product to those of `low`, and FUSE can do so."""
    return (
        node.op == "requantize_sum"
        and low.op in _ADDING
        and len(node.inputs) == 2
        and not any(node.attributes["shifts"])
        and node.inputs[1] == graph.out(low).name
    )


def _is_clip(graph: Graph, node: Node) -> bool:
    """Return True if a node is a clip that does not change the type or quantization."""
    if node.op != "clip":
        return False
    x, y = graph.ins(node)[0], graph.out(node)
    return x.dtype == y.dtype and x.quantization == y.quantization


def _is_sum(graph: Graph, node: Node) -> bool:
    """Return True if a node adds two different activations of equal shape and type."""
    if node.op != "add":
        return False
    a, b = graph.ins(node)
    return a.name != b.name and not (a.constant or b.constant) and a.shape == b.shape and a.dtype == b.dtype


#: Ratio of the multiply-accumulates of two convolutions from which the longer one adds their results.
_MUCH_LONGER = 2


def _other_takes_longer(graph: Graph, add: Node, chain: Sequence[Node], taken: Collection[str]) -> bool:
    """Return True if the other summand of an addition comes from a convolution that can add them better than `chain`.

    FUSE takes longer for results to which it adds others, and a convolution with more work for MATRIX hides this, such
    as the last convolution of a residual block beside a shortcut of 1x1.
    """
    (other,) = (name for name in add.inputs if name != graph.out(chain[-1]).name)
    node = graph.producer(other)
    if node is None or node.name in taken or not node.op == chain[0].op == "conv2d":
        return False
    return _only_consumer(graph, node) is add and _macs(graph, node) >= _MUCH_LONGER * _macs(graph, chain[0])


def _macs(graph: Graph, convolution: Node) -> int:
    weights, made = graph.ins(convolution)[1], graph.out(convolution)
    return made.elements * (weights.elements // made.shape[-1])


def refusal(graph: Graph, nodes: Group) -> str:
    """Return the reason why nodes cannot be fused into one layer; an empty string if they can."""
    if len(nodes) == 1:
        return ""
    anchor = anchor_of(nodes)
    if anchor.op in _INNER:
        return _refused_around(graph, anchor, nodes)
    if anchor.op in _ELEMENTWISE:
        fusible = (anchor.name, *_functions_after(graph, anchor))
        apart = [node for node, name in zip_longest(nodes, fusible[: len(nodes)]) if node.name != name]
        return (
            f"{apart[0].op} {apart[0].name!r} cannot be fused with {anchor.op} {anchor.name!r}"
            if apart
            else ""
        )
    if anchor.op not in ANCHORS:
        return f"no operators can be fused into {anchor.op}"
    if len(nodes) == 2 and _adds_product(graph, nodes[1], nodes[0]):
        alone = _only_consumer(graph, nodes[0]) is nodes[1]
        return "" if alone else f"{nodes[1].name!r} is not the only reader of {nodes[0].name!r}"
    steps = list(_steps(anchor.op))
    for before, node in pairwise(nodes):
        if _only_consumer(graph, before) is not node:
            return f"{node.name!r} is not the only reader of {before.name!r}"
        while steps and not steps[0](graph, node):
            if steps.pop(0) is _is_sum:
                steps.clear()
        if not steps:
            return f"an epilogue cannot execute {node.op} {node.name!r} here"
        steps.pop(0)
    return ""


def _refused_around(graph: Graph, product: Node, nodes: Group) -> str:
    """Return the reason why nodes cannot be fused with a product of activations; an empty string if they can."""
    names, fusible = {node.name for node in nodes}, nodes_around(graph, product)
    for node in nodes:
        neighbours = [graph.producer(name) for name in node.inputs] + graph.consumers(graph.out(node).name)
        adjacent = any(each is not None and each.name in names for each in neighbours)
        if node.name not in fusible or not adjacent:
            return f"{node.op} {node.name!r} cannot be fused with {product.op} {product.name!r}"
    return ""


def group(graph: Graph, fusions: Sequence[Sequence[str]]) -> list[Group]:
    """Return all nodes in groups, in topological order; each node that is in no fusion forms a separate group.

    Raises
    ------
    InputError
        A fusion names an unknown node, a node is in two fusions, the nodes of a fusion cannot be one layer, or the
        groups form a cycle.
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
    order: dict[int, tuple[int, int]] = {number: (i, 1) for i, number in enumerate(groups)}
    for number, nodes in groups.items():
        product = _joined_product(graph, nodes[0]) if len(nodes) == 1 else None
        if product is not None:
            order[number] = (order[belongs[product.name]][0], 0)
    import networkx as nx  # takes long to load

    view = nx.DiGraph()
    view.add_nodes_from(groups)
    for node in graph:
        for name in node.inputs:
            producer = graph.producer(name)
            if producer is not None and belongs[producer.name] != belongs[node.name]:
                view.add_edge(belongs[producer.name], belongs[node.name])
    try:
        sequence = list(nx.lexicographical_topological_sort(view, key=order.__getitem__))
    except nx.NetworkXUnfeasible:
        raise InputError("schedule: its fusions need each other's results") from None
    return [tuple(groups[number]) for number in sequence]


def _joined_product(graph: Graph, part: Node) -> Node | None:
    """Return the last product that a concatenation joins with a slice of an input of the graph; None if there is none.

    The slice is copied while MATRIX computes that product, instead of delaying the loads of earlier layers.
    """
    if part.op != "slice" or part.inputs[0] not in graph.inputs:
        return None
    reader = _only_consumer(graph, part)
    if reader is None or reader.op != "concat":
        return None
    found: list[Node] = []
    for name in reader.inputs:
        producer = graph.producer(name)
        while producer is not None and producer.op not in ANCHORS and len(producer.inputs) == 1:
            producer = graph.producer(producer.inputs[0])
        found += [producer] if producer is not None and producer.op in ANCHORS else []
    names = {node.name: number for number, node in enumerate(graph)}
    return max(found, key=lambda node: names[node.name], default=None)


def chains_as_tables(graph: Graph, rounding: str) -> Graph:
    """Replace chains of functions between a dequantize and a quantize node by one lookup table each.

    The operators of a chain are elementwise functions of one operand, possibly with scalar constants. Intermediate
    results have no readers outside the chain, and both ends of the chain are 8-bit tensors with one scale. A single
    operator between conversions is not replaced. A graph without chains is returned unchanged.
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
    # Remove dequantize nodes without readers.
    return rebuild(graph, [n for n in nodes if n.op != "dequantize" or read.intersection(n.outputs)])


def _bodies(graph: Graph, inner: dict[str, Node], name: str) -> list[tuple[Graph, Graph]]:
    """Return the subgraphs of a node as pairs of new and old."""
    return list(zip(inner[name].bodies, graph.nodes[name].bodies, strict=True))


def _chain(graph: Graph, last: Node) -> list[Node]:
    """Return the nodes of a chain from a dequantize node to the quantize node `last`; empty if there is no chain."""
    if last.op != "quantize" or not _bytes(graph.out(last)):
        return []
    chain = [last]
    while chain[0].op != "dequantize":
        source = _dynamic_operand(graph, chain[0])
        producer = None if source is None else graph.producer(source.name)
        if source is None or producer is None or source.dtype != "float32":
            return []
        single_use = len(graph.consumers(source.name)) == 1 and source.name not in graph.outputs
        if producer.op != "dequantize" and not (single_use and producer.op in TABLE_OPS | BINARY_OPS):
            return []
        chain.insert(0, producer)
    return chain if _bytes(graph.ins(chain[0])[0]) else []


def _dynamic_operand(graph: Graph, node: Node) -> Tensor | None:
    """Return the only non-constant operand; None unless it has the output's shape and all others are scalars."""
    inputs = graph.ins(node)
    dynamic = [tensor for tensor in inputs if not tensor.constant]
    scalars = all(tensor.elements == 1 for tensor in inputs if tensor.constant)
    if len(dynamic) != 1 or not scalars or dynamic[0].shape != graph.out(node).shape:
        return None
    return dynamic[0]


def _bytes(tensor: Tensor) -> bool:
    """Return True if a tensor consists of 8-bit integers with one scale."""
    return tensor.dtype in EIGHT_BITS and tensor.quantization is not None and tensor.quantization.whole


def _table(graph: Graph, chain: Sequence[Node], rounding: str) -> Node:
    """Return the table node that replaces a chain; entry q & 255 of the table is the chain's result for q."""
    (source,), out = graph.ins(chain[0]), graph.out(chain[-1])
    limits = np.iinfo(source.dtype)
    domain = np.arange(limits.min, limits.max + 1).astype(source.dtype)
    small = Graph(graph.name)
    small.add_input(replace(source, shape=domain.shape))
    for node in chain:
        for tensor in graph.ins(node):
            if tensor.constant:
                one = cast(NDArray, tensor.data).reshape(())
                if tensor.name not in small.tensors:
                    small.add_tensor(replace(tensor, shape=(), data=one))
        small.add_tensor(replace(graph.out(node), shape=domain.shape))
        small.add_node(node)
    results = evaluate(small.finish([out.name]), {source.name: domain}, rounding=cast(Kernels, rounding))
    table = np.zeros(256, np.int64)
    table[domain.astype(np.int64) & 255] = results[out.name]
    operators = ", ".join(dict.fromkeys(node.operator for node in chain[1:-1]))
    entries = tuple(int(entry) for entry in table)
    return Node(
        chain[-2].name, "table", (source.name,), (out.name,), {"table": entries, "operator": operators}
    )
