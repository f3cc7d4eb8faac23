"""Reductions as commands of FUSE.

Rows and columns are reduced by the window, channels across the lanes behind it, both in one pass. What does not fit the
scratchpad is reduced piece by piece into the accumulator, and the pieces in a last pass.
"""

from collections.abc import Hashable

from compiler.codegen.build import Context, Tiles, Turns, pieces
from compiler.codegen.command import Command, Memory, Ref, Ring, Step
from compiler.kernels.scaling import halves_word
from compiler.kernels.tiles import ceil_div
from compiler.lower.reduce import ReduceLayer
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import Reduce, Unit

#: First index and number of indices of a dimension.
_Span = tuple[int, int]
#: Coordinates of FUSE are 17 bits wide, and strides of them 12 (docs/machine.md).
_FAR, _STEP = 0xFFFF, 0x7FF


class ReduceSteps:
    """The steps of a reduction: a tile is some of the outer kept indices and some blocks of kept channels."""

    def __init__(self, context: Context, layer: ReduceLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        schedule, n = context.schedule, self.n
        self.x, self.y = context.homes[layer.x], context.homes[layer.y]
        self.k0, self.r0, self.k1, self.r1, self.c = layer.dims
        blocks = ceil_div(self.c, n)
        # Pieces are of rows if there are any, else of the channels.
        self.by_rows = self.r0 > 1 or not layer.lanes
        self.depth = min(schedule.depth, self.r0 if self.by_rows else blocks)
        self.columns = min(schedule.columns, blocks) if not layer.lanes else blocks
        far = _FAR // self.r0 if self.r0 <= _STEP else 1
        self.rows = min(schedule.rows, self.k0, max(far, 1), _FAR // self.k1)
        self.parts = ceil_div(self.r0 if self.by_rows else blocks, self.depth)
        width = min((self.columns if self.by_rows else self.depth) * n, self.c)
        rows = self.depth if self.by_rows else 1
        size = self.rows * rows * self.k1 * self.r1 * width + n
        self.tiles = Tiles(Ring(Memory.SP, f"{layer.name}.x", size, schedule.x_buffers), self._load)
        results = self.rows * self.k1
        out = results if layer.lanes else results * min(self.columns * n, self.c)
        self.out = Turns(Memory.SP, f"{layer.name}.y", out + n, schedule.y_buffers)
        held = results * self.parts * (1 if layer.lanes else self.columns)
        self.acc = Turns(Memory.ACC, f"{layer.name}.acc", held, schedule.acc_buffers)

    def _load(self, key: Hashable, place: Ref) -> list[Command]:
        (k, ks), (r, rs), (c, width) = key  # type: ignore[misc]
        inner = self.k1 * self.r1
        row = inner * self.c
        source = self.x.at().plus((k * self.r0 + r) * row + c)
        if width < self.c:
            lines = {
                "len": width, "y_count": rs * inner, "dram_y": self.c, "dst_y": width, "z_count": ks,
                "dram_z": self.r0 * row, "dst_z": rs * inner * width,
            }  # fmt: skip
        elif rs < self.r0:
            lines = {"len": rs * row, "y_count": ks, "dram_y": self.r0 * row, "dst_y": rs * row}
        else:
            lines = {"len": ks * rs * row}
        return [self.context.command(Unit.LOAD, dram=source, dst=place, **lines)]

    def steps(self) -> list[Step]:
        """All tiles."""
        total = ceil_div(self.c, self.n)
        blocks = pieces(total, self.columns)
        return [
            step
            for block in list(blocks)
            for rows in pieces(self.k0, self.rows)
            for step in self._tile(rows, block)
        ]

    def _tile(self, rows: _Span, blocks: _Span) -> list[Step]:
        first = 0 if self.layer.lanes else blocks[0] * self.n
        width = 1 if self.layer.lanes else min(blocks[1] * self.n, self.c - first)
        pitch = 1 if self.layer.lanes else self.c
        target = self.y.at().plus(rows[0] * self.k1 * pitch + first)
        if not self.y.on_chip:
            place, out_pitch = self.out.next(), width
        else:
            place, out_pitch = target, pitch
        out = self._reduced(rows, blocks, place, out_pitch)
        if not self.y.on_chip:
            count = rows[1] * self.k1
            lines = {"len": width, "y_count": count, "src_y": width, "dram_y": pitch}
            if width == pitch:
                lines = {"len": width * count}
            out[-1].stores.append(self.context.command(Unit.STORE, dram=target, src=place, **lines))
        return out

    def _reduced(self, rows: _Span, blocks: _Span, place: Ref, pitch: int) -> list[Step]:
        """Steps that leave the results of a tile in the scratchpad, `pitch` bytes from pixel to pixel."""
        out, parts = [], self.parts
        acc = self.acc.next() if parts > 1 else place
        for number, (first, count) in enumerate(pieces(self.parts * self.depth, self.depth)):
            step = Step()
            r, c = (0, self.r0), (blocks[0], blocks[1])
            if self.by_rows:
                r = (first, min(count, self.r0 - first))
            else:
                c = (first, min(count, blocks[1] - first))
            span = (c[0] * self.n, min(c[1] * self.n, self.c - c[0] * self.n))
            source = self._source(step, rows, r, span)
            if parts == 1:
                fields = source | self._out(place, pitch, 1) | self._words(1, 1)
            else:
                fields = source | self._out(acc.plus(number), blocks[1] * parts, parts) | self._words(1, 0)
            step.fuse.append(self.context.command(Unit.FUSE, **fields))
            out.append(step)
        if parts > 1:
            out[-1].fuse.append(self._last(acc, rows, blocks, place, pitch))
        return out

    def _source(self, step: Step, rows: _Span, r: _Span, c: _Span) -> dict[str, int | Ref]:
        """The walk over part of the image, and where the results of its dimensions go."""
        if self.x.on_chip:
            pixel, high = self.c, self.r0
            base = self.x.at().plus((rows[0] * self.r0 + r[0]) * self.k1 * self.r1 * self.c + c[0])
        else:
            base, pixel, high = self.tiles.get((rows, r, c), step), c[1], r[1]
        blocks = ceil_div(c[1], self.n)
        walk: dict[str, int | Ref] = {
            "a_base": base, "a_u": self.k1 * self.r1 * pixel, "y_count": rows[1], "wy_count": r[1],
            "u_y": high if rows[1] > 1 else 1, "u_wy": 1, "v_wx": 1,
            "lanes_tail": (c[1] - 1) % self.n + 1,
        }  # fmt: skip
        if self.layer.lanes:
            return walk | {"n_count": self.k1, "a_n": pixel, "wx_count": blocks, "a_v": self.n}
        return walk | {
            "n_count": blocks, "a_n": self.n, "x_count": self.k1, "wx_count": self.r1, "a_v": pixel,
            "v_x": self.r1 if self.k1 > 1 else 1,
        }  # fmt: skip

    def _out(self, place: Ref, pitch: int, block: int) -> dict[str, int | Ref]:
        """Where results go: `pitch` from pixel to pixel; in the accumulator `block` rows from block to block."""
        if self.layer.lanes:
            step = block if self.parts > 1 else 1
            return {"d_base": place, "d_y": self.k1 * step, "d_n": step}
        step = self.n if self.parts == 1 else block
        return {"d_base": place, "d_y": self.k1 * pitch, "d_x": pitch, "d_n": step}

    def _words(self, image: int, last: int) -> dict[str, int | Ref]:
        """Fuse words of a pass over the image or over the accumulator, that makes the results or not."""
        layer, lanes = self.layer, self.layer.lanes
        tail = FUSE_DIMS.index("wx" if lanes else "n")
        if not image and lanes:
            tail = 7
        out: dict[str, int | Ref] = {
            "src": FUSE_SRC.pack(a_src=image, a_dtype=layer.shapes[layer.x].dtype),
            "stage": FUSE_STAGE.pack(
                reduce=layer.how, lane_reduce=layer.how if lanes and image else Reduce.NONE,
                post=layer.post if last else 0, post_rounding=layer.rounding, d_dst=last,
                d_dtype=layer.shapes[layer.y].dtype, tail_dim=tail,
            ),
        }  # fmt: skip
        if image:
            out["zp_ab"] = halves_word(layer.x_zp, 0)
        return out | (layer.fields if last else {})

    def _last(self, acc: Ref, rows: _Span, blocks: _Span, place: Ref, pitch: int) -> Command:
        """The pass over the pieces in the accumulator."""
        count = rows[1] * self.k1
        fields: dict[str, int | Ref] = {
            "a_base": acc, "wx_count": self.parts, "a_v": 1, "v_wx": 1, "y_count": count, "u_y": 1,
            "d_base": place,
        }  # fmt: skip
        if self.layer.lanes:
            fields |= {"a_u": self.parts, "d_y": 1, "lanes": 1}
        else:
            width = min(blocks[1] * self.n, self.c - blocks[0] * self.n)
            fields |= {
                "a_u": blocks[1] * self.parts, "n_count": blocks[1], "a_n": self.parts, "d_y": pitch,
                "d_n": self.n, "lanes_tail": (width - 1) % self.n + 1,
            }  # fmt: skip
        return self.context.command(Unit.FUSE, **fields, **self._words(0, 1))


def reduce_steps(context: Context, layer: ReduceLayer) -> list[Step]:
    """The steps of a reduction."""
    return ReduceSteps(context, layer).steps()
