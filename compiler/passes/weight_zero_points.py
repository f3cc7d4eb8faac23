"""Splits weights whose per-channel zero points differ by more than 8 bits can represent."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node
from compiler.ir.rebuild import _TIMES, rebuild
from compiler.ir.tensor import Quantization, Tensor

_BYTES = ("int8", "uint8")


def split_zeros(graph: Graph) -> Graph:
    """The same graph whose products have weights with one zero point, where those of channels are too far apart.

    Such weights are sums of two, or three, that are near enough: x is put beside itself as often, so that the array
    goes over it with each of them.
    """
    wanting = {node.name for node in graph if _wanting(graph, node)}
    if not wanting:
        return graph
    made: dict[str, Tensor] = {}
    nodes: list[Node] = []
    for node in graph:
        nodes += _twice(graph, node, made) if node.name in wanting else [node]
    return rebuild(graph, nodes, changed=made)


def _wanting(graph: Graph, node: Node) -> bool:
    if node.op not in ("conv2d", "dense", "depthwise_conv2d"):
        return False
    x, weights = graph.ins(node)[:2]
    q = weights.quantization
    if weights.data is None or q is None or q.whole or {x.dtype, weights.dtype} - {*_BYTES} or x.constant:
        return False
    centred = _centred(weights)
    return len(set(q.zero_point)) > 1 and int(centred.max()) - int(centred.min()) > 255


def _centred(weights: Tensor) -> NDArray[np.int64]:
    """Weights less their zero points."""
    q, shape = weights.quantization, [1] * len(weights.shape)
    assert q is not None and q.axis is not None and weights.data is not None
    shape[q.axis] = -1
    return weights.data.astype(np.int64) - np.array(q.zero_point, np.int64).reshape(shape)


def _parts(centred: NDArray[np.int64]) -> tuple[list[NDArray[np.int8]], int]:
    """Integers of 8 bits with one zero point whose sum, each less that, the weights are."""
    zero = -1 if centred.min() >= -254 else 0
    low, high = -128 - zero, 127 - zero
    parts: list[NDArray[np.int8]] = []
    while not parts or centred.any():
        part = np.clip(centred, low, high)
        centred = centred - part
        parts.append((part + zero).astype(np.int8))
    return parts, zero


def _twice(graph: Graph, node: Node, made: dict[str, Tensor]) -> Iterator[Node]:
    x, weights, *_ = graph.ins(node)
    q, parts, zero = weights.quantization, *_parts(_centred(weights))
    assert q is not None
    count, attributes, op, groups = len(parts), node.attributes, node.op, 1
    if op == "depthwise_conv2d":  # a group for each channel
        op, groups = "conv2d", x.shape[-1]
        parts = [part.transpose(2, 0, 1)[..., None] for part in parts]
        attributes = attributes | {"groups": groups}
    elif op == "conv2d":
        groups = attributes["groups"]
    data = np.ascontiguousarray(np.concatenate(parts, -1))
    meaning = Quantization(q.scale, (zero,) * len(q.scale), 0)
    held = Tensor(f"{node.name}:parts", data.shape, "int8", meaning, data)
    apart = (*x.shape[:-1], groups, x.shape[-1] // groups)
    beside = replace(x, name=f"{node.name}:beside", shape=(*apart[:-1], apart[-1] * count))
    whole = replace(x, name=f"{node.name}:whole", shape=(*x.shape[:-1], x.shape[-1] * count))
    last = f"{node.name}{_TIMES}{count}"
    made |= {each.name: each for each in (held, whole)}
    if groups == 1:
        yield Node(last, "concat", (x.name,) * count, (whole.name,), {"axis": len(x.shape) - 1})
    else:
        split = replace(x, name=f"{node.name}:apart", shape=apart)
        made |= {split.name: split, beside.name: beside}
        yield Node(split.name, "reshape", (x.name,), (split.name,), {"shape": apart})
        axis = len(apart) - 1
        yield Node(beside.name, "concat", (split.name,) * count, (beside.name,), {"axis": axis})
        yield Node(last, "reshape", (beside.name,), (whole.name,), {"shape": whole.shape})
    yield replace(node, op=op, inputs=(whole.name, held.name, *node.inputs[2:]), attributes=attributes)
