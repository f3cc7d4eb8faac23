"""Sizes of the pieces of a move, and where its source should be."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from compiler.codegen.lines import transposable
from compiler.kernels.tiles import ceil_div, cuts
from compiler.lower.layer import MoveLayer
from compiler.schedule.schedule import LayerSchedule
from hw.isa.enums import DTYPE_BYTES

if TYPE_CHECKING:
    from compiler.schedule.spot import Spot

#: Cycles of a piece beside its bytes.
_PIECE = 120
#: From so many single elements on, LOAD's way from DRAM in blocks is shorter than FUSE's, element by element.
_WORTH = 512


def from_dram(layer: MoveLayer) -> set[str]:
    """Sources that are better read from DRAM, where LOAD transposes them."""
    return {
        copy.source
        for copy in layer.copies
        if copy.source is not None
        and DTYPE_BYTES[layer.shapes[copy.source].dtype] == 1
        and copy.walk.count >= _WORTH
        and transposable(copy.walk.merged())
    }


def move_rows(n: int, layer: MoveLayer) -> int:
    """Rows of N bytes that the units take for all copies."""
    total = 0
    for copy in layer.copies:
        walk = copy.walk.merged()
        run = walk.dims[-1][0] if walk.dims and walk.dims[-1][1:] == (1, 1) else 1
        both = transposable(walk)
        if both:
            run = min(walk.dims[both[0]][0], n)
        total += walk.count // run * ceil_div(run, n)
    return total


def move_tilings(spot: "Spot", layer: MoveLayer) -> Iterator[tuple[float, LayerSchedule]]:
    """Pieces that fit twice."""
    n, total = spot.config.n, sum(copy.walk.count for copy in layer.copies)
    size = max(DTYPE_BYTES[image.dtype] for image in layer.shapes.values())
    buffers = 4 if any(copy.rescale for copy in layer.copies) else 2
    work = move_rows(n, layer)
    for rows in cuts(ceil_div(total, n)):
        if buffers * (rows + 1) * n * size > spot.free:
            continue
        pieces = ceil_div(total, rows * n)
        yield (
            max(2 * work, pieces * _PIECE) + 20 * pieces + 2 * rows,
            LayerSchedule(rows=rows, on_chip=spot.y_on_chip),
        )
