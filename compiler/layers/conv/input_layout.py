"""Input layouts of convolutions: im2col, output pixels packed into channels, and phases of dilated convolutions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import TensorLayout
from compiler.commands.tile_buffers import SharedRows
from compiler.layers.base import Addend, Drain, Image, Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div
from hw.config import MlaConfig
from hw.isa.enums import DTYPE_BYTES, Dtype

#: Tiles of the input that are in the scratchpad at the same time; two groups of channels are active concurrently.
_HELD_TILES = {False: 2, True: 4}
#: Share of the scratchpad that the smallest tiles of the input may use; larger tiles are cut by phases.
_ROWS_SHARE = 0.75


class Im2colLayout(StrEnum):
    """Kernel dimensions that are folded into the reduction dimension."""

    PIXELS = "pixels"  # no dimension: pixels are separate
    ROWS = "rows"  # the columns; rows are stored with left and right padding
    STRIPS = "strips"  # both; for each output column, the pixels under its kernel are stored row by row
    GATHERED = "gathered"  # as STRIPS, copied by FUSE from image rows in the scratchpad instead of loaded


def can_fold(layer: ConvLayer, on_chip: bool, layout: Im2colLayout) -> bool:
    """Return True if a convolution supports a layout.

    `PIXELS` is always supported. `ROWS` and `STRIPS` are loaded from DRAM. All layouts but `PIXELS` store padding and
    need pixels that are contiguous in memory; `PIXELS`, `ROWS` and `GATHERED` transpose planes.
    """
    if layout == Im2colLayout.GATHERED:
        return layer.groups == 1 and layer.dilations == (1, 1) and layer.weights.shape[2] > 1
    if on_chip or layer.groups > 1 or layer.dilations[1] > 1 or layer.weights.shape[2] == 1:
        return layout == Im2colLayout.PIXELS
    return layout != Im2colLayout.STRIPS or (layer.dilations[0] == 1 and not layer.planes)


def strips_of(layer: ConvLayer, layout: Im2colLayout, columns: int, n: int) -> tuple[ConvLayer, int]:
    """Return the convolution whose kernels the strips of a layout contain, and its output columns per strip.

    With few channels, the kernels of several adjacent output columns are one strip, if the reduction dimension still
    needs as many blocks: from the first to the last input of an output column. Weights of inputs that an output column
    does not depend on equal the zero point. The number of columns is that with the fewest cycles of the array, or of
    FUSE, which copies strips and drains sums. More columns relieve FUSE, but outputs of several rows in one block may
    then need more blocks of the reduction dimension. The last strip of a row may have fewer output columns.

    Parameters
    ----------
    columns : int
        Output columns of the image; 0 if it is cut into strips of columns.
    """
    out_c, kernel_h, kernel_w, in_c = layer.weights.shape
    stride = layer.strides[1]
    if layout not in (Im2colLayout.STRIPS, Im2colLayout.GATHERED):
        return layer, 1

    def blocks(pixels: int) -> int:
        return ceil_div(strip_depth(layer, kernel_w + (pixels - 1) * stride), n)

    def cycles(pixels: int) -> tuple[float, int]:
        wide = kernel_w + (pixels - 1) * stride
        copied = (
            layer.strides[0] * ceil_div(wide * in_c, n) * ceil_div(max(columns, 1), pixels) / max(columns, 1)
        )
        array = passes_per_pixel(layer, layout, wide, n)
        return max(array, ceil_div(out_c, n) + copied), -pixels

    most = columns // max(n // 2, 1)
    shared = (p for p in range(2, most + 1) if blocks(p) == blocks(1))
    pixels = min((1, *shared), key=cycles)
    wide = kernel_w + (pixels - 1) * stride
    found: list[NDArray] = []
    for weights, zero in layer.summands:
        found.append(np.full((out_c, kernel_h, wide, in_c), zero, weights.dtype))
        found[-1][:, :, :kernel_w] = weights
    strides = layer.strides[0], stride * pixels
    return replace(layer.with_summands(found), strides=strides), pixels


def strip_depth(layer: ConvLayer, width: int, height: int | None = None) -> int:
    """Return the size of the reduction dimension if strips have rows of `width` pixels.

    `height` is the number of these rows that an output depends on; None: those of the kernel.
    """
    _, kernel_h, kernel_w, in_c = layer.weights.shape
    return (((height or kernel_h) - 1) * width + kernel_w) * in_c


#: Maximum number of adjacent rows that share blocks of outputs, each of which needs one or two FUSE commands, and of
#: these blocks, whose parameters are in the slots at the same time.
_MAX_SHARED_ROWS, _MAX_SHARED_BLOCKS = 8, 3


def window_passes(layer: ConvLayer, layout: Im2colLayout, width: int, n: int, rows: int = 1) -> int:
    """Return the passes of MATRIX over the inputs of a block of outputs of `rows` adjacent rows.

    Parameters
    ----------
    width : int
        Pixels of each row of a strip; without effect for layouts without strips.
    """
    _, kernel_h, kernel_w, in_c = layer.weights.shape
    height, summands = kernel_h + (rows - 1) * layer.strides[0], len(layer.summands)
    if layout == Im2colLayout.PIXELS:
        return summands * height * kernel_w * ceil_div(in_c, n)
    if layout == Im2colLayout.ROWS:
        return summands * height * ceil_div(kernel_w * in_c, n)
    return summands * ceil_div(strip_depth(layer, width, height), n)


def shared_passes(layer: ConvLayer, layout: Im2colLayout, width: int, shared: SharedRows) -> int:
    """Return the passes of MATRIX over a group of rows for the outputs beyond whole blocks.

    Parameters
    ----------
    width : int
        Pixels of each row of a strip; without effect for layouts without strips.
    """
    return sum(window_passes(layer, layout, width, shared.n, block.rows) for block in shared.blocks)


def shared_rows(layer: ConvLayer, layout: Im2colLayout, width: int, n: int) -> SharedRows:
    """Return how the outputs beyond whole blocks of N are computed.

    The number of rows is that with the fewest cycles of the array or of FUSE, whichever takes more, and of the loads of
    the weights. Results of more than one byte, sums that are added to those of another product, and products with
    factors are computed row by row.

    Parameters
    ----------
    width : int
        Pixels of each row of a strip; without effect for layouts without strips.
    """
    out_c, kernel_h, kernel_w, in_c = layer.weights.shape
    y, rest = layer.shapes[layer.y], layer.group_outputs % n
    alone = SharedRows(1, rest or n, n)
    if (
        layer.groups > 1
        or layer.factors is not None
        or layer.dilations[0] > 1
        or not rest
        or layer.drain.dtype not in (Dtype.I8, Dtype.U8)
        or isinstance(layer.drain.residual, Addend)
    ):
        return alone
    height, blocks, summands = y.h // layer.batch, out_c // n, len(layer.summands)
    whole = blocks * window_passes(layer, layout, width, n)

    def cycles(shared: SharedRows) -> float:
        groups = ceil_div(height, shared.rows) * layer.batch
        array = whole * max(height * layer.batch * y.w, n)
        array += shared_passes(layer, layout, width, shared) * max(groups * y.w, n)
        drain = (blocks * height * layer.batch + groups * shared.segments) * y.w
        height_of = kernel_h + shared.more_rows(kernel_h, layer.strides[0])
        return max(array, drain) + summands * height_of * kernel_w * in_c

    several = (SharedRows(rows, rest, n) for rows in range(2, min(_MAX_SHARED_ROWS, height) + 1))
    return min((alone, *(each for each in several if len(each.blocks) <= _MAX_SHARED_BLOCKS)), key=cycles)


def can_share_rows(on_chip: bool, blocks: int, columns: int, split_last_tile: bool) -> bool:
    """Return True if the outputs beyond whole blocks may be computed together for several rows.

    Draining them to a tensor in the scratchpad overwrites channels of whole blocks, which must therefore be drained
    afterwards, by the same step.

    Parameters
    ----------
    on_chip : bool
        True if the result is a tensor in the scratchpad.
    blocks, columns : int
        Blocks of outputs, and blocks of a tile.
    split_last_tile : bool
        True if the blocks of the last tile are drained separately.
    """
    return not on_chip or (1 < blocks <= columns and not split_last_tile)


def passes_per_pixel(layer: ConvLayer, layout: Im2colLayout, width: int, n: int) -> float:
    """Return the passes of MATRIX for all outputs of a pixel of a group.

    Parameters
    ----------
    width : int
        Pixels of each row of a strip; without effect for layouts without strips.
    """
    shared = shared_rows(layer, layout, width, n)
    blocks = ceil_div(layer.group_outputs, n) - 1
    last = shared_passes(layer, layout, width, shared) / shared.rows
    return blocks * window_passes(layer, layout, width, n) + last


def share_rows(layer: ConvLayer, shared: SharedRows) -> tuple[list[list[NDArray]], Drain]:
    """Return the weights and the drain of the blocks of outputs beyond whole blocks, of a group of adjacent rows.

    Returns
    -------
    weights : list of lists of (outputs, kernel_h, kernel_w, in_c) arrays
        Summands of the weights of each block; kernel_h covers the kernels of all rows of the block. Weights of inputs
        that an output does not depend on equal the zero point.
    drain : Drain
        Parameters of the outputs of all these blocks.
    """
    out_c, kernel_h, *inner = layer.weights.shape
    first, stride, found = out_c - shared.outputs, layer.strides[0], list[list[NDArray]]()
    for block in shared.blocks:
        height = kernel_h + (block.rows - 1) * stride
        found.append(
            [np.full((block.lanes, height, *inner), zero, each.dtype) for each, zero in layer.summands]
        )
        for row, channel, lane, lanes in block.segments:
            above = (row - block.top) * stride
            channels = slice(first + channel, first + channel + lanes)
            for of_block, (weights, _) in zip(found[-1], layer.summands, strict=True):
                of_block[lane : lane + lanes, above : above + kernel_h] = weights[channels]
    return found, layer.drain.part(np.tile(np.arange(first, out_c), shared.rows))


#: Beats by which a line of a strip delays the bus in addition to its own, measured with nine bytes per line, if only
#: some strips are loaded, so that image rows and results are transferred meanwhile.
SHORT_LINE_BEATS = 0.5


#: Maximum ratio of the cycles with which MATRIX reads image rows to those with loaded strips, of which the bus loads
#: more than this estimate wherever other data leave time.
_MAX_BY_ROWS = 0.95


def reads_rows(layer: ConvLayer, on_chip: bool, n: int) -> bool:
    """Return True if MATRIX reads image rows in place of the strips that FUSE does not gather.

    Otherwise, these strips are loaded, which takes a line of few bytes for each new image row of a strip. Image rows
    need more passes of MATRIX. With either, as many strips are gathered as balance FUSE with the other unit; the method
    is that with fewer cycles, if the output is in DRAM.
    """
    if on_chip or layer.planes:
        return True
    out_c, in_c = len(layer.weights), layer.weights.shape[3]
    wide, pixels = strips_of(layer, Im2colLayout.GATHERED, layer.shapes[layer.y].w, n)
    width = wide.weights.shape[2]
    by_rows, by_strips = (
        passes_per_pixel(layer, layout, width, n) for layout in (Im2colLayout.ROWS, Im2colLayout.STRIPS)
    )
    drain, gather = ceil_div(out_c, n), layer.strides[0] * ceil_div(width * in_c, n) / pixels
    bus = (layer.strides[0] * layer.strides[1] * in_c + out_c * DTYPE_BYTES[layer.drain.dtype]) / n
    load = layer.strides[0] * ((width * in_c + n - 1) / n + SHORT_LINE_BEATS) / pixels

    def cycles(busy: float, more: float) -> float:
        """Return the cycles of a pixel, if a unit takes `busy` cycles, and `more` if its strip is not gathered."""
        share = min(max(drain + gather - busy, 0) / (more + gather), 1)
        return max(busy + share * more, drain + (1 - share) * gather)

    with_loads = max(cycles(bus, load), by_strips)
    return cycles(by_strips, by_rows - by_strips) < _MAX_BY_ROWS * with_loads


def plane_beats(rows: int, columns: int, channels: int, n: int, stores: float = 0.0) -> float:
    """Return the bus beats for loading rows of planes, including the time in which the bus waits for LOAD.

    LOAD transposes a pixel per cycle. Meanwhile, results can be stored, for which the bus needs `stores` beats.
    """
    beats = channels * ceil_div(columns, n) * (1 if columns % n == 0 else 2)
    return max(rows * beats, rows * columns - stores)


def source_columns(layer: ConvLayer, x: Image, strips: int) -> int:
    """Return the number of columns of the image `x` that `strips` adjacent strips cover."""
    return min((strips - 1) * layer.strides[1] + layer.weights.shape[2], x.w)


#: Cycles of FUSE between two commands that gather strips, fewer if these are gathered long before they are needed.
_GATHER_COMMAND, _NEXT_GATHER = 25, 8


def gather_cycles(
    layer: ConvLayer,
    x: Image,
    y: Image,
    rows: float,
    n: int,
    inside: int | None = None,
    *,
    divided: bool = False,
) -> float:
    """Return the cycles in which FUSE gathers `rows` rows of the strips of all output columns by one step.

    Parameters
    ----------
    x, y : Image
        Shapes of the input and of the output.
    inside : int, optional
        Number of strips, all inside the image or its padding, that are gathered; None: those of all columns of an
        image on chip, whose rows have no padding.
    divided : bool
        True if the `inside` strips are of a part of the columns, and gathered long before they are needed.
    """
    _, _, kernel_w, channels = layer.weights.shape
    if inside is not None:
        command = _NEXT_GATHER if divided else _GATHER_COMMAND
        return rows * inside * ceil_div(kernel_w * channels, n) + command * (inside > 0)
    stride, left = layer.strides[1], layer.pads[1]
    middle = min(max((x.w - kernel_w + left) // stride + 1, 0), y.w) - min(ceil_div(left, stride), y.w)
    middle = max(middle, 0)
    edges = y.w - middle
    points = middle * ceil_div(kernel_w * channels, n) + edges * kernel_w * ceil_div(channels, n)
    return rows * points + _GATHER_COMMAND * (edges + 1)


def layout_of(layer: ConvLayer, schedule: LayerSchedule, x: TensorLayout) -> Im2colLayout:
    """Return the layout that a schedule selects, or `PIXELS` if the convolution does not support it."""
    if schedule.im2col and (x.plane or x.pixel == x.c):
        layout = Im2colLayout.GATHERED if schedule.fold_kernel_width else Im2colLayout.STRIPS
        if can_fold(layer, x.on_chip, layout):
            return layout
    return (
        Im2colLayout.ROWS
        if schedule.fold_kernel_width and can_fold(layer, x.on_chip, Im2colLayout.ROWS)
        else Im2colLayout.PIXELS
    )


def can_pack_pixels(layer: ConvLayer, pixels: int, *, on_chip: bool) -> bool:
    """Return True if `pixels` adjacent output pixels can be computed as one.

    The last pixels of a row may extend beyond the image, where STORE omits them, unless the output is on chip.
    """
    y = layer.shapes[layer.y]
    return (
        layer.groups == 1
        and layer.factors is None
        and layer.dilations[1] == 1
        and layer.drain.residual is None
        and (y.w % pixels == 0 or (pixels < y.w and layer.batch == 1 and not on_chip))
    )


def pack_pixels(layer: ConvLayer, pixels: int) -> ConvLayer:
    """Return the convolution that computes `pixels` adjacent output pixels as one pixel with concatenated channels.

    The bytes of the result are unchanged. The new kernel covers the kernels of all these pixels; the weights
    outside the kernel of a pixel are set to the zero point.
    """
    out_c, kernel_h, kernel_w, in_c = layer.weights.shape
    stride, y, drain = layer.strides[1], layer.shapes[layer.y], layer.drain
    width = kernel_w + (pixels - 1) * stride
    found: list[NDArray] = []
    for weights, zero in layer.summands:
        wide = np.full((pixels, out_c, kernel_h, width, in_c), zero, weights.dtype)
        for pixel in range(pixels):
            wide[pixel, :, :, pixel * stride : pixel * stride + kernel_w] = weights
        found.append(wide.reshape(pixels * out_c, kernel_h, width, in_c))
    image = replace(y, w=ceil_div(y.w, pixels), c=y.c * pixels)
    return replace(
        layer.with_summands(found),
        drain=repeated(drain, pixels),
        strides=(layer.strides[0], stride * pixels),
        shapes=layer.shapes | {layer.y: image},
    )


def repeated(drain: Drain, pixels: int) -> Drain:
    """Return the drain of `pixels` adjacent pixels, whose channels are concatenated."""
    return drain.part(np.tile(np.arange(len(drain.bias)), pixels))


@dataclass(frozen=True)
class PhaseLine:
    """One phase along a dimension.

    Parameters
    ----------
    y_first, y_count : int
        First output, and the number of outputs.
    x_first, x_count : int
        First input, and the number of inputs.
    pad : int
        Padding before the inputs of the phase.
    """

    y_first: int
    y_count: int
    x_first: int
    x_count: int
    pad: int


def phase_lines(outputs: int, inputs: int, dilation: int, pad: int) -> list[PhaseLine]:
    """Return the phases along a dimension, the largest first; a dilation of 1 has one phase."""
    lines = []
    for first in range(min(dilation, outputs)):
        before, start = divmod(first - pad, dilation)
        x_count = ceil_div(inputs - start, dilation)
        lines.append(PhaseLine(first, ceil_div(outputs - first, dilation), start, x_count, -before))
    return lines


Dilated = TypeVar("Dilated", bound=Layer)


@dataclass(frozen=True)
class DilationPhase(Generic[Dilated]):
    """Convolution of the pixels whose row and column have the same remainders when divided by dilations.

    Parameters
    ----------
    layer : Layer
        Convolution of these pixels, without the dilations.
    source : str
        Name of the input of the convolution that is split.
    dilations : (int, int)
        Vertical and horizontal distance between the pixels.
    x_first, y_first : (int, int)
        Row and column of the first pixel of the input, and of the output.
    """

    layer: Dilated
    source: str
    dilations: tuple[int, int]
    x_first: tuple[int, int]
    y_first: tuple[int, int]

    def layouts(self, whole: Mapping[str, TensorLayout]) -> dict[str, TensorLayout]:
        """Return the layouts of the tensors of the phase, given the layouts of the tensors of the convolution."""
        out = dict(whole)
        for name, image in self.layer.shapes.items():
            is_input = name == self.layer.x
            row, column = self.x_first if is_input else self.y_first
            layout = whole[self.source if is_input else name]
            out[name] = replace(
                layout,
                h=image.h,
                w=image.w,
                pixel=self.dilations[1] * layout.pixel,
                row=self.dilations[0] * layout.row,
                offset=layout.offset + row * layout.row + column * layout.pixel,
            )
        return out


def dilation_phases(
    layer: Dilated, pads: tuple[int, int, int, int], dilations: tuple[int, int]
) -> list[DilationPhase[Dilated]]:
    """Return the convolutions that a convolution with strides of 1 consists of, the largest first.

    Parameters
    ----------
    layer : Layer
        Convolution with the fields `pads`, `dilations` and `drain`.
    pads : (int, int, int, int)
        Padding of the convolution at the top, left, bottom and right, in pixels.
    dilations : (int, int)
        Vertical and horizontal dilation; 1 for a dimension that is not split.
    """
    x, y = layer.shapes[layer.x], layer.shapes[layer.y]
    rows, columns = (
        phase_lines(*sizes, dilation, pad)
        for sizes, dilation, pad in zip(((y.h, x.h), (y.w, x.w)), dilations, pads, strict=False)
    )
    summand, inner = layer.inputs[1:], vars(layer)["dilations"]
    # The pixels of the input and of a second summand differ, even if both are the same tensor.
    source = f"{layer.x}.phase" if layer.x in summand else layer.x
    out: list[DilationPhase[Dilated]] = []
    for down, across in product(rows, columns):
        shapes = {
            name: replace(y, h=down.y_count, w=across.y_count, c=image.c, dtype=image.dtype)
            for name, image in layer.shapes.items()
            if name in (layer.y, *summand)
        }
        shapes[source] = replace(x, h=down.x_count, w=across.x_count)
        part = replace(
            layer,
            name=f"{layer.name}.{len(out)}",
            x=source,
            shapes=shapes,
            pads=(down.pad, across.pad, 0, 0 if dilations[1] > 1 else pads[3]),
            dilations=tuple(1 if split > 1 else own for split, own in zip(dilations, inner, strict=True)),
        )
        first = (down.x_first, across.x_first), (down.y_first, across.y_first)
        out.append(DilationPhase(part, layer.x, dilations, *first))
    return out


def row_phases(config: MlaConfig, layer: ConvLayer) -> list[DilationPhase[ConvLayer]]:
    """Return the phases of a convolution whose dilated rows do not fit the scratchpad together; none for others.

    Each phase convolves every `dilations[0]`-th row, so that the rows between the rows of the kernel are not loaded.
    """
    _, kernel_h, kernel_w, in_c = layer.weights.shape
    x, dilation = layer.shapes[layer.x], layer.dilations[0]
    if dilation == 1 or kernel_h == 1 or layer.strides[0] > 1 or layer.batch > 1 or dilation > x.h:
        return []
    rows = min((kernel_h - 1) * dilation + 1, x.h)
    columns = min((config.n - 1) * layer.strides[1] + (kernel_w - 1) * layer.dilations[1] + 1, x.w)
    held = rows * columns * min(in_c, config.n) * _HELD_TILES[layer.groups > 1]
    if held <= config.sp_bytes * _ROWS_SHARE:
        return []
    return dilation_phases(layer, layer.pads, (dilation, 1))
