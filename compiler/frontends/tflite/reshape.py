"""Reshape, transpose, concatenation and tile."""

import math

import tflite

from compiler.frontends.tflite.registry import TfliteConversion, converts
from compiler.ir.tensor import Tensor


@converts("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def _reshape(c: TfliteConversion) -> None:
    """The shape of the result says it all."""
    c.make_shaped(c.given(1)[0])


@converts("TRANSPOSE")
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
    options, parts = c.options(tflite.ConcatenationOptions), c.given(1)
    axis = c.axis(options.Axis(), len(parts[0].shape))
    joined = _joined(c, parts, axis)
    c.expect(joined)
    c.make_activated("concat", parts, options.FusedActivationFunction(), axis=axis)


def _joined(c: TfliteConversion, parts: list[Tensor], axis: int) -> list[int]:
    """The shape of tensors joined along an axis."""
    total = 0
    for part in parts:
        apart = [*parts[0].shape]
        if len(part.shape) == len(apart):
            apart[axis] = part.shape[axis]
        if part.shape != tuple(apart):
            raise c.error(f"{list(part.shape)} does not join {list(parts[0].shape)} along axis {axis}")
        total += part.shape[axis]
    return [*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :]]


@converts("PACK")
def _pack(c: TfliteConversion) -> None:
    """Each gets a dimension of its own, along which they are joined."""
    options, parts = c.options(tflite.PackOptions), c.given(1)
    shape = parts[0].shape
    axis = c.axis(options.Axis(), len(shape) + 1)
    for part in parts:
        if part.shape != shape:
            raise c.error(f"{list(part.shape)} cannot be packed with {list(shape)}")
    c.expect((*shape[:axis], len(parts), *shape[axis:]))
    rows = [c.reshaped(f"row{i}", part, (*shape[:axis], 1, *shape[axis:])) for i, part in enumerate(parts)]
    c.make("concat", rows, axis=axis)


@converts("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def _depth(c: TfliteConversion) -> None:
    """Blocks of pixels as channels of one, or the other way."""
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
    apart = (n, h, block, w, block, channels) if deep else (n, h, w, block, block, channels)
    swapped = tuple(apart[i] for i in _SWAPPED)
    turned = c.step("blocks", "transpose", [c.reshaped("apart", x, apart)], swapped, perm=_SWAPPED)
    c.make_shaped(turned)


_SWAPPED = (0, 1, 3, 2, 4, 5)


@converts("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")
def _batches(c: TfliteConversion) -> None:
    """Every block-th pixel as an image of its own: pads, then dimensions in another order; or the other way."""
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
    apart = (x.shape[0], *(v for pair in zip(outer, sizes, strict=True) for v in pair), *rest)
    last = range(1 + 2 * count, len(apart))
    perm = (*range(2, 2 + 2 * count, 2), 0, *range(1, 1 + 2 * count, 2), *last)
    made = tuple(apart[i] for i in perm)
    c.make_shaped(c.step("blocks", "transpose", [c.reshaped("apart", x, apart)], made, perm=perm))


def _to_space(c: TfliteConversion, x: Tensor, sizes: tuple[int, ...], pairs: _Pairs) -> None:
    count, rest = len(sizes), x.shape[1 + len(sizes) :]
    images, left = divmod(x.shape[0], math.prod(sizes))
    if left:
        raise c.error(f"blocks of {list(sizes)} do not divide {x.shape[0]} images")
    outer = x.shape[1 : 1 + count]
    apart = (*sizes, images, *outer, *rest)
    pairwise = (axis for i in range(count) for axis in (count + 1 + i, i))
    perm = (count, *pairwise, *range(1 + 2 * count, len(apart)))
    made = tuple(apart[i] for i in perm)
    turned = c.step("blocks", "transpose", [c.reshaped("apart", x, apart)], made, perm=perm)
    whole = (images, *(size * block for size, block in zip(outer, sizes, strict=True)), *rest)
    kept = tuple(size - sum(pair) for size, pair in zip(whole[1 : 1 + count], pairs, strict=True))
    c.expect((images, *kept, *rest))
    if kept == whole[1 : 1 + count]:
        c.make_shaped(turned)
        return
    starts = (0, *(before for before, _ in pairs), *(0 for _ in rest))
    image = c.reshaped("whole", turned, whole)
    c.make("slice", [image], starts=starts, sizes=c.output.shape, steps=(1,) * len(whole))

#: Most elements that may be made so.
_MOST = 1 << 28


@converts("TILE")
def _tile(c: TfliteConversion) -> None:
    x, copies = c.given(2)[:2]
    times = c.numbers(copies, "numbers of copies", len(x.shape))
    if min(times, default=1) < 1 or math.prod(times) * x.elements > _MOST:
        raise c.error(f"cannot make {list(times)} copies of {list(x.shape)}")
    c.expect([size * count for size, count in zip(x.shape, times, strict=True)])
    again = enumerate(zip(x.shape, times, strict=True))
    c.make_rows(x, [(axis, [*range(size)] * count) for axis, (size, count) in again if count > 1])


@converts("BROADCAST_TO")
def _broadcast(c: TfliteConversion) -> None:
    x, wanted = c.given(2)[:2]
    shape = c.output.shape
    c.expect(c.numbers(wanted, "shape"))
    if len(shape) < len(x.shape) or c.output.elements > _MOST:
        raise c.error(f"{list(x.shape)} cannot become {list(shape)}")
    ranked = (1,) * (len(shape) - len(x.shape)) + x.shape
    if any(size not in (1, whole) for size, whole in zip(ranked, shape, strict=True)):
        raise c.error(f"{list(x.shape)} cannot become {list(shape)}")
    spread = [axis for axis, size in enumerate(shape) if ranked[axis] != size]
    x = c.reshaped("rank", x, ranked) if spread else x
    c.make_rows(x, [(axis, [0] * shape[axis]) for axis in spread])


@converts("REVERSE_V2")
def _reverse(c: TfliteConversion) -> None:
    x, axes = c.given(2)[:2]
    turned = {c.axis(axis, len(x.shape)) for axis in c.numbers(axes, "axes")}
    c.expect(x.shape)
    starts = tuple(size - 1 if i in turned else 0 for i, size in enumerate(x.shape))
    steps = tuple(-1 if i in turned and size > 1 else 1 for i, size in enumerate(x.shape))
    c.make("slice", [x], starts=starts, sizes=x.shape, steps=steps)
