"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear, for which FUSE unpacks and packs float32 values."""

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers, pieces
from compiler.ir.identity import identity
from compiler.layers.base import Drain, Layer
from compiler.layers.elementwise import ElementwiseLayer
from compiler.layers.layer_kind import FLOAT, INTEGERS, ElementTypes, LayerKind, Lowering
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError
from compiler.layers.tile_pipeline import TilePipeline, even_tiles
from compiler.layers.tiling_context import TILE_CYCLES, LayerContext, TilingContext, Tilings
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import bytes_word, halves_word
from compiler.util.tiles import ceil_div, cuts
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, BSource, Dtype, Op, Post, Reduce, Requant, Rounding, Unit

#: Rounding mode of quotients to integers, by kernels.
_NEAREST = {"reference": Rounding.AWAY, "xnnpack": Rounding.EVEN, "onnxruntime": Rounding.EVEN}
#: Maximum magnitude of a zero point that is subtracted from an operand.
_ZERO = 1 << 15


def multiplier(factor: float) -> tuple[int, int]:
    """Represent a positive factor as multiplier * 2**(exponent - 31); return the 31-bit multiplier and the exponent."""
    mantissa, exponent = math.frexp(factor)
    whole = round(mantissa * (1 << 31))
    if whole == 1 << 31:
        whole, exponent = whole >> 1, exponent + 1
    if not -128 <= exponent <= 127:
        raise UnsupportedLoweringError(f"a factor of {factor:.3g} between integers and real numbers")
    return whole, exponent


def lower_quantize(low: LoweringContext) -> Layer:
    """Lower a conversion of float32 values to integers: a product with the reciprocal scale, exact to 31 bits."""
    scales, zeros = _parameters(low, low.y.name)
    if len(set(zeros)) > 1:
        raise UnsupportedLoweringError("its zero points must be equal along the axis")
    one = np.float32(1)
    exact = low.rounding == "xnnpack"  # XNNPACK multiplies by the float32 reciprocal
    pairs = [multiplier(float(one / np.float32(s)) if exact else 1 / s) for s in scales]
    limits, rounding = np.iinfo(low.y.dtype), _NEAREST[low.rounding]
    clip = int(limits.min), int(limits.max)
    return _layer(
        low,
        pairs,
        [0] * len(pairs),
        rounding,
        {"a_float": 1},
        {
            "zp": zeros[0],
            "clip_lo": clip[0],
            "clip_hi": clip[1],
        },
    )


def lower_dequantize(low: LoweringContext) -> Layer:
    """Lower a conversion of integers to float32 values, with a single rounding."""
    scales, zeros = _parameters(low, low.x.name)
    if any(not -_ZERO <= zero < _ZERO for zero in zeros):
        raise UnsupportedLoweringError("its zero point must fit in 16 bits")
    pairs = [multiplier(s) for s in scales]
    return _layer(low, pairs, [-z for z in zeros], Rounding.EVEN, {"to_float": 1}, {})


def _parameters(low: LoweringContext, name: str) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the scales and zero points of the integers: one of each for the tensor, or one of each per channel."""
    tensor = low.graph.tensors[name]
    q = tensor.quantization
    if q is None:
        return (1.0,), (0,)
    if q.axis is not None and len(q.scale) > 1 and q.axis != len(tensor.shape) - 1:
        raise UnsupportedLoweringError(f"scales along axis {q.axis}, which is not the last one")
    return q.scale, q.zero_point


def _layer(
    low: LoweringContext,
    pairs: list[tuple[int, int]],
    bias: list[int],
    rounding: Rounding,
    stage: dict[str, int],
    fields: dict[str, int],
) -> Layer:
    common = low.common()
    if len(pairs) == 1:
        (mult, exponent), (zero,) = pairs[0], bias
        src = {"requant": Requant.IMM, "rounding": rounding}
        fields = {**fields, "mult": mult, "shifts": bytes_word(exponent), "zp_ab": halves_word(-zero, 0)}
        return ElementwiseLayer(**common, src=src, stage=stage, fields=fields)
    clip = -(1 << 31), (1 << 31) - 1
    mults, exponents = (np.array(each, np.int64) for each in zip(*pairs, strict=True))
    drain = Drain(np.array(bias, np.int64), mults, exponents, 0, clip, rounding)
    return ElementwiseLayer(**common, src={"bias_en": 1}, stage=stage, fields=fields, drain=drain)


LOWERINGS = {
    "quantize": Lowering(lower_quantize, ElementTypes((FLOAT,), INTEGERS)),
    "dequantize": Lowering(lower_dequantize, ElementTypes((INTEGERS,), FLOAT)),
}

#: Accumulator rows for intermediate results, in addition to one for each tile.
ROWS = 16
#: Operators of the graph, each of which computes the range separately.
QUANTIZED, SCALE, ZERO = "dynamic_quantize", "dynamic_scale", "dynamic_zero"


@identity("DynamicLayer", "makes")
@dataclass(frozen=True, kw_only=True, eq=False)
class DynamicLayer(Layer):
    """Dynamic quantization of float32 values; the operator `makes` selects the result: bytes, scale or zero point."""

    makes: str


def lower_dynamic(low: LoweringContext) -> Layer:
    """Lower one of the three operators of a dynamic quantization."""
    return DynamicLayer(**low.common(), makes=low.anchor.op)


def dynamic_tilings(context: TilingContext, layer: DynamicLayer) -> Tilings:
    """Yield the tilings of a dynamic quantization, which reads all values twice: for the range and for the bytes."""
    n, x = context.config.n, layer.shapes[layer.x]
    total, size = ceil_div(x.h * x.w * x.c, n), DTYPE_BYTES[x.dtype]
    for rows in cuts(total):
        tiles = ceil_div(total, rows)
        used = 2 * (rows + 1) * n * size + 2 * (rows + size) * n + 2 * n
        if used > context.free or rows > 0xFFFF or tiles + ROWS > context.acc_rows:
            continue
        yield (
            3 * max(total * size, tiles * TILE_CYCLES) + 2 * rows,
            LayerSchedule(rows=rows, on_chip=context.y_on_chip),
        )


def dynamic_tile_model(layer: DynamicLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a dynamic quantization."""
    n, x = context.config.n, layer.shapes[layer.x]
    total, size = ceil_div(x.h * x.w * x.c, n), DTYPE_BYTES[x.dtype]
    return even_tiles(
        s,
        total,
        min(s.rows, total),
        lambda start, count: [("x", start, 2.0 * count * size)],
        lambda count: 3.0 * count * size,
        lambda count: 0.0 if context.y_on_chip else float(count),
        3,
    )


_FLOAT_BYTES = 4  # bytes of a float32 value
_INT32_MIN = -(1 << 31)
#: Exponents for which a multiplier of 1 leaves a value unchanged, and removes the fraction of a float32 pattern.
_SAME, _FIELD = 31, 31 - 23
_HALF = 1 << 22
#: Exponents, minus E or F, for which a multiplier of 2**30 gives fixed(v) or the significand of the scale.
_FIXED, _WHOLE = 157, 151
#: 2**38 / 255, and the corresponding exponent, plus E.
_PART, _PARTS = round(2**38 / 255), -163
_ONE = 0x3F800000  # the pattern of 1.0
_STEPS = 255
_WIDE = 1 << 15

#: Rows of the accumulator; pairs of multiplier and exponent are in lanes 0 and 1.
_ENDS = 0  # minimum and maximum
_FIX = 1  # multiplier and exponent that give fixed-point values
_RANGE, _SINGLE = 2, 3  # range as an integer and as a float32 value
_UNIT = 4  # multiplier and exponent that give the scale of the range
_PATTERN = 5  # float32 pattern of the scale; 0 if the range is empty
_EMPTY, _ALL = 6, 7  # 1 if the range is empty; bit pattern of 1.0 in this case
_SCALE = 8  # float32 pattern of the scale, 1.0 for an empty range
_UNFIX, _ALONE = 9, 10  # multiplier and exponent that give the scale's significand; its exponent in lane 0
_SIGNIFICAND, _INVERSE = 11, 12  # significand of the scale, and its reciprocal as a pair
_BYTE = 13  # multiplier and exponent that give bytes
_DYNAMIC_ZERO, _ONES = 14, 15  # the zero point in lane 0; ones

_Fields = dict[str, int | BufferRef]


class DynamicSteps:
    """Code generator of a dynamic quantization: range of all tiles, scale and zero point, then results of all tiles."""

    def __init__(self, context: CodegenContext, layer: DynamicLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.x, self.y = context.layouts[layer.x], context.layouts[layer.y]
        image = layer.shapes[layer.x]
        self.total = image.h * image.w * image.c
        lines = ceil_div(self.total, self.n)
        self.pieces = list(pieces(lines, min(context.schedule.rows, lines)))
        rows, name = self.pieces[0][1], layer.name
        size = rows * self.n
        self.tiles = TileBuffers(
            CircularBuffer(
                BufferMemory.SP, f"{name}.x", (size + self.n) * _FLOAT_BYTES, context.schedule.x_buffers
            ),
            self._load,
        )
        self.out = BufferRotation(
            BufferMemory.SP, f"{name}.y", size + _FLOAT_BYTES * self.n, context.schedule.y_buffers
        )
        self.found = BufferRef(CircularBuffer(BufferMemory.ACC, f"{name}.found", len(self.pieces)))
        self.rows = BufferRef(CircularBuffer(BufferMemory.ACC, f"{name}.rows", ROWS))
        self.zero = BufferRef(CircularBuffer(BufferMemory.SP, f"{name}.zero", 2 * self.n))

    def steps(self) -> list[TileStep]:
        """Generate the steps that find the range, followed by those that write the output."""
        steps = [self._range(number, *piece) for number, piece in enumerate(self.pieces)]
        fuse = [*self._ends(), *self._scale()]
        if self.layer.makes != SCALE:
            fuse += self._factors()
        if self.layer.makes != QUANTIZED:
            steps[-1].fuse += self._commands(fuse)
            return [*steps, self._scalar()]
        steps[-1].fuse += self._commands([*fuse, *self._broadcast_zero_point()])
        return steps + [self._tile(*piece) for piece in self.pieces]

    def _commands(self, commands: list[_Fields]) -> list[Command]:
        return [self.context.command(Unit.FUSE, **fields) for fields in commands]

    def _count(self, start: int, rows: int) -> int:
        """Return the number of values in `rows` rows of N values, from row `start`."""
        return min(rows * self.n, self.total - start * self.n)

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        start, rows = key  # type: ignore[misc]
        source = self.x.address().plus(start * self.n * _FLOAT_BYTES)
        return [
            self.context.command(
                Unit.LOAD, dram=source, dst=address, len=self._count(start, rows) * _FLOAT_BYTES
            )
        ]

    def _numbers(self, start: int, rows: int, step: TileStep) -> _Fields:
        """Return the fields of operand A, which reads `rows` rows of N values from row `start`."""
        x = self.tiles.get((start, rows), step) if not self.x.on_chip else None
        last = (self._count(start, rows) - 1) % self.n + 1
        return {
            "a_base": x or self.x.address().plus(start * self.n * _FLOAT_BYTES),
            "a_v": self.n * _FLOAT_BYTES,
            "lanes_tail": last,
        }

    def _range(self, number: int, start: int, rows: int) -> TileStep:
        """Return the step that finds the bit patterns of a tile's minimum and maximum; the range includes zero."""
        step = TileStep()
        common = self._numbers(start, rows, step) | {
            "wx_count": rows,
            "v_wx": 1,
            "clip_lo": 0,
            "d_base": self.found.plus(number),
            "stage": FUSE_STAGE.pack(
                reduce=Reduce.MAX, lane_reduce=Reduce.MAX, tail_dim=FUSE_DIMS.index("wx")
            ),
        }
        for lane, bias in enumerate((_INT32_MIN, 0)):
            src = FUSE_SRC.pack(a_src=1, a_dtype=Dtype.I32, bias_en=1, d_lane=lane)
            step.fuse += self._commands([{**common, "src": src, "bias": bias}])
        return step

    def _ends(self) -> list[_Fields]:
        """Return the passes that compute the minimum and maximum over all tiles, and their difference (the range)."""
        return [
            {
                "a_base": self.found,
                "a_v": 1,
                "v_wx": 1,
                "wx_count": len(self.pieces),
                "lanes": 2,
                "d_base": self.rows.plus(_ENDS),
                "stage": FUSE_STAGE.pack(reduce=Reduce.MAX),
            },
            self._constant(_FIX, 1 << 30),
            self._exponent(_ENDS, _FIX, 1, -1, _FIXED),
            self._one(_ENDS, _RANGE, lanes=2, a_float=1) | self._by_row(_FIX),
            self._one(_RANGE, _SINGLE, to_float=1),
        ]

    def _scale(self) -> list[_Fields]:
        """Return the passes that compute the scale: 1/255 of the range, or 1 for an empty range."""
        return [
            self._constant(_UNIT, _PART),
            self._exponent(_ENDS, _UNIT, 1, 1, _PARTS),
            self._one(_SINGLE, _PATTERN, a_float=1, to_float=1) | self._by_row(_UNIT),
            self._one(_RANGE, _EMPTY) | self._times(-1, _SAME) | {"zp": 1, "clip_lo": 0, "clip_hi": 1},
            self._one(_EMPTY, _ALL) | self._times(_ONE, _SAME),
            self._one(_ALL, _SCALE)
            | {
                "src": FUSE_SRC.pack(b_src=BSource.ACC, op=Op.ADD),
                "b_base": self.rows.plus(_PATTERN),
            },
        ]

    def _factors(self) -> list[_Fields]:
        """Return the passes that compute the zero point and the factor by which values are multiplied."""
        return [
            self._constant(_UNFIX, 1 << 30),
            self._exponent(_SCALE, _UNFIX, 1, -1, _WHOLE),
            self._exponent(_SCALE, _ALONE, 0, -1, _WHOLE),
            self._one(_SCALE, _SIGNIFICAND, a_float=1) | self._by_row(_UNFIX),
            self._one(_SIGNIFICAND, _INVERSE, post=Post.RECIP) | {"post_shift": -1},
            self._one(_INVERSE, _BYTE),
            self._one(_ALONE, _BYTE)
            | {
                "src": FUSE_SRC.pack(b_src=BSource.ACC, b_bcast=1, b_lane=1, op=Op.ADD, d_lane=1),
                "b_base": self.rows.plus(_INVERSE),
                "clip_lo": -128,
                "clip_hi": 127,
            },
            self._one(_ENDS, _DYNAMIC_ZERO, a_float=1)
            | self._by_row(_BYTE)
            | {"clip_lo": 0, "clip_hi": _STEPS},
        ]

    def _exponent(self, a: int, d: int, lane: int, sign: int, offset: int) -> _Fields:
        """Return the pass that computes `sign` times the largest float32 exponent field in row `a`, plus `offset`."""
        src = FUSE_SRC.pack(requant=Requant.IMM, rounding=Rounding.SINGLE, bias_en=1, d_lane=lane)
        how = Reduce.MAX if sign > 0 else Reduce.MIN
        return self._one(a, d, lanes=2 if a == _ENDS else 1, lane_reduce=how) | {
            "src": src,
            "bias": -_HALF + (sign < 0),
            "mult": sign,
            "shifts": bytes_word(_FIELD),
            "zp": offset,
            "clip_lo": -128,
            "clip_hi": 127,
        }

    def _broadcast_zero_point(self) -> list[_Fields]:
        """Return the passes that broadcast the zero point to all lanes, as an operand of the residual addition."""
        return [
            {"a_base": self.rows.plus(_ENDS), "d_base": self.rows.plus(_ONES)}
            | self._times(0, 0)
            | {"zp": 1},
            {
                "a_base": self.rows.plus(_ONES),
                "b_base": self.rows.plus(_DYNAMIC_ZERO),
                "d_base": self.zero,
                "src": FUSE_SRC.pack(b_src=BSource.ACC, b_bcast=1, op=Op.MUL),
                "stage": FUSE_STAGE.pack(d_dst=1, d_dtype=Dtype.I16),
            },
        ]

    def _tile(self, start: int, rows: int) -> TileStep:
        """Return the step that writes the quantized bytes of a tile."""
        step = TileStep()
        address = (
            BufferRef(self.y.buffer, 0, self.y.offset + start * self.n) if self.y.on_chip else self.out.next()
        )
        command = (
            self._numbers(start, rows, step)
            | self._by_row(_BYTE)
            | {
                "x_count": rows,
                "v_x": 1,
                "d_base": address,
                "d_x": self.n,
                "clip_lo": -_WIDE,
                "clip_hi": _WIDE - 1,
                "r_base": self.zero,
                "x_mult": 1,
                "r_mult": 1,
                "o_mult": 1,
                "r_shifts": bytes_word(0, 0, _SAME),
                "r_lo": 0,
                "r_hi": _STEPS,
                "stage": FUSE_STAGE.pack(
                    a_float=1,
                    residual=1,
                    r_dtype=Dtype.I16,
                    r_raw=1,
                    d_dst=1,
                    d_dtype=Dtype.U8,
                    tail_dim=FUSE_DIMS.index("x"),
                ),
            }
        )
        command["src"] = FUSE_SRC.pack(
            a_src=1, a_dtype=Dtype.I32, b_src=BSource.ACC, requant=Requant.ROW, rounding=Rounding.EVEN
        )
        step.fuse += self._commands([command])
        if not self.y.on_chip:
            step.stores.append(self._store(address, start * self.n, self._count(start, rows)))
        return step

    def _scalar(self) -> TileStep:
        """Return the step that writes the zero point or the scale from the accumulator to the output."""
        step, scale = TileStep(), self.layer.makes == SCALE
        size, dtype = (_FLOAT_BYTES, Dtype.I32) if scale else (1, Dtype.U8)
        address = BufferRef(self.y.buffer, 0, self.y.offset) if self.y.on_chip else self.out.next()
        command: _Fields = {
            "a_base": self.rows.plus(_SCALE if scale else _DYNAMIC_ZERO),
            "lanes": 1,
            "d_base": address,
            "stage": FUSE_STAGE.pack(d_dst=1, d_dtype=dtype),
        }
        step.fuse += self._commands([command])
        if not self.y.on_chip:
            step.stores.append(self._store(address, 0, size))
        return step

    def _store(self, address: BufferRef, first: int, length: int) -> Command:
        target = BufferRef(self.y.buffer, 0, self.y.offset + first)
        return self.context.command(Unit.STORE, dram=target, src=address, len=length)

    def _one(self, a: int, d: int, *, lanes: int = 1, **stage: int) -> _Fields:
        """Return the fields of a pass that reduces the first `lanes` lanes of row `a` to one lane of row `d`."""
        return {
            "a_base": self.rows.plus(a),
            "lanes": lanes,
            "d_base": self.rows.plus(d),
            "stage": FUSE_STAGE.pack(**{"lane_reduce": Reduce.SUM, **stage}),
        }

    def _constant(self, row: int, value: int) -> _Fields:
        return self._one(_ENDS, row) | self._times(0, 0) | {"zp": value}

    @staticmethod
    def _times(mult: int, exponent: int) -> _Fields:
        src = FUSE_SRC.pack(requant=Requant.IMM, rounding=Rounding.SINGLE)
        return {"src": src, "mult": mult, "shifts": bytes_word(exponent)}

    def _by_row(self, row: int) -> _Fields:
        """Return the fields of a multiplication by the multiplier and exponent that a row contains."""
        src = FUSE_SRC.pack(b_src=BSource.ACC, requant=Requant.ROW, rounding=Rounding.EVEN)
        return {"src": src, "b_base": self.rows.plus(row)}


def dynamic_steps(context: CodegenContext, layer: DynamicLayer) -> list[TileStep]:
    """Generate the steps of a dynamic quantization."""
    return DynamicSteps(context, layer).steps()


KIND = LayerKind(
    name="dynamic",
    layer=DynamicLayer,
    lowerings={
        QUANTIZED: Lowering(lower_dynamic, ElementTypes((FLOAT,), ("uint8",))),
        SCALE: Lowering(lower_dynamic, ElementTypes((FLOAT,), FLOAT)),
        ZERO: Lowering(lower_dynamic, ElementTypes((FLOAT,), ("uint8",))),
    },
    tilings=dynamic_tilings,
    tile_model=dynamic_tile_model,
    steps=dynamic_steps,
)
