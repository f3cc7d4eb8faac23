"""Layer class of convolutions and dense operators, and their lowerings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import times_over
from compiler.ir.identity import identity
from compiler.layers.base import Drain, Layer
from compiler.layers.epilogue_lowering import (
    StoredWeights,
    drain_of,
    rounding_of,
    stored_weights,
    weights_of,
    zero_of,
)
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError, affine
from compiler.util.scaling import MAX_FACTOR_ERROR
from compiler.util.tiles import ceil_div
from cosim.semantics.packed_weights import packed_bytes
from cosim.semantics.sparse_weights import is_sparse
from hw.config import MlaConfig
from hw.isa.enums import Rounding

#: Share of the tiles of weights that are not zero above which tilings do not take the others into account.
_SPARSE = 0.9
#: Cycles for loading the instructions of an additional command of MATRIX.
_SPLIT_CYCLES = 12
#: Bytes of joined tiles, as shares of those of the tiles that they replace: pairs of int4, and two of four weights with
#: two bits each for their positions; cycles in which the latter enter the array, relative to an int8 tile.
_INT4_SHARE, _TWO_OF_FOUR_SHARE, _TWO_OF_FOUR_ENTRY = 1 / 2, 5 / 8, 5 / 4
#: Maximum share of the bytes of a buffer's loads that packed loads may read, and of the cycles of products without
#: tiles that are zero; above it, the change is not worthwhile.
WORTHWHILE = 0.97
#: Minimum number of bus beats that a changed load must save on average, since packed data arrive a few cycles later.
MIN_SAVED_BEATS = 6
#: Mean beats by which packed loads are longer because they are padded.
_PADDING_BEATS = 1
#: Maximum number of blocks of outputs whose packed size is computed, to estimate that of all.
_SAMPLED_BLOCKS = 8


class WeightWork(NamedTuple):
    """Work that the formats of weights need, relative to that of int8 weights without zeros.

    `density`: share of the tiles that are not skipped; `products`: share of the cycles of products; `stored`: share of
    the bytes before packing; `packed`: share of those that packing leaves; `entry`: factor of the cycles in which a
    tile enters the array.
    """

    density: float
    products: float
    stored: float
    packed: float
    entry: float

    def beats(self, rows: float, mean: float) -> float:
        """Return the bus beats of a load of `rows` rows of N int8 weights, if loads have `mean` rows on average."""
        stored = mean * self.stored
        packs = stored * (1 - self.packed) - _PADDING_BEATS >= MIN_SAVED_BEATS
        return rows * self.stored * (self.packed if packs else 1.0)


#: Work of int8 weights.
NO_FORMAT = WeightWork(1.0, 1.0, 1.0, 1.0, 1.0)


@identity(
    "ConvLayer",
    "weights",
    "drain",
    "strides",
    "pads",
    "dilations",
    "groups",
    "x_zp",
    "w_zp",
    "outputs_per_group",
    "factors",
    "correction",
    "planes",
    added=("outputs_per_group", "factors", "correction", "planes"),
)
@dataclass(frozen=True, kw_only=True, eq=False)
class ConvLayer(Layer):
    """Convolution, or matrix product with constant weights as a 1x1 convolution.

    Parameters
    ----------
    weights : (out_c, kernel_h, kernel_w, in_c of a group) array
        Weights as stored, int8 or uint8.
    drain : Drain
        Requantization and epilogue of the sums.
    strides, dilations : (int, int)
        Vertical and horizontal distance between output pixels, and between kernel elements, in input pixels.
    pads : (int, int, int, int)
        Padding at the top, left, bottom and right, in pixels.
    groups : int
        Number of channel groups.
    x_zp, w_zp : int
        Zero points of input and weights.
    outputs_per_group : int
        Number of output channels of each group except the last, which may have fewer, and whose inputs may then extend
        beyond the channels of the input, with weights equal to the zero point; 0 if all groups are equal.
    factors : (out_c, tiles) uint8 array or None
        Factors of the sums of each output, one for every N inputs; None: the sums are not multiplied. Only products
        have factors.
    correction : int8 array of the shape of `weights`, or None
        Second summands of weights that do not fit 8 bits, such as those with a zero point for each channel: products of
        the inputs with these are added to the sums. None: there are none.
    planes : bool
        True if the input is in DRAM in planes, one for each channel, which LOAD transposes to pixels.
    """

    weights: NDArray
    drain: Drain
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1
    x_zp: int = 0
    w_zp: int = 0
    outputs_per_group: int = 0
    factors: NDArray[np.uint8] | None = None
    correction: NDArray[np.int8] | None = None
    planes: bool = False

    @property
    def summands(self) -> tuple[tuple[NDArray, int], ...]:
        """Summands of the weights, each with its zero point."""
        first = self.weights, self.w_zp
        return (first,) if self.correction is None else (first, (self.correction, 0))

    def with_summands(self, summands: Sequence[NDArray]) -> "ConvLayer":
        """Return a layer with other summands of the weights, which have the same zero points."""
        weights, *correction = summands
        return replace(self, weights=weights, correction=correction[0] if correction else None)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input and, if there is a residual addition, of the other summand."""
        return (self.x, *([self.drain.residual.tensor] if self.drain.residual else []))

    @property
    def group_outputs(self) -> int:
        """Number of output channels of each group, except of a last group that has fewer."""
        return self.outputs_per_group or self.weights.shape[0] // self.groups

    def joins_tiles(self, config: MlaConfig) -> bool:
        """Return True if MATRIX can use wide or sparse mode, which join two tiles of the reduction dimension: all
        weights fit int4, or at most two of four are not 0, and they have no zero point.
        """
        return (
            self.w_zp == 0
            and self.correction is None
            and bool((config.wide and self._fits_int4) or (config.sparse and self._is_sparse))
        )

    def _correction_joins(self, config: MlaConfig) -> bool:
        """Return True if MATRIX can join tiles of the correction in sparse mode."""
        return bool(config.sparse) and self._is_correction_sparse

    def joins_any_tiles(self, config: MlaConfig) -> bool:
        """Return True if MATRIX can join tiles of the weights or of their correction."""
        return self.joins_tiles(config) or self._correction_joins(config)

    @cached_property
    def _fits_int4(self) -> bool:
        return bool(self.weights.min() >= -8 and self.weights.max() <= 7)

    @cached_property
    def _is_correction_sparse(self) -> bool:
        return self.correction is not None and is_sparse(self.correction)

    @cached_property
    def _is_sparse(self) -> bool:
        return is_sparse(self.weights)

    def stored_rows(self, inputs: int, n: int) -> int:
        """Return the rows of a block's weights for some inputs in memory; each tile has a row of factors, if any."""
        return inputs + (0 if self.factors is None else ceil_div(inputs, n))

    def density(self, n: int) -> float:
        """Return the share of the tiles of n x n weights that are not zero; 1 if too few are zero to be skipped."""
        return self._zero_tiles(n)[0]

    def _zero_tiles(self, n: int) -> tuple[float, int]:
        """Return the density, and the number of runs of tiles that are not zero in the order of the reduction.

        Both are of all summands of the weights.
        """
        known = self._densities
        if n not in known:
            known[n] = 1.0, 0
            if self.groups == 1 and (self.w_zp == 0 or self.correction is not None):
                out_c, *kernel, in_c = self.weights.shape
                blocks = ceil_div(out_c, n), ceil_div(in_c, n)
                count = len(self.summands)
                tiles = np.zeros((blocks[0] * n, count, *kernel, blocks[1] * n), np.bool_)
                for number, (weights, zero) in enumerate(self.summands):
                    tiles[:out_c, number, ..., :in_c] = True if zero else weights != 0
                nonzero = tiles.reshape(blocks[0], n, -1, blocks[1], n).any((1, 4)).reshape(blocks[0], -1)
                share = max(int(np.count_nonzero(nonzero)), 1) / nonzero.size
                if share < _SPARSE:
                    begins = nonzero[:, 1:] & ~nonzero[:, :-1]
                    known[n] = share, int(np.count_nonzero(begins) + np.count_nonzero(nonzero[:, 0]))
        return known[n]

    def weight_work(self, config: MlaConfig, *, depth: int, packed: bool) -> WeightWork:
        """Return the work that the formats of the weights need.

        Parameters
        ----------
        config : MlaConfig
            Configuration of the machine.
        depth : int
            Number of blocks of N inputs in a load. MATRIX joins pairs of tiles if it is even and the number of input
            channels is a multiple of 2N.
        packed : bool
            True if loads expand packed weights, and tiles of zeros are skipped (`LayerSchedule.packed_weights`).
        """
        joined = depth % 2 == 0 and self.weights.shape[-1] % (2 * config.n) == 0
        key = (config.n, config.packed_loads, config.wide, config.sparse, joined, packed)
        if key not in self._work:
            density, share, entry = self.density(config.n) if packed else 1.0, 1.0, 1.0
            products = stored = density
            if joined and self.joins_tiles(config):
                int4 = config.wide and self._fits_int4
                products, stored = density / 2, density * (_INT4_SHARE if int4 else _TWO_OF_FOUR_SHARE)
                entry = 1.0 if int4 else _TWO_OF_FOUR_ENTRY
            elif joined and self._correction_joins(config):  # half of the products, if its tiles are not zero
                products, stored = min(density, 3 / 4), min(density, (1 + _TWO_OF_FOUR_SHARE) / 2)
            elif packed and config.packed_loads:
                share = self._packed_share(config.n)
            self._work[key] = WeightWork(
                density, products, stored, share if share <= WORTHWHILE else 1.0, entry
            )
        return self._work[key]

    def _packed_share(self, n: int) -> float:
        """Return the bytes of packed weights as a share of all bytes, of a sample and without groups of zeros."""
        rows = np.concatenate([weights.reshape(len(weights), -1) for weights, _ in self.summands], axis=1)
        rows = rows[:, : rows.shape[1] // 2 * 2]
        blocks = range(0, len(rows) - n + 1, n * ceil_div(len(rows), n * _SAMPLED_BLOCKS))
        data = np.concatenate(
            [rows[first : first + n].T for first in blocks] or [np.zeros((0, n), rows.dtype)]
        )
        groups = np.ascontiguousarray(data).view(np.uint8).reshape(-1, 2 * n)
        groups = groups[groups.any(1)]
        return packed_bytes(groups.reshape(-1), n) / groups.size if groups.size else 1.0

    @cached_property
    def _work(self) -> dict[tuple, WeightWork]:
        return {}

    def split_cycles(self, n: int, times: int) -> float:
        """Return the cycles for loading the commands between which tiles of zeros are skipped.

        `times` is the number of tiles of rows for which each tile of weights is multiplied.
        """
        return _SPLIT_CYCLES * times * self._zero_tiles(n)[1]

    @cached_property
    def _densities(self) -> dict[int, tuple[float, int]]:
        return {}

    def groups_are_blocks(self, n: int) -> bool:
        """Return True if the outputs of each of several groups fit one block of `n` channels.

        The groups are then processed like the channel blocks of one convolution, each with its own range of inputs.
        """
        return self.groups > 1 and self.group_outputs <= n


def merge_stored(stored: StoredWeights, groups: int, n: int) -> dict[str, Any]:
    """Merge channel groups of weights and of their correction; parameters and result as of `merge_groups`."""
    merged = merge_groups(stored.data, groups, stored.zero, n) | {"w_zp": stored.zero}
    if stored.correction is not None:
        merged["correction"] = merge_groups(stored.correction, groups, 0, n)["weights"]
    return merged


def merge_groups(weights: NDArray, groups: int, zero: int, n: int) -> dict[str, Any]:
    """Merge channel groups into fewer groups that fill the array, with block-diagonal weights.

    An output of a merged group has weights without effect for the inputs of the other groups. This costs no cycles as
    long as inputs and outputs fit rows and columns of the array that would be empty otherwise.

    Parameters
    ----------
    weights : (out_c, kernel_h, kernel_w, in_c of a group) array
        Weights of the groups.
    groups : int
        Number of groups.
    zero : int
        Zero point of the weights.
    n : int
        Number of rows and columns of the array.

    Returns
    -------
    dict
        Fields `weights`, `groups` and `outputs_per_group` of a `ConvLayer`. Groups with more than `n` outputs are not
        merged.
    """
    out_c, *kernel, in_c = weights.shape
    outputs = out_c // groups
    counts = [
        count for count in range(1, min(n // outputs, groups) + 1) if groups % count == 0 or count * in_c <= n
    ]
    count = min(
        counts, key=lambda each: (ceil_div(groups, each) * ceil_div(each * in_c, n), -each), default=1
    )
    if count == 1:
        return {"weights": weights, "groups": groups}
    merged = np.full((groups, outputs, *kernel, count * in_c), zero, weights.dtype)
    split = weights.reshape(groups, outputs, *kernel, in_c)
    for position in range(count):
        merged[position::count, ..., position * in_c : (position + 1) * in_c] = split[position::count]
    return {
        "weights": merged.reshape(out_c, *kernel, count * in_c),
        "groups": ceil_div(groups, count),
        "outputs_per_group": count * outputs if groups % count else 0,
    }


#: Largest stride and dilation: a distance between pixels has 12 bits, signed.
_MAX_STEP = (1 << 11) - 1


def lower_conv(low: LoweringContext) -> Layer:
    """Lower a convolution with its epilogue.

    Raises
    ------
    UnsupportedLoweringError
        Weights are not constant, or a stride or a dilation exceeds the fields of MATRIX.
    """
    weights, bias = weights_of(low)
    assert weights.data is not None
    a = low.anchor.attributes
    if max(*a["strides"], *a["dilations"]) > _MAX_STEP:
        raise UnsupportedLoweringError(f"strides and dilations must be at most {_MAX_STEP:,}")
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.DOUBLE))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    y = common["shapes"][common["y"]]
    macs = y.h * y.w * weights.elements // times_over(low.graph, low.x.name)
    # Pointwise convolutions can treat the images of a batch as one.
    apart = weights.shape[1:3] != (1, 1) or a["strides"] != (1, 1) or any(a["pads"])
    return ConvLayer(
        **common,
        macs=macs,
        batch=low.x.shape[0] if apart else 1,
        **merge_stored(stored_weights(weights), a["groups"], low.config.n),
        drain=drain,
        strides=a["strides"],
        pads=a["pads"],
        dilations=a["dilations"],
        x_zp=affine(low.x).zero_point,
    )


def lower_dense(low: LoweringContext) -> Layer:
    """Lower a dense layer with its epilogue to a convolution with a 1x1 kernel."""
    weights, bias = weights_of(low)
    assert weights.data is not None
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.AWAY))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    rows = common["shapes"][common["x"]]
    macs = rows.h * rows.w * weights.elements // times_over(low.graph, low.x.name)
    stored = stored_weights(weights).map(lambda each: each[:, None, None, :])
    return ConvLayer(
        **common,
        macs=macs,
        weights=stored.data,
        correction=stored.correction,
        drain=drain,
        x_zp=affine(low.x).zero_point,
        w_zp=stored.zero,
    )


#: Largest magnitude of a 32-bit sum.
_MAX_SUM = (1 << 31) - 1


def lower_block_dense(low: LoweringContext) -> Layer:
    """Lower a dense layer whose weights have a factor for each block of inputs and output.

    Raises
    ------
    UnsupportedLoweringError
        The machine has no scaled sums, the blocks do not consist of whole tiles, the scales have not become factors, or
        sums may exceed 32 bits.
    """
    graph, n = low.graph, low.config.n
    _, weights, factors, *rest = graph.ins(low.anchor)
    bias = rest[0] if rest else None
    if weights.data is None or factors.data is None or (bias and bias.data is None):
        raise UnsupportedLoweringError("weights, factors and bias must be constants")
    block, inputs = low.anchor.attributes["block"], weights.shape[1]
    if not low.config.wide:
        raise UnsupportedLoweringError(
            "weights have scales for blocks, which the target cannot apply (wide is 0)"
        )
    if block % n and block < inputs:
        raise UnsupportedLoweringError(
            f"weights have scales for blocks of {block} inputs, not of a multiple of {n} as the target needs"
        )
    if factors.dtype != "uint8" or (bias is not None and bias.dtype != "int32"):
        raise UnsupportedLoweringError(
            "the scales for blocks of its weights differ too much for factors of 8 bits, whose rounding could change "
            f"results by more than {MAX_FACTOR_ERROR} steps (root mean square)"
        )
    zero, x = zero_of(weights), affine(low.x)
    wide = np.repeat(factors.data, min(block, inputs), 1)[:, :inputs]
    exact = (weights.data.astype(np.int32) - zero) * wide
    positive, negative = (np.maximum(each, 0).sum(1, dtype=np.int64) for each in (exact, -exact))
    limits = np.iinfo(low.x.dtype)
    below, above = x.zero_point - limits.min, limits.max - x.zero_point
    offset = 0 if bias is None or bias.data is None else bias.data.astype(np.int64)
    ends = positive * above + negative * below + offset, positive * below + negative * above - offset
    if np.maximum(*ends).max() > _MAX_SUM:
        raise UnsupportedLoweringError("sums of products with factors for blocks may exceed 32 bits")
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.AWAY))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    rows = common["shapes"][common["x"]]
    return ConvLayer(
        **common,
        macs=rows.h * rows.w * weights.elements // times_over(graph, low.x.name),
        weights=weights.data[:, None, None, :],
        factors=np.ascontiguousarray(wide[:, ::n]),
        drain=drain,
        x_zp=x.zero_point,
        w_zp=zero,
    )
