"""Reductions over axes: sums, means, minima and maxima."""

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers, pieces
from compiler.ir.identity import identity
from compiler.layers.base import Layer
from compiler.layers.layer_kind import BYTES, ElementTypes, LayerKind, Lowering
from compiler.layers.lowering_context import (
    LoweringContext,
    UnsupportedLoweringError,
    affine,
    clip_range,
    same_quantization,
)
from compiler.layers.tile_pipeline import PASS_CYCLES, PipelineTile, TilePipeline, lines
from compiler.layers.tiling_context import LayerContext, stream_cycles
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import Affine, halves_word, quantize_multiplier
from compiler.util.tiles import ceil_div, cuts
from cosim.semantics.fixed_point import scale
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, Post, Reduce, Rounding, Unit

if TYPE_CHECKING:
    from compiler.layers.tiling_context import TilingContext

#: Element types of operands and results.
_TYPES = (*BYTES, "int16")
#: Maximum number of elements of a sum, so that a sum of bytes fits int32 and division by multiplication is exact.
_MAX_ELEMENTS = 1 << 22
#: Maximum number of int16 elements of a sum, so that the sum fits int32.
_MAX_ELEMENTS_16 = (1 << 16) - 1
#: Maximum count and stride of a dimension that shares a coordinate with another (docs/machine.md).
_MAX_COUNT, _MAX_SHARED_STRIDE = 0xFFFF, 0x7FF


@identity("ReduceLayer", "how", "dims", "lanes", "x_zp", "post", "rounding", "fields")
@dataclass(frozen=True, kw_only=True, eq=False)
class ReduceLayer(Layer):
    """Reduction of a tensor, viewed with dimensions kept x reduced x kept x reduced x channels.

    Parameters
    ----------
    how : Reduce
        Operation that combines the elements.
    dims : (int, int, int, int, int)
        Dimensions k0, r0, k1, r1, c of the tensor; adjacent dimensions that are both kept or both reduced are merged.
    lanes : bool
        True if the channels c are reduced as well; r1 is then 1.
    x_zp : int
        Zero point subtracted from each element before the reduction.
    post : Post
        Post-processing. NONE: the result is stored unchanged. SCALE: the result is scaled by `fields`.
    rounding : Rounding
        Rounding mode of the scaling.
    fields : dict
        Fields of FUSE for the scaling.
    """

    how: Reduce
    dims: tuple[int, int, int, int, int]
    lanes: bool
    x_zp: int = 0
    post: Post = Post.NONE
    rounding: Rounding = Rounding.DOUBLE
    fields: dict[str, int]


def lower_reduce(low: LoweringContext) -> ReduceLayer:
    """Lower a reduction.

    Raises
    ------
    UnsupportedLoweringError
        The sizes or axes are not supported.
    """
    op, a = low.anchor.op.removeprefix("reduce_"), low.anchor.attributes
    x, y = low.x, low.y
    dims, lanes = _dims(x.shape, a["axes"])
    count = x.elements // y.elements
    fields: dict[str, Any] = {"dims": dims, "lanes": lanes, **low.common()}
    if "int16" in (x.dtype, y.dtype):
        _check_int16(low, count)
    if op in ("max", "min"):
        how = Reduce.MAX if op == "max" else Reduce.MIN
        if same_quantization(x, y):
            return ReduceLayer(**fields, how=how, fields={})
        return ReduceLayer(**fields, how=how, **scaled(low, 1))
    if count > _MAX_ELEMENTS:
        raise UnsupportedLoweringError(f"a sum of {count:,} elements, more than {_MAX_ELEMENTS:,}")
    return ReduceLayer(**fields, how=Reduce.SUM, **scaled(low, count if op == "mean" else 1))


def _check_int16(low: LoweringContext, count: int) -> None:
    """Check that FUSE computes a reduction of `count` int16 values as the selected kernels do.

    Raises
    ------
    UnsupportedLoweringError
        The reduction changes the type, the sum may exceed 32 bits, or the kernels compute in floating point.
    """
    if low.x.dtype != low.y.dtype:
        raise UnsupportedLoweringError(f"a reduction of {low.x.dtype} to {low.y.dtype}")
    if low.anchor.op in ("reduce_max", "reduce_min") and same_quantization(low.x, low.y):
        return
    if low.rounding == "onnxruntime" or (low.rounding == "xnnpack" and low.anchor.op == "reduce_sum"):
        raise UnsupportedLoweringError("a reduction of int16 that is scaled in float32")
    if count > _MAX_ELEMENTS_16:
        raise UnsupportedLoweringError(f"a sum of {count:,} int16 elements, more than {_MAX_ELEMENTS_16:,}")


def reciprocal(count: int) -> tuple[int, int]:
    """Return the multiplier and exponent that divide a sum of `count` bytes, rounding halves away from zero.

    The multiplier is rounded up, so that ties round away from zero in mode AWAY. All other values are too far from a
    tie to be affected by the error of a 31-bit multiplier.
    """
    exponent = 1 - (count - 1).bit_length()
    return min(-(-(1 << (31 - exponent)) // count), (1 << 31) - 1), exponent


def lower_global_average(low: LoweringContext) -> ReduceLayer:
    """Lower an average over a whole image of any size.

    Raises
    ------
    UnsupportedLoweringError
        The image has too many pixels.
    """
    batch, h, w, c = low.x.shape
    count = h * w
    if count > _MAX_ELEMENTS:
        raise UnsupportedLoweringError(f"an average over {count:,} pixels, more than {_MAX_ELEMENTS:,}")
    if low.rounding == "onnxruntime":
        return ReduceLayer(
            **low.common(), how=Reduce.SUM, dims=(batch, count, 1, 1, c), lanes=False, **scaled(low, count)
        )
    clip, (mult, exponent) = clip_range(low.y), reciprocal(count)
    return ReduceLayer(
        **low.common(),
        how=Reduce.SUM,
        dims=(batch, count, 1, 1, c),
        lanes=False,
        post=Post.SCALE,
        rounding=Rounding.AWAY,
        fields={"post_mult": mult, "post_shift": exponent, "post_lo": clip[0], "post_hi": clip[1]},
    )


def lower_global_maximum(low: LoweringContext) -> ReduceLayer:
    """Lower a maximum over a whole image to a reduction; the quantization of the result is that of the image."""
    batch, h, w, c = low.x.shape
    return ReduceLayer(**low.common(), how=Reduce.MAX, dims=(batch, h * w, 1, 1, c), lanes=False, fields={})


def scaled(low: LoweringContext, count: int) -> dict[str, Any]:
    """Return the fields of a ReduceLayer that divide a sum by `count` and scale the quotient.

    The division is part of the multiplier, as in LiteRT's reference kernel.
    """
    x, y = affine(low.x), affine(low.y)
    mult, exponent = quantize_multiplier(x.scale / y.scale)
    clip = clip_range(low.y)
    rounding, x_zp, y_zp = Rounding.DOUBLE, x.zero_point, y.zero_point
    extreme = low.anchor.op in ("reduce_max", "reduce_min")
    own = extreme or low.x.dtype == "int16"  # XNNPACK has no kernel, so LiteRT uses its own
    if low.rounding == "reference" or (own and low.rounding == "xnnpack"):
        shift = min(count.bit_length() - 1, 32, 31 + exponent)
        mult, exponent = (mult << shift) // count, exponent - shift
    elif low.rounding == "xnnpack":
        rounding = Rounding.EVEN
        mult, exponent, x_zp, y_zp = float32_scale(
            x, y, low.x.dtype, low.x.elements // low.y.elements, count, clip
        )
    else:
        mult, exponent = quantize_multiplier(x.scale / y.scale / count)
        rounding = Rounding.EVEN
    return {
        "x_zp": x_zp,
        "post": Post.SCALE,
        "rounding": rounding,
        "fields": {
            "post_mult": mult,
            "post_shift": exponent,
            "post_zp": y_zp,
            "post_lo": clip[0],
            "post_hi": clip[1],
        },
    }


def _dims(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[tuple[int, int, int, int, int], bool]:
    """Return the five dimensions of `ReduceLayer.dims`, and True if the last one is reduced."""
    reduced = {axis % len(shape) for axis in axes} if shape else set()
    runs: list[tuple[bool, int]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if runs and runs[-1][0] == (axis in reduced):
            runs[-1] = (runs[-1][0], runs[-1][1] * size)
        else:
            runs.append((axis in reduced, size))
    lanes, c = runs.pop() if runs else (False, 1)
    if runs and runs[0][0]:
        runs.insert(0, (False, 1))
    outer = [size for _, size in runs]
    if len(outer) > (3 if lanes else 4):
        raise UnsupportedLoweringError(
            f"a reduction of {list(shape)} over axes {list(axes)} has too many strides"
        )
    k0, r0, k1, r1 = outer + [1] * (4 - len(outer))
    if max(k1, k1 * r1) > _MAX_COUNT or (k1 > 1 and r1 > _MAX_SHARED_STRIDE) or math.prod(outer) > 1 << 31:
        raise UnsupportedLoweringError(
            f"a reduction of {list(shape)} over axes {list(axes)} has strides that are too long"
        )
    return (k0, r0, k1, r1, c), lanes


#: Cycles of the sequencer for the commands of a tile.
_TILE_CYCLES = 60

_Tilings = Iterator[tuple[float, LayerSchedule]]

#: Numbers of buffers of the input that are tried.
_BUFFERS = (2, 3, 4)
#: Points of a tile below which smaller parts of the reduced dimension are not tried.
_FEW_POINTS = 128


def reduce_tilings(context: "TilingContext", layer: ReduceLayer) -> _Tilings:
    """Yield the tilings that fit the on-chip memories.

    Parts of a reduction over rows are tried even if the whole fits, because FUSE can begin once a part is loaded. Parts
    of a reduction over lanes are tried only if nothing else fits.
    """
    k0, r0, k1, r1, c = layer.dims
    n, blocks = context.config.n, ceil_div(c, context.config.n)
    size = DTYPE_BYTES[layer.shapes[layer.x].dtype]
    by_rows = r0 > 1 or not layer.lanes
    reduced = r0 if by_rows else blocks
    for depth in cuts(reduced):
        found, parts = False, ceil_div(reduced, depth)
        for columns, rows in product([blocks] if layer.lanes else cuts(blocks), cuts(k0)):
            width = min((columns if by_rows else depth) * n, c)
            points = rows * (depth if by_rows else 1) * k1 * r1
            results = rows * k1
            written = results * (1 if layer.lanes else width) * size
            x_bytes = 0 if context.on_chip(layer.x) else (points * width + n) * size
            y_bytes = 0 if context.on_chip(layer.y) else 2 * (written + n * size)
            held = results * parts * (1 if layer.lanes else columns) if parts > 1 else 0
            if held > context.acc_rows or max(points, depth) > _MAX_COUNT:
                continue
            load = lines(points, width * size, c * size, n) if x_bytes else 0.0
            store = written / n if y_bytes else 0.0
            whole = (k0 / rows) * (1 if layer.lanes else blocks / columns)
            last = whole * (held + PASS_CYCLES) if parts > 1 else 0.0
            fuse = float(points * ceil_div(width, n) * size)
            for buffers in _BUFFERS if load else _BUFFERS[:1]:
                if buffers * x_bytes + y_bytes > context.free:
                    continue
                found = True
                tiles = whole * reduced / depth
                yield (
                    stream_cycles(context, tiles, load, fuse, store / parts, buffers) + last,
                    LayerSchedule(
                        rows=rows,
                        columns=columns,
                        depth=depth,
                        x_buffers=buffers,
                        acc_buffers=1,
                        on_chip=context.on_chip(layer.y),
                    ),
                )
        if found and (layer.lanes or depth * k1 * r1 * blocks <= _FEW_POINTS):
            return


def reduce_tile_model(layer: ReduceLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a reduction, with tiles of kept rows, channel blocks and parts of reduced dimensions."""
    k0, r0, k1, r1, c = layer.dims
    n, blocks = context.config.n, ceil_div(c, context.config.n)
    size = DTYPE_BYTES[layer.shapes[layer.x].dtype]
    by_rows = r0 > 1 or not layer.lanes
    reduced = r0 if by_rows else blocks
    rows, columns, depth = min(s.rows, k0), min(s.columns, blocks), min(s.depth, reduced)
    x_here, parts = context.x_on_chip, ceil_div(reduced, depth)

    def tiles() -> Iterator[PipelineTile]:
        for start in range(0, k0, rows):
            for block in range(0, 1 if layer.lanes else blocks, columns):
                for part in range(0, reduced, depth):
                    wide = min(columns, blocks - block) if by_rows else min(depth, blocks - part)
                    high = min(rows, k0 - start) * (min(depth, r0 - part) if by_rows else 1)
                    points = high * k1 * r1 * wide
                    width = min(wide * n, c - (block if by_rows else part) * n)
                    loads = (
                        ()
                        if x_here
                        else (("x", (start, block, part), lines(points // wide, width * size, c * size, n)),)
                    )
                    last = part + depth >= reduced
                    results = float(min(rows, k0 - start) * k1 * (1 if layer.lanes else wide)) * last
                    store = 0.0 if context.y_on_chip else results * size
                    yield PipelineTile(
                        loads,
                        0.0,
                        points * size + (results if parts > 1 else 0.0),
                        store,
                        1 + last * (store > 0) + (parts > 1) * last,
                    )

    count = ceil_div(k0, rows) * (1 if layer.lanes else ceil_div(blocks, columns)) * ceil_div(reduced, depth)
    return TilePipeline(tiles(), count, {"x": s.x_buffers}, 1, s.y_buffers)


#: First index and number of indices of a dimension.
_Span = tuple[int, int]
#: Maximum coordinate and stride of FUSE, whose fields have 17 and 12 bits (docs/machine.md).
_MAX_COORDINATE, _MAX_STRIDE = 0xFFFF, 0x7FF


class ReduceSteps:
    """Code generator of a reduction; a tile has some indices of dimension k0 and some blocks of kept channels."""

    def __init__(self, context: CodegenContext, layer: ReduceLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        schedule, n = context.schedule, self.n
        self.x, self.y = context.layouts[layer.x], context.layouts[layer.y]
        self.k0, self.r0, self.k1, self.r1, self.c = layer.dims
        self.size = DTYPE_BYTES[
            layer.shapes[layer.x].dtype
        ]  # bytes of an element of the input and of the result
        blocks = ceil_div(self.c, n)
        # A reduction is split into pieces by rows if there are several, otherwise by channels.
        self.by_rows = self.r0 > 1 or not layer.lanes
        most = max(_MAX_COUNT // (self.k1 * self.r1), 1)
        self.depth = min(schedule.depth, self.r0, most) if self.by_rows else min(schedule.depth, blocks)
        self.columns = min(schedule.columns, blocks) if not layer.lanes else blocks
        far = _MAX_COORDINATE // self.r0 if self.r0 <= _MAX_STRIDE else 1
        self.rows = min(schedule.rows, self.k0, max(far, 1), _MAX_COORDINATE // self.k1)
        self.parts = ceil_div(self.r0 if self.by_rows else blocks, self.depth)
        width = min((self.columns if self.by_rows else self.depth) * n, self.c)
        rows = self.depth if self.by_rows else 1
        size = (self.rows * rows * self.k1 * self.r1 * width + n) * self.size
        self.tiles = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{layer.name}.x", size, schedule.x_buffers), self._load
        )
        results = self.rows * self.k1
        out = results if layer.lanes else results * min(self.columns * n, self.c)
        self.out = BufferRotation(
            BufferMemory.SP, f"{layer.name}.y", (out + n) * self.size, schedule.y_buffers
        )
        held = results * self.parts * (1 if layer.lanes else self.columns)
        self.acc = BufferRotation(BufferMemory.ACC, f"{layer.name}.acc", held, schedule.acc_buffers)

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        (k, ks), (r, rs), (c, width) = key  # type: ignore[misc]
        inner, width = self.k1 * self.r1, width * self.size
        pixel = self.c * self.size
        row = inner * pixel
        source = self.x.address().plus((k * self.r0 + r) * row + c * self.size)
        if width < pixel:
            lines = {
                "len": width,
                "y_count": rs * inner,
                "dram_y": pixel,
                "dst_y": width,
                "z_count": ks,
                "dram_z": self.r0 * row,
                "dst_z": rs * inner * width,
            }
        elif rs < self.r0:
            lines = {"len": rs * row, "y_count": ks, "dram_y": self.r0 * row, "dst_y": rs * row}
        else:
            lines = {"len": ks * rs * row}
        return [self.context.command(Unit.LOAD, dram=source, dst=address, **lines)]

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        total = ceil_div(self.c, self.n)
        blocks = pieces(total, self.columns)
        return [
            step
            for block in list(blocks)
            for rows in pieces(self.k0, self.rows)
            for step in self._tile(rows, block)
        ]

    def _tile(self, rows: _Span, blocks: _Span) -> list[TileStep]:
        first = 0 if self.layer.lanes else blocks[0] * self.n
        width = (1 if self.layer.lanes else min(blocks[1] * self.n, self.c - first)) * self.size
        pitch = (1 if self.layer.lanes else self.c) * self.size
        target = self.y.address().plus(rows[0] * self.k1 * pitch + first * self.size)
        if not self.y.on_chip:
            address, out_pitch = self.out.next(), width
        else:
            address, out_pitch = target, pitch
        out = self._reduced(rows, blocks, address, out_pitch)
        if not self.y.on_chip:
            count = rows[1] * self.k1
            lines = {"len": width, "y_count": count, "src_y": width, "dram_y": pitch}
            if width == pitch:
                lines = {"len": width * count}
            out[-1].stores.append(self.context.command(Unit.STORE, dram=target, src=address, **lines))
        return out

    def _reduced(self, rows: _Span, blocks: _Span, address: BufferRef, pitch: int) -> list[TileStep]:
        """Return the steps that write the results of a tile to the scratchpad, with pixels `pitch` bytes apart."""
        out, parts = [], self.parts
        acc = self.acc.next() if parts > 1 else address
        for number, (first, count) in enumerate(pieces(self.parts * self.depth, self.depth)):
            step = TileStep()
            r, c = (0, self.r0), (blocks[0], blocks[1])
            if self.by_rows:
                r = (first, min(count, self.r0 - first))
            else:
                c = (first, min(count, blocks[1] - first))
            span = (c[0] * self.n, min(c[1] * self.n, self.c - c[0] * self.n))
            source = self._source(step, rows, r, span)
            if parts == 1:
                fields = source | self._out(address, pitch, 1) | self._words(1, 1)
            else:
                fields = source | self._out(acc.plus(number), blocks[1] * parts, parts) | self._words(1, 0)
            step.fuse.append(self.context.command(Unit.FUSE, **fields))
            out.append(step)
        if parts > 1:
            out[-1].fuse.append(self._last(acc, rows, blocks, address, pitch))
        return out

    def _source(self, step: TileStep, rows: _Span, r: _Span, c: _Span) -> dict[str, int | BufferRef]:
        """Return the FUSE fields of the walk over a part of the input."""
        if self.x.on_chip:
            pixel, high = self.c, self.r0
            start = (rows[0] * self.r0 + r[0]) * self.k1 * self.r1 * self.c + c[0]
            base = self.x.address().plus(start * self.size)
        else:
            base, pixel, high = self.tiles.get((rows, r, c), step), c[1], r[1]
        blocks, block = ceil_div(c[1], self.n), self.n * self.size
        pixel *= self.size
        walk: dict[str, int | BufferRef] = {
            "a_base": base,
            "a_u": self.k1 * self.r1 * pixel,
            "y_count": rows[1],
            "wy_count": r[1],
            "u_y": high if rows[1] > 1 else 1,
            "u_wy": 1,
            "v_wx": 1,
            "lanes_tail": (c[1] - 1) % self.n + 1,
        }
        if self.layer.lanes:
            return walk | {"n_count": self.k1, "a_n": pixel, "wx_count": blocks, "a_v": block}
        return walk | {
            "n_count": blocks,
            "a_n": block,
            "x_count": self.k1,
            "wx_count": self.r1,
            "a_v": pixel,
            "v_x": self.r1 if self.k1 > 1 else 1,
        }

    def _out(self, address: BufferRef, pitch: int, block: int) -> dict[str, int | BufferRef]:
        """Return the destination fields: pixels are `pitch` bytes apart, or blocks `block` accumulator rows apart."""
        if self.layer.lanes:
            step = block if self.parts > 1 else self.size
            return {"d_base": address, "d_y": self.k1 * step, "d_n": step}
        step = self.n * self.size if self.parts == 1 else block
        return {"d_base": address, "d_y": self.k1 * pitch, "d_x": pitch, "d_n": step}

    def _words(self, image: int, last: int) -> dict[str, int | BufferRef]:
        """Return the fuse words of a pass over the input or the accumulator; the last pass computes the results."""
        layer, lanes = self.layer, self.layer.lanes
        tail = FUSE_DIMS.index("wx" if lanes else "n")
        if not image and lanes:
            tail = 7
        out: dict[str, int | BufferRef] = {
            "src": FUSE_SRC.pack(a_src=image, a_dtype=layer.shapes[layer.x].dtype),
            "stage": FUSE_STAGE.pack(
                reduce=layer.how,
                lane_reduce=layer.how if lanes and image else Reduce.NONE,
                post=layer.post if last else 0,
                post_rounding=layer.rounding,
                d_dst=last,
                d_dtype=layer.shapes[layer.y].dtype,
                tail_dim=tail,
            ),
        }
        if image:
            out["zp_ab"] = halves_word(layer.x_zp, 0)
        return out | (layer.fields if last else {})

    def _last(self, acc: BufferRef, rows: _Span, blocks: _Span, address: BufferRef, pitch: int) -> Command:
        """Return the command that reduces the partial results in the accumulator."""
        count = rows[1] * self.k1
        fields: dict[str, int | BufferRef] = {
            "a_base": acc,
            "wx_count": self.parts,
            "a_v": 1,
            "v_wx": 1,
            "y_count": count,
            "u_y": 1,
            "d_base": address,
        }
        if self.layer.lanes:
            fields |= {"a_u": self.parts, "d_y": self.size, "lanes": 1}
        else:
            width = min(blocks[1] * self.n, self.c - blocks[0] * self.n)
            fields |= {
                "a_u": blocks[1] * self.parts,
                "n_count": blocks[1],
                "a_n": self.parts,
                "d_y": pitch,
                "d_n": self.n * self.size,
                "lanes_tail": (width - 1) % self.n + 1,
            }
        return self.context.command(Unit.FUSE, **fields, **self._words(0, 1))


def reduce_steps(context: CodegenContext, layer: ReduceLayer) -> list[TileStep]:
    """Generate the steps of a reduction."""
    return ReduceSteps(context, layer).steps()


KIND = LayerKind(
    name="reduce",
    layer=ReduceLayer,
    lowerings={
        **dict.fromkeys(
            ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"),
            Lowering(lower_reduce, ElementTypes((_TYPES,), _TYPES)),
        ),
    },
    tilings=reduce_tilings,
    tile_model=reduce_tile_model,
    steps=reduce_steps,
)

#: Maximum number of sums that are checked, starting from the smallest.
_MAX_CHECKED_SUMS = 1 << 20
#: Maximum change of a zero point, and number of pairs of zero points that are tried.
_MAX_ZERO_CHANGE, _PAIRS = 256, 8
#: Changes of the multiplier to try, which turn products very close to a tie into ties or vice versa.
_NUDGES = (0, *(sign << bit for bit in range(9) for sign in (1, -1)))


class SumScale(NamedTuple):
    """Scaling of a sum by FUSE: 31-bit multiplier, exponent, and the zero points of elements and result."""

    mult: int
    exponent: int
    x_zero: int
    y_zero: int


def float32_scale(
    x: Affine, y: Affine, dtype: str, count: int, divisor: int, limits: tuple[int, int]
) -> SumScale:
    """Find a scaling with which FUSE rounds every sum as XNNPACK does.

    XNNPACK adds the zero point before rounding, FUSE after it. With an odd zero point, FUSE would therefore round ties
    in the other direction. To avoid this, each element is increased so that the scaled sum grows by an odd number, and
    the output's zero point is decreased by that number. Ties that float32 rounding creates or removes can be reproduced
    by changing the last bits of the multiplier.

    Parameters
    ----------
    x, y : Affine
        Quantization of the elements and of the result.
    dtype : str
        Element type, int8 or uint8.
    count : int
        Number of elements in a sum.
    divisor : int
        Divisor of the sum: 1, or `count` for a mean.
    limits : (int, int)
        Smallest and largest result.

    Raises
    ------
    UnsupportedLoweringError
        No exact scale was found.
    """
    lowest = np.iinfo(dtype).min * count
    sums = np.arange(lowest, lowest + min(255 * count + 1, _MAX_CHECKED_SUMS))
    ratio = np.float32(x.scale) / np.float32(y.scale) * np.float32(1 / divisor)
    zero = np.float32(y.zero_point) - np.float32(count * x.zero_point) * ratio
    wanted = np.clip(np.rint(sums.astype(np.float32) * ratio + zero).astype(np.int64), *limits)
    mult, exponent = quantize_multiplier(x.scale / y.scale / divisor)
    for x_zero, y_zero in islice(_zero_points(x, y, float(ratio) * count), _PAIRS):
        for nudge in _NUDGES:
            found = SumScale(min(max(mult + nudge, 0), (1 << 31) - 1), exponent, x_zero, y_zero)
            if np.array_equal(np.clip(_in_fuse(sums, count, found), *limits), wanted):
                return found
    raise UnsupportedLoweringError("no multiplier reproduces the float32 rounding of some sums")


def _zero_points(x: Affine, y: Affine, change: float) -> Iterator[tuple[int, int]]:
    """Yield equivalent pairs of zero points; a result grows by `change` if every element grows by one."""
    for more in range(_MAX_ZERO_CHANGE):
        less = round(more * change)
        if abs(more * change - less) <= less / (1 << 22):
            yield x.zero_point - more, y.zero_point - less


def _in_fuse(sums: NDArray[np.int64], count: int, by: SumScale) -> NDArray[np.int64]:
    return scale(sums - count * by.x_zero, by.mult, by.exponent, 0, Rounding.EVEN) + by.y_zero
