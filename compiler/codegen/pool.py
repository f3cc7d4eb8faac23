"""Pooling as commands of FUSE."""

from collections.abc import Hashable, Iterator, Mapping
from itertools import product

from compiler.codegen.build import Context, Tiles, Turns, image_rows, pieces
from compiler.codegen.command import Command, Memory, Ref, Ring, Step
from compiler.kernels.scaling import halves_word
from compiler.kernels.tiles import ceil_div
from compiler.lower.layer import PoolLayer
from compiler.lower.pool import inside
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import Post, Reduce, Rounding, Unit


class PoolSteps:
    """The steps of a pooling layer: a tile is some output rows of some blocks of channels."""

    def __init__(self, context: Context, layer: PoolLayer):
        self.context, self.layer = context, layer
        self.images = [context.homes[name].parts(layer.batch) for name in (layer.x, layer.y)]
        self.x, self.y = (images[0] for images in self.images)
        self.n, schedule = context.config.n, context.schedule
        self.blocks = ceil_div(self.x.c, self.n)
        self.columns = min(schedule.columns, self.blocks)
        self.rows = min(schedule.rows, self.y.h)
        self.pixel = self.x.pixel
        width = min(self.columns * self.n, self.x.c)
        if not self.x.on_chip:
            self.pixel = width
            most = max(self._image(start, rows)[1] for start, rows in pieces(self.y.h, self.rows))
            size = most * self.x.w * width + self.n
            self.tiles = Tiles(Ring(Memory.SP, f"{layer.name}.x", size, schedule.x_buffers), self._load)
        self.out = Turns(
            Memory.SP, f"{layer.name}.y", self.rows * self.y.w * width + self.n, schedule.y_buffers
        )

    def _image(self, start: int, rows: int) -> tuple[int, int]:
        layer = self.layer
        return image_rows(start, rows, layer.strides[0], layer.pads[0], layer.kernel[0], self.x.h)

    def _load(self, key: Hashable, place: Ref) -> list[Command]:
        _, start, rows, block = key  # type: ignore[misc]
        first, count = self._image(start, rows)
        width = min(self.pixel, self.x.c - block * self.n)
        lines = {"len": count * self.x.w * width}
        if width != self.x.pixel:
            lines = {
                "len": width, "y_count": count * self.x.w, "dram_y": self.x.pixel, "dst_y": self.pixel,
            }  # fmt: skip
        source = self.x.at(first, 0, block * self.n)
        return [self.context.command(Unit.LOAD, dram=source, dst=place, **lines)]

    def steps(self) -> list[Step]:
        """All tiles."""
        return [
            self._tile(number, start, rows, block, blocks)
            for number in range(self.layer.batch)
            for start, rows in pieces(self.y.h, self.rows)
            for block, blocks in pieces(self.blocks, self.columns)
        ]

    def _tile(self, number: int, start: int, rows: int, block: int, blocks: int) -> Step:
        self.x, self.y = (images[number] for images in self.images)
        step, layer, first = Step(), self.layer, block * self.n
        width = min(blocks * self.n, self.x.c - first)
        if self.x.on_chip:
            base, image_first, image = self.x.at(0, 0, first), 0, self.x.h
        else:
            base = self.tiles.get((number, start, rows, block), step)
            image_first, image = self._image(start, rows)
        place, pixel = (
            (self.y.at(start, 0, first), self.y.pixel) if self.y.on_chip else (self.out.next(), width)
        )
        for top, height, left, columns, words in self._parts(start, rows):
            step.fuse.append(
                self.context.command(
                    Unit.FUSE, a_base=base, a_n=self.n, a_u=self.x.w * self.pixel, a_v=self.pixel,
                    u0=(start + top) * layer.strides[0] - layer.pads[0] - image_first,
                    v0=left * layer.strides[1] - layer.pads[1],
                    u_y=layer.strides[0], u_wy=1, v_x=layer.strides[1], v_wx=1, u_lim=image, v_lim=self.x.w,
                    wx_count=layer.kernel[1], wy_count=layer.kernel[0], x_count=columns, y_count=height,
                    n_count=blocks, d_base=place.plus((top * self.y.w + left) * pixel), d_x=pixel,
                    d_y=self.y.w * pixel, d_n=self.n, lanes_tail=(width - 1) % self.n + 1, **words,
                )
            )  # fmt: skip
        if not self.y.on_chip:
            pixels = rows * self.y.w
            lines = {"len": pixels * width}
            if width != self.y.pixel:
                lines = {"len": width, "y_count": pixels, "src_y": width, "dram_y": self.y.pixel}
            step.stores.append(
                self.context.command(Unit.STORE, dram=self.y.at(start, 0, first), src=place, **lines)
            )
        return step

    def _parts(self, start: int, rows: int) -> Iterator[tuple[int, int, int, int, dict[str, int]]]:
        """Rectangles of output rows from `start` on for which one command will do: rows, columns, its words.

        Sums with padding that does not count have a factor for each number of elements that do.
        """
        layer, known = self.layer, len(self.layer.scaled) < 2
        if known:
            yield 0, rows, 0, self.y.w, self._words(next(iter(layer.scaled.values()), {}))
            return
        sizes = ((self.x.h, self.y.h), (self.x.w, self.y.w))
        down, across = (
            inside(size, layer.kernel[i], layer.strides[i], layer.pads[i], outputs)
            for i, (size, outputs) in enumerate(sizes)
        )
        for (first, count, high), (left, columns, wide) in product(down, across):
            top, end = max(first, start), min(first + count, start + rows)
            if top < end:
                yield top - start, end - top, left, columns, self._words(layer.scaled[high * wide])

    def _words(self, scaled: Mapping[str, int]) -> dict[str, int]:
        """Averages divide by the taps inside the image; clipping the sources of a maximum clips the maximum."""
        layer = self.layer
        dtype, (low, high) = layer.shapes[layer.y].dtype, layer.clip
        parts = {"d_dst": 1, "d_dtype": dtype, "tail_dim": FUSE_DIMS.index("n")}
        src = FUSE_SRC.pack(a_src=1, a_dtype=layer.shapes[layer.x].dtype)
        if scaled:
            parts |= {"reduce": Reduce.SUM, "post": Post.SCALE, "post_rounding": Rounding.EVEN}
            return {
                "src": src, "stage": FUSE_STAGE.pack(**parts), "zp_ab": halves_word(layer.x_zp, 0), **scaled,
            }  # fmt: skip
        if layer.average:
            stage = FUSE_STAGE.pack(reduce=Reduce.SUM, post=Post.COUNT, **parts)
            return {"src": src, "stage": stage, "post_lo": low, "post_hi": high}
        stage = FUSE_STAGE.pack(reduce=Reduce.MAX, **parts)
        return {"src": src, "stage": stage, "clip_lo": low, "clip_hi": high}


def pool_steps(context: Context, layer: PoolLayer) -> list[Step]:
    """The steps of a pooling layer."""
    return PoolSteps(context, layer).steps()
