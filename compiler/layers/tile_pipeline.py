"""Tile pipeline model: simulates how the tiles of a scheduled layer pass through the units, limited by its buffers."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from math import gcd, inf
from typing import NamedTuple

from compiler.layers.base import Drain, Layer
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div, cuts
from hw.isa.enums import DTYPE_BYTES

#: Number of simulated tiles of a longer pipeline, or more for two periods; the rate of the last ones is extrapolated to
#: the other tiles.
_SIMULATED_TILES, RATE_TILES = 32, 16
#: Maximum number of the other tiles whose work is counted.
_COUNTED_TILES = 1000
#: Maximum number of tiles of a pipeline that is simulated as a whole.
MAX_SIMULATED_TILES = 48
# The following constants were fitted to measured cycles of single operators on the RTL (n16).
#: Sequencer cycles per command that do not overlap with the units.
_COMMAND = 2
#: Number of LOAD commands whose data may be awaited at the same time (`hw/units/load/unit.py`).
_LOAD_COMMANDS = 16
#: Minimum mean cycles of the sequencer per command of a long pipeline.
_ISSUE = 16
#: Cycles until a unit's first result, of a load in addition to latency and transfer, and until a store response.
_FILL, _LOAD_OVERHEAD, _STORE_RESPONSE = 44, 75, 4
#: Cycles until FUSE's first result if its commands end with step 3 (`hw/fuse/bypass.py`).
EARLY_RESULT = 6
#: Share of the beats of a store by which it delays loads that are in progress on the bus.
_SHARED = 0.85
#: Cycles from a doorbell to the first command, and from the last byte to the interrupt.
_BEGIN, _END = -47, 60
#: Names of buffers of constants, whose loads need not wait for the previous layer.
_CONSTANT = frozenset("wpt")
#: Names of buffers that are not in the scratchpad: parameter slots and tables.
_SLOTS = frozenset("pt")


class PipelineTile(NamedTuple):
    """Work of the units for one tile.

    Parameters
    ----------
    loads : tuple of (buffer, key, beats)
        Pieces that the tile needs in the scratchpad, parameter slots or table slots; a piece is not loaded again while
        its key is in the buffer.
    array, fuse, store : float
        Cycles of MATRIX and FUSE, and beats of STORE; if `fuse` is 0, the accumulator keeps the sums for the next tile.
    commands : int
        Number of commands other than loads.
    separate : bool
        True for a part of a tile whose sums are not in the buffers of the other tiles.
    ahead : float
        Cycles of FUSE before its other cycles, for later tiles, so that they do not depend on the sums of this tile.
    """

    loads: tuple[tuple[str, object, float], ...]
    array: float
    fuse: float
    store: float
    commands: int
    separate: bool = False
    ahead: float = 0.0


@dataclass(frozen=True)
class TilePipeline:
    """Tiles of a layer, and the depths of its buffers.

    Parameters
    ----------
    tiles : iterable of PipelineTile
        Tiles in order of execution.
    count : int
        Number of tiles.
    buffers : dict
        Capacity of each buffer in pieces, by name.
    sums, results : int
        Number of buffers for tiles of sums and of results.
    saved : float
        Cycles by which draining the last tile is shorter than draining the others, because it is split.
    period : int
        Number of tiles after which the work of the units repeats.
    array : float or None
        Cycles of MATRIX for all tiles, if the last tiles of rows or channels are smaller than the others.
    result : float
        Cycles until FUSE's first result, fewer for commands that leave its pipeline early.
    """

    tiles: Iterable[PipelineTile]
    count: int
    buffers: dict[str, int] = field(default_factory=dict)
    sums: int = 2
    results: int = 2
    saved: float = 0.0
    period: int = 1
    array: float | None = None
    result: float = _FILL


def repeated_pipeline(make: Callable[[], TilePipeline], count: int) -> TilePipeline:
    """Return the pipeline of `count` equal convolutions that follow one another; `make` returns that of one.

    Each convolution has its own buffers, and those of two consecutive ones are in use at the same time.
    """
    first = make()

    def tiles() -> Iterator[PipelineTile]:
        for number in range(count):
            for tile in (make() if number else first).tiles:
                yield tile._replace(
                    loads=tuple((name, (number, key), beats) for name, key, beats in tile.loads)
                )

    array = None if first.array is None else first.array * count
    many = min(count, 2)
    return replace(
        first,
        tiles=tiles(),
        count=first.count * count,
        buffers={name: depth * many for name, depth in first.buffers.items()},
        sums=first.sums * many,
        results=first.results * many,
        array=array,
    )


def first_result(drain: Drain) -> float:
    """Return the cycles until FUSE's first result, if it drains sums."""
    return EARLY_RESULT if drain.residual is None else _FILL


def lines(count: int, width: int, pitch: int, n: int, least: float = 0.0) -> float:
    """Return the bus beats, at least `least` per line, for `count` lines of `width` bytes at a distance of `pitch`."""
    if width == pitch:
        return ceil_div(count * width, n)
    return count * max(_mean_beats(width, gcd(pitch, n), n), least)


def line_beats(count: int, length: int, steps: Iterable[int], n: int) -> float:
    """Return the mean bus beats of `count` separate lines of `length` bytes, whose distances are sums of `steps`."""
    return ceil_div(length, n) if count == 1 else count * _mean_beats(length, gcd(n, *steps), n)


def _mean_beats(length: int, step: int, n: int) -> float:
    """Return the mean bus beats of lines that begin equally often at each multiple of `step` within a beat."""
    return (ceil_div(length, step) * step + n - step) / n


class PipelineTiming(NamedTuple):
    """Estimated cycles of a layer.

    `total`: all cycles; `start`: until the first tile is computed; `tail`: after the last tile of the array; `array`,
    `fuse`, `load`, `store`: busy cycles of the units; `commands`: number of commands; `lead`: cycles before the end at
    which LOAD becomes idle; `sp_rows`: size of the layer's buffers in rows of the scratchpad.
    """

    total: float
    start: float
    tail: float
    array: float
    fuse: float
    load: float
    store: float
    commands: float
    lead: float
    sp_rows: float


def simulate_pipeline(
    pipeline: TilePipeline,
    beat: float,
    latency: float,
    before: float | None = None,
    *,
    last: bool = True,
    fuse_rate: int = 1,
    limit: float = inf,
) -> PipelineTiming:
    """Simulate a tile pipeline.

    Parameters
    ----------
    pipeline : TilePipeline
        Tiles of the layer and the depths of its buffers.
    beat, latency : float
        Bus cycles for N bytes, and latency of the first byte.
    before : float or None
        Cycles from the time at which LOAD becomes idle, and may load this layer's constants, to the start of the layer;
        None if there is no previous layer.
    last : bool
        True if the layer is the last one of the program.
    fuse_rate : int
        Number of cycles of FUSE per row.
    limit : float
        Cycles above which the simulation ends early; the total is then infinite, and the other figures are incomplete.
    """
    buffers: dict[str, dict[object, list[float]]] = {name: {} for name in pipeline.buffers}
    drained, stored = [0.0] * max(pipeline.sums, 1), [0.0] * max(pipeline.results, 1)
    issue = array = fuse = out = 0.0
    bus = early = -(before or 0.0)
    work = [0.0] * 5
    start = half = 0.0
    sizes: dict[str, float] = {}
    then = list(work)
    followed = 0
    turn = result = 0
    pending: deque[tuple[float, float]] = deque()
    arrivals: deque[float] = deque(maxlen=_LOAD_COMMANDS)
    count = max(_SIMULATED_TILES, 2 * pipeline.period)
    if pipeline.count <= max(count, MAX_SIMULATED_TILES):
        count = pipeline.count
    ends = (latency + _BEGIN) * (before is None) + _END * last
    limit += pipeline.saved - ends
    window = max(RATE_TILES // pipeline.period, 1) * pipeline.period
    tiles = iter(pipeline.tiles)
    for tile in islice(tiles, count):
        ready, used = 0.0, []
        for name, key, beats in tile.loads:
            buffer = buffers[name]
            entry = buffer.get(key)
            if entry is None:
                free = buffer.pop(next(iter(buffer)))[1] if len(buffer) >= pipeline.buffers[name] else 0.0
                issue += _COMMAND
                begin = early if name in _CONSTANT and not free else max(free, issue)
                if len(arrivals) == _LOAD_COMMANDS:
                    begin = max(begin, arrivals[0])
                taken = beats * beat
                bus = max(bus, begin) + taken
                while pending and pending[0][0] < bus:  # loads and stores share the bus
                    stored_at, storing = pending.popleft()
                    if stored_at + storing > bus - taken:
                        bus += _SHARED * min(storing, stored_at + storing - bus + taken)
                arrivals.append(bus + latency)
                entry = buffer[key] = [bus + latency + _LOAD_OVERHEAD, 0.0]
                sizes[name] = beats
                work[2] += taken
                work[4] += 1
            used.append(entry)
            if entry[0] > ready:
                ready = entry[0]
        issue += _COMMAND * tile.commands
        work[4] += tile.commands
        done = max(ready, issue)
        if tile.array:
            array = max(array, done, 0.0 if tile.separate else drained[turn]) + tile.array
            done = array + _FILL
            work[0] += tile.array
        if tile.fuse:
            fuse = max(fuse + tile.ahead * fuse_rate, done, stored[result]) + tile.fuse * fuse_rate
            work[1] += (tile.fuse + tile.ahead) * fuse_rate
            done = fuse + pipeline.result
            if not tile.separate:
                drained[turn] = done
                turn = (turn + 1) % len(drained)
        if tile.store:
            begin, taken = max(out, done), tile.store * beat
            pending.append((begin - latency, taken))
            out = begin + taken
            done = stored[result] = out + _STORE_RESPONSE
            result = (result + 1) % len(stored)
            work[3] += taken
        for entry in used:
            entry[1] = array if tile.array else fuse if tile.fuse else done
        if array > limit or fuse > limit or out > limit:
            return PipelineTiming(inf, start, 0.0, work[0], work[1], work[2], work[3], work[4], 0.0, 0.0)
        followed += 1
        if followed == 1:
            start = done
        if followed == count - window:
            half, then = max(array, fuse, out), list(work)
    end = end_followed = max(array, fuse, out)
    tail = end - array if work[0] else 0.0
    if pipeline.count > followed:  # extrapolate the last simulated tiles
        recent = [all_ - first for all_, first in zip(work, then, strict=True)]
        rest, last_load = _rest(pipeline, tiles, buffers, beat, fuse_rate, pipeline.count - followed)
        busy = max(recent[0], recent[1], recent[2] + recent[3])
        if busy > 0:
            end += (end - half) * max(rest[0], rest[1], rest[2] + rest[3]) / busy
        end = max(end, last_load + work[2] + work[3] + early)
        work = [all_ + more for all_, more in zip(work, rest, strict=True)]
    end -= pipeline.saved
    rows = sum(len(buffers[name]) * beats for name, beats in sizes.items() if name not in _SLOTS)
    rows += len(stored) * work[3] / max(beat * pipeline.count, 1.0)
    total = max(end, work[2] + work[3] + early, _ISSUE * work[4]) + ends
    array, fuse, load, store, commands = work
    return PipelineTiming(
        total, start, tail, array, fuse, load, store, commands, max(end_followed - bus, 0.0), rows
    )


def _rest(
    pipeline: TilePipeline,
    tiles: Iterator[PipelineTile],
    buffers: dict[str, dict[object, list[float]]],
    beat: float,
    fuse_rate: int,
    left: int,
) -> tuple[list[float], float]:
    """Return the work of the `left` tiles that are not simulated, and a lower bound on their time.

    The work consists of cycles of the units, and commands. The bound is the time of the bus until the last load, if
    all stores of earlier tiles precede it, and of the busiest unit from then on: during that time, nothing is left to
    load. It is 0 if not all tiles are counted.
    """
    work = [0.0] * 5
    then, at = list(work), 0.0
    for tile in islice(tiles, _COUNTED_TILES):
        for name, key, beats in tile.loads:
            buffer = buffers[name]
            if key not in buffer:
                if len(buffer) >= pipeline.buffers[name]:
                    buffer.pop(next(iter(buffer)))
                buffer[key] = []
                work[2] += beats * beat
                work[4] += 1
                if name not in _CONSTANT:
                    then, at = list(work), work[2] + work[3]
        work[0] += tile.array
        work[1] += (tile.fuse + tile.ahead) * fuse_rate
        work[3] += tile.store * beat
        work[4] += tile.commands
    if left > _COUNTED_TILES:
        return [each * left / _COUNTED_TILES for each in work], 0.0
    return work, at + max(all_ - first for all_, first in zip(work[:4], then[:4], strict=True))


TABLE_CYCLES = 32.0
#: Cycles of a pass in addition to its rows, because it needs the last results of the previous pass.
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
    """Return the tile pipeline of `total` rows in tiles of `rows` rows.

    `loads` returns the loads of a tile, given its first row and number of rows; `fuse` and `store` return the FUSE
    cycles and the STORE beats, given the number of rows.
    """

    def tiles() -> Iterator[PipelineTile]:
        for start in range(0, total, rows):
            count = min(rows, total - start)
            more: list[TileLoad] = [("t", number, TABLE_CYCLES) for number in range(tables)]
            out = store(count)
            yield PipelineTile((*loads(start, count), *more), 0.0, fuse(count), out, commands + (out > 0))

    buffers = {"x": s.x_buffers, "b": s.x_buffers, "t": max(tables, 1)}
    return TilePipeline(tiles(), ceil_div(total, rows), buffers, 1, s.y_buffers)


#: Cycles of a pass in addition to its rows if passes over different tiles alternate, so that no pass needs the results
#: of the pass before it.
STAGGERED_PASS_CYCLES = 12
#: Number of tiles whose statistics are in the accumulator at the same time if passes over different tiles alternate.
STATISTICS_BUFFERS = 2
#: Numbers of buffers for rows of the input. With three, a tile is loaded during the passes over the tile before.
_ROW_BUFFERS = (3, 2)


def row_buffers(s: LayerSchedule, tiles: int) -> int:
    """Return the number of buffers for rows of the input of a layer whose passes over different tiles alternate.

    The first pass over a tile precedes the last one over the tile before, so that two tiles are in use.
    """
    return max(s.x_buffers, min(tiles, 2))


def row_tilings(
    context: TilingContext, layer: Layer, passes: int, of_row: float, pass_cycles: float, acc_rows: int
) -> Tilings:
    """Yield the tilings of a layer with passes over whole rows, each with the most buffers of the input that fit.

    Parameters
    ----------
    context : TilingContext
        Memory and timing of the machine.
    layer : Layer
        Layer whose rows are pixels.
    passes : int
        Number of FUSE commands of a tile.
    of_row : float
        FUSE cycles of a row.
    pass_cycles : float
        Cycles of a command in addition to its rows.
    acc_rows : int
        Accumulator rows for a row.
    """
    x, n = layer.shapes[layer.x], context.config.n
    total, blocks = x.h * x.w, ceil_div(x.c, n)
    for rows in cuts(total):
        for x_buffers in _ROW_BUFFERS:
            used = rows * x.c * (x_buffers * (not context.x_on_chip) + 2 * (not context.y_on_chip)) + n
            if used <= context.free and rows * acc_rows <= context.acc_rows:
                yield (
                    total * of_row + ceil_div(total, rows) * passes * pass_cycles + rows * blocks,
                    LayerSchedule(rows=rows, x_buffers=x_buffers, on_chip=context.y_on_chip),
                )
                break


def row_tile_model(
    layer: Layer,
    s: LayerSchedule,
    context: LayerContext,
    passes: int,
    of_row: float,
    tables: int,
    pass_cycles: float = PASS_CYCLES,
) -> TilePipeline:
    """Return the tile model of a layer with `passes` passes over its input, which take `of_row` cycles per row, and
    `pass_cycles` each in addition.
    """
    n, x, y = context.config.n, layer.shapes[layer.x], layer.shapes[layer.y]
    of_x, of_y = (image.c * DTYPE_BYTES[image.dtype] / n for image in (x, y))
    return even_tiles(
        s,
        x.h * x.w,
        min(s.rows, x.h * x.w),
        lambda start, count: [] if context.x_on_chip else [("x", start, count * of_x)],
        lambda count: count * of_row + passes * pass_cycles,
        lambda count: 0.0 if context.y_on_chip else count * of_y,
        passes,
        tables,
    )
