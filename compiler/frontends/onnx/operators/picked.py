"""Elements taken one by one along dimensions: what repeats, reverses, mirrors and spreads values."""

import numpy as np

from compiler.frontends.onnx.emit import Emitter
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.values import Fixed, Flow, UnsupportedError, Value, check_size

#: So many places of elements may become a constant.
_MOST = 1 << 16
#: So many elements may a constant have that is spread.
_MOST_SPREAD = 1 << 26


def check_count(count: int) -> None:
    """Refuse so many elements of a dimension, best before their places are listed."""
    if count > _MOST:
        raise UnsupportedError(f"taking {count:,} elements of a dimension one by one")


def picked(
    emitter: Emitter, node: FileNode, x: Flow, places: list[int], axis: int, part: str = "picked"
) -> Flow:
    """Elements of one dimension of the file at certain places."""
    check_count(len(places))
    x = emitter.movable(x)
    where = emitter.constant(f"{node.name}:places", Fixed(node.name, np.array(places, np.int32)))
    shape = tuple(len(places) if i == axis else n for i, n in enumerate(x.shape))
    return emitter.emit(
        node, "gather", [x.tensor, where], shape, x.order, x.kind, f"{part}_{axis}", axis=x.order.index(axis)
    )


def spread(emitter: Emitter, node: FileNode, value: Value, shape: tuple[int, ...], part: str) -> Value:
    """A value of as many dimensions as a shape, of which those of size one are repeated to make it."""
    if isinstance(value, Fixed):
        check_size(shape, _MOST_SPREAD)
        q = value.quantization
        numbers = value.data if q is not None and q.whole else value.numbers()
        data = np.ascontiguousarray(np.broadcast_to(numbers, shape))
        return Fixed(value.name, data, q if q is not None and q.whole else None)
    for axis, size in enumerate(shape):
        if value.shape[axis] != size:
            check_count(size)
            value = picked(emitter, node, value, [0] * size, axis, part)
    return value
