"""Tilings of products of matrices, reductions, norms and transposed convolutions."""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from compiler.kernels.tiles import ceil_div, cuts
from compiler.lower.layer import Layer
from compiler.lower.matmul import MatmulLayer
from compiler.lower.norm import NormLayer
from compiler.lower.reduce import ReduceLayer
from compiler.schedule.schedule import LayerSchedule
from hw.errors import InputError
from hw.isa.enums import DTYPE_BYTES

if TYPE_CHECKING:
    from compiler.schedule.spot import Spot

#: Cycles the sequencer takes for the commands of a tile.
_TILE = 60

_Tilings = Iterator[tuple[float, LayerSchedule]]


def check_row(spot: "Spot", layer: Layer, elements: int, held: int) -> None:
    """Refuse rows that need more of the accumulator than there is, as they cannot be cut.

    Raises
    ------
    InputError
        They do.
    """
    if held > spot.acc_rows:
        raise InputError(
            f"layer {layer.name!r}: {layer.ops[0]} of {elements} elements holds {held} rows of the accumulator, "
            f"which has {spot.acc_rows}"
        )


def matmul_tilings(spot: "Spot", layer: MatmulLayer) -> _Tilings:
    """Those of the greatest depth that fits."""
    k_blocks = ceil_div(layer.size[1], spot.config.n)
    for depth in cuts(k_blocks):
        found = list(_matmul_tilings(spot, layer, depth))
        if found:
            yield from found
            return


def _matmul_tilings(spot: "Spot", layer: MatmulLayer, depth: int) -> _Tilings:
    n, (m, k, width) = spot.config.n, layer.size
    blocks, parts = ceil_div(width, n), ceil_div(ceil_div(k, n), depth)
    batches, span = len(layer.out.starts), min(depth * n, k)
    a_here, b_here = (spot.on_chip(s.name) for s in (layer.a, layer.b))
    y_here, size = spot.on_chip(layer.y), DTYPE_BYTES[layer.out.dtype]
    for rows, columns in product(cuts(m), cuts(blocks)):
        down, across = ceil_div(m, rows), ceil_div(blocks, columns)
        tiles = down * across
        if rows * columns * min(2, tiles * batches) > spot.acc_rows or rows > 0xFFFF:
            continue
        broad = min(columns * n, width)
        for order, resident in (("rows", True), ("rows", False), ("channels", False)):
            w_buffers = across * parts if resident else 2
            x_buffers = 2 if parts == 1 or order == "rows" else min(2, parts)
            used = 0 if a_here else x_buffers * (rows * span + n)
            used += 0 if b_here else w_buffers * (span * broad + n)
            used += 0 if y_here else 2 * (rows * broad + n) * size
            if used > spot.free:
                continue
            a_times = across if order == "channels" and down > 1 else 1
            b_times = down if order == "rows" and not resident and across * parts > 1 else 1
            array = tiles * ceil_div(k, n) * columns * (max(rows, n) + 4)
            bus = 0 if a_here else a_times * m * k / n
            bus += 0 if b_here else b_times * k * blocks
            bus += 0 if y_here else m * blocks * size
            steps = tiles * parts
            start = (0 if a_here else rows * span / n) + (0 if b_here else span * columns)
            cycles = batches * (max(array, bus, m * blocks, steps * _TILE) + 8 * steps)
            cycles += rows * columns + start
            yield cycles, LayerSchedule(
                rows=rows, columns=columns, depth=depth, order=order, w_buffers=w_buffers,
                x_buffers=x_buffers, on_chip=y_here,
            )  # fmt: skip


def reduce_tilings(spot: "Spot", layer: ReduceLayer) -> _Tilings:
    """Those of the largest pieces that fit."""
    k0, r0, k1, r1, c = layer.dims
    n, blocks = spot.config.n, ceil_div(c, spot.config.n)
    by_rows = r0 > 1 or not layer.lanes
    reduced = r0 if by_rows else blocks
    for depth in cuts(reduced):
        found = False
        for columns, rows in product([blocks] if layer.lanes else cuts(blocks), cuts(k0)):
            parts = ceil_div(reduced, depth)
            width = min((columns if by_rows else depth) * n, c)
            points = rows * (depth if by_rows else 1) * k1 * r1
            results = rows * k1
            used = 0 if spot.on_chip(layer.x) else 2 * (points * width + n)
            used += 0 if spot.on_chip(layer.y) else 2 * (results * (1 if layer.lanes else width) + n)
            held = results * parts * (1 if layer.lanes else columns) if parts > 1 else 0
            if used > spot.free or held > spot.acc_rows or max(points, depth) > 0xFFFF:
                continue
            found = True
            tiles = ceil_div(k0, rows) * ceil_div(blocks, columns)
            work = k0 * r0 * k1 * r1 * blocks
            start = 0 if spot.on_chip(layer.x) else points * width / n
            yield (
                max(work, tiles * parts * _TILE) + start + tiles * parts * 4,
                LayerSchedule(
                    rows=rows, columns=columns, depth=depth, acc_buffers=1, on_chip=spot.on_chip(layer.y)
                ),
            )
        if found:
            return


def norm_tilings(spot: "Spot", layer: NormLayer) -> _Tilings:
    """As many rows at once as the accumulator holds, or fewer."""
    x, n = layer.shapes[layer.x], spot.config.n
    total, blocks = x.h * x.w, ceil_div(x.c, n)
    passes = 10 if layer.centred else 8
    check_row(spot, layer, x.c, 2 * blocks + 3)
    for rows in cuts(total):
        used = 4 * blocks * n + rows * 2 * x.c * (2 - spot.on_chip(layer.x) - spot.on_chip(layer.y)) + n
        if used > spot.free or rows * (1 + 2 * (blocks + 1)) > spot.acc_rows:
            continue
        tiles = ceil_div(total, rows)
        yield (
            total * blocks * passes + tiles * passes * _TILE + rows * blocks,
            LayerSchedule(rows=rows, on_chip=spot.on_chip(layer.y)),
        )
