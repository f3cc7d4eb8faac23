"""Moves of a few bytes of each pixel: MATRIX selects the bytes of each row of the result.

Such moves are concatenations, slices and pads of a few channels, space-to-depth, depth-to-space, and nearest-neighbor
resizing. The result is divided into groups of pixels, and each group into rows of N bytes. A row is the sum of the
products of rows of N bytes of the sources, which may start at any byte, and tiles of weights that are 1 where a byte of
the source is a byte of the result. The rows of all groups use the same tiles, so that MATRIX takes one cycle for each
window of N bytes of a source that a row needs, and FUSE writes the row in one cycle. Where nothing is selected, the sum
is 0, and FUSE writes the zero point, which the fill value of a pad is.

Sources and result may consist of several *streams*, such as the even and the odd rows of an image. Pixel i of each
stream of the result consists of bytes of pixel i of the streams of the sources.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from math import gcd, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, TensorLayout, TileStep
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers, pieces
from compiler.layers.permutation import Engine, UnitWork
from compiler.layers.strided_copy import Copy, CopyOperand, Walk, in_bytes
from compiler.layers.tile_pipeline import line_beats
from compiler.util.tiles import ceil_div
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, MATRIX_WORD
from hw.isa.enums import Dtype, Unit

#: Maximum number of rows of the result in a group of pixels.
_MAX_ROWS = 16
#: Maximum number of tiles of sums, of half a bank each, that a box fills.
_MAX_SUMS = 2
#: Maximum number of runs of bytes that FUSE copies, and of runs of a pixel of which some are copied.
_MAX_COPIED, _MAX_RUNS = 2, 8
#: Maximum number of copies of a layer, of selected bytes of a pixel of all streams, and of streams.
_MAX_PARTS, _MAX_BYTES, _MAX_STREAMS = 64, 1 << 12, 16
#: Maximum number of tiles of weights.
_MAX_TILES = 128
#: Ratio of the cycles of MATRIX to those of the bus from which FUSE copies runs.
_BALANCED = 1.1
#: Cycles until MATRIX can start, in addition to the load of the weights.
_START = 100
#: Cycles of the sequencer per command, and cycles of FUSE between two kinds of commands.
_COMMAND_CYCLES, _FUSE_COMMAND = 24, 12


@dataclass(frozen=True)
class PixelSource:
    """Stream of pixels from which bytes are selected.

    Parameters
    ----------
    name : str
        Name of the tensor.
    start : int
        Offset of the first byte that is selected from the first byte of the tensor.
    pitch : int
        Distance between pixels of a line in bytes.
    span : int
        Bytes of a pixel from the first to the last one that is selected.
    steps : tuple of int
        Distance between lines in bytes, for each loop of lines.
    """

    name: str
    start: int
    pitch: int
    span: int
    steps: tuple[int, ...] = ()

    def bytes_of(self, pixels: int) -> int:
        """Return the number of bytes from the first to the last selected byte of some pixels."""
        return (pixels - 1) * self.pitch + self.span


@dataclass(frozen=True)
class PixelResult:
    """Stream of pixels of the result.

    Parameters
    ----------
    starts : tuple of int
        Offsets of the first pixel in the result; several if the stream is repeated.
    picks : tuple of (int, int)
        For each byte of a pixel, the index of its source and the distance from the first selected byte of its pixel;
        index -1 for `fill`.
    """

    starts: tuple[int, ...]
    picks: tuple[tuple[int, int], ...]

    @property
    def runs(self) -> tuple["ByteRun", ...]:
        """Runs of bytes of a pixel that are adjacent in a source and in the result."""
        out = list[ByteRun]()
        for y, (source, x) in enumerate(self.picks):
            last = out[-1] if out else None
            if last and (source, x, y) == (last.source, last.x + last.count, last.y + last.count):
                out[-1] = replace(last, count=last.count + 1)
            elif source >= 0:
                out.append(ByteRun(source, x, y, 1))
        return tuple(out)


@dataclass(frozen=True)
class SelectedPixels:
    """Result whose pixels consist of bytes at the same places of the pixels of the sources.

    Parameters
    ----------
    lines : tuple of int
        Numbers of lines, for each loop of lines, the outermost first; without loops, there is one line.
    pixels : int
        Number of pixels of a line, which are contiguous in the result.
    sources : tuple of PixelSource
        Streams from which bytes are selected.
    results : tuple of PixelResult
        Streams of the result.
    steps : tuple of int
        Distance between lines of the result in bytes, for each loop of lines.
    fill : int
        Byte, 0..255, for the bytes that have no source.
    """

    lines: tuple[int, ...]
    pixels: int
    sources: tuple[PixelSource, ...]
    results: tuple[PixelResult, ...]
    steps: tuple[int, ...]
    fill: int

    @property
    def size(self) -> int:
        """Bytes of a pixel of the result."""
        return len(self.results[0].picks)

    @property
    def inner(self) -> int:
        """Number of lines of the innermost loop, which a box may contain."""
        return self.lines[-1] if self.lines else 1

    @property
    def outer(self) -> int:
        """Number of steps of the other loops of lines."""
        return prod(self.lines[:-1])


@dataclass(frozen=True)
class ByteRun:
    """Adjacent bytes of a pixel.

    Parameters
    ----------
    source : int
        Index of the source.
    x, y : int
        First byte in the source's pixel, from the first selected one, and in the pixel of the result.
    count : int
        Number of bytes.
    """

    source: int
    x: int
    y: int
    count: int


def selected_pixels(
    copies: Sequence[Copy], operands: Mapping[str, CopyOperand], y: CopyOperand, n: int
) -> Iterator[SelectedPixels]:
    """Yield descriptions of copies that together write all bytes of small pixels, one for each dimension of pixels.

    Parameters
    ----------
    copies : sequence of Copy
        All copies of a layer.
    operands : dict
        Layouts of the sources by name.
    y : CopyOperand
        Layout of the result.
    n : int
        Number of lanes.
    """
    fills = {copy.fill for copy in copies if copy.source is None}
    if len(fills) > 1 or len(copies) > _MAX_PARTS or any(copy.rescale for copy in copies):
        return
    if y.gaps or any(operand.size != y.size for operand in operands.values()):
        return
    walks = list[Walk]()
    for copy in copies:
        walk = in_bytes(copy.walk.ordered(), y if copy.source is None else operands[copy.source], y)
        walks.append(Walk((*walk.dims, (y.size, 1, 1)), walk.x, walk.y).ordered())
    names = [copy.source for copy in copies]
    fill = next((copy.fill for copy in copies if copy.source is None), 0)
    for found in _all_picked(tuple(names), tuple(walks), n):
        yield replace(found, fill=fill)


@lru_cache(maxsize=64)  # the tilings of a layer differ in the size of boxes only
def _all_picked(names: tuple[str | None, ...], walks: tuple[Walk, ...], n: int) -> tuple[SelectedPixels, ...]:
    """Return the pixels of walks along each of their loops for which they can be selected."""
    loops = _loops(walks)
    found = (
        _picked(names, walks, loops, pixels)
        for pixels in loops
        if pixels.y <= _MAX_ROWS * n and all(x > 0 for x, name in zip(pixels.x, names, strict=True) if name)
    )
    return tuple(each for each in found if each is not None)


class _Loop(NamedTuple):
    """Loop of several walks: number of steps, their distance in the destination, and in the source of each walk."""

    steps: int
    y: int
    x: tuple[int, ...]


def _shared(walks: Sequence[Walk]) -> set[tuple[int, int]]:
    """Return the number of steps and the distance in the destination of the dimensions that all walks have."""
    return set.intersection(*({(count, y) for count, _, y in walk.dims} for walk in walks))


def _loops(walks: Sequence[Walk]) -> list[_Loop]:
    """Return the loops that all walks have, the outermost first."""
    out = list[_Loop]()
    for count, y in sorted(_shared(walks), key=lambda each: -each[1]):
        x = tuple(next(x for c, x, b in walk.dims if (c, b) == (count, y)) for walk in walks)
        if out and (out[-1].y, out[-1].x) == (count * y, tuple(count * each for each in x)):
            out[-1] = _Loop(out[-1].steps * count, y, x)
        else:
            out.append(_Loop(count, y, x))
    return out


def _picked(
    names: Sequence[str | None], walks: Sequence[Walk], loops: Sequence[_Loop], pixels: _Loop
) -> SelectedPixels | None:
    """Return the pixels of walks along one of their loops; None unless lines of pixels are contiguous in the result.

    Loops with a smaller distance than that of the pixels, in a source or in the result, are within the streams.
    """

    def within(loop: _Loop) -> bool:
        pairs = zip(loop.x, pixels.x, names, strict=True)
        return loop.y < pixels.y or any(x < pitch for x, pitch, name in pairs if name)

    apart = {(loop.steps, loop.y) for loop in loops if within(loop)}
    lines = [loop for loop in loops if loop is not pixels and (loop.steps, loop.y) not in apart]
    found, shared = list[NDArray[np.int64]](), _shared(walks)
    for index, walk in enumerate(walks):
        own = [dim for dim in walk.dims if (dim[0], dim[2]) not in shared]
        own += [(loop.steps, loop.x[index], loop.y) for loop in loops if (loop.steps, loop.y) in apart]
        if sum(map(len, found)) + prod(count for count, _, _ in own) > _MAX_BYTES:
            return None
        places = np.array([[walk.y, walk.x, index]])
        for count, x, y in own:
            places = (places[:, None, :] + np.arange(count)[:, None] * np.array([y, x, 0])).reshape(-1, 3)
        found.append(places)
    bytes_ = np.concatenate(found)
    bytes_ = bytes_[np.argsort(bytes_[:, 0])]
    if len(bytes_) % pixels.y:
        return None
    streams = bytes_.reshape(-1, pixels.y, 3)
    if not np.array_equal(streams[:, :, 0], streams[:, :1, 0] + np.arange(pixels.y)):
        return None
    keys = [(name, pixels.x[i], tuple(loop.x[i] for loop in lines)) for i, name in enumerate(names)]
    sources, places_of = _sources(keys, bytes_[:, 1:])
    results: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for stream in streams.tolist():
        picks = tuple((-1, 0) if names[i] is None else places_of[keys[i], x] for _, x, i in stream)
        results.setdefault(picks, []).append(stream[0][0])
    if max(len(sources), len(results)) > _MAX_STREAMS or not sources:
        return None
    return SelectedPixels(
        tuple(loop.steps for loop in lines),
        pixels.steps,
        tuple(sources),
        tuple(PixelResult(tuple(starts), picks) for picks, starts in results.items()),
        tuple(loop.y for loop in lines),
        0,
    )


_Key = tuple[str | None, int, tuple[int, ...]]


def _sources(
    keys: Sequence[_Key], bytes_: NDArray[np.int64]
) -> tuple[list[PixelSource], dict[tuple[_Key, int], tuple[int, int]]]:
    """Return the streams of the sources, and for each byte of a source its stream and its place in a pixel.

    Parameters
    ----------
    keys : sequence of (str, int, tuple of int)
        For each walk, the name of its source, and the distances between pixels and between lines.
    bytes_ : (number, 2) array
        Offset in the source, and index of the walk, of each byte.
    """
    sources, places = list[PixelSource](), {}
    for key in dict.fromkeys(keys):
        name, pitch, steps = key
        if name is None:
            continue
        mine = np.isin(bytes_[:, 1], [i for i, each in enumerate(keys) if each == key])
        start = None
        for x in np.unique(bytes_[mine, 0]).tolist():
            if start is None or x >= start + pitch:
                start = x
                sources.append(PixelSource(name, start, pitch, 1, steps))
            sources[-1] = replace(sources[-1], span=x - start + 1)
            places[key, x] = len(sources) - 1, x - start
    return sources, places


@dataclass(frozen=True)
class Window:
    """Bytes of a source that one product adds to a row of the result.

    Parameters
    ----------
    source : int
        Index of the source.
    low, high : int
        Range of the possible first bytes of the window, from the first byte of the group of pixels.
    places : tuple of (int, int)
        Selected bytes: distance from the first byte of the group, and lane of the result.
    """

    source: int
    low: int
    high: int
    places: tuple[tuple[int, int], ...]


def _windows(
    sources: Sequence[PixelSource],
    picks: Sequence[tuple[int, int]],
    copied: Sequence[ByteRun],
    pixels: int,
    n: int,
) -> list[list[Window]]:
    """Return the windows of each row of a group of pixels, without the bytes of the runs that FUSE copies.

    Rows without a source have one window without bytes.
    """
    size = len(picks)
    apart = {byte for run in copied for byte in range(run.y, run.y + run.count)}
    rows = list[list[Window]]()
    for first in range(0, pixels * size, n):
        places: list[list[tuple[int, int]]] = [[] for _ in sources]
        for lane in range(min(n, pixels * size - first)):
            pixel, byte = divmod(first + lane, size)
            index, x = picks[byte]
            if index >= 0 and byte not in apart:
                places[index].append((pixel * sources[index].pitch + x, lane))
        row = list[Window]()
        for index, left in enumerate(places):
            left.sort()
            while left:
                taken = [place for place in left if place[0] < left[0][0] + n]
                row.append(Window(index, max(taken[-1][0] - n + 1, 0), taken[0][0], tuple(taken)))
                left = left[len(taken) :]
        rows.append(row or [Window(0, 0, 0, ())])
    return rows


@dataclass(frozen=True)
class SelectionPass:
    """MATRIX command that adds one window to each of several consecutive rows of all groups.

    Parameters
    ----------
    windows : tuple of Window
        One window for each row, all of the same source.
    row : int
        First row of a group.
    accumulate : bool
        True if sums are added to those of earlier commands.
    start, step : int
        First byte of the first window, and distance between windows.
    """

    windows: tuple[Window, ...]
    row: int
    accumulate: bool
    start: int
    step: int

    @property
    def source(self) -> int:
        """Index of the source."""
        return self.windows[0].source

    def weights(self, n: int) -> NDArray[np.int8]:
        """Return the tiles of weights, of shape (windows, n, n)."""
        out = np.zeros((len(self.windows), n, n), np.int8)
        for number, window in enumerate(self.windows):
            for x, lane in window.places:
                out[number, x - self.start - number * self.step, lane] = 1
        return out


@lru_cache(maxsize=4096)
def _passes(
    what: SelectedPixels, copied: tuple[ByteRun, ...], pixels: int, n: int
) -> tuple[tuple[SelectionPass, ...], ...]:
    """Return, for each stream of the result, the passes over all rows of a group of pixels.

    The bytes of the runs that FUSE copies are left out.
    """
    return tuple(
        tuple(_joined(_windows(what.sources, result.picks, copied, pixels, n))) for result in what.results
    )


def _joined(rows: Sequence[Sequence[Window]]) -> Iterator[SelectionPass]:
    """Yield the passes over the windows of all rows; consecutive rows share one if their windows are equidistant."""
    for level in range(max(map(len, rows))):
        at = 0
        while at < len(rows):
            if len(rows[at]) <= level:
                at += 1
                continue
            windows = [rows[at][level]]
            start, step = windows[0].low, 0
            for row in rows[at + 1 :]:
                if len(row) <= level or row[level].source != windows[0].source:
                    break
                line = _line([*windows, row[level]])
                if line is None:
                    break
                windows.append(row[level])
                start, step = line
            yield SelectionPass(tuple(windows), at, level > 0, start, step)
            at += len(windows)


def _line(windows: Sequence[Window]) -> tuple[int, int] | None:
    """Return the first byte of equidistant windows, and their distance; None if no distance is possible."""
    last = len(windows) - 1
    steepest = (windows[-1].high - windows[0].low) // last
    for step in range(ceil_div(windows[-1].low - windows[0].high, last), steepest + 1):
        low = max(window.low - number * step for number, window in enumerate(windows))
        high = min(window.high - number * step for number, window in enumerate(windows))
        if low <= high:
            return low, step
    return None


@dataclass(frozen=True)
class SelectionPlan:
    """Division of a result into boxes of groups of pixels, and the passes of MATRIX for each box.

    Parameters
    ----------
    what : SelectedPixels
        Sources of the bytes.
    group : int
        Pixels of a group.
    lines, pixels : int
        Lines of a box, and pixels of each of its lines; boxes at the ends may have fewer. A box of several lines
        contains whole lines.
    passes : tuple of tuples of SelectionPass
        Commands of MATRIX for a box, for each stream of the result.
    copied : tuple of ByteRun
        Runs that FUSE copies, after it has written the sums; none if there are several streams.
    works : tuple of UnitWork
        Estimated work of each box of one step of the outer loops, in order.
    cycles : float
        Estimated cycles of all boxes.
    """

    what: SelectedPixels
    group: int
    lines: int
    pixels: int
    passes: tuple[tuple[SelectionPass, ...], ...]
    copied: tuple[ByteRun, ...]
    works: tuple[UnitWork, ...]
    cycles: float

    @property
    def boxes(self) -> int:
        """Number of boxes."""
        return self.what.outer * len(self.works)

    @property
    def work(self) -> UnitWork:
        """Estimated work of the first box."""
        return self.works[0]

    @property
    def groups(self) -> int:
        """Number of groups of a box."""
        return ceil_div(self.lines * self.pixels, self.group)

    def sums(self, n: int) -> int:
        """Return the number of rows of sums of a stream of a box."""
        return self.groups * self.rows(n)

    def rows(self, n: int) -> int:
        """Return the number of rows of a group."""
        return ceil_div(self.group * self.what.size, n)

    @property
    def array_bound(self) -> bool:
        """True if MATRIX is busier than the bus."""
        return self.work.array > _BALANCED * (self.work.load + self.work.store)

    @property
    def tiles(self) -> int:
        """Number of tiles of weights."""
        return sum(len(each.windows) for passes in self.passes for each in passes)

    def loaded(self, n: int) -> int:
        """Return the bytes of a loaded box, which contains all sources."""
        return sum(self.stream(source, n) for source in self.what.sources)

    def stream(self, source: PixelSource, n: int) -> int:
        """Return the bytes of a stream of a loaded box."""
        return source.bytes_of(self.groups * self.group) + n

    def selected(self, n: int) -> int:
        """Return the bytes of a stream of a box of the result."""
        return self.groups * self.group * self.what.size + n


@lru_cache(maxsize=4096)
def selection_plan(what: SelectedPixels, engine: Engine, most: int) -> SelectionPlan | None:
    """Return the plan with the fewest estimated cycles; None if no box fits.

    Parameters
    ----------
    what : SelectedPixels
        Sources of the bytes.
    engine : Engine
        Speed of the machine, and the rows of a tile of sums.
    most : int
        Maximum number of bytes of a box.
    """
    n = engine.n
    best: SelectionPlan | None = None
    runs = what.results[0].runs if len(what.results) == 1 else ()
    total = what.inner * what.pixels
    groups = {n * rows // what.size for rows in range(1, _MAX_ROWS + 1)} & set(range(1, total + 1))
    for copied in (each for some in range(_MAX_COPIED + 1) for each in combinations(runs, some)):
        if copied and (len(runs) > _MAX_RUNS or best is None or not best.array_bound):
            break
        for group in sorted(groups):
            passes = _passes(what, copied, group, n)
            if sum(len(each.windows) for stream in passes for each in stream) > _MAX_TILES:
                continue
            fits = _MAX_SUMS * engine.rows // ceil_div(group * what.size, n)
            for lines, pixels in _box_sizes(what, group, fits):
                if _box_bytes(what, group, lines, pixels, n) > most:
                    continue
                plan = _plan(what, group, lines, pixels, passes, copied, engine)
                if best is None or plan.cycles < best.cycles:
                    best = plan
    return best


def _box_sizes(what: SelectedPixels, group: int, fits: int) -> Iterator[tuple[int, int]]:
    """Yield the boxes that are tried, of at most `fits` groups: lines, and pixels of a line."""
    numbers = sorted({fits * parts // 16 for parts in (1, 2, 3, 4, 6, 8, 12, 16)} - {0})
    for number in numbers:
        if number * group < what.pixels or what.inner == 1:
            yield 1, number * group
    for lines in sorted({min(number * group // what.pixels, what.inner) for number in numbers} - {0, 1}):
        yield ceil_div(what.inner, ceil_div(what.inner, lines)), what.pixels
    if what.inner > 1 and what.pixels <= fits * group:
        yield 1, what.pixels


def _box_bytes(what: SelectedPixels, group: int, lines: int, pixels: int, n: int) -> int:
    """Return the bytes of a loaded box or of a stream of a box of the result, whichever is larger."""
    padded = ceil_div(lines * pixels, group) * group
    return max(sum(source.bytes_of(padded) + n for source in what.sources), padded * what.size + n)


def _plan(
    what: SelectedPixels,
    group: int,
    lines: int,
    pixels: int,
    passes: tuple[tuple[SelectionPass, ...], ...],
    copied: tuple[ByteRun, ...],
    engine: Engine,
) -> SelectionPlan:
    n, rows = engine.n, ceil_div(group * what.size, engine.n)
    tiles = [sum(len(each.windows) for each in stream) for stream in passes]
    stored = sum(len(result.starts) for result in what.results)
    commands = len(what.sources) + sum(len(stream) + 1 for stream in passes) + len(copied) + stored
    copies = sum(ceil_div(run.count, n) for run in copied)

    def work(lines: int, pixels: int) -> UnitWork:
        parts = ceil_div(lines * pixels, group)
        fuse = (parts * rows * len(passes) + lines * pixels * copies) * engine.fuse_rate
        if copied:
            fuse += (1 + len(copied)) * _FUSE_COMMAND
        load = sum(
            _box_beats(lines, pixels, x.bytes_of(pixels), x.pitch, x.steps, what, n) for x in what.sources
        )
        store = stored * _box_beats(lines, pixels, pixels * what.size, what.size, what.steps, what, n)
        array = sum(each * max(parts, n) for each in tiles)
        return UnitWork(load, store, array, fuse, commands)

    works, total = tuple[UnitWork, ...](), UnitWork()
    for bands, some in _equal_pieces(what.inner, lines):
        band = tuple[UnitWork, ...]()
        for count, part in _equal_pieces(what.pixels, pixels):
            found = work(some, part)
            band += count * (found,)
            total = total.plus(found.times(what.outer * bands * count))
        works += bands * band
    busiest = max(total.load + total.store, total.array, total.fuse, total.commands * _COMMAND_CYCLES)
    first, last = works[0], works[-1]
    cycles = busiest + first.load + first.array + last.fuse + last.store + sum(tiles) * n + _START
    return SelectionPlan(what, group, lines, pixels, passes, copied, works, cycles)


def _equal_pieces(total: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the number and the length of the pieces of equal length into which `pieces` splits elements, in order."""
    whole, rest = divmod(total, size)
    if whole:
        yield whole, size
    if rest:
        yield 1, rest


def _box_beats(
    lines: int, pixels: int, length: int, pitch: int, steps: tuple[int, ...], what: SelectedPixels, n: int
) -> float:
    """Return the mean beats of the lines of a stream of a box; contiguous lines are one."""
    if lines > 1 and steps[-1] == what.pixels * pitch:
        return _line_beats((lines - 1) * steps[-1] + length, steps[-1], n)
    between = pixels * pitch if not steps else steps[-1]
    return lines * _line_beats(length, gcd(between, pixels * pitch), n)


def _line_beats(length: int, step: int, n: int) -> float:
    """Return the mean beats of a line, if the distance between lines is a multiple of `step`."""
    return line_beats(2, length, [step], n) / 2


class SelectionSteps:
    """Generator of the steps of a selection of bytes.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    name : str
        Name of the layer, which is the prefix of the buffer names.
    plan : SelectionPlan
        Boxes and passes.
    """

    def __init__(self, context: CodegenContext, name: str, plan: SelectionPlan):
        self.context, self.plan, self.n = context, plan, context.config.n
        n, s = self.n, context.schedule
        self.x = BufferRotation(BufferMemory.SP, f"{name}.box", plan.loaded(n), s.x_buffers)
        self.y = BufferRotation(BufferMemory.SP, f"{name}.selected", plan.selected(n), s.y_buffers)
        self.acc = BufferRotation(BufferMemory.ACC, f"{name}.acc", plan.sums(n), s.acc_buffers)
        tiles = [each.weights(n) for passes in plan.passes for each in passes]
        weights = context.constant(f"{name}.tiles", np.concatenate(tiles))
        size = plan.tiles * n * n
        self.weights = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.tiles", size),
            lambda _, address: [context.command(Unit.LOAD, dram=BufferRef(weights), dst=address, len=size)],
        )

    def steps(self, layouts: Mapping[str, TensorLayout], y: TensorLayout) -> Iterator[TileStep]:
        """Yield the steps, one for each stream of each box.

        Parameters
        ----------
        layouts : dict
            Layouts of the sources by name.
        y : TensorLayout
            Layout of the result.
        """
        what, plan = self.plan.what, self.plan
        for at in product(*(range(count) for count in what.lines[:-1])):
            for line, lines in pieces(what.inner, plan.lines):
                for first, pixels in pieces(what.pixels, plan.pixels):
                    yield from self._box(layouts, y, (*at, line), lines, first, pixels)

    def _box(
        self,
        layouts: Mapping[str, TensorLayout],
        y: TensorLayout,
        at: tuple[int, ...],
        lines: int,
        first: int,
        pixels: int,
    ) -> Iterator[TileStep]:
        """Yield the steps of a box of some pixels, from `first` on, of lines of which the first one has index `at`."""
        what, plan, step = self.plan.what, self.plan, TileStep()
        sources, box, tile = list[BufferRef](), self.x.next(), 0
        weights = self.weights.get(0, step)
        for source in what.sources:
            x = source.start + first * source.pitch + _offset(at, source.steps)
            where = layouts[source.name].address().plus(x)
            length, between = source.bytes_of(pixels), what.pixels * source.pitch
            fields = self._lines(lines, length, between, source.steps, "dst")
            step.loads.append(self.context.command(Unit.LOAD, dram=where, dst=box, **fields))
            sources.append(box)
            box = box.plus(plan.stream(source, self.n))
        groups = ceil_div(lines * pixels, plan.group)
        for result, passes in zip(what.results, plan.passes, strict=True):
            acc, made = self.acc.next(), self.y.next()
            tile = self._sums(step, passes, groups, sources, weights, tile, acc)
            self._drain(step, groups, acc, made)
            for run in plan.copied:
                self._copy(step, lines * pixels, run, sources[run.source], made)
            fields = self._lines(lines, pixels * what.size, what.pixels * what.size, what.steps, "src")
            for start in result.starts:
                out = y.address().plus(start + first * what.size + _offset(at, what.steps))
                step.stores.append(self.context.command(Unit.STORE, src=made, dram=out, **fields))
            yield step
            step = TileStep()

    def _lines(
        self, lines: int, length: int, between: int, steps: tuple[int, ...], place: str
    ) -> dict[str, int]:
        """Return the fields of LOAD or STORE for lines at a distance of `between` bytes in the scratchpad."""
        if lines == 1:
            return {"len": length}
        if steps[-1] == between:
            return {"len": (lines - 1) * between + length}
        return {"len": length, "y_count": lines, "dram_y": steps[-1], f"{place}_y": between}

    def _sums(
        self,
        step: TileStep,
        passes: Sequence[SelectionPass],
        groups: int,
        sources: Sequence[BufferRef],
        weights: BufferRef,
        tile: int,
        acc: BufferRef,
    ) -> int:
        """Add the passes over a box of some groups; return the number of the next tile of weights."""
        n, plan = self.n, self.plan
        rows = plan.rows(n)
        for each in passes:
            step.matrix.append(
                self.context.command(
                    Unit.MATRIX,
                    word=MATRIX_WORD.pack(accumulate=int(each.accumulate), a_unsigned=1),
                    a_base=sources[each.source].plus(each.start),
                    a_zp=plan.what.fill,
                    a_v=plan.group * plan.what.sources[each.source].pitch,
                    a_oc=each.step,
                    x_count=groups,
                    oc_count=len(each.windows),
                    w_base=weights.plus(tile * n * n),
                    w_row=n,
                    w_oc=n * n,
                    acc_base=acc.plus(each.row),
                    acc_x=rows,
                    acc_oc=1,
                )
            )
            tile += len(each.windows)
        return tile

    def _drain(self, step: TileStep, groups: int, acc: BufferRef, to: BufferRef) -> None:
        """Add the FUSE command that writes the rows of some groups."""
        n, plan = self.n, self.plan
        rows, size = plan.rows(n), plan.group * plan.what.size
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                stage=FUSE_STAGE.pack(d_dst=1, d_dtype=Dtype.U8, tail_dim=FUSE_DIMS.index("x")),
                zp=plan.what.fill,
                a_base=acc,
                a_v=1,
                a_u=rows,
                x_count=rows,
                y_count=groups,
                d_base=to,
                d_x=n,
                d_y=size,
                lanes_tail=size - (rows - 1) * n,
            )
        )

    def _copy(self, step: TileStep, pixels: int, run: ByteRun, source: BufferRef, to: BufferRef) -> None:
        """Add the FUSE command that copies a run of bytes of some pixels."""
        n, what = self.n, self.plan.what
        lines = ceil_div(run.count, n)
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                src=FUSE_SRC.pack(a_src=1, a_dtype=Dtype.U8),
                stage=FUSE_STAGE.pack(d_dst=1, d_dtype=Dtype.U8, tail_dim=FUSE_DIMS.index("x")),
                a_base=source.plus(run.x),
                a_v=n,
                a_u=what.sources[run.source].pitch,
                x_count=lines,
                y_count=pixels,
                d_base=to.plus(run.y),
                d_x=n,
                d_y=what.size,
                lanes_tail=run.count - (lines - 1) * n,
            )
        )


def _offset(at: tuple[int, ...], steps: tuple[int, ...]) -> int:
    """Return the offset of a line in bytes."""
    return sum(index * step for index, step in zip(at, steps, strict=False))
