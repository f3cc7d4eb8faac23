"""Rewrites of a float graph that leave its results unchanged and reduce the noise of its quantization."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from compiler.ir.graph import Graph, Node, rebuild, unused_name
from compiler.ir.ops import OPS
from compiler.ir.tensor import Tensor


def prepared(graph: Graph, names: Collection[str]) -> Graph:
    """Return a float graph that is easier to quantize.

    Parameters
    ----------
    graph : Graph
        The float graph.
    names : collection of str
        Nodes and operators that the user names, which are not changed.
    """
    return folded_scales(pools_as_means(graph), names)


def pools_as_means(graph: Graph) -> Graph:
    """Replace average pooling over whole images by means, whose result has a scale of its own.

    The result of a pooling has the scale of its operand, although a mean over many pixels has a much smaller range.
    """
    nodes = [
        replace(node, op="reduce_mean", attributes=_MEAN) if _is_global(graph, node) else node
        for node in graph
    ]
    return rebuild(graph, nodes)


#: Attributes of a mean over all pixels of images.
_MEAN = {"axes": (1, 2), "keep": True}


def _is_global(graph: Graph, node: Node) -> bool:
    if node.op != "avg_pool2d" or any(node.attributes["pads"]):
        return False
    x = graph.ins(node)[0]
    return x.dtype == "float32" and tuple(node.attributes["kernel"]) == x.shape[1:3]


#: Products with constant weights into which later factors and summands are folded.
_FOLDED_INTO = ("conv2d", "depthwise_conv2d", "dense")


def folded_scales(graph: Graph, names: Collection[str] = ()) -> Graph:
    """Fold constant factors and summands of each channel into the weights and the bias of the preceding product.

    Parameters
    ----------
    graph : Graph
        The float graph.
    names : collection of str
        Nodes and operators that are not folded.
    """
    changed: dict[str, Tensor] = {}
    nodes: dict[str, Node] = {}  # by output
    for node in graph:
        found = None
        if node.op in ("mul", "add", "sub") and graph.names_of(node).isdisjoint(names):
            found = _folded(graph, node, nodes, changed)
        if found is not None:
            del nodes[node.inputs[0] if node.inputs[0] in nodes else node.inputs[1]]
        nodes[node.outputs[0]] = found or node
    return rebuild(graph, list(nodes.values()), changed=changed) if changed else graph


def _folded(graph: Graph, node: Node, nodes: dict[str, Node], changed: dict[str, Tensor]) -> Node | None:
    """Return the product with a factor or summand folded in; None if `node` does not permit it."""
    x, other = node.inputs
    if x not in nodes and node.op != "sub":
        x, other = other, x
    product, constant = nodes.get(x), graph.tensors[other].data
    if product is None or product.op not in _FOLDED_INTO or constant is None or x in graph.outputs:
        return None
    y = graph.out(node)
    if len(graph.consumers(x)) != 1 or y.dtype != "float32" or graph.tensors[x].shape != y.shape:
        return None
    data = [
        changed[name].data if name in changed else graph.tensors[name].data for name in product.inputs[1:]
    ]
    channels = y.shape[-1]
    if any(each is None or each.dtype != np.float32 for each in data) or not np.isfinite(constant).all():
        return None
    if constant.size != 1 and constant.shape != (*(1,) * (constant.ndim - 1), channels):
        return None
    row = np.broadcast_to(constant.reshape(-1), channels).astype(np.float64)
    weights = np.asarray(data[0], np.float64)
    bias = np.zeros(channels) if len(data) < 2 else np.asarray(data[1], np.float64)
    axis = OPS[product.op].weights_axis
    assert axis is not None
    if node.op == "mul":
        shape = [1] * weights.ndim
        shape[axis] = channels
        weights, bias = weights * row.reshape(shape), bias * row
    else:
        bias = bias + (row if node.op == "add" else -row)
    parts = [weights, bias] if len(data) > 1 or node.op != "mul" else [weights]
    inputs = [product.inputs[0]]
    for part, values in zip(("weights", "bias"), parts, strict=False):
        name = unused_name(f"{node.name}:{part}", graph.tensors, changed)
        changed[name] = Tensor(name, values.shape, "float32", data=values.astype(np.float32))
        inputs.append(name)
    return replace(product, inputs=tuple(inputs), outputs=node.outputs)
