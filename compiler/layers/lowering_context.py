"""Context for lowering nodes to layers: graph, quantizations, lookup tables, and errors for unsupported nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node
from compiler.ir.ops import BINARY_OPS, LOGIC_OPS, TABLE_OPS
from compiler.ir.tensor import Tensor
from compiler.layers.base import Image
from compiler.reference import run_node
from compiler.util.scaling import Affine
from hw.config import MlaConfig
from hw.isa.enums import Dtype

EIGHT_BITS = ("int8", "uint8")


DTYPES: Mapping[str, Dtype] = {
    "int8": Dtype.I8,
    "uint8": Dtype.U8,
    "int16": Dtype.I16,
    "int32": Dtype.I32,
    "float32": Dtype.I32,
    "bool": Dtype.U8,
}


class UnsupportedLoweringError(Exception):
    """Error: the accelerator cannot execute a node; the message is the reason."""


@dataclass(frozen=True)
class SubTensor:
    """Location of a tensor that is contained in another.

    Parameters
    ----------
    container : str
        Name of the containing tensor.
    start : int
        Index of the first element in the containing tensor.
    gaps : bool
        True if the tensor consists of some channels of every pixel; otherwise its elements are contiguous.
    """

    container: str
    start: int
    gaps: bool


def image_of(tensor: Tensor) -> Image:
    """Return the shape of a tensor as rows, columns and channels; images of a batch are stacked vertically."""
    if tensor.dtype not in DTYPES:
        raise UnsupportedLoweringError(f"{tensor.dtype} tensors stay on the host")
    dtype, shape = DTYPES[tensor.dtype], tensor.shape
    if len(shape) == 4:
        return Image(shape[0] * shape[1], *shape[2:], dtype)
    channels = shape[-1] if shape else 1
    return Image(tensor.elements // channels, 1, channels, dtype)


def affine(tensor: Tensor) -> Affine:
    """Return the scale and zero point of a tensor with per-tensor quantization; booleans are 1 and 0."""
    q = tensor.quantization
    if tensor.dtype == "bool":
        return Affine(1.0, 0)
    if q is None or not q.whole:
        raise UnsupportedLoweringError(f"tensor {tensor.name!r} is not quantized as a whole")
    return Affine(q.scale[0], q.zero_point[0])


def same_quantization(x: Tensor, y: Tensor) -> bool:
    """Return True if two tensors have the same type and quantization."""
    return x.dtype == y.dtype and x.quantization == y.quantization


def clip_range(tensor: Tensor, low: float = -np.inf, high: float = np.inf) -> tuple[int, int]:
    """Quantize bounds with the scale and zero point of a tensor, as TFLite's CalculateActivationRangeQuantized does."""
    limits, q = np.iinfo(tensor.dtype), affine(tensor)
    out = []
    for bound in (low, high):
        with np.errstate(over="ignore"):  # limits may exceed the integer range
            scaled = np.float32(bound) / np.float32(q.scale)
        rounded = scaled if np.isinf(scaled) else np.trunc(scaled + np.copysign(0.5, scaled))
        out.append(int(np.clip(q.zero_point + float(rounded), limits.min, limits.max)))
    return out[0], out[1]


Group = tuple[Node, ...]


@dataclass(frozen=True)
class LoweringContext:
    """A group of nodes that is being lowered to a layer.

    Parameters
    ----------
    graph : Graph
        Graph that contains the nodes.
    nodes : tuple of Node
        Nodes of the group in topological order.
    rounding : str
        Kernels whose rounding is reproduced: "reference", "xnnpack" or "onnxruntime".
    config : MlaConfig
        Configuration of the machine, whose memories limit the sizes that some operators can have.
    """

    graph: Graph
    nodes: Group
    rounding: str
    config: MlaConfig = field(default_factory=MlaConfig)

    @property
    def name(self) -> str:
        """Name that the layer receives, by which schedules, measurements and reports identify it."""
        return layer_name([n.name for n in self.nodes], [n.op for n in self.nodes])

    @property
    def anchor(self) -> Node:
        """Node after which the layer is named."""
        return anchor_of(self.nodes)

    @property
    def x(self) -> Tensor:
        """First input of the anchor."""
        return self.graph.ins(self.anchor)[0]

    @property
    def y(self) -> Tensor:
        """Output of the last node."""
        return self.graph.out(self.nodes[-1])

    def common(self, *others: str, x: str | None = None) -> dict[str, Any]:
        """Return the fields that all layers have; `others` are the names of further tensors that the layer reads."""
        names = (x or self.x.name, self.y.name, *others)
        return {
            "name": self.name,
            "nodes": tuple(n.name for n in self.nodes),
            "ops": tuple(n.op for n in self.nodes),
            "x": names[0],
            "y": self.y.name,
            "shapes": {name: image_of(self.graph.tensors[name]) for name in names},
        }


#: Anchors into which preceding transposes are fused.
_INNER = ("matmul",)


def anchor_of(nodes: Group) -> Node:
    """Return the node that determines a group's layer kind: a matrix product if present, otherwise the first node."""
    return nodes[_anchor_index([node.op for node in nodes])]


def layer_name(nodes: Sequence[str], ops: Sequence[str]) -> str:
    """Return the name of the layer that a group of nodes becomes: that of its anchor, which is unique in a model.

    The name does not change if nodes are fused before or after the anchor.

    Parameters
    ----------
    nodes, ops : sequences of str
        Names and operators of the nodes, in order.
    """
    return nodes[_anchor_index(ops)]


def _anchor_index(ops: Sequence[str]) -> int:
    return next((index for index, op in enumerate(ops) if op in _INNER), 0)


#: Operators that return or read booleans, and operators that can be functions of one operand.
_SELECTING = LOGIC_OPS | {"where"}
_UNARY = TABLE_OPS | BINARY_OPS | _SELECTING


def is_unary(graph: Graph, node: Node) -> bool:
    """Return True if a node is a function of one 8-bit operand, possibly with constant scalar operands."""
    x, *others = graph.ins(node)
    if node.op not in _UNARY or len(node.outputs) != 1:
        return False
    if x.constant and others:
        x, others = others[0], [x]
    constants = all(t.data is not None and t.elements == 1 for t in others)
    out = graph.out(node)
    if node.op in _SELECTING:
        whole = all(t.quantization is None or t.quantization.whole for t in (x, out, *others))
        return constants and not x.constant and whole and {x.dtype, out.dtype} <= {*EIGHT_BITS, "bool"}
    whole = all(t.quantization is not None and t.quantization.whole for t in (x, out, *others))
    if node.op == "clip" and x.quantization is None and out.quantization is None:
        whole = x.dtype == out.dtype  # plain integers
    return constants and not x.constant and whole and x.dtype in EIGHT_BITS and out.dtype in EIGHT_BITS


def values_of(dtype: str) -> NDArray:
    """Return all values of an 8-bit type or of the booleans, in ascending order."""
    if dtype == "bool":
        return np.array([False, True])
    limits = np.iinfo(dtype)
    return np.arange(limits.min, limits.max + 1).astype(dtype)


def table_of(graph: Graph, node: Node, rounding: str) -> NDArray[np.int16]:
    """Evaluate a unary node for all values of its operand; entry q & 255 of the table is the result for q."""
    inputs, out = graph.ins(node), graph.out(node)
    (x,) = (t for t in inputs if not t.constant)
    every = values_of(x.dtype)
    small = Graph(graph.name)
    for name in dict.fromkeys(t.name for t in inputs):
        tensor = graph.tensors[name]
        if tensor.constant:
            scalar = cast(NDArray, tensor.data).reshape(())
            small.add_tensor(Tensor(name, (), tensor.dtype, tensor.quantization, scalar))
        else:
            small.add_input(Tensor(name, every.shape, tensor.dtype, tensor.quantization))
    small.add_tensor(Tensor(out.name, every.shape, out.dtype, out.quantization))
    copy = small.add_node(Node(node.name, node.op, node.inputs, node.outputs, node.attributes))
    values = [every if t.name == x.name else cast(NDArray, small.tensors[t.name].data) for t in inputs]
    (results,) = run_node(small, copy, values, rounding=rounding)  # type: ignore[arg-type]
    table = np.zeros(256, np.int16)
    table[every.astype(np.int64) & 255] = results
    return table
