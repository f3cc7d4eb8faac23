"""Bilinear resizing by depthwise convolutions: pixels whose neighbors have the same weights are computed together."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Generic, NamedTuple, Protocol, TypeVar

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
from compiler.ir.identity import identity
from compiler.layers.base import Layer
from compiler.layers.tile_pipeline import EARLY_RESULT, PipelineTile, TilePipeline, lines
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings, images
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import bytes_word, quantize_multiplier
from compiler.util.tiles import ceil_div, cuts
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, MATRIX_WORD
from hw.isa.enums import Dtype, Requant, Rounding, Unit


@identity("PixelRun", "first", "step", "count", "source", "stride", "weights")
@dataclass(frozen=True)
class PixelRun:
    """Outputs along a dimension at equal distances, which combine inputs at equal distances with the same weights.

    Each output is one pixel, or a group of adjacent pixels. Pixel p of a group combines the inputs that follow the
    group's first input by p or more.

    Parameters
    ----------
    first, step, count : int
        First pixel of the first output, distance between the outputs in pixels, and number of outputs.
    source, stride : int
        First input of the first output, and distance between the first inputs of consecutive outputs.
    weights : tuple of tuples of int
        Weights of adjacent inputs, each for all pixels of a group. Those of each pixel add up to the same number.
    """

    first: int
    step: int
    count: int
    source: int
    stride: int
    weights: tuple[tuple[int, ...], ...]

    @property
    def pixels(self) -> int:
        """Number of pixels of an output."""
        return len(self.weights[0])

    @property
    def total(self) -> int:
        """Sum of the weights of a pixel."""
        return sum(of_pixels[0] for of_pixels in self.weights)

    @property
    def walk(self) -> tuple[int, int]:
        """Distance between the inputs that are streamed, and between the first ones of consecutive outputs in these."""
        return (1, max(self.stride, 1)) if len(self.weights) > 1 else (self.stride, 1)

    @property
    def streamed(self) -> int:
        """Number of inputs that are streamed."""
        return (self.count - 1) * self.walk[1] + len(self.weights)

    @property
    def end(self) -> int:
        """Number of the input that follows the last one."""
        return self.source + (self.count - 1) * self.stride + len(self.weights)

    def within(self, start: int, count: int) -> "PixelRun | None":
        """Return the part of the run within `count` outputs from `start`; None if there is none."""
        low = max(ceil_div(start - self.first, self.step), 0)
        high = min(ceil_div(start + count - self.first, self.step), self.count)
        if low >= high:
            return None
        first, source = self.first + low * self.step, self.source + low * self.stride
        return replace(self, first=first, count=high - low, source=source)


#: Weights of the rows and of the columns of outputs.
_Key = tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]


@identity("ResizeLayer", "rows", "columns", "packed", "rounding", "zero_point")
@dataclass(frozen=True, kw_only=True, eq=False)
class ResizeLayer(Layer):
    """Bilinear resizing of images of bytes; results are the sums of products, divided by those of weights.

    Parameters
    ----------
    rows, columns : tuple of PixelRun
        Runs that together contain each output row, and each output column, once.
    packed : tuple of PixelRun
        Runs of columns for a machine with at least twice as many lanes as there are channels, which computes groups of
        columns together; empty if single columns are as fast.
    rounding : Rounding
        Rounding mode of the division.
    zero_point : int
        Number that is subtracted from all inputs and added to the results, which determines where ties are even.
    """

    rows: tuple[PixelRun, ...]
    columns: tuple[PixelRun, ...]
    packed: tuple[PixelRun, ...]
    rounding: Rounding
    zero_point: int = 0

    def across(self, *, contiguous: bool) -> tuple[PixelRun, ...]:
        """Return the runs of columns that are computed; packed ones need images whose pixels are contiguous."""
        return self.packed if contiguous and self.packed else self.columns

    def reach(self, start: int, count: int) -> tuple[int, int]:
        """Return the first input column that `count` output columns from `start` read, and the number of columns.

        A group of pixels may read inputs before those that it depends on; their weights are 0.
        """
        return _extent((*self.columns, *self.packed), start, count)

    @cached_property
    def matrices(self) -> dict[_Key, NDArray[np.uint8]]:
        """Weights of each combination of runs as (bytes, taps, pixels of a group), most significant byte first."""
        found: dict[_Key, NDArray[np.uint8]] = {}
        for rows, columns in product(self.rows, (*self.columns, *self.packed)):
            key = rows.weights, columns.weights
            if key not in found:
                across = np.array(columns.weights)
                values = np.concatenate([down * across for (down,) in rows.weights])
                count = ceil_div(int(values.max()).bit_length(), 8)
                split = [values >> 8 * place & 255 for place in reversed(range(count))]
                found[key] = np.array(split, np.uint8)
        return found

    @property
    def passes(self) -> int:
        """Largest number of bytes of a weight, each of which takes a pass of MATRIX."""
        return max(map(len, self.matrices.values()))

    @property
    def weight_rows(self) -> int:
        """Number of rows of weights, one for each tap and byte, of all combinations of runs."""
        return sum(len(each) * len(each[0]) for each in self.matrices.values())


def _parts(runs: tuple[PixelRun, ...], start: int, count: int) -> list[PixelRun]:
    """Return the parts of runs within `count` outputs from `start`."""
    return [part for run in runs if (part := run.within(start, count))]


def _extent(runs: tuple[PixelRun, ...], start: int, count: int) -> tuple[int, int]:
    """Return the first input that `count` outputs from `start` depend on, and the number of inputs."""
    return _extent_of(_parts(runs, start, count))


def _extent_of(runs: Sequence[PixelRun]) -> tuple[int, int]:
    """Return the first input that some runs depend on, and the number of inputs."""
    first = min(run.source for run in runs)
    return first, max(run.end for run in runs) - first


def _strips(config: MlaConfig, layer: ResizeLayer, width: int) -> list[tuple[int, int]]:
    """Return the first column and the width of strips of at most `width` columns, whose lines the line buffers hold."""
    group = 1
    for run in (*layer.columns, *layer.packed):
        taps, stride = len(run.weights), run.walk[1]
        most = (config.line_depth // 2 - 2 * taps) // stride + 1
        if run.count > most:
            width = min(width, most * run.step)
        group = max(group, run.pixels)
    return list(pieces(images(layer)[1].w, max(width // group, 1) * group))


#: Numbers of accumulator buffers that are tried.
SUM_BUFFERS = (4, 3, 2)
#: Cycles of MATRIX or FUSE for a command in addition to its pixels.
COMMAND_CYCLES = 24
#: Maximum number of widths of strips that are tried.
_MAX_WIDTHS = 12
#: Numbers of tiles whose rows of the input are loaded together, if not those of all tiles are.
_TILES_PER_LOAD = (4, 2, 1)


class _Tiling(NamedTuple):
    """Division of the rows of an image, or of its columns, into tiles.

    Parameters
    ----------
    size : int
        Number of outputs of a tile.
    tiles : int
        Number of tiles, each of which has one or more runs.
    runs : int
        Number of runs of all tiles.
    most : int
        Largest number of outputs of a run of a tile.
    streamed : int
        Number of inputs that are streamed, of all runs.
    inputs : int
        Largest number of inputs of a tile.
    """

    size: int
    tiles: int
    runs: int
    most: int
    streamed: int
    inputs: int


def _tiling(runs: tuple[PixelRun, ...], tiles: list[tuple[int, int]]) -> _Tiling:
    """Return the numbers of some tiles, each of which is (first output, number of outputs)."""
    parts = [_parts(runs, *tile) for tile in tiles]
    every = [run for each in parts for run in each]
    return _Tiling(
        tiles[0][1],
        len(tiles),
        len(every),
        max(run.count for run in every),
        sum(run.streamed for run in every),
        max(_extent_of(each)[1] for each in parts),
    )


def run_tilings(context: TilingContext, layer: ResizeLayer) -> Tilings:
    """Yield the tilings of depthwise convolutions that fit, with whole rows and with strips of columns."""
    config, (_, y) = context.config, images(layer)
    heights = {size: _tiling(layer.rows, list(pieces(y.h, size))) for size in cuts(y.h)}
    runs, widths = layer.across(contiguous=True), dict[int, _Tiling]()
    for size in cuts(y.w)[:_MAX_WIDTHS]:
        strips = _strips(config, layer, size)
        # Single columns are computed if the pixels turn out not to be contiguous.
        widths[strips[0][1]] = _tiling(runs, strips)._replace(
            most=_most(layer, strips), inputs=max(layer.reach(*strip)[1] for strip in strips)
        )
    for width, rows, columns in product(widths.values(), heights.values(), cuts(ceil_div(y.c, config.n))):
        yield from _tilings(context, layer, rows, width, columns, heights)


def _tilings(
    context: TilingContext,
    layer: ResizeLayer,
    rows: _Tiling,
    width: _Tiling,
    columns: int,
    heights: Mapping[int, _Tiling],
) -> Tilings:
    """Yield the tilings of some rows and columns with `columns` blocks of channels."""
    n, (x, y) = context.config.n, images(layer)
    lanes, blocks = min(columns * n, y.c), ceil_div(y.c, n)
    packed = max(run.pixels for run in layer.across(contiguous=True))
    sums = rows.most * width.most
    buffers = next((count for count in SUM_BUFFERS if count * sums <= context.acc_rows), 0)
    if not buffers:
        return
    parts = ceil_div(blocks, columns)
    commands = rows.runs * width.runs * parts
    array = blocks * layer.passes * rows.streamed * width.streamed
    store = 0.0 if context.y_on_chip else parts * image_beats(y.h, y.w, y.w, lanes, y.c, n)
    for tiles in (0, *_TILES_PER_LOAD) if not context.x_on_chip else (0,):
        rows_per_load = rows.size * tiles or y.h
        if rows_per_load > y.h:
            continue
        loaded = heights.get(rows_per_load) or _tiling(layer.rows, list(pieces(y.h, rows_per_load)))
        used = layer.weight_rows * n
        used += 0 if context.x_on_chip else 2 * (loaded.inputs * width.inputs * lanes + n)
        used += 0 if context.y_on_chip else buffers * (rows.most * width.size * lanes + n)
        if used > context.free:
            continue
        bus = store
        if not context.x_on_chip:
            bus += parts * image_beats(loaded.inputs * loaded.tiles, x.w, x.w, lanes, x.c, n)
        fuse = y.h * y.w * blocks // packed * context.config.fuse_rate
        yield (
            layer.batch * (max(array, fuse, bus * context.beat) + commands * COMMAND_CYCLES)
            + rows.most * width.size * min(columns, blocks),
            LayerSchedule(
                rows=rows.size,
                rows_per_load=rows_per_load,
                strip_width=width.size,
                columns=columns,
                y_buffers=buffers,
                acc_buffers=buffers,
                on_chip=context.y_on_chip,
            ),
        )


@dataclass(frozen=True)
class LoadedPart:
    """Part of an input image that is loaded into one buffer.

    Parameters
    ----------
    image : int
        Number of the image of the batch.
    channels : (int, int)
        First block of channels, and number of blocks, which are also stored together.
    rows, columns : (int, int)
        First row and number of rows, and first column and number of columns.
    strip : (int, int)
        First column and number of columns of the output image.
    """

    image: int
    channels: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]
    strip: tuple[int, int]


class _Tile(NamedTuple):
    """Outputs of a run of rows and a run of columns, for some blocks of channels; commands compute them together.

    Parameters
    ----------
    box : LoadedPart
        Part of the input image that contains the inputs.
    needed : int
        Number of rows of this part that this tile and the ones before need.
    rows, columns : PixelRun
        Runs that contain the tile's outputs.
    blocks : (int, int)
        First block, and number of blocks, of the channels.
    first, last : bool
        True for the first and the last of the tiles whose results are stored together: a run of rows of a strip.
    """

    box: LoadedPart
    needed: int
    rows: PixelRun
    columns: PixelRun
    blocks: tuple[int, int]
    first: bool
    last: bool

    @property
    def pixels(self) -> int:
        """Number of outputs of each channel, or group of pixels."""
        return self.rows.count * self.columns.count


def _most(layer: ResizeLayer, strips: list[tuple[int, int]]) -> int:
    """Return the largest number of outputs of a run of columns in a strip."""
    runs = layer.columns, layer.packed
    return max(run.count for each, strip in product(runs, strips) for run in _parts(each, *strip))


def _tiles(config: MlaConfig, layer: ResizeLayer, s: LayerSchedule, *, contiguous: bool) -> Iterator[_Tile]:
    """Yield the tiles in order of execution."""
    (_, y), strips = images(layer), _strips(config, layer, s.strip_width)
    sums, runs = _sums(config, layer, s), layer.across(contiguous=contiguous)
    across = {strip: (_parts(runs, *strip), layer.reach(*strip)) for strip in strips}
    loads = [(load, _extent(layer.rows, *load)) for load in pieces(y.h, s.rows_per_load)]
    for channels, image, (load, source), strip in product(
        pieces(ceil_div(y.c, config.n), s.columns), range(layer.batch), loads, strips
    ):
        columns, sources = across[strip]
        box = LoadedPart(image, channels, source, sources, strip)
        for offset, count in pieces(load[1], min(s.rows, load[1])):
            parts = _parts(layer.rows, load[0] + offset, count)
            needed = sum(_extent_of(parts)) - source[0]
            for rows in parts:
                tiles = [
                    (each, (channels[0] + block, many))
                    for each in columns
                    for block, many in pieces(channels[1], max(sums // (rows.count * each.count), 1))
                ]
                for number, (each, blocks) in enumerate(tiles):
                    ends = number == 0, number == len(tiles) - 1
                    yield _Tile(box, needed, rows, each, blocks, *ends)


def _count(config: MlaConfig, layer: ResizeLayer, s: LayerSchedule) -> int:
    """Return the number of tiles of images whose pixels are contiguous."""
    (_, y), sums, runs = images(layer), _sums(config, layer, s), layer.across(contiguous=True)
    loads = pieces(y.h, s.rows_per_load)
    tiles = [
        (start + offset, count) for start, load in loads for offset, count in pieces(load, min(s.rows, load))
    ]
    down = Counter(run.count for tile in tiles for run in _parts(layer.rows, *tile))
    across = Counter(
        run.count for strip in _strips(config, layer, s.strip_width) for run in _parts(runs, *strip)
    )
    return layer.batch * sum(
        many * more * ceil_div(blocks, max(sums // (high * wide), 1))
        for (high, many), (wide, more) in product(down.items(), across.items())
        for _, blocks in pieces(ceil_div(y.c, config.n), s.columns)
    )


def _sums(config: MlaConfig, layer: ResizeLayer, s: LayerSchedule) -> int:
    """Return the number of rows of an accumulator buffer: those of the largest tile of one block, or more."""
    (_, y), strips = images(layer), _strips(config, layer, s.strip_width)
    tiles = pieces(y.h, min(s.rows, s.rows_per_load))
    high = max(run.count for tile in tiles for run in _parts(layer.rows, *tile))
    return high * _most(layer, strips)


def run_tile_model(layer: ResizeLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a resizing by depthwise convolutions."""
    config, (x, y) = context.config, images(layer)
    n, weights = config.n, float(layer.weight_rows)

    def tiles() -> Iterator[PipelineTile]:
        there: dict[LoadedPart, int] = {}
        for tile in _tiles(config, layer, s, contiguous=True):
            box = tile.box
            width = min(box.channels[1] * n, y.c - box.channels[0] * n)
            loads: list[tuple[str, object, float]] = [("w", 0, weights)]
            before = there.get(box, 0)
            if not context.x_on_chip and tile.needed > before:
                there[box] = tile.needed
                beats = image_beats(tile.needed - before, box.columns[1], x.w, width, x.c, n)
                loads.append(("f", (box, before), beats) if before else ("x", box, beats))
            store = 0.0
            if tile.last and not context.y_on_chip:
                store = image_beats(tile.rows.count, box.strip[1], y.w * tile.rows.step, width, y.c, n)
            passes = len(layer.matrices[tile.rows.weights, tile.columns.weights])
            yield PipelineTile(
                tuple(loads),
                tile.blocks[1] * passes * (tile.rows.streamed * tile.columns.streamed) + COMMAND_CYCLES,
                tile.blocks[1] * tile.pixels + COMMAND_CYCLES,
                store,
                passes + 1 + (store > 0),
            )

    count = _count(config, layer, s)
    buffers = {"w": 1, "x": s.x_buffers, "f": count}
    return TilePipeline(tiles(), count, buffers, s.acc_buffers, s.y_buffers, result=EARLY_RESULT)


def image_beats(rows: int, columns: int, pitch: int, width: int, channels: int, n: int) -> float:
    """Return the bus beats of some rows and columns, `width` of the `channels` of each pixel; `pitch` is in pixels."""
    if width == channels:
        return lines(rows, columns * width, pitch * width, n)
    return lines(rows * columns, width, channels, n)


def divided(layer: ResizeLayer, total: int) -> dict[str, int]:
    """Return the FUSE fields that divide sums by `total`, the sum of the weights, and write bytes."""
    dtype = layer.shapes[layer.y].dtype
    limits, (mult, exponent) = (
        np.iinfo(np.uint8 if dtype == Dtype.U8 else np.int8),
        quantize_multiplier(1 / total),
    )
    centred = int(layer.zero_point != 0)
    return {
        "src": FUSE_SRC.pack(requant=Requant.IMM, rounding=layer.rounding, bias_en=centred),
        "stage": FUSE_STAGE.pack(d_dst=1, d_dtype=dtype, tail_dim=FUSE_DIMS.index("n")),
        "mult": mult,
        "shifts": bytes_word(exponent),
        "bias": -layer.zero_point * total,
        "zp": layer.zero_point,
        "clip_lo": int(limits.min),
        "clip_hi": int(limits.max),
    }


class ResultTile(Protocol):
    """Interface of tiles whose results are stored together, on which the order of commands depends."""

    @property
    def box(self) -> LoadedPart:
        """Part of the input image that contains the inputs."""
        ...

    @property
    def first(self) -> bool:
        """True for the first of the tiles whose results are stored together."""
        ...

    @property
    def last(self) -> bool:
        """True for the last of these tiles."""
        ...


T = TypeVar("T", bound=ResultTile)


class TileSteps(ABC, Generic[T]):
    """Order of the commands of tiles, which share buffers of results, for all ways of resizing.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    layer : ResizeLayer
        Layer to generate code for.
    """

    tiles: list[T]
    acc: BufferRotation
    out: BufferRotation
    #: Number of rows of each load that have been loaded so far.
    rows_loaded: dict[Hashable, int]

    def __init__(self, context: CodegenContext, layer: ResizeLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.x, self.y = (context.layouts[each].parts(layer.batch) for each in (layer.x, layer.y))
        self.channels = layer.shapes[layer.y].c
        self.rows_loaded = {}

    def _begin(self, key: Hashable, _: BufferRef) -> list[Command]:
        self.rows_loaded[key] = 0
        return []

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        out = []
        target: BufferRef | None = None
        for tile in self.tiles:
            step, acc = TileStep(block=tile.box.channels[0]), self.acc.next()
            self._add_matrix(tile, step, acc)
            if tile.first and not self.y[0].on_chip:
                target = self.out.next()
            self._add_fuse(tile, step, acc, target)
            if tile.last and target is not None:
                step.stores.append(self._store(tile, target))
            out.append(step)
        return out

    @abstractmethod
    def _add_matrix(self, tile: T, step: TileStep, acc: BufferRef) -> None:
        """Add the commands of MATRIX for a tile."""

    @abstractmethod
    def _add_fuse(self, tile: T, step: TileStep, acc: BufferRef, target: BufferRef | None) -> None:
        """Add the commands of FUSE for a tile; `target` is the buffer of results that are stored in DRAM."""

    @abstractmethod
    def _store(self, tile: T, source: BufferRef) -> Command:
        """Return the command that stores the results since the last store."""


class RunSteps(TileSteps[_Tile]):
    """Code generator of a bilinear resizing by depthwise convolutions."""

    def __init__(self, context: CodegenContext, layer: ResizeLayer):
        super().__init__(context, layer)
        schedule, name, n = context.schedule, layer.name, self.n
        contiguous = all(each[0].pixel == self.channels for each in (self.x, self.y))
        self.tiles = list(_tiles(context.config, layer, schedule, contiguous=contiguous))
        lanes = max(self._lanes(tile) for tile in self.tiles)
        self._allocate_weights()
        sums = max(tile.blocks[1] * tile.pixels for tile in self.tiles)
        self.acc = BufferRotation(BufferMemory.ACC, f"{name}.acc", sums, schedule.acc_buffers)
        size = max(tile.rows.count * tile.box.strip[1] for tile in self.tiles) * lanes + n
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size, schedule.y_buffers)
        size = max(tile.box.rows[1] * tile.box.columns[1] for tile in self.tiles) * lanes + n
        self.x_tiles = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.x", size, schedule.x_buffers), self._begin
        )

    def _allocate_weights(self) -> None:
        """Allocate the weights of all lanes, which are loaded once."""
        self.places: dict[object, int] = {}
        parts = list[NDArray[np.uint8]]()
        for key, matrix in self.layer.matrices.items():
            self.places[key] = sum(len(part) for part in parts) * self.n
            pixels = matrix.shape[2]
            values = matrix.reshape(-1, pixels)
            part = np.zeros((len(values), self.n), np.uint8)
            lanes = self.n if pixels == 1 else pixels * self.channels
            part[:, :lanes] = values.repeat(lanes // pixels, 1)
            parts.append(part)
        every = np.concatenate(parts)
        self.source = self.context.constant(f"{self.layer.name}.weights", every)
        self.w = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{self.layer.name}.w", every.size), self._load_weights
        )

    def _load_weights(self, _: Hashable, address: BufferRef) -> list[Command]:
        source = BufferRef(self.source)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, len=self.source.size)]

    def _lanes(self, tile: _Tile) -> int:
        """Return the number of channels that are loaded and stored together."""
        block, blocks = tile.box.channels
        return min(blocks * self.n, self.channels - block * self.n)

    def _input(self, tile: _Tile, step: TileStep) -> tuple[BufferRef, int, int]:
        """Return the address of a tile's first pixel of the input, and the distances between pixels and between rows.

        The step loads the rows that the tile is the first one to need.
        """
        box, block = tile.box, tile.blocks[0] * self.n
        x = self.x[box.image]
        if x.on_chip:
            return x.address(tile.rows.source, tile.columns.source, block), x.pixel, x.row
        (top, total), (left, across) = box.rows, box.columns
        lanes, first = self._lanes(tile), box.channels[0] * self.n
        row = across * lanes
        address, there = self.x_tiles.get(box, step), self.rows_loaded[box]
        excess = -lanes % self.n  # the last reads extend into the following rows
        needed = min(tile.needed + ceil_div(excess, row), total)
        if there < needed:
            self.rows_loaded[box] = needed
            fields = image_lines(x.columns(left, across), needed - there, lanes, "dst", lanes)
            source, to = x.address(top + there, left, first), address.plus(there * row)
            step.loads.append(self.context.command(Unit.LOAD, dram=source, dst=to, **fields))
        offset = (tile.rows.source - top) * row + (tile.columns.source - left) * lanes + block - first
        return address.plus(offset), lanes, row

    def _add_matrix(self, tile: _Tile, step: TileStep, acc: BufferRef) -> None:
        """Add the commands that compute the sums of a tile, from the most significant byte of the weights on."""
        rows, columns, n = tile.rows, tile.columns, self.n
        base, pixel, row = self._input(tile, step)
        key, pitch = (rows.weights, columns.weights), columns.streamed
        weights, matrix = self.w.get(0, step).plus(self.places[key]), self.layer.matrices[key]
        lead = (len(rows.weights) - 1) * pitch + len(columns.weights) - 1
        for number, taps in enumerate(matrix):
            word = MATRIX_WORD.pack(
                dw=1,
                taps=len(columns.weights),
                groups=len(rows.weights),
                shift8=int(number > 0),
                a_unsigned=int(self.layer.shapes[self.layer.x].dtype == Dtype.U8),
                w_unsigned=1,
            )
            step.matrix.append(
                self.context.command(
                    Unit.MATRIX,
                    word=word,
                    a_base=base,
                    a_u=rows.walk[0] * row,
                    a_v=columns.walk[0] * pixel,
                    a_oc=self.x[0].block(n) if self.x[0].on_chip else n,
                    u_y=1,
                    v_x=1,
                    w_base=weights.plus(number * len(taps) * n),
                    w_row=n,
                    x_count=pitch,
                    oc_count=tile.blocks[1],
                    n_tail=self._tail(tile),
                    dw_lead=lead,
                    dw_len=(rows.streamed - len(rows.weights)) * pitch
                    + lead
                    + columns.streamed
                    - len(columns.weights)
                    + 1,
                    dw_sy=rows.walk[1],
                    dw_sx=columns.walk[1],
                    dw_out_w=columns.count,
                    acc_base=acc,
                    acc_x=1,
                    acc_y=columns.count,
                    acc_oc=tile.pixels,
                )
            )

    def _tail(self, tile: _Tile) -> int:
        """Return the number of lanes of a tile's last block."""
        if tile.columns.pixels > 1:
            return tile.columns.pixels * self.channels
        return min(self.channels - (sum(tile.blocks) - 1) * self.n, self.n)

    def _add_fuse(self, tile: _Tile, step: TileStep, acc: BufferRef, target: BufferRef | None) -> None:
        """Add the command that divides the sums of a tile; `target` is the buffer of its results, if not on chip."""
        layer, rows, columns, y, n = self.layer, tile.rows, tile.columns, self.y[tile.box.image], self.n
        if target is None:
            address, pixel, row = y.address(rows.first, columns.first, tile.blocks[0] * n), y.pixel, y.row
            row *= rows.step
        else:
            pixel, block = self._lanes(tile), (tile.blocks[0] - tile.box.channels[0]) * n
            address, row = (
                target.plus((columns.first - tile.box.strip[0]) * pixel + block),
                tile.box.strip[1] * pixel,
            )
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                **divided(layer, rows.total * columns.total),
                a_base=acc,
                a_n=tile.pixels,
                a_u=columns.count,
                a_v=1,
                u_y=1,
                v_x=1,
                x_count=columns.count,
                y_count=rows.count,
                n_count=tile.blocks[1],
                d_base=address,
                d_x=columns.step * pixel,
                d_y=row,
                d_n=y.block(n) if target is None else n,
                lanes_tail=self._tail(tile),
            )
        )

    def _store(self, tile: _Tile, source: BufferRef) -> Command:
        """Return the command that stores the results of a run of rows of a strip."""
        y, lanes, (left, width) = self.y[tile.box.image], self._lanes(tile), tile.box.strip
        rows = replace(y.columns(left, width), h=tile.rows.count, row=tile.rows.step * y.row)
        fields = image_lines(rows, tile.rows.count, lanes, "src", lanes)
        target = y.address(tile.rows.first, left, tile.box.channels[0] * self.n)
        return self.context.command(Unit.STORE, dram=target, src=source, **fields)
