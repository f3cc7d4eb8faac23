"""Softmax over the last dimension."""

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, Tables, TileBuffers, pieces
from compiler.ir.identity import identity
from compiler.kernel_library.reduce import TABLE_BIAS, softmax_tables
from compiler.layers.base import Layer
from compiler.layers.layer_kind import BYTES_TO_BYTES, LayerKind, Lowering
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError, affine, clip_range
from compiler.layers.tile_pipeline import RECIPROCAL_CYCLES, TilePipeline, row_tile_model
from compiler.layers.tiling_context import TILE_CYCLES, LayerContext, TilingContext, Tilings
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div, cuts
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import BSource, Dtype, Op, Post, Reduce, Requant, Rounding, Unit

_Fields = dict[str, int | BufferRef]


@identity("SoftmaxLayer", "scale", "step", "y_zp", "clip", "tables", "centred", added=("tables", "centred"))
@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxLayer(Layer):
    """Softmax over the channels of each pixel.

    Parameters
    ----------
    scale : float
        Softmax's beta times the scale of the input.
    step, y_zp : float, int
        Scale and zero point of the result.
    clip : (int, int)
        Smallest and largest stored result.
    tables : int
        Number of tables that hold an exponential: 2, or 1 for an approximation.
    centred : bool
        True if the maximum of the row is subtracted from each element; False for an approximation.
    """

    scale: float
    step: float
    y_zp: int
    clip: tuple[int, int]
    tables: int = 2
    centred: bool = True

    @property
    def exact(self) -> bool:
        """True unless the layer is an approximation."""
        return self.tables == 2 and self.centred

    @property
    def passes(self) -> int:
        """Number of FUSE passes over the elements of a row."""
        return self.centred + self.tables + 2


#: Maximum number of elements of a row, so that the sum of the high parts of the exponentials fits int32.
_MAX_ELEMENTS = (1 << 17) - 1
#: Maximum elements of a row whose exponentials have the unit of their sum, and of a row of an approximation.
#: Exponentials of longer rows have all 29 bits, and only their sum is rounded, because many small exponentials would
#: otherwise be lost.
MAX_SAME_UNIT = 1 << 14
#: Smallest input scale of a softmax; with a finer one, the exponentials would have too few bits.
_MIN_SCALE = 2.0**-16


def lower_softmax(low: LoweringContext) -> Layer:
    """Lower a softmax along the last axis.

    Raises
    ------
    UnsupportedLoweringError
        The axis is not the last one, a row is too long, or the result's scale is out of range.
    """
    a, x = low.anchor.attributes, low.x
    if a["axis"] != len(x.shape) - 1:
        raise UnsupportedLoweringError("a softmax must be along the last dimension")
    if x.shape[-1] > _MAX_ELEMENTS:
        raise UnsupportedLoweringError(
            f"a softmax over {x.shape[-1]:,} elements, more than {_MAX_ELEMENTS:,}"
        )
    y = affine(low.y)
    if not _MIN_SCALE <= y.scale <= 1:
        raise UnsupportedLoweringError(
            f"steps of a probability must be within {_MIN_SCALE:.2g}..1, not {y.scale:.3g}"
        )
    form = {each: a[each] for each in ("tables", "centred") if each in a}
    return SoftmaxLayer(
        **low.common(),
        **form,
        scale=a["beta"] * affine(x).scale,
        step=y.scale,
        y_zp=y.zero_point,
        clip=clip_range(low.y),
    )


def softmax_tilings(context: TilingContext, layer: SoftmaxLayer) -> Tilings:
    """Yield the tilings of a softmax that fit, with parts of a row only if whole rows do not fit."""
    n, x = context.config.n, layer.shapes[layer.x]
    total, blocks = x.h * x.w, ceil_div(x.c, n)
    moved = 2 * (2 - context.x_on_chip - context.y_on_chip)
    passes, low = layer.passes, 2 * (layer.tables == 2)
    found = False
    for rows in cuts(total) if x.c <= MAX_SAME_UNIT else ():
        used = rows * (low * blocks * n + moved * x.c)
        if used > context.free or rows * (1 + blocks) > context.acc_rows:
            continue
        tiles, found = ceil_div(total, rows), True
        yield (
            total * blocks * passes + tiles * passes * TILE_CYCLES + rows * blocks,
            LayerSchedule(rows=rows, on_chip=context.y_on_chip),
        )
    for columns in cuts(blocks) if context.alone and not found else ():
        parts = ceil_div(blocks, columns)
        if (low + moved) * columns * n > context.free or columns + 3 * parts + _TOTALS > context.acc_rows:
            continue
        yield (
            total * (blocks * (passes + 1) + parts * (passes + 1) * TILE_CYCLES) + columns,
            LayerSchedule(rows=1, columns=columns, on_chip=context.y_on_chip),
        )


def softmax_tile_model(layer: SoftmaxLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a softmax."""
    blocks = ceil_div(layer.shapes[layer.x].c, context.config.n)
    # Reads of the exponentials of two tables, and of the results, whose factor is also read from the accumulator.
    rows = layer.centred + (4 if layer.tables == 2 else 1) + 2
    if s.columns < blocks or layer.shapes[layer.x].c > MAX_SAME_UNIT:
        passes = (layer.passes + 1) * ceil_div(blocks, s.columns)
        of_row = (rows + 1) * blocks + RECIPROCAL_CYCLES
        return row_tile_model(layer, replace(s, rows=1), context, passes, of_row, layer.tables)
    of_row = rows * blocks + max(blocks, RECIPROCAL_CYCLES)
    return row_tile_model(layer, s, context, layer.passes, of_row, layer.tables)


#: Largest element of the input by its type.
_LARGEST = {Dtype.I8: 127, Dtype.U8: 255}
#: Number of accumulator rows for a row in parts: scaled sums of high and low bits, their sum, and the maximum.
_TOTALS = 4
#: Bits by which the sums of the low bits of a part are rounded, if the sum of the row is rounded.
_PART_BITS = 8
_LOW_BITS = 15


class SoftmaxSteps:
    """Code generator of a softmax over the last dimension; a tile consists of some rows."""

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
        row = self.part * self.n
        if not self.x.on_chip:
            buffer = CircularBuffer(
                BufferMemory.SP, f"{name}.x", self.rows * min(row, self.cols) + self.n, schedule.x_buffers
            )
            self.tiles = TileBuffers(buffer, self._load)
        size = self.rows * min(row, self.cols)
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size, schedule.y_buffers)
        self.low = None
        if layer.tables == 2:
            self.low = BufferRotation(BufferMemory.SP, f"{name}.low", self.rows * row * 2, 1)
        self.stats = BufferRotation(BufferMemory.ACC, f"{name}.rows", self.rows, 1)
        self.exps = BufferRotation(BufferMemory.ACC, f"{name}.exp", self.rows * self.part, 1)
        parts = ceil_div(self.blocks, self.part)
        self.sums = BufferRotation(BufferMemory.ACC, f"{name}.sums", 3 * parts + _TOTALS - 1, 1)
        unit = self.cols if self.cols <= MAX_SAME_UNIT else 1
        largest = None if layer.centred else _LARGEST[layer.shapes[layer.x].dtype]
        self.tables = Tables(context, name, softmax_tables(layer.scale, unit, layer.tables, largest))
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
        return [self._tile(start, rows) for start, rows in pieces(self.total, self.rows)]

    def _source(self, step: TileStep, start: int, count: int) -> BufferRef:
        """Return the address of `count` elements of x from element `start`."""
        return self.x.address().plus(start) if self.x.on_chip else self.tiles.get((start, count), step)

    def _tile(self, start: int, rows: int) -> TileStep:
        step = TileStep()
        x = self._source(step, start * self.cols, rows * self.cols)
        stats, exps = self.stats.next(), self.exps.next()
        sums = {"wx_count": self.blocks, "v_wx": 1, "a_base": exps, "a_u": self.blocks, "a_v": 1}
        passes = [
            *([self._maximum(x, rows, self.blocks, stats)] if self.layer.centred else []),
            *self._exponentials(step, x, rows, self.blocks, stats, exps),
            *self._reciprocals(rows, sums, stats, stats),
        ]
        tail = {"lanes_tail": (self.cols - 1) % self.n + 1}
        step.fuse += [self.context.command(Unit.FUSE, **(tail | fields)) for fields in passes]
        self._results(step, start * self.cols, rows, self.cols, exps, stats)
        return step

    def _row(self, row: int) -> list[TileStep]:
        """Return the steps of a row in parts: the maximum, the sums of low and high bits, and the results."""
        n, start = self.n, row * self.cols
        stats, sums = self.stats.next(), self.sums.next()
        parts = [
            (start + first * n, min(blocks * n, self.cols - first * n), blocks)
            for first, blocks in pieces(self.blocks, self.part)
        ]
        count = len(parts)
        low_sums, high_sums, totals = (sums.plus(i * count) for i in (1, 2, 3))
        # The sums of each table, with the power of two by which their total is multiplied.
        dropped = self.rounded - _PART_BITS if self.rounded else 0
        held = [(low_sums, -dropped), (high_sums, _LOW_BITS - self.rounded)][: self.layer.tables]
        out = []
        for number, (first, width, blocks) in enumerate(parts if self.layer.centred else ()):
            step = TileStep()
            found = self._maximum(self._source(step, first, width), 1, blocks, sums.plus(number))
            self._add(step, width, found)
            out.append(step)
        if self.layer.centred:
            maximum = FUSE_STAGE.pack(reduce=Reduce.MAX, lane_reduce=Reduce.MAX)
            self._add(out[-1], 1, self._column(sums, count) | {"d_base": stats, "stage": maximum})
        for number, (first, width, blocks) in enumerate(parts):
            step = TileStep()
            x = self._source(step, first, width)
            for table, (base, _) in enumerate(held):
                scale = _power_of_two(-_PART_BITS) if self.rounded and not table else {}
                if self.layer.tables == 1:
                    scale = _power_of_two(0) | {"post_bias": TABLE_BIAS * width}
                word = self.tables.word(
                    step,
                    table,
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
        for fields in self._reciprocals(1, self._column(totals, len(held)), stats, totals.plus(2)):
            self._add(out[-1], 1, fields)
        for first, width, blocks in parts:
            step = TileStep()
            exps = self.exps.next()
            x = self._source(step, first, width)
            for fields in self._exponentials(step, x, 1, blocks, stats, exps):
                self._add(step, width, fields)
            self._results(step, first, 1, width, exps, stats)
            out.append(step)
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
        counts = {"y_count": rows, "wx_count": blocks, "u_y": 1, "v_wx": 1}
        return counts | {"a_base": x, "a_u": self.cols, "a_v": self.n}

    def _maximum(self, x: BufferRef, rows: int, blocks: int, to: BufferRef) -> _Fields:
        """Return the fields of the pass that computes the maximum of each row."""
        stage = FUSE_STAGE.pack(reduce=Reduce.MAX, lane_reduce=Reduce.MAX, tail_dim=FUSE_DIMS.index("wx"))
        source = FUSE_SRC.pack(a_src=1, a_dtype=self.layer.shapes[self.layer.x].dtype)
        return self._across(x, rows, blocks) | {"src": source, "d_base": to, "d_y": 1, "stage": stage}

    def _less(self, stats: BufferRef, rounding: Rounding = Rounding.DOUBLE) -> _Fields:
        """Return the fields that subtract the maximum of the row from each element, if the layer is centred."""
        dtype = self.layer.shapes[self.layer.x].dtype
        if not self.layer.centred:
            return {"src": FUSE_SRC.pack(a_src=1, a_dtype=dtype, rounding=rounding)}
        source = FUSE_SRC.pack(
            a_src=1, a_dtype=dtype, b_src=BSource.ACC, b_bcast=1, op=Op.SUB, rounding=rounding
        )
        return {"src": source, "b_base": stats, "b_y": 1}

    def _exponentials(
        self,
        step: TileStep,
        x: BufferRef,
        rows: int,
        blocks: int,
        stats: BufferRef,
        exps: BufferRef,
    ) -> list[_Fields]:
        """Return the fields of the passes that compute the exponentials: low bits first, then the sum of both parts."""
        n, last = self.n, FUSE_DIMS.index("x")
        image = {"y_count": rows, "x_count": blocks, "u_y": 1, "v_x": 1}
        image |= {"a_base": x, "a_u": self.cols, "a_v": n}
        to = {"d_base": exps, "d_x": 1, "d_y": blocks}
        if self.low is None:
            word = self.tables.word(step, 0, table=1, post=Post.SCALE, tail_dim=last)
            return [
                image | self._less(stats) | to | _power_of_two(0) | {"post_bias": TABLE_BIAS, "stage": word}
            ]
        low = self.low.next()
        return [
            image
            | self._less(stats)
            | {
                "d_base": low,
                "d_x": 2 * n,
                "d_y": 2 * n * blocks,
                "stage": self.tables.word(step, 0, table=1, d_dst=1, d_dtype=Dtype.I16, tail_dim=last),
            },
            image
            | self._less(stats, Rounding.SINGLE)
            | to
            | {
                "r_base": low,
                "r_x": 2 * n,
                "r_y": 2 * n * blocks,
                "x_mult": 1 << _LOW_BITS,
                "r_mult": 1,
                "o_mult": 1,
                "r_shifts": 31 << 16,
                "stage": self.tables.word(
                    step, 1, table=1, residual=1, r_dtype=Dtype.I16, r_raw=1, tail_dim=last
                ),
            },
        ]

    def _results(
        self, step: TileStep, start: int, rows: int, width: int, exps: BufferRef, stats: BufferRef
    ) -> None:
        """Add the pass and the store of the results; `start` is the index of the first element in the tensor."""
        n, blocks = self.n, ceil_div(width, self.n)
        y = self.y.address().plus(start) if self.y.on_chip else self.out.next()
        rounding = FUSE_SRC.pack(b_src=BSource.ACC, requant=Requant.ROW, rq_lane=1, rounding=Rounding.EVEN)
        out = self.layer.shapes[self.layer.y].dtype
        fields: _Fields = {
            "y_count": rows,
            "x_count": blocks,
            "u_y": 1,
            "v_x": 1,
            "src": rounding,
            "a_base": exps,
            "a_u": blocks,
            "a_v": 1,
            "b_base": stats,
            "b_y": 1,
            "zp": self.layer.y_zp,
            "d_base": y,
            "d_x": n,
            "clip_lo": self.layer.clip[0],
            "clip_hi": self.layer.clip[1],
            "d_y": self.cols,
            "stage": FUSE_STAGE.pack(d_dst=1, d_dtype=out, tail_dim=FUSE_DIMS.index("x")),
        }
        self._add(step, width, fields)
        if not self.y.on_chip:
            target = self.y.address().plus(start)
            step.stores.append(self.context.command(Unit.STORE, dram=target, src=y, len=rows * width))

    def _reciprocals(self, rows: int, sums: _Fields, stats: BufferRef, scaled_to: BufferRef) -> list[_Fields]:
        """Return the fields of the passes that compute the reciprocal of each row's sum times the result's scale.

        `sums` is the walk over the terms of the sum; a sum that must be multiplied by a factor is written to
        `scaled_to`.
        """
        bits = math.ceil(math.log2(self.layer.step))
        part = self.layer.step / 2.0**bits
        tail = FUSE_DIMS.index("wx")
        whole = {"y_count": rows, "u_y": 1, "d_y": 1}
        row = whole | sums
        inverse = {
            "d_base": stats,
            "src": FUSE_SRC.pack(d_lane=1),
            "post_shift": -bits - self.rounded,
            "stage": FUSE_STAGE.pack(
                reduce=Reduce.SUM, lane_reduce=Reduce.SUM, post=Post.RECIP, tail_dim=tail
            ),
        }
        if part == 1:
            return [row | inverse]
        scaled = FUSE_STAGE.pack(reduce=Reduce.SUM, lane_reduce=Reduce.SUM, post=Post.SCALE, tail_dim=tail)
        scaling = {
            "d_base": scaled_to,
            "post_mult": round(part * (1 << 31)),
            "post_shift": 0,
            "stage": scaled,
        }
        again = whole | {"wx_count": 1, "a_base": scaled_to, "a_u": 1, "lanes_tail": 1}
        return [row | scaling, again | inverse]


def _power_of_two(bits: int) -> _Fields:
    """Return the fields of a post-scale by 2**bits."""
    return {"post_mult": 1 << 30, "post_shift": bits + 1}


def softmax_steps(context: CodegenContext, layer: SoftmaxLayer) -> list[TileStep]:
    """Generate the steps of a softmax."""
    return SoftmaxSteps(context, layer).steps()


KIND = LayerKind(
    name="softmax",
    layer=SoftmaxLayer,
    lowerings=dict.fromkeys(("softmax", "approximate_softmax"), Lowering(lower_softmax, BYTES_TO_BYTES)),
    tilings=softmax_tilings,
    tile_model=softmax_tile_model,
    steps=softmax_steps,
    rank_by_tile_model=True,
)
