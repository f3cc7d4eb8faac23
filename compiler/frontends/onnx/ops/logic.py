"""ONNX comparisons and logical operators."""

from collections.abc import Sequence
from typing import Any

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.elementwise import order_of
from compiler.frontends.onnx.ops.shape import with_ones
from compiler.frontends.onnx.registry import converts
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    Kind,
    UnsupportedNodeError,
    Value,
    broadcast,
    plain,
)

_BOOL = Kind("bool")
#: Operators of the graph, and whether the operands change places.
_COMPARISONS = {
    "Equal": ("equal", False),
    "Less": ("less", False),
    "LessOrEqual": ("less_equal", False),
    "Greater": ("less", True),
    "GreaterOrEqual": ("less_equal", True),
}


@converts(*_COMPARISONS, inputs=(2, 2))
def _compare(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    op, turned = _COMPARISONS[node.op]
    kinds = [_numbers(value) for value in inputs]
    if len({kind.dtype if kind is not FLOAT else "" for kind in kinds}) != 1:
        raise UnsupportedNodeError("comparing numbers of two types")
    return [_pointwise(emitter, node, op, inputs[::-1] if turned else inputs, kinds[0])]


def _numbers(value: Value) -> Kind:
    """The type that a value has in the file."""
    if isinstance(value, ConstantValue):
        name = value.numbers().dtype.name
        return FLOAT if name == "float32" else Kind(name)
    return FLOAT if value.real or value.tensor.dtype == "float32" else Kind(value.tensor.dtype)


def _pointwise(
    emitter: OnnxGraphBuilder, node: FileNode, op: str, inputs: list[Value], kind: Kind
) -> DynamicValue:
    shape = broadcast([value.shape for value in inputs])
    rank = len(shape)
    order = order_of(inputs, rank)
    equal = [with_ones(emitter, v.name, v, set(range(rank - len(v.shape)))) for v in inputs]
    operands = [
        emitter.operand(v, order, kind)
        if isinstance(v, ConstantValue) or kind == FLOAT
        else emitter.in_order(v, order).tensor
        for v in equal
    ]
    return emitter.emit(node, op, operands, shape, order, _BOOL)


@converts("And", "Or", inputs=(2, 2))
def _both(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [_pointwise(emitter, node, f"logical_{node.op.lower()}", inputs, _BOOL)]


@converts("Not", inputs=(1, 1))
def _not(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x = emitter.flow(inputs[0])
    operand = emitter.in_order(x, plain(x.rank)).tensor
    return [emitter.emit(node, "logical_not", [operand], x.shape, plain(x.rank), _BOOL)]
