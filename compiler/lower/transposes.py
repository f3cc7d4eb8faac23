"""Transposes that a product of matrices reads and writes through, and the function that its drain applies."""

import math

from compiler.ir.graph import Graph, Node
from compiler.lower.unary import is_unary


def transposes_around(graph: Graph, node: Node) -> tuple[str, ...]:
    """Names of a product, of transposes it can read and write through, of a function of its results; in no order."""
    names = [node.name]
    for place, name in enumerate(node.inputs):
        maker = graph.producer(name)
        alone = len(graph.consumers(name)) == 1 and name not in graph.outputs and node.inputs.count(name) == 1
        if maker is not None and maker.op == "transpose" and alone and _plain(graph, maker):
            strides = strides_of(graph.ins(maker)[0].shape, maker.attributes["perm"])
            if 1 in strides[-2:][place == 0 :]:
                names.append(maker.name)
    after = _follower(graph, node)
    if after is not None and is_unary(graph, after):
        names.append(after.name)
        after = _follower(graph, after)
    if after is not None and after.op == "transpose" and _plain(graph, after):
        perm = after.attributes["perm"]
        if perm[-1] == len(perm) - 1:
            names.append(after.name)
    return tuple(names)


def _follower(graph: Graph, node: Node) -> Node | None:
    """The one node that reads a node's result."""
    made = graph.out(node).name
    after = graph.consumers(made)
    return after[0] if len(after) == 1 and made not in graph.outputs else None


def _plain(graph: Graph, node: Node) -> bool:
    """It changes no quantization."""
    (x,), y = graph.ins(node), graph.out(node)
    return (x.dtype, x.quantization) == (y.dtype, y.quantization)


def strides_of(shape: tuple[int, ...], perm: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Elements from index to index along each dimension, transposed."""
    plain = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return tuple(plain[i] for i in (range(len(shape)) if perm is None else perm))
