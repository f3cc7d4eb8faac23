"""Softmax over the last dimension; `compiler.layers.softmax_across` has the methods for a dimension before others."""

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, RowBlocks, TileStep
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, Tables, TileBuffers, pieces
from compiler.ir.identity import identity
from compiler.kernel_library.reduce import (
    LOW_BITS,
    exponential_parts,
    softmax_tables,
)
from compiler.layers.base import Image, Layer
from compiler.layers.layer_kind import BYTES_TO_BYTES, LayerKind, Lowering
from compiler.layers.lowering_context import (
    LoweringContext,
    UnsupportedLoweringError,
    affine,
    clip_range,
)
from compiler.layers.softmax_across import (
    across_columns,
    across_fits,
    across_tile_model,
    across_tilings,
)
from compiler.layers.softmax_across_codegen import across_steps
from compiler.layers.tile_pipeline import (
    PASS_CYCLES,
    STAGGERED_PASS_CYCLES,
    STATISTICS_BUFFERS,
    TilePipeline,
    row_buffers,
    row_tile_model,
    row_tilings,
)
from compiler.layers.tiling_context import TILE_CYCLES, LayerContext, TilingContext, Tilings
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div, cuts
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import BSource, Dtype, Op, Post, Reduce, Rounding, Unit

_Fields = dict[str, int | BufferRef]


@identity("SoftmaxLayer", "scale", "step", "y_zp", "clip", "centred", "across", added=("centred", "across"))
@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxLayer(Layer):
    """Softmax over the channels of each pixel, or over the columns of the image for each channel and row.

    Parameters
    ----------
    scale : float
        Softmax's beta times the scale of the input.
    step, y_zp : float, int
        Scale and zero point of the result.
    clip : (int, int)
        Smallest and largest stored result.
    centred : bool
        True if the maximum of the row is subtracted from each element; False for an approximation.
    across : bool
        True for a softmax over the columns.
    """

    scale: float
    step: float
    y_zp: int
    clip: tuple[int, int]
    centred: bool = True
    across: bool = False

    @property
    def passes(self) -> int:
        """Number of FUSE passes over the elements of a row: its maximum, its sum and its results."""
        return self.centred + 2


#: Maximum number of elements of a row, so that the sum of the high parts of the exponentials fits int32.
_MAX_ELEMENTS = (1 << 17) - 1
#: Maximum elements of a row whose exponentials have the unit of their sum, and of a row of an approximation.
#: Exponentials of longer rows have all 29 bits, and only their sum is rounded, because many small exponentials would
#: otherwise be lost.
MAX_SAME_UNIT = 1 << 14
#: Smallest input scale of a softmax; with a finer one, the exponentials would have too few bits.
_MIN_SCALE = 2.0**-16


def lower_softmax(low: LoweringContext) -> Layer:
    """Lower a softmax.

    Raises
    ------
    UnsupportedLoweringError
        The axis is neither the last one nor one of `across_columns`, a row is too long for the machine, or the result's
        scale is out of range.
    """
    a, x = low.anchor.attributes, low.x
    axis, shape = a["axis"] % len(x.shape), x.shape
    across = axis != len(shape) - 1
    if across and not across_columns(low.anchor, x, low.y):
        raise UnsupportedLoweringError("a softmax must be along the last dimension")
    if across and not across_fits(low.config, shape[axis]):
        raise UnsupportedLoweringError(f"a softmax over {shape[axis]:,} elements that are not adjacent")
    if not across and shape[-1] > _MAX_ELEMENTS:
        raise UnsupportedLoweringError(f"a softmax over {shape[-1]:,} elements, more than {_MAX_ELEMENTS:,}")
    y = affine(low.y)
    if not _MIN_SCALE <= y.scale <= 1:
        raise UnsupportedLoweringError(
            f"steps of a probability must be within {_MIN_SCALE:.2g}..1, not {y.scale:.3g}"
        )
    common = low.common()
    if across:
        sizes = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        common["shapes"] = {name: Image(*sizes, image.dtype) for name, image in common["shapes"].items()}
    return SoftmaxLayer(
        **common,
        centred=low.anchor.op == "softmax",
        across=across,
        scale=a["beta"] * affine(x).scale,
        step=y.scale,
        y_zp=y.zero_point,
        clip=clip_range(low.y),
    )


def softmax_tilings(context: TilingContext, layer: SoftmaxLayer) -> Tilings:
    """Yield the tilings of a softmax that fit, with parts of a row only if whole rows do not fit."""
    if layer.across:
        yield from across_tilings(context, layer)
        return
    n, x = context.config.n, layer.shapes[layer.x]
    total, blocks = x.h * x.w, ceil_div(x.c, n)
    found = False
    if x.c <= MAX_SAME_UNIT:
        of_row = softmax_row_cycles(layer, blocks, context.config)
        for tiling in row_tilings(
            context, layer, layer.passes, of_row, STAGGERED_PASS_CYCLES, STATISTICS_BUFFERS
        ):
            found = True
            yield tiling
    moved = 2 * (2 - context.x_on_chip - context.y_on_chip)
    for columns in cuts(blocks) if context.alone and not found else ():
        parts = ceil_div(blocks, columns)
        if moved * columns * n + n > context.free or 3 * parts + _TOTALS > context.acc_rows:
            continue
        passes = layer.passes + (x.c > MAX_SAME_UNIT)
        yield (
            total * (blocks * passes + parts * passes * TILE_CYCLES) + columns,
            LayerSchedule(rows=1, columns=columns, on_chip=context.y_on_chip),
        )


def softmax_row_cycles(layer: SoftmaxLayer, blocks: int, config: MlaConfig) -> float:
    """Return the FUSE cycles of a row of `blocks` blocks of N elements."""
    return (layer.passes - 1) * blocks + max(float(blocks), config.reciprocal_cycles(root=False))


def softmax_tile_model(layer: SoftmaxLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a softmax."""
    if layer.across:
        return across_tile_model(layer, s, context)
    columns = layer.shapes[layer.x].c
    blocks = ceil_div(columns, context.config.n)
    if s.columns < blocks or columns > MAX_SAME_UNIT:
        passes = layer.passes + (columns > MAX_SAME_UNIT)
        parts = ceil_div(blocks, s.columns)
        # The passes of a part wait for each other, and those of a row for its reciprocal.
        of_row = passes * (blocks + parts * PASS_CYCLES) + context.config.reciprocal_units * (
            context.config.reciprocal_cycles(root=False)
        )
        return row_tile_model(
            layer, replace(s, rows=1), context, passes * parts, of_row, _table_count(columns)
        )
    of_row = softmax_row_cycles(layer, blocks, context.config)
    return row_tile_model(
        layer, s, context, layer.passes, of_row, _table_count(columns), pass_cycles=STAGGERED_PASS_CYCLES
    )


def _table_count(columns: int) -> int:
    """Return the number of tables: two for the halves of exponentials, and two for the sums of long rows."""
    return 2 if columns <= MAX_SAME_UNIT else 4


#: Largest element of the input by its type.
_LARGEST = {Dtype.I8: 127, Dtype.U8: 255}
#: Number of accumulator rows for a row in parts: scaled sums of high and low bits, and the maximum.
_TOTALS = 3
#: Bits by which the sums of the low bits of a part are rounded, if the sum of the row is rounded.
_PART_BITS = 8


class SoftmaxSteps:
    """Code generator of a softmax over the last dimension; a tile consists of some rows.

    A row takes three passes: its maximum, the reciprocal of the sum of its exponentials, and the results, for which the
    exponentials are looked up again.
    """

    def __init__(self, context: CodegenContext, layer: SoftmaxLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.x, self.y = context.layouts[layer.x], context.layouts[layer.y]
        self.total, self.cols = self.x.h * self.x.w, self.x.c
        self.blocks = ceil_div(self.cols, self.n)
        name, schedule = layer.name, context.schedule
        #: Blocks of a part of a row; a row in parts is read three times: for its maximum, its sum and its results.
        self.part = min(schedule.columns, self.blocks)
        self.in_parts = self.part < self.blocks or self.cols > MAX_SAME_UNIT
        self.rows = 1 if self.in_parts else min(schedule.rows, self.total)
        size = self.rows * min(self.part * self.n, self.cols)
        if not self.x.on_chip:
            count = 1 if self.in_parts else ceil_div(self.total, self.rows)
            buffer = CircularBuffer(BufferMemory.SP, f"{name}.x", size + self.n, row_buffers(schedule, count))
            self.tiles = TileBuffers(buffer, self._load)
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size, schedule.y_buffers)
        self.stats = BufferRotation(
            BufferMemory.ACC, f"{name}.rows", self.rows, 1 if self.in_parts else STATISTICS_BUFFERS
        )
        parts = ceil_div(self.blocks, self.part)
        self.sums = BufferRotation(BufferMemory.ACC, f"{name}.sums", 3 * parts + _TOTALS - 1, 1)
        unit = self.cols if self.cols <= MAX_SAME_UNIT else 1
        largest = None if layer.centred else _LARGEST[layer.shapes[layer.x].dtype]
        tables = softmax_tables(layer.scale, unit, largest)
        if _table_count(self.cols) > 2:
            tables = np.concatenate([tables, exponential_parts(layer.scale, unit, largest)])
        self.tables = Tables(context, name, tables)
        #: Bits by which the sum is rounded, so that it fits int32.
        self.rounded = 0 if self.cols <= MAX_SAME_UNIT else (self.cols - 1).bit_length() - 1

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        start, count = key  # type: ignore[misc]
        source = self.x.address().plus(start)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, len=count)]

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        if self.in_parts:
            return [step for row in range(self.total) for step in self._row(row)]
        blocks = self.x.row_blocks or self.y.row_blocks
        return self._tiles() if blocks is None else self._streamed(blocks)

    def _source(self, step: TileStep, start: int, count: int) -> BufferRef:
        """Return the address of `count` elements of x from element `start`."""
        return self.x.element(start, 1) if self.x.on_chip else self.tiles.get((start, count), step)

    def _tiles(self) -> list[TileStep]:
        """Return the steps of tiles of whole rows.

        The maxima of each tile are computed between the sums and the results of the previous tile, so that no pass
        waits for the end of the pass before it.
        """
        out = [TileStep()]
        tiles = list(pieces(self.total, self.rows))
        ready = self._begin(out[0], *tiles[0])
        for number, (start, rows) in enumerate(tiles):
            step = out[-1] if number == 0 and len(tiles) == 1 else TileStep()
            if step is not out[-1]:
                out.append(step)
            self._sums(step, rows, *ready)
            before = ready
            if number + 1 < len(tiles):
                ready = self._begin(step, *tiles[number + 1])
            self._results(step, start * self.cols, rows, self.cols, *before)
        return out

    def _streamed(self, blocks: RowBlocks) -> list[TileStep]:
        """Return the steps of tiles within blocks of rows, which the list scheduler interleaves with the producer of
        the rows and their reader: one step for the maxima and one for the results of a tile.
        """
        out = []
        for start, rows in blocks.pieces(self.total, self.rows):
            block = blocks.locate(start)[0]
            first, step = TileStep(block=block, ahead=True), TileStep(block=block)
            ready = self._begin(first, start, rows)
            self._sums(step, rows, *ready)
            self._results(step, start * self.cols, rows, self.cols, *ready)
            out += [first, step] if first.fuse else [step]
        return out

    def _sums(self, step: TileStep, rows: int, x: BufferRef, stats: BufferRef) -> None:
        """Add the reciprocals of the sums of a tile to a step."""
        across = self._across(x, rows, self.blocks) | self._less(stats, _RECIPROCAL)
        summed = self._exponentials(step, reduce=Reduce.SUM, lane_reduce=Reduce.SUM, post=Post.RECIP)
        self._add(step, self.cols, across | summed | self._reciprocal(stats))

    def _begin(self, step: TileStep, start: int, rows: int) -> tuple[BufferRef, BufferRef]:
        """Add the load and the maxima of a tile to a step; return the addresses of the elements and of the maxima."""
        x = self._source(step, start * self.cols, rows * self.cols)
        stats = self.stats.next()
        if self.layer.centred:
            self._add(step, self.cols, self._maximum(x, rows, self.blocks, stats))
        return x, stats

    def _row(self, row: int) -> list[TileStep]:
        """Return the steps of a row in parts: the maximum, the sum and its reciprocal, and the results."""
        n, start = self.n, row * self.cols
        stats, sums = self.stats.next(), self.sums.next()
        parts = [
            (start + first * n, min(blocks * n, self.cols - first * n), blocks)
            for first, blocks in pieces(self.blocks, self.part)
        ]
        count = len(parts)
        out = []
        for number, (first, width, blocks) in enumerate(parts if self.layer.centred else ()):
            step = TileStep()
            found = self._maximum(self._source(step, first, width), 1, blocks, sums.plus(number))
            self._add(step, width, found)
            out.append(step)
        if self.layer.centred:
            maximum = FUSE_STAGE.pack(reduce=Reduce.MAX, lane_reduce=Reduce.MAX)
            self._add(out[-1], 1, self._column(sums, count) | {"d_base": stats, "stage": maximum})
        if self.rounded:
            out += self._rounded_sums(parts, sums, stats)
        else:
            for number, (first, width, blocks) in enumerate(parts):
                step = TileStep()
                x = self._source(step, first, width)
                summed = self._exponentials(step, reduce=Reduce.SUM, lane_reduce=Reduce.SUM)
                self._add(
                    step,
                    width,
                    self._across(x, 1, blocks) | self._less(stats) | summed | {"d_base": sums.plus(number)},
                )
                out.append(step)
            self._add(out[-1], 1, self._column(sums, count) | self._reciprocal(stats) | _SUM_TO_RECIPROCAL)
        for first, width, _ in parts:
            step = TileStep()
            x = self._source(step, first, width)
            self._results(step, first, 1, width, x, stats)
            out.append(step)
        return out

    def _rounded_sums(
        self, parts: list[tuple[int, int, int]], sums: BufferRef, stats: BufferRef
    ) -> list[TileStep]:
        """Return the steps that add the low and the high bits of the exponentials of a long row, round both sums to a
        common unit, and compute the reciprocal of the total.
        """
        count = len(parts)
        low_sums, high_sums, totals = (sums.plus(i * count) for i in (1, 2, 3))
        # The sums of each table, with the power of two by which their total is multiplied.
        held = [(low_sums, _PART_BITS - self.rounded), (high_sums, LOW_BITS - self.rounded)]
        out = []
        for number, (first, width, blocks) in enumerate(parts):
            step = TileStep()
            x = self._source(step, first, width)
            for table, (base, _) in enumerate(held):
                scale = {} if table else _power_of_two(-_PART_BITS)
                word = self.tables.word(
                    step,
                    2 + table,
                    table=1,
                    reduce=Reduce.SUM,
                    lane_reduce=Reduce.SUM,
                    post=Post.SCALE if scale else Post.NONE,
                    tail_dim=FUSE_DIMS.index("wx"),
                )
                fields = self._across(x, 1, blocks) | self._less(stats)
                self._add(step, width, fields | scale | {"d_base": base.plus(number), "stage": word})
            out.append(step)
        scaled = FUSE_STAGE.pack(reduce=Reduce.SUM, lane_reduce=Reduce.SUM, post=Post.SCALE)
        for number, (base, bits) in enumerate(held):
            total = _power_of_two(bits) | {"d_base": totals.plus(number), "stage": scaled}
            self._add(out[-1], 1, self._column(base, count) | total)
        self._add(out[-1], 1, self._column(totals, len(held)) | self._reciprocal(stats) | _SUM_TO_RECIPROCAL)
        return out

    def _add(self, step: TileStep, width: int, fields: _Fields) -> None:
        """Add a pass over `width` elements to a step."""
        tail = {"lanes_tail": (width - 1) % self.n + 1}
        step.fuse.append(self.context.command(Unit.FUSE, **(tail | fields)))

    @staticmethod
    def _column(base: BufferRef, count: int) -> _Fields:
        """Return the walk over the first lane of `count` accumulator rows."""
        return {"a_base": base, "a_v": 1, "v_wx": 1, "wx_count": count, "lanes": 1}

    def _across(self, x: BufferRef, rows: int, blocks: int) -> _Fields:
        """Return the walk of a reduction over some rows of x."""
        counts = {"y_count": rows, "wx_count": blocks, "u_y": 1, "v_wx": 1, "d_y": 1}
        return counts | {"a_base": x, "a_u": self.cols, "a_v": self.n}

    def _maximum(self, x: BufferRef, rows: int, blocks: int, to: BufferRef) -> _Fields:
        """Return the fields of the pass that computes the maximum of each row."""
        stage = FUSE_STAGE.pack(reduce=Reduce.MAX, lane_reduce=Reduce.MAX, tail_dim=FUSE_DIMS.index("wx"))
        source = FUSE_SRC.pack(a_src=1, a_dtype=self.layer.shapes[self.layer.x].dtype)
        return self._across(x, rows, blocks) | {"src": source, "d_base": to, "stage": stage}

    def _less(self, stats: BufferRef, d_lane: int = 0) -> _Fields:
        """Return the fields that subtract the maximum of the row from each element, if the layer is centred, and that
        select the reciprocal of the row's sum; a reduced result is written to lane `d_lane`.
        """
        source = FUSE_SRC.pack(
            a_src=1,
            a_dtype=self.layer.shapes[self.layer.x].dtype,
            b_src=BSource.ACC,
            b_bcast=1,
            op=Op.SUB if self.layer.centred else Op.PASS,
            rq_lane=_RECIPROCAL,
            d_lane=d_lane,
        )
        return {"src": source, "b_base": stats, "b_y": 1}

    def _exponentials(self, step: TileStep, **parts: int) -> _Fields:
        """Return the fields that look up the exponentials, in a pass whose stages have the given other parts."""
        dim = "wx" if "reduce" in parts else "x"
        word = self.tables.word(step, table=1, table_wide=1, tail_dim=FUSE_DIMS.index(dim), **parts)
        return {"stage": word}

    def _reciprocal(self, stats: BufferRef) -> _Fields:
        """Return the fields that write the reciprocal of the row's sum times the result's scale."""
        bits = math.ceil(math.log2(self.layer.step))
        part = self.layer.step / 2.0**bits
        fields: _Fields = {"d_base": stats, "post_shift": -bits - self.rounded}
        return fields if part == 1 else fields | {"post_mult": round(part * (1 << 31))}

    def _results(
        self, step: TileStep, start: int, rows: int, width: int, x: BufferRef, stats: BufferRef
    ) -> None:
        """Add the pass and the store of the results; `start` is the index of the first element in the tensor."""
        n, blocks = self.n, ceil_div(width, self.n)
        y = self.y.element(start, 1) if self.y.on_chip else self.out.next()
        found = self._exponentials(
            step,
            post=Post.ROW,
            post_rounding=Rounding.EVEN,
            d_dst=1,
            d_dtype=self.layer.shapes[self.layer.y].dtype,
        )
        fields: _Fields = {
            "y_count": rows,
            "x_count": blocks,
            "u_y": 1,
            "v_x": 1,
            "a_base": x,
            "a_u": self.cols,
            "a_v": n,
            "post_zp": self.layer.y_zp,
            "post_lo": self.layer.clip[0],
            "post_hi": self.layer.clip[1],
            "d_base": y,
            "d_x": n,
            "d_y": self.cols,
        }
        self._add(step, width, fields | self._less(stats) | found)
        if not self.y.on_chip:
            target = self.y.address().plus(start)
            step.stores.append(self.context.command(Unit.STORE, dram=target, src=y, len=rows * width))


#: First of the two lanes of a row of statistics that contain the reciprocal of the sum; lane 0 contains the maximum.
_RECIPROCAL = 1
#: Fields of a pass that adds the sums in a column and computes the reciprocal of the total.
_SUM_TO_RECIPROCAL: _Fields = {
    "src": FUSE_SRC.pack(d_lane=_RECIPROCAL),
    "stage": FUSE_STAGE.pack(reduce=Reduce.SUM, lane_reduce=Reduce.SUM, post=Post.RECIP),
}


def _power_of_two(bits: int) -> _Fields:
    """Return the fields of a post-scale by 2**bits."""
    return {"post_mult": 1 << 30, "post_shift": bits + 1}


def softmax_steps(context: CodegenContext, layer: SoftmaxLayer) -> list[TileStep]:
    """Generate the steps of a softmax."""
    return across_steps(context, layer) if layer.across else SoftmaxSteps(context, layer).steps()


KIND = LayerKind(
    name="softmax",
    layer=SoftmaxLayer,
    lowerings=dict.fromkeys(("softmax", "approximate_softmax"), Lowering(lower_softmax, BYTES_TO_BYTES)),
    tilings=softmax_tilings,
    tile_model=softmax_tile_model,
    steps=softmax_steps,
    rank_by_tile_model=True,
)
