"""Depthwise convolutions in the stream mode of MATRIX (docs/machine.md)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.commands.tile_buffers import (
    ColumnStrip,
    pieces,
)
from compiler.ir.identity import identity
from compiler.layers.base import Addend, Drain, Image, Layer
from compiler.layers.conv.input_layout import DilationPhase, dilation_phases, phase_lines
from compiler.layers.conv.layer import ConvLayer, lower_conv, merge_stored
from compiler.layers.conv.tile_model import summand_bytes, with_drain
from compiler.layers.epilogue import StoredTile
from compiler.layers.epilogue_lowering import drain_of, rounding_of, stored_weights, weights_of
from compiler.layers.lowering_context import LoweringContext, affine
from compiler.layers.tile_pipeline import PipelineTile, TilePipeline, first_result, lines
from compiler.layers.tiling_context import (
    PREFETCH_STEPS,
    TILE_CYCLES,
    LayerContext,
    TilingContext,
    Tilings,
    images,
    input_rows,
    param_blocks_per_buffer,
    strip_images,
    strip_widths,
    sum_buffers,
)
from compiler.schedule.schedule import ALL_COLUMNS, LayerSchedule
from compiler.util.tiles import ceil_div, cuts
from hw.config import MlaConfig
from hw.isa.enums import DTYPE_BYTES, Rounding


@identity(
    "DepthwiseLayer",
    "weights",
    "drain",
    "strides",
    "pads",
    "dilations",
    "x_zp",
    "w_zp",
    "counts",
    "multiplier",
    "correction",
    added=("dilations", "w_zp", "counts", "multiplier", "correction"),
)
@dataclass(frozen=True, kw_only=True, eq=False)
class DepthwiseLayer(Layer):
    """Depthwise convolution; the shape of `weights` is (kernel_h, kernel_w, output channels).

    A dilated convolution, whose strides are 1, consists of one convolution without dilation for each phase: the pixels
    whose row and column have the same remainders when divided by the dilations. The phases of the columns are the
    channel blocks of one command, if a row of sums fits the accumulator twice; other phases follow one another like
    the images of a batch.

    Parameters
    ----------
    counts : dict
        For an average, whose weights are 1: multiplier and exponent for each number of elements that windows have
        inside the image, in place of those of `drain`. Empty: `drain` applies to all windows.
    multiplier : int
        Number of adjacent output channels of each input channel: 1, or 2 for results of one byte. Of two results, the
        epilogue forms an int16, so that they are adjacent in memory.
    correction : int8 array of the shape of `weights`, or None
        Second summands of weights that do not fit 8 bits, such as those with a zero point for each channel; further
        streams add products with these to the sums. None: there are none.
    """

    weights: NDArray
    drain: Drain
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    x_zp: int = 0
    w_zp: int = 0
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    multiplier: int = 1
    correction: NDArray[np.int8] | None = None

    @property
    def summands(self) -> tuple[NDArray, ...]:
        """Summands of the weights; the first one has a zero point."""
        return (self.weights,) if self.correction is None else (self.weights, self.correction)

    @property
    def channels(self) -> int:
        """Number of input channels."""
        return self.weights.shape[2] // self.multiplier

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input and, if there is a second summand, of that tensor."""
        return (self.x, *([self.drain.residual.tensor] if self.drain.residual else []))


#: Largest stride of the depthwise mode (fields `dw_sx` and `dw_sy`).
MAX_STRIDE = 15


def lower_depthwise(low: LoweringContext) -> Layer:
    """Lower a depthwise convolution with its epilogue."""
    weights, bias = weights_of(low)
    assert weights.data is not None
    a = low.anchor.attributes
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.DOUBLE))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    y = common["shapes"][common["y"]]
    common |= {
        "macs": y.h * y.w * weights.elements,
        "drain": drain,
        "strides": a["strides"],
        "pads": a["pads"],
        "x_zp": affine(low.x).zero_point,
        "batch": low.x.shape[0],
    }
    stored = stored_weights(weights)
    kernel, x = weights.shape[:2], common["shapes"][common["x"]]
    down, across = (1 if size == 1 else step for size, step in zip(kernel, a["dilations"], strict=True))
    dilations = down, across
    direct = max(a["strides"]) <= MAX_STRIDE
    if direct and (dilations == (1, 1) or _by_phases(dilations, a["strides"], x, low.x.shape[0])):
        return DepthwiseLayer(
            **common,
            weights=stored.data,
            dilations=dilations,
            w_zp=stored.zero,
            correction=stored.correction,
        )
    one_by_one = stored.map(lambda each: np.moveaxis(each, -1, 0)[..., None])
    grouped = merge_stored(one_by_one, len(one_by_one.data), low.config.n)
    return ConvLayer(**common, **grouped, dilations=a["dilations"])


def lower_convolution(low: LoweringContext) -> Layer:
    """Lower a convolution with its epilogue; one with two outputs per channel is depthwise if that is faster."""
    weights, bias = weights_of(low)
    assert weights.data is not None
    a = low.anchor.attributes
    groups, outputs = a["groups"], weights.shape[0]
    if groups == 1 or weights.shape[3] > 1 or outputs != 2 * groups:
        return lower_conv(low)
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.DOUBLE))
    common = low.common()
    x, y = (common["shapes"][common[name]] for name in ("x", "y"))
    down, across = (
        1 if size == 1 else step for size, step in zip(weights.shape[1:3], a["dilations"], strict=True)
    )
    batch, stored = low.x.shape[0], stored_weights(weights)
    by_channel = stored.map(lambda each: np.ascontiguousarray(each[..., 0].transpose(1, 2, 0)))
    pair = DepthwiseLayer(
        **common,
        macs=y.h * y.w * weights.elements,
        weights=by_channel.data,
        correction=by_channel.correction,
        drain=drain,
        strides=a["strides"],
        pads=a["pads"],
        x_zp=affine(low.x).zero_point,
        w_zp=stored.zero,
        batch=batch,
        dilations=(down, across),
        multiplier=2,
    )
    if (
        ((down, across) != (1, 1) and not _by_phases((down, across), a["strides"], x, batch))
        or max(a["strides"]) > MAX_STRIDE
        or drain.residual is not None
        or DTYPE_BYTES[drain.dtype] > 1
    ):
        return lower_conv(low)
    n, blocks = low.config.n, ceil_div(groups, low.config.n)
    apart = max(_array_cycles(low.config, pair), y.h * y.w * blocks * _PAIR_CYCLES)
    merged = ceil_div(groups, max(n // 2, 1)) * weights.shape[1] * weights.shape[2] * y.h * y.w
    merged *= len(pair.summands)
    return pair if apart < merged else lower_conv(low)


#: Cycles of FUSE for N pairs of results: a row of bytes is written, and then a row of pairs.
_PAIR_CYCLES = 3


def _by_phases(dilations: tuple[int, ...], strides: tuple[int, int], x: Image, batch: int) -> bool:
    """Return True if a dilated convolution can be computed phase by phase."""
    down, across = dilations
    return strides == (1, 1) and down <= x.h // batch and across <= x.w


def consecutive_phases(config: MlaConfig, layer: DepthwiseLayer) -> list[DilationPhase[DepthwiseLayer]]:
    """Return the convolutions that one image is convolved by and that follow one another; one without dilation."""
    shapes = {name: replace(image, h=image.h // layer.batch) for name, image in layer.shapes.items()}
    image = replace(layer, batch=1, shapes=shapes)
    down, across = layer.dilations
    if 2 * layer.shapes[layer.y].w * layer.multiplier <= config.acc_rows:
        across = 1  # a row of sums fits twice
    return dilation_phases(image, layer.pads, (down, across))


def _largest_phases(config: MlaConfig, layer: DepthwiseLayer) -> DepthwiseLayer:
    """Return the convolution of a batch of as many images as there are phases, each of the size of the largest."""
    phases = consecutive_phases(config, layer)
    if len(phases) == 1:
        return layer
    largest, count = phases[0].layer, layer.batch * len(phases)
    shapes = {name: replace(image, h=image.h * count) for name, image in largest.shapes.items()}
    return replace(largest, batch=count, shapes=shapes)


def _array_cycles(config: MlaConfig, layer: DepthwiseLayer) -> int:
    """Return the approximate cycles of MATRIX for a whole layer whose input is in DRAM."""
    layer = _largest_phases(config, layer)
    x, y = images(layer)
    order = column_order(config, layer, in_dram=True)
    stream, tile = (
        stream_of(config, layer, x.w, y.w, y.w, order=order),
        (0, y.h, y.w, ceil_div(layer.channels, config.n)),
    )
    return layer.batch * _tile_cycles(layer, x.h, stream, tile, (False, True, True), config.n)


@dataclass(frozen=True)
class ColumnPhases:
    """Column phases of a strip that one command computes: `count` phases, whose first pixels are adjacent.

    Parameters
    ----------
    count : int
        Number of phases.
    x_first, y_first : int
        Column of the first pixel of the first phase, of the input and of the output.
    x_count, y_count : int
        Number of columns of each phase.
    before : int
        Column of the kernel's first element in the phase; negative for padding.
    """

    count: int
    x_first: int
    y_first: int
    x_count: int
    y_count: int
    before: int


def column_phases(dilation: int, strip: ColumnStrip) -> list[ColumnPhases]:
    """Return the column phases of a strip; without dilation, there is one phase."""
    if dilation == 1:
        return [ColumnPhases(1, 0, 0, strip.size, strip.count, strip.before)]
    runs: list[ColumnPhases] = []
    for line in phase_lines(strip.count, strip.size, dilation, -strip.before):
        run = ColumnPhases(1, line.x_first, line.y_first, line.x_count, line.y_count, -line.pad)
        many = runs[-1].count if runs else 0
        if runs and runs[-1] == replace(
            run, count=many, x_first=run.x_first - many, y_first=run.y_first - many
        ):
            runs[-1] = replace(runs[-1], count=many + 1)
        else:
            runs.append(run)
    return runs


@dataclass(frozen=True)
class ColumnOrder:
    """Order of the columns of a dilated convolution's input in the scratchpad: phase by phase, in segments.

    A segment consists of zeros, which are the left padding of a phase and the right padding of the one before, and the
    columns of the phase. One stream thus covers several phases, whose kernels are not dilated. Later phases may have
    one column less than the first ones.

    Parameters
    ----------
    dilation : int
        Distance between the columns of a phase.
    zeros : int
        Number of zeros at the start of a segment.
    sizes : tuple of (int, int, int)
        Phases with equally many columns: number of phases, positions of a segment, and columns of the output.
    most : int
        Maximum number of positions of a stream's rows.
    """

    dilation: int
    zeros: int
    sizes: tuple[tuple[int, int, int], ...]
    most: int

    @property
    def width(self) -> int:
        """Number of positions of a row."""
        return sum(phases * segment for phases, segment, _ in self.sizes)

    def kinds(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the first phase, its first position, and the items of `sizes`, for phases with equally many columns."""
        phase, position = 0, 0
        for phases, segment, columns in self.sizes:
            yield phase, position, phases, segment, columns
            phase, position = phase + phases, position + phases * segment

    def runs(self) -> list[ColumnPhases]:
        """Return the parts of a row that are streamed at a time, as if each were the only phase of a row."""
        segments = [segment for phases, segment, _ in self.sizes for _ in range(phases)]
        even, out, first, size = self.width / ceil_div(self.width, self.most), [], 0, 0
        for number, segment in enumerate(segments):
            size += segment
            last = number + 1 == len(segments)
            if last or size + segments[number + 1] > self.most or size >= even:
                out.append(ColumnPhases(1, first, first, size, size, 0))
                first, size = first + size, 0
        return out


def column_order(config: MlaConfig, layer: DepthwiseLayer, *, in_dram: bool) -> ColumnOrder | None:
    """Return the order of columns with which a convolution is faster than with a stream for each phase; else None.

    The columns can be loaded in another order if the input is in DRAM and its padding a multiple of the dilation.
    """
    (x, y), dilation = images(layer), layer.dilations[1]
    kernel_h, taps, _ = layer.weights.shape
    zeros, beyond = divmod(layer.pads[1], dilation)
    if not in_dram or dilation == 1 or beyond or taps > config.n:
        return None
    sizes = []
    for first, last in ((0, (y.w - 1) % dilation + 1), ((y.w - 1) % dilation + 1, min(dilation, y.w))):
        if first < last:
            columns = ceil_div(y.w - first, dilation)
            reach = columns + taps - 1
            segment = max(columns, reach - zeros, min(zeros + ceil_div(x.w - first, dilation), reach))
            sizes.append((last - first, segment, columns))
    most = (config.line_depth - 2 * taps) // min(kernel_h, config.n // taps, 3)
    if most < sizes[0][1]:
        return None
    order = ColumnOrder(dilation, zeros, tuple(sizes), most)
    tile, ends = (0, y.h, y.w, 1), (False, True, True)
    cycles = [
        _tile_cycles(layer, x.h, stream_of(config, layer, x.w, y.w, y.w, order=each), tile, ends, config.n)
        for each in (None, order)
    ]
    return order if cycles[1] < _MAX_ORDERED * cycles[0] else None


#: Cycles, in addition to the memory latency, by which a tile should be requested ahead. The value was the best of 100,
#: 200, 400 and 700 for the dilated convolutions of `tests/layers/test_depthwise.py` (RTL n16, latency 100).
_LOAD_CYCLES = 200
#: Maximum ratio of the cycles of MATRIX with ordered columns to those with a stream for each phase.
_MAX_ORDERED = 0.9
#: Maximum number of pieces of image rows that are loaded after the first rows of their tile.
_MAX_PIECES = 1 << 16
#: Maximum number of tiles across an image whose rows are loaded as a whole.
_MAX_ACROSS = 4


#: Minimum ratio of the cycles of MATRIX to those of the bus and of FUSE from which tiles of one block are computed in
#: parts, for one output per channel and for several ones: of these, the bus and FUSE are not equally busy with all.
_MIN_ARRAY = 1.0, 1.15
#: Factor of the estimate of such tilings, which is less exact than that of the others: without it, the RTL takes up to
#: 0.6% more cycles in four rows of docs/benchmarks.md.
_PARTS_MARGIN = 1.025


def depthwise_tilings(context: TilingContext, layer: DepthwiseLayer) -> Tilings:
    """Yield the tilings of a depthwise convolution that fit the on-chip memories.

    Strips, which are loaded separately, are tried only if nothing else fits.
    """
    layer = _largest_phases(context.config, layer)
    found = list(_tilings(context, layer, _widths(context, layer), separate=False))
    if not found and layer.dilations[1] == 1:
        widths = strip_widths(images(layer)[1].w, context.acc_rows // 2, context.config.n)
        found = list(_tilings(context, layer, widths, separate=True))
    yield from found


def _tilings(context: TilingContext, layer: DepthwiseLayer, widths: list[int], *, separate: bool) -> Tilings:
    """Yield the tilings with some widths.

    If `separate`, the input of each strip of that width is loaded separately; otherwise, whole rows are loaded.
    """
    config, n = context.config, context.config.n
    batch, (x, y) = layer.batch, images(layer)
    (kernel_h, taps, outputs), summands = layer.weights.shape, len(layer.summands)
    channels, multiplier = layer.channels, layer.multiplier
    blocks = ceil_div(channels, n)
    across, order = layer.dilations[1], column_order(config, layer, in_dram=not context.x_on_chip)
    sizes = product(cuts(min(blocks, config.param_slots // (2 * multiplier))), widths, ("rows", "channels"))
    for columns, width, outer in sizes:
        by_block = outer == "channels"
        if by_block and layer.dilations != (1, 1):
            continue
        stream = stream_of(config, layer, x.w, y.w, width, order=order)
        strips, piece, _ = strip_images(x, y, width, layer.strides[1], layer.weights.shape[1])
        x_held, y_held = (order.width,) * 2 if order else ((piece if separate else x).w, width)
        most = rows_of_sums(config, width)
        for rows in cuts(y.h):
            sums = rows * y_held * columns * multiplier
            if by_block:
                sums = ceil_div(rows, ceil_div(rows, most)) * width
            if 2 * sums > context.acc_rows:
                continue
            rows_loaded = (y.h, *(rows * many for many in (4, 2, 1) if rows * many < y.h))
            for rows_per_load in rows_loaded if not context.x_on_chip else (y.h,):
                x_bytes = (
                    input_rows(rows_per_load, layer.strides[0], kernel_h, x.h) * x_held * columns * n + n
                )
                used = columns * multiplier * summands * kernel_h * taps * n * 2
                loads = batch * ceil_div(blocks, columns) * ceil_div(y.h, rows_per_load)
                loads *= strips if separate else 1
                used += 0 if context.x_on_chip else min(loads, 2) * x_bytes
                acc_buffers = buffers = sum_buffers(
                    context, sums
                )  # also of results, which STORE reads some time after FUSE
                results = rows * width * columns * multiplier
                used += (
                    (multiplier - 1) * (rows * width if by_block else results) * n
                )  # wait for their pixels' others
                if by_block and columns > 1:
                    buffers = 2
                elif by_block:
                    results = sums * multiplier
                used += 0 if context.y_on_chip else buffers * results * n * DTYPE_BYTES[layer.drain.dtype]
                if isinstance(layer.drain.residual, Addend):
                    used += summand_bytes(layer.drain, context, buffers * results)
                if used > context.free:
                    continue
                # Loads of few beats are requested further ahead, so that their latencies overlap.
                ahead = ceil((context.dram.chip_latency + _LOAD_CYCLES) / (x_bytes / n * context.beat))
                ahead = max(ahead, 2) if by_block else ahead
                x_buffers = max(min(loads, 1 + ahead, 2 + int(context.free - used) // x_bytes), 2)
                tiles = batch * ceil_div(blocks, columns) * ceil_div(y.h, rows) * strips
                tile = min(width, y.w), columns
                if by_block:
                    first, last = not context.x_on_chip, context.split_last_tile
                    parts = [
                        part
                        for start, high in pieces(y.h, rows_per_load)
                        for part in parts_by_block(
                            (start, high), (0, columns), rows, most, multiplier, first=False, last=False
                        )
                    ]
                    streamed = sum(_part_cycles(layer, x.h, stream, part, tile[0], n) for part in parts)
                    tiles *= len(parts) / ceil_div(y.h, rows)
                else:
                    first = last = False
                    keep = columns * multiplier == 1 and stream.continues and rows < rows_per_load
                    streamed = sum(
                        _tile_cycles(
                            layer,
                            x.h,
                            stream,
                            (start + offset, min(rows, high - offset), *tile),
                            (keep, offset == 0, offset + rows >= high),
                            n,
                        )
                        for start, high in pieces(y.h, rows_per_load)
                        for offset in range(0, high, rows)
                    )
                array = batch * blocks / columns * strips * streamed
                fuse = batch * y.h * y.w * blocks * _fuse_cycles(layer)
                bus = 0.0
                if not context.x_on_chip:
                    loaded = sum(
                        input_rows(high, layer.strides[0], kernel_h, x.h)
                        for _, high in pieces(y.h, rows_per_load)
                    )
                    bus = float(batch * blocks * loaded * (strips * piece.w if separate else x.w))
                bus += 0 if context.y_on_chip else batch * y.h * y.w * ceil_div(outputs, n)
                if not context.x_on_chip:
                    bus += batch * x.h * x.w * (_beats(channels, columns, n) - blocks)
                if not context.y_on_chip:
                    wide = _beats(outputs, columns * multiplier, n) - ceil_div(outputs, n)
                    bus += batch * y.h * y.w * wide
                least = 0.0 if columns > 1 and multiplier == 1 else _MIN_ARRAY[multiplier > 1]
                if by_block and array < least * max(bus * context.beat, fuse):
                    continue
                issue = TILE_CYCLES
                if across > 1:  # the commands of the phases differ and are not repeated in loops
                    issue *= _UNROLLED + _matrix_commands(layer, stream, columns)
                cycles = max(array, bus * context.beat, fuse, tiles * issue) + tiles * 10
                # Weights are requested further ahead, too, if the latency is long and the bus is not slow: by the
                # number of blocks in that time, rounded. KWS at latency 400 takes 14,637 cycles instead of 14,993.
                groups, w_bytes = (
                    ceil_div(blocks, columns),
                    columns * multiplier * kernel_h * taps * n * summands,
                )
                reach = (context.dram.chip_latency + _LOAD_CYCLES) / context.beat
                ahead = ceil(reach / max(cycles / groups, _LOAD_CYCLES) - 0.5)
                w_buffers = max(min(groups, 1 + ahead, 2 + int(context.free - used) // w_bytes), 2)
                # results of the last tile
                cycles += sums * (1 if context.y_on_chip else 2) * (_SMALL_PART if last else 1)
                if not context.x_on_chip:  # the array waits for the rows of the first tile
                    begin = ceil(min(rows, most) * _SMALL_PART) if first else rows
                    begin = input_rows(begin, layer.strides[0], kernel_h, x.h)
                    cycles += begin * (piece if separate else x).w * columns * context.beat
                yield (
                    cycles * (_PARTS_MARGIN if by_block else 1),
                    LayerSchedule(
                        rows=rows,
                        rows_per_load=rows_per_load,
                        width=ALL_COLUMNS if separate else width,
                        strip_width=width if separate else ALL_COLUMNS,
                        columns=columns,
                        param_blocks=param_blocks_per_buffer(
                            config, blocks * multiplier, columns * multiplier
                        ),
                        order=outer,
                        x_buffers=x_buffers,
                        w_buffers=w_buffers,
                        y_buffers=buffers,
                        acc_buffers=acc_buffers,
                        prefetch=PREFETCH_STEPS,
                        on_chip=context.y_on_chip,
                        split_first_tile=first,
                        split_last_tile=last,
                    ),
                )


#: Ratio of the cycles of the sequencer for commands of phases, which differ, to those for commands in loops.
_UNROLLED = 3


def _fuse_cycles(layer: DepthwiseLayer) -> int:
    """Return the cycles of FUSE for the results of N input channels of a pixel."""
    return _PAIR_CYCLES if layer.multiplier > 1 else DTYPE_BYTES[layer.drain.dtype]


def _beats(channels: int, columns: int, n: int) -> float:
    """Return the bus beats of the channels of a pixel, in lines of `columns` blocks of `n` channels each."""
    size = columns * n
    if channels <= size:
        return ceil_div(channels, n)
    whole, rest = divmod(channels, size)
    return whole * lines(1, size, channels, n) + (lines(1, rest, channels, n) if rest else 0)


def _widths(context: TilingContext, layer: DepthwiseLayer) -> list[int]:
    """Return candidate widths: the whole width, and widths with fewer stream positions or continued streams."""
    out: list[int] = []
    least = 0.0, False
    x, y = images(layer)
    for strips in range(1, (_MAX_ACROSS if layer.dilations[1] == 1 else 1) + 1):
        width = ceil_div(y.w, strips)
        stream = stream_of(context.config, layer, x.w, y.w, width)
        if not out or (stream.work, not stream.continues) < least:
            out.append(width)
            least = stream.work, not stream.continues
    return out


def least_busy_cycles(context: TilingContext, layer: DepthwiseLayer) -> int:
    """Return the approximate cycles of the busier one of MATRIX and FUSE with the best width of tiles."""
    config, (x, y), blocks = context.config, images(layer), ceil_div(layer.channels, context.config.n)
    array = min(
        ceil_div(y.w, width)
        * _tile_cycles(
            layer,
            x.h,
            stream_of(config, layer, x.w, y.w, width),
            (0, y.h, min(width, y.w), blocks),
            (False, True, True),
            config.n,
        )
        for width in _widths(context, layer)
    )
    return layer.batch * max(array, y.h * y.w * blocks * _fuse_cycles(layer))


class BlockPart(NamedTuple):
    """Output rows of one channel block that are computed and drained at a time, if blocks follow one another.

    Parameters
    ----------
    start, rows : int
        First row and number of rows.
    block : int
        Index of the channel block.
    output : int
        Number of the output of each channel in the order of computation.
    tile : StoredTile or None
        Results that are stored together; None: those of the part.
    continued, more : bool
        True if the preceding part, or the next one, has the rows above, or below, of the same outputs.
    """

    start: int
    rows: int
    block: int
    output: int
    tile: StoredTile | None
    continued: bool
    more: bool


def computes_by_block(layer: DepthwiseLayer, schedule: LayerSchedule) -> bool:
    """Return True if the channel blocks of a tile, and the outputs of each channel, are computed one after the other.

    A part of a tile then has more rows than with one command for all blocks, so that fewer image rows are streamed
    again for the next part.
    """
    return schedule.order == "channels" and layer.dilations == (1, 1)


def rows_of_sums(config: MlaConfig, width: int) -> int:
    """Return the maximum number of rows of one block, of `width` sums each, of which the accumulator holds two."""
    return max(config.acc_rows // 2 // width, 1)


#: Minimum rows of a part that is divided at the start or at the end of a layer, and the share of the smaller part.
_MIN_DIVIDED, _SMALL_PART = 4, 1 / 3


def _part_rows(rows: int, most: int, *, first: bool, last: bool) -> list[int]:
    """Return the rows of the parts of a tile: even ones, of which the first or the last one may be divided."""
    sizes = [size for _, size in pieces(rows, ceil_div(rows, ceil_div(rows, most)))]
    small = ceil(sizes[0] * _SMALL_PART)
    if first and sizes[0] >= _MIN_DIVIDED:
        sizes[:1] = [small, sizes[0] - small]
    small = ceil(sizes[-1] * _SMALL_PART)
    if last and sizes[-1] >= _MIN_DIVIDED:
        sizes[-1:] = [sizes[-1] - small, small]
    return sizes


def parts_by_block(
    load: tuple[int, int],
    wide: tuple[int, int],
    rows: int,
    most: int,
    outputs: int,
    *,
    first: bool,
    last: bool,
) -> Iterator[BlockPart]:
    """Yield the parts of a load whose channel blocks are computed one after the other.

    The loops are tiles, blocks, outputs of each channel and parts. The results of a tile are stored together unless
    it has one block or is divided at its end.

    Parameters
    ----------
    load : (int, int)
        First output row, and number of output rows.
    wide : (int, int)
        First channel block, and number of channel blocks.
    rows, most : int
        Rows of a tile, whose results are stored together, and maximum rows of a part.
    outputs : int
        Number of outputs per channel.
    first, last : bool
        True if the first part, or the last one, is divided.
    """
    found = list[BlockPart]()
    for offset, count in pieces(load[1], rows):
        ends = offset + count == load[1]
        for at, output in product(range(wide[1]), range(outputs)):
            begins = first and not found
            ended = last and ends and (at, output) == (wide[1] - 1, outputs - 1)
            start, block = load[0] + offset, wide[0] + at
            tile = None if wide[1] == 1 or (last and ends) else StoredTile(start, count, *wide)
            for size in _part_rows(count, most, first=begins, last=ended):
                above = found[-1] if found else None
                continued = above is not None and (above.start + above.rows, above.block, above.output) == (
                    start,
                    block,
                    output,
                )
                if above and continued:
                    found[-1] = above._replace(more=True)
                found.append(BlockPart(start, size, block, output, tile, continued, False))
                start += size
    yield from found


def depthwise_tile_model(layer: DepthwiseLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a depthwise convolution; loops: channel blocks, images, loads of rows, strips, tiles.

    A dilated convolution is represented by its largest phase, repeated for each phase.
    """
    layer = _largest_phases(context.config, layer)
    n, (x, y) = context.config.n, images(layer)
    kernel_h, taps, outputs = layer.weights.shape
    channels, multiplier = layer.channels, layer.multiplier
    blocks, stride = ceil_div(channels, n), layer.strides[0]
    columns, rows_per_load = min(s.columns, blocks), min(s.rows_per_load, y.h)
    rows, width, phases_across = (
        min(s.rows, rows_per_load),
        min(s.width, s.strip_width, y.w),
        layer.dilations[1],
    )
    if phases_across > 1:
        width = y.w
    order = column_order(context.config, layer, in_dram=not context.x_on_chip)
    stream = stream_of(context.config, layer, x.w, y.w, width, order=order)
    keep = columns * multiplier == 1 and stream.continues
    strips, piece, _ = strip_images(x, y, width, layer.strides[1], taps)
    separate = width < y.w and s.strip_width < y.w
    size = DTYPE_BYTES[layer.drain.dtype]
    uniform, w_rows = has_equal_weights(layer), len(layer.summands) * multiplier * kernel_h * taps

    by_block, most = computes_by_block(layer, s), rows_of_sums(context.config, width)
    groups = list(product(range(0, blocks, columns), range(layer.batch), range(0, y.h, rows_per_load)))

    def parts(at: int, strip: int) -> list[BlockPart]:
        """Return the parts of a load of a strip."""
        block, _, start = groups[at]
        load, wide = (start, min(rows_per_load, y.h - start)), (block, min(columns, blocks - block))
        ends = at + 1 == len(groups) and strip + 1 == strips
        return list(
            parts_by_block(
                load,
                wide,
                rows,
                most,
                multiplier,
                first=s.split_first_tile and at + strip == 0,
                last=s.split_last_tile and ends,
            )
        )

    def image_beats(count: int, channels_wide: int) -> float:
        """Return the bus beats of some image rows."""
        if separate and channels_wide == channels:
            return lines(count, piece.w * channels, x.w * channels, n)
        return lines(count * (piece if separate else x).w, channels_wide, channels, n)

    def tiles_by_block() -> Iterator[PipelineTile]:
        for at, strip in product(range(len(groups)), range(strips)):
            block, number, start = groups[at]
            there, across, place = (
                0,
                min(width, y.w - strip * width),
                (block, number, start, strip * separate),
            )
            for part in parts(at, strip):
                wide = min(columns, blocks - block)
                channels_wide = min(columns * n, channels - block * n)
                loads: list[tuple[str, object, float]] = []
                reach = input_rows(part.start - start + part.rows, stride, kernel_h, x.h)
                if not context.x_on_chip and strip * (not separate) == 0 and reach > there:
                    image = image_beats(reach - there, channels_wide)
                    loads.append(("f", (*place, reach), image) if there else ("x", place, image))
                there = max(there, reach)
                loads.append(("w", block, 0.0 if uniform else float(wide * w_rows)))
                tile = part.tile or StoredTile(*part[:3], 1)
                made = min(tile.blocks * n, channels - tile.block * n) * multiplier * size
                beats = lines(tile.rows * across, made, outputs * size, n)
                if not layer.counts:
                    key = (0, number, tile.start, strip, tile.block * multiplier)
                    loads += with_drain(layer.drain, s, context, key, blocks * multiplier, beats)
                last = (part.start + part.rows, part.block + 1) == (
                    tile.start + tile.rows,
                    tile.block + tile.blocks,
                )
                stores = last and part.output == multiplier - 1 and not context.y_on_chip
                yield PipelineTile(
                    tuple(loads),
                    _part_cycles(layer, x.h, stream, part, across, n),
                    part.rows * across * (part.output + 1 if multiplier > 1 else _fuse_cycles(layer)),
                    beats if stores else 0.0,
                    len(stream.passes) + 1 + stores,
                )

    if by_block:
        count = sum(len(parts(at, strip)) for at, strip in product(range(len(groups)), range(strips)))
        buffers = {"f": _MAX_PIECES, "x": s.x_buffers, "w": s.w_buffers, "p": s.param_buffers}
        buffers |= {"r": s.y_buffers, "t": 1}
        result = first_result(layer.drain)
        return TilePipeline(tiles_by_block(), count, buffers, s.acc_buffers, s.y_buffers, result=result)

    def tiles() -> Iterator[PipelineTile]:
        for block in range(0, blocks, columns):
            wide, channels_wide = min(columns, blocks - block), min(columns * n, channels - block * n)
            for number, start, strip in product(
                range(layer.batch), range(0, y.h, rows_per_load), range(strips)
            ):
                high, across = min(rows_per_load, y.h - start), min(width, y.w - strip * width)
                there, place = 0, (block, number, start, strip * separate)
                for offset in range(0, high, rows):
                    count = min(rows, high - offset)
                    loads: list[tuple[str, object, float]] = []
                    reach = input_rows(offset + count, stride, kernel_h, x.h)
                    if not context.x_on_chip and strip * (not separate) == 0:
                        image = image_beats(reach - there, channels_wide)
                        loads.append(("f", (*place, offset), image) if offset else ("x", place, image))
                    there = reach
                    loads.append(("w", block, 0.0 if uniform else float(wide * w_rows)))
                    beats = lines(count * across, channels_wide * multiplier * size, outputs * size, n)
                    key = (0, number, start + offset, strip, block * multiplier)
                    if not layer.counts:
                        loads += with_drain(layer.drain, s, context, key, blocks * multiplier, beats)
                    tile = start + offset, count, across, wide
                    ends = keep, offset == 0, offset + rows >= high
                    cycles = _tile_cycles(layer, x.h, stream, tile, ends, n)
                    yield PipelineTile(
                        tuple(loads),
                        cycles,
                        count * across * wide * _fuse_cycles(layer),
                        0.0 if context.y_on_chip else beats,
                        (_matrix_commands(layer, stream, wide) + 2 - context.y_on_chip)
                        * (_UNROLLED if phases_across > 1 else 1),
                    )

    high_tiles = sum(
        ceil_div(min(rows_per_load, y.h - start), rows) for start in range(0, y.h, rows_per_load)
    )
    count = ceil_div(blocks, columns) * layer.batch * strips * high_tiles
    buffers = {
        "f": _MAX_PIECES,
        "x": s.x_buffers,
        "w": s.w_buffers,
        "p": s.param_buffers,
        "r": s.y_buffers,
        "t": 1,
    }
    return TilePipeline(tiles(), count, buffers, s.acc_buffers, s.y_buffers, result=first_result(layer.drain))


def has_equal_weights(layer: DepthwiseLayer) -> bool:
    """Return True if all weights are equal, so that they need not be loaded from DRAM."""
    return layer.correction is None and bool((layer.weights == layer.weights.flat[0]).all())


def pack_depthwise(config: MlaConfig, weights: NDArray, kernel_rows: Sequence[int]) -> NDArray[np.uint8]:
    """Pack weights (kernel_h, kernel_w, channels) as [block][kernel row][kernel column][N].

    `kernel_rows` is the order of the kernel rows.
    """
    weights = weights[list(kernel_rows)]
    n, channels = config.n, weights.shape[2]
    blocks = ceil_div(channels, n)
    padded = np.zeros((*weights.shape[:2], blocks * n), np.uint8)
    padded[:, :, :channels] = weights.view(np.uint8)
    return np.ascontiguousarray(padded.reshape(*weights.shape[:2], blocks, n).transpose(2, 0, 1, 3))


@dataclass(frozen=True)
class StreamPass:
    """Kernel rows and columns that one stream sums up.

    Parameters
    ----------
    row, rows : int
        First kernel row, and number of kernel rows.
    step : int
        Distance between these kernel rows, and between the streamed image rows: 1, or the vertical stride.
    column, columns : int
        First kernel column, and number of kernel columns.
    column_step : int
        Distance between these kernel columns, and between the streamed image columns: 1, or the horizontal stride.
    summand : int
        Index of the summand of the weights.
    """

    row: int
    rows: int
    step: int
    column: int
    columns: int
    column_step: int = 1
    summand: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns; a stream waits for the end of the previous one if that has another shape."""
        return self.rows, self.columns

    def of(self, weights: NDArray) -> NDArray:
        """Return the part of an array of weights (kernel_h, kernel_w, channels) that the pass reads."""
        rows = slice(self.row, self.row + (self.rows - 1) * self.step + 1, self.step)
        columns = slice(
            self.column, self.column + (self.columns - 1) * self.column_step + 1, self.column_step
        )
        return weights[rows, columns]

    def inside(self, layer: DepthwiseLayer, height: int, start: int) -> "StreamPass":
        """Return the pass without the last kernel rows that are below the image for all output rows from `start`.

        Images that are not cut into phases keep these rows, because a pass of another shape waits for the one before.
        """
        if max(layer.dilations) == 1:
            return self
        rows = ceil_div(height - (start * layer.strides[0] - layer.pads[0] + self.row), self.step)
        return replace(self, rows=min(self.rows, max(rows, 1)))

    def outputs(self, layer: DepthwiseLayer, height: int, start: int, count: int) -> tuple[int, int]:
        """Return the first of `count` output rows from `start`, and the number of those, that need image rows."""
        stride, first = layer.strides[0], self.row - layer.pads[0]
        last = first + (self.rows - 1) * self.step
        low = max(start, ceil_div(-last, stride))
        return low, min(start + count, (height - 1 - first) // stride + 1) - low


@dataclass(frozen=True)
class Stream:
    """Streams of a depthwise convolution over an image.

    Parameters
    ----------
    pitch : int
        Stream positions per image row, including padding.
    passes : tuple of StreamPass
        Passes over the image, the sums of which are added.
    continues : bool
        True if, for a tile of one channel block, the first stream can continue the last one of the tile above, without
        repeating the rows that both need. All passes then read the same pixels.
    order : ColumnOrder or None
        Order of the columns in the scratchpad; None: that of the image.
    """

    pitch: int
    passes: tuple[StreamPass, ...]
    continues: bool
    order: ColumnOrder | None = None

    @property
    def work(self) -> float:
        """Number of passes, as multiples of a pass that streams every image row.

        Passes over every other column are counted like others, because their rows have fewer positions (`pitch`).
        """
        return sum(1 / each.step for each in self.passes)


def stream_of(
    config: MlaConfig,
    layer: DepthwiseLayer,
    x: int,
    y: int,
    width: int,
    step: tuple[int, int] | None = None,
    *,
    order: ColumnOrder | None = None,
) -> Stream:
    """Return the streams of a tile.

    Parameters
    ----------
    x, y : int
        Columns of the input image, and of the output image.
    width : int
        Output columns of a tile: all columns, which stream whole image rows, or fewer, which stream the columns that
        the kernel covers.
    step : (int, int) or None
        Distance between the kernel rows and columns of a pass; None: those that need the fewest stream positions.
    order : ColumnOrder or None
        Order of the columns in the scratchpad; None: that of the image.
    """
    if order:
        pitch = max(run.x_count for run in order.runs())
        return Stream(pitch, _stream_passes(config, layer, pitch, [1]), False, order)
    steps = [step[0]] if step else list(dict.fromkeys((1, layer.strides[0])))
    if step and step[1] > 1:
        return _split_stream(config, layer, x, y, width, steps)
    whole = _whole_stream(config, layer, x, y, width, steps)
    if step or layer.strides[1] == 1:
        return whole
    split = _split_stream(config, layer, x, y, width, steps)
    return split if split.work * split.pitch < _MAX_SPLIT * whole.work * whole.pitch else whole


#: Maximum ratio of the stream positions of passes over columns at a distance of the stride to those of other passes.
_MAX_SPLIT = 0.9


def _whole_stream(
    config: MlaConfig, layer: DepthwiseLayer, x: int, y: int, width: int, steps: Sequence[int]
) -> Stream:
    """Return the streams of a tile in which all columns are streamed; parameters as in `stream_of`."""
    taps, stride = layer.weights.shape[1], layer.strides[1]
    runs = column_phases(layer.dilations[1], ColumnStrip(0, y, 0, x, -layer.pads[1]))
    needed = (
        max((run.y_count - 1) * stride + taps for run in runs) if width >= y else (width - 1) * stride + taps
    )
    pitch = max(needed, x + layer.pads[1]) if width >= y and layer.dilations[1] == 1 else needed
    passes = _stream_passes(config, layer, pitch, steps)
    one = sum(each.summand == 0 for each in passes) == 1
    if one and passes[0].step == 1 and layer.dilations[1] == 1:
        return Stream(pitch, passes, True)
    if width >= y:  # the padding at the left of a row is also that at the right of the row before
        pitch = 1
        for run in runs:
            needed, left = (run.y_count - 1) * stride + taps, max(-run.before, 0)
            pitch = max(pitch, needed - min(left, taps - 1), min(left + run.x_count, needed))
    return Stream(pitch, _stream_passes(config, layer, pitch, steps), False)


def _split_stream(
    config: MlaConfig, layer: DepthwiseLayer, x: int, y: int, width: int, steps: Sequence[int]
) -> Stream:
    """Return the streams of a tile that each stream only the columns with the same remainder, divided by the stride.

    Parameters as in `stream_of`. A pass covers fewer kernel columns and therefore more kernel rows.
    """
    taps, stride = layer.weights.shape[1], layer.strides[1]
    pitch = width + ceil_div(taps, stride) - 1
    if width >= y:  # the padding at the left of a row is also that at the right of the row before
        pitch = 1
        for column in range(min(stride, taps)):
            needed, first = y + ceil_div(taps - column, stride) - 1, column - layer.pads[1]
            left = ceil_div(max(-first, 0), stride)
            inside = max(ceil_div(x - first - left * stride, stride), 0)
            pitch = max(pitch, y, needed - left, min(left + inside, needed))
    return Stream(pitch, _stream_passes(config, layer, pitch, steps, stride), False)


def _matrix_commands(layer: DepthwiseLayer, stream: Stream, columns: int) -> int:
    """Return the number of MATRIX commands of a tile of `columns` blocks of input channels."""
    (x, y), dilation, at_once = images(layer), layer.dilations[1], 1
    if stream.order:
        at_once = len(stream.order.runs())
    elif dilation > 1:
        at_once = columns * len(column_phases(dilation, ColumnStrip(0, y.w, 0, x.w, -layer.pads[1])))
    return len(stream.passes) * layer.multiplier * at_once


def _stream_passes(
    config: MlaConfig, layer: DepthwiseLayer, pitch: int, steps: Sequence[int], column_step: int = 1
) -> tuple[StreamPass, ...]:
    """Return the passes that need the fewest stream positions, for rows of `pitch` positions.

    With a vertical stride, either all image rows are streamed, and some outputs skipped, or only the image rows that
    the kernel rows with the same remainder need. The first pass computes all outputs.
    """
    found = min(
        (_passes_by_step(config, layer, pitch, step, column_step) for step in steps),
        key=lambda passes: sum(1 / each.step for each in passes),
    )
    top = layer.pads[0]
    centre = [each for each in found if top in range(each.row, each.row + each.rows * each.step, each.step)]
    passes = [*centre, *(each for each in found if each not in centre)]
    if layer.correction is not None:
        passes += [replace(each, summand=1) for each in passes if each.of(layer.correction).any()]
    return tuple(passes)


def _passes_by_step(
    config: MlaConfig, layer: DepthwiseLayer, pitch: int, step: int, column_step: int
) -> tuple[StreamPass, ...]:
    """Return the passes over kernel rows at a distance of `step`, and kernel columns at that of `column_step`."""
    kernel_h, kernel_w, _ = layer.weights.shape
    out = []
    for first, start in product(range(min(step, kernel_h)), range(min(column_step, kernel_w))):
        count, taps = ceil_div(kernel_h - first, step), ceil_div(kernel_w - start, column_step)
        rows = 1
        for groups in range(min(count, config.n // taps, 3), 1, -1):
            if groups * pitch + 2 * taps <= config.line_depth:
                rows = groups
                break
        for row, many in pieces(count, rows):
            for column, columns in pieces(taps, config.n):
                place = start + column * column_step
                out.append(StreamPass(first + row * step, many, step, place, columns, column_step))
    return tuple(out)


#: Cycles between the weights of two streams, beside N cycles for shifting them in.
_SHIFT_CYCLES = 3


def _tile_cycles(
    layer: DepthwiseLayer,
    height: int,
    stream: Stream,
    tile: tuple[int, int, int, int],
    ends: tuple[bool, bool, bool],
    n: int,
    outputs: int | None = None,
) -> int:
    """Return the cycles of MATRIX for a tile: the sum over all passes.

    Parameters
    ----------
    height : int
        Rows of the input image.
    tile : (int, int, int, int)
        First row, number of rows, number of columns and number of blocks of input channels of the tile.
    ends : (bool, bool, bool)
        True if the streams of the tiles of a load continue one another; if the tile is the first one of the load; and
        if it is the last one.
    outputs : int or None
        Outputs of each channel that are computed; None: all.
    """
    wide = tile[3] * (layer.multiplier if outputs is None else outputs)
    (row, rows, across, _), (keep, first, last) = tile, ends
    stride, phases = layer.strides[0], layer.dilations[1]
    if stream.order:
        phases, across = len(stream.order.runs()), stream.order.width
    total = 0
    for number, each in enumerate(stream.passes):
        start, count = row, rows
        if number and not stream.continues:
            start, count = each.outputs(layer, height, row, rows)
        if count <= 0:
            continue
        if not keep:
            each = each.inside(layer, height, start)
        skip = stride // each.step
        above = min(max(ceil_div(layer.pads[0] - start * stride - each.row, each.step), 0), each.rows - 1)
        before = skip - 1 if keep and not first and number == 0 else each.rows - 1 - above
        if keep and not last and number + 1 == len(stream.passes):
            total += ((rows - 1) * skip + before + 1) * stream.pitch
            continue
        last_row = each.columns + (ceil_div(across, phases) - 1) * (layer.strides[1] // each.column_step)
        streamed = ((count - 1) * skip + before) * stream.pitch + last_row
        total += (max(streamed, n + _SHIFT_CYCLES) if phases > 1 else streamed) * phases
    others = [each for each in stream.passes if each.shape != stream.passes[0].shape]
    # A tile may begin with the shape with which the last one ended, if passes of all shapes compute all outputs of one
    # of these tiles.
    alternates = any(
        each.outputs(layer, height, low, rows) == (low, rows)
        for each in others
        for low in (row, max(row - rows, 0))
    )
    waits = len({each.shape for each in others}) + (bool(others) and not alternates)
    return wide * total + waits * n


def _part_cycles(
    layer: DepthwiseLayer, height: int, stream: Stream, part: BlockPart, width: int, n: int
) -> int:
    """Return the cycles of MATRIX for a part of `width` columns."""
    tile = part.start, part.rows, width, 1
    keep = stream.continues and (part.continued or part.more)
    return _tile_cycles(layer, height, stream, tile, (keep, not part.continued, not part.more), n, 1)
