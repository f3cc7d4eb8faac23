"""Tile models shared by the layers that only FUSE executes."""

from collections.abc import Callable, Iterator

from compiler.layers.base import Layer
from compiler.layers.layer_context import LayerContext
from compiler.layers.tile_pipeline import PipelineTile, TilePipeline
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div
from hw.isa.enums import DTYPE_BYTES

#: Cycles of a reciprocal, and of a reciprocal root.
RECIPROCAL_CYCLES, ROOT_CYCLES = 38, 69
TABLE_CYCLES = 32.0
#: Cycles of a pass beside its rows: it needs the last results of the one before.
PASS_CYCLES = 50

TileLoad = tuple[str, object, float]


def even_tiles(
    s: LayerSchedule,
    total: int,
    rows: int,
    loads: Callable[[int, int], list[TileLoad]],
    fuse: Callable[[int], float],
    store: Callable[[int], float],
    commands: int,
    tables: int = 0,
) -> TilePipeline:
    """Tiles of `rows` of `total`: what each loads (its number, its rows), its cycles, what it stores."""

    def tiles() -> Iterator[PipelineTile]:
        for start in range(0, total, rows):
            count = min(rows, total - start)
            more: list[TileLoad] = [("t", number, TABLE_CYCLES) for number in range(tables)]
            out = store(count)
            yield PipelineTile((*loads(start, count), *more), 0.0, fuse(count), out, commands + (out > 0))

    rings = {"x": s.x_buffers, "b": s.x_buffers, "t": max(tables, 1)}
    return TilePipeline(tiles(), ceil_div(total, rows), rings, 1, s.y_buffers)


def row_tile_model(
    layer: Layer, s: LayerSchedule, place: LayerContext, passes: int, of_row: float, tables: int
) -> TilePipeline:
    """Tile model of a layer with `passes` passes over its input, of `of_row` cycles a row in all."""
    n, x, y = place.config.n, layer.shapes[layer.x], layer.shapes[layer.y]
    of_x, of_y = (image.c * DTYPE_BYTES[image.dtype] / n for image in (x, y))
    return even_tiles(
        s,
        x.h * x.w,
        min(s.rows, x.h * x.w),
        lambda start, count: [] if place.x_on_chip else [("x", start, count * of_x)],
        lambda count: count * of_row + passes * PASS_CYCLES,
        lambda count: 0.0 if place.y_on_chip else count * of_y,
        passes,
        tables,
    )
