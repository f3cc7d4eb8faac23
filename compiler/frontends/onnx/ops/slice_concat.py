"""ONNX slicing, splitting and concatenation."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.gather import picked
from compiler.frontends.onnx.ops.shape import renamed, without_ones
from compiler.frontends.onnx.registry import converts, integers
from compiler.frontends.onnx.values import (
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    arranged,
    counted_from_front,
    plain,
)
from hw.errors import InputError, shown


def part_of(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    x: DynamicValue,
    starts: list[int],
    sizes: list[int],
    steps: list[int],
    part: str = "",
    index: int = 0,
) -> DynamicValue:
    """A slice; starts, sizes and steps are those of the file's dimensions."""
    x = emitter.movable(x)
    if tuple(sizes) == x.shape and set(steps) == {1}:
        return x
    spans = {key: arranged(v, x.order) for key, v in (("starts", starts), ("sizes", sizes), ("steps", steps))}
    return emitter.emit(node, "slice", [x.tensor], tuple(sizes), x.order, x.kind, part, index, **spans)


@converts("Slice", inputs=(1, 5))
def _slice(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, *given = inputs
    x = emitter.flow(x)
    starts, ends, axes, steps = (
        integers(node, key, value)
        for key, value in zip(("starts", "ends", "axes", "steps"), given, strict=True)
    )
    if starts is None or ends is None:
        raise InputError("must have starts and ends")
    axes = plain(len(starts)) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise InputError("starts, ends, axes and steps must be as many, no step 0")
    begin, size, step = [0] * x.rank, list(x.shape), [1] * x.rank
    for start, end, axis, by in zip(starts, ends, axes, steps, strict=True):
        i = counted_from_front(axis, x.rank)
        span = range(x.shape[i])[start:end:by]
        if not span:
            raise InputError(f"elements {start}..{end} of dimension {i} of shape {list(x.shape)} are none")
        if by < 0:
            x, size[i] = picked(emitter, node, x, list(span), i), len(span)
        else:
            begin[i], size[i], step[i] = span.start, len(span), by if len(span) > 1 else 1
    return [renamed(part_of(emitter, node, x, begin, size, step), node.outputs[0])]


@converts("Split", inputs=(1, 2))
def _split(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, given = inputs
    x = emitter.flow(x)
    axis, count = counted_from_front(node.int("axis", 0), x.rank), len(node.outputs)
    sizes = integers(node, "split", given)
    if sizes is None:
        each = -(-x.shape[axis] // count)
        sizes = (*(each,) * (count - 1), x.shape[axis] - each * (count - 1))
    if len(sizes) != count or sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise InputError(f"{count} outputs of sizes {shown(list(sizes))} do not make {x.shape[axis]}")
    made: list[Value] = []
    for i, size in enumerate(sizes):
        starts, whole = [0] * x.rank, list(x.shape)
        starts[axis], whole[axis] = sum(sizes[:i]), size
        if not size:
            made.append(ConstantValue(node.outputs[i], np.zeros(whole, np.float32)))
            continue
        part = "" if node.outputs[i] else str(i)
        made.append(renamed(part_of(emitter, node, x, starts, whole, [1] * x.rank, part, i), node.outputs[i]))
    return made


@converts("Concat", inputs=(1, None))
def _concat(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    inputs = [v for v in inputs if 0 not in v.shape] or inputs
    flows = [v for v in inputs if isinstance(v, DynamicValue)]
    order = next((f.order for f in flows if f.order != plain(f.rank)), plain(len(inputs[0].shape)))
    shapes = [v.shape for v in inputs]
    axis = counted_from_front(node.int("axis", 1), len(shapes[0]))
    rests = {(*shape[:axis], None, *shape[axis + 1 :]) for shape in shapes}
    if len(rests) != 1 or {len(shape) for shape in shapes} != {len(order)}:
        raise InputError(f"shapes {', '.join(str(list(s)) for s in shapes)} do not join along axis {axis}")
    flows = [emitter.movable(f) if f.real else f for f in flows]
    alike = len(flows) == len(inputs) and len({flow.kind for flow in flows}) == 1
    if alike and (not flows[0].real or emitter.targets.get(node.outputs[0]) is None):
        kind, inputs = flows[0].kind, flows
    else:
        kind = emitter.arithmetic(node, *inputs)
    shape = list(shapes[0])
    shape[axis] = sum(s[axis] for s in shapes)
    operands = [emitter.operand(v, order, kind) for v in inputs]
    return [emitter.emit(node, "concat", operands, tuple(shape), order, kind, axis=order.index(axis))]


@converts("Gather", inputs=(2, 2))
def _gather(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, where = inputs
    axis, name = counted_from_front(node.int("axis", 0), len(x.shape)), node.outputs[0]
    x, size = emitter.movable(emitter.flow(x)), x.shape[axis]
    if isinstance(where, ConstantValue):
        places = where.integers()
        if any(not -size <= place < size for place in places):
            raise InputError(f"indices {shown(places)} must be within {size}")
        places = [place % size for place in places]
        if where.shape == () or (len(places) == 1 and len(where.shape) == 1):
            starts, sizes = [0] * x.rank, list(x.shape)
            starts[axis], sizes[axis] = places[0], 1
            one = part_of(emitter, node, x, starts, sizes, [1] * x.rank, "" if where.shape else "one")
            return [renamed(one, name) if where.shape else without_ones(emitter, name, one, {axis})]
        where = ConstantValue(where.name, np.array(places, np.int32).reshape(where.shape))
    elif where.tensor.dtype not in ("int32", "int64"):
        raise UnsupportedNodeError(f"indices of type {where.tensor.dtype}")
    places = emitter.flow(where)
    operands = [emitter.in_order(v, plain(v.rank)).tensor for v in (x, places)]
    shape = x.shape[:axis] + places.shape + x.shape[axis + 1 :]
    return [emitter.emit(node, "gather", operands, shape, plain(len(shape)), x.kind, axis=axis)]
