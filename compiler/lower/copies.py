"""Copies of elements along axes: what the lowerings of moves are made of."""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from compiler.ir.tensor import Tensor, same_numbers
from compiler.kernels.scaling import float32_multiplier, quantize_multiplier
from compiler.lower.layer import MoveLayer
from compiler.lower.lowering import Lowering, UnsupportedError, affine
from compiler.lower.walk import Copy, Rescale, Stretch, Walk
from hw.isa.enums import Rounding

#: More copies than this are no work for a program.
_MOST_COPIES = 1 << 11

_Axes = Sequence[Sequence[Stretch]]


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from index to index of each dimension of a tensor without gaps."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def whole(size: int) -> list[Stretch]:
    """All of an axis."""
    return [Stretch(((size, 1, 1),), 0, 0)]


def walks(x: Sequence[int], y: Sequence[int], axes: _Axes) -> Iterator[Walk]:
    """All combinations of the stretches of each axis.

    Parameters
    ----------
    x, y : sequence of int
        Distances of each axis in source and destination.
    axes : sequence of lists of Stretch
        For each axis.
    """
    if math.prod(len(parts) for parts in axes) > _MOST_COPIES:
        raise UnsupportedError(f"its indices are scattered over more than {_MOST_COPIES} stretches")
    for parts in product(*axes):
        dims = tuple(
            (count, a * x_step, b * y_step)
            for part, x_step, y_step in zip(parts, x, y, strict=True)
            for count, a, b in part.dims
        )
        starts = list(zip(parts, x, y, strict=True))
        yield Walk(dims, sum(p.x * step for p, step, _ in starts), sum(p.y * step for p, _, step in starts))


def rescale(low: Lowering, x: Tensor) -> Rescale | None:
    """From the quantization of an input to that of the output; None if elements stay as they are."""
    y = low.y
    if same_numbers(x.quantization, y.quantization) and x.dtype == y.dtype:
        return None
    a, b = affine(x), affine(y)
    if low.rounding == "onnxruntime":
        ratio = float(np.float32(a.scale) / np.float32(b.scale))
        return Rescale(a.zero_point, b.zero_point, *float32_multiplier(ratio), Rounding.EVEN)
    return Rescale(a.zero_point, b.zero_point, *quantize_multiplier(a.scale / b.scale), Rounding.DOUBLE)


def expect(low: Lowering, shape: Sequence[int]) -> None:
    """The output must have this shape."""
    if low.y.shape != tuple(shape):
        raise UnsupportedError(f"its output must be of shape {list(shape)}, not {list(low.y.shape)}")


def layer(low: Lowering, copies: Sequence[Copy]) -> MoveLayer:
    """The layer that makes these copies."""
    tensors = {t.name: t for t in low.graph.ins(low.anchor)}
    sources = [name for name in dict.fromkeys(copy.source for copy in copies) if name is not None]
    constants = frozenset(name for name in sources if tensors[name].constant)
    if all(tensor.constant for tensor in tensors.values()):
        raise UnsupportedError("its inputs are constants")
    common = low.common(*sources)
    shapes = {name: common["shapes"][name] for name in (*sources, common["y"])}
    first = next((name for name in sources if name not in constants), common["y"])
    return MoveLayer(**common | {"x": first, "shapes": shapes}, copies=tuple(copies), constants=constants)


def moved(low: Lowering, x: Sequence[int], y: Sequence[int], axes: _Axes) -> list[Copy]:
    """Elements of the first input."""
    change = rescale(low, low.x)
    return [Copy(low.x.name, walk, change) for walk in walks(x, y, axes)]


def along(low: Lowering, rank: int) -> int:
    """The axis of an operator, counted from the front."""
    axis = low.anchor.attributes["axis"]
    if not -rank <= axis < rank:
        raise UnsupportedError(f"axis must be within {-rank}..{rank - 1}, not {axis}")
    return axis % rank
