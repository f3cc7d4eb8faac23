"""ONNX operators that gather elements along dimensions: gather, expand, tile, reverse."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.shape import renamed, with_ones
from compiler.frontends.onnx.registry import converts, known
from compiler.frontends.onnx.values import (
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    broadcast,
    check_size,
)
from hw.errors import InputError, shown

#: So many places of elements may become a constant.
_MOST = 1 << 16
#: So many elements may a constant have that is spread.
_MOST_SPREAD = 1 << 26


def check_count(count: int) -> None:
    """Refuse so many elements of a dimension, best before their places are listed."""
    if count > _MOST:
        raise UnsupportedNodeError(f"taking {count:,} elements of a dimension one by one")


def picked(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    x: DynamicValue,
    places: list[int],
    axis: int,
    part: str = "picked",
) -> DynamicValue:
    """Elements of one dimension of the file at certain places."""
    check_count(len(places))
    x = emitter.movable(x)
    where = emitter.constant(f"{node.name}:places", ConstantValue(node.name, np.array(places, np.int32)))
    shape = tuple(len(places) if i == axis else n for i, n in enumerate(x.shape))
    return emitter.emit(
        node, "gather", [x.tensor, where], shape, x.order, x.kind, f"{part}_{axis}", axis=x.order.index(axis)
    )


def spread(
    emitter: OnnxGraphBuilder, node: FileNode, value: Value, shape: tuple[int, ...], part: str
) -> Value:
    """A value of as many dimensions as a shape, of which those of size one are repeated to make it."""
    if isinstance(value, ConstantValue):
        check_size(shape, _MOST_SPREAD)
        q = value.quantization
        numbers = value.data if q is not None and q.whole else value.numbers()
        data = np.ascontiguousarray(np.broadcast_to(numbers, shape))
        return ConstantValue(value.name, data, q if q is not None and q.whole else None)
    for axis, size in enumerate(shape):
        if value.shape[axis] != size:
            check_count(size)
            value = picked(emitter, node, value, [0] * size, axis, part)
    return value


@converts("Expand", inputs=(2, 2))
def _expand(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, sizes = inputs
    shape = broadcast([x.shape, tuple(known(sizes, "a shape").integers())])
    check_size(shape)
    ranked = with_ones(emitter, node.outputs[0], x, set(range(len(shape) - len(x.shape))))
    return [renamed(spread(emitter, node, ranked, shape, "spread"), node.outputs[0])]


@converts("Tile", inputs=(2, 2))
def _tile(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, times = emitter.flow(inputs[0]), known(inputs[1], "repeats").integers()
    if len(times) != x.rank or min(times, default=1) < 1:
        raise InputError(
            f"repeats {shown(times)} must be {x.rank} positive numbers for shape {list(x.shape)}"
        )
    check_size(tuple(n * count for n, count in zip(x.shape, times, strict=True)))
    for axis, count in enumerate(times):
        if count > 1:
            check_count(x.shape[axis] * count)
            x = picked(emitter, node, x, list(range(x.shape[axis])) * count, axis)
    return [renamed(x, node.outputs[0])]
