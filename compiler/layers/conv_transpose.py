"""Transposed convolutions, as one convolution for each phase of the strides."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import TensorLayout, TileStep
from compiler.commands.tile_buffers import CodegenContext
from compiler.ir.identity import identity
from compiler.layers.base import Layer
from compiler.layers.conv.codegen import conv_steps
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv.tilings import conv_tile_model, conv_tilings
from compiler.layers.epilogue_lowering import drain_of, rounding_of, weights_of, zero_of
from compiler.layers.layer_kind import CONVOLUTION, LayerKind, Lowering
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError, affine
from compiler.layers.tile_pipeline import TilePipeline
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings
from compiler.schedule.schedule import LayerSchedule
from hw.isa.enums import Rounding


@identity("Phase", "conv", "offset")
@dataclass(frozen=True, eq=False)
class Phase:
    """Convolution that computes the output pixels at `offset` (row, column) plus multiples of the strides."""

    conv: ConvLayer
    offset: tuple[int, int]


@identity("ConvTransposeLayer", "phases", "strides")
@dataclass(frozen=True, kw_only=True, eq=False)
class ConvTransposeLayer(Layer):
    """Transposed convolution as ordinary convolutions whose results are interleaved with `strides` (rows, columns)."""

    phases: tuple[Phase, ...]
    strides: tuple[int, int]


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
            f"images of a batch whose {height} rows are not a multiple of the stride"
        )
    lines = [
        _lines(size, kernel, *(a[key][axis] for key in ("strides", "dilations", "pads")))
        for axis, (size, kernel) in enumerate(zip((height, y.w), weights.shape[1:3], strict=True))
    ]
    phases = []
    for number, (rows, columns) in enumerate((r, c) for r in lines[0] for c in lines[1]):
        image = replace(y, h=batch * rows.count, w=columns.count)
        part = _taps(weights.data, rows.taps, columns.taps, zero_of(weights))
        conv = ConvLayer(
            **common
            | {"name": f"{common['name']}.{number}", "shapes": common["shapes"] | {common["y"]: image}},
            macs=image.h * image.w * part.size,
            weights=part,
            drain=drain,
            groups=a["groups"],
            batch=batch,
            pads=(rows.pad, columns.pad, 0, 0),
            x_zp=affine(low.x).zero_point,
            w_zp=zero_of(weights),
        )
        phases.append(Phase(conv, (rows.offset, columns.offset)))
    reached = [
        _reached(size, made, kernel, *(a[key][axis] for key in ("strides", "dilations", "pads")))
        for axis, (size, made, kernel) in enumerate(
            zip((low.x.shape[1], x.w), (height, y.w), weights.shape[1:3], strict=True)
        )
    ]
    taps = weights.shape[1] * weights.shape[2]
    macs = batch * reached[0] * reached[1] * (weights.elements // taps)
    return ConvTransposeLayer(**common, macs=macs, phases=tuple(phases), strides=a["strides"], batch=batch)


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


def conv_transpose_tilings(context: TilingContext, layer: ConvTransposeLayer) -> Tilings:
    """Yield the tilings of the largest phase, if possible with an equal share of the memory for each phase.

    The buffers of all phases may be in use at the same time.
    """
    largest = max((phase.conv for phase in layer.phases), key=lambda conv: conv.macs)
    context = replace(context, consecutive=len(layer.phases) > 1)
    for free in (context.free // len(layer.phases), context.free):
        found = list(conv_tilings(replace(context, free=free), largest))
        for cycles, schedule in found:
            yield cycles * len(layer.phases), schedule
        if found:
            return


def conv_transpose_tile_model(
    layer: ConvTransposeLayer, s: LayerSchedule, context: LayerContext
) -> TilePipeline:
    """Return the tile model of a transposed convolution: its largest phase, repeated for each phase."""
    largest = max((phase.conv for phase in layer.phases), key=lambda conv: conv.macs)
    pipeline = conv_tile_model(largest, s, context)
    return replace(pipeline, count=pipeline.count * len(layer.phases))


def conv_transpose_steps(context: CodegenContext, layer: ConvTransposeLayer) -> list[TileStep]:
    """Generate the steps of a transposed convolution, phase by phase."""
    y = context.layouts[layer.y]
    return [
        step
        for phase in layer.phases
        for step in conv_steps(
            replace(context, layouts=context.layouts | {layer.y: _phase_layout(y, layer.strides, phase)}),
            phase.conv,
        )
    ]


def _phase_layout(y: TensorLayout, strides: tuple[int, int], phase: Phase) -> TensorLayout:
    """Return the layout of the output pixels of a phase, as an image."""
    image = phase.conv.shapes[phase.conv.y]
    first = y.address(*phase.offset)
    return TensorLayout(
        y.buffer, image.h, image.w, y.c, strides[1] * y.pixel, strides[0] * y.row, first.offset
    )


KIND = LayerKind(
    name="convtranspose",
    layer=ConvTransposeLayer,
    lowerings={"conv_transpose2d": Lowering(lower_conv_transpose, CONVOLUTION, epilogue=True)},
    tilings=conv_transpose_tilings,
    tile_model=conv_transpose_tile_model,
    steps=conv_transpose_steps,
)
