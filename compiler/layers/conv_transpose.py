"""Transposed convolutions, as one convolution for each phase of the strides."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import TensorLayout, TileStep
from compiler.commands.tile_buffers import CodegenContext
from compiler.ir.identity import identity
from compiler.layers.base import Layer
from compiler.layers.conv.codegen import conv_steps
from compiler.layers.conv.input_layout import repeated
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv.tilings import conv_tile_model, conv_tilings
from compiler.layers.epilogue_lowering import drain_of, rounding_of, weights_of, zero_of
from compiler.layers.layer_kind import CONVOLUTION, LayerKind, Lowering
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError, affine
from compiler.layers.tile_pipeline import TilePipeline
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings
from compiler.schedule.schedule import LayerSchedule
from hw.isa.enums import DTYPE_BYTES, Rounding


@identity("Phase", "conv", "offset")
@dataclass(frozen=True, eq=False)
class Phase:
    """Convolution that computes the output pixels at `offset` (row, column) plus multiples of the strides."""

    conv: ConvLayer
    offset: tuple[int, int]


@identity("ConvTransposeLayer", "phases", "strides", "merged", added=("merged",))
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
    """

    phases: tuple[Phase, ...]
    strides: tuple[int, int]
    merged: tuple[Phase, ...] = ()


@dataclass(frozen=True)
class _Line:
    """One phase along a dimension: first output, number of outputs, taps in order (None: zero), leading padding."""

    offset: int
    count: int
    taps: tuple[int | None, ...]
    pad: int


def lower_conv_transpose(low: LoweringContext) -> ConvTransposeLayer:
    """Lower a transposed convolution.

    Raises
    ------
    UnsupportedLoweringError
        The weights are not constant or have several zero points, or the rows of a batch are not a multiple of the
        stride.
    """
    weights, bias = weights_of(low)
    assert weights.data is not None
    a, common = low.anchor.attributes, low.common()
    x, y = common["shapes"][common["x"]], common["shapes"][common["y"]]
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.DOUBLE))
    batch, height = low.x.shape[0], low.y.shape[1]
    if batch > 1 and height % a["strides"][0]:
        raise UnsupportedLoweringError(
            f"the {height} rows of an image must be a multiple of the stride in a batch"
        )
    lines = [
        _lines(size, kernel, *(a[key][axis] for key in ("strides", "dilations", "pads")))
        for axis, (size, kernel) in enumerate(zip((height, y.w), weights.shape[1:3], strict=True))
    ]
    conv = ConvLayer(
        **common,
        weights=weights.data,
        drain=drain,
        groups=a["groups"],
        batch=batch,
        x_zp=affine(low.x).zero_point,
        w_zp=zero_of(weights),
    )
    phases = [
        _phase(conv, number, rows, (columns,))
        for number, (rows, columns) in enumerate((r, c) for r in lines[0] for c in lines[1])
    ]
    across, merged = a["strides"][1], []
    if across > 1 and y.w % across == 0 and a["groups"] == 1 and drain.residual is None:
        merged = [_phase(conv, number, rows, _aligned(lines[1])) for number, rows in enumerate(lines[0])]
    reached = [
        _reached(size, made, kernel, *(a[key][axis] for key in ("strides", "dilations", "pads")))
        for axis, (size, made, kernel) in enumerate(
            zip((low.x.shape[1], x.w), (height, y.w), weights.shape[1:3], strict=True)
        )
    ]
    taps = weights.shape[1] * weights.shape[2]
    macs = batch * reached[0] * reached[1] * (weights.elements // taps)
    return ConvTransposeLayer(
        **common, macs=macs, phases=tuple(phases), merged=tuple(merged), strides=a["strides"], batch=batch
    )


def _reached(size: int, made: int, kernel: int, stride: int, dilation: int, pad: int) -> int:
    """Return how many pairs of an input and a kernel tap along a dimension contribute to an uncropped output."""
    positions = (i * stride + k * dilation - pad for i in range(size) for k in range(kernel))
    return sum(0 <= position < made for position in positions)


def _lines(size: int, kernel: int, stride: int, dilation: int, pad: int) -> list[_Line]:
    """Return all phases along a dimension of `size` outputs."""
    out = []
    for offset in range(min(stride, size)):
        # Output offset + stride * t uses tap k of input t - distance, where the distance is an integer.
        distances = {
            (k * dilation - offset - pad) // stride: k
            for k in range(kernel)
            if (k * dilation - offset - pad) % stride == 0
        }
        far = max(distances, default=0)
        near = min(min(distances, default=0), far)
        # A convolution can pad inputs but not skip them, so inputs before the first one that is used get zero taps.
        far = max(far, 0)
        taps = tuple(distances.get(distance) for distance in range(far, near - 1, -1))
        out.append(_Line(offset, -(-(size - offset) // stride), taps, far))
    return out


def _aligned(lines: list[_Line]) -> tuple[_Line, ...]:
    """Return the phases with taps added so that the taps of all phases begin and end at the same inputs."""
    pad = max(line.pad for line in lines)
    length = max(len(line.taps) + pad - line.pad for line in lines)
    out = []
    for line in lines:
        before = (None,) * (pad - line.pad)
        after = (None,) * (length - len(line.taps) - len(before))
        out.append(replace(line, taps=(*before, *line.taps, *after), pad=pad))
    return tuple(out)


def _phase(conv: ConvLayer, number: int, rows: _Line, columns: tuple[_Line, ...]) -> Phase:
    """Return the convolution of a phase of rows and one or more phases of columns, whose pixels are concatenated."""
    y = conv.shapes[conv.y]
    image = replace(y, h=conv.batch * rows.count, w=columns[0].count, c=len(columns) * y.c)
    part = np.concatenate([_taps(conv.weights, rows.taps, line.taps, conv.w_zp) for line in columns])
    made = replace(
        conv,
        name=f"{conv.name}.{number}",
        shapes=conv.shapes | {conv.y: image},
        macs=image.h * image.w * part.size,
        weights=part,
        drain=repeated(conv.drain, len(columns)),
        pads=(rows.pad, columns[0].pad, 0, 0),
    )
    return Phase(made, (rows.offset, columns[0].offset))


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


def _merges(layer: ConvTransposeLayer, s: LayerSchedule) -> bool:
    """Return True if a schedule selects the convolutions with merged phases by packing the pixels of all phases."""
    return bool(layer.merged) and s.pixels_per_pass % layer.strides[1] == 0


def conv_transpose_tilings(context: TilingContext, layer: ConvTransposeLayer) -> Tilings:
    """Yield the tilings of the largest phase, if possible with an equal share of the memory for each phase.

    The buffers of all phases may be in use at the same time.
    """
    across = layer.strides[1]
    for phases, pixels in ((layer.phases, 1), (layer.merged, across)):
        for cycles, schedule in _phase_tilings(context, phases):
            if pixels > 1 or across == 1 or schedule.pixels_per_pass == 1:
                yield cycles, replace(schedule, pixels_per_pass=pixels * schedule.pixels_per_pass)


def _phase_tilings(context: TilingContext, phases: tuple[Phase, ...]) -> Tilings:
    if not phases:
        return
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
    phases, s = _selected(layer, s)
    largest = max((phase.conv for phase in phases), key=lambda conv: conv.macs)
    pipeline = conv_tile_model(largest, s, context)
    return replace(pipeline, count=pipeline.count * len(phases))


def _selected(layer: ConvTransposeLayer, s: LayerSchedule) -> tuple[tuple[Phase, ...], LayerSchedule]:
    """Return the phases that a schedule selects, and the schedule of their convolutions."""
    if _merges(layer, s):
        return layer.merged, replace(s, pixels_per_pass=s.pixels_per_pass // layer.strides[1])
    return layer.phases, s


def conv_transpose_steps(context: CodegenContext, layer: ConvTransposeLayer) -> list[TileStep]:
    """Generate the steps of a transposed convolution, phase by phase."""
    y = context.layouts[layer.y]
    phases, schedule = _selected(layer, context.schedule)
    if phases is layer.merged and y.pixel != y.c * DTYPE_BYTES[layer.shapes[layer.y].dtype]:
        phases = layer.phases
    return [
        step
        for phase in phases
        for step in conv_steps(
            replace(
                context,
                schedule=schedule,
                layouts=context.layouts | {layer.y: _phase_layout(y, layer.strides, phase)},
            ),
            phase.conv,
        )
    ]


def _phase_layout(y: TensorLayout, strides: tuple[int, int], phase: Phase) -> TensorLayout:
    """Return the layout of the output pixels of a phase, as an image."""
    image = phase.conv.shapes[phase.conv.y]
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
