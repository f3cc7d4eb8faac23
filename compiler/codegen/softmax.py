"""Softmax as commands of FUSE.

Five passes over a tile of rows, six if the result's scale is no power of two. An exponential E has up to 29 bits, in
two tables of 15:
1. maximum of a row -> accumulator, lane 0;
2. low bits of E: first table of x - max -> scratchpad, int16;
3. second table of x - max, times 2**15, plus the low bits -> accumulator, E;
4. sum of a row's E and its reciprocal -> accumulator, lanes 1 and 2; or the sum times the result's scale (less a
   power of two) -> lane 0, and the reciprocal of that;
5. E times reciprocal, requantized -> the result.
"""

import math
from collections.abc import Hashable

from compiler.codegen.build import Context, Tables, Tiles, Turns, pieces
from compiler.codegen.command import Command, Memory, Ref, Ring, Step
from compiler.kernels.softmax import softmax_tables
from compiler.kernels.tiles import ceil_div
from compiler.lower.layer import SoftmaxLayer
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import BSource, Dtype, Op, Post, Reduce, Requant, Rounding, Unit

_LOW_BITS = 15


class SoftmaxSteps:
    """The steps of a softmax over the last dimension."""

    def __init__(self, context: Context, layer: SoftmaxLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.x, self.y = context.homes[layer.x], context.homes[layer.y]
        self.total, self.cols = self.x.h * self.x.w, self.x.c
        self.blocks = ceil_div(self.cols, self.n)
        self.rows = min(context.schedule.rows, self.total)
        name, schedule = layer.name, context.schedule
        row = self.blocks * self.n
        if not self.x.on_chip:
            ring = Ring(Memory.SP, f"{name}.x", self.rows * self.cols + self.n, schedule.x_buffers)
            self.tiles = Tiles(ring, self._load)
        self.out = Turns(Memory.SP, f"{name}.y", self.rows * self.cols, schedule.y_buffers)
        self.low = Turns(Memory.SP, f"{name}.low", self.rows * row * 2, 1)
        self.stats = Turns(Memory.ACC, f"{name}.rows", self.rows, 1)
        self.exps = Turns(Memory.ACC, f"{name}.exp", self.rows * self.blocks, 1)
        self.tables = Tables(context, name, softmax_tables(layer.scale, self.cols))

    def _load(self, key: Hashable, place: Ref) -> list[Command]:
        start, rows = key  # type: ignore[misc]
        source = self.x.at().plus(start * self.cols)
        return [self.context.command(Unit.LOAD, dram=source, dst=place, len=rows * self.cols)]

    def steps(self) -> list[Step]:
        """All tiles."""
        return [self._tile(start, rows) for start, rows in pieces(self.total, self.rows)]

    def _tile(self, start: int, rows: int) -> Step:
        step = Step()
        x = self.x.at().plus(start * self.cols) if self.x.on_chip else self.tiles.get((start, rows), step)
        y = self.y.at().plus(start * self.cols) if self.y.on_chip else self.out.next()
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
            across | image | {
                "src": FUSE_SRC.pack(**source), "d_base": stats, "d_y": 1,
                "stage": FUSE_STAGE.pack(reduce=Reduce.MAX, lane_reduce=Reduce.MAX, tail_dim=wx),
            },
            along | image | minus | {
                "src": FUSE_SRC.pack(**less), "d_base": low, "d_x": 2 * n, "d_y": 2 * n * blocks,
                "stage": self.tables.word(step, 0, table=1, d_dst=1, d_dtype=Dtype.I16, tail_dim=last),
            },
            along | image | minus | {
                "src": FUSE_SRC.pack(**less, rounding=Rounding.SINGLE), "d_base": exps, "d_x": 1,
                "d_y": blocks, "r_base": low, "r_x": 2 * n, "r_y": 2 * n * blocks,
                "x_mult": 1 << _LOW_BITS, "r_mult": 1, "o_mult": 1, "r_shifts": 31 << 16,
                "stage": self.tables.word(step, 1, table=1, residual=1, r_dtype=Dtype.I16, r_raw=1, tail_dim=last
                ),
            },
            *self._reciprocals(rows, exps, stats),
            along | minus | {
                "src": FUSE_SRC.pack(
                    b_src=BSource.ACC, requant=Requant.ROW, rq_lane=1, rounding=Rounding.EVEN
                ),
                "a_base": exps, "a_u": blocks, "a_v": 1, "zp": self.layer.y_zp, "d_base": y, "d_x": n,
                "clip_lo": self.layer.clip[0], "clip_hi": self.layer.clip[1], "d_y": self.cols,
                "stage": FUSE_STAGE.pack(d_dst=1, d_dtype=out, tail_dim=last),
            },
        ):  # fmt: skip
            step.fuse.append(self.context.command(Unit.FUSE, **(tail | fields)))
        if not self.y.on_chip:
            target = self.y.at().plus(start * self.cols)
            step.stores.append(self.context.command(Unit.STORE, dram=target, src=y, len=rows * self.cols))
        return step

    def _reciprocals(self, rows: int, exps: Ref, stats: Ref) -> list[dict[str, int | Ref]]:
        """The passes that make the reciprocal of each row's sum, in steps of the result."""
        bits = math.ceil(math.log2(self.layer.step))
        part = self.layer.step / 2.0**bits
        tail = FUSE_DIMS.index("wx")
        whole = {"y_count": rows, "u_y": 1, "d_base": stats, "d_y": 1}
        row = whole | {"wx_count": self.blocks, "v_wx": 1, "a_base": exps, "a_u": self.blocks, "a_v": 1}
        inverse = {
            "src": FUSE_SRC.pack(d_lane=1), "post_shift": -bits,
            "stage": FUSE_STAGE.pack(reduce=Reduce.SUM, lane_reduce=Reduce.SUM, post=Post.RECIP, tail_dim=tail),
        }  # fmt: skip
        if part == 1:
            return [row | inverse]
        scaled = FUSE_STAGE.pack(reduce=Reduce.SUM, lane_reduce=Reduce.SUM, post=Post.SCALE, tail_dim=tail)
        scaling = {"post_mult": round(part * (1 << 31)), "post_shift": 0, "stage": scaled}
        again = whole | {"wx_count": 1, "a_base": stats, "a_u": 1, "lanes_tail": 1}
        return [row | scaling, again | inverse]


def softmax_steps(context: Context, layer: SoftmaxLayer) -> list[Step]:
    """The steps of a softmax."""
    return SoftmaxSteps(context, layer).steps()
