"""Elementwise operators: sums and products of tensors, functions of one number by table."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

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
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, Tables, TileBuffers, pieces
from compiler.ir.identity import identity
from compiler.ir.ops import BINARY_OPS, TABLE_OPS
from compiler.ir.tensor import Tensor
from compiler.kernel_library.elementwise import LEFT_SHIFT, mul, raw_fields, residual_fields
from compiler.layers.base import Drain, Layer
from compiler.layers.epilogue import Slots
from compiler.layers.layer_kind import BYTES_TO_BYTES, LayerKind, Lowering
from compiler.layers.lookup_table import is_unary, table_of
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError, affine, clip_range
from compiler.layers.tile_pipeline import TileLoad, TilePipeline, even_tiles
from compiler.layers.tiling_context import TILE, LayerContext, TilingContext, Tilings
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div, cuts
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, BSource, Op, Requant, Rounding, Unit


@identity("Spread", "ALL", "CHANNEL", "PIXEL", "SCALAR")
class Spread(StrEnum):
    """Broadcast of an operand to the shape of the result."""

    ALL = "all"  # element by element
    CHANNEL = "channel"  # one number for each channel
    PIXEL = "pixel"  # one number for each pixel
    SCALAR = "scalar"


def laid_over(op: str, b: tuple[int, ...], a: tuple[int, ...]) -> Spread | None:
    """Broadcast of an operand of shape `b` to shape `a`; None if the accelerator cannot do it for the operator."""
    padded = (1,) * (len(a) - len(b)) + b
    if padded == a:
        return Spread.ALL
    if len(padded) != len(a):
        return None
    if all(size == 1 for size in padded[:-1]) and padded[-1] == a[-1]:
        return Spread.CHANNEL
    if op == "mul" and all(size == 1 for size in padded):
        return Spread.SCALAR
    if op == "mul" and padded[:-1] == a[:-1] and padded[-1] == 1:
        return Spread.PIXEL
    return None


@identity("ElementwiseLayer", "other", "spread", "stream", "src", "stage", "fields", "table", "drain")
@dataclass(frozen=True, kw_only=True, eq=False)
class ElementwiseLayer(Layer):
    """One FUSE pass over all elements of one or two tensors.

    Parameters
    ----------
    other : str or None
        The second tensor, perhaps a constant.
    spread : Spread
        Broadcast of the second operand over the first.
    stream : str
        Which of FUSE's streams the second tensor is: b or r.
    src, stage : dict
        Fields of the fuse word other than sources and destination.
    fields : dict
        Other fields of FUSE.
    table : (256,) int16 array or None
        Table it looks up.
    drain : Drain or None
        Parameters of each channel, negatives' among them.
    """

    other: str | None = None
    spread: Spread = Spread.ALL
    stream: str = "b"
    src: dict[str, int] = field(default_factory=dict)
    stage: dict[str, int] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    table: NDArray[np.int16] | None = None
    drain: Drain | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """One or both tensors."""
        return (self.x, *([self.other] if self.other else []))


#: How sums are rounded: halves up, or away from zero, or, of float32 numbers, to even.
_SUMS = {"reference": Rounding.DOUBLE, "xnnpack": Rounding.SINGLE, "onnxruntime": Rounding.EVEN}


def lower_unary(low: LoweringContext) -> Layer:
    """A function of single numbers."""
    node = low.anchor
    if not is_unary(low.graph, node):
        raise UnsupportedLoweringError(
            f"{node.op} of {low.x.dtype} tensors quantized channel by channel, or not at all"
        )
    x = next(t for t in low.graph.ins(node) if not t.constant)
    common = low.common(x=x.name)
    return ElementwiseLayer(**common, table=table_of(low.graph, node, low.rounding))


def lower_binary(low: LoweringContext) -> Layer:
    """A sum, difference or product of two tensors, one of them perhaps spread over the other."""
    graph, node = low.graph, low.anchor
    if is_unary(graph, node):
        return lower_unary(low)
    a, b = graph.ins(node)
    turned = a.shape != low.y.shape or a.constant
    if turned:
        a, b = b, a
    spread = laid_over(node.op, b.shape, a.shape) if a.shape == low.y.shape else None
    if spread is None:
        shapes = [list(tensor.shape) for tensor in graph.ins(node)]
        raise UnsupportedLoweringError(
            f"operands of shapes {shapes[0]} and {shapes[1]} for {list(low.y.shape)}"
        )
    if a.constant:
        raise UnsupportedLoweringError(f"{node.op} of a constant and a smaller tensor")
    fields = _product(low, a, b) if node.op == "mul" else _sum(low, a, b, turned=turned)
    return ElementwiseLayer(**low.common(b.name, x=a.name), other=b.name, spread=spread, **fields)


def _sum(low: LoweringContext, a: Tensor, b: Tensor, *, turned: bool) -> dict:
    """A sum or difference; the operands are `turned` if the node's second one is a."""
    raw = low.rounding == "xnnpack"
    fields = dict(
        cast(dict[str, int], (raw_fields if raw else residual_fields)(affine(a), affine(b), affine(low.y)))
    )
    if low.anchor.op == "sub":
        negative = "x_mult" if turned else "r_mult"
        fields[negative] = -fields[negative]
    clip = clip_range(low.y)
    rounding = _SUMS[low.rounding]
    return {
        "stream": "r",
        "src": {"rounding": rounding},
        "stage": {"r_raw": int(raw), "r_ls": 0 if raw else LEFT_SHIFT},
        "fields": {**fields, "r_lo": clip[0], "r_hi": clip[1]},
    }


def _product(low: LoweringContext, a: Tensor, b: Tensor) -> dict:
    rounding = Rounding.DOUBLE if low.rounding == "reference" else Rounding.EVEN
    how = mul(affine(a), affine(b), affine(low.y), rounding=rounding)
    clip = clip_range(low.y)
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


def elementwise_tilings(context: TilingContext, layer: ElementwiseLayer) -> Tilings:
    """Tilings of an elementwise layer that fit."""
    n, y = context.config.n, layer.shapes[layer.y]
    total = ceil_div(y.h * y.w * y.c, n)
    sizes = [DTYPE_BYTES[layer.shapes[name].dtype] for name in (*layer.inputs, layer.y)]
    for rows in cuts(total):
        used = 2 * rows * n * sum(sizes)
        if (used > context.free and not (context.x_on_chip and context.y_on_chip)) or rows > 0xFFFF:
            continue
        tiles = ceil_div(total, rows)
        # A row of wider elements needs one read or write per byte of an element.
        work = total * max(sizes)
        yield max(work, tiles * TILE) + 2 * rows, LayerSchedule(rows=rows, on_chip=context.y_on_chip)


def elementwise_tile_model(layer: ElementwiseLayer, s: LayerSchedule, place: LayerContext) -> TilePipeline:
    """Tile model of an elementwise layer."""
    n, y = place.config.n, layer.shapes[layer.y]
    total = ceil_div(y.h * y.w * y.c, n)
    sizes = {name: DTYPE_BYTES[layer.shapes[name].dtype] for name in (*layer.inputs, layer.y)}
    away = [
        name
        for name in (layer.x, *([layer.other] if layer.other and layer.spread == Spread.ALL else []))
        if not place.on_chip(name)
    ]

    reads = sizes[layer.x]
    if layer.other and layer.spread == Spread.ALL:  # one port of the scratchpad for both
        reads += sizes.get(layer.other, 1)

    def loads(start: int, count: int) -> list[TileLoad]:
        return [
            (ring, start, float(count * sizes.get(name, 1))) for ring, name in zip("xb", away, strict=False)
        ]

    return even_tiles(
        s,
        total,
        min(s.rows, total),
        loads,
        lambda count: count * reads,
        lambda count: 0.0 if place.y_on_chip else float(count * sizes[layer.y]),
        1,
        layer.table is not None,
    )


class ElementwiseSteps:
    """The steps of an elementwise layer: a tile is some pixels with all their channels.

    If nothing depends on the channel and all tensors are contiguous, N consecutive elements are treated as a pixel.
    """

    def __init__(self, context: CodegenContext, layer: ElementwiseLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.x, self.y = context.homes[layer.x], context.homes[layer.y]
        image = layer.shapes[layer.y]
        self.pixels, self.channels = image.h * image.w, image.c
        self.total = self.pixels * self.channels
        names = (layer.x, layer.y, *([layer.other] if layer.other else []))
        compact = all(context.homes[name].compact(self._bytes(name)) for name in names)
        self.flat = compact and not self._by_channel()
        if self.flat:
            self.pixels, self.channels = ceil_div(self.total, self.n), self.n
        self.blocks = ceil_div(self.channels, self.n)
        self.rows = min(context.schedule.rows, self.pixels)
        self.sources = {"a": self._source("a", layer.x, Spread.ALL)}
        if layer.other:
            self.sources[layer.stream] = self._source(layer.stream, layer.other, layer.spread)
        size = self.rows * self.channels * self._bytes(layer.y) + self.n * self._bytes(layer.y)
        self.out = BufferRotation(BufferMemory.SP, f"{layer.name}.y", size, context.schedule.y_buffers)
        self.table = None if layer.table is None else Tables(context, layer.name, layer.table)
        self.slots = None if layer.drain is None else Slots(context, layer.name, layer.drain, self.blocks)

    def steps(self) -> list[TileStep]:
        """All tiles."""
        return [self._tile(start, count) for start, count in pieces(self.pixels, self.rows)]

    def _by_channel(self) -> bool:
        """Something is another for each channel."""
        layer = self.layer
        return layer.drain is not None or (layer.other is not None and layer.spread != Spread.ALL)

    def _bytes(self, name: str) -> int:
        return DTYPE_BYTES[self.layer.shapes[name].dtype]

    def _source(self, stream: str, name: str, spread: Spread) -> TileBuffers:
        """Tiles of a tensor that is not in the scratchpad."""
        size = self._bytes(name)
        count = self.rows if spread in (Spread.ALL, Spread.PIXEL) else 1
        width = self.channels if spread in (Spread.ALL, Spread.CHANNEL) else 1
        ring = CircularBuffer(
            BufferMemory.SP,
            f"{self.layer.name}.{stream}",
            count * width * size + self.n * size,
            self.context.schedule.x_buffers if count == self.rows else 1,
        )
        return TileBuffers(ring, self._loader(self.context.homes[name], size, spread))

    def _loader(
        self, home: TensorLayout, size: int, spread: Spread
    ) -> Callable[[Hashable, BufferRef], list[Command]]:
        def load(key: Hashable, place: BufferRef) -> list[Command]:
            start, count = key  # type: ignore[misc]
            source, width = BufferRef(home.ring, 0, home.offset), self.channels * size
            if self.flat:
                length = min(count * self.n, self.total - start * self.n) * size
                lines = {"len": length}
                source = source.plus(start * self.n * size)
            elif spread == Spread.ALL:
                source = source.plus(start * home.pixel)
                lines = {"len": width, "y_count": count, "dram_y": home.pixel, "dst_y": width}
                if home.pixel == width:
                    lines = {"len": count * width}
            elif spread == Spread.PIXEL:
                source = source.plus(start * home.pixel)
                lines = (
                    {"len": count * size}
                    if home.pixel == size
                    else {
                        "len": size,
                        "y_count": count,
                        "dram_y": home.pixel,
                        "dst_y": size,
                    }
                )
            else:
                lines = {"len": width if spread == Spread.CHANNEL else size}
            return [self.context.command(Unit.LOAD, dram=source, dst=place, **lines)]

        return load

    def _place(self, stream: str, name: str, start: int, count: int, step: TileStep) -> tuple[BufferRef, int]:
        """Address of a source's first pixel of the tile, and bytes from pixel to pixel."""
        home, size = self.context.homes[name], self._bytes(name)
        spread = Spread.ALL if stream == "a" else self.layer.spread
        moving = spread in (Spread.ALL, Spread.PIXEL)
        if not home.on_chip:
            place = self.sources[stream].get((start, count) if moving else (0, 1), step)
            pitch = (self.channels if spread == Spread.ALL else 1) * size
            return place, pitch if moving else 0
        pitch = self.n * size if self.flat else home.pixel
        return BufferRef(home.ring, 0, home.offset + (start * pitch if moving else 0)), pitch if moving else 0

    def _tile(self, start: int, count: int) -> TileStep:
        step, layer, n = TileStep(), self.layer, self.n
        size = self._bytes(layer.y)
        pitch = self.channels * size if self.flat or not self.y.on_chip else self.y.pixel
        place = self.out.next()
        if self.y.on_chip:
            place = BufferRef(self.y.ring, 0, self.y.offset + start * pitch)
        a, a_pitch = self._place("a", layer.x, start, count, step)
        fields: dict[str, int | BufferRef] = {
            "src": self._source_word(),
            "stage": self._stage_word(step),
            "a_base": a,
            "a_v": a_pitch,
            "v_x": 1,
            "a_n": n * self._bytes(layer.x),
            "x_count": count,
            "n_count": self.blocks,
            "lanes_tail": self._tail(start, count),
            "d_base": place,
            "d_x": pitch,
            "d_n": n * size,
            **layer.fields,
        }
        if layer.other:
            other, other_pitch = self._place(layer.stream, layer.other, start, count, step)
            fields[f"{layer.stream}_base"] = other
            fields[f"{layer.stream}_x"] = other_pitch
            if layer.spread in (Spread.ALL, Spread.CHANNEL):
                fields[f"{layer.stream}_n"] = n * self._bytes(layer.other)
        if self.slots:
            fields |= {"p_base": self.slots.get(0, step), "p_n": 1}
        step.fuse += self._commands(fields, step, start, count)
        if not self.y.on_chip:
            step.stores.append(self._store(place, start, count, size))
        return step

    def _commands(
        self, fields: dict[str, int | BufferRef], step: TileStep, start: int, count: int
    ) -> list[Command]:
        """Commands of a tile: `count` pixels from `start` on."""
        return [self.context.command(Unit.FUSE, **fields)]

    def _tail(self, start: int, count: int) -> int:
        """Lanes of the last block of channels, or of the last row of all."""
        if self.flat:
            return (min(count * self.n, self.total - start * self.n) - 1) % self.n + 1
        return (self.channels - 1) % self.n + 1

    def _store(self, place: BufferRef, start: int, count: int, size: int) -> Command:
        target = BufferRef(self.y.ring, 0, self.y.offset)
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
        return self.context.command(Unit.STORE, dram=target, src=place, **lines)

    def _source_word(self) -> int:
        layer = self.layer
        parts = dict(layer.src)
        if layer.other and layer.stream == "b":
            parts |= {"b_src": BSource.SP, "b_dtype": layer.shapes[layer.other].dtype}
            parts["b_bcast"] = int(layer.spread in (Spread.PIXEL, Spread.SCALAR))
        if layer.drain:
            parts |= {"requant": Requant.SLOT, "rounding": layer.drain.rounding}
        return FUSE_SRC.pack(a_src=1, a_dtype=layer.shapes[layer.x].dtype, **parts)

    def _stage_word(self, step: TileStep) -> int | BufferRef:
        layer = self.layer
        parts = layer.stage | {
            "d_dst": 1,
            "d_dtype": layer.shapes[layer.y].dtype,
            "tail_dim": FUSE_DIMS.index("x" if self.flat else "n"),
        }
        if layer.other and layer.stream == "r":
            parts |= {"residual": 1, "r_dtype": layer.shapes[layer.other].dtype}
        if self.table:
            return self.table.word(step, **parts, table=1)
        return FUSE_STAGE.pack(**parts)


def elementwise_steps(context: CodegenContext, layer: ElementwiseLayer) -> list[TileStep]:
    """The steps of an elementwise layer."""
    return ElementwiseSteps(context, layer).steps()


KIND = LayerKind(
    name="elementwise",
    layer=ElementwiseLayer,
    lowerings={
        **dict.fromkeys(
            BINARY_OPS, Lowering(lower_binary, BYTES_TO_BYTES, strided_input=True, strided_output=True)
        ),
        # Requantization is a move of elements: it has more element types than a table.
        **dict.fromkeys(
            TABLE_OPS - {"requantize"},
            Lowering(lower_unary, BYTES_TO_BYTES, strided_input=True, strided_output=True),
        ),
    },
    tilings=elementwise_tilings,
    tile_model=elementwise_tile_model,
    steps=elementwise_steps,
    rank_by_tile_model=True,
)
