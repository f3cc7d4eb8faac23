"""Flows of moves: elements in another order."""

from math import gcd

from compiler.codegen.lines import transposable
from compiler.kernels.tiles import ceil_div
from compiler.lower.layer import MoveLayer
from compiler.lower.walk import Dim, Walk
from compiler.schedule.flow.pace import Flow, Tile, lines
from compiler.schedule.flow.place import Place
from compiler.schedule.moves import move_rows
from compiler.schedule.schedule import LayerSchedule
from hw.isa.enums import DTYPE_BYTES


def move_flow(layer: MoveLayer, s: LayerSchedule, place: Place) -> Flow:
    """Of a move: pieces in and out."""
    n, total = place.config.n, sum(copy.walk.count for copy in layer.copies)
    pieces = ceil_div(total, min(s.rows * n, max(total, 1)))
    here = all(place.on_chip(name) for name in layer.inputs)
    size = DTYPE_BYTES[layer.shapes[layer.y].dtype]
    beats = [_beats(n, copy.walk.merged(), size) for copy in layer.copies]
    load = 0.0 if here else sum(each for each, _ in beats) / max(pieces, 1)
    store = 0.0 if place.y_on_chip else sum(each for _, each in beats) / max(pieces, 1)
    fused = here == place.y_on_chip and (here or any(copy.rescale for copy in layer.copies))
    through = move_rows(n, layer) / max(pieces, 1) if fused else 0.0
    tiles = (
        Tile((("x", number, load),) if load else (), 0.0, through, store, (through > 0) + (store > 0))
        for number in range(pieces)
    )
    return Flow(tiles, pieces, {"x": s.x_buffers}, 1, s.y_buffers)


def _beats(n: int, walk: Walk, size: int) -> tuple[float, float]:
    """Beats of a walk's source and of its destination: lines of what follows one another there, or of blocks of n."""
    both = transposable(walk)
    if both:
        return _blocks(n, walk, both[0], size, 1), _blocks(n, walk, both[1], size, 2)
    inner = len(walk.dims) - 1 if walk.dims and walk.dims[-1][1:] == (1, 1) else None
    return _whole(n, walk, inner, size, 1), _whole(n, walk, inner, size, 2)


def _pitch(dims: list[Dim], size: int, side: int) -> int:
    return gcd(*(dim[side] * size for dim in dims)) if dims else 0


def _blocks(n: int, walk: Walk, inner: int, size: int, side: int) -> float:
    """Blocks of n of one dimension."""
    length, others = walk.dims[inner][0], [dim for at, dim in enumerate(walk.dims) if at != inner]
    count, pitch = walk.count // length, _pitch(others, size, side)
    return lines(count * (length // n), n, pitch, n) + lines(count, length % n, pitch, n)


def _whole(n: int, walk: Walk, inner: int | None, size: int, side: int) -> float:
    """Lines as long as the last dimension, if its elements follow one another, else of one element."""
    length = 1 if inner is None else walk.dims[inner][0]
    others = [dim for at, dim in enumerate(walk.dims) if at != inner]
    return lines(walk.count // max(length, 1), length * size, _pitch(others, size, side) or length * size, n)
