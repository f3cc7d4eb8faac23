"""Code generation for element-wise layers."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.commands.commands import (
    BufferMemory,
    BufferRef,
    CircularBuffer,
    Command,
    TensorLayout,
    TileStep,
)
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers, pieces
from compiler.layers.elementwise import (
    ELEMENTWISE_LOWERINGS,
    LANE_COPIES,
    Broadcast,
    ElementwiseLayer,
    elementwise_tile_model,
    elementwise_tilings,
    uses_expansion,
    widens_by_matrix,
)
from compiler.layers.epilogue import Slots
from compiler.layers.layer_kind import LayerKind
from compiler.layers.strided_copy import Rescale
from compiler.util.scaling import bytes_word, halves_word
from compiler.util.tiles import ceil_div
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, MATRIX_WORD
from hw.isa.enums import DTYPE_BYTES, BSource, Dtype, Op, Reduce, Requant, Rounding, Unit


def _swapped(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a residual addition whose main value and residual are exchanged."""
    out = dict(fields)
    out["x_mult"], out["r_mult"] = fields["r_mult"], fields["x_mult"]
    zeros, shifts = fields["zp_xr"], fields["r_shifts"]
    out["zp_xr"] = zeros >> 16 | (zeros & 0xFFFF) << 16
    out["r_shifts"] = shifts & 0xFF0000 | shifts >> 8 & 0xFF | (shifts & 0xFF) << 8
    return out


def _viewed(layout: TensorLayout, pixels: int, channels: int, size: int) -> TensorLayout:
    """Return a contiguous layout with other pixels, or the layout itself if its pixels have the given channels."""
    if layout.c == channels:
        return layout
    return replace(layout, h=pixels, w=1, c=channels, pixel=channels * size, row=channels * size)


class ElementwiseSteps:
    """Code generator of an elementwise layer; a tile consists of some pixels with all their channels.

    If no value depends on the channel or the pixel and all tensors are contiguous, N consecutive elements are treated
    as one pixel.

    A second operand that is smaller than the result is first widened to rows of the accumulator, which FUSE then reads
    beside the scratchpad: a row for each block of channels, for each pixel of a tile, or for the only element. If its
    values repeat in rows of pixels (`BroadcastRows`), a tile consists of part of a row, or of whole rows of a group.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    layer : ElementwiseLayer
        Layer to generate code for.
    before : ElementwiseSteps or None
        Code generator of other channels of the layer, at least as many, whose buffers are used again.
    """

    def __init__(
        self, context: CodegenContext, layer: ElementwiseLayer, before: "ElementwiseSteps | None" = None
    ):
        self.context, self.layer, self.n = context, layer, context.config.n
        image = layer.shapes[layer.y]
        self.total = image.h * image.w * image.c
        whole = [name for name in (*layer.inputs, layer.y) if name != layer.small]
        compact = all(context.layouts[name].compact(self._bytes(name)) for name in whole)
        expands = uses_expansion(layer, context.config)
        self.expands = expands and compact and context.layouts[layer.small or layer.x].compact(1)
        self.flat = compact and (not layer.by_channel or self.expands)
        self.by_matrix = widens_by_matrix(layer, context.config, lambda name: context.layouts[name].on_chip)
        self.pixels, self.channels = layer.view
        self.layouts = context.layouts | {
            name: _viewed(context.layouts[name], layer.pixels_of(name), self.channels, self._bytes(name))
            for name in whole
        }
        #: Bytes of the values of one pixel of a small second tensor.
        self.width = 0
        if layer.small:
            size, by_channel = self._bytes(layer.small), layer.broadcast == Broadcast.CHANNEL
            self.width = (self.channels // layer.together if by_channel else 1) * size
            self.layouts[layer.small] = _viewed(
                context.layouts[layer.small], layer.pixels_of(layer.small), self.width // size, size
            )
        self.y = self.layouts[layer.y]
        if self.flat:
            self.pixels, self.channels = ceil_div(self.total, self.n), self.n
        self.blocks = ceil_div(self.channels, self.n)
        rows = context.schedule.rows
        if not self.flat and not layer.by_channel:  # the schedule counts rows of N elements
            rows = max(rows * self.n // self.channels, 1)
        #: Pixels of a row, and rows and pixels of a tile.
        self.row = self.pixels if self.flat else layer.row_pixels
        self.lines = min(max(rows // self.row, 1), layer.lines) if layer.small else 1
        self.rows = (
            min(rows, self.pixels) if layer.groups * layer.rows == 1 else min(rows, self.lines * self.row)
        )
        #: Rows of N elements that consist of N pixels, of which a tile has a multiple, if MATRIX repeats their values.
        self.group = layer.view[1] if self.expands else 1
        self.rows = min(
            ceil_div(self.rows, self.group) * self.group, ceil_div(self.pixels, self.group) * self.group
        )
        self.sources = {"a": self._source("a", layer.x, Broadcast.ALL, before)}
        if layer.other:
            self.sources[layer.stream] = self._source(layer.stream, layer.other, layer.broadcast, before)
        self.table = None if layer.table is None else context.tables(layer.name, layer.table)
        self.slots = None if layer.drain is None else Slots(context, layer.name, layer.drain, self.blocks)
        if before:
            self.out, self.wide, self.repeated = before.out, before.wide, before.repeated
            if self.by_matrix:
                self.weights = before.weights
        else:
            size = (self.rows * self.channels + self.n) * self._bytes(layer.y)
            self.out = BufferRotation(BufferMemory.SP, f"{layer.name}.y", size, context.schedule.y_buffers)
            by_channel, depth = layer.broadcast == Broadcast.CHANNEL, 2 if self._moves else 1
            count = self._held(layer.broadcast) * (self.blocks if by_channel else 1)
            if self.expands:
                count, self.weights = self.rows, self._weights()
            if self.by_matrix:
                depth, self.weights = LANE_COPIES, self._lane_weights()
            self.wide = BufferRotation(BufferMemory.ACC, f"{layer.name}.wide", count, depth)
            held = self.lines * self.width * layer.together + self.n
            self.repeated = BufferRotation(BufferMemory.SP, f"{layer.name}.repeated", held, depth)
        self._widened: dict[int, BufferRef] = {}
        self._prepared: set[CircularBuffer] = before._prepared if before else set()

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        layer = self.layer
        if layer.groups * layer.rows == 1:
            tiles = list(pieces(self.pixels, self.rows))
        elif self.rows < self.row:
            tiles = [
                (row * self.row + start, count)
                for row in range(layer.groups * layer.rows)
                for start, count in pieces(self.row, self.rows)
            ]
        else:
            tiles = [
                ((group + first) * self.row, count * self.row)
                for group in range(0, layer.groups * layer.rows, layer.lines)
                for first, count in pieces(layer.lines, self.lines)
            ]
        return [self._tile(tile, then) for tile, then in zip(tiles, [*tiles[1:], None], strict=True)]

    @property
    def _moves(self) -> bool:
        """True if tiles need different values of the second operand."""
        return self.layer.broadcast == Broadcast.PIXEL or self.layer.rows > 1

    def _held(self, broadcast: Broadcast) -> int:
        """Return the maximum number of pixels of an operand that a tile needs."""
        if broadcast == Broadcast.CHANNEL:
            return self.lines
        if self.expands:
            return self.rows // self.group * self.n
        if self.layer.repeats_x and broadcast == Broadcast.PIXEL:
            return ceil_div(self.rows, self.n) * self.n
        return min(self.rows, self.row) if broadcast == Broadcast.PIXEL else 1

    def _small_part(self, start: int, count: int) -> tuple[int, int]:
        """Return the first pixel and the number of pixels of the second operand that a tile needs."""
        layer = self.layer
        if self.expands:
            first = start // self.group * self.n
            return first, min(ceil_div(count, self.group) * self.n, layer.view[0] - first)
        row, column = divmod(start, self.row)
        if layer.broadcast == Broadcast.CHANNEL:
            return row % layer.rows, max(count // self.row, 1)
        if layer.broadcast == Broadcast.PIXEL:
            return row // layer.rows * self.row + column, count if layer.repeats_x else min(count, self.row)
        return 0, 1

    def _bytes(self, name: str) -> int:
        return DTYPE_BYTES[self.layer.shapes[name].dtype]

    def _source(
        self, stream: str, name: str, broadcast: Broadcast, before: "ElementwiseSteps | None"
    ) -> TileBuffers:
        """Return the tile buffers into which a tensor is loaded if it is not in the scratchpad."""
        size = self._bytes(name)
        load = self._loader(self.layouts[name], size, broadcast)
        if before:
            tiles = before.sources[stream]
            tiles.load = load
            return tiles
        repeated = stream == "a" and self.layer.repeats_x
        if broadcast == Broadcast.ALL:
            count, moves = (
                min(self.rows, self.row) if repeated else self.rows,
                not repeated or self.rows < self.row,
            )
        else:
            count, moves = self._held(broadcast), self._moves
        width = self.channels if broadcast in (Broadcast.ALL, Broadcast.CHANNEL) else 1
        depth = self.context.schedule.x_buffers if moves else 1
        if moves and broadcast != Broadcast.ALL:  # the first step widens two tiles
            depth = max(depth, 2)
        held = (count * width + self.n) * size
        return TileBuffers(CircularBuffer(BufferMemory.SP, f"{self.layer.name}.{stream}", held, depth), load)

    def _loader(
        self, layout: TensorLayout, size: int, broadcast: Broadcast
    ) -> Callable[[Hashable, BufferRef], list[Command]]:
        def load(key: Hashable, address: BufferRef) -> list[Command]:
            _, start, count = key  # type: ignore[misc]
            source, width = BufferRef(layout.buffer, 0, layout.offset), self.channels * size
            if broadcast == Broadcast.ALL and self.flat:
                length = min(count * self.n, self.total - start * self.n) * size
                lines = {"len": length}
                source = source.plus(start * self.n * size)
            else:
                width = width if broadcast == Broadcast.ALL else self.width
                lines = {"len": width, "y_count": count, "dram_y": layout.pixel, "dst_y": width}
                if layout.pixel == width or count == 1:
                    lines = {"len": count * width}
                if broadcast == Broadcast.CHANNEL and self.layer.together > 1:
                    lines = {"len": width, "y_count": self.layer.together, "dst_y": width, "z_count": count}
                    lines |= {"dram_z": layout.pixel, "dst_z": self.layer.together * width}
                source = source.plus(start * layout.pixel)
            return [self.context.command(Unit.LOAD, dram=source, dst=address, **lines)]

        return load

    def _address(
        self, stream: str, name: str, start: int, count: int, step: TileStep
    ) -> tuple[BufferRef, int]:
        """Return the address of a source's first pixel in the tile, and the distance between pixels in bytes."""
        layout, size = self.layouts[name], self._bytes(name)
        broadcast = Broadcast.ALL if stream == "a" else self.layer.broadcast
        by_channel = broadcast in (Broadcast.ALL, Broadcast.CHANNEL)
        if not layout.on_chip:
            address = self.sources[stream].get((self.layer.name, start, count), step)
            return address, (self.channels if by_channel else 1) * size
        pitch = self.n * size if self.flat and broadcast == Broadcast.ALL else layout.pixel
        return BufferRef(layout.buffer, 0, layout.offset + start * pitch), pitch

    def _tile(self, tile: tuple[int, int], then: tuple[int, int] | None) -> TileStep:
        """Return the step of a tile, given the first pixel and the number of pixels of this and of the next tile."""
        step, layer, n = TileStep(), self.layer, self.n
        start, count = tile
        size, lines = self._bytes(layer.y), max(count // self.row, 1) if layer.small else 1
        pitch = self.channels * size if self.flat or not self.y.on_chip else self.y.pixel
        address = self.out.next()
        if self.y.on_chip:
            address = BufferRef(self.y.buffer, 0, self.y.offset + start * pitch)
        fields: dict[str, int | BufferRef] = {
            "src": self._source_word(),
            "stage": self._stage_word(step),
            "v_x": 1,
            "x_count": count // lines,
            "n_count": self.blocks,
            "lanes_tail": self._tail(start, count),
            "d_base": address,
            "d_x": pitch,
            "d_n": n * size,
            **(_swapped(layer.fields) if layer.small and layer.stream == "r" else layer.fields),
        }
        streams = {"a": self._whole("a", layer.x, start, count, step)}
        if layer.small:
            streams[layer.stream] = self._small(tile, then, step)
        elif layer.other:
            streams[layer.stream] = self._whole(layer.stream, layer.other, start, count, step)
        if layer.small and layer.stream == "r":  # only operand A can be in the accumulator
            streams = {"a": streams["r"], "r": streams["a"]}
        for stream, (base, of_row, of_pixel, of_block) in streams.items():
            fields |= {
                f"{stream}_base": base,
                "a_v" if stream == "a" else f"{stream}_x": of_pixel,
                f"{stream}_n": of_block,
            }
            if lines > 1:
                fields["a_u" if stream == "a" else f"{stream}_y"] = of_row
        if lines > 1:
            fields |= {"y_count": lines, "u_y": 1, "d_y": self.row * pitch}
        if self.slots:
            fields |= {"p_base": self.slots.get(0, step), "p_n": 1}
        if layer.factor != 1:
            fields["b_base"] = self._factor(step)
        step.fuse += self._commands(fields, step, start, count)
        if not self.y.on_chip:
            step.stores.append(self._store(address, start, count, size))
        return step

    def _whole(
        self, stream: str, name: str, start: int, count: int, step: TileStep
    ) -> tuple[BufferRef, int, int, int]:
        """Return the address of an operand of the result's shape, and its bytes per row, per pixel and per block."""
        repeated = stream == "a" and self.layer.repeats_x
        if repeated:
            start, count = start % self.row, min(count, self.row)
        base, pitch = self._address(stream, name, start, count, step)
        return base, 0 if repeated else self.row * pitch, pitch, self.n * self._bytes(name)

    def _small(
        self, tile: tuple[int, int], then: tuple[int, int] | None, step: TileStep
    ) -> tuple[BufferRef, int, int, int]:
        """Return the address of the widened second operand in the accumulator, and its rows per row, pixel and block.

        The values of the next tile are widened before this tile is computed, so that FUSE need not wait for them.
        """
        by_channel, by_pixel = (self.layer.broadcast == each for each in (Broadcast.CHANNEL, Broadcast.PIXEL))
        acc = self._widen(*self._small_part(*tile), step)
        if then is not None:
            self._widen(*self._small_part(*then), step)
        of_row = self.blocks if by_channel else self.row * int(self.layer.repeats_x)
        return acc, of_row, int(by_pixel), int(by_channel)

    def _widen(self, start: int, count: int, step: TileStep) -> BufferRef:
        """Return the rows of the second operand; if they are not in the accumulator yet, add their command."""
        if start in self._widened:
            return self._widened[start]
        layer = self.layer
        assert layer.small is not None
        source, pitch = self._address(layer.stream, layer.small, start, count, step)
        if len(self._widened) == len(self.wide.buffers):
            del self._widened[next(iter(self._widened))]
        self._widened[start] = acc = self.wide.next()
        if self.expands:
            step.matrix.append(self._expanded(source, count, acc, step))
            return acc
        if self.by_matrix:
            step.matrix.append(self._copied_to_lanes(source, count, acc, step))
            return acc
        if layer.together > 1 and self.layouts[layer.small].on_chip:
            source, pitch = self._repeated(source, pitch, count, step), self.width * layer.together
        by_channel = layer.broadcast == Broadcast.CHANNEL
        dtype = layer.shapes[layer.small].dtype
        src = {
            "a_src": 1,
            "b_src": BSource.SP,
            "b_dtype": dtype,
            "b_bcast": int(not by_channel),
            "op": Op.ADD,
        }
        scaling: dict[str, int] = {}
        if layer.row_multiplier is not None:
            self._prepare(acc, layer.row_multiplier.shift, step)
            src |= {"requant": Requant.IMM, "rounding": Rounding.SINGLE}
            scaling = {
                "mult": layer.row_multiplier.mult,
                "shifts": bytes_word(layer.row_multiplier.exponent),
                "lanes": 1,
            }
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                src=FUSE_SRC.pack(**src),
                **scaling,
                # Operand A is padding, which is 0 and not read.
                a_base=source,
                u0=1,
                u_lim=1,
                b_base=source,
                b_x=pitch,
                b_n=self.n * self._bytes(layer.small),
                zp_ab=halves_word(0, self._zero),
                x_count=count,
                n_count=self.blocks if by_channel else 1,
                d_base=acc,
                d_x=self.blocks if by_channel else 1,
                d_n=1,
            )
        )
        return acc

    def _prepare(self, acc: BufferRef, shift: int, step: TileStep) -> None:
        """Write the exponent of multipliers, beside them, and zeros to rows of the accumulator that have none yet."""
        if acc.buffer in self._prepared:
            return
        self._prepared.add(acc.buffer)
        write = {"src": FUSE_SRC.pack(a_src=1, bias_en=1), "u0": 1, "u_lim": 1, "d_x": 1}
        for lanes, value in ((0, 0), (2, shift)):
            step.fuse.append(
                self.context.command(
                    Unit.FUSE,
                    **write,
                    x_count=self._held(Broadcast.PIXEL),
                    lanes=lanes,
                    bias=value,
                    d_base=acc,
                )
            )

    @property
    def _zero(self) -> int:
        """Zero point of a small second operand; those of a residual addition are subtracted later."""
        zero = self.layer.fields.get("zp_ab", 0) >> 16 & 0xFFFF if self.layer.stream == "b" else 0
        return zero - ((zero & 0x8000) << 1)

    def _weights(self) -> TileBuffers:
        """Return the weights with which MATRIX repeats N values for all channels of their pixels."""
        context, n = self.context, self.n
        pixels = np.arange(self.group * n).reshape(self.group, 1, n) // self.group
        ones = context.constant(f"{self.layer.name}.ones", (pixels == np.arange(n)[:, None]).astype(np.int8))
        return TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{self.layer.name}.ones", pixels.size * n),
            lambda _, address: [
                context.command(Unit.LOAD, dram=BufferRef(ones), dst=address, len=pixels.size * n)
            ],
        )

    def _expanded(self, source: BufferRef, count: int, acc: BufferRef, step: TileStep) -> Command:
        """Return the command that repeats the values of `count` pixels for all channels of each pixel."""
        n, group = self.n, self.group
        assert self.layer.small is not None
        dtype = self.layer.shapes[self.layer.small].dtype
        return self.context.command(
            Unit.MATRIX,
            word=MATRIX_WORD.pack(a_unsigned=int(dtype == Dtype.U8)),
            a_base=source,
            a_zp=self._zero,
            a_v=n,
            x_count=ceil_div(count, n),
            oc_count=group,
            w_base=self.weights.get(0, step),
            w_row=n,
            w_oc=n * n,
            acc_base=acc,
            acc_x=group,
            acc_oc=1,
        )

    def _lane_weights(self) -> TileBuffers:
        """Return rows of which only the middle one is not zero: a tile that contains it as row k selects lane k."""
        context, n = self.context, self.n
        rows = np.zeros((2 * n - 1, n), np.int8)
        rows[n - 1] = 1
        source = context.constant(f"{self.layer.name}.ones", rows)
        return TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{self.layer.name}.ones", rows.size),
            lambda _, address: [
                context.command(Unit.LOAD, dram=BufferRef(source), dst=address, len=rows.size)
            ],
        )

    def _copied_to_lanes(self, source: BufferRef, count: int, acc: BufferRef, step: TileStep) -> Command:
        """Return the command that copies each of the values of `count` pixels to all lanes of a row."""
        n = self.n
        assert self.layer.small is not None
        dtype = self.layer.shapes[self.layer.small].dtype
        return self.context.command(
            Unit.MATRIX,
            word=MATRIX_WORD.pack(a_unsigned=int(dtype == Dtype.U8)),
            a_base=source,
            a_zp=self._zero,
            a_v=n,
            x_count=ceil_div(count, n),
            oc_count=n,
            w_base=self.weights.get(0, step).plus((n - 1) * n),
            w_row=n,
            w_oc=-n,
            acc_base=acc,
            acc_x=n,
            acc_oc=1,
        )

    def _repeated(self, source: BufferRef, pitch: int, count: int, step: TileStep) -> BufferRef:
        """Return the address of `count` rows of channels, each repeated for the pixels that are computed as one.

        The rows are in the scratchpad, `pitch` bytes apart, and FUSE copies them.
        """
        layer, target = self.layer, self.repeated.next()
        assert layer.small is not None
        dtype = layer.shapes[layer.small].dtype
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                src=FUSE_SRC.pack(a_src=1, a_dtype=dtype),
                stage=FUSE_STAGE.pack(d_dst=1, d_dtype=dtype, tail_dim=FUSE_DIMS.index("n")),
                a_base=source,
                a_u=pitch,
                u_y=1,
                x_count=layer.together,
                y_count=count,
                lanes_tail=self.width // DTYPE_BYTES[dtype],
                d_base=target,
                d_x=self.width,
                d_y=self.width * layer.together,
            )
        )
        return target

    def _factor(self, step: TileStep) -> BufferRef:
        """Return the accumulator row that contains the layer's factor; the first step writes it."""
        if 0 not in self._widened:
            self._widened[0] = self.wide.next()
            # Operand A is padding, which is 0 and not read.
            write = {"src": FUSE_SRC.pack(a_src=1, bias_en=1), "u0": 1, "u_lim": 1, "bias": self.layer.factor}
            step.fuse.append(self.context.command(Unit.FUSE, **write, d_base=self._widened[0]))
        return self._widened[0]

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
        parts = {"a_src": 1, "a_dtype": layer.shapes[layer.x].dtype, **layer.src}
        if layer.other and layer.stream == "b":
            parts |= {"b_src": BSource.ACC if layer.small else BSource.SP}
            parts["b_dtype"] = layer.shapes[layer.other].dtype
        elif layer.small:
            parts["a_src"] = 0
        if layer.factor != 1:
            parts |= {"b_src": BSource.ACC, "op": Op.MUL}
        if layer.drain:
            parts |= {"requant": Requant.SLOT, "rounding": layer.drain.rounding}
            parts["neg_en"] = int(layer.drain.negative is not None)
        return FUSE_SRC.pack(**parts)

    def _stage_word(self, step: TileStep) -> int | BufferRef:
        layer = self.layer
        parts = layer.stage | {
            "d_dst": 1,
            "d_dtype": layer.shapes[layer.y].dtype,
            "tail_dim": FUSE_DIMS.index("x" if self.flat else "n"),
        }
        if layer.other and layer.stream == "r":
            parts |= {"residual": 1, "r_dtype": layer.shapes[layer.x if layer.small else layer.other].dtype}
        if self.table:
            return self.table.word(step, **{"table": 1, **parts})
        return FUSE_STAGE.pack(**parts)


class ExtremeSteps:
    """Code generator of the elementwise maximum or minimum of two tensors of one byte per element.

    The tiles of both operands have a constant distance in the scratchpad, so that FUSE reduces windows of two elements.
    Each operand has its own scaling, in a row of the accumulator.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    layer : ElementwiseLayer
        Layer with an `extreme`.
    """

    def __init__(self, context: CodegenContext, layer: ElementwiseLayer):
        assert layer.extreme is not None and layer.other is not None
        self.context, self.layer, self.extreme, self.n = context, layer, layer.extreme, context.config.n
        self.names, n = (layer.x, layer.other), context.config.n
        image, other = layer.shapes[layer.y], layer.shapes[layer.other]
        self.total = image.h * image.w * image.c
        #: Bytes of the row of channels that the second operand consists of; 0 if it has the shape of the first.
        self.row = other.h * other.w * other.c if layer.small else 0
        self.size = min(context.schedule.rows * n, self.total)
        if self.row:
            self.size = max(self.size // self.row, 1) * self.row
        #: Distance between the operands of a tile.
        self.pitch = ceil_div(self.size, n) * n + n
        depth, name = min(context.schedule.x_buffers, ceil_div(self.total, self.size)), layer.name
        buffer = CircularBuffer(BufferMemory.SP, f"{name}.x", 2 * self.pitch, depth)
        self.tiles = TileBuffers(buffer, self._load)
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", self.pitch, context.schedule.y_buffers)
        self.scaling = BufferRef(CircularBuffer(BufferMemory.ACC, f"{name}.scaling", 2))
        self.copies: list[Command] = []

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        steps = [self._tile(start, count) for start, count in pieces(self.total, self.size)]
        if any(self.extreme.scaling):
            steps[0].fuse = [*self._scalings(), *steps[0].fuse]
        return steps

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        """Return the loads of a tile; operands on chip are copied, a row of channels is repeated once per buffer."""
        start, count = key  # type: ignore[misc]
        loads: list[Command] = []
        for number, name in enumerate(self.names):
            layout, target = self.context.layouts[name], address.plus(number * self.pitch)
            source, row = layout.address(), self.row if number else 0
            if row and len(self.tiles.keys) > self.tiles.depth:
                continue
            lines = (row, self.size // row) if row else (count, 1)
            if layout.on_chip:
                self.copies.append(self._copy(source.plus(0 if row else start), target, *lines))
                continue
            fields = {"len": lines[0], "y_count": lines[1], "dst_y": row}
            source = source.plus(0 if row else start)
            loads.append(self.context.command(Unit.LOAD, dram=source, dst=target, **fields))
        return loads

    def _copy(self, source: BufferRef, target: BufferRef, length: int, times: int) -> Command:
        """Return the command that copies bytes within the scratchpad, one or several times."""
        n, dtype = self.n, self.layer.shapes[self.layer.x].dtype
        return self.context.command(
            Unit.FUSE,
            src=FUSE_SRC.pack(a_src=1, a_dtype=dtype),
            stage=FUSE_STAGE.pack(d_dst=1, d_dtype=dtype, tail_dim=FUSE_DIMS.index("x")),
            a_base=source,
            a_v=n,
            v_x=1,
            x_count=ceil_div(length, n),
            lanes_tail=(length - 1) % n + 1,
            d_base=target,
            d_x=n,
            y_count=times,
            d_y=length,
        )

    def _scalings(self) -> list[Command]:
        """Return the commands that write the negated zero point, the multiplier and the exponent of both operands."""
        # Operand A is padding, which is 0 and not read.
        common = {"src": FUSE_SRC.pack(a_src=1, bias_en=1), "u0": 1, "u_lim": 1}
        return [
            self.context.command(
                Unit.FUSE, **common, lanes=lanes, bias=value, d_base=self.scaling.plus(number)
            )
            for number, each in enumerate(self._scaling())
            for lanes, value in ((3, each.exponent), (2, each.mult), (1, -each.x_zp))
        ]

    def _scaling(self) -> list[Rescale]:
        """Return the conversion of each operand."""
        first = next(each for each in self.extreme.scaling if each is not None)
        same = Rescale(first.y_zp, first.y_zp, 1 << 30, 1, first.rounding)
        return [each or same for each in self.extreme.scaling]

    def _tile(self, start: int, count: int) -> TileStep:
        """Return the step of a tile of `count` bytes."""
        step, layer, n = TileStep(), self.layer, self.n
        address = self.tiles.get((start, count), step)
        step.fuse, self.copies = self.copies, []
        y, dtypes = self.context.layouts[layer.y], [layer.shapes[each].dtype for each in (layer.x, layer.y)]
        target = y.address().plus(start) if y.on_chip else self.out.next()
        src: dict[str, int] = {"a_src": 1, "a_dtype": dtypes[0]}
        fields: dict[str, int | BufferRef] = {}
        if any(self.extreme.scaling):
            scaling = self._scaling()[0]
            src |= {"b_src": BSource.ACC, "b_bcast": 1, "op": Op.ADD, "requant": Requant.ROW}
            src |= {"b_lane": 0, "rq_lane": 1, "rounding": scaling.rounding}
            fields |= {"b_base": self.scaling, "b_wy": 1, "zp": scaling.y_zp}
        reduce = Reduce.MAX if self.extreme.greatest else Reduce.MIN
        tail = FUSE_DIMS.index("x")
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                **fields,
                src=FUSE_SRC.pack(**src),
                stage=FUSE_STAGE.pack(d_dst=1, d_dtype=dtypes[1], tail_dim=tail, reduce=reduce),
                a_base=address,
                a_u=self.pitch,
                a_v=n,
                u_wy=1,
                v_x=1,
                wy_count=2,
                x_count=ceil_div(count, n),
                lanes_tail=(count - 1) % n + 1,
                d_base=target,
                d_x=n,
            )
        )
        if not y.on_chip:
            store = y.address().plus(start)
            step.stores.append(self.context.command(Unit.STORE, dram=store, src=target, len=count))
        return step


def elementwise_steps(context: CodegenContext, layer: ElementwiseLayer) -> list[TileStep]:
    """Generate the steps of an elementwise layer, for one range of channels after the other."""
    if layer.extreme is not None:
        return ExtremeSteps(context, layer).steps()
    width, (_, channels) = context.schedule.columns * context.config.n, layer.view
    if width >= channels or not layer.by_channel:
        return ElementwiseSteps(context, layer).steps()
    out: list[TileStep] = []
    steps: ElementwiseSteps | None = None
    for first, count in pieces(channels, width):
        shapes, layouts = dict(layer.shapes), dict(context.layouts)
        for name, each in layer.shapes.items():
            if name == layer.small and layer.broadcast == Broadcast.PIXEL:
                continue
            size, rows = DTYPE_BYTES[each.dtype], layer.pixels_of(name)
            shapes[name] = replace(each, h=rows, w=1, c=count)
            layout = _viewed(layouts[name], rows, channels, size)
            layouts[name] = replace(layout, c=count, offset=layout.offset + first * size)
        drain = layer.drain and layer.drain.part(slice(first, first + count))
        part = replace(layer, name=f"{layer.name}.{first}", shapes=shapes, drain=drain)
        steps = ElementwiseSteps(replace(context, layouts=layouts), part, steps)
        out += steps.steps()
    return out


KIND = LayerKind(
    name="elementwise",
    layer=ElementwiseLayer,
    lowerings=ELEMENTWISE_LOWERINGS,
    tilings=elementwise_tilings,
    tile_model=elementwise_tile_model,
    steps=elementwise_steps,
    rank_by_tile_model=True,
)
