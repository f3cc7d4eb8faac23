"""Transposed convolutions, as one convolution for each phase of the strides."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import BlockedLayout, TensorLayout, TileStep
from compiler.commands.tile_buffers import CodegenContext
from compiler.ir.identity import identity
from compiler.layers.base import Layer
from compiler.layers.conv.codegen import conv_steps
from compiler.layers.conv.input_layout import repeated
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv.tile_model import conv_tile_model
from compiler.layers.conv.tilings import conv_tilings
from compiler.layers.epilogue_lowering import drain_of, rounding_of, stored_weights, weights_of
from compiler.layers.layer_kind import CONVOLUTION, LayerKind, Lowering
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError, affine
from compiler.layers.tile_pipeline import TilePipeline, line_beats, repeated_pipeline
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div
from hw.config import MlaConfig
from hw.isa.enums import DTYPE_BYTES, Rounding


@identity("Phase", "conv", "offset", "block", added=("block",))
@dataclass(frozen=True, eq=False)
class Phase:
    """Convolution each of whose output pixels is a block of `block` (rows, columns) output pixels.

    The first block begins at `offset` (row, column), which is negative if the block extends beyond the image.
    """

    conv: ConvLayer
    offset: tuple[int, int]
    block: tuple[int, int] = (1, 1)


@identity("ConvTransposeLayer", "phases", "strides", "merged", "blocks", added=("merged", "blocks"))
@dataclass(frozen=True, kw_only=True, eq=False)
class ConvTransposeLayer(Layer):
    """Transposed convolution as ordinary convolutions whose results are interleaved with `strides` (rows, columns).

    Parameters
    ----------
    phases : tuple of Phase
        One convolution for each phase of rows and columns.
    strides : (int, int)
        Distance between the rows, and between the columns, of a phase.
    merged : tuple of Phase
        One convolution for each phase of rows, whose channels are those of adjacent pixels of all column phases, and
        are contiguous in memory; empty if the number of columns is not a multiple of the stride.
    blocks : tuple of Phase
        Convolutions to which `merged` refers if the output is in DRAM: of blocks of pixels that depend on the same
        inputs. The first and the last block of a row or column may extend beyond the image, where STORE omits it.
    """

    phases: tuple[Phase, ...]
    strides: tuple[int, int]
    merged: tuple[Phase, ...] = ()
    blocks: tuple[Phase, ...] = ()


@dataclass(frozen=True)
class _Line:
    """Blocks of outputs along a dimension, each of which is computed as one output of a convolution.

    Parameters
    ----------
    first : int
        First output of the first block; negative if the block extends beyond the image.
    count : int
        Number of blocks.
    stride : int
        Distance between the blocks, in inputs.
    taps : tuple of tuples of (int or None)
        For each output of a block, the taps that it applies to consecutive inputs; None for none.
    pad : int
        Number of inputs before the first one that the first block depends on.
    """

    first: int
    count: int
    stride: int
    taps: tuple[tuple[int | None, ...], ...]
    pad: int


@dataclass(frozen=True)
class _Axis:
    """Dimension of a transposed convolution: inputs, outputs and kernel; output o uses tap k of an input i if
    o = i * stride + k * dilation - pad.
    """

    inputs: int
    size: int
    kernel: int
    stride: int
    dilation: int
    pad: int

    def line(self, first: int, outputs: int, stride: int) -> _Line:
        """Return the blocks of `outputs` outputs from output `first` on, at a distance of `stride` inputs."""
        taps = []
        for output in range(first, first + outputs):
            steps = ((output + self.pad - k * self.dilation, k) for k in range(self.kernel))
            taps.append({step // self.stride: k for step, k in steps if step % self.stride == 0})
        distances = [distance for each in taps for distance in each]
        # A convolution can pad inputs but not skip them, so inputs before the first one that is used get no taps.
        low = min([0, *distances])
        high = max([low, *distances])
        found = tuple(tuple(each.get(distance) for distance in range(low, high + 1)) for each in taps)
        return _Line(first, ceil_div(self.size - first, stride * self.stride), stride, found, -low)

    def phases(self) -> list[_Line]:
        """Return the phases: blocks of one output at a distance of one input."""
        return [self.line(first, 1, 1) for first in range(min(self.stride, self.size))]

    def blocks(self, inputs: int) -> _Line:
        """Return blocks of all outputs of `inputs` inputs, which begin where they depend on the fewest inputs."""
        lines = [self.line(-before, inputs * self.stride, inputs) for before in range(self.stride)]
        return min(lines, key=lambda line: (len(line.taps[0]), line.count))

    @property
    def reached(self) -> int:
        """Number of pairs of an input and a kernel tap that contribute to an output that is not cropped."""
        positions = (
            i * self.stride + k * self.dilation - self.pad
            for i in range(self.inputs)
            for k in range(self.kernel)
        )
        return sum(0 <= position < self.size for position in positions)


def lower_conv_transpose(low: LoweringContext) -> ConvTransposeLayer:
    """Lower a transposed convolution.

    Raises
    ------
    UnsupportedLoweringError
        The weights are not constant, or the rows of a batch are not a multiple of the stride.
    """
    weights, bias = weights_of(low)
    assert weights.data is not None
    a, common, stored = low.anchor.attributes, low.common(), stored_weights(weights)
    x, y = common["shapes"][common["x"]], common["shapes"][common["y"]]
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.DOUBLE))
    batch, height = low.x.shape[0], low.y.shape[1]
    if batch > 1 and height % a["strides"][0]:
        raise UnsupportedLoweringError(
            f"the {height} rows of an image must be a multiple of the stride in a batch"
        )
    rows, columns = (
        _Axis(*sizes, *(a[key][axis] for key in ("strides", "dilations", "pads")))
        for axis, sizes in enumerate(
            zip((low.x.shape[1], x.w), (height, y.w), weights.shape[1:3], strict=True)
        )
    )
    conv = ConvLayer(
        **common,
        weights=stored.data,
        correction=stored.correction,
        drain=drain,
        groups=a["groups"],
        batch=batch,
        x_zp=affine(low.x).zero_point,
        w_zp=stored.zero,
    )
    phases = [
        _phase(conv, number, *lines) for number, lines in enumerate(product(rows.phases(), columns.phases()))
    ]
    merged, blocks = [], []
    if a["groups"] == 1 and drain.residual is None:
        if columns.stride > 1 and y.w % columns.stride == 0:
            adjacent = columns.line(0, columns.stride, 1)
            merged = [_phase(conv, number, line, adjacent) for number, line in enumerate(rows.phases())]
        if batch == 1:
            blocks = _best_blocks(low.config, conv, rows, columns)
    taps = weights.shape[1] * weights.shape[2]
    macs = batch * rows.reached * columns.reached * (weights.elements // taps)
    return ConvTransposeLayer(
        **common,
        macs=macs,
        phases=tuple(phases),
        merged=tuple(merged),
        blocks=tuple(blocks),
        strides=a["strides"],
        batch=batch,
    )


#: Maximum number of inputs along a dimension whose outputs are a block.
_MAX_BLOCK_INPUTS = 4


def _best_blocks(config: MlaConfig, conv: ConvLayer, rows: _Axis, columns: _Axis) -> list[Phase]:
    """Return the convolutions of the blocks that take the fewest cycles; none if the phases are as fast.

    A block has the outputs of some inputs of a row, in one or all phases of rows.
    """
    if columns.stride == 1 and rows.stride == 1:
        return []
    across = [columns.blocks(inputs) for inputs in range(1, min(_MAX_BLOCK_INPUTS, columns.inputs) + 1)]
    down = [rows.phases()]
    down += [[rows.blocks(inputs)] for inputs in range(1, min(_MAX_BLOCK_INPUTS, rows.inputs) + 1)]
    found = [(_block_cycles(config, conv, lines, line), lines, line) for lines in down for line in across]
    cycles, lines, line = min(found, key=lambda each: each[0])
    if cycles >= sum(
        _block_cycles(config, conv, [down], across)
        for down, across in product(rows.phases(), columns.phases())
    ):
        return []
    return [_phase(conv, number, each, line) for number, each in enumerate(lines)]


def _block_cycles(config: MlaConfig, conv: ConvLayer, rows: list[_Line], columns: _Line) -> float:
    """Return the estimated cycles of the convolutions of some blocks: those of the busiest unit."""
    n, (outputs, _, _, inputs) = config.n, conv.weights.shape
    array = fuse = store = 0.0
    for line in rows:
        blocks = line.count * columns.count
        made = ceil_div(len(line.taps) * len(columns.taps) * outputs, n)
        across = len(columns.taps[0])
        deep = min(across * ceil_div(inputs, n), ceil_div(across * inputs, n))
        array += len(conv.summands) * blocks * made * len(line.taps[0]) * deep
        fuse += blocks * made
        width, made = len(columns.taps) * outputs * DTYPE_BYTES[conv.drain.dtype], len(line.taps)
        count, width = (columns.count, width) if made > 1 else (1, columns.count * width)
        store += line.count * made * line_beats(count, width, [1], n)
    return max(array, fuse, store)


def _phase(conv: ConvLayer, number: int, rows: _Line, columns: _Line) -> Phase:
    """Return the convolution of blocks of pixels, the channels of which are concatenated row by row."""
    y, block = conv.shapes[conv.y], (len(rows.taps), len(columns.taps))
    image = replace(y, h=conv.batch * rows.count, w=columns.count, c=block[0] * block[1] * y.c)
    parts = [
        np.concatenate([_taps(weights, *taps, zero) for taps in product(rows.taps, columns.taps)])
        for weights, zero in conv.summands
    ]
    made = replace(
        conv.with_summands(parts),
        name=f"{conv.name}.{number}",
        shapes=conv.shapes | {conv.y: image},
        macs=image.h * image.w * parts[0].size,
        drain=repeated(conv.drain, block[0] * block[1]),
        strides=(rows.stride, columns.stride),
        pads=(rows.pad, columns.pad, 0, 0),
    )
    return Phase(made, (rows.first, columns.first), block)


def _taps(
    weights: NDArray, rows: tuple[int | None, ...], columns: tuple[int | None, ...], zero: int
) -> NDArray:
    """Return the weights of a phase; missing taps are set to the zero point."""
    out_c, _, _, in_c = weights.shape
    out = np.full((out_c, len(rows), len(columns), in_c), zero, weights.dtype)
    for i, ky in enumerate(rows):
        for j, kx in enumerate(columns):
            if ky is not None and kx is not None:
                out[:, i, j] = weights[:, ky, kx]
    return out


def _selected(
    layer: ConvTransposeLayer, s: LayerSchedule, y_on_chip: bool
) -> tuple[tuple[Phase, ...], LayerSchedule]:
    """Return the phases that a schedule selects, and the schedule of their convolutions.

    A schedule that packs the pixels of all phases of columns selects the convolutions of several phases.
    """
    pixels = _pixels(layer)
    if s.pixels_per_pass % pixels == 0:
        if layer.blocks and not y_on_chip:
            return layer.blocks, replace(s, pixels_per_pass=1)
        if layer.merged:
            return layer.merged, replace(s, pixels_per_pass=s.pixels_per_pass // pixels)
    return layer.phases, s


def _pixels(layer: ConvTransposeLayer) -> int:
    """Return the pixels of each pass of schedules that select the convolutions of several phases."""
    return max(layer.strides[1], 2)


def conv_transpose_tilings(context: TilingContext, layer: ConvTransposeLayer) -> Tilings:
    """Yield the tilings of the largest phase, if possible with an equal share of the memory for each phase.

    The buffers of all phases may be in use at the same time.
    """
    pixels = _pixels(layer)
    wide, _ = _selected(layer, LayerSchedule(pixels_per_pass=pixels), context.y_on_chip)
    together = wide is not layer.phases
    for cycles, schedule in _phase_tilings(context, layer.phases):
        if schedule.pixels_per_pass == 1 or not (together or layer.strides[1] > 1):
            yield cycles, schedule
    if not together:
        return
    for cycles, schedule in _phase_tilings(context, wide):
        if wide is layer.merged or schedule.pixels_per_pass == 1:
            yield cycles, replace(schedule, pixels_per_pass=pixels * schedule.pixels_per_pass)


def _phase_tilings(context: TilingContext, phases: tuple[Phase, ...]) -> Tilings:
    largest = max((phase.conv for phase in phases), key=lambda conv: conv.macs)
    context = replace(context, consecutive=len(phases) > 1)
    for free in (context.free // len(phases), context.free):
        found = list(conv_tilings(replace(context, free=free), largest))
        for cycles, schedule in found:
            yield cycles * len(phases), schedule
        if found:
            return


def conv_transpose_tile_model(
    layer: ConvTransposeLayer, s: LayerSchedule, context: LayerContext
) -> TilePipeline:
    """Return the tile model of a transposed convolution: its largest phase, repeated for each phase."""
    phases, s = _selected(layer, s, context.y_on_chip)
    largest = max(phases, key=lambda phase: phase.conv.macs)
    pipeline = repeated_pipeline(lambda: conv_tile_model(largest.conv, s, context), len(phases))
    rows = largest.block[0]
    if rows > 1:  # the rows of a block are stored apart
        n, width = context.config.n, largest.conv.shapes[layer.y].c * DTYPE_BYTES[largest.conv.drain.dtype]
        more = rows * line_beats(2, width // rows, [1], n) / 2 * n / width
        tiles = (tile._replace(store=tile.store * more) for tile in pipeline.tiles)
        pipeline = replace(pipeline, tiles=tiles)
    return pipeline


def conv_transpose_steps(context: CodegenContext, layer: ConvTransposeLayer) -> list[TileStep]:
    """Generate the steps of a transposed convolution, phase by phase."""
    y = context.layouts[layer.y]
    phases, schedule = _selected(layer, context.schedule, y.on_chip)
    if y.pixel != y.c * DTYPE_BYTES[layer.shapes[layer.y].dtype]:
        phases = layer.phases
    return [
        step
        for phase in phases
        for step in conv_steps(
            replace(
                context,
                schedule=schedule,
                layouts=context.layouts | {layer.y: _phase_layout(y, layer, phase)},
            ),
            phase.conv,
        )
    ]


def _phase_layout(y: TensorLayout, layer: ConvTransposeLayer, phase: Phase) -> TensorLayout:
    """Return the layout of the output pixels of a phase, as an image."""
    image, strides = phase.conv.shapes[phase.conv.y], layer.strides
    if any(phase is each for each in layer.blocks):
        pixel = phase.block[0] * phase.block[1] * y.pixel
        down = strides[0] if phase.block[0] == 1 else phase.block[0]
        return BlockedLayout(
            y.buffer,
            image.h,
            image.w,
            image.c,
            pixel,
            image.w * pixel,
            image=y,
            pixels=phase.block,
            first=phase.offset,
            step=down,
        )
    first = y.address(*phase.offset)
    return TensorLayout(
        y.buffer, image.h, image.w, image.c, strides[1] * y.pixel, strides[0] * y.row, first.offset
    )


KIND = LayerKind(
    name="convtranspose",
    layer=ConvTransposeLayer,
    lowerings={"conv_transpose2d": Lowering(lower_conv_transpose, CONVOLUTION, epilogue=True)},
    tilings=conv_transpose_tilings,
    tile_model=conv_transpose_tile_model,
    steps=conv_transpose_steps,
)
