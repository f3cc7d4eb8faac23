"""Canonicalization passes: fold pads, transpose axes to the end, materialize broadcasts, split weights, booleans.

`canonicalize_logic`, `pad_averages` and `separate_resizes` run after quantization, all others before it.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, rebuild, unused_name
from compiler.ir.ops import BINARY_OPS, COMPARISONS, LOGIC_OPS, OPS, ORDERING, Attributes
from compiler.ir.tensor import Quantization, Tensor
from compiler.layers.elementwise import operands_of
from compiler.layers.elementwise_ops import MAX_POSITIONS, MAX_SELECTED
from compiler.layers.lowering_context import EIGHT_BITS, affine, is_unary, same_quantization
from compiler.layers.move import MAX_COPIES, nearest_stretches
from compiler.layers.softmax_across import across_columns
from compiler.passes.redundant_nodes import remove_dead
from compiler.reference import run_node
from hw.config import MlaConfig


def fold_pads(graph: Graph) -> Graph:
    """Fold pad nodes into the convolutions and maximum pools that read them, if the result remains exactly the same.

    Convolutions pad with zero, which is their input's zero point; maximum pools ignore padding.
    """
    folded = {graph.out(node).name: node for node in graph if node.op == "pad" and _foldable(graph, node)}
    if not folded:
        return graph
    remaining = (node for node in graph if node.outputs[0] not in folded)
    padded = {name: folded[node.inputs[0]] for name, node in graph.nodes.items() if node.inputs[0] in folded}
    return rebuild(graph, [_padded(n, padded[n.name]) if n.name in padded else n for n in remaining])


def _foldable(graph: Graph, pad: Node) -> bool:
    (x,), y, pads = graph.ins(pad), graph.out(pad), pad.attributes["pads"]
    if len(pads) != 4 or len(x.shape) != 4 or any((*pads[0], *pads[3])) or y.name in graph.outputs:
        return False
    readers = graph.consumers(y.name)
    return (
        bool(readers)
        and (x.dtype, x.quantization) == (y.dtype, y.quantization)
        and y.shape == tuple(size + sum(pair) for size, pair in zip(x.shape, pads, strict=True))
        and all(_absorbs(reader, pad, x) and reader.inputs.count(y.name) == 1 for reader in readers)
    )


def _absorbs(reader: Node, pad: Node, x: Tensor) -> bool:
    """Return True if a reader can absorb the padding; every window of a maximum pool must overlap the input."""
    if reader.inputs[0] != pad.outputs[0]:
        return False
    value = pad.attributes["value"]
    if reader.op in ("conv2d", "depthwise_conv2d"):
        return value == 0
    if reader.op != "max_pool2d":
        return False
    top, left, bottom, right = _sum(reader, pad)
    height, width = reader.attributes["kernel"]
    return max(top, bottom) < height and max(left, right) < width and _is_lower_bound(value, x)


def _is_lower_bound(value: float, x: Tensor) -> bool:
    """Return True if no element that a tensor can hold is less than a value."""
    if x.dtype == "float32":
        return value == -np.inf
    q, lowest = x.quantization, np.iinfo(x.dtype).min
    if q is None or not q.whole:
        return value <= lowest
    return value / q.scale[0] + q.zero_point[0] <= lowest


def _sum(reader: Node, pad: Node) -> tuple[int, int, int, int]:
    """Return the combined padding of a reader and a pad node: top, left, bottom, right."""
    (_, (top, bottom), (left, right), _), own = pad.attributes["pads"], reader.attributes["pads"]
    return own[0] + top, own[1] + left, own[2] + bottom, own[3] + right


def _padded(reader: Node, pad: Node) -> Node:
    attributes = reader.attributes | {"pads": _sum(reader, pad)}
    return replace(reader, inputs=(pad.inputs[0], *reader.inputs[1:]), attributes=attributes)


#: Nodes that replace a node of a graph, or None if it remains; tensors between them are added to the dictionary.
Parts = Callable[[Graph, Node, dict[str, Tensor]], list[Node] | None]


def expand_nodes(graph: Graph, parts: Parts) -> Graph:
    """Replace nodes by others, also in subgraphs; the result is the same graph if `parts` replaces no node."""
    made: dict[str, Tensor] = {}
    before, nodes = list(graph), list[Node]()
    for node in before:
        if node.bodies:
            bodies = tuple(expand_nodes(body, parts) for body in node.bodies)
            same = all(new is old for new, old in zip(bodies, node.bodies, strict=True))
            nodes.append(node if same else replace(node, bodies=bodies))
        else:
            found = parts(graph, node, made)
            nodes += [node] if found is None else found
    same = len(nodes) == len(before) and all(new is old for new, old in zip(nodes, before, strict=True))
    return graph if same else rebuild(graph, nodes, changed=made)


def pad_averages(graph: Graph, rounding: str) -> Graph:
    """Pad quantized images whose average pooling counts the padding; FUSE counts elements of the image only.

    onnxruntime's averages are scaled sums, to which such padding adds nothing, so that they remain.
    """
    return graph if rounding == "onnxruntime" else expand_nodes(graph, _pad_and_average)


def _pad_and_average(graph: Graph, node: Node, made: dict[str, Tensor]) -> list[Node] | None:
    if not _counts_padding(graph, node):
        return None
    (x,), (top, left, bottom, right) = graph.ins(node), node.attributes["pads"]
    name = unused_name(f"{node.name}:padded", graph.tensors, graph.nodes, made)
    edges = ((0, 0), (top, bottom), (left, right), (0, 0))
    shape = tuple(size + sum(pair) for size, pair in zip(x.shape, edges, strict=True))
    made[name] = replace(x, name=name, shape=shape)
    attributes = node.attributes | {"pads": (0, 0, 0, 0)}
    return [
        replace(node, name=name, op="pad", outputs=(name,), attributes={"pads": edges, "value": 0.0}),
        replace(node, inputs=(name,), attributes=attributes),
    ]


#: Cycles of a copy in addition to the transfer of its bytes.
_COPY_CYCLES = 50


def separate_resizes(graph: Graph, config: MlaConfig) -> Graph:
    """Resize images to the nearest pixel along one axis, then along the other, if both together take many copies."""
    return expand_nodes(graph, lambda graph, node, made: _along_one_axis_first(graph, node, made, config))


def _along_one_axis_first(
    graph: Graph, node: Node, made: dict[str, Tensor], config: MlaConfig
) -> list[Node] | None:
    if node.op != "resize_nearest" or len(graph.ins(node)[0].shape) != 4 or graph.ins(node)[0].constant:
        return None
    (x,), (rows, columns) = graph.ins(node), node.attributes["size"]
    batch, height, width, channels = x.shape
    counts = [
        len(nearest_stretches(given, wanted, centers=node.attributes["centers"]))
        for given, wanted in ((height, rows), (width, columns))
    ]
    size = (rows, width) if rows * width < height * columns else (height, columns)
    between = Tensor("", (batch, *size, channels), x.dtype)
    copies = math.prod(counts)
    needed = copies > MAX_COPIES or copies * _COPY_CYCLES > between.bytes / config.n
    if not needed or max(counts) > MAX_COPIES or min(counts) == 1:
        return None
    name = unused_name(f"{node.name}:half", graph.tensors, graph.nodes, made)
    made[name] = replace(x, name=name, shape=between.shape)
    first = replace(node, name=name, outputs=(name,), attributes=node.attributes | {"size": size})
    return [first, replace(node, inputs=(name,))]


def _counts_padding(graph: Graph, node: Node) -> bool:
    """Return True for an average pooling of quantized integers whose windows contain padding that counts."""
    if node.op != "avg_pool2d" or not node.attributes["count_pads"] or not any(node.attributes["pads"]):
        return False
    (x,) = graph.ins(node)
    return x.dtype in (*EIGHT_BITS, "int16") and x.quantization is not None and not x.constant


def canonicalize_axes(graph: Graph) -> Graph:
    """Transpose the operands of quantized softmax and cumsum nodes whose axis is not the last one.

    A softmax over the columns of images (`compiler.layers.softmax_across.across_columns`) remains as it is. Float
    nodes, which run on the host, support any axis and remain unchanged.
    """
    made: dict[str, Tensor] = {}
    nodes: list[Node] = []
    for node in graph:
        x = graph.ins(node)[0] if node.inputs else None
        if (
            OPS[node.op].last_axis
            and x is not None
            and x.quantization
            and _axis(node, x) != len(x.shape) - 1
            and not across_columns(node, x, graph.out(node))
        ):
            nodes += _transposed(graph, node, x, made)
        else:
            nodes.append(node)
    return rebuild(graph, nodes, changed=made) if made else graph


def _axis(node: Node, x: Tensor) -> int:
    return node.attributes["axis"] % len(x.shape)


def _transposed(graph: Graph, node: Node, x: Tensor, made: dict[str, Tensor]) -> list[Node]:
    """Return a transpose, the operator, and the transpose again, because swapping two axes is its own inverse."""
    last, axis = len(x.shape) - 1, _axis(node, x)
    perm = list(range(last + 1))
    perm[axis], perm[last] = last, axis
    shape = tuple(x.shape[i] for i in perm)
    before = replace(x, name=unused_name(f"{x.name}:turned", graph.tensors, made), shape=shape, data=None)
    made[before.name] = before
    y = graph.out(node)
    after = replace(y, name=unused_name(f"{y.name}:turned", graph.tensors, made), shape=shape)
    made[after.name] = after
    return [
        Node(f"{node.name}:turn", "transpose", (x.name,), (before.name,), {"perm": tuple(perm)}),
        replace(
            node, inputs=(before.name,), outputs=(after.name,), attributes=node.attributes | {"axis": last}
        ),
        Node(f"{node.name}:turn back", "transpose", (after.name,), (y.name,), {"perm": tuple(perm)}),
    ]


#: Operators that only convert or rearrange elements.
_CONVERSIONS = frozenset({"quantize", "dequantize", "transpose", "reshape"})


def transpose_floats(graph: Graph) -> Graph:
    """Move transposes between channels first and channels last at the model boundary to the float side of the
    conversions there.

    The host converts float inputs and outputs, and transposes them at the same time, so that the accelerator reads and
    writes the layout in which it computes. A graph without other operators remains unchanged, because the accelerator
    then executes the conversions as well. Transposes of all slices of an input become one, before the slices.
    """
    if all(node.op in _CONVERSIONS for node in graph):
        return graph
    graph = _transpose_before_slices(graph)
    made: dict[str, Tensor] = {}
    nodes: list[Node] = []
    for node in graph:
        before = graph.producer(node.inputs[0]) if node.inputs else None
        if before is None or not (_after_input(graph, before, node) or _before_output(graph, before, node)):
            nodes.append(node)
            continue
        (x,), y = graph.ins(before), graph.out(node)
        middle = x if before.op == "quantize" else y
        shape = y.shape if before.op == "quantize" else x.shape
        between = replace(
            middle, name=unused_name(f"{middle.name}:transposed", graph.tensors, made), shape=shape
        )
        made[between.name] = between
        nodes.append(replace(node, inputs=(x.name,), outputs=(between.name,)))
        nodes.append(
            replace(before, name=f"{node.name}:{before.op}", inputs=(between.name,), outputs=node.outputs)
        )
    if not made:
        return graph
    return remove_dead(rebuild(graph, nodes, changed=made))


def _transpose_before_slices(graph: Graph) -> Graph:
    """Transpose a float input that is quantized before it is sliced, if all slices are transposed alike."""
    made: dict[str, Tensor] = {}
    instead: dict[str, list[Node]] = {}
    for before in graph:
        (name, *_) = before.outputs
        perm = _common_perm(graph, before)
        if perm is None:
            continue
        x = graph.tensors[name]
        whole = replace(
            x, name=unused_name(f"{name}:slices", graph.tensors, made), shape=tuple(x.shape[i] for i in perm)
        )
        made[whole.name] = whole
        turn = Node(f"{before.name}:slices", "transpose", (name,), (whole.name,), {"perm": perm})
        instead[before.name] = [before, turn]
        for part in graph.consumers(name):
            attributes = {key: tuple(part.attributes[key][i] for i in perm) for key in part.attributes}
            for turned in graph.consumers(part.outputs[0]):
                instead[turned.name] = []
                instead.setdefault(part.name, []).append(
                    Node(turned.name, "slice", (whole.name,), turned.outputs, attributes)
                )
    if not made:
        return graph
    nodes = [new for node in graph for new in instead.get(node.name, [node])]
    return rebuild(graph, nodes, changed=made)


def _common_perm(graph: Graph, before: Node) -> tuple[int, ...] | None:
    """Return the permutation of all transposes of the slices of a quantized float input; None if there is none."""
    name = before.outputs[0]
    x = graph.tensors[name]
    if before.op != "quantize" or before.inputs[0] not in graph.inputs or name in graph.outputs:
        return None
    parts, rank = graph.consumers(name), len(x.shape)
    if not parts or not _one_scale(x) or any(part.op != "slice" for part in parts):
        return None
    perms: set[tuple[int, ...]] = set()
    for part in parts:
        y = graph.out(part)
        # Malformed slices and transposes remain, and are reported by the names of the model.
        if y.name in graph.outputs or {len(each) for each in part.attributes.values()} != {rank}:
            return None
        for turn in graph.consumers(y.name):
            alike = turn.op == "transpose" and graph.out(turn).quantization == y.quantization
            if not alike or not _moves_channels(turn) or len(turn.attributes["perm"]) != rank:
                return None
            perms.add(tuple(turn.attributes["perm"]))
    return perms.pop() if len(perms) == 1 else None


def _after_input(graph: Graph, before: Node, node: Node) -> bool:
    """Return True if `node` transposes a float input of the graph that `before` quantizes."""
    return (
        (before.op, node.op) == ("quantize", "transpose")
        and _moves_channels(node)
        and before.inputs[0] in graph.inputs
        and _one_scale(graph.out(before))
    )


def _before_output(graph: Graph, before: Node, node: Node) -> bool:
    """Return True if `node` dequantizes a tensor that `before` transposes, and its result is an output of the graph."""
    return (
        (before.op, node.op) == ("transpose", "dequantize")
        and _moves_channels(before)
        and node.outputs[0] in graph.outputs
        and before.inputs[0] not in graph.inputs
        and _one_scale(graph.out(before))
    )


#: Minimum rank of a tensor of images.
_MIN_IMAGE_RANK = 4


def _moves_channels(node: Node) -> bool:
    """Return True if a transpose moves the channels of images from the second to the last dimension or back."""
    perm = tuple(node.attributes["perm"])
    last = len(perm) - 1
    return last >= _MIN_IMAGE_RANK - 1 and perm in ((0, *range(2, last + 1), 1), (0, last, *range(1, last)))


def _one_scale(tensor: Tensor) -> bool:
    return tensor.quantization is not None and tensor.quantization.axis is None


#: Limit on the elements of a repeated operand.
_MAX_ELEMENTS = 1 << 22


def materialize_broadcasts(graph: Graph) -> Graph:
    """Materialize broadcasts of quantized sums, differences and products that the hardware does not support.

    `compiler.layers.elementwise.operands_of` tells which are supported. Other operands are repeated along dimensions of
    size one.
    """
    unsupported = {node.name for node in graph if node.op in BINARY_OPS and _needs_broadcast(graph, node)}
    if not unsupported:
        return graph
    made: dict[str, Tensor] = {}
    nodes: list[Node] = []
    for node in graph:
        nodes += _repeated(graph, node, made) if node.name in unsupported else [node]
    return rebuild(graph, nodes, changed=made)


def _needs_broadcast(graph: Graph, node: Node) -> bool:
    """Return True if a node is quantized to 8 or 16 bits and the hardware does not support its broadcast."""
    ins, out = graph.ins(node), graph.out(node)
    narrow = all(
        tensor.dtype in (*EIGHT_BITS, "int16")
        and tensor.quantization is not None
        and tensor.quantization.whole
        for tensor in (*ins, out)
    )
    if (
        not narrow
        or out.elements > _MAX_ELEMENTS
        or all(tensor.constant for tensor in ins)
        or is_unary(graph, node)
    ):
        return False
    return not _supported(ins[0], ins[1], out)


def _supported(a: Tensor, b: Tensor, y: Tensor) -> bool:
    """Return True if the hardware supports the broadcast of one of two operands to the result."""
    return operands_of(a, b, y.shape) is not None


def _repeated(graph: Graph, node: Node, made: dict[str, Tensor]) -> Iterator[Node]:
    """Yield nodes that repeat the operands of a node, then the node; the larger dynamic operand is repeated first."""
    operands, y = list(graph.ins(node)), graph.out(node)
    for number in sorted((0, 1), key=lambda i: (operands[i].constant, -operands[i].elements)):
        called = unused_name(f"{node.name}:operand{number}", graph.tensors, made)
        for axis in range(-1, len(y.shape)):
            if _supported(operands[0], operands[1], y):
                break
            x = operands[number]
            if x.data is not None:
                data = np.ascontiguousarray(np.broadcast_to(x.data, y.shape))
                made[called] = operands[number] = replace(x, name=called, shape=y.shape, data=data)
            elif axis < 0:
                yield from _ranked(graph, called, operands, number, len(y.shape), made)
            elif x.shape[axis] != y.shape[axis]:
                yield from _longer(graph, called, operands, number, (axis, y.shape[axis]), made)
    yield replace(node, inputs=tuple(tensor.name for tensor in operands))


def _ranked(
    graph: Graph, called: str, operands: list[Tensor], number: int, rank: int, made: dict[str, Tensor]
) -> Iterator[Node]:
    """Reshape an operand to the rank of the result."""
    x = operands[number]
    if len(x.shape) < rank:
        shape = (1,) * (rank - len(x.shape)) + x.shape
        name = unused_name(f"{called}:rank", graph.tensors, graph.nodes, made)
        made[name] = operands[number] = replace(x, name=name, shape=shape)
        yield Node(name, "reshape", (x.name,), (name,), {"shape": shape})


def _longer(
    graph: Graph,
    called: str,
    operands: list[Tensor],
    number: int,
    wanted: tuple[int, int],
    made: dict[str, Tensor],
) -> Iterator[Node]:
    """Repeat an operand along an axis; `wanted` is the axis and its new size."""
    x, (axis, size) = operands[number], wanted
    base, longer = (
        unused_name(f"{called}:{part}{axis}", graph.tensors, graph.nodes, made) for part in ("again", "axis")
    )
    again = Tensor(base, (size,), "int32", data=np.zeros(size, np.int32))
    y = replace(x, name=longer, shape=(*x.shape[:axis], size, *x.shape[axis + 1 :]))
    made |= {again.name: again, y.name: y}
    operands[number] = y
    yield Node(y.name, "gather", (x.name, again.name), (y.name,), {"axis": axis})


_BYTES = ("int8", "uint8")


def _orderable(x: Tensor, axis: int) -> bool:
    """Return True if keys can order the elements of a tensor along an axis."""
    return x.dtype in EIGHT_BITS and not x.constant and bool(x.shape) and x.shape[axis] <= MAX_POSITIONS


def _maximum(best: Tensor, keys: Tensor) -> Node:
    """Return the node that computes the maximum of keys along the last axis."""
    how = {"axes": (len(keys.shape) - 1,), "keep": True}
    return Node(best.name, "reduce_max", (keys.name,), (best.name,), how)


#: Types that comparisons on the accelerator support.
_COMPARED = (*EIGHT_BITS, "int16", "bool")


def canonicalize_logic(graph: Graph, rounding: str) -> Graph:
    """Let comparisons and selections read integers instead of the real numbers that these represent.

    Selections between two tensors become sums of selections between a tensor and the zero point. A boolean that is
    converted to 1 or 0 and then quantized, or that selects one of two real constants, becomes a selection between two
    integers. Broadcast operands that the hardware does not support are repeated.

    Parameters
    ----------
    graph : Graph
        Graph with quantized tensors.
    rounding : str
        Kernels whose rounding is reproduced when constants are quantized.
    """
    names = ((each, name) for each, node in graph.walk() for name in (*node.inputs, *node.outputs))
    booleans = any(each.tensors[name].dtype == "bool" for each, name in names)
    if not booleans and not any(node.op in ORDERING for _, node in graph.walk()):
        return graph
    return _LogicRewriter(graph, rounding).run()


class _LogicRewriter:
    def __init__(self, graph: Graph, rounding: str):
        self.graph, self.rounding = graph, rounding
        self.made: dict[str, Tensor] = {}
        self._known: dict[str, Tensor] = {}  # integers that real tensors represent, by name
        self._indices: dict[str, tuple[Tensor, bool]] = {}  # keys of indices, and True if reversed, by name
        self._tops: dict[tuple[str, int, int, bool], Tensor] = {}

    def run(self) -> Graph:
        """Return the graph with the rewritten nodes."""
        nodes: list[Node] = []
        for node in self.graph:
            if node.bodies:
                bodies = tuple(canonicalize_logic(body, self.rounding) for body in node.bodies)
                nodes.append(replace(node, bodies=bodies))
            elif node.op in LOGIC_OPS and len(node.inputs) == 2:
                nodes += self._compared(node)
            elif node.op == "where":
                nodes += self._selected(node)
            elif node.op == "quantize":
                nodes += self._quantized(node)
            elif node.op == "onnx":
                nodes.append(self._cast(node))
            elif node.op in ORDERING and "k" not in node.attributes:
                nodes += self._index(node)
            elif node.op in ORDERING:
                nodes += self._top(node)
            else:
                nodes.append(node)
        return remove_dead(rebuild(self.graph, nodes, changed=self.made))

    def _tensor(self, name: str) -> Tensor:
        return self.made.get(name) or self.graph.tensors[name]

    def _added(self, tensor: Tensor) -> Tensor:
        self.made[tensor.name] = tensor
        return tensor

    def _fresh(self, name: str) -> str:
        return unused_name(name, self.graph.tensors, self.made)

    def _integers(self, tensor: Tensor) -> Tensor:
        """Return the integers that a real tensor represents, or the tensor itself."""
        if tensor.name in self._known:
            return self._known[tensor.name]
        producer = self.graph.producer(tensor.name)
        if producer is None or producer.op != "dequantize":
            return tensor
        (source,) = self.graph.ins(producer)
        q = source.quantization
        return source if source.dtype in _COMPARED and q is not None and q.whole else tensor

    def _compared(self, node: Node) -> Iterator[Node]:
        """Yield a comparison of integers if its operands are known as integers or are a scalar constant."""
        operands = [self._integers(tensor) for tensor in self.graph.ins(node)]
        scalar = any(tensor.constant and tensor.elements == 1 for tensor in operands)
        known = [tensor.dtype in _COMPARED for tensor in operands]
        if not all(known) and not (any(known) and scalar and node.op in COMPARISONS):
            yield node
            return
        y = self.graph.out(node)
        if all(known) and y.elements > 1 and not is_unary(self.graph, node):
            yield from self._widened(node.name, operands, y.shape)
        yield replace(node, inputs=tuple(tensor.name for tensor in operands))

    def _selected(self, node: Node) -> Iterator[Node]:
        """Yield a selection between a tensor and a scalar, or the sum of two such selections."""
        condition, *values = self.graph.ins(node)
        y = self.graph.out(node)
        if (
            y.dtype not in EIGHT_BITS
            or y.quantization is None
            or not all(same_quantization(value, y) for value in values)
        ):
            yield node
            return
        yield from self._chosen(node.name, condition, values, y)

    def _chosen(self, name: str, condition: Tensor, values: list[Tensor], y: Tensor) -> Iterator[Node]:
        """Yield the nodes of a selection; all values have the quantization of the result."""
        if any(value.constant and value.elements == 1 for value in values):
            yield from self._masked(name, condition, values, y)
            return
        zero = self._constant(f"{name}:zero", np.array(affine(y).zero_point, y.dtype), y)
        terms: list[Tensor] = []
        for part, pair in (("chosen", (values[0], zero)), ("other", (zero, values[1]))):
            term = self._fresh(f"{name}:{part}")
            terms.append(self._added(replace(y, name=term)))
            yield from self._masked(term, condition, list(pair), terms[-1])
        yield Node(name, "add", tuple(term.name for term in terms), (y.name,))

    def _masked(self, name: str, condition: Tensor, values: list[Tensor], y: Tensor) -> Iterator[Node]:
        """Yield a selection of which at least one value is a scalar constant."""
        tensors = [i for i, value in enumerate(values) if not (value.constant and value.elements == 1)]
        if tensors:
            pair = [values[tensors[0]], condition]
            yield from self._widened(name, pair, y.shape)
            values[tensors[0]], condition = pair
        elif condition.shape != y.shape:
            pair = [condition]
            yield from self._repeated(name, pair, 0, y.shape)
            (condition,) = pair
        yield Node(name, "where", (condition.name, *(value.name for value in values)), (y.name,))

    def _widened(self, name: str, operands: list[Tensor], shape: tuple[int, ...]) -> Iterator[Node]:
        """Repeat operands in place until the hardware supports their broadcast to `shape`."""
        dynamic = [i for i, tensor in enumerate(operands) if not tensor.constant]
        order = sorted(dynamic, key=lambda i: -operands[i].elements)
        order += [i for i, tensor in enumerate(operands) if tensor.constant]
        for number in order:
            if operands_of(operands[0], operands[1], shape) is None and operands[number].shape != shape:
                yield from self._repeated(f"{name}:operand{number}", operands, number, shape)

    def _repeated(
        self, name: str, operands: list[Tensor], number: int, shape: tuple[int, ...]
    ) -> Iterator[Node]:
        """Repeat one operand, in place, to a shape."""
        x = operands[number]
        if x.data is not None:
            data = np.ascontiguousarray(np.broadcast_to(x.data, shape))
            operands[number] = self._added(replace(x, name=self._fresh(name), shape=shape, data=data))
            return
        yield from _ranked(self.graph, name, operands, number, len(shape), self.made)
        for axis, size in enumerate(shape):
            if operands[number].shape[axis] != size:
                yield from _longer(self.graph, name, operands, number, (axis, size), self.made)

    def _constant(self, name: str, data: NDArray, like: Tensor) -> Tensor:
        return self._added(Tensor(self._fresh(name), data.shape, like.dtype, like.quantization, data))

    def _quantized(self, node: Node) -> Iterator[Node]:
        """Yield a selection between integers in place of a quantized selection between real numbers."""
        (x,), y = self.graph.ins(node), self.graph.out(node)
        if x.name in self._known:
            yield replace(node, op="requantize", inputs=(self._known[x.name].name,))
            return
        values, condition = list[Tensor](), None
        producer = self.graph.producer(x.name)
        if producer is not None and producer.op == "onnx" and y.dtype in EIGHT_BITS:
            condition, *rest = self.graph.ins(producer)
            if producer.attributes["operator"] == "Cast" and not rest:
                values = [
                    self._constant(f"{node.name}:{i}", self._rounded(node, np.array(i, np.float32), y), y)
                    for i in (1, 0)
                ]
            elif producer.attributes["operator"] == "Where" and len(rest) == 2:
                values = [self._in_quantization(node, i, value, y) for i, value in enumerate(rest)]
        if condition is None or condition.dtype != "bool" or condition.constant or not values:
            yield node
        elif all(same_quantization(value, y) for value in values):
            yield from self._chosen(node.name, condition, values, y)
        else:
            yield node

    def _in_quantization(self, node: Node, index: int, value: Tensor, y: Tensor) -> Tensor:
        """Return the integers of a real value; a constant is rounded to the quantization of y."""
        if value.data is None or value.dtype != "float32":
            return self._integers(value)
        return self._constant(f"{node.name}:{index}", self._rounded(node, value.data, y), y)

    def _index(self, node: Node) -> Iterator[Node]:
        """Yield the maximum of keys that contain the positions of 8-bit integers, and the position in the maximum."""
        x, y, how = self._integers(self.graph.ins(node)[0]), self.graph.out(node), node.attributes
        if not _orderable(x, how["axis"]):
            yield replace(node, inputs=(x.name,))
            return
        keys, new = self._keys(node.name, x, how["axis"], least=node.op == "argmin", last=how["last"])
        yield from new
        shape = x.shape[: how["axis"]] + x.shape[how["axis"] + 1 :]
        best = self._best(f"{node.name}:best", keys)
        yield _maximum(best, keys)
        best, new = self._in_shape(best, y.shape if how["keep"] else shape)
        yield from new
        yield self._of_key(node.name, best, y, is_reversed=not how["last"])

    def _of_key(self, name: str, keys: Tensor, y: Tensor, *, is_reversed: bool) -> Node:
        """Return the node that extracts positions from keys."""
        self._indices[y.name] = keys, is_reversed
        return Node(f"{name}:index", "key_index", (keys.name,), (y.name,), {"reversed": is_reversed})

    def _cast(self, node: Node) -> Node:
        """Return a node that extracts int32 positions directly, if `node` only converts indices to int32."""
        known = self._indices.get(node.inputs[0]) if node.inputs else None
        if known is None or node.attributes["operator"] != "Cast" or self.graph.out(node).dtype != "int32":
            return node
        keys, is_reversed = known
        return Node(node.name, "key_index", (keys.name,), node.outputs, {"reversed": is_reversed})

    def _keys(self, name: str, x: Tensor, axis: int, *, least: bool, last: bool) -> tuple[Tensor, list[Node]]:
        """Return the keys of 8-bit integers, with the axis moved to the end, and the nodes that compute them."""
        nodes: list[Node] = []
        rank = len(x.shape)
        perm = (*(i for i in range(rank) if i != axis), axis)
        if perm != tuple(range(rank)):
            shape = tuple(x.shape[i] for i in perm)
            moved = self._added(replace(x, name=self._fresh(f"{name}:last"), shape=shape))
            nodes.append(Node(moved.name, "transpose", (x.name,), (moved.name,), {"perm": perm}))
            x = moved
        numbers = np.arange(x.shape[-1], dtype=np.int16)
        numbers = numbers if last else (MAX_POSITIONS - 1 - numbers).astype(np.int16)
        positions = self._added(
            Tensor(self._fresh(f"{name}:positions"), numbers.shape, "int16", data=numbers)
        )
        keys = self._added(Tensor(self._fresh(f"{name}:keys"), x.shape, "int16"))
        operands = (x.name, positions.name)
        return keys, [*nodes, Node(keys.name, "index_key", operands, (keys.name,), {"least": least})]

    def _best(self, name: str, keys: Tensor) -> Tensor:
        return self._added(replace(keys, name=self._fresh(name), shape=(*keys.shape[:-1], 1)))

    def _in_shape(self, x: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, list[Node]]:
        """Return a tensor in another shape, and the node that reshapes it, if necessary."""
        if x.shape == shape:
            return x, []
        y = self._added(replace(x, name=self._fresh(f"{x.name}:shaped"), shape=shape))
        return y, [Node(y.name, "reshape", (x.name,), (y.name,), {"shape": shape})]

    def _top(self, node: Node) -> Iterator[Node]:
        """Yield the selection of the largest elements, one after the other, by keys that contain their positions."""
        x, y, how = self._integers(self.graph.ins(node)[0]), self.graph.out(node), node.attributes
        whole = x.quantization is not None and x.quantization.whole
        if not _orderable(x, how["axis"]) or how["k"] > MAX_SELECTED or not whole:
            yield replace(node, inputs=(x.name,))
            return
        chosen = (x.name, how["axis"], how["k"], how["least"])
        if chosen not in self._tops:
            self._tops[chosen], new = self._selected_keys(node.name, x, how)
            yield from new
        keys = self._tops[chosen]
        if node.op == "top_indices":
            yield self._of_key(node.name, keys, y, is_reversed=True)
            return
        high = self._added(
            Tensor(self._fresh(f"{node.name}:high"), y.shape, "int8", Quantization.per_tensor(1.0))
        )
        yield Node(high.name, "high_byte", (keys.name,), (high.name,))
        limits = np.iinfo(x.dtype)
        ranks = np.arange(256) ^ 128  # of the integers 0..127, -128..-1, which are the table's indices
        entries = limits.max - ranks if how["least"] else ranks + limits.min
        found = self._added(replace(x, name=self._fresh(f"{node.name}:integers"), shape=y.shape))
        table = {"table": tuple(int(entry) for entry in entries), "operator": node.op}
        if y.dtype == "float32":
            self._known[y.name] = found
            yield Node(found.name, "table", (high.name,), (found.name,), table)
            yield Node(f"{node.name}:dequantize", "dequantize", (found.name,), (y.name,))
        else:
            yield Node(node.name, "table", (high.name,), (y.name,), table)

    def _selected_keys(self, name: str, x: Tensor, how: Attributes) -> tuple[Tensor, list[Node]]:
        """Return the keys of the selected elements, stacked along the axis, and the nodes that compute them."""
        keys, nodes = self._keys(name, x, how["axis"], least=how["least"], last=False)
        lowest = self._added(
            Tensor(self._fresh(f"{name}:lowest"), (), "int16", data=np.array(-(1 << 15), np.int16))
        )
        found: list[Tensor] = []
        for number in range(how["k"]):
            found.append(self._best(f"{name}:best{number}", keys))
            nodes.append(_maximum(found[-1], keys))
            if number < how["k"] - 1:
                rest = self._added(replace(keys, name=self._fresh(f"{name}:rest{number}"), dtype="bool"))
                left = self._added(replace(keys, name=self._fresh(f"{name}:left{number}")))
                nodes.append(Node(rest.name, "less", (keys.name, found[-1].name), (rest.name,)))
                nodes.append(Node(left.name, "where", (rest.name, keys.name, lowest.name), (left.name,)))
                keys = left
        if len(found) > 1:
            stacked = replace(keys, name=self._fresh(f"{name}:stacked"), shape=(*keys.shape[:-1], how["k"]))
            operands = tuple(each.name for each in found)
            nodes.append(
                Node(stacked.name, "concat", operands, (stacked.name,), {"axis": len(keys.shape) - 1})
            )
            found = [self._added(stacked)]
        rank, axis = len(keys.shape), how["axis"]
        (top,) = found
        if axis == rank - 1:
            return top, nodes
        perm = (*range(axis), rank - 1, *range(axis, rank - 1))
        shape = tuple(top.shape[i] for i in perm)
        moved = self._added(replace(top, name=self._fresh(f"{name}:moved"), shape=shape))
        return moved, [*nodes, Node(moved.name, "transpose", (top.name,), (moved.name,), {"perm": perm})]

    def _rounded(self, node: Node, numbers: NDArray, y: Tensor) -> NDArray:
        """Return real numbers in the quantization of y."""
        single = Graph(self.graph.name)
        single.add_input(Tensor("x", numbers.shape, "float32"))
        single.add_tensor(replace(y, name="y", shape=numbers.shape))
        copy = single.add_node(Node(node.name, "quantize", ("x",), ("y",)))
        (result,) = run_node(single, copy, [numbers.astype(np.float32)], rounding=self.rounding)  # type: ignore[arg-type]
        return result
