"""Tilings of convolutions, each with its estimated cycles."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from compiler.codegen.conv_image import Layout, can_fold
from compiler.kernels.tiles import ceil_div, cuts
from compiler.lower.conv_transpose import ConvTransposeLayer
from compiler.lower.layer import ConvLayer, DepthwiseLayer
from compiler.lower.together import can_join, joined
from compiler.schedule.schedule import LayerSchedule
from compiler.schedule.spot import (
    CROWDED,
    PREFETCH,
    TILE,
    Spot,
    Tilings,
    image_rows,
    images,
    slots_together,
    sums_together,
)
from hw.isa.enums import DTYPE_BYTES

#: Outer loop, and whether all weights have a place of their own.
_ORDERS = (("rows", True), ("rows", False), ("channels", False))
#: Within this of the array's own cycles an estimate is good enough.
_NEAR = 1.1
#: Cycles by which a tile of weights is late if few rows hide it: their reads give way to those of activations.
_LATE = 2


@dataclass(frozen=True)
class _Tile:
    """A way to cut a convolution: blocks of input channels, blocks of output channels, rows, rows of the image."""

    depth: int
    columns: int
    rows: int
    band: int
    order: str
    resident: bool


class _Conv:
    """A convolution at its spot, its image in a layout."""

    def __init__(self, spot: Spot, layer: ConvLayer, layout: Layout, together: int):
        self.spot, self.layer, self.n = spot, layer, spot.config.n
        self.layout, self.together, n = layout, together, spot.config.n
        self.x, self.y = images(layer)
        out_c, self.kernel_h, self.kernel_w, self.in_c = layer.weights.shape
        self.blocks, self.taps = ceil_div(out_c // layer.groups, n), self.kernel_h * self.kernel_w
        self.passes = {
            Layout.PIXELS: self.taps * ceil_div(self.in_c, n),
            Layout.ROWS: self.kernel_h * ceil_div(self.in_c * self.kernel_w, n),
            Layout.STRIPS: ceil_div(self.in_c * self.taps, n),
        }[layout]
        self.reach = (self.kernel_h - 1) * layer.dilations[0] + 1
        padding = layer.pads[1] + layer.pads[3] if layout == Layout.ROWS else 0
        self.line = (self.x.w + padding) * self.x.c
        self.k_blocks = ceil_div(self.in_c, n)

    def _image(self, band: int, part: float) -> tuple[int, float]:
        """Bytes of the image rows of a band, and cycles of the bus to bring them in."""
        if self.spot.x_on_chip:
            return 0, 0
        stride, n = self.layer.strides[0], self.n
        if self.layout == Layout.STRIPS:
            line = self.kernel_w * self.x.c
            lines = self.y.w * ((band - 1) * stride + self.kernel_h)
            return lines * line + n, lines * (line + n - 1) / n
        size = int(image_rows(band, stride, self.reach, self.x.h) * self.line * part) + n
        return size, size / n

    def tilings(self) -> Tilings:
        """Those of whole sums; of cut sums too where the array would wait for whole ones, or they do not fit."""
        array = self.blocks * self.passes * max(self.layer.batch * self.y.h * self.y.w, self.n)
        enough = _NEAR * self.layer.groups * max(array, self.blocks * self.taps * self.in_c)
        for depth in cuts(self.k_blocks) if self.layout == Layout.PIXELS else [self.k_blocks]:
            found = [tiling for tile in self._tiles(depth) if (tiling := self._tiling(tile))]
            yield from found
            if min((cycles for cycles, _ in found), default=enough) < enough:
                return

    def _tiles(self, depth: int) -> list[_Tile]:
        most = min(self.blocks, self.spot.config.param_slots // 2)
        return [
            _Tile(depth, columns, rows, band, order, resident)
            for columns, rows in product(cuts(most), cuts(self.y.h))
            for band, (order, resident) in product(_bands(rows, self.y.h, self.spot.x_on_chip), _ORDERS)
        ]

    def _tiling(self, tile: _Tile) -> tuple[float, LayerSchedule] | None:
        """Estimated cycles of a way to cut, as a schedule; None if it does not fit."""
        spot, layer, n = self.spot, self.layer, self.n
        tiles, groups = layer.batch * ceil_div(self.y.h, tile.rows), ceil_div(self.blocks, tile.columns)
        pixels, sums = layer.batch * self.y.h * self.y.w, tile.rows * self.y.w * tile.columns
        bands = layer.batch * ceil_div(self.y.h, tile.band)
        if sums * min(2, tiles * groups) > spot.acc_rows:
            return None
        whole, size = tile.depth == self.k_blocks, DTYPE_BYTES[layer.drain.dtype]
        part = 1.0 if whole else tile.depth * n / self.in_c
        w_bytes = tile.columns * self.taps * min(tile.depth * n, self.in_c) * n
        x_bytes, x_beats = self._image(tile.band, part)
        y_bytes = 0 if spot.y_on_chip else 2 * sums * n * size * (2 if layer.drain.residual else 1)
        w_tiles = groups * (1 if whole else ceil_div(self.in_c, tile.depth * n))
        w_buffers = w_tiles if tile.resident else min(2, w_tiles)
        parts = 1 if whole else w_tiles // groups
        x_tiles = parts * (bands if tile.order == "channels" else 1)
        kept = not whole and w_bytes * w_buffers + x_bytes * x_tiles + y_bytes <= spot.free
        x_buffers = x_tiles if kept else min(2, bands * parts)
        if w_bytes * w_buffers + x_bytes * x_buffers + y_bytes > spot.free:
            return None
        w_times = tiles if tile.order == "rows" and w_buffers < w_tiles else 1
        again = (not whole and not kept) or (tile.order == "channels" and bands * parts > x_buffers)
        x_times = groups if again else 1
        if not whole and w_buffers < w_tiles:
            w_times = tiles
        array = tiles * self.blocks * self.passes * self._pass(pixels / tiles)
        drain = pixels * self.blocks
        bus = w_times * self.blocks * self.taps * self.in_c + x_times * bands * x_beats / part
        bus += 0 if spot.y_on_chip else drain * size
        steps = tiles * groups * parts
        cycles = max(array, bus * CROWDED, drain, steps * TILE) + sums + w_bytes / n + x_beats + steps * 8
        cycles += spot.beside * (tile.rows / self.y.h if tile.order == "rows" else 1)
        cycles += 0 if spot.x_on_chip else bands * (20 if self.layout == Layout.PIXELS else TILE)
        return cycles * layer.groups, LayerSchedule(
            rows=tile.rows, band=tile.band, columns=tile.columns,
            depth=tile.depth if self.layout == Layout.PIXELS else tile.depth * self.taps, order=tile.order,
            slots=slots_together(spot.config, self.blocks, tile.columns), w_buffers=w_buffers,
            x_buffers=x_buffers, acc_buffers=sums_together(spot, sums), prefetch=PREFETCH,
            fold=self.layout == Layout.ROWS, strips=self.layout == Layout.STRIPS, together=self.together,
            on_chip=spot.y_on_chip,
        )  # fmt: skip

    def _pass(self, rows: float) -> float:
        """Cycles of as many rows through one tile of weights."""
        return max(rows, self.n) + (_LATE if rows < 2 * self.n else 0)


def conv_tilings(spot: Spot, layer: ConvLayer) -> Tilings:
    """Of a convolution, or a product with constant weights.

    A group of channels has buffers of its own, and two that follow one another are at work at the same time: each gets
    half the room if there is a way to cut it so.
    """
    if layer.groups > 1:
        found = list(_tilings(replace(spot, free=spot.free // 2), layer))
        if found:
            yield from found
            return
    yield from _tilings(spot, layer)


def _tilings(spot: Spot, layer: ConvLayer) -> Tilings:
    for together in _together(spot, layer):
        wide = joined(layer, together) if together > 1 else layer
        for layout in _layouts(spot, wide):
            yield from _Conv(spot, wide, layout, together).tilings()


def _together(spot: Spot, layer: ConvLayer) -> Iterator[int]:
    """How many output pixels fill the array's columns: one, two, four, ..."""
    pixels = 1
    while pixels == 1 or (pixels * layer.weights.shape[0] <= spot.config.n and can_join(layer, pixels)):
        yield pixels
        pixels *= 2


def _layouts(spot: Spot, layer: ConvLayer) -> list[Layout]:
    """Layouts of the image, each only if it saves passes."""
    layouts, least = [], 0
    for layout in Layout:
        if layout != Layout.PIXELS and not can_fold(layer, spot.x_on_chip, layout):
            continue
        passes = _Conv(spot, layer, layout, 1).passes
        if not layouts or passes < least:
            layouts.append(layout)
            least = passes
    return layouts


def transposed_tilings(spot: Spot, layer: ConvTransposeLayer) -> Tilings:
    """Those of the greatest phase; the buffers of all of them may be in use at a time."""
    heaviest = max((phase.conv for phase in layer.phases), key=lambda conv: conv.macs)
    for free in (spot.free // len(layer.phases), spot.free):
        found = list(conv_tilings(replace(spot, free=free), heaviest))
        for cycles, schedule in found:
            yield cycles * len(layer.phases), schedule
        if found:
            return


def _bands(rows: int, height: int, on_chip: bool) -> list[int]:
    """Rows brought in together: some tiles, or all."""
    if on_chip:
        return [height]
    return sorted({min(rows * times, height) for times in (1, 2, 4, 8)} | {height})


def depthwise_tilings(spot: Spot, layer: DepthwiseLayer) -> Tilings:
    """Of a depthwise convolution."""
    config, n = spot.config, spot.config.n
    batch, (x, y) = layer.batch, images(layer)
    kernel_h, taps, channels = layer.weights.shape
    blocks = ceil_div(channels, n)
    for columns in cuts(min(blocks, config.param_slots // 2)):
        for rows in cuts(y.h):
            if 2 * rows * y.w * columns > spot.acc_rows:
                continue
            for band in (y.h, rows) if not spot.x_on_chip else (y.h,):
                x_bytes = image_rows(band, layer.strides[0], kernel_h, x.h) * x.w * columns * n + n
                used = columns * kernel_h * taps * n * 2
                used += 0 if spot.x_on_chip else 2 * x_bytes
                used += 0 if spot.y_on_chip else 2 * rows * y.w * columns * n * DTYPE_BYTES[layer.drain.dtype]
                if used > spot.free:
                    continue
                keep = columns == 1
                tiles = batch * ceil_div(blocks, columns) * ceil_div(y.h, rows)
                again = 0 if keep else (kernel_h - 1) * tiles * columns
                stream = (batch * blocks * y.h * layer.strides[0] + again) * (x.w + 1)
                array = stream * ceil_div(kernel_h, max(1, min(3, n // taps)))
                bus = 0 if spot.x_on_chip else batch * ceil_div(y.h, band) * blocks * x_bytes / (columns * n)
                bus += 0 if spot.y_on_chip else batch * y.h * y.w * blocks
                cycles = max(array, bus, tiles * TILE) + rows * y.w * columns + tiles * 10
                yield cycles, LayerSchedule(
                    rows=rows, band=band, columns=columns, slots=slots_together(config, blocks, columns),
                    acc_buffers=sums_together(spot, rows * y.w * columns), prefetch=PREFETCH,
                    on_chip=spot.y_on_chip,
                )  # fmt: skip
