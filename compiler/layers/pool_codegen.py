"""Code generation for pooling over windows of an image."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
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
    tile_buffers,
    window_runs,
)
from compiler.layers.depthwise import pack_depthwise
from compiler.layers.epilogue import Slots
from compiler.layers.layer_kind import ElementTypes, LayerKind, Lowering
from compiler.layers.pool import (
    POOLED_TYPES,
    PoolLayer,
    WindowMethod,
    image_height,
    lower_pool,
    pool_tile_model,
    pool_tilings,
)
from compiler.layers.reduce import reciprocal
from compiler.util.scaling import bytes_word, halves_word
from compiler.util.tiles import ceil_div
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, LOAD_WORD, MATRIX_WORD
from hw.isa.enums import DTYPE_BYTES, BSource, Dtype, Op, Post, Reduce, Rounding, Unit


class PoolSteps:
    """Code generator of a pooling layer; a tile consists of some output rows of some channel blocks."""

    def __init__(self, context: CodegenContext, layer: PoolLayer):
        self.context, self.layer = context, layer
        self.images = [context.layouts[name].parts(layer.batch) for name in (layer.x, layer.y)]
        self.config, self.n, schedule = context.config, context.config.n, context.schedule
        self.size = DTYPE_BYTES[layer.shapes[layer.x].dtype]
        self.x, self.y = (images[0] for images in self.images)
        self.strips = column_strips(
            self.y.w, schedule.strip_width, layer.strides[1], layer.pads[1], layer.kernel[1], self.x.w
        )
        self.blocks = ceil_div(self.x.c, self.n)
        self.columns = min(schedule.columns, self.blocks)
        self.rows = min(schedule.rows, self.y.h)
        self.pixel = self.x.pixel
        self.method = layer.method(context.config, in_dram=not self.x.on_chip, alone=not schedule.interleave)
        if self.method == WindowMethod.SELECTED and self.y.on_chip and self.y.pixel != self.y.c:
            self.method = WindowMethod.DIRECT  # results are N consecutive elements of any pixels
        self.selection = layer.selection(context.config)
        width = min(self.columns * self.n, self.x.c) * self.size
        if not self.x.on_chip:
            self.pixel = width
            most = max(self._image(start, rows)[1] for start, rows in self._pieces())
            size = most * max(strip.size for strip in self.strips) * width + self.n * self.size
            selected = self.method == WindowMethod.SELECTED
            if selected:
                size = max(
                    layer.selected_height(self.config, rows, strip.count) * self._pitch(strip)
                    for strip, (_, rows) in product(self.strips, self._pieces())
                )
            if self.method == WindowMethod.SUMS_SHARED:
                pixel = layer.held_pixel(width // self.size, self.n)
                size = most * max(strip.size for strip in self.strips) * pixel
            self.tiles = tile_buffers(
                f"{layer.name}.x",
                size,
                schedule.x_buffers,
                self._load,
                # FUSE reads a tile while MATRIX reads another one.
                separate=selected or self.method in (WindowMethod.PAIRS, WindowMethod.SUMS_SHARED),
                wide=selected or self.method == WindowMethod.SUMS_SHARED,
            )
        across = max(strip.count for strip in self.strips)
        self.out = BufferRotation(
            BufferMemory.SP,
            f"{layer.name}.y",
            self.rows * across * width + self.n * self.size,
            schedule.y_buffers,
        )
        self.w_block = layer.kernel[0] * layer.kernel[1] * self.n
        if layer.weights is not None and layer.drain is not None:
            packed = pack_depthwise(context.config, layer.weights, range(layer.kernel[0]))
            self.w_dram = context.constant(f"{layer.name}.weights", packed)
            tiles = ceil_div(self.blocks, self.columns)
            self.w = TileBuffers(
                CircularBuffer(
                    BufferMemory.SP,
                    f"{layer.name}.w",
                    self.columns * self.w_block,
                    min(schedule.w_buffers, tiles),
                ),
                self._load_w,
            )
            self.p = Slots(context, layer.name, layer.drain, self.columns)
        if self.method == WindowMethod.PAIRS:
            self.as_pixels = layer.pairs_as_pixels(context.config)
            signs = np.concatenate([np.eye(self.x.c, self.n, dtype=np.int8)] * 2)
            signs[self.x.c :] *= -1
            if self.as_pixels:
                self.signs_dram = context.constant(f"{layer.name}.signs", signs)
            size = signs.size if self.as_pixels else 2 * self.n
            w_buffer = CircularBuffer(BufferMemory.SP, f"{layer.name}.w", size)
            self.signs = TileBuffers(w_buffer, self._load_signs)
            sums = self.columns * max(
                self._image(start, self._paired(strip, rows))[1]
                * (strip.count if self.as_pixels else strip.size)
                for (start, rows), strip in product(self._pieces(), self.strips)
            )
            self.acc = BufferRotation(BufferMemory.ACC, f"{layer.name}.acc", sums, schedule.acc_buffers)
        if self.method == WindowMethod.SELECTED:
            self._begin_selection()
        if self.method in (WindowMethod.SUMS_FIRST, WindowMethod.SUMS_SHARED):
            sums = self.rows * max(strip.size for strip in self.strips) * self.columns
            shared = self.method == WindowMethod.SUMS_SHARED
            self.sums = BufferRotation(BufferMemory.ACC, f"{layer.name}.sums", sums, 1 + shared)
        if self.method == WindowMethod.SUMS_SHARED:
            self.matrices_dram = context.constant(f"{layer.name}.matrices", _bytes_of_int16(self.n))
            buffer = CircularBuffer(BufferMemory.SP, f"{layer.name}.matrix", 2 * self.n * self.n)
            self.matrices = TileBuffers(buffer, self._load_matrices)
        self.contiguous = layer.contiguous(self.n)
        # Maxima of the rows of each window, for all columns of the input; the padding of both widths of tiles is kept.
        wide = max(max(strip.size, strip.count + layer.kernel[1] - 1) for strip in self.strips)
        size = self.rows * wide * width + self.n * self.size
        depth = 2 if self.x.c * self.size % width else 1
        self.maxima = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{layer.name}.rows", size, depth), self._pad
        )

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the first row and the number of rows of each tile of an image.

        If MATRIX separates the columns, the first tile is smaller, because the units wait for it.
        """
        first = ceil_div(self.rows, 2) if self.method == WindowMethod.SELECTED else 0
        yield from pieces(min(first, self.y.h), self.rows)
        for start, rows in pieces(max(self.y.h - first, 0), self.rows):
            yield first + start, rows

    def _paired(self, strip: ColumnStrip, rows: int) -> int:
        """Return the number of rows of a tile that are computed with pairs."""
        return self.layer.pairs_of(self.config, rows, strip.size, strip.count, self.columns).rows

    def _image(self, start: int, rows: int) -> tuple[int, int]:
        layer = self.layer
        return image_rows(start, rows, layer.strides[0], layer.pads[0], layer.kernel[0], self.x.h)

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        *_, start, rows, block = key  # type: ignore[misc]
        first, count = self._image(start, rows)
        width = min(self.pixel, (self.x.c - block * self.n) * self.size)
        pitch = None
        if self.method == WindowMethod.SELECTED:
            pitch = self.selection.pitch(self.y.w, self.x.w)
        pixel = self._held_pixel(width)
        lines = image_lines(self.x, count, width, "dst", pixel, pitch)
        source = self.x.address(first, 0, block * self.n * self.size)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, **lines)]

    def _held_pixel(self, width: int) -> int:
        """Return the distance of pixels in the scratchpad if `width` bytes of each are loaded."""
        shared = self.method == WindowMethod.SUMS_SHARED
        return self.layer.held_pixel(width // self.size, self.n) if shared else width

    def _load_w(self, key: Hashable, address: BufferRef) -> list[Command]:
        assert isinstance(key, int)
        size = min(self.columns, self.blocks - key) * self.w_block
        source = BufferRef(self.w_dram, 0, key * self.w_block)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, len=size)]

    def _weighted(self, block: int, step: TileStep) -> dict[str, int | BufferRef]:
        """Return the fields that select the weights and parameters of a depthwise convolution; none for pooling."""
        layer = self.layer
        if layer.weights is None:
            return {}
        return {
            "b_base": self.w.get(block, step),
            "b_n": self.w_block,
            "b_wy": layer.kernel[1] * self.n,
            "b_wx": self.n,
            "p_base": self.p.get(block, step),
            "p_n": 1,
        }

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles."""
        tiles = list(product(range(self.layer.batch), self.strips, self._pieces()))
        if self.method == WindowMethod.SELECTED:
            return self._selected_steps(tiles)
        blocks = list(pieces(self.blocks, self.columns))
        return [
            self._tile(number, strip, *rows, *block)
            for (number, strip, rows), block in product(tiles, blocks)
        ]

    def _tile(
        self, number: int, strip: ColumnStrip, start: int, rows: int, block: int, blocks: int
    ) -> TileStep:
        x, y = (images[number] for images in self.images)
        self.x, self.y = x.columns(strip.start, strip.size), y.columns(strip.first, strip.count)
        step, layer, first = TileStep(), self.layer, block * self.n * self.size
        lanes = min(blocks * self.n, self.x.c - block * self.n)
        width = lanes * self.size
        if self.x.on_chip:
            base, image_first, image = self.x.address(0, 0, first), 0, self.x.h
        else:
            base = self.tiles.get((number, strip.first, start, rows, block), step)
            image_first, image = self._image(start, rows)
        address, pixel = (
            (self.y.address(start, 0, first), self.y.pixel) if self.y.on_chip else (self.out.next(), width)
        )
        row = self.y.row if self.y.on_chip else self.y.w * pixel
        image_pixel = self.pixel if self.x.on_chip else self._held_pixel(width)
        walk: dict[str, int | BufferRef] = {
            "a_base": base,
            "a_n": self.n * self.size,
            "a_u": self.x.row if self.x.on_chip else self.x.w * image_pixel,
            "a_v": image_pixel,
            "u_lim": image,
            "n_count": blocks,
            "lanes_tail": (lanes - 1) % self.n + 1,
            **self._weighted(block, step),
        }
        result = {"d_x": pixel, "d_y": row, "d_n": self.n * self.size}
        down = start * layer.strides[0] - layer.pads[0] - image_first
        paired = self._paired(strip, rows) if self.method == WindowMethod.PAIRS else 0
        if self.method == WindowMethod.ROWS_FIRST:
            self._separate(step, strip, walk, address, result, rows, width, down)
        elif self.method in (WindowMethod.SUMS_FIRST, WindowMethod.SUMS_SHARED):
            self._add_sums(step, strip, walk, address, result, (start, rows), down)
        elif paired < rows:
            for part, height, left, columns, words in self._parts(strip, start + paired, rows - paired):
                top = paired + part
                fields = {
                    **walk,
                    **result,
                    **words,
                    "u0": down + top * layer.strides[0],
                    "u_y": layer.strides[0],
                    "u_wy": 1,
                    "wy_count": layer.kernel[0],
                    "y_count": height,
                    "d_base": address.plus(top * row + left * pixel),
                    **self._across(left * layer.strides[1] + strip.before, columns),
                }
                step.fuse.append(self.context.command(Unit.FUSE, **fields))
        if paired:
            self._pair(step, strip, walk, address, result, (start, paired))
        if not self.y.on_chip:
            lines = image_lines(self.y, rows, width, "src", width)
            step.stores.append(
                self.context.command(Unit.STORE, dram=self.y.address(start, 0, first), src=address, **lines)
            )
        return step

    def _pitch(self, strip: ColumnStrip) -> int:
        """Return the distance of the image rows of a strip in the scratchpad, if MATRIX separates the columns."""
        return self.selection.pitch(strip.count, strip.size)

    def _begin_selection(self) -> None:
        """Create the buffers of a layer whose columns MATRIX separates."""
        context, layer, schedule = self.context, self.layer, self.context.schedule
        matrices = self.selection.matrices()
        self.matrices_dram = context.constant(f"{layer.name}.matrices", matrices)
        matrices_buffer = CircularBuffer(BufferMemory.SP, f"{layer.name}.matrix", matrices.size)
        self.matrices = TileBuffers(matrices_buffer, self._load_matrices)
        tiles = [(strip, rows) for strip in self.strips for rows in {rows for _, rows in self._pieces()}]
        sums = max(layer.selected_sums(self.config, rows, strip.count) for strip, rows in tiles)
        self.acc = BufferRotation(BufferMemory.ACC, f"{layer.name}.acc", sums, schedule.acc_buffers)
        size = max(
            layer.selected(self.config, rows, strip.count).combined * self._pitch(strip)
            for strip, rows in tiles
        )
        self.combined = BufferRotation(BufferMemory.SP, f"{layer.name}.rows", size, 2, wide=True)

    def _load_matrices(self, _: Hashable, address: BufferRef) -> list[Command]:
        source = BufferRef(self.matrices_dram)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, len=address.buffer.size)]

    def _selected_steps(self, tiles: Sequence[tuple[int, ColumnStrip, tuple[int, int]]]) -> list[TileStep]:
        """Return the steps of tiles, given by image, strip, first row and number of rows, with separated columns.

        FUSE combines the image rows of the next tile before the last sums of a tile, so that MATRIX need not wait.
        """
        (kernel, _), (stride, _) = self.layer.kernel, self.layer.strides
        ahead = self.context.schedule.x_buffers > 1
        first = self._combine(tiles[0])
        steps = [*first[:1]]
        for tile, following in zip(tiles, (*tiles[1:], None), strict=True):
            number, strip, (start, rows) = self._enter(tile)
            combined, held = self.layer.selected(self.config, rows, strip.count).combined, first[1:]
            if combined < rows:
                step, part = TileStep(), (start + combined, rows - combined)
                lines = self.tiles.get((number, strip.first, *part, 0), step)
                self._separate_columns(step, lines, part, kernel, stride)
                steps.append(step)
            first = self._combine(following) if following and ahead else ()
            steps += first[:1]
            if held:
                step = TileStep()
                self._enter(tile)
                self._separate_columns(step, held[0], (start, combined), 1, 1)
                steps.append(step)
            if following and not ahead:
                first = self._combine(following)
                steps += first[:1]
        return steps

    def _enter(
        self, tile: tuple[int, ColumnStrip, tuple[int, int]]
    ) -> tuple[int, ColumnStrip, tuple[int, int]]:
        """Let `x` and `y` be the columns of a tile's images; return the tile."""
        number, strip, _ = tile
        x, y = (images[number] for images in self.images)
        self.x, self.y = x.columns(strip.start, strip.size), y.columns(strip.first, strip.count)
        return tile

    def _combine(
        self, tile: tuple[int, ColumnStrip, tuple[int, int]]
    ) -> tuple[()] | tuple[TileStep, BufferRef]:
        """Return the step that combines the image rows of the first windows of a tile, and the address of the results.

        The result is empty if MATRIX multiplies all image rows.
        """
        number, strip, (start, rows) = self._enter(tile)
        combined = self.layer.selected(self.config, rows, strip.count).combined
        if not combined:
            return ()
        step = TileStep()
        image = self.tiles.get((number, strip.first, start, combined, 0), step)
        n, windows = self.n, self.y.w
        pitch, length = self.selection.pitch(windows, self.x.w), 2 * windows * self.x.c
        held = self.combined.next()
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                **self._words({}) | {"stage": self._stage("x", reduce=Reduce.MAX)},
                a_base=image,
                a_u=pitch,
                a_v=n,
                u_y=self.layer.strides[0],
                u_wy=1,
                v_x=1,
                wy_count=self.layer.kernel[0],
                y_count=combined,
                x_count=ceil_div(length, n),
                lanes_tail=(length - 1) % n + 1,
                d_base=held,
                d_y=pitch,
                d_x=n,
            )
        )
        return step, held

    def _separate_columns(
        self, step: TileStep, image: BufferRef, tile: tuple[int, int], kernel: int, stride: int
    ) -> None:
        """Add the commands of some rows of windows whose columns MATRIX separates, and their store.

        Parameters
        ----------
        image : BufferRef
            Address of the image rows, or of rows that FUSE has combined.
        tile : (int, int)
            First row of windows, and number of rows.
        kernel, stride : int
            Number of rows at `image` that a window covers, and the distance of windows.
        """
        n, windows, (start, rows) = self.n, self.y.w, tile
        period, sums = self.selection.period, self.selection.rows(windows)
        read, width = image_height(rows, kernel, stride), self.x.c
        unsigned = int(self.layer.shapes[self.layer.x].dtype == Dtype.U8)
        acc, matrices = self.acc.next(), self.matrices.get(0, step)
        for each in self.selection.products(windows):
            own = {
                "a_base": image.plus(each["a_base"]),
                "w_base": matrices.plus(each["w_base"]),
                "acc_base": acc.plus(each["acc_base"] + each["column"] * read * sums),
            }
            step.matrix.append(
                self.context.command(
                    Unit.MATRIX,
                    word=MATRIX_WORD.pack(wide=1, accumulate=each["accumulate"], a_unsigned=unsigned),
                    **own,
                    w_row=n,
                    w_oc=n * n,
                    a_oc=2 * n,
                    v_x=1,
                    a_v=2 * n * period,
                    u_y=1,
                    a_u=self.selection.pitch(windows, self.x.w),
                    y_count=read,
                    x_count=each["x_count"],
                    oc_count=each["oc_count"],
                    acc_oc=1,
                    acc_x=period,
                    acc_y=sums,
                )
            )
        address, row = self.out.next(), windows * width
        if self.y.on_chip:
            address, row = self.y.address(start, 0, 0), self.y.row
        step.fuse.append(
            self.context.command(
                Unit.FUSE,
                **self._words({}) | {"src": FUSE_SRC.pack(), "stage": self._stage("x", reduce=Reduce.MAX)},
                a_base=acc,
                a_u=sums,
                a_v=1,
                u_y=stride,
                u_wy=1,
                v_x=1,
                v_wx=read * sums,
                wx_count=2,
                wy_count=kernel,
                y_count=rows,
                x_count=sums,
                lanes_tail=(windows * width - 1) % n + 1,
                d_base=address,
                d_y=row,
                d_x=n,
            )
        )
        if not self.y.on_chip:
            lines = image_lines(self.y, rows, width, "src", width)
            step.stores.append(
                self.context.command(Unit.STORE, dram=self.y.address(start, 0, 0), src=address, **lines)
            )

    def _load_signs(self, _: Hashable, address: BufferRef) -> list[Command]:
        """Return the commands that load the weights of a difference: 1 and -1 for each channel."""
        if self.as_pixels:
            source = BufferRef(self.signs_dram)
            return [self.context.command(Unit.LOAD, dram=source, dst=address, len=address.buffer.size)]
        return [
            self.context.command(
                Unit.LOAD,
                word=LOAD_WORD.pack(fill=1, fill_value=value),
                dst=address.plus(number * self.n),
                len=self.n,
            )
            for number, value in enumerate((1, 0xFF))
        ]

    def _pair(
        self,
        step: TileStep,
        strip: ColumnStrip,
        walk: Mapping[str, int | BufferRef],
        address: BufferRef,
        result: Mapping[str, int],
        tile: tuple[int, int],
    ) -> None:
        """Add the commands of a tile, given by its first row and number of rows, whose pixels are paired."""
        layer, n, columns = self.layer, self.n, self.x.w
        (down, across), (first, height) = layer.strides, self._image(*tile)
        x, row, pixel = walk["a_base"], walk["a_u"], walk["a_v"]
        assert isinstance(x, BufferRef) and isinstance(row, int) and isinstance(pixel, int)
        if self.x.on_chip:
            x = x.plus(first * row)
        dtype, pairs, sums = layer.shapes[layer.x].dtype, layer.pairs, self.acc.next()
        if self.as_pixels:  # a difference for each window instead of each pixel
            products = _products(dtype, height, self.y.w, self.x.c, n) | {"a_v": 2 * pixel, "acc_y": self.y.w}
            held = self.y.w
        else:
            products = {**_differences(dtype, height, columns, n), "a_oc": n, "a_v": pixel}
            products |= {
                "oc_count": walk["n_count"],
                "n_tail": walk["lanes_tail"],
                "acc_oc": height * columns,
            }
            held = columns
        step.matrix.append(
            self.context.command(
                Unit.MATRIX,
                **products,
                a_base=x,
                a_u=row,
                w_base=self.signs.get(0, step),
                acc_base=sums,
            )
        )
        rows = _inside(tile[0] * down - layer.pads[0] - first, tile[1], down, range(layer.kernel[0]), height)
        runs = _inside(strip.before, strip.count, across, pairs, columns)
        for (top, y_count, u, wy_count), (left, x_count, v, wx_count) in product(rows, runs):
            step.fuse.append(
                self.context.command(
                    Unit.FUSE,
                    **_maxima((down, across), pairs.step, (row, pixel), held)
                    | ({"v_x": 1} if self.as_pixels else {}),
                    **result,
                    stage=self._stage("n", reduce=Reduce.MAX, residual=1, r_raw=1, r_dtype=dtype),
                    n_count=walk["n_count"],
                    lanes_tail=walk["lanes_tail"],
                    a_base=sums.plus(u * held + (left if self.as_pixels else v)),
                    a_n=height * held,
                    r_base=x.plus(u * row + v * pixel),
                    r_n=n,
                    y_count=y_count,
                    wy_count=wy_count,
                    x_count=x_count,
                    wx_count=wx_count,
                    d_base=address.plus(top * result["d_y"] + left * result["d_x"]),
                )
            )

    def _across(self, first: int, columns: int) -> dict[str, int]:
        """Return the fields of a walk over `columns` windows, of which the first begins at input column `first`."""
        stride = self.layer.strides[1]
        return {
            "v0": first,
            "v_x": stride,
            "v_wx": 1,
            "v_lim": self.x.w,
            "wx_count": self.layer.kernel[1],
            "x_count": columns,
        }

    def _pad(self, key: Hashable, address: BufferRef) -> list[Command]:
        """Return the commands that fill the padding of the rows between both passes of a separable maximum."""
        before, size, count, width = key  # type: ignore[misc]
        if not self.contiguous:
            return []
        line = (count + self.layer.kernel[1] - 1) * width
        left, end = -before * width, (size - before) * width
        least = 0 if self.layer.shapes[self.layer.x].dtype == Dtype.U8 else 0x80
        return [
            self.context.command(
                Unit.LOAD,
                word=LOAD_WORD.pack(fill=1, fill_value=least),
                dst=address.plus(first),
                len=length,
                y_count=self.rows,
                dst_y=line,
            )
            for first, length in ((0, left), (end, line - end))
            if length > 0
        ]

    def _separate(
        self,
        step: TileStep,
        strip: ColumnStrip,
        walk: Mapping[str, int | BufferRef],
        address: BufferRef,
        result: Mapping[str, int],
        rows: int,
        width: int,
        down: int,
    ) -> None:
        """Add the commands of a tile that combine the rows of each window, then the columns.

        The rows of the tile are combined in two halves, so that the columns of the first half need not wait.
        """
        layer, n, size = self.layer, self.n, self.size
        before = strip.before if self.contiguous else 0
        columns = strip.count + layer.kernel[1] - 1 if self.contiguous else self.x.w
        line = columns * width
        held = self.maxima.get((strip.before, self.x.w, strip.count, width), step)
        halves = list(pieces(rows, ceil_div(rows, 2)))
        words = self._words({})
        first: dict[str, int | BufferRef] = {
            **walk,
            **words,
            "u_y": layer.strides[0],
            "u_wy": 1,
            "wy_count": layer.kernel[0],
            "v_x": 1,
            "d_y": line,
        }
        if walk["a_v"] == width:
            first |= self._flat(self.x.w * width)
        else:
            first |= {"x_count": self.x.w, "d_x": width, "d_n": n * size}
        for top, height in halves:
            step.fuse.append(
                self.context.command(
                    Unit.FUSE,
                    **{
                        **first,
                        "u0": down + top * layer.strides[0],
                        "y_count": height,
                        "d_base": held.plus(top * line - before * width),
                    },
                )
            )
        second: dict[str, int | BufferRef] = {**walk, **result, **words, "u_lim": 0}
        if self.contiguous and result["d_x"] == width:
            second |= self._flat(strip.count * width) | {"v_x": 1, "a_u": width, "u_wy": 1}
            second |= {"wy_count": layer.kernel[1], "a_n": line, "d_n": result["d_y"]}
            rows_of = "n_count"
        else:
            second |= {"a_u": line, "u_y": 1, "a_v": width, **self._across(strip.before, strip.count)}
            second |= {"v0": 0, "v_lim": 0} if self.contiguous else {}
            rows_of = "y_count"
        for top, height in halves:
            step.fuse.append(
                self.context.command(
                    Unit.FUSE,
                    **{
                        **second,
                        "a_base": held.plus(top * line),
                        rows_of: height,
                        "d_base": address.plus(top * result["d_y"]),
                    },
                )
            )

    def _add_sums(
        self,
        step: TileStep,
        strip: ColumnStrip,
        walk: Mapping[str, int | BufferRef],
        address: BufferRef,
        result: Mapping[str, int],
        tile: tuple[int, int],
        down: int,
    ) -> None:
        """Add the commands of a tile, given by its first row and number of rows, that add the rows of each window, then
        the columns.

        The rows of the tile are added in two parts, so that the columns of the first part need not wait: two halves, or
        those that MATRIX adds, and the others.
        """
        layer, columns, (start, rows) = self.layer, self.x.w, tile
        held = self.sums.next()
        dtype, (low, high) = layer.shapes[layer.x].dtype, layer.clip
        of_block = {"a_n": rows * columns, "n_count": walk["n_count"], "lanes_tail": walk["lanes_tail"]}
        halves, by_fuse = [list(pieces(rows, ceil_div(rows, 2)))] * 2
        if self.method == WindowMethod.SUMS_SHARED:
            blocks = of_block["n_count"]
            assert isinstance(blocks, int)
            many = layer.shared_sums(rows, columns, strip.count, blocks).rows
            halves = [part for part in ((0, many), (many, rows - many)) if part[1]]
            by_fuse = halves[many > 0 :]
            if many:
                self._add_rows(step, walk, held, many, (rows, columns, blocks), down)
        tail = FUSE_DIMS.index("n")
        for top, height in by_fuse:
            first: dict[str, int | BufferRef] = {
                **walk,
                "src": FUSE_SRC.pack(a_src=1, a_dtype=dtype),
                "stage": FUSE_STAGE.pack(reduce=Reduce.SUM, tail_dim=tail),
                "u0": down + top * layer.strides[0],
                "u_y": layer.strides[0],
                "u_wy": 1,
                "wy_count": layer.kernel[0],
                "v_x": 1,
                "x_count": columns,
                "y_count": height,
                "d_x": 1,
                "d_y": columns,
                "d_n": rows * columns,
                "d_base": held.plus(top * columns),
            }
            step.fuse.append(self.context.command(Unit.FUSE, **first))
        (x, y), runs = (images[0] for images in self.images), []
        for i, (size, outputs) in enumerate(((x.h, y.h), (x.w, y.w))):
            runs.append(window_runs(size, layer.kernel[i], layer.strides[i], layer.pads[i], outputs))
        for half, length in halves:
            span = (start + half, length), (strip.first, strip.count)
            for top, height, left, count, inside in rectangles(runs, *span):
                mult, exponent = reciprocal(inside)
                second: dict[str, int | BufferRef] = {
                    **of_block,
                    **result,
                    "stage": self._stage(
                        "n", reduce=Reduce.SUM, post=Post.SCALE, post_rounding=Rounding.AWAY
                    ),
                    "post_mult": mult,
                    "post_shift": exponent,
                    "post_lo": low,
                    "post_hi": high,
                    "a_base": held.plus((half + top) * columns),
                    "a_u": columns,
                    "u_y": 1,
                    "a_v": 1,
                    "y_count": height,
                    "d_base": address.plus((half + top) * result["d_y"] + left * result["d_x"]),
                    **self._across(left * layer.strides[1] + strip.before, count),
                }
                step.fuse.append(self.context.command(Unit.FUSE, **second))

    def _add_rows(
        self,
        step: TileStep,
        walk: Mapping[str, int | BufferRef],
        sums: BufferRef,
        rows: int,
        tile: tuple[int, int, int],
        down: int,
    ) -> None:
        """Add the commands by which MATRIX adds the int16 elements of the image rows of the first windows of a column.

        The high bytes of all image rows are added first, then 256 times their sum and the low bytes.

        Parameters
        ----------
        sums : BufferRef
            Address of the sums.
        rows : int
            Rows of windows.
        tile : (int, int, int)
            Rows of windows, columns and blocks of channels of the tile.
        """
        (whole, columns, blocks), n = tile, self.n
        matrices = self.matrices.get(0, step)
        for low in range(2):
            step.matrix.append(
                self.context.command(
                    Unit.MATRIX,
                    word=MATRIX_WORD.pack(wide=1, shift8=low, a_unsigned=low),
                    **{name: walk[name] for name in ("a_base", "a_u", "a_v", "u_lim")},
                    u0=down,
                    u_y=self.layer.strides[0],
                    u_ky=1,
                    v_x=1,
                    y_count=rows,
                    x_count=columns,
                    ky_count=self.layer.kernel[0],
                    oc_count=blocks,
                    a_oc=2 * n,
                    w_base=matrices.plus(low * n * n),
                    w_row=n,
                    acc_base=sums,
                    acc_x=1,
                    acc_y=columns,
                    acc_oc=whole * columns,
                )
            )

    def _flat(self, length: int) -> dict[str, int]:
        """Return the fields of a walk over `length` contiguous bytes of operand and result, N elements at a time."""
        lanes, n = length // self.size, self.n
        return {
            "a_v": n * self.size,
            "d_x": n * self.size,
            "x_count": ceil_div(lanes, n),
            "n_count": 1,
            "lanes_tail": (lanes - 1) % n + 1,
            "stage": self._stage("x", reduce=Reduce.MAX),
        }

    def _stage(self, tail: str, **parts: int) -> int:
        """Return the second half of the fuse word, with the dimension whose last step has fewer lanes."""
        dtype = self.layer.shapes[self.layer.y].dtype
        return FUSE_STAGE.pack(d_dst=1, d_dtype=dtype, tail_dim=FUSE_DIMS.index(tail), **parts)

    def _parts(
        self, strip: ColumnStrip, start: int, rows: int
    ) -> Iterator[tuple[int, int, int, int, dict[str, int]]]:
        """Yield the rectangles of a tile, one per command: first row, rows, first column, columns, fuse words.

        If averages exclude padding, each number of elements inside the image needs a separate factor.
        """
        layer, known = self.layer, len(self.layer.scaled) < 2
        if known:
            yield 0, rows, 0, self.y.w, self._words(next(iter(layer.scaled.values()), {}))
            return
        x, y = (images[0] for images in self.images)
        sizes = ((x.h, y.h), (x.w, y.w))
        runs = [
            window_runs(size, layer.kernel[i], layer.strides[i], layer.pads[i], outputs)
            for i, (size, outputs) in enumerate(sizes)
        ]
        for *rectangle, count in rectangles(runs, (start, rows), (strip.first, strip.count)):
            top, height, left, columns = rectangle
            yield top, height, left, columns, self._words(layer.scaled[count])

    def _words(self, scaled: Mapping[str, int]) -> dict[str, int]:
        """Return the fuse words; averages use `scaled` or divide by the elements inside the image."""
        layer = self.layer
        low, high = layer.clip
        if layer.weights is not None and layer.drain is not None:
            stage = self._stage("n", reduce=Reduce.SUM, post=Post.SLOT, post_rounding=layer.drain.rounding)
            signed = layer.weights.dtype == np.int8
            src = FUSE_SRC.pack(
                a_src=1,
                a_dtype=layer.shapes[layer.x].dtype,
                b_src=BSource.SP,
                b_dtype=Dtype.I8 if signed else Dtype.U8,
                op=Op.MUL,
            )
            limits = {"post_zp": layer.drain.zp, "post_lo": low, "post_hi": high}
            return {"src": src, "stage": stage, "zp_ab": halves_word(layer.x_zp, layer.w_zp), **limits}
        src = FUSE_SRC.pack(a_src=1, a_dtype=layer.shapes[layer.x].dtype)
        if scaled:
            stage = self._stage("n", reduce=Reduce.SUM, post=Post.SCALE, post_rounding=Rounding.EVEN)
            return {"src": src, "stage": stage, "zp_ab": halves_word(layer.x_zp, 0), **scaled}
        if layer.average:
            stage = self._stage("n", reduce=Reduce.SUM, post=Post.COUNT)
            return {"src": src, "stage": stage, "post_lo": low, "post_hi": high}
        return {"src": src, "stage": self._stage("n", reduce=Reduce.MAX), "clip_lo": low, "clip_hi": high}


def _bytes_of_int16(n: int) -> NDArray[np.uint8]:
    """Return the matrices of 0 and 1 that select the high and the low bytes of N elements, as pairs of int4."""
    matrices = np.zeros((2, 2 * n, n), np.uint8)
    lane = np.arange(n)
    matrices[0, 2 * lane + 1, lane] = 1
    matrices[1, 2 * lane, lane] = 1
    return (matrices[:, :n] | matrices[:, n:] << 4).astype(np.uint8)


def _differences(dtype: Dtype, rows: int, columns: int, n: int) -> dict[str, int]:
    """Return the fields of MATRIX for the differences of pixels and the pixels at their left, in `rows` rows.

    The pixels at the left of the image are replaced by the smallest element.
    """
    unsigned = dtype == Dtype.U8
    return {
        "word": MATRIX_WORD.pack(dw=1, taps=2, groups=1, a_unsigned=int(unsigned)),
        "a_zp": 0 if unsigned else -128,
        "w_row": n,
        "x_count": columns + 1,
        "u_y": 1,
        "u_lim": rows,
        "v0": -1,
        "v_x": 1,
        "v_lim": columns,
        "acc_x": 1,
        "acc_y": columns,
        "dw_lead": 1,
        "dw_len": rows * (columns + 1),
        "dw_sx": 1,
        "dw_sy": 1,
        "dw_out_w": columns,
    }


def _products(dtype: Dtype, rows: int, windows: int, channels: int, n: int) -> dict[str, int]:
    """Return the fields of MATRIX for the differences of the two pixels of each window, in `rows` rows."""
    return {
        "word": MATRIX_WORD.pack(a_unsigned=int(dtype == Dtype.U8)),
        "w_row": n,
        "k_rows": 2 * channels,
        "n_cols": channels,
        "y_count": rows,
        "x_count": windows,
        "u_y": 1,
        "v_x": 1,
        "acc_x": 1,
    }


def _maxima(strides: tuple[int, int], step: int, steps: tuple[int, int], columns: int) -> dict[str, int]:
    """Return the fields of FUSE for the maxima of pairs in windows, except addresses and counts.

    Parameters
    ----------
    strides : (int, int)
        Vertical and horizontal distance of the windows.
    step : int
        Distance of the pairs in a window.
    steps : (int, int)
        Distance of rows and of pixels in bytes.
    columns : int
        Columns of differences.
    """
    (down, across), (row, pixel) = strides, steps
    return {
        "src": FUSE_SRC.pack(),
        "clip_lo": 0,
        "clip_hi": 255,
        "x_mult": 1,
        "r_mult": 1,
        "o_mult": 1,
        "r_shifts": bytes_word(0, 0, 31),
        "a_u": columns,
        "a_v": 1,
        "u_y": down,
        "u_wy": 1,
        "v_x": across,
        "v_wx": step,
        "r_y": down * row,
        "r_wy": row,
        "r_x": across * pixel,
        "r_wx": step * pixel,
    }


def _inside(
    first: int, windows: int, stride: int, offsets: range, size: int
) -> list[tuple[int, int, int, int]]:
    """Return runs of windows with the same elements inside an image.

    Parameters
    ----------
    first : int
        Position of the first window.
    windows, stride : int
        Number of windows, and their distance.
    offsets : range
        Positions of the elements in a window.
    size : int
        Size of the image.

    Returns
    -------
    list of (int, int, int, int)
        First window and number of windows of each run, position of its first element, and number of elements of a
        window.
    """
    runs: list[tuple[int, int, int, int]] = []
    last = range(0)
    for number in range(windows):
        low = first + number * stride
        inside = [each for each in offsets if 0 <= low + each < size]
        found = range(inside[0], inside[-1] + 1)
        if runs and found == last:
            start, count, *element = runs[-1]
            runs[-1] = (start, count + 1, element[0], element[1])
        else:
            runs.append((number, 1, low + inside[0], len(inside)))
        last = found
    return runs


def pool_steps(context: CodegenContext, layer: PoolLayer) -> list[TileStep]:
    """Generate the steps of a pooling layer."""
    return PoolSteps(context, layer).steps()


KIND = LayerKind(
    name="pool",
    layer=PoolLayer,
    lowerings={
        **dict.fromkeys(
            ("max_pool2d", "avg_pool2d"),
            Lowering(
                lower_pool,
                ElementTypes((POOLED_TYPES,), POOLED_TYPES),
                strided_input=True,
                strided_output=True,
            ),
        ),
    },
    tilings=pool_tilings,
    tile_model=pool_tile_model,
    steps=pool_steps,
    rank_by_tile_model=True,
)
