"""Softmax over a dimension before others: a lane is a row of the softmax, and nothing is transposed.

Maxima and sums of exponentials are those of rows of the tensor, lane by lane, and the reciprocals of N sums are
computed together (docs/compiler.md, "Softmax over other dimensions than the last one"). A softmax over two elements is
a function of their difference.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compiler.commands.tile_buffers import (
    pieces,
)
from compiler.ir.graph import Node
from compiler.ir.tensor import Tensor
from compiler.kernel_library.reduce import softmax_exponentials
from compiler.layers.lowering_context import EIGHT_BITS
from compiler.layers.tile_pipeline import STAGGERED_PASS_CYCLES, TilePipeline, even_tiles
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings, stream_cycles
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import quantize_multiplier
from compiler.util.tiles import ceil_div, cuts
from hw.config import MlaConfig

if TYPE_CHECKING:
    from compiler.layers.softmax import SoftmaxLayer

#: Elements of a row over which a softmax over the columns of an image is computed, and fewest channels of the image;
#: other rows are transposed. Longer rows would need a more accurate reciprocal.
_ACROSS_ELEMENTS, _ACROSS_CHANNELS = range(2, 513), 16
#: Bits of reciprocals for the products of FUSE, whose operands have 18 bits with a sign, and fraction of their factors.
RECIPROCAL_BITS = 16
#: Bits by which a reciprocal becomes the multiplier of the results.
MULTIPLIER_BITS = 14
#: Bits of the part of a sum that FUSE multiplies directly.
FACTOR_BITS = 18
#: Buffers of a softmax over columns: input, maxima, reciprocals on their way through DRAM, and parameter slots. The
#: elements and the maxima of a tile are needed until those of the next tile but one have been computed.
_ACROSS_BUFFERS, MAXIMA, IN_TRANSIT, SLOTS = 4, 3, 3, 2
#: Accumulator rows per N rows of the softmax for the sums and their reciprocals.
WORK_ROWS = 6


def across_columns(node: Node, x: Tensor, y: Tensor) -> bool:
    """Return True if a softmax that is not over the last dimension is computed without transposing its operand."""
    axis = node.attributes["axis"] % len(x.shape)
    return (
        node.op == "softmax"
        and axis < len(x.shape) - 1
        and {x.dtype, y.dtype} <= set(EIGHT_BITS)
        and x.shape[axis] in _ACROSS_ELEMENTS
        and math.prod(x.shape[axis + 1 :]) >= _ACROSS_CHANNELS
    )


def across_fits(config: MlaConfig, columns: int) -> bool:
    """Return True if a machine has the memory for a softmax over columns."""
    least = (_ACROSS_BUFFERS + 2) * columns * config.n
    return (
        config.table_slots > GUESS and 2 * least <= config.sp_bytes and config.acc_rows >= MAXIMA + WORK_ROWS
    )


@dataclass(frozen=True)
class Reciprocals:
    """Reciprocals of the sums of exponentials, several at a time: a table, iterations, and a correction.

    A sum is a multiple of 2**low, which is the smallest one, by a factor of 1 to `ratio`. The table and the iterations
    approximate 2**RECIPROCAL_BITS divided by this factor. With the relative error e of a reciprocal, the first
    iteration multiplies it by 1 + e + e**2, and others (Newton's) by 1 + e, so that e**3 or e**2 remains. The
    correction, by 1 + e, uses all bits of the sum.

    Parameters
    ----------
    low : int
        Binary logarithm of the smallest sum.
    ratio : int
        Upper bound of the largest sum in relation to the smallest one.
    """

    low: int
    ratio: int

    @property
    def factor_bits(self) -> int:
        """Number of fractional bits of the factors, so that the largest one has one bit less than operands can have."""
        return int(math.log2(((1 << FACTOR_BITS - 1) - 1) / self.ratio))

    @property
    def index_scale(self) -> float:
        """Factor by which a sum becomes an index of the table."""
        return 255 / (self.ratio << self.low)

    def _ends(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the smallest and the largest factor of each index of the table."""
        at = np.arange(256)
        limits = [np.clip((at + side) * self.ratio / 255, 1, self.ratio) for side in (-0.5, 0.5)]
        return limits[0], limits[1]

    @cached_property
    def table(self) -> NDArray[np.int16]:
        """Halves of the approximate reciprocals, by index."""
        first, last = self._ends()
        return np.minimum((1 << RECIPROCAL_BITS) / (first + last), (1 << 15) - 1).astype(np.int16)

    @cached_property
    def iterations(self) -> int:
        """Number of iterations until the error of every reciprocal is below a unit, and the correction fits int32."""
        first, last = self._ends()
        error, count = float(((last - first) / (last + first)).max()) ** 3, 1
        while error > self.ratio / (2 << RECIPROCAL_BITS):
            error, count = error * error, count + 1
        return count

    @property
    def commands(self) -> int:
        """Number of FUSE commands that compute reciprocals, each of which waits for the previous one."""
        return 5 + 2 * self.iterations

    @property
    def cycles(self) -> int:
        """FUSE cycles of N reciprocals: two for each product of two rows of the accumulator, four for a row of int32 in
        the scratchpad, and one for each of the other commands.
        """
        return 3 + 2 * (2 * self.iterations + 4) + 1 + 4

    @property
    def dropped(self) -> int:
        """Number of bits that a sum loses."""
        return 0


#: Bits of a sum within a segment of the table of `SeriesReciprocals`.
SEGMENT_BITS = 18
#: Largest ratio of sums for which the relative deviation in a segment is at most 2**-5, and its fourth power 2**-20.
_MAX_SERIES_RATIO = 15


@dataclass(frozen=True)
class SeriesReciprocals:
    """Reciprocals of the sums of exponentials, several at a time: a wide table of 256 entries, and a power series.

    A sum s is rounded to i * 2**SEGMENT_BITS, where i is the index of the table. The difference is the low bits of the
    sum as a signed number, the only ones of an operand that FUSE multiplies. With their product e with the reciprocal
    of the rounded sum, 1 / s is this reciprocal times 1 - e + e**2 - e**3, so that e**4 is lost.

    Parameters
    ----------
    sums : Reciprocals
        Range of the sums, which lose `dropped` bits, so that the largest index is below 256.
    """

    sums: Reciprocals

    @property
    def dropped(self) -> int:
        """Number of bits that a sum loses."""
        largest = 255 << SEGMENT_BITS
        return max(math.ceil(math.log2((self.sums.ratio << self.sums.low) / largest)), 0)

    @property
    def low(self) -> int:
        """Binary logarithm of the smallest sum."""
        return self.sums.low - self.dropped

    @property
    def table(self) -> NDArray[np.int16]:
        """Reciprocals by index, as halves of a wide table."""
        bits = RECIPROCAL_BITS + MULTIPLIER_BITS + self.low - SEGMENT_BITS
        index = np.maximum(np.arange(256), 1 << self.low - SEGMENT_BITS)
        exact = np.rint(2.0**bits / index).astype(np.int64)
        return np.stack([exact & 0xFFFF, exact >> 16]).astype(np.uint16).view(np.int16).reshape(-1)

    @property
    def commands(self) -> int:
        """Number of FUSE commands that compute reciprocals, each of which waits for the previous one."""
        return 8

    @property
    def cycles(self) -> int:
        """FUSE cycles of N reciprocals: one for each of four commands, two for each of three products of two rows of
        the accumulator, and four for a row of int32 in the scratchpad.
        """
        return 4 + 2 * 3 + 4


#: Largest number of elements of a row whose relative deviations in a segment, at most 2**-6, need no cube.
_MAX_SQUARE_COLUMNS = 8
#: Bits by which products of two operands of 18 bits are shifted to 32 bits or less.
PRODUCT_SHIFT = 4
#: Distances of reciprocals from the rounded ones that are tried, so that their factors are almost integers.
_TRIED = 24
#: Largest operands of products: 1 minus a deviation, the factor 1, and the reciprocal of the smallest sum, which is
#: less than the factor, so that next reciprocals have factors with other fractions.
ONE_OPERAND, _FACTOR_OPERAND, _RECIPROCAL_OPERAND = (
    part * (1 << FACTOR_BITS - 1) for part in (0.96, 0.97, 0.76)
)


@dataclass(frozen=True)
class SquareReciprocals:
    """Reciprocals of the sums of exponentials of few elements: a wide table of 256 entries, and a square.

    Sums are multiplied by a factor, so that the largest one is 255 * 2**SEGMENT_BITS. They are rounded to i *
    2**SEGMENT_BITS, where i is the index of the table, as for `SeriesReciprocals`. An entry has the reciprocal of the
    rounded sum in its low 18 bits, the operand of products, and a correction of the factor 1 above. With the product e
    of the low bits of the sum and this reciprocal, 1 / s is the reciprocal times 1 - e * (1 - e), where e**3 is lost.
    For the precision of this difference, FUSE multiplies the reciprocal by the corrected 1, and by what is subtracted
    from it, which is in smaller units, and adds both products.

    Parameters
    ----------
    columns : int
        Elements of a row, which is the ratio of the largest and the smallest sum.
    part : float
        Fraction of the result's scale by which the reciprocals are divided, in the interval (1/2, 1].
    """

    columns: int
    part: float

    @property
    def first(self) -> float:
        """Smallest sum, in segments."""
        return 255 / self.columns

    @property
    def _deviation(self) -> float:
        return 0.5 / round(self.first)

    @property
    def shift(self) -> int:
        """Bits by which the products of low bits and reciprocals are shifted, so that deviations have 17 bits."""
        largest = (1 << SEGMENT_BITS) * self.first * _RECIPROCAL_OPERAND * self._deviation
        return math.ceil(math.log2(largest / (0.98 * (1 << FACTOR_BITS - 1))))

    @property
    def one(self) -> float:
        """Unit of the deviations."""
        return _RECIPROCAL_OPERAND * self.first * 2.0 ** (SEGMENT_BITS - self.shift)

    @property
    def _least(self) -> float:
        """Upper bound of what is subtracted from 1, minus that of what is added."""
        return 2.1 * self._deviation + self._deviation**2 + 1e-4

    @property
    def _subtracted_one(self) -> float:
        """Unit of the numbers that are subtracted from 1, which are positive and have 17 bits."""
        return ((1 << FACTOR_BITS - 1) - 8) / self._least

    @property
    def product_factor(self) -> float:
        """Factor of the products of deviations and 1 - e, by which they have the unit of what is subtracted."""
        return self._subtracted_one * (1 << PRODUCT_SHIFT) / (self.one * ONE_OPERAND)

    @property
    def offset(self) -> int:
        """Number that is also subtracted, so that the whole is positive."""
        return round(self._least / 2 * self._subtracted_one)

    @property
    def _unit(self) -> float:
        """Unit of the factors of reciprocals."""
        return _FACTOR_OPERAND / (1 + self._least / 2)

    @property
    def factor(self) -> int:
        """Factor of reciprocals before its correction and subtraction."""
        return round(_FACTOR_OPERAND)

    @property
    def multiplier_bits(self) -> int:
        """Binary logarithm of the multiplier of the smallest sum, multiplied by `part`."""
        return 30 - (self.part != 1)

    @property
    def scales(self) -> tuple[float, float]:
        """Factors of both products, of which the multipliers are the sum."""
        one = self.part * _RECIPROCAL_OPERAND * self._unit
        whole = 2.0**self.multiplier_bits * (1 << PRODUCT_SHIFT) / one
        return whole, whole * self._unit / self._subtracted_one

    @cached_property
    def table(self) -> NDArray[np.int16]:
        """Reciprocals and corrections by index, as halves of a wide table.

        Of the reciprocals next to the exact ones, those are selected whose factors are nearest to integers.
        """
        index = np.maximum(np.arange(256), round(self.first))
        # The slope in a segment is that of the cubic function of the deviation, up to half a segment.
        slope = 1 + 3 / 32 / index**2
        near = (
            np.rint(_RECIPROCAL_OPERAND * self.first / index * slope)
            + np.arange(-_TRIED, _TRIED + 1)[:, None]
        )
        low = np.linspace(-(1 << SEGMENT_BITS - 1), 1 << SEGMENT_BITS - 1, 33)[:, None, None]
        error = low * near / 2.0**self.shift / self.one
        wanted = _RECIPROCAL_OPERAND * self.first / (index + low / (1 << SEGMENT_BITS)) / near
        deviation = (wanted - (1 - error + error**2)) * self._unit + (_FACTOR_OPERAND - self.factor)
        corrected = np.rint((deviation.max(0) + deviation.min(0)) / 2)
        best = (np.abs(deviation - corrected).max(0) * near).argmin(0), np.arange(256)
        entries = (corrected[best].astype(np.int64) << FACTOR_BITS) + near[best].astype(np.int64)
        return np.stack([entries & 0xFFFF, entries >> 16]).astype(np.uint16).view(np.int16).reshape(-1)

    @property
    def commands(self) -> int:
        """Number of FUSE commands that compute reciprocals, of which each but one waits for the previous one."""
        return _FEW_GAPS

    @property
    def cycles(self) -> int:
        """FUSE cycles of N reciprocals: one for each of three commands, two for each of two products of two rows of the
        accumulator, and four for a row of int32 in the scratchpad.
        """
        return 3 + 2 * 2 + 4


#: Index of the table of approximate reciprocals, after those of the exponentials.
GUESS = 2


def few_columns(layer: "SoftmaxLayer") -> bool:
    """Return True if `SquareReciprocals` are accurate enough for the columns and the result's scale."""
    return layer.shapes[layer.x].w <= _MAX_SQUARE_COLUMNS and layer.step >= 1 / 256


def across_reciprocals(
    layer: "SoftmaxLayer",
) -> tuple[Reciprocals | SeriesReciprocals | SquareReciprocals, tuple[int, int], int]:
    """Return the reciprocals, multiplier and exponent of the sums, and the exponent of the results.

    If a table and a square do not suffice, the sums are multiplied by half the fraction of the result's scale, so that
    they have 30 bits.
    """
    columns, bits = layer.shapes[layer.x].w, math.ceil(math.log2(layer.step))
    part = layer.step / 2.0**bits
    unit = int(softmax_exponentials(layer.scale, columns)[0]).bit_length() - 1
    if few_columns(layer):
        square = SquareReciprocals(columns, part)
        factor = quantize_multiplier(square.first * 2.0 ** (SEGMENT_BITS - unit))
        return square, factor, 31 - square.multiplier_bits - unit - bits
    whole = part == 1
    sums = Reciprocals(unit - 2 + whole, columns << (not whole))
    exponent = 31 - (RECIPROCAL_BITS + sums.low + MULTIPLIER_BITS) - (bits + 1)
    found = SeriesReciprocals(sums) if sums.ratio <= _MAX_SERIES_RATIO else sums
    return found, (round(part * (1 << 30)), -found.dropped), exponent


def _across_row_cycles(layer: "SoftmaxLayer") -> int:
    """Return the FUSE cycles of N rows of a softmax over columns."""
    return layer.passes * layer.shapes[layer.x].w + across_reciprocals(layer)[0].cycles


#: Divisor of the rows of the first and of the last tile of a softmax over few columns.
_SHORT = 2


@dataclass(frozen=True)
class AcrossTiling:
    """Division of the rows of a softmax over columns into tiles: some images, or some channels of an image.

    Parameters
    ----------
    images, channels : int
        Number of images, and their channels.
    n : int
        Number of lanes.
    rows : int
        Maximum number of rows of N channels of a tile.
    short : bool
        True if the first and the last tile are shorter, for which nothing else is computed meanwhile.
    """

    images: int
    channels: int
    n: int
    rows: int
    short: bool = False

    @property
    def of_image(self) -> int:
        """Rows of N channels of an image."""
        return ceil_div(self.channels, self.n)

    @property
    def size(self) -> tuple[int, int]:
        """Images and channels of a tile."""
        if self.rows >= self.of_image:
            return min(self.rows // self.of_image, self.images), self.channels
        return 1, ceil_div(self.of_image, ceil_div(self.of_image, self.rows)) * self.n

    def tiles(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the first image and channel, and the number of images and channels, of each tile."""
        images, channels = self.size
        end = ceil_div(self.rows, _SHORT) * self.n
        short = self.short and self.channels > 2 * channels
        for image, count in pieces(self.images, images):
            first = end if short and image == 0 else 0
            last = end if short and image == self.images - 1 else 0
            whole = self.channels - first - last
            # The last tile has the incomplete row of channels.
            spans = [(0, first), *pieces(whole, channels), (whole, last)]
            for at, (start, width) in enumerate(spans):
                if width:
                    yield image, start + first * (at > 0), count, width


def across_tiling(layer: "SoftmaxLayer", n: int, rows: int) -> AcrossTiling:
    """Return the tiles of a layer, which have at most `rows` rows of N channels."""
    x = layer.shapes[layer.x]
    return AcrossTiling(x.h, x.c, n, rows, x.w != PAIR and few_columns(layer))


def across_tilings(context: TilingContext, layer: "SoftmaxLayer") -> Tilings:
    """Yield the tilings of a softmax over columns."""
    config, x = context.config, layer.shapes[layer.x]
    if x.w == PAIR:
        yield from _pair_tilings(context, layer)
        return
    if few_columns(layer):
        yield from _few_tilings(context, layer)
        return
    total = across_tiling(layer, config.n, 1).of_image * x.h
    moved = _ACROSS_BUFFERS * (not context.x_on_chip) + 2 * (not context.y_on_chip)
    limit = min(config.param_slots, context.acc_rows // (MAXIMA + WORK_ROWS))
    for rows in cuts(total):
        images, channels = across_tiling(layer, config.n, rows).size
        size = images * x.w * channels + config.n
        used = moved * size + 2 * 4 * rows * config.n
        if rows <= limit and used <= context.free:
            tiles = ceil_div(total, rows)
            work = total * _across_row_cycles(layer) + tiles * STAGGERED_PASS_CYCLES * _across_commands(layer)
            yield (
                work + 2 * rows * x.w,
                LayerSchedule(rows=rows, x_buffers=_ACROSS_BUFFERS, on_chip=context.y_on_chip),
            )


#: Elements of a row of which the softmax is a function of their difference, and FUSE cycles of N such rows: two for the
#: differences, and two for each element. Numbers of commands of a tile, and of tiles of differences.
PAIR, _PAIR_CYCLES, _PAIR_COMMANDS, DIFFERENCES = 2, 6, 5, 2


def _pair_tilings(context: TilingContext, layer: "SoftmaxLayer") -> Tilings:
    """Yield the tilings of a softmax over two columns."""
    config, x = context.config, layer.shapes[layer.x]
    total = across_tiling(layer, config.n, 1).of_image * x.h
    for rows in cuts(total):
        images, channels = across_tiling(layer, config.n, rows).size
        for buffers in _PAIR_BUFFERS:
            size = images * x.w * channels + config.n
            used = size * (buffers * (not context.x_on_chip) + 2 * (not context.y_on_chip))
            if rows * DIFFERENCES > context.acc_rows or used > context.free:
                continue
            work = rows * _PAIR_CYCLES * config.fuse_rate + _PAIR_COMMANDS * STAGGERED_PASS_CYCLES
            load, store = (
                0.0 if here else float(rows * x.w) for here in (context.x_on_chip, context.y_on_chip)
            )
            yield (
                stream_cycles(
                    context, ceil_div(total, rows), load, work / config.fuse_rate, store, buffers - 1
                ),
                LayerSchedule(rows=rows, x_buffers=buffers, on_chip=context.y_on_chip),
            )
            break


#: Numbers of buffers of the input of a softmax over two columns; the first pass over a tile precedes the others over
#: the tile before.
_PAIR_BUFFERS = (4, 3, 2)


#: FUSE commands of a tile of a softmax over few columns, those that wait for the one before, and cycles that they wait;
#: cycles from one command to the next one.
_FEW_COMMANDS, _FEW_GAPS, _FEW_GAP_CYCLES, _SWITCH_CYCLES = 11, 5, 75, 6


#: Parts of the maxima of a tile of a softmax over few columns.
MAXIMA_PARTS = 2


#: Cycles until the multipliers of a tile have passed through DRAM.
ROUND_TRIP = 400


def few_passes(layer: "SoftmaxLayer", *, paired: bool) -> int:
    """Return the FUSE cycles of N maxima of few columns; MATRIX subtracts the elements of pairs."""
    columns = layer.shapes[layer.x].w
    return ceil_div(columns, 2) if paired else columns


def _few_cycles(layer: "SoftmaxLayer", rows: int, *, paired: bool) -> float:
    """Return the FUSE cycles of a tile of `rows` rows of N channels of a softmax over few columns."""
    columns = layer.shapes[layer.x].w
    others = few_passes(layer, paired=paired) + columns
    # Halves of the maxima of the next tile and of the results of the one before, and the factors 1, fill the gaps.
    maxima, results = (rows * each / 2 for each in (others - columns, columns))
    gaps = sum(max(_FEW_GAP_CYCLES - each, 0) for each in (maxima, maxima, rows, results, results))
    work = rows * (others + columns + across_reciprocals(layer)[0].cycles) + _FEW_COMMANDS * _SWITCH_CYCLES
    # The multipliers pass through DRAM while the commands before the first results are computed.
    return work + gaps + max(ROUND_TRIP - rows * (others + _FEW_GAPS), 0)


def _few_tilings(context: TilingContext, layer: "SoftmaxLayer") -> Tilings:
    """Yield the tilings of a softmax over few columns."""
    config, x = context.config, layer.shapes[layer.x]
    paired = context.alone and not context.x_on_chip
    total = across_tiling(layer, config.n, 1).of_image * x.h
    held = MAXIMA + WORK_ROWS + 2 * few_passes(layer, paired=True) * paired
    for rows in cuts(total):
        images, channels = across_tiling(layer, config.n, rows).size
        size = images * x.w * channels + config.n
        moved = _ACROSS_BUFFERS * (not context.x_on_chip) + 2 * (not context.y_on_chip)
        used = moved * size + 2 * 4 * rows * config.n + 2 * config.n
        if rows > min(config.param_slots, context.acc_rows // held) or used > context.free:
            continue
        tiles = ceil_div(total, rows)
        cycles = tiles * _few_cycles(layer, rows, paired=paired) * config.fuse_rate + 2 * rows * x.w
        yield cycles, LayerSchedule(rows=rows, x_buffers=_ACROSS_BUFFERS, on_chip=context.y_on_chip)


def _across_commands(layer: "SoftmaxLayer") -> int:
    """Return the number of FUSE commands of a tile, without the parts of the maxima."""
    return layer.passes + 3 + across_reciprocals(layer)[0].commands


def across_tile_model(layer: "SoftmaxLayer", s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a softmax over columns."""
    x, n = layer.shapes[layer.x], context.config.n
    tiling = across_tiling(layer, n, s.rows)
    images, channels = tiling.size
    beats = [0.0 if here else float(x.w) for here in (context.x_on_chip, context.y_on_chip)]
    if x.w == PAIR:
        return even_tiles(
            s,
            tiling.of_image * x.h,
            images * ceil_div(channels, n),
            lambda start, count: [("x", start, count * beats[0])] if beats[0] else [],
            lambda count: count * _PAIR_CYCLES + _PAIR_COMMANDS * STAGGERED_PASS_CYCLES,
            lambda count: count * beats[1],
            _PAIR_COMMANDS,
            PAIR,
        )
    commands, of_row = _across_commands(layer), _across_row_cycles(layer)
    if few_columns(layer):
        paired = not s.interleave and not context.x_on_chip
        return even_tiles(
            s,
            tiling.of_image * x.h,
            images * ceil_div(channels, n),
            lambda start, count: [("x", start, count * (beats[0] + 4))],
            lambda count: _few_cycles(layer, count, paired=paired),
            lambda count: count * (beats[1] + 4),
            _FEW_COMMANDS + paired,
            GUESS + 2,
        )
    # Reciprocals of four bytes are stored and loaded.
    return even_tiles(
        s,
        tiling.of_image * x.h,
        images * ceil_div(channels, n),
        lambda start, count: [("x", start, count * (beats[0] + 4))],
        lambda count: count * of_row + commands * STAGGERED_PASS_CYCLES,
        lambda count: count * (beats[1] + 4),
        commands,
        GUESS + 1,
    )
