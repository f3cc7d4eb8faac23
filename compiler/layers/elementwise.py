"""Elementwise operators: sums and products of tensors, and functions of one operand as lookup tables."""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from typing import Any, NamedTuple, cast

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
from compiler.ir.ops import BINARY_OPS, LOGIC_OPS, TABLE_OPS
from compiler.ir.tensor import Tensor
from compiler.kernel_library.elementwise import LEFT_SHIFT, LEFT_SHIFT_16, mul, raw_fields, residual_fields
from compiler.layers.base import Drain, Layer
from compiler.layers.epilogue import Slots
from compiler.layers.layer_kind import BYTES, BYTES_TO_BYTES, INTEGERS, ElementTypes, LayerKind, Lowering
from compiler.layers.lookup_table import is_unary, table_of
from compiler.layers.lowering_context import (
    LoweringContext,
    UnsupportedLoweringError,
    affine,
    clip_range,
    same_quantization,
)
from compiler.layers.tile_pipeline import TilePipeline, even_tiles
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings, stream_cycles
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import bytes_word, halves_word, quantize_multiplier
from compiler.util.tiles import ceil_div, cuts
from cosim.semantics.fixed_point import scale
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, BSource, Op, Requant, Rounding, Unit


@identity("Spread", "ALL", "CHANNEL", "PIXEL", "SCALAR")
class Broadcast(StrEnum):
    """Broadcasting of an operand to the shape of the result."""

    ALL = "all"  # element by element
    CHANNEL = "channel"  # one value for each channel
    PIXEL = "pixel"  # one value for each pixel
    SCALAR = "scalar"


#: Operators whose second operand FUSE reads as operand B, of which one lane can be broadcast.
_BROADCAST_LANES = LOGIC_OPS | {"mul", "where"}


def broadcast_of(op: str, b: tuple[int, ...], a: tuple[int, ...]) -> Broadcast | None:
    """Return how an operand of shape `b` is broadcast to shape `a`; None if the operator does not support it."""
    padded = (1,) * (len(a) - len(b)) + b
    if padded == a:
        return Broadcast.ALL
    if len(padded) != len(a):
        return None
    if all(size == 1 for size in padded[:-1]) and padded[-1] == a[-1]:
        return Broadcast.CHANNEL
    if op in _BROADCAST_LANES and all(size == 1 for size in padded):
        return Broadcast.SCALAR
    if op in _BROADCAST_LANES and padded[:-1] == a[:-1] and padded[-1] == 1:
        return Broadcast.PIXEL
    return None


@identity("ElementwiseLayer", "other", "spread", "stream", "src", "stage", "fields", "table", "drain")
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
    """

    other: str | None = None
    broadcast: Broadcast = Broadcast.ALL
    stream: str = "b"
    src: dict[str, int] = field(default_factory=dict)
    stage: dict[str, int] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    table: NDArray[np.int16] | None = None
    drain: Drain | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the first tensor and, if present, the second."""
        return (self.x, *([self.other] if self.other else []))

    @property
    def by_channel(self) -> bool:
        """True if parameters or the second operand differ from channel to channel."""
        return self.drain is not None or (self.other is not None and self.broadcast != Broadcast.ALL)


#: Element types of operators that also support int16.
_UP_TO_16 = (*BYTES, "int16")
#: Maximum number of pixels of a tile, because FUSE's counts have 16 bits.
_MAX_ROWS = 0xFFFF
#: Rounding mode of sums of bytes, by kernels.
_SUMS = {"reference": Rounding.DOUBLE, "xnnpack": Rounding.SINGLE, "onnxruntime": Rounding.EVEN}


def lower_unary(low: LoweringContext) -> Layer:
    """Lower a function of one operand."""
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
    common = low.common(x=x.name)
    return ElementwiseLayer(**common, table=table_of(low.graph, node, low.rounding))


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
    a, b = graph.ins(node)
    swapped = a.shape != low.y.shape or a.constant
    if swapped:
        a, b = b, a
    broadcast = broadcast_of(node.op, b.shape, a.shape) if a.shape == low.y.shape else None
    if broadcast is None:
        shapes = [list(tensor.shape) for tensor in graph.ins(node)]
        raise UnsupportedLoweringError(
            f"operands of shapes {shapes[0]} and {shapes[1]} for {list(low.y.shape)}"
        )
    if a.constant:
        raise UnsupportedLoweringError(f"{node.op} of a constant and a smaller tensor")
    if "int16" in {a.dtype, b.dtype, low.y.dtype}:
        _check_wide(low, a, b)
    fields = _product(low, a, b) if node.op == "mul" else _sum(low, a, b, swapped=swapped)
    return ElementwiseLayer(**low.common(b.name, x=a.name), other=b.name, broadcast=broadcast, **fields)


def _check_wide(low: LoweringContext, a: Tensor, b: Tensor) -> None:
    """Reject arithmetic on int16 whose results differ from those of the rounding mode's kernels.

    Under onnxruntime's rounding, the float32 result must be exact: all scales are powers of two, and a product has at
    most the 24 bits of one int16 and one 8-bit operand.
    """
    if low.y.dtype != "int16" or "int32" in (a.dtype, b.dtype):
        raise UnsupportedLoweringError(f"{low.anchor.op} of {a.dtype} and {b.dtype} to {low.y.dtype}")
    if low.rounding != "onnxruntime":
        return
    exact = all(math.frexp(affine(each).scale)[0] == 0.5 for each in (a, b, low.y))
    if not exact or (low.anchor.op == "mul" and a.dtype == b.dtype == "int16"):
        _check_kernels(low)


def _sum(low: LoweringContext, a: Tensor, b: Tensor, *, swapped: bool) -> dict:
    """Return the layer fields of a sum or difference; `swapped` is True if `a` is the node's second operand."""
    wide = low.y.dtype == "int16"
    raw, left = low.rounding == "xnnpack" and not wide, LEFT_SHIFT_16 if wide else LEFT_SHIFT
    scales = affine(a), affine(b), affine(low.y)
    fields = dict(cast(dict[str, int], raw_fields(*scales) if raw else residual_fields(*scales, left)))
    if low.anchor.op == "sub":
        negative = "x_mult" if swapped else "r_mult"
        if wide and low.rounding != "onnxruntime" and not _negates(fields, swapped=swapped):
            raise UnsupportedLoweringError("a difference of int16 values whose scaling may end in a tie")
        fields[negative] = -fields[negative]
    clip = clip_range(low.y)
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


def _product(low: LoweringContext, a: Tensor, b: Tensor) -> dict:
    double = low.rounding == "reference" or (low.rounding == "xnnpack" and low.y.dtype == "int16")
    rounding = Rounding.DOUBLE if double else Rounding.EVEN
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
    """

    total: int
    load: float
    store: float
    fuse: float
    held: tuple[int, int]


def _stream(layer: ElementwiseLayer, n: int, on_chip: Callable[[str], bool], columns: int) -> _Stream:
    """Return the work of a layer, of which at most `columns` blocks of channels are in a tile."""
    y = layer.shapes[layer.y]
    sizes = {name: DTYPE_BYTES[layer.shapes[name].dtype] for name in (*layer.inputs, layer.y)}
    pixels, channels = (y.h * y.w, y.c) if layer.by_channel else (ceil_div(y.h * y.w * y.c, n), n)
    width = min(columns * n, channels)
    turns = ceil_div(channels, width)
    # Operands share one read port; a row of wider elements needs one read or write per byte of an element.
    work = max(sum(sizes[name] for name in layer.inputs), sizes[layer.y])
    whole = [layer.x, *([layer.other] if layer.other and layer.broadcast == Broadcast.ALL else [])]
    load = sum(sizes[name] for name in whole if not on_chip(name))
    store = 0 if on_chip(layer.y) else sizes[layer.y]
    return _Stream(
        pixels * turns,
        load * width / n,
        store * width / n,
        float(work * ceil_div(width, n)),
        (load * width, store * width),
    )


#: Numbers of buffers of each operand that are tried; more than two hide the latency of small tiles.
_BUFFERS = (2, 3, 4, 6, 8)


def elementwise_tilings(context: TilingContext, layer: ElementwiseLayer) -> Tilings:
    """Yield the tilings of an elementwise layer that fit, with part of the channels only if nothing else fits."""
    n, found = context.config.n, False
    blocks = ceil_div(layer.shapes[layer.y].c, n) if layer.by_channel else 1
    for columns in cuts(blocks):
        work = _stream(layer, n, context.on_chip, columns)
        once = 0
        if layer.other and layer.broadcast == Broadcast.CHANNEL:
            once = columns * n * DTYPE_BYTES[layer.shapes[layer.other].dtype]
        for rows, buffers in product(cuts(work.total), _BUFFERS if work.load else _BUFFERS[:1]):
            used = rows * (buffers * work.held[0] + 2 * work.held[1]) + once
            if used > context.free or rows > _MAX_ROWS:
                continue
            found = True
            cycles = stream_cycles(
                context, work.total / rows, rows * work.load, rows * work.fuse, rows * work.store, buffers
            )
            schedule = LayerSchedule(rows=rows, x_buffers=buffers, on_chip=context.y_on_chip)
            yield cycles, schedule if columns == blocks else replace(schedule, columns=columns)
        if found:
            return


def elementwise_tile_model(layer: ElementwiseLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of an elementwise layer."""
    work = _stream(layer, context.config.n, context.on_chip, s.columns)
    return even_tiles(
        s,
        work.total,
        min(s.rows, work.total),
        lambda start, count: [("x", start, count * work.load)] if work.load else [],
        lambda count: count * work.fuse,
        lambda count: count * work.store,
        1,
        layer.table is not None,
    )


class ElementwiseSteps:
    """Code generator of an elementwise layer; a tile consists of some pixels with all their channels.

    If no value depends on the channel and all tensors are contiguous, N consecutive elements are treated as one pixel.
    """

    def __init__(self, context: CodegenContext, layer: ElementwiseLayer):
        self.context, self.layer, self.n = context, layer, context.config.n
        self.x, self.y = context.layouts[layer.x], context.layouts[layer.y]
        image = layer.shapes[layer.y]
        self.pixels, self.channels = image.h * image.w, image.c
        self.total = self.pixels * self.channels
        names = (layer.x, layer.y, *([layer.other] if layer.other else []))
        compact = all(context.layouts[name].compact(self._bytes(name)) for name in names)
        self.flat = compact and not layer.by_channel
        if self.flat:
            self.pixels, self.channels = ceil_div(self.total, self.n), self.n
        self.blocks = ceil_div(self.channels, self.n)
        rows = context.schedule.rows
        if not self.flat and not layer.by_channel:  # the schedule counts rows of N elements
            rows = max(rows * self.n // self.channels, 1)
        self.rows = min(rows, self.pixels)
        self.sources = {"a": self._source("a", layer.x, Broadcast.ALL)}
        if layer.other:
            self.sources[layer.stream] = self._source(layer.stream, layer.other, layer.broadcast)
        size = self.rows * self.channels * self._bytes(layer.y) + self.n * self._bytes(layer.y)
        self.out = BufferRotation(BufferMemory.SP, f"{layer.name}.y", size, context.schedule.y_buffers)
        self.table = None if layer.table is None else Tables(context, layer.name, layer.table)
        self.slots = None if layer.drain is None else Slots(context, layer.name, layer.drain, self.blocks)

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        return [self._tile(start, count) for start, count in pieces(self.pixels, self.rows)]

    def _bytes(self, name: str) -> int:
        return DTYPE_BYTES[self.layer.shapes[name].dtype]

    def _source(self, stream: str, name: str, broadcast: Broadcast) -> TileBuffers:
        """Return the tile buffers into which a tensor is loaded if it is not in the scratchpad."""
        size = self._bytes(name)
        count = self.rows if broadcast in (Broadcast.ALL, Broadcast.PIXEL) else 1
        width = self.channels if broadcast in (Broadcast.ALL, Broadcast.CHANNEL) else 1
        buffer = CircularBuffer(
            BufferMemory.SP,
            f"{self.layer.name}.{stream}",
            count * width * size + self.n * size,
            self.context.schedule.x_buffers if count == self.rows else 1,
        )
        return TileBuffers(buffer, self._loader(self.context.layouts[name], size, broadcast))

    def _loader(
        self, layout: TensorLayout, size: int, broadcast: Broadcast
    ) -> Callable[[Hashable, BufferRef], list[Command]]:
        def load(key: Hashable, address: BufferRef) -> list[Command]:
            start, count = key  # type: ignore[misc]
            source, width = BufferRef(layout.buffer, 0, layout.offset), self.channels * size
            if self.flat:
                length = min(count * self.n, self.total - start * self.n) * size
                lines = {"len": length}
                source = source.plus(start * self.n * size)
            elif broadcast == Broadcast.ALL:
                source = source.plus(start * layout.pixel)
                lines = {"len": width, "y_count": count, "dram_y": layout.pixel, "dst_y": width}
                if layout.pixel == width:
                    lines = {"len": count * width}
            elif broadcast == Broadcast.PIXEL:
                source = source.plus(start * layout.pixel)
                lines = (
                    {"len": count * size}
                    if layout.pixel == size
                    else {
                        "len": size,
                        "y_count": count,
                        "dram_y": layout.pixel,
                        "dst_y": size,
                    }
                )
            else:
                lines = {"len": width if broadcast == Broadcast.CHANNEL else size}
            return [self.context.command(Unit.LOAD, dram=source, dst=address, **lines)]

        return load

    def _address(
        self, stream: str, name: str, start: int, count: int, step: TileStep
    ) -> tuple[BufferRef, int]:
        """Return the address of a source's first pixel in the tile, and the distance between pixels in bytes."""
        layout, size = self.context.layouts[name], self._bytes(name)
        broadcast = Broadcast.ALL if stream == "a" else self.layer.broadcast
        moving = broadcast in (Broadcast.ALL, Broadcast.PIXEL)
        if not layout.on_chip:
            address = self.sources[stream].get((start, count) if moving else (0, 1), step)
            pitch = (self.channels if broadcast == Broadcast.ALL else 1) * size
            return address, pitch if moving else 0
        pitch = self.n * size if self.flat else layout.pixel
        return BufferRef(
            layout.buffer, 0, layout.offset + (start * pitch if moving else 0)
        ), pitch if moving else 0

    def _tile(self, start: int, count: int) -> TileStep:
        step, layer, n = TileStep(), self.layer, self.n
        size = self._bytes(layer.y)
        pitch = self.channels * size if self.flat or not self.y.on_chip else self.y.pixel
        address = self.out.next()
        if self.y.on_chip:
            address = BufferRef(self.y.buffer, 0, self.y.offset + start * pitch)
        a, a_pitch = self._address("a", layer.x, start, count, step)
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
            "d_base": address,
            "d_x": pitch,
            "d_n": n * size,
            **layer.fields,
        }
        if layer.other:
            other, other_pitch = self._address(layer.stream, layer.other, start, count, step)
            fields[f"{layer.stream}_base"] = other
            fields[f"{layer.stream}_x"] = other_pitch
            if layer.broadcast in (Broadcast.ALL, Broadcast.CHANNEL):
                fields[f"{layer.stream}_n"] = n * self._bytes(layer.other)
        if self.slots:
            fields |= {"p_base": self.slots.get(0, step), "p_n": 1}
        step.fuse += self._commands(fields, step, start, count)
        if not self.y.on_chip:
            step.stores.append(self._store(address, start, count, size))
        return step

    def _commands(
        self, fields: dict[str, int | BufferRef], step: TileStep, start: int, count: int
    ) -> list[Command]:
        """Return the commands of a tile of `count` pixels that begins with pixel `start`."""
        return [self.context.command(Unit.FUSE, **fields)]

    def _tail(self, start: int, count: int) -> int:
        """Return the number of valid lanes in the last block of channels or, for flat tensors, in the last row."""
        if self.flat:
            return (min(count * self.n, self.total - start * self.n) - 1) % self.n + 1
        return (self.channels - 1) % self.n + 1

    def _store(self, address: BufferRef, start: int, count: int, size: int) -> Command:
        target = BufferRef(self.y.buffer, 0, self.y.offset)
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
        return self.context.command(Unit.STORE, dram=target, src=address, **lines)

    def _source_word(self) -> int:
        layer = self.layer
        parts = dict(layer.src)
        if layer.other and layer.stream == "b":
            parts |= {"b_src": BSource.SP, "b_dtype": layer.shapes[layer.other].dtype}
            parts["b_bcast"] = int(layer.broadcast in (Broadcast.PIXEL, Broadcast.SCALAR))
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
            return self.table.word(step, **{"table": 1, **parts})
        return FUSE_STAGE.pack(**parts)


def elementwise_steps(context: CodegenContext, layer: ElementwiseLayer) -> list[TileStep]:
    """Generate the steps of an elementwise layer, for one range of channels after the other."""
    image, width = layer.shapes[layer.y], context.schedule.columns * context.config.n
    if width >= image.c or not layer.by_channel:
        return ElementwiseSteps(context, layer).steps()
    out = []
    for first, count in pieces(image.c, width):
        shapes = {
            name: replace(each, c=count) if each.c == image.c else each for name, each in layer.shapes.items()
        }
        layouts = {
            name: replace(
                context.layouts[name],
                c=count,
                offset=context.layouts[name].offset + first * DTYPE_BYTES[each.dtype],
            )
            if each.c == count and layer.shapes[name].c == image.c
            else context.layouts[name]
            for name, each in shapes.items()
        }
        drain = layer.drain and layer.drain.part(slice(first, first + count))
        part = replace(layer, name=f"{layer.name}.{first}", shapes=shapes, drain=drain)
        out += ElementwiseSteps(replace(context, layouts=context.layouts | layouts), part).steps()
    return out


KIND = LayerKind(
    name="elementwise",
    layer=ElementwiseLayer,
    lowerings={
        **dict.fromkeys(
            BINARY_OPS,
            Lowering(
                lower_binary, ElementTypes((_UP_TO_16,), _UP_TO_16), strided_input=True, strided_output=True
            ),
        ),
        # Requantization is lowered as a move of elements, which supports more element types than a table.
        **dict.fromkeys(
            TABLE_OPS - {"requantize", "clip", *_SLOPES},
            Lowering(lower_unary, BYTES_TO_BYTES, strided_input=True, strided_output=True),
        ),
        **dict.fromkeys(
            _SLOPES,
            Lowering(
                lower_unary, ElementTypes((_UP_TO_16,), _UP_TO_16), strided_input=True, strided_output=True
            ),
        ),
        "clip": Lowering(
            lower_unary, ElementTypes((INTEGERS,), INTEGERS), strided_input=True, strided_output=True
        ),
    },
    tilings=elementwise_tilings,
    tile_model=elementwise_tile_model,
    steps=elementwise_steps,
    rank_by_tile_model=True,
)
