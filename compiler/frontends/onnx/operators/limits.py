"""ONNX operators that keep numbers within limits."""

import math
from collections.abc import Sequence
from typing import Any

from compiler.frontends.onnx.emit import Emitter
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.operators.shape import renamed
from compiler.frontends.onnx.registry import converts, known
from compiler.frontends.onnx.values import FLOAT, Flow, UnsupportedError, Value, broadcast
from hw.errors import InputError


def clipped(emitter: Emitter, node: FileNode, x: Value, low: float, high: float) -> Flow:
    """A value within limits."""
    x = emitter.flow(x)
    kind = emitter.arithmetic(node, x)
    if kind == FLOAT and x.quantized and low in (0.0, -math.inf) and high == math.inf:
        kind = x.kind  # zero is one of its integers
    operand = emitter.operand(x, x.order, kind)
    return emitter.emit(node, "clip", [operand], x.shape, x.order, kind, low=low, high=high)


@converts("Relu", inputs=(1, 1))
def _relu(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [clipped(emitter, node, inputs[0], 0.0, math.inf)]


@converts("Clip", inputs=(1, 3))
def _clip(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, *limits = inputs
    low, high = (
        node.float(key, default) if value is None else known(value, "a limit").scalar()
        for key, default, value in zip(("min", "max"), (-math.inf, math.inf), limits, strict=True)
    )
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        raise InputError(f"limits must be two numbers, not {low} and {high}")
    return [clipped(emitter, node, x, low, high)]


@converts("Min", "Max", inputs=(1, None))
def _limit(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    """A limit that is a constant clips."""
    if len(inputs) == 1:
        return [renamed(inputs[0], node.outputs[0])]
    if len(inputs) > 2:
        raise UnsupportedError(f"{len(inputs)} operands")
    x, limit = inputs if isinstance(inputs[0], Flow) else inputs[::-1]
    number = known(limit, "a limit").scalar()
    if number is None or math.isnan(number) or broadcast([x.shape, limit.shape]) != x.shape:
        raise UnsupportedError("a limit for each element")
    low, high = (-math.inf, number) if node.op == "Min" else (number, math.inf)
    return [clipped(emitter, node, x, low, high)]
