"""Removal of channels that are constant or that no operator reads.

The channels of a tensor are the indices of its last axis. A filter of zeros makes a channel constant: its values, which
the reference implementation computes, do not depend on the input. Constants are followed through the operators that
keep channels apart. A convolution or dense layer does not need to read a channel whose weights are all zero, or a
constant channel whose contribution to the sums is the same at every position: that contribution is added to the bias.
A channel is removed if no operator needs it, in all tensors that are connected by operators that keep channels apart,
such as the operands and the result of an addition. All results remain exactly the same.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, rebuild, unused_name
from compiler.ir.ops import BINARY_OPS, TABLE_OPS
from compiler.ir.tensor import Quantization, Tensor
from compiler.passes.redundant_nodes import Removed, remove_dead
from compiler.reference import Kernels, run_node

Mask = NDArray[np.bool_]
Indices = NDArray[np.intp]

_INT32 = np.iinfo(np.int32)
#: Operators of one operand that treat all channels alike.
_ALIKE = TABLE_OPS | {
    "quantize",
    "dequantize",
    "high_byte",
    "low_byte",
    "max_pool2d",
    "avg_pool2d",
    "resize_nearest",
    "resize_bilinear",
}


def remove_channels(
    graph: Graph, rounding: Kernels, pinned: Collection[str] = (), multiple: int = 1
) -> tuple[Graph, tuple[Removed, ...]]:
    """Remove channels that are constant or not read; return the new graph and what was removed.

    If an operand of a sum, difference or product is constant, only that operand is replaced.

    Parameters
    ----------
    graph : Graph
        Graph with quantized tensors; others remain unchanged.
    rounding : "reference", "xnnpack" or "onnxruntime"
        Rounding with which constant channels are computed.
    pinned : collection of str
        Names of tensors whose channels all remain.
    multiple : int
        Number of channels to whose multiple the remaining channels of every tensor are completed.
    """
    return _Channels(graph, rounding).removed(set(pinned), multiple)


def is_quantized(tensor: Tensor) -> bool:
    """Return True if a tensor has one scale for all channels."""
    return tensor.quantization is not None and tensor.quantization.whole


def channel_count(tensor: Tensor) -> int:
    """Return the number of channels of a tensor; a scalar has one."""
    return tensor.shape[-1] if tensor.shape else 1


def _is_product(graph: Graph, node: Node) -> bool:
    """Return True for an ungrouped convolution or dense layer of quantized integers with constant weights."""
    if node.op not in ("conv2d", "dense") or node.attributes.get("groups", 1) != 1:
        return False
    x, weights, *bias = graph.ins(node)
    y = graph.out(node)
    return (
        not x.constant
        and all(tensor.constant for tensor in (weights, *bias))
        and is_quantized(x)
        and weights.quantization is not None
        and weights.quantization.axis in (None, 0)
        and (is_quantized(y) or (y.quantization is None and y.dtype == "int32"))
        and (channel_count(weights), weights.shape[0]) == (channel_count(x), channel_count(y))
        and all(each.shape in ((), (1,), (channel_count(y),)) for each in bias)
    )


def _is_aligned(graph: Graph, node: Node) -> bool:
    """Return True if each channel of the result depends only on the same channel of every operand."""
    if len(node.outputs) != 1 or node.bodies:
        return False
    ins, y, a = graph.ins(node), graph.out(node), node.attributes
    if node.op == "depthwise_conv2d":
        x, weights, *bias = ins
        return (
            not x.constant
            and all(tensor.constant for tensor in (weights, *bias))
            and all(is_quantized(tensor) for tensor in (x, y))
            and weights.quantization is not None
            and weights.quantization.axis in (None, 2)
            and channel_count(weights) == channel_count(x) == channel_count(y)
            and all(each.shape in ((), (1,), (channel_count(y),)) for each in bias)
        )
    if not all(is_quantized(tensor) for tensor in (*ins, y)):
        return False
    x, rank = ins[0], len(ins[0].shape)
    if node.op in BINARY_OPS or node.op == "prelu":
        return all(channel_count(tensor) in (1, channel_count(y)) for tensor in ins)
    if not rank or channel_count(x) != channel_count(y) or x.constant:
        return False
    if node.op in _ALIKE or node.op == "reshape":
        return True
    if node.op.startswith("reduce_"):
        return all(axis % rank != rank - 1 for axis in a["axes"]) and len(y.shape) > 0
    if node.op == "pad":
        return a["pads"][-1] == (0, 0)
    if node.op == "transpose":
        return a["perm"][-1] == rank - 1
    if node.op == "slice":
        return _one_for_each_dimension(graph, node) and (a["starts"][-1], a["steps"][-1]) == (0, 1)
    return node.op == "concat" and a["axis"] % rank != rank - 1


def _is_joined(graph: Graph, node: Node) -> bool:
    """Return True for a concatenation of channels."""
    if node.op != "concat" or not all(is_quantized(each) for each in (*graph.ins(node), graph.out(node))):
        return False
    rank = len(graph.out(node).shape)
    return node.attributes["axis"] % rank == rank - 1 and not any(each.constant for each in graph.ins(node))


def _is_part(graph: Graph, node: Node) -> bool:
    """Return True for a slice of adjacent channels."""
    if node.op != "slice" or not all(is_quantized(each) for each in (*graph.ins(node), graph.out(node))):
        return False
    alone = _one_for_each_dimension(graph, node) and not graph.ins(node)[0].constant
    return alone and node.attributes["steps"][-1] == 1


def _one_for_each_dimension(graph: Graph, node: Node) -> bool:
    """Return True unless a slice is malformed or exceeds the channels, which is reported when it is lowered."""
    x, y = graph.ins(node)[0], graph.out(node)
    a = node.attributes
    given = [len(a[name]) for name in ("starts", "sizes", "steps")]
    if given != [len(x.shape)] * 3 or a["sizes"][-1:] != y.shape[-1:]:
        return False
    return not x.shape or (a["starts"][-1] >= 0 and channel_range(node).stop <= channel_count(x))


def _is_folded(graph: Graph, node: Node) -> bool:
    """Return True for a reshape whose result has a multiple, or a fraction, of the operand's channels."""
    if node.op != "reshape" or not all(is_quantized(each) for each in (*graph.ins(node), graph.out(node))):
        return False
    x, y = graph.ins(node)[0], graph.out(node)
    if x.constant or not x.shape or not y.shape:
        return False
    return channel_count(y) % channel_count(x) == 0 or channel_count(x) % channel_count(y) == 0


def part_offsets(graph: Graph, node: Node) -> list[tuple[str, slice]]:
    """Return the operands of a concatenation of channels, with their positions in the result."""
    found, start = [], 0
    for tensor in graph.ins(node):
        found.append((tensor.name, slice(start, start + channel_count(tensor))))
        start += channel_count(tensor)
    return found


def channel_range(node: Node) -> slice:
    """Return the channels that a slice of channels takes."""
    start = node.attributes["starts"][-1]
    return slice(start, start + node.attributes["sizes"][-1])


def _zeros(weights: Tensor, axis: int) -> NDArray[np.int64]:
    """Return the zero points of constant weights, which broadcast to the weights."""
    assert weights.quantization is not None
    zeros = np.array(weights.quantization.zero_point, np.int64)
    if weights.quantization.axis is None:
        return zeros
    return zeros.reshape([-1 if i == axis else 1 for i in range(len(weights.shape))])


def _centred(weights: Tensor, axis: int) -> NDArray[np.int64]:
    """Return constant weights minus their zero points."""
    assert weights.data is not None
    return weights.data.astype(np.int64) - _zeros(weights, axis)


def _reads(weights: Tensor) -> NDArray[np.bool_]:
    """Return which results of a product (rows) depend on which channels of its operand (columns)."""
    assert weights.data is not None
    other = weights.data != _zeros(weights, 0).astype(weights.dtype)
    return other.reshape(weights.shape[0], -1, weights.shape[-1]).any(1)


class _Channels:
    """Analysis of the channels of a graph."""

    def __init__(self, graph: Graph, rounding: Kernels):
        self.graph = graph
        self.rounding: Kernels = rounding
        #: Known channels of tensors, and their values, with these channels along the last axis.
        self.known: dict[str, tuple[Mask, NDArray]] = {}
        #: Channels of operands of products that are constant and can be added to the bias.
        self.foldable: dict[str, Mask] = {}
        #: Contributions of all foldable channels to the sums of products: output channels x input channels.
        self.added: dict[str, NDArray[np.int64]] = {}
        self.needed: dict[str, Mask] = {}
        #: Channels that need not remain; some of them complete a multiple of channels.
        self.spared: dict[str, Mask] = {}
        self.kinds = {node.name: self._kind(node) for node in graph}
        self.reads = {
            node.name: _reads(graph.ins(node)[1]) for node in graph if self.kinds[node.name] == "product"
        }

    def _kind(self, node: Node) -> str:
        for kind, test in KINDS.items():
            if test(self.graph, node):
                return kind
        return ""

    # Constant channels

    def find_constants(self) -> None:
        """Find constant channels, in the order of the graph."""
        for node in self.graph:
            kind = self.kinds[node.name]
            if kind:
                mask = self._constant(node, kind)
                if mask.any():
                    values = self._values(node, kind, mask)
                    self.known[node.outputs[0]] = mask, values
                if kind == "product" and node.inputs[0] in self.known:
                    self._find_foldable(node)

    def mask(self, name: str) -> Mask:
        """Return which channels of a tensor are constant."""
        tensor = self.graph.tensors[name]
        if name in self.known:
            return self.known[name][0]
        return np.full(channel_count(tensor), tensor.constant)

    def constant(self, name: str, called: str) -> Tensor | None:
        """Return a tensor as a constant number, or one for each channel; None if it is not constant in this sense."""
        tensor = self.graph.tensors[name]
        if not self.mask(name).all() or not tensor.shape:
            return None
        rows = self.known[name][1].reshape(-1, channel_count(tensor))
        if (rows != rows[:1]).any():
            return None
        data = rows[0] if (rows != rows[0, 0]).any() else rows[0, 0].reshape(())
        return Tensor(
            called,
            data.shape,
            tensor.dtype,
            tensor.quantization,
            np.ascontiguousarray(data).reshape(data.shape),
        )

    def _constant(self, node: Node, kind: str) -> Mask:
        """Return which channels of a node's result are constant."""
        graph, y = self.graph, self.graph.out(node)
        if kind == "product":
            return ~np.asarray(self.reads[node.name][:, ~self.mask(node.inputs[0])].any(1))
        if kind == "aligned":
            if node.op == "depthwise_conv2d":
                zero = ~_centred(graph.ins(node)[1], 2).reshape(-1, channel_count(y)).any(0)
                return zero | self.mask(node.inputs[0])
            masks = [np.broadcast_to(self.mask(name), (channel_count(y),)) for name in node.inputs]
            return np.logical_and.reduce(masks) & (
                not all(graph.tensors[name].constant for name in node.inputs)
            )
        if kind == "joined":
            return np.concatenate([self.mask(name) for name in node.inputs])
        if kind == "part":
            return self.mask(node.inputs[0])[channel_range(node)]
        mask = self.mask(node.inputs[0])
        times, parts = divmod(channel_count(y), len(mask))
        return np.tile(mask, times) if not parts else np.asarray(mask.reshape(-1, channel_count(y)).all(0))

    def _values(self, node: Node, kind: str, mask: Mask) -> NDArray:
        """Return the values of the constant channels of a node's result."""
        kept = {node.outputs[0]: np.flatnonzero(mask)}
        for name in dict.fromkeys(node.inputs):
            tensor = self.graph.tensors[name]
            if not tensor.constant:
                kept[name] = self._operands(node, kind, mask, name)
        narrow, tensors = narrowed(self.graph, node, kind, kept, {})
        small = Graph(self.graph.name)
        for name in dict.fromkeys((*narrow.inputs, *narrow.outputs)):
            small.add_tensor(tensors[name])
        values = [self._operand(tensors[name], kept.get(name)) for name in narrow.inputs]
        (result,) = run_node(small, narrow, values, rounding=self.rounding)
        return result

    def _operands(self, node: Node, kind: str, mask: Mask, name: str) -> Indices:
        """Return the channels of an operand from which the constant channels of the result are computed."""
        own = self.mask(name)
        if kind == "product":
            return np.flatnonzero(own) if own.any() else np.zeros(1, np.intp)
        if kind == "joined":
            return np.flatnonzero(own)
        if kind == "part":
            within = np.zeros(len(own), bool)
            within[channel_range(node)] = True
            return np.flatnonzero(own & within)
        if kind == "folded" and len(own) != len(mask):
            times, parts = divmod(len(mask), len(own))
            return (
                np.flatnonzero(own)
                if not parts and times
                else np.flatnonzero(np.tile(mask, len(own) // len(mask)))
            )
        return np.flatnonzero(mask) if len(own) == len(mask) else np.arange(len(own))

    def _operand(self, tensor: Tensor, kept: Indices | None) -> NDArray:
        """Return the values of an operand's channels; those that are not known are zero and have no influence."""
        if tensor.data is not None:
            return tensor.data
        assert kept is not None
        values = np.zeros(tensor.shape, tensor.dtype)
        if tensor.name in self.known:
            mask, stored = self.known[tensor.name]
            position = np.cumsum(mask) - 1
            inside = mask[kept]
            values[..., inside] = stored[..., position[kept[inside]]]
        return values

    def _find_foldable(self, node: Node) -> None:
        """Find the constant channels that a product can add to its bias.

        Padding reads the zero point, so that other values are not constant at the edges of the image.
        """
        x, weights, *bias = self.graph.ins(node)
        mask, values = self.known[x.name]
        assert x.quantization is not None
        zero = x.quantization.zero_point[0]
        rows = values.reshape(-1, values.shape[-1]).astype(np.int64)
        centred = rows[0] - zero
        fits = (rows == rows[:1]).all(0)
        y = self.graph.out(node)
        if any(node.attributes.get("pads", ())) or np.dtype(x.dtype).itemsize > 1 or not is_quantized(y):
            fits &= centred == 0
        indices = np.flatnonzero(mask)
        sums = _centred(weights, 0).reshape(channel_count(y), -1, channel_count(x)).sum(1)
        added = np.zeros((channel_count(y), channel_count(x)), np.int64)
        added[:, indices] = sums[:, indices] * np.where(fits, centred, 0)
        start = np.abs(bias[0].data.astype(np.int64)) if bias and bias[0].data is not None else 0
        if (start + np.abs(added).sum(1) > _INT32.max).any():
            return
        self.foldable[node.name] = np.zeros(channel_count(x), bool)
        self.foldable[node.name][indices[fits]] = True
        self.added[node.name] = added

    def with_constant_operands(self, pinned: Collection[str]) -> Graph:
        """Return the graph with constants as operands of sums, differences and products, where they are constant.

        The result of a layer whose weights are all zero is such an operand. It becomes a number or one row of channels;
        an operand that differs between positions remains.
        """
        constants: dict[str, Tensor] = {}
        nodes: list[Node] = []
        for node in self.graph:
            inputs = {}
            if node.op in BINARY_OPS and self.kinds[node.name] and not self.mask(node.outputs[0]).all():
                for name in node.inputs:
                    called = unused_name(f"{node.name}:{name}", self.graph.tensors, constants)
                    found = self.constant(name, called) if name in self.known else None
                    if found is not None and name not in pinned:
                        inputs[name] = found.name
                        constants[found.name] = found
            names = tuple(inputs.get(name, name) for name in node.inputs)
            nodes.append(replace(node, inputs=names) if inputs else node)
        return remove_dead(rebuild(self.graph, nodes, changed=constants)) if constants else self.graph

    # Channels that are needed

    def find_needed(self, pinned: set[str], multiple: int) -> None:
        """Find the channels that must remain."""
        graph = self.graph
        made = [name for node in graph for name in node.outputs]
        self.needed = {
            name: np.zeros(channel_count(graph.tensors[name]), bool) for name in (*graph.inputs, *made)
        }
        for name in (*graph.inputs, *graph.outputs, *pinned):
            if name in self.needed:
                self.needed[name][:] = True
        for node in graph:
            if not self.kinds[node.name]:
                for name in (*node.inputs, *node.outputs):
                    if name in self.needed:
                        self.needed[name][:] = True
        self._settle()
        while self._keep_one():
            self._settle()
        self.spared = {name: ~mask for name, mask in self.needed.items()}
        while self._complete(multiple):
            self._settle()

    def _settle(self) -> None:
        """Mark channels as needed until nothing changes."""
        nodes = [node for node in self.graph if self.kinds[node.name]]
        changed = True
        while changed:
            changed = False
            for node in (
                *reversed(nodes),
                *nodes,
            ):  # both directions, so that long chains need few repetitions
                changed |= self._mark(node)

    def _join(self, name: str, at: slice | Indices, marks: Mask) -> bool:
        """Mark channels of a tensor as needed; return True if there are new ones."""
        mine = self.needed[name]
        new = marks & ~mine[at]
        if new.any():
            mine[at] |= marks
            return True
        return False

    def _mark(self, node: Node) -> bool:
        """Mark the channels that a node connects with channels that are needed; return True if there are new ones."""
        kind, y, everything = self.kinds[node.name], node.outputs[0], slice(None)
        marks, changed = self.needed[y], False
        names = [name for name in dict.fromkeys(node.inputs) if name in self.needed]
        if kind == "product":
            if marks.any():
                changed = self._join(names[0], everything, self._read(node))
        elif kind == "aligned":
            for name in names:
                mine = self.needed[name]
                if len(mine) != len(marks):
                    changed |= self._join(name, everything, np.broadcast_to(marks.any(), mine.shape))
                else:
                    changed |= self._join(name, everything, marks) | self._join(y, everything, mine)
        elif kind == "joined":
            for name, at in part_offsets(self.graph, node):
                changed |= self._join(name, everything, marks[at]) | self._join(y, at, self.needed[name])
        elif kind == "part":
            at, x = channel_range(node), names[0]
            changed = self._join(x, at, marks) | self._join(y, everything, self.needed[x][at])
        else:
            wide, narrow = (y, names[0]) if len(marks) >= len(self.needed[names[0]]) else (names[0], y)
            times = len(self.needed[wide]) // len(self.needed[narrow])
            folded = np.asarray(self.needed[wide].reshape(times, -1).any(0))
            changed = self._join(narrow, everything, folded)
            changed |= self._join(wide, everything, np.tile(self.needed[narrow], times))
        return changed

    def _read(self, node: Node) -> Mask:
        """Return the channels that a product must read: those with weights other than zero that are not foldable."""
        read = self.reads[node.name][self.needed[node.outputs[0]]].any(0)
        return read & ~self.foldable.get(node.name, np.zeros(1, bool))

    def _keep_one(self) -> bool:
        """Keep a channel for each product that reads none but whose result is needed; return True if any was added."""
        changed = False
        for node in self.graph:
            if self.kinds[node.name] == "product" and self.needed[node.outputs[0]].any():
                mine = self.needed[node.inputs[0]]
                if not mine.any():
                    mine[0] = changed = True
        return changed

    def _complete(self, multiple: int) -> bool:
        """Keep more channels, up to a multiple, of the results of products; return True if any was added."""
        changed = False
        for node in self.graph:
            if self.kinds[node.name] != "product":
                continue
            mine = self.needed[node.outputs[0]]
            count = int(mine.sum())
            more = min(math.ceil(count / multiple) * multiple, len(mine)) - count
            if more > 0:
                mine[np.flatnonzero(~mine)[:more]] = changed = True
        return changed

    # The new graph

    def removed(self, pinned: set[str], multiple: int) -> tuple[Graph, tuple[Removed, ...]]:
        """Return the graph without channels that are not needed, and what was removed."""
        self.find_constants()
        graph = self.with_constant_operands(pinned)
        if graph is not self.graph:
            return graph, ()
        self.find_needed(pinned, multiple)
        if all(mask.all() for mask in self.needed.values()):
            return graph, ()
        kept = {name: np.flatnonzero(mask) for name, mask in self.needed.items()}
        changed: dict[str, Tensor] = {}
        nodes = []
        for node in graph:
            if not any(len(kept[name]) for name in node.outputs):
                continue
            kind = self.kinds[node.name]
            if kind:
                added = {node.name: self._folded(node)} if node.name in self.added else {}
                node, tensors = narrowed(graph, node, kind, kept, added)
                changed |= tensors
            nodes.append(node)
        return rebuild(graph, nodes, changed=changed), tuple(self._report())

    def _folded(self, node: Node) -> NDArray[np.int64]:
        """Return the contributions of the removed constant channels of a product to its sums, by output channel."""
        dropped = ~self.needed[node.inputs[0]]
        return self.added[node.name][:, dropped & self.foldable[node.name]].sum(1)

    def _report(self) -> Iterator[Removed]:
        for node in self.graph:
            if self.kinds[node.name] and node.op in ("conv2d", "dense", "depthwise_conv2d"):
                name = node.outputs[0]
                spared, count = self.spared[name], int((~self.needed[name]).sum())
                if 0 < count < len(spared):
                    constant = int((spared & self.mask(name)).sum())
                    unread = int(spared.sum()) - constant
                    each = [f"{constant} are constant"] * bool(constant) + [f"{unread} are not read"] * bool(
                        unread
                    )
                    yield Removed(node.name, node.op, ", ".join(each), len(spared), count)


KINDS: dict[str, Callable[[Graph, Node], bool]] = {
    "product": _is_product,
    "aligned": _is_aligned,
    "joined": _is_joined,
    "part": _is_part,
    "folded": _is_folded,
}


def _taken(tensor: Tensor, name: str, axis: int, kept: Indices) -> Tensor:
    """Return a tensor under another name with only the given indices of an axis."""
    data = None if tensor.data is None else np.ascontiguousarray(np.take(tensor.data, kept, axis))
    shape = (*tensor.shape[:axis], len(kept), *tensor.shape[axis + 1 :])
    q = tensor.quantization
    if q is not None and q.axis == axis:
        q = Quantization(tuple(q.scale[i] for i in kept), tuple(q.zero_point[i] for i in kept), axis)
    return replace(tensor, name=name, shape=shape, data=data, quantization=q)


def narrowed(
    graph: Graph, node: Node, kind: str, kept: dict[str, Indices], added: dict[str, NDArray[np.int64]]
) -> tuple[Node, dict[str, Tensor]]:
    """Return a node that computes only some channels, with its tensors.

    Parameters
    ----------
    graph : Graph
        Graph of the node.
    node : Node
        Node to restrict.
    kind : str
        Key of `KINDS` whose test holds for the node.
    kept : dict
        Channels that remain, for each tensor that is not constant.
    added : dict
        Numbers to add to the bias, by name of the node, for each channel of the full result.
    """
    ins, y = graph.ins(node), graph.out(node)
    mine = kept[y.name]
    tensors = {y.name: _taken(y, y.name, len(y.shape) - 1, mine)}
    for each in ins:
        if not each.constant and len(kept[each.name]):
            tensors[each.name] = (
                _taken(each, each.name, len(each.shape) - 1, kept[each.name]) if each.shape else each
            )
    inputs, attributes = list(node.inputs), node.attributes

    def constant(number: int, tensor: Tensor) -> None:
        single = len(graph.consumers(ins[number].name)) == 1 and node.inputs.count(ins[number].name) == 1
        name = ins[number].name
        inputs[number] = name if single else unused_name(f"{node.name}:{name}", graph.tensors, tensors)
        tensors[inputs[number]] = replace(tensor, name=inputs[number])

    if kind == "product":
        x, weights, *bias = ins
        thin = _taken(weights, weights.name, len(weights.shape) - 1, kept[x.name])
        constant(1, _taken(thin, weights.name, 0, mine))
        if bias or node.name in added:
            extra = added[node.name][mine] if node.name in added else np.zeros(len(mine), np.int64)
            if not bias and extra.any():
                inputs.append(unused_name(f"{node.name}:bias", graph.tensors, tensors))
                tensors[inputs[-1]] = _bias(inputs[-1], x, tensors[inputs[1]], extra)
            elif bias:
                constant(2, _with_bias(bias[0], mine, extra))
    elif node.op == "depthwise_conv2d":
        constant(1, _taken(ins[1], ins[1].name, len(ins[1].shape) - 1, mine))
        if len(ins) > 2:
            constant(2, _with_bias(ins[2], mine, np.zeros(len(mine), np.int64)))
    elif kind == "aligned":
        for number, each in enumerate(ins):
            if each.constant:
                wide = bool(each.shape) and channel_count(each) == channel_count(y)
                constant(number, _taken(each, each.name, len(each.shape) - 1, mine) if wide else each)
    elif kind == "joined":
        inputs = [name for name in node.inputs if len(kept[name])]
    if node.op == "reshape":
        attributes = {"shape": tensors[y.name].shape}
    elif node.op == "slice":
        start = int(np.searchsorted(kept[node.inputs[0]], attributes["starts"][-1]))
        attributes = attributes | {
            "starts": (*attributes["starts"][:-1], start),
            "sizes": (*attributes["sizes"][:-1], len(mine)),
        }
    for name in node.inputs:
        if name not in tensors:
            tensors[name] = graph.tensors[name]
    used = {name: tensors[name] for name in (*inputs, y.name)}
    return replace(node, inputs=tuple(inputs), attributes=attributes), used


def _with_bias(bias: Tensor, kept: Indices, extra: NDArray[np.int64]) -> Tensor:
    """Return the bias of the remaining channels plus numbers."""
    assert bias.data is not None
    if bias.elements == 1 and (len(kept) > 1 or extra.any()):
        q = bias.quantization
        data = np.broadcast_to(bias.data.reshape(-1), kept.shape).astype(np.int64) + extra
        if q is not None and q.axis is not None:
            q = Quantization(q.scale * len(kept), q.zero_point * len(kept), 0)
        return replace(bias, shape=data.shape, data=data.astype(bias.dtype), quantization=q)
    if bias.elements == 1:
        return bias
    thin = _taken(bias, bias.name, 0, kept)
    assert thin.data is not None
    return (
        replace(thin, data=(thin.data.astype(np.int64) + extra).astype(bias.dtype)) if extra.any() else thin
    )


def _bias(name: str, x: Tensor, weights: Tensor, values: NDArray[np.int64]) -> Tensor:
    """Return a bias for a product that has none."""
    assert x.quantization is not None and weights.quantization is not None
    scale = np.float32(x.quantization.scale[0]) * np.array(weights.quantization.scale, np.float32)
    whole = weights.quantization.whole
    q = Quantization(tuple(float(each) for each in scale), (0,) * len(scale), None if whole else 0)
    return Tensor(name, values.shape, "int32", q, values.astype(np.int32))
