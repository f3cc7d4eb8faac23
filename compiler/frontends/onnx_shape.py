"""ONNX operators that give the same elements another shape, and those that do nothing to a graph."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from compiler.frontends.onnx_emit import ONE, Emitter
from compiler.frontends.onnx_file import FileNode
from compiler.frontends.onnx_quantize import _reread
from compiler.frontends.onnx_registry import converts, integers, known
from compiler.frontends.onnx_tensors import type_name, widened
from compiler.frontends.onnx_values import (
    Fixed,
    Flow,
    Order,
    UnsupportedError,
    Value,
    counted_from_front,
    plain,
)
from hw.errors import InputError, shown

#: Casts between these change nothing in a graph.
_REAL = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}


def reshaped(emitter: Emitter, name: str, x: Value, shape: tuple[int, ...]) -> Value:
    """A value in another shape, its elements in the file's order."""
    if math.prod(x.shape) != math.prod(shape):
        raise InputError(f"shape {list(x.shape)} cannot become {shown(list(shape))}")
    if isinstance(x, Fixed):
        return x.reshaped(shape, name)
    x = emitter.movable(x)
    tensor = emitter.reshape(emitter.in_order(x, plain(x.rank)).tensor, shape)
    return Flow(name, tensor, plain(len(shape)), x.real)


def without_ones(emitter: Emitter, name: str, x: Value, axes: set[int]) -> Value:
    """A value without dimensions of size one; whatever order its tensor has stays."""
    shape = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    if isinstance(x, Fixed):
        return x.reshaped(shape, name)
    x = emitter.movable(x)
    order, sizes = (
        kept_order(x.order, axes),
        [x.tensor.shape[k] for k, i in enumerate(x.order) if i not in axes],
    )
    return Flow(name, emitter.reshape(x.tensor, tuple(sizes)), order, x.real)


def with_ones(emitter: Emitter, name: str, x: Value, axes: set[int]) -> Value:
    """A value with more dimensions of size one; its tensor gets them in front, where that leaves images as they are."""
    rank = len(x.shape) + len(axes)
    kept = [i for i in range(rank) if i not in axes]
    shape = [1] * rank
    for i, size in zip(kept, x.shape, strict=True):
        shape[i] = size
    if isinstance(x, Fixed) or x.order == plain(x.rank):
        return reshaped(emitter, name, x, tuple(shape))
    x = emitter.movable(x)
    order = (*sorted(axes), *(kept[i] for i in x.order))
    return Flow(name, emitter.reshape(x.tensor, (1,) * len(axes) + x.tensor.shape), order, x.real)


def kept_order(order: Order, dropped: set[int]) -> Order:
    """An order without some of the file's dimensions."""
    kept = sorted(i for i in order if i not in dropped)
    return tuple(kept.index(i) for i in order if i not in dropped)


@converts("Reshape", inputs=(1, 2))
def _reshape(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, shape = inputs
    sizes = integers(node, "shape", shape)
    if sizes is None:
        raise InputError("must have a shape")
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
def _flatten(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    axis = node.int("axis", 1)
    if not -len(x.shape) <= axis <= len(x.shape):
        raise InputError(f"axis must be within shape {list(x.shape)}, not {axis}")
    axis += len(x.shape) if axis < 0 else 0
    return [reshaped(emitter, node.outputs[0], x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))]


@converts("Squeeze", inputs=(1, 2))
def _squeeze(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, given = inputs
    axes = integers(node, "axes", given)
    if axes is None:
        axes = tuple(i for i, size in enumerate(x.shape) if size == 1)
    dropped = {counted_from_front(axis, len(x.shape)) for axis in axes}
    if any(x.shape[i] != 1 for i in dropped):
        raise InputError(f"dimensions {sorted(dropped)} of shape {list(x.shape)} must be 1")
    return [without_ones(emitter, node.outputs[0], x, dropped)]


@converts("Unsqueeze", inputs=(1, 2))
def _unsqueeze(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, given = inputs
    axes = integers(node, "axes", given)
    if axes is None or len(axes) > 32:
        raise InputError("must have axes, 32 at most")
    rank = len(x.shape) + len(axes)
    added = {counted_from_front(axis, rank) for axis in axes}
    if len(added) != len(axes):
        raise InputError(f"axes must differ, not {list(axes)}")
    return [with_ones(emitter, node.outputs[0], x, added)]


@converts("Transpose", inputs=(1, 1))
def _transpose(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    perm = node.ints("perm") or plain(len(x.shape))[::-1]
    if sorted(perm) != list(range(len(x.shape))):
        raise InputError(f"perm must order the {len(x.shape)} dimensions, not {shown(list(perm))}")
    return [x.transposed(perm, node.outputs[0])]


@converts("Identity", "Dropout", inputs=(1, 3))
def _identity(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x, _ratio, training) = inputs
    if node.op == "Dropout" and training is not None and known(training, "training mode").data.any():
        raise UnsupportedError("training")
    return [renamed(x, node.outputs[0])]


def renamed(x: Value, name: str) -> Value:
    """The same value under another name."""
    if isinstance(x, Fixed):
        return Fixed(name, x.data, x.quantization)
    return Flow(name, x.tensor, x.order, x.real)


@converts("Cast", inputs=(1, 1))
def _cast(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    to, name = node.int("to", 0), node.outputs[0]
    dtype = widened(to)
    if dtype is None:
        raise UnsupportedError(f"a cast to {type_name(to)}")
    if isinstance(x, Fixed):
        with np.errstate(invalid="ignore", over="ignore"):
            return [x if to in _REAL and x.quantization else Fixed(name, x.numbers().astype(dtype))]
    have = "float32" if x.real else x.tensor.dtype
    if have == dtype:
        return [renamed(x, name)]
    if dtype == "float32" and have != "bool":
        if x.tensor.quantization is None:
            raise UnsupportedError(f"a cast of {have} numbers that are computed")
        as_real = Flow(x.name, x.tensor, x.order, real=True)
        if x.tensor.quantization == ONE:
            return [renamed(as_real, name)]
        return [_reread(emitter, node, x, ONE)]
    if have in ("int32", "int64") and dtype in ("int32", "int64"):
        return [renamed(x, name)]
    raise UnsupportedError(f"a cast of {have} to {dtype}")


@converts("Expand", inputs=(2, 2))
def _expand(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, shape = inputs
    sizes = tuple(known(shape, "shape").integers())
    if (
        math.prod(sizes) == 1
        or sizes == x.shape
        or all(a in (1, b) for a, b in zip(sizes[::-1], x.shape[::-1], strict=False))
    ):
        more = max(len(sizes) - len(x.shape), 0)
        return [reshaped(emitter, node.outputs[0], x, (1,) * more + x.shape)]
    raise UnsupportedError(f"expanding shape {list(x.shape)} to {shown(list(sizes))}")


@converts("Shape", inputs=(1, 1))
def _shape(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    end = node.int("end", len(x.shape))
    return [Fixed(node.outputs[0], np.array(x.shape[node.int("start", 0) : end], np.int64))]


@converts("Size", inputs=(1, 1))
def _size(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    return [Fixed(node.outputs[0], np.array(math.prod(x.shape), np.int64))]


@converts("DepthToSpace", "SpaceToDepth", inputs=(1, 1))
def _blocks(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    """Reshape, transpose, reshape."""
    (x,) = inputs
    size, name = node.int("blocksize", 0), node.outputs[0]
    if len(x.shape) != 4 or size < 1:
        raise InputError(f"blocks of {size} do not fit shape {list(x.shape)}")
    n, c, h, w = x.shape
    first = node.text("mode", "DCR") == "DCR"
    if node.op == "SpaceToDepth":
        split = (n, c, h // size, size, w // size, size)
        perm = (0, 3, 5, 1, 2, 4) if first else (0, 1, 3, 5, 2, 4)
        made = (n, c * size * size, h // size, w // size)
    else:
        rest = c // (size * size)
        split = (n, size, size, rest, h, w) if first else (n, rest, size, size, h, w)
        perm = (0, 3, 4, 1, 5, 2) if first else (0, 1, 4, 2, 5, 3)
        made = (n, rest, h * size, w * size)
    parts = reshaped(emitter, f"{name}:split", x, split)
    return [reshaped(emitter, name, parts.transposed(perm, f"{name}:moved"), made)]
