"""Concatenations, slices and pads of a few channels: MATRIX selects the bytes of each row of the result.

The result is divided into groups of pixels, and each group into rows of N bytes. A row is the sum of the products of
rows of N bytes of the sources, which may start at any byte, and tiles of weights that are 1 where a byte of the source
is a byte of the result. The rows of all groups use the same tiles, so that MATRIX takes one cycle for each window of N
bytes of a source that a row needs, and FUSE writes the row in one cycle. Where nothing is selected, the sum is 0, and
FUSE writes the zero point, which the fill value of a pad is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

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
#: Ratio of the cycles of MATRIX to those of the bus from which FUSE copies runs.
_BALANCED = 1.1
#: Cycles until MATRIX can start, in addition to the load of the weights.
_START = 100
#: Cycles of the sequencer per command, and cycles of FUSE between two kinds of commands.
_COMMAND_CYCLES, _FUSE_COMMAND = 24, 12


@dataclass(frozen=True)
class PixelSource:
    """Tensor from which bytes are selected.

    Parameters
    ----------
    name : str
        Name of the tensor.
    start : int
        Offset of the first byte that is selected from the first byte of the tensor.
    pitch : int
        Distance between pixels in bytes.
    span : int
        Bytes of a pixel from the first to the last one that is selected.
    """

    name: str
    start: int
    pitch: int
    span: int

    def bytes_of(self, pixels: int) -> int:
        """Return the number of bytes from the first to the last selected byte of some pixels."""
        return (pixels - 1) * self.pitch + self.span


@dataclass(frozen=True)
class SelectedPixels:
    """Result whose pixels consist of bytes at the same places of the pixels of the sources.

    Parameters
    ----------
    pixels : int
        Number of pixels, which are contiguous.
    sources : tuple of PixelSource
        Tensors from which bytes are selected.
    picks : tuple of (int, int)
        For each byte of a pixel, the index of its source and the distance from the first selected byte of its pixel;
        index -1 for `fill`.
    fill : int
        Byte, 0..255, for the bytes that have no source.
    """

    pixels: int
    sources: tuple[PixelSource, ...]
    picks: tuple[tuple[int, int], ...]
    fill: int

    @property
    def size(self) -> int:
        """Bytes of a pixel of the result."""
        return len(self.picks)

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
) -> SelectedPixels | None:
    """Return the description of copies that together write all bytes of contiguous, small pixels; None for others.

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
    if len(fills) > 1 or any(copy.rescale for copy in copies):
        return None
    if y.gaps or any(operand.size != y.size for operand in operands.values()):
        return None
    walks = list[Walk]()
    for copy in copies:
        walk = in_bytes(copy.walk.ordered(), y if copy.source is None else operands[copy.source], y)
        walks.append(Walk((*walk.dims, (y.size, 1, 1)), walk.x, walk.y).merged())
    outer = {(walk.dims[0][0], walk.dims[0][2]) if walk.dims else (1, 1) for walk in walks}
    if len(outer) > 1:
        return None
    ((pixels, size),) = outer
    if pixels == 1 or size > _MAX_ROWS * n or sum(walk.count for walk in walks) != pixels * size:
        return None
    ends = [walk.y + sum((count - 1) * step for count, _, step in walk.dims[1:]) for walk in walks]
    return _picked(copies, walks, pixels, size) if max(ends) < size else None


def _picked(copies: Sequence[Copy], walks: Sequence[Walk], pixels: int, size: int) -> SelectedPixels | None:
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for copy, walk in zip(copies, walks, strict=True):
        if copy.source is None:
            continue
        places = np.array([[walk.x, walk.y]])
        for number, x, y in walk.dims[1:]:
            places = (places[:, None, :] + np.arange(number)[:, None] * np.array([x, y])).reshape(-1, 2)
        pitch = walk.dims[0][1]
        if pitch <= 0:
            return None
        found.setdefault((copy.source, pitch), []).extend((x, y) for x, y in places.tolist())
    if not found:
        return None
    picks, sources = [(-1, 0)] * size, list[PixelSource]()
    for index, ((name, pitch), places) in enumerate(found.items()):
        start = min(x for x, _ in places)
        span = max(x for x, _ in places) - start + 1
        sources.append(PixelSource(name, start, pitch, span))
        for x, y in places:
            picks[y] = index, x - start
    fill = next((copy.fill for copy in copies if copy.source is None), 0)
    return SelectedPixels(pixels, tuple(sources), tuple(picks), fill)


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


def _windows(what: SelectedPixels, copied: Sequence[ByteRun], pixels: int, n: int) -> list[list[Window]]:
    """Return the windows of each row of a group of pixels, without the bytes of the runs that FUSE copies.

    Rows without a source have one window without bytes.
    """
    apart = {byte for run in copied for byte in range(run.y, run.y + run.count)}
    rows = list[list[Window]]()
    for first in range(0, pixels * what.size, n):
        places: list[list[tuple[int, int]]] = [[] for _ in what.sources]
        for lane in range(min(n, pixels * what.size - first)):
            pixel, byte = divmod(first + lane, what.size)
            index, x = what.picks[byte]
            if index >= 0 and byte not in apart:
                places[index].append((pixel * what.sources[index].pitch + x, lane))
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
) -> tuple[SelectionPass, ...]:
    """Return the passes over all rows of a group of pixels, without the bytes of the runs that FUSE copies."""
    return tuple(_joined(_windows(what, copied, pixels, n)))


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
    groups : int
        Groups of a box, except of the last one, which may have fewer.
    passes : tuple of SelectionPass
        Commands of MATRIX for a box.
    copied : tuple of ByteRun
        Runs that FUSE copies, after it has written the sums.
    work, last : UnitWork
        Estimated work of a box, and of the last one.
    cycles : float
        Estimated cycles of all boxes.
    """

    what: SelectedPixels
    group: int
    groups: int
    passes: tuple[SelectionPass, ...]
    copied: tuple[ByteRun, ...]
    work: UnitWork
    last: UnitWork
    cycles: float

    @property
    def pixels(self) -> int:
        """Pixels of a box."""
        return self.group * self.groups

    @property
    def boxes(self) -> int:
        """Number of boxes."""
        return ceil_div(self.what.pixels, self.pixels)

    def sums(self, n: int) -> int:
        """Return the number of rows of sums of a box."""
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
        return sum(len(each.windows) for each in self.passes)

    def loaded(self, n: int) -> int:
        """Return the bytes of a loaded box, which contains all sources."""
        return sum(x.bytes_of(self.pixels) + n for x in self.what.sources)

    def selected(self, n: int) -> int:
        """Return the bytes of a box of the result."""
        return self.pixels * self.what.size + n


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
    runs = what.runs
    groups = {n * rows // what.size for rows in range(1, _MAX_ROWS + 1)} & set(range(1, what.pixels + 1))
    for copied in (each for some in range(_MAX_COPIED + 1) for each in combinations(runs, some)):
        if copied and (len(runs) > _MAX_RUNS or best is None or not best.array_bound):
            break
        for group in sorted(groups):
            passes = _passes(what, copied, group, n)
            fits = _MAX_SUMS * engine.rows // ceil_div(group * what.size, n)
            for number in sorted({fits * parts // 16 for parts in (1, 2, 3, 4, 6, 8, 12, 16)} - {0}):
                plan = _plan(what, group, number, passes, copied, engine)
                if max(plan.loaded(n), plan.selected(n)) <= most and (
                    best is None or plan.cycles < best.cycles
                ):
                    best = plan
    return best


def _plan(
    what: SelectedPixels,
    group: int,
    groups: int,
    passes: tuple[SelectionPass, ...],
    copied: tuple[ByteRun, ...],
    engine: Engine,
) -> SelectionPlan:
    n, rows = engine.n, ceil_div(group * what.size, engine.n)
    tiles = sum(len(each.windows) for each in passes)
    commands = len(what.sources) + len(passes) + len(copied) + 2
    copies = sum(ceil_div(run.count, n) for run in copied)
    most = group * groups

    def work(pixels: int) -> UnitWork:
        parts = ceil_div(pixels, group)
        fuse = (parts * rows + pixels * copies) * engine.fuse_rate
        if copied:
            fuse += (1 + len(copied)) * _FUSE_COMMAND
        load = sum(_line_beats(x.bytes_of(pixels), most * x.pitch, n) for x in what.sources)
        store = _line_beats(pixels * what.size, most * what.size, n)
        return UnitWork(load, store, tiles * max(parts, n), fuse, commands)

    boxes = ceil_div(what.pixels, most)
    first, last = work(min(most, what.pixels)), work(what.pixels - (boxes - 1) * most)
    total = UnitWork(*(a * (boxes - 1) + b for a, b in zip(first.parts, last.parts, strict=True)))
    busiest = max(total.load + total.store, total.array, total.fuse, total.commands * _COMMAND_CYCLES)
    cycles = busiest + first.load + first.array + last.fuse + last.store + tiles * n + _START
    return SelectionPlan(what, group, groups, passes, copied, first, last, cycles)


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
        weights = context.constant(f"{name}.tiles", np.concatenate([each.weights(n) for each in plan.passes]))
        size = plan.tiles * n * n
        self.weights = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.tiles", size),
            lambda _, address: [context.command(Unit.LOAD, dram=BufferRef(weights), dst=address, len=size)],
        )

    def steps(self, layouts: Mapping[str, TensorLayout], y: TensorLayout) -> Iterator[TileStep]:
        """Yield the steps, one for each box.

        Parameters
        ----------
        layouts : dict
            Layouts of the sources by name.
        y : TensorLayout
            Layout of the result.
        """
        what, plan = self.plan.what, self.plan
        for first, pixels in pieces(what.pixels, plan.pixels):
            step, sources = TileStep(), list[BufferRef]()
            weights, box = self.weights.get(0, step), self.x.next()
            for source in what.sources:
                step.loads.append(
                    self.context.command(
                        Unit.LOAD,
                        dram=layouts[source.name].address().plus(source.start + first * source.pitch),
                        dst=box,
                        len=source.bytes_of(pixels),
                    )
                )
                sources.append(box)
                box = box.plus(source.bytes_of(plan.pixels) + self.n)
            acc, made = self.acc.next(), self.y.next()
            self._sums(step, ceil_div(pixels, plan.group), sources, weights, acc)
            self._drain(step, ceil_div(pixels, plan.group), acc, made)
            for run in plan.copied:
                self._copy(step, pixels, run, sources[run.source], made)
            out = y.address().plus(first * what.size)
            step.stores.append(self.context.command(Unit.STORE, src=made, dram=out, len=pixels * what.size))
            yield step

    def _sums(
        self, step: TileStep, groups: int, sources: Sequence[BufferRef], weights: BufferRef, acc: BufferRef
    ) -> None:
        """Add the passes over a box of some groups."""
        n, plan, tile = self.n, self.plan, 0
        rows = plan.rows(n)
        for each in plan.passes:
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
