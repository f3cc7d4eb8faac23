"""Conversion of TFLite operators that rearrange elements: reshape, transpose, concat, tile, pad, slice, gather."""

import math
from dataclasses import dataclass, field

import tflite

from compiler.frontends.tflite.registry import TfliteConversion, converts
from compiler.ir.tensor import Tensor


@converts("RESHAPE", "SQUEEZE", "EXPAND_DIMS", stored=True)
def _reshape(c: TfliteConversion) -> None:
    """Convert to a reshape to the output's shape; an operand that gives the shape is ignored."""
    c.make_shaped(c.given(1)[0])


@converts("TRANSPOSE", stored=True)
def _transpose(c: TfliteConversion) -> None:
    x, order = c.given(2)[:2]
    rank = len(x.shape)
    perm = tuple(c.axis(axis, rank) for axis in c.numbers(order, "order of dimensions", rank))
    if len(set(perm)) != rank:
        raise c.error(f"an order of {rank} dimensions cannot be {list(perm)}")
    c.expect([x.shape[i] for i in perm])
    c.make("transpose", [x], perm=perm)


@converts("CONCATENATION")
def _concat(c: TfliteConversion) -> None:
    """Convert a concatenation; LiteRT's kernels convert operands of other scales in uint8 only."""
    options, parts = c.options(tflite.ConcatenationOptions), c.given(1)
    axis = c.axis(options.Axis(), len(parts[0].shape))
    c.expect(_joined_shape(c, parts, axis))
    if options.FusedActivationFunction():
        raise c.error("LiteRT's kernels reject or ignore its activation; use a separate operator")
    if c.output.dtype == "int16":
        c.expect_equal_scales(*parts, c.output)
    c.make("concat", parts, axis=axis)


def _joined_shape(c: TfliteConversion, parts: list[Tensor], axis: int) -> list[int]:
    """Return the shape of tensors concatenated along an axis, or raise InputError if their shapes do not match."""
    total = 0
    for part in parts:
        expected = [*parts[0].shape]
        if len(part.shape) == len(expected):
            expected[axis] = part.shape[axis]
        if part.shape != tuple(expected):
            raise c.error(f"{list(part.shape)} does not join {list(parts[0].shape)} along axis {axis}")
        total += part.shape[axis]
    return [*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :]]


@converts("PACK", stored=True)
def _pack(c: TfliteConversion) -> None:
    """Convert to a concatenation along a new dimension."""
    options, parts = c.options(tflite.PackOptions), c.given(1)
    shape = parts[0].shape
    axis = c.axis(options.Axis(), len(shape) + 1)
    for part in parts:
        if part.shape != shape:
            raise c.error(f"{list(part.shape)} cannot be packed with {list(shape)}")
    c.expect((*shape[:axis], len(parts), *shape[axis:]))
    rows = [c.reshaped(f"row{i}", part, (*shape[:axis], 1, *shape[axis:])) for i, part in enumerate(parts)]
    c.make("concat", rows, axis=axis)


@converts("DEPTH_TO_SPACE", "SPACE_TO_DEPTH", stored=True)
def _depth(c: TfliteConversion) -> None:
    """Convert to a reshape, a transpose and a reshape, which move blocks of pixels to channels or the reverse."""
    x, y = c.given(1)[0], c.output
    deep = c.kind == "SPACE_TO_DEPTH"
    options = c.options(tflite.SpaceToDepthOptions if deep else tflite.DepthToSpaceOptions)
    block, (small, large) = options.BlockSize(), (y, x) if deep else (x, y)
    if len(x.shape) != 4 or len(y.shape) != 4 or block < 1:
        raise c.error(f"no blocks of {block} pixels in {list(x.shape)}")
    n, h, w, depth = small.shape
    if large.shape != (n, h * block, w * block, depth // block**2) or depth % block**2:
        raise c.error(f"{list(x.shape)} cannot become {list(y.shape)} by blocks of {block}")
    channels = large.shape[3]
    blocked = (n, h, block, w, block, channels) if deep else (n, h, w, block, block, channels)
    transposed_shape = tuple(blocked[i] for i in _SWAPPED)
    transposed = c.step(
        "blocks", "transpose", [c.reshaped("apart", x, blocked)], transposed_shape, perm=_SWAPPED
    )
    c.make_shaped(transposed)


#: Permutation that swaps the two middle dimensions of blocked images.
_SWAPPED = (0, 1, 3, 2, 4, 5)


@converts("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND", stored=True)
def _batches(c: TfliteConversion) -> None:
    """Convert an image to a batch of subsampled images (pad, transpose), or the reverse (transpose, slice)."""
    x, blocks, edges = c.given(3)[:3]
    sizes = c.numbers(blocks, "sizes of blocks")
    flat = c.numbers(edges, "edges", 2 * len(sizes))
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    if not 1 <= len(sizes) < len(x.shape) or min(sizes) < 1 or min(flat) < 0:
        raise c.error(f"no blocks of {list(sizes)} with edges {pairs} in {list(x.shape)}")
    (_to_batch if c.kind == "SPACE_TO_BATCH_ND" else _to_space)(c, x, sizes, pairs)


_Pairs = list[tuple[int, int]]


def _to_batch(c: TfliteConversion, x: Tensor, sizes: tuple[int, ...], pairs: _Pairs) -> None:
    count, rest = len(sizes), x.shape[1 + len(sizes) :]
    if any(map(any, pairs)):
        pads = ((0, 0), *pairs, *((0, 0) for _ in rest))
        padded = tuple(size + sum(pair) for size, pair in zip(x.shape, pads, strict=True))
        x = c.step("padded", "pad", [x], padded, pads=pads, value=0.0)
    within = x.shape[1 : 1 + count]
    if any(size % block for size, block in zip(within, sizes, strict=True)):
        raise c.error(f"blocks of {list(sizes)} do not divide {list(within)}")
    outer = [size // block for size, block in zip(within, sizes, strict=True)]
    c.expect((x.shape[0] * math.prod(sizes), *outer, *rest))
    blocked = (x.shape[0], *(v for pair in zip(outer, sizes, strict=True) for v in pair), *rest)
    last = range(1 + 2 * count, len(blocked))
    perm = (*range(2, 2 + 2 * count, 2), 0, *range(1, 1 + 2 * count, 2), *last)
    shape = tuple(blocked[i] for i in perm)
    c.make_shaped(c.step("blocks", "transpose", [c.reshaped("apart", x, blocked)], shape, perm=perm))


def _to_space(c: TfliteConversion, x: Tensor, sizes: tuple[int, ...], pairs: _Pairs) -> None:
    count, rest = len(sizes), x.shape[1 + len(sizes) :]
    images, remainder = divmod(x.shape[0], math.prod(sizes))
    if remainder:
        raise c.error(f"blocks of {list(sizes)} do not divide {x.shape[0]} images")
    outer = x.shape[1 : 1 + count]
    blocked = (*sizes, images, *outer, *rest)
    pairwise = (axis for i in range(count) for axis in (count + 1 + i, i))
    perm = (count, *pairwise, *range(1 + 2 * count, len(blocked)))
    shape = tuple(blocked[i] for i in perm)
    transposed = c.step("blocks", "transpose", [c.reshaped("apart", x, blocked)], shape, perm=perm)
    full = (images, *(size * block for size, block in zip(outer, sizes, strict=True)), *rest)
    cropped = tuple(size - sum(pair) for size, pair in zip(full[1 : 1 + count], pairs, strict=True))
    c.expect((images, *cropped, *rest))
    if cropped == full[1 : 1 + count]:
        c.make_shaped(transposed)
        return
    starts = (0, *(before for before, _ in pairs), *(0 for _ in rest))
    image = c.reshaped("whole", transposed, full)
    c.make("slice", [image], starts=starts, sizes=c.output.shape, steps=(1,) * len(full))


#: Limit on the elements of a tiled or broadcast tensor.
_MAX_ELEMENTS = 1 << 28


@converts("TILE", stored=True)
def _tile(c: TfliteConversion) -> None:
    x, copies = c.given(2)[:2]
    times = c.numbers(copies, "numbers of copies", len(x.shape))
    if min(times, default=1) < 1 or math.prod(times) * x.elements > _MAX_ELEMENTS:
        raise c.error(f"cannot make {list(times)} copies of {list(x.shape)}")
    c.expect([size * count for size, count in zip(x.shape, times, strict=True)])
    axes = enumerate(zip(x.shape, times, strict=True))
    c.make_rows(x, [(axis, [*range(size)] * count) for axis, (size, count) in axes if count > 1])


@converts("BROADCAST_TO", stored=True)
def _broadcast(c: TfliteConversion) -> None:
    x, wanted = c.given(2)[:2]
    shape = c.output.shape
    c.expect(c.numbers(wanted, "shape"))
    if len(shape) < len(x.shape) or c.output.elements > _MAX_ELEMENTS:
        raise c.error(f"{list(x.shape)} cannot become {list(shape)}")
    ranked = (1,) * (len(shape) - len(x.shape)) + x.shape
    if any(size not in (1, whole) for size, whole in zip(ranked, shape, strict=True)):
        raise c.error(f"{list(x.shape)} cannot become {list(shape)}")
    spread = [axis for axis, size in enumerate(shape) if ranked[axis] != size]
    x = c.reshaped("rank", x, ranked) if spread else x
    c.make_rows(x, [(axis, [0] * shape[axis]) for axis in spread])


@converts("REVERSE_V2", stored=True)
def _reverse(c: TfliteConversion) -> None:
    x, axes = c.given(2)[:2]
    reversed_axes = {c.axis(axis, len(x.shape)) for axis in c.numbers(axes, "axes")}
    c.expect(x.shape)
    starts = tuple(size - 1 if i in reversed_axes else 0 for i, size in enumerate(x.shape))
    steps = tuple(-1 if i in reversed_axes and size > 1 else 1 for i, size in enumerate(x.shape))
    c.make("slice", [x], starts=starts, sizes=x.shape, steps=steps)


_PaddingPairs = tuple[tuple[int, int], ...]


def _pairs(c: TfliteConversion, x: Tensor, pads: Tensor) -> _PaddingPairs:
    """Return the padding before and after each dimension, after checking the shape of the output."""
    flat = c.numbers(pads, "paddings", 2 * len(x.shape))
    pairs = tuple(zip(flat[::2], flat[1::2], strict=True))
    if min(flat, default=0) < 0:
        raise c.error(f"paddings must not be negative: {list(pairs)}")
    c.expect([size + sum(pair) for size, pair in zip(x.shape, pairs, strict=True)])
    return pairs


@converts("PAD", "PADV2", stored=True)
def _pad(c: TfliteConversion) -> None:
    x, pads, *fill = c.given(3 if c.kind == "PADV2" else 2)
    pairs, value = _pairs(c, x, pads), 0.0
    if fill and c.kind == "PADV2":
        data, q = fill[0].data, fill[0].quantization
        if data is None or data.size != 1:
            raise c.error("its value must be one constant")
        value = float((data if q is None else q.dequantized(data)).reshape(-1)[0])
    elif x.quantization is None and x.dtype.startswith(("int", "uint")):
        value = 0
    c.make("pad", [x], pads=pairs, value=value)


@converts("MIRROR_PAD", stored=True)
def _mirror_pad(c: TfliteConversion) -> None:
    """Convert padding by reflection to a gather along each padded dimension."""
    x, pads = c.given(2)[:2]
    symmetric = c.options(tflite.MirrorPadOptions).Mode() == tflite.MirrorPadMode.SYMMETRIC
    gathers = []
    for axis, (before, after) in enumerate(_pairs(c, x, pads)):
        size, repeated = x.shape[axis], int(symmetric)  # symmetric mode repeats the edge element
        if max(before, after) > size - 1 + repeated:
            raise c.error(f"axis {axis} of {size} has no {max(before, after)} elements to mirror")
        left = range(before - repeated, -repeated, -1)
        right = range(size - 2 + repeated, size - 2 + repeated - after, -1)
        if before or after:
            gathers.append((axis, [*left, *range(size), *right]))
    c.make_rows(x, gathers)


def cut(c: TfliteConversion, x: Tensor, output: Tensor, axis: int, start: int, size: int) -> None:
    """Add a node that computes an output as a slice of x along one axis."""
    starts, sizes = [0] * len(x.shape), [*x.shape]
    starts[axis], sizes[axis] = start, size
    c.expect(sizes, output)
    c.make("slice", [x], output, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * len(sizes))


@converts("SLICE", stored=True)
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


@converts("SPLIT", stored=True)
def _split(c: TfliteConversion) -> None:
    """Convert a split into equal parts, one per output."""
    along, x = c.given(2)[:2]
    axis = c.axis(c.numbers(along, "axis", 1)[0], len(x.shape))
    if not c.outputs or x.shape[axis] % len(c.outputs):
        raise c.error(f"axis {axis} of {x.shape[axis]} is not {len(c.outputs)} equal parts")
    _cut_all(c, x, axis, [x.shape[axis] // len(c.outputs)] * len(c.outputs))


@converts("SPLIT_V", stored=True)
def _split_sizes(c: TfliteConversion) -> None:
    """Convert a split into parts of given sizes, one of which may be -1 for the remainder."""
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


@converts("UNPACK", stored=True)
def _unpack(c: TfliteConversion) -> None:
    """Convert to one slice for each index along an axis; the axis is removed from the results."""
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


@converts("GATHER", stored=True)
def _gather(c: TfliteConversion) -> None:
    """Convert a gather of slices along an axis; separate indices for each batch are not supported."""
    x, indices = c.given(2)[:2]
    axis = batches = 0
    if c.operator.options is not None:
        options = c.options(tflite.GatherOptions)
        axis, batches = options.Axis(), options.BatchDims()
    axis = c.axis(axis, len(x.shape))
    if batches:
        raise c.error("separate indices for each batch are not supported")
    _rows(c, x, indices, axis)


@converts("EMBEDDING_LOOKUP", stored=True)
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
class _SliceSpec:
    """Start, size and step of a slice for each dimension of x, and the shape of the result."""

    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)

    def append(self, start: int, size: int, step: int, *, keep: bool = True) -> None:
        """Add the next dimension of x, which is also a dimension of the result if `keep` is set."""
        self.starts.append(start)
        self.sizes.append(size)
        self.steps.append(step if size > 1 else 1)
        if keep:
            self.shape.append(size)


@converts("STRIDED_SLICE", stored=True)
def _strided_slice(c: TfliteConversion) -> None:
    options = c.options(tflite.StridedSliceOptions)
    x, *given = c.given(4)[:4]
    begins = c.numbers(given[0], "beginnings")
    ends, strides = (
        c.numbers(t, what, len(begins)) for t, what in zip(given[1:], ("ends", "strides"), strict=True)
    )
    spec = _slice_spec(c, options, x.shape, list(zip(begins, ends, strides, strict=True)))
    c.expect(spec.shape)
    sizes, steps = tuple(spec.sizes), tuple(spec.steps)
    if sizes == x.shape and all(step == 1 for step in steps):
        c.make_shaped(x)
    elif sizes == c.output.shape:
        c.make("slice", [x], starts=tuple(spec.starts), sizes=sizes, steps=steps)
    else:
        c.make_shaped(
            c.step("part", "slice", [x], sizes, starts=tuple(spec.starts), sizes=sizes, steps=steps)
        )


def _slice_spec(
    c: TfliteConversion,
    options: tflite.StridedSliceOptions,
    shape: tuple[int, ...],
    given: list[tuple[int, int, int]],
) -> _SliceSpec:
    """Return the slice that a StridedSlice reads; dimensions without begin, end and stride are read completely."""
    spec, new, ellipsis = _SliceSpec(), options.NewAxisMask(), options.EllipsisMask()
    named = sum(not (new >> i | ellipsis >> i) & 1 for i in range(len(given)))
    if named > len(shape) or ellipsis & (ellipsis - 1):
        raise c.error(f"{named} parts and {ellipsis.bit_count()} ellipses do not fit {list(shape)}")
    axis = 0
    for i, each in enumerate(given):
        if ellipsis >> i & 1:
            for size in shape[axis : axis + len(shape) - named]:
                spec.append(0, size, 1)
            axis += len(shape) - named
        elif new >> i & 1:
            spec.shape.append(1)
        else:
            _append_axis(c, options, i, axis, shape[axis], each, spec)
            axis += 1
    for size in shape[axis:]:
        spec.append(0, size, 1)
    return spec


def _append_axis(
    c: TfliteConversion,
    options: tflite.StridedSliceOptions,
    i: int,
    axis: int,
    total: int,
    given: tuple[int, int, int],
    spec: _SliceSpec,
) -> None:
    """Append to `spec` the dimension `axis` of size `total`, sliced by the `i`-th begin, end and stride."""
    begin, end, step = given
    if step == 0:
        raise c.error(f"the stride of axis {axis} is zero")
    if options.Offset():
        end += begin
    if options.ShrinkAxisMask() >> i & 1:
        spec.append(c.axis(begin, total), 1, 1, keep=False)
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
    spec.append(first, size, step)
