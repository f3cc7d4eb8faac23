"""Normalizations over the last axis.

A row takes three passes: its sum; the reciprocal root of its variance, from the sum of squares and the sum; and the
results (z + bias) * multiplier, where the normalized element z is a deviation times the reciprocal root, and bias and
multiplier of each channel represent beta and gamma. Without a mean, there are two passes. The variance is the
difference of the mean square and of the squared mean, computed from exact integer sums. Where the rounding of this
difference could matter (`RowSumScale.error`), the sums are those of the deviations from the integer next to the mean,
which six commands over the statistics of the rows compute from the sums (`RowSumScale.by_mean`). If that is not exact
enough either, the variance is the mean square of the deviations, which are scaled by a first reciprocal root.
"""

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

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
from compiler.ir.identity import identity
from compiler.ir.tensor import Tensor
from compiler.layers.base import Layer
from compiler.layers.layer_kind import BYTES, ElementTypes, LayerKind, Lowering
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError, affine, clip_range
from compiler.layers.reduce import _Tilings
from compiler.layers.tile_pipeline import (
    PASS_CYCLES,
    STAGGERED_PASS_CYCLES,
    STATISTICS_BUFFERS,
    PipelineTile,
    TilePipeline,
    row_buffers,
    row_tile_model,
    row_tilings,
)
from compiler.layers.tiling_context import LayerContext
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import bytes_word, halves_word, param_image, quantize_multiplier
from compiler.util.tiles import ceil_div, cuts
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import BSource, Op, Post, Reduce, Requant, Rounding, Space, Unit

if TYPE_CHECKING:
    from compiler.layers.tiling_context import TilingContext

#: Maximum number of elements of a row; in longer rows, a small variance could be lost in a sum of large squares.
_MAX_ELEMENTS = 8192
#: Largest error of a result before its last rounding, in steps: of the variance, and of gamma and beta.
_MAX_SUM_ERROR, _MAX_PARAMETER_ERROR = 0.5, 0.2
#: Largest number of units of sums that are tried, and limit of the number by which elements are multiplied to subtract
#: the mean, a signed number of 18 bits.
_MAX_SCALES, _MAX_DEVIATION_FACTOR = 256, (1 << 17) - 1
#: Largest numbers of bits of the units of a normalized element, from the preferred one on.
_UNITS = (20, 18, 16, 14, 12, 10)
#: Largest bias of a channel, which is added to a normalized element.
_MAX_BIAS = (1 << 30) - 1

_Reals = NDArray[np.float64]


@identity(
    "NormLayer",
    "centred",
    "x_zp",
    "epsilon",
    "bias",
    "mult",
    "exponent",
    "power",
    "unit",
    "y_zp",
    "clip",
    "factor",
    "by_mean",
    added=("factor", "by_mean"),
)
@dataclass(frozen=True, kw_only=True, eq=False)
class NormLayer(Layer):
    """Normalization of rows: optionally minus the mean, divided by the root mean square, times gamma, plus beta.

    Parameters
    ----------
    centred : bool
        True if the mean is subtracted (layer normalization).
    x_zp : int
        Number that is subtracted from x: its zero point, or the middle of its range if the mean is subtracted.
    epsilon : float
        Epsilon in units of the squared scale of x.
    bias, mult, exponent : (columns,) int64 arrays
        Bias, multiplier and exponent that convert the normalized elements of each channel to results.
    power : int
        Exponent of the unit of normalized elements, which is added to that of the reciprocal root.
    unit : float or None
        Unit of the sums of squares: the sum for one element of magnitude 1; None: the variance is the mean square of
        deviations that are scaled by a first reciprocal root.
    y_zp : int
        Zero point of the result.
    clip : (int, int)
        Smallest and largest stored result.
    factor : int
        Factor by which the sum of a row is multiplied before it is squared.
    by_mean : bool
        True if the variance is computed from deviations from the integer next to the mean (`RowSumScale.by_mean`).
    """

    centred: bool
    x_zp: int
    epsilon: float
    bias: NDArray[np.int64]
    mult: NDArray[np.int64]
    exponent: NDArray[np.int64]
    power: int
    unit: float | None
    y_zp: int
    clip: tuple[int, int]
    factor: int = 1
    by_mean: bool = False

    @property
    def scale(self) -> "RowSumScale":
        """Scale of the sums of a row."""
        assert self.unit is not None
        return RowSumScale(self.shapes[self.x].c, self.unit, self.factor, self.by_mean)

    @property
    def passes(self) -> int:
        """Number of FUSE commands of a tile."""
        if self.unit is None:
            return 9 if self.centred else 7
        if self.by_mean:
            return 3 + _MEAN_COMMANDS
        return 3 if self.centred else 2

    @property
    def planes(self) -> int:
        """Number of accumulator rows for the statistics of a row, unless deviations are scaled by a first root."""
        return _MEAN_PLANES if self.by_mean else 1


def lower_norm(low: LoweringContext) -> NormLayer:
    """Lower a normalization.

    Raises
    ------
    UnsupportedLoweringError
        The axis is not the last one, a row is too long, gamma or beta is not constant, or values exceed the
        fixed-point range.
    """
    x, y, node = low.x, low.y, low.anchor
    if not x.shape or node.attributes["axis"] % len(x.shape) != len(x.shape) - 1:
        raise UnsupportedLoweringError("a normalization must be along the last dimension")
    columns = x.shape[-1]
    if columns > _MAX_ELEMENTS:
        raise UnsupportedLoweringError(f"a normalization over {columns} elements, more than {_MAX_ELEMENTS}")
    given = [_row(tensor, columns) for tensor in low.graph.ins(node)[1:]]
    step, (lowest, highest) = affine(y).scale, clip_range(y)
    gamma = (given[0] if given else np.ones(columns)) / step
    beta = (given[1] if len(given) > 1 else np.zeros(columns)) / step
    centred = node.op == "layer_norm"
    epsilon = float(node.attributes["epsilon"]) / affine(x).scale ** 2
    reach = np.maximum(highest - affine(y).zero_point - beta, beta + affine(y).zero_point - lowest)
    widest = float(np.minimum(np.abs(gamma) * math.sqrt(columns), np.maximum(reach, 0)).max())
    limits, middle = clip_range(x), 128 if x.dtype == "uint8" else 0
    zero = middle if centred else affine(x).zero_point
    scale = _sum_scale(columns, centred, epsilon, max(abs(limit - zero) for limit in limits) ** 2, widest)
    unit, by_mean = (None, False) if scale is None else (scale.unit, scale.by_mean)
    planes = _MEAN_PLANES if by_mean else 1
    held, available = _acc_rows(ceil_div(columns, low.config.n), unit, planes), low.config.acc_rows
    if held > available:
        raise UnsupportedLoweringError(
            f"a normalization over {columns} elements, which holds {held} of {available} accumulator rows"
        )
    # One standard deviation is 2**(power + offset) units of a normalized element.
    offset = _SQUARE / 2 - math.log2(columns) / 2 if scale is None else scale.offset(centred)
    powers = [math.floor(bits - offset) for bits in _UNITS]
    found = [(*_parameters(gamma, beta, columns, 2.0 ** (power + offset)), power) for power in powers]
    bias, mult, exponent, error, power = min(found, key=lambda each: each[3])
    if error > _MAX_PARAMETER_ERROR:
        raise UnsupportedLoweringError(
            f"gamma, up to {np.abs(gamma).max():.3g} steps of the result, and beta, up to "
            f"{np.abs(beta).max():.3g} steps, are out of range"
        )
    return NormLayer(
        **low.common(),
        centred=centred,
        x_zp=zero,
        epsilon=epsilon,
        bias=bias,
        mult=mult,
        exponent=exponent,
        power=power,
        unit=unit,
        y_zp=affine(y).zero_point,
        clip=(lowest, highest),
        factor=1 if scale is None else scale.factor,
        by_mean=by_mean,
    )


class RowSumScale(NamedTuple):
    """Scale of the sums of a row of `columns` elements, with which they fit int32.

    Parameters
    ----------
    columns : int
        Number of elements of a row.
    unit : float
        Factor of the sum of squares.
    factor : int
        Factor of the sum, if the mean is subtracted. The variance is the scaled sum of squares minus the square of the
        scaled sum, divided by 2**`dropped`, so that `unit` is `columns` * `factor`**2 / 2**`dropped`.
    by_mean : bool
        True if the sums are those of the deviations from the integer next to the mean. The squared sum is then
        multiplied by `unit` / `columns`, and may be small when it is rounded; `unit` is an integer.
    """

    columns: int
    unit: float
    factor: int = 1
    by_mean: bool = False

    @property
    def dropped(self) -> int:
        """Bits that the squared sum of a row loses, negative if it gains some."""
        return round(math.log2(self.columns * self.factor**2 / self.unit))

    @property
    def widened(self) -> int:
        """Bits by which the sum of a row is shifted to the left, so that its square need not be."""
        return max(-(self.dropped // 2), 0)

    def offset(self, centred: bool) -> float:
        """Return the binary logarithm of a standard deviation in units of a normalized element, for a power of 0."""
        if self.by_mean:
            return math.log2(self.columns / self.unit) / 2
        if centred:
            return self.dropped / 2 + self.widened
        return -math.log2(self.unit * self.columns) / 2

    def root_scale(self) -> tuple[int, int, int]:
        """Return the scale of the sum of deviations that is squared: multiplier, exponent, and exponent of the square.

        The square is `unit` / `columns` times that of the sum, with an error below 2**-10.
        """
        squared = self.unit / self.columns
        # The sum is at most half of the columns, and one more, because the integer next to the mean is rounded.
        shift = math.floor(2 * (30 - math.log2(self.columns / 2 + 1)) - math.log2(squared))
        return *quantize_multiplier(math.sqrt(squared * 2.0**shift)), 31 - shift

    def error(self, centred: bool, epsilon: float) -> float:
        """Return the largest relative error of the reciprocal root of a variance that is computed from sums.

        The sum of squares times the unit, the squared sum and epsilon are rounded to integers if they are none. A row
        of equal elements has no deviations, so that its error is 0. In other rows, let d be the sum of the deviations
        from the integer next to the mean. The sum of their squares is at least abs(d), and at least 2 if d is 0. If
        2**`dropped` divides the number of columns, or if d itself is squared, the fraction of the square depends on d
        only.

        Parameters
        ----------
        centred : bool
            True if the mean is subtracted.
        epsilon : float
            Epsilon in units of the squared scale of x.
        """
        unit, columns = self.unit, self.columns
        share = unit * columns * epsilon
        error = abs(share - round(share))
        if not centred:
            least, lost = np.array([unit]), np.array([error])
        elif self.by_mean or self.dropped < 0 or columns % 2**self.dropped == 0:
            sums = np.arange(1, columns // 2 + 1)
            squares = sums**2 * (unit / columns)
            least = np.append(unit * sums - squares, 2 * unit)
            lost = np.append(np.abs(squares - np.rint(squares)), 0.0) + error
        else:
            least = np.array([unit * (columns - 1) / columns])
            lost = np.array([error + 0.5 + (0.5 if unit != math.floor(unit) else 0.0)])
        relative = float((lost / np.maximum(least + share, 1e-300)).max())
        return 1 / math.sqrt(1 - relative) - 1 if relative < 1 else math.inf


def sum_scales(columns: int, centred: bool, epsilon: float, square: int) -> Iterator[RowSumScale]:
    """Yield scales of the sums of a row, so that they fit int32, the preferred one first.

    Parameters
    ----------
    columns : int
        Number of elements of a row.
    centred : bool
        True if the mean is subtracted.
    epsilon : float
        Epsilon in units of the squared scale of x.
    square : int
        Largest square of an element.
    """
    room = ((1 << 31) - 1) / (columns * (square + epsilon) + 1)
    if not centred:  # each square is multiplied by the unit, which is an integer
        for unit in range(math.floor(room), max(math.floor(room) - _MAX_SCALES, 0), -1):
            yield RowSumScale(columns, float(unit))
        return
    bits = math.ceil(math.log2(columns / room))
    if bits < _MAX_DROPPED:
        yield RowSumScale(columns, columns * 2.0**-bits)
    for factor in range(1, _MAX_DEVIATION_FACTOR // columns + 1, 2):
        bits = max(math.ceil(math.log2(columns * factor**2 / room)), 0)
        for more in (bits, bits + 1):
            if columns % 2**more == 0:
                yield RowSumScale(columns, columns * factor**2 * 2.0**-more, factor)
    for unit in range(math.floor(room), max(math.floor(room) - _MAX_SCALES, 0), -1):
        yield RowSumScale(columns, float(unit), by_mean=True)


def _sum_scale(columns: int, centred: bool, epsilon: float, square: int, widest: float) -> RowSumScale | None:
    """Return the first scale with which the error of results up to `widest` is small enough; None if there is none."""
    found = sum_scales(columns, centred, epsilon, square)
    return next((each for each in found if each.error(centred, epsilon) * widest <= _MAX_SUM_ERROR), None)


def _parameters(
    gamma: _Reals, beta: _Reals, columns: int, unit: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], float]:
    """Return bias, multiplier and exponent of each channel, and the largest error in steps of the result.

    Where beta is so large in relation to gamma that the bias would not fit, gamma is increased.

    Parameters
    ----------
    gamma, beta : (columns,) float64 arrays
        Parameters in steps of the result.
    columns : int
        Number of elements of a row, whose root is the largest normalized element.
    unit : float
        Units of a normalized element for one standard deviation.
    """
    factor = gamma / unit
    largest = math.sqrt(columns) * unit
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        bias = np.where(beta == 0, 0.0, beta / factor)
    too_large = ~(np.abs(bias) <= _MAX_BIAS)
    bias = np.where(too_large, np.copysign(_MAX_BIAS, beta) * np.where(factor < 0, -1, 1), bias)
    made = np.where(too_large, beta / np.where(too_large, bias, 1.0), factor)
    pairs = [quantize_multiplier(abs(each)) for each in made]
    mult = np.array([pair[0] for pair in pairs], np.int64) * np.where(made < 0, -1, 1)
    exponent = np.array([pair[1] for pair in pairs], np.int64)
    lost = np.where(mult == 0, np.abs(made), 0)
    # Rounding of an element and of the bias, a changed gamma, and multipliers too small for their format.
    error = np.abs(made) + np.abs(made - factor) * largest + lost * (largest + np.abs(bias))
    return np.rint(bias).astype(np.int64), mult, exponent, float(error.max())


def _acc_rows(blocks: int, unit: float | None, planes: int) -> int:
    """Return the accumulator rows for a row of `blocks` blocks: the statistics of each tile in progress.

    Deviations that are scaled by a first root also need two copies of the row, each with epsilon.
    """
    return 1 + 2 * (blocks + 1) if unit is None else STATISTICS_BUFFERS * planes


def _row(tensor: Tensor, columns: int) -> NDArray[np.float64]:
    """Return the dequantized elements of a constant, one for each column."""
    if tensor.data is None:
        raise UnsupportedLoweringError(f"{tensor.name!r} must be constant")
    if tensor.elements not in (1, columns):
        raise UnsupportedLoweringError(f"{tensor.name!r} must have {columns} elements, not {tensor.elements}")
    q = tensor.quantization
    real = tensor.data if q is None else q.dequantized(tensor.data)
    row = np.broadcast_to(real.astype(np.float64).reshape(-1), columns)
    if not np.isfinite(row).all():
        raise UnsupportedLoweringError(f"{tensor.name!r} has elements that are not finite")
    return row


def norm_tilings(context: "TilingContext", layer: NormLayer) -> _Tilings:
    """Yield the tilings whose rows fit the scratchpad and the accumulator."""
    blocks = ceil_div(layer.shapes[layer.x].c, context.config.n)
    of_row = _row_cycles(layer, blocks, context.config)
    if layer.unit is None or _chunk(blocks, context.config) == blocks:
        acc_rows = _acc_rows(blocks, layer.unit, layer.planes)
        yield from row_tilings(context, layer, layer.passes, of_row, _pass_cycles(layer), acc_rows)
    else:
        yield from _tilings_in_parts(context, layer, of_row)


#: Largest number of parts of a tile.
_MAX_PARTS = 16


def _tilings_in_parts(context: "TilingContext", layer: NormLayer, of_row: float) -> _Tilings:
    """Yield the tilings of a layer whose parameters exceed the slots, and are loaded for each tile.

    Tiles are therefore large, and loaded in small parts, so that the first pass starts soon.
    """
    x, n = layer.shapes[layer.x], context.config.n
    total, chunk = x.h * x.w, _chunk(ceil_div(x.c, n), context.config)
    for part in cuts(total):
        for count in cuts(min(ceil_div(total, part), _MAX_PARTS)):
            parts = ceil_div(total, part)
            if part * layer.planes * (STATISTICS_BUFFERS + count - 1) > context.acc_rows:
                continue
            for x_buffers in _PART_BUFFERS:
                held = min(count - 1 + x_buffers, parts)
                used = 0 if context.x_on_chip else held * (part * x.c + n)
                out = _RESULT_BUFFERS * min(chunk * n, x.c) if count > 1 else 2 * x.c
                used += 0 if context.y_on_chip else part * out
                if used <= context.free:
                    yield (
                        _cycles_in_parts(context, layer, of_row, part, count, x_buffers),
                        LayerSchedule(
                            rows=part * count,
                            rows_per_load=part,
                            x_buffers=x_buffers,
                            y_buffers=_RESULT_BUFFERS if count > 1 else 2,
                            on_chip=context.y_on_chip,
                        ),
                    )


#: Number of buffers for results of a part and a chunk, which FUSE fills faster than STORE empties them.
_RESULT_BUFFERS = 4
#: Numbers of buffers for parts of the input in addition to those of the other parts of a tile.
_PART_BUFFERS = (3, 4, 6, 2)


def _cycles_in_parts(
    context: "TilingContext", layer: NormLayer, of_row: float, part: int, count: int, x_buffers: int
) -> float:
    """Return the estimated cycles for tiles of `count` parts of `part` rows."""
    x = layer.shapes[layer.x]
    total, blocks, beat = x.h * x.w, ceil_div(x.c, context.config.n), context.beat
    chunk = _chunk(blocks, context.config)
    rows, chunks, rate = min(part * count, total), ceil_div(blocks, chunk), context.config.fuse_rate
    tiles, parts = ceil_div(total, rows), ceil_div(rows, part)
    load, store = (0 if here else blocks * beat for here in (context.x_on_chip, context.y_on_chip))
    statistics = rows * (of_row - blocks) * rate + parts * (layer.passes - 1) * STAGGERED_PASS_CYCLES
    results = (rows * chunk * rate + parts * STAGGERED_PASS_CYCLES) * chunks
    ends = max(statistics, rows * load) + results / chunks + part * (load + store / chunks)
    # A part is loaded when the results of another part have been computed, as many parts before as there are buffers.
    each = context.latency + part * (load + chunk * rate) + statistics / parts + PASS_CYCLES
    each /= x_buffers - 1 if load else math.inf
    parameters, share = blocks * PARAMETER_BEATS * beat, (chunks - 1) / chunks
    others = max(results * share, rows * store * share + parameters)
    if parts == 1:
        return (
            others + (tiles - 1) * max(statistics + results, rows * (load + store) + parameters, each) + ends
        )
    # The statistics of a tile are computed, and its rows loaded, during the last sweep over the tile before.
    sweep = max(statistics + results / chunks, rows * (load + store / chunks), (parts - 1) * each)
    return tiles * others + (tiles - 1) * sweep + ends


#: Bus beats of the parameters of a block of channels.
PARAMETER_BEATS = 9


def _chunk(blocks: int, config: MlaConfig) -> int:
    """Return the blocks whose parameters are loaded together: all if the slots suffice, else at most half of them."""
    if blocks <= config.param_slots:
        return blocks
    return ceil_div(blocks, ceil_div(blocks, config.param_slots // 2))


def _row_cycles(layer: NormLayer, blocks: int, config: MlaConfig) -> float:
    """Return the FUSE cycles of a row.

    Where deviations are scaled by a first root, a pass that reads the accumulator twice takes two cycles for a block.
    """
    root = config.reciprocal_cycles(root=True)
    if layer.unit is None:
        return (11 if layer.centred else 8) * blocks + 4 + 2 * root
    if layer.by_mean:
        return 3 * blocks + _MEAN_COMMANDS - 1 + max(3.0, root)
    return (layer.passes - 1) * blocks + max(float(blocks), root)


def _pass_cycles(layer: NormLayer) -> float:
    """Return the cycles of a pass in addition to its rows; adjacent passes of different tiles do not wait."""
    return PASS_CYCLES if layer.unit is None else STAGGERED_PASS_CYCLES


def norm_tile_model(layer: NormLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a normalization."""
    config, x = context.config, layer.shapes[layer.x]
    blocks = ceil_div(x.c, config.n)
    of_row = _row_cycles(layer, blocks, config)
    chunks = list(pieces(blocks, min(s.param_blocks, _chunk(blocks, config))))
    if layer.unit is None or len(chunks) == 1:
        return row_tile_model(layer, s, context, layer.passes, of_row, 0, pass_cycles=_pass_cycles(layer))
    total, of_x = x.h * x.w, x.c / config.n
    rows = min(s.rows, total)
    part = min(s.rows_per_load, rows)

    passes, stored = layer.passes - 1, not context.y_on_chip

    def loads(first: int, count: int) -> tuple[tuple[str, object, float], ...]:
        return () if context.x_on_chip else (("x", first, count * of_x),)

    def statistics(first: int, count: int) -> PipelineTile:
        fuse = count * (of_row - blocks) + passes * STAGGERED_PASS_CYCLES
        return PipelineTile(loads(first, count), 0.0, fuse, 0.0, passes)

    def tiles() -> Iterator[PipelineTile]:
        spans = [
            [(start + first, count) for first, count in pieces(min(rows, total - start), part)]
            for start in range(0, total, rows)
        ]
        yield from (statistics(*each) for each in spans[0])
        for parts, after in zip(spans, [*spans[1:], []], strict=True):
            for (block, width), (number, (first, count)) in product(chunks, enumerate(parts)):
                if number < len(after) and block == chunks[-1 if number else 0][0]:
                    yield statistics(*after[number])
                load = "p", (parts[0], block), float(width * PARAMETER_BEATS)
                fuse = count * width + STAGGERED_PASS_CYCLES
                store = float(count * width * stored)
                yield PipelineTile((*loads(first, count), load), 0.0, fuse, store, 1 + stored)

    held = ceil_div(rows, part) - 1 + s.x_buffers
    count = ceil_div(total, rows) * ceil_div(rows, part) * (1 + len(chunks))
    period = ceil_div(rows, part) * (1 + len(chunks))
    buffers = {"x": held, "p": s.param_buffers}
    return TilePipeline(tiles(), count, buffers, 1, s.y_buffers, period=period)


#: Bits that the squared sum of a row may lose at most.
_MAX_DROPPED = 32
#: Largest deviation in steps of x, and bits of a deviation, of a narrowed deviation, and of the result of the first
#: root.
_MAX_DEVIATION, _WIDE, _NARROW, _AMPLITUDE = 255, 30, 17, 16
#: Bits dropped from the squares of the second root.
_SQUARE = 4
_EDGE = (1 << _NARROW) - 1
#: First of the two lanes of a row of statistics that contain the reciprocal root of the variance.
_ROOT = 1
#: Accumulator rows for the statistics of a row if deviations are those from an integer: the sum and the root, the
#: integer, the sum of deviations, its scaled value that is squared, and the three summands of the sum of squares. No
#: command waits for another one that writes to other lanes of the same rows.
_MEAN_PLANES = 7
#: Number of commands that compute the variance from the sums with these deviations.
_MEAN_COMMANDS = 6

_Fields = dict[str, int | BufferRef]


@dataclass
class _Part:
    """Rows of a tile in the scratchpad.

    Parameters
    ----------
    start, rows : int
        First row, and number of rows.
    image : dict
        FUSE fields that select the elements.
    stats : BufferRef
        Address of the statistics of the rows.
    source : dict
        FUSE fields that compute the normalized elements; empty before the statistics are complete.
    y : BufferRef or None
        Address of the results that are stored together.
    """

    start: int
    rows: int
    image: _Fields
    stats: BufferRef
    source: _Fields = field(default_factory=dict)
    y: BufferRef | None = None


class NormSteps:
    """Code generator of a normalization; a tile consists of some rows.

    If the parameters exceed the slots, they are loaded in chunks of channels, each of which is used for all rows of a
    tile. These rows stay in the scratchpad meanwhile, with their statistics in the accumulator. They are loaded, and
    the passes over them computed, in parts.
    """

    def __init__(self, context: CodegenContext, layer: NormLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.x, self.y = context.layouts[layer.x], context.layouts[layer.y]
        self.total, self.columns = self.x.h * self.x.w, self.x.c
        self.blocks = ceil_div(self.columns, self.n)
        self.rows = min(context.schedule.rows, self.total)
        name, schedule, by_deviations = layer.name, context.schedule, layer.unit is None
        #: Blocks whose parameters are loaded together.
        self.chunk = min(self.blocks, schedule.param_blocks, _chunk(self.blocks, context.config))
        whole = by_deviations or self.chunk == self.blocks
        #: Rows of a part of a tile.
        self.part = self.rows if whole else min(schedule.rows_per_load, self.rows)
        parts = ceil_div(self.rows, self.part)
        size = self.part * self.columns
        count = parts - 1 + row_buffers(schedule, ceil_div(self.total, self.part) - parts + 1)
        self.tiles = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.x", size + self.n, count), self._load
        )
        #: Columns of the results that are stored together: whole rows, so that stores do not delay the parameters, or
        #: those of a chunk.
        self.width = self.columns if parts == 1 else min(self.chunk * self.n, self.columns)
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", self.part * self.width, schedule.y_buffers)
        #: Sum of a row in lane 0 and its reciprocal root in the lanes from _ROOT on.
        self.stats = BufferRotation(
            BufferMemory.ACC,
            f"{name}.rows",
            self.part * layer.planes,
            1 if by_deviations else STATISTICS_BUFFERS + parts - 1,
        )
        if by_deviations:
            #: Accumulator rows per row of the tensor: one for each block and one for epsilon.
            self.pitch = self.blocks + 1
            self.wide, self.narrow = (
                BufferRotation(BufferMemory.ACC, f"{name}.{each}", self.rows * self.pitch, 1)
                for each in ("wide", "narrow")
            )
        self.source = context.constant(
            f"{name}.parameters", param_image(self.n, layer.bias, layer.mult, layer.exponent)
        )
        depth = min(ceil_div(self.blocks, self.chunk), schedule.param_buffers)
        self.p = TileBuffers(CircularBuffer(BufferMemory.SLOT, f"{name}.p", self.chunk, depth), self._load_p)
        if layer.unit is None:
            self._scales()

    def _scales(self) -> None:
        """Choose the fixed-point formats of deviations and squares."""
        layer, columns = self.layer, self.columns
        share = math.sqrt(columns * layer.epsilon / self.n)
        unit = columns if layer.centred else 1
        room = (1 << _WIDE) / (unit * max(_MAX_DEVIATION, share))
        self.shift = max(math.floor(math.log2(room)), 0)
        #: Fixed-point representation of a deviation of one step, and of epsilon.
        self.unit = unit << self.shift
        self.epsilon = min(round(self.unit * share), (1 << _WIDE) - 1)
        most = _MAX_DEVIATION / 2 if layer.centred else _MAX_DEVIATION
        lost = _WIDE - _NARROW
        squares = columns * (self.unit * most / 2**lost) ** 2 + self.n * (self.epsilon / 2**lost) ** 2
        #: Number of bits dropped from the squares of the first root, which is even because the root loses half as many.
        self.rough = max(math.ceil((math.log2(squares) - _WIDE) / 2), 0) * 2

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        start, rows = key  # type: ignore[misc]
        lines = self._lines(self.x, rows, self.columns, "dst_y")
        source = self._row(self.x, start)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, **lines)]

    def _load_p(self, key: Hashable, address: BufferRef) -> list[Command]:
        assert isinstance(key, int)
        block, slot = 9 * self.n, 16 * self.n
        return [
            self.context.command(
                Unit.LOAD,
                word=Space.PARAM,
                dram=BufferRef(self.source, 0, key * block),
                dst=BufferRef(address.buffer, address.index, address.offset, slot),
                len=block,
                y_count=min(self.chunk, self.blocks - key),
                dram_y=block,
                dst_y=slot,
            )
        ]

    def _lines(self, layout: TensorLayout, rows: int, width: int, pitch: str) -> dict[str, int]:
        """Return the fields of a transfer of `width` elements of some rows, which are adjacent in the scratchpad."""
        if layout.pixel == width:
            return {"len": rows * width}
        return {"len": width, "y_count": rows, "dram_y": layout.pixel, pitch: width}

    @staticmethod
    def _row(layout: TensorLayout, row: int) -> BufferRef:
        return layout.address(*divmod(row, layout.w))

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles.

        The passes that compute the statistics of a tile are between the last passes over the previous one, so that no
        pass waits for the end of the pass before it: the first part of a tile after the first results, and the others
        when the rows of the previous tile are no longer needed.
        """
        tiles = [
            [(start + first, count) for first, count in pieces(rows, self.part)]
            for start, rows in pieces(self.total, self.rows)
        ]
        chunks = list(pieces(self.blocks, self.chunk))
        out = [TileStep()]
        ready: list[_Part] = []
        for part in tiles[0]:
            if ready:
                out.append(TileStep())
                self._second_pass(out[-1], ready[-1])
            ready.append(self._first_pass(out[-1], *part))
        for after in [*tiles[1:], []]:
            current, ready = ready, []
            last = current[-1]
            for chunk, (number, part) in product(chunks, enumerate(current)):
                if len(out) > 1 or len(tiles) > 1 or chunk is not chunks[0]:
                    out.append(TileStep())
                if not last.source and (last is current[-1] or self.layer.unit is not None):
                    self._second_pass(out[-1], last)
                if number < len(after) and chunk is chunks[-1 if number else 0]:
                    last = self._first_pass(out[-1], *after[number])
                    ready.append(last)
                self._results(out[-1], part, *chunk)
        return out

    def _first_pass(self, step: TileStep, start: int, rows: int) -> "_Part":
        """Add the load and the first pass of a part to a step."""
        x, pitch = self._row(self.x, start), self.x.pixel
        if not self.x.on_chip:
            x, pitch = self.tiles.get((start, rows), step), self.columns
        image: _Fields = {"a_base": x, "a_u": pitch, "zp_ab": halves_word(self.layer.x_zp, 0)}
        stats = self.stats.next()
        if self.layer.unit is not None:
            first = (
                self._row_sums(image, stats) if self.layer.centred else self._root_of_squares(image, stats)
            )
            self._add(step, rows, first)
        return _Part(start, rows, image, stats)

    def _second_pass(self, step: TileStep, part: "_Part") -> None:
        """Add the passes of a part between the first and the last one to a step."""
        if self.layer.unit is None:
            part.source = self._by_deviations(step, part.rows, part.image, part.stats)
            return
        if self.layer.by_mean:
            for fields in self._root_by_mean(part.image, part.stats):
                self._add(step, part.rows, fields)
        elif self.layer.centred:
            self._add(step, part.rows, self._root_of_variance(part.image, part.stats))
        part.source = self._normalized(part.image, part.stats)

    def _results(self, step: TileStep, part: "_Part", first: int, count: int) -> None:
        """Add the pass that converts `count` blocks of normalized elements from block `first` to results, and their
        store.
        """
        layer, n, last = self.layer, self.n, first + count == self.blocks
        column = first * n
        start = column // self.width * self.width
        target = self._row(self.y, part.start).plus(start)
        width = min(self.width, self.columns - start)
        if self.y.on_chip:
            part.y, pitch = target, self.y.pixel
        else:
            part.y, pitch = part.y if column > start else self.out.next(), width
        assert part.y is not None
        base, block = part.source["a_base"], part.source["a_v"]
        assert isinstance(base, BufferRef) and isinstance(block, int)
        fields: _Fields = {
            "a_base": base.plus(first * block),
            "x_count": count,
            "v_x": 1,
            "p_base": self.p.get(first, step),
            "p_x": 1,
            "stage": FUSE_STAGE.pack(
                post=Post.SLOT,
                post_rounding=Rounding.EVEN,
                d_dst=1,
                d_dtype=layer.shapes[layer.y].dtype,
                tail_dim=FUSE_DIMS.index("x"),
            ),
            "post_zp": layer.y_zp,
            "post_lo": layer.clip[0],
            "post_hi": layer.clip[1],
            "d_base": part.y.plus(column - start),
            "d_x": n,
            "d_y": pitch,
        }
        self._add(step, part.rows, part.source | fields | ({} if last else {"lanes_tail": n}))
        if not self.y.on_chip and (last or self.width < self.columns):
            lines = self._lines(self.y, part.rows, width, "src_y")
            step.stores.append(self.context.command(Unit.STORE, dram=target, src=part.y, **lines))

    def _add(self, step: TileStep, rows: int, fields: _Fields) -> None:
        """Add a pass over `rows` rows to a step."""
        word = {"lanes_tail": (self.columns - 1) % self.n + 1} | fields
        step.fuse.append(self.context.command(Unit.FUSE, **word, y_count=rows, u_y=1))

    def _image_source(self) -> dict[str, int]:
        """Return the parts of the source word that select x as operand A."""
        return {"a_src": 1, "a_dtype": self.layer.shapes[self.layer.x].dtype}

    def _row_sums(self, image: _Fields, stats: BufferRef) -> _Fields:
        """Return the pass that writes the sum of each row, shifted so that its square need not be."""
        scale = self.layer.scale
        return (
            image
            | self._across(0)
            | {"src": FUSE_SRC.pack(**self._image_source()), "a_v": self.n, "d_base": stats, "d_y": 1}
            | {"post_mult": scale.factor << scale.widened, "post_shift": 31, "stage": self._sum(Post.SCALE)}
        )

    def _root_of_variance(self, image: _Fields, stats: BufferRef) -> _Fields:
        """Return the pass that writes the reciprocal root of the variance of each row."""
        layer, scale = self.layer, self.layer.scale
        mult, shift = quantize_multiplier(scale.unit)
        dropped = scale.dropped + 2 * scale.widened
        source = FUSE_SRC.pack(**self._image_source(), op=Op.SQUARE, b_src=BSource.ACC, d_lane=_ROOT)
        return (
            image
            | self._across(0)
            | {"src": source, "a_v": self.n, "b_base": stats, "b_y": 1, "d_base": stats, "d_y": 1}
            | {"post_mult": mult, "root_shifts": bytes_word(shift, 31 - dropped)}
            | {"post_zp": round(scale.unit * self.columns * layer.epsilon), "post_shift": layer.power}
            | {"stage": self._sum(Post.VAR_RSQRT, post_rounding=Rounding.SINGLE)}
        )

    def _root_by_mean(self, image: _Fields, stats: BufferRef) -> list[_Fields]:
        """Return the passes that write the reciprocal root of the variance of each row, from the sum s and the squares.

        With m, the integer next to the mean of C columns, and e = C * m - s, the sum of the squared deviations from m
        is sum(x^2) - C * m^2 + 2 * m * e, and that of the deviations is -e.
        """
        layer, columns = self.layer, self.columns
        planes = [stats.plus(number * self.part) for number in range(_MEAN_PLANES)]
        _, mean, deviation, squared, *summands = planes
        mult, shift = quantize_multiplier(1 / columns)
        root, exponent, square = layer.scale.root_scale()
        unit, unit_shift = quantize_multiplier(layer.scale.unit)
        step = {"a_u": 1, "b_y": 1, "d_y": 1}
        of_sum: _Fields = {**step, "a_base": stats, "lanes": 1, "lanes_tail": 1}
        of_mean = of_sum | {"a_base": mean}
        imm = {"requant": Requant.IMM, "rounding": Rounding.SINGLE}
        from_sum = of_mean | {"src": FUSE_SRC.pack(b_src=BSource.ACC, op=Op.MUL_SUB), "b_base": stats}
        from_sum |= {"mult": columns}
        scaled = FUSE_STAGE.pack(post=Post.SCALE, post_rounding=Rounding.SINGLE)
        return [
            of_sum | {"src": FUSE_SRC.pack(**imm), "mult": mult, "shifts": bytes_word(shift), "d_base": mean},
            image
            | self._across(0)
            | {"src": FUSE_SRC.pack(**self._image_source(), op=Op.SQUARE), "a_v": self.n}
            | {"d_base": summands[2], "d_y": 1, "stage": self._sum(Post.NONE)},
            from_sum | {"d_base": deviation},
            from_sum | {"d_base": squared, "stage": scaled, "post_mult": root, "post_shift": exponent},
            of_mean
            | {"src": FUSE_SRC.pack(**imm, op=Op.SQUARE), "mult": -columns, "shifts": bytes_word(31)}
            | {"d_base": summands[1]},
            of_mean
            | {"src": FUSE_SRC.pack(**imm, op=Op.MUL, b_src=BSource.ACC), "b_base": deviation}
            | {"mult": 2, "shifts": bytes_word(31), "d_base": summands[0]},
            of_sum
            | {"src": FUSE_SRC.pack(b_src=BSource.ACC, d_lane=_ROOT), "b_base": squared}
            | {"a_base": summands[0], "wx_count": len(summands), "v_wx": 1, "a_v": self.part}
            | {"post_mult": unit, "root_shifts": bytes_word(unit_shift, square), "d_base": stats}
            | {"post_zp": round(layer.scale.unit * columns * layer.epsilon), "post_shift": layer.power}
            | {"stage": self._sum(Post.VAR_RSQRT, post_rounding=Rounding.SINGLE)},
        ]

    def _root_of_squares(self, image: _Fields, stats: BufferRef) -> _Fields:
        """Return the pass that writes the reciprocal root of the mean square of each row."""
        layer, unit = self.layer, self.layer.scale.unit
        return (
            image
            | self._across(0)
            | {
                "src": FUSE_SRC.pack(**self._image_source(), op=Op.SQUARE, requant=Requant.IMM, d_lane=_ROOT),
                "a_v": self.n,
                "mult": int(unit),
                "shifts": bytes_word(31),
                "d_base": stats,
                "d_y": 1,
                "post_bias": round(unit * self.columns * layer.epsilon),
                "post_shift": layer.power,
                "stage": self._sum(Post.RSQRT),
            }
        )

    def _normalized(self, image: _Fields, stats: BufferRef) -> _Fields:
        """Return the fields that multiply elements, or the deviations from the mean, by the reciprocal root."""
        layer = self.layer
        deviation = {"op": Op.MUL_SUB, "b_bcast": 1} if layer.centred else {}
        source = FUSE_SRC.pack(
            **self._image_source(),
            **deviation,
            b_src=BSource.ACC,
            requant=Requant.ROW,
            rq_lane=_ROOT,
            rounding=Rounding.SINGLE,
        )
        image = image | {"src": source, "a_v": self.n, "b_base": stats, "b_y": 1}
        scale = layer.scale
        return image | ({"mult": self.columns * scale.factor << scale.widened} if layer.centred else {})

    def _by_deviations(self, step: TileStep, rows: int, image: _Fields, stats: BufferRef) -> _Fields:
        """Add the passes that compute the variance from deviations, which are scaled twice, to a step; return the
        fields that multiply the narrowed deviations by the reciprocal root.
        """
        layer, n = self.layer, self.n
        wide, narrow = self.wide.next(), self.narrow.next()
        row: _Fields = {"b_base": stats, "b_y": 1}
        image = image | {"a_v": n}
        source = self._image_source()
        all_wide, all_narrow = self._block(wide, 0), self._block(narrow, 0)
        narrowed: _Fields = {"clip_lo": -_EDGE, "clip_hi": _EDGE}
        to_acc = {"stage": FUSE_STAGE.pack(tail_dim=FUSE_DIMS.index("x"))}
        scaled = FUSE_SRC.pack(b_src=BSource.ACC, requant=Requant.ROW, rounding=Rounding.EVEN)
        centre: list[_Fields] = [
            image
            | self._across(0)
            | {"src": FUSE_SRC.pack(**source), "d_base": stats, "d_y": 1}
            | {"post_mult": 1 << self.shift, "post_shift": 31, "stage": self._sum(Post.SCALE)}
        ]
        less: list[_Fields] = [
            self._block(wide, 1)
            | row
            | self._along(0)
            | self._to(wide, 1)
            | to_acc
            | {"src": FUSE_SRC.pack(b_src=BSource.ACC, b_bcast=1, op=Op.SUB)}
        ]
        passes = [
            *(centre if layer.centred else []),
            image
            | self._along(0)
            | self._to(wide, 1)
            | to_acc
            | {
                "src": FUSE_SRC.pack(**source, requant=Requant.IMM),
                "mult": self.unit,
                "shifts": bytes_word(31),
            },
            *(less if layer.centred else []),
            image
            | self._to(wide, 0)
            | {"src": FUSE_SRC.pack(**source, requant=Requant.IMM), "zp": self.epsilon, "lanes_tail": n},
            all_wide
            | self._along(1)
            | self._to(narrow, 0)
            | narrowed
            | to_acc
            | {
                "src": FUSE_SRC.pack(requant=Requant.IMM, rounding=Rounding.EVEN),
                "mult": 1,
                "shifts": bytes_word(31 - _WIDE + _NARROW),
            },
            all_narrow | self._root(stats, self.rough, 0, _AMPLITUDE - _WIDE + _NARROW - self.rough // 2),
            all_wide | row | self._along(1) | self._to(narrow, 0) | narrowed | to_acc | {"src": scaled},
            all_narrow | self._root(stats, _SQUARE, _ROOT + 1, layer.power),
        ]
        for fields in passes:
            self._add(step, rows, fields)
        return (
            self._block(narrow, 1)
            | row
            | {
                "src": FUSE_SRC.pack(
                    b_src=BSource.ACC, requant=Requant.ROW, rq_lane=_ROOT + 1, rounding=Rounding.SINGLE
                )
            }
        )

    def _along(self, more: int) -> _Fields:
        """Return the fields of a walk in which each block of a row is a separate point."""
        return {"x_count": self.blocks + more, "v_x": 1}

    def _across(self, more: int) -> _Fields:
        """Return the fields of a walk in which all blocks of a row are the window of one point."""
        return {"wx_count": self.blocks + more, "v_wx": 1}

    def _block(self, acc: BufferRef, first: int) -> _Fields:
        """Return the fields of operand A in the accumulator, starting at block `first`."""
        return {"a_base": acc.plus(first), "a_u": self.pitch, "a_v": 1}

    def _to(self, acc: BufferRef, first: int) -> _Fields:
        """Return the fields of results in the accumulator, starting at block `first`."""
        return {"d_base": acc.plus(first), "d_y": self.pitch, "d_x": 1}

    @staticmethod
    def _sum(post: Post, **parts: int) -> int:
        return FUSE_STAGE.pack(
            reduce=Reduce.SUM, lane_reduce=Reduce.SUM, post=post, tail_dim=FUSE_DIMS.index("wx"), **parts
        )

    def _root(self, stats: BufferRef, lost: int, lane: int, shift: int) -> _Fields:
        """Return the fields of a pass that writes the reciprocal square root of the sum of squares to two lanes."""
        return self._across(1) | {
            "src": FUSE_SRC.pack(op=Op.SQUARE, d_lane=lane),
            "op_shift": lost,
            "post_shift": shift,
            "d_base": stats,
            "d_y": 1,
            "stage": self._sum(Post.RSQRT),
        }


def norm_steps(context: CodegenContext, layer: NormLayer) -> list[TileStep]:
    """Generate the steps of a normalization."""
    return NormSteps(context, layer).steps()


KIND = LayerKind(
    name="norm",
    layer=NormLayer,
    lowerings={
        **dict.fromkeys(("layer_norm", "rms_norm"), Lowering(lower_norm, ElementTypes((BYTES, None), BYTES))),
    },
    tilings=norm_tilings,
    tile_model=norm_tile_model,
    steps=norm_steps,
)
