"""Flows of the layers that FUSE carries out alone."""

from collections.abc import Callable, Iterator

from compiler.kernels.tiles import ceil_div
from compiler.lower.dynamic import DynamicLayer
from compiler.lower.elementwise_layer import ElementwiseLayer, Spread
from compiler.lower.layer import Layer, PoolLayer, SoftmaxLayer
from compiler.lower.norm import NormLayer
from compiler.lower.prelu import PReluLayer
from compiler.lower.reduce import ReduceLayer
from compiler.schedule.flow.pace import Flow, Tile, lines
from compiler.schedule.flow.place import Place
from compiler.schedule.schedule import LayerSchedule
from compiler.schedule.spot import image_rows, images
from hw.isa.enums import DTYPE_BYTES

#: Cycles of a reciprocal, and of a reciprocal root.
_RECIPROCAL, _ROOT = 38, 69
_TABLE = 32.0
#: Cycles of a pass beside its rows: it needs the last results of the one before.
_PASS = 50

_Load = tuple[str, object, float]


def _even(
    s: LayerSchedule, total: int, rows: int, loads: Callable[[int, int], list[_Load]],
    fuse: Callable[[int], float], store: Callable[[int], float], commands: int, tables: int = 0,
) -> Flow:  # fmt: skip
    """Tiles of `rows` of `total`: what each loads (its number, its rows), its cycles, what it stores."""

    def tiles() -> Iterator[Tile]:
        for start in range(0, total, rows):
            count = min(rows, total - start)
            more: list[_Load] = [("t", number, _TABLE) for number in range(tables)]
            out = store(count)
            yield Tile((*loads(start, count), *more), 0.0, fuse(count), out, commands + (out > 0))

    rings = {"x": s.x_buffers, "b": s.x_buffers, "t": max(tables, 1)}
    return Flow(tiles(), ceil_div(total, rows), rings, 1, s.y_buffers)


def pool_flow(layer: PoolLayer, s: LayerSchedule, place: Place) -> Flow:
    """Of a pooling layer: rows, blocks of channels."""
    n, (x, y) = place.config.n, images(layer)
    blocks = ceil_div(x.c, n)
    columns, rows = min(s.columns, blocks), min(s.rows, y.h)
    taps = layer.kernel[0] * layer.kernel[1]

    def tiles() -> Iterator[Tile]:
        for number in range(layer.batch):
            for start in range(0, y.h, rows):
                for block in range(0, blocks, columns):
                    high, wide = min(rows, y.h - start), min(columns, blocks - block)
                    width = min(wide * n, x.c - block * n)
                    count = image_rows(high, layer.strides[0], layer.kernel[0], x.h) * x.w
                    loads = (
                        ()
                        if place.x_on_chip
                        else (("x", (number, start, block), lines(count, width, x.c, n)),)
                    )
                    store = 0.0 if place.y_on_chip else lines(high * y.w, width, x.c, n)
                    yield Tile(loads, 0.0, high * y.w * wide * taps, store, 2 - place.y_on_chip)

    count = layer.batch * ceil_div(y.h, rows) * ceil_div(blocks, columns)
    return Flow(tiles(), count, {"x": s.x_buffers}, 1, s.y_buffers)


def elementwise_flow(layer: ElementwiseLayer, s: LayerSchedule, place: Place) -> Flow:
    """Of an elementwise layer."""
    n, y = place.config.n, layer.shapes[layer.y]
    total = ceil_div(y.h * y.w * y.c, n)
    sizes = {name: DTYPE_BYTES[layer.shapes[name].dtype] for name in (*layer.inputs, layer.y)}
    away = [name for name in (layer.x, *([layer.other] if layer.other and layer.spread == Spread.ALL else []))
            if not place.on_chip(name)]  # fmt: skip

    reads = sizes[layer.x]
    if layer.other and layer.spread == Spread.ALL:  # one port of the scratchpad for both
        reads += sizes.get(layer.other, 1)

    def loads(start: int, count: int) -> list[_Load]:
        return [
            (ring, start, float(count * sizes.get(name, 1))) for ring, name in zip("xb", away, strict=False)
        ]

    return _even(
        s, total, min(s.rows, total), loads, lambda count: count * reads,
        lambda count: 0.0 if place.y_on_chip else float(count * sizes[layer.y]), 1, layer.table is not None,
    )  # fmt: skip


def row_flow(layer: Layer, s: LayerSchedule, place: Place, passes: int, of_row: float, tables: int) -> Flow:
    """Of a layer that takes several passes over its input, of `of_row` cycles a row."""
    n, x, y = place.config.n, layer.shapes[layer.x], layer.shapes[layer.y]
    of_x, of_y = (image.c * DTYPE_BYTES[image.dtype] / n for image in (x, y))
    return _even(
        s, x.h * x.w, min(s.rows, x.h * x.w),
        lambda start, count: [] if place.x_on_chip else [("x", start, count * of_x)],
        lambda count: count * of_row + passes * _PASS,
        lambda count: 0.0 if place.y_on_chip else count * of_y, passes, tables,
    )  # fmt: skip


def softmax_flow(layer: SoftmaxLayer, s: LayerSchedule, place: Place) -> Flow:
    """Of a softmax."""
    blocks = ceil_div(layer.shapes[layer.x].c, place.config.n)
    return row_flow(layer, s, place, 5, 7 * blocks + max(blocks, _RECIPROCAL), 2)


def norm_flow(layer: NormLayer, s: LayerSchedule, place: Place) -> Flow:
    """Of a normalization."""
    blocks = ceil_div(layer.shapes[layer.x].c, place.config.n)
    centred = 3 * blocks if layer.centred else 0
    return row_flow(
        layer, s, place, 10 if layer.centred else 8, 8 * blocks + centred + 4 + 2 * max(blocks, _ROOT), 1
    )


def prelu_flow(layer: PReluLayer, s: LayerSchedule, place: Place) -> Flow:
    """Of a PReLU."""
    return row_flow(layer, s, place, 3, 3 * ceil_div(layer.shapes[layer.x].c, place.config.n), 1)


def dynamic_flow(layer: DynamicLayer, s: LayerSchedule, place: Place) -> Flow:
    """Of a dynamic quantization."""
    n, x = place.config.n, layer.shapes[layer.x]
    total, size = ceil_div(x.h * x.w * x.c, n), DTYPE_BYTES[x.dtype]
    return _even(
        s, total, min(s.rows, total), lambda start, count: [("x", start, 2.0 * count * size)],
        lambda count: 3.0 * count * size, lambda count: 0.0 if place.y_on_chip else float(count), 3,
    )  # fmt: skip


def reduce_flow(layer: ReduceLayer, s: LayerSchedule, place: Place) -> Flow:
    """Of a reduction: rows that stay, blocks of channels, parts of what goes."""
    k0, r0, k1, r1, c = layer.dims
    n, blocks = place.config.n, ceil_div(c, place.config.n)
    by_rows = r0 > 1 or not layer.lanes
    reduced = r0 if by_rows else blocks
    rows, columns, depth = min(s.rows, k0), min(s.columns, blocks), min(s.depth, reduced)
    x_here, parts = place.x_on_chip, ceil_div(reduced, depth)

    def tiles() -> Iterator[Tile]:
        for start in range(0, k0, rows):
            for block in range(0, 1 if layer.lanes else blocks, columns):
                for part in range(0, reduced, depth):
                    wide = min(columns, blocks - block) if by_rows else min(depth, blocks - part)
                    high = min(rows, k0 - start) * (min(depth, r0 - part) if by_rows else 1)
                    points = high * k1 * r1 * wide
                    width = min(wide * n, c - (block if by_rows else part) * n)
                    loads = (
                        () if x_here else (("x", (start, block, part), lines(points // wide, width, c, n)),)
                    )
                    last = part + depth >= reduced
                    results = float(min(rows, k0 - start) * k1 * (1 if layer.lanes else wide)) * last
                    store = 0.0 if place.y_on_chip else results
                    yield Tile(
                        loads,
                        0.0,
                        points + (results if parts > 1 else 0.0),
                        store,
                        1 + last * (store > 0) + (parts > 1) * last,
                    )

    count = ceil_div(k0, rows) * (1 if layer.lanes else ceil_div(blocks, columns)) * ceil_div(reduced, depth)
    return Flow(tiles(), count, {"x": s.x_buffers}, 1, s.y_buffers)
