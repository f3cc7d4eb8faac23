"""Depthwise convolutions in the stream mode of MATRIX (docs/machine.md)."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import (
    BufferMemory,
    BufferRef,
    CircularBuffer,
    Command,
    TileStep,
)
from compiler.commands.tile_buffers import (
    BufferRotation,
    CodegenContext,
    ColumnStrip,
    TileBuffers,
    column_strips,
    image_lines,
    image_rows,
    pieces,
    rectangles,
    window_runs,
)
from compiler.ir.identity import identity
from compiler.layers.base import Addend, Drain, Image, Layer
from compiler.layers.conv.input_layout import DilationPhase, dilation_phases, phase_lines
from compiler.layers.conv.layer import ConvLayer, lower_conv, merge_groups
from compiler.layers.conv.tilings import summand_bytes, with_drain
from compiler.layers.epilogue import Epilogue, parameters
from compiler.layers.epilogue_lowering import drain_of, rounding_of, weights_of, zero_of
from compiler.layers.layer_kind import CONVOLUTION, LayerKind, Lowering
from compiler.layers.lowering_context import LoweringContext, affine
from compiler.layers.tile_pipeline import PipelineTile, TilePipeline, first_result, lines, repeated_pipeline
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
from compiler.util.scaling import bytes_word
from compiler.util.tiles import ceil_div, cuts
from hw.config import MlaConfig
from hw.isa.commands import FUSE_SRC, FUSE_STAGE, LOAD_WORD, MATRIX_WORD
from hw.isa.enums import DTYPE_BYTES, Dtype, Requant, Rounding, Unit


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
    added=("dilations", "w_zp", "counts", "multiplier"),
)
@dataclass(frozen=True, kw_only=True, eq=False)
class DepthwiseLayer(Layer):
    """Depthwise convolution; the shape of `weights` is (kernel_h, kernel_w, output channels).

    A dilated convolution, whose strides are 1, consists of one convolution without dilation for each phase: the pixels
    whose row and column have the same remainders when divided by the dilations. The phases of the columns are the
    channel blocks of one command, if a row of sums fits the accumulator twice; other phases follow one another.

    Parameters
    ----------
    counts : dict
        For an average, whose weights are 1: multiplier and exponent for each number of elements that windows have
        inside the image, in place of those of `drain`. Empty: `drain` applies to all windows.
    multiplier : int
        Number of adjacent output channels of each input channel: 1, or 2 for results of one byte. Of two results, the
        epilogue forms an int16, so that they are adjacent in memory.
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
    zero = zero_of(weights)
    kernel, x = weights.shape[:2], common["shapes"][common["x"]]
    down, across = (1 if size == 1 else step for size, step in zip(kernel, a["dilations"], strict=True))
    dilations = down, across
    direct = max(a["strides"]) <= MAX_STRIDE
    if direct and (dilations == (1, 1) or _by_phases(dilations, a["strides"], x, low.x.shape[0])):
        return DepthwiseLayer(**common, weights=weights.data, dilations=dilations, w_zp=zero)
    one_by_one = np.moveaxis(weights.data, -1, 0)[..., None]
    grouped = merge_groups(one_by_one, len(one_by_one), zero, low.config.n)
    return ConvLayer(**common, **grouped, dilations=a["dilations"], w_zp=zero)


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
    pair = DepthwiseLayer(
        **common,
        macs=y.h * y.w * weights.elements,
        weights=np.ascontiguousarray(weights.data[..., 0].transpose(1, 2, 0)),
        drain=drain,
        strides=a["strides"],
        pads=a["pads"],
        x_zp=affine(low.x).zero_point,
        w_zp=zero_of(weights),
        batch=low.x.shape[0],
        multiplier=2,
    )
    if (
        a["dilations"] != (1, 1)
        or max(a["strides"]) > MAX_STRIDE
        or drain.residual is not None
        or DTYPE_BYTES[drain.dtype] > 1
    ):
        return lower_conv(low)
    n, (down, across) = low.config.n, a["strides"]
    stream = stream_of(low.config, pair, x.w, y.w, y.w)
    blocks = ceil_div(groups, n)
    apart = max(2 * blocks * stream.work * down * across, blocks * _PAIR_CYCLES)
    merged = ceil_div(groups, max(n // 2, 1)) * weights.shape[1] * weights.shape[2]
    return pair if apart < merged else lower_conv(low)


#: Cycles of FUSE for N pairs of results: a row of bytes is written, and then a row of pairs.
_PAIR_CYCLES = 3


def _by_phases(dilations: tuple[int, ...], strides: tuple[int, int], x: Image, batch: int) -> bool:
    """Return True if a dilated convolution can be computed phase by phase."""
    down, across = dilations
    return strides == (1, 1) and (batch == 1 or down == 1) and down <= x.h // batch and across <= x.w


def _phases(config: MlaConfig, layer: DepthwiseLayer) -> list[DilationPhase[DepthwiseLayer]]:
    """Return the convolutions that a layer consists of and that follow one another; none for a single convolution."""
    down, across = layer.dilations
    if (2 if down == 1 else 4) * layer.shapes[layer.y].w <= config.acc_rows:
        across = 1  # a row of sums fits twice, also if consecutive phases share the accumulator
    return dilation_phases(layer, layer.pads, (down, across)) if (down, across) != (1, 1) else []


@dataclass(frozen=True)
class _Columns:
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


def _column_runs(dilation: int, strip: ColumnStrip) -> list[_Columns]:
    """Return the column phases of a strip; without dilation, there is one phase."""
    if dilation == 1:
        return [_Columns(1, 0, 0, strip.size, strip.count, strip.before)]
    runs: list[_Columns] = []
    for line in phase_lines(strip.count, strip.size, dilation, -strip.before):
        run = _Columns(1, line.x_first, line.y_first, line.x_count, line.y_count, -line.pad)
        many = runs[-1].count if runs else 0
        if runs and runs[-1] == replace(
            run, count=many, x_first=run.x_first - many, y_first=run.y_first - many
        ):
            runs[-1] = replace(runs[-1], count=many + 1)
        else:
            runs.append(run)
    return runs


#: Maximum number of pieces of image rows that are loaded after the first rows of their tile.
_MAX_PIECES = 1 << 16
#: Maximum number of tiles across an image whose rows are loaded as a whole.
_MAX_ACROSS = 4


def depthwise_tilings(context: TilingContext, layer: DepthwiseLayer) -> Tilings:
    """Yield the tilings of a depthwise convolution that fit the on-chip memories.

    Strips, which are loaded separately, are tried only if nothing else fits. Two consecutive phases of a dilated
    convolution are active at the same time, so each gets half of the memory.
    """
    if phases := _phases(context.config, layer):
        half = replace(context, free=context.free // 2, acc_rows=context.acc_rows // 2)
        for cycles, schedule in depthwise_tilings(half, phases[0].layer):
            yield cycles * len(phases), schedule
        return
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
    kernel_h, taps, outputs = layer.weights.shape
    channels, multiplier = layer.channels, layer.multiplier
    blocks = ceil_div(channels, n)
    across = layer.dilations[1]
    for columns, width in product(cuts(min(blocks, config.param_slots // (2 * multiplier))), widths):
        stream = stream_of(config, layer, x.w, y.w, width)
        strips, piece, _ = strip_images(x, y, width, layer.strides[1], layer.weights.shape[1])
        runs = _column_runs(layer.dilations[1], ColumnStrip(0, y.w, 0, x.w, -layer.pads[1]))
        for rows in cuts(y.h):
            sums = rows * width * columns * multiplier
            if 2 * sums > context.acc_rows:
                continue
            loads = (y.h, *(rows * many for many in (4, 2, 1) if rows * many < y.h))
            for rows_per_load in loads if not context.x_on_chip else (y.h,):
                x_bytes = (
                    input_rows(rows_per_load, layer.strides[0], kernel_h, x.h)
                    * (piece if separate else x).w
                    * columns
                    * n
                    + n
                )
                used = columns * multiplier * kernel_h * taps * n * 2
                used += 0 if context.x_on_chip else 2 * x_bytes
                buffers = sum_buffers(
                    context, sums
                )  # also of results, which STORE reads some time after FUSE
                used += 0 if context.y_on_chip else buffers * sums * n * DTYPE_BYTES[layer.drain.dtype]
                used += (multiplier - 1) * sums * n  # results that wait for the others of their pixels
                if isinstance(layer.drain.residual, Addend):
                    used += summand_bytes(layer.drain, context, buffers * sums)
                if used > context.free:
                    continue
                keep = columns * multiplier == 1 and stream.continues and rows < rows_per_load
                tiles = batch * ceil_div(blocks, columns) * ceil_div(y.h, rows) * strips
                streamed = sum(
                    _tile_cycles(
                        layer,
                        x.h,
                        stream,
                        (start + offset, min(rows, high - offset), min(width, y.w), columns),
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
                issue = TILE_CYCLES
                if across > 1:  # the commands of the phases differ and are not repeated in loops
                    issue *= _UNROLLED + len(stream.passes) * columns * len(runs)
                cycles = max(array, bus * context.beat, fuse, tiles * issue) + tiles * 10
                cycles += sums * (1 if context.y_on_chip else 2)  # results of the last tile
                if not context.x_on_chip:  # the array waits for the rows of the first tile
                    first = input_rows(rows, layer.strides[0], kernel_h, x.h)
                    cycles += first * (piece if separate else x).w * columns * context.beat
                yield (
                    cycles,
                    LayerSchedule(
                        rows=rows,
                        rows_per_load=rows_per_load,
                        width=ALL_COLUMNS if separate else width,
                        strip_width=width if separate else ALL_COLUMNS,
                        columns=columns,
                        param_blocks=param_blocks_per_buffer(
                            config, blocks * multiplier, columns * multiplier
                        ),
                        y_buffers=buffers,
                        acc_buffers=buffers,
                        prefetch=PREFETCH_STEPS,
                        on_chip=context.y_on_chip,
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


def depthwise_tile_model(layer: DepthwiseLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a depthwise convolution; loops: channel blocks, images, loads of rows, strips, tiles.

    A dilated convolution is represented by its largest phase, repeated for each phase.
    """
    if phases := _phases(context.config, layer):
        return repeated_pipeline(lambda: depthwise_tile_model(phases[0].layer, s, context), len(phases))
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
    stream = stream_of(context.config, layer, x.w, y.w, width)
    keep = columns * multiplier == 1 and stream.continues
    strips, piece, _ = strip_images(x, y, width, layer.strides[1], taps)
    separate = width < y.w and s.strip_width < y.w
    runs = len(_column_runs(phases_across, ColumnStrip(0, y.w, 0, x.w, -layer.pads[1])))
    size = DTYPE_BYTES[layer.drain.dtype]
    uniform = _uniform(layer)

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
                        image = lines(
                            (reach - there) * (piece if separate else x).w, channels_wide, channels, n
                        )
                        if separate and channels_wide == channels:
                            image = lines(reach - there, piece.w * channels, x.w * channels, n)
                        loads.append(("f", (*place, offset), image) if offset else ("x", place, image))
                    there = reach
                    weights = wide * multiplier * kernel_h * taps
                    loads.append(("w", block, 0.0 if uniform else float(weights)))
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
                        (
                            len(stream.passes) * multiplier * (wide * runs if phases_across > 1 else 1)
                            + 2
                            - context.y_on_chip
                        )
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


def _uniform(layer: DepthwiseLayer) -> bool:
    """Return True if all weights are equal, so that they need not be loaded from DRAM."""
    return bool((layer.weights == layer.weights.flat[0]).all())


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
    """

    row: int
    rows: int
    step: int
    column: int
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns; a stream waits for the end of the previous one if that has another shape."""
        return self.rows, self.columns

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
        True if, for a tile of one channel block, the stream can continue that of the tile above, without repeating the
        rows that both need.
    """

    pitch: int
    passes: tuple[StreamPass, ...]
    continues: bool

    @property
    def work(self) -> float:
        """Number of passes, as multiples of a pass that streams every image row."""
        return sum(1 / each.step for each in self.passes)


def stream_of(
    config: MlaConfig,
    layer: DepthwiseLayer,
    x: int,
    y: int,
    width: int,
    step: int | None = None,
) -> Stream:
    """Return the streams of a tile.

    Parameters
    ----------
    x, y : int
        Columns of the input image, and of the output image.
    width : int
        Output columns of a tile: all columns, which stream whole image rows, or fewer, which stream the columns that
        the kernel covers.
    step : int or None
        Distance between the kernel rows of a pass; None: the one that needs the fewest stream positions.
    """
    steps = [step] if step else list(dict.fromkeys((1, layer.strides[0])))
    taps, stride = layer.weights.shape[1], layer.strides[1]
    runs = _column_runs(layer.dilations[1], ColumnStrip(0, y, 0, x, -layer.pads[1]))
    needed = (
        max((run.y_count - 1) * stride + taps for run in runs) if width >= y else (width - 1) * stride + taps
    )
    pitch = max(needed, x + layer.pads[1]) if width >= y and layer.dilations[1] == 1 else needed
    passes = _stream_passes(config, layer, pitch, steps)
    if len(passes) == 1 and passes[0].step == 1 and layer.dilations[1] == 1:
        return Stream(pitch, passes, True)
    if width >= y:  # the padding at the left of a row is also that at the right of the row before
        pitch = 1
        for run in runs:
            needed, left = (run.y_count - 1) * stride + taps, max(-run.before, 0)
            pitch = max(pitch, needed - left, min(left + run.x_count, needed))
    return Stream(pitch, _stream_passes(config, layer, pitch, steps), False)


def _stream_passes(
    config: MlaConfig, layer: DepthwiseLayer, pitch: int, steps: Sequence[int]
) -> tuple[StreamPass, ...]:
    """Return the passes that need the fewest stream positions, for rows of `pitch` positions.

    With a vertical stride, either all image rows are streamed, and some outputs skipped, or only the image rows that
    the kernel rows with the same remainder need. The first pass computes all outputs.
    """
    found = min(
        (_passes_by_step(config, layer, pitch, step) for step in steps),
        key=lambda passes: sum(1 / each.step for each in passes),
    )
    top = layer.pads[0]
    centre = [each for each in found if top in range(each.row, each.row + each.rows * each.step, each.step)]
    return (*centre, *(each for each in found if each not in centre))


def _passes_by_step(
    config: MlaConfig, layer: DepthwiseLayer, pitch: int, step: int
) -> tuple[StreamPass, ...]:
    """Return the passes over kernel rows at a distance of `step`."""
    kernel_h, taps, _ = layer.weights.shape
    out = []
    for first in range(min(step, kernel_h)):
        count = ceil_div(kernel_h - first, step)
        rows = 1
        for groups in range(min(count, config.n // taps, 3), 1, -1):
            if groups * pitch + 2 * taps <= config.line_depth:
                rows = groups
                break
        for row, many in pieces(count, rows):
            for column, columns in pieces(taps, config.n):
                out.append(StreamPass(first + row * step, many, step, column, columns))
    return tuple(out)


def _tile_cycles(
    layer: DepthwiseLayer,
    height: int,
    stream: Stream,
    tile: tuple[int, int, int, int],
    ends: tuple[bool, bool, bool],
    n: int,
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
    """
    (row, rows, across, wide), (keep, first, last) = tile, ends
    stride, phases = layer.strides[0], layer.dilations[1]
    total = 0
    for number, each in enumerate(stream.passes):
        start, count = each.outputs(layer, height, row, rows) if number else (row, rows)
        if count <= 0:
            continue
        skip = stride // each.step
        above = min(max(ceil_div(layer.pads[0] - start * stride - each.row, each.step), 0), each.rows - 1)
        before = skip - 1 if keep and not first else each.rows - 1 - above
        if keep and not last:
            return wide * ((rows - 1) * skip + before + 1) * stream.pitch
        last_row = each.columns + (ceil_div(across, phases) - 1) * layer.strides[1]
        total += (((count - 1) * skip + before) * stream.pitch + last_row) * phases
    others = [each for each in stream.passes if each.shape != stream.passes[0].shape]
    # A tile may begin with the shape with which the last one ended, if passes of all shapes compute all outputs of one
    # of these tiles.
    alternates = any(
        each.outputs(layer, height, low, rows) == (low, rows)
        for each in others
        for low in (row, max(row - rows, 0))
    )
    waits = len({each.shape for each in others}) + (bool(others) and not alternates)
    return wide * total * layer.multiplier + waits * n


class _AverageEpilogue(Epilogue):
    """Drain of sums that are divided by the number of elements that their windows have inside the image.

    Parameters
    ----------
    runs : (runs of rows, runs of columns)
        Results of `window_runs` for both dimensions of the image.
    counts : dict
        Multiplier and exponent for each number of elements.
    """

    def __init__(
        self,
        *args: Any,
        runs: tuple[list[tuple[int, int, int]], ...],
        counts: dict[int, tuple[int, int]],
        **options: Any,
    ):
        super().__init__(*args, **options)
        self.runs, self.counts = runs, counts

    def _parts(
        self, fields: dict[str, int | BufferRef], start: int, rows: int
    ) -> Iterator[dict[str, int | BufferRef]]:
        """Yield the fields of one command for each rectangle of windows with equally many elements."""
        acc, target, pixel, row = (fields[name] for name in ("a_base", "d_base", "d_x", "d_y"))
        assert isinstance(acc, BufferRef) and isinstance(target, BufferRef)
        assert isinstance(pixel, int) and isinstance(row, int)
        width = self.y.w
        tile = (start, rows), (self.column, width)
        for top, height, left, columns, count in rectangles(self.runs, *tile):
            mult, exponent = self.counts[count]
            yield {
                **fields,
                "src": FUSE_SRC.pack(requant=Requant.IMM, rounding=self.drain.rounding),
                "mult": mult,
                "shifts": bytes_word(exponent),
                "a_base": acc.plus(top * width + left),
                "a_u": width,
                "u_y": 1,
                "a_v": 1,
                "v_x": 1,
                "x_count": columns,
                "y_count": height,
                "d_base": target.plus(top * row + left * pixel),
            }


class _PairEpilogue(Epilogue):
    """Drain of two results per input channel, which are adjacent in memory; the channels of a block are 2 * N.

    The bytes of one result of each pair are written to the scratchpad. The other results are then added as the other
    bytes of int16 elements (256 times the high byte, which is signed, and the low byte, which is not). Half of the
    tile's pixels are paired while the bytes of the other half are written.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        rows, columns = args[4:6]
        n = self.context.config.n
        self.bytes_first = BufferRotation(
            BufferMemory.SP, f"{args[1]}.first", rows * self.y.w * columns * n + n, 1
        )

    def _parts(
        self, fields: dict[str, int | BufferRef], start: int, rows: int
    ) -> Iterator[dict[str, int | BufferRef]]:
        """Yield the fields of the commands that write one byte of each pair, and of those that write the pairs."""
        n, pixels, target = self.context.config.n, rows * self.y.w, self.bytes_first.next()
        blocks, lanes, word = (fields[name] for name in ("n_count", "lanes_tail", "stage"))
        assert isinstance(blocks, int) and isinstance(lanes, int)
        unsigned = self.drain.dtype == Dtype.U8
        common = fields | {"lanes": n, "lanes_tail": (lanes // 2 - 1) % n + 1}
        numbers: list[dict[str, int | BufferRef]] = [common]
        numbers.append(common | {"a_base": _plus(fields["a_base"], blocks * pixels)})
        for name in ("p", "b"):  # the parameters of the second results follow those of the first ones
            if f"{name}_base" in fields:
                step = fields[f"{name}_n"]
                assert isinstance(step, int)
                numbers[1][f"{name}_base"] = _plus(fields[f"{name}_base"], blocks * step)
        bytes_, pairs = reversed(numbers) if unsigned else numbers
        bytes_ |= {"d_x": n, "d_y": self.y.w * n}
        more = {"d_dtype": Dtype.I16, "residual": 1, "r_raw": 1, "r_ls": 0}
        more["r_dtype"] = Dtype.I8 if unsigned else Dtype.U8
        pairs |= {
            "stage": _with_parts(word, **more),
            "r_x": n,
            "r_y": self.y.w * n,
            "x_mult": 1 if unsigned else 256,
            "r_mult": 256 if unsigned else 1,
            "o_mult": 1,
            "r_shifts": bytes_word(0, 0, 31),
        }
        dim = "y" if "y_count" in fields else "x"
        total = fields[f"{dim}_count"]
        assert isinstance(total, int)
        for each, stream in ((bytes_, "d"), (pairs, "r")):
            for first, count in pieces(total, ceil_div(total, 2)):
                before, size = (number * (self.y.w if dim == "y" else 1) for number in (first, count))
                part = each | {f"{dim}_count": count, "a_base": _plus(each["a_base"], before)}
                if each is pairs:
                    step = each[f"d_{dim}"]
                    assert isinstance(step, int)
                    part["d_base"] = _plus(each["d_base"], first * step)
                # The bytes of each half are contiguous, so that halves do not wait for one another.
                part |= {f"{stream}_base": target.plus(before * blocks * n), f"{stream}_n": size * n}
                yield part


def _plus(address: int | BufferRef, offset: int) -> BufferRef:
    assert isinstance(address, BufferRef)
    return address.plus(offset)


def _with_parts(word: int | BufferRef, **parts: int) -> int | BufferRef:
    """Return the second half of a fuse word with other values of some parts."""
    if isinstance(word, BufferRef):
        base = _with_parts(word.base, **parts)
        assert isinstance(base, int)
        return replace(word, base=base)
    return FUSE_STAGE.pack(**(FUSE_STAGE.unpack(word) | parts))


class DepthwiseSteps:
    """Code generator of a depthwise convolution.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    layer : DepthwiseLayer
        Layer to generate code for.
    """

    def __init__(self, context: CodegenContext, layer: DepthwiseLayer):
        self.context, self.layer, self.config = context, layer, context.config
        self.images = [context.layouts[name].parts(layer.batch) for name in (layer.x, layer.y)]
        self.x, self.y = (images[0] for images in self.images)
        n, schedule = self.config.n, context.schedule
        self.kernel_h, self.taps, _ = layer.weights.shape
        self.channels, self.blocks = layer.channels, ceil_div(layer.channels, n)
        self.columns = min(schedule.columns, self.blocks)
        self.rows_per_load = min(schedule.rows_per_load, self.y.h)
        self.rows = min(schedule.rows, self.rows_per_load)
        self.strips = column_strips(
            self.y.w,
            min(schedule.width, schedule.strip_width) if layer.dilations[1] == 1 else self.y.w,
            layer.strides[1],
            layer.pads[1],
            (self.taps - 1) * layer.dilations[1] + 1,
            self.x.w,
        )
        if schedule.strip_width >= self.y.w:  # all tiles across the image use the same rows
            self.strips = [
                replace(strip, start=0, size=self.x.w, before=strip.before + strip.start)
                for strip in self.strips
            ]
        #: Number of rows of each load that have been loaded so far.
        self.rows_loaded: dict[Hashable, int] = {}
        #: Shape of the last pass.
        self.shape = 0, 0
        self.step: int | None = None
        self._select(0, max(self.strips, key=lambda strip: strip.count))
        self.step = self.stream.passes[0].step
        #: Kernel rows in the order of their weights: those of each pass are contiguous.
        self.kernel_rows = [
            row for first in range(self.step) for row in range(first, self.kernel_h, self.step)
        ]
        self._allocate_buffers()

    def _select(self, number: int, strip: ColumnStrip) -> None:
        """Select the image of the batch, and its columns, for which code is generated next."""
        self.number, self.strip = number, strip
        x, y = (images[number] for images in self.images)
        self.stream = stream_of(self.config, self.layer, x.w, y.w, strip.count, self.step)
        self.runs = _column_runs(self.layer.dilations[1], strip)
        self.x = x.columns(strip.start, strip.size)
        self.x_pixel, self.x_row = self.x.pixel, self.x.row
        if not self.x.on_chip:
            self.x_pixel = min(self.columns * self.config.n, self.channels)
            self.x_row = self.x.w * self.x_pixel

    def _allocate_buffers(self) -> None:
        layer, schedule, n = self.layer, self.context.schedule, self.config.n
        tiles = ceil_div(self.blocks, self.columns)
        self.w_block = self.kernel_h * self.taps * n
        weights, drain, made = layer.weights, layer.drain, self.columns * layer.multiplier
        if layer.multiplier > 1:
            order = self._channel_order()
            weights, drain = weights[:, :, order], drain.part(order)
        self.w_dram = (
            None
            if _uniform(layer)
            else self.context.constant(
                f"{layer.name}.weights", pack_depthwise(self.config, weights, self.kernel_rows)
            )
        )
        w_buffer = CircularBuffer(
            BufferMemory.SP, f"{layer.name}.w", made * self.w_block, min(schedule.w_buffers, tiles)
        )
        self.w = TileBuffers(w_buffer, self._load_w)
        self.p = None if layer.counts else parameters(self.context, layer.name, drain, made)
        width = max(strip.count for strip in self.strips)
        self.acc = BufferRotation(
            BufferMemory.ACC, f"{layer.name}.acc", self.rows * width * made, schedule.acc_buffers
        )
        tile = self.context, layer.name, layer.drain, self.images[1], self.rows, self.columns
        if layer.counts:
            sizes = (self.x.h, self.y.h), (self.images[0][0].w, self.y.w)
            runs = tuple(
                window_runs(size, layer.weights.shape[i], layer.strides[i], layer.pads[i], outputs)
                for i, (size, outputs) in enumerate(sizes)
            )
            self.drain: Epilogue = _AverageEpilogue(*tile, width=width, runs=runs, counts=layer.counts)
        elif layer.multiplier > 1:
            self.drain = _PairEpilogue(*tile, width=width, block_channels=2 * n)
        else:
            self.drain = Epilogue(*tile, width=width)
        if not self.x.on_chip:
            most = max(self._image(start, rows)[1] for start, rows in pieces(self.y.h, self.rows_per_load))
            size = most * max(strip.size for strip in self.strips) * self.x_pixel + n
            self.x_tiles = TileBuffers(
                CircularBuffer(BufferMemory.SP, f"{layer.name}.x", size, schedule.x_buffers), self._begin
            )

    def _channel_order(self) -> NDArray[np.int64]:
        """Return the output channels in the order in which they are computed.

        The first outputs of all input channels of a tile are followed by their second outputs. The lanes that complete
        a block of input channels repeat its last one.
        """
        n, most = self.config.n, self.channels - 1
        return np.concatenate(
            [
                np.minimum(np.arange(block * n, (block + blocks) * n), most) * self.layer.multiplier + number
                for block, blocks in pieces(self.blocks, self.columns)
                for number in range(self.layer.multiplier)
            ]
        )

    def _image(self, start: int, rows: int) -> tuple[int, int]:
        layer = self.layer
        return image_rows(start, rows, layer.strides[0], layer.pads[0], self.kernel_h, self.x.h)

    def _begin(self, key: Hashable, _: BufferRef) -> list[Command]:
        self.rows_loaded[key] = 0
        return []

    def _load_x(self, load: tuple[int, int, int], part: tuple[int, int], step: TileStep) -> BufferRef:
        """Return the address of the rows of a load; add a load of the rows that `part` is the first to need to `step`.

        `load` is the first output row, the number of output rows and the first channel block.
        """
        start, rows, block = load
        key = (self.number, self.strip.start, self.strip.size, *load)
        address, there = self.x_tiles.get(key, step), self.rows_loaded[key]
        (first, total), (low, count) = self._image(start, rows), self._image(*part)
        width = min(self.x_pixel, self.channels - block * self.config.n)
        excess = -width % self.config.n  # the last reads extend into the following rows
        needed = min(low + count - first + ceil_div(excess, self.x_row), total)
        if there < needed:
            self.rows_loaded[key] = needed
            lines = image_lines(self.x, needed - there, width, "dst", self.x_pixel, self.x_row)
            source = self.x.address(first + there, 0, block * self.config.n)
            target = address.plus(there * self.x_row)
            step.loads.append(self.context.command(Unit.LOAD, dram=source, dst=target, **lines))
        return address

    def _load_w(self, key: Hashable, address: BufferRef) -> list[Command]:
        assert isinstance(key, int)
        count, key = (each * self.layer.multiplier for each in (min(self.columns, self.blocks - key), key))
        if self.w_dram is None:
            word = LOAD_WORD.pack(fill=1, fill_value=int(self.layer.weights.view(np.uint8).flat[0]))
            return [self.context.command(Unit.LOAD, word=word, dst=address, len=count * self.w_block)]
        source = BufferRef(self.w_dram, 0, key * self.w_block)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, len=count * self.w_block)]

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles; the loops are channel blocks, images, loads of rows, strips and tiles."""
        return [
            step
            for block, blocks in pieces(self.blocks, self.columns)
            for number in range(self.layer.batch)
            for start, rows in pieces(self.y.h, self.rows_per_load)
            for strip in self.strips
            for step in self._strip(number, start, rows, strip, block, blocks)
        ]

    def _strip(
        self, number: int, start: int, rows: int, strip: ColumnStrip, block: int, blocks: int
    ) -> list[TileStep]:
        self._select(number, strip)
        self.drain.select(number, strip.first, strip.count)
        out = []
        # The streams of several outputs per channel would follow one another.
        keep = blocks * self.layer.multiplier == 1 and self.stream.continues
        self.row = self.history = 0
        for offset, count in pieces(rows, self.rows):
            step = TileStep(block=block)
            if self.x.on_chip:
                base, first, image = self.x.address(0, 0, block * self.config.n), 0, self.x.h
            else:
                base = self._load_x((start, rows, block), (start + offset, count), step)
                first, image = self._image(start, rows)
            acc, weights = self.acc.next(), self.w.get(block, step)
            more = keep and offset + count < rows
            for order, taps in enumerate(self._passes(start + offset, count)):
                low, many = start + offset, count
                if order:
                    low, many = taps.outputs(self.layer, self.x.h, low, many)
                if many <= 0:
                    continue
                continued = keep and offset > 0 and self.history >= taps.rows - self.layer.strides[0]
                commands = product(range(self.layer.multiplier), self._commands(blocks))
                for number, (at, together, run) in commands:
                    stream = self._stream(low, many, taps, run, (order > 0, continued, more))
                    stream["u0"] -= first
                    stream["u_lim"] = max(min(stream["u_lim"] - first, image), 1)
                    fields = self._fields(count, block + at, together, run, taps)
                    made = number * blocks + at
                    step.matrix.append(
                        self.context.command(
                            Unit.MATRIX,
                            **stream,
                            **fields,
                            a_base=base.plus(at * self.x.block(self.config.n) + run.x_first * self.x_pixel),
                            acc_base=acc.plus(
                                (made * count + low - start - offset) * self.strip.count + run.y_first
                            ),
                            w_base=weights.plus(made * self.w_block + self._weight(taps)),
                        )
                    )
            how = self.p.fields(block * self.layer.multiplier, step) if self.p else {}
            self.drain.add(step, acc, how, start + offset, count, block, blocks)
            out.append(step)
        return out

    def _commands(self, blocks: int) -> list[tuple[int, int, _Columns]]:
        """Return the first channel block, the number of blocks and the columns of each command of a pass."""
        if self.layer.dilations[1] == 1:
            return [(0, blocks, run) for run in self.runs]
        return [(at, 1, run) for at in range(blocks) for run in self.runs]

    def _passes(self, start: int, rows: int) -> list[StreamPass]:
        """Return the passes of a tile: first one that computes all outputs, if possible with the last one's shape."""
        passes = self.stream.passes
        complete = [p for p in passes if p.outputs(self.layer, self.x.h, start, rows) == (start, rows)]
        first = next((p for p in complete if p.shape == self.shape), passes[0])
        others = [p for p in passes if p != first]
        out = [first, *sorted(others, key=lambda p: p.shape != first.shape)]
        self.shape = out[-1].shape
        return out

    def _stream(
        self, start: int, rows: int, taps: StreamPass, run: _Columns, how: tuple[bool, bool, bool]
    ) -> dict[str, int]:
        """Return the stream fields of a pass over `taps`; if the next tile continues it, it streams whole rows.

        Rows are counted from the top of the image. `how` is whether the sums are added to those of other passes,
        whether the stream continues that of the tile above, and whether the next tile continues it.
        """
        accumulate, continued, more = how
        g, pitch = taps.rows, self.stream.pitch
        stride = self.layer.strides[0] // taps.step  # stream rows per output row
        if continued:
            before, row, streamed = stride - 1, self.row, rows * stride
        else:
            row = start * self.layer.strides[0] - self.layer.pads[0] + taps.row
            # Rows above the image are zeros that precede the stream.
            missing = min(max(ceil_div(-row, taps.step), 0), g - 1)
            row, before = row + missing * taps.step, g - 1 - missing
            streamed = (rows - 1) * stride + before + 1
        lead = before * pitch + taps.columns - 1
        length = streamed * pitch
        if not more:
            length = (rows - 1) * stride * pitch + lead + (run.y_count - 1) * self.layer.strides[1] + 1
        self.row = row + streamed
        #: Rows of the stream so far, which the next tile finds in the line buffers if it continues the stream.
        self.history = streamed + (self.history if continued else 0)
        word = MATRIX_WORD.pack(
            dw=1,
            taps=taps.columns,
            groups=g,
            keep=int(continued),
            accumulate=int(accumulate),
            a_unsigned=int(self.layer.shapes[self.layer.x].dtype == Dtype.U8),
            w_unsigned=int(self.layer.weights.dtype == np.uint8),
        )
        return {
            "word": word,
            "u0": row,
            "u_y": taps.step,
            # Padding at the end of the last row may be that of the following row, which is not awaited.
            "u_lim": row + (streamed - 1) * taps.step + 1,
            "dw_lead": lead,
            "dw_len": length,
            "dw_sy": stride,
        }

    def _weight(self, taps: StreamPass) -> int:
        """Return the offset of a pass's weights within those of a channel block."""
        return (self.kernel_rows.index(taps.row) * self.taps + taps.column) * self.config.n

    def _fields(self, rows: int, block: int, blocks: int, run: _Columns, taps: StreamPass) -> dict[str, int]:
        layer, n, across = self.layer, self.config.n, self.layer.dilations[1]
        last = block + blocks == self.blocks
        tail = (self.channels - 1) % n + 1 if last else 0
        # Either channel blocks or column phases are the blocks of the command.
        walk = {"oc_count": blocks, "a_oc": self.x.block(n), "w_oc": self.w_block, "n_tail": tail}
        walk["acc_oc"] = rows * self.strip.count
        if across > 1:
            walk = {"oc_count": run.count, "a_oc": self.x_pixel, "acc_oc": 1, "n_cols": tail}
        return {
            **walk,
            "a_zp": layer.x_zp,
            "w_zp": layer.w_zp,
            "x_count": self.stream.pitch,
            "a_u": self.x_row,
            "a_v": across * self.x_pixel,
            "v_x": 1,
            "v_lim": run.x_count,
            "v0": run.before + taps.column,
            "w_row": n,
            "acc_x": across,
            "acc_y": self.strip.count,
            "dw_out_w": run.y_count,
            "dw_sx": layer.strides[1],
        }


def depthwise_steps(context: CodegenContext, layer: DepthwiseLayer) -> list[TileStep]:
    """Generate the steps of a depthwise convolution, phase by phase."""
    parts = [
        (replace(context, layouts=phase.layouts(context.layouts)), phase.layer)
        for phase in _phases(context.config, layer)
    ]
    return [step for part in parts or [(context, layer)] for step in DepthwiseSteps(*part).steps()]


KIND = LayerKind(
    name="depthwise",
    layer=DepthwiseLayer,
    lowerings={
        "depthwise_conv2d": Lowering(
            lower_depthwise, CONVOLUTION, strided_input=True, strided_output=True, epilogue=True
        ),
    },
    tilings=depthwise_tilings,
    tile_model=depthwise_tile_model,
    steps=depthwise_steps,
    rank_by_tile_model=True,
)
