"""Pooling over windows of an image."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, product

import numpy as np

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tile_buffers import (
    BufferRotation,
    CodegenContext,
    ColumnStrip,
    TileBuffers,
    column_strips,
    image_lines,
    image_rows,
    pieces,
)
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
from compiler.layers.reduce import lower_global_average, scaled
from compiler.layers.tile_pipeline import PipelineTile, TilePipeline, lines
from compiler.layers.tiling_context import (
    TILE_CYCLES,
    LayerContext,
    TilingContext,
    Tilings,
    images,
    input_rows,
    strip_images,
    strip_widths,
)
from compiler.schedule.schedule import ALL_COLUMNS, LayerSchedule
from compiler.util.scaling import halves_word
from compiler.util.tiles import ceil_div, cuts
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, Post, Reduce, Rounding, Unit

#: Element types of operands and results, which are equal.
_TYPES = (*BYTES, "int16")
#: Number of strip widths that fit, beginning with the largest, from which the best is chosen.
_FITTING_WIDTHS = 4
#: Maximum number of different element counts of windows, each of which needs separate commands.
_MAX_COUNTS = 64


def inside(size: int, kernel: int, stride: int, pad: int, outputs: int) -> list[tuple[int, int, int]]:
    """Return runs of windows with equally many elements inside the image: (first window, windows, elements each)."""
    counts = [min(i * stride - pad + kernel, size) - max(i * stride - pad, 0) for i in range(outputs)]
    runs, start = [], 0
    for count, group in groupby(counts):
        length = len(list(group))
        runs.append((start, length, count))
        start += length
    return runs


def inside_counts(low: LoweringContext) -> set[int]:
    """Return the different numbers of elements that windows have inside the image.

    Raises
    ------
    UnsupportedLoweringError
        A window has no elements inside the image, or there are too many different counts.
    """
    a, (_, *sizes, _), (_, *outputs, _) = low.anchor.attributes, low.x.shape, low.y.shape
    runs = [inside(*v) for v in zip(sizes, a["kernel"], a["strides"], a["pads"], outputs, strict=False)]
    pairs = [rows[2] * columns[2] for rows, columns in product(*runs)]
    if len(pairs) > _MAX_COUNTS or min(pairs) < 1:
        raise UnsupportedLoweringError(
            f"an average whose windows reach beyond the image in {len(pairs)} ways"
        )
    return set(pairs)


@identity("PoolLayer", "kernel", "strides", "pads", "average", "clip", "x_zp", "scaled")
@dataclass(frozen=True, kw_only=True, eq=False)
class PoolLayer(Layer):
    """Maximum or average pooling.

    Parameters
    ----------
    x_zp : int
        Zero point of the input, which is also the padding value; only used with `scaled`.
    scaled : dict
        FUSE fields that multiply a sum by a factor, keyed by the number of averaged elements (all elements of the
        window, or those inside the image). If empty, sums are divided by the number of elements inside the image.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    average: bool
    clip: tuple[int, int]
    x_zp: int = 0
    scaled: dict[int, dict[str, int]] = field(default_factory=dict)


def lower_pool(low: LoweringContext) -> Layer:
    """Lower a pooling operator; an average over a whole image of more than 255 pixels becomes a reduction."""
    a, average = low.anchor.attributes, low.anchor.op == "avg_pool2d"
    types = {low.x.dtype, low.y.dtype}
    if "int16" in types and (len(types) > 1 or (average and low.rounding == "onnxruntime")):
        raise UnsupportedLoweringError(f"pooling of {low.x.dtype} to {low.y.dtype} in floating point")
    taps = a["kernel"][0] * a["kernel"][1]
    window = {
        "kernel": a["kernel"],
        "strides": a["strides"],
        "pads": a["pads"],
        "average": average,
        "batch": low.x.shape[0],
    }
    counted = a.get("count_pads", False) or not any(a["pads"])
    if (
        average
        and taps > 255
        and "int16" not in types
        and not any(a["pads"])
        and a["kernel"] == low.x.shape[1:3]
    ):
        return lower_global_average(low)
    if average and taps <= 255 and low.rounding == "onnxruntime":
        counts = {taps} if counted else inside_counts(low)
        factors = {count: scaled(low, count)["fields"] for count in counts}
        return PoolLayer(
            **low.common(), **window, clip=clip_range(low.y), x_zp=affine(low.x).zero_point, scaled=factors
        )
    if not average and same_quantization(low.x, low.y):
        limits = np.iinfo(low.y.dtype)
        return PoolLayer(**low.common(), **window, clip=(int(limits.min), int(limits.max)))
    if affine(low.x) != affine(low.y):
        raise UnsupportedLoweringError("input and output of pooling must have the same quantization")
    if average and ((a["count_pads"] and any(a["pads"])) or taps > 255):
        raise UnsupportedLoweringError(
            f"an average must not count padding and must be over at most 255 elements, here {taps}"
        )
    return PoolLayer(**low.common(), **window, clip=clip_range(low.y))


#: Maximum number of rows and columns of a tile, whose coordinates have 16 bits with a sign.
_MAX_COORDINATE = 0x7FFF


def pool_tilings(context: TilingContext, layer: PoolLayer) -> Tilings:
    """Yield the tilings of a pooling layer that fit; strips of columns are tried only if nothing else fits."""
    _, y = images(layer)
    widths = strip_widths(y.w, _MAX_COORDINATE // layer.strides[1], context.config.n)
    fitting = 0
    for width in (ALL_COLUMNS, *widths):
        found = list(_tilings(context, layer, width))
        yield from found
        fitting += bool(found)
        if (found and width == ALL_COLUMNS) or fitting == _FITTING_WIDTHS:
            return


def _tilings(context: TilingContext, layer: PoolLayer, width: int) -> Tilings:
    """Yield the tilings with strips of `width` columns."""
    n, batch = context.config.n, layer.batch
    strips, x, y = strip_images(*images(layer), width, layer.strides[1], layer.kernel[1])
    if x.w + layer.kernel[1] > _MAX_COORDINATE:
        return
    blocks, size = ceil_div(x.c, n), DTYPE_BYTES[x.dtype]
    for columns, rows in product(cuts(blocks), cuts(y.h)):
        if rows * layer.strides[0] + layer.kernel[0] > _MAX_COORDINATE:
            continue
        x_bytes = (input_rows(rows, layer.strides[0], layer.kernel[0], x.h) * x.w * columns * n + n) * size
        used = 0 if context.x_on_chip else 2 * x_bytes
        used += 0 if context.y_on_chip else 2 * rows * y.w * columns * n * size
        if used > context.free:
            continue
        tiles = batch * strips * ceil_div(blocks, columns) * ceil_div(y.h, rows)
        work = batch * strips * y.h * y.w * blocks * layer.kernel[0] * layer.kernel[1] * size
        start = 0 if context.x_on_chip else x_bytes / n
        cycles = max(work, tiles * TILE_CYCLES) + start + tiles * 4
        yield cycles, LayerSchedule(rows=rows, strip_width=width, columns=columns, on_chip=context.y_on_chip)


def pool_tile_model(layer: PoolLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a pooling layer, with tiles of strips, output rows and channel blocks."""
    n, (whole_x, whole_y) = context.config.n, images(layer)
    strips, x, y = strip_images(whole_x, whole_y, s.strip_width, layer.strides[1], layer.kernel[1])
    blocks, size = ceil_div(x.c, n), DTYPE_BYTES[x.dtype]
    columns, rows = min(s.columns, blocks), min(s.rows, y.h)
    taps = layer.kernel[0] * layer.kernel[1]

    def beats(rows: int, w: int, width: int, whole: int) -> float:
        if strips > 1 and width == x.c:
            return lines(rows, w * width * size, whole * width * size, n)
        return lines(rows * w, width * size, x.c * size, n)

    def tiles() -> Iterator[PipelineTile]:
        for number in range(layer.batch * strips):
            for start in range(0, y.h, rows):
                for block in range(0, blocks, columns):
                    high, wide = min(rows, y.h - start), min(columns, blocks - block)
                    width = min(wide * n, x.c - block * n)
                    count = input_rows(high, layer.strides[0], layer.kernel[0], x.h)
                    image = beats(count, x.w, width, whole_x.w)
                    loads = () if context.x_on_chip else (("x", (number, start, block), image),)
                    store = 0.0 if context.y_on_chip else beats(high, y.w, width, whole_y.w)
                    yield PipelineTile(
                        loads, 0.0, high * y.w * wide * taps * size, store, 2 - context.y_on_chip
                    )

    count = layer.batch * strips * ceil_div(y.h, rows) * ceil_div(blocks, columns)
    return TilePipeline(tiles(), count, {"x": s.x_buffers}, 1, s.y_buffers)


class PoolSteps:
    """Code generator of a pooling layer; a tile consists of some output rows of some channel blocks."""

    def __init__(self, context: CodegenContext, layer: PoolLayer):
        self.context, self.layer = context, layer
        self.images = [context.layouts[name].parts(layer.batch) for name in (layer.x, layer.y)]
        self.n, schedule = context.config.n, context.schedule
        self.size = DTYPE_BYTES[layer.shapes[layer.x].dtype]
        self.x, self.y = (images[0] for images in self.images)
        self.strips = column_strips(
            self.y.w, schedule.strip_width, layer.strides[1], layer.pads[1], layer.kernel[1], self.x.w
        )
        self.blocks = ceil_div(self.x.c, self.n)
        self.columns = min(schedule.columns, self.blocks)
        self.rows = min(schedule.rows, self.y.h)
        self.pixel = self.x.pixel
        width = min(self.columns * self.n, self.x.c) * self.size
        if not self.x.on_chip:
            self.pixel = width
            most = max(self._image(start, rows)[1] for start, rows in pieces(self.y.h, self.rows))
            size = most * max(strip.size for strip in self.strips) * width + self.n * self.size
            self.tiles = TileBuffers(
                CircularBuffer(BufferMemory.SP, f"{layer.name}.x", size, schedule.x_buffers), self._load
            )
        across = max(strip.count for strip in self.strips)
        self.out = BufferRotation(
            BufferMemory.SP,
            f"{layer.name}.y",
            self.rows * across * width + self.n * self.size,
            schedule.y_buffers,
        )

    def _image(self, start: int, rows: int) -> tuple[int, int]:
        layer = self.layer
        return image_rows(start, rows, layer.strides[0], layer.pads[0], layer.kernel[0], self.x.h)

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        *_, start, rows, block = key  # type: ignore[misc]
        first, count = self._image(start, rows)
        width = min(self.pixel, (self.x.c - block * self.n) * self.size)
        lines = image_lines(self.x, count, width, "dst", self.pixel)
        source = self.x.address(first, 0, block * self.n * self.size)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, **lines)]

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        return [
            self._tile(number, strip, start, rows, block, blocks)
            for number in range(self.layer.batch)
            for strip in self.strips
            for start, rows in pieces(self.y.h, self.rows)
            for block, blocks in pieces(self.blocks, self.columns)
        ]

    def _tile(
        self, number: int, strip: ColumnStrip, start: int, rows: int, block: int, blocks: int
    ) -> TileStep:
        x, y = (images[number] for images in self.images)
        self.x, self.y = x.columns(strip.start, strip.size), y.columns(strip.first, strip.count)
        step, layer, first = TileStep(), self.layer, block * self.n * self.size
        lanes = min(blocks * self.n, self.x.c - block * self.n)
        width = lanes * self.size
        if self.x.on_chip:
            base, image_first, image = self.x.address(0, 0, first), 0, self.x.h
        else:
            base = self.tiles.get((number, strip.first, start, rows, block), step)
            image_first, image = self._image(start, rows)
        address, pixel = (
            (self.y.address(start, 0, first), self.y.pixel) if self.y.on_chip else (self.out.next(), width)
        )
        row = self.y.row if self.y.on_chip else self.y.w * pixel
        for top, height, left, columns, words in self._parts(strip, start, rows):
            step.fuse.append(
                self.context.command(
                    Unit.FUSE,
                    a_base=base,
                    a_n=self.n * self.size,
                    a_u=self.x.row if self.x.on_chip else self.x.w * self.pixel,
                    a_v=self.pixel,
                    u0=(start + top) * layer.strides[0] - layer.pads[0] - image_first,
                    v0=left * layer.strides[1] + strip.before,
                    u_y=layer.strides[0],
                    u_wy=1,
                    v_x=layer.strides[1],
                    v_wx=1,
                    u_lim=image,
                    v_lim=self.x.w,
                    wx_count=layer.kernel[1],
                    wy_count=layer.kernel[0],
                    x_count=columns,
                    y_count=height,
                    n_count=blocks,
                    d_base=address.plus(top * row + left * pixel),
                    d_x=pixel,
                    d_y=row,
                    d_n=self.n * self.size,
                    lanes_tail=(lanes - 1) % self.n + 1,
                    **words,
                )
            )
        if not self.y.on_chip:
            lines = image_lines(self.y, rows, width, "src", width)
            step.stores.append(
                self.context.command(Unit.STORE, dram=self.y.address(start, 0, first), src=address, **lines)
            )
        return step

    def _parts(
        self, strip: ColumnStrip, start: int, rows: int
    ) -> Iterator[tuple[int, int, int, int, dict[str, int]]]:
        """Yield the rectangles of a tile, one per command: first row, rows, first column, columns, fuse words.

        If averages exclude padding, each number of elements inside the image needs a separate factor.
        """
        layer, known = self.layer, len(self.layer.scaled) < 2
        if known:
            yield 0, rows, 0, self.y.w, self._words(next(iter(layer.scaled.values()), {}))
            return
        x, y = (images[0] for images in self.images)
        sizes = ((x.h, y.h), (x.w, y.w))
        down, across = (
            inside(size, layer.kernel[i], layer.strides[i], layer.pads[i], outputs)
            for i, (size, outputs) in enumerate(sizes)
        )
        for (first, count, high), (left, columns, wide) in product(down, across):
            top, end = max(first, start), min(first + count, start + rows)
            near, far = max(left, strip.first), min(left + columns, strip.first + strip.count)
            if top < end and near < far:
                words = self._words(layer.scaled[high * wide])
                yield top - start, end - top, near - strip.first, far - near, words

    def _words(self, scaled: Mapping[str, int]) -> dict[str, int]:
        """Return the fuse words; averages use `scaled` or divide by the elements inside the image."""
        layer = self.layer
        dtype, (low, high) = layer.shapes[layer.y].dtype, layer.clip
        parts = {"d_dst": 1, "d_dtype": dtype, "tail_dim": FUSE_DIMS.index("n")}
        src = FUSE_SRC.pack(a_src=1, a_dtype=layer.shapes[layer.x].dtype)
        if scaled:
            parts |= {"reduce": Reduce.SUM, "post": Post.SCALE, "post_rounding": Rounding.EVEN}
            return {
                "src": src,
                "stage": FUSE_STAGE.pack(**parts),
                "zp_ab": halves_word(layer.x_zp, 0),
                **scaled,
            }
        if layer.average:
            stage = FUSE_STAGE.pack(reduce=Reduce.SUM, post=Post.COUNT, **parts)
            return {"src": src, "stage": stage, "post_lo": low, "post_hi": high}
        stage = FUSE_STAGE.pack(reduce=Reduce.MAX, **parts)
        return {"src": src, "stage": stage, "clip_lo": low, "clip_hi": high}


def pool_steps(context: CodegenContext, layer: PoolLayer) -> list[TileStep]:
    """Generate the steps of a pooling layer."""
    return PoolSteps(context, layer).steps()


KIND = LayerKind(
    name="pool",
    layer=PoolLayer,
    lowerings={
        **dict.fromkeys(
            ("max_pool2d", "avg_pool2d"),
            Lowering(lower_pool, ElementTypes((_TYPES,), _TYPES), strided_input=True, strided_output=True),
        ),
    },
    tilings=pool_tilings,
    tile_model=pool_tile_model,
    steps=pool_steps,
    rank_by_tile_model=True,
)
