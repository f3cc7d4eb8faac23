"""Code generation of depthwise convolutions: epilogues of averages and of pairs of outputs, and tile steps."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from operator import itemgetter
from typing import Any

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
from compiler.commands.tile_buffers import (
    BufferRotation,
    CodegenContext,
    ColumnStrip,
    TileBuffers,
    column_strips,
    image_lines,
    image_rows,
    pieces,
    rectangles,
    window_runs,
)
from compiler.layers.depthwise import (
    BlockPart,
    ColumnOrder,
    ColumnPhases,
    DepthwiseLayer,
    StreamPass,
    column_order,
    column_phases,
    computes_by_block,
    consecutive_phases,
    depthwise_tile_model,
    depthwise_tilings,
    has_equal_weights,
    least_busy_cycles,
    lower_depthwise,
    pack_depthwise,
    parts_by_block,
    rows_of_sums,
    stream_of,
)
from compiler.layers.epilogue import Epilogue, StoredTile, parameters
from compiler.layers.layer_kind import CONVOLUTION, LayerKind, Lowering
from compiler.layers.tile_pipeline import TilePipeline
from compiler.layers.tiling_context import LayerContext, TilingContext, Tilings
from compiler.layers.window_sums import (
    WindowSums,
    WindowSumSteps,
    window_sum_tile_model,
    window_sum_tilings,
    window_sums,
)
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import bytes_word
from compiler.util.tiles import ceil_div
from hw.config import MlaConfig
from hw.isa.commands import FUSE_SRC, FUSE_STAGE, LOAD_WORD, MATRIX_WORD
from hw.isa.enums import Dtype, Requant, Unit


class _AverageEpilogue(Epilogue):
    """Drain of sums that are divided by the number of elements that their windows have inside the image.

    Parameters
    ----------
    runs : (runs of rows, runs of columns)
        Results of `window_runs` for both dimensions of the image.
    counts : dict
        Multiplier and exponent for each number of elements.
    """

    def __init__(
        self,
        *args: Any,
        runs: tuple[list[tuple[int, int, int]], ...],
        counts: dict[int, tuple[int, int]],
        **options: Any,
    ):
        super().__init__(*args, **options)
        self.runs, self.counts = runs, counts

    def _parts(
        self, fields: dict[str, int | BufferRef], start: int, rows: int
    ) -> Iterator[dict[str, int | BufferRef]]:
        """Yield the fields of one command for each rectangle of windows with equally many elements."""
        acc, target, pixel, row = (fields[name] for name in ("a_base", "d_base", "d_x", "d_y"))
        assert isinstance(acc, BufferRef) and isinstance(target, BufferRef)
        assert isinstance(pixel, int) and isinstance(row, int)
        width = self.y.w
        tile = (start, rows), (self.column, width)
        for top, height, left, columns, count in rectangles(self.runs, *tile):
            mult, exponent = self.counts[count]
            yield {
                **fields,
                "src": FUSE_SRC.pack(requant=Requant.IMM, rounding=self.drain.rounding),
                "mult": mult,
                "shifts": bytes_word(exponent),
                "a_base": acc.plus(top * width + left),
                "a_u": width,
                "u_y": 1,
                "a_v": 1,
                "v_x": 1,
                "x_count": columns,
                "y_count": height,
                "d_base": target.plus(top * row + left * pixel),
            }


class _OrderedEpilogue(Epilogue):
    """Drain of whole rows of sums whose columns may be ordered by the phases of a dilated convolution.

    Parameters
    ----------
    order : ColumnOrder or None
        Order of the columns; None: that of the image.
    """

    def __init__(self, *args: Any, order: ColumnOrder | None, **options: Any):
        super().__init__(*args, **options)
        self.order, self.rows_apart = order, order is not None

    @property
    def held(self) -> int:
        """Number of sums of a row."""
        return self.order.width if self.order else self.y.w

    def _walk(self, rows: int) -> dict[str, int]:
        """Return the walk over a tile's pixels as fields, in the order of the image."""
        if self.order is None:
            return super()._walk(rows)
        walk = {"x_count": self.y.w, "y_count": rows, "a_u": self.held, "a_v": 1, "u_y": 1, "v_x": 1}
        return {"a_n": rows * self.held, **walk}

    def _parts(
        self, fields: dict[str, int | BufferRef], start: int, rows: int
    ) -> Iterator[dict[str, int | BufferRef]]:
        """Yield the fields of one command for the phases with equally many columns."""
        if self.order is None:
            yield fields
            return
        for phase, position, phases, segment, columns in self.order.kinds():
            part = fields | {
                "a_base": _plus(fields["a_base"], position),
                "v_x": segment,
                "x_count": phases,
                "v_wx": 1,
                "wx_count": columns,
            }
            for stream in ("d", "r", "b"):
                if f"{stream}_x" in fields:
                    pixel = fields[f"{stream}_x"]
                    assert isinstance(pixel, int)
                    part[f"{stream}_base"] = _plus(fields[f"{stream}_base"], phase * pixel)
                    part[f"{stream}_wx"] = self.order.dilation * pixel
            yield part


class _PairEpilogue(_OrderedEpilogue):
    """Drain of two results per input channel, which are adjacent in memory; the channels of a block are 2 * N.

    The bytes of one result of each pair are written to the scratchpad. The other results are then added as the other
    bytes of int16 elements (256 times the high byte, which is signed, and the low byte, which is not). Half of the
    tile's pixels are paired while the bytes of the other half are written, unless the results of `output` are drained
    separately: 0 for those whose bytes are written first, 1 for the others; None: both.
    """

    output: int | None = None

    def __init__(self, *args: Any, held_rows: int, **options: Any):
        super().__init__(*args, **options)
        rows, columns = held_rows, args[5]
        n = self.context.config.n
        self.bytes_first = BufferRotation(
            BufferMemory.SP, f"{args[1]}.first", rows * self.y.w * columns * n + n, 1
        )
        #: First row of the tile whose results are drained separately.
        self.first_row = 0

    @property
    def outputs(self) -> tuple[int, int]:
        """Outputs in the order in which their results are drained."""
        return (1, 0) if self.drain.dtype == Dtype.U8 else (0, 1)

    def _target(self, stored: StoredTile | None) -> BufferRef:
        return BufferRef(self.out.buffers[0]) if self.output == 0 else super()._target(stored)

    def _completes(self, tile: StoredTile, row: int, block: int) -> bool:
        return self.output != 0 and super()._completes(tile, row, block)

    def _parts(
        self, fields: dict[str, int | BufferRef], start: int, rows: int
    ) -> Iterator[dict[str, int | BufferRef]]:
        """Yield the fields of the commands that write one byte of each pair, and of those that write the pairs."""
        n, target = self.context.config.n, self.bytes_first.next()
        blocks, lanes, word = (fields[name] for name in ("n_count", "lanes_tail", "stage"))
        assert isinstance(blocks, int) and isinstance(lanes, int)
        unsigned = self.drain.dtype == Dtype.U8
        common = fields | {"lanes": n, "lanes_tail": (lanes // 2 - 1) % n + 1}
        apart = self.output is not None
        numbers: list[dict[str, int | BufferRef]] = [common]
        numbers.append(
            common | {"a_base": _plus(fields["a_base"], 0 if apart else blocks * rows * self.held)}
        )
        for name in ("p", "b"):  # the parameters of the second results follow those of the first ones
            if f"{name}_base" in fields and not apart:
                step = fields[f"{name}_n"]
                assert isinstance(step, int)
                numbers[1][f"{name}_base"] = _plus(fields[f"{name}_base"], blocks * step)
        bytes_, pairs = reversed(numbers) if unsigned else numbers
        bytes_ |= {"d_x": n, "d_y": self.y.w * n}
        more = {"d_dtype": Dtype.I16, "residual": 1, "r_raw": 1, "r_ls": 0}
        more["r_dtype"] = Dtype.I8 if unsigned else Dtype.U8
        pairs |= {
            "stage": _with_parts(word, **more),
            "r_x": n,
            "r_y": self.y.w * n,
            "x_mult": 1 if unsigned else 256,
            "r_mult": 256 if unsigned else 1,
            "o_mult": 1,
            "r_shifts": bytes_word(0, 0, 31),
        }
        dim = "y" if "y_count" in fields else "x"
        total = fields[f"{dim}_count"]
        assert isinstance(total, int)
        parts = ((bytes_, "d"), (pairs, "r"))
        if self.output is not None:
            target = target.plus((start - self.first_row) * self.y.w * n)
            parts = parts[self.output : self.output + 1]
        for each, stream in parts:
            for first, count in pieces(total, total if apart else ceil_div(total, 2)):
                before, size = (number * (self.y.w if dim == "y" else 1) for number in (first, count))
                sums = first * (self.held if dim == "y" else 1)
                part = each | {f"{dim}_count": count, "a_base": _plus(each["a_base"], sums)}
                if each is pairs:
                    step = each[f"d_{dim}"]
                    assert isinstance(step, int)
                    part["d_base"] = _plus(each["d_base"], first * step)
                # The bytes of each half are contiguous, so that halves do not wait for one another.
                part |= {f"{stream}_base": target.plus(before * blocks * n), f"{stream}_n": size * n}
                yield from super()._parts(part, start, rows)


def _plus(address: int | BufferRef, offset: int) -> BufferRef:
    assert isinstance(address, BufferRef)
    return address.plus(offset)


def _with_parts(word: int | BufferRef, **parts: int) -> int | BufferRef:
    """Return the second half of a fuse word with other values of some parts."""
    if isinstance(word, BufferRef):
        base = _with_parts(word.base, **parts)
        assert isinstance(base, int)
        return replace(word, base=base)
    return FUSE_STAGE.pack(**(FUSE_STAGE.unpack(word) | parts))


class DepthwiseSteps:
    """Code generator of a depthwise convolution.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    layer : DepthwiseLayer
        Layer to generate code for.
    """

    def __init__(self, context: CodegenContext, layer: DepthwiseLayer):
        self.context, self.layer, self.config = context, layer, context.config
        #: Convolutions of one image that follow one another, and the layouts of input, output and second summand.
        self.parts: list[DepthwiseLayer] = []
        self.images: tuple[list[TensorLayout], ...] = ([], [], [])
        of_batch = {name: context.layouts[name].parts(layer.batch) for name in (*layer.inputs, layer.y)}
        for number, phase in product(range(layer.batch), consecutive_phases(self.config, layer)):
            part = phase.layer
            layouts = phase.layouts({name: images[number] for name, images in of_batch.items()})
            for images, name in zip(self.images, (part.x, part.y, *part.inputs[1:]), strict=False):
                images.append(layouts[name])
            self.parts.append(part)
        self.part, self.x, self.y = self.parts[0], self.images[0][0], self.images[1][0]
        self.order = column_order(self.config, self.part, in_dram=not self.x.on_chip)
        n, schedule = self.config.n, context.schedule
        self.kernel_h, self.taps, _ = layer.weights.shape
        self.channels, self.blocks = layer.channels, ceil_div(layer.channels, n)
        self.columns = min(schedule.columns, self.blocks)
        #: True if channel blocks are computed one after the other.
        self.by_block = computes_by_block(layer, schedule)
        self.rows_per_load = min(schedule.rows_per_load, self.y.h)
        self.rows = min(schedule.rows, self.rows_per_load)
        #: Strips of the columns of each image.
        self.strips = [self._strips(number) for number in range(len(self.parts))]
        #: Number of rows of each load that have been loaded so far.
        self.rows_loaded: dict[Hashable, int] = {}
        #: Shape of the last pass.
        self.shape = 0, 0
        #: Image, first column, first row and first block of the last load.
        final, rows = len(self.parts) - 1, list(pieces(self.images[1][-1].h, self.rows_per_load))
        self.last = (
            final,
            self.strips[final][-1].first,
            rows[-1][0],
            (self.blocks - 1) // self.columns * self.columns,
        )
        self.step: tuple[int, int] | None = None
        self._select(0, max(self.strips[0], key=lambda strip: strip.count))
        self.step = down, across = self.stream.passes[0].step, self.stream.passes[0].column_step
        #: Kernel rows in the order of their weights: those of each pass are contiguous.
        self.kernel_rows = [row for first in range(down) for row in range(first, self.kernel_h, down)]
        #: Kernel columns of the passes; the weights of passes with the same columns are contiguous.
        self.kernel_columns = [range(first, self.taps, across) for first in range(min(across, self.taps))]
        self._allocate_buffers()

    def _strips(self, number: int) -> list[ColumnStrip]:
        """Return the strips of the columns of an image."""
        part, schedule = self.parts[number], self.context.schedule
        x, y = (images[number] for images in self.images[:2])
        strips = column_strips(
            y.w,
            min(schedule.width, schedule.strip_width) if part.dilations[1] == 1 else y.w,
            part.strides[1],
            part.pads[1],
            (self.taps - 1) * part.dilations[1] + 1,
            x.w,
        )
        if schedule.strip_width < y.w:
            return strips
        # All tiles across the image use the same rows.
        return [replace(strip, start=0, size=x.w, before=strip.before + strip.start) for strip in strips]

    def _select(self, number: int, strip: ColumnStrip) -> None:
        """Select the image, and its columns, for which code is generated next."""
        self.number, self.strip, self.part = number, strip, self.parts[number]
        x, self.y = (images[number] for images in self.images[:2])
        self.stream = stream_of(
            self.config, self.part, x.w, self.y.w, strip.count, self.step, order=self.order
        )
        self.runs = self.order.runs() if self.order else column_phases(self.part.dilations[1], strip)
        self.x = x.columns(strip.start, strip.size)
        self.x_pixel, self.x_row = self.x.pixel, self.x.row
        if not self.x.on_chip:
            self.x_pixel = min(self.columns * self.config.n, self.channels)
            self.x_row = self._held(strip.size) * self.x_pixel

    def _held(self, columns: int) -> int:
        """Return the number of positions that a row of some columns occupies in scratchpad and accumulator."""
        return self.order.width if self.order else columns

    def _allocate_buffers(self) -> None:
        layer, schedule, n = self.layer, self.context.schedule, self.config.n
        tiles = ceil_div(self.blocks, self.columns)
        self.w_block = len(layer.summands) * self.kernel_h * self.taps * n
        weights, drain, made = layer.summands, layer.drain, self.columns * layer.multiplier
        if layer.multiplier > 1:
            order = self._channel_order()
            weights, drain = tuple(each[:, :, order] for each in weights), drain.part(order)
        #: Correction of the weights, with the output channels in the order in which they are computed.
        self.correction = weights[1] if len(weights) > 1 else None
        self.w_dram = (
            None
            if has_equal_weights(layer)
            else self.context.constant(f"{layer.name}.weights", self._packed(weights))
        )
        w_buffer = CircularBuffer(
            BufferMemory.SP, f"{layer.name}.w", made * self.w_block, min(schedule.w_buffers, tiles)
        )
        self.w = TileBuffers(w_buffer, self._load_w)
        self.p = None if layer.counts else parameters(self.context, layer.name, drain, made)
        strips = [strip for of_image in self.strips for strip in of_image]
        width = max(strip.count for strip in strips)
        sums = self.rows * self._held(width) * made
        if self.by_block:
            self.most = rows_of_sums(self.config, width)
            sums = min(self.rows, self.most) * width
        self.acc = BufferRotation(BufferMemory.ACC, f"{layer.name}.acc", sums, schedule.acc_buffers)
        _, y_images, summands = self.images
        stored = sums // width if self.by_block and self.columns == 1 else self.rows
        tile = self.context, layer.name, layer.drain, y_images, stored, self.columns
        if layer.counts:
            sizes = (self.x.h, self.y.h), (self.images[0][0].w, self.y.w)
            runs = tuple(
                window_runs(size, layer.weights.shape[i], layer.strides[i], layer.pads[i], outputs)
                for i, (size, outputs) in enumerate(sizes)
            )
            self.drain: Epilogue = _AverageEpilogue(*tile, width=width, runs=runs, counts=layer.counts)
        elif layer.multiplier > 1:
            self.drain = _PairEpilogue(
                *tile, held_rows=self.rows, width=width, block_channels=2 * n, order=self.order
            )
        else:
            self.drain = _OrderedEpilogue(*tile, width=width, summands=summands, order=self.order)
        if not self.x.on_chip:
            most, loads = 0, 0
            for number, of_image in enumerate(self.strips):
                self._select(number, of_image[0])
                starts = list(pieces(self.y.h, self.rows_per_load))
                most = max(most, *(self._image(start, rows)[1] for start, rows in starts))
                loads += tiles * len(starts) * len({(strip.start, strip.size) for strip in of_image})
            size = most * max(self._held(strip.size) for strip in strips) * self.x_pixel + n
            depth = min(schedule.x_buffers, loads)
            #: Bytes of an input buffer, and number of buffers that are still to be filled with zeros.
            self.x_bytes, self.unfilled = size, depth if self.order else 0
            self.x_tiles = TileBuffers(
                CircularBuffer(BufferMemory.SP, f"{layer.name}.x", size, depth), self._begin
            )

    def _packed(self, summands: Sequence[NDArray]) -> NDArray[np.uint8]:
        """Return the weights of all passes, block by block."""
        parts = [
            pack_depthwise(self.config, weights[:, columns], self.kernel_rows)
            for weights in summands
            for columns in self.kernel_columns
        ]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    def _channel_order(self) -> NDArray[np.int64]:
        """Return the output channels in the order in which they are computed.

        The first outputs of all input channels of a tile are followed by their second outputs. The lanes that complete
        a block of input channels repeat its last one.
        """
        n, most = self.config.n, self.channels - 1
        return np.concatenate(
            [
                np.minimum(np.arange(block * n, (block + blocks) * n), most) * self.layer.multiplier + number
                for block, blocks in pieces(self.blocks, 1 if self.by_block else self.columns)
                for number in range(self.layer.multiplier)
            ]
        )

    def _image(self, start: int, rows: int) -> tuple[int, int]:
        part = self.part
        return image_rows(start, rows, part.strides[0], part.pads[0], self.kernel_h, self.x.h)

    def _begin(self, key: Hashable, address: BufferRef) -> list[Command]:
        """Return the commands that fill a buffer with the zeros between phases when it is used for the first time."""
        self.rows_loaded[key] = 0
        if self.unfilled == 0:
            return []
        self.unfilled -= 1
        word = LOAD_WORD.pack(fill=1, fill_value=self.layer.x_zp & 0xFF)
        return [self.context.command(Unit.LOAD, word=word, dst=address, len=self.x_bytes)]

    def _column_loads(self, order: ColumnOrder) -> Iterator[tuple[int, int, int, int]]:
        """Yield runs of columns that are loaded at once.

        They are given by first column, number of columns, first position in the scratchpad, and distance of positions.
        """
        for phase, position, phases, segment, _ in order.kinds():
            for number in range(segment - order.zeros):
                start = phase + number * order.dilation
                if start < self.x.w:
                    yield start, min(phases, self.x.w - start), position + order.zeros + number, segment

    def _row_loads(
        self, first: int, rows: int, width: int, channel: int, address: BufferRef
    ) -> list[Command]:
        """Return the LOADs of `width` bytes, from `channel` on, of the pixels of some rows."""
        parts = [(self.x, self.x_pixel, address)]
        if self.order:
            parts = [
                (self.x.columns(start, count), step * self.x_pixel, address.plus(position * self.x_pixel))
                for start, count, position, step in self._column_loads(self.order)
            ]
        return [
            self.context.command(
                Unit.LOAD,
                dram=image.address(first, 0, channel),
                dst=target,
                **image_lines(image, rows, width, "dst", pixel, self.x_row),
            )
            for image, pixel, target in parts
        ]

    def _load_x(self, load: tuple[int, int, int], part: tuple[int, int], step: TileStep) -> BufferRef:
        """Return the address of the rows of a load; add a load of the rows that `part` is the first to need to `step`.

        `load` is the first output row, the number of output rows and the first channel block.
        """
        start, rows, block = load
        key = (self.number, self.strip.start, self.strip.size, *load)
        address, there = self.x_tiles.get(key, step), self.rows_loaded[key]
        (first, total), (low, count) = self._image(start, rows), self._image(*part)
        width = min(self.x_pixel, self.channels - block * self.config.n)
        excess = -width % self.config.n  # the last reads extend into the following rows
        needed = min(low + count - first + ceil_div(excess, self.x_row), total)
        if there < needed:
            self.rows_loaded[key] = needed
            target = address.plus(there * self.x_row)
            channel = block * self.config.n
            step.loads += self._row_loads(first + there, needed - there, width, channel, target)
        return address

    def _load_w(self, key: Hashable, address: BufferRef) -> list[Command]:
        assert isinstance(key, int)
        count, key = (each * self.layer.multiplier for each in (min(self.columns, self.blocks - key), key))
        if self.w_dram is None:
            word = LOAD_WORD.pack(fill=1, fill_value=int(self.layer.weights.view(np.uint8).flat[0]))
            return [self.context.command(Unit.LOAD, word=word, dst=address, len=count * self.w_block)]
        source = BufferRef(self.w_dram, 0, key * self.w_block)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, len=count * self.w_block)]

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles.

        The loops are channel blocks, images and their phases, loads of rows, strips and tiles.
        """
        return [
            step
            for block, blocks in pieces(self.blocks, self.columns)
            for number, y in enumerate(self.images[1])
            for start, rows in pieces(y.h, self.rows_per_load)
            for strip in self.strips[number]
            for step in self._strip(number, start, rows, strip, block, blocks)
        ]

    def _strip(
        self, number: int, start: int, rows: int, strip: ColumnStrip, block: int, blocks: int
    ) -> list[TileStep]:
        self._select(number, strip)
        self.drain.select(number, strip.first, strip.count)
        if self.by_block:
            return list(self._by_block(start, rows, block, blocks))
        out = []
        # The streams of several outputs per channel would follow one another.
        keep = blocks * self.layer.multiplier == 1 and self.stream.continues
        self.row = self.history = 0
        for offset, count in pieces(rows, self.rows):
            step = TileStep(block=block)
            if self.x.on_chip:
                base, first, image = self.x.address(0, 0, block * self.config.n), 0, self.x.h
            else:
                base = self._load_x((start, rows, block), (start + offset, count), step)
                first, image = self._image(start, rows)
            acc, weights = self.acc.next(), self.w.get(block, step)
            more = keep and offset + count < rows
            passes = self._passes(start + offset, count)
            if keep:
                made = block * self.layer.multiplier
                passes = [taps for taps in passes if not self._without_effect(taps, made, 1)]
            for order, taps in enumerate(passes):
                low, many = start + offset, count
                if order and not self.stream.continues:
                    low, many = taps.outputs(self.part, self.x.h, low, many)
                if many <= 0:
                    continue
                if not keep:
                    taps = taps.inside(self.part, self.x.h, low)
                continued = keep and offset > 0 and order == 0
                continued &= self.history >= taps.rows - self.layer.strides[0]
                ends = more and order + 1 == len(passes)
                commands = product(range(self.layer.multiplier), self._commands(blocks))
                for number, (at, together, run) in commands:
                    made = number * blocks + at
                    if self._without_effect(taps, block * self.layer.multiplier + made, together):
                        continue
                    stream = self._stream(low, many, taps, run, (order > 0, continued, ends))
                    stream["u0"] -= first
                    stream["u_lim"] = max(min(stream["u_lim"] - first, image), 1)
                    fields = self._fields(count, block + at, together, run, taps)
                    step.matrix.append(
                        self.context.command(
                            Unit.MATRIX,
                            **stream,
                            **fields,
                            a_base=base.plus(at * self.x.block(self.config.n) + run.x_first * self.x_pixel),
                            acc_base=acc.plus(
                                (made * count + low - start - offset) * self._held(self.strip.count)
                                + run.y_first
                            ),
                            w_base=weights.plus(made * self.w_block + self._weight(taps)),
                        )
                    )
            how = self.p.fields(block * self.layer.multiplier, step) if self.p else {}
            self.drain.add(step, acc, how, start + offset, count, block, blocks)
            out.append(step)
        return out

    def _by_block(self, start: int, rows: int, block: int, blocks: int) -> Iterator[TileStep]:
        """Yield the steps of a load whose channel blocks, and outputs per channel, are computed one after the other."""
        multiplier, drain = self.layer.multiplier, self.drain
        load = start, rows, block
        # Without history, the first part of a load continues no other one.
        self.row = self.history = 0
        schedule, first, last = (
            self.context.schedule,
            (self.number, self.strip.first, start, block),
            self.last,
        )
        parts = list(
            parts_by_block(
                (start, rows),
                (block, blocks),
                self.rows,
                self.most,
                multiplier,
                first=schedule.split_first_tile and first == (0, 0, 0, 0),
                last=schedule.split_last_tile and first == last,
            )
        )
        for number, part in enumerate(parts):
            step = TileStep(block=block)
            if self.x.on_chip:
                base, first, image = self.x.address(0, 0, block * self.config.n), 0, self.x.h
            else:
                base = self._load_x(load, (part.start, part.rows), step)
                first, image = self._image(start, rows)
            at, output, keep = part.block - block, part.output, self.stream.continues
            if isinstance(drain, _PairEpilogue):
                drain.output, output = part.output, drain.outputs[part.output]
                drain.first_row = part.start - (part.start - start) % self.rows
            made = at * multiplier + output
            acc, weights = self.acc.next(), self.w.get(block, step).plus(made * self.w_block)
            passes = [
                taps
                for taps in self._passes(part.start, part.rows)
                if not self._without_effect(taps, block * multiplier + made, 1)
            ]
            for order, taps in enumerate(passes):
                low, many = part[:2]
                if order and not keep:
                    low, many = taps.outputs(self.part, self.x.h, part.start, part.rows)
                if many <= 0:
                    continue
                continued = keep and part.continued and order == 0
                continued &= self.history >= taps.rows - self.layer.strides[0]
                ends = keep and part.more and order + 1 == len(passes)
                (run,) = self.runs
                stream = self._stream(low, many, taps, run, (order > 0, continued, ends))
                stream["u0"] -= first
                stream["u_lim"] = max(min(stream["u_lim"] - first, image), 1)
                step.matrix.append(
                    self.context.command(
                        Unit.MATRIX,
                        **stream,
                        **self._fields(part.rows, part.block, 1, run, taps),
                        a_base=base.plus(at * self.x.block(self.config.n)),
                        acc_base=acc.plus((low - part.start) * self.strip.count),
                        w_base=weights.plus(self._weight(taps)),
                    )
                )
            how = self.p.fields(block * multiplier, step) if self.p else {}
            for name in ("p", "b"):
                if f"{name}_base" in how:
                    pitch = how[f"{name}_n"]
                    assert isinstance(pitch, int)
                    how[f"{name}_base"] = _plus(how[f"{name}_base"], made * pitch)
            drain.add(step, acc, how, part.start, part.rows, part.block, 1, stored=part.tile)
            if not self.x.on_chip:
                # Rows cannot be requested before the last part that reads others of their buffer has begun.
                ahead = self._rows_ahead(parts, number, start, rows)
                self._load_x(load, (part.start, max(ahead - part.start, part.rows)), step)
            yield step

    def _without_effect(self, taps: StreamPass, first: int, blocks: int) -> bool:
        """Return True if a pass multiplies by corrections of `blocks` blocks of outputs that are all zero.

        `first` is the first block, in the order in which outputs are computed.
        """
        if taps.summand == 0 or self.correction is None:
            return False
        n = self.config.n
        return not taps.of(self.correction)[..., first * n : (first + blocks) * n].any()

    def _rows_ahead(self, parts: list[BlockPart], number: int, start: int, rows: int) -> int:
        """Return the end of the output rows whose input is requested before a part of a load is computed.

        While the first block and output of a tile are computed, these are the rows of the next part, and then those of
        the next tile.
        """
        part, after = parts[number], parts[min(number + 1, len(parts) - 1)]
        if (part.block, part.output) == (parts[0].block, parts[0].output):
            return after.start + after.rows
        return min(start + (part.start - start) // self.rows * self.rows + 2 * self.rows, start + rows)

    def _commands(self, blocks: int) -> list[tuple[int, int, ColumnPhases]]:
        """Return the first channel block, the number of blocks and the columns of each command of a pass."""
        if self.part.dilations[1] == 1 or self.order:
            return [(0, blocks, run) for run in self.runs]
        return [(at, 1, run) for at in range(blocks) for run in self.runs]

    def _passes(self, start: int, rows: int) -> list[StreamPass]:
        """Return the passes of a tile: first one that computes all outputs, if possible with the last one's shape."""
        passes = self.stream.passes
        complete = [
            p
            for p in passes
            if p.summand == 0 and p.outputs(self.part, self.x.h, start, rows) == (start, rows)
        ]
        first = next((p for p in complete if p.shape == self.shape), passes[0])
        others = [p for p in passes if p != first]
        out = [first, *sorted(others, key=lambda p: p.shape != first.shape)]
        self.shape = out[-1].shape
        return out

    def _stream(
        self, start: int, rows: int, taps: StreamPass, run: ColumnPhases, how: tuple[bool, bool, bool]
    ) -> dict[str, int]:
        """Return the stream fields of a pass over `taps`; if the next tile continues it, it streams whole rows.

        Rows are counted from the top of the image. `how` is whether the sums are added to those of other passes,
        whether the stream continues that of the tile above, and whether the next tile continues it.
        """
        accumulate, continued, more = how
        g, pitch = taps.rows, self._pitch(run)
        stride = self.layer.strides[0] // taps.step  # stream rows per output row
        if continued:
            before, row, streamed = stride - 1, self.row, rows * stride
        else:
            row = start * self.layer.strides[0] - self.part.pads[0] + taps.row
            # Rows above the image are zeros that precede the stream.
            missing = min(max(ceil_div(-row, taps.step), 0), g - 1)
            row, before = row + missing * taps.step, g - 1 - missing
            streamed = (rows - 1) * stride + before + 1
        lead = before * pitch + taps.columns - 1
        length = streamed * pitch
        if not more:
            across = self.layer.strides[1] // taps.column_step
            length = (rows - 1) * stride * pitch + lead + (run.y_count - 1) * across + 1
        self.row = row + streamed
        #: Rows of the stream so far, which the next tile finds in the line buffers if it continues the stream.
        self.history = streamed + (self.history if continued else 0)
        word = MATRIX_WORD.pack(
            dw=1,
            taps=taps.columns,
            groups=g,
            keep=int(continued),
            accumulate=int(accumulate),
            a_unsigned=int(self.layer.shapes[self.layer.x].dtype == Dtype.U8),
            w_unsigned=int(self.layer.weights.dtype == np.uint8),
        )
        return {
            "word": word,
            "u0": row,
            "u_y": taps.step,
            # Padding at the end of the last row may be that of the following row, which is not awaited.
            "u_lim": row + (streamed - 1) * taps.step + 1,
            "dw_lead": lead,
            "dw_len": length,
            "dw_sy": stride,
        }

    def _pitch(self, run: ColumnPhases) -> int:
        """Return the stream positions of an image row; of ordered columns, the last run may have fewer."""
        return run.x_count if self.order else self.stream.pitch

    def _weight(self, taps: StreamPass) -> int:
        """Return the offset of a pass's weights within those of a channel block."""
        first = taps.summand * self.kernel_h * self.taps
        for columns in self.kernel_columns:
            if taps.column in columns:
                row = self.kernel_rows.index(taps.row)
                return (first + row * len(columns) + columns.index(taps.column)) * self.config.n
            first += self.kernel_h * len(columns)
        raise AssertionError(taps)

    def _fields(
        self, rows: int, block: int, blocks: int, run: ColumnPhases, taps: StreamPass
    ) -> dict[str, int]:
        layer, n, across = self.layer, self.config.n, 1 if self.order else self.part.dilations[1]
        last = block + blocks == self.blocks
        tail = (self.channels - 1) % n + 1 if last else 0
        # Either channel blocks or column phases are the blocks of the command.
        walk = {"oc_count": blocks, "a_oc": self.x.block(n), "w_oc": self.w_block, "n_tail": tail}
        walk["acc_oc"] = rows * self._held(self.strip.count)
        if across > 1:
            walk = {"oc_count": run.count, "a_oc": self.x_pixel, "acc_oc": 1, "n_cols": tail}
        return {
            **walk,
            "a_zp": layer.x_zp,
            "w_zp": 0 if taps.summand else layer.w_zp,
            "x_count": self._pitch(run),
            "a_u": self.x_row,
            "a_v": across * self.x_pixel,
            "v_x": taps.column_step,
            "v_lim": run.x_count,
            "v0": run.before + taps.column,
            "w_row": n,
            "acc_x": across,
            "acc_y": self._held(self.strip.count),
            "dw_out_w": run.y_count,
            "dw_sx": layer.strides[1] // taps.column_step,
        }


def depthwise_steps(context: CodegenContext, layer: DepthwiseLayer) -> list[TileStep]:
    """Generate the steps of a depthwise convolution."""
    x, y, schedule = context.layouts[layer.x], context.layouts[layer.y], context.schedule
    if (how := _by_windows(layer, schedule, context.config, in_dram=not x.on_chip)) is not None:
        if not y.on_chip or y.pixel == layer.channels:
            return WindowSumSteps(context, how).steps()
        # Results are N consecutive elements of any pixels, and the accumulator must have room for each pixel instead.
        rows = min(schedule.rows, rows_of_sums(context.config, y.w))
        schedule = replace(schedule, fold_kernel_width=False, rows=rows, rows_per_load=rows)
        context = replace(context, schedule=schedule)
    return DepthwiseSteps(context, layer).steps()


def _by_windows(
    layer: DepthwiseLayer, schedule: LayerSchedule, config: MlaConfig, *, in_dram: bool
) -> WindowSums | None:
    """Return how an average is computed by sums of windows of bytes; None if the schedule does not select that."""
    return window_sums(layer, config) if schedule.fold_kernel_width and in_dram else None


#: Factor of the cycles of the busier unit in depthwise mode, and cycles in addition, up to which an average is computed
#: by sums of windows of bytes. Of 28 averages of 1 to 10 channels, all that are slower with such sums on the RTL (n16)
#: are excluded.
_MAX_SUMMED, _MORE_SUMMED = 0.98, 600


def _every_tiling(context: TilingContext, layer: DepthwiseLayer) -> Tilings:
    """Yield the tilings that fit: those of averages by sums of windows of bytes if these take fewer cycles."""
    found = list(window_sum_tilings(context, layer))
    if found and min(found, key=itemgetter(0))[0] < (
        _MAX_SUMMED * least_busy_cycles(context, layer) + _MORE_SUMMED
    ):
        yield from found
    else:
        yield from depthwise_tilings(context, layer)


def _tile_model(layer: DepthwiseLayer, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of the method that a schedule selects."""
    how = _by_windows(layer, s, context.config, in_dram=not context.x_on_chip)
    return window_sum_tile_model(how, s, context) if how else depthwise_tile_model(layer, s, context)


KIND = LayerKind(
    name="depthwise",
    layer=DepthwiseLayer,
    lowerings={
        "depthwise_conv2d": Lowering(
            lower_depthwise, CONVOLUTION, strided_input=True, strided_output=True, epilogue=True
        ),
    },
    tilings=_every_tiling,
    tile_model=_tile_model,
    steps=depthwise_steps,
    rank_by_tile_model=True,
)
