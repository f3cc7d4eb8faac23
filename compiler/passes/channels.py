"""Removal of channels that are constant or that no operator reads, and orders of channels that make shuffles vanish.

The channels of a tensor are the indices of its last axis. A filter of zeros makes a channel constant: its values, which
the reference implementation computes, do not depend on the input. Constants are followed through the operators that
keep channels apart. A convolution or dense layer does not need to read a channel whose weights are all zero, or a
constant channel whose contribution to the sums is the same at every position: that contribution is added to the bias.
A channel is removed if no operator needs it, in all tensors that are connected by operators that keep channels apart,
such as the operands and the result of an addition. All results remain exactly the same.

`absorb_shuffles` stores channels in another order than the model states, so that the products that read them, whose
weights are reordered likewise, need no shuffles.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.ops import BINARY_OPS, TABLE_OPS
from compiler.ir.tensor import Quantization, Tensor
from compiler.passes.kernel_sizes import Rewritten
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


def _quantized(tensor: Tensor) -> bool:
    return tensor.quantization is not None and tensor.quantization.whole


def _last(tensor: Tensor) -> int:
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
        and _quantized(x)
        and weights.quantization is not None
        and weights.quantization.axis in (None, 0)
        and (_quantized(y) or (y.quantization is None and y.dtype == "int32"))
        and (_last(weights), weights.shape[0]) == (_last(x), _last(y))
        and all(each.shape in ((), (1,), (_last(y),)) for each in bias)
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
            and all(_quantized(tensor) for tensor in (x, y))
            and weights.quantization is not None
            and weights.quantization.axis in (None, 2)
            and _last(weights) == _last(x) == _last(y)
            and all(each.shape in ((), (1,), (_last(y),)) for each in bias)
        )
    if not all(_quantized(tensor) for tensor in (*ins, y)):
        return False
    x, rank = ins[0], len(ins[0].shape)
    if node.op in BINARY_OPS or node.op == "prelu":
        return all(_last(tensor) in (1, _last(y)) for tensor in ins)
    if not rank or _last(x) != _last(y) or x.constant:
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
    if node.op != "concat" or not all(_quantized(each) for each in (*graph.ins(node), graph.out(node))):
        return False
    rank = len(graph.out(node).shape)
    return node.attributes["axis"] % rank == rank - 1 and not any(each.constant for each in graph.ins(node))


def _is_part(graph: Graph, node: Node) -> bool:
    """Return True for a slice of adjacent channels."""
    if node.op != "slice" or not all(_quantized(each) for each in (*graph.ins(node), graph.out(node))):
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
    return not x.shape or (a["starts"][-1] >= 0 and _range(node).stop <= _last(x))


def _is_folded(graph: Graph, node: Node) -> bool:
    """Return True for a reshape whose result has a multiple, or a fraction, of the operand's channels."""
    if node.op != "reshape" or not all(_quantized(each) for each in (*graph.ins(node), graph.out(node))):
        return False
    x, y = graph.ins(node)[0], graph.out(node)
    if x.constant or not x.shape or not y.shape:
        return False
    return _last(y) % _last(x) == 0 or _last(x) % _last(y) == 0


def _offsets(graph: Graph, node: Node) -> list[tuple[str, slice]]:
    """Return the operands of a concatenation of channels, with their positions in the result."""
    found, start = [], 0
    for tensor in graph.ins(node):
        found.append((tensor.name, slice(start, start + _last(tensor))))
        start += _last(tensor)
    return found


def _range(node: Node) -> slice:
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
        for kind, test in _KINDS.items():
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
        return np.full(_last(tensor), tensor.constant)

    def constant(self, name: str, called: str) -> Tensor | None:
        """Return a tensor as a constant number, or one for each channel; None if it is not constant in this sense."""
        tensor = self.graph.tensors[name]
        if not self.mask(name).all() or not tensor.shape:
            return None
        rows = self.known[name][1].reshape(-1, _last(tensor))
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
                zero = ~_centred(graph.ins(node)[1], 2).reshape(-1, _last(y)).any(0)
                return zero | self.mask(node.inputs[0])
            masks = [np.broadcast_to(self.mask(name), (_last(y),)) for name in node.inputs]
            return np.logical_and.reduce(masks) & (
                not all(graph.tensors[name].constant for name in node.inputs)
            )
        if kind == "joined":
            return np.concatenate([self.mask(name) for name in node.inputs])
        if kind == "part":
            return self.mask(node.inputs[0])[_range(node)]
        mask = self.mask(node.inputs[0])
        times, parts = divmod(_last(y), len(mask))
        return np.tile(mask, times) if not parts else np.asarray(mask.reshape(-1, _last(y)).all(0))

    def _values(self, node: Node, kind: str, mask: Mask) -> NDArray:
        """Return the values of the constant channels of a node's result."""
        kept = {node.outputs[0]: np.flatnonzero(mask)}
        for name in dict.fromkeys(node.inputs):
            tensor = self.graph.tensors[name]
            if not tensor.constant:
                kept[name] = self._operands(node, kind, mask, name)
        narrow, tensors = _narrowed(self.graph, node, kind, kept, {})
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
            within[_range(node)] = True
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
        if any(node.attributes.get("pads", ())) or np.dtype(x.dtype).itemsize > 1 or not _quantized(y):
            fits &= centred == 0
        indices = np.flatnonzero(mask)
        sums = _centred(weights, 0).reshape(_last(y), -1, _last(x)).sum(1)
        added = np.zeros((_last(y), _last(x)), np.int64)
        added[:, indices] = sums[:, indices] * np.where(fits, centred, 0)
        start = np.abs(bias[0].data.astype(np.int64)) if bias and bias[0].data is not None else 0
        if (start + np.abs(added).sum(1) > _INT32.max).any():
            return
        self.foldable[node.name] = np.zeros(_last(x), bool)
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
                    found = self.constant(name, f"{node.name}:{name}") if name in self.known else None
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
        self.needed = {name: np.zeros(_last(graph.tensors[name]), bool) for name in (*graph.inputs, *made)}
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
            for name, at in _offsets(self.graph, node):
                changed |= self._join(name, everything, marks[at]) | self._join(y, at, self.needed[name])
        elif kind == "part":
            at, x = _range(node), names[0]
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
                node, tensors = _narrowed(graph, node, kind, kept, added)
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


_KINDS: dict[str, Callable[[Graph, Node], bool]] = {
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


def _narrowed(
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
        Key of `_KINDS` whose test holds for the node.
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
        inputs[number] = ins[number].name if single else f"{node.name}:{ins[number].name}"
        tensors[inputs[number]] = replace(tensor, name=inputs[number])

    if kind == "product":
        x, weights, *bias = ins
        thin = _taken(weights, weights.name, len(weights.shape) - 1, kept[x.name])
        constant(1, _taken(thin, weights.name, 0, mine))
        if bias or node.name in added:
            extra = added[node.name][mine] if node.name in added else np.zeros(len(mine), np.int64)
            if not bias and extra.any():
                inputs.append(f"{node.name}:bias")
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
                wide = bool(each.shape) and _last(each) == _last(y)
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


# Orders of channels


@dataclass(frozen=True)
class _Shuffle:
    """Consecutive moves that permute the channels of every pixel alike: channel i of y is channel `perm[i]` of x."""

    nodes: tuple[Node, ...]
    x: str
    y: str
    perm: Indices


#: Operators of a shuffle, and maximum number of nodes that form one.
_SHUFFLING, _MAX_SHUFFLE = ("reshape", "transpose", "gather"), 4


def _shuffles(graph: Graph, pinned: Collection[str]) -> dict[str, _Shuffle]:
    """Return the shuffles of channels in a graph, by name of their first node."""
    found: dict[str, _Shuffle] = {}
    seen: set[str] = set()
    for node in graph:
        if node.name in seen or node.op not in _SHUFFLING:
            continue
        chain = [node]
        while (made := _shuffle_of(graph, chain)) is None and len(chain) < _MAX_SHUFFLE:
            y = graph.out(chain[-1]).name
            after = graph.consumers(y)
            if len(after) != 1 or after[0].op not in _SHUFFLING or y in graph.outputs or y in pinned:
                break
            chain.append(after[0])
        if made is not None and not {made.x, made.y} & {*graph.outputs, *pinned}:
            found[node.name] = made
            seen |= {each.name for each in chain}
    return found


def _shuffle_of(graph: Graph, chain: Sequence[Node]) -> _Shuffle | None:
    """Return the shuffle that consecutive nodes form together; None if they do not."""
    x, y = graph.ins(chain[0])[0], graph.out(chain[-1])
    if x.constant or x.shape != y.shape or not x.shape or not _same_integers(x, y):
        return None
    if len(chain) == 1 and chain[0].op != "gather":
        return None
    moved = np.arange(x.elements).reshape(x.shape)
    for node in chain:
        if node.op == "gather":
            indices = graph.ins(node)[1]
            if indices.data is None or indices.data.ndim != 1:
                return None
            moved = np.take(moved, indices.data, node.attributes["axis"])
        else:
            moved = (
                moved.transpose(node.attributes["perm"])
                if node.op == "transpose"
                else moved.reshape(graph.out(node).shape)
            )
    rows = moved.reshape(-1, _last(x)) - np.arange(0, x.elements, _last(x))[:, None]
    perm = rows[0]
    if (rows != perm).any() or not np.array_equal(np.sort(perm), np.arange(_last(x))):
        return None
    return _Shuffle(tuple(chain), x.name, y.name, perm)


def _same_integers(x: Tensor, y: Tensor) -> bool:
    return _quantized(x) and (x.dtype, x.quantization) == (y.dtype, y.quantization)


def _inverse(order: Indices) -> Indices:
    return np.argsort(order).astype(np.intp)


#: Adjacent channels of a tensor: its name, the first one in the order in which they are stored, and their number.
_Run = tuple[str, int, int]
#: Bytes that a unit moves at a time, and cycles by which the moves that replace a shuffle of a pixel may exceed those
#: of the shuffle, which transposes all bytes twice.
_ROW, _MORE = 16, 4
#: Destination of channels that no node reads.
_NEVER = 1 << 30


def absorb_shuffles(graph: Graph, pinned: Collection[str] = ()) -> tuple[Graph, tuple[Rewritten, ...]]:
    """Make shuffles of channels vanish: store the channels of tensors in orders that need few moves.

    A product reads and writes channels in any order if its weights have the same order, as do operators that keep
    channels apart. Each tensor between these gets an order: products write the channels that the next node reads beside
    each other, and concatenations put them where the next slice finds them, so that slices and concatenations need no
    copies, or copies of many adjacent channels. A shuffle only renames the channels of its operand. Shuffles remain
    where the inputs and outputs of the model, or operators that mix channels, would require single channels to be
    copied.
    """
    shuffles = _shuffles(graph, pinned)
    while shuffles:
        orders = _Orders(graph, shuffles, pinned)
        refused = orders.refused()
        if refused is None:
            break
        if not refused:
            made = orders.rebuilt()
            changes = [
                Rewritten(each.nodes[-1].name, each.nodes[-1].op, "absorb_shuffles", _CHANGE)
                for each in shuffles.values()
            ]
            return made, tuple(changes)
        shuffles = {first: each for first, each in shuffles.items() if first not in refused}
    return graph, ()


_CHANGE = "the channels are stored in the order of the shuffle, to which weights are adapted"


class _Orders:
    """Orders in which the channels of tensors are stored.

    Parameters
    ----------
    graph : Graph
        Graph with shuffles.
    shuffles : dict
        Shuffles that are to vanish, by name of their first node.
    pinned : collection of str
        Names of tensors that keep their order.

    Attributes
    ----------
    order : dict
        For each tensor, the channel that is stored at each position.
    """

    def __init__(self, graph: Graph, shuffles: dict[str, _Shuffle], pinned: Collection[str]):
        self.graph, self.shuffles = graph, shuffles
        inner = {node.name for each in shuffles.values() for node in each.nodes}
        self.kinds = {node.name: "shuffled" if node.name in inner else self._kind(node) for node in graph}
        self.shuffled = {each.y: first for first, each in shuffles.items()}
        self.leader: dict[str, str] = {}
        self.fixed: set[str] = set()
        self._unite(pinned)
        self.reader = self._readers()
        self.order: dict[str, Indices] = {}
        self._by_leader: dict[str, Indices] = {}
        for name in graph.inputs:
            self._set(name, None)
        for node in graph:
            for name in node.outputs:
                self._set(name, node)

    def _kind(self, node: Node) -> str:
        for kind in ("product", "aligned", "joined", "part"):
            if _KINDS[kind](self.graph, node):
                same = kind != "part" or _same_integers(self.graph.ins(node)[0], self.graph.out(node))
                return kind if same else ""
        return "output" if self._leaves(node) else ""

    def _leaves(self, node: Node) -> bool:
        """Return True for a conversion of a tensor to real numbers that are moved only by the host before they leave.

        The host then moves channels as well.
        """
        graph = self.graph
        if node.op != "dequantize" or not _quantized(graph.ins(node)[0]) or graph.ins(node)[0].constant:
            return False
        names = [node.outputs[0]]
        for name in names:
            after = graph.consumers(name)
            if any(each.op not in ("transpose", "reshape") for each in after):
                return False
            names += [each.outputs[0] for each in after]
        return all(name in graph.outputs or graph.consumers(name) for name in names)

    # Tensors whose channels have the same order

    def _find(self, name: str) -> str:
        while name in self.leader:
            name = self.leader[name]
        return name

    def _unite(self, pinned: Collection[str]) -> None:
        graph = self.graph
        fixed = {*pinned, *graph.inputs, *graph.outputs}
        for node in graph:
            kind, (y, *_) = self.kinds[node.name], node.outputs
            if kind == "aligned":
                for tensor in graph.ins(node):
                    if not tensor.constant and tensor.shape and _last(tensor) == _last(graph.tensors[y]):
                        a, b = self._find(tensor.name), self._find(y)
                        if a != b:
                            self.leader[a] = b
            elif not kind:
                fixed |= {*node.inputs, *node.outputs}
        self.fixed = {self._find(name) for name in fixed}

    # Which node reads channels first

    def _readers(self) -> dict[str, Indices]:
        """Return the number of the first node other than a move that reads each channel of each tensor."""
        graph = self.graph
        names = [*graph.inputs, *(name for node in graph for name in node.outputs)]
        first = {name: np.full(_last(graph.tensors[name]), _NEVER, np.intp) for name in names}
        numbers = {node.name: number for number, node in enumerate(graph)}
        for node in reversed(list(graph)):
            kind, y = self.kinds[node.name], node.outputs[0]
            if kind == "shuffled":
                if node.name in self.shuffles:
                    each = self.shuffles[node.name]
                    np.minimum.at(first[each.x], each.perm, first[each.y])
            elif kind == "part":
                mine = first[node.inputs[0]][_range(node)]
                np.minimum(mine, first[y], out=mine)
            elif kind == "joined":
                for name, at in _offsets(graph, node):
                    np.minimum(first[name], first[y][at], out=first[name])
            else:
                through = first[y] if kind == "aligned" else None
                for name in node.inputs:
                    if name in first:
                        same = through is not None and len(through) == len(first[name])
                        found = through if same and through is not None else numbers[node.name]
                        np.minimum(first[name], found, out=first[name])
        return first

    # Orders

    def _set(self, name: str, node: Node | None) -> None:
        """Choose the order of a tensor, unless a tensor whose channels have the same order has one."""
        leader, count = self._find(name), _last(self.graph.tensors[name])
        if leader not in self._by_leader:
            order = np.arange(count)
            if node is not None and leader not in self.fixed:
                order = self._chosen(name, node)
            self._by_leader[leader] = order
        self.order[name] = self._by_leader[leader]

    def _chosen(self, name: str, node: Node) -> Indices:
        kind, graph = self.kinds[node.name], self.graph
        if kind == "shuffled" and name in self.shuffled:
            each = self.shuffles[self.shuffled[name]]
            return _inverse(each.perm)[self.order[each.x]]
        if kind == "part":
            at, stored = _range(node), self.order[node.inputs[0]]
            return stored[(stored >= at.start) & (stored < at.stop)] - at.start
        if kind == "joined":
            return self._arranged(node)
        if kind == "product":
            first = self.reader[name]
            return np.argsort(-first if self._comes_first(name) else first, kind="stable").astype(np.intp)
        return np.arange(_last(graph.tensors[name]))

    def _comes_first(self, name: str) -> bool:
        """Return True if a concatenation joins a tensor with others after it, but with none before it."""
        while True:
            after = self.graph.consumers(name)
            if len(after) != 1:
                return False
            kind = self.kinds[after[0].name]
            if kind == "joined":
                return after[0].inputs[0] == name and len(after[0].inputs) > 1
            if kind != "aligned":
                return False
            name = after[0].outputs[0]

    def _arranged(self, node: Node) -> Indices:
        """Return an order of a concatenation in which the channels of a slice that is read are adjacent.

        The last operand keeps its order if its first channels are those of the slice.
        """
        parts = [at.start + self.order[name] for name, at in _offsets(self.graph, node)]
        whole = np.concatenate(parts)
        groups = self._read_parts(node.outputs[0])
        if not groups:
            return whole
        label = np.zeros(len(whole), np.intp)
        for number, channels in enumerate(groups, 1):
            label[channels] = number
        if len(groups) == 1 and len(parts) == 2:
            before, after = parts
            kept = np.argsort(label[before], kind="stable"), np.argsort(-label[after], kind="stable")
            return np.concatenate([before[kept[0]], after[kept[1]]])
        return whole[np.argsort(label[whole], kind="stable")]

    def _read_parts(self, name: str) -> list[Indices]:
        """Return the channels of a tensor that slices, possibly after shuffles, give to other nodes than moves."""
        found: list[Indices] = []
        names = [(name, np.arange(_last(self.graph.tensors[name])))]
        for each, channels in names:  # `channels` are those of `name` in the order of `each`
            for node in self.graph.consumers(each):
                if self.kinds[node.name] == "part" and self._read(node.outputs[0]):
                    found.append(channels[_range(node)])
                elif node.name in self.shuffles:
                    shuffle = self.shuffles[node.name]
                    names.append((shuffle.y, channels[shuffle.perm]))
        return found

    def _read(self, name: str) -> bool:
        """Return True if another node than a move reads a tensor."""
        moves = ("part", "joined", "shuffled")
        return any(self.kinds[node.name] not in moves for node in self.graph.consumers(name))

    # Moves

    def _places(self, name: str) -> list[tuple[str, int]]:
        """Return the tensor that contains each channel of a tensor, in the order of `name`, and its place there."""
        node, stored = self.graph.producer(name), self.order[name]
        kind = "" if node is None else self.kinds[node.name]
        if node is not None and kind == "part":
            x, channels = node.inputs[0], stored + _range(node).start
        elif name in self.shuffled:
            each = self.shuffles[self.shuffled[name]]
            x, channels = each.x, each.perm[stored]
        else:
            return [(name, place) for place in range(len(stored))]
        inside = self._places(x)
        return [inside[place] for place in _inverse(self.order[x])[channels]]

    def _sources(self, name: str) -> list[_Run]:
        """Return the runs of channels of which a tensor that a move computes consists."""
        node = self.graph.producer(name)
        if node is None or self.kinds[node.name] != "joined":
            return _runs(self._places(name))
        places = [place for operand in node.inputs for place in self._places_in(operand)]
        return _runs([places[channel] for channel in self.order[name]])

    def _places_in(self, operand: str) -> list[tuple[str, int]]:
        """Return the places of the channels of a tensor in the order of the model."""
        inside = self._places(operand)
        return [inside[place] for place in _inverse(self.order[operand])]

    def _moved(self) -> Iterator[str]:
        """Yield the tensors that moves of the new graph compute."""
        for node in self.graph:
            kind, y = self.kinds[node.name], node.outputs[0]
            if kind == "joined" or (
                (kind == "part" or y in self.shuffled) and (self._read(y) or y in self.graph.outputs)
            ):
                yield y

    def refused(self) -> set[str] | None:
        """Return the first nodes of shuffles that must remain; None if no shuffle is the reason for short runs."""
        out: set[str] = set()
        for name in self._moved():
            runs = self._sources(name)
            total = sum(math.ceil(count / _ROW) for _, _, count in runs)
            if total > 2 * math.ceil(_last(self.graph.tensors[name]) / _ROW) + _MORE:
                responsible = self._shuffles_before(name)
                if not responsible:
                    return None
                out |= responsible
        return out

    def _shuffles_before(self, name: str) -> set[str]:
        """Return the first nodes of the shuffles between a tensor and the tensors that contain its channels."""
        node = self.graph.producer(name)
        found: set[str] = set()
        names = list(node.inputs) if node is not None and self.kinds[node.name] == "joined" else [name]
        for each in names:
            node = self.graph.producer(each)
            if each in self.shuffled:
                found.add(self.shuffled[each])
                names.append(self.shuffles[self.shuffled[each]].x)
            elif node is not None and self.kinds[node.name] == "part":
                names.append(node.inputs[0])
        return found

    # The new graph

    def rebuilt(self) -> Graph:
        """Return the graph with all tensors in their orders."""
        graph = self.graph
        changed: dict[str, Tensor] = {}
        renamed: dict[str, str] = {}
        moved = set(self._moved())
        parts: dict[str, list[Node]] = {}  # moves of channels that precede a node
        made: dict[str, list[Node]] = {}
        for node in graph:
            kind, y = self.kinds[node.name], node.outputs[0]
            if kind in ("part", "joined") or y in self.shuffled:
                mine = self._move(node, renamed, changed) if y in moved else []
                before = self._before(node, mine[:-1])
                parts.setdefault(before, []).extend(mine[:-1])
                made[node.name] = mine[-1:]
            elif kind == "output":
                made[node.name] = self._output(node, changed)
            elif kind in ("product", "aligned"):
                new, tensors = _narrowed(graph, node, kind, self.order, {})
                changed |= tensors
                made[node.name] = [new]
            elif kind != "shuffled":
                made[node.name] = [node]
        nodes = [new for node in graph for new in (*parts.get(node.name, ()), *made.get(node.name, ()))]

        def present(name: str) -> str:
            while name in renamed:
                name = renamed[name]
            return name

        nodes = [replace(node, inputs=tuple(present(name) for name in node.inputs)) for node in nodes]
        return remove_dead(rebuild(graph, nodes, changed=changed))

    def _before(self, node: Node, copies: Sequence[Node]) -> str:
        """Return the node before which the channels for a move are copied: itself, or the product that it joins.

        While MATRIX computes that product, FUSE copies the others; it would compete with MATRIX for the tensor that
        contains them before.
        """
        numbers = {each.name: number for number, each in enumerate(self.graph)}
        sources = [self.graph.producer(name) for each in copies for name in each.inputs]
        last, place = max((numbers[each.name] for each in sources if each is not None), default=-1), node.name
        for name in node.inputs if self.kinds[node.name] == "joined" else ():
            producer = self.graph.producer(name)
            while producer is not None and self.kinds[producer.name] == "aligned":
                producer = self.graph.producer(producer.inputs[0])
            if (
                producer is not None
                and self.kinds[producer.name] == "product"
                and numbers[producer.name] > last
            ):
                last, place = numbers[producer.name], producer.name
        return place

    def _move(self, node: Node, renamed: dict[str, str], changed: dict[str, Tensor]) -> list[Node]:
        """Return the nodes that compute the result of a move from runs of channels; none if it exists already."""
        graph, y = self.graph, self.graph.out(node)
        nodes: list[Node] = []
        operands: list[str] = []

        def joined(names: Sequence[str], name: str) -> Node:
            return Node(name, "concat", tuple(names), (name,), {"axis": len(y.shape) - 1})

        for source, part in groupby(self._sources(y.name), key=lambda run: run[0]):
            x = graph.tensors[source]
            pieces: list[str] = []
            for _, start, count in part:
                if count == _last(x):
                    pieces.append(source)
                    continue
                pieces.append(f"{node.name}:part{len(nodes)}")
                changed[pieces[-1]] = replace(x, name=pieces[-1], shape=(*x.shape[:-1], count))
                attributes: dict[str, Any] = {
                    "starts": (*[0] * (len(x.shape) - 1), start),
                    "sizes": changed[pieces[-1]].shape,
                    "steps": (1,) * len(x.shape),
                }
                nodes.append(Node(pieces[-1], "slice", (source,), (pieces[-1],), attributes))
            if len(pieces) > 1:
                name = f"{node.name}:part{len(nodes)}"
                count = sum(_last(changed.get(piece, x)) for piece in pieces)
                changed[name] = replace(x, name=name, shape=(*x.shape[:-1], count))
                nodes.append(joined(pieces, name))
                pieces = [name]
            operands += pieces
        only = changed.get(operands[0]) or graph.tensors[operands[0]]
        if len(operands) == 1 and y.name not in graph.outputs and _same_integers(only, y):
            renamed[y.name] = operands[0]
            return nodes
        return [*nodes, replace(joined(operands, node.name), outputs=node.outputs)]

    def _output(self, node: Node, changed: dict[str, Tensor]) -> list[Node]:
        """Return the nodes that convert a tensor to real numbers, and move their channels to the order of the model."""
        x, y = node.inputs[0], self.graph.out(node)
        order = self.order[x]
        if np.array_equal(order, np.arange(len(order))):
            return [node]
        name, indices = f"{y.name}:stored", f"{y.name}:channels"
        changed[name] = replace(y, name=name)
        changed[indices] = Tensor(indices, order.shape, "int64", None, _inverse(order).astype(np.int64))
        gather = Node(
            f"{node.name}:channels", "gather", (name, indices), node.outputs, {"axis": len(y.shape) - 1}
        )
        return [replace(node, outputs=(name,)), gather]


def _runs(places: Sequence[tuple[str, int]]) -> list[_Run]:
    """Return runs of adjacent channels."""
    out: list[_Run] = []
    for name, place in places:
        if out and out[-1][0] == name and out[-1][1] + out[-1][2] == place:
            out[-1] = (name, out[-1][1], out[-1][2] + 1)
        else:
            out.append((name, place, 1))
    return out
