"""Flows of depthwise convolutions: the stream mode of MATRIX."""

from collections.abc import Iterator
from itertools import product

from compiler.codegen.depthwise import kernel_rows, stream_pitch
from compiler.kernels.tiles import ceil_div
from compiler.lower.layer import DepthwiseLayer
from compiler.schedule.flow.array import with_drain
from compiler.schedule.flow.pace import Flow, Tile, lines
from compiler.schedule.flow.place import Place
from compiler.schedule.schedule import LayerSchedule
from compiler.schedule.spot import image_rows, images
from hw.isa.enums import DTYPE_BYTES


def depthwise_flow(layer: DepthwiseLayer, s: LayerSchedule, place: Place) -> Flow:
    """Of a depthwise convolution: blocks of channels, bands, strips, tiles."""
    n, (x, y) = place.config.n, images(layer)
    kernel_h, taps, channels = layer.weights.shape
    blocks, stride = ceil_div(channels, n), layer.strides[0]
    columns, band = min(s.columns, blocks), min(s.rows_per_load, y.h)
    rows, width = min(s.rows, band), min(s.width, y.w)
    pitch = stream_pitch(layer, x.w, y.w, width)
    together = max(kernel_rows(place.config, layer, pitch), 1)
    passes, strips = ceil_div(kernel_h, together), ceil_div(y.w, width)
    keep, size = columns == 1 and passes == 1, DTYPE_BYTES[layer.drain.dtype]

    def streamed(row: int, rows: int, across: int, first: bool, last: bool) -> int:
        """Cycles of a tile of a block of channels: the stream of each pass."""
        total = 0
        for g0 in range(0, kernel_h, together):
            groups = min(together, kernel_h - g0)
            above = min(max(layer.pads[0] - row * stride - g0, 0), groups - 1)
            before = stride - 1 if keep and not first else groups - 1 - above
            if keep and not last:
                return ((rows - 1) * stride + before + 1) * pitch
            total += ((rows - 1) * stride + before) * pitch + taps + (across - 1) * layer.strides[1]
        return total

    def tiles() -> Iterator[Tile]:
        for block in range(0, blocks, columns):
            wide, channels_wide = min(columns, blocks - block), min(columns * n, channels - block * n)
            for number, start, strip in product(range(layer.batch), range(0, y.h, band), range(strips)):
                high, across = min(band, y.h - start), min(width, y.w - strip * width)
                image = lines(image_rows(high, stride, kernel_h, x.h) * x.w, channels_wide, channels, n)
                for offset in range(0, high, rows):
                    count = min(rows, high - offset)
                    loads: list[tuple[str, object, float]] = []
                    if not place.x_on_chip:
                        loads.append(("x", (block, number, start), image))
                    loads.append(("w", block, float(wide * kernel_h * taps)))
                    beats = lines(count * across, channels_wide * size, channels * size, n)
                    key = (0, number, start + offset, strip, block)
                    loads += with_drain(layer.drain, s, place, key, blocks, beats)
                    cycles = streamed(start + offset, count, across, offset == 0, offset + rows >= high)
                    yield Tile(
                        tuple(loads), wide * cycles, count * across * wide * size,
                        0.0 if place.y_on_chip else beats, passes + 2 - place.y_on_chip,
                    )  # fmt: skip

    high_tiles = sum(ceil_div(min(band, y.h - start), rows) for start in range(0, y.h, band))
    count = ceil_div(blocks, columns) * layer.batch * strips * high_tiles
    rings = {"x": s.x_buffers, "w": s.w_buffers, "p": s.param_buffers, "r": s.y_buffers, "t": 1}
    return Flow(tiles(), count, rings, s.acc_buffers, s.y_buffers)
