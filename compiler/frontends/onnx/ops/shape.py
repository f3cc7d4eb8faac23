"""Conversion of ONNX operators that change or query only shape or type, such as Reshape, Transpose and Cast."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.quantize import reread
from compiler.frontends.onnx.registry import converts, integers, known
from compiler.frontends.onnx.values import (
    ConstantValue,
    DynamicValue,
    Order,
    SequenceValue,
    UnsupportedNodeError,
    Value,
    arranged,
    channels_last,
    counted_from_front,
    plain,
    type_name,
    widened,
)
from compiler.ir.tensor import IDENTITY
from hw.errors import InputError, shown


def reshaped(emitter: OnnxGraphBuilder, name: str, x: Value, shape: tuple[int, ...]) -> Value:
    """Reshape a value as in the file, whatever the order of dimensions of its tensor."""
    if math.prod(x.shape) != math.prod(shape):
        raise InputError(
            f"shape {list(x.shape)} cannot be reshaped to {shown(list(shape))}: the numbers of elements differ"
        )
    if isinstance(x, ConstantValue):
        return x.reshaped(shape, name)
    x = emitter.movable(x)
    before, after = _orders(x.shape, shape, x.order)
    tensor = emitter.in_order(x, before).tensor
    return DynamicValue(name, emitter.reshape(tensor, arranged(shape, after)), after, x.real)


def _orders(old: tuple[int, ...], new: tuple[int, ...], order: Order) -> tuple[Order, Order]:
    """Return the dimension orders that the operand and the result of a reshape must have.

    Dimensions that are split or merged must be adjacent and in the file's order. Each group of such dimensions stays at
    its position: if the channels of channels-last images are split, the resulting dimensions are the last ones.
    """
    if order == plain(len(old)):
        return order, plain(len(new))
    groups = _groups(
        [i for i, n in enumerate(old) if n > 1], [i for i, n in enumerate(new) if n > 1], old, new
    )
    found: list[tuple[Order, Order]] = []
    for end in (min, max):
        groups.sort(key=lambda group: end(order.index(i) for i in group[0]))
        before, after = (tuple(i for group in groups for i in group[side]) for side in (0, 1))
        found.append((_with_ones(before, len(old)), _with_ones(after, len(new))))
    # Prefer an order that needs no transposition, or one that gives channels-last images or the file's order.
    present = [i for i in order if old[i] > 1]
    preferred = channels_last(len(new)) if len(new) == 4 else plain(len(new))
    for before, after in found:
        if [i for i in before if old[i] > 1] == present or after == preferred:
            return before, after
    return found[0]


def _with_ones(order: Order, rank: int) -> Order:
    """Complete an order with the missing dimensions, which have size one."""
    if order == tuple(sorted(order)):
        return plain(rank)
    return (*(i for i in plain(rank) if i not in order), *order)


def _groups(
    left: list[int], right: list[int], old: tuple[int, ...], new: tuple[int, ...]
) -> list[tuple[list[int], list[int]]]:
    """Return minimal groups of adjacent dimensions with equal element counts in both shapes, omitting sizes of one."""
    groups: list[tuple[list[int], list[int]]] = []
    left, right = left[::-1], right[::-1]
    while left:
        a, b = [left.pop()], [right.pop()]
        while (size := math.prod(old[i] for i in a)) != (other := math.prod(new[i] for i in b)):
            if size < other:
                a.append(left.pop())
            else:
                b.append(right.pop())
        groups.append((a, b))
    return groups


def without_ones(emitter: OnnxGraphBuilder, name: str, x: Value, axes: set[int]) -> Value:
    """Return a value without the dimensions `axes`, which have size one; other dimensions stay in order."""
    shape = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    if isinstance(x, ConstantValue):
        return x.reshaped(shape, name)
    x = emitter.movable(x)
    order, sizes = (
        kept_order(x.order, axes),
        [x.tensor.shape[k] for k, i in enumerate(x.order) if i not in axes],
    )
    return DynamicValue(name, emitter.reshape(x.tensor, tuple(sizes)), order, x.real)


def with_ones(emitter: OnnxGraphBuilder, name: str, x: Value, axes: set[int]) -> Value:
    """Return a value with new dimensions of size one, placed first if the tensor is not in the file's order."""
    rank = len(x.shape) + len(axes)
    existing = [i for i in range(rank) if i not in axes]
    shape = [1] * rank
    for i, size in zip(existing, x.shape, strict=True):
        shape[i] = size
    if isinstance(x, ConstantValue) or x.order == plain(x.rank):
        return reshaped(emitter, name, x, tuple(shape))
    x = emitter.movable(x)
    order = (*sorted(axes), *(existing[i] for i in x.order))
    return DynamicValue(name, emitter.reshape(x.tensor, (1,) * len(axes) + x.tensor.shape), order, x.real)


def kept_order(order: Order, dropped: set[int]) -> Order:
    """Return an order without the `dropped` dimensions, with the other dimensions renumbered."""
    remaining = sorted(i for i in order if i not in dropped)
    return tuple(remaining.index(i) for i in order if i not in dropped)


@converts("Reshape", inputs=(1, 2))
def _reshape(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, shape = inputs
    sizes = integers(node, "shape", shape)
    if sizes is None:
        raise InputError("its input shape must be given")
    given = [
        x.shape[i] if size == 0 and not node.int("allowzero", 0) and i < len(x.shape) else size
        for i, size in enumerate(sizes)
    ]
    if given.count(-1) == 1:
        rest = math.prod(size for size in given if size != -1)
        given[given.index(-1)] = math.prod(x.shape) // rest if rest > 0 else 0
    if any(size < 0 for size in given):
        raise InputError(f"shape {shown(list(sizes))} must have one -1 at most and no other negative size")
    return [reshaped(emitter, node.outputs[0], x, tuple(given))]


@converts("Flatten", inputs=(1, 1))
def _flatten(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    axis = node.int("axis", 1)
    if not -len(x.shape) <= axis <= len(x.shape):
        raise InputError(f"axis must be within shape {list(x.shape)}, not {axis}")
    axis += len(x.shape) if axis < 0 else 0
    return [reshaped(emitter, node.outputs[0], x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))]


@converts("Squeeze", inputs=(1, 2))
def _squeeze(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, given = inputs
    axes = integers(node, "axes", given)
    if axes is None:
        axes = tuple(i for i, size in enumerate(x.shape) if size == 1)
    dropped = {counted_from_front(axis, len(x.shape)) for axis in axes}
    if any(x.shape[i] != 1 for i in dropped):
        raise InputError(f"dimensions {sorted(dropped)} of shape {list(x.shape)} must be 1")
    return [without_ones(emitter, node.outputs[0], x, dropped)]


@converts("Unsqueeze", inputs=(1, 2))
def _unsqueeze(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, given = inputs
    axes = integers(node, "axes", given)
    if axes is None or len(axes) > 32:
        raise InputError("it must be given 1 to 32 axes")
    rank = len(x.shape) + len(axes)
    added = {counted_from_front(axis, rank) for axis in axes}
    if len(added) != len(axes):
        raise InputError(f"axes must differ, not {list(axes)}")
    return [with_ones(emitter, node.outputs[0], x, added)]


@converts("Transpose", inputs=(1, 1))
def _transpose(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    perm = node.ints("perm") or plain(len(x.shape))[::-1]
    if sorted(perm) != list(range(len(x.shape))):
        raise InputError(f"perm must order the {len(x.shape)} dimensions, not {shown(list(perm))}")
    return [x.transposed(perm, node.outputs[0])]


def renamed(x: Value, name: str) -> Value:
    """Return the value with another name; a sequence remains unchanged."""
    if isinstance(x, SequenceValue):
        return x
    if isinstance(x, ConstantValue):
        return ConstantValue(name, x.data, x.quantization, blocks=x.blocks)
    return DynamicValue(name, x.tensor, x.order, x.real)


@converts("DepthToSpace", "SpaceToDepth", inputs=(1, 1))
def _blocks(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    """Convert DepthToSpace or SpaceToDepth to a reshape, a transpose and another reshape."""
    (x,) = inputs
    size, name = node.int("blocksize", 0), node.outputs[0]
    if len(x.shape) != 4 or size < 1:
        raise InputError(f"blocks of {size} do not fit shape {list(x.shape)}")
    n, c, h, w = x.shape
    first = node.text("mode", "DCR") == "DCR"
    if node.op == "SpaceToDepth":
        split = (n, c, h // size, size, w // size, size)
        perm = (0, 3, 5, 1, 2, 4) if first else (0, 1, 3, 5, 2, 4)
        shape = (n, c * size * size, h // size, w // size)
    else:
        rest = c // (size * size)
        split = (n, size, size, rest, h, w) if first else (n, rest, size, size, h, w)
        perm = (0, 3, 4, 1, 5, 2) if first else (0, 1, 4, 2, 5, 3)
        shape = (n, rest, h * size, w * size)
    parts = reshaped(emitter, f"{name}:split", x, split)
    return [reshaped(emitter, name, parts.transposed(perm, f"{name}:moved"), shape)]


@converts("Identity", "Dropout", inputs=(1, 3))
def _identity(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x, _ratio, training) = inputs
    if node.op == "Dropout" and training is not None and known(training, "training mode").data.any():
        raise UnsupportedNodeError("it is in training mode: export the model for inference")
    return [renamed(x, node.outputs[0])]


@converts("Cast", inputs=(1, 1))
def _cast(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    to = node.int("to", 0)
    dtype, x = widened(to), inputs[0]
    if dtype is None:
        raise UnsupportedNodeError(f"a cast to {type_name(to)}")
    return [_cast_to(emitter, node, x, dtype)]


@converts("CastLike", inputs=(2, 2))
def _cast_like(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, like = inputs
    real = like.quantization is not None if isinstance(like, ConstantValue) else like.real
    given = like.data.dtype.name if isinstance(like, ConstantValue) else like.tensor.dtype
    return [_cast_to(emitter, node, x, "float32" if real else given)]


def _cast_to(emitter: OnnxGraphBuilder, node: FileNode, x: Value, dtype: str) -> Value:
    """Return a value converted to another type."""
    name = node.outputs[0]
    if isinstance(x, ConstantValue):
        return x if dtype == "float32" and x.quantization else ConstantValue(name, x.numbers().astype(dtype))
    have = "float32" if x.real else x.tensor.dtype
    if have == dtype:
        return renamed(x, name)
    if dtype == "float32" and have != "bool":
        if x.tensor.quantization is None:
            raise UnsupportedNodeError(f"a cast of {have} numbers that are computed")
        as_real = DynamicValue(x.name, x.tensor, x.order, real=True)
        if x.tensor.quantization == IDENTITY:
            return renamed(as_real, name)
        return reread(emitter, node, x, IDENTITY)
    raise UnsupportedNodeError(f"a cast of {have} to {dtype}")


@converts("Shape", inputs=(1, 1))
def _shape(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    end = node.int("end", len(x.shape))
    return [ConstantValue(node.outputs[0], np.array(x.shape[node.int("start", 0) : end], np.int64))]


@converts("Size", inputs=(1, 1))
def _size(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    return [ConstantValue(node.outputs[0], np.array(math.prod(x.shape), np.int64))]
