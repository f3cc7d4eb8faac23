"""Parts of tensors."""

import tflite

from compiler.frontends.tflite.registry import Conversion, converts
from compiler.ir.tensor import Tensor


def cut(c: Conversion, x: Tensor, output: Tensor, axis: int, start: int, size: int) -> None:
    """An output that is part of one axis."""
    starts, sizes = [0] * len(x.shape), [*x.shape]
    starts[axis], sizes[axis] = start, size
    c.expect(sizes, output)
    c.make("slice", [x], output, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * len(sizes))


@converts("SLICE")
def _slice(c: Conversion) -> None:
    x, begin, size = c.given(3)[:3]
    rank = len(x.shape)
    starts, sizes = c.numbers(begin, "beginning", rank), list(c.numbers(size, "size", rank))
    for axis, (start, total) in enumerate(zip(starts, x.shape, strict=True)):
        sizes[axis] = total - start if sizes[axis] == -1 else sizes[axis]
        if sizes[axis] < 1 or not 0 <= start <= total - sizes[axis]:
            raise c.error(f"axis {axis} of {total} has no {sizes[axis]} indices from {start} on")
    c.expect(sizes)
    c.make("slice", [x], starts=starts, sizes=tuple(sizes), steps=(1,) * rank)


@converts("SPLIT")
def _split(c: Conversion) -> None:
    """Into as many equal parts as there are outputs."""
    along, x = c.given(2)[:2]
    axis = c.axis(c.numbers(along, "axis", 1)[0], len(x.shape))
    if not c.outputs or x.shape[axis] % len(c.outputs):
        raise c.error(f"axis {axis} of {x.shape[axis]} is not {len(c.outputs)} equal parts")
    _cut_all(c, x, axis, [x.shape[axis] // len(c.outputs)] * len(c.outputs))


@converts("SPLIT_V")
def _split_sizes(c: Conversion) -> None:
    """Into parts of given sizes, one of which may be -1: the rest."""
    x, given, along = c.given(3)[:3]
    axis = c.axis(c.numbers(along, "axis", 1)[0], len(x.shape))
    sizes = list(c.numbers(given, "sizes", len(c.outputs)))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = x.shape[axis] - sum(sizes) - 1
    if min(sizes, default=0) < 1 or sum(sizes) != x.shape[axis]:
        raise c.error(f"axis {axis} of {x.shape[axis]} is not parts of {sizes}")
    _cut_all(c, x, axis, sizes)


def _cut_all(c: Conversion, x: Tensor, axis: int, sizes: list[int]) -> None:
    start = 0
    for output, size in zip(c.outputs, sizes, strict=True):
        cut(c, x, output, axis, start, size)
        start += size


@converts("UNPACK")
def _unpack(c: Conversion) -> None:
    """Every index of an axis by itself."""
    x = c.given(1)[0]
    axis = c.axis(c.options(tflite.UnpackOptions).Axis(), len(x.shape))
    if x.shape[axis] != len(c.outputs):
        raise c.error(f"axis {axis} of {x.shape[axis]} cannot become {len(c.outputs)} tensors")
    rest = (*x.shape[:axis], *x.shape[axis + 1 :])
    for index, output in enumerate(c.outputs):
        c.expect(rest, output)
        one = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        starts = tuple(index if i == axis else 0 for i in range(len(one)))
        part = c.step(f"part{index}", "slice", [x], one, starts=starts, sizes=one, steps=(1,) * len(one))
        c.make_shaped(part, output)


@converts("GATHER")
def _gather(c: Conversion) -> None:
    """Rows along an axis."""
    x, indices = c.given(2)[:2]
    axis = batches = 0
    if c.operator.options is not None:
        options = c.options(tflite.GatherOptions)
        axis, batches = options.Axis(), options.BatchDims()
    axis = c.axis(axis, len(x.shape))
    if batches:
        raise c.error("indices of their own for each of a batch are not supported")
    _rows(c, x, indices, axis)


@converts("EMBEDDING_LOOKUP")
def _embedding(c: Conversion) -> None:
    indices, x = c.given(2)[:2]
    c.axis(0, len(x.shape))
    _rows(c, x, indices, 0)


def _rows(c: Conversion, x: Tensor, indices: Tensor, axis: int) -> None:
    if indices.data is not None:
        chosen = c.numbers(indices, "indices")
        if not 0 <= min(chosen) <= max(chosen) < x.shape[axis]:
            raise c.error(f"indices must be within 0..{x.shape[axis] - 1}, not {min(chosen)}..{max(chosen)}")
    c.expect((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
    c.make("gather", [x, indices], axis=axis)
