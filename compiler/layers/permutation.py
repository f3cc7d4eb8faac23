"""Moves in boxes: long lines from and to DRAM, and a permutation of the bytes of each box on the chip.

A box is a part of a copy that fits the scratchpad. Its elements are loaded in the order of the source, permuted, and
stored in the order of the destination, so that both transfers consist of long lines.

MATRIX transposes tiles of N x N bytes: N lines of the box are the columns of a tile of weights (w_transpose), and rows
of the identity matrix, which are the activations, select the rows of the transposed tile. FUSE writes these rows
anywhere. If the bytes that are adjacent in the destination are not the columns of such tiles, two transpositions are
needed: the first makes elements along another dimension, the pivot, adjacent, and the second makes the elements of the
destination's lines adjacent.

Elements of 16 bits need one transposition only: the low bytes of N elements are a row of the transposed tile, the high
bytes another one, and FUSE writes rows of 16-bit integers. Two adjacent bytes of the destination that are anywhere in a
line of the source are moved in the same way.

Two or four lines are interleaved without a transposition: MATRIX multiplies rows of N bytes of each line by the
identity, and shifts the sum of the lines before by a byte. FUSE writes the sums as integers of 16 or 32 bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import accumulate, product
from math import inf, prod
from operator import add, mul
from typing import cast

from compiler.layers.strided_copy import Dim, Walk, run_beats
from compiler.util.tiles import ceil_div
from hw.config import MlaConfig

#: Sequencer cycles per command, and cycles per box that do not overlap with other boxes.
_COMMAND_CYCLES, _BOX_CYCLES = 16, 48
#: Cycles per box with two transpositions that do not overlap, those of all boxes together, and minimum cycles of a box,
#: fitted to measured cycles on n16.
_TWICE_BOX_CYCLES, _TWICE_START, _MIN_TWICE = 5, 250, 250
#: Number of buffers between two transpositions: the first one of the next box precedes the second one of a box.
BETWEEN_BUFFERS = 2


class Mode(IntEnum):
    """Way in which the bytes of a box are permuted."""

    STORE = 0  # STORE writes the lines of the source to their places
    COPY = 1  # FUSE copies lines of up to N bytes within the scratchpad
    TURN = 2  # one transposition
    TURN_TWICE = 3  # two transpositions, with a pivot
    TURN_PAIRS = 4  # one transposition; FUSE joins pairs of bytes to elements of 16 bits
    INTERLEAVE = 5  # MATRIX adds two or four lines, each shifted by another number of bytes


@dataclass(frozen=True)
class Engine:
    """Properties of the machine that determine the speed of moves.

    Parameters
    ----------
    n : int
        Number of lanes, and bytes per bus beat.
    fuse_rate : int
        Cycles of FUSE per row.
    rows : int
        Rows of the accumulator for the sums of one tile.
    """

    n: int
    fuse_rate: int
    rows: int


def engine_of(config: MlaConfig) -> Engine:
    """Return the properties of a machine for moves; a tile of sums fills half a bank of the accumulator."""
    return Engine(config.n, config.fuse_rate, config.acc_rows // config.acc_banks // 2)


@dataclass(frozen=True)
class Ends:
    """Source and destination of a copy.

    Parameters
    ----------
    x_here, y_here : bool
        True if the source, or the destination, is in the scratchpad.
    rescale : bool
        True if elements, of one byte each, are converted.
    """

    x_here: bool
    y_here: bool
    rescale: bool


@dataclass(frozen=True)
class TileGroup:
    """Tiles of a transposition with equal sizes.

    Parameters
    ----------
    columns : int
        Lines per tile, which become the lanes of the results.
    pitch : int
        Distance between lines in the source.
    digits : tuple of (int, int, int)
        Dimensions of the bytes of a line that are used: number, distance in the line and in the destination. Bytes that
        are equidistant in the line, and bytes of up to two dimensions that fit N bytes.
    per_tile : int
        Number of bytes of a line that a tile contains; equidistant bytes may need several tiles.
    loops : tuple of (int, int, int)
        Tiles: numbers, and distances in source and destination.
    copies : tuple of (int, int, int)
        Dimensions in which results are repeated, with distance 0 in the source.
    x, y : int
        Offset of the first tile in source and destination.
    """

    columns: int
    pitch: int
    digits: tuple[Dim, ...]
    per_tile: int
    loops: tuple[Dim, ...]
    copies: tuple[Dim, ...]
    x: int
    y: int

    @property
    def used(self) -> int:
        """Number of rows of the transposed tiles of a line that are used."""
        return prod(count for count, _, _ in self.digits)

    @property
    def equidistant(self) -> bool:
        """True if the used bytes of a line are equidistant."""
        steps = accumulate((count for count, _, _ in self.digits), mul, initial=self.digits[0][1])
        return all(x == step for (_, x, _), step in zip(self.digits, steps, strict=False))

    @property
    def line_tiles(self) -> int:
        """Number of tiles for the bytes of a line."""
        return ceil_div(self.used, self.per_tile)

    @property
    def rows(self) -> int:
        """Number of rows of the transposed tiles of a line."""
        return self.line_tiles * self.per_tile

    @property
    def pair(self) -> int | None:
        """Index of the dimension of a line that consists of two bytes that are adjacent in the destination."""
        return next((i for i, (count, _, y) in enumerate(self.digits) if (count, y) == (2, 1)), None)

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return self.line_tiles * prod(count for count, _, _ in self.loops)

    @cached_property
    def ordered(self) -> tuple[Dim, ...]:
        """Loops, the longest one first."""
        return tuple(sorted(self.loops, key=lambda loop: -loop[0]))

    def commands(self, most: int) -> int:
        """Return the number of MATRIX commands, for tiles of sums of at most `most` rows."""
        if self.line_tiles > 1:
            return self.tiles // self.line_tiles
        longest = self.ordered[0][0] if self.loops else 1
        return self.tiles // longest * ceil_div(longest, max(most // self.rows, 1))


#: Maximum number of dimensions of the bytes of a line: FUSE has two more loops, for the tiles.
_MAX_DIGITS = 3


def _digits(dims: list[Dim], engine: Engine) -> tuple[list[Dim], list[Dim]]:
    """Choose the bytes of a line that the tiles of a line contain.

    Returns the chosen dimensions, of which the last one may be a part of a dimension, and all dimensions that are not
    chosen as a whole. The chosen ones are bytes of up to two dimensions within n bytes, or equidistant bytes if these
    need fewer tiles.
    """
    rest = sorted((dim for dim in dims if dim[0] > 1 and dim[1] > 0), key=lambda dim: dim[1])
    none = [dim for dim in dims if dim[0] > 1 and dim[1] <= 0]
    if not rest:
        return [(1, 1, 0)], none

    def tiles(chosen: list[Dim]) -> int:
        taken = {(x, y): count for count, x, y in chosen}
        lines = prod(ceil_div(count, taken.get((x, y), 1)) for count, x, y in rest)
        return lines * ceil_div(prod(taken.values()), _per_tile(chosen, engine.n))

    chosen = min(_within_line(rest, engine.n), _equidistant(rest, engine), key=tiles)
    return chosen, [*none, *(dim for dim in rest if dim not in chosen)]


def _within_line(rest: list[Dim], n: int) -> list[Dim]:
    """Return dimensions of bytes within n bytes: the first one, and another one if the first one fits as a whole."""
    count, x, y = rest[0]
    taken = min(count, (n - 1) // x + 1)
    chosen, span = [(taken, x, y)], (count - 1) * x + 1
    for more, step, target in rest[1:] if taken == count else ():
        fits = min(more, (n - span) // step + 1)
        if step > x and fits > 1:
            return [*chosen, (fits, step, target)]
    return chosen


def _equidistant(rest: list[Dim], engine: Engine) -> list[Dim]:
    """Return dimensions of equidistant bytes whose tiles fit a tile of sums."""
    unit = rest[0][1]
    per = (engine.n - 1) // unit + 1
    chosen, run = list[Dim](), 1
    for count, x, y in rest[:_MAX_DIGITS]:
        fits = min(engine.rows // per * per // run, count)
        if x != unit * run or fits < 2:
            break
        if fits < count:
            return [*chosen, (ceil_div(count, ceil_div(count, fits)), x, y)]
        chosen.append((count, x, y))
        run *= count
    return chosen


def _per_tile(digits: Sequence[Dim], n: int) -> int:
    """Return the number of used bytes of a line per tile: all that fit a line, or as many equidistant ones as do."""
    used, span = prod(count for count, _, _ in digits), sum((count - 1) * x for count, x, _ in digits) + 1
    return used if span <= n else (n - 1) // digits[0][1] + 1


def _split(total: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, number and size of the parts of a dimension: whole parts, and the remainder."""
    whole, rest = divmod(total, size)
    if whole:
        yield 0, whole, size
    if rest:
        yield whole * size, 1, rest


def regions(walk: Walk, lane: int, engine: Engine) -> Iterator[TileGroup]:
    """Yield the tiles of the transposition of a walk, in groups of equal size.

    Parameters
    ----------
    walk : Walk
        Elements of one byte, at least one dimension other than `lane` of which has a positive distance in the source.
    lane : int
        Index of the dimension that is contiguous in the destination, in bytes or in pairs of bytes.
    engine : Engine
        Lines and rows per tile, and rows of a tile of sums.
    """
    n = engine.n
    total, pitch, step = walk.dims[lane]
    others = [dim for index, dim in enumerate(walk.dims) if index != lane]
    while total % n and (more := [dim for dim in others if dim[1:] == (total * pitch, total * step)]):
        others.remove(more[0])
        total *= more[0][0]
    chosen, rest = _digits(others, engine)
    copies = tuple(dim for dim in rest if dim[1] == 0)
    rest = [dim for dim in rest if dim[1] != 0]
    # The last chosen dimension, if it does not fit a line as a whole, is the last of the others.
    count, x, y = chosen[-1]
    along = next((dim for dim in rest if dim[1:] == (x, y)), None)
    outer = tuple(dim for dim in rest if dim is not along)
    whole = count if along is None else along[0]
    for first, parts, columns in _split(total, n):
        for start, tiles, rows in _split(whole, count):
            loops = ((parts, n * pitch, n * step), (tiles, count * x, count * y), *outer)
            digits = (*chosen[:-1], (rows, x, y))
            yield TileGroup(
                columns,
                pitch,
                digits,
                _per_tile(digits, n),
                tuple(loop for loop in loops if loop[0] > 1),
                copies,
                walk.x + first * pitch + start * x,
                walk.y + first * step + start * y,
            )


@dataclass(frozen=True)
class InterleavedRows:
    """Rows of elements whose bytes are each from another line of the source.

    Parameters
    ----------
    lines : int
        Number of lines, and bytes of an element: 2 or 4.
    pitch : int
        Distance between the lines in the source.
    tail : int
        Elements of the last row of the first loop; the others have n elements.
    loops : tuple of (int, int, int)
        Rows: numbers, and distances in source and destination. The rows of the first loop are adjacent.
    x, y : int
        Offset of the first row in source and destination.
    """

    lines: int
    pitch: int
    tail: int
    loops: tuple[Dim, ...]
    x: int
    y: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return prod(count for count, _, _ in self.loops)


#: Maximum number of loops of the rows of a tile of sums, as MATRIX has no more.
_MAX_ROW_LOOPS = 3


def interleaved_rows(walk: Walk, byte: int, engine: Engine) -> Iterator[InterleavedRows]:
    """Yield the rows of a walk that interleaves lines, in groups that fit a tile of sums.

    Parameters
    ----------
    walk : Walk
        Elements of one byte.
    byte : int
        Index of the dimension of 2 or 4 bytes that are adjacent in the destination, each from another line.
    engine : Engine
        Elements of a row, and rows of a tile of sums.
    """
    n, (lines, pitch, _) = engine.n, walk.dims[byte]
    line = lines_index(walk, byte)
    total = walk.dims[line][0] if line is not None else 1
    others = [dim for index, dim in enumerate(walk.dims) if index not in (byte, line) and dim[0] > 1]
    loops = [(ceil_div(total, n), n, n * lines), *sorted(others, reverse=True)]
    sizes, rows = list[int](), 1
    for index, (count, _, _) in enumerate(loops):
        fits = min(count, engine.rows // rows) if index < _MAX_ROW_LOOPS else 1
        sizes.append(ceil_div(count, ceil_div(count, fits)))
        rows *= sizes[-1]
    for starts in product(*(range(0, loop[0], size) for loop, size in zip(loops, sizes, strict=True))):
        counts = [min(size, loop[0] - at) for loop, size, at in zip(loops, sizes, starts, strict=True)]
        last = starts[0] + counts[0] == loops[0][0]
        yield InterleavedRows(
            lines,
            pitch,
            (total - 1) % n + 1 if last else n,
            tuple((count, *loop[1:]) for count, loop in zip(counts, loops, strict=True))[:_MAX_ROW_LOOPS],
            walk.x + sum(at * x for at, (_, x, _) in zip(starts, loops, strict=True)),
            walk.y + sum(at * y for at, (_, _, y) in zip(starts, loops, strict=True)),
        )


def lines_index(walk: Walk, byte: int) -> int | None:
    """Return the index of the dimension along the lines that a dimension of bytes interleaves; None without one."""
    count = walk.dims[byte][0]
    return next((i for i, dim in enumerate(walk.dims) if dim[0] > 1 and dim[1:] == (1, count)), None)


def collected_from(dims: Sequence[Dim]) -> list[int]:
    """Return the dimensions of the source's lines that a line of the destination collects, the innermost first.

    They are the innermost dimensions of the destination up to the one along which elements of the source are adjacent.
    """
    size = next((count for count, x, y in dims if (x, y) == (1, 1)), 1)
    found = list[int]()
    for index in sorted(range(len(dims)), key=lambda i: dims[i][2]):
        _, x, y = dims[index]
        if x == size or x == 0:
            break
        if y >= size and (x, y) != (1, 1):
            found.append(index)
    return found


@dataclass(frozen=True)
class Box:
    """Part of a copy, with the layouts of its elements in the scratchpad.

    Parameters
    ----------
    walk : Walk
        Elements of one byte each, with distances in the tensors; no distance is negative, and the order of the
        dimensions is the same for all boxes of a copy.
    ends : Ends
        Source and destination.
    n : int
        Number of lanes.
    collected : bool
        True if the lines that a line of the destination collects bytes from are loaded in the order of these bytes.
    """

    walk: Walk
    ends: Ends
    n: int
    collected: bool = False

    @cached_property
    def _source(self) -> tuple[tuple[int, ...], Walk, int]:
        """Distances in the loaded box, the walk that loads it, and its size.

        Gaps between the elements are loaded if they are shorter than what separate lines would cost.
        """
        dims = self.walk.dims
        if self.ends.x_here:
            return tuple(x for _, x, _ in dims), Walk(()), 0
        steps, line, size, outer = [0] * len(dims), 1, 1, list[Dim]()
        apart = collected_from(dims) if self.collected else []
        order = sorted((i for i, dim in enumerate(dims) if dim[1]), key=lambda i: dims[i][1])
        while order and order[0] not in apart:
            count, x, _ = dims[order[0]]
            if count > 1 and x > line + self.n:
                break
            steps[order.pop(0)] = x
            line = size = (count - 1) * x + line
        for index in (*apart, *(i for i in order if i not in apart)):
            count, x, _ = dims[index]
            steps[index] = size
            outer.append((count, x, size))
            size *= count
        return tuple(steps), Walk((*outer, (line, 1, 1)), self.walk.x, 0), size

    @cached_property
    def expanded(self) -> tuple[bool, ...]:
        """For each dimension, whether the permuted box contains it; others are repeated by STORE."""
        if self.ends.y_here:
            return (True,) * len(self.walk.dims)
        long = 16 * self.n
        return tuple(x != 0 or (y % self.n != 0 and y < long) for _, x, y in self.walk.dims)

    @cached_property
    def _target(self) -> tuple[tuple[int, ...], int]:
        """Distances in the permuted box, and its size."""
        dims = self.walk.dims
        if self.ends.y_here:
            return tuple(y for _, _, y in dims), 0
        steps, size = [0] * len(dims), 1
        for index in sorted(range(len(dims)), key=lambda i: dims[i][2]):
            if self.expanded[index]:
                steps[index] = size
                size *= dims[index][0]
        return tuple(steps), size

    @property
    def loads(self) -> Walk:
        """Walk that loads the box from the source."""
        return self._source[1]

    def stores(self, mode: Mode) -> Walk:
        """Return the walk that stores the box to the destination."""
        steps = self._source[0] if mode == Mode.STORE else self._target[0]
        dims = tuple((count, a, y) for (count, _, y), a in zip(self.walk.dims, steps, strict=True))
        return Walk(dims, self.walk.x if self.ends.x_here and mode == Mode.STORE else 0, self.walk.y)

    def permutation(self) -> Walk:
        """Return the walk from the loaded to the permuted box."""
        rows = zip(self.walk.dims, self._source[0], self._target[0], self.expanded, strict=True)
        dims = tuple((count if there else 1, a, b) for (count, _, _), a, b, there in rows)
        x, y = (self.walk.x if self.ends.x_here else 0), (self.walk.y if self.ends.y_here else 0)
        return Walk(dims, x, y)

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the loaded and of the permuted box; 0 for one that is a tensor in the scratchpad."""
        return self._source[2], self._target[1]

    def twice(self, pivot: int) -> tuple[list[tuple[Walk, int]], list[tuple[Walk, int]], int]:
        """Return the walks of two transpositions, and the size of the box between them.

        Parameters
        ----------
        pivot : int
            Index of the dimension whose elements are adjacent between the transpositions, together with those of the
            dimensions that continue it in the source.

        Returns
        -------
        first, second : list of (Walk, int)
            Walks, each with the index of the dimension that is contiguous after it.
        size : int
            Bytes of the intermediate box.
        """
        n, whole = self.n, self.permutation()
        pivots, lines = self._chain(whole, pivot)
        run, inner = 1, set[int]()
        for index in sorted(range(len(whole.dims)), key=lambda i: whole.dims[i][2]):
            count, _, step = whole.dims[index]
            if index in pivots or (count > 1 and step != run):
                break
            inner.add(index)
            run *= count
        steps, size = {}, lines * run
        for index, (count, _, step) in enumerate(whole.dims):
            if index in inner:
                steps[index] = step * lines if count > 1 else 0
            elif index not in pivots:
                steps[index] = size
                size *= count
        outside = [i for i in range(len(whole.dims)) if i not in pivots]
        into = tuple((whole.dims[i][0], whole.dims[i][1], steps[i]) for i in outside)
        first, x = list[tuple[Walk, int]](), whole.dims[pivot][1]
        for start, parts, lanes in _split(lines, n):
            dims = (*into, (parts, n * x, n), (lanes, x, 1))
            first.append((Walk(dims, whole.x + start * x, start), len(dims) - 1))
        outer = tuple((whole.dims[i][0], steps[i], whole.dims[i][2]) for i in outside if i not in inner)
        apart = tuple((whole.dims[i][0], whole.dims[i][1] // x, whole.dims[i][2]) for i in pivots)
        second = Walk((*outer, *apart, (run, lines, 1)), 0, whole.y)
        return first, [(second, len(second.dims) - 1)], size

    def _chain(self, whole: Walk, pivot: int) -> tuple[list[int], int]:
        """Return the dimensions whose elements are equidistant, starting with the pivot, and the number of elements.

        Dimensions inside the pivot in the destination are not among them.
        """
        (count, x, y), found = whole.dims[pivot], [pivot]
        while True:
            more = [
                i for i, dim in enumerate(whole.dims) if dim[0] > 1 and dim[1] == x * count and dim[2] > y
            ]
            if not more:
                return found, count
            found.append(more[0])
            count *= whole.dims[more[0]][0]


@dataclass(frozen=True)
class UnitWork:
    """Work of the units for a box or a copy: beats of loads and stores, cycles of MATRIX and FUSE, and commands."""

    load: float = 0.0
    store: float = 0.0
    array: float = 0.0
    fuse: float = 0.0
    commands: float = 0.0

    def times(self, count: float) -> "UnitWork":
        """Return the work of `count` boxes."""
        return UnitWork(*(count * each for each in self.parts))

    def plus(self, other: "UnitWork") -> "UnitWork":
        """Return the work of both."""
        return UnitWork(*map(add, self.parts, other.parts))

    @property
    def parts(self) -> tuple[float, ...]:
        """Work of each unit."""
        return self.load, self.store, self.array, self.fuse, self.commands

    @property
    def total(self) -> float:
        """Sum of the cycles of all units."""
        return self.load + self.store + self.array + self.fuse

    @property
    def cycles(self) -> float:
        """Cycles of the busiest unit."""
        return max(self.load + self.store, self.array, self.fuse, self.commands * _COMMAND_CYCLES)


@dataclass(frozen=True)
class BoxPlan:
    """Division of a copy into boxes, and the way in which their bytes are permuted.

    Parameters
    ----------
    walk : Walk
        All elements, of one byte each.
    ends : Ends
        Source and destination.
    counts : tuple of int
        Size of a box along each dimension of the walk; boxes at the end may be smaller.
    mode : Mode
        How bytes are permuted.
    along : int
        Index of the dimension that becomes contiguous (TURN, TURN_PAIRS), of the pivot (TURN_TWICE), or of the bytes of
        an element (INTERLEAVE).
    work : UnitWork
        Estimated work of all boxes.
    sizes : (int, int, int)
        Largest loaded, intermediate and permuted box in bytes; 0 for those that do not exist.
    cycles : float
        Estimated cycles of all boxes.
    collected : bool
        True if lines are loaded in the order of the bytes that a line of the destination collects from them.
    """

    walk: Walk
    ends: Ends
    counts: tuple[int, ...]
    mode: Mode
    along: int
    work: UnitWork
    sizes: tuple[int, int, int]
    cycles: float
    collected: bool = False

    @property
    def boxes(self) -> int:
        """Number of boxes."""
        return prod(ceil_div(dim[0], count) for dim, count in zip(self.walk.dims, self.counts, strict=True))

    def parts(self, n: int) -> Iterator[Box]:
        """Yield the boxes, in the order of the destination."""
        order = sorted(range(len(self.counts)), key=lambda i: -self.walk.dims[i][2])
        starts = [0] * len(order)

        def at(depth: int) -> Iterator[Box]:
            if depth == len(order):
                dims, x, y = [], self.walk.x, self.walk.y
                for (total, a, b), size, start in zip(self.walk.dims, self.counts, starts, strict=True):
                    dims.append((min(size, total - start), a, b))
                    x, y = x + start * a, y + start * b
                yield Box(Walk(tuple(dims), x, y), self.ends, n, self.collected)
                return
            index = order[depth]
            for start in range(0, self.walk.dims[index][0], self.counts[index]):
                starts[index] = start
                yield from at(depth + 1)

        yield from at(0)


def _turn_work(walks: list[tuple[Walk, int]], engine: Engine) -> tuple[float, float, float]:
    """Return the cycles of MATRIX and FUSE, and the number of commands, of a transposition."""
    array = fuse = commands = 0.0
    for walk, lane in walks:
        for region in regions(walk, lane, engine):
            copies = prod(dim[0] for dim in region.copies)
            array += region.tiles * max(region.per_tile, engine.n)
            fuse += region.tiles // region.line_tiles * region.used * copies
            commands += 2 * region.commands(engine.rows)
    return array, fuse * engine.fuse_rate, commands


def _pair(walk: Walk) -> int | None:
    """Return the index of the dimension with two bytes that are adjacent in the destination; None if there is none."""
    return next((i for i, (count, _, y) in enumerate(walk.dims) if (count, y) == (2, 1)), None)


def _ways(walk: Walk, ends: Ends, n: int) -> Iterator[tuple[Mode, int, bool]]:
    """Yield the ways to permute the boxes of a copy: mode, index of a dimension, and whether lines are collected."""
    ways = list(_in_order(walk, ends, n))
    yield from ((*way, False) for way in ways)
    few = len(collected_from(walk.dims)) > 1 and not ends.x_here
    for mode, along in ways:
        if few and mode in (Mode.TURN, Mode.TURN_PAIRS) and walk.dims[along][0] % n:
            yield mode, along, True


def _in_order(walk: Walk, ends: Ends, n: int) -> Iterator[tuple[Mode, int]]:
    """Yield the ways to permute boxes whose lines are in the order of the source: mode, and index of a dimension."""
    if not ends.rescale and not ends.y_here:
        yield Mode.STORE, 0
    yield Mode.COPY, 0
    for index, (count, x, y) in enumerate(walk.dims):
        lines = count in (2, 4) and y == 1 and not ends.rescale
        if lines and lines_index(walk, index) is not None:
            yield Mode.INTERLEAVE, index
        if x > 1 and y == 1:
            yield Mode.TURN, index
        if x > 1 and y == 2 and _pair(walk) is not None and not ends.rescale:
            yield Mode.TURN_PAIRS, index
        if count >= n // 2 and x > 1 and y > 1:
            yield Mode.TURN_TWICE, index


def _paired(box: Box, along: int, engine: Engine) -> bool:
    """Return True if every tile of a transposition contains both bytes of its pairs."""
    return all(region.pair is not None for region in regions(box.permutation(), along, engine))


def _transfers(box: Box, mode: Mode, steps: Sequence[Dim] = ()) -> tuple[float, float]:
    """Return the beats of the loads and of the stores of a box; `steps` are the dimensions along which boxes repeat."""
    n, ends = box.n, box.ends
    load = 0.0 if ends.x_here else run_beats(box.loads, 1, n, 1, [x for _, x, _ in steps])
    store = 0.0 if ends.y_here else run_beats(box.stores(mode), 1, n, 2, [y for _, _, y in steps])
    return load, store


def _work(box: Box, mode: Mode, along: int, engine: Engine) -> tuple[UnitWork, int]:
    """Return the work of a box that is permuted in the given way, and the bytes of the intermediate box."""
    n = engine.n
    load, store = _transfers(box, mode)
    if mode == Mode.STORE:
        return UnitWork(load, store, commands=3), 0
    whole = box.permutation()
    if mode == Mode.COPY:
        inner = whole.merged().dims
        run = inner[-1][0] if inner and inner[-1][1:] == (1, 1) else 1
        rows = whole.count // run * ceil_div(run, n) * engine.fuse_rate
        outer = sorted((dim[0] for dim in (inner[:-1] if run > 1 else inner)), reverse=True)
        return UnitWork(load, store, 0, rows, 2 + prod(outer[2 if run > n else 3 :])), 0
    if mode == Mode.INTERLEAVE:
        groups = list(interleaved_rows(whole, along, engine))
        array = sum(group.lines * max(group.rows, n) for group in groups)
        fuse = sum(group.lines * group.rows for group in groups) * engine.fuse_rate
        return UnitWork(load, store, array, fuse, sum(group.lines + 1 for group in groups)), 0
    if mode != Mode.TURN_TWICE:
        return UnitWork(load, store, *_turn_work([(whole, along)], engine)), 0
    first, second, size = box.twice(along)
    parts = [_turn_work(walks, engine) for walks in (first, second)]
    return UnitWork(load, store, *(a + b for a, b in zip(*parts, strict=True))), size


def _sizes_of(total: int, n: int) -> list[int]:
    """Return the sizes of boxes that are tried along a dimension, smallest first."""
    found = {total}
    parts = 2
    while parts <= total:
        size = ceil_div(total, parts)
        found |= {size} if size <= n else {ceil_div(size, n) * n, max(total // parts // n, 1) * n}
        parts += max(1, parts // 3)
    found |= {size for size in (1, n // 2, n) if size <= total}
    return sorted(found)


def _boxes_along(total: int, size: int, mode: Mode) -> float:
    """Return the work along a dimension in boxes.

    A smaller box at the end takes at least half as long as the others. It takes as long as they do if there are few
    boxes, or two transpositions, whose tiles it fills badly.
    """
    whole, rest = divmod(total, size)
    least = 1.0 if whole < _FEW_BOXES or mode == Mode.TURN_TWICE else 0.5
    return whole + (max(rest / size, least) if rest else 0.0)


def _many_cycles(work: UnitWork, boxes: int, mode: Mode) -> float:
    """Return the cycles of equal boxes, which overlap except at the start of the first and the end of the last.

    With two transpositions, the second one of a box also hides the cycles between boxes, unless they are small.
    """
    if mode == Mode.TURN_TWICE:
        ends = (work.load + work.store) / boxes + _TWICE_START
        return max(work.cycles + _TWICE_BOX_CYCLES * boxes, _MIN_TWICE * boxes) + ends
    return work.cycles + _BOX_CYCLES * boxes + (work.total - work.cycles) / boxes


def _few_cycles(works: list[UnitWork]) -> float:
    """Return the cycles of a few boxes, whose loads and stores share the bus.

    Each box is loaded, permuted and stored, with two buffers each for loaded and permuted boxes.
    """
    bus = unit = 0.0
    permuted, stored = list[float](), list[float]()
    for at, work in enumerate(works):
        bus = max(bus, permuted[at - 2] if at > 1 else 0.0) + work.load
        loaded = bus + _BOX_CYCLES
        if at:
            bus = max(bus, permuted[-1]) + works[at - 1].store
            stored.append(bus)
        unit = max(unit, loaded, stored[at - 2] if at > 1 else 0.0)
        unit += max(work.array, work.fuse, work.commands * _COMMAND_CYCLES) + _BOX_CYCLES
        permuted.append(unit)
    return max(bus, unit) + works[-1].store + _BOX_CYCLES


#: Number of boxes up to which the work of each is estimated separately.
_MAX_FEW = 64
#: Number of boxes along a dimension below which the last one does not overlap with the others.
_FEW_BOXES = 4


def _larger(sizes: list[int], at: int, n: int) -> set[int]:
    """Return the indices of the sizes tried after size `at`: the next one, the next multiple of n, and the last one."""
    later = range(at + 1, len(sizes))
    return {*later[:1], *[index for index in later if sizes[index] % n == 0][:1], *later[-1:]}


def _grow(walk: Walk, ends: Ends, engine: Engine, most: int) -> BoxPlan | None:
    """Return the best division into boxes that enlarging a box along one dimension at a time finds."""
    found = [_estimates(walk, ends, engine, *way).grown(most) for way in _ways(walk, ends, engine.n)]
    return min((each for each in found if each is not None), key=lambda each: each.cycles, default=None)


class _Estimates:
    """Estimates of divisions of a copy into boxes that are permuted in one way.

    Estimates are kept, since the boxes of different maximum sizes grow along the same path.

    Parameters
    ----------
    walk : Walk
        Elements of one byte each.
    ends : Ends
        Source and destination.
    engine : Engine
        Speed of the machine.
    mode : Mode
        How bytes are permuted.
    along : int
        Index of a dimension, as in `BoxPlan`.
    collected : bool
        True if lines are loaded in the order of the bytes that a line of the destination collects from them.
    """

    def __init__(self, walk: Walk, ends: Ends, engine: Engine, mode: Mode, along: int, collected: bool):
        self.walk, self.ends, self.engine = walk, ends, engine
        self.mode, self.along, self.collected = mode, along, collected
        self._plans: dict[tuple[int, ...], tuple[float, BoxPlan] | None] = {}
        self._works: dict[tuple[int, ...], UnitWork] = {}

    def grown(self, most: int) -> BoxPlan | None:
        """Return the best division, for boxes of at most `most` bytes; None if no box fits."""
        choices = [_sizes_of(dim[0], self.engine.n) for dim in self.walk.dims]
        if self.mode == Mode.TURN_PAIRS:
            choices[cast(int, _pair(self.walk))] = [2]
        if self.mode == Mode.INTERLEAVE:
            choices[self.along] = [self.walk.dims[self.along][0]]
        at = [0] * len(choices)

        def plan() -> tuple[float, BoxPlan] | None:
            return self._plan(tuple(sizes[index] for sizes, index in zip(choices, at, strict=True)), most)

        now = plan()
        best = now[1] if now else None
        while now is not None:
            grown = []
            for index, sizes in enumerate(choices):
                start = at[index]
                for larger in _larger(sizes, start, self.engine.n):
                    at[index] = larger
                    grown.append((plan(), index, larger))
                at[index] = start
            found = [
                (each[0], max(each[1].sizes), index, larger, each) for each, index, larger in grown if each
            ]
            if not found:
                break
            # A shorter work of any unit may pay only together with that of another one.
            *_, index, larger, now = min(found, key=lambda each: each[:4])
            at[index] = larger
            if best is None or now[1].cycles < best.cycles:
                best = now[1]
        return best

    def _plan(self, counts: tuple[int, ...], most: int) -> tuple[float, BoxPlan] | None:
        """Return the plan for boxes of a size, after its work if each box began at a bus beat; None if none fits."""
        if counts not in self._plans:
            box = self._box(counts)
            if max(self._ends_of(box)) > most:
                return None
            self._plans[counts] = self._estimate(counts, box)
        found = self._plans[counts]
        return None if found is None or max(found[1].sizes) > most else found

    def _box(self, counts: tuple[int, ...]) -> Box:
        dims = tuple((count, *dim[1:]) for count, dim in zip(counts, self.walk.dims, strict=True))
        return Box(Walk(dims), self.ends, self.engine.n, self.collected)

    def _ends_of(self, box: Box) -> tuple[int, int]:
        """Return the bytes of a loaded and of a permuted box."""
        loaded, permuted = box.sizes
        return loaded, 0 if self.mode == Mode.STORE else permuted

    def _estimate(self, counts: tuple[int, ...], box: Box) -> tuple[float, BoxPlan] | None:
        if self.mode == Mode.TURN_PAIRS and not _paired(box, self.along, self.engine):
            return None
        loaded, permuted = self._ends_of(box)
        work, between = _work(box, self.mode, self.along, self.engine)
        self._works[counts] = work
        pairs = list(zip(self.walk.dims, counts, strict=True))
        steps = [(1, count * x, count * y) for (total, x, y), count in pairs if count < total]
        boxes = prod(ceil_div(dim[0], count) for dim, count in pairs)
        few = boxes <= _MAX_FEW and self.mode != Mode.TURN_TWICE
        found = self._few(pairs, steps) if few else self._many(pairs, steps, boxes, box, work)
        alone, total, cycles = found
        sizes = loaded, between, permuted
        return alone, BoxPlan(
            self.walk, self.ends, counts, self.mode, self.along, total, sizes, cycles, self.collected
        )

    def _many(
        self, pairs: Sequence[tuple[Dim, int]], steps: Sequence[Dim], boxes: int, box: Box, work: UnitWork
    ) -> tuple[float, UnitWork, float]:
        """Return the work if each box began at a bus beat, the work, and the cycles of many equal boxes."""
        times = prod(_boxes_along(dim[0], count, self.mode) for dim, count in pairs)
        total = self._placed(box, work, steps).times(times)
        return work.total * times, total, _many_cycles(total, boxes, self.mode)

    def _few(self, pairs: Sequence[tuple[Dim, int]], steps: Sequence[Dim]) -> tuple[float, UnitWork, float]:
        """Return the work if each box began at a bus beat, the work, and the cycles of a few boxes."""
        order = sorted(range(len(pairs)), key=lambda i: -pairs[i][0][2])
        lengths = [[min(size, dim[0] - at) for at in range(0, dim[0], size)] for dim, size in pairs]
        found: dict[tuple[int, ...], tuple[float, UnitWork]] = {}
        works = list[UnitWork]()
        alone = 0.0
        for ordered in product(*(lengths[index] for index in order)):  # in the order of the destination
            if ordered not in found:
                counts = tuple(length for _, length in sorted(zip(order, ordered, strict=True)))
                box = self._box(counts)
                if counts not in self._works:
                    self._works[counts], _ = _work(box, self.mode, self.along, self.engine)
                work = self._works[counts]
                found[ordered] = work.total, self._placed(box, work, steps)
            total, placed = found[ordered]
            alone += total
            works.append(placed)
        whole = UnitWork(*(sum(each) for each in zip(*(work.parts for work in works), strict=True)))
        return alone, whole, _few_cycles(works)

    def _placed(self, box: Box, work: UnitWork, steps: Sequence[Dim]) -> UnitWork:
        """Return the work of a box among others at distances of `steps`."""
        load, store = _transfers(box, self.mode, steps)
        return UnitWork(load, store, work.array, work.fuse, work.commands)


@lru_cache(maxsize=1024)
def _estimates(walk: Walk, ends: Ends, engine: Engine, mode: Mode, along: int, collected: bool) -> _Estimates:
    return _Estimates(walk, ends, engine, mode, along, collected)


#: Sizes, in quarters of n, of the inner part of a dimension of which the outer part is a pivot.
_INNER_SIZES = (1, 2, 4, 8, 16, 20, 32)
#: Relative excess over the cycles of the bus from which further divisions are tried.
_GOOD = 1.05


#: Bytes of a box for which divisions are compared.
_COMPARED_BYTES = 1 << 14


@lru_cache(maxsize=4096)
def plans(walk: Walk, ends: Ends, engine: Engine, most: int) -> tuple[BoxPlan, ...]:
    """Return plans for parts of a copy that together cover it; none if boxes do not fit.

    Parameters
    ----------
    walk : Walk
        Elements of one byte each.
    ends : Ends
        Source and destination.
    engine : Engine
        Speed of the machine.
    most : int
        Maximum number of bytes of a box.
    """
    if any(x < 0 or y <= 0 for _, x, y in walk.dims) or not walk.dims:
        return ()
    return _planned(walk, _division(walk, ends, engine), ends, engine, most)


@lru_cache(maxsize=4096)
def _division(walk: Walk, ends: Ends, engine: Engine) -> tuple[int, int]:
    """Return the dimension to divide, and the size of its inner part; size 0 if the walk is not to be divided."""
    whole = 0, 0
    found = _planned(walk, whole, ends, engine, _COMPARED_BYTES)
    if found and found[0].work.cycles <= _GOOD * max(
        found[0].work.load + found[0].work.store, walk.count / engine.n
    ):
        return whole
    best, least = whole, _cycles(found)
    for index, (total, x, y) in enumerate(walk.dims):
        if x == 0 or (x >= 2 * engine.n and y >= 2 * engine.n):
            continue
        for size in (2, *(quarters * engine.n // 4 for quarters in _INNER_SIZES)):
            if size >= 2 and (size > 2 or y == 1) and total >= size * engine.n // 2:
                cycles = _cycles(_planned(walk, (index, size), ends, engine, _COMPARED_BYTES))
                if cycles < least:
                    best, least = (index, size), cycles
    return best


def _planned(
    walk: Walk, division: tuple[int, int], ends: Ends, engine: Engine, most: int
) -> tuple[BoxPlan, ...]:
    """Return the plans of the parts of a divided walk; none if one of them does not fit."""
    index, size = division
    parts = [_grow(part, ends, engine, most) for part in (walk.blocks(index, size) if size else [walk])]
    found = tuple(part for part in parts if part is not None)
    return found if len(found) == len(parts) else ()


def _cycles(parts: tuple[BoxPlan, ...]) -> float:
    return sum(part.cycles for part in parts) if parts else inf
