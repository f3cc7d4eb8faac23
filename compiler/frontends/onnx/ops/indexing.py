"""Conversion of ONNX operators that select, repeat, join or pad elements, such as Gather, Slice and Concat."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.onnx.function_bodies import BodyBuilder
from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.shape import renamed, with_ones, without_ones
from compiler.frontends.onnx.registry import choice, converts, integers, known
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    SequenceValue,
    UnsupportedNodeError,
    Value,
    arranged,
    broadcast,
    check_size,
    counted_from_front,
    plain,
)
from hw.errors import InputError, shown

#: Limit on the indices of a gather that are stored as a constant.
_MAX_INDICES = 1 << 16
#: Limit on the elements of a broadcast constant.
_MAX_BROADCAST_ELEMENTS = 1 << 26


def check_count(count: int) -> None:
    """Raise UnsupportedNodeError if a gather would need too many indices, before the indices are created."""
    if count > _MAX_INDICES:
        raise UnsupportedNodeError(f"{count:,} elements are selected one by one, more than {_MAX_INDICES:,}")


def picked(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    x: DynamicValue,
    indices: list[int],
    axis: int,
    part: str = "picked",
) -> DynamicValue:
    """Add a gather of constant indices along dimension `axis`, counted in the file's order."""
    check_count(len(indices))
    x = emitter.movable(x)
    where = emitter.constant(f"{node.name}:places", ConstantValue(node.name, np.array(indices, np.int32)))
    shape = tuple(len(indices) if i == axis else n for i, n in enumerate(x.shape))
    return emitter.emit(
        node, "gather", [x.tensor, where], shape, x.order, x.kind, f"{part}_{axis}", axis=x.order.index(axis)
    )


def broadcast_to(
    emitter: OnnxGraphBuilder, node: FileNode, value: Value, shape: tuple[int, ...], part: str
) -> Value:
    """Broadcast a value to `shape`, which has the same rank, by repeating dimensions of size one."""
    if isinstance(value, ConstantValue):
        check_size(shape, _MAX_BROADCAST_ELEMENTS)
        q = value.quantization
        numbers = value.data if q is not None and q.whole else value.numbers()
        data = np.ascontiguousarray(np.broadcast_to(numbers, shape))
        return ConstantValue(value.name, data, q if q is not None and q.whole else None)
    for axis, size in enumerate(shape):
        if value.shape[axis] != size:
            value = _spread(emitter, node, value, size, axis, part)
    return value


def _spread(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, size: int, axis: int, part: str
) -> DynamicValue:
    """Repeat dimension `axis`, which has size one, in pieces whose indices can be stored as a constant."""
    check_size(tuple(size if i == axis else n for i, n in enumerate(x.shape)))
    if size <= _MAX_INDICES:
        return picked(emitter, node, x, [0] * size, axis, part)
    counts = [_MAX_INDICES] * (size // _MAX_INDICES) + [size % _MAX_INDICES] * bool(size % _MAX_INDICES)
    made = {
        count: picked(emitter, node, x, [0] * count, axis, f"{part}:{count}")
        for count in dict.fromkeys(counts)
    }
    tensors = [made[count].tensor for count in counts]
    first, shape = made[_MAX_INDICES], tuple(size if i == axis else n for i, n in enumerate(x.shape))
    return emitter.emit(
        node,
        "concat",
        tensors,
        shape,
        first.order,
        first.kind,
        f"{part}_{axis}",
        axis=first.order.index(axis),
    )


@converts("Expand", inputs=(2, 2))
def _expand(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, sizes = inputs
    shape = broadcast([x.shape, tuple(known(sizes, "a shape").integers())])
    check_size(shape)
    ranked = with_ones(emitter, node.outputs[0], x, set(range(len(shape) - len(x.shape))))
    return [renamed(broadcast_to(emitter, node, ranked, shape, "spread"), node.outputs[0])]


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
    """Return a slice of x; starts, sizes and steps are in the file's order of dimensions."""
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
        raise InputError("its inputs starts and ends must be given")
    axes = plain(len(starts)) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise InputError("starts, ends, axes and steps must have equal lengths, and steps must not be 0")
    begin, size, step = [0] * x.rank, list(x.shape), [1] * x.rank
    for start, end, axis, by in zip(starts, ends, axes, steps, strict=True):
        i = counted_from_front(axis, x.rank)
        span = range(x.shape[i])[start:end:by]
        if not span:
            raise InputError(
                f"elements {start}..{end} of dimension {i} of shape {list(x.shape)} do not exist"
            )
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
        raise InputError(
            f"the sizes {shown(list(sizes))} of its {count} outputs must add up to {x.shape[axis]}, the size of "
            f"axis {axis}"
        )
    outputs: list[Value] = []
    for i, size in enumerate(sizes):
        starts, shape = [0] * x.rank, list(x.shape)
        starts[axis], shape[axis] = sum(sizes[:i]), size
        if not size:
            outputs.append(ConstantValue(node.outputs[i], np.zeros(shape, np.float32)))
            continue
        part = "" if node.outputs[i] else str(i)
        piece = part_of(emitter, node, x, starts, shape, [1] * x.rank, part, i)
        outputs.append(renamed(piece, node.outputs[i]))
    return outputs


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
        constants = where.integers()
        if any(not -size <= index < size for index in constants):
            raise InputError(f"indices {shown(constants)} must be within -{size}..{size - 1}")
        constants = [index % size for index in constants]
        if where.shape == () or (len(constants) == 1 and len(where.shape) == 1):
            starts, sizes = [0] * x.rank, list(x.shape)
            starts[axis], sizes[axis] = constants[0], 1
            one = part_of(emitter, node, x, starts, sizes, [1] * x.rank, "" if where.shape else "one")
            return [renamed(one, name) if where.shape else without_ones(emitter, name, one, {axis})]
        where = ConstantValue(where.name, np.array(constants, np.int32).reshape(where.shape))
    elif where.tensor.dtype not in ("int32", "int64"):
        raise UnsupportedNodeError(f"indices of type {where.tensor.dtype}")
    indices = emitter.flow(where)
    operands = [emitter.in_order(v, plain(v.rank)).tensor for v in (x, indices)]
    shape = x.shape[:axis] + indices.shape + x.shape[axis + 1 :]
    return [emitter.emit(node, "gather", operands, shape, plain(len(shape)), x.kind, axis=axis)]


@converts("GatherElements", "GatherND", inputs=(2, 2))
def _gather_flat(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert a choice of elements or slices by constant indices to a Gather from the flattened value."""
    x, where = inputs
    indices, shape = known(where, "indices").numbers().astype(np.int64), x.shape
    if node.op == "GatherElements":
        axis = counted_from_front(node.int("axis", 0), len(shape))
        if indices.ndim != len(shape) or any(
            n > most for i, (n, most) in enumerate(zip(indices.shape, shape, strict=True)) if i != axis
        ):
            raise InputError(f"indices {list(indices.shape)} do not fit shape {list(shape)}")
        places: list[Any] = list(np.indices(indices.shape, sparse=True))
        places[axis], rest, result = indices, (), indices.shape
    else:
        batch, depth = node.int("batch_dims", 0), indices.shape[-1] if indices.ndim else 0
        if (
            not 0 <= batch < indices.ndim
            or not 1 <= depth <= len(shape) - batch
            or indices.shape[:batch] != shape[:batch]
        ):
            raise InputError(f"indices {list(indices.shape)} do not fit shape {list(shape)}")
        places = list(np.indices(indices.shape[:-1], sparse=True))[:batch]
        places += [indices[..., i] for i in range(depth)]
        rest = shape[batch + depth :]
        result = (*indices.shape[:-1], *rest)
    check_count(math.prod(indices.shape))
    sizes = shape[: len(places)]
    for place, size in zip(places, sizes, strict=True):
        if place.size and not (-size <= place.min() and place.max() < size):
            raise InputError(f"indices must be within -{size}..{size - 1}")
    places = [np.where(place < 0, place + size, place) for place, size in zip(places, sizes, strict=True)]
    flat = np.ravel_multi_index(np.broadcast_arrays(*places), sizes).reshape(-1)
    body = BodyBuilder(node, [x])
    rows = body.reshaped(body.given(0), math.prod(sizes), *rest)
    taken = body.add("Gather", rows, body.constant(flat, np.int64), axis=0)
    return body.converted(emitter, body.reshaped(taken, *result))


#: Operators that take or return sequences.
SEQUENCE_OPS = frozenset(
    (
        "ConcatFromSequence",
        "Identity",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SplitToSequence",
    )
)


@converts("SequenceConstruct", "SequenceEmpty", inputs=(0, None))
def _sequence(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Any]:
    return [SequenceValue(node.outputs[0], tuple(inputs))]


@converts("SequenceAt", "SequenceErase", "SequenceInsert", "SequenceLength", inputs=(1, 3))
def _on_sequence(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Any]:
    sequence, *more = inputs
    if not isinstance(sequence, SequenceValue):
        raise InputError("input 1 must be a sequence")
    items, name = list(sequence.items), node.outputs[0]
    if node.op == "SequenceLength":
        return [ConstantValue(name, np.array(len(items), np.int64))]
    place = more[1] if node.op == "SequenceInsert" else more[0]
    last = len(items) if node.op == "SequenceInsert" else len(items) - 1
    at = (
        (last if node.op == "SequenceInsert" else -1)
        if place is None
        else known(place, "a position").integers()[0]
    )
    if not -len(items) <= at <= last:
        raise InputError(f"position {at} does not exist in a sequence of {len(items)}")
    if node.op == "SequenceAt":
        return [renamed(items[at], name)]
    if node.op == "SequenceErase":
        del items[at]
    else:
        if more[0] is None:
            raise InputError("input 2 must not be omitted")
        items.insert(at, more[0])
    return [SequenceValue(name, tuple(items))]


@converts("SplitToSequence", inputs=(1, 2))
def _split_to_sequence(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Any]:
    x, given = inputs
    axis = counted_from_front(node.int("axis", 0), len(x.shape))
    size, each = x.shape[axis], 1
    keep = given is not None or bool(node.int("keepdims", 1))
    if given is None:
        sizes = [1] * size
    else:
        sizes = known(given, "a split").integers()
        if not given.shape:
            each = sizes[0]
            sizes = [min(each, size - start) for start in range(0, size, each)] if each > 0 else []
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise InputError(f"the sizes {shown(sizes)} must add up to {size}, the size of axis {axis}")
    if len(sizes) > _MAX_ITEMS:
        raise InputError(f"a sequence must have at most {_MAX_ITEMS:,} tensors, not {len(sizes):,}")
    if math.prod(x.shape):
        x = emitter.flow(x)
    items, start = list[Value](), 0
    for number, part in enumerate(sizes):
        starts, shape = [0] * len(x.shape), list(x.shape)
        starts[axis], shape[axis] = start, part
        start += part
        if not math.prod(shape):  # no tensor of the graph is empty
            items.append(ConstantValue(f"{node.outputs[0]}:{number}", np.zeros(shape, _dtype(x))))
            continue
        piece: Value = part_of(emitter, node, x, starts, shape, [1] * x.rank, f"{number}")
        items.append(piece if keep else without_ones(emitter, f"{node.name}:{number}", piece, {axis}))
    return [SequenceValue(node.outputs[0], tuple(items))]


def _dtype(value: Value) -> str:
    """Return the name of the numpy type of a value in the file, where real numbers are float32."""
    if isinstance(value, ConstantValue):
        return value.numbers().dtype.name
    return FLOAT.dtype if value.real else value.tensor.dtype


#: Maximum length of a sequence that a tensor is split into.
_MAX_ITEMS = 1 << 12


@converts("ConcatFromSequence", inputs=(1, 1))
def _concat_from_sequence(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Any]:
    (sequence,) = inputs
    if not isinstance(sequence, SequenceValue) or not sequence.items:
        raise InputError("input 1 must be a sequence of at least one tensor")
    body, stacked = BodyBuilder(node, sequence.items), bool(node.int("new_axis", 0))
    axis = counted_from_front(node.int("axis", 0), len(sequence.items[0].shape) + stacked)
    names = [body.given(i) for i in range(len(sequence.items))]
    if stacked:
        names = [body.add("Unsqueeze", name, body.constant([axis], np.int64)) for name in names]
    return body.converted(emitter, body.add("Concat", *names, axis=axis))


#: Exclusive limit on the padding of a dimension.
_PAD_LIMIT = 1 << 31
#: Limit on each side's padding by reflection, repetition or wrapping, which is a gather.
_MAX_GATHERED_PAD = 1 << 14


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
        dimension = counted_from_front(axis, x.rank)
        before[dimension], after[dimension] = widths[i], widths[i + len(where)]
    starts = [max(-low, 0) for low in before]
    sizes = [n - s - max(-high, 0) for n, s, high in zip(x.shape, starts, after, strict=True)]
    if min(sizes) < 1 or max(*before, *after) >= _PAD_LIMIT:
        raise InputError(
            f"widths {shown(list(widths))} do not fit shape {list(x.shape)}; each must be less than {_PAD_LIMIT:,}"
        )
    if mode != "constant":
        pairs = list(zip(before, after, strict=True))
        return [renamed(_mirrored(emitter, node, x, pairs, mode), node.outputs[0])]
    x = part_of(emitter, node, x, starts, sizes, [1] * x.rank, "cut")
    edges = [(max(low, 0), max(high, 0)) for low, high in zip(before, after, strict=True)]
    q = x.tensor.quantization
    if q is not None and not x.real:  # the file pads with an integer, the graph with its dequantized value
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
    """Convert padding by reflection, repetition or wrapping to a gather along each dimension."""
    for axis, pair in enumerate(widths):
        if min(pair) < 0 or max(pair) > _MAX_GATHERED_PAD:
            raise UnsupportedNodeError(f"padding dimension {axis} by {mode} with {pair[0]} and {pair[1]}")
        if any(pair):
            indices = np.pad(np.arange(x.shape[axis]), pair, mode)
            x = picked(emitter, node, x, indices.tolist(), axis)
    return x
