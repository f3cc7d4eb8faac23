"""Removal of redundant nodes: constant folding, dead code, equal nodes, nodes without effect; unique node names."""

import hashlib
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, rebuild, times_over, unused_name
from compiler.ir.identity import identity
from compiler.ir.ops import BINARY_OPS, OPS, QuantizedForm
from compiler.ir.tensor import Tensor
from compiler.layers.lowering_context import is_unary, table_of
from compiler.reference import Kernels, run_node


@identity("Removed", "node", "op", "reason", "channels", "removed")
@dataclass(frozen=True)
class Removed:
    """A node, or some channels of its result, that a compiled network does not compute.

    Parameters
    ----------
    node, op : str
        Name and operator of the node.
    reason : str
        Reason why the results do not need it.
    channels, removed : int or None
        Number of output channels in the model and of those that were removed; None if the whole node was removed.
    """

    node: str
    op: str
    reason: str
    channels: int | None = None
    removed: int | None = None

    def __str__(self) -> str:
        part = "" if self.channels is None else f"{self.removed} of {self.channels} channels of "
        return f"removed {part}{self.node} ({self.op}): {self.reason}"


def fold_constants(graph: Graph, rounding: Kernels = "reference") -> Graph:
    """Replace nodes with constant inputs by their results, except nodes that compute outputs of the model."""
    changed: dict[str, Tensor] = {}
    remaining = []
    for node in graph:
        inputs = [changed.get(name, graph.tensors[name]) for name in node.inputs]
        wanted = set(node.outputs) & set(graph.outputs)  # outputs of the model must be computed by nodes
        if node.bodies or not inputs or wanted or not all(tensor.constant for tensor in inputs):
            remaining.append(node)
            continue
        operands = [cast(NDArray, tensor.data) for tensor in inputs]
        results = run_node(graph, node, operands, rounding=rounding)
        for name, data in zip(node.outputs, results, strict=True):
            old = graph.tensors[name]
            changed[name] = Tensor(name, old.shape, old.dtype, old.quantization, data)
    return rebuild(graph, remaining, changed=changed) if changed else graph


def remove_dead(graph: Graph) -> Graph:
    """Remove nodes whose results are not used."""
    needed = set(graph.outputs)
    live = []
    for node in reversed(list(graph)):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            live.append(node)
    return graph if len(live) == len(graph.nodes) else rebuild(graph, reversed(live))


def merge_equal_nodes(graph: Graph, pinned: Collection[str] = ()) -> Graph:
    """Merge nodes that compute the same function of the same operands (common subexpressions).

    Nodes with subgraphs remain, as do operators that only the host supports, because some of these are random. The
    results of nodes that both compute outputs of the model, and `pinned` tensors, remain separate.
    """
    uses = _Uses(graph)
    first: dict[tuple[object, ...], Node] = {}
    seen: dict[tuple[object, ...], Node] = {}
    remaining: list[Node] = []
    for original in graph:
        node = uses.of(original)
        if node.bodies or node.op == "onnx" or len(node.outputs) != 1 or {*node.outputs} & {*pinned}:
            remaining.append(node)
            continue
        y, copies = graph.out(original), times_over(graph, original.outputs[0])
        varying = tuple(
            name if not graph.tensors[name].constant else graph.tensors[name].shape for name in node.inputs
        )
        key = (
            node.op,
            varying,
            repr(sorted(node.attributes.items())),
            y.shape,
            y.dtype,
            y.quantization,
            copies,
        )
        former = first.setdefault(key, node)
        equal = None
        if former is not node:  # constants are compared only now, since it takes long
            seen.setdefault((key, *_contents(graph, former)), former)
            equal = seen.setdefault((key, *_contents(graph, node)), node)
        if equal is None or equal is node or not uses.replace(original, y.name, equal.outputs[0]):
            remaining.append(node)
    return uses.rebuilt(remaining)


def _contents(graph: Graph, node: Node) -> tuple[object, ...]:
    """Return types and digests of the constant operands of a node."""
    constants = [tensor for tensor in graph.ins(node) if tensor.data is not None]
    return tuple(
        (tensor.dtype, tensor.quantization, hashlib.sha256(cast(NDArray, tensor.data).tobytes()).digest())
        for tensor in constants
    )


class _Uses:
    """Tensors of a graph that are replaced by others with the same contents.

    Parameters
    ----------
    graph : Graph
        Graph whose tensors are replaced.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self._instead: dict[str, str] = {}

    def _name(self, name: str) -> str:
        while name in self._instead:
            name = self._instead[name]
        return name

    def of(self, node: Node) -> Node:
        """Return a node with replaced operands and results."""
        if not self._instead:
            return node
        ins, outs = (tuple(self._name(name) for name in names) for names in (node.inputs, node.outputs))
        return node if (ins, outs) == (node.inputs, node.outputs) else replace(node, inputs=ins, outputs=outs)

    def replace(self, node: Node, result: str, source: str) -> bool:
        """Replace the result of a node, which is removed, by a tensor; return False if that is impossible.

        An output of the model keeps its name: the producer of the other tensor computes it instead.
        """
        graph, source = self.graph, self._name(source)
        if result in graph.outputs:
            producer = graph.producer(source)
            if source in graph.outputs or producer is None or producer.bodies:
                return False
            self._instead[source] = result
        else:
            self._instead[result] = source
        return True

    def rebuilt(self, nodes: Iterable[Node]) -> Graph:
        """Return the graph of the remaining nodes."""
        return rebuild(self.graph, [self.of(node) for node in nodes]) if self._instead else self.graph


def remove_no_ops(graph: Graph, rounding: Kernels = "reference", pinned: Collection[str] = ()) -> Graph:
    """Remove nodes whose result always equals an operand, such as products with 1 and sums with 0.

    Whether a function changes an integer is decided by evaluating it for all integers of 8 bits.

    Parameters
    ----------
    graph : Graph
        Graph from which nodes are removed.
    rounding : "reference", "xnnpack" or "onnxruntime"
        Rounding of quantized operators.
    pinned : collection of str
        Names of tensors that remain.
    """
    uses = _Uses(graph)
    remaining: list[Node] = []
    for node in graph:
        source = None if {*node.outputs, *node.inputs} & {*pinned} else _unchanged(graph, node, rounding)
        if source is None or not uses.replace(node, node.outputs[0], source):
            remaining.append(node)
    return uses.rebuilt(remaining)


def _unchanged(graph: Graph, node: Node, rounding: Kernels) -> str | None:
    """Return the name of the operand that the result of a node always equals; None if there is none."""
    if len(node.outputs) != 1 or node.bodies:
        return None
    ins, y = graph.ins(node), graph.out(node)
    varying = [each for each in ins if not each.constant]
    if len(varying) != 1:
        return None
    (x,) = varying
    if (x.shape, x.dtype, x.quantization) != (y.shape, y.dtype, y.quantization):
        return None
    same = _moves_nothing(node, x)
    if same is None:
        same = _computes_nothing(graph, node, rounding)
    return x.name if same else None


def _moves_nothing(node: Node, x: Tensor) -> bool | None:
    """Return whether a node that moves elements leaves all at their place; None for other operators."""
    a = node.attributes
    if node.op == "transpose":
        moved = [axis for axis in a["perm"] if x.shape[axis] > 1]
        return moved == sorted(moved)
    if node.op in ("max_pool2d", "avg_pool2d"):
        return (a["kernel"], a["strides"], a["pads"]) == ((1, 1), (1, 1), (0, 0, 0, 0))
    if node.op == "slice":
        return all(step == 1 for step in a["steps"])
    if node.op in ("reshape", "resize_nearest", "resize_bilinear", "pad", "reduce_max", "reduce_min"):
        return True  # the shapes are equal
    return len(node.inputs) == 1 if node.op == "concat" else None


#: Operators that FUSE computes in the same pass as a clip of their result.
_CLIPPED = frozenset(
    name
    for name, spec in OPS.items()
    if spec.quantized in (QuantizedForm.OWN, QuantizedForm.WEIGHTED, QuantizedForm.BLOCKS)
)


def _computes_nothing(graph: Graph, node: Node, rounding: Kernels) -> bool:
    """Return True if a function of 8-bit integers, possibly with constants, is the identity.

    A clip of the only result of a computing operator remains: it costs nothing there and names the layer's result.
    """
    if node.op == "clip":
        producer = graph.producer(node.inputs[0])
        if producer is not None and producer.op in _CLIPPED and len(graph.consumers(node.inputs[0])) == 1:
            return False
    scalars = {}
    for tensor in graph.ins(node):
        if tensor.data is not None and node.op in BINARY_OPS and tensor.elements > 1:
            if (tensor.data != tensor.data.flat[0]).any():
                return False
            scalar = np.array(tensor.data.flat[0])
            scalars[tensor.name] = Tensor(tensor.name, (), tensor.dtype, tensor.quantization, scalar)
    alone = Graph(graph.name)
    for name in dict.fromkeys((*node.inputs, *node.outputs)):
        tensor = scalars.get(name, graph.tensors[name])
        if tensor.constant or name in node.outputs:
            alone.add_tensor(tensor)
        else:
            alone.add_input(tensor)
    alone.add_node(node)
    if not is_unary(alone, node):
        return False
    every = np.arange(-128, 128) if graph.out(node).dtype == "int8" else np.arange(256)
    return bool((table_of(alone, node, rounding)[every & 255] == every).all())


def join_moves(graph: Graph, pinned: Collection[str] = ()) -> Graph:
    """Replace two consecutive transposes by one, two consecutive reshapes by one, and joined slices by a transpose.

    Pairs that cancel become nodes without effect. The first node of a pair has no other consumers, or the pair cancels.
    Two transposes between which a reshape merges dimensions become one before the reshape. A concatenation of all
    slices with the same step of a tensor (the "focus" of detection networks) becomes a reshape, a transpose and a
    reshape, and one of slices along the same dimension (a roll) becomes a gather: these read the tensor once.
    """
    graph = _with_joined_transposes(_without_joined_slices(graph, pinned), pinned)
    changed: dict[str, Node] = {}
    for node in graph:
        if node.op not in ("transpose", "reshape") or {*node.inputs, *node.outputs} & {*pinned}:
            continue
        before = graph.producer(node.inputs[0])
        if before is None or before.op != node.op or before.name in changed:
            continue
        x, middle, y = graph.ins(before)[0], graph.ins(node)[0], graph.out(node)
        if (x.dtype, x.quantization) != (middle.dtype, middle.quantization) or x.constant:
            continue
        attributes = node.attributes
        if node.op == "transpose":
            attributes = {"perm": tuple(before.attributes["perm"][axis] for axis in node.attributes["perm"])}
            cancels = attributes["perm"] == tuple(range(len(x.shape)))
        else:
            cancels = x.shape == y.shape
        if cancels or (len(graph.consumers(middle.name)) == 1 and middle.name not in graph.outputs):
            changed[node.name] = replace(node, inputs=before.inputs, attributes=attributes)
    if not changed:
        return graph
    return remove_dead(rebuild(graph, [changed.get(node.name, node) for node in graph]))


def _with_joined_transposes(graph: Graph, pinned: Collection[str]) -> Graph:
    """Move transposes before a reshape that merges dimensions, and join them with a transpose before it."""
    made: dict[str, Tensor] = {}
    instead: dict[str, list[Node]] = {}
    for node in graph:
        between = graph.producer(node.inputs[0]) if node.op == "transpose" else None
        first = None if between is None or between.op != "reshape" else graph.producer(between.inputs[0])
        if between is None or first is None or first.op != "transpose":
            continue
        (x,), (apart,), (merged,) = (graph.ins(each) for each in (first, between, node))
        alike = {(each.dtype, each.quantization) for each in (x, apart, merged, graph.out(node))}
        groups = _merged(apart.shape, merged.shape)
        inner = all(len(graph.consumers(each.name)) == 1 for each in (apart, merged))
        names = {apart.name, merged.name}
        if len(alike) > 1 or groups is None or not inner or names & {*graph.outputs, *pinned}:
            continue
        if {x.name, *node.outputs} & {*pinned} or x.constant:
            continue
        perm = tuple(first.attributes["perm"][i] for axis in node.attributes["perm"] for i in groups[axis])
        name = unused_name(f"{node.name}:moved", graph.tensors, graph.nodes, made)
        made[name] = replace(x, name=name, shape=tuple(x.shape[i] for i in perm))
        instead[node.name] = [
            replace(first, name=name, outputs=(name,), attributes={"perm": perm}),
            replace(node, op="reshape", inputs=(name,), attributes={"shape": graph.out(node).shape}),
        ]
    if not made:
        return graph
    return remove_dead(
        rebuild(graph, [new for node in graph for new in instead.get(node.name, [node])], changed=made)
    )


def _merged(apart: tuple[int, ...], merged: tuple[int, ...]) -> list[list[int]] | None:
    """Return the adjacent dimensions that a reshape merges to each dimension of its result; None if it splits any."""
    groups: list[list[int]] = []
    rest = list(range(len(apart)))
    for size in merged:
        groups.append([])
        while math.prod(apart[i] for i in groups[-1]) < size and rest:
            groups[-1].append(rest.pop(0))
        if math.prod(apart[i] for i in groups[-1]) != size:
            return None
    if any(apart[i] != 1 for i in rest) or not groups:
        return None
    groups[-1] += rest
    return groups


def _without_joined_slices(graph: Graph, pinned: Collection[str]) -> Graph:
    made: dict[str, Tensor] = {}
    instead: dict[str, list[Node]] = {}
    for node in graph:
        found = None
        if node.op == "concat" and not {*node.inputs, *node.outputs} & {*pinned}:
            found = _joined_slices(graph, node)
            if found is None and (gathered := _gathered(graph, node)) is not None:
                x, order = gathered
                name = unused_name(f"{node.name}:order", graph.tensors, made)
                made[name] = Tensor(name, order.shape, "int32", None, order)
                axis = node.attributes["axis"] % len(x.shape)
                instead[node.name] = [
                    replace(node, op="gather", inputs=(x.name, name), attributes={"axis": axis})
                ]
        if found is None:
            continue
        x, steps, order = found
        axis, rank = node.attributes["axis"] % len(x.shape), len(x.shape)
        # Dimension 2 * i contains the elements that are `steps[i]` apart, dimension 2 * i + 1 those between them.
        split = tuple(
            each for size, step in zip(x.shape, steps, strict=True) for each in (size // step, step)
        )
        perm = [2 * i for i in range(rank)]
        perm[axis:axis] = [2 * i + 1 for i in order]
        kept = [i for i in range(2 * rank) if i in perm]
        perm = [kept.index(i) for i in perm]
        split = tuple(split[i] for i in kept)
        shapes = {"apart": split, "moved": tuple(split[i] for i in perm)}
        apart, moved = (
            replace(x, name=unused_name(f"{node.name}:{name}", graph.tensors, made), shape=shape)
            for name, shape in shapes.items()
        )
        made |= {apart.name: apart, moved.name: moved}
        y = graph.out(node)
        instead[node.name] = [
            Node(f"{node.name}:apart", "reshape", (x.name,), (apart.name,), {"shape": split}),
            Node(f"{node.name}:moved", "transpose", (apart.name,), (moved.name,), {"perm": tuple(perm)}),
            replace(node, op="reshape", inputs=(moved.name,), attributes={"shape": y.shape}),
        ]
    if not made:
        return graph
    nodes = [new for node in graph for new in instead.get(node.name, [node])]
    return remove_dead(rebuild(graph, nodes, changed=made))


def _joined_slices(graph: Graph, node: Node) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]] | None:
    """Return the tensor whose slices a concatenation joins, their steps, and the axes along which they were sliced.

    The axes are in the order of the slices: the first of a slice changes least along the last axis. None, unless the
    slices contain each element of the tensor once.
    """
    y, parts = graph.out(node), [_sliced(graph, name) for name in node.inputs]
    x, steps = parts[0][0], parts[0][2]
    rank, axis = len(x.shape), node.attributes["axis"]
    alike = all(each[0] is x and each[2] == steps for each in parts)
    if not alike or max(steps, default=1) == 1 or min(steps) < 1 or not -rank <= axis < rank:
        return None
    axis %= rank
    same = (x.dtype, x.quantization) == (y.dtype, y.quantization) and not x.constant
    if not same or (x.quantization is not None and x.quantization.axis is not None):
        return None
    whole = tuple(size // step for size, step in zip(x.shape, steps, strict=True))
    if steps[axis] != 1 or any(size % step for size, step in zip(x.shape, steps, strict=True)):
        return None
    if any(graph.tensors[name].shape != whole for name in node.inputs):
        return None
    starts, sliced = [each[1] for each in parts], [i for i in range(rank) if steps[i] > 1]
    for order in permutations(sliced):
        grid = product(*(range(steps[i]) for i in order))
        wanted = [tuple(dict(zip(order, at, strict=True)).get(i, 0) for i in range(rank)) for at in grid]
        if wanted == starts:
            return x, steps, order
    return None


def _gathered(graph: Graph, node: Node) -> tuple[Tensor, NDArray[np.int32]] | None:
    """Return the tensor whose slices a concatenation joins in another order along one axis, and the indices on it.

    None for the last axis: channels are followed through slices and concatenations.
    """
    y, rank = graph.out(node), len(graph.out(node).shape)
    if not -rank <= node.attributes["axis"] < rank or node.attributes["axis"] % rank == rank - 1:
        return None
    axis, order, x = node.attributes["axis"] % rank, list[int](), _sliced(graph, node.inputs[0])[0]
    if (x.dtype, x.quantization) != (y.dtype, y.quantization) or x.constant or len(x.shape) != rank:
        return None
    for name in node.inputs:
        source, start, step = _sliced(graph, name)
        shape = graph.tensors[name].shape
        others = [i for i in range(rank) if i != axis]
        whole = all((start[i], step[i], shape[i]) == (0, 1, x.shape[i]) for i in others)
        if source is not x or not whole or name in graph.outputs or len(graph.consumers(name)) > 1:
            return None
        order += [start[axis] + number * step[axis] for number in range(shape[axis])]
    if order == list(range(x.shape[axis])) or not all(0 <= index < x.shape[axis] for index in order):
        return None
    return x, np.array(order, np.int32)


def _sliced(graph: Graph, name: str) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """Return the tensor of which a tensor is a slice, possibly of a slice, with start and step along each axis."""
    x = graph.tensors[name]
    start, step = (0,) * len(x.shape), (1,) * len(x.shape)
    producer = graph.producer(name)
    while producer is not None and producer.op == "slice":
        a, before = producer.attributes, graph.ins(producer)[0]
        if (before.dtype, before.quantization) != (x.dtype, x.quantization):
            break
        if any(len(a[key]) != len(before.shape) for key in ("starts", "sizes", "steps")):
            break
        start = tuple(s + i * t for s, i, t in zip(a["starts"], start, a["steps"], strict=True))
        step = tuple(i * t for i, t in zip(step, a["steps"], strict=True))
        x, producer = before, graph.producer(before.name)
    return x, start, step


def name_apart(graph: Graph) -> Graph:
    """Rename nodes in subgraphs if their names occur elsewhere in the model."""
    return _renamed(graph, set(graph.nodes), set(), "") if any(node.bodies for node in graph) else graph


def _renamed(graph: Graph, outer: set[str], used: set[str], prefix: str) -> Graph:
    nodes: list[Node] = []
    origins = dict(graph.origins)
    for node in graph:
        name, number = node.name, 1
        while prefix and (name in outer or name in used):
            name = f"{prefix}{node.name}" + (f".{number}" if number > 1 else "")
            number += 1
        used.add(name)
        bodies = tuple(_renamed(body, outer, used, f"{name}/") for body in node.bodies)
        if node.name in graph.origins:
            origins[name] = graph.origins[node.name]
        nodes.append(replace(node, name=name, bodies=bodies))
    made = rebuild(graph, nodes)
    made.origins = origins
    return made
