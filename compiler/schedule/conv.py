"""Tilings of convolutions, each with its estimated cycles."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from compiler.codegen.conv_layout import Layout, can_fold
from compiler.codegen.depthwise import stream_passes, stream_pitch
from compiler.kernels.tiles import ceil_div, cuts
from compiler.lower.conv_transpose import ConvTransposeLayer
from compiler.lower.layer import ConvLayer, DepthwiseLayer
from compiler.lower.together import can_join, joined
from compiler.schedule.conv_cut import Conv
from compiler.schedule.schedule import LayerSchedule
from compiler.schedule.spot import (
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

#: Strips that a depthwise convolution is cut into at most.
_STRIPS = 4


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
            yield from Conv(spot, wide, layout, together).tilings()


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
        passes = Conv(spot, layer, layout, 1).passes
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


def depthwise_tilings(spot: Spot, layer: DepthwiseLayer) -> Tilings:
    """Of a depthwise convolution."""
    config, n = spot.config, spot.config.n
    batch, (x, y) = layer.batch, images(layer)
    kernel_h, taps, channels = layer.weights.shape
    blocks = ceil_div(channels, n)
    for columns, (width, passes) in product(cuts(min(blocks, config.param_slots // 2)), _widths(spot, layer)):
        pitch, strips = stream_pitch(layer, x.w, y.w, width), ceil_div(y.w, width)
        for rows in cuts(y.h):
            sums = rows * width * columns
            if 2 * sums > spot.acc_rows:
                continue
            for band in (y.h, rows) if not spot.x_on_chip else (y.h,):
                x_bytes = image_rows(band, layer.strides[0], kernel_h, x.h) * x.w * columns * n + n
                used = columns * kernel_h * taps * n * 2
                used += 0 if spot.x_on_chip else 2 * x_bytes
                used += 0 if spot.y_on_chip else 2 * sums * n * DTYPE_BYTES[layer.drain.dtype]
                if used > spot.free:
                    continue
                keep = columns == 1 and passes == 1 and rows < band
                tiles = batch * ceil_div(blocks, columns) * ceil_div(y.h, rows) * strips
                again = 0 if keep else (kernel_h - 1) * tiles * columns
                stream = (batch * blocks * y.h * layer.strides[0] * strips + again) * pitch
                array = stream * passes
                bus = 0 if spot.x_on_chip else batch * ceil_div(y.h, band) * blocks * x_bytes / (columns * n)
                bus += 0 if spot.y_on_chip else batch * y.h * y.w * blocks
                cycles = max(array, bus, tiles * TILE) + sums + tiles * 10
                yield cycles, LayerSchedule(
                    rows=rows, rows_per_load=band, width=width, columns=columns,
                    param_blocks=slots_together(config, blocks, columns),
                    acc_buffers=sums_together(spot, sums), prefetch=PREFETCH, on_chip=spot.y_on_chip,
                )  # fmt: skip


def _widths(spot: Spot, layer: DepthwiseLayer) -> list[tuple[int, int]]:
    """Widths of strips and passes over each: all of the output, and those that take fewer passes."""
    out: list[tuple[int, int]] = []
    x, y = images(layer)
    for strips in range(1, _STRIPS + 1):
        width = ceil_div(y.w, strips)
        passes = stream_passes(spot.config, layer, stream_pitch(layer, x.w, y.w, width))
        if not out or passes < out[-1][1]:
            out.append((width, passes))
    return out
