"""Pooling over windows of an image, and depthwise convolutions on FUSE."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.commands.tile_buffers import (
    window_runs,
)
from compiler.ir.graph import Node
from compiler.ir.identity import identity
from compiler.ir.tensor import Tensor
from compiler.layers.base import Drain, Layer
from compiler.layers.depthwise import MAX_STRIDE, DepthwiseLayer, stream_of
from compiler.layers.layer_kind import BYTES
from compiler.layers.lowering_context import (
    LoweringContext,
    UnsupportedLoweringError,
    affine,
    clip_range,
    same_quantization,
)
from compiler.layers.reduce import lower_global_average, lower_global_maximum, reciprocal, scaled
from compiler.layers.tile_pipeline import PipelineTile, TilePipeline, line_beats, lines
from compiler.layers.tiling_context import (
    MAX_SUM_BUFFERS,
    LayerContext,
    TilingContext,
    Tilings,
    images,
    input_rows,
    stream_cycles,
    strip_images,
    strip_widths,
    sum_buffers,
)
from compiler.schedule.schedule import ALL_COLUMNS, LayerSchedule
from compiler.util.tiles import ceil_div, cuts
from hw.config import MlaConfig
from hw.isa.enums import DTYPE_BYTES, Dtype, Rounding

#: Element types of operands and results, which are equal.
POOLED_TYPES = (*BYTES, "int16")
#: Number of strip widths that fit, beginning with the largest, from which the best is chosen.
_FITTING_WIDTHS = 4
#: Cycles from the last point of a pass to the first point that reads its results.
_PASS_LATENCY = 60
#: Minimum number of pixels of an image whose average is computed as a reduction, which begins when a part is loaded.
_MIN_REDUCED = 65
#: Maximum ratio of the cycles with maxima of pairs of pixels to those without.
_MAX_PAIRED = 0.9
#: Cycles of a layer of which some rows are computed with pairs, in addition to those of FUSE and MATRIX.
_MIXED_CYCLES = 100
#: Maximum ratio of the cycles with columns of windows that MATRIX separates to those without.
_MAX_SELECTED = 0.9
#: The same ratio to the cycles with pairs, which are underestimated more. With it, the faster of both is chosen for
#: 112x112x6, 96x96x7, 96x96x8 and 96x96x9 (RTL n16, latency 100).
_MAX_SELECTED_TO_PAIRED = 1.02
#: Rows of windows of a tile from which the cycles of such a layer, or of one with pairs, are estimated.
_SELECTED_ROWS, _PAIRED_ROWS = 16, 8
#: Maximum ratio of the cycles with image rows of int16 that MATRIX adds to those without, and rows of windows of a tile
#: from which they are estimated.
_MAX_SHARED, _SHARED_ROWS = 0.9, 8
#: Maximum number of kinds of windows by their elements inside the image, each of which needs separate commands.
_MAX_COUNTS = 64
#: Maximum number of int16 elements whose sum is divided exactly by a multiplication.
_MAX_EXACT_COUNT = 128


def _inside_counts(low: LoweringContext) -> list[int]:
    """Return the number of elements inside the image for each kind of windows: those of a run of rows and columns."""
    a, (_, *sizes, _), (_, *outputs, _) = low.anchor.attributes, low.x.shape, low.y.shape
    runs = [window_runs(*v) for v in zip(sizes, a["kernel"], a["strides"], a["pads"], outputs, strict=False)]
    return [rows[2] * columns[2] for rows, columns in product(*runs)]


def _few(counts: list[int]) -> bool:
    """Return True if all windows have elements inside the image, and separate commands may compute each kind."""
    return len(counts) <= _MAX_COUNTS and min(counts) >= 1


@dataclass(frozen=True)
class ColumnSelection:
    """Products with matrices of 0 and 1 that separate the columns of windows of two columns, without padding.

    An image row is read as consecutive bytes, in blocks of 2N bytes, which MATRIX multiplies in wide mode. The elements
    of the first columns of all windows, and those of the second columns, become two sequences of rows of N sums. Row i
    of a sequence depends on block i, and, if its first or last element is not in block i, on block i - 1 (first
    columns) or i + 1 (second columns). The matrices of row i are those of row i + `period`.

    Parameters
    ----------
    n : int
        Lanes of the machine.
    channels : int
        Channels of the image, at most 2N.
    """

    n: int
    channels: int

    @property
    def period(self) -> int:
        """Number of rows of sums with different matrices."""
        return self.channels // math.gcd(self.channels, self.n)

    @property
    def tiles(self) -> int:
        """Number of matrices."""
        return 4 * self.period - 2

    def rows(self, windows: int) -> int:
        """Return the rows of sums of one column of `windows` windows."""
        return ceil_div(windows * self.channels, self.n)

    def pitch(self, windows: int, columns: int) -> int:
        """Return the distance of image rows of `columns` pixels in bytes, a multiple of 2N.

        A row includes the block after those of the windows, which the last row of sums may depend on.
        """
        block, rows = 2 * self.n, self.rows(windows)
        return max(ceil_div(columns * self.channels, block), rows + (rows % self.period > 0)) * block

    def matrices(self) -> NDArray[np.uint8]:
        """Return all matrices as pairs of int4: of block i for the first columns of the rows of a period, and for the
        second columns; then of block i - 1 for the first columns, and of block i + 1 for the second columns.
        """
        n, period = self.n, self.period
        window, channel = np.divmod(np.arange(period * n), self.channels)
        own, other = [], []
        for column in range(2):
            # Blocks i - 1, i and i + 1 of a row of sums are bytes 0 .. 6N - 1.
            matrices = np.zeros((period, 6 * n, n), np.uint8)
            row, lane = np.divmod(np.arange(period * n), n)
            source = (2 * window + column) * self.channels + channel - 2 * n * (row - 1)
            matrices[row, source, lane] = 1
            before, middle, after = np.split(matrices, 3, axis=1)
            own.append(middle)
            other.append(after[:-1] if column else before[1:])
        every = np.concatenate([*own, *other])
        return (every[:, :n] | every[:, n:] << 4).astype(np.uint8)

    def products(self, windows: int) -> Iterator[dict[str, int]]:
        """Yield the products of an image row: fields of MATRIX, with addresses relative to those of the row.

        The first sum of the second columns is `column` = 1 times the distance of both sequences after `acc_base`.
        """
        n, period = self.n, self.period
        whole, rest = divmod(self.rows(windows), period)
        runs = (range(rest), whole + 1), (range(rest, period), whole)
        for (run, groups), column in product(runs, range(2)):
            other = range(max(run.start, 1 - column), min(run.stop, period - column))
            first = 2 * period + column * period - 1
            for rows, block, matrix in ((run, 0, column * period), (other, 2 * column - 1, first)):
                if groups and rows:
                    yield {
                        "column": column,
                        "accumulate": abs(block),
                        "a_base": 2 * n * (rows.start + block),
                        "w_base": n * n * (matrix + rows.start),
                        "acc_base": rows.start,
                        "oc_count": len(rows),
                        "x_count": groups,
                    }

    def passes(self, windows: int, rows: int) -> int:
        """Return the cycles of MATRIX for `rows` image rows."""
        each = self.products(windows) if rows else ()
        return sum(part["oc_count"] * max(part["x_count"] * rows, self.n) for part in each)


class SelectedRows(NamedTuple):
    """Rows of windows of a tile whose columns MATRIX separates, with the cycles of FUSE and of MATRIX.

    FUSE combines the image rows of the first `combined` windows of a column, and MATRIX multiplies the results. For the
    other windows, MATRIX multiplies the image rows, and FUSE combines the sums.
    """

    combined: int
    fuse: int
    matrix: int


def image_height(rows: int, kernel: int, stride: int) -> int:
    """Return the image rows that `rows` rows of windows cover."""
    return (rows - 1) * stride + kernel if rows else 0


@cache
def selected_rows(
    selection: ColumnSelection, kernel: int, stride: int, rows: int, windows: int
) -> SelectedRows:
    """Return how a tile of `rows` rows of `windows` windows is computed so that the busiest unit takes the least time.

    Parameters
    ----------
    kernel, stride : int
        Image rows of a window, and the distance of windows in image rows.
    """
    found = []
    for combined in range(rows + 1 if kernel > 1 else 1):
        others, sums = rows - combined, selection.rows(windows)
        flat = ceil_div(2 * windows * selection.channels, selection.n)
        fuse = combined * (kernel * flat + 2 * sums) + others * kernel * 2 * sums
        read = image_height(others, kernel, stride)
        matrix = selection.passes(windows, combined) + selection.passes(windows, read)
        found.append(SelectedRows(combined, fuse, matrix))
    return min(found, key=lambda each: (max(each.fuse, each.matrix), each.combined))


class PairedRows(NamedTuple):
    """Rows of windows of a tile that are computed with pairs, and the cycles of FUSE and of MATRIX for the tile."""

    rows: int
    fuse: int
    matrix: int


class SharedSums(NamedTuple):
    """Rows of windows of a tile whose image rows MATRIX adds, and the cycles of FUSE and of MATRIX for the tile."""

    rows: int
    fuse: int
    matrix: int


class WindowMethod(Enum):
    """Ways in which FUSE combines the elements of windows."""

    #: One element of each channel of a block per cycle.
    DIRECT = "direct"
    #: For maxima, the rows of each window for whole lines of the image, then the columns.
    ROWS_FIRST = "rows first"
    #: For maxima, two adjacent pixels per cycle: MATRIX subtracts each element from that of the pixel at its left.
    #: FUSE replaces negative differences by 0 and adds the element itself. If MATRIX would take longer than FUSE, the
    #: last rows of a tile are computed as DIRECT.
    PAIRS = "pairs"
    #: For maxima of windows of two columns that do not overlap, of images with few channels: MATRIX separates the first
    #: and the second columns of the windows, N elements of any pixels at a time; FUSE combines N elements per cycle.
    SELECTED = "selected"
    #: For averages of int16, the rows of each window for all columns of the image, whose sums are in the accumulator,
    #: then the columns: FUSE reads int16 in two cycles, and sums in one.
    SUMS_FIRST = "sums first"
    #: The same, but in some rows of a tile, MATRIX adds the rows of each window: the high bytes, then the low bytes.
    SUMS_SHARED = "sums shared"


@identity(
    "PoolLayer",
    "kernel",
    "strides",
    "pads",
    "average",
    "clip",
    "x_zp",
    "scaled",
    "weights",
    "drain",
    "w_zp",
    added=("weights", "drain", "w_zp"),
)
@dataclass(frozen=True, kw_only=True, eq=False)
class PoolLayer(Layer):
    """Maximum or average pooling, or a depthwise convolution that FUSE computes beside a product on MATRIX.

    Parameters
    ----------
    x_zp : int
        Zero point of the input, which is also the padding value; only used with `scaled` and `weights`.
    scaled : dict
        FUSE fields that multiply a sum by a factor, keyed by the number of averaged elements (all elements of the
        window, or those inside the image). If empty, sums are divided by the number of elements inside the image.
    weights : (kernel_h, kernel_w, channels) array or None
        Weights of a depthwise convolution; None for pooling.
    drain : Drain or None
        Requantization of the sums of a depthwise convolution, without table and summand.
    w_zp : int
        Zero point of the weights.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    average: bool
    clip: tuple[int, int]
    x_zp: int = 0
    scaled: dict[int, dict[str, int]] = field(default_factory=dict)
    weights: NDArray | None = None
    drain: Drain | None = None
    w_zp: int = 0

    def method(self, config: MlaConfig, *, in_dram: bool, alone: bool) -> WindowMethod:
        """Return how a machine combines the elements of windows.

        The input is in DRAM or on the chip. The layer is computed alone, or FUSE computes it while MATRIX is busy with
        other layers, so that pairs would take longer.

        Combining rows first takes fewer cycles unless few windows contain an element, or the image is small; averages
        would need wider intermediate sums. Pairs of an image on the chip, whose pixels MATRIX and FUSE read at the same
        time, are computed only if each pixel is in one half of a memory bank.
        """
        n = config.n
        if self.average and alone and in_dram and self._shares_sums(config):
            return WindowMethod.SUMS_SHARED
        if self.average and self._saved_by_sums(n) > _PASS_LATENCY:
            return WindowMethod.SUMS_FIRST
        if self.average or self.weights is not None:
            return WindowMethod.DIRECT
        if alone and in_dram and self._selected(config):
            return WindowMethod.SELECTED
        if alone and (in_dram or images(self)[0].c % n == 0) and self._paired(config):
            return WindowMethod.PAIRS
        return WindowMethod.ROWS_FIRST if self._saved_by_rows(n) > _PASS_LATENCY else WindowMethod.DIRECT

    def selection(self, config: MlaConfig) -> ColumnSelection:
        """Return the products by which MATRIX separates the columns of windows."""
        return ColumnSelection(config.n, self.shapes[self.x].c)

    def selected(self, config: MlaConfig, rows: int, windows: int) -> SelectedRows:
        """Return how a tile of `rows` rows of `windows` windows is computed if MATRIX separates the columns."""
        return selected_rows(self.selection(config), self.kernel[0], self.strides[0], rows, windows)

    def selected_sums(self, config: MlaConfig, rows: int, windows: int) -> int:
        """Return the rows of sums of the larger part of such a tile."""
        combined = self.selected(config, rows, windows).combined
        read = max(image_height(rows - combined, self.kernel[0], self.strides[0]), combined)
        return 2 * read * self.selection(config).rows(windows)

    def selected_height(self, config: MlaConfig, rows: int, windows: int) -> int:
        """Return the image rows of the larger part of such a tile."""
        combined = self.selected(config, rows, windows).combined
        return image_height(max(combined, rows - combined), self.kernel[0], self.strides[0])

    def _selected(self, config: MlaConfig) -> bool:
        """Return True if a machine takes the fewest cycles if MATRIX separates the columns of windows.

        The accumulator must have room for the sums of two tiles of one row of windows.
        """
        (x, y), (down, across), n = images(self), self.kernel, config.n
        inside = (y.h - 1) * self.strides[0] + down <= x.h and 2 * y.w <= x.w
        if not config.wide or (across, self.strides[1]) != (2, 2) or any(self.pads[:2]) or not inside:
            return False
        selection = self.selection(config)
        if x.c > n or DTYPE_BYTES[x.dtype] > 1 or 4 * down * selection.rows(y.w) > config.acc_rows:
            return False
        rows = _SELECTED_ROWS
        while rows > 1 and MAX_SUM_BUFFERS * self.selected_sums(config, rows, y.w) > config.acc_rows:
            rows -= 1
        tile = self.selected(config, rows, y.w)
        bus = ceil_div(x.h * x.w * x.c + y.h * y.w * x.c, n)
        found = bus, y.h * tile.fuse / rows, y.h * tile.matrix / rows
        if self._paired(config):
            pairs = self.pairs_of(config, rows, x.w, y.w, 1)
            most = _MAX_SELECTED_TO_PAIRED * max(y.h * max(pairs.fuse, pairs.matrix) / rows, bus)
        else:
            direct = y.h * y.w * down * across - max(self._saved_by_rows(n), 0)
            most = _MAX_SELECTED * max(direct, bus)
        return max(found) + selection.tiles * n < most

    def _saved_by_rows(self, n: int) -> int:
        """Return the FUSE cycles that are saved by taking the maximum of the rows first, then of the columns."""
        (x, y), (down, across) = images(self), self.kernel
        blocks = ceil_div(x.c, n)
        second = ceil_div(y.w * x.c, n) if self.contiguous(n) else y.w * blocks
        passes = ceil_div(x.w * x.c, n) * down + second * across
        return y.h * (y.w * blocks * down * across - passes)

    def _saved_by_sums(self, n: int) -> int:
        """Return the FUSE cycles that are saved by adding the rows first, then the sums of the columns; 0 for bytes."""
        (x, y), (down, across) = images(self), self.kernel
        size = DTYPE_BYTES[x.dtype]
        if not self._multiplies_sums():
            return 0
        return y.h * ceil_div(x.c, n) * (y.w * (down * size - 1) * across - x.w * down * size)

    def _multiplies_sums(self) -> bool:
        """Return True for an average of int16 whose sums are multiplied by reciprocals of the numbers of elements."""
        counts = self.counts
        if DTYPE_BYTES[self.shapes[self.x].dtype] == 1 or self.scaled or len(counts) > _MAX_COUNTS:
            return False
        return min(counts, default=0) >= 1 and max(counts) <= _MAX_EXACT_COUNT

    def shared_sums(self, rows: int, columns: int, windows: int, blocks: int) -> SharedSums:
        """Return how many rows of a tile MATRIX adds so that the busier unit takes the least time.

        Parameters
        ----------
        rows, windows : int
            Rows of windows of the tile, and windows of a row.
        columns, blocks : int
            Columns of the image, or of a strip, and blocks of channels.
        """
        (down, across), size = self.kernel, DTYPE_BYTES[self.shapes[self.x].dtype]
        row, rest = columns * blocks * down * size, rows * windows * blocks * across
        found = (SharedSums(many, rest + (rows - many) * row, many * row) for many in range(rows + 1))
        return min(found, key=lambda each: (max(each.fuse, each.matrix), each.rows))

    def _shares_sums(self, config: MlaConfig) -> bool:
        """Return True if a machine takes fewer cycles for an average of int16 if MATRIX adds some image rows.

        The accumulator must have room for the sums of two tiles of one row of windows in a narrow strip.
        """
        (x, y), (down, across), n = images(self), self.kernel, config.n
        strip = min(x.w, across + (n - 1) * self.strides[1])
        if not config.wide or not self._multiplies_sums() or 2 * strip > config.acc_rows:
            return False
        blocks, rows = ceil_div(x.c, n), min(y.h, _SHARED_ROWS)
        shared = self.shared_sums(rows, x.w, y.w, blocks)
        bus = ceil_div(2 * (x.h * x.w + y.h * y.w) * x.c, n)
        other = y.h * y.w * blocks * down * across * 2 - max(self._saved_by_sums(n), 0)
        return max(y.h * max(shared.fuse, shared.matrix) / rows, bus) < _MAX_SHARED * max(other, bus)

    @property
    def counts(self) -> list[int]:
        """Number of elements inside the image for each kind of windows."""
        x, y = images(self)
        runs = [
            window_runs(size, self.kernel[i], self.strides[i], self.pads[i], outputs)
            for i, (size, outputs) in enumerate(((x.h, y.h), (x.w, y.w)))
        ]
        return [rows[2] * columns[2] for rows, columns in product(*runs)]

    @property
    def pairs(self) -> range:
        """Second columns, in a window, of the pairs of adjacent columns that cover it.

        In windows of odd width, all columns but the first are second columns, because their distances are equal.
        """
        across = self.kernel[1]
        return range(1, across, 1 if across % 2 else 2)

    def _paired(self, config: MlaConfig) -> bool:
        """Return True if a machine takes the fewest cycles with maxima of pairs of adjacent pixels.

        The accumulator must have room for the differences of two tiles of one row of windows in a narrow strip.
        """
        (x, y), (down, across), n = images(self), self.kernel, config.n
        if DTYPE_BYTES[x.dtype] > 1 or not self._pairs_cover():
            return False
        strip = min(x.w, across + (n - 1) * self.strides[1])
        if 2 * min(x.h, down) * strip > config.acc_rows:
            return False
        blocks = ceil_div(x.c, n)
        rows = min(y.h, _PAIRED_ROWS)
        pairs = self.pairs_of(config, rows, x.w, y.w, blocks)
        direct = y.h * y.w * blocks * down * across - max(self._saved_by_rows(n), 0)
        bus = ceil_div(x.h * x.w * x.c + y.h * y.w * x.c, n)
        more = _MIXED_CYCLES if pairs.rows < rows else 0
        return max(y.h * max(pairs.matrix, pairs.fuse) / rows, bus) + more < _MAX_PAIRED * max(direct, bus)

    def pairs_as_pixels(self, config: MlaConfig) -> bool:
        """Return True if the pairs are windows of two columns whose channels are at most N together.

        MATRIX then computes a difference in one cycle, as a product of both pixels with a matrix of 1 and -1.
        """
        (x, y), two = images(self), (self.kernel[1], self.strides[1]) == (2, 2)
        return two and 2 * x.c <= config.n and self.pads[1] == 0 and 2 * y.w <= x.w

    def pairs_of(self, config: MlaConfig, rows: int, columns: int, windows: int, blocks: int) -> "PairedRows":
        """Return how many rows of a tile are computed with pairs so that the busiest unit takes the least time.

        Parameters
        ----------
        rows, windows : int
            Rows of windows of the tile, and windows of a row.
        columns, blocks : int
            Columns of the image, or of a strip, and blocks of channels.
        """
        (down, across), points = self.kernel, windows * blocks * self.kernel[0]
        array, fewer = (columns + 1) * blocks, across - len(self.pairs)
        if self.pairs_as_pixels(config):
            array = max(windows, config.n)

        def cycles(paired: int) -> PairedRows:
            height = image_height(paired, down, min(self.strides[0], down))
            return PairedRows(paired, points * (rows * across - paired * fewer), height * array)

        # The cycles of FUSE decrease with the number of rows, and those of MATRIX increase.
        step = max(min(self.strides[0], down) * array + fewer * points, 1)
        balanced = (points * rows * across - (down - min(self.strides[0], down)) * array) // step
        near = {min(max(each, 1), rows) for each in (balanced, balanced + 1)}
        return min(map(cycles, near), key=lambda each: (max(each.fuse, each.matrix), each.rows))

    def _pairs_cover(self) -> bool:
        """Return True if the pairs whose second pixel is inside the image cover the elements of all windows."""
        (x, y), across = images(self), self.kernel[1]
        for column in reversed(range(y.w)):
            inside = x.w + self.pads[1] - column * self.strides[1]  # from the first column of the window
            if inside >= across:
                break
            if inside < 2 or (across % 2 == 0 and inside % 2):
                return False
        return across > 1

    def held_pixel(self, lanes: int, n: int) -> int:
        """Return the distance of pixels of int16 of which MATRIX reads rows of 2N bytes."""
        return ceil_div(lanes, n) * n * DTYPE_BYTES[self.shapes[self.x].dtype]

    def contiguous(self, n: int) -> bool:
        """Return True if the columns of a row are combined as N consecutive elements of any pixels at a time.

        This saves cycles if the last block of channels is incomplete. The row between both passes then includes its
        padding, which is filled with the smallest byte.
        """
        x = self.shapes[self.x]
        return self.strides[1] == 1 and x.c % n > 0 and DTYPE_BYTES[x.dtype] == 1


def on_fuse(layer: DepthwiseLayer) -> PoolLayer | None:
    """Return a depthwise convolution as a layer that FUSE computes; None if its epilogue has more than one step.

    Weights with a correction have no such layer.

    FUSE multiplies an element of every channel of a block with its weight in each cycle, and adds the products of a
    window.
    """
    drain, x = layer.drain, layer.shapes[layer.x]
    simple = drain.table is None and drain.residual is None and not layer.counts and layer.correction is None
    if not simple or layer.dilations != (1, 1) or {x.dtype, drain.dtype} - {Dtype.I8, Dtype.U8}:
        return None
    common = {each.name: getattr(layer, each.name) for each in fields(Layer)}
    return PoolLayer(
        **common,
        kernel=(layer.weights.shape[0], layer.weights.shape[1]),
        strides=layer.strides,
        pads=layer.pads,
        average=False,
        clip=drain.clip,
        x_zp=layer.x_zp,
        weights=layer.weights,
        drain=drain,
        w_zp=layer.w_zp,
    )


def covers_image(node: Node, x: Tensor, y: Tensor) -> bool:
    """Return True for a pool with one window, the image `x`, that is lowered to a reduction.

    FUSE then begins when a part of the image is loaded. The image must be contiguous.
    """
    a = node.attributes
    if any(a["pads"]) or a["kernel"] != x.shape[1:3]:
        return False
    if node.op == "max_pool2d":
        return same_quantization(x, y)
    return math.prod(a["kernel"]) >= _MIN_REDUCED and "int16" not in (x.dtype, y.dtype)


def lower_pool(low: LoweringContext) -> Layer:
    """Lower a pooling operator; a maximum or average over a whole image becomes a reduction."""
    a, average = low.anchor.attributes, low.anchor.op == "avg_pool2d"
    types = {low.x.dtype, low.y.dtype}
    if "int16" in types and (len(types) > 1 or (average and low.rounding == "onnxruntime")):
        raise UnsupportedLoweringError(f"pooling of {low.x.dtype} to {low.y.dtype} in floating point")
    taps = a["kernel"][0] * a["kernel"][1]
    window = {
        "kernel": a["kernel"],
        "strides": a["strides"],
        "pads": a["pads"],
        "average": average,
        "batch": low.x.shape[0],
    }
    counted = a.get("count_pads", False) or not any(a["pads"])
    if covers_image(low.anchor, low.x, low.y):
        return lower_global_average(low) if average else lower_global_maximum(low)
    if average and taps <= 255 and low.rounding == "onnxruntime":
        counts = [taps] if counted else _inside_counts(low)
        if not _few(counts):
            raise UnsupportedLoweringError(
                f"an average whose windows reach beyond the image in {len(counts)} ways"
            )
        if sums := _sums_of_array(low, counts):
            return sums
        factors = {count: scaled(low, count)["fields"] for count in set(counts)}
        return PoolLayer(
            **low.common(), **window, clip=clip_range(low.y), x_zp=affine(low.x).zero_point, scaled=factors
        )
    if not average and same_quantization(low.x, low.y):
        limits = np.iinfo(low.y.dtype)
        return PoolLayer(**low.common(), **window, clip=(int(limits.min), int(limits.max)))
    if affine(low.x) != affine(low.y):
        raise UnsupportedLoweringError("input and output of pooling must have the same quantization")
    if average and ((a["count_pads"] and any(a["pads"])) or taps > 255):
        raise UnsupportedLoweringError(
            f"an average must not count padding and must be over at most 255 elements, here {taps}"
        )
    if average and _few(counts := _inside_counts(low)) and (sums := _sums_of_array(low, counts)):
        return sums
    return PoolLayer(**low.common(), **window, clip=clip_range(low.y))


def _sums_of_array(low: LoweringContext, counts: list[int]) -> DepthwiseLayer | None:
    """Lower an average to a depthwise convolution whose weights are 1; `counts` are the elements of the windows.

    LiteRT's kernels divide the sum of the stored integers; onnxruntime's result is a scaled sum of differences from
    the zero point. The result is None unless MATRIX adds the bytes of all windows in fewer cycles than FUSE, one
    element at a time.
    """
    a, channels, clip = low.anchor.attributes, low.x.shape[3], clip_range(low.y)
    if low.x.dtype not in BYTES or max(a["strides"]) > MAX_STRIDE:
        return None
    zero, result, rounding = 0, 0, Rounding.AWAY
    if low.rounding == "onnxruntime":
        zero, result, rounding = affine(low.x).zero_point, affine(low.y).zero_point, Rounding.EVEN
        fields = {count: scaled(low, count)["fields"] for count in set(counts)}
        factors = {count: (each["post_mult"], each["post_shift"]) for count, each in fields.items()}
    else:
        factors = {count: reciprocal(count) for count in set(counts)}
    mult, exponent = (np.full(channels, each, np.int64) for each in factors[max(counts)])
    drain = Drain(
        np.zeros(channels, np.int64),
        mult,
        exponent,
        result,
        clip,
        rounding,
        low.common()["shapes"][low.y.name].dtype,
    )
    layer = DepthwiseLayer(
        **low.common(),
        weights=np.ones((*a["kernel"], channels), np.int8),
        drain=drain,
        strides=a["strides"],
        pads=a["pads"],
        x_zp=zero,
        batch=low.x.shape[0],
        counts=factors if len(factors) > 1 else {},
    )
    (x, y), (down, _) = images(layer), a["strides"]
    stream = stream_of(low.config, layer, x.w, y.w, y.w)
    rows = sum((y.h - 1) * (down // each.step) + each.rows for each in stream.passes)
    return layer if rows * stream.pitch < y.h * y.w * math.prod(a["kernel"]) else None


#: Maximum number of rows and columns of a tile, whose coordinates have 16 bits with a sign.
_MAX_COORDINATE = 0x7FFF


def pool_tilings(context: TilingContext, layer: PoolLayer) -> Tilings:
    """Yield the tilings of a pooling layer that fit.

    Strips of columns are tried if nothing else fits, or if differences of pixels, which limit the rows of a tile, must
    fit the accumulator.
    """
    _, y = images(layer)
    widths = strip_widths(y.w, _MAX_COORDINATE // layer.strides[1], context.config.n)
    fitting, method = 0, layer.method(context.config, in_dram=not context.x_on_chip, alone=context.alone)
    for width in (ALL_COLUMNS, *widths):
        found = list(_tilings(context, layer, width))
        yield from found
        fitting += bool(found)
        limited = method in (WindowMethod.PAIRS, WindowMethod.SUMS_FIRST, WindowMethod.SUMS_SHARED)
        whole = found and width == ALL_COLUMNS and not limited
        if whole or fitting == _FITTING_WIDTHS:
            return


#: Numbers of buffers of the input that are tried.
_BUFFERS = (2, 3, 4)
#: Number of buffers for parts of tiles whose columns MATRIX separates: two tiles of two parts.
_SELECTED_BUFFERS = (4,)
#: Cycles of FUSE and MATRIX between the parts of such a tile, in addition to those of the commands.
_SELECTED_TILE = 40


def _fuse_cycles(
    layer: PoolLayer, method: WindowMethod, config: MlaConfig, rows: int, x_w: int, y_w: int, lanes: int
) -> int:
    """Return the FUSE cycles of a tile of `rows` output rows, for `lanes` channels.

    Parameters
    ----------
    x_w, y_w : int
        Columns of the input and of the output image, or of a strip.
    """
    (down, across), size, n = layer.kernel, DTYPE_BYTES[layer.shapes[layer.x].dtype], config.n
    if method == WindowMethod.SELECTED:
        return layer.selected(config, rows, y_w).fuse
    points = rows * y_w * ceil_div(lanes, n)
    if method == WindowMethod.PAIRS:
        return layer.pairs_of(config, rows, x_w, y_w, ceil_div(lanes, n)).fuse
    if method == WindowMethod.DIRECT:
        return points * down * across * size
    if method == WindowMethod.SUMS_SHARED:
        return layer.shared_sums(rows, x_w, y_w, ceil_div(lanes, n)).fuse
    if method == WindowMethod.SUMS_FIRST:
        return rows * x_w * ceil_div(lanes, n) * down * size + points * across
    second = rows * ceil_div(y_w * lanes, n) if layer.contiguous(n) else points
    first, second = rows * ceil_div(x_w * lanes, n) * down * size, second * across * size
    return first + second


def _matrix_cycles(
    layer: PoolLayer,
    method: WindowMethod,
    config: MlaConfig,
    rows: tuple[int, int],
    columns: tuple[int, int],
    lanes: int,
) -> int:
    """Return the cycles of MATRIX for a tile; 0 if there are none.

    Parameters
    ----------
    rows, columns : (int, int)
        Rows and columns of the input image, or of a strip, and of the output image.
    lanes : int
        Number of channels.
    """
    if method == WindowMethod.SELECTED:
        return layer.selected(config, rows[1], columns[1]).matrix
    if method == WindowMethod.PAIRS:
        return layer.pairs_of(config, rows[1], *columns, ceil_div(lanes, config.n)).matrix
    if method == WindowMethod.SUMS_SHARED:
        return layer.shared_sums(rows[1], *columns, ceil_div(lanes, config.n)).matrix
    return 0


def _sum_buffers(context: TilingContext, method: WindowMethod, sums: int) -> int:
    """Return the number of accumulator buffers for tiles of `sums` rows of sums; the default if there are none."""
    if method == WindowMethod.SELECTED:  # parts of two tiles
        return max(2, min(MAX_SUM_BUFFERS, context.acc_rows // sums))
    return sum_buffers(context, sums) if sums else LayerSchedule.acc_buffers


def _tilings(context: TilingContext, layer: PoolLayer, width: int) -> Tilings:
    """Yield the tilings with strips of `width` columns."""
    config, n, batch = context.config, context.config.n, layer.batch
    strips, x, y = strip_images(*images(layer), width, layer.strides[1], layer.kernel[1])
    if x.w + layer.kernel[1] > _MAX_COORDINATE:
        return
    blocks, size = ceil_div(x.c, n), DTYPE_BYTES[x.dtype]
    method = layer.method(context.config, in_dram=not context.x_on_chip, alone=context.alone)
    rows_first = method == WindowMethod.ROWS_FIRST
    for columns, rows in product(cuts(blocks), cuts(y.h)):
        if rows * layer.strides[0] + layer.kernel[0] > _MAX_COORDINATE:
            continue
        lanes = min(columns * n, x.c)
        high = input_rows(rows, layer.strides[0], layer.kernel[0], x.h)
        x_bytes = (high * x.w * lanes + n) * size
        image = lines(high * x.w, lanes * size, x.c * size, n)
        used = (rows * (x.w + layer.kernel[1]) * lanes + n) * size if rows_first else 0
        used *= 2 if x.c % lanes else 1
        sums = 0
        if method == WindowMethod.PAIRS:
            paired = layer.pairs_of(config, rows, x.w, y.w, ceil_div(lanes, n)).rows
            sums = input_rows(paired, layer.strides[0], layer.kernel[0], x.h) * ceil_div(lanes, n)
            sums *= y.w if layer.pairs_as_pixels(config) else x.w
        added = 0
        if method in (WindowMethod.SUMS_FIRST, WindowMethod.SUMS_SHARED):
            added = rows * x.w * ceil_div(lanes, n) * (1 + (method == WindowMethod.SUMS_SHARED))
        if method == WindowMethod.SUMS_SHARED:
            x_bytes = high * x.w * layer.held_pixel(lanes, n)
            used += 2 * n * n
        if method == WindowMethod.SELECTED:
            selection = layer.selection(config)
            pitch, sums = selection.pitch(y.w, x.w), layer.selected_sums(config, rows, y.w)
            x_bytes, image = (
                layer.selected_height(config, rows, y.w) * pitch,
                line_beats(high, x.w * x.c, (images(layer)[0].w * x.c,), n),
            )
            used += 2 * layer.selected(config, rows, y.w).combined * pitch + selection.tiles * n * n
        if max(2 * sums, added) > context.acc_rows:
            continue
        if layer.weights is not None:
            if columns > context.config.param_slots // 2:
                continue
            used += 2 * columns * layer.kernel[0] * layer.kernel[1] * n
        used += 0 if context.y_on_chip else 2 * rows * y.w * lanes * size
        load = 0.0 if context.x_on_chip else image
        store = 0.0 if context.y_on_chip else lines(rows * y.w, lanes * size, x.c * size, n)
        fuse = _fuse_cycles(layer, method, config, rows, x.w, y.w, lanes)
        fuse = max(fuse, _matrix_cycles(layer, method, config, (high, rows), (x.w, y.w), lanes))
        if (
            rows_first or added
        ) and fuse < 4 * _PASS_LATENCY:  # each of four commands waits for the one before the last
            fuse = 4 * _PASS_LATENCY
        if (rows_first or added) and rows == 1:  # nothing is computed meanwhile
            fuse += _PASS_LATENCY
        tiles = batch * strips * (x.c / lanes) * (y.h / rows)
        selected = method == WindowMethod.SELECTED
        if selected:
            fuse += _SELECTED_TILE
        for buffers in _SELECTED_BUFFERS if selected else _BUFFERS if load else _BUFFERS[:1]:
            if used + (buffers * x_bytes if load else 0) <= context.free:
                # The larger part of a tile has about half of its image rows.
                cycles = stream_cycles(context, tiles, load, fuse, store, buffers // (1 + selected))
                schedule = LayerSchedule(
                    rows=rows,
                    strip_width=width,
                    columns=columns,
                    x_buffers=buffers,
                    acc_buffers=_sum_buffers(context, method, sums),
                    on_chip=context.y_on_chip,
                )
                yield cycles, schedule if layer.weights is None else replace(schedule, param_blocks=columns)


def pool_tile_model(layer: PoolLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a pooling layer, with tiles of strips, output rows and channel blocks."""
    config, n, (whole_x, whole_y) = context.config, context.config.n, images(layer)
    strips, x, y = strip_images(whole_x, whole_y, s.strip_width, layer.strides[1], layer.kernel[1])
    blocks, size = ceil_div(x.c, n), DTYPE_BYTES[x.dtype]
    columns, rows = min(s.columns, blocks), min(s.rows, y.h)
    method = layer.method(context.config, in_dram=not context.x_on_chip, alone=not s.interleave)

    def beats(rows: int, w: int, width: int, whole: int, *, separate: bool = False) -> float:
        if separate:
            return line_beats(rows, w * x.c, (whole * x.c,), n)
        if strips > 1 and width == x.c:
            return lines(rows, w * width * size, whole * width * size, n)
        return lines(rows * w, width * size, x.c * size, n)

    def tiles() -> Iterator[PipelineTile]:
        for number in range(layer.batch * strips):
            for start in range(0, y.h, rows):
                for block in range(0, blocks, columns):
                    high, wide = min(rows, y.h - start), min(columns, blocks - block)
                    width = min(wide * n, x.c - block * n)
                    count = input_rows(high, layer.strides[0], layer.kernel[0], x.h)
                    image = beats(count, x.w, width, whole_x.w, separate=method == WindowMethod.SELECTED)
                    loads = () if context.x_on_chip else (("x", (number, start, block), image),)
                    store = 0.0 if context.y_on_chip else beats(high, y.w, width, whole_y.w)
                    fuse = _fuse_cycles(layer, method, config, high, x.w, y.w, width)
                    matrix = _matrix_cycles(layer, method, config, (count, high), (x.w, y.w), width)
                    yield PipelineTile(loads, matrix, fuse, store, 2 - context.y_on_chip + bool(matrix))

    count = layer.batch * strips * ceil_div(y.h, rows) * ceil_div(blocks, columns)
    return TilePipeline(tiles(), count, {"x": s.x_buffers}, s.acc_buffers, s.y_buffers)
