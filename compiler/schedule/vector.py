"""Tilings of layers that FUSE carries out alone, each with its estimated cycles."""

from compiler.kernels.tiles import ceil_div, cuts
from compiler.lower.dynamic import ROWS, DynamicLayer
from compiler.lower.elementwise_layer import ElementwiseLayer
from compiler.lower.layer import PoolLayer, SoftmaxLayer
from compiler.lower.prelu import PReluLayer
from compiler.schedule.compute import check_row
from compiler.schedule.schedule import LayerSchedule
from compiler.schedule.spot import TILE, Spot, Tilings, image_rows, images
from hw.isa.enums import DTYPE_BYTES


def pool_tilings(spot: Spot, layer: PoolLayer) -> Tilings:
    """Of a pooling layer."""
    n, (x, y) = spot.config.n, images(layer)
    blocks = ceil_div(x.c, n)
    for columns in cuts(blocks):
        for rows in cuts(y.h):
            x_bytes = image_rows(rows, layer.strides[0], layer.kernel[0], x.h) * x.w * columns * n + n
            used = 0 if spot.x_on_chip else 2 * x_bytes
            used += 0 if spot.y_on_chip else 2 * rows * y.w * columns * n
            if used > spot.free:
                continue
            tiles = layer.batch * ceil_div(blocks, columns) * ceil_div(y.h, rows)
            work = layer.batch * y.h * y.w * blocks * layer.kernel[0] * layer.kernel[1]
            start = 0 if spot.x_on_chip else x_bytes / n
            cycles = max(work, tiles * TILE) + start + tiles * 4
            yield cycles, LayerSchedule(rows=rows, columns=columns, on_chip=spot.y_on_chip)


def elementwise_tilings(spot: Spot, layer: ElementwiseLayer) -> Tilings:
    """Of an elementwise layer."""
    n, y = spot.config.n, layer.shapes[layer.y]
    total = ceil_div(y.h * y.w * y.c, n)
    sizes = [DTYPE_BYTES[layer.shapes[name].dtype] for name in (*layer.inputs, layer.y)]
    for rows in cuts(total):
        used = 2 * rows * n * sum(sizes)
        if (used > spot.free and not (spot.x_on_chip and spot.y_on_chip)) or rows > 0xFFFF:
            continue
        tiles = ceil_div(total, rows)
        # A row of wider elements takes as many reads or writes.
        work = total * max(sizes)
        yield max(work, tiles * TILE) + 2 * rows, LayerSchedule(rows=rows, on_chip=spot.y_on_chip)


def dynamic_tilings(spot: Spot, layer: DynamicLayer) -> Tilings:
    """Of a dynamic quantization: all numbers once for their range, once for their bytes."""
    n, x = spot.config.n, layer.shapes[layer.x]
    total, size = ceil_div(x.h * x.w * x.c, n), DTYPE_BYTES[x.dtype]
    for rows in cuts(total):
        tiles = ceil_div(total, rows)
        used = 2 * (rows + 1) * n * size + 2 * (rows + size) * n + 2 * n
        if used > spot.free or rows > 0xFFFF or tiles + ROWS > spot.acc_rows:
            continue
        yield 3 * max(total * size, tiles * TILE) + 2 * rows, LayerSchedule(rows=rows, on_chip=spot.y_on_chip)


def prelu_tilings(spot: Spot, layer: PReluLayer) -> Tilings:
    """Of a PReLU: three passes over each row, with places for both halves."""
    n, y = spot.config.n, layer.shapes[layer.y]
    pixels, blocks = y.h * y.w, ceil_div(y.c, n)
    for rows in cuts(pixels):
        held = 2 * rows if layer.slopes.ndim == 2 else 1  # slopes of each element come with them
        used = (2 * rows * 3 + held) * blocks * n
        used += (not spot.x_on_chip) * 2 * (rows * y.c + n) + (not spot.y_on_chip) * 2 * (rows * y.c + n)
        if used > spot.free or rows > 0xFFFF:
            continue
        work = 3 * pixels * blocks
        cycles = max(work, ceil_div(pixels, rows) * 3 * TILE) + rows * blocks
        yield cycles, LayerSchedule(rows=rows, on_chip=spot.y_on_chip)


def softmax_tilings(spot: Spot, layer: SoftmaxLayer) -> Tilings:
    """Of a softmax."""
    n, x = spot.config.n, layer.shapes[layer.x]
    total, blocks = x.h * x.w, ceil_div(x.c, n)
    check_row(spot, layer, x.c, blocks + 1)
    for rows in cuts(total):
        used = rows * (
            2 * blocks * n + (0 if spot.x_on_chip else 2 * x.c) + (0 if spot.y_on_chip else 2 * x.c)
        )
        if used > spot.free or rows * (1 + blocks) > spot.acc_rows:
            continue
        tiles = ceil_div(total, rows)
        yield (
            total * blocks * 5 + tiles * 5 * TILE + rows * blocks,
            LayerSchedule(rows=rows, on_chip=spot.y_on_chip),
        )
