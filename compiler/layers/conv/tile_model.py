"""Tile models of the layers that MATRIX executes: convolutions, and what products of matrices share with them."""

from collections.abc import Iterator
from dataclasses import replace

from compiler.layers.base import Drain
from compiler.layers.conv.im2col import Im2colLayout, can_fold
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv.pixel_packing import can_pack_pixels
from compiler.layers.layer_context import LayerContext
from compiler.layers.tile_pipeline import PipelineTile, TilePipeline, lines
from compiler.layers.tiling_context import images, input_rows
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div
from hw.isa.enums import DTYPE_BYTES

#: Beats of the parameters of a block of channels, with a scale for each and without.
_PARAMETERS, _BIASES = 9.0, 4.0
#: Times that FUSE takes longer if biases are words of the scratchpad.
_COMMON = 4


class _Cut:
    """Tile sizes and counts of a convolution."""

    def __init__(self, layer: ConvLayer, s: LayerSchedule, place: LayerContext):
        n, (self.x, self.y) = place.config.n, images(layer)
        out_c, self.kernel_h, kernel_w, self.in_c = layer.weights.shape
        self.layer, self.place, self.s, self.n = layer, place, s, n
        out_c //= layer.groups
        self.stride, stride_w = layer.strides
        if s.pixels_per_pass > 1 and can_pack_pixels(layer, s.pixels_per_pass):
            out_c *= s.pixels_per_pass
            kernel_w += (s.pixels_per_pass - 1) * stride_w
            self.y = replace(self.y, w=self.y.w // s.pixels_per_pass, c=self.y.c * s.pixels_per_pass)
        self.taps, self.out_c = self.kernel_h * kernel_w, out_c
        self.layout = Im2colLayout.PIXELS
        if s.im2col and can_fold(layer, place.x_on_chip, Im2colLayout.STRIPS):
            self.layout = Im2colLayout.STRIPS
        elif s.fold_kernel_width and can_fold(layer, place.x_on_chip, Im2colLayout.ROWS):
            self.layout = Im2colLayout.ROWS
        deep = {Im2colLayout.PIXELS: 1, Im2colLayout.ROWS: kernel_w, Im2colLayout.STRIPS: self.taps}[
            self.layout
        ]
        self.kernel_w, self.blocks, self.k_blocks = (
            kernel_w,
            ceil_div(out_c, n),
            ceil_div(self.in_c * deep, n),
        )
        self.again = self.taps // deep  # times that each block of the reduction dimension comes
        self.band = min(s.rows_per_load, self.y.h)
        self.rows, self.columns = min(s.rows, self.band), min(s.columns, self.blocks)
        self.depth = min(s.depth, self.k_blocks) if self.layout == Im2colLayout.PIXELS else self.k_blocks
        self.parts = ceil_div(self.k_blocks, self.depth)
        self.size = DTYPE_BYTES[layer.drain.dtype]

    def image(self, rows: int, part: int) -> float:
        """Beats of the image rows of a band, of a part of the channels."""
        if self.place.x_on_chip:
            return 0.0
        n, x = self.n, self.x
        if self.layout == Im2colLayout.STRIPS:
            count = self.y.w * ((rows - 1) * self.stride + self.kernel_h)
            return count * (self.kernel_w * x.c + n - 1) / n
        reach = (self.kernel_h - 1) * self.layer.dilations[0] + 1
        count = input_rows(rows, self.stride, reach, x.h)
        if self.layout == Im2colLayout.ROWS:
            return count * (x.w + self.layer.pads[1] + self.layer.pads[3]) * x.c / n
        return lines(count * x.w, min(self.depth * n, self.in_c - part * self.depth * n), x.c, n)

    def out(self, pixels: int, block: int) -> float:
        """Beats of the results of a tile."""
        width = min(self.columns * self.n, self.out_c - block * self.n)
        return lines(pixels, width * self.size, self.y.c * self.size, self.n)


def conv_tile_model(layer: ConvLayer, s: LayerSchedule, place: LayerContext) -> TilePipeline:
    """Tile model of a convolution: bands, blocks of channels, parts of sums."""
    cut = _Cut(layer, s, place)
    bands = layer.batch * sum(
        ceil_div(min(cut.band, cut.y.h - first), cut.rows) for first in range(0, cut.y.h, cut.band)
    )
    groups = ceil_div(cut.blocks, cut.columns)
    rings = {
        "x": max(1, min(s.x_buffers, layer.batch * ceil_div(cut.y.h, cut.band) * cut.parts)),
        "w": max(1, min(s.w_buffers, groups * cut.parts)),
        "p": s.param_buffers,
        "r": s.y_buffers,
        "t": 1,
    }
    return TilePipeline(
        _conv_tiles(cut), bands * groups * cut.parts * layer.groups, rings, s.acc_buffers, s.y_buffers
    )


def _conv_tiles(cut: _Cut) -> Iterator[PipelineTile]:
    s = cut.s
    for group in range(cut.layer.groups):
        tiles = (
            (group, number, band, row, min(cut.rows, min(band + cut.band, cut.y.h) - row), block)
            for number, band, row, block in _order(cut, s.order == "rows")
        )
        for tile in tiles:
            yield from _conv_tile(cut, *tile)


def _order(cut: _Cut, by_rows: bool) -> Iterator[tuple[int, int, int, int]]:
    bands = [
        (number, band, row)
        for number in range(cut.layer.batch)
        for band in range(0, cut.y.h, cut.band)
        for row in range(band, min(band + cut.band, cut.y.h), cut.rows)
    ]
    blocks = range(0, cut.blocks, cut.columns)
    if by_rows:
        return ((*band, block) for band in bands for block in blocks)
    return ((*band, block) for block in blocks for band in bands)


def _conv_tile(
    cut: _Cut, group: int, number: int, band: int, row: int, rows: int, block: int
) -> Iterator[PipelineTile]:
    layer, n, s = cut.layer, cut.n, cut.s
    columns, pixels = min(cut.columns, cut.blocks - block), rows * cut.y.w
    through, beats = max(pixels, n), cut.out(pixels, block)
    high = min(cut.band, cut.y.h - band)
    for part in range(cut.parts):
        depth = min(cut.depth, cut.k_blocks - part * cut.depth)
        deep = min(depth * n, cut.in_c - part * cut.depth * n) if cut.parts > 1 else cut.in_c
        loads: list[tuple[str, object, float]] = []
        if not cut.place.x_on_chip:
            loads.append(("x", (group, number, band, part), cut.image(high, part)))
        loads.append(("w", (group, block, part), float(columns * cut.taps * deep)))
        last = part == cut.parts - 1
        if last:
            loads += with_drain(layer.drain, s, cut.place, (group, number, row, block), cut.blocks, beats)
        fuse = pixels * columns * (_COMMON if s.common_scale and layer.drain.common_scale else 1) * cut.size
        store = 0.0 if cut.place.y_on_chip else beats
        yield PipelineTile(
            tuple(loads),
            columns * cut.again * depth * through,
            fuse * last,
            store * last,
            1 + last * (2 - cut.place.y_on_chip),
        )


def with_drain(
    drain: Drain, s: LayerSchedule, place: LayerContext, key: tuple[int, ...], blocks: int, beats: float
) -> list[tuple[str, object, float]]:
    """Loads of parameters, of a table, and of what is added."""
    slots = max(1, min(s.param_blocks, blocks))
    group, block = key[0], key[-1]
    many = min(slots, blocks - block // slots * slots)
    each = _BIASES if s.common_scale and drain.common_scale else _PARAMETERS
    loads: list[tuple[str, object, float]] = [("p", (group, block // slots), many * each)]
    if drain.table is not None:
        loads.append(("t", 0, 2.0 * len(drain.table) / place.config.n))
    if drain.residual is not None and not place.on_chip(drain.residual.tensor):
        loads.append(("r", key, beats))
    return loads
