"""Exact changes of kernel sizes, strides and dilations of convolutions with constant integer weights.

`shrink_kernels` removes taps of zero weights and taps that read only padding, at the edges of a kernel or regularly
between other taps. `move_strides` computes only the pixels that later convolutions with strides read.
`compose_convolutions` replaces two convolutions by one, if the intermediate result is neither rounded nor saturated.
Padding holds the zero point and adds nothing to the sums, so that the sums, and hence all results, remain equal.
`separate_maxima` takes maxima over large windows and over images along the height, then along the width.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, rebuild, times_over, unused_name
from compiler.ir.identity import identity
from compiler.ir.ops import BINARY_OPS, TABLE_OPS
from compiler.ir.tensor import Quantization, Tensor
from compiler.passes.canonicalize import expand_nodes
from compiler.util.scaling import double_ratio, float32_ratio
from compiler.util.tiles import ceil_div
from hw.config import MlaConfig


@identity("Rewritten", "node", "op", "pass", "change", "bound", added=("bound",))
@dataclass(frozen=True)
class Rewritten:
    """A node that a cost-driven pass computes in another way than the model states.

    Parameters
    ----------
    node, op : str
        Name and operator of the node.
    name : str
        Name of the pass, as in `compiler.options.PASSES`.
    change : str
        What changed, and why.
    bound : int or None
        Largest difference of the results in steps of their quantization; None: results are equal.
    """

    node: str
    op: str
    name: str
    change: str
    bound: int | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.node} ({self.op}): {self.change}"


#: Passes of this module, and a graph together with what the pass changed; the graph is the same object if nothing.
Result = tuple[Graph, tuple[Rewritten, ...]]

#: Axes of the kernel's height and width in weights, and axis of the output channels, by operator.
_KERNEL_AXES = {"conv2d": (1, 2), "depthwise_conv2d": (0, 1)}
_OUTPUT_AXIS = {"conv2d": 0, "depthwise_conv2d": 2}
_WINDOWS = (*_KERNEL_AXES, "max_pool2d", "avg_pool2d")


def _integers(tensor: Tensor) -> bool:
    """Return True for a tensor of at most 16 bits with one scale."""
    q = tensor.quantization
    return q is not None and q.whole and tensor.dtype in ("int8", "uint8", "int16")


def _is_convolution(graph: Graph, node: Node) -> bool:
    """Return True for a convolution of integers with constant weights."""
    if node.op not in _KERNEL_AXES or len(node.outputs) != 1:
        return False
    x, weights, *bias = graph.ins(node)
    return (
        not x.constant
        and _integers(x)
        and all(each.constant for each in (weights, *bias))
        and weights.quantization is not None
        and weights.quantization.axis in (None, _OUTPUT_AXIS[node.op])
        and weights.dtype in ("int8", "uint8")
        and len(x.shape) == 4
        and len(weights.shape) == (4 if node.op == "conv2d" else 3)
        and times_over(graph, x.name) == 1
    )


def _centred(weights: Tensor, axis: int) -> NDArray[np.int64]:
    """Return constant weights minus their zero points."""
    q = weights.quantization
    assert weights.data is not None and q is not None
    zeros = np.array(q.zero_point, np.int64)
    if not q.whole:
        zeros = zeros.reshape([-1 if i == axis else 1 for i in range(len(weights.shape))])
    return weights.data.astype(np.int64) - zeros


# Shrinking


@dataclass(frozen=True)
class _Axis:
    """Windows along one axis of an image.

    Parameters
    ----------
    length, count : int
        Pixels of the image and of the result.
    before, after : int
        Pixels of padding.
    stride, dilation, taps : int
        Distance of windows, distance of taps, and number of taps.
    """

    length: int
    count: int
    before: int
    after: int
    stride: int
    dilation: int
    taps: int

    def read(self) -> NDArray[np.bool_]:
        """Return which taps read a pixel of the image in at least one window; the others read only padding."""
        starts = np.arange(self.count) * self.stride - self.before
        pixels = starts[:, None] + np.arange(self.taps) * self.dilation
        return np.asarray(((pixels >= 0) & (pixels < self.length)).any(0))

    def shrunk(self, used: NDArray[np.bool_]) -> "tuple[slice, _Axis]":
        """Return the smallest equal windows that contain the used taps, and which taps of the former ones they have."""
        taps = np.flatnonzero(used)
        if not len(taps):
            return slice(0, self.taps, 1), self
        step = math.gcd(*(int(each) for each in taps - taps[0])) or 1
        for distance in dict.fromkeys((step, 1)):
            first = int(taps[0])
            while first * self.dilation > self.before:
                first -= distance
            if first >= 0:
                break
        else:
            return slice(0, self.taps, 1), self
        count = (int(taps[-1]) - first) // distance + 1
        dilation = self.dilation * distance if count > 1 else 1
        before = self.before - first * self.dilation
        reach = (self.count - 1) * self.stride + (count - 1) * dilation + 1
        after = max(reach - self.length - before, 0)
        made = replace(self, before=before, after=after, dilation=dilation, taps=count)
        return slice(first, first + (count - 1) * distance + 1, distance), made


def _axes(graph: Graph, node: Node) -> tuple[_Axis, _Axis]:
    """Return the windows of a convolution along both axes."""
    x, weights = graph.ins(node)[:2]
    y, a = graph.out(node), node.attributes
    kernel = _KERNEL_AXES[node.op]
    rows, columns = (
        _Axis(
            x.shape[1 + axis],
            y.shape[1 + axis],
            a["pads"][axis],
            a["pads"][2 + axis],
            a["strides"][axis],
            a["dilations"][axis],
            weights.shape[kernel[axis]],
        )
        for axis in (0, 1)
    )
    return rows, columns


def shrink_kernels(graph: Graph, pinned: Collection[str] = ()) -> Result:
    """Remove taps of convolutions whose weights are zero, or that read only padding, where smaller windows are equal.

    Taps between which others are regularly zero become a kernel with dilation.

    Parameters
    ----------
    graph : Graph
        Graph of quantized tensors.
    pinned : collection of str
        Names of tensors that remain; shrinking changes no tensor but weights.
    """
    changed: dict[str, Tensor] = {}
    nodes, found = [], []
    for node in graph:
        if not _is_convolution(graph, node):
            nodes.append(node)
            continue
        weights, axes = graph.ins(node)[1], _KERNEL_AXES[node.op]
        other = _centred(weights, _OUTPUT_AXIS[node.op]) != 0
        before = _axes(graph, node)
        parts, after = [], []
        for number, each in enumerate(before):
            used = other.any(tuple(i for i in range(other.ndim) if i != axes[number])) & each.read()
            part, made = each.shrunk(used)
            parts.append(part)
            after.append(made)
        if [each.taps for each in before] == [each.taps for each in after]:
            nodes.append(node)
            continue
        assert weights.data is not None
        window = [slice(None)] * weights.data.ndim
        window[axes[0]], window[axes[1]] = parts
        data = np.ascontiguousarray(weights.data[tuple(window)])
        name = unused_name(f"{node.name}:{weights.name}:taps", graph.tensors, changed)
        changed[name] = replace(weights, name=name, shape=data.shape, data=data)
        attributes = node.attributes | {
            "pads": (after[0].before, after[1].before, after[0].after, after[1].after),
            "dilations": (after[0].dilation, after[1].dilation),
        }
        nodes.append(replace(node, inputs=(node.inputs[0], name, *node.inputs[2:]), attributes=attributes))
        text = f"kernel {_sizes(before)} -> {_sizes(after)}: the other taps are zero or read only padding"
        found.append(Rewritten(node.name, node.operator, "shrink_kernels", text))
    return (rebuild(graph, nodes, changed=changed), tuple(found)) if found else (graph, ())


def _sizes(axes: Collection[_Axis]) -> str:
    """Return the size of a kernel as text, with its dilations."""
    text = "x".join(str(each.taps) for each in axes)
    wide = "x".join(str(each.dilation) for each in axes)
    return text if wide == "1x1" else f"{text} with dilations {wide}"


# Strides


def move_strides(graph: Graph, pinned: Collection[str] = ()) -> Result:
    """Compute only the pixels that 1x1 convolutions with strides read, and give these convolutions strides of 1.

    Strides move through elementwise operators to convolutions and pools. The other operand of a sum is reduced by a
    1x1 pool with strides.

    Parameters
    ----------
    graph : Graph
        Graph of quantized tensors.
    pinned : collection of str
        Names of tensors that keep their shapes.
    """
    found: list[Rewritten] = []
    for name in list(graph.tensors):
        made = _Strides(graph, name, pinned).moved()
        if made is not None:
            graph = made[0]
            found += made[1]
    return graph, tuple(found)


class _Strides:
    """Move of the strides of all consumers of one tensor to its producer."""

    def __init__(self, graph: Graph, name: str, pinned: Collection[str]):
        self.graph, self.name, self.pinned = graph, name, pinned
        self.changed: dict[str, Tensor] = {}
        self.nodes: dict[str, Node] = {}
        #: Pools to insert before a node, by its name.
        self.pools: dict[str, list[Node]] = {}
        self.found: list[Rewritten] = []

    def moved(self) -> Result | None:
        """Return the new graph and the changed nodes; None if the strides cannot move."""
        graph = self.graph
        if self.name not in graph.tensors:
            return None
        readers = graph.consumers(self.name)
        if not readers or not all(self._strided(node) for node in readers):
            return None
        self.strides = readers[0].attributes["strides"]
        self.size = graph.out(readers[0]).shape[1:3]
        alike = all(
            node.attributes["strides"] == self.strides and graph.out(node).shape[1:3] == self.size
            for node in readers
        )
        if not alike or not self._reduce(self.name, {node.name for node in readers}):
            return None
        for node in readers:
            self.nodes[node.name] = replace(node, attributes=node.attributes | {"strides": (1, 1)})
        nodes = []
        for node in graph:
            nodes += self.pools.get(node.name, [])
            nodes.append(self.nodes.get(node.name, node))
        return rebuild(graph, nodes, changed=self.changed), tuple(self.found)

    def _strided(self, node: Node) -> bool:
        """Return True for a 1x1 convolution with strides and without padding."""
        a = node.attributes
        if not _is_convolution(self.graph, node) or any(a["pads"]) or a["strides"] == (1, 1):
            return False
        weights = self.graph.ins(node)[1]
        return all(weights.shape[axis] == 1 for axis in _KERNEL_AXES[node.op])

    def _reduce(self, name: str, readers: set[str]) -> bool:
        """Compute only the pixels of a tensor that the strides read; return False if that is impossible."""
        graph, producer = self.graph, self.graph.producer(name)
        tensor = graph.tensors[name]
        if producer is None or name in graph.outputs or name in self.pinned or len(producer.outputs) != 1:
            return False
        if not {node.name for node in graph.consumers(name)} <= readers or len(tensor.shape) != 4:
            return False
        self.changed[name] = replace(tensor, shape=(tensor.shape[0], *self.size, tensor.shape[3]))
        if producer.op in _WINDOWS and (producer.op.endswith("pool2d") or _is_convolution(graph, producer)):
            strides = tuple(a * b for a, b in zip(producer.attributes["strides"], self.strides, strict=True))
            attributes = producer.attributes | {"strides": strides}
            self.nodes[producer.name] = replace(producer, attributes=attributes)
            text = f"computes only the pixels that convolutions with strides {self.strides} read"
            self.found.append(Rewritten(producer.name, producer.operator, "move_strides", text))
            return True
        if producer.op in TABLE_OPS:
            return self._reduce(producer.inputs[0], {producer.name})
        if producer.op not in BINARY_OPS or not all(
            graph.tensors[each].shape == tensor.shape and _integers(graph.tensors[each])
            for each in producer.inputs
        ):
            return False
        return self._reduce_operands(producer)

    def _reduce_operands(self, node: Node) -> bool:
        """Reduce both operands of an elementwise operator, at least one of them where it is computed."""
        inputs, moved = list(node.inputs), False
        for number, each in enumerate(node.inputs):
            state = dict(self.changed), dict(self.nodes), dict(self.pools), list(self.found)
            if self._reduce(each, {node.name}):
                moved = True
                continue
            self.changed, self.nodes, self.pools, self.found = state
            tensor = self.graph.tensors[each]
            if tensor.constant:
                return False
            base = f"{each}:{node.name}:{number}:strided"
            name = unused_name(base, self.graph.tensors, self.graph.nodes, self.changed)
            self.changed[name] = replace(
                tensor, name=name, shape=(tensor.shape[0], *self.size, tensor.shape[3])
            )
            attributes = {"kernel": (1, 1), "strides": self.strides, "pads": (0, 0, 0, 0)}
            self.pools.setdefault(node.name, []).append(
                Node(name, "max_pool2d", (each,), (name,), attributes)
            )
            inputs[number] = name
        self.nodes[node.name] = replace(node, inputs=tuple(inputs))
        return moved


# Composition


def compose_convolutions(graph: Graph, pinned: Collection[str] = ()) -> Result:
    """Replace two consecutive convolutions by one, if no value between them is rounded or saturated.

    That is the case if the first one scales its sums by a power of two, all its results are whole, and its weights are
    so few and small that no result leaves the range of the tensor: for example, weights of 1 that select a channel or
    shift the image.

    Parameters
    ----------
    graph : Graph
        Graph of quantized tensors.
    pinned : collection of str
        Names of tensors that remain.
    """
    found: list[Rewritten] = []
    for node in list(graph):
        made = None if node.name not in graph.nodes else _composed(graph, graph.nodes[node.name], pinned)
        if made is not None:
            graph = made[0]
            found += made[1]
    return graph, tuple(found)


def _composed(graph: Graph, second: Node, pinned: Collection[str]) -> Result | None:
    """Return the graph in which a convolution reads the operand of the convolution before it."""
    if second.op != "conv2d" or second.attributes["groups"] != 1 or not _is_convolution(graph, second):
        return None
    first, between = graph.producer(second.inputs[0]), graph.ins(second)[0]
    if first is None or not _is_convolution(graph, first) or first.attributes.get("groups", 1) != 1:
        return None
    alone = len(graph.consumers(between.name)) == 1 and between.name not in (*graph.outputs, *pinned)
    if not alone or between.dtype == "int16" or graph.ins(first)[0].dtype != between.dtype:
        return None
    linear = _linear(graph, first)
    if linear is None:
        return None
    weights, bias = linear
    a, b = first.attributes, second.attributes
    edge = any(a["pads"]) or a["strides"] != (1, 1) or weights.shape[1:3] != (1, 1) or bias.any()
    if a["dilations"] != (1, 1) or b["dilations"] != (1, 1) or (any(b["pads"]) and edge):
        return None
    x, outer, *more = graph.ins(first)[0], graph.ins(second)[1], *graph.ins(second)[2:]
    joined = _joined(weights, _centred(outer, 0), a["strides"])
    q = _joined_quantization(x, between, outer, graph.out(second))
    if q is None or np.abs(joined).max(initial=0) > 127 or outer.dtype != "int8" or any(q.zero_point):
        return None
    sums = np.einsum("ohwc,c->o", _centred(outer, 0), bias)
    held = np.zeros(len(joined), np.int64) if not more else np.broadcast_to(more[0].data, sums.shape)  # type: ignore[arg-type]
    total = sums + held.astype(np.int64)
    if np.abs(total).max(initial=0) > np.iinfo(np.int32).max or (not more and sums.any()):
        return None
    name, changed = unused_name(f"{second.name}:{outer.name}:composed", graph.tensors), {}
    data = joined.astype(np.int8)
    changed[name] = replace(outer, name=name, shape=data.shape, data=data, quantization=q)
    inputs = [x.name, name]
    if more:
        inputs.append(unused_name(f"{second.name}:{more[0].name}:composed", graph.tensors, changed))
        changed[inputs[-1]] = replace(
            more[0],
            name=inputs[-1],
            shape=total.shape,
            data=total.astype(more[0].dtype),
            quantization=_for_channels(more[0].quantization, len(total)),
        )
    strides = tuple(s * t for s, t in zip(a["strides"], b["strides"], strict=True))
    pads = tuple(s + t for s, t in zip(a["pads"], b["pads"], strict=True))
    node = replace(second, inputs=tuple(inputs), attributes=b | {"strides": strides, "pads": pads})
    nodes = [node if each is second else each for each in graph if each is not first]
    text = f"includes {first.name}, whose results are whole and never saturate"
    return rebuild(graph, nodes, changed=changed), (
        Rewritten(second.name, second.operator, "compose_convolutions", text),
    )


def _for_channels(q: Quantization | None, count: int) -> Quantization | None:
    """Return a quantization of a bias with one number for each channel."""
    return (
        q if q is None or q.whole or len(q.scale) == count else Quantization(q.scale * count, (0,) * count, 0)
    )


def _linear(graph: Graph, node: Node) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return weights and bias that give the results of a convolution as whole numbers; None if there are none.

    The weights are those of an ungrouped convolution, and the results are relative to the zero point.
    """
    x, held, *bias = graph.ins(node)
    y = graph.out(node)
    if not _integers(y):
        return None
    assert x.quantization is not None and y.quantization is not None and held.quantization is not None
    axis = _OUTPUT_AXIS[node.op]
    ratios = double_ratio(
        node.op, x.dtype, x.quantization.scale[0], held.quantization.scale, y.quantization.scale[0]
    )
    count = held.shape[axis]
    ratios = np.broadcast_to(ratios, (count,))
    single = [
        float32_ratio(x.quantization.scale[0], each, y.quantization.scale[0])
        for each in np.broadcast_to(held.quantization.scale, (count,))
    ]
    exact = [math.frexp(ratio)[0] == 0.5 and -16 < math.log2(ratio) < 16 for ratio in ratios]
    if not all(exact) or list(ratios) != single:
        return None
    weights = _centred(held, axis)
    if node.op == "depthwise_conv2d":
        wide = np.zeros((count, *weights.shape[:2], count), np.int64)
        wide[np.arange(count), :, :, np.arange(count)] = np.moveaxis(weights, 2, 0)
        weights = wide
    added = np.zeros(count, np.int64)
    if bias:
        assert bias[0].data is not None
        added = np.broadcast_to(bias[0].data.astype(np.int64), (count,))
    scaled, constant = weights * ratios[:, None, None, None], added * ratios
    if (scaled != np.rint(scaled)).any() or (constant != np.rint(constant)).any():
        return None
    scaled, constant = scaled.astype(np.int64), constant.astype(np.int64)
    limits, zero = np.iinfo(x.dtype), x.quantization.zero_point[0]
    low, high = limits.min - zero, limits.max - zero
    ends = np.stack([scaled * low, scaled * high])
    most, least = ends.max(0).sum((1, 2, 3)) + constant, ends.min(0).sum((1, 2, 3)) + constant
    room, middle = np.iinfo(y.dtype), y.quantization.zero_point[0]
    if node.attributes.get("pads") and any(
        node.attributes["pads"]
    ):  # padding adds 0, which may be out of low..high
        ends = np.concatenate([ends, np.zeros_like(ends[:1])])
        most, least = ends.max(0).sum((1, 2, 3)) + constant, ends.min(0).sum((1, 2, 3)) + constant
    if (most + middle > room.max).any() or (least + middle < room.min).any():
        return None
    return scaled, constant


def _joined(
    inner: NDArray[np.int64], outer: NDArray[np.int64], strides: tuple[int, int]
) -> NDArray[np.int64]:
    """Return the weights of two convolutions as one.

    Parameters
    ----------
    inner, outer : arrays of shape (output channels, kernel height, kernel width, input channels)
        Weights of the first and of the second convolution.
    strides : (int, int)
        Strides of the first convolution.
    """
    height, width = ((outer.shape[axis] - 1) * strides[axis - 1] + inner.shape[axis] for axis in (1, 2))
    joined = np.zeros((outer.shape[0], height, width, inner.shape[3]), np.int64)
    for ky, kx in np.ndindex(*outer.shape[1:3]):
        y, x = ky * strides[0], kx * strides[1]
        part = np.einsum("om,mhwi->ohwi", outer[:, ky, kx], inner)
        joined[:, y : y + inner.shape[1], x : x + inner.shape[2]] += part
    return joined


def _joined_quantization(x: Tensor, between: Tensor, outer: Tensor, y: Tensor) -> Quantization | None:
    """Return the quantization of joined weights with which all runtimes scale as before; None if there is none."""
    if not _integers(y) or outer.quantization is None:
        return None
    assert x.quantization is not None and between.quantization is not None and y.quantization is not None
    a, m, result = (each.quantization.scale[0] for each in (x, between, y))  # type: ignore[union-attr]
    scales = []
    for scale in outer.quantization.scale:
        made = float(np.float32(np.float64(m) * scale / a))
        same = float32_ratio(a, made, result) == float32_ratio(m, scale, result) and (
            double_ratio("conv2d", x.dtype, a, made, result)
            == double_ratio("conv2d", x.dtype, m, scale, result)
        )
        if not same:
            return None
        scales.append(made)
    return Quantization(tuple(scales), outer.quantization.zero_point, outer.quantization.axis)


# Channels


#: Fewest outputs per channel, and fewest taps of the kernel, for which channels are repeated.
_MIN_MULTIPLIER, _MIN_TAPS = 3, 4


def repeat_channels(graph: Graph, pinned: Collection[str] = ()) -> Result:
    """Replace convolutions with several outputs for each channel by depthwise convolutions of repeated channels.

    A 1x1 convolution with weights of 1 repeats each channel as often as it has outputs, or half as often, because
    depthwise layers write two outputs per channel in place (`compiler.layers.depthwise`).

    Parameters
    ----------
    graph : Graph
        Graph of quantized tensors.
    pinned : collection of str
        Names of tensors that remain; all tensors do.
    """
    changed: dict[str, Tensor] = {}
    nodes, found = [], []
    for node in graph:
        if not _repeats(graph, node):
            nodes.append(node)
            continue
        x, weights, *_ = graph.ins(node)
        a, groups, many = node.attributes, x.shape[3], weights.shape[0] // x.shape[3]
        times = many // 2 if many % 2 == 0 else many
        one, wide = (
            unused_name(f"{node.name}:{part}", graph.tensors, graph.nodes, changed)
            for part in ("ones", "repeated")
        )
        ones = np.ones((groups * times, 1, 1, 1), np.int8)
        changed[one] = Tensor(one, ones.shape, "int8", Quantization.per_tensor(1.0, 0), ones)
        changed[wide] = replace(x, name=wide, shape=(*x.shape[:3], groups * times))
        still = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": groups}
        nodes.append(replace(node, name=wide, inputs=(x.name, one), outputs=(wide,), attributes=still))
        if times < many:
            attributes = a | {"groups": groups * times}
            nodes.append(replace(node, inputs=(wide, *node.inputs[1:]), attributes=attributes))
        else:
            nodes.append(_depthwise(graph, node, wide, changed))
        text = f"{many} outputs per channel: depthwise convolution of repeated channels"
        found.append(Rewritten(node.name, node.operator, "repeat_channels", text))
    return (rebuild(graph, nodes, changed=changed), tuple(found)) if found else (graph, ())


def _depthwise(graph: Graph, node: Node, x: str, changed: dict[str, Tensor]) -> Node:
    """Return the depthwise convolution of `x` with the weights of a convolution of groups of one channel."""
    weights = graph.ins(node)[1]
    assert weights.data is not None
    q = weights.quantization
    name = unused_name(f"{node.name}:{weights.name}:depthwise", graph.tensors, changed)
    if q is not None and q.axis is not None:
        q = replace(q, axis=2)
    data = np.ascontiguousarray(weights.data[..., 0].transpose(1, 2, 0))
    changed[name] = replace(weights, name=name, shape=data.shape, data=data, quantization=q)
    attributes = {key: node.attributes[key] for key in ("strides", "pads", "dilations")}
    return replace(node, op="depthwise_conv2d", inputs=(x, name, *node.inputs[2:]), attributes=attributes)


def _repeats(graph: Graph, node: Node) -> bool:
    """Return True for a convolution of bytes with several outputs for each of several channels."""
    if node.op != "conv2d" or not _is_convolution(graph, node):
        return False
    x, weights = graph.ins(node)[:2]
    outputs, down, across, share = weights.shape
    groups = node.attributes["groups"]
    return (
        groups > 1
        and share == 1
        and outputs >= _MIN_MULTIPLIER * groups
        and down * across >= _MIN_TAPS
        and x.dtype in ("int8", "uint8")
    )


# Maxima


#: Share of the scratchpad that one window of N channels may take, since images and results have two buffers each.
_MAX_WINDOW_SHARE = 1 / 4
#: Cycles of another pass over an image.
_SECOND_PASS = 300


def separate_maxima(graph: Graph, config: MlaConfig) -> Graph:
    """Take maxima over large windows, and extremes over images, along the height, then along the width.

    That applies to windows that are too large for the scratchpad, and to images whose channels do not fill the lanes:
    the rows of such an image are vectors without incomplete lanes.

    Parameters
    ----------
    graph : Graph
        Graph of quantized tensors.
    config : MlaConfig
        Machine for which the graph is compiled.
    """

    def parts(graph: Graph, node: Node, made: dict[str, Tensor]) -> list[Node] | None:
        both = _along_each_axis(graph, node, config)
        if both is None:
            return None
        name = unused_name(f"{node.name}:rows", graph.tensors, graph.nodes, made)
        (x,), y, (rows, columns) = graph.ins(node), graph.out(node), both
        high = y.shape[1] if rows.op == "max_pool2d" else 1
        made[name] = replace(x, name=name, shape=(x.shape[0], high, *x.shape[2:]))
        return [replace(rows, name=name, outputs=(name,)), replace(columns, inputs=(name,))]

    return expand_nodes(graph, parts)


def _along_each_axis(graph: Graph, node: Node, config: MlaConfig) -> tuple[Node, Node] | None:
    """Return a node as one along the height and one along the width; None if it remains as it is."""
    if node.op not in ("max_pool2d", "reduce_max", "reduce_min"):
        return None
    (x,), y, a = graph.ins(node), graph.out(node), node.attributes
    if not _integers(x) or x.constant or len(x.shape) != 4:
        return None
    if node.op != "max_pool2d":
        if sorted(axis % 4 for axis in a["axes"]) != [1, 2] or not _rows_are_faster(x, config):
            return None
        rows = replace(node, attributes=a | {"axes": (1,), "keep": True})
        return rows, replace(node, attributes=a | {"axes": (2,) if a["keep"] else (1, 2)})
    if (x.dtype, x.quantization) != (y.dtype, y.quantization):
        return None
    if a["kernel"] == x.shape[1:3] and not any(a["pads"]):
        if not _rows_are_faster(x, config):
            return None
        along = [
            replace(node, op="reduce_max", attributes={"axes": (axis,), "keep": True}) for axis in (1, 2)
        ]
        return along[0], along[1]
    (high, wide), (down, across), (top, left, bottom, right) = a["kernel"], a["strides"], a["pads"]
    size = high * wide * config.n * np.dtype(x.dtype).itemsize
    if min(high, wide) == 1 or size <= _MAX_WINDOW_SHARE * config.sp_bytes:
        return None
    windows = (
        {"kernel": (high, 1), "strides": (down, 1), "pads": (top, 0, bottom, 0)},
        {"kernel": (1, wide), "strides": (1, across), "pads": (0, left, 0, right)},
    )
    return replace(node, attributes=a | windows[0]), replace(node, attributes=a | windows[1])


def _rows_are_faster(x: Tensor, config: MlaConfig) -> bool:
    """Return True if an extreme over an image takes fewer cycles along the height, then along the width."""
    batch, height, width, channels = x.shape
    blocks, size = ceil_div(channels, config.n), np.dtype(x.dtype).itemsize
    both = height * ceil_div(width * channels, config.n) + width * blocks
    saved = batch * (height * width * blocks - both) * size
    return saved * config.fuse_rate > _SECOND_PASS


#: Passes in order.
KERNEL_PASSES: tuple[Callable[[Graph, Collection[str]], Result], ...] = (
    shrink_kernels,
    compose_convolutions,
    move_strides,
    repeat_channels,
)
