"""Rewrites of a float graph that leave its results unchanged and reduce the noise of its quantization."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, rebuild
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
    nodes = [replace(node, op="reduce_mean", attributes=_MEAN) if _is_global(graph, node) else node for node in graph]
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
        if node.op in ("mul", "add", "sub") and not {node.name, node.op} & set(names):
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
    data = [changed[name].data if name in changed else graph.tensors[name].data for name in product.inputs[1:]]
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
        name = _unused(graph, changed, f"{node.name}:{part}")
        changed[name] = Tensor(name, values.shape, "float32", data=values.astype(np.float32))
        inputs.append(name)
    return replace(product, inputs=tuple(inputs), outputs=node.outputs)


def _unused(graph: Graph, changed: dict[str, Tensor], name: str) -> str:
    while name in graph.tensors or name in changed:
        name += "'"
    return name


#: Nodes whose result can be scaled channel by channel by changing their constants.
_SCALABLE = (*_FOLDED_INTO, "layer_norm", "rms_norm")
#: Exponents of the ranges of activations that are tried, relative to those of the weights.
_EXPONENTS = (0.5, 0.75, 1.0)
#: A scaling is used only if the estimated noise is at most this fraction of the noise without it.
_REQUIRED_NOISE_RATIO = 0.5
#: Largest factor between channels.
_MAX_FACTOR = 64.0


@dataclass(frozen=True)
class _Channels:
    """Statistics of the channels of an activation: extremes and variances."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    variance: NDArray[np.float64]


def equalized(
    graph: Graph, values: Sequence[Mapping[str, NDArray]], names: Collection[str] = ()
) -> tuple[Graph, dict[str, NDArray[np.float32]]]:
    """Scale channels of activations between two products so that they use the range of int8 equally.

    A product or a normalization makes each channel smaller by a factor, and the products that read the result multiply
    the weights of the channel by it (Nagel et al., Data-Free Quantization through Weight Equalization and Bias
    Correction, 2019; Xiao et al., SmoothQuant, 2022). The factors are (range of the activation)**a * (range of the
    weights)**(a - 1), with the exponent a of the least estimated noise.

    Parameters
    ----------
    graph : Graph
        The float graph.
    values : list of dict
        Values of all tensors for some samples.
    names : collection of str
        Nodes and operators that the user names, whose constants are not changed.

    Returns
    -------
    graph, factors
        The new graph, and the divisor of each channel of the tensors that were scaled.
    """
    changed: dict[str, Tensor] = {}
    nodes = {node.name: node for node in graph}
    factors: dict[str, NDArray[np.float32]] = {}
    for node in graph:
        if node.op not in _SCALABLE or {node.name, node.op} & set(names):
            continue
        between = list(_scaled_with(graph, node.outputs[0]))
        readers = _readers(graph, between, names)
        if not readers or not all(_constant(graph, each, changed) for each in (nodes[node.name], *readers)):
            continue
        found = _channels(between[-1], values)
        readers = [nodes[each.name] for each in readers]
        factor = None if found is None else _factors(graph, found, readers, changed)
        if factor is None:
            continue
        nodes[node.name] = _divided(graph, nodes[node.name], factor, changed)
        for each in readers:
            nodes[each.name] = _multiplied(graph, each, factor, changed)
        factors |= dict.fromkeys(between, factor.astype(np.float32))
    if not changed:
        return graph, factors
    return rebuild(graph, [nodes[node.name] for node in graph], changed=changed), factors


def _scaled_with(graph: Graph, name: str) -> Iterator[str]:
    """Yield a tensor, and the results of the operators after it that commute with positive factors of channels."""
    while True:
        yield name
        readers = graph.consumers(name)
        if len(readers) != 1 or name in graph.outputs or not _commutes(readers[0]):
            return
        (name,) = readers[0].outputs


def _commutes(node: Node) -> bool:
    if node.op == "clip":
        return node.attributes["low"] in (0, -np.inf) and node.attributes["high"] == np.inf
    if node.op == "reduce_mean":
        return node.attributes == _MEAN
    return node.op in ("max_pool2d", "avg_pool2d", "leaky_relu")


def _readers(graph: Graph, between: Sequence[str], names: Collection[str]) -> list[Node]:
    """Return the nodes that read the last tensor; none unless all are products with weights that may be changed."""
    last = between[-1]
    readers = graph.consumers(last)
    fits = all(
        node.op in _FOLDED_INTO and node.inputs.count(last) == 1 and not {node.name, node.op} & set(names)
        for node in readers
    )
    return readers if fits and not set(between) & set(graph.outputs) else []


def _constant(graph: Graph, node: Node, changed: Mapping[str, Tensor]) -> bool:
    """Return True if all operands except the first are float32 constants."""
    data = [_data(graph, name, changed) for name in node.inputs[1:]]
    return graph.out(node).dtype == "float32" and all(each is not None and each.dtype == np.float32 for each in data)


def _data(graph: Graph, name: str, changed: Mapping[str, Tensor]) -> NDArray | None:
    return changed[name].data if name in changed else graph.tensors[name].data


def _channels(name: str, values: Sequence[Mapping[str, NDArray]]) -> _Channels | None:
    """Return the statistics of the channels of a tensor; None if its values are not finite."""
    rows = np.concatenate([each[name].reshape(-1, each[name].shape[-1]) for each in values]).astype(np.float64)
    if not np.isfinite(rows).all():
        return None
    return _Channels(np.minimum(rows.min(0), 0), np.maximum(rows.max(0), 0), rows.var(0))


def _by_input(graph: Graph, node: Node, changed: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """Return the weights of a product as (channels of its operand, outputs of a channel, products)."""
    weights = _data(graph, node.inputs[1], changed)
    assert weights is not None
    weights = weights.astype(np.float64)
    if node.op == "depthwise_conv2d":
        return weights.reshape(-1, weights.shape[-1]).T[:, None, :]
    if node.op == "dense":
        return weights.T[:, :, None]
    groups = node.attributes["groups"]
    split = weights.reshape(groups, len(weights) // groups, -1, weights.shape[-1])
    return split.transpose(0, 3, 1, 2).reshape(-1, split.shape[1], split.shape[2])


def _factors(
    graph: Graph, channels: _Channels, readers: Sequence[Node], changed: Mapping[str, Tensor]
) -> NDArray[np.float64] | None:
    """Return the divisor of each channel; None if no scaling reduces the estimated noise enough."""
    weights = [(node, _by_input(graph, node, changed)) for node in readers]
    ranges = np.maximum(channels.high, -channels.low)
    largest = np.max([np.abs(each).max((1, 2)) / (np.abs(each).max() or 1) for _, each in weights], 0)
    used = (ranges > 0) & (largest > 0)
    if used.sum() < 2:
        return None
    before = _noise(channels, weights, np.ones(len(ranges)))
    best, least = None, _REQUIRED_NOISE_RATIO * before
    for exponent in _EXPONENTS:
        factor = np.ones(len(ranges))
        factor[used] = ranges[used] ** exponent * largest[used] ** (exponent - 1)
        middle = np.exp(np.log(factor[used]).mean())
        factor[used] = np.clip(factor[used] / middle, 1 / _MAX_FACTOR, _MAX_FACTOR)
        noise = _noise(channels, weights, factor)
        if noise < least:
            best, least = factor, noise
    return best


def _noise(
    channels: _Channels, weights: Sequence[tuple[Node, NDArray[np.float64]]], factor: NDArray[np.float64]
) -> float:
    """Estimate the noise of products, if the channels of their operand are divided by factors.

    Rounding errors are uniform in a step; those of weights multiply deviations from the mean, as biases are corrected.
    """
    step = ((channels.high / factor).max() - (channels.low / factor).min()) / 255
    variance = channels.variance / factor**2
    total = 0.0
    for node, each in weights:
        scaled = each * factor[:, None, None]
        total += float(step**2 * np.square(scaled).sum())
        if node.op == "depthwise_conv2d":
            steps = np.abs(scaled).max((1, 2)) / 127
            total += float((steps**2 * variance).sum() * each.shape[2])
            continue
        groups = node.attributes["groups"] if node.op == "conv2d" else 1
        grouped = scaled.reshape(groups, -1, *scaled.shape[1:])
        steps = np.abs(grouped).max((1, 3)) / 127
        power = variance.reshape(groups, -1).sum(1) * each.shape[2]
        total += float((np.square(steps).sum(1) * power).sum())
    return total


def _divided(graph: Graph, node: Node, factor: NDArray[np.float64], changed: dict[str, Tensor]) -> Node:
    """Return a node whose result is divided by a factor for each channel."""
    data = [_data(graph, name, changed) for name in node.inputs[1:]]
    parts = [np.asarray(each, np.float64) for each in data if each is not None]
    if node.op in ("layer_norm", "rms_norm"):
        parts = [np.broadcast_to(each.reshape(-1), factor.shape) for each in parts] or [np.ones(len(factor))]
        return _with_constants(graph, node, [each / factor for each in parts], changed)
    axis = OPS[node.op].weights_axis
    assert axis is not None
    shape = [1] * parts[0].ndim
    shape[axis] = -1
    scaled = [parts[0] / factor.reshape(shape), *(each / factor for each in parts[1:])]
    return _with_constants(graph, node, scaled, changed)


def _multiplied(graph: Graph, node: Node, factor: NDArray[np.float64], changed: dict[str, Tensor]) -> Node:
    """Return a product whose weights are multiplied by a factor for each channel of its operand."""
    weights, *bias = (np.asarray(_data(graph, name, changed), np.float64) for name in node.inputs[1:])
    if node.op == "conv2d" and node.attributes["groups"] > 1:
        groups = node.attributes["groups"]
        split = weights.reshape(groups, -1, *weights.shape[1:])
        scaled = (split * factor.reshape(groups, 1, 1, 1, -1)).reshape(weights.shape)
    else:
        scaled = weights * factor
    return _with_constants(graph, node, [scaled, *bias], changed)


def _with_constants(
    graph: Graph, node: Node, constants: Sequence[NDArray[np.float64]], changed: dict[str, Tensor]
) -> Node:
    """Return a node with other constants after its first operand."""
    inputs = [node.inputs[0]]
    for part, values in zip(("weights", "bias"), constants, strict=False):
        name = _unused(graph, changed, f"{node.name}:{part}")
        changed[name] = Tensor(name, values.shape, "float32", data=values.astype(np.float32))
        inputs.append(name)
    return replace(node, inputs=tuple(inputs))
