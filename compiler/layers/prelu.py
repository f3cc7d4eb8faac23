"""PReLU: a scaling whose multipliers for values below zero differ between channels.

FUSE converts a slope of a pixel to the multiplier of its values. Other slopes take two FUSE passes: the positive part
of x, and its sum with the product of the negative part and the slopes. MATRIX copies x to the accumulator, from which
both passes read it. If slopes have both signs, MATRIX subtracts the positive part from x, because the sign of a product
does not tell that of x.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import cast

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers
from compiler.ir.graph import Graph, Node
from compiler.ir.identity import identity
from compiler.ir.tensor import Tensor
from compiler.layers.base import Drain
from compiler.layers.elementwise import (
    Broadcast,
    ElementwiseLayer,
    RowMultiplier,
    broadcast_of,
    pixels_together,
)
from compiler.layers.elementwise_codegen import ElementwiseSteps
from compiler.layers.layer_kind import BYTES_TO_BYTES, LayerKind, Lowering
from compiler.layers.lowering_context import (
    DTYPES,
    LoweringContext,
    UnsupportedLoweringError,
    affine,
    clip_range,
    values_of,
)
from compiler.layers.tile_pipeline import STAGGERED_PASS_CYCLES, TilePipeline, even_tiles
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings, stream_cycles
from compiler.reference import Kernels, run_node
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import bytes_word, float32_ratio, halves_word, quantize_multiplier
from compiler.util.tiles import ceil_div, cuts
from cosim.semantics.fixed_point import scale
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, MATRIX_WORD
from hw.isa.enums import BSource, Dtype, Op, Requant, Rounding, Unit

_MAX_PART = (1 << 15) - 1


@identity(
    "PReluLayer",
    "slopes",
    "slope_dtype",
    "x_zp",
    "slope_zp",
    "y_zp",
    "positive",
    "negative",
    "rounding",
    "clip",
)
@dataclass(frozen=True, kw_only=True, eq=False)
class PReluLayer(ElementwiseLayer):
    """PReLU: the scaled positive part of x, plus the scaled product of the negative part of x and the slope.

    Parameters
    ----------
    slopes : (elements,) array
        Stored slope of each element, or of the elements after which they repeat, of type `slope_dtype`.
    x_zp, slope_zp, y_zp : int
        Zero points of input, slopes and output.
    positive, negative : (int, int)
        Multiplier and exponent of the two summands.
    rounding : Rounding
        Rounding mode of both scalings.
    clip : (int, int)
        Smallest and largest stored result.
    """

    slopes: NDArray
    slope_dtype: Dtype
    x_zp: int
    slope_zp: int
    y_zp: int
    positive: tuple[int, int]
    negative: tuple[int, int]
    rounding: Rounding
    clip: tuple[int, int]

    @cached_property
    def signs(self) -> tuple[bool, bool]:
        """True if slopes are negative, and if slopes are positive."""
        slopes = self.slopes.astype(np.int64) - self.slope_zp
        return bool((slopes < 0).any()), bool((slopes > 0).any())


#: Minimum number of pixels for each of which the slopes of more than the channels of x are the same: their parameter
#: slots, 16 bytes per slope, are otherwise longer than what a second pass takes.
_MIN_REPEATS = 24
#: Rounding modes in the order in which they are tried.
_MODES = (Rounding.DOUBLE, Rounding.EVEN, Rounding.AWAY, Rounding.SINGLE)


def lower_prelu(low: LoweringContext) -> ElementwiseLayer:
    """Lower a PReLU with the first rounding mode that reproduces the host's results for all values and slopes.

    Raises
    ------
    UnsupportedLoweringError
        Slopes are not constant, or no rounding mode reproduces the host's results.
    """
    x, slope = low.graph.ins(low.anchor)
    y, channels = low.y, low.x.shape[-1] if low.x.shape else 1
    if slope.data is None:
        raise UnsupportedLoweringError("its slopes must be constant")
    given, factor = affine(x), affine(slope)
    slopes = _slopes(slope.data, low.x.shape)
    how = broadcast_of(slope.shape, low.x.shape)
    trailing = how is not None and how.broadcast == Broadcast.CHANNEL and how.groups * how.rows == 1
    if slopes.size in (1, channels) or (trailing and low.x.elements >= _MIN_REPEATS * slopes.size):
        channels = channels if slopes.size == 1 else slopes.size
        together = pixels_together(low.x.elements // channels, channels)
        layer = _of_channels(low, slope, np.resize(slopes, channels * together))
        if layer is not None:
            return layer
    pixels = _of_pixels(low, slope)
    if pixels is not None:
        return pixels
    plus, minus = _scales(low, slope)
    fields = {
        "slopes": slopes,
        "slope_dtype": DTYPES[slope.dtype],
        "x_zp": given.zero_point,
        "slope_zp": factor.zero_point,
        "y_zp": affine(y).zero_point,
        "positive": plus,
        "negative": minus,
        "clip": clip_range(y),
    }
    for rounding in _MODES:
        layer = PReluLayer(**low.common(), **fields, rounding=rounding)
        if _same(low, layer, slope):
            return layer
    raise UnsupportedLoweringError(f"no rounding mode of the machine reproduces {low.rounding}")


def _slopes(slope: NDArray, shape: tuple[int, ...]) -> NDArray:
    """Return the slopes of the elements of x after which slopes repeat; of one channel if all slopes are equal."""
    slope = slope.reshape((1,) * (len(shape) - slope.ndim) + slope.shape)
    repeated = next((i for i, size in enumerate(slope.shape) if size > 1), len(shape))
    return np.ascontiguousarray(np.broadcast_to(slope, slope.shape[:repeated] + shape[repeated:])).reshape(-1)


def _of_channels(low: LoweringContext, slope: Tensor, slopes: NDArray) -> ElementwiseLayer | None:
    """Return a layer with multipliers of each channel that reproduce the host's results; None if there are none.

    Values below zero are multiplied by their slope and by the multiplier of products. This multiplier must keep its
    exponent, on which the results of `Rounding.DOUBLE` depend, so that its product with a slope may exceed 32 bits.
    The multipliers are therefore divided by a power of two, by which the values are multiplied beforehand.
    """
    x, zero, clip, (plus, minus) = (
        affine(low.x),
        affine(low.y).zero_point,
        clip_range(low.y),
        _scales(low, slope),
    )
    factors = slopes.astype(np.int64) - affine(slope).zero_point
    half = (1 << (bits := int(np.abs(factors).max()).bit_length())) >> 1
    mult, exponent = np.full(slopes.size, (plus[0] + half) >> bits), np.full(slopes.size, plus[1])
    negative = (factors * minus[0] + half) >> bits, np.full(slopes.size, minus[1])
    kinds, first = np.unique(slopes, return_index=True)
    every = values_of(low.x.dtype)
    values = np.tile(((every.astype(np.int64) - x.zero_point) << bits)[:, None], kinds.size)
    wanted = _wanted(low, slope, kinds, every)
    for rounding in _MODES:
        above, below = (
            scale(values, m[first], e[first], 0, rounding) for m, e in ((mult, exponent), negative)
        )
        if np.array_equal(np.clip(np.where(values < 0, below, above) + zero, *clip), wanted):
            bias = np.zeros(slopes.size, np.int64)
            fields = {
                "zp_ab": halves_word(x.zero_point, 0),
                "zp": zero,
                "clip_lo": clip[0],
                "clip_hi": clip[1],
            }
            drain = Drain(bias, mult, exponent, zero, clip, rounding, negative=negative)
            return ElementwiseLayer(**low.common(), fields=fields, drain=drain, factor=1 << bits)
    return None


def _of_pixels(low: LoweringContext, slope: Tensor) -> ElementwiseLayer | None:
    """Return a layer with multipliers of each pixel that reproduce the host's results; None if there are none.

    FUSE negates values, so that those below zero are multiplied by the multiplier of their pixel (requant=row), and the
    others by the second one. As in `_of_channels`, values are multiplied beforehand by the power of two by which the
    multipliers are divided. None if the channels fill so few lanes that two passes over all elements are faster.
    """
    how = broadcast_of(slope.shape, low.x.shape)
    if how is None or how.broadcast != Broadcast.PIXEL:
        return None
    n, channels = low.config.n, low.x.elements // (slope.elements * how.rows)
    if (ceil_div(channels, n) + 1) * n >= _ROW_CYCLES * channels:
        return None
    x, zero, clip, factor = affine(low.x), affine(low.y).zero_point, clip_range(low.y), affine(slope)
    plus, minus = _scales(low, slope)
    kinds, every = np.unique(cast(NDArray, slope.data)), values_of(low.x.dtype)
    factors = kinds.astype(np.int64) - factor.zero_point
    half = (1 << (bits := int(np.abs(factors).max()).bit_length())) >> 1
    above, widening = -((plus[0] + half) >> bits), RowMultiplier(-minus[0], _UNSCALED - bits, minus[1])
    values = -np.tile(((every.astype(np.int64) - x.zero_point) << bits)[:, None], kinds.size)
    below = scale(factors, widening.mult, widening.exponent, 0, Rounding.SINGLE)
    wanted = _wanted(low, slope, kinds, every)
    for rounding in _MODES:
        positive = scale(values, above, plus[1], 0, rounding)
        found = np.where(values < 0, positive, scale(values, below, minus[1], 0, rounding)) + zero
        if np.array_equal(np.clip(found, *clip), wanted):
            return ElementwiseLayer(
                **low.common(slope.name),
                other=slope.name,
                **vars(how),
                src={
                    "op": Op.MUL_SUB,
                    "b_bcast": 1,
                    "b_lane": 2,
                    "requant": Requant.ROW,
                    "rounding": rounding,
                    "neg_en": 1,
                },
                fields={
                    "zp_ab": halves_word(x.zero_point, factor.zero_point),
                    "mult": -(1 << bits),
                    "neg_mult": above,
                    "shifts": bytes_word(0, plus[1]),
                    "zp": zero,
                    "clip_lo": clip[0],
                    "clip_hi": clip[1],
                },
                row_multiplier=widening,
            )
    return None


#: Exponent with which a multiplier is that integer.
_UNSCALED = 31


def _scales(low: LoweringContext, slope: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the multiplier and exponent of values, and of products of values and slopes."""
    x, factor, y = (affine(each).scale for each in (low.x, slope, low.y))
    return quantize_multiplier(float32_ratio(x, 1.0, y)), quantize_multiplier(float32_ratio(x, factor, y))


def _same(low: LoweringContext, layer: PReluLayer, slope: Tensor) -> bool:
    """Return True if a layer computes the operator's result for every input value with every slope."""
    every, kinds = values_of(low.x.dtype), np.unique(layer.slopes)
    x = every.astype(np.int64)[:, None] - layer.x_zp
    product = np.minimum(x, 0) * (kinds.astype(np.int64) - layer.slope_zp)
    above = np.clip(scale(x, *layer.positive, 0, layer.rounding), 0, _MAX_PART)
    below = np.clip(scale(product, *layer.negative, 0, layer.rounding), -_MAX_PART, _MAX_PART)
    found = np.clip(above + below + layer.y_zp, *layer.clip)
    return np.array_equal(found, _wanted(low, slope, kinds, every))


def _wanted(low: LoweringContext, slope: Tensor, kinds: NDArray, every: NDArray) -> NDArray:
    """Return the operator's results for every input value (rows) with every slope (columns)."""
    graph, shape = Graph(low.graph.name), (every.size, kinds.size)
    graph.add_input(Tensor("x", shape, low.x.dtype, low.x.quantization))
    graph.add_tensor(Tensor("slope", kinds.shape, slope.dtype, slope.quantization, kinds))
    graph.add_tensor(Tensor("y", shape, low.y.dtype, low.y.quantization))
    node = graph.add_node(Node(low.anchor.name, "prelu", ("x", "slope"), ("y",)))
    values = [np.ascontiguousarray(np.broadcast_to(every[:, None], shape)), kinds]
    return run_node(graph, node, values, rounding=cast(Kernels, low.rounding))[0]


#: Accumulator buffers for x: two passes of different tiles alternate while MATRIX copies the next tile.
_COPIES = 3
#: Numbers of buffers that are tried for x and slopes, and for results.
_BUFFERS = ((2, 2), (3, 2), (3, 3), (4, 3))


#: FUSE cycles of a row of N elements: the second pass reads two rows from the scratchpad.
_ROW_CYCLES = 3


def prelu_tilings(context: TilingContext, layer: PReluLayer) -> Tilings:
    """Yield the tilings of a PReLU that fit; the schedule counts rows of N elements."""
    n, y = context.config.n, layer.shapes[layer.y]
    total = ceil_div(y.h * y.w * y.c, n)
    for rows, (of_x, of_y) in product(cuts(total), _BUFFERS):
        held = of_x * (1 + (not context.x_on_chip)) + of_y * (not context.y_on_chip) + 2
        if (
            rows * held * n + (1 + all(layer.signs)) * n * n > context.free
            or _COPIES * rows > context.acc_rows
        ):
            continue
        load, store = rows * (1 + (not context.x_on_chip)), rows * (not context.y_on_chip)
        work = rows * _ROW_CYCLES + 2 * STAGGERED_PASS_CYCLES
        cycles = stream_cycles(context, total / rows, load, work, store, of_x, of_y)
        yield cycles, LayerSchedule(rows=rows, x_buffers=of_x, y_buffers=of_y, on_chip=context.y_on_chip)


def prelu_tile_model(layer: PReluLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a PReLU."""
    y = layer.shapes[layer.y]
    total = ceil_div(y.h * y.w * y.c, context.config.n)
    return even_tiles(
        s,
        total,
        min(s.rows, total),
        lambda start, count: [("b", start, count), *([] if context.x_on_chip else [("x", start, count)])],
        lambda count: count * _ROW_CYCLES + 2 * STAGGERED_PASS_CYCLES,
        lambda count: 0 if context.y_on_chip else count,
        3,
    )


_MAX_PRELU_PART = (1 << 15) - 1
#: Multiplier and exponent of the factor 1.
_ONE, _ONE_EXPONENT = quantize_multiplier(1.0)


class PReluSteps(ElementwiseSteps):
    """Code generator of a PReLU whose slopes differ between pixels, with tiles of rows of N elements.

    The first pass of a tile precedes the second pass of the tile before, so that no pass waits for the pass before it.
    """

    def __init__(self, context: CodegenContext, layer: PReluLayer):
        super().__init__(context, layer)
        self.prelu, n, self.both = layer, self.n, all(layer.signs)
        self.slopes = layer.slopes
        if self.slopes.size % n:  # tiles begin at multiples of N
            self.slopes = np.resize(self.slopes, self.pixels * n)
        self.source = context.constant(f"{layer.name}.slopes", self.slopes)
        size, depth = self.rows * n, context.schedule.x_buffers
        self.factors = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{layer.name}.slopes", size, depth), self._load_slopes
        )
        each = np.eye(n, dtype=np.int8)
        ones = context.constant(f"{layer.name}.identity", np.concatenate([each, -each][: 1 + self.both]))
        self.identity = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{layer.name}.identity", ones.size),
            lambda _, address: [context.command(Unit.LOAD, dram=BufferRef(ones), dst=address, len=ones.size)],
        )
        self.copies = BufferRotation(BufferMemory.ACC, f"{layer.name}.x", self.rows, _COPIES)
        self.above = BufferRotation(BufferMemory.SP, f"{layer.name}.above", size, 2)
        self._begun: dict[int, tuple[BufferRef, BufferRef]] = {}

    def _load_slopes(self, key: Hashable, address: BufferRef) -> list[Command]:
        start, count = key  # type: ignore[misc]
        first, end, made = start * self.n, (start + count) * self.n, list[Command]()
        while first < end:
            source = BufferRef(self.source, 0, first % self.slopes.size)
            length = min(end - first, self.slopes.size - source.offset)
            to = address.plus(first - start * self.n)
            made.append(self.context.command(Unit.LOAD, dram=source, dst=to, len=length))
            first += length
        return made

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles; a positive part precedes the step in which MATRIX subtracts it."""
        before, steps = TileStep(), super().steps()
        if not self.both:
            return steps
        before.fuse.append(steps[0].fuse.pop(0))
        before.loads, steps[0].loads = steps[0].loads, before.loads
        return [before, *steps]

    def _tile(self, tile: tuple[int, int], then: tuple[int, int] | None) -> TileStep:
        first = TileStep()
        for each in (tile, then):
            if each is not None:
                self._begin(*each, first)
        if self.both:
            start, count = tile
            x, _ = self._address("a", self.prelu.x, start, count, first)
            acc, above = self._begun[start]
            self._copy(first, x, acc, count)
            self._copy(first, above, acc, count, minus=True)
        step = super()._tile(tile, then)
        for before, after in (
            (first.loads, step.loads),
            (first.matrix, step.matrix),
            (first.fuse, step.fuse),
        ):
            after[:0] = before
        return step

    def _begin(self, start: int, count: int, step: TileStep) -> None:
        """Add the commands that compute the positive part of x of a tile, from a copy unless slopes have both signs."""
        if start in self._begun:
            return
        layer, n = self.prelu, self.n
        x, _ = self._address("a", layer.x, start, count, step)
        acc, above = self.copies.next(), self.above.next()
        self._begun[start] = acc, above
        if self.both:
            source = FUSE_SRC.pack(a_src=1, a_dtype=layer.shapes[layer.x].dtype)
            fields = {"a_base": x, "a_v": n, "v_x": 1, "x_count": count, "clip_lo": layer.x_zp}
        else:
            source = FUSE_SRC.pack(requant=Requant.IMM, rounding=layer.rounding)
            fields = self._rows(count, acc) | {
                "mult": layer.positive[0],
                "shifts": bytes_word(layer.positive[1]),
            }
            fields |= {"zp": layer.y_zp, "clip_lo": layer.y_zp, "clip_hi": layer.clip[1]}
            self._copy(step, x, acc, count)
        stage = FUSE_STAGE.pack(d_dst=1, d_dtype=self._above_dtype)
        step.fuse.append(
            self.context.command(Unit.FUSE, src=source, stage=stage, **fields, d_base=above, d_x=n)
        )

    @property
    def _above_dtype(self) -> Dtype:
        """Type of the positive parts: stored values of x if slopes have both signs, otherwise results."""
        return self.prelu.shapes[self.prelu.x if self.both else self.prelu.y].dtype

    def _copy(self, step: TileStep, x: BufferRef, acc: BufferRef, count: int, *, minus: bool = False) -> None:
        """Add the command that copies rows of x to the accumulator, or subtracts them from those in it."""
        layer, n = self.prelu, self.n
        unsigned = int(layer.shapes[layer.x].dtype == Dtype.U8)
        step.matrix.append(
            self.context.command(
                Unit.MATRIX,
                word=MATRIX_WORD.pack(a_unsigned=unsigned, accumulate=int(minus)),
                a_base=x,
                a_zp=layer.x_zp,
                a_v=n,
                x_count=count,
                w_base=self.identity.get(0, step).plus(n * n * minus),
                w_row=n,
                acc_base=acc,
                acc_x=1,
            )
        )

    def _rows(self, count: int, acc: BufferRef) -> dict[str, int | BufferRef]:
        """Return the fields that read rows of the accumulator."""
        return {"a_base": acc, "a_v": 1, "v_x": 1, "x_count": count}

    def _commands(
        self, fields: dict[str, int | BufferRef], step: TileStep, start: int, count: int
    ) -> list[Command]:
        """Return the command that adds the positive part of a tile to the products of the negative part and slopes."""
        layer, n, (acc, above) = self.prelu, self.n, self._begun.pop(start)
        result, (minus, plus) = layer.shapes[layer.y].dtype, layer.signs
        scaling, zero = layer.negative, (0, layer.negative[1])
        # Products of positive values become 0. If slopes have both signs, there are none.
        (mult, shift), (neg_mult, neg_shift) = scaling if minus else zero, scaling if plus else zero
        (factor, exponent), summand_zp = (_ONE, _ONE_EXPONENT), layer.y_zp
        if self.both:
            (factor, exponent), summand_zp = layer.positive, layer.x_zp
        both = (
            fields
            | self._rows(count, acc)
            | {
                "src": FUSE_SRC.pack(
                    b_src=BSource.SP,
                    b_dtype=layer.slope_dtype,
                    op=Op.MUL,
                    requant=Requant.IMM,
                    rounding=layer.rounding,
                    neg_en=1,
                ),
                "stage": FUSE_STAGE.pack(
                    residual=1,
                    r_dtype=self._above_dtype,
                    r_ls=0,
                    d_dst=1,
                    d_dtype=result,
                    tail_dim=FUSE_DIMS.index("x"),
                ),
                "zp_ab": halves_word(0, layer.slope_zp),
                "b_base": self.factors.get((start, count), step),
                "b_x": n,
                "mult": mult,
                "neg_mult": neg_mult,
                "shifts": bytes_word(shift, neg_shift),
                "clip_lo": -_MAX_PRELU_PART,
                "clip_hi": _MAX_PRELU_PART,
                "zp_xr": halves_word(0, summand_zp),
                "r_base": above,
                "r_x": n,
                "x_mult": _ONE,
                "r_mult": factor,
                "o_mult": _ONE,
                "r_shifts": bytes_word(_ONE_EXPONENT, exponent, _ONE_EXPONENT),
                "o_zp": layer.y_zp,
                "r_lo": layer.clip[0],
                "r_hi": layer.clip[1],
            }
        )
        return [self.context.command(Unit.FUSE, **both)]


def prelu_steps(context: CodegenContext, layer: PReluLayer) -> list[TileStep]:
    """Generate the steps of a PReLU."""
    return PReluSteps(context, layer).steps()


KIND = LayerKind(
    name="prelu",
    layer=PReluLayer,
    lowerings={"prelu": Lowering(lower_prelu, BYTES_TO_BYTES)},
    tilings=prelu_tilings,
    tile_model=prelu_tile_model,
    steps=prelu_steps,
    rank_by_tile_model=True,
)
