"""Elementwise operators: sums and products of tensors, and functions of one operand as lookup tables."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby, product
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node
from compiler.ir.identity import identity
from compiler.ir.ops import BINARY_OPS, TABLE_OPS
from compiler.ir.tensor import Tensor
from compiler.kernel_library.elementwise import LEFT_SHIFT, LEFT_SHIFT_16, mul, raw_fields, residual_fields
from compiler.layers.base import Drain, Layer
from compiler.layers.layer_kind import BYTES, BYTES_TO_BYTES, INTEGERS, ElementTypes, Lowering
from compiler.layers.lowering_context import (
    LoweringContext,
    UnsupportedLoweringError,
    affine,
    clip_range,
    is_unary,
    same_quantization,
    table_of,
)
from compiler.layers.strided_copy import Rescale
from compiler.layers.tile_pipeline import EARLY_RESULT, PASS_CYCLES, TilePipeline, even_tiles
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings, stream_cycles
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import bytes_word, halves_word, quantize_multiplier
from compiler.util.tiles import ceil_div, cuts
from cosim.semantics.fixed_point import scale
from hw.config import MlaConfig
from hw.isa.enums import DTYPE_BYTES, Op, Requant, Rounding


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

    The first operand is not constant. It has the shape of the result, or consists of one row of pixels, which is
    repeated: for each row of channels of the second one, or while the second one has a value for each pixel. None: the
    machine does not support the broadcast.
    """
    for first, second in ((a, b), (b, a)):
        how = pair_broadcast(first.shape, second.shape, y)
        if how is not None and not first.constant:
            return first, second, how
    return None


def pair_broadcast(
    first: tuple[int, ...], second: tuple[int, ...], y: tuple[int, ...]
) -> BroadcastRows | None:
    """Return how the second operand is broadcast to shape `y` beside the first one; None if that is not supported.

    The operands are given by their shapes; `operands_of` describes those that are supported.
    """
    how, own, total = broadcast_of(second, y), broadcast_of(first, y), math.prod(y)
    if how is None or own is None:
        return None
    if first == y:
        return how
    if own.broadcast != Broadcast.CHANNEL:
        return None
    if how.broadcast == Broadcast.CHANNEL and how.groups == 1 and math.prod(first) * how.rows == total:
        return how
    if how.broadcast == Broadcast.PIXEL and how.groups * how.rows * own.groups * own.rows == 1:
        return replace(how, groups=total // math.prod(first))
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
    if a.elements < y.elements and b.elements < y.elements:
        return True
    return how.broadcast == Broadcast.PIXEL and small.elements * how.rows * channels != y.elements


@identity("RowMultiplier", "mult", "exponent", "shift")
@dataclass(frozen=True)
class RowMultiplier:
    """Conversion of the elements of a small second tensor to multipliers of the elements of their pixels.

    Parameters
    ----------
    mult, exponent : int
        Multiplier and exponent by which an element, less its zero point, becomes a multiplier.
    shift : int
        Exponent of the multipliers.
    """

    mult: int
    exponent: int
    shift: int


@identity("Extreme", "greatest", "scaling")
@dataclass(frozen=True)
class Extreme:
    """Elementwise maximum or minimum of two tensors, whose elements are first converted to the type of the result.

    Parameters
    ----------
    greatest : bool
        True for the maximum.
    scaling : (Rescale or None, Rescale or None)
        Conversion of each tensor; None if its quantization is that of the result.
    """

    greatest: bool
    scaling: tuple[Rescale | None, Rescale | None] = (None, None)


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
    "row_multiplier",
    "extreme",
    added=("factor", "groups", "rows", "together", "row_multiplier", "extreme"),
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
    row_multiplier : RowMultiplier or None
        Conversion of the second tensor, with a value per pixel, to multipliers (requant=row).
    extreme : Extreme or None
        Maximum or minimum of the two tensors, of one byte per element, in place of any other operator; the second one
        has the shape of the first, or one row of channels for all pixels.
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
    row_multiplier: RowMultiplier | None = None
    extreme: Extreme | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the first tensor and, if present, the second."""
        return (self.x, *([self.other] if self.other else []))

    @property
    def by_channel(self) -> bool:
        """True if parameters or the second operand differ between channels, or between pixels, but not both.

        Tiles of an extreme contain copies of the second operand.
        """
        if self.extreme is not None:
            return False
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

    @property
    def lines(self) -> int:
        """Maximum number of rows of pixels of a tile: those of a group, or all if the first tensor is one row."""
        return self.groups if self.repeats_x and self.broadcast == Broadcast.PIXEL else self.rows

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


def lower_extreme(low: LoweringContext) -> Layer:
    """Lower an elementwise maximum or minimum of 8-bit tensors.

    Raises
    ------
    UnsupportedLoweringError
        The quantizations of operands and result differ, or the shape of an operand is not supported.
    """
    graph, node = low.graph, low.anchor
    first, second = graph.ins(node)
    found = operands_of(first, second, low.y.shape)
    if not all(same_quantization(each, low.y) for each in (first, second)):
        raise UnsupportedLoweringError("its operands and its result have different quantizations")
    if found is None or found[0].shape != low.y.shape or not one_row(found[2]):
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise UnsupportedLoweringError(f"operands of shapes {shapes} for {list(low.y.shape)}")
    a, b, how = found
    return ElementwiseLayer(
        **low.common(b.name, x=a.name),
        other=b.name,
        broadcast=how.broadcast,
        extreme=Extreme(node.op == "maximum"),
    )


def one_row(how: BroadcastRows) -> bool:
    """Return True if an operand has all elements of the result, or one row of channels for all pixels."""
    return how.broadcast in (Broadcast.ALL, Broadcast.CHANNEL) and how.groups * how.rows == 1


#: Minimum number of pixels, in relation to N * N, for which the weights of `uses_expansion` are worth loading.
_EXPANDED_PIXELS = 8


def uses_expansion(layer: ElementwiseLayer, config: MlaConfig) -> bool:
    """Return True if MATRIX repeats a value per pixel for its channels, so that FUSE need not process single pixels.

    This is faster if there are so few channels that FUSE would take longer than the bus. MATRIX takes N cycles for each
    weight tile if a tile has fewer than N times N pixels.
    """
    small, n = layer.small, config.n
    if small is None or layer.broadcast != Broadcast.PIXEL or layer.groups * layer.rows > 1:
        return False
    if layer.row_multiplier is not None:
        return False
    of_small, of_x, of_y = (DTYPE_BYTES[layer.shapes[name].dtype] for name in (small, layer.x, layer.y))
    pixels, channels = layer.view
    cycles = 1 + max(of_x, of_y) * ceil_div(channels, n)
    slow = cycles * n > (of_x + of_y) * channels + of_small
    groups = min(config.acc_rows // (2 * channels), n)
    return of_small == 1 and slow and channels < groups * cycles and pixels >= _EXPANDED_PIXELS * n * n


#: Accumulator buffers for values that MATRIX copies to all lanes: it need not wait for FUSE to copy those of the next
#: tile.
LANE_COPIES = 3


def widens_by_matrix(layer: ElementwiseLayer, config: MlaConfig, on_chip: Callable[[str], bool]) -> bool:
    """Return True if MATRIX copies a value per pixel to all lanes of a row, because FUSE is busier than the bus.

    This is so if the first tensor has only one row of pixels, so that the bus mainly stores results.
    """
    small = layer.small
    if small is None or not layer.repeats_x or layer.broadcast != Broadcast.PIXEL or on_chip(small):
        return False
    return DTYPE_BYTES[layer.shapes[small].dtype] == 1 and layer.view[0] >= config.n * config.n


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
        Minimum cycles of a tile: of MATRIX, if it repeats values (`uses_expansion`), for N rows of each weight tile.
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
    flat = not layer.by_channel or uses_expansion(layer, config)
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
    if layer.extreme is not None and small:  # tiles contain copies of the second operand, which are read, too
        work, held = 2 * work, held + width
    if small and flat and layer.broadcast == Broadcast.PIXEL:
        least = float(layer.view[1] * n)
        more = 0 if on_chip(small) else ceil_div(n, layer.view[1])
        held, load = held + more, load + more
    elif small and layer.broadcast == Broadcast.PIXEL:
        if widens_by_matrix(layer, config, on_chip):
            least = float(n * n // config.weight_rows)
        else:
            work += 1
        held += 0 if on_chip(small) else sizes[small]
        load += 0 if on_chip(small) else sizes[small]
    elif small and layer.broadcast == Broadcast.CHANNEL and layer.rows > 1:
        row, of_row = layer.row_pixels, (0 if on_chip(small) else width * sizes[small], blocks)
        work += blocks / row
        load += of_row[0] / row
    store = 0 if on_chip(layer.y) else sizes[layer.y] * width
    return _Stream(pixels * turns, load / n, store / n, work, (held, store), row, of_row, least)


def _acc_rows(layer: ElementwiseLayer, rows: int, columns: int, n: int) -> int:
    """Return the accumulator rows for a small second tensor, for tiles of `rows` pixels and `columns` blocks."""
    if layer.small is None or layer.extreme is not None:
        return 2 if layer.extreme is not None else int(layer.factor != 1)
    if layer.broadcast == Broadcast.CHANNEL:
        return columns if layer.rows == 1 else 2 * max(rows // layer.row_pixels, 1) * columns
    if layer.broadcast != Broadcast.PIXEL:
        return 1
    if layer.repeats_x:
        return LANE_COPIES * ceil_div(rows, n) * n
    return 2 * min(rows, layer.row_pixels)


#: Numbers of buffers of each operand that are tried; more than two hide the latency of small tiles.
_BUFFERS = (2, 3, 4, 6, 8)
#: Blocks of channels of which a tile need not have fewer, because a tile of one pixel is small enough.
_FEW_BLOCKS = 128
#: Cycles of FUSE in relation to those of the bus from which three buffers for results are tried.
_BUSY = 0.9


def elementwise_tilings(context: TilingContext, layer: ElementwiseLayer) -> Tilings:
    """Yield the tilings of an elementwise layer that fit, with part of the channels only if these are many."""
    n, found = context.config.n, False
    expands = uses_expansion(layer, context.config)
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
            fits = used <= context.free and _acc_rows(layer, rows, columns, n) <= context.acc_rows
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
    if uses_expansion(layer, config):
        channels = layer.view[1]
        return [groups * channels for groups in cuts(ceil_div(work.total, channels))]
    if layer.extreme is not None and layer.small:  # at least one row of channels
        other = layer.shapes[layer.small]
        return [rows for rows in cuts(work.total) if rows * config.n >= other.h * other.w * other.c]
    if layer.groups * layer.rows == 1:
        return cuts(work.total)
    pixels = layer.row_pixels
    return [rows * pixels for rows in cuts(layer.lines)] + cuts(pixels)[1:]


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


#: Lowerings of the operators that become element-wise layers of this module.
ELEMENTWISE_LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(
        BINARY_OPS,
        Lowering(
            lower_binary, ElementTypes((_UP_TO_16,), _UP_TO_16), strided_input=True, strided_output=True
        ),
    ),
    **dict.fromkeys(("maximum", "minimum"), Lowering(lower_extreme, ElementTypes((BYTES, BYTES), BYTES))),
    # Requantization is lowered as a move of elements, which supports more element types than a table.
    **dict.fromkeys(
        TABLE_OPS - {"requantize", "clip", *_SLOPES},
        Lowering(lower_unary, BYTES_TO_BYTES, strided_input=True, strided_output=True),
    ),
    **dict.fromkeys(
        _SLOPES,
        Lowering(lower_unary, ElementTypes((_UP_TO_16,), _UP_TO_16), strided_input=True, strided_output=True),
    ),
    "clip": Lowering(
        lower_unary, ElementTypes((INTEGERS,), INTEGERS), strided_input=True, strided_output=True
    ),
}
