"""Copies of elements along axes: what the lowerings of moves are made of."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

import numpy as np

from compiler.ir.tensor import Tensor, same_numbers
from compiler.kernels.scaling import float32_multiplier, quantize_multiplier
from compiler.lower.layer import MoveLayer
from compiler.lower.lowering import Lowering, UnsupportedError, affine
from compiler.lower.walk import Copy, Rescale, Stretch, Walk
from cosim.golden.scale import scale
from hw.isa.enums import Rounding

#: More copies than this are no work for a program.
_MOST_COPIES = 1 << 11
#: Most bits of integers of which all values are tried; float32 does not hold wider ones exactly.
_MOST_BITS = 16

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
    """From the quantization of an input to that of the output; None if elements stay as they are.

    With onnxruntime's rounding the multiplier may differ from its float32 arithmetic: see `exact`.
    """
    y = low.y
    if same_numbers(x.quantization, y.quantization) and x.dtype == y.dtype:
        return None
    a, b = affine(x), affine(y)
    if low.rounding == "onnxruntime":
        ratio = float(np.float32(a.scale) / np.float32(b.scale))
        return Rescale(a.zero_point, b.zero_point, *float32_multiplier(ratio), Rounding.EVEN)
    return Rescale(a.zero_point, b.zero_point, *quantize_multiplier(a.scale / b.scale), Rounding.DOUBLE)


def exact(low: Lowering, x: Tensor, change: Rescale | None) -> bool:
    """Whether a conversion makes what the host makes of every integer of x.

    onnxruntime's float32 arithmetic rounds some numbers as no multiplier does; LiteRT's kernels use multipliers.
    """
    if change is None or low.rounding != "onnxruntime":
        return True
    return _as_float32(change, x.dtype, low.y.dtype, affine(x).scale, affine(low.y).scale)


@lru_cache(maxsize=1024)
def _as_float32(change: Rescale, x: str, y: str, x_scale: float, y_scale: float) -> bool:
    """Whether integers of type x become those of type y as by way of float32 numbers."""
    given, limits = np.iinfo(x), np.iinfo(y)
    if max(given.bits, limits.bits) > _MOST_BITS:
        return False
    centred = np.arange(given.min, given.max + 1, dtype=np.int64) - change.x_zp
    found = scale(centred, change.mult, change.exponent, 0, change.rounding) + change.y_zp
    real = centred.astype(np.float32) * np.float32(x_scale)
    wanted = np.rint(real / np.float32(y_scale)).astype(np.int64) + change.y_zp
    return np.array_equal(np.clip(found, limits.min, limits.max), np.clip(wanted, limits.min, limits.max))


def rescale_exactly(low: Lowering, x: Tensor) -> Rescale | None:
    """As `rescale`, if that makes what the host makes of every integer.

    Raises
    ------
    UnsupportedError
        It does not.
    """
    change = rescale(low, x)
    if not exact(low, x, change):
        raise UnsupportedError(f"no multiplier rounds {x.name!r} as onnxruntime's float32 arithmetic does")
    return change


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
    change = rescale_exactly(low, low.x)
    return [Copy(low.x.name, walk, change) for walk in walks(x, y, axes)]


def along(low: Lowering, rank: int) -> int:
    """The axis of an operator, counted from the front."""
    axis = low.anchor.attributes["axis"]
    if not -rank <= axis < rank:
        raise UnsupportedError(f"axis must be within {-rank}..{rank - 1}, not {axis}")
    return axis % rank
