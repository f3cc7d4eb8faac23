"""ONNX clipping, minimum and maximum."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.elementwise import order_of
from compiler.frontends.onnx.ops.gather import spread
from compiler.frontends.onnx.ops.quantize import quantized
from compiler.frontends.onnx.ops.shape import renamed, with_ones
from compiler.frontends.onnx.registry import converts, known
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    Kind,
    UnsupportedNodeError,
    Value,
    broadcast,
)
from compiler.ir.tensor import Tensor
from hw.errors import InputError


def clipped(emitter: OnnxGraphBuilder, node: FileNode, x: Value, low: float, high: float) -> DynamicValue:
    """A value within limits."""
    x = emitter.flow(x)
    kind = emitter.arithmetic(node, x)
    if kind == FLOAT and x.quantized and low in (0.0, -math.inf) and high == math.inf:
        kind = x.kind  # zero is one of its integers
    operand = emitter.operand(x, x.order, kind)
    return emitter.emit(node, "clip", [operand], x.shape, x.order, kind, low=low, high=high)


@converts("Relu", inputs=(1, 1))
def _relu(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [clipped(emitter, node, inputs[0], 0.0, math.inf)]


@converts("Clip", inputs=(1, 3))
def _clip(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, *limits = inputs
    low, high = (
        node.float(key, default) if value is None else known(value, "a limit").scalar()
        for key, default, value in zip(("min", "max"), (-math.inf, math.inf), limits, strict=True)
    )
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        raise InputError(f"limits must be two numbers, not {low} and {high}")
    return [clipped(emitter, node, x, low, high)]


@converts("Min", "Max", inputs=(1, None))
def _extreme(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    """A limit that is a constant clips; of other operands, side by side, the greatest or least is taken."""
    if len(inputs) == 1:
        return [renamed(inputs[0], node.outputs[0])]
    x, *limits = sorted(inputs, key=lambda value: isinstance(value, ConstantValue))
    numbers = [value.scalar() for value in limits if isinstance(value, ConstantValue)]
    clips = [number for number in numbers if number is not None and not math.isnan(number)]
    if (
        isinstance(x, DynamicValue)
        and len(clips) == len(limits)
        and broadcast([v.shape for v in inputs]) == x.shape
    ):
        low, high = (-math.inf, min(clips)) if node.op == "Min" else (max(clips), math.inf)
        return [clipped(emitter, node, x, low, high)]
    return [_side_by_side(emitter, node, inputs)]


def _side_by_side(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value]) -> DynamicValue:
    """Operands spread to one shape, put together along a new dimension, which is then reduced."""
    shape = broadcast([value.shape for value in inputs])
    if not shape:
        raise UnsupportedNodeError("scalars")
    inputs = [emitter.movable(value) if isinstance(value, DynamicValue) else value for value in inputs]
    kind = emitter.arithmetic(node, *[value for value in inputs if isinstance(value, DynamicValue)])
    order, rows = order_of(inputs, len(shape)), list[Tensor]()
    for number, value in enumerate(inputs):
        ones = set(range(len(shape) - len(value.shape)))
        ranked = with_ones(emitter, value.name, _in_kind(emitter, value, kind), ones)
        tensor = emitter.operand(spread(emitter, node, ranked, shape, f"operand{number}"), order, kind)
        rows.append(emitter.reshape(tensor, (1, *tensor.shape)))
    joined = emitter.emit(
        node, "concat", rows, (len(rows), *shape), (0, *(i + 1 for i in order)), kind, "both", axis=0
    )
    op = "reduce_max" if node.op == "Max" else "reduce_min"
    return emitter.emit(node, op, [joined.tensor], shape, order, kind, axes=(0,), keep=False)


def _in_kind(emitter: OnnxGraphBuilder, value: Value, kind: Kind) -> Value:
    """A value in what is made: numbers that are rounded first have the same greatest one."""
    if kind == FLOAT or kind.quantization is None or not kind.real:
        return value
    if isinstance(value, DynamicValue):
        if value.kind == kind:
            return value
        return DynamicValue(
            value.name, emitter.convert("requantize", value.tensor, kind), value.order, value.real
        )
    numbers = value.real()
    if np.isnan(numbers).any():
        raise UnsupportedNodeError("a limit that is no number")
    most = np.finfo(np.float32).max
    stored = quantized(np.clip(numbers, -most, most), kind.quantization, kind.dtype)
    return ConstantValue(value.name, stored, kind.quantization)
