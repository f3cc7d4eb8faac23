"""Depthwise convolutions in the stream mode of MATRIX (docs/machine.md)."""

from collections.abc import Hashable, Iterator
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
    inside,
    pieces,
    rectangles,
)
from compiler.ir.identity import identity
from compiler.layers.base import Addend, Drain, Image, Layer
from compiler.layers.conv.input_layout import DilationPhase, dilation_phases
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv.tilings import summand_bytes, with_drain
from compiler.layers.epilogue import Epilogue, parameters
from compiler.layers.epilogue_lowering import drain_of, rounding_of, weights_of, zero_of
from compiler.layers.layer_kind import CONVOLUTION, LayerKind, Lowering
from compiler.layers.lowering_context import LoweringContext, affine
from compiler.layers.tile_pipeline import PipelineTile, TilePipeline, lines
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
from hw.isa.commands import FUSE_SRC, LOAD_WORD, MATRIX_WORD
from hw.isa.enums import DTYPE_BYTES, Dtype, Requant, Rounding, Unit


@identity(
    "DepthwiseLayer",
    "weights",
    "drain",
    "strides",
    "pads",
    "dilations",
    "x_zp",
    "counts",
    added=("dilations", "counts"),
)
@dataclass(frozen=True, kw_only=True, eq=False)
class DepthwiseLayer(Layer):
    """Depthwise convolution; the shape of `weights` is (kernel_h, kernel_w, channels).

    A dilated convolution, whose strides are 1, is computed as one convolution without dilation for each phase: the
    pixels whose row and column have the same remainders when divided by the dilations.

    Parameters
    ----------
    counts : dict
        For an average, whose weights are 1: multiplier and exponent for each number of elements that windows have
        inside the image, in place of those of `drain`. Empty: `drain` applies to all windows.
    """

    weights: NDArray
    drain: Drain
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    x_zp: int = 0
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input and, if there is a second summand, of that tensor."""
        return (self.x, *([self.drain.residual.tensor] if self.drain.residual else []))


#: Minimum number of pixels of a phase; smaller phases together take longer than a grouped convolution.
_MIN_PHASE_PIXELS = 256
#: Maximum number of channels per group of a grouped convolution that replaces depthwise ones.
_GROUP_CHANNELS = 16


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
    direct = not zero and max(a["strides"]) <= MAX_STRIDE
    if direct and (dilations == (1, 1) or _by_phases(dilations, a["strides"], x, y, low.x.shape[0])):
        return DepthwiseLayer(**common, weights=weights.data, dilations=dilations)
    data, groups = _block_diagonal_groups(weights.data, zero)
    return ConvLayer(**common, weights=data, groups=groups, dilations=a["dilations"], w_zp=zero)


def _by_phases(dilations: tuple[int, ...], strides: tuple[int, int], x: Image, y: Image, batch: int) -> bool:
    """Return True if a dilated convolution can be computed phase by phase with enough pixels in each phase."""
    down, across = dilations
    return (
        strides == (1, 1)
        and (batch == 1 or down == 1)
        and down <= x.h // batch
        and across <= x.w
        and (y.h // batch // down) * (y.w // across) >= _MIN_PHASE_PIXELS
    )


def _phases(layer: DepthwiseLayer) -> list[DilationPhase[DepthwiseLayer]]:
    """Return the convolutions without dilation that a layer consists of."""
    return dilation_phases(layer, layer.pads, layer.dilations)


def _block_diagonal_groups(weights: NDArray, zero: int) -> tuple[NDArray, int]:
    """Convert depthwise weights to block-diagonal weights of a grouped convolution; also return the number of groups.

    Depthwise convolutions that the stream mode does not support become grouped convolutions. Each channel of a group
    has zero weights for the group's other channels, which costs no cycles because the array sums over several channels
    at once anyway.
    """
    rows, columns, channels = weights.shape
    size = next(size for size in range(min(_GROUP_CHANNELS, channels), 0, -1) if channels % size == 0)
    out = np.full((channels, rows, columns, size), zero, weights.dtype)
    for channel in range(channels):
        out[channel, :, :, channel % size] = weights[:, :, channel]
    return out, channels // size


#: Maximum number of tiles across an image whose rows are loaded as a whole.
_MAX_ACROSS = 4


def depthwise_tilings(context: TilingContext, layer: DepthwiseLayer) -> Tilings:
    """Yield the tilings of a depthwise convolution that fit the on-chip memories.

    Strips, which are loaded separately, are tried only if nothing else fits. Two consecutive phases of a dilated
    convolution are active at the same time, so each gets half of the memory.
    """
    if layer.dilations != (1, 1):
        phases = _phases(layer)
        half = replace(context, free=context.free // 2, acc_rows=context.acc_rows // 2)
        for cycles, schedule in depthwise_tilings(half, phases[0].layer):
            yield cycles * len(phases), schedule
        return
    found = list(_tilings(context, layer, _widths(context, layer), separate=False))
    if not found:
        widths = strip_widths(images(layer)[1].w, context.acc_rows // 2, context.config.n)
        passes = [_passes(context, layer, width) for width in widths]
        found = list(_tilings(context, layer, passes, separate=True))
    yield from found


def _passes(context: TilingContext, layer: DepthwiseLayer, width: int) -> tuple[int, int]:
    """Return a width and its number of passes."""
    x, y = images(layer)
    return width, stream_passes(context.config, layer, stream_pitch(layer, x.w, y.w, width))


def _tilings(
    context: TilingContext, layer: DepthwiseLayer, widths: list[tuple[int, int]], *, separate: bool
) -> Tilings:
    """Yield the tilings with some widths, each with its number of passes.

    If `separate`, the input of each strip of that width is loaded separately; otherwise, whole rows are loaded.
    """
    config, n = context.config, context.config.n
    batch, (x, y) = layer.batch, images(layer)
    kernel_h, taps, channels = layer.weights.shape
    blocks = ceil_div(channels, n)
    for columns, (width, passes) in product(cuts(min(blocks, config.param_slots // 2)), widths):
        pitch = stream_pitch(layer, x.w, y.w, width)
        strips, piece, _ = strip_images(x, y, width, layer.strides[1], layer.weights.shape[1])
        for rows in cuts(y.h):
            sums = rows * width * columns
            if 2 * sums > context.acc_rows:
                continue
            for rows_per_load in (y.h, rows) if not context.x_on_chip else (y.h,):
                x_bytes = (
                    input_rows(rows_per_load, layer.strides[0], kernel_h, x.h)
                    * (piece if separate else x).w
                    * columns
                    * n
                    + n
                )
                used = columns * kernel_h * taps * n * 2
                used += 0 if context.x_on_chip else 2 * x_bytes
                used += 0 if context.y_on_chip else 2 * sums * n * DTYPE_BYTES[layer.drain.dtype]
                if isinstance(layer.drain.residual, Addend):
                    used += summand_bytes(layer.drain, context, 2 * sums)
                if used > context.free:
                    continue
                keep = columns == 1 and passes == 1 and rows < rows_per_load
                tiles = batch * ceil_div(blocks, columns) * ceil_div(y.h, rows) * strips
                again = 0 if keep else (kernel_h - 1) * tiles * columns
                stream = (batch * blocks * y.h * layer.strides[0] * strips + again) * pitch
                array = stream * passes
                bus = (
                    0
                    if context.x_on_chip
                    else batch
                    * (strips if separate else 1)
                    * ceil_div(y.h, rows_per_load)
                    * blocks
                    * x_bytes
                    / (columns * n)
                )
                bus += 0 if context.y_on_chip else batch * y.h * y.w * blocks
                cycles = max(array, bus * context.beat, tiles * TILE_CYCLES) + sums + tiles * 10
                yield (
                    cycles,
                    LayerSchedule(
                        rows=rows,
                        rows_per_load=rows_per_load,
                        width=ALL_COLUMNS if separate else width,
                        strip_width=width if separate else ALL_COLUMNS,
                        columns=columns,
                        param_blocks=param_blocks_per_buffer(config, blocks, columns),
                        acc_buffers=sum_buffers(context, sums),
                        prefetch=PREFETCH_STEPS,
                        on_chip=context.y_on_chip,
                    ),
                )


def _widths(context: TilingContext, layer: DepthwiseLayer) -> list[tuple[int, int]]:
    """Return candidate widths and their numbers of passes: the whole width, and widths that need fewer passes."""
    out: list[tuple[int, int]] = []
    _, y = images(layer)
    for strips in range(1, _MAX_ACROSS + 1):
        width, passes = _passes(context, layer, ceil_div(y.w, strips))
        if not out or passes < out[-1][1]:
            out.append((width, passes))
    return out


def depthwise_tile_model(layer: DepthwiseLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a depthwise convolution; loops: channel blocks, images, loads of rows, strips, tiles.

    A dilated convolution is represented by its largest phase, repeated for each phase.
    """
    if layer.dilations != (1, 1):
        phases = _phases(layer)
        pipeline = depthwise_tile_model(phases[0].layer, s, context)
        return replace(pipeline, count=pipeline.count * len(phases))
    n, (x, y) = context.config.n, images(layer)
    kernel_h, taps, channels = layer.weights.shape
    blocks, stride = ceil_div(channels, n), layer.strides[0]
    columns, rows_per_load = min(s.columns, blocks), min(s.rows_per_load, y.h)
    rows, width = min(s.rows, rows_per_load), min(s.width, s.strip_width, y.w)
    pitch = stream_pitch(layer, x.w, y.w, width)
    rows_per_pass = max(kernel_rows(context.config, layer.weights.shape[:2], pitch), 1)
    passes = ceil_div(kernel_h, rows_per_pass)
    strips, piece, _ = strip_images(x, y, width, layer.strides[1], taps)
    separate = s.strip_width < y.w
    keep, size = columns == 1 and passes == 1, DTYPE_BYTES[layer.drain.dtype]
    uniform = _uniform(layer)

    def streamed(row: int, rows: int, across: int, first: bool, last: bool) -> int:
        """Return the cycles of a tile for one block of channels: the sum over all passes."""
        total = 0
        for g0 in range(0, kernel_h, rows_per_pass):
            groups = min(rows_per_pass, kernel_h - g0)
            above = min(max(layer.pads[0] - row * stride - g0, 0), groups - 1)
            before = stride - 1 if keep and not first else groups - 1 - above
            if keep and not last:
                return ((rows - 1) * stride + before + 1) * pitch
            total += ((rows - 1) * stride + before) * pitch + taps + (across - 1) * layer.strides[1]
        return total

    def tiles() -> Iterator[PipelineTile]:
        for block in range(0, blocks, columns):
            wide, channels_wide = min(columns, blocks - block), min(columns * n, channels - block * n)
            for number, start, strip in product(
                range(layer.batch), range(0, y.h, rows_per_load), range(strips)
            ):
                high, across = min(rows_per_load, y.h - start), min(width, y.w - strip * width)
                count = input_rows(high, stride, kernel_h, x.h)
                image = lines(count * (piece if separate else x).w, channels_wide, channels, n)
                if separate and channels_wide == channels:
                    image = lines(count, piece.w * channels, x.w * channels, n)
                for offset in range(0, high, rows):
                    count = min(rows, high - offset)
                    loads: list[tuple[str, object, float]] = []
                    if not context.x_on_chip:
                        loads.append(("x", (block, number, start, strip * separate), image))
                    loads.append(("w", block, 0.0 if uniform else float(wide * kernel_h * taps)))
                    beats = lines(count * across, channels_wide * size, channels * size, n)
                    key = (0, number, start + offset, strip, block)
                    if not layer.counts:
                        loads += with_drain(layer.drain, s, context, key, blocks, beats)
                    cycles = streamed(start + offset, count, across, offset == 0, offset + rows >= high)
                    yield PipelineTile(
                        tuple(loads),
                        wide * cycles,
                        count * across * wide * size,
                        0.0 if context.y_on_chip else beats,
                        passes + 2 - context.y_on_chip,
                    )

    high_tiles = sum(
        ceil_div(min(rows_per_load, y.h - start), rows) for start in range(0, y.h, rows_per_load)
    )
    count = ceil_div(blocks, columns) * layer.batch * strips * high_tiles
    buffers = {"x": s.x_buffers, "w": s.w_buffers, "p": s.param_buffers, "r": s.y_buffers, "t": 1}
    return TilePipeline(tiles(), count, buffers, s.acc_buffers, s.y_buffers)


def _uniform(layer: DepthwiseLayer) -> bool:
    """Return True if all weights are equal, so that they need not be loaded from DRAM."""
    return bool((layer.weights == layer.weights.flat[0]).all())


def pack_depthwise(config: MlaConfig, weights: NDArray) -> NDArray[np.uint8]:
    """Pack weights (kernel_h, kernel_w, channels) as [block][kernel row][kernel column][N]."""
    n, channels = config.n, weights.shape[2]
    blocks = ceil_div(channels, n)
    padded = np.zeros((*weights.shape[:2], blocks * n), np.uint8)
    padded[:, :, :channels] = weights.view(np.uint8)
    return np.ascontiguousarray(padded.reshape(*weights.shape[:2], blocks, n).transpose(2, 0, 1, 3))


def kernel_rows(config: MlaConfig, kernel: tuple[int, ...], pitch: int) -> int:
    """Return the number of kernel rows per pass that fit the array and line buffers, for rows of `pitch` positions."""
    kernel_h, taps = kernel
    for groups in range(min(kernel_h, config.n // taps, 3), 1, -1):
        if groups * pitch + 2 * taps <= config.line_depth:
            return groups
    return 1


def stream_passes(config: MlaConfig, layer: DepthwiseLayer, pitch: int) -> int:
    """Return the number of passes over an image, each with as many kernel rows and columns as the array can hold."""
    kernel_h, taps, _ = layer.weights.shape
    return ceil_div(kernel_h, kernel_rows(config, layer.weights.shape[:2], pitch)) * ceil_div(taps, config.n)


def stream_pitch(layer: DepthwiseLayer, in_w: int, out_w: int, width: int) -> int:
    """Return the stream positions per row, including padding, for a strip of `width` of the `out_w` output columns.

    A strip with all columns streams whole image rows; a narrower strip streams the columns that the kernel covers.
    """
    taps, stride, left = layer.weights.shape[1], layer.strides[1], layer.pads[1]
    needed = (width - 1) * stride + taps
    return max(needed, in_w + left) if width == out_w else needed


@dataclass(frozen=True)
class _Taps:
    """Kernel rows and columns of a pass: first row, number of rows, first column, number of columns."""

    row: int
    rows: int
    column: int
    columns: int


class _AverageEpilogue(Epilogue):
    """Drain of sums that are divided by the number of elements that their windows have inside the image.

    Parameters
    ----------
    runs : (runs of rows, runs of columns)
        Results of `inside` for both dimensions of the image.
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
        self.kernel_h, self.taps, channels = layer.weights.shape
        self.channels, self.blocks = channels, ceil_div(channels, n)
        self.columns = min(schedule.columns, self.blocks)
        self.rows_per_load = min(schedule.rows_per_load, self.y.h)
        self.rows = min(schedule.rows, self.rows_per_load)
        self.strips = column_strips(
            self.y.w,
            min(schedule.width, schedule.strip_width),
            layer.strides[1],
            layer.pads[1],
            self.taps,
            self.x.w,
        )
        if schedule.strip_width >= self.y.w:  # all tiles across the image use the same rows
            self.strips = [
                replace(strip, start=0, size=self.x.w, before=strip.before + strip.start)
                for strip in self.strips
            ]
        self._select(0, self.strips[0])
        self.groups = kernel_rows(self.config, layer.weights.shape[:2], self.pitch)
        self.passes = stream_passes(self.config, layer, self.pitch)
        self._allocate_buffers()

    def _select(self, number: int, strip: ColumnStrip) -> None:
        """Select the image of the batch, and its columns, for which code is generated next."""
        self.number, self.strip = number, strip
        x, y = (images[number] for images in self.images)
        self.pitch = stream_pitch(self.layer, x.w, y.w, strip.count)
        self.x = x.columns(strip.start, strip.size)
        self.x_pixel, self.x_row = self.x.pixel, self.x.row
        if not self.x.on_chip:
            self.x_pixel = min(self.columns * self.config.n, self.channels)
            self.x_row = self.x.w * self.x_pixel

    def _allocate_buffers(self) -> None:
        layer, schedule, n = self.layer, self.context.schedule, self.config.n
        tiles = ceil_div(self.blocks, self.columns)
        self.w_block = self.kernel_h * self.taps * n
        self.w_dram = (
            None
            if _uniform(layer)
            else self.context.constant(f"{layer.name}.weights", pack_depthwise(self.config, layer.weights))
        )
        w_buffer = CircularBuffer(
            BufferMemory.SP, f"{layer.name}.w", self.columns * self.w_block, min(schedule.w_buffers, tiles)
        )
        self.w = TileBuffers(w_buffer, self._load_w)
        self.p = None if layer.counts else parameters(self.context, layer.name, layer.drain, self.columns)
        width = max(strip.count for strip in self.strips)
        self.acc = BufferRotation(
            BufferMemory.ACC, f"{layer.name}.acc", self.rows * width * self.columns, schedule.acc_buffers
        )
        tile = self.context, layer.name, layer.drain, self.images[1], self.rows, self.columns
        if layer.counts:
            sizes = (self.x.h, self.y.h), (self.images[0][0].w, self.y.w)
            runs = tuple(
                inside(size, layer.weights.shape[i], layer.strides[i], layer.pads[i], outputs)
                for i, (size, outputs) in enumerate(sizes)
            )
            self.drain: Epilogue = _AverageEpilogue(*tile, width=width, runs=runs, counts=layer.counts)
        else:
            self.drain = Epilogue(*tile, width=width)
        if not self.x.on_chip:
            most = max(self._image(start, rows)[1] for start, rows in pieces(self.y.h, self.rows_per_load))
            size = most * max(strip.size for strip in self.strips) * self.x_pixel + n
            self.x_tiles = TileBuffers(
                CircularBuffer(BufferMemory.SP, f"{layer.name}.x", size, schedule.x_buffers), self._load_x
            )

    def _image(self, start: int, rows: int) -> tuple[int, int]:
        layer = self.layer
        return image_rows(start, rows, layer.strides[0], layer.pads[0], self.kernel_h, self.x.h)

    def _load_x(self, key: Hashable, address: BufferRef) -> list[Command]:
        *_, start, rows, block = key  # type: ignore[misc]
        first, count = self._image(start, rows)
        width = min(self.x_pixel, self.channels - block * self.config.n)
        lines = image_lines(self.x, count, width, "dst", self.x_pixel, self.x_row)
        source = self.x.address(first, 0, block * self.config.n)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, **lines)]

    def _load_w(self, key: Hashable, address: BufferRef) -> list[Command]:
        assert isinstance(key, int)
        count = min(self.columns, self.blocks - key)
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
        keep = blocks == 1 and self.passes == 1
        self.row = self.history = 0
        for offset, count in pieces(rows, self.rows):
            step = TileStep(block=block)
            if self.x.on_chip:
                base, first, image = self.x.address(0, 0, block * self.config.n), 0, self.x.h
            else:
                base = self.x_tiles.get((number, strip.start, strip.size, start, rows, block), step)
                first, image = self._image(start, rows)
            acc, weights = self.acc.next(), self.w.get(block, step)
            more = keep and offset + count < rows
            n = self.config.n
            for (g0, g), (t0, t) in product(pieces(self.kernel_h, self.groups), pieces(self.taps, n)):
                taps = _Taps(g0, g, t0, t)
                continued = keep and offset > 0 and self.history >= g - self.layer.strides[0]
                stream = self._stream(start + offset, count, taps, continued, more)
                stream["u0"] -= first
                fields = self._fields(count, block, blocks, t0)
                step.matrix.append(
                    self.context.command(
                        Unit.MATRIX,
                        **stream,
                        **fields,
                        u_lim=image,
                        a_base=base,
                        acc_base=acc,
                        w_base=weights.plus((g0 * self.taps + t0) * n),
                    )
                )
            how = self.p.fields(block, step) if self.p else {}
            self.drain.add(step, acc, how, start + offset, count, block, blocks)
            out.append(step)
        return out

    def _stream(self, start: int, rows: int, taps: _Taps, continued: bool, more: bool) -> dict[str, int]:
        """Return the stream fields of a pass over `taps`; if the next tile continues it, it streams whole rows."""
        stride, g = self.layer.strides[0], taps.rows
        if continued:
            before, row, streamed = stride - 1, self.row, rows * stride
        else:
            row = start * stride - self.layer.pads[0] + taps.row
            missing = min(max(-row, 0), g - 1)  # rows above the image are zeros that precede the stream
            row, before = row + missing, g - 1 - missing
            streamed = (rows - 1) * stride + before + 1
        lead = before * self.pitch + taps.columns - 1
        length = streamed * self.pitch
        if not more:
            length = (
                (rows - 1) * stride * self.pitch + lead + (self.strip.count - 1) * self.layer.strides[1] + 1
            )
        self.row = row + streamed
        #: Rows of the stream so far, which the next tile finds in the line buffers if it continues the stream.
        self.history = streamed + (self.history if continued else 0)
        word = MATRIX_WORD.pack(
            dw=1,
            taps=taps.columns,
            groups=g,
            keep=int(continued),
            accumulate=int(taps.row + taps.column > 0),
            a_unsigned=int(self.layer.shapes[self.layer.x].dtype == Dtype.U8),
            w_unsigned=int(self.layer.weights.dtype == np.uint8),
        )
        return {"word": word, "u0": row, "dw_lead": lead, "dw_len": length}

    def _fields(self, rows: int, block: int, blocks: int, tap: int) -> dict[str, int]:
        layer, n = self.layer, self.config.n
        last = block + blocks == self.blocks
        return {
            "a_zp": layer.x_zp,
            "x_count": self.pitch,
            "oc_count": blocks,
            "a_u": self.x_row,
            "a_v": self.x_pixel,
            "a_oc": self.x.block(n),
            "u_y": 1,
            "v_x": 1,
            "v_lim": self.x.w,
            "v0": self.strip.before + tap,
            "w_row": n,
            "w_oc": self.w_block,
            "acc_x": 1,
            "acc_y": self.strip.count,
            "acc_oc": rows * self.strip.count,
            "n_tail": (self.channels - 1) % n + 1 if last else 0,
            "dw_out_w": self.strip.count,
            "dw_sx": layer.strides[1],
            "dw_sy": layer.strides[0],
        }


def depthwise_steps(context: CodegenContext, layer: DepthwiseLayer) -> list[TileStep]:
    """Generate the steps of a depthwise convolution, phase by phase."""
    if layer.dilations == (1, 1):
        return DepthwiseSteps(context, layer).steps()
    out = []
    for phase in _phases(layer):
        layouts = phase.layouts(context.layouts)
        out += DepthwiseSteps(replace(context, layouts=layouts), phase.layer).steps()
    return out


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
)
