"""TFLite operators that take slices: SLICE, SPLIT, STRIDED_SLICE and others."""

from dataclasses import dataclass, field

import tflite

from compiler.frontends.tflite.registry import TfliteConversion, converts
from compiler.ir.tensor import Tensor


def cut(c: TfliteConversion, x: Tensor, output: Tensor, axis: int, start: int, size: int) -> None:
    """An output that is part of one axis."""
    starts, sizes = [0] * len(x.shape), [*x.shape]
    starts[axis], sizes[axis] = start, size
    c.expect(sizes, output)
    c.make("slice", [x], output, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * len(sizes))


@converts("SLICE")
def _slice(c: TfliteConversion) -> None:
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
def _split(c: TfliteConversion) -> None:
    """Into as many equal parts as there are outputs."""
    along, x = c.given(2)[:2]
    axis = c.axis(c.numbers(along, "axis", 1)[0], len(x.shape))
    if not c.outputs or x.shape[axis] % len(c.outputs):
        raise c.error(f"axis {axis} of {x.shape[axis]} is not {len(c.outputs)} equal parts")
    _cut_all(c, x, axis, [x.shape[axis] // len(c.outputs)] * len(c.outputs))


@converts("SPLIT_V")
def _split_sizes(c: TfliteConversion) -> None:
    """Into parts of given sizes, one of which may be -1: the rest."""
    x, given, along = c.given(3)[:3]
    axis = c.axis(c.numbers(along, "axis", 1)[0], len(x.shape))
    sizes = list(c.numbers(given, "sizes", len(c.outputs)))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = x.shape[axis] - sum(sizes) - 1
    if min(sizes, default=0) < 1 or sum(sizes) != x.shape[axis]:
        raise c.error(f"axis {axis} of {x.shape[axis]} is not parts of {sizes}")
    _cut_all(c, x, axis, sizes)


def _cut_all(c: TfliteConversion, x: Tensor, axis: int, sizes: list[int]) -> None:
    start = 0
    for output, size in zip(c.outputs, sizes, strict=True):
        cut(c, x, output, axis, start, size)
        start += size


@converts("UNPACK")
def _unpack(c: TfliteConversion) -> None:
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
def _gather(c: TfliteConversion) -> None:
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
def _embedding(c: TfliteConversion) -> None:
    indices, x = c.given(2)[:2]
    c.axis(0, len(x.shape))
    _rows(c, x, indices, 0)


def _rows(c: TfliteConversion, x: Tensor, indices: Tensor, axis: int) -> None:
    if indices.data is not None:
        chosen = c.numbers(indices, "indices")
        if not 0 <= min(chosen) <= max(chosen) < x.shape[axis]:
            raise c.error(f"indices must be within 0..{x.shape[axis] - 1}, not {min(chosen)}..{max(chosen)}")
    c.expect((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
    c.make("gather", [x, indices], axis=axis)


@dataclass
class _Parts:
    """What is taken of each dimension of x, and the shape of the result."""

    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)

    def take(self, start: int, size: int, step: int, *, keep: bool = True) -> None:
        """Of the next dimension; it stays one of the result if `keep`."""
        self.starts.append(start)
        self.sizes.append(size)
        self.steps.append(step if size > 1 else 1)
        if keep:
            self.shape.append(size)


@converts("STRIDED_SLICE")
def _strided_slice(c: TfliteConversion) -> None:
    options = c.options(tflite.StridedSliceOptions)
    x, *given = c.given(4)[:4]
    begins = c.numbers(given[0], "beginnings")
    ends, strides = (
        c.numbers(t, what, len(begins)) for t, what in zip(given[1:], ("ends", "strides"), strict=True)
    )
    parts = _parts(c, options, x.shape, list(zip(begins, ends, strides, strict=True)))
    c.expect(parts.shape)
    sizes, steps = tuple(parts.sizes), tuple(parts.steps)
    if sizes == x.shape and all(step == 1 for step in steps):
        c.make_shaped(x)
    elif sizes == c.output.shape:
        c.make("slice", [x], starts=tuple(parts.starts), sizes=sizes, steps=steps)
    else:
        c.make_shaped(
            c.step("part", "slice", [x], sizes, starts=tuple(parts.starts), sizes=sizes, steps=steps)
        )


def _parts(
    c: TfliteConversion,
    options: tflite.StridedSliceOptions,
    shape: tuple[int, ...],
    given: list[tuple[int, int, int]],
) -> _Parts:
    """All dimensions; those that nothing is said of stay whole."""
    parts, new, ellipsis = _Parts(), options.NewAxisMask(), options.EllipsisMask()
    named = sum(not (new >> i | ellipsis >> i) & 1 for i in range(len(given)))
    if named > len(shape) or ellipsis & (ellipsis - 1):
        raise c.error(f"{named} parts and {ellipsis.bit_count()} ellipses do not fit {list(shape)}")
    axis = 0
    for i, each in enumerate(given):
        if ellipsis >> i & 1:
            for size in shape[axis : axis + len(shape) - named]:
                parts.take(0, size, 1)
            axis += len(shape) - named
        elif new >> i & 1:
            parts.shape.append(1)
        else:
            _take(c, options, i, axis, shape[axis], each, parts)
            axis += 1
    for size in shape[axis:]:
        parts.take(0, size, 1)
    return parts


def _take(
    c: TfliteConversion,
    options: tflite.StridedSliceOptions,
    i: int,
    axis: int,
    total: int,
    given: tuple[int, int, int],
    parts: _Parts,
) -> None:
    """One dimension, of which the `i`-th numbers speak."""
    begin, end, step = given
    if step == 0:
        raise c.error(f"the stride of axis {axis} is zero")
    if options.Offset():
        end += begin
    if options.ShrinkAxisMask() >> i & 1:
        parts.take(c.axis(begin, total), 1, 1, keep=False)
        return
    low, high = (0, total) if step > 0 else (-1, total - 1)
    first, last = (low, high) if step > 0 else (high, low)
    if not options.BeginMask() >> i & 1:
        first = min(max(begin + total if begin < 0 else begin, low), high)
    if not options.EndMask() >> i & 1:
        last = min(max(end + total if end < 0 else end, low), high)
    size = -((first - last) // step)
    if size < 1:
        raise c.error(f"nothing is left of axis {axis}: {begin}..{end} by {step} of {total}")
    parts.take(first, size, step)
