"""STRIDED_SLICE: parts of each dimension, by Python's rules, with dimensions that come and go."""

from dataclasses import dataclass, field

import tflite

from compiler.frontends.tflite.registry import Conversion, converts


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
def _strided_slice(c: Conversion) -> None:
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
    c: Conversion,
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
    c: Conversion,
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
