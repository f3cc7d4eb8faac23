"""Chains of unary float operators between quantized tensors become one lookup table."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import BINARY_OPS, TABLE_OPS
from compiler.ir.rebuild import rebuild
from compiler.ir.tensor import Tensor
from compiler.layers.lookup_tables import EIGHT_BITS
from compiler.reference import Kernels, evaluate


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
