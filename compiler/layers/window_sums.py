"""Averages of images with few channels: MATRIX adds the columns of windows, N results of adjacent pixels at a time.

An image row is read as consecutive bytes. The element of the next pixel of a channel is as many bytes later as there
are channels, so the sums of the columns of all windows of a row are products of its blocks of 2N bytes with a few
matrices of 0 and 1 (wide mode). FUSE or MATRIX then adds the image rows of a window, so that both units
are equally busy (`Adding`).
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tile_buffers import (
    BufferRotation,
    CodegenContext,
    TileBuffers,
    image_lines,
    image_rows,
    pieces,
    tile_buffers,
    window_runs,
)
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.epilogue import Slots
from compiler.layers.tile_pipeline import PipelineTile, TilePipeline, line_beats
from compiler.layers.tiling_context import (
    MAX_SUM_BUFFERS,
    LayerContext,
    TilingContext,
    Tilings,
    images,
    input_rows,
)
from compiler.schedule.schedule import LayerSchedule
from compiler.util.scaling import bytes_word
from compiler.util.tiles import ceil_div, cuts
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, LOAD_WORD, MATRIX_WORD
from hw.isa.enums import Dtype, Post, Reduce, Requant, Unit

#: Maximum number of blocks of 2N bytes that N sums of columns depend on.
_MAX_BLOCKS = 3
#: Numbers of buffers of image rows that are tried, and number of buffers of results.
_X_BUFFERS, _Y_BUFFERS = (3, 4), 3
#: Numbers of buffers of sums: those of pairs, which are in use for two tiles, and the least number of others.
_PAIR_BUFFERS, _SUM_BUFFERS = 3, 3
#: Cycles of the units between two tiles.
_NEXT_PART = 20


@dataclass(frozen=True)
class ColumnSums:
    """Products with matrices of 0 and 1 that add the columns of windows at a distance of one pixel.

    Row i of the sums of an image row has the N bytes of results from byte i * N on. It depends on the blocks of 2N
    bytes from block i / 2 on: the matrices of even rows are equal, and those of odd rows.

    Parameters
    ----------
    n : int
        Lanes of the machine.
    channels : int
        Channels of the image.
    columns : int
        Columns of a window.
    """

    n: int
    channels: int
    columns: int

    def blocks(self, odd: int) -> int:
        """Return the number of blocks that an even row of sums (`odd` is 0) or an odd one (1) depends on."""
        return ceil_div((odd + 1) * self.n + (self.columns - 1) * self.channels, 2 * self.n)

    @property
    def tiles(self) -> int:
        """Number of matrices."""
        return self.blocks(0) + self.blocks(1)

    def matrices(self) -> NDArray[np.uint8]:
        """Return the matrices of the blocks of even rows, then those of odd rows, as pairs of int4."""
        n, found = self.n, []
        for odd in range(2):
            matrices = np.zeros((self.blocks(odd), 2 * n, n), np.uint8)
            lane, column = np.indices((n, self.columns))
            block, byte = np.divmod(odd * n + lane + column * self.channels, 2 * n)
            matrices[block, byte, lane] = 1
            found.append(matrices)
        every = np.concatenate(found)
        return (every[:, :n] | every[:, n:] << 4).astype(np.uint8)

    def rows(self, windows: int) -> int:
        """Return the rows of sums of `windows` windows of an image row."""
        return ceil_div(windows * self.channels, self.n)

    def pitch(self, columns: int, windows: int) -> int:
        """Return the distance of image rows in bytes, a multiple of 2N, that includes all blocks of their sums.

        Parameters
        ----------
        columns : int
            Columns of an image row and of the padding before it.
        windows : int
            Windows of the row.
        """
        last = self.rows(windows) - 1
        blocks = max(row // 2 + self.blocks(row % 2) for row in range(max(last - 1, 0), last + 1))
        return max(blocks, ceil_div(columns * self.channels, 2 * self.n)) * 2 * self.n

    def rows_of(self, odd: int, windows: int) -> int:
        """Return the even or odd rows of sums of an image row."""
        return (self.rows(windows) + 1 - odd) // 2

    def passes(self, odd: int, windows: int, rows: int) -> int:
        """Return the cycles of MATRIX for the even or odd rows of sums of `rows` image rows."""
        sums = self.rows_of(odd, windows) * rows
        return self.blocks(odd) * max(sums, self.n) if sums else 0


class Adding(IntEnum):
    """Ways in which the sums of columns of the image rows of a window are added, in order of execution in a tile."""

    #: The upper ones of pairs of adjacent windows: MATRIX adds the image rows that both windows have, and FUSE adds
    #: this sum and the sums of the first image row.
    UPPER = 0
    #: FUSE adds the sums of each image row.
    FUSE = 1
    #: The lower ones of these pairs: MATRIX adds the sums of the last image row to that of the common rows.
    LOWER = 2
    #: MATRIX adds all image rows.
    MATRIX = 3


class Part(NamedTuple):
    """Part of a tile that is computed at a time: the even or odd rows of sums of some rows of windows.

    Parameters
    ----------
    how : Adding
        Unit that adds the image rows.
    odd : int
        0 for even rows of sums, 1 for odd ones.
    start, rows : int
        First row of windows, relative to the tile, and number of rows; every other row of UPPER and LOWER.
    matrix, fuse : int
        Cycles of MATRIX and FUSE.
    """

    how: Adding
    odd: int
    start: int
    rows: int
    matrix: int
    fuse: int

    @property
    def step(self) -> int:
        """Distance of the rows of windows."""
        return 2 if self.how in (Adding.UPPER, Adding.LOWER) else 1

    def held(self, kernel: int, stride: int) -> int:
        """Return the number of rows of windows, or of image rows, whose sums are held."""
        if self.how == Adding.FUSE:
            return _height(self.rows, kernel, stride)
        return self.rows * self.step


def _height(rows: int, kernel: int, stride: int) -> int:
    """Return the image rows that `rows` rows of windows cover."""
    return (rows - 1) * stride + kernel if rows else 0


@cache
def _parts(sums: ColumnSums, kernel: int, stride: int, rows: int, windows: int) -> tuple[Part, ...]:
    """Return the parts of a tile of `rows` rows of `windows` windows, with which the busier unit takes the least time.

    Odd rows of sums may depend on more blocks than even ones, so that MATRIX adds fewer of their image rows.

    Parameters
    ----------
    kernel, stride : int
        Image rows of a window, and the distance of windows in image rows.
    """
    choices = []
    for odd in range(2):
        each = sums.rows_of(odd, windows)

        def passes(image_rows: int, odd: int = odd) -> int:
            return sums.passes(odd, windows, image_rows)

        mine = list[list[Part]]()
        pairs = range(rows // 2 + 1 if stride == 1 and kernel > 2 else 1)
        for pair, apart in product(pairs, range(rows + 1)) if each else ():
            upper, left = 2 * pair + apart, rows - 2 * pair - apart
            if left < 0 or min(pair, apart, left) > 0:  # at most two ways
                continue
            parts = (
                Part(Adding.UPPER, odd, 0, pair, kernel * passes(pair), 2 * pair * each),
                Part(
                    Adding.FUSE,
                    odd,
                    2 * pair,
                    apart,
                    passes(_height(apart, kernel, stride)),
                    apart * kernel * each,
                ),
                Part(Adding.LOWER, odd, 1, pair, passes(pair), pair * each),
                Part(Adding.MATRIX, odd, upper, left, kernel * passes(left), left * each),
            )
            mine.append([part for part in parts if part.rows])
        choices.append(mine or [[]])
    even, odds = (
        np.array([[sum(part[at] for part in parts) for parts in mine] for at in (-2, -1)]) for mine in choices
    )
    busier = (even[:, :, None] + odds[:, None, :]).max(axis=0)
    first, second = np.unravel_index(busier.argmin(), busier.shape)
    return tuple(sorted(choices[0][first] + choices[1][second]))


@dataclass(frozen=True)
class WindowSums:
    """Division of an average into products and sums.

    Parameters
    ----------
    layer : DepthwiseLayer
        Average, as a depthwise convolution whose weights are 1.
    sums : ColumnSums
        Products that add the columns of windows.
    """

    layer: DepthwiseLayer
    sums: ColumnSums

    def parts(self, rows: int) -> tuple[Part, ...]:
        """Return the parts of a tile of `rows` rows of windows in order of execution."""
        kernel, stride, (_, y) = self.layer.weights.shape[0], self.layer.strides[0], images(self.layer)
        return _parts(self.sums, kernel, stride, rows, y.w)

    def sum_rows(self, rows: int, *, shared: bool) -> int:
        """Return the rows of sums of the largest part of a tile of `rows` rows; `shared`: of those of pairs."""
        kernel, stride, (_, y) = self.layer.weights.shape[0], self.layer.strides[0], images(self.layer)
        return max(
            (
                self.sums.rows_of(part.odd, y.w) * part.held(kernel, stride)
                for part in self.parts(rows)
                if (part.step > 1) == shared
            ),
            default=0,
        )

    def sum_buffers(self, rows: int, acc_rows: int) -> int:
        """Return the number of buffers of sums for tiles of `rows` rows that fit, in addition to those of pairs."""
        left = acc_rows - _PAIR_BUFFERS * self.sum_rows(rows, shared=True)
        return min(left // max(self.sum_rows(rows, shared=False), 1), MAX_SUM_BUFFERS)

    @cached_property
    def left(self) -> int:
        """Bytes of padding before an image row."""
        return self.layer.pads[1] * self.layer.channels

    @cached_property
    def pitch(self) -> int:
        """Distance of image rows in the scratchpad."""
        x, y = images(self.layer)
        return self.sums.pitch(x.w + self.layer.pads[1], y.w)

    def runs(self) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """Return the runs of rows and of columns of windows with equally many elements inside the image."""
        x, y = images(self.layer)
        kernel, strides, pads = self.layer.weights.shape, self.layer.strides, self.layer.pads
        return (
            window_runs(x.h, kernel[0], strides[0], pads[0], y.h),
            window_runs(x.w, kernel[1], strides[1], pads[1], y.w),
        )

    @cached_property
    def columns_inside(self) -> NDArray[np.int64]:
        """Columns inside the image of the window of each byte of results, as (rows of sums, N) without lanes beyond."""
        n, (_, y) = self.sums.n, images(self.layer)
        counts = np.full(y.w, self.layer.weights.shape[1])
        if self.layer.counts:
            counts = np.concatenate([np.full(many, count) for _, many, count in self.runs()[1]])
        each = np.repeat(counts, self.layer.channels)
        return np.pad(each, (0, -len(each) % n), mode="edge").reshape(-1, n)

    @cached_property
    def even(self) -> range:
        """Rows of sums in which the windows of all lanes have the most columns inside the image."""
        inside = self.columns_inside
        (places,) = np.nonzero((inside == inside.max()).all(axis=1))
        return range(places[0], places[-1] + 1) if len(places) else range(0)

    @cached_property
    def uneven(self) -> list[int]:
        """The other rows of sums."""
        return [row for row in range(len(self.columns_inside)) if row not in self.even]

    def uneven_of(self, odd: int) -> list[int]:
        """Return the even or odd ones of these."""
        return [row for row in self.uneven if row % 2 == odd]


def window_sums(layer: DepthwiseLayer, config: MlaConfig) -> WindowSums | None:
    """Return the division of a layer into sums of windows of bytes; None if it is not an average that permits it.

    Each image row must have the same windows, at a distance of one pixel, and all channels the same scaling.
    """
    drain, n = layer.drain, config.n
    plain = drain.residual is None and drain.table is None and drain.negative is None and drain.common_scale
    bytes_ = {drain.dtype, layer.shapes[layer.x].dtype} <= {Dtype.I8, Dtype.U8}
    if not config.wide or not plain or not bytes_ or drain.bias.any() or layer.channels >= n:
        return None
    if layer.dilations != (1, 1) or layer.multiplier > 1 or layer.strides[1] > 1:
        return None
    sums = ColumnSums(n, layer.channels, layer.weights.shape[1])
    if layer.w_zp or (layer.weights != 1).any() or sums.blocks(1) > _MAX_BLOCKS:
        return None
    found = WindowSums(layer, sums)
    kinds = len({count for *_, count in found.runs()[0]})
    return found if kinds * len(found.uneven) <= config.param_slots // 2 else None


def _tiles(height: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of each tile of an image; the units wait for the first one."""
    start = 0
    for size in (ceil_div(rows, 4), ceil_div(rows, 2)):
        count = min(size, height - start)
        if count:
            yield start, count
        start += count
    if start < height:
        for at, count in pieces(height - start, ceil_div(height - start, ceil_div(height - start, rows))):
            yield start + at, count


def window_sum_tilings(context: TilingContext, layer: DepthwiseLayer) -> Tilings:
    """Yield the tilings of an average by sums of windows of bytes that fit."""
    config, how = context.config, window_sums(layer, context.config)
    if how is None or context.x_on_chip or not context.alone:
        return
    n, (x, y), channels = config.n, images(layer), layer.channels
    kernel, stride = layer.weights.shape[0], layer.strides[0]
    for rows in cuts(y.h):
        if rows * how.sums.rows_of(0, y.w) > context.acc_rows:
            continue
        parts, high = how.parts(rows), input_rows(rows, stride, kernel, x.h)
        sum_buffers = how.sum_buffers(rows, context.acc_rows)
        if sum_buffers < (_SUM_BUFFERS if rows > 1 else 2):
            continue
        load = line_beats(high, x.w * channels, (x.w * channels,), n)
        store = 0.0 if context.y_on_chip else rows * y.w * channels / n
        used = how.sums.tiles * n * n
        used += 0 if context.y_on_chip else _Y_BUFFERS * (rows * y.w * channels + n)
        fuse, matrix = (sum(part[at] for part in parts) for at in (-1, -2))
        each = max((load + store) * context.beat, fuse * config.fuse_rate, matrix) + _NEXT_PART
        tiles = layer.batch * ceil_div(y.h, rows)
        cycles = tiles * each + context.latency + (load + store) * context.beat
        for buffers in _X_BUFFERS:
            if used + buffers * high * how.pitch <= context.free:
                yield (
                    cycles,
                    LayerSchedule(
                        rows=rows,
                        rows_per_load=rows,
                        x_buffers=buffers,
                        y_buffers=_Y_BUFFERS,
                        acc_buffers=sum_buffers,
                        fold_kernel_width=True,
                        on_chip=context.y_on_chip,
                    ),
                )


def window_sum_tile_model(how: WindowSums, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of an average by sums of windows of bytes."""
    layer, n, (x, y) = how.layer, context.config.n, images(how.layer)
    kernel, stride, row = layer.weights.shape[0], layer.strides[0], layer.channels
    sizes = list(_tiles(y.h, min(s.rows, y.h)))

    def tiles() -> Iterator[PipelineTile]:
        for number, (start, rows) in product(range(layer.batch), sizes):
            high, parts = input_rows(rows, stride, kernel, x.h), how.parts(rows)
            loads = (
                ("w", 0, float(how.sums.tiles * n)),
                ("x", (number, start), line_beats(high, x.w * row, (x.w * row,), n)),
            )
            for part in parts:
                stores = part is parts[-1] and not context.y_on_chip
                commands = 2 + len(how.uneven_of(part.odd)) + stores
                store = rows * y.w * row / n if stores else 0.0
                yield PipelineTile(loads, part.matrix, part.fuse, store, commands)

    count = layer.batch * sum(len(how.parts(rows)) for _, rows in sizes)
    most = max(len(how.parts(rows)) for _, rows in sizes)
    return TilePipeline(tiles(), count, {"w": 1, "x": s.x_buffers}, s.acc_buffers, s.y_buffers, period=most)


class _Tile(NamedTuple):
    """Tile of an image: number of the image, first row and number of rows of windows, and address of the results."""

    number: int
    start: int
    rows: int
    y: BufferRef


class WindowSumSteps:
    """Code generator of an average by sums of windows of bytes; a tile consists of some rows, in one or two parts."""

    def __init__(self, context: CodegenContext, how: WindowSums):
        self.context, self.how, self.layer = context, how, how.layer
        layer, schedule, self.n = how.layer, context.schedule, context.config.n
        self.images = [context.layouts[name].parts(layer.batch) for name in (layer.x, layer.y)]
        self.x, self.y = (images[0] for images in self.images)
        self.kernel, self.stride, self.top = layer.weights.shape[0], layer.strides[0], layer.pads[0]
        self.tiles = list(_tiles(self.y.h, min(schedule.rows, self.y.h)))
        sizes = {rows for _, rows in self.tiles}
        self.high = max(self._image(*tile)[1] for tile in self.tiles)
        #: Buffers whose padding is filled.
        self.filled: set[CircularBuffer] = set()
        self.x_tiles = tile_buffers(
            f"{layer.name}.x", self.high * how.pitch, schedule.x_buffers, self._load, separate=True, wide=True
        )
        matrices = how.sums.matrices()
        self.matrices_dram = context.constant(f"{layer.name}.matrices", matrices)
        self.matrices = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{layer.name}.matrix", matrices.size), self._load_matrices
        )
        #: Sums of parts; those of pairs stay until both rows of windows are computed.
        self.acc, self.pairs = (
            BufferRotation(
                BufferMemory.ACC,
                f"{layer.name}.{name}",
                max(max(how.sum_rows(rows, shared=shared) for rows in sizes), 1),
                depth,
            )
            for name, shared, depth in (
                ("acc", False, schedule.acc_buffers),
                ("pairs", True, _PAIR_BUFFERS),
            )
        )
        size = max(sizes) * self.y.w * self.y.c + self.n
        self.out = BufferRotation(BufferMemory.SP, f"{layer.name}.y", size, schedule.y_buffers)
        #: Sums that pairs of windows share, by first row of windows and parity of rows of sums.
        self.shared: dict[tuple[int, int, int], BufferRef] = {}
        #: Rows of windows with equally many rows inside the image, and the slots of each such number.
        self.row_runs = how.runs()[0] if layer.counts else [(0, self.y.h, self.kernel)]
        self.kinds = sorted({count for *_, count in self.row_runs})
        if how.uneven:
            scales = [
                layer.counts[kind * int(count)]
                for kind, row in product(self.kinds, how.uneven)
                for count in how.columns_inside[row]
            ]
            mult, exponent = np.array(scales, np.int64).T
            drain = replace(layer.drain, bias=np.zeros_like(mult), mult=mult, exponent=exponent)
            self.slots = Slots(context, layer.name, drain, len(self.kinds) * len(how.uneven))

    def _image(self, start: int, rows: int) -> tuple[int, int]:
        return image_rows(start, rows, self.stride, self.top, self.kernel, self.x.h)

    def _load_matrices(self, _: Hashable, address: BufferRef) -> list[Command]:
        source = BufferRef(self.matrices_dram)
        return [self.context.command(Unit.LOAD, dram=source, dst=address, len=address.buffer.size)]

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        """Return the commands that load the image rows of a tile, and fill the padding of a buffer at its first use."""
        number, start, rows = key  # type: ignore[misc]
        first, count = self._image(start, rows)
        x, left, pitch, found = self.images[0][number], self.how.left, self.how.pitch, list[Command]()
        if address.buffer not in self.filled:
            self.filled.add(address.buffer)
            end = left + x.w * x.c
            found += [
                self.context.command(
                    Unit.LOAD,
                    word=LOAD_WORD.pack(fill=1, fill_value=self.layer.x_zp & 0xFF),
                    dst=address.plus(at),
                    len=length,
                    y_count=self.high,
                    dst_y=pitch,
                )
                for at, length in ((0, left), (end, pitch - end))
                if length
            ]
        lines = image_lines(x, count, x.c, "dst", x.c, pitch)
        target = address.plus(left)
        return [*found, self.context.command(Unit.LOAD, dram=x.address(first, 0, 0), dst=target, **lines)]

    def steps(self) -> list[TileStep]:
        """Generate the steps of all tiles.

        The lower ones of pairs follow the other parts of the next tile, so that MATRIX need not wait until FUSE has
        added the upper ones.
        """
        found, held = list[TileStep](), list[tuple[_Tile, Part]]()
        for number, (start, rows) in product(range(self.layer.batch), self.tiles):
            y = self.images[1][number]
            target = y.address(start, 0, 0) if y.on_chip else self.out.next()
            tile = _Tile(number, start, rows, target)
            parts = [(tile, part) for part in self.how.parts(rows)]
            found += self._steps([each for each in parts if each[1].how != Adding.LOWER] + held)
            held = [each for each in parts if each[1].how == Adding.LOWER]
        return found + self._steps(held)

    def _steps(self, parts: list[tuple[_Tile, Part]]) -> list[TileStep]:
        """Return the steps of parts of tiles; the step of the last part of a tile stores its results."""
        found = list[TileStep]()
        for tile, part in parts:
            step, y = TileStep(), self.images[1][tile.number]
            self._add_part(step, tile, part)
            last = max(self.how.parts(tile.rows), key=lambda part: (part.how == Adding.LOWER, part))
            if part == last and not y.on_chip:
                lines = image_lines(y, tile.rows, y.c, "src", y.c)
                step.stores.append(
                    self.context.command(Unit.STORE, dram=y.address(tile.start, 0, 0), src=tile.y, **lines)
                )
            found.append(step)
        return found

    def _add_part(self, step: TileStep, tile: _Tile, part: Part) -> None:
        """Add the MATRIX and FUSE commands of a part of a tile."""
        first, y = tile.start, tile.y
        image = self.x_tiles.get((tile.number, first, tile.rows), step)
        start, rows, n = first + part.start, part.rows, self.n
        top, height = self._image(first, tile.rows)
        sums = self.how.sums.rows_of(part.odd, self.y.w)
        #: First image row of the first window.
        high = start * self.stride - self.top
        low, read = self._image(start, rows)
        key = tile.number, first, part.odd
        if part.how == Adding.UPPER:
            self.shared[key] = self.pairs.next()
        acc = self.shared[key] if part.step > 1 else self.acc.next()
        pairs = acc.plus(rows * sums)
        # Address of the sums, first image row, and other fields.
        products: tuple[tuple[BufferRef, int, dict[str, int]], ...] = {
            Adding.UPPER: (
                (acc, high, {"u_y": 2}),
                (pairs, high + 1, {"u_y": 2, "ky_count": self.kernel - 1, "u_ky": 1}),
            ),
            Adding.LOWER: ((pairs, high + self.kernel - 1, {"u_y": 2}),),
            Adding.FUSE: ((acc, low, {"u_y": 1, "y_count": read}),),
            Adding.MATRIX: ((acc, high, {"u_y": self.stride, "ky_count": self.kernel, "u_ky": 1}),),
        }[part.how]
        matrices = self.matrices.get(0, step)
        word = {"wide": 1, "a_unsigned": int(self.layer.shapes[self.layer.x].dtype == Dtype.U8)}
        word["accumulate"] = int(part.how == Adding.LOWER)
        for address, row, fields in products:
            step.matrix.append(
                self.context.command(
                    Unit.MATRIX,
                    **{"y_count": rows} | fields,
                    word=MATRIX_WORD.pack(**word),
                    a_zp=self.layer.x_zp,
                    a_base=image,
                    a_u=self.how.pitch,
                    a_v=2 * n,
                    u0=row - top,
                    u_lim=height,
                    v_x=1,
                    v_kx=1,
                    x_count=sums,
                    kx_count=self.how.sums.blocks(part.odd),
                    w_base=matrices.plus(part.odd * self.how.sums.blocks(0) * n * n),
                    w_row=n,
                    w_kx=n * n,
                    acc_base=address,
                    acc_x=1,
                    acc_y=sums,
                )
            )
        pitch = self.y.row if self.y.on_chip else self.y.w * self.y.c
        windows = range(start, start + rows * part.step, part.step)
        for begin, many, inside in self.row_runs:
            run = [row for row in windows if begin <= row < begin + many]
            if run:
                at = windows.index(run[0])
                place = {"a_u": sums, "y_count": len(run), "d_y": part.step * pitch, "u0": at, "u_y": 1}
                if part.how == Adding.UPPER:
                    place |= {"wy_count": 2, "u_wy": rows}
                elif part.how == Adding.FUSE:
                    place |= {"u0": run[0] * self.stride - self.top - low, "u_y": self.stride}
                    place |= {"wy_count": self.kernel, "u_wy": 1, "u_lim": read}
                source = pairs if part.how == Adding.LOWER else acc
                self._drain(step, place, source, y.plus((run[0] - first) * pitch), inside, part)

    def _drain(
        self,
        step: TileStep,
        place: dict[str, int],
        acc: BufferRef,
        y: BufferRef,
        inside: int,
        part: Part,
    ) -> None:
        """Add the FUSE commands of rows of windows with `inside` rows inside the image.

        Rows of sums whose lanes have different divisors are computed two at a time, with divisors in slots.

        Parameters
        ----------
        place : dict
            Fields that walk over the rows.
        acc, y : BufferRef
            Addresses of the sums and of the results of the first row.
        """
        how, n, drain = self.how, self.n, self.layer.drain
        #: True if MATRIX has added all elements of the windows.
        adds = part.how in (Adding.LOWER, Adding.MATRIX)
        last, lanes = how.sums.rows(self.y.w) - 1, (self.y.w * self.y.c - 1) % n + 1
        even = [row for row in how.even if row % 2 == part.odd]
        low, high = drain.clip
        src: dict[str, int] = {"rounding": drain.rounding}
        stage: dict[str, int] = {"d_dst": 1, "d_dtype": drain.dtype, "tail_dim": FUSE_DIMS.index("n")}
        common: dict[str, int | BufferRef] = {**place}
        if adds:
            common |= {"zp": drain.zp, "clip_lo": low, "clip_hi": high}
        else:
            stage |= {"reduce": Reduce.SUM, "post_rounding": drain.rounding}
            common |= {"post_zp": drain.zp, "post_lo": low, "post_hi": high}
        for rows in (even, *(uneven for uneven in _pairs(how.uneven_of(part.odd)))):
            if not rows:
                continue
            own, words, distance = dict(common), (dict(src), dict(stage)), rows[-1] - rows[0]
            distance //= max(len(rows) - 1, 1)
            if rows is even:
                mult, exponent = int(drain.mult[0]), int(drain.exponent[0])
                if self.layer.counts:
                    mult, exponent = self.layer.counts[inside * int(how.columns_inside.max())]
                if adds:
                    words[0]["requant"] = Requant.IMM
                    own |= {"mult": mult, "shifts": bytes_word(exponent)}
                else:
                    words[1]["post"] = Post.SCALE
                    own |= {"post_mult": mult, "post_shift": exponent}
            else:
                slots = [self.kinds.index(inside) * len(how.uneven) + how.uneven.index(row) for row in rows]
                own |= {"p_base": self.slots.get(0, step).plus(slots[0]), "p_n": slots[-1] - slots[0]}
                words[not adds]["requant" if adds else "post"] = Requant.SLOT if adds else Post.SLOT
            step.fuse.append(
                self.context.command(
                    Unit.FUSE,
                    **own,
                    src=FUSE_SRC.pack(**(words[0] if adds else {})),
                    stage=FUSE_STAGE.pack(**words[1]),
                    a_base=acc.plus(rows[0] // 2),
                    a_n=distance // 2,
                    n_count=len(rows),
                    lanes=n,
                    lanes_tail=lanes if rows[-1] == last else n,
                    d_base=y.plus(rows[0] * n),
                    d_n=distance * n,
                )
            )


def _pairs(rows: list[int]) -> Iterator[list[int]]:
    """Yield rows two at a time."""
    for at, count in pieces(len(rows), 2):
        yield rows[at : at + count]
