"""ONNX padding with a constant value or with values near the edge."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.gather import picked
from compiler.frontends.onnx.ops.shape import renamed
from compiler.frontends.onnx.ops.slice_concat import part_of
from compiler.frontends.onnx.registry import choice, converts, integers, known
from compiler.frontends.onnx.values import (
    FLOAT,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    arranged,
    counted_from_front,
    plain,
)
from hw.errors import InputError, shown

#: No dimension gets wider than this.
_FAR = 1 << 31
#: Elements that are taken from elsewhere one by one: so many on each side at most.
_MOST_PICKED = 1 << 14


@converts("Pad", inputs=(1, 4))
def _pad(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, given, value, axes = inputs
    x = emitter.movable(emitter.flow(x))
    mode = choice(node, "mode", "constant", "constant", "reflect", "edge", "wrap")
    widths = integers(node, "pads", given)
    number = node.float("value", 0.0) if value is None else known(value, "a value").scalar()
    where = plain(x.rank) if axes is None else known(axes, "axes").integers()
    if widths is None or len(widths) != 2 * len(where) or number is None:
        raise InputError(f"must have {2 * len(where)} widths and one value")
    before, after = [0] * x.rank, [0] * x.rank
    for i, axis in enumerate(where):
        place = counted_from_front(axis, x.rank)
        before[place], after[place] = widths[i], widths[i + len(where)]
    starts = [max(-low, 0) for low in before]
    sizes = [n - s - max(-high, 0) for n, s, high in zip(x.shape, starts, after, strict=True)]
    if min(sizes) < 1 or max(*before, *after) >= _FAR:
        raise InputError(
            f"widths {shown(list(widths))} do not fit shape {list(x.shape)}; each must be less than {_FAR:,}"
        )
    if mode != "constant":
        pairs = list(zip(before, after, strict=True))
        return [renamed(_mirrored(emitter, node, x, pairs, mode), node.outputs[0])]
    x = part_of(emitter, node, x, starts, sizes, [1] * x.rank, "cut")
    edges = [(max(low, 0), max(high, 0)) for low, high in zip(before, after, strict=True)]
    q = x.tensor.quantization
    if q is not None and not x.real:  # the file pads with an integer, the graph with what it means
        number = q.scale[0] * (number - q.zero_point[0])
    kind = x.kind if number == 0 or not x.real else FLOAT
    if not any(map(any, edges)):
        return [renamed(x, node.outputs[0])]
    shape = tuple(low + n + high for n, (low, high) in zip(x.shape, edges, strict=True))
    operand = emitter.operand(x, x.order, kind)
    return [
        emitter.emit(
            node, "pad", [operand], shape, x.order, kind, pads=arranged(edges, x.order), value=number
        )
    ]


def _mirrored(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, widths: list[tuple[int, int]], mode: Any
) -> DynamicValue:
    """Rows picked along one dimension after the other."""
    for axis, pair in enumerate(widths):
        if min(pair) < 0 or max(pair) > _MOST_PICKED:
            raise UnsupportedNodeError(f"padding dimension {axis} by {mode} with {pair[0]} and {pair[1]}")
        if any(pair):
            places = np.pad(np.arange(x.shape[axis]), pair, mode)
            x = picked(emitter, node, x, places.tolist(), axis)
    return x
