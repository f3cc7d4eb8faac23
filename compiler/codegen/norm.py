"""Normalizations over rows as commands of FUSE.

In exact arithmetic as far as 32 bits allow; products take 18 bits, so that the deviations d from the mean are scaled
row by row, and a rough root for that comes first (C columns; U, A powers of two times constants):
1. sum of a row -> accumulator, lane 0 (not for a root mean square);
2. U*C*x -> accumulator; 3. less U times the sum: U*C*(x - mean), exactly (without the mean: U*x);
4. one more block in front: N lanes whose squares add up to epsilon's share, so that nothing is special about it;
5. the same in 18 bits; 6. root of the sum of its squares, rough, as squares lose their low bits -> lanes 0 and 1;
7. d times that: of 18 bits whatever the variance, whose greatest possible value is A = 2**16;
8. root of the sum of its squares -> lanes 2 and 3: what was rough in step 6 cancels out, as both have it;
9. times gamma, 16 bits; 10. divided by the root: 16 bits, of which `bits` are behind the point; plus beta; rounded.

Beside the last rounding, of half a step of the result, there is that of step 7, 2**-17 * sqrt(C) * gamma, and half a
unit of `bits` (6 or, where beta is large, fewer) twice: together within one step of the real result.
"""

import math
from collections.abc import Hashable

import numpy as np

from compiler.codegen.build import Context, Tiles, Turns, pieces
from compiler.codegen.command import Command, Memory, Ref, Ring, Step
from compiler.codegen.home import Home
from compiler.kernels.scaling import bytes_word, halves_word
from compiler.kernels.tiles import ceil_div
from compiler.lower.norm import NormLayer
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import BSource, Dtype, Op, Post, Reduce, Requant, Rounding, Unit

#: Greatest deviation in steps of x, and bits of a deviation, of a factor, of step 7.
_GREATEST, _WIDE, _NARROW, _AMPLITUDE = 255, 30, 17, 16
#: Bits that the squares of step 8, and the products of step 9, lose.
_SQUARE, _PRODUCT = 4, 2
_EDGE = (1 << _NARROW) - 1

_Fields = dict[str, int | Ref]


class NormSteps:
    """The steps of a normalization: a tile is some rows."""

    def __init__(self, context: Context, layer: NormLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.x, self.y = context.homes[layer.x], context.homes[layer.y]
        self.total, self.columns = self.x.h * self.x.w, self.x.c
        self.blocks = ceil_div(self.columns, self.n)
        self.rows = min(context.schedule.rows, self.total)
        name, schedule, size = layer.name, context.schedule, self.rows * self.columns
        self.tiles = Tiles(Ring(Memory.SP, f"{name}.x", size + self.n, schedule.x_buffers), self._load)
        self.out = Turns(Memory.SP, f"{name}.y", size, schedule.y_buffers)
        self.stats = Turns(Memory.ACC, f"{name}.rows", self.rows, 1)
        #: Rows of the accumulator for a row: epsilon's block and the others.
        self.pitch = self.blocks + 1
        self.wide = Turns(Memory.ACC, f"{name}.wide", self.rows * self.pitch, 1)
        self.narrow = Turns(Memory.ACC, f"{name}.narrow", self.rows * self.pitch, 1)
        packed = np.zeros((2, self.blocks * self.n), np.int16)
        packed[0, : self.columns], packed[1, : self.columns] = layer.gamma, layer.beta
        self.source = context.constant(f"{name}.parameters", packed.astype("<i2"))
        self.p = Tiles(Ring(Memory.SP, f"{name}.p", packed.nbytes), self._load_p)
        self._scales()

    def _scales(self) -> None:
        """Units of the fixed point."""
        layer, columns = self.layer, self.columns
        share = math.sqrt(columns * layer.epsilon / self.n)
        unit = columns if layer.centred else 1
        room = (1 << _WIDE) / (unit * max(_GREATEST, share))
        self.shift = max(math.floor(math.log2(room)), 0)
        #: Of a deviation of one step, and its share of epsilon.
        self.unit = unit << self.shift
        self.epsilon = min(round(self.unit * share), (1 << _WIDE) - 1)
        most = _GREATEST / 2 if layer.centred else _GREATEST
        lost = _WIDE - _NARROW
        squares = columns * (self.unit * most / 2**lost) ** 2 + self.n * (self.epsilon / 2**lost) ** 2
        #: Bits that the squares of step 6 lose: an even number, which is half as many of the root.
        self.rough = max(math.ceil((math.log2(squares) - _WIDE) / 2), 0) * 2

    def _load(self, key: Hashable, place: Ref) -> list[Command]:
        start, rows = key  # type: ignore[misc]
        lines = self._lines(self.x, rows, "dst_y")
        source = self._row(self.x, start)
        return [self.context.command(Unit.LOAD, dram=source, dst=place, **lines)]

    def _load_p(self, _: Hashable, place: Ref) -> list[Command]:
        return [
            self.context.command(Unit.LOAD, dram=Ref(self.source), dst=place, len=4 * self.blocks * self.n)
        ]

    def _lines(self, home: Home, rows: int, pitch: str) -> dict[str, int]:
        if home.pixel == self.columns:
            return {"len": rows * self.columns}
        return {"len": self.columns, "y_count": rows, "dram_y": home.pixel, pitch: self.columns}

    @staticmethod
    def _row(home: Home, row: int) -> Ref:
        return home.at(*divmod(row, home.w))

    def steps(self) -> list[Step]:
        """All tiles."""
        return [self._tile(start, rows) for start, rows in pieces(self.total, self.rows)]

    def _tile(self, start: int, rows: int) -> Step:
        step = Step()
        x, x_pitch = self._row(self.x, start), self.x.pixel
        if not self.x.on_chip:
            x, x_pitch = self.tiles.get((start, rows), step), self.columns
        y, y_pitch = self._row(self.y, start), self.y.pixel
        if not self.y.on_chip:
            y, y_pitch = self.out.next(), self.columns
        for fields in self._passes(x, x_pitch, y, y_pitch, self.p.get(0, step)):
            word = {"lanes_tail": (self.columns - 1) % self.n + 1} | fields
            step.fuse.append(self.context.command(Unit.FUSE, **word, y_count=rows, u_y=1))
        if not self.y.on_chip:
            lines = self._lines(self.y, rows, "src_y")
            target = self._row(self.y, start)
            step.stores.append(self.context.command(Unit.STORE, dram=target, src=y, **lines))
        return step

    def _passes(self, x: Ref, x_pitch: int, y: Ref, y_pitch: int, p: Ref) -> list[_Fields]:
        layer, n = self.layer, self.n
        stats, wide, narrow = self.stats.next(), self.wide.next(), self.narrow.next()
        row: _Fields = {"b_base": stats, "b_y": 1}
        image: _Fields = {"a_base": x, "a_u": x_pitch, "a_v": n, "zp_ab": halves_word(layer.x_zp, 0)}
        source = {"a_src": 1, "a_dtype": layer.shapes[layer.x].dtype}
        all_wide, all_narrow = self._block(wide, 0), self._block(narrow, 0)
        narrowed: _Fields = {"clip_lo": -_EDGE, "clip_hi": _EDGE}
        last = FUSE_DIMS.index("x")
        to_acc = {"stage": FUSE_STAGE.pack(tail_dim=last)}
        centre: list[_Fields] = [
            image | self._across(0) | {
                "src": FUSE_SRC.pack(**source), "d_base": stats, "d_y": 1, "post_mult": 1 << self.shift,
                "post_shift": 31, "stage": self._sum(Post.SCALE),
            },
        ]  # fmt: skip
        less: list[_Fields] = [
            self._block(wide, 1) | row | self._along(0) | self._to(wide, 1) | to_acc | {
                "src": FUSE_SRC.pack(b_src=BSource.ACC, b_bcast=1, op=Op.SUB),
            },
        ]  # fmt: skip
        return [
            *(centre if layer.centred else []),
            image | self._along(0) | self._to(wide, 1) | to_acc | {
                "src": FUSE_SRC.pack(**source, requant=Requant.IMM), "mult": self.unit,
                "shifts": bytes_word(31),
            },
            *(less if layer.centred else []),
            image | self._to(wide, 0) | {
                "src": FUSE_SRC.pack(**source, requant=Requant.IMM), "zp": self.epsilon, "lanes_tail": n,
            },
            all_wide | self._along(1) | self._to(narrow, 0) | narrowed | to_acc | {
                "src": FUSE_SRC.pack(requant=Requant.IMM, rounding=Rounding.EVEN), "mult": 1,
                "shifts": bytes_word(31 - _WIDE + _NARROW),
            },
            all_narrow | self._root(stats, self.rough, 0, _AMPLITUDE - _WIDE + _NARROW - self.rough // 2),
            all_wide | row | self._along(1) | self._to(narrow, 0) | narrowed | to_acc | {
                "src": FUSE_SRC.pack(b_src=BSource.ACC, requant=Requant.ROW, rounding=Rounding.EVEN),
            },
            all_narrow | self._root(stats, _SQUARE, 2, layer.shift),
            self._block(narrow, 1) | self._along(0) | self._to(wide, 1) | to_acc | {
                "src": FUSE_SRC.pack(b_src=BSource.SP, b_dtype=Dtype.I16, op=Op.MUL),
                "b_base": p, "b_x": 2 * n, "op_shift": _PRODUCT,
            },
            self._block(wide, 1) | row | self._along(0) | self._result(y, y_pitch, p),
        ]  # fmt: skip

    def _along(self, more: int) -> _Fields:
        """Every block by itself."""
        return {"x_count": self.blocks + more, "v_x": 1}

    def _across(self, more: int) -> _Fields:
        """All blocks of a row together."""
        return {"wx_count": self.blocks + more, "v_wx": 1}

    def _block(self, acc: Ref, first: int) -> _Fields:
        """Operand A from the accumulator, from a block on."""
        return {"a_base": acc.plus(first), "a_u": self.pitch, "a_v": 1}

    def _to(self, acc: Ref, first: int) -> _Fields:
        """Results to the accumulator, from a block on."""
        return {"d_base": acc.plus(first), "d_y": self.pitch, "d_x": 1}

    @staticmethod
    def _sum(post: Post) -> int:
        return FUSE_STAGE.pack(
            reduce=Reduce.SUM, lane_reduce=Reduce.SUM, post=post, tail_dim=FUSE_DIMS.index("wx")
        )

    def _root(self, stats: Ref, lost: int, lane: int, shift: int) -> _Fields:
        """Reciprocal root of the sum of squares, to two lanes."""
        return self._across(1) | {
            "src": FUSE_SRC.pack(op=Op.SQUARE, d_lane=lane), "op_shift": lost, "post_shift": shift,
            "d_base": stats, "d_y": 1, "stage": self._sum(Post.RSQRT),
        }  # fmt: skip

    def _result(self, y: Ref, pitch: int, p: Ref) -> _Fields:
        """The last pass: times the root, plus beta."""
        layer, n = self.layer, self.n
        limits = np.iinfo(np.int16)
        return {
            "src": FUSE_SRC.pack(
                b_src=BSource.ACC, requant=Requant.ROW, rq_lane=2, rounding=Rounding.EVEN
            ),
            "stage": FUSE_STAGE.pack(
                residual=1, r_dtype=Dtype.I16, r_raw=1, d_dst=1, d_dtype=layer.shapes[layer.y].dtype,
                tail_dim=FUSE_DIMS.index("x"),
            ),
            "clip_lo": int(limits.min), "clip_hi": int(limits.max), "r_base": p.plus(2 * self.blocks * n),
            "r_x": 2 * n, "x_mult": 1, "r_mult": 1, "o_mult": 1,
            "r_shifts": bytes_word(0, 0, 31 - layer.bits), "o_zp": layer.y_zp, "r_lo": layer.clip[0],
            "r_hi": layer.clip[1], "d_base": y, "d_x": n, "d_y": pitch,
        }  # fmt: skip


def norm_steps(context: Context, layer: NormLayer) -> list[Step]:
    """The steps of a normalization."""
    return NormSteps(context, layer).steps()
