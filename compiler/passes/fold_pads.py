"""Folds pad nodes into the convolution or pooling that follows."""

from dataclasses import replace

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.ir.rebuild import rebuild
from compiler.ir.tensor import Tensor


def fold_pads(graph: Graph) -> Graph:
    """The same graph without the pad nodes whose readers can pad by themselves with exactly the same result.

    Convolutions pad with zero, that is with their input's zero point; a maximum is never padding.
    """
    folded = {graph.out(node).name: node for node in graph if node.op == "pad" and _foldable(graph, node)}
    if not folded:
        return graph
    kept = (node for node in graph if node.outputs[0] not in folded)
    padded = {name: folded[node.inputs[0]] for name, node in graph.nodes.items() if node.inputs[0] in folded}
    return rebuild(graph, [_padded(n, padded[n.name]) if n.name in padded else n for n in kept])


def _foldable(graph: Graph, pad: Node) -> bool:
    (x,), y, pads = graph.ins(pad), graph.out(pad), pad.attributes["pads"]
    if len(pads) != 4 or len(x.shape) != 4 or any((*pads[0], *pads[3])) or y.name in graph.outputs:
        return False
    readers = graph.consumers(y.name)
    return (
        bool(readers)
        and (x.dtype, x.quantization) == (y.dtype, y.quantization)
        and y.shape == tuple(size + sum(pair) for size, pair in zip(x.shape, pads, strict=True))
        and all(_takes(reader, pad, x) and reader.inputs.count(y.name) == 1 for reader in readers)
    )


def _takes(reader: Node, pad: Node, x: Tensor) -> bool:
    """Return True if a reader can absorb the padding; every window of a maximum must overlap the input."""
    if reader.inputs[0] != pad.outputs[0]:
        return False
    value = pad.attributes["value"]
    if reader.op in ("conv2d", "depthwise_conv2d"):
        return value == 0
    if reader.op != "max_pool2d":
        return False
    top, left, bottom, right = _sum(reader, pad)
    height, width = reader.attributes["kernel"]
    return max(top, bottom) < height and max(left, right) < width and _least(value, x)


def _least(value: float, x: Tensor) -> bool:
    """Whether nothing in a tensor is less than a value."""
    if x.dtype == "float32":
        return value == -np.inf
    q, least = x.quantization, np.iinfo(x.dtype).min
    if q is None or not q.whole:
        return value <= least
    return value / q.scale[0] + q.zero_point[0] <= least


def _sum(reader: Node, pad: Node) -> tuple[int, int, int, int]:
    """Top, left, bottom, right, of both."""
    (_, (top, bottom), (left, right), _), own = pad.attributes["pads"], reader.attributes["pads"]
    return own[0] + top, own[1] + left, own[2] + bottom, own[3] + right


def _padded(reader: Node, pad: Node) -> Node:
    attributes = reader.attributes | {"pads": _sum(reader, pad)}
    return replace(reader, inputs=(pad.inputs[0], *reader.inputs[1:]), attributes=attributes)
