"""Bilinear resizing: pixels whose neighbors have the same weights are a depthwise convolution of 2x2 or fewer taps."""

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
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
from compiler.ir.identity import identity
from compiler.layers.base import Layer
from compiler.layers.depthwise import MAX_STRIDE
from compiler.layers.layer_kind import BYTES_TO_BYTES, LayerKind, Lowering
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError
from compiler.layers.tile_pipeline import EARLY_RESULT, PipelineTile, TilePipeline, lines
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings, images, strip_widths
from compiler.reference.node_invocation import NodeInvocation
from compiler.reference.shape import Interpolation, Lines, interpolation
from compiler.schedule.schedule import ALL_COLUMNS, LayerSchedule
from compiler.util.scaling import bytes_word, quantize_multiplier
from compiler.util.tiles import ceil_div, cuts
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, MATRIX_WORD
from hw.isa.enums import Dtype, Requant, Rounding, Unit


@identity("Run", "first", "step", "count", "source", "stride", "weights")
@dataclass(frozen=True)
class Run:
    """Outputs along a dimension at equal distances, which combine inputs at equal distances with the same weights.

    Parameters
    ----------
    first, step, count : int
        First output, distance between the outputs, and their number.
    source, stride : int
        First input of the first output, and distance between the first inputs of consecutive outputs.
    weights : tuple of int
        Weights of one input, or of two adjacent inputs; their sum is a power of two.
    """

    first: int
    step: int
    count: int
    source: int
    stride: int
    weights: tuple[int, ...]

    @property
    def bits(self) -> int:
        """Binary logarithm of the sum of the weights."""
        return sum(self.weights).bit_length() - 1

    @property
    def walk(self) -> tuple[int, int]:
        """Distance between the inputs that are streamed, and between the first ones of consecutive outputs in these."""
        return (1, self.stride) if len(self.weights) > 1 else (self.stride, 1)

    @property
    def streamed(self) -> int:
        """Number of inputs that are streamed."""
        return (self.count - 1) * self.walk[1] + len(self.weights)

    @property
    def end(self) -> int:
        """Number of the input that follows the last one."""
        return self.source + (self.count - 1) * self.stride + len(self.weights)

    def within(self, start: int, count: int) -> "Run | None":
        """Return the part of the run within `count` outputs from `start`; None if there is none."""
        low = max(ceil_div(start - self.first, self.step), 0)
        high = min(ceil_div(start + count - self.first, self.step), self.count)
        if low >= high:
            return None
        first, source = self.first + low * self.step, self.source + low * self.stride
        return replace(self, first=first, count=high - low, source=source)


@identity("ResizeLayer", "rows", "columns", "rounding")
@dataclass(frozen=True, kw_only=True, eq=False)
class ResizeLayer(Layer):
    """Bilinear resizing of images of bytes; results are the sums of products, divided by a power of two.

    Parameters
    ----------
    rows, columns : tuple of Run
        Runs that together contain each output row, and each output column, once.
    rounding : Rounding
        Rounding mode of the division.
    """

    rows: tuple[Run, ...]
    columns: tuple[Run, ...]
    rounding: Rounding


#: Unit of float32 fractions: sums of products of bytes and two such fractions are exact in float32.
_FLOAT_ONE = 256
#: Words of the instruction store for each combination of a run of rows and a run of columns.
_PAIR_WORDS = 24


def lower_resize(low: LoweringContext) -> ResizeLayer:
    """Lower a bilinear resizing.

    Raises
    ------
    UnsupportedLoweringError
        Fractions of float32 positions are not exact, or the pixels differ in too many ways.
    """
    how = interpolation(NodeInvocation(low.anchor, (low.x,), (), low.y, low.rounding))  # type: ignore[arg-type]
    rows, columns = (_runs(line, how) for line in (how.rows, how.columns))
    kinds, most = len(rows) * len(columns), low.config.wis_words // _PAIR_WORDS
    if kinds > most:
        raise UnsupportedLoweringError(
            f"the weights of neighboring pixels differ in {kinds:,} ways between pixels, more than {most:,}"
        )
    return ResizeLayer(
        **low.common(),
        macs=4 * low.y.elements,
        batch=low.x.shape[0],
        rows=rows,
        columns=columns,
        rounding=Rounding.SINGLE if how.ties_up else Rounding.AWAY,
    )


def _runs(line: Lines, how: Interpolation) -> tuple[Run, ...]:
    """Return the runs of a dimension, in order of their first outputs."""
    before, after, fractions = line
    one = int(how.one)
    if isinstance(how.one, np.float32):
        one = _FLOAT_ONE
        fractions = fractions * np.float32(one)
        if (fractions != np.rint(fractions)).any():
            raise UnsupportedLoweringError(f"some float32 fractions are not multiples of 1/{one}")
    open_: dict[tuple[int, ...], Run] = {}
    done: list[Run] = []
    for output, (first, last, fraction) in enumerate(zip(before, after, fractions, strict=True)):
        source, weights = _reduced(int(first), int(last), int(fraction), one)
        found = open_.get(weights)
        longer = None if found is None else _longer(found, output, source)
        if found is not None and longer is None:
            done.append(found)
        open_[weights] = longer or Run(output, 1, 1, source, 0, weights)
    return tuple(sorted((*done, *open_.values()), key=lambda run: run.first))


def _reduced(first: int, last: int, fraction: int, one: int) -> tuple[int, tuple[int, ...]]:
    """Return the first input of an output with a weight that is not zero, and the weights without common factors."""
    if fraction in (0, one) or first == last:
        return (last if fraction == one else first), (1,)
    factor = math.gcd(fraction, one)
    return first, ((one - fraction) // factor, fraction // factor)


def _longer(run: Run, output: int, source: int) -> Run | None:
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


def _parts(runs: tuple[Run, ...], start: int, count: int) -> list[Run]:
    """Return the parts of runs within `count` outputs from `start`."""
    return [part for run in runs if (part := run.within(start, count))]


def _extent(runs: tuple[Run, ...], start: int, count: int) -> tuple[int, int]:
    """Return the first input that `count` outputs from `start` depend on, and the number of inputs."""
    parts = _parts(runs, start, count)
    first = min(part.source for part in parts)
    return first, max(part.end for part in parts) - first


def _bytes_of(rows: Run, columns: Run) -> NDArray[np.uint8]:
    """Return the weights of 2x2 or fewer taps as (bytes, taps), the most significant byte first."""
    values = np.outer(rows.weights, columns.weights).reshape(-1)
    count = ceil_div(int(values.max()).bit_length(), 8)
    return np.array([values >> 8 * place & 255 for place in reversed(range(count))], np.uint8)


def _matrices(layer: ResizeLayer) -> dict[tuple[tuple[int, ...], ...], NDArray[np.uint8]]:
    """Return the weights of each combination of weights of rows and of columns, as `_bytes_of` does."""
    return {
        (rows.weights, columns.weights): _bytes_of(rows, columns)
        for rows, columns in product(layer.rows, layer.columns)
    }


def _strips(config: MlaConfig, layer: ResizeLayer, width: int) -> list[tuple[int, int]]:
    """Return the first column and the width of strips of at most `width` columns, whose lines the line buffers hold."""
    for run in layer.columns:
        taps, stride = len(run.weights), run.walk[1]
        most = (config.line_depth // 2 - 2 * taps) // stride + 1
        if run.count > most:
            width = min(width, most * run.step)
    return list(pieces(images(layer)[1].w, width))


#: Numbers of accumulator buffers that are tried.
_SUM_BUFFERS = (4, 3, 2)
#: Cycles of MATRIX or FUSE for a command in addition to its pixels.
_COMMAND_CYCLES = 24
#: Numbers of tiles whose rows of the input are loaded together, if not those of all tiles are.
_TILES_PER_LOAD = (4, 2, 1)


def resize_tilings(context: TilingContext, layer: ResizeLayer) -> Tilings:
    """Yield the tilings of a resizing that fit, with whole rows and with strips of columns."""
    config, (_, y) = context.config, images(layer)
    widths = [ALL_COLUMNS, *strip_widths(y.w, y.w, config.n)]
    for width, columns in product(widths, cuts(ceil_div(y.c, config.n))):
        yield from _tilings(context, layer, width, columns)


def _tilings(context: TilingContext, layer: ResizeLayer, width: int, columns: int) -> Tilings:
    """Yield the tilings with strips of at most `width` columns and tiles of `columns` blocks of channels."""
    n, (x, y) = context.config.n, images(layer)
    lanes = min(columns * n, y.c)
    strips = _strips(context.config, layer, width)
    parts = [_parts(layer.columns, *strip) for strip in strips]
    across, wide = max(_extent(layer.columns, *strip)[1] for strip in strips), strips[0][1]
    matrices = _matrices(layer).values()
    weights, passes = sum(each.size for each in matrices) * n, max(map(len, matrices))
    streamed, most = (
        sum(run.streamed for each in parts for run in each),
        max(run.count for each in parts for run in each),
    )
    for rows in cuts(y.h):
        tiles = [_parts(layer.rows, *tile) for tile in pieces(y.h, rows)]
        high = max(run.count for each in tiles for run in each)
        sums = high * most
        buffers = next((count for count in _SUM_BUFFERS if count * sums <= context.acc_rows), 0)
        if not buffers:
            continue
        loads = (y.h, *(rows * many for many in _TILES_PER_LOAD if rows * many < y.h))
        for rows_per_load in loads if not context.x_on_chip else (y.h,):
            loaded = [_extent(layer.rows, *piece)[1] for piece in pieces(y.h, rows_per_load)]
            used = weights + (0 if context.x_on_chip else 2 * (max(loaded) * across * lanes + n))
            used += 0 if context.y_on_chip else buffers * (high * wide * lanes + n)
            if used > context.free:
                continue
            blocks, lines_ = ceil_div(y.c, n), sum(map(len, tiles))
            commands = (
                lines_ * sum(map(len, parts)) * max(ceil_div(blocks * sums, context.acc_rows // buffers), 1)
            )
            array = blocks * passes * streamed * sum(run.streamed for each in tiles for run in each)
            bus = 0 if context.x_on_chip else sum(loaded) * x.w * blocks
            bus += 0 if context.y_on_chip else y.h * y.w * blocks
            work = max(array, y.h * y.w * blocks * context.config.fuse_rate, bus * context.beat)
            yield (
                layer.batch * (work + commands * _COMMAND_CYCLES) + high * wide * min(columns, blocks),
                LayerSchedule(
                    rows=rows,
                    rows_per_load=rows_per_load,
                    strip_width=width,
                    columns=columns,
                    y_buffers=buffers,
                    acc_buffers=buffers,
                    on_chip=context.y_on_chip,
                ),
            )


@dataclass(frozen=True)
class _Tile:
    """Outputs of a run of rows and a run of columns, for some blocks of channels; commands compute them together.

    Parameters
    ----------
    image : int
        Number of the image of the batch.
    channels : (int, int)
        First block, and number of blocks, of the channels that are loaded and stored together.
    load, strip : (int, int)
        First row and number of rows of the outputs whose input is loaded together, and the same for columns.
    until : int
        Number of the output row that follows the tile's last one.
    rows, columns : Run
        Outputs.
    blocks : (int, int)
        First block, and number of blocks, of the channels.
    first, last : bool
        True for the first and the last of the tiles whose results are stored together: a run of rows of a strip.
    """

    image: int
    channels: tuple[int, int]
    load: tuple[int, int]
    strip: tuple[int, int]
    until: int
    rows: Run
    columns: Run
    blocks: tuple[int, int]
    first: bool
    last: bool

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return self.rows.count * self.columns.count


def _tiles(config: MlaConfig, layer: ResizeLayer, s: LayerSchedule) -> Iterator[_Tile]:
    """Yield the tiles in order of execution."""
    (_, y), strips = images(layer), _strips(config, layer, s.strip_width)
    sums = _sums(config, layer, s)
    for channels, image, load, strip in product(
        pieces(ceil_div(y.c, config.n), s.columns), range(layer.batch), pieces(y.h, s.rows_per_load), strips
    ):
        across = _parts(layer.columns, *strip)
        for offset, count in pieces(load[1], min(s.rows, load[1])):
            start = load[0] + offset
            for rows in _parts(layer.rows, start, count):
                tiles = [
                    (columns, (channels[0] + block, many))
                    for columns in across
                    for block, many in pieces(channels[1], max(sums // (rows.count * columns.count), 1))
                ]
                for number, (columns, blocks) in enumerate(tiles):
                    ends = number == 0, number == len(tiles) - 1
                    yield _Tile(image, channels, load, strip, start + count, rows, columns, blocks, *ends)


def _sums(config: MlaConfig, layer: ResizeLayer, s: LayerSchedule) -> int:
    """Return the number of rows of an accumulator buffer: those of the largest tile of one block, or more."""
    (_, y), strips = images(layer), _strips(config, layer, s.strip_width)
    high = max(
        run.count for tile in pieces(y.h, min(s.rows, s.rows_per_load)) for run in _parts(layer.rows, *tile)
    )
    wide = max(run.count for strip in strips for run in _parts(layer.columns, *strip))
    return high * wide


def resize_tile_model(layer: ResizeLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a bilinear resizing."""
    config, (x, y) = context.config, images(layer)
    n, matrices = config.n, _matrices(layer)
    weights = float(sum(each.size for each in matrices.values()))

    def tiles() -> Iterator[PipelineTile]:
        there: dict[object, int] = {}
        for tile in _tiles(config, layer, s):
            key = tile.image, tile.channels, tile.load, tile.strip
            width = min(tile.channels[1] * n, y.c - tile.channels[0] * n)
            loads: list[tuple[str, object, float]] = [("w", 0, weights)]
            if not context.x_on_chip:
                start, before = tile.load[0], there.get(key, 0)
                needed = _extent(layer.rows, start, tile.until - start)[1]
                across = _extent(layer.columns, *tile.strip)[1]
                if needed > before:
                    there[key] = needed
                    beats = _image_beats(needed - before, across, x.w, width, x.c, n)
                    loads.append(("f", (*key, before), beats) if before else ("x", key, beats))
            store = 0.0
            if tile.last and not context.y_on_chip:
                store = _image_beats(tile.rows.count, tile.strip[1], y.w * tile.rows.step, width, y.c, n)
            passes = len(matrices[tile.rows.weights, tile.columns.weights])
            yield PipelineTile(
                tuple(loads),
                tile.blocks[1] * passes * (tile.rows.streamed * tile.columns.streamed) + _COMMAND_CYCLES,
                tile.blocks[1] * tile.pixels + _COMMAND_CYCLES,
                store,
                passes + 1 + (store > 0),
            )

    count = sum(1 for _ in _tiles(config, layer, s))
    buffers = {"w": 1, "x": s.x_buffers, "f": count}
    return TilePipeline(tiles(), count, buffers, s.acc_buffers, s.y_buffers, result=EARLY_RESULT)


def _image_beats(rows: int, columns: int, pitch: int, width: int, channels: int, n: int) -> float:
    """Return the bus beats of some rows and columns, `width` of the `channels` of each pixel; `pitch` is in pixels."""
    if width == channels:
        return lines(rows, columns * width, pitch * width, n)
    return lines(rows * columns, width, channels, n)


#: Multiplier and exponent of the factor 1.
_ONE, _ONE_EXPONENT = quantize_multiplier(1.0)


class ResizeSteps:
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
        self.tiles = list(_tiles(context.config, layer, schedule))
        lanes = max(self._lanes(tile) for tile in self.tiles)
        self._allocate_weights()
        sums = max(tile.blocks[1] * tile.pixels for tile in self.tiles)
        self.acc = BufferRotation(BufferMemory.ACC, f"{name}.acc", sums, schedule.acc_buffers)
        size = max(tile.rows.count * tile.strip[1] for tile in self.tiles) * lanes + n
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size, schedule.y_buffers)
        #: Number of rows of each load that have been loaded so far.
        self.rows_loaded: dict[Hashable, int] = {}
        size = max(math.prod(count for _, count in self._inputs(tile)) for tile in self.tiles) * lanes + n
        self.x_tiles = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.x", size, schedule.x_buffers), self._begin
        )

    def _allocate_weights(self) -> None:
        """Allocate the weights of all lanes, which are loaded once."""
        self.places: dict[object, int] = {}
        rows: list[NDArray[np.uint8]] = []
        self.matrices = _matrices(self.layer)
        for key, matrix in self.matrices.items():
            self.places[key] = sum(each.size for each in rows) * self.n
            rows.append(matrix)
        every = np.repeat(np.concatenate([each.reshape(-1) for each in rows]), self.n)
        self.source = self.context.constant(f"{self.layer.name}.weights", every)
        self.w = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{self.layer.name}.w", every.size), self._load_weights
        )

    def _load_weights(self, _: Hashable, address: BufferRef) -> list[Command]:
        source = BufferRef(self.source)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, len=self.source.size)]

    def _begin(self, key: Hashable, _: BufferRef) -> list[Command]:
        self.rows_loaded[key] = 0
        return []

    def _lanes(self, tile: _Tile) -> int:
        """Return the number of channels that are loaded and stored together."""
        block, blocks = tile.channels
        return min(blocks * self.n, self.channels - block * self.n)

    def _inputs(self, tile: _Tile) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the rows and the columns of the input that are loaded together, each as (first, count)."""
        return _extent(self.layer.rows, *tile.load), _extent(self.layer.columns, *tile.strip)

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        out = []
        target: BufferRef | None = None
        for tile in self.tiles:
            step, acc = TileStep(block=tile.channels[0]), self.acc.next()
            self._add_matrix(tile, step, acc)
            if tile.first and not self.y[0].on_chip:
                target = self.out.next()
            self._add_fuse(tile, step, acc, target)
            if tile.last and target is not None:
                step.stores.append(self._store(tile, target))
            out.append(step)
        return out

    def _input(self, tile: _Tile, step: TileStep) -> tuple[BufferRef, int, int]:
        """Return the address of a tile's first pixel of the input, and the distances between pixels and between rows.

        The step loads the rows that the tile is the first one to need.
        """
        x, block = self.x[tile.image], tile.blocks[0] * self.n
        if x.on_chip:
            return x.address(tile.rows.source, tile.columns.source, block), x.pixel, x.row
        (top, total), (left, across) = self._inputs(tile)
        lanes, first = self._lanes(tile), tile.channels[0] * self.n
        key, row = (tile.image, tile.channels, tile.load, tile.strip), across * lanes
        address, there = self.x_tiles.get(key, step), self.rows_loaded[key]
        low, count = _extent(self.layer.rows, tile.load[0], tile.until - tile.load[0])
        excess = -lanes % self.n  # the last reads extend into the following rows
        needed = min(low + count - top + ceil_div(excess, row), total)
        if there < needed:
            self.rows_loaded[key] = needed
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
        weights, matrix = self.w.get(0, step).plus(self.places[key]), self.matrices[key]
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
        """Return the number of channels of a tile's last block."""
        return min(self.channels - (sum(tile.blocks) - 1) * self.n, self.n)

    def _add_fuse(self, tile: _Tile, step: TileStep, acc: BufferRef, target: BufferRef | None) -> None:
        """Add the command that divides the sums of a tile; `target` is the buffer of its results, if not on chip."""
        layer, rows, columns, y, n = self.layer, tile.rows, tile.columns, self.y[tile.image], self.n
        dtype = layer.shapes[layer.y].dtype
        if target is None:
            address, pixel, row = y.address(rows.first, columns.first, tile.blocks[0] * n), y.pixel, y.row
            row *= rows.step
        else:
            pixel, block = self._lanes(tile), (tile.blocks[0] - tile.channels[0]) * n
            address, row = target.plus((columns.first - tile.strip[0]) * pixel + block), tile.strip[1] * pixel
        limits = np.iinfo(np.uint8 if dtype == Dtype.U8 else np.int8)
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                src=FUSE_SRC.pack(requant=Requant.IMM, rounding=layer.rounding),
                stage=FUSE_STAGE.pack(d_dst=1, d_dtype=dtype, tail_dim=FUSE_DIMS.index("n")),
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
                mult=_ONE,
                shifts=bytes_word(_ONE_EXPONENT - rows.bits - columns.bits),
                clip_lo=int(limits.min),
                clip_hi=int(limits.max),
            )
        )

    def _store(self, tile: _Tile, source: BufferRef) -> Command:
        """Return the command that stores the results of a run of rows of a strip."""
        y, lanes, (left, width) = self.y[tile.image], self._lanes(tile), tile.strip
        rows = replace(y.columns(left, width), h=tile.rows.count, row=tile.rows.step * y.row)
        fields = image_lines(rows, tile.rows.count, lanes, "src", lanes)
        target = y.address(tile.rows.first, left, tile.channels[0] * self.n)
        return self.context.command(Unit.STORE, dram=target, src=source, **fields)


def resize_steps(context: CodegenContext, layer: ResizeLayer) -> list[TileStep]:
    """Generate the steps of a bilinear resizing."""
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
