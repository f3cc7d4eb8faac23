"""PReLU: a scaling whose multipliers for values below zero differ between channels.

Slopes that differ between pixels take three FUSE passes per tile: min(x, 0) * slope, max(x, 0), and their sum.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers
from compiler.ir.graph import Graph, Node
from compiler.ir.identity import identity
from compiler.ir.tensor import Tensor
from compiler.layers.base import Drain
from compiler.layers.elementwise import ElementwiseLayer, ElementwiseSteps, pixels_together
from compiler.layers.layer_kind import BYTES_TO_BYTES, LayerKind, Lowering
from compiler.layers.lowering_context import (
    DTYPES,
    LoweringContext,
    UnsupportedLoweringError,
    affine,
    clip_range,
    values_of,
)
from compiler.layers.tile_pipeline import TilePipeline, row_tile_model
from compiler.layers.tiling_context import TILE_CYCLES, LayerContext, TilingContext, Tilings
from compiler.reference import Kernels, run_node
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import bytes_word, float32_ratio, halves_word, quantize_multiplier
from compiler.util.tiles import ceil_div, cuts
from cosim.semantics.fixed_point import scale
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, BSource, Dtype, Op, Requant, Rounding, Unit

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
    slopes : (channels,) or (pixels, channels) array
        Stored slope of each channel or of each element, of type `slope_dtype`.
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

    @property
    def by_channel(self) -> bool:
        """True: every channel, or every element, has a separate slope."""
        return True


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
    slopes = _slopes(slope.data, low.x.shape, channels)
    together = pixels_together(low.x.elements // channels, channels) if slopes.ndim == 1 else 1
    layer = _of_channels(low, slope, np.tile(slopes, together)) if slopes.ndim == 1 else None
    if layer is not None:
        return layer
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


def _slopes(slope: NDArray, shape: tuple[int, ...], channels: int) -> NDArray:
    """Return one slope per channel, or one slope per element if slopes differ between pixels."""
    if slope.size == 1 or (slope.size, slope.shape[-1]) == (channels, channels):
        return np.ascontiguousarray(np.broadcast_to(slope.reshape(-1), channels))
    return np.ascontiguousarray(np.broadcast_to(slope, shape)).reshape(-1, channels)


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


def prelu_tilings(context: TilingContext, layer: PReluLayer) -> Tilings:
    """Yield the tilings of a PReLU that fit: three passes over each row, with buffers for both summands."""
    n, y = context.config.n, layer.shapes[layer.y]
    pixels, blocks = y.h * y.w, ceil_div(y.c, n)
    for rows in cuts(pixels):
        held = 2 * rows if layer.slopes.ndim == 2 else 1  # each tile loads its slopes if they are per element
        used = (2 * rows * 3 + held) * blocks * n
        used += (not context.x_on_chip) * 2 * (rows * y.c + n) + (not context.y_on_chip) * 2 * (
            rows * y.c + n
        )
        if used > context.free or rows > 0xFFFF:
            continue
        work = 3 * pixels * blocks
        cycles = max(work, ceil_div(pixels, rows) * 3 * TILE_CYCLES) + rows * blocks
        yield cycles, LayerSchedule(rows=rows, on_chip=context.y_on_chip)


def prelu_tile_model(layer: PReluLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a PReLU."""
    return row_tile_model(layer, s, context, 3, 3 * ceil_div(layer.shapes[layer.x].c, context.config.n), 1)


_MAX_PRELU_PART = (1 << 15) - 1
#: Multiplier and exponent of the factor 1.
_ONE, _ONE_EXPONENT = quantize_multiplier(1.0)


class PReluSteps(ElementwiseSteps):
    """Code generator of a PReLU, with tiles of pixels (all their channels) and tiles of slopes."""

    def __init__(self, context: CodegenContext, layer: PReluLayer):
        super().__init__(context, layer)
        self.prelu = layer
        self.line = self.blocks * self.n
        self.each = layer.slopes.ndim == 2  # True if each element has a separate slope
        padded = np.zeros((*layer.slopes.shape[:-1], self.line), layer.slopes.dtype)
        padded[..., : layer.slopes.shape[-1]] = layer.slopes
        self.source = context.constant(f"{layer.name}.slopes", padded.reshape(-1))
        held, turns = (self.rows, context.schedule.x_buffers) if self.each else (1, 1)
        self.slopes = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{layer.name}.slopes", held * self.line, turns),
            self._load_slopes,
        )
        size = self.rows * self.line
        self.low = BufferRotation(BufferMemory.SP, f"{layer.name}.low", size, context.schedule.y_buffers)
        self.high = BufferRotation(
            BufferMemory.SP, f"{layer.name}.high", size * DTYPE_BYTES[Dtype.I16], context.schedule.y_buffers
        )

    def _load_slopes(self, key: Hashable, address: BufferRef) -> list[Command]:
        start, count = key  # type: ignore[misc]
        source = BufferRef(self.source).plus(start * self.line)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, len=count * self.line)]

    def _commands(
        self, fields: dict[str, int | BufferRef], step: TileStep, start: int, count: int
    ) -> list[Command]:
        """Return the commands of a tile; the positive and negative summands are written to buffers of whole blocks."""
        layer, n, line = self.prelu, self.n, self.line
        dtype, wide = layer.shapes[layer.x].dtype, DTYPE_BYTES[Dtype.I16]
        low, high, result = self.low.next(), self.high.next(), layer.shapes[layer.y].dtype
        tail = FUSE_DIMS.index("n")
        below = fields | {
            "src": FUSE_SRC.pack(a_src=1, a_dtype=dtype),
            "stage": FUSE_STAGE.pack(d_dst=1, d_dtype=dtype, tail_dim=tail),
            "clip_hi": layer.x_zp,
            "d_base": low,
            "d_x": line,
            "d_n": n,
        }
        above = fields | {
            "src": FUSE_SRC.pack(a_src=1, a_dtype=dtype, requant=Requant.IMM, rounding=layer.rounding),
            "stage": FUSE_STAGE.pack(d_dst=1, d_dtype=Dtype.I16, tail_dim=tail),
            "zp_ab": halves_word(layer.x_zp, 0),
            "mult": layer.positive[0],
            "shifts": bytes_word(layer.positive[1]),
            "clip_lo": 0,
            "clip_hi": _MAX_PRELU_PART,
            "d_base": high,
            "d_x": line * wide,
            "d_n": n * wide,
        }
        both = fields | {
            "src": FUSE_SRC.pack(
                a_src=1,
                a_dtype=dtype,
                b_src=BSource.SP,
                b_dtype=layer.slope_dtype,
                op=Op.MUL,
                requant=Requant.IMM,
                rounding=layer.rounding,
            ),
            "stage": FUSE_STAGE.pack(
                residual=1, r_dtype=Dtype.I16, r_ls=0, d_dst=1, d_dtype=result, tail_dim=tail
            ),
            "zp_ab": halves_word(layer.x_zp, layer.slope_zp),
            "a_base": low,
            "a_v": line,
            "a_n": n,
            "b_base": self.slopes.get((start, count) if self.each else (0, 1), step),
            "b_x": self.line if self.each else 0,
            "b_n": n,
            "mult": layer.negative[0],
            "shifts": bytes_word(layer.negative[1]),
            "clip_lo": -_MAX_PRELU_PART,
            "clip_hi": _MAX_PRELU_PART,
            "r_base": high,
            "r_x": line * wide,
            "r_n": n * wide,
            "x_mult": _ONE,
            "r_mult": _ONE,
            "o_mult": _ONE,
            "r_shifts": bytes_word(*[_ONE_EXPONENT] * 3),
            "o_zp": layer.y_zp,
            "r_lo": layer.clip[0],
            "r_hi": layer.clip[1],
        }
        return [self.context.command(Unit.FUSE, **each) for each in (below, above, both)]


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
