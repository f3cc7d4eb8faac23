"""Averages of images with few channels: MATRIX adds the columns of windows, N results of adjacent pixels at a time.

An image row is read as consecutive bytes. The element of the next pixel of a channel is as many bytes later as there
are channels, so the sums of the columns of all windows of a row are products of its blocks of 2N bytes with a few
matrices of 0 and 1 (wide mode). In some rows of a tile, MATRIX also adds the image rows; in the others, FUSE does, so
that both units are equally busy.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
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
from hw.isa.enums import DTYPE_BYTES, Dtype, Post, Reduce, Requant, Unit

#: Maximum number of blocks of 2N bytes that N sums of columns depend on.
_MAX_BLOCKS = 3
#: Numbers of buffers of image rows that are tried, and number of buffers of results.
_X_BUFFERS, _Y_BUFFERS = (2, 3, 4), 3
#: Cycles of MATRIX and of FUSE from one part of a tile to the next one.
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

    def parts(self, windows: int) -> list[tuple[int, int]]:
        """Return 0 for even and 1 for odd rows of sums, each with their number, without empty parts."""
        rows = self.rows(windows)
        return [(odd, (rows + 1 - odd) // 2) for odd in range(min(2, rows))]

    def passes(self, windows: int, rows: int) -> int:
        """Return the cycles of MATRIX for `rows` image rows."""
        if not rows:
            return 0
        return sum(self.blocks(odd) * max(count * rows, self.n) for odd, count in self.parts(windows))


class DividedRows(NamedTuple):
    """Numbers of rows of windows of a tile that FUSE and MATRIX add, with the cycles of both units for the tile.

    Of the first `apart` rows of windows, MATRIX computes the sums of the columns of each image row, and FUSE adds these
    for each window. Of the other `together` rows, MATRIX adds all elements of a window.
    """

    apart: int
    together: int
    fuse: int
    matrix: int


def _height(rows: int, kernel: int, stride: int) -> int:
    """Return the image rows that `rows` rows of windows cover."""
    return (rows - 1) * stride + kernel if rows else 0


@cache
def _divided(sums: ColumnSums, kernel: int, stride: int, rows: int, windows: int) -> DividedRows:
    """Return how a tile of `rows` rows of `windows` windows is computed so that the busiest unit takes the least time.

    Parameters
    ----------
    kernel, stride : int
        Image rows of a window, and the distance of windows in image rows.
    """
    found, each = [], sums.rows(windows)
    for apart in range(rows + 1):
        together, read = rows - apart, _height(apart, kernel, stride)
        matrix = sums.passes(windows, read) + kernel * sums.passes(windows, together)
        found.append(DividedRows(apart, together, (apart * kernel + together) * each, matrix))
    return min(found, key=lambda each: (max(each.fuse, each.matrix), each.apart))


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

    def divided(self, rows: int) -> DividedRows:
        """Return how a tile of `rows` rows of windows is computed."""
        kernel, stride, (_, y) = self.layer.weights.shape[0], self.layer.strides[0], images(self.layer)
        return _divided(self.sums, kernel, stride, rows, y.w)

    def sum_rows(self, rows: int) -> int:
        """Return the rows of sums of the larger part of a tile of `rows` rows of windows."""
        apart, together, *_ = self.divided(rows)
        read = _height(apart, self.layer.weights.shape[0], self.layer.strides[0])
        return max(read, together) * self.sums.rows(images(self.layer)[1].w)

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
    first = min(ceil_div(rows, 2), height)
    yield 0, first
    for start, count in pieces(height - first, rows):
        yield first + start, count


def window_sum_tilings(context: TilingContext, layer: DepthwiseLayer) -> Tilings:
    """Yield the tilings of an average by sums of windows of bytes that fit."""
    config, how = context.config, window_sums(layer, context.config)
    if how is None or context.x_on_chip or not context.alone:
        return
    n, (x, y), channels = config.n, images(layer), layer.channels
    kernel, stride = layer.weights.shape[0], layer.strides[0]
    for rows in cuts(y.h):
        apart, together, fuse, matrix = how.divided(rows)
        sums, high = how.sum_rows(rows), input_rows(rows, stride, kernel, x.h)
        if 2 * sums > context.acc_rows:
            continue
        load = line_beats(high, x.w * channels, (x.w * channels,), n)
        store = 0.0 if context.y_on_chip else rows * y.w * channels / n
        used = how.sums.tiles * n * n
        used += 0 if context.y_on_chip else _Y_BUFFERS * (max(apart, together) * y.w * channels + n)
        each = max((load + store) * context.beat, fuse * config.fuse_rate + _NEXT_PART, matrix + _NEXT_PART)
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
                        acc_buffers=min(MAX_SUM_BUFFERS, context.acc_rows // sums),
                        fold_kernel_width=True,
                        on_chip=context.y_on_chip,
                    ),
                )


def window_sum_tile_model(how: WindowSums, s: LayerSchedule, context: LayerContext) -> TilePipeline:
    """Return the tile model of an average by sums of windows of bytes."""
    layer, n, (x, y) = how.layer, context.config.n, images(how.layer)
    kernel, stride, row = layer.weights.shape[0], layer.strides[0], layer.channels
    sums = how.sums.rows(y.w)
    sizes = list(_tiles(y.h, min(s.rows, y.h)))
    commands = 1 + ceil_div(len(how.uneven), 2)

    def tiles() -> Iterator[PipelineTile]:
        for number, (start, rows) in product(range(layer.batch), sizes):
            apart, together, *_ = how.divided(rows)
            high = input_rows(rows, stride, kernel, x.h)
            loads = (
                ("w", 0, float(how.sums.tiles * n)),
                ("x", (number, start), line_beats(high, x.w * row, (x.w * row,), n)),
            )
            parts = (
                (apart, how.sums.passes(y.w, _height(apart, kernel, stride)), kernel),
                (together, kernel * how.sums.passes(y.w, together), 1),
            )
            for count, matrix, reads in parts:
                if count:
                    yield PipelineTile(
                        loads,
                        matrix + _NEXT_PART,
                        count * sums * reads + _NEXT_PART,
                        0.0 if context.y_on_chip else count * y.w * row / n,
                        2 + commands + (not context.y_on_chip),
                    )

    parts = sum(bool(each) for _, rows in sizes for each in how.divided(rows)[:2])
    return TilePipeline(
        tiles(), layer.batch * parts, {"w": 1, "x": s.x_buffers}, s.acc_buffers, s.y_buffers, period=2
    )


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
        self.acc = BufferRotation(
            BufferMemory.ACC, f"{layer.name}.acc", max(map(how.sum_rows, sizes)), schedule.acc_buffers
        )
        most = max(max(how.divided(rows)[:2]) for rows in sizes)
        self.out = BufferRotation(
            BufferMemory.SP,
            f"{layer.name}.y",
            most * self.y.w * self.y.c + self.n,
            schedule.y_buffers,
        )
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
        """Generate the steps of all tiles."""
        found = list[TileStep]()
        for number, (start, rows) in product(range(self.layer.batch), self.tiles):
            apart, together, *_ = self.how.divided(rows)
            self.y = self.images[1][number]
            for at, count, adds in ((start, apart, False), (start + apart, together, True)):
                if count:
                    step = TileStep()
                    image = self.x_tiles.get((number, start, rows), step)
                    self._part(step, image, self._image(start, rows), (at, count), adds=adds)
                    found.append(step)
        return found

    def _part(
        self, step: TileStep, image: BufferRef, held: tuple[int, int], part: tuple[int, int], *, adds: bool
    ) -> None:
        """Add the commands of some rows of windows.

        Parameters
        ----------
        image : BufferRef
            Address of the image rows of the tile.
        held : (int, int)
            First image row of the tile, and number of image rows.
        part : (int, int)
            First row of windows, and number of rows.
        adds : bool
            True if MATRIX adds the image rows of a window.
        """
        (start, rows), (first, height), n = part, held, self.n
        acc, sums, (low, read) = self.acc.next(), self.how.sums.rows(self.y.w), self._image(*part)
        walk: dict[str, int] = {"y_count": read, "u0": low - first, "u_y": 1, "u_lim": height}
        if adds:
            walk |= {"y_count": rows, "u0": start * self.stride - self.top - first, "u_y": self.stride}
            walk |= {"ky_count": self.kernel, "u_ky": 1}
        matrices = self.matrices.get(0, step)
        unsigned = int(self.layer.shapes[self.layer.x].dtype == Dtype.U8)
        for odd, count in self.how.sums.parts(self.y.w):
            step.matrix.append(
                self.context.command(
                    Unit.MATRIX,
                    **walk,
                    word=MATRIX_WORD.pack(wide=1, a_unsigned=unsigned),
                    a_zp=self.layer.x_zp,
                    a_base=image,
                    a_u=self.how.pitch,
                    a_v=2 * n,
                    v_x=1,
                    v_kx=1,
                    x_count=count,
                    kx_count=self.how.sums.blocks(odd),
                    w_base=matrices.plus(odd * self.how.sums.blocks(0) * n * n),
                    w_row=n,
                    w_kx=n * n,
                    acc_base=acc.plus(odd),
                    acc_x=2,
                    acc_y=sums,
                )
            )
        row = self.y.w * self.y.c
        address = self.y.address(start, 0, 0) if self.y.on_chip else self.out.next()
        pitch = self.y.row if self.y.on_chip else row
        for top, many, inside in self.row_runs:
            begin, end = max(top, start), min(top + many, start + rows)
            if begin < end:
                # The first row of windows whose sums are at `acc`, or the first image row.
                down = begin - start if adds else begin * self.stride - self.top - low
                place = {"a_base": acc, "a_u": sums, "u0": down, "u_y": 1 if adds else self.stride}
                place |= {"y_count": end - begin, "d_y": pitch}
                if not adds:
                    place |= {"wy_count": self.kernel, "u_wy": 1, "u_lim": read}
                self._drain(step, place, address.plus((begin - start) * pitch), inside, adds=adds)
        if not self.y.on_chip:
            lines = image_lines(self.y, rows, self.y.c, "src", self.y.c)
            target = self.y.address(start, 0, 0)
            step.stores.append(self.context.command(Unit.STORE, dram=target, src=address, **lines))

    def _drain(
        self, step: TileStep, place: dict[str, int | BufferRef], address: BufferRef, inside: int, *, adds: bool
    ) -> None:
        """Add the FUSE commands of rows of windows with `inside` rows inside the image.

        Rows of sums whose lanes have different divisors are computed two at a time, with divisors in slots.
        """
        how, n, drain = self.how, self.n, self.layer.drain
        sums = how.sums.rows(self.y.w)
        tail = (self.y.w * self.y.c - 1) % n + 1
        acc = place["a_base"]
        assert isinstance(acc, BufferRef)
        #: First row of sums, distance and number of rows, first slot and distance of slots.
        walks: list[tuple[int, int, int, int | None, int]] = []
        if how.even:
            walks.append((how.even.start, 1, len(how.even), None, 0))
        slot = self.kinds.index(inside) * len(how.uneven)
        for at, count in pieces(len(how.uneven), 2):
            rows = how.uneven[at : at + count]
            walks.append((rows[0], rows[-1] - rows[0], count, slot + at, 1))
        for first, distance, count, slots, between in walks:
            ends = first + distance * (count - 1) == sums - 1
            scaling: dict[str, int | BufferRef] = {}
            if slots is None:
                whole = inside * int(how.columns_inside.max())
                mult, exponent = int(drain.mult[0]), int(drain.exponent[0])
                if self.layer.counts:
                    mult, exponent = self.layer.counts[whole]
            else:
                scaling = {"p_base": self.slots.get(0, step).plus(slots), "p_n": between}
            stage: dict[str, int] = {"d_dst": 1, "d_dtype": drain.dtype, "tail_dim": FUSE_DIMS.index("n")}
            src: dict[str, int] = {}
            low, high = drain.clip
            if adds:
                src = {"requant": Requant.IMM if slots is None else Requant.SLOT, "rounding": drain.rounding}
                scaling |= {"zp": drain.zp, "clip_lo": low, "clip_hi": high}
                if slots is None:
                    scaling |= {"mult": mult, "shifts": bytes_word(exponent)}
            else:
                stage |= {"reduce": Reduce.SUM, "post_rounding": drain.rounding}
                stage["post"] = Post.SCALE if slots is None else Post.SLOT
                scaling |= {"post_zp": drain.zp, "post_lo": low, "post_hi": high}
                if slots is None:
                    scaling |= {"post_mult": mult, "post_shift": exponent}
            step.fuse.append(
                self.context.command(
                    Unit.FUSE,
                    **place
                    | scaling
                    | {
                        "src": FUSE_SRC.pack(**src),
                        "stage": FUSE_STAGE.pack(**stage),
                        "a_base": acc.plus(first),
                        "a_n": distance,
                        "n_count": count,
                        "lanes": n,
                        "lanes_tail": tail if ends else n,
                        "d_base": address.plus(first * n),
                        "d_n": distance * n,
                    },
                )
            )
