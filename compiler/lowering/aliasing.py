"""Aliasing of tensors: operands of concatenations are written in place, and slices are read in place."""

import math
from collections.abc import Sequence

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import BINARY_OPS
from compiler.ir.tensor import Tensor
from compiler.layers.lowering_context import (
    Group,
    LoweringContext,
    SubTensor,
    UnsupportedLoweringError,
    image_of,
)
from compiler.layers.move import concat_starts, strides_of
from compiler.layers.registry import LOWERINGS

#: Average pools with larger windows are computed as a sum over all pixels at once, which must be contiguous.
_MAX_WINDOW = 255


def find_parts(graph: Graph, groups: Sequence[Group]) -> dict[str, SubTensor]:
    """Return the tensors that are stored as a part of another tensor, by name."""
    return _Finder(graph, groups).run()


class _Finder:
    def __init__(self, graph: Graph, groups: Sequence[Group]):
        self.graph = graph
        self.groups = [LoweringContext(graph, nodes, "") for nodes in groups]
        self.producer_ops = {low.y.name: low.anchor.op for low in self.groups}
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
        for tensor, start in zip(self.graph.ins(node), starts, strict=True):
            if self._writable_in_place(node, tensor, y):
                self._add(tensor, y, start * strides_of(y.shape)[axis])

    def _writable_in_place(self, node: Node, tensor: Tensor, y: Tensor) -> bool:
        """Return True if a tensor has y's type, is read only by `node`, and its producer supports strided output."""
        return (
            _writes_strided(self.producer_ops.get(tensor.name))
            and len(self.graph.consumers(tensor.name)) == 1
            and node.inputs.count(tensor.name) == 1
            and tensor.name not in self.graph.outputs
            and _alike(tensor, y)
        )

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
        self._add(y, x, start)

    def _reads(self, node: Node, name: str) -> bool:
        if not _reads_strided(node.op) or node.name not in self.anchors:
            return False
        if node.op == "avg_pool2d" and math.prod(node.attributes["kernel"]) > _MAX_WINDOW:
            return False
        return node.op in {"concat", *BINARY_OPS} or (node.inputs[0] == name and node.inputs.count(name) == 1)

    def _add(self, tensor: Tensor, whole: Tensor, start: int) -> None:
        """Record a tensor as a part of another if it consists of channels of every pixel or is contiguous."""
        try:
            image_of(tensor)
        except UnsupportedLoweringError:
            return
        differ = [i for i, (a, b) in enumerate(zip(tensor.shape, whole.shape, strict=True)) if a != b]
        first = differ[0] if differ else 0
        last = differ[-1] if differ else 0
        pixels = tensor.elements // (tensor.shape[-1] if tensor.shape else 1)
        if differ == [len(tensor.shape) - 1] and pixels > 1:
            self.parts[tensor.name] = SubTensor(whole.name, start, True)
        elif math.prod(tensor.shape[:last]) == 1 and first <= last:
            inside_pixel = pixels == 1 and last == len(tensor.shape) - 1
            if not self._gaps(whole.name) or (inside_pixel and len(differ) == 1):
                self.parts[tensor.name] = SubTensor(whole.name, start, False)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.quantization == b.quantization


def _reads_strided(op: str) -> bool:
    return op in LOWERINGS and LOWERINGS[op].strided_input


def _writes_strided(op: str | None) -> bool:
    return op in LOWERINGS and LOWERINGS[op].strided_output
