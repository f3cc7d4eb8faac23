"""Elementwise operators: sums and products of tensors, and functions of one operand as lookup tables."""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby, product
from typing import Any, NamedTuple, cast

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
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers, pieces
from compiler.ir.graph import Graph, Node
from compiler.ir.identity import identity
from compiler.ir.ops import BINARY_OPS, TABLE_OPS
from compiler.ir.tensor import Tensor
from compiler.kernel_library.elementwise import LEFT_SHIFT, LEFT_SHIFT_16, mul, raw_fields, residual_fields
from compiler.layers.base import Drain, Layer
from compiler.layers.epilogue import Slots
from compiler.layers.layer_kind import BYTES, BYTES_TO_BYTES, INTEGERS, ElementTypes, LayerKind, Lowering
from compiler.layers.lowering_context import (
    LoweringContext,
    UnsupportedLoweringError,
    affine,
    clip_range,
    is_unary,
    same_quantization,
    table_of,
)
from compiler.layers.tile_pipeline import EARLY_RESULT, PASS_CYCLES, TilePipeline, even_tiles
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings, stream_cycles
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import bytes_word, halves_word, quantize_multiplier
from compiler.util.tiles import ceil_div, cuts
from cosim.semantics.fixed_point import scale
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, MATRIX_WORD
from hw.isa.enums import DTYPE_BYTES, BSource, Dtype, Op, Requant, Rounding, Unit


@identity("Spread", "ALL", "CHANNEL", "PIXEL", "SCALAR")
class Broadcast(StrEnum):
    """Broadcasting of an operand to the shape of the result.

    "Channels" and "pixels" are the trailing and the leading dimensions of the result, of any number: an operand of
    shape (1, 1, 56, 64) has one value for each of the 3,584 channels of the 56 pixels of a result (1, 56, 56, 64).
    """

    ALL = "all"  # element by element
    CHANNEL = "channel"  # one value for each channel
    PIXEL = "pixel"  # one value for each pixel
    SCALAR = "scalar"


@dataclass(frozen=True)
class BroadcastRows:
    """Broadcasting of the second operand, whose values may repeat in rows of pixels.

    The result consists of `groups` groups of `rows` rows, each of which has equally many pixels. With `CHANNEL`, each
    row of a group has other values, and all groups have the same ones: one row of channels for each image is
    `rows` = images. With `PIXEL`, the rows of a group have the same values, and each group has other ones.

    With `CHANNEL`, `together` adjacent pixels are computed as one pixel with correspondingly more channels.
    """

    broadcast: Broadcast
    groups: int = 1
    rows: int = 1
    together: int = 1


#: Lanes for which the number of pixels that are computed as one is chosen, on all machines.
_LANES = 16
#: Channels of a pixel below which FUSE takes longer for the pixels, one after the other, than the bus.
_FEW_CHANNELS = 8
#: Maximum number of channels of pixels that are computed together, and minimum ratio of the elements of a row of pixels
#: to their number: the values of each are loaded separately.
_MAX_CHANNELS, _ELEMENTS_OF_LINE = 1024, 128


def pixels_together(pixels: int, channels: int) -> int:
    """Return the number of adjacent pixels that are computed as one, so that few channels fill the lanes.

    Parameters
    ----------
    pixels : int
        Number of pixels of a row, which is a multiple of the result.
    channels : int
        Number of channels of a pixel.
    """
    if channels >= _FEW_CHANNELS:
        return 1
    most = min(_MAX_CHANNELS // channels, pixels * channels // _ELEMENTS_OF_LINE)
    sizes = [size for size in range(1, most + 1) if pixels % size == 0]
    return min(sizes, key=lambda size: (ceil_div(size * channels, _LANES) / size, size), default=1)


def broadcast_of(b: tuple[int, ...], a: tuple[int, ...]) -> BroadcastRows | None:
    """Return how an operand of shape `b` is broadcast to shape `a`; None if the machine does not support it."""
    padded = (1,) * (len(a) - len(b)) + b
    if len(padded) != len(a) or any(own not in (1, full) for own, full in zip(padded, a, strict=True)):
        return None
    dimensions = [(own != full, full) for own, full in zip(padded, a, strict=True) if full != 1]
    runs = [
        (repeated, math.prod(size for _, size in run))
        for repeated, run in groupby(dimensions, lambda d: d[0])
    ]
    if len(runs) <= 1:
        return BroadcastRows(Broadcast.SCALAR if runs and runs[0][0] else Broadcast.ALL)
    *outer, pixels, channels = (size for _, size in runs)
    if len(outer) > 2:
        return None
    groups, rows = (1,) * (2 - len(outer)) + tuple(outer)
    if runs[-1][0]:
        return BroadcastRows(Broadcast.PIXEL, groups, rows)
    return BroadcastRows(Broadcast.CHANNEL, groups, rows, pixels_together(pixels, channels))


def operands_of(a: Tensor, b: Tensor, y: tuple[int, ...]) -> tuple[Tensor, Tensor, BroadcastRows] | None:
    """Return the first and the second operand of a sum or product of shape `y`, and how the second one is broadcast.

    The first operand is not constant. It has the shape of the result or, if the second one has one row of channels for
    each row of pixels, may consist of one row of pixels, which is repeated. None: the machine does not support the
    broadcast.
    """
    for first, second in ((a, b), (b, a)):
        how = broadcast_of(second.shape, y)
        if how is None or first.constant:
            continue
        if first.shape == y:
            return first, second, how
        own = broadcast_of(first.shape, y)
        by_channel = own is not None and own.broadcast == how.broadcast == Broadcast.CHANNEL
        if by_channel and how.groups == 1 and first.elements * how.rows == math.prod(y):
            return first, second, how
    return None


def needs_contiguous(graph: Graph, node: Node) -> bool:
    """Return True if a sum or product of two tensors is computed over pixels other than those of its operands.

    The elements of its operands and result must then be contiguous.
    """
    if node.op not in BINARY_OPS or len(node.inputs) != 2:
        return False
    y, (a, b) = graph.out(node), graph.ins(node)
    found = operands_of(a, b, y.shape)
    if found is None:
        return False
    _, small, how = found
    channels = y.shape[-1] if y.shape else 1
    if how.broadcast == Broadcast.CHANNEL:
        return small.elements * how.together != how.rows * channels
    return how.broadcast == Broadcast.PIXEL and small.elements * how.rows * channels != y.elements


@identity(
    "ElementwiseLayer",
    "other",
    "spread",
    "stream",
    "src",
    "stage",
    "fields",
    "table",
    "drain",
    "factor",
    "groups",
    "rows",
    "together",
    added=("factor", "groups", "rows", "together"),
)
@dataclass(frozen=True, kw_only=True, eq=False)
class ElementwiseLayer(Layer):
    """Elementwise operator: one FUSE pass over all elements of one or two tensors.

    Parameters
    ----------
    other : str or None
        Name of the second tensor, which may be a constant.
    broadcast : Broadcast
        Broadcasting of the second tensor to the shape of the first.
    stream : str
        FUSE stream that reads the second tensor: "b" or "r".
    src, stage : dict
        Fields of the two halves of the fuse word, except for sources and destination.
    fields : dict
        Other fields of FUSE.
    table : (256,) int16 array or None
        Lookup table applied to each element.
    drain : Drain or None
        Requantization parameters of each channel.
    factor : int
        Constant by which the first tensor is multiplied before the requantization of each channel.
    groups, rows, together : int
        Groups of rows of pixels, rows of each group, and pixels that are computed as one, if the second tensor is
        broadcast (`BroadcastRows`).
    """

    other: str | None = None
    broadcast: Broadcast = Broadcast.ALL
    stream: str = "b"
    src: dict[str, int] = field(default_factory=dict)
    stage: dict[str, int] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    table: NDArray[np.int16] | None = None
    drain: Drain | None = None
    factor: int = 1
    groups: int = 1
    rows: int = 1
    together: int = 1

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the first tensor and, if present, the second."""
        return (self.x, *([self.other] if self.other else []))

    @property
    def by_channel(self) -> bool:
        """True if parameters or the second operand differ between channels, or between pixels, but not both."""
        return self.drain is not None or self.broadcast in (Broadcast.CHANNEL, Broadcast.PIXEL)

    @property
    def small(self) -> str | None:
        """Name of the second tensor if it is smaller than the first, None otherwise."""
        return self.other if self.broadcast != Broadcast.ALL else None

    @property
    def view(self) -> tuple[int, int]:
        """Number of pixels and number of channels between which a small second tensor distinguishes."""
        y = self.shapes[self.y]
        if self.drain and self.small is None:
            return y.h * y.w * y.c // len(self.drain.bias), len(self.drain.bias)
        if self.small is None or self.broadcast == Broadcast.SCALAR:
            return y.h * y.w, y.c
        other, total = self.shapes[self.small], y.h * y.w * y.c
        elements = other.h * other.w * other.c
        if self.broadcast == Broadcast.CHANNEL:
            channels = elements // self.rows * self.together
            return total // channels, channels
        return elements * self.rows, total // (elements * self.rows)

    @property
    def row_pixels(self) -> int:
        """Number of pixels of a row."""
        return self.view[0] // (self.groups * self.rows)

    @property
    def repeats_x(self) -> bool:
        """True if the first tensor has only one row of pixels, which is repeated."""
        x, y = self.shapes[self.x], self.shapes[self.y]
        return x.h * x.w * x.c < y.h * y.w * y.c

    def pixels_of(self, name: str) -> int:
        """Return the number of pixels of a tensor of this layer."""
        if name == self.small:
            return self.rows if self.broadcast == Broadcast.CHANNEL else self.groups * self.row_pixels
        return self.row_pixels if name == self.x and self.repeats_x else self.view[0]


#: Element types of operators that also support int16.
_UP_TO_16 = (*BYTES, "int16")
#: Maximum number of pixels of a tile, because FUSE's counts have 16 bits.
_MAX_ROWS = 0xFFFF
#: Rounding mode of sums of bytes, by kernels.
_SUMS = {"reference": Rounding.DOUBLE, "xnnpack": Rounding.SINGLE, "onnxruntime": Rounding.EVEN}


def lower_unary(low: LoweringContext) -> Layer:
    """Lower a function of one operand, and functions of its result."""
    node = low.anchor
    if node.op == "clip" and low.x.dtype not in BYTES and same_quantization(low.x, low.y):
        bounds = clip_range(low.y, node.attributes["low"], node.attributes["high"])
        return ElementwiseLayer(**low.common(), fields={"clip_lo": bounds[0], "clip_hi": bounds[1]})
    if node.op == "clip" and low.x.dtype == low.y.dtype == "int16":
        return _rescaled_clip(low)
    if node.op in _SLOPES and low.x.dtype == low.y.dtype == "int16":
        return _two_slopes(low)
    if not is_unary(low.graph, node):
        raise UnsupportedLoweringError(
            f"{node.op} of {low.x.dtype} tensors quantized channel by channel, or not at all"
        )
    x = next(t for t in low.graph.ins(node) if not t.constant)
    table = table_of(low.graph, node, low.rounding)
    for after in low.nodes[1:]:
        table = table_of(low.graph, after, low.rounding)[table & 255]
    return ElementwiseLayer(**low.common(x=x.name), table=table)


def _check_kernels(low: LoweringContext) -> None:
    if low.rounding == "onnxruntime":
        raise UnsupportedLoweringError(f"onnxruntime computes {low.anchor.op} of int16 in float32")


def _slopes_of_leaky_relu(low: LoweringContext) -> tuple[float, float]:
    scale, made = np.float32(affine(low.x).scale), np.float32(affine(low.y).scale)
    minus = scale * np.float32(low.anchor.attributes["alpha"]) / made
    if minus < 0:
        raise UnsupportedLoweringError("a negative slope of int16 values")
    return float(scale / made), float(minus)


def _slopes_of_abs(low: LoweringContext) -> tuple[float, float]:
    ratio = float(np.float32(affine(low.x).scale) / np.float32(affine(low.y).scale))
    return ratio, -ratio


#: Functions of int16 values that are linear on either side of zero: their slopes, in units of input and output.
_SLOPES: dict[str, Callable[[LoweringContext], tuple[float, float]]] = {
    "leaky_relu": _slopes_of_leaky_relu,
    "abs": _slopes_of_abs,
}


def _rescaled_clip(low: LoweringContext) -> Layer:
    """Lower a clip of int16 values whose result has another scale."""
    _check_kernels(low)
    mult, exponent = quantize_multiplier(
        float(np.float32(affine(low.x).scale) / np.float32(affine(low.y).scale))
    )
    zero_x, zero_y = affine(low.x).zero_point, affine(low.y).zero_point
    clip = clip_range(low.y, low.anchor.attributes["low"], low.anchor.attributes["high"])
    return ElementwiseLayer(
        **low.common(),
        src={"requant": Requant.IMM, "rounding": Rounding.DOUBLE},
        fields={
            "zp_ab": halves_word(zero_x, 0),
            "mult": mult,
            "shifts": bytes_word(exponent),
            "zp": zero_y,
            "clip_lo": clip[0],
            "clip_hi": clip[1],
        },
    )


def _two_slopes(low: LoweringContext) -> Layer:
    """Lower a function of int16 values that is linear on either side of zero."""
    _check_kernels(low)
    if affine(low.x).zero_point or affine(low.y).zero_point:
        raise UnsupportedLoweringError(f"{low.anchor.op} of int16 values with a zero point")
    plus, minus = _SLOPES[low.anchor.op](low)
    (mult, exponent), (neg_mult, neg_exponent) = quantize_multiplier(plus), quantize_multiplier(abs(minus))
    clip = clip_range(low.y)
    return ElementwiseLayer(
        **low.common(),
        src={"requant": Requant.IMM, "rounding": Rounding.DOUBLE, "neg_en": 1},
        fields={
            "mult": mult,
            "neg_mult": neg_mult if minus >= 0 else -neg_mult,
            "shifts": bytes_word(exponent, neg_exponent),
            "clip_lo": clip[0],
            "clip_hi": clip[1],
        },
    )


def lower_binary(low: LoweringContext) -> Layer:
    """Lower a sum, difference or product of two tensors, one of which may be broadcast over the other."""
    graph, node = low.graph, low.anchor
    if is_unary(graph, node):
        return lower_unary(low)
    first, second = graph.ins(node)
    out = graph.out(node)
    found = operands_of(first, second, out.shape)
    if found is None:
        why = f"operands of shapes {list(first.shape)} and {list(second.shape)} for {list(low.y.shape)}"
        raise UnsupportedLoweringError(
            f"{why}, {[each.name for each in (first, second) if each.constant]} constant"
        )
    a, b, how = found
    if "int16" in {a.dtype, b.dtype, out.dtype}:
        _check_wide(low, out, a, b)
    clip, table = _functions(low, out)
    if node.op == "mul":
        fields = _product(low, out, a, b, clip)
    else:
        fields = _sum(low, out, a, b, clip, swapped=a is not first)
        fields["stage"] |= {} if table is None else {"table": 0, "table2": 1}
    fields["table"] = table
    return ElementwiseLayer(**low.common(b.name, x=a.name), other=b.name, **vars(how), **fields)


def _functions(low: LoweringContext, y: Tensor) -> tuple[tuple[int, int], NDArray[np.int16] | None]:
    """Return the range of a sum or product `y`, and the table of the fused functions that follow; None for clips."""
    clip, table = clip_range(y), None
    entries = np.arange(clip[0], clip[1] + 1)
    for node in low.nodes[1:]:
        if y.dtype == "int16":
            bounds = clip_range(y, node.attributes["low"], node.attributes["high"])
            clip = max(clip[0], bounds[0]), min(clip[1], bounds[1])
        else:
            entries = table_of(low.graph, node, low.rounding)[entries & 255]
    if y.dtype != "int16":
        every, least, most = np.arange(clip[0], clip[1] + 1), int(entries.min()), int(entries.max())
        if np.array_equal(entries, np.clip(every, least, most)) and low.y.dtype == y.dtype:
            return (least, most), None
        table = np.zeros(256, np.int16)
        table[every & 255] = entries
    return clip, table


def _check_wide(low: LoweringContext, y: Tensor, a: Tensor, b: Tensor) -> None:
    """Reject arithmetic on int16 whose results differ from those of the rounding mode's kernels.

    Under onnxruntime's rounding, the float32 result must be exact: all scales are powers of two, and a product has at
    most the 24 bits of one int16 and one 8-bit operand.
    """
    if y.dtype != "int16" or "int32" in (a.dtype, b.dtype):
        raise UnsupportedLoweringError(f"{low.anchor.op} of {a.dtype} and {b.dtype} to {y.dtype}")
    if low.rounding != "onnxruntime":
        return
    exact = all(math.frexp(affine(each).scale)[0] == 0.5 for each in (a, b, y))
    if not exact or (low.anchor.op == "mul" and a.dtype == b.dtype == "int16"):
        _check_kernels(low)


def _sum(
    low: LoweringContext, y: Tensor, a: Tensor, b: Tensor, clip: tuple[int, int], *, swapped: bool
) -> dict[str, Any]:
    """Return the layer fields of a sum or difference y; `swapped` is True if `a` is the node's second operand."""
    wide = y.dtype == "int16"
    raw, left = low.rounding == "xnnpack" and not wide, LEFT_SHIFT_16 if wide else LEFT_SHIFT
    scales = affine(a), affine(b), affine(y)
    fields = dict(cast(dict[str, int], raw_fields(*scales) if raw else residual_fields(*scales, left)))
    if low.anchor.op == "sub":
        negative = "x_mult" if swapped else "r_mult"
        if wide and low.rounding != "onnxruntime" and not _negates(fields, swapped=swapped):
            raise UnsupportedLoweringError("a difference of int16 values whose scaling may end in a tie")
        fields[negative] = -fields[negative]
    rounding = _SUMS["reference" if wide and low.rounding == "xnnpack" else low.rounding]
    return {
        "stream": "r",
        "src": {"rounding": rounding},
        "stage": {"r_raw": int(raw), "r_ls": 0 if raw else left},
        "fields": {**fields, "r_lo": clip[0], "r_hi": clip[1]},
    }


def _negates(fields: dict[str, int], *, swapped: bool) -> bool:
    """Return True if the negated multiplier of an int16 operand yields the negated result for all its values."""
    multiplier = fields["x_mult" if swapped else "r_mult"]
    exponent = (fields["r_shifts"] >> (0 if swapped else 8)) & 0xFF
    exponent -= (exponent & 0x80) << 1
    every = np.arange(-(1 << 15), 1 << 15)
    plus, minus = (
        scale(every, m, exponent, LEFT_SHIFT_16, Rounding.DOUBLE) for m in (multiplier, -multiplier)
    )
    return bool((minus == -plus).all())


def _product(low: LoweringContext, y: Tensor, a: Tensor, b: Tensor, clip: tuple[int, int]) -> dict[str, Any]:
    double = low.rounding == "reference" or (low.rounding == "xnnpack" and y.dtype == "int16")
    rounding = Rounding.DOUBLE if double else Rounding.EVEN
    how = mul(affine(a), affine(b), affine(y), rounding=rounding)
    return {
        "stream": "b",
        "src": {"op": Op.MUL, "requant": Requant.IMM, "rounding": rounding},
        "fields": {
            "zp_ab": how.zp_ab,
            "mult": how.mult,
            "shifts": how.shifts,
            "zp": how.zp,
            "clip_lo": clip[0],
            "clip_hi": clip[1],
        },
    }


#: Minimum number of pixels, in relation to N * N, for which the weights of `_expands` are worth loading.
_EXPANDED_PIXELS = 8


def _expands(layer: ElementwiseLayer, config: MlaConfig) -> bool:
    """Return True if MATRIX repeats a value per pixel for its channels, so that FUSE need not process single pixels.

    This is faster if there are so few channels that FUSE would take longer than the bus. MATRIX takes N cycles for each
    weight tile if a tile has fewer than N times N pixels.
    """
    small, n = layer.small, config.n
    if small is None or layer.broadcast != Broadcast.PIXEL or layer.groups * layer.rows > 1:
        return False
    of_small, of_x, of_y = (DTYPE_BYTES[layer.shapes[name].dtype] for name in (small, layer.x, layer.y))
    pixels, channels = layer.view
    cycles = 1 + max(of_x, of_y) * ceil_div(channels, n)
    slow = cycles * n > (of_x + of_y) * channels + of_small
    groups = min(config.acc_rows // (2 * channels), n)
    return of_small == 1 and slow and channels < groups * cycles and pixels >= _EXPANDED_PIXELS * n * n


class _Stream(NamedTuple):
    """Work of an elementwise layer, whose schedule counts rows of N elements, or pixels if channels differ.

    Parameters
    ----------
    total : int
        Number of rows or pixels.
    load, store, fuse : float
        Bus beats and FUSE cycles of one of them.
    held : (int, int)
        Scratchpad bytes of one of them in a buffer of operands, and in a buffer of results.
    row : int
        Number of pixels of a row, if a second operand has other values in each row; 0 otherwise.
    of_row : (int, int)
        Scratchpad bytes of these values, and their accumulator rows.
    least : float
        Minimum cycles of a tile: of MATRIX, if it repeats values (`_expands`), for N rows of each weight tile.
    """

    total: int
    load: float
    store: float
    fuse: float
    held: tuple[int, int]
    row: int
    of_row: tuple[int, int]
    least: float

    def busy(self, count: int) -> float:
        """Return the cycles of FUSE, or of MATRIX if it takes longer, for a tile of `count` rows or pixels."""
        return max(count * self.fuse, self.least)


def _stream(
    layer: ElementwiseLayer, config: MlaConfig, on_chip: Callable[[str], bool], columns: int
) -> _Stream:
    """Return the work of a layer, of which at most `columns` blocks of channels are in a tile."""
    y, small, n = layer.shapes[layer.y], layer.small, config.n
    sizes = {name: DTYPE_BYTES[layer.shapes[name].dtype] for name in (*layer.inputs, layer.y)}
    flat = not layer.by_channel or _expands(layer, config)
    pixels, channels = (ceil_div(y.h * y.w * y.c, n), n) if flat else layer.view
    width = min(columns * n, channels)
    turns, blocks = ceil_div(channels, width), ceil_div(width, n)
    whole = [name for name in layer.inputs if name != small]
    # Operands share one read port; a row of wider elements needs one read or write per byte of an element.
    work = float(max(sum(sizes[name] for name in whole), sizes[layer.y]) * blocks)
    loaded = [name for name in whole if not on_chip(name)]
    held = sum(sizes[name] for name in loaded) * width
    load = sum(sizes[name] * layer.pixels_of(name) for name in loaded) * width / layer.view[0]
    if flat:
        load = held
    row, of_row, least = 0, (0, 0), 0.0
    if small and flat and layer.broadcast == Broadcast.PIXEL:
        least = float(layer.view[1] * n)
        more = 0 if on_chip(small) else ceil_div(n, layer.view[1])
        held, load = held + more, load + more
    elif small and layer.broadcast == Broadcast.PIXEL:
        work += 1
        held += 0 if on_chip(small) else sizes[small]
        load += 0 if on_chip(small) else sizes[small]
    elif small and layer.broadcast == Broadcast.CHANNEL and layer.rows > 1:
        row, of_row = layer.row_pixels, (0 if on_chip(small) else width * sizes[small], blocks)
        work += blocks / row
        load += of_row[0] / row
    store = 0 if on_chip(layer.y) else sizes[layer.y] * width
    return _Stream(pixels * turns, load / n, store / n, work, (held, store), row, of_row, least)


def _acc_rows(layer: ElementwiseLayer, rows: int, columns: int) -> int:
    """Return the accumulator rows for a small second tensor, for tiles of `rows` pixels and `columns` blocks."""
    if layer.small is None:
        return int(layer.factor != 1)
    if layer.broadcast == Broadcast.CHANNEL:
        return columns if layer.rows == 1 else 2 * max(rows // layer.row_pixels, 1) * columns
    return 2 * min(rows, layer.row_pixels) if layer.broadcast == Broadcast.PIXEL else 1


#: Numbers of buffers of each operand that are tried; more than two hide the latency of small tiles.
_BUFFERS = (2, 3, 4, 6, 8)
#: Blocks of channels of which a tile need not have fewer, because a tile of one pixel is small enough.
_FEW_BLOCKS = 128
#: Cycles of FUSE in relation to those of the bus from which three buffers for results are tried.
_BUSY = 0.9


def elementwise_tilings(context: TilingContext, layer: ElementwiseLayer) -> Tilings:
    """Yield the tilings of an elementwise layer that fit, with part of the channels only if these are many."""
    n, found = context.config.n, False
    expands = _expands(layer, context.config)
    blocks = ceil_div(layer.view[1], n) if layer.by_channel and not expands else 1
    weights = layer.view[1] * n * n if expands else 0
    slots = context.config.param_slots if layer.drain else blocks
    for columns in cuts(blocks):
        if columns > (slots if blocks <= slots else slots // 2):
            continue
        work, once = _stream(layer, context.config, context.on_chip, columns), weights
        if layer.small and layer.broadcast == Broadcast.CHANNEL and not context.on_chip(layer.small):
            once = columns * n * DTYPE_BYTES[layer.shapes[layer.small].dtype] * (layer.rows == 1)
        of_x = _BUFFERS if work.load else _BUFFERS[:1]
        if 1 < columns < blocks and work.load:  # the first tile of a range waits for the second operand
            of_x = _BUFFERS[1:]
        for rows, buffers, results in product(
            _tile_sizes(layer, work, context.config), of_x, _results(context, work)
        ):
            lines = max(rows // work.row, 1) if work.row else 0
            held = rows * work.held[0] + lines * work.of_row[0]
            used = buffers * held + results * rows * work.held[1] + once
            fits = used <= context.free and _acc_rows(layer, rows, columns) <= context.acc_rows
            if not fits or rows > _MAX_ROWS:
                continue
            found = True
            cycles = stream_cycles(
                context,
                work.total / rows,
                rows * work.load,
                work.busy(rows),
                rows * work.store,
                buffers,
                results,
            )
            if (
                layer.broadcast == Broadcast.CHANNEL
            ):  # the first tile of a range waits for the widened operand
                cycles += ceil_div(blocks, columns) * PASS_CYCLES
            schedule = LayerSchedule(
                rows=rows, x_buffers=buffers, y_buffers=results, on_chip=context.y_on_chip
            )
            yield cycles, schedule if columns == blocks else replace(schedule, columns=columns)
        if found and columns <= _FEW_BLOCKS:
            return


def _results(context: TilingContext, work: _Stream) -> tuple[int, ...]:
    """Return the numbers of buffers for results that are tried.

    Two suffice if FUSE waits for the bus; with three, FUSE need not wait for STORE if both are equally busy.
    """
    bus = (work.load + work.store) * context.beat
    return (2, 3) if work.store and work.fuse * context.config.fuse_rate > _BUSY * bus else (2,)


def _tile_sizes(layer: ElementwiseLayer, work: _Stream, config: MlaConfig) -> list[int]:
    """Return the numbers of pixels of a tile that are tried: parts of a row of pixels, or whole rows."""
    if _expands(layer, config):
        channels = layer.view[1]
        return [groups * channels for groups in cuts(ceil_div(work.total, channels))]
    if layer.groups * layer.rows == 1:
        return cuts(work.total)
    pixels = layer.row_pixels
    return [rows * pixels for rows in cuts(layer.rows)] + cuts(pixels)[1:]


def elementwise_tile_model(layer: ElementwiseLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of an elementwise layer."""
    work = _stream(layer, context.config, context.on_chip, s.columns)
    pipeline = even_tiles(
        s,
        work.total,
        min(s.rows, work.total),
        lambda start, count: [("x", start, count * work.load)] if work.load else [],
        work.busy,
        lambda count: count * work.store,
        1,
        layer.table is not None,
    )
    added = layer.other is not None and layer.stream == "r"
    return pipeline if added else replace(pipeline, result=EARLY_RESULT)


def _swapped(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a residual addition whose main value and residual are exchanged."""
    out = dict(fields)
    out["x_mult"], out["r_mult"] = fields["r_mult"], fields["x_mult"]
    zeros, shifts = fields["zp_xr"], fields["r_shifts"]
    out["zp_xr"] = zeros >> 16 | (zeros & 0xFFFF) << 16
    out["r_shifts"] = shifts & 0xFF0000 | shifts >> 8 & 0xFF | (shifts & 0xFF) << 8
    return out


def _viewed(layout: TensorLayout, pixels: int, channels: int, size: int) -> TensorLayout:
    """Return a contiguous layout with other pixels, or the layout itself if its pixels have the given channels."""
    if layout.c == channels:
        return layout
    return replace(layout, h=pixels, w=1, c=channels, pixel=channels * size, row=channels * size)


class ElementwiseSteps:
    """Code generator of an elementwise layer; a tile consists of some pixels with all their channels.

    If no value depends on the channel or the pixel and all tensors are contiguous, N consecutive elements are treated
    as one pixel.

    A second operand that is smaller than the result is first widened to rows of the accumulator, which FUSE then reads
    beside the scratchpad: a row for each block of channels, for each pixel of a tile, or for the only element. If its
    values repeat in rows of pixels (`BroadcastRows`), a tile consists of part of a row, or of whole rows of a group.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    layer : ElementwiseLayer
        Layer to generate code for.
    before : ElementwiseSteps or None
        Code generator of other channels of the layer, at least as many, whose buffers are used again.
    """

    def __init__(
        self, context: CodegenContext, layer: ElementwiseLayer, before: "ElementwiseSteps | None" = None
    ):
        self.context, self.layer, self.n = context, layer, context.config.n
        image = layer.shapes[layer.y]
        self.total = image.h * image.w * image.c
        whole = [name for name in (*layer.inputs, layer.y) if name != layer.small]
        compact = all(context.layouts[name].compact(self._bytes(name)) for name in whole)
        expands = _expands(layer, context.config)
        self.expands = expands and compact and context.layouts[layer.small or layer.x].compact(1)
        self.flat = compact and (not layer.by_channel or self.expands)
        self.pixels, self.channels = layer.view
        self.layouts = context.layouts | {
            name: _viewed(context.layouts[name], layer.pixels_of(name), self.channels, self._bytes(name))
            for name in whole
        }
        #: Bytes of the values of one pixel of a small second tensor.
        self.width = 0
        if layer.small:
            size, by_channel = self._bytes(layer.small), layer.broadcast == Broadcast.CHANNEL
            self.width = (self.channels // layer.together if by_channel else 1) * size
            self.layouts[layer.small] = _viewed(
                context.layouts[layer.small], layer.pixels_of(layer.small), self.width // size, size
            )
        self.y = self.layouts[layer.y]
        if self.flat:
            self.pixels, self.channels = ceil_div(self.total, self.n), self.n
        self.blocks = ceil_div(self.channels, self.n)
        rows = context.schedule.rows
        if not self.flat and not layer.by_channel:  # the schedule counts rows of N elements
            rows = max(rows * self.n // self.channels, 1)
        #: Pixels of a row, and rows and pixels of a tile.
        self.row = self.pixels if self.flat else layer.row_pixels
        self.lines = min(max(rows // self.row, 1), layer.rows) if layer.small else 1
        self.rows = (
            min(rows, self.pixels) if layer.groups * layer.rows == 1 else min(rows, self.lines * self.row)
        )
        #: Rows of N elements that consist of N pixels, of which a tile has a multiple, if MATRIX repeats their values.
        self.group = layer.view[1] if self.expands else 1
        self.rows = min(
            ceil_div(self.rows, self.group) * self.group, ceil_div(self.pixels, self.group) * self.group
        )
        self.sources = {"a": self._source("a", layer.x, Broadcast.ALL, before)}
        if layer.other:
            self.sources[layer.stream] = self._source(layer.stream, layer.other, layer.broadcast, before)
        self.table = None if layer.table is None else context.tables(layer.name, layer.table)
        self.slots = None if layer.drain is None else Slots(context, layer.name, layer.drain, self.blocks)
        if before:
            self.out, self.wide, self.repeated = before.out, before.wide, before.repeated
        else:
            size = (self.rows * self.channels + self.n) * self._bytes(layer.y)
            self.out = BufferRotation(BufferMemory.SP, f"{layer.name}.y", size, context.schedule.y_buffers)
            by_channel, depth = layer.broadcast == Broadcast.CHANNEL, 2 if self._moves else 1
            count = self._held(layer.broadcast) * (self.blocks if by_channel else 1)
            if self.expands:
                count, self.weights = self.rows, self._weights()
            self.wide = BufferRotation(BufferMemory.ACC, f"{layer.name}.wide", count, depth)
            held = self.lines * self.width * layer.together + self.n
            self.repeated = BufferRotation(BufferMemory.SP, f"{layer.name}.repeated", held, depth)
        self._widened: dict[int, BufferRef] = {}

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        layer = self.layer
        if layer.groups * layer.rows == 1:
            tiles = list(pieces(self.pixels, self.rows))
        elif self.rows < self.row:
            tiles = [
                (row * self.row + start, count)
                for row in range(layer.groups * layer.rows)
                for start, count in pieces(self.row, self.rows)
            ]
        else:
            tiles = [
                ((group * layer.rows + first) * self.row, count * self.row)
                for group in range(layer.groups)
                for first, count in pieces(layer.rows, self.lines)
            ]
        return [self._tile(tile, then) for tile, then in zip(tiles, [*tiles[1:], None], strict=True)]

    @property
    def _moves(self) -> bool:
        """True if tiles need different values of the second operand."""
        return self.layer.broadcast == Broadcast.PIXEL or self.layer.rows > 1

    def _held(self, broadcast: Broadcast) -> int:
        """Return the maximum number of pixels of an operand that a tile needs."""
        if broadcast == Broadcast.CHANNEL:
            return self.lines
        if self.expands:
            return self.rows // self.group * self.n
        return min(self.rows, self.row) if broadcast == Broadcast.PIXEL else 1

    def _small_part(self, start: int, count: int) -> tuple[int, int]:
        """Return the first pixel and the number of pixels of the second operand that a tile needs."""
        layer = self.layer
        if self.expands:
            first = start // self.group * self.n
            return first, min(ceil_div(count, self.group) * self.n, layer.view[0] - first)
        row, column = divmod(start, self.row)
        if layer.broadcast == Broadcast.CHANNEL:
            return row % layer.rows, max(count // self.row, 1)
        if layer.broadcast == Broadcast.PIXEL:
            return row // layer.rows * self.row + column, min(count, self.row)
        return 0, 1

    def _bytes(self, name: str) -> int:
        return DTYPE_BYTES[self.layer.shapes[name].dtype]

    def _source(
        self, stream: str, name: str, broadcast: Broadcast, before: "ElementwiseSteps | None"
    ) -> TileBuffers:
        """Return the tile buffers into which a tensor is loaded if it is not in the scratchpad."""
        size = self._bytes(name)
        load = self._loader(self.layouts[name], size, broadcast)
        if before:
            tiles = before.sources[stream]
            tiles.load = load
            return tiles
        repeated = stream == "a" and self.layer.repeats_x
        if broadcast == Broadcast.ALL:
            count, moves = (
                min(self.rows, self.row) if repeated else self.rows,
                not repeated or self.rows < self.row,
            )
        else:
            count, moves = self._held(broadcast), self._moves
        width = self.channels if broadcast in (Broadcast.ALL, Broadcast.CHANNEL) else 1
        depth = self.context.schedule.x_buffers if moves else 1
        if moves and broadcast != Broadcast.ALL:  # the first step widens two tiles
            depth = max(depth, 2)
        held = (count * width + self.n) * size
        return TileBuffers(CircularBuffer(BufferMemory.SP, f"{self.layer.name}.{stream}", held, depth), load)

    def _loader(
        self, layout: TensorLayout, size: int, broadcast: Broadcast
    ) -> Callable[[Hashable, BufferRef], list[Command]]:
        def load(key: Hashable, address: BufferRef) -> list[Command]:
            _, start, count = key  # type: ignore[misc]
            source, width = BufferRef(layout.buffer, 0, layout.offset), self.channels * size
            if broadcast == Broadcast.ALL and self.flat:
                length = min(count * self.n, self.total - start * self.n) * size
                lines = {"len": length}
                source = source.plus(start * self.n * size)
            else:
                width = width if broadcast == Broadcast.ALL else self.width
                lines = {"len": width, "y_count": count, "dram_y": layout.pixel, "dst_y": width}
                if layout.pixel == width or count == 1:
                    lines = {"len": count * width}
                if broadcast == Broadcast.CHANNEL and self.layer.together > 1:
                    lines = {"len": width, "y_count": self.layer.together, "dst_y": width, "z_count": count}
                    lines |= {"dram_z": layout.pixel, "dst_z": self.layer.together * width}
                source = source.plus(start * layout.pixel)
            return [self.context.command(Unit.LOAD, dram=source, dst=address, **lines)]

        return load

    def _address(
        self, stream: str, name: str, start: int, count: int, step: TileStep
    ) -> tuple[BufferRef, int]:
        """Return the address of a source's first pixel in the tile, and the distance between pixels in bytes."""
        layout, size = self.layouts[name], self._bytes(name)
        broadcast = Broadcast.ALL if stream == "a" else self.layer.broadcast
        by_channel = broadcast in (Broadcast.ALL, Broadcast.CHANNEL)
        if not layout.on_chip:
            address = self.sources[stream].get((self.layer.name, start, count), step)
            return address, (self.channels if by_channel else 1) * size
        pitch = self.n * size if self.flat and broadcast == Broadcast.ALL else layout.pixel
        return BufferRef(layout.buffer, 0, layout.offset + start * pitch), pitch

    def _tile(self, tile: tuple[int, int], then: tuple[int, int] | None) -> TileStep:
        """Return the step of a tile, given the first pixel and the number of pixels of this and of the next tile."""
        step, layer, n = TileStep(), self.layer, self.n
        start, count = tile
        size, lines = self._bytes(layer.y), max(count // self.row, 1) if layer.small else 1
        pitch = self.channels * size if self.flat or not self.y.on_chip else self.y.pixel
        address = self.out.next()
        if self.y.on_chip:
            address = BufferRef(self.y.buffer, 0, self.y.offset + start * pitch)
        fields: dict[str, int | BufferRef] = {
            "src": self._source_word(),
            "stage": self._stage_word(step),
            "v_x": 1,
            "x_count": count // lines,
            "n_count": self.blocks,
            "lanes_tail": self._tail(start, count),
            "d_base": address,
            "d_x": pitch,
            "d_n": n * size,
            **(_swapped(layer.fields) if layer.small and layer.stream == "r" else layer.fields),
        }
        streams = {"a": self._whole("a", layer.x, start, count, step)}
        if layer.small:
            streams[layer.stream] = self._small(tile, then, step)
        elif layer.other:
            streams[layer.stream] = self._whole(layer.stream, layer.other, start, count, step)
        if layer.small and layer.stream == "r":  # only operand A can be in the accumulator
            streams = {"a": streams["r"], "r": streams["a"]}
        for stream, (base, of_row, of_pixel, of_block) in streams.items():
            fields |= {
                f"{stream}_base": base,
                "a_v" if stream == "a" else f"{stream}_x": of_pixel,
                f"{stream}_n": of_block,
            }
            if lines > 1:
                fields["a_u" if stream == "a" else f"{stream}_y"] = of_row
        if lines > 1:
            fields |= {"y_count": lines, "u_y": 1, "d_y": self.row * pitch}
        if self.slots:
            fields |= {"p_base": self.slots.get(0, step), "p_n": 1}
        if layer.factor != 1:
            fields["b_base"] = self._factor(step)
        step.fuse += self._commands(fields, step, start, count)
        if not self.y.on_chip:
            step.stores.append(self._store(address, start, count, size))
        return step

    def _whole(
        self, stream: str, name: str, start: int, count: int, step: TileStep
    ) -> tuple[BufferRef, int, int, int]:
        """Return the address of an operand of the result's shape, and its bytes per row, per pixel and per block."""
        repeated = stream == "a" and self.layer.repeats_x
        if repeated:
            start, count = start % self.row, min(count, self.row)
        base, pitch = self._address(stream, name, start, count, step)
        return base, 0 if repeated else self.row * pitch, pitch, self.n * self._bytes(name)

    def _small(
        self, tile: tuple[int, int], then: tuple[int, int] | None, step: TileStep
    ) -> tuple[BufferRef, int, int, int]:
        """Return the address of the widened second operand in the accumulator, and its rows per row, pixel and block.

        The values of the next tile are widened before this tile is computed, so that FUSE need not wait for them.
        """
        by_channel, by_pixel = (self.layer.broadcast == each for each in (Broadcast.CHANNEL, Broadcast.PIXEL))
        acc = self._widen(*self._small_part(*tile), step)
        if then is not None:
            self._widen(*self._small_part(*then), step)
        return acc, self.blocks if by_channel else 0, int(by_pixel), int(by_channel)

    def _widen(self, start: int, count: int, step: TileStep) -> BufferRef:
        """Return the rows of the second operand; if they are not in the accumulator yet, add their command."""
        if start in self._widened:
            return self._widened[start]
        layer = self.layer
        assert layer.small is not None
        source, pitch = self._address(layer.stream, layer.small, start, count, step)
        if len(self._widened) == len(self.wide.buffers):
            del self._widened[next(iter(self._widened))]
        self._widened[start] = acc = self.wide.next()
        if self.expands:
            step.matrix.append(self._expanded(source, count, acc, step))
            return acc
        if layer.together > 1 and self.layouts[layer.small].on_chip:
            source, pitch = self._repeated(source, pitch, count, step), self.width * layer.together
        by_channel = layer.broadcast == Broadcast.CHANNEL
        dtype = layer.shapes[layer.small].dtype
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                src=FUSE_SRC.pack(
                    a_src=1, b_src=BSource.SP, b_dtype=dtype, b_bcast=int(not by_channel), op=Op.ADD
                ),
                # Operand A is padding, which is 0 and not read.
                a_base=source,
                u0=1,
                u_lim=1,
                b_base=source,
                b_x=pitch,
                b_n=self.n * self._bytes(layer.small),
                zp_ab=halves_word(0, self._zero),
                x_count=count,
                n_count=self.blocks if by_channel else 1,
                d_base=acc,
                d_x=self.blocks if by_channel else 1,
                d_n=1,
            )
        )
        return acc

    @property
    def _zero(self) -> int:
        """Zero point of a small second operand; those of a residual addition are subtracted later."""
        zero = self.layer.fields.get("zp_ab", 0) >> 16 & 0xFFFF if self.layer.stream == "b" else 0
        return zero - ((zero & 0x8000) << 1)

    def _weights(self) -> TileBuffers:
        """Return the weights with which MATRIX repeats N values for all channels of their pixels."""
        context, n = self.context, self.n
        pixels = np.arange(self.group * n).reshape(self.group, 1, n) // self.group
        ones = context.constant(f"{self.layer.name}.ones", (pixels == np.arange(n)[:, None]).astype(np.int8))
        return TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{self.layer.name}.ones", pixels.size * n),
            lambda _, address: [
                context.command(Unit.LOAD, dram=BufferRef(ones), dst=address, len=pixels.size * n)
            ],
        )

    def _expanded(self, source: BufferRef, count: int, acc: BufferRef, step: TileStep) -> Command:
        """Return the command that repeats the values of `count` pixels for all channels of each pixel."""
        n, group = self.n, self.group
        assert self.layer.small is not None
        dtype = self.layer.shapes[self.layer.small].dtype
        return self.context.command(
            Unit.MATRIX,
            word=MATRIX_WORD.pack(a_unsigned=int(dtype == Dtype.U8)),
            a_base=source,
            a_zp=self._zero,
            a_v=n,
            x_count=ceil_div(count, n),
            oc_count=group,
            w_base=self.weights.get(0, step),
            w_row=n,
            w_oc=n * n,
            acc_base=acc,
            acc_x=group,
            acc_oc=1,
        )

    def _repeated(self, source: BufferRef, pitch: int, count: int, step: TileStep) -> BufferRef:
        """Return the address of `count` rows of channels, each repeated for the pixels that are computed as one.

        The rows are in the scratchpad, `pitch` bytes apart, and FUSE copies them.
        """
        layer, target = self.layer, self.repeated.next()
        assert layer.small is not None
        dtype = layer.shapes[layer.small].dtype
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                src=FUSE_SRC.pack(a_src=1, a_dtype=dtype),
                stage=FUSE_STAGE.pack(d_dst=1, d_dtype=dtype, tail_dim=FUSE_DIMS.index("n")),
                a_base=source,
                a_u=pitch,
                u_y=1,
                x_count=layer.together,
                y_count=count,
                lanes_tail=self.width // DTYPE_BYTES[dtype],
                d_base=target,
                d_x=self.width,
                d_y=self.width * layer.together,
            )
        )
        return target

    def _factor(self, step: TileStep) -> BufferRef:
        """Return the accumulator row that contains the layer's factor; the first step writes it."""
        if 0 not in self._widened:
            self._widened[0] = self.wide.next()
            # Operand A is padding, which is 0 and not read.
            write = {"src": FUSE_SRC.pack(a_src=1, bias_en=1), "u0": 1, "u_lim": 1, "bias": self.layer.factor}
            step.fuse.append(self.context.command(Unit.FUSE, **write, d_base=self._widened[0]))
        return self._widened[0]

    def _commands(
        self, fields: dict[str, int | BufferRef], step: TileStep, start: int, count: int
    ) -> list[Command]:
        """Return the commands of a tile of `count` pixels that begins with pixel `start`."""
        return [self.context.command(Unit.FUSE, **fields)]

    def _tail(self, start: int, count: int) -> int:
        """Return the number of valid lanes in the last block of channels or, for flat tensors, in the last row."""
        if self.flat:
            return (min(count * self.n, self.total - start * self.n) - 1) % self.n + 1
        return (self.channels - 1) % self.n + 1

    def _store(self, address: BufferRef, start: int, count: int, size: int) -> Command:
        target = BufferRef(self.y.buffer, 0, self.y.offset)
        if self.flat:
            length = min(count * self.n, self.total - start * self.n) * size
            target, lines = target.plus(start * self.n * size), {"len": length}
        else:
            width = self.channels * size
            target = target.plus(start * self.y.pixel)
            lines = (
                {"len": count * width}
                if width == self.y.pixel
                else {
                    "len": width,
                    "y_count": count,
                    "src_y": width,
                    "dram_y": self.y.pixel,
                }
            )
        return self.context.command(Unit.STORE, dram=target, src=address, **lines)

    def _source_word(self) -> int:
        layer = self.layer
        parts = {"a_src": 1, "a_dtype": layer.shapes[layer.x].dtype, **layer.src}
        if layer.other and layer.stream == "b":
            parts |= {"b_src": BSource.ACC if layer.small else BSource.SP}
            parts["b_dtype"] = layer.shapes[layer.other].dtype
        elif layer.small:
            parts["a_src"] = 0
        if layer.factor != 1:
            parts |= {"b_src": BSource.ACC, "op": Op.MUL}
        if layer.drain:
            parts |= {"requant": Requant.SLOT, "rounding": layer.drain.rounding}
            parts["neg_en"] = int(layer.drain.negative is not None)
        return FUSE_SRC.pack(**parts)

    def _stage_word(self, step: TileStep) -> int | BufferRef:
        layer = self.layer
        parts = layer.stage | {
            "d_dst": 1,
            "d_dtype": layer.shapes[layer.y].dtype,
            "tail_dim": FUSE_DIMS.index("x" if self.flat else "n"),
        }
        if layer.other and layer.stream == "r":
            parts |= {"residual": 1, "r_dtype": layer.shapes[layer.x if layer.small else layer.other].dtype}
        if self.table:
            return self.table.word(step, **{"table": 1, **parts})
        return FUSE_STAGE.pack(**parts)


def elementwise_steps(context: CodegenContext, layer: ElementwiseLayer) -> list[TileStep]:
    """Generate the steps of an elementwise layer, for one range of channels after the other."""
    width, (_, channels) = context.schedule.columns * context.config.n, layer.view
    if width >= channels or not layer.by_channel:
        return ElementwiseSteps(context, layer).steps()
    out: list[TileStep] = []
    steps: ElementwiseSteps | None = None
    for first, count in pieces(channels, width):
        shapes, layouts = dict(layer.shapes), dict(context.layouts)
        for name, each in layer.shapes.items():
            if name == layer.small and layer.broadcast == Broadcast.PIXEL:
                continue
            size, rows = DTYPE_BYTES[each.dtype], layer.pixels_of(name)
            shapes[name] = replace(each, h=rows, w=1, c=count)
            layout = _viewed(layouts[name], rows, channels, size)
            layouts[name] = replace(layout, c=count, offset=layout.offset + first * size)
        drain = layer.drain and layer.drain.part(slice(first, first + count))
        part = replace(layer, name=f"{layer.name}.{first}", shapes=shapes, drain=drain)
        steps = ElementwiseSteps(replace(context, layouts=layouts), part, steps)
        out += steps.steps()
    return out


KIND = LayerKind(
    name="elementwise",
    layer=ElementwiseLayer,
    lowerings={
        **dict.fromkeys(
            BINARY_OPS,
            Lowering(
                lower_binary, ElementTypes((_UP_TO_16,), _UP_TO_16), strided_input=True, strided_output=True
            ),
        ),
        # Requantization is lowered as a move of elements, which supports more element types than a table.
        **dict.fromkeys(
            TABLE_OPS - {"requantize", "clip", *_SLOPES},
            Lowering(lower_unary, BYTES_TO_BYTES, strided_input=True, strided_output=True),
        ),
        **dict.fromkeys(
            _SLOPES,
            Lowering(
                lower_unary, ElementTypes((_UP_TO_16,), _UP_TO_16), strided_input=True, strided_output=True
            ),
        ),
        "clip": Lowering(
            lower_unary, ElementTypes((INTEGERS,), INTEGERS), strided_input=True, strided_output=True
        ),
    },
    tilings=elementwise_tilings,
    tile_model=elementwise_tile_model,
    steps=elementwise_steps,
    rank_by_tile_model=True,
)
