"""Transposes that a product of matrices reads and writes through."""

import math

from compiler.ir.graph import Graph, Node


def transposes_around(graph: Graph, node: Node) -> tuple[str, ...]:
    """Names of a product and of the transposes that it can read and write through, in no order."""
    names = [node.name]
    for place, name in enumerate(node.inputs):
        maker = graph.producer(name)
        alone = len(graph.consumers(name)) == 1 and name not in graph.outputs and node.inputs.count(name) == 1
        if maker is not None and maker.op == "transpose" and alone and _plain(graph, maker):
            strides = strides_of(graph.ins(maker)[0].shape, maker.attributes["perm"])
            if 1 in strides[-2:][place == 0 :]:
                names.append(maker.name)
    made = graph.out(node).name
    after = graph.consumers(made)
    if len(after) == 1 and made not in graph.outputs and after[0].op == "transpose":
        perm = after[0].attributes["perm"]
        if perm[-1] == len(perm) - 1 and _plain(graph, after[0]):
            names.append(after[0].name)
    return tuple(names)


def _plain(graph: Graph, node: Node) -> bool:
    """It changes no quantization."""
    (x,), y = graph.ins(node), graph.out(node)
    return (x.dtype, x.quantization) == (y.dtype, y.quantization)


def strides_of(shape: tuple[int, ...], perm: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Elements from index to index along each dimension, transposed."""
    plain = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return tuple(plain[i] for i in (range(len(shape)) if perm is None else perm))
