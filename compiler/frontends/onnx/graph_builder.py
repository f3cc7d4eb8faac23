"""Graph builder of the ONNX front end, which converts operands to the layout and type that an operator needs."""

from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.frontends.builder import GraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    Order,
    UnsupportedNodeError,
    Value,
    ValueType,
    arranged,
    check_size,
    plain,
)
from compiler.ir.ops import OPS
from compiler.ir.tensor import IDENTITY, Quantization, Tensor
from hw.errors import InputError

if TYPE_CHECKING:
    from compiler.frontends.onnx.registry import OnnxReader

#: Limit on the nodes of the graph, because the unrolled loops of a damaged file could be arbitrarily large.
_MAX_NODES = 1 << 18


class OnnxGraphBuilder:
    """Builder of a graph, in which each value is converted to an operand once for all its consumers.

    Parameters
    ----------
    name : str
        Name of the graph.
    targets : dict
        Type and quantization, by name, of the values of the file that only quantizations read.
    meanings : dict
        Quantization, by name, of the integer values of the file, inferred from their producers and consumers.
    room : int
        Maximum total number of elements of the constants that are added to the graph.

    Attributes
    ----------
    reader : OnnxReader or None
        Converter of subgraphs.
    repetition : str
        Part of the names of new tensors that is different in each repetition of the same computation, such as ":3:" in
        time step 3. Tensors whose names differ only in this part form a group. "" outside of repetitions.
    """

    def __init__(
        self, name: str, targets: dict[str, ValueType], meanings: dict[str, Quantization], room: int
    ):
        self.build = GraphBuilder(name)
        self.targets = targets
        self.meanings = meanings
        self.room = room
        self.reader: OnnxReader | None = None
        self.repetition = ""
        self._views: dict[tuple[str, str, Any], Tensor] = {}

    def arithmetic(self, node: FileNode, *operands: Value) -> ValueType:
        """Return the type in which a node computes, which is also the type of its output.

        The type is quantized integers if all operands are quantized and only quantizations read the output. It is plain
        integers if no operand is a floating-point value, and float32 otherwise.
        """
        flows = [v for v in operands if isinstance(v, DynamicValue)]
        target = self.targets.get(node.outputs[0])
        if flows and all(flow.quantized for flow in flows) and target is not None:
            fixed = [v for v in operands if isinstance(v, ConstantValue)]
            if all(v.quantization is not None or v.scalar() is not None for v in fixed):
                return target
        if flows and all(not flow.real and flow.tensor.dtype != "float32" for flow in flows):
            if any(flow.tensor.quantization not in (None, IDENTITY) for flow in flows):
                raise UnsupportedNodeError(
                    "its operands are the integers of quantized values, without their scales"
                )
            wide = flows[0].tensor.dtype in ("int32", "int64")  # quantized int8 would saturate
            return ValueType(flows[0].tensor.dtype, self.meanings.get(node.outputs[0]) if wide else None)
        return FLOAT

    def movable(self, flow: DynamicValue) -> DynamicValue:
        """Return a value whose elements can be moved: dequantized if it has several scales, otherwise unchanged."""
        q = flow.tensor.quantization
        if q is None or q.whole:
            return flow
        if not flow.real:
            raise UnsupportedNodeError(
                "its input is quantized with a scale for each channel, so its elements cannot be moved"
            )
        return DynamicValue(flow.name, self._float(flow.tensor), flow.order)

    def flow(self, value: Value) -> DynamicValue:
        """Return a value as a dynamic value; a constant becomes a tensor of the graph."""
        if isinstance(value, DynamicValue):
            return value
        inferred = self.meanings.get(value.name) if value.data.dtype.kind in "iu" else None
        tensor = self.constant(
            value.name, ConstantValue(value.name, value.data, value.quantization or inferred)
        )
        return DynamicValue(value.name, tensor, plain(len(value.shape)), value.quantization is not None)

    def in_order(self, flow: DynamicValue, order: Order) -> DynamicValue:
        """Return the value with its dimensions in the given order, transposed if necessary."""
        if flow.order == order:
            return flow
        perm = tuple(flow.order.index(i) for i in order)
        return DynamicValue(flow.name, self._transposed(flow.tensor, perm), order, flow.real)

    def operand(self, value: Value, order: Order, kind: ValueType) -> Tensor:
        """Return a value as an operand of a node that computes in the type `kind`."""
        if isinstance(value, ConstantValue):
            return self.constant(value.name, _as_kind(value, kind).transposed(order))
        tensor = self.in_order(value, order).tensor
        if kind == FLOAT:
            return self._float(tensor)
        return tensor

    def constant(self, name: str, value: ConstantValue) -> Tensor:
        """Add a constant, or reuse an equal constant of the same name."""
        key = (name, "constant", (value.data.shape, value.data.dtype.name, value.quantization))
        cached = self._views.get(key)
        if cached is not None and cached.data is not None and np.array_equal(cached.data, value.data):
            return cached
        self.room -= value.data.size
        if self.room < 0:
            raise InputError("the constants of the nodes up to this one are too large in sum")
        self._views[key] = tensor = self.build.constant(name, value.data, value.quantization)
        return tensor

    def reshape(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Reshape a tensor, or return an existing tensor that has the same elements and the given shape."""
        while (producer := self.build.graph.producer(tensor.name)) is not None and producer.op == "reshape":
            (tensor,) = self.build.graph.ins(producer)
        before = self._before_reshape(tensor, shape)
        if before is not None:
            return before
        key = (tensor.name, "reshape", shape)
        if key not in self._views:
            output = self.build.between(tensor, f"{tensor.name}:shaped", shape)
            self._views[key] = self.build.node(
                f"{tensor.name}:reshape", "reshape", [tensor], output, shape=shape
            )
        return self._views[key]

    def _before_reshape(self, tensor: Tensor, shape: tuple[int, ...], depth: int = 4) -> Tensor | None:
        """Recompute a tensor in the given shape from the inputs of earlier reshapes, if its producers are elementwise.

        This removes pairs of reshapes around elementwise nodes.
        """
        if tensor.shape == shape:
            return tensor
        producer = self.build.graph.producer(tensor.name)
        if producer is None or not depth:
            return None
        operands = self.build.graph.ins(producer)
        if producer.op == "reshape":
            return operands[0] if operands[0].shape == shape else None
        if not OPS[producer.op].elementwise or any(operand.shape != tensor.shape for operand in operands):
            return None
        before = [self._before_reshape(operand, shape, depth - 1) for operand in operands]
        found = [operand for operand in before if operand is not None]
        if len(found) < len(before):
            return None
        key = (tensor.name, "before", shape)
        if key not in self._views:
            output = self.build.between(tensor, tensor.name, shape)
            self._views[key] = self.build.node(
                producer.name, producer.op, found, output, **producer.attributes
            )
        return self._views[key]

    def emit(
        self,
        node: FileNode,
        op: str,
        operands: list[Tensor],
        shape: tuple[int, ...],
        order: Order,
        kind: ValueType,
        part: str = "",
        index: int = 0,
        **attributes: Any,
    ) -> DynamicValue:
        """Add a node.

        Parameters
        ----------
        node : FileNode
            Node of the file that is being converted.
        op, operands, attributes
            Operator, operands and attributes of the new node.
        shape : tuple of int
            Shape of the output, in the file's order of dimensions.
        order : tuple of int
            Order of the output's dimensions in the graph's tensor.
        kind : ValueType
            Type of the output.
        part : str
            Suffix of the new node's name if the file's node is converted to several nodes.
        index : int
            Index of the output among the outputs of the file's node.
        """
        name = (node.outputs[index] or node.name) + (f":{part}" if part else "")
        check_size(shape)
        if len(self.build.graph.nodes) >= _MAX_NODES:
            raise InputError(f"the graph would have more than {_MAX_NODES:,} nodes")
        group = name.replace(self.repetition, ":", 1) if self.repetition else ""
        output = Tensor(
            self.build.fresh(name), arranged(shape, order), kind.dtype, kind.quantization, group=group
        )
        self.build.node(node.name + (f":{part}" if part else ""), op, operands, output, **attributes)
        return DynamicValue(name, output, order, kind.real)

    def convert(self, op: str, tensor: Tensor, kind: ValueType) -> Tensor:
        """Quantize, dequantize or requantize a tensor; equal conversions share one node."""
        key = (tensor.name, op, (kind.dtype, kind.quantization))
        if key not in self._views:
            name = self.build.fresh(f"{tensor.name}:{op}d")
            output = Tensor(name, tensor.shape, kind.dtype, kind.quantization)
            self._views[key] = self.build.node(f"{tensor.name}:{op}", op, [tensor], output)
        return self._views[key]

    def _float(self, tensor: Tensor) -> Tensor:
        if tensor.dtype == "float32":
            return tensor
        if tensor.quantization is None:
            raise UnsupportedNodeError(f"tensor {tensor.name!r} must hold real numbers, not {tensor.dtype}")
        q, last = tensor.quantization, len(tensor.shape) - 1
        if q.axis in (None, last):
            return self.convert("dequantize", tensor, FLOAT)
        # The hardware dequantizes with a scale per lane, so the axis of the scales must be the last one.
        order = (*(axis for axis in range(last + 1) if axis != q.axis), q.axis)
        real = self.convert("dequantize", self._transposed(tensor, order), FLOAT)
        return self._transposed(real, tuple(order.index(axis) for axis in range(last + 1)))

    def _transposed(self, tensor: Tensor, perm: Order) -> Tensor:
        """Transpose a tensor, or reshape it if only dimensions of size one are permuted."""
        shape = tuple(tensor.shape[i] for i in perm)
        nontrivial = [i for i in perm if tensor.shape[i] > 1]
        if nontrivial == sorted(nontrivial) and (tensor.quantization is None or tensor.quantization.whole):
            return self.reshape(tensor, shape)
        key = (tensor.name, "transpose", perm)
        if key not in self._views:
            q = tensor.quantization
            if q is not None and q.axis is not None:
                q = Quantization(q.scale, q.zero_point, perm.index(q.axis))
            output = Tensor(self.build.fresh(f"{tensor.name}:transposed"), shape, tensor.dtype, q)
            self._views[key] = self.build.node(
                f"{tensor.name}:transpose", "transpose", [tensor], output, perm=perm
            )
        return self._views[key]


def _as_kind(value: ConstantValue, kind: ValueType) -> ConstantValue:
    """Return a constant as an operand of a node that computes in the type `kind`."""
    if kind == FLOAT:
        return ConstantValue(value.name, value.real())
    if not kind.real:
        return ConstantValue(value.name, value.numbers().astype(kind.dtype))
    if value.quantization is not None:
        return value
    number = value.scalar()
    if number is None:
        raise UnsupportedNodeError(
            f"tensor {value.name!r} holds real numbers, but the other operands are quantized"
        )
    # With its magnitude as the scale, the value is exactly one quantization step from zero.
    steps, zero = (0, 0) if number == 0 else (1, 0) if number > 0 else (0, 1)
    return ConstantValue(
        value.name, np.full(value.shape, steps, kind.dtype), Quantization.per_tensor(abs(number) or 1.0, zero)
    )
