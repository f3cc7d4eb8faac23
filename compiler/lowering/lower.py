"""Lowering of a graph to layers: type checks, conversions at the model boundary, and aliasing of tensors.

Operands of concatenations are written in place, and slices are read in place.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import BINARY_OPS
from compiler.ir.tensor import Tensor
from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.elementwise import ElementwiseLayer, Extreme, needs_contiguous
from compiler.layers.layer_kind import Types
from compiler.layers.lowering_context import (
    Group,
    LoweringContext,
    SubTensor,
    UnsupportedLoweringError,
    image_of,
    is_unary,
)
from compiler.layers.move import MoveLayer, concat_starts
from compiler.layers.pool import covers_image, on_fuse
from compiler.layers.registry import LOWERINGS
from compiler.layers.strided_copy import Rescale, strides_of
from compiler.layers.tiling_context import images
from compiler.lowering.fusion_groups import IN_PLACE
from compiler.util.tiles import ceil_div
from hw.config import MlaConfig


def check_types(graph: Graph, node: Node) -> None:
    """Check that the lowering of a node supports the element types of its tensors.

    Raises
    ------
    UnsupportedLoweringError
        A tensor has an unsupported type, or the operator has no lowering.
    """
    lowering = LOWERINGS.get(node.op)
    if lowering is None:
        raise UnsupportedLoweringError(f"{node.op} is not supported on the accelerator")
    operands, types = graph.ins(node), lowering.types
    if is_unary(graph, node):  # its table includes constants of any type
        operands = [tensor for tensor in operands if not tensor.constant]
    last = len(types.operands) - 1
    for number, tensor in enumerate(operands):
        _check(tensor, types.operands[min(number, last)])
    for name in node.outputs:
        _check(graph.tensors[name], types.result)


def _check(tensor: Tensor, types: Types | None) -> None:
    if types is not None and tensor.dtype not in types:
        *others, last = types
        text = f"{', '.join(others)} or {last}" if others else last
        raise UnsupportedLoweringError(f"tensor {tensor.name!r} must be {text}, not {tensor.dtype}")


_LAYOUT = ("transpose", "reshape")
_TO_PIXELS = (0, 2, 3, 1)
_FLOATS = ("float32", "float16", "float64")


def float_boundary(graph: Graph, host: Collection[str]) -> set[str]:
    """Return the nodes in `host` that only convert, or change the layout of, float inputs and outputs of the graph.

    The conversion of an index to int64 at an output of the graph is included.
    """
    return _after_inputs(graph, host) | _before_outputs(graph, host)


def boundary_conversions(graph: Graph, host: Collection[str]) -> set[str]:
    """Return the conversions at the model boundary that the host executes although the accelerator could.

    Nodes in `host` run on the host in any case. The result is empty if the accelerator could execute nothing except
    these conversions and layout changes.
    """
    device = {node.name: node.op for node in graph if node.name not in host}
    found = float_boundary(graph, [node.name for node in graph]) & device.keys()
    return found if any(op not in _LAYOUT for name, op in device.items() if name not in found) else set()


def _is_float(graph: Graph, name: str) -> bool:
    return graph.tensors[name].dtype in _FLOATS


def _widens_index(graph: Graph, node: Node) -> bool:
    return node.op == "key_index" and graph.out(node).dtype == "int64"


def _after_inputs(graph: Graph, host: Collection[str]) -> set[str]:
    unconverted, found = {name for name in graph.inputs if _is_float(graph, name)}, set()
    for node in graph:
        widens = node.op == "dequantize" and _is_float(graph, node.inputs[0])
        if (
            node.name in host
            and (widens or node.op in ("quantize", *_LAYOUT))
            and node.inputs[0] in unconverted
        ):
            found.add(node.name)
            unconverted |= {name for name in node.outputs if _is_float(graph, name)}
    return found


def _before_outputs(graph: Graph, host: Collection[str]) -> set[str]:
    found: set[str] = set()

    def goes_out(node: Node) -> bool:
        """Return True if all outputs are float and are outputs of the model, possibly after layout changes."""
        users = [user for name in node.outputs for user in graph.consumers(name)]
        wanted = all(name in graph.outputs or graph.consumers(name) for name in node.outputs)
        floats = all(_is_float(graph, name) for name in node.outputs) or _widens_index(graph, node)
        return wanted and floats and all(user.name in found for user in users)

    for node in reversed(list(graph)):
        converts = (
            node.op == "dequantize"
            or _widens_index(graph, node)
            or (node.op in (*_LAYOUT, "gather") and _is_float(graph, node.inputs[0]))
        )
        if node.name in host and converts and goes_out(node):
            found.add(node.name)
    return found


@dataclass(eq=False)
class LoweredNetwork:
    """A graph lowered to layers.

    Parameters
    ----------
    graph : Graph
        Graph that was lowered.
    layers : list of Layer
        Layers in topological order.
    views : dict
        Tensors that are views of others: name of the view -> name of the tensor whose bytes it shares.
    parts : dict
        Location of each tensor that is contained in another, by name.
    refused : dict
        Nodes that the accelerator cannot execute, each with the reason.
    planes : set of str
        Images that are views of planes, one for each channel.
    pitches : dict
        Distance in bytes between the rows, in DRAM, of inputs and outputs whose rows are not contiguous, by name.
    """

    graph: Graph
    layers: list[Layer] = field(default_factory=list)
    views: dict[str, str] = field(default_factory=dict)
    parts: dict[str, SubTensor] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    planes: set[str] = field(default_factory=set)
    pitches: dict[str, int] = field(default_factory=dict)

    def root(self, name: str) -> str:
        """Return the name of the tensor that contains the bytes of a tensor, which may be a view or part."""
        while name in self.views or name in self.parts:
            name = self.views[name] if name in self.views else self.parts[name].container
        return name

    def part(self, name: str) -> SubTensor | None:
        """Return the location of a tensor's bytes within another tensor; None if they are stored separately."""
        while name in self.views:
            name = self.views[name]
        return self.parts.get(name)


def lower(graph: Graph, groups: Sequence[Group], rounding: str, config: MlaConfig) -> LoweredNetwork:
    """Lower all groups to layers; nodes that the machine cannot execute are in `refused`."""
    out = LoweredNetwork(graph, parts=find_parts(graph, groups))
    for nodes in groups:
        lowering = LoweringContext(graph, nodes, rounding, config)
        try:
            op = lowering.anchor.op
            if all(t.constant for node in nodes for t in graph.ins(node)):
                raise UnsupportedLoweringError("all its operands are constant")
            if op == "onnx":
                raise UnsupportedLoweringError(lowering.anchor.attributes["why"])
            for node in nodes:
                check_types(graph, node)
            out.layers += IN_PLACE[op](out, lowering) if op in IN_PLACE else [LOWERINGS[op].lower(lowering)]
        except UnsupportedLoweringError as error:
            out.refused |= {node.name: str(error) for node in nodes}
    _remove_unread(out)
    _read_planes(out, config)
    _join_requantizations(out)
    _compute_beside_products(out, config)
    return out


#: Maximum number of planes that a convolution reads: LOAD takes a cycle for each pixel, regardless of their number.
_MAX_PLANES = 4
#: Share of the scratchpad up to which an image would be transposed there, which takes LOAD as long; and for larger
#: images, minimum cycles of the array per pixel, because their transposition takes less time than that of LOAD.
_MAX_IMAGE, _MIN_PLANE_WORK = 0.6, 0.75


def _read_planes(out: LoweredNetwork, config: MlaConfig) -> None:
    """Let convolutions read planes of the graph's inputs, such as NCHW images with few channels, and transpose them.

    The pixels are then a view of the planes, and the layer that transposed the image is removed.
    """
    for layer in list(out.layers):
        nodes = [out.graph.nodes[name] for name in layer.nodes]
        if [node.op for node in nodes] != ["transpose"] or nodes[0].attributes["perm"] != _TO_PIXELS:
            continue
        images, channels = out.graph.tensors[layer.x].shape[:2]
        users = [
            number for number, each in enumerate(out.layers) if layer.y in each.shapes and each is not layer
        ]
        if (
            out.root(layer.x) not in out.graph.inputs
            or out.part(layer.x) is not None
            or layer.y in out.graph.outputs
            or not 1 < channels <= min(_MAX_PLANES, config.n)
            or len(users) != 1
            or any(out.root(name) == layer.y for name in (*out.views, *out.parts))
        ):
            continue
        conv = out.layers[users[0]]
        if (
            isinstance(conv, ConvLayer)
            and conv.inputs == (layer.y,)
            and (conv.groups, conv.batch, conv.dilations) == (1, images, (1, 1))
            and (
                _fits(conv, config)
                or _array_cycles(conv, config.n) >= _MIN_PLANE_WORK * _pixels(conv, conv.x)
            )
        ):
            out.layers[users[0]] = replace(conv, planes=True)
            out.layers.remove(layer)
            out.views[layer.y] = layer.x
            out.planes.add(layer.y)


def _join_requantizations(out: LoweredNetwork) -> None:
    """Let maxima and minima convert their operands, if a layer of its own only converts all elements of one."""
    for layer in list(out.layers):
        if isinstance(layer, ElementwiseLayer) and layer.extreme is not None and layer.other is not None:
            names, scaling = [layer.x, layer.other], list(layer.extreme.scaling)
            greatest = layer.extreme.greatest
            for at, name in enumerate(names):
                found = _requantization(out, name)
                modes = {each.rounding for each in (*scaling, found and found[1]) if each}
                if found is None or names[0] == names[1] or len(modes) > 1:
                    continue
                names[at], scaling[at] = found[0].x, found[1]
                out.layers.remove(found[0])
                shapes = {names[0], names[1], layer.y}
                known = {**found[0].shapes, **layer.shapes}
                joined = replace(
                    layer,
                    x=names[0],
                    other=names[1],
                    shapes={each: known[each] for each in known if each in shapes},
                    extreme=Extreme(greatest, (scaling[0], scaling[1])),
                )
                out.layers[out.layers.index(layer)] = layer = joined


def _requantization(out: LoweredNetwork, name: str) -> tuple[MoveLayer, Rescale] | None:
    """Return the layer that only converts all elements of a tensor, which one layer reads, and the conversion."""
    used = [each for each in out.layers if name in each.shapes]
    if len(used) != 2 or out.root(name) != name or name in out.graph.outputs:
        return None
    if any(
        name == other for other in (*out.views.values(), *(part.container for part in out.parts.values()))
    ):
        return None
    made = next((each for each in used if each.y == name), None)
    if not isinstance(made, MoveLayer) or made.ops != ("requantize",) or len(made.copies) != 1:
        return None
    change, shapes = made.copies[0].rescale, made.shapes
    same = shapes[made.x].dtype == shapes[name].dtype and out.part(made.x) is None
    return (made, change) if change is not None and same else None


def _pixels(layer: Layer, name: str) -> int:
    return layer.shapes[name].h * layer.shapes[name].w


def _fits(conv: ConvLayer, config: MlaConfig) -> bool:
    return _pixels(conv, conv.x) * conv.shapes[conv.x].c <= _MAX_IMAGE * config.sp_bytes


def _array_cycles(conv: ConvLayer, n: int) -> int:
    """Return the cycles of the array for a convolution by patches."""
    outputs, *window = conv.weights.shape
    return _pixels(conv, conv.y) * ceil_div(outputs, n) * ceil_div(math.prod(window), n)


def _remove_unread(out: LoweredNetwork) -> None:
    """Remove layers whose results no layer reads, because a product reads their operands in place."""
    needed = {out.root(name) for name in out.graph.outputs}
    read: list[Layer] = []
    for layer in reversed(out.layers):
        if out.root(layer.y) in needed:
            needed |= {out.root(name) for name in layer.inputs}
            read.insert(0, layer)
    out.layers = read


#: Number of layers between a depthwise convolution and a product beside which FUSE may compute it.
_MAX_BETWEEN = 3
#: Share of the cycles of a product during which FUSE may be busy, since it also needs time to start commands.
_MAX_FUSE_SHARE = 0.8


def _compute_beside_products(out: LoweredNetwork, config: MlaConfig) -> None:
    """Let FUSE compute depthwise convolutions of inputs while MATRIX computes independent convolutions.

    Inputs of the graph are loaded to separate buffers for both layers, so that FUSE and MATRIX do not compete for a
    memory bank. A depthwise convolution moves to the position before the convolution.
    """
    free = {layer.name for layer in out.layers if isinstance(layer, ConvLayer)}
    for layer in list(out.layers):
        if not isinstance(layer, DepthwiseLayer) or out.root(layer.x) not in out.graph.inputs:
            continue
        fused = on_fuse(layer)
        if fused is None:
            continue
        number = out.layers.index(layer)  # products have moved before some layers
        made = {out.root(layer.y)}
        for other in range(number + 1, min(number + 1 + _MAX_BETWEEN, len(out.layers))):
            product = out.layers[other]
            needed = {out.root(name) for name in product.inputs}
            between = {out.root(each.y) for each in out.layers[number:other]}
            if (
                product.name in free
                and not needed & (made | between)
                and _fits_beside(layer, product, config)
            ):
                free.remove(product.name)
                out.layers[number : other + 1] = [fused, product, *out.layers[number + 1 : other]]
                break


def _fits_beside(layer: DepthwiseLayer, product: Layer, config: MlaConfig) -> bool:
    """Return True if FUSE can compute a depthwise convolution while MATRIX computes a convolution that it drains."""
    if not isinstance(product, ConvLayer) or product.groups > 1:
        return False
    n, (_, y), z = config.n, images(layer), product.shapes[product.y]
    outputs, *kernel, inputs = product.weights.shape
    drain = z.h * z.w * ceil_div(outputs, n)
    taps = layer.weights.shape[0] * layer.weights.shape[1]
    fuse = layer.batch * y.h * y.w * ceil_div(y.c, n) * taps
    return (fuse + drain) * config.fuse_rate <= _MAX_FUSE_SHARE * drain * ceil_div(inputs, n) * math.prod(
        kernel
    )


def find_parts(graph: Graph, groups: Sequence[Group]) -> dict[str, SubTensor]:
    """Return the tensors that are stored as a part of another tensor, by name."""
    return _Finder(graph, groups).run()


class _Finder:
    def __init__(self, graph: Graph, groups: Sequence[Group]):
        self.graph = graph
        self.groups = [LoweringContext(graph, nodes, "") for nodes in groups]
        self.producers = {low.y.name: low.anchor for low in self.groups}
        self.anchors = {low.anchor.name for low in self.groups}
        self.parts: dict[str, SubTensor] = {}

    def run(self) -> dict[str, SubTensor]:
        for low in reversed(self.groups):
            if low.anchor.op == "concat":
                self._concat(low)
        for low in self.groups:
            if low.anchor.op == "slice" and low.y.name not in self.parts:
                self._slice(low.anchor)
        return self.parts

    def _gaps(self, name: str) -> bool:
        return name in self.parts and self.parts[name].gaps

    def _concat(self, low: LoweringContext) -> None:
        node, y = low.anchor, low.y
        try:
            starts = concat_starts(low)
            image_of(y)
        except UnsupportedLoweringError:
            return
        axis = node.attributes["axis"] % len(y.shape)
        producers = [self.producers.get(name) for name in node.inputs]
        slices = sum(each is not None and each.op == "slice" for each in producers)
        for tensor, start in zip(self.graph.ins(node), starts, strict=True):
            producer = self.producers.get(tensor.name)
            if slices > 1 and producer is not None and producer.op == "slice":
                continue  # one layer copies all slices, which are read in place
            if self._writable_in_place(node, tensor, y):
                gaps = self._writes(self.producers.get(tensor.name))
                self._add(tensor, y, start * strides_of(y.shape)[axis], gaps)

    def _writable_in_place(self, node: Node, tensor: Tensor, y: Tensor) -> bool:
        """Return True if a tensor has y's type, is read only by `node`, and its producer can write a part of y."""
        return (
            (self._writes(self.producers.get(tensor.name)) or self._product(tensor.name))
            and len(self.graph.consumers(tensor.name)) == 1
            and node.inputs.count(tensor.name) == 1
            and tensor.name not in self.graph.outputs
            and _alike(tensor, y)
        )

    def _product(self, name: str) -> bool:
        """Return True if a tensor is the product of matrices, which may be a contiguous part of another tensor."""
        return name in self.producers and self.producers[name].op == "matmul"

    def _slice(self, node: Node) -> None:
        (x,), y, a = self.graph.ins(node), self.graph.out(node), node.attributes
        inside = all(s >= 0 and s + n <= t for s, n, t in zip(a["starts"], a["sizes"], x.shape, strict=False))
        if (
            not inside
            or len(a["starts"]) != len(x.shape)
            or y.shape != a["sizes"]
            or set(a["steps"]) - {1}
            or x.constant
            or y.name in self.graph.outputs
            or not _alike(x, y)
            or not all(self._reads(reader, y.name) for reader in self.graph.consumers(y.name))
        ):
            return
        start = sum(s * step for s, step in zip(a["starts"], strides_of(x.shape), strict=True))
        self._add(y, x, start, all(_reads_strided(reader.op) for reader in self.graph.consumers(y.name)))

    def _writes(self, node: Node | None) -> bool:
        return node is not None and _writes_strided(node.op) and not needs_contiguous(self.graph, node)

    def _reads(self, node: Node, name: str) -> bool:
        if node.op == "matmul":
            return node.name in self.anchors and node.inputs.count(name) == 1
        if not _reads_strided(node.op) or node.name not in self.anchors:
            return False
        if needs_contiguous(self.graph, node):
            return False
        pools = node.op in ("max_pool2d", "avg_pool2d")
        if pools and covers_image(node, self.graph.ins(node)[0], self.graph.out(node)):
            return False
        return node.op in {"concat", *BINARY_OPS} or (node.inputs[0] == name and node.inputs.count(name) == 1)

    def _add(self, tensor: Tensor, whole: Tensor, start: int, gaps: bool) -> None:
        """Record a tensor as a part of another if it is contiguous or, with `gaps`, some channels of every pixel."""
        try:
            image_of(tensor)
        except UnsupportedLoweringError:
            return
        differ = [i for i, (a, b) in enumerate(zip(tensor.shape, whole.shape, strict=True)) if a != b]
        first = differ[0] if differ else 0
        last = differ[-1] if differ else 0
        pixels = tensor.elements // (tensor.shape[-1] if tensor.shape else 1)
        if differ == [len(tensor.shape) - 1] and pixels > 1:
            if gaps:
                self.parts[tensor.name] = SubTensor(whole.name, start, True)
        elif math.prod(tensor.shape[:last]) == 1 and first <= last:
            inside_pixel = pixels == 1 and last == len(tensor.shape) - 1
            if not self._gaps(whole.name) or (inside_pixel and len(differ) == 1):
                self.parts[tensor.name] = SubTensor(whole.name, start, False)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.quantization == b.quantization


def _reads_strided(op: str) -> bool:
    return op in LOWERINGS and LOWERINGS[op].strided_input


def _writes_strided(op: str) -> bool:
    return op in LOWERINGS and LOWERINGS[op].strided_output
