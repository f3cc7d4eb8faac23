"""Softmax over the last dimension."""

import math
from collections.abc import Hashable
from dataclasses import dataclass

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, Tables, TileBuffers, pieces
from compiler.ir.identity import identity
from compiler.kernel_library.reduce import softmax_tables
from compiler.layers.base import Layer
from compiler.layers.layer_kind import BYTES_TO_BYTES, LayerKind, Lowering
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError, affine, clip_range
from compiler.layers.tile_pipeline import RECIPROCAL_CYCLES, TilePipeline, row_tile_model
from compiler.layers.tiling_context import TILE_CYCLES, LayerContext, TilingContext, Tilings, check_row
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div, cuts
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import BSource, Dtype, Op, Post, Reduce, Requant, Rounding, Unit


@identity("SoftmaxLayer", "scale", "step", "y_zp", "clip")
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
    """

    scale: float
    step: float
    y_zp: int
    clip: tuple[int, int]


#: Smallest input scale of a softmax; with a finer one, the exponentials would have too few bits.
_MIN_SCALE = 2.0**-16


def lower_softmax(low: LoweringContext) -> Layer:
    """Lower a softmax along the last axis."""
    a, x = low.anchor.attributes, low.x
    if a["axis"] != len(x.shape) - 1:
        raise UnsupportedLoweringError("softmax is along the last dimension only")
    y = affine(low.y)
    if not _MIN_SCALE <= y.scale <= 1:
        raise UnsupportedLoweringError(
            f"steps of a probability must be within {_MIN_SCALE:.2g}..1, not {y.scale:.3g}"
        )
    return SoftmaxLayer(
        **low.common(),
        scale=a["beta"] * affine(x).scale,
        step=y.scale,
        y_zp=y.zero_point,
        clip=clip_range(low.y),
    )


def softmax_tilings(context: TilingContext, layer: SoftmaxLayer) -> Tilings:
    """Yield the tilings of a softmax that fit the on-chip memories."""
    n, x = context.config.n, layer.shapes[layer.x]
    total, blocks = x.h * x.w, ceil_div(x.c, n)
    check_row(context, layer, x.c, blocks + 1)
    for rows in cuts(total):
        used = rows * (
            2 * blocks * n + (0 if context.x_on_chip else 2 * x.c) + (0 if context.y_on_chip else 2 * x.c)
        )
        if used > context.free or rows * (1 + blocks) > context.acc_rows:
            continue
        tiles = ceil_div(total, rows)
        yield (
            total * blocks * 5 + tiles * 5 * TILE_CYCLES + rows * blocks,
            LayerSchedule(rows=rows, on_chip=context.y_on_chip),
        )


def softmax_tile_model(layer: SoftmaxLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a softmax."""
    blocks = ceil_div(layer.shapes[layer.x].c, context.config.n)
    return row_tile_model(layer, s, context, 5, 7 * blocks + max(blocks, RECIPROCAL_CYCLES), 2)


_LOW_BITS = 15


class SoftmaxSteps:
    """Code generator of a softmax over the last dimension; a tile consists of some rows."""

    def __init__(self, context: CodegenContext, layer: SoftmaxLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.x, self.y = context.layouts[layer.x], context.layouts[layer.y]
        self.total, self.cols = self.x.h * self.x.w, self.x.c
        self.blocks = ceil_div(self.cols, self.n)
        self.rows = min(context.schedule.rows, self.total)
        name, schedule = layer.name, context.schedule
        row = self.blocks * self.n
        if not self.x.on_chip:
            buffer = CircularBuffer(
                BufferMemory.SP, f"{name}.x", self.rows * self.cols + self.n, schedule.x_buffers
            )
            self.tiles = TileBuffers(buffer, self._load)
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", self.rows * self.cols, schedule.y_buffers)
        self.low = BufferRotation(BufferMemory.SP, f"{name}.low", self.rows * row * 2, 1)
        self.stats = BufferRotation(BufferMemory.ACC, f"{name}.rows", self.rows, 1)
        self.exps = BufferRotation(BufferMemory.ACC, f"{name}.exp", self.rows * self.blocks, 1)
        self.tables = Tables(context, name, softmax_tables(layer.scale, self.cols))

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        start, rows = key  # type: ignore[misc]
        source = self.x.address().plus(start * self.cols)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, len=rows * self.cols)]

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        return [self._tile(start, rows) for start, rows in pieces(self.total, self.rows)]

    def _tile(self, start: int, rows: int) -> TileStep:
        step = TileStep()
        x = (
            self.x.address().plus(start * self.cols)
            if self.x.on_chip
            else self.tiles.get((start, rows), step)
        )
        y = self.y.address().plus(start * self.cols) if self.y.on_chip else self.out.next()
        low, stats, exps = self.low.next(), self.stats.next(), self.exps.next()
        n, blocks = self.n, self.blocks
        across = {"y_count": rows, "wx_count": blocks, "u_y": 1, "v_wx": 1}
        along = {"y_count": rows, "x_count": blocks, "u_y": 1, "v_x": 1}
        image = {"a_base": x, "a_u": self.cols, "a_v": n}
        minus = {"b_base": stats, "b_y": 1}
        tail = {"lanes_tail": (self.cols - 1) % n + 1}
        out = self.layer.shapes[self.layer.y].dtype
        source = {"a_src": 1, "a_dtype": self.layer.shapes[self.layer.x].dtype}
        less = source | {"b_src": BSource.ACC, "b_bcast": 1, "op": Op.SUB}
        wx, last = FUSE_DIMS.index("wx"), FUSE_DIMS.index("x")
        for fields in (
            across
            | image
            | {
                "src": FUSE_SRC.pack(**source),
                "d_base": stats,
                "d_y": 1,
                "stage": FUSE_STAGE.pack(reduce=Reduce.MAX, lane_reduce=Reduce.MAX, tail_dim=wx),
            },
            along
            | image
            | minus
            | {
                "src": FUSE_SRC.pack(**less),
                "d_base": low,
                "d_x": 2 * n,
                "d_y": 2 * n * blocks,
                "stage": self.tables.word(step, 0, table=1, d_dst=1, d_dtype=Dtype.I16, tail_dim=last),
            },
            along
            | image
            | minus
            | {
                "src": FUSE_SRC.pack(**less, rounding=Rounding.SINGLE),
                "d_base": exps,
                "d_x": 1,
                "d_y": blocks,
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
            *self._reciprocals(rows, exps, stats),
            along
            | minus
            | {
                "src": FUSE_SRC.pack(
                    b_src=BSource.ACC, requant=Requant.ROW, rq_lane=1, rounding=Rounding.EVEN
                ),
                "a_base": exps,
                "a_u": blocks,
                "a_v": 1,
                "zp": self.layer.y_zp,
                "d_base": y,
                "d_x": n,
                "clip_lo": self.layer.clip[0],
                "clip_hi": self.layer.clip[1],
                "d_y": self.cols,
                "stage": FUSE_STAGE.pack(d_dst=1, d_dtype=out, tail_dim=last),
            },
        ):
            step.fuse.append(self.context.command(Unit.FUSE, **(tail | fields)))
        if not self.y.on_chip:
            target = self.y.address().plus(start * self.cols)
            step.stores.append(self.context.command(Unit.STORE, dram=target, src=y, len=rows * self.cols))
        return step

    def _reciprocals(self, rows: int, exps: BufferRef, stats: BufferRef) -> list[dict[str, int | BufferRef]]:
        """Return the fields of the passes that compute the reciprocal of each row's sum times the result's scale."""
        bits = math.ceil(math.log2(self.layer.step))
        part = self.layer.step / 2.0**bits
        tail = FUSE_DIMS.index("wx")
        whole = {"y_count": rows, "u_y": 1, "d_base": stats, "d_y": 1}
        row = whole | {"wx_count": self.blocks, "v_wx": 1, "a_base": exps, "a_u": self.blocks, "a_v": 1}
        inverse = {
            "src": FUSE_SRC.pack(d_lane=1),
            "post_shift": -bits,
            "stage": FUSE_STAGE.pack(
                reduce=Reduce.SUM, lane_reduce=Reduce.SUM, post=Post.RECIP, tail_dim=tail
            ),
        }
        if part == 1:
            return [row | inverse]
        scaled = FUSE_STAGE.pack(reduce=Reduce.SUM, lane_reduce=Reduce.SUM, post=Post.SCALE, tail_dim=tail)
        scaling = {"post_mult": round(part * (1 << 31)), "post_shift": 0, "stage": scaled}
        again = whole | {"wx_count": 1, "a_base": stats, "a_u": 1, "lanes_tail": 1}
        return [row | scaling, again | inverse]


def softmax_steps(context: CodegenContext, layer: SoftmaxLayer) -> list[TileStep]:
    """Generate the steps of a softmax."""
    return SoftmaxSteps(context, layer).steps()


KIND = LayerKind(
    name="softmax",
    layer=SoftmaxLayer,
    lowerings={"softmax": Lowering(lower_softmax, BYTES_TO_BYTES)},
    tilings=softmax_tilings,
    tile_model=softmax_tile_model,
    steps=softmax_steps,
    rank_by_tile_model=True,
)
