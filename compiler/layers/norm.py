"""Normalizations over the last axis."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from compiler.layers.reduce import _TILE_CYCLES, _Tilings
from compiler.layers.tile_pipeline import ROOT_CYCLES, TilePipeline, row_tile_model
from compiler.layers.tiling_context import LayerContext
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import bytes_word, halves_word
from compiler.util.tiles import ceil_div, cuts
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import BSource, Dtype, Op, Post, Reduce, Requant, Rounding, Unit

if TYPE_CHECKING:
    from compiler.layers.tiling_context import TilingContext

#: Maximum number of elements of a row; in longer rows, a small variance could be lost in a sum of large squares.
_MAX_ELEMENTS = 8192
#: Margin around the 8-bit range of values and zero points, outside of which every result is clipped.
_MARGIN = 257


@identity("NormLayer", "centred", "x_zp", "epsilon", "gamma", "beta", "bits", "shift", "y_zp", "clip")
@dataclass(frozen=True, kw_only=True, eq=False)
class NormLayer(Layer):
    """Normalization of rows: optionally minus the mean, divided by the root mean square, times gamma, plus beta.

    Parameters
    ----------
    centred : bool
        True if the mean is subtracted (layer normalization).
    x_zp : int
        Zero point of x.
    epsilon : float
        Epsilon in units of the squared scale of x.
    gamma : (columns,) int16 array
        Rounded values of gamma * sqrt(columns) * 2**(bits - shift) / s, where s is the scale of the result.
    beta : (columns,) int16 array
        Rounded values of beta * 2**bits / s.
    bits, shift : int
        Exponents of the fixed-point representation of `gamma` and `beta`.
    y_zp : int
        Zero point of the result.
    clip : (int, int)
        Smallest and largest stored result.
    """

    centred: bool
    x_zp: int
    epsilon: float
    gamma: NDArray[np.int16]
    beta: NDArray[np.int16]
    bits: int
    shift: int
    y_zp: int
    clip: tuple[int, int]


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
    held, available = _acc_rows(ceil_div(columns, low.config.n)), low.config.acc_rows
    if held > available:
        raise UnsupportedLoweringError(
            f"a normalization over {columns} elements, which holds {held} of {available} accumulator rows"
        )
    given = [_row(tensor, columns) for tensor in low.graph.ins(node)[1:]]
    gamma = given[0] if given else np.ones(columns)
    beta = given[1] if len(given) > 1 else np.zeros(columns)
    step = affine(y).scale
    bits = 15 - int(np.ceil(np.log2(np.abs(beta).max() / step + _MARGIN)))
    if bits < 0:
        raise UnsupportedLoweringError("beta must be at most 32,510 steps of the result")
    largest = np.abs(gamma).max() or 1.0
    unit = np.sqrt(columns) * 2.0**bits / step
    shift = int(np.ceil(np.log2(unit * largest / np.iinfo(np.int16).max)))
    if not -64 <= shift <= 64:
        raise UnsupportedLoweringError(f"gamma, up to {largest:.3g}, is out of range for steps of {step:.3g}")
    centred = node.op == "layer_norm"
    return NormLayer(
        **low.common(),
        centred=centred,
        x_zp=0 if centred else affine(x).zero_point,
        epsilon=float(node.attributes["epsilon"]) / affine(x).scale ** 2,
        gamma=np.rint(gamma * unit / 2.0**shift).astype(np.int16),
        beta=np.rint(beta / step * 2.0**bits).astype(np.int16),
        bits=bits,
        shift=shift,
        y_zp=affine(y).zero_point,
        clip=clip_range(y),
    )


def _acc_rows(blocks: int) -> int:
    """Return the accumulator rows for a row of `blocks` blocks: its statistics, and two copies with epsilon."""
    return 1 + 2 * (blocks + 1)


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
    x, n = layer.shapes[layer.x], context.config.n
    total, blocks = x.h * x.w, ceil_div(x.c, n)
    passes = 10 if layer.centred else 8
    for rows in cuts(total):
        used = 4 * blocks * n + rows * 2 * x.c * (2 - context.on_chip(layer.x) - context.on_chip(layer.y)) + n
        if used > context.free or rows * _acc_rows(blocks) > context.acc_rows:
            continue
        tiles = ceil_div(total, rows)
        yield (
            total * blocks * passes + tiles * passes * _TILE_CYCLES + rows * blocks,
            LayerSchedule(rows=rows, on_chip=context.on_chip(layer.y)),
        )


def norm_tile_model(layer: NormLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of a normalization."""
    blocks = ceil_div(layer.shapes[layer.x].c, context.config.n)
    centred = 3 * blocks if layer.centred else 0
    return row_tile_model(
        layer,
        s,
        context,
        10 if layer.centred else 8,
        8 * blocks + centred + 4 + 2 * max(blocks, ROOT_CYCLES),
        1,
    )


#: Largest deviation in steps of x, and bits of a deviation, of a narrowed deviation, and of the result of step 7.
_MAX_DEVIATION, _WIDE, _NARROW, _AMPLITUDE = 255, 30, 17, 16
#: Bits dropped from the squares of step 8 and from the products of step 9.
_SQUARE, _PRODUCT = 4, 2
_EDGE = (1 << _NARROW) - 1

_Fields = dict[str, int | BufferRef]


class NormSteps:
    """Code generator of a normalization; a tile consists of some rows."""

    def __init__(self, context: CodegenContext, layer: NormLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.x, self.y = context.layouts[layer.x], context.layouts[layer.y]
        self.total, self.columns = self.x.h * self.x.w, self.x.c
        self.blocks = ceil_div(self.columns, self.n)
        self.rows = min(context.schedule.rows, self.total)
        name, schedule, size = layer.name, context.schedule, self.rows * self.columns
        self.tiles = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.x", size + self.n, schedule.x_buffers), self._load
        )
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size, schedule.y_buffers)
        self.stats = BufferRotation(BufferMemory.ACC, f"{name}.rows", self.rows, 1)
        #: Accumulator rows per row of the tensor: one for epsilon, and one for each block.
        self.pitch = self.blocks + 1
        self.wide = BufferRotation(BufferMemory.ACC, f"{name}.wide", self.rows * self.pitch, 1)
        self.narrow = BufferRotation(BufferMemory.ACC, f"{name}.narrow", self.rows * self.pitch, 1)
        packed = np.zeros((2, self.blocks * self.n), np.int16)
        packed[0, : self.columns], packed[1, : self.columns] = layer.gamma, layer.beta
        self.source = context.constant(f"{name}.parameters", packed.astype("<i2"))
        self.p = TileBuffers(CircularBuffer(BufferMemory.SP, f"{name}.p", packed.nbytes), self._load_p)
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
        #: Number of bits dropped from the squares of step 6, which is even because the root loses half as many.
        self.rough = max(math.ceil((math.log2(squares) - _WIDE) / 2), 0) * 2

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        start, rows = key  # type: ignore[misc]
        lines = self._lines(self.x, rows, "dst_y")
        source = self._row(self.x, start)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, **lines)]

    def _load_p(self, _: Hashable, address: BufferRef) -> list[Command]:
        return [
            self.context.command(
                Unit.LOAD, dram=BufferRef(self.source), dst=address, len=4 * self.blocks * self.n
            )
        ]

    def _lines(self, layout: TensorLayout, rows: int, pitch: str) -> dict[str, int]:
        if layout.pixel == self.columns:
            return {"len": rows * self.columns}
        return {"len": self.columns, "y_count": rows, "dram_y": layout.pixel, pitch: self.columns}

    @staticmethod
    def _row(layout: TensorLayout, row: int) -> BufferRef:
        return layout.address(*divmod(row, layout.w))

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        return [self._tile(start, rows) for start, rows in pieces(self.total, self.rows)]

    def _tile(self, start: int, rows: int) -> TileStep:
        step = TileStep()
        x, x_pitch = self._row(self.x, start), self.x.pixel
        if not self.x.on_chip:
            x, x_pitch = self.tiles.get((start, rows), step), self.columns
        y, y_pitch = self._row(self.y, start), self.y.pixel
        if not self.y.on_chip:
            y, y_pitch = self.out.next(), self.columns
        for fields in self._passes(x, x_pitch, y, y_pitch, self.p.get(0, step)):
            word = {"lanes_tail": (self.columns - 1) % self.n + 1} | fields
            step.fuse.append(self.context.command(Unit.FUSE, **word, y_count=rows, u_y=1))
        if not self.y.on_chip:
            lines = self._lines(self.y, rows, "src_y")
            target = self._row(self.y, start)
            step.stores.append(self.context.command(Unit.STORE, dram=target, src=y, **lines))
        return step

    def _passes(self, x: BufferRef, x_pitch: int, y: BufferRef, y_pitch: int, p: BufferRef) -> list[_Fields]:
        layer, n = self.layer, self.n
        stats, wide, narrow = self.stats.next(), self.wide.next(), self.narrow.next()
        row: _Fields = {"b_base": stats, "b_y": 1}
        image: _Fields = {"a_base": x, "a_u": x_pitch, "a_v": n, "zp_ab": halves_word(layer.x_zp, 0)}
        source = {"a_src": 1, "a_dtype": layer.shapes[layer.x].dtype}
        all_wide, all_narrow = self._block(wide, 0), self._block(narrow, 0)
        narrowed: _Fields = {"clip_lo": -_EDGE, "clip_hi": _EDGE}
        last = FUSE_DIMS.index("x")
        to_acc = {"stage": FUSE_STAGE.pack(tail_dim=last)}
        centre: list[_Fields] = [
            image
            | self._across(0)
            | {
                "src": FUSE_SRC.pack(**source),
                "d_base": stats,
                "d_y": 1,
                "post_mult": 1 << self.shift,
                "post_shift": 31,
                "stage": self._sum(Post.SCALE),
            },
        ]
        less: list[_Fields] = [
            self._block(wide, 1)
            | row
            | self._along(0)
            | self._to(wide, 1)
            | to_acc
            | {
                "src": FUSE_SRC.pack(b_src=BSource.ACC, b_bcast=1, op=Op.SUB),
            },
        ]
        return [
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
            | {
                "src": FUSE_SRC.pack(**source, requant=Requant.IMM),
                "zp": self.epsilon,
                "lanes_tail": n,
            },
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
            all_wide
            | row
            | self._along(1)
            | self._to(narrow, 0)
            | narrowed
            | to_acc
            | {
                "src": FUSE_SRC.pack(b_src=BSource.ACC, requant=Requant.ROW, rounding=Rounding.EVEN),
            },
            all_narrow | self._root(stats, _SQUARE, 2, layer.shift),
            self._block(narrow, 1)
            | self._along(0)
            | self._to(wide, 1)
            | to_acc
            | {
                "src": FUSE_SRC.pack(b_src=BSource.SP, b_dtype=Dtype.I16, op=Op.MUL),
                "b_base": p,
                "b_x": 2 * n,
                "op_shift": _PRODUCT,
            },
            self._block(wide, 1) | row | self._along(0) | self._result(y, y_pitch, p),
        ]

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
    def _sum(post: Post) -> int:
        return FUSE_STAGE.pack(
            reduce=Reduce.SUM, lane_reduce=Reduce.SUM, post=post, tail_dim=FUSE_DIMS.index("wx")
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

    def _result(self, y: BufferRef, pitch: int, p: BufferRef) -> _Fields:
        """Return the fields of the last pass, which multiplies by the reciprocal square root and adds beta."""
        layer, n = self.layer, self.n
        limits = np.iinfo(np.int16)
        return {
            "src": FUSE_SRC.pack(b_src=BSource.ACC, requant=Requant.ROW, rq_lane=2, rounding=Rounding.EVEN),
            "stage": FUSE_STAGE.pack(
                residual=1,
                r_dtype=Dtype.I16,
                r_raw=1,
                d_dst=1,
                d_dtype=layer.shapes[layer.y].dtype,
                tail_dim=FUSE_DIMS.index("x"),
            ),
            "clip_lo": int(limits.min),
            "clip_hi": int(limits.max),
            "r_base": p.plus(2 * self.blocks * n),
            "r_x": 2 * n,
            "x_mult": 1,
            "r_mult": 1,
            "o_mult": 1,
            "r_shifts": bytes_word(0, 0, 31 - layer.bits),
            "o_zp": layer.y_zp,
            "r_lo": layer.clip[0],
            "r_hi": layer.clip[1],
            "d_base": y,
            "d_x": n,
            "d_y": pitch,
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
