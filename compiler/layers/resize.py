"""Bilinear resizing of images of bytes, in one of three ways.

Pixels whose neighbors have the same weights are a depthwise convolution of 2x2 or fewer taps. If there are many kinds
of pixels, some adjacent outputs are the product of a constant matrix, their weights, with the inputs that they depend
on: input pixels are the rows of the weight tiles of MATRIX, so that the channels of a block are the array's columns.
With few channels, windows of adjacent bytes of the input are multiplied by constant weight tiles.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import (
    BufferMemory,
    BufferRef,
    CircularBuffer,
    Command,
    TensorLayout,
    TileStep,
)
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers, image_lines, pieces
from compiler.ir.identity import identity
from compiler.layers.base import Image, Layer
from compiler.layers.depthwise import MAX_STRIDE
from compiler.layers.layer_kind import BYTES_TO_BYTES, LayerKind, Lowering
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError, affine
from compiler.layers.tile_pipeline import EARLY_RESULT, PipelineTile, TilePipeline, lines
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings, images
from compiler.reference.node_invocation import Kernels, NodeInvocation
from compiler.reference.shape import Interpolation, Lines, interpolation
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


_ROUNDING = {"up": Rounding.SINGLE, "away": Rounding.AWAY, "even": Rounding.EVEN}
#: Unit of float32 fractions: sums of products of bytes and two such fractions are exact in float32.
_FLOAT_ONE = 256
#: Largest sum of weights by which bytes are divided exactly with ties to even, for which FUSE rounds to 24 bits first.
MAX_EXACT_TOTAL = 1 << 15
#: Maximum number of combinations of a run of rows and a run of columns, each of which needs commands of its own.
_MAX_KINDS = 2500
#: Share of the scratchpad that the weights of all combinations may take.
_MAX_WEIGHTS_SHARE = 1 / 2


def lower_resize(low: LoweringContext) -> ResizeLayer:
    """Lower a bilinear resizing.

    Raises
    ------
    UnsupportedLoweringError
        Fractions of float32 positions are not exact, or the pixels differ in too many ways.
    """
    how = interpolation(NodeInvocation(low.anchor, (low.x,), (), low.y, cast(Kernels, low.rounding)))
    down, across = (_shares(line, how) for line in (how.rows, how.columns))
    rows, columns = _runs(down, 1), _runs(across, 1)
    total = max(run.total for run in rows) * max(run.total for run in columns)
    if how.ties == "even" and total > MAX_EXACT_TOTAL:
        raise UnsupportedLoweringError(
            f"the weights of pixels are multiples of 1/{total:,}, finer than 1/{MAX_EXACT_TOTAL:,}"
        )
    kinds = len(rows) * len(columns)
    if kinds > _MAX_KINDS:
        raise UnsupportedLoweringError(
            f"the weights of neighboring pixels differ in {kinds:,} ways between pixels, more than {_MAX_KINDS:,}"
        )
    layer = ResizeLayer(
        **low.common(),
        macs=4 * low.y.elements,
        batch=low.x.shape[0],
        rows=rows,
        columns=columns,
        packed=_packed(low.config, rows, columns, across, low.y.shape[3]),
        rounding=_ROUNDING[how.ties],
        zero_point=affine(low.x).zero_point if how.ties == "even" else 0,
    )
    held = min(layer.weight_rows * low.config.n, _product_weights(low.config, layer))
    room = int(low.config.sp_bytes * _MAX_WEIGHTS_SHARE)
    if held > room:
        raise UnsupportedLoweringError(
            f"the weights of neighboring pixels differ in {kinds:,} ways between pixels, and take {held:,} bytes of "
            f"scratchpad, more than {room:,}"
        )
    return layer


def _shares(line: Lines, how: Interpolation) -> list[dict[int, int]]:
    """Return the weight, which is not zero, of each input that an output of a dimension depends on."""
    one = int(how.one)
    before, after, fractions = line
    if isinstance(how.one, np.floating):
        one = _FLOAT_ONE
        fractions = fractions * np.float32(one)
        if (fractions != np.rint(fractions)).any():
            raise UnsupportedLoweringError(f"some float32 fractions are not multiples of 1/{one}")
    found = []
    for first, last, fraction in zip(before.tolist(), after.tolist(), fractions.tolist(), strict=True):
        part = int(fraction)
        shares = {first: one} if first == last else {first: one - part, last: part}
        found.append({place: share for place, share in shares.items() if share})
    return found


def _runs(shares: list[dict[int, int]], pixels: int, most: int = 2) -> tuple[PixelRun, ...]:
    """Return the runs of a dimension, in order of their first outputs.

    Parameters
    ----------
    shares : list of dict of int to int
        Weight of each input, for each output pixel.
    pixels : int
        Number of pixels of a group. Pixels are computed separately where the inputs of a group would begin before the
        image or be more than `most`.
    most : int
        Maximum number of adjacent inputs of an output.
    """
    latest: dict[tuple[tuple[int, ...], ...], PixelRun] = {}
    done: list[PixelRun] = []
    for first in range(0, len(shares), pixels):
        group = shares[first : first + pixels]
        source, weights = _combined(group)
        outputs = [(first, source, weights)]
        if source < 0 or len(weights) > most:
            outputs = [(first + number, *_combined([each])) for number, each in enumerate(group)]
        for output, source, weights in outputs:
            found = latest.get(weights)
            longer = None if found is None else _longer(found, output, source)
            if found is not None and longer is None:
                done.append(found)
            latest[weights] = longer or PixelRun(output, 1, 1, source, 0, weights)
    return tuple(sorted((*done, *latest.values()), key=lambda run: run.first))


def _combined(group: list[dict[int, int]]) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Return the first input of a group of pixels, and its weights without common factors (`PixelRun`)."""
    first = min(min(shares) - pixel for pixel, shares in enumerate(group))
    end = max(max(shares) - pixel for pixel, shares in enumerate(group)) + 1
    factor = math.gcd(*(share for shares in group for share in shares.values()))
    weights = [
        tuple(shares.get(place + pixel, 0) // factor for pixel, shares in enumerate(group))
        for place in range(first, end)
    ]
    return first, tuple(weights)


def _packed(
    config: MlaConfig,
    rows: tuple[PixelRun, ...],
    columns: tuple[PixelRun, ...],
    across: list[dict[int, int]],
    channels: int,
) -> tuple[PixelRun, ...]:
    """Return the runs of groups of columns that take the fewest cycles; none if single columns take as few."""
    sizes = (pixels for pixels in range(2, config.n // channels + 1) if len(across) % pixels == 0)
    found = [columns, *(_runs(across, pixels, config.n // 2) for pixels in sizes)]
    best = min(found, key=lambda runs: _cycles(rows, runs))
    return () if best is columns else best


def _cycles(rows: tuple[PixelRun, ...], columns: tuple[PixelRun, ...]) -> int:
    """Return the estimated cycles of the commands for one block of channels."""
    pairs = list(product(rows, columns))
    array = sum(down.streamed * across.streamed for down, across in pairs)
    return max(array, sum(down.count * across.count for down, across in pairs)) + _COMMAND_CYCLES * len(pairs)


def _longer(run: PixelRun, output: int, source: int) -> PixelRun | None:
    """Return a run with one more output; None if that output does not continue it."""
    step, stride = output - run.first, source - run.source
    if run.count > 1:
        last = run.first + (run.count - 1) * run.step, run.source + (run.count - 1) * run.stride
        step, stride = output - last[0], source - last[1]
        if (step, stride) != (run.step, run.stride):
            return None
    if len(run.weights) > 1 and not 0 < stride <= MAX_STRIDE:
        return None
    return replace(run, step=step, stride=stride, count=run.count + 1)


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
_SUM_BUFFERS = (4, 3, 2)
#: Cycles of MATRIX or FUSE for a command in addition to its pixels.
_COMMAND_CYCLES = 24
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


def resize_tilings(context: TilingContext, layer: ResizeLayer) -> Tilings:
    """Yield the tilings of a resizing that fit, with whole rows and with strips of columns."""
    kinds = len(layer.rows) * len(layer.columns)
    if _streams_many(layer, context) or layer.weight_rows * context.config.n > context.free:
        found = [*_product_tilings(context, layer), *_window_tilings(context, layer)]
        yield from found
        if found and kinds > _MAX_DEPTHWISE_KINDS:
            return
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
    buffers = next((count for count in _SUM_BUFFERS if count * sums <= context.acc_rows), 0)
    if not buffers:
        return
    parts = ceil_div(blocks, columns)
    commands = rows.runs * width.runs * parts
    array = blocks * layer.passes * rows.streamed * width.streamed
    store = 0.0 if context.y_on_chip else parts * _image_beats(y.h, y.w, y.w, lanes, y.c, n)
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
            bus += parts * _image_beats(loaded.inputs * loaded.tiles, x.w, x.w, lanes, x.c, n)
        fuse = y.h * y.w * blocks // packed * context.config.fuse_rate
        yield (
            layer.batch * (max(array, fuse, bus * context.beat) + commands * _COMMAND_CYCLES)
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
class _Box:
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
    box : _Box
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

    box: _Box
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
        box = _Box(image, channels, source, sources, strip)
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


def resize_tile_model(layer: ResizeLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a bilinear resizing."""
    n = context.config.n
    if s.fold_kernel_width and not context.x_on_chip and _windows(layer, n) is not None:
        return _window_tile_model(layer, s, context)
    if (pixels := _pixels_per_tile(n, layer, s, on_chip=context.x_on_chip)) > 1:
        return _product_tile_model(layer, replace(s, pixels_per_pass=pixels), context)
    config, (x, y) = context.config, images(layer)
    n, weights = config.n, float(layer.weight_rows)

    def tiles() -> Iterator[PipelineTile]:
        there: dict[_Box, int] = {}
        for tile in _tiles(config, layer, s, contiguous=True):
            box = tile.box
            width = min(box.channels[1] * n, y.c - box.channels[0] * n)
            loads: list[tuple[str, object, float]] = [("w", 0, weights)]
            before = there.get(box, 0)
            if not context.x_on_chip and tile.needed > before:
                there[box] = tile.needed
                beats = _image_beats(tile.needed - before, box.columns[1], x.w, width, x.c, n)
                loads.append(("f", (box, before), beats) if before else ("x", box, beats))
            store = 0.0
            if tile.last and not context.y_on_chip:
                store = _image_beats(tile.rows.count, box.strip[1], y.w * tile.rows.step, width, y.c, n)
            passes = len(layer.matrices[tile.rows.weights, tile.columns.weights])
            yield PipelineTile(
                tuple(loads),
                tile.blocks[1] * passes * (tile.rows.streamed * tile.columns.streamed) + _COMMAND_CYCLES,
                tile.blocks[1] * tile.pixels + _COMMAND_CYCLES,
                store,
                passes + 1 + (store > 0),
            )

    count = _count(config, layer, s)
    buffers = {"w": 1, "x": s.x_buffers, "f": count}
    return TilePipeline(tiles(), count, buffers, s.acc_buffers, s.y_buffers, result=EARLY_RESULT)


def _image_beats(rows: int, columns: int, pitch: int, width: int, channels: int, n: int) -> float:
    """Return the bus beats of some rows and columns, `width` of the `channels` of each pixel; `pitch` is in pixels."""
    if width == channels:
        return lines(rows, columns * width, pitch * width, n)
    return lines(rows * columns, width, channels, n)


def _divided(layer: ResizeLayer, total: int) -> dict[str, int]:
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


AnyTile = TypeVar("AnyTile", _Tile, "_ProductTile")


class _TileSteps(ABC, Generic[AnyTile]):
    """Order of the commands of tiles, which share buffers of results, for all ways of resizing."""

    tiles: list[AnyTile]
    acc: BufferRotation
    out: BufferRotation
    y: Sequence[TensorLayout]
    #: Number of rows of each load that have been loaded so far.
    rows_loaded: dict[Hashable, int]

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
    def _add_matrix(self, tile: AnyTile, step: TileStep, acc: BufferRef) -> None:
        """Add the commands of MATRIX for a tile."""

    @abstractmethod
    def _add_fuse(self, tile: AnyTile, step: TileStep, acc: BufferRef, target: BufferRef | None) -> None:
        """Add the commands of FUSE for a tile; `target` is the buffer of results that are stored in DRAM."""

    @abstractmethod
    def _store(self, tile: AnyTile, source: BufferRef) -> Command:
        """Return the command that stores the results since the last store."""


class ResizeSteps(_TileSteps[_Tile]):
    """Code generator of a bilinear resizing.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    layer : ResizeLayer
        Layer to generate code for.
    """

    def __init__(self, context: CodegenContext, layer: ResizeLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        schedule, name, n = context.schedule, layer.name, self.n
        self.x, self.y = (context.layouts[each].parts(layer.batch) for each in (layer.x, layer.y))
        self.channels = layer.shapes[layer.y].c
        contiguous = all(each[0].pixel == self.channels for each in (self.x, self.y))
        self.tiles = list(_tiles(context.config, layer, schedule, contiguous=contiguous))
        lanes = max(self._lanes(tile) for tile in self.tiles)
        self._allocate_weights()
        sums = max(tile.blocks[1] * tile.pixels for tile in self.tiles)
        self.acc = BufferRotation(BufferMemory.ACC, f"{name}.acc", sums, schedule.acc_buffers)
        size = max(tile.rows.count * tile.box.strip[1] for tile in self.tiles) * lanes + n
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size, schedule.y_buffers)
        self.rows_loaded = {}
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
                **_divided(layer, rows.total * columns.total),
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


# Products with constant matrices: the pixels of a few image rows are the weights of MATRIX, and the weights of the
# interpolation are its activations.

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


def _product_weights(config: MlaConfig, layer: ResizeLayer) -> float:
    """Return the bytes of scratchpad for the weights of products; infinity if products are not possible."""
    sizes = (
        division.held(config.n)
        for pixels in _pixels_of_tiles(config.n, layer, on_chip=False)
        if (division := _division(layer, config.n, pixels)).largest * min(_SUM_BUFFERS) <= config.acc_rows
    )
    return min(sizes, default=math.inf)


@lru_cache(maxsize=64)
def _division(layer: ResizeLayer, n: int, pixels: int) -> _Division:
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


def _pixels_of_tiles(n: int, layer: ResizeLayer, *, on_chip: bool) -> list[int]:
    """Return the numbers of adjacent pixels of weight tiles that are tried: tiles of one to four rows."""
    x, _ = images(layer)
    found = {min(n // stacked, x.w) for stacked in range(1, _MAX_STACKED + 1)}
    return sorted(
        pixels
        for pixels in found
        if pixels > 1 and n // pixels <= x.h and (pixels * 2 > n or pixels == x.w or not on_chip)
    )


def _pixels_per_tile(n: int, layer: ResizeLayer, s: LayerSchedule, *, on_chip: bool) -> int:
    """Return the number of adjacent pixels of a weight tile under a schedule; 1 if there are no products.

    Tiles have the pixels of one row if those of several rows are not in the scratchpad as they need them.
    """
    if s.pixels_per_pass == 1:
        return 1
    possible = _pixels_of_tiles(n, layer, on_chip=on_chip)
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
    box : _Box
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

    box: _Box
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
    division = _division(layer, n, s.pixels_per_pass)
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
        box = _Box(image, channels, (top, height), (0, x.w), (0, y.w))
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


def _product_tilings(context: TilingContext, layer: ResizeLayer) -> Tilings:
    """Yield the tilings of a resizing by products that fit."""
    config, (x, y) = context.config, images(layer)
    n, blocks = config.n, ceil_div(y.c, config.n)
    for pixels, columns in product(_pixels_of_tiles(n, layer, on_chip=context.x_on_chip), cuts(blocks)):
        division, lanes = _division(layer, n, pixels), min(columns * n, y.c)
        buffers = next((count for count in _SUM_BUFFERS if count * division.largest <= context.acc_rows), 0)
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
                    bus += layer.batch * parts * _image_beats(y.h, y.w, y.w, lanes, y.c, n)
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


#: Number of combinations of a run of rows and a run of columns from which products take fewer cycles than they do.
_MAX_DEPTHWISE_KINDS = 100
#: Ratio of the cycles of MATRIX for depthwise convolutions and for products from which the latter are tried: they load
#: more weights and, for their spans, more pixels.
_MANY_STREAMED = 1.25


def _streams_many(layer: ResizeLayer, context: TilingContext) -> bool:
    """Return True if depthwise convolutions stream so many pixels that products or windows may be faster."""
    n, (_, y) = context.config.n, images(layer)
    blocks = ceil_div(y.c, n)
    depthwise = _cycles(layer.rows, layer.across(contiguous=True)) * layer.passes * blocks
    divisions = (
        _division(layer, n, pixels) for pixels in _pixels_of_tiles(n, layer, on_chip=context.x_on_chip)
    )
    cycles = [float(blocks * max(each.array_cycles(n), y.h * y.w)) for each in divisions]
    windows = None if context.x_on_chip else _windows(layer, n)
    if windows is not None:
        cycles.append(float(y.h * len(windows.columns) * windows.tiles * windows.passes))
    return depthwise > _MANY_STREAMED * min(cycles, default=math.inf)


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
        return _image_beats(rows, x.w, x.w, lanes, x.c, n)
    return len(division.columns) * _image_beats(rows, division.pixels, x.w, lanes, x.c, n)


def _product_tile_model(layer: ResizeLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a resizing by products."""
    config, (x, y) = context.config, images(layer)
    n, division = config.n, _division(layer, config.n, s.pixels_per_pass)
    every = list(_product_tiles(config, layer, s))

    def tiles() -> Iterator[PipelineTile]:
        there: dict[_Box, int] = {}
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
                store = _image_beats(tile.band[1], y.w, y.w, width, y.c, n)
            yield PipelineTile(
                tuple(loads),
                count * steps * max(outputs, n) + _NEXT_PRODUCT,
                count * outputs + _NEXT_RESULT,
                store,
                division.passes + 1 + (store > 0),
            )

    buffers = {"w": division.kinds, "x": s.x_buffers, "f": len(every)}
    return TilePipeline(tiles(), len(every), buffers, s.acc_buffers, s.y_buffers, result=EARLY_RESULT)


class ProductSteps(_TileSteps[_ProductTile]):
    """Code generator of a bilinear resizing by products.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    layer : ResizeLayer
        Layer to generate code for.
    """

    def __init__(self, context: CodegenContext, layer: ResizeLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        schedule, name, n = context.schedule, layer.name, self.n
        self.x, self.y = (context.layouts[each].parts(layer.batch) for each in (layer.x, layer.y))
        self.channels = layer.shapes[layer.y].c
        self.division, tiles = self._tiles()
        self.tiles = list(tiles)
        self.total = math.prod(math.lcm(*(run.total for run in runs)) for runs in (layer.rows, layer.columns))
        self.acc = BufferRotation(
            BufferMemory.ACC, f"{name}.acc", max(map(self._outputs, self.tiles)), schedule.acc_buffers
        )
        lanes = max(self._lanes(tile.box) for tile in self.tiles)
        size = max(tile.band[1] for tile in self.tiles) * self.y[0].w * lanes + n
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size, schedule.y_buffers)
        self.rows_loaded = {}
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
        division = _division(self.layer, self.n, schedule.pixels_per_pass)
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

    def _lanes(self, box: _Box) -> int:
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
        self, box: _Box, start: int, count: int, target: BufferRef, row: int, strip: int
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
                **_divided(self.layer, self.total),
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
def _windows(layer: ResizeLayer, n: int) -> _Division | None:
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
    (x, y), division, room = images(layer), _windows(layer, config.n), config.acc_rows // s.acc_buffers
    assert division is not None
    bands = _bands(division.rows, s.rows)
    boxes = list(pieces(len(bands), max(s.rows_per_load // s.rows, 1)))
    columns = [(division.columns.index(spans[0]), spans) for spans in _equal_spans(list(division.columns))]
    for image, (start, count) in product(range(layer.batch), boxes):
        every = [span for band in bands[start : start + count] for span in band]
        top = min(span.source for span in every)
        height = max(span.source for span in every) + division.reach - top
        box, needed = _Box(image, (0, 1), (top, height), (0, x.w), (0, y.w)), 0
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


def _window_tilings(context: TilingContext, layer: ResizeLayer) -> Tilings:
    """Yield the tilings of a resizing by windows that fit."""
    config, (x, y) = context.config, images(layer)
    n, division = config.n, _windows(layer, config.n)
    if division is None or context.acc_rows < config.acc_rows or context.x_on_chip:
        return
    kinds = len({span.weights for span in division.columns})
    for rows, buffers in product(_band_heights(y.h, _ROWS_OF_WINDOWS), _SUM_BUFFERS):
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


def _window_tile_model(layer: ResizeLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a resizing by windows."""
    config, (x, y) = context.config, images(layer)
    n, division = config.n, _windows(layer, config.n)
    assert division is not None
    every = list(_window_tiles(config, layer, s))

    def tiles() -> Iterator[PipelineTile]:
        there: dict[_Box, int] = {}
        for tile in every:
            outputs, steps = tile.groups * tile.across[0], division.tiles * division.passes
            key = tile.rows.weights, division.columns[tile.columns].weights
            loads: list[tuple[str, object, float]] = [("w", key, float(steps * n))]
            before = there.get(tile.box, 0)
            if tile.needed > before:
                there[tile.box] = tile.needed
                beats = _image_beats(tile.needed - before, x.w, x.w, x.c, x.c, n)
                loads.append(("f", (tile.box, before), beats) if before else ("x", tile.box, beats))
            store = 0.0
            if tile.last and not context.y_on_chip:
                store = _image_beats(tile.band[1], y.w, y.w, y.c, y.c, n)
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
        division = _windows(self.layer, self.n)
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


def resize_steps(context: CodegenContext, layer: ResizeLayer) -> list[TileStep]:
    """Generate the steps of a bilinear resizing."""
    schedule, n = context.schedule, context.config.n
    x, y = (context.layouts[each] for each in (layer.x, layer.y))
    contiguous = not x.on_chip and (not y.on_chip or y.pixel == layer.shapes[layer.y].c)
    if schedule.fold_kernel_width and contiguous and _windows(layer, n) is not None:
        return WindowSteps(context, layer).steps()
    pixels = _pixels_per_tile(n, layer, schedule, on_chip=x.on_chip)
    if pixels > 1 and (not x.on_chip or x.even or pixels * 2 > n):
        schedule = replace(schedule, pixels_per_pass=pixels)
        return ProductSteps(replace(context, schedule=schedule), layer).steps()
    return ResizeSteps(context, layer).steps()


KIND = LayerKind(
    name="resize",
    layer=ResizeLayer,
    lowerings={
        "resize_bilinear": Lowering(lower_resize, BYTES_TO_BYTES, strided_input=True, strided_output=True)
    },
    tilings=resize_tilings,
    tile_model=resize_tile_model,
    steps=resize_steps,
    rank_by_tile_model=True,
    resembles="depthwise",
)
