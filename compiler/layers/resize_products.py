"""Bilinear resizing by products with constant matrices, the weights of adjacent outputs.

With many channels, the pixels of a few image rows are the weights of MATRIX, and the weights of the interpolation are
its activations. With few channels, windows of adjacent bytes are multiplied by constant weight tiles.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import (
    BufferMemory,
    BufferRef,
    CircularBuffer,
    Command,
    TileStep,
)
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers, image_lines, pieces
from compiler.layers.base import Image
from compiler.layers.resize_runs import (
    SUM_BUFFERS,
    LoadedPart,
    PixelRun,
    ResizeLayer,
    TileSteps,
    divided,
    image_beats,
)
from compiler.layers.tile_pipeline import EARLY_RESULT, PipelineTile, TilePipeline
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings, images
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div, cuts
from hw.config import MlaConfig
from hw.isa.commands import MATRIX_WORD
from hw.isa.enums import Dtype, Unit

#: Inputs of an output along a dimension: the first one, and the weights of it and of those that follow.
_Taps = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class _Span:
    """Adjacent outputs along a dimension that depend on the same few adjacent inputs.

    Parameters
    ----------
    start, count : int
        First output, and number of outputs.
    source : int
        First input that any of these outputs depends on.
    weights : tuple of tuples of int
        Weight of each input, for each output.
    """

    start: int
    count: int
    source: int
    weights: tuple[tuple[int, ...], ...]


def _spans(taps: Sequence[_Taps], inputs: int, total: int, most: int) -> list[_Span]:
    """Divide a dimension of `total` inputs into spans of `inputs` inputs and at most `most` outputs each."""
    found, start = list[_Span](), 0
    while start < len(taps):
        low, end, stop = taps[start][0], 0, start
        while stop < min(len(taps), start + most):
            first, shares = taps[stop]
            ends = min(low, first), max(end, first + len(shares))
            if ends[1] - ends[0] > inputs:
                break
            (low, end), stop = ends, stop + 1
        source = min(low, total - inputs)
        weights = tuple(
            (0,) * (first - source) + shares + (0,) * (source + inputs - first - len(shares))
            for first, shares in taps[start:stop]
        )
        found.append(_Span(start, stop - start, source, weights))
        start = stop
    return found


@dataclass(frozen=True)
class _Division:
    """Division of an image into spans of rows and of columns, each pair of which is a product with a constant matrix.

    Parameters
    ----------
    stacked : int
        Number of adjacent rows whose pixels are the rows of one weight tile.
    pixels : int
        Number of adjacent pixels of each of these rows.
    rows, columns : tuple of _Span
        Spans that contain each output row, and each output column, once.
    passes : int
        Number of bytes of a weight, each of which takes a pass of MATRIX.
    """

    stacked: int
    pixels: int
    rows: tuple[_Span, ...]
    columns: tuple[_Span, ...]
    passes: int

    def matrix(self, rows: _Span, columns: _Span) -> NDArray[np.uint8]:
        """Return the weights of two spans as (bytes, weight tiles, outputs, inputs of a tile).

        The most significant bytes come first.
        """
        whole = np.einsum("ih,jw->hijw", np.array(rows.weights), np.array(columns.weights))
        outputs = rows.count * columns.count
        tiles = whole.reshape(self.tiles, self.stacked, outputs, self.pixels).swapaxes(1, 2)
        flat = tiles.reshape(self.tiles, outputs, -1)
        return np.array([flat >> 8 * place & 255 for place in reversed(range(self.passes))], np.uint8)

    @property
    def reach(self) -> int:
        """Number of input rows of a span of rows."""
        return len(self.rows[0].weights[0])

    @property
    def tiles(self) -> int:
        """Number of weight tiles of a pair of spans."""
        return self.reach // self.stacked

    @cached_property
    def largest(self) -> int:
        """Largest number of outputs of a pair of spans."""
        return max(span.count for span in self.rows) * max(span.count for span in self.columns)

    @cached_property
    def kinds(self) -> int:
        """Number of pairs of spans with different weights."""
        return math.prod(len({span.weights for span in each}) for each in (self.rows, self.columns))

    @cached_property
    def outputs(self) -> int:
        """Number of outputs of all pairs of spans with different weights."""
        return math.prod(sum(map(len, {span.weights for span in each})) for each in (self.rows, self.columns))

    def held(self, n: int) -> int:
        """Return the bytes of scratchpad for the weights of all pairs of spans."""
        return self.kinds * self.largest * self.tiles * self.passes * n

    def array_cycles(self, tile: int) -> int:
        """Return the cycles of MATRIX for a block of channels whose weight tiles take `tile` cycles to enter."""
        down, across = (Counter(span.count for span in each) for each in (self.rows, self.columns))
        pairs = product(down.items(), across.items())
        cycles = sum(max(high * wide, tile) * many * more for (high, many), (wide, more) in pairs)
        return cycles * self.tiles * self.passes


def _taps(runs: tuple[PixelRun, ...]) -> list[_Taps]:
    """Return the inputs and weights of each output of a dimension; the weights of all add up to the same number."""
    unit, found = math.lcm(*(run.total for run in runs)), dict[int, _Taps]()
    for run in runs:
        weights = tuple(weight * unit // run.total for (weight,) in run.weights)
        for number in range(run.count):
            found[run.first + number * run.step] = run.source + number * run.stride, weights
    return [found[place] for place in range(len(found))]


def product_weights(config: MlaConfig, layer: ResizeLayer) -> float:
    """Return the bytes of scratchpad for the weights of products; infinity if products are not possible."""
    sizes = (
        division.held(config.n)
        for pixels in pixels_of_tiles(config.n, layer, on_chip=False)
        if (division := divide_image(layer, config.n, pixels)).largest * min(SUM_BUFFERS) <= config.acc_rows
    )
    return min(sizes, default=math.inf)


@lru_cache(maxsize=64)
def divide_image(layer: ResizeLayer, n: int, pixels: int) -> _Division:
    """Return the division with the fewest cycles for weight tiles of `pixels` adjacent pixels of one or more rows."""
    (x, _), stacked = images(layer), n // pixels
    down, across = _taps(layer.rows), _taps(layer.columns)
    reach = stacked if stacked > 1 else min(2, x.h)
    passes = ceil_div((max(max(w) for _, w in down) * max(max(w) for _, w in across)).bit_length(), 8)
    choices = (
        _Division(stacked, pixels, rows, columns, passes)
        for rows in _span_choices(down, reach, x.h, layer.rows)
        for columns in _span_choices(across, pixels, x.w, layer.columns)
    )
    # Each weight is loaded once, N of them per beat.
    blocks = ceil_div(x.c, n) * layer.batch
    return min(
        choices, key=lambda each: blocks * each.array_cycles(n) + each.outputs * each.tiles * each.passes
    )


def _span_choices(
    taps: list[_Taps], inputs: int, total: int, runs: tuple[PixelRun, ...]
) -> Iterator[tuple[_Span, ...]]:
    """Yield divisions of a dimension into spans: as large as possible, or of whole periods of equal weights."""
    longest = _spans(taps, inputs, total, len(taps))
    yield tuple(longest)
    period, most = max(runs, key=lambda run: run.count).step, max(span.count for span in longest)
    for size in range(most // period * period, most // 2, -period):
        if size < most:
            yield tuple(_spans(taps, inputs, total, size))


def pixels_of_tiles(n: int, layer: ResizeLayer, *, on_chip: bool) -> list[int]:
    """Return the numbers of adjacent pixels of weight tiles that are tried: tiles of one to four rows."""
    x, _ = images(layer)
    found = {min(n // stacked, x.w) for stacked in range(1, _MAX_STACKED + 1)}
    return sorted(
        pixels
        for pixels in found
        if pixels > 1 and n // pixels <= x.h and (pixels * 2 > n or pixels == x.w or not on_chip)
    )


def pixels_per_tile(n: int, layer: ResizeLayer, s: LayerSchedule, *, on_chip: bool) -> int:
    """Return the number of adjacent pixels of a weight tile under a schedule; 1 if there are no products.

    Tiles have the pixels of one row if those of several rows are not in the scratchpad as they need them.
    """
    if s.pixels_per_pass == 1:
        return 1
    possible = pixels_of_tiles(n, layer, on_chip=on_chip)
    return s.pixels_per_pass if s.pixels_per_pass in possible else max(possible, default=1)


#: Cycles of the sequencer for a command of products, and of MATRIX and FUSE from one command to the next one, with
#: which the tilings that take the fewest cycles on the RTL (n16) have the lowest estimates.
_ISSUE_CYCLES, _NEXT_PRODUCT, _NEXT_RESULT = 16, 8, 16
#: Maximum number of rows whose pixels are the rows of one weight tile.
_MAX_STACKED = 4


@dataclass(frozen=True)
class _ProductTile:
    """Products of a span of columns and of equal spans of rows, for some blocks of channels.

    Parameters
    ----------
    box : LoadedPart
        Part of the input image that contains the inputs; all columns.
    needed : int
        Number of rows of this part that this tile and the ones before need.
    rows : _Span
        First span of rows.
    groups : int
        Number of spans of rows, more than one only if there is one block of channels.
    distance : (int, int)
        Distances between these spans, in rows of the input and of the output.
    columns : int
        Index of the first span of columns.
    blocks : (int, int)
        First block, and number of blocks, of the channels.
    band : (int, int)
        First output row, and number of rows, of all tiles whose results are stored together.
    first, last : bool
        True for the first and the last of these tiles.
    across : (int, int, int)
        Number of equal spans of columns, and the distances between them, in columns of the input and of the output.
    """

    box: LoadedPart
    needed: int
    rows: _Span
    groups: int
    distance: tuple[int, int]
    columns: int
    blocks: tuple[int, int]
    band: tuple[int, int]
    first: bool
    last: bool
    across: tuple[int, int, int] = (1, 0, 0)


def _bands(rows: Sequence[_Span], most: int) -> list[list[_Span]]:
    """Divide spans of rows into consecutive bands of at most `most` output rows, or one span."""
    found = list[list[_Span]]()
    for span in rows:
        if found and sum(each.count for each in found[-1]) + span.count <= most:
            found[-1].append(span)
        else:
            found.append([span])
    return found


def _equal_spans(band: list[_Span]) -> Iterator[list[_Span]]:
    """Yield the spans of a band with equal weights and at equal distances, in order of their first spans."""
    done, latest = list[list[_Span]](), dict[object, list[_Span]]()
    for span in band:
        found = latest.get(span.weights)
        if found is not None and (len(found) == 1 or _distance([found[-1], span]) == _distance(found)):
            found.append(span)
            continue
        latest[span.weights] = [span]
        done.append(latest[span.weights])
    yield from done


def _distance(spans: list[_Span]) -> tuple[int, int]:
    """Return the distances between the first two spans, in inputs and in outputs."""
    if len(spans) == 1:
        return 0, 0
    return spans[1].source - spans[0].source, spans[1].start - spans[0].start


def _product_tiles(config: MlaConfig, layer: ResizeLayer, s: LayerSchedule) -> Iterator[_ProductTile]:
    """Yield the tiles of products in order of execution."""
    (x, y), n = images(layer), config.n
    division = divide_image(layer, n, s.pixels_per_pass)
    room = config.acc_rows // s.acc_buffers
    bands = _bands(division.rows, s.rows)
    boxes = _bands(
        [_Span(b[0].start, sum(e.count for e in b), i, ()) for i, b in enumerate(bands)], s.rows_per_load
    )
    for channels, image, parts in product(pieces(ceil_div(y.c, n), s.columns), range(layer.batch), boxes):
        inside = [bands[part.source] for part in parts]
        every = [span for band in inside for span in band]
        top = min(span.source for span in every)
        height = max(span.source for span in every) + division.reach - top
        box = LoadedPart(image, channels, (top, height), (0, x.w), (0, y.w))
        needed = 0
        for part, band in zip(parts, inside, strict=True):
            tiles = list[_ProductTile]()
            for spans in _equal_spans(band):
                for column, across in enumerate(division.columns):
                    outputs = spans[0].count * across.count
                    fits = max(room // outputs, 1)
                    apart = len(spans) if len(spans) > channels[1] else 1
                    pieces_of = [
                        (spans[at : at + many], (channels[0] + block, blocks))
                        for at, many in pieces(len(spans), min(fits, apart))
                        for block, blocks in pieces(channels[1], fits if apart == 1 else 1)
                    ]
                    for some, blocks in pieces_of:
                        needed = max(needed, some[-1].source + division.reach - top)
                        tiles.append(
                            _ProductTile(
                                box,
                                needed,
                                some[0],
                                len(some),
                                _distance(some),
                                column,
                                blocks,
                                (part.start, part.count),
                                not tiles,
                                last=False,
                            )
                        )
            tiles[-1] = replace(tiles[-1], last=True)
            yield from tiles


def product_tilings(context: TilingContext, layer: ResizeLayer) -> Tilings:
    """Yield the tilings of a resizing by products that fit."""
    config, (x, y) = context.config, images(layer)
    n, blocks = config.n, ceil_div(y.c, config.n)
    for pixels, columns in product(pixels_of_tiles(n, layer, on_chip=context.x_on_chip), cuts(blocks)):
        division, lanes = divide_image(layer, n, pixels), min(columns * n, y.c)
        buffers = next((count for count in SUM_BUFFERS if count * division.largest <= context.acc_rows), 0)
        constants = division.held(n)
        if not buffers or context.acc_rows < config.acc_rows:
            continue
        parts = ceil_div(blocks, columns)
        across = len(division.columns) * pixels if division.stacked > 1 and pixels < x.w else x.w
        array = blocks * division.array_cycles(n)
        highest = max(span.count for span in division.rows)
        for rows in _band_heights(y.h, highest):
            bands = _bands(division.rows, rows)
            high = max(sum(span.count for span in band) for band in bands)
            runs = sum(len(list(_equal_spans(band))) if columns == 1 else len(band) for band in bands)
            commands = (division.passes + 1) * runs * len(division.columns) * parts
            held = 0 if context.y_on_chip else buffers * (high * y.w * lanes + n)
            for bands_per_load in (len(bands), *_BANDS_PER_LOAD):
                loads = ceil_div(len(bands), bands_per_load)
                inputs = min(ceil_div(x.h, loads) + division.reach, x.h)
                used = constants + held
                used += 0 if context.x_on_chip else 2 * (inputs * across * lanes + n)
                if bands_per_load > len(bands) or used > context.free:
                    continue
                bus = float(division.outputs * division.tiles * division.passes)
                if not context.y_on_chip:
                    bus += layer.batch * parts * image_beats(y.h, y.w, y.w, lanes, y.c, n)
                if not context.x_on_chip:
                    bus += layer.batch * parts * _product_load(x, inputs * loads, division, lanes, n)
                fuse = y.h * y.w * blocks * config.fuse_rate
                busy = layer.batch * max(array, fuse, commands * _ISSUE_CYCLES)
                yield (
                    max(busy, bus * context.beat) + high * y.w * lanes / n,
                    LayerSchedule(
                        rows=rows,
                        rows_per_load=rows * bands_per_load,
                        columns=columns,
                        y_buffers=buffers,
                        acc_buffers=buffers,
                        pixels_per_pass=pixels,
                        on_chip=context.y_on_chip,
                    ),
                )


#: Numbers of bands whose inputs are loaded together, if not those of all bands are.
_BANDS_PER_LOAD = (8, 4, 2, 1)
#: Heights of bands that are tried, in multiples of the highest span.
_BAND_SPANS = (1, 2, 3, 4, 6, 8, 12, 16, 24)


def _band_heights(total: int, highest: int) -> list[int]:
    """Return the heights of bands that are tried."""
    return sorted({min(highest * count, total) for count in _BAND_SPANS})


def _product_load(x: Image, rows: int, division: _Division, lanes: int, n: int) -> float:
    """Return the bus beats that load some rows of the input."""
    if division.stacked == 1 or division.pixels == x.w:
        return image_beats(rows, x.w, x.w, lanes, x.c, n)
    return len(division.columns) * image_beats(rows, division.pixels, x.w, lanes, x.c, n)


def product_tile_model(layer: ResizeLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a resizing by products."""
    config, (x, y) = context.config, images(layer)
    n, division = config.n, divide_image(layer, config.n, s.pixels_per_pass)
    every = list(_product_tiles(config, layer, s))

    def tiles() -> Iterator[PipelineTile]:
        there: dict[LoadedPart, int] = {}
        for tile in every:
            box, columns = tile.box, division.columns[tile.columns]
            width = min(box.channels[1] * n, y.c - box.channels[0] * n)
            outputs, count = tile.rows.count * columns.count, tile.groups * tile.blocks[1]
            steps = division.tiles * division.passes
            loads: list[tuple[str, object, float]] = [
                ("w", (tile.rows.weights, columns.weights), float(outputs * steps))
            ]
            before = there.get(box, 0)
            if not context.x_on_chip and tile.needed > before:
                there[box] = tile.needed
                beats = _product_load(x, tile.needed - before, division, width, n)
                loads.append(("f", (box, before), beats) if before else ("x", box, beats))
            store = 0.0
            if tile.last and not context.y_on_chip:
                store = image_beats(tile.band[1], y.w, y.w, width, y.c, n)
            yield PipelineTile(
                tuple(loads),
                count * steps * max(outputs, n) + _NEXT_PRODUCT,
                count * outputs + _NEXT_RESULT,
                store,
                division.passes + 1 + (store > 0),
            )

    buffers = {"w": division.kinds, "x": s.x_buffers, "f": len(every)}
    return TilePipeline(tiles(), len(every), buffers, s.acc_buffers, s.y_buffers, result=EARLY_RESULT)


class ProductSteps(TileSteps[_ProductTile]):
    """Code generator of a bilinear resizing by products."""

    def __init__(self, context: CodegenContext, layer: ResizeLayer):
        super().__init__(context, layer)
        schedule, name, n = context.schedule, layer.name, self.n
        self.division, tiles = self._tiles()
        self.tiles = list(tiles)
        self.total = math.prod(math.lcm(*(run.total for run in runs)) for runs in (layer.rows, layer.columns))
        self.acc = BufferRotation(
            BufferMemory.ACC, f"{name}.acc", max(map(self._outputs, self.tiles)), schedule.acc_buffers
        )
        lanes = max(self._lanes(tile.box) for tile in self.tiles)
        size = max(tile.band[1] for tile in self.tiles) * self.y[0].w * lanes + n
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size, schedule.y_buffers)
        size = max(tile.box.rows[1] for tile in self.tiles) * self._across * lanes + n
        self.x_tiles = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.x", size, schedule.x_buffers), self._begin
        )
        self.matrices: dict[Hashable, NDArray[np.uint8]] = {}
        for tile in self.tiles:
            key = self._key(tile)
            if key not in self.matrices:
                self.matrices[key] = self._matrix(tile)
        size = max(matrix.size for matrix in self.matrices.values())
        self.constants = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.weights", size, len(self.matrices)), self._load_matrix
        )

    def _tiles(self) -> tuple[_Division, Iterator[_ProductTile]]:
        """Return the division of the image, and the tiles in order of execution."""
        schedule = self.context.schedule
        division = divide_image(self.layer, self.n, schedule.pixels_per_pass)
        return division, _product_tiles(self.context.config, self.layer, schedule)

    def _key(self, tile: _ProductTile) -> Hashable:
        """Return the weights of a tile, which determine its constant matrix."""
        return tile.rows.weights, self.division.columns[tile.columns].weights

    def _matrix(self, tile: _ProductTile) -> NDArray[np.uint8]:
        """Return the constant matrix of a tile, in rows of N bytes."""
        matrix = self.division.matrix(tile.rows, self.division.columns[tile.columns])
        padded = np.zeros((*matrix.shape[:3], self.n), np.uint8)
        padded[..., : matrix.shape[3]] = matrix
        return padded

    @property
    def _in_strips(self) -> bool:
        """True if each span of columns has its own pixels in the scratchpad, whose rows are contiguous."""
        return self.division.stacked > 1 and self.division.pixels < self.x[0].w

    @property
    def _across(self) -> int:
        """Number of pixels of an input row in the scratchpad."""
        return len(self.division.columns) * self.division.pixels if self._in_strips else self.x[0].w

    def _outputs(self, tile: _ProductTile) -> int:
        """Return the number of rows of sums of a tile."""
        return tile.rows.count * self.division.columns[tile.columns].count * tile.groups * tile.blocks[1]

    def _lanes(self, box: LoadedPart) -> int:
        """Return the number of channels that are loaded and stored together."""
        block, blocks = box.channels
        return min(blocks * self.n, self.channels - block * self.n)

    def _load_matrix(self, key: Hashable, address: BufferRef) -> list[Command]:
        source = self.context.constant(f"{self.layer.name}.weights", self.matrices[key])
        return [self.context.command(Unit.LOAD, dram=BufferRef(source), dst=address, len=source.size)]

    def _input(self, tile: _ProductTile, step: TileStep) -> tuple[BufferRef, int, int]:
        """Return the address of a tile's first pixel of the input, and the distances between pixels and between rows.

        The step loads the rows that the tile is the first one to need.
        """
        box, block = tile.box, tile.blocks[0] * self.n
        x, left = self.x[box.image], self.division.columns[tile.columns].source
        if x.on_chip:
            return x.address(tile.rows.source, left, block), x.pixel, x.row
        (top, total), lanes = box.rows, self._lanes(box)
        pixels = self.division.pixels if self._in_strips else x.w
        row, strip = pixels * lanes, total * pixels * lanes
        address, there = self.x_tiles.get(box, step), self.rows_loaded[box]
        # The last reads extend into the following rows.
        needed = min(tile.needed + ceil_div(-lanes % self.n, row), total)
        if there < needed:
            self.rows_loaded[box] = needed
            step.loads += self._loads(box, there, needed - there, address.plus(there * row), row, strip)
        if self._in_strips:
            address, left = address.plus(tile.columns * strip), 0
        return (
            address.plus((tile.rows.source - top) * row + left * lanes + block - box.channels[0] * self.n),
            lanes,
            row,
        )

    def _loads(
        self, box: LoadedPart, start: int, count: int, target: BufferRef, row: int, strip: int
    ) -> list[Command]:
        """Return the commands that load `count` rows of a box from row `start` on."""
        x, lanes, channel = self.x[box.image], self._lanes(box), box.channels[0] * self.n
        top, command = box.rows[0] + start, self.context.command
        if not self._in_strips:
            fields = image_lines(x, count, lanes, "dst", lanes)
            return [command(Unit.LOAD, dram=x.address(top, 0, channel), dst=target, **fields)]
        pixels, found = self.division.pixels, list[Command]()
        lefts = [span.source for span in self.division.columns]
        if lanes != x.pixel:
            for number, left in enumerate(lefts):
                fields = image_lines(x.columns(left, pixels), count, lanes, "dst", lanes)
                source, to = x.address(top, left, channel), target.plus(number * strip)
                found.append(command(Unit.LOAD, dram=source, dst=to, **fields))
            return found
        first = 0
        while first < len(lefts):
            step = lefts[first + 1] - lefts[first] if first + 1 < len(lefts) else 0
            many = 1
            while first + many < len(lefts) and lefts[first + many] == lefts[first] + many * step:
                many += 1
            found.append(
                command(
                    Unit.LOAD,
                    dram=x.address(top, lefts[first], channel),
                    dst=target.plus(first * strip),
                    len=row,
                    y_count=count,
                    dram_y=x.row,
                    dst_y=row,
                    z_count=many,
                    dram_z=step * x.pixel,
                    dst_z=strip,
                )
            )
            first += many
        return found

    def _add_matrix(self, tile: _ProductTile, step: TileStep, acc: BufferRef) -> None:
        """Add the commands that compute the sums of a tile, from the most significant byte of the weights on."""
        layer, division, rows, n = self.layer, self.division, tile.rows, self.n
        columns = division.columns[tile.columns]
        base, pixel, row = self._input(tile, step)
        matrix = self.constants.get(self._key(tile), step)
        outputs, size = rows.count * columns.count, division.tiles * rows.count * columns.count * n
        block = self.x[0].block(n) if self.x[0].on_chip else n
        for number in range(division.passes):
            word = MATRIX_WORD.pack(
                shift8=int(number > 0),
                a_unsigned=1,
                w_unsigned=int(layer.shapes[layer.x].dtype == Dtype.U8),
            )
            step.matrix.append(
                self.context.command(
                    Unit.MATRIX,
                    word=word,
                    a_base=matrix.plus(number * size),
                    a_u=columns.count * n,
                    a_v=n,
                    u_y=1,
                    u_ky=rows.count,
                    v_x=1,
                    x_count=columns.count,
                    y_count=rows.count,
                    ky_count=division.tiles,
                    oc_count=tile.groups * tile.blocks[1],
                    k_rows=division.stacked * division.pixels % n,
                    n_tail=self._tail(tile) % n,
                    w_base=base,
                    w_row=pixel,
                    w_ky=row,
                    w_oc=tile.distance[0] * row if tile.groups > 1 else block,
                    acc_base=acc,
                    acc_x=1,
                    acc_y=columns.count,
                    acc_oc=outputs,
                )
            )

    def _tail(self, tile: _ProductTile) -> int:
        """Return the number of lanes of a tile's last block."""
        return min(self.channels - (sum(tile.blocks) - 1) * self.n, self.n)

    def _add_fuse(self, tile: _ProductTile, step: TileStep, acc: BufferRef, target: BufferRef | None) -> None:
        """Add the command that divides the sums of a tile; `target` is the buffer of its results, if not on chip."""
        y, rows, columns = self.y[tile.box.image], tile.rows, self.division.columns[tile.columns]
        if target is None:
            address, pixel, row = (
                y.address(rows.start, columns.start, tile.blocks[0] * self.n),
                y.pixel,
                y.row,
            )
        else:
            pixel = self._lanes(tile.box)
            row, block = y.w * pixel, (tile.blocks[0] - tile.box.channels[0]) * self.n
            address = target.plus((rows.start - tile.band[0]) * row + columns.start * pixel + block)
        block = y.block(self.n) if target is None else self.n
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                **divided(self.layer, self.total),
                a_base=acc,
                a_v=1,
                u_y=1,
                v_x=1,
                d_base=address,
                **self._results(tile, pixel, row, block),
            )
        )

    def _results(self, tile: _ProductTile, pixel: int, row: int, block: int) -> dict[str, int]:
        """Return the FUSE fields that walk over the sums and the results of a tile.

        `pixel`, `row` and `block` are the distances of pixels, rows and blocks of channels of the results.
        """
        rows, columns = tile.rows, self.division.columns[tile.columns]
        fields = {"a_n": rows.count * columns.count, "a_u": columns.count, "x_count": columns.count}
        fields |= {"y_count": rows.count, "n_count": tile.groups * tile.blocks[1], "d_x": pixel, "d_y": row}
        fields["d_n"] = tile.distance[1] * row if tile.groups > 1 else block
        return fields | self._used_lanes(tile)

    def _used_lanes(self, tile: _ProductTile) -> dict[str, int]:
        """Return the FUSE fields for the lanes of a tile: those of its last block, in all spans of rows."""
        tail = self._tail(tile) % self.n
        return {"lanes": tail if tile.groups > 1 else 0, "lanes_tail": tail}

    def _store(self, tile: _ProductTile, source: BufferRef) -> Command:
        """Return the command that stores the results of a band."""
        y, lanes, (first, count) = self.y[tile.box.image], self._lanes(tile.box), tile.band
        fields = image_lines(y, count, lanes, "src", lanes)
        target = y.address(first, 0, tile.box.channels[0] * self.n)
        return self.context.command(Unit.STORE, dram=target, src=source, **fields)


# Products of windows of bytes with constant matrices, for few channels: a window contains the pixels of an image row
# that some adjacent outputs depend on, and these outputs are the columns of the array.


@lru_cache(maxsize=64)
def divide_into_windows(layer: ResizeLayer, n: int) -> _Division | None:
    """Return the division into single rows and into spans of columns whose inputs and outputs fit N bytes each.

    None if not even two pixels fit.
    """
    (x, _), channels = images(layer), layer.shapes[layer.x].c
    pixels = min(n // channels, x.w)
    if pixels < 2:
        return None
    down, across = _taps(layer.rows), _taps(layer.columns)
    passes = ceil_div((max(max(w) for _, w in down) * max(max(w) for _, w in across)).bit_length(), 8)
    rows = tuple(_spans(down, min(2, x.h), x.h, 1))
    most = max(span.count for span in _spans(across, pixels, x.w, n // channels))
    choices = (
        _Division(1, pixels, rows, tuple(_spans(across, pixels, x.w, size)), passes)
        for size in range(most, most // 2, -1)
    )
    return min(choices, key=lambda each: len(rows) * len(each.columns) + _window_weights(each, n) / n)


def _window_weights(division: _Division, n: int) -> int:
    """Return the bytes of scratchpad for the weights of all windows."""
    return division.kinds * division.tiles * division.passes * n * n


def _window_tiles(config: MlaConfig, layer: ResizeLayer, s: LayerSchedule) -> Iterator[_ProductTile]:
    """Yield the tiles of windows in order of execution."""
    (x, y), division, room = (
        images(layer),
        divide_into_windows(layer, config.n),
        config.acc_rows // s.acc_buffers,
    )
    assert division is not None
    bands = _bands(division.rows, s.rows)
    boxes = list(pieces(len(bands), max(s.rows_per_load // s.rows, 1)))
    columns = [(division.columns.index(spans[0]), spans) for spans in _equal_spans(list(division.columns))]
    for image, (start, count) in product(range(layer.batch), boxes):
        every = [span for band in bands[start : start + count] for span in band]
        top = min(span.source for span in every)
        height = max(span.source for span in every) + division.reach - top
        box, needed = LoadedPart(image, (0, 1), (top, height), (0, x.w), (0, y.w)), 0
        for band in bands[start : start + count]:
            tiles = list[_ProductTile]()
            for rows, (index, spans) in product(_equal_spans(band), columns):
                wide = min(len(spans), room)
                for (at, high), (left, many) in product(
                    pieces(len(rows), max(room // wide, 1)), pieces(len(spans), wide)
                ):
                    some = rows[at : at + high]
                    needed = max(needed, some[-1].source + division.reach - top)
                    across = (many, *_distance(spans))
                    inside = (band[0].start, len(band))
                    first = division.columns.index(spans[left]) if left else index
                    tiles.append(
                        _ProductTile(
                            box,
                            needed,
                            some[0],
                            high,
                            _distance(some),
                            first,
                            (0, 1),
                            inside,
                            not tiles,
                            last=False,
                            across=across,
                        )
                    )
            tiles[-1] = replace(tiles[-1], last=True)
            yield from tiles


def window_tilings(context: TilingContext, layer: ResizeLayer) -> Tilings:
    """Yield the tilings of a resizing by windows that fit."""
    config, (x, y) = context.config, images(layer)
    n, division = config.n, divide_into_windows(layer, config.n)
    if division is None or context.acc_rows < config.acc_rows or context.x_on_chip:
        return
    kinds = len({span.weights for span in division.columns})
    for rows, buffers in product(_band_heights(y.h, _ROWS_OF_WINDOWS), SUM_BUFFERS):
        bands = _bands(division.rows, rows)
        runs = sum(len(list(_equal_spans(band))) for band in bands)
        steps, outputs = division.tiles * division.passes, y.h * len(division.columns)
        array = max(outputs, runs * kinds * n) * steps
        commands = (division.passes + 1) * runs * kinds
        held = 0 if context.y_on_chip else buffers * (rows * y.w * y.c + n)
        for per_load in (len(bands), *_BANDS_PER_LOAD):
            loads = ceil_div(len(bands), per_load)
            inputs = min(ceil_div(x.h, loads) + division.reach, x.h)
            used = _window_weights(division, n) + held + 2 * (inputs * x.w * x.c + n)
            if per_load > len(bands) or used > context.free:
                continue
            beats = _window_weights(division, n) / n + layer.batch * inputs * loads * x.w * x.c / n
            beats += 0 if context.y_on_chip else layer.batch * y.h * y.w * y.c / n
            busy = layer.batch * max(array, outputs * config.fuse_rate, commands * _ISSUE_CYCLES)
            yield (
                max(busy, beats * context.beat) + rows * y.w * y.c / n,
                LayerSchedule(
                    rows=rows,
                    rows_per_load=rows * per_load,
                    y_buffers=buffers,
                    acc_buffers=buffers,
                    fold_kernel_width=True,
                    on_chip=context.y_on_chip,
                ),
            )


#: Unit of the heights of bands that are tried.
_ROWS_OF_WINDOWS = 5


def window_tile_model(layer: ResizeLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a resizing by windows."""
    config, (x, y) = context.config, images(layer)
    n, division = config.n, divide_into_windows(layer, config.n)
    assert division is not None
    every = list(_window_tiles(config, layer, s))

    def tiles() -> Iterator[PipelineTile]:
        there: dict[LoadedPart, int] = {}
        for tile in every:
            outputs, steps = tile.groups * tile.across[0], division.tiles * division.passes
            key = tile.rows.weights, division.columns[tile.columns].weights
            loads: list[tuple[str, object, float]] = [("w", key, float(steps * n))]
            before = there.get(tile.box, 0)
            if tile.needed > before:
                there[tile.box] = tile.needed
                beats = image_beats(tile.needed - before, x.w, x.w, x.c, x.c, n)
                loads.append(("f", (tile.box, before), beats) if before else ("x", tile.box, beats))
            store = 0.0
            if tile.last and not context.y_on_chip:
                store = image_beats(tile.band[1], y.w, y.w, y.c, y.c, n)
            yield PipelineTile(
                tuple(loads),
                steps * max(outputs, n) + _NEXT_PRODUCT,
                outputs + _NEXT_RESULT,
                store,
                division.passes + 1 + (store > 0),
            )

    buffers = {"w": division.kinds, "x": s.x_buffers, "f": len(every)}
    return TilePipeline(tiles(), len(every), buffers, s.acc_buffers, s.y_buffers, result=EARLY_RESULT)


class WindowSteps(ProductSteps):
    """Code generator of a bilinear resizing by windows: pixels are the activations, and constants the weights."""

    def _tiles(self) -> tuple[_Division, Iterator[_ProductTile]]:
        division = divide_into_windows(self.layer, self.n)
        assert division is not None
        return division, _window_tiles(self.context.config, self.layer, self.context.schedule)

    def _outputs(self, tile: _ProductTile) -> int:
        return tile.groups * tile.across[0]

    def _matrix(self, tile: _ProductTile) -> NDArray[np.uint8]:
        """Return the weight tiles of a window: for each byte and image row, the weights of the window's bytes."""
        columns, n, channels = self.division.columns[tile.columns], self.n, self.channels
        down, across = np.array(tile.rows.weights[0]), np.array(columns.weights)
        whole = np.einsum("h,jw,cd->hwcjd", down, across, np.eye(channels, dtype=np.int64))
        used = whole.reshape(len(down), across.shape[1] * channels, len(across) * channels)
        tiles = np.zeros((len(down), n, n), np.int64)
        tiles[:, : used.shape[1], : used.shape[2]] = used
        return np.array(
            [tiles >> 8 * place & 255 for place in reversed(range(self.division.passes))], np.uint8
        )

    def _add_matrix(self, tile: _ProductTile, step: TileStep, acc: BufferRef) -> None:
        """Add the commands that compute the sums of a tile, from the most significant byte of the weights on."""
        division, n, (count, distance, _) = self.division, self.n, tile.across
        base, pixel, row = self._input(tile, step)
        weights, size = self.constants.get(self._key(tile), step), division.tiles * n * n
        for number in range(division.passes):
            word = MATRIX_WORD.pack(
                shift8=int(number > 0),
                a_unsigned=int(self.layer.shapes[self.layer.x].dtype == Dtype.U8),
                w_unsigned=1,
            )
            step.matrix.append(
                self.context.command(
                    Unit.MATRIX,
                    word=word,
                    a_base=base,
                    a_u=row,
                    a_v=pixel,
                    u_y=tile.distance[0],
                    u_ky=1,
                    v_x=distance,
                    x_count=count,
                    y_count=tile.groups,
                    ky_count=division.tiles,
                    k_rows=division.pixels * self.channels % n,
                    n_cols=self._tail(tile) % n,
                    w_base=weights.plus(number * size),
                    w_row=n,
                    w_ky=n * n,
                    acc_base=acc,
                    acc_x=1,
                    acc_y=count,
                )
            )

    def _tail(self, tile: _ProductTile) -> int:
        return self.division.columns[tile.columns].count * self.channels

    def _results(self, tile: _ProductTile, pixel: int, row: int, block: int) -> dict[str, int]:
        count, _, distance = tile.across
        lanes = self._tail(tile) % self.n
        fields = {"a_u": count, "x_count": count, "y_count": tile.groups, "lanes": lanes, "lanes_tail": lanes}
        return fields | {"d_x": distance * pixel, "d_y": tile.distance[1] * row}
