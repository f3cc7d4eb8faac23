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
from compiler.layers.pool import image_height
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
_X_BUFFERS, _Y_BUFFERS = (2, 3), 3
#: Ratios of the rows of the first tiles, and of the last tile, to those of the other tiles.
_FIRST_TILES, _LAST_TILE = (1 / 2, 3 / 4), 1 / 3
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


class Part(NamedTuple):
    """Part of a tile that is computed at a time: the even or odd rows of sums of some rows of windows.

    Parameters
    ----------
    odd : int
        0 for even rows of sums, 1 for odd ones.
    start, rows : int
        First row of windows, relative to the tile, and number of rows.
    adds : bool
        True if MATRIX adds the image rows of a window; False if FUSE adds the sums of their columns.
    matrix, fuse : int
        Cycles of MATRIX and FUSE.
    """

    odd: int
    start: int
    rows: int
    adds: bool
    matrix: int
    fuse: int


@cache
def _parts(sums: ColumnSums, kernel: int, stride: int, rows: int, windows: int) -> tuple[Part, ...]:
    """Return the parts of a tile of `rows` rows of `windows` windows, with which the busier unit takes the least time.

    Odd rows of sums may depend on more blocks than even ones, so that MATRIX adds fewer of their image rows.

    Parameters
    ----------
    kernel, stride : int
        Image rows of a window, and the distance of windows in image rows.
    """
    choices = list[list[list[Part]]]()
    for odd in range(2):
        each, mine = sums.rows_of(odd, windows), list[list[Part]]()
        for apart in range(rows + 1 if each else 0):
            together = rows - apart
            matrix = sums.passes(odd, windows, image_height(apart, kernel, stride))
            parts = [Part(odd, 0, apart, False, matrix, apart * kernel * each)]
            matrix = kernel * sums.passes(odd, windows, together)
            parts.append(Part(odd, apart, together, True, matrix, together * each))
            mine.append([part for part in parts if part.rows])
        choices.append(mine or [[]])
    even, odds = (
        np.array([[sum(part[at] for part in parts) for parts in mine] for at in (-2, -1)]) for mine in choices
    )
    busier = (even[:, :, None] + odds[:, None, :]).max(axis=0)
    first, second = np.unravel_index(busier.argmin(), busier.shape)
    return tuple(sorted(choices[0][first] + choices[1][second], key=lambda part: (part.adds, part.odd)))


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

    def sum_rows(self, rows: int) -> int:
        """Return the rows of sums of the largest part of a tile of `rows` rows of windows."""
        kernel, stride, (_, y) = self.layer.weights.shape[0], self.layer.strides[0], images(self.layer)
        return max(
            self.sums.rows_of(part.odd, y.w)
            * (part.rows if part.adds else image_height(part.rows, kernel, stride))
            for part in self.parts(rows)
        )

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
    def whole(self) -> range:
        """Rows of sums in which the windows of all lanes have the most columns inside the image."""
        inside = self.columns_inside
        (places,) = np.nonzero((inside == inside.max()).all(axis=1))
        return range(places[0], places[-1] + 1) if len(places) else range(0)

    @cached_property
    def edges(self) -> list[int]:
        """The other rows of sums."""
        return [row for row in range(len(self.columns_inside)) if row not in self.whole]

    def edges_of(self, odd: int) -> list[int]:
        """Return the even or odd ones of these."""
        return [row for row in self.edges if row % 2 == odd]


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
    if (
        layer.w_zp
        or layer.correction is not None
        or (layer.weights != 1).any()
        or sums.blocks(1) > _MAX_BLOCKS
    ):
        return None
    found = WindowSums(layer, sums)
    kinds = len({count for *_, count in found.runs()[0]})
    return found if kinds * len(found.edges) <= config.param_slots // 2 else None


def _tiles(height: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of each tile of an image.

    The units wait for the first tile, and for the results of the last one, which are therefore smaller.
    """
    last = min(max(int(rows * _LAST_TILE), 1), height)
    sizes, left = list[int](), height - last
    for share in _FIRST_TILES:
        sizes.append(min(max(int(rows * share), 1), left))
        left -= sizes[-1]
    if left:
        sizes += [count for _, count in pieces(left, ceil_div(left, ceil_div(left, rows)))]
    start = 0
    for size in (*sizes, last):
        if size:
            yield start, size
        start += size


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
        parts, sums, high = how.parts(rows), how.sum_rows(rows), input_rows(rows, stride, kernel, x.h)
        # Buffers in banks of their own, unless one row of windows needs more.
        if (2 if rows == 1 else MAX_SUM_BUFFERS) * sums > context.acc_rows:
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
                        acc_buffers=min(MAX_SUM_BUFFERS, context.acc_rows // sums),
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
                commands = 2 + len(how.edges_of(part.odd)) + stores
                store = rows * y.w * row / n if stores else 0.0
                yield PipelineTile(loads, part.matrix, part.fuse, store, commands)

    count = layer.batch * sum(len(how.parts(rows)) for _, rows in sizes)
    most = max(len(how.parts(rows)) for _, rows in sizes)
    return TilePipeline(tiles(), count, {"w": 1, "x": s.x_buffers}, s.acc_buffers, s.y_buffers, period=most)


class WindowSumSteps:
    """Code generator of an average by sums of windows of bytes; a tile consists of some rows, in up to four parts."""

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
        size = max(sizes) * self.y.w * self.y.c + self.n
        self.out = BufferRotation(BufferMemory.SP, f"{layer.name}.y", size, schedule.y_buffers)
        #: Rows of windows with equally many rows inside the image, and the slots of each such number.
        self.row_runs = how.runs()[0] if layer.counts else [(0, self.y.h, self.kernel)]
        self.kinds = sorted({count for *_, count in self.row_runs})
        if how.edges:
            scales = [
                layer.counts[kind * int(count)]
                for kind, row in product(self.kinds, how.edges)
                for count in how.columns_inside[row]
            ]
            mult, exponent = np.array(scales, np.int64).T
            drain = replace(layer.drain, bias=np.zeros_like(mult), mult=mult, exponent=exponent)
            self.slots = Slots(context, layer.name, drain, len(self.kinds) * len(how.edges))

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
            self.y = self.images[1][number]
            y = self.y.address(start, 0, 0) if self.y.on_chip else self.out.next()
            for part in self.how.parts(rows):
                step = TileStep()
                image = self.x_tiles.get((number, start, rows), step)
                self._add_part(step, image, self._image(start, rows), y, start, part)
                found.append(step)
            if not self.y.on_chip:
                lines = image_lines(self.y, rows, self.y.c, "src", self.y.c)
                target = self.y.address(start, 0, 0)
                found[-1].stores.append(self.context.command(Unit.STORE, dram=target, src=y, **lines))
        return found

    def _add_part(
        self, step: TileStep, image: BufferRef, held: tuple[int, int], y: BufferRef, first: int, part: Part
    ) -> None:
        """Add the MATRIX and FUSE commands of a part of a tile.

        Parameters
        ----------
        image, y : BufferRef
            Addresses of the image rows and of the results of the tile.
        held : (int, int)
            First image row of the tile, and number of image rows.
        first : int
            First row of windows of the tile.
        """
        start, rows, (top, height), n = first + part.start, part.rows, held, self.n
        sums, (low, read) = self.how.sums.rows_of(part.odd, self.y.w), self._image(start, rows)
        walk: dict[str, int] = {"y_count": read, "u0": low - top, "u_y": 1, "u_lim": height}
        if part.adds:
            walk |= {"y_count": rows, "u0": start * self.stride - self.top - top, "u_y": self.stride}
            walk |= {"ky_count": self.kernel, "u_ky": 1}
        acc, matrices = self.acc.next(), self.matrices.get(0, step)
        unsigned = int(self.layer.shapes[self.layer.x].dtype == Dtype.U8)
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
                x_count=sums,
                kx_count=self.how.sums.blocks(part.odd),
                w_base=matrices.plus(part.odd * self.how.sums.blocks(0) * n * n),
                w_row=n,
                w_kx=n * n,
                acc_base=acc,
                acc_x=1,
                acc_y=sums,
            )
        )
        pitch = self.y.row if self.y.on_chip else self.y.w * self.y.c
        for begin, many, inside in self.row_runs:
            begin, end = max(begin, start), min(begin + many, start + rows)
            if begin < end:
                place = {"a_u": sums, "y_count": end - begin, "d_y": pitch}
                if part.adds:
                    place |= {"u0": begin - start, "u_y": 1}
                else:
                    place |= {"u0": begin * self.stride - self.top - low, "u_y": self.stride}
                    place |= {"wy_count": self.kernel, "u_wy": 1, "u_lim": read}
                self._drain(step, place, acc, y.plus((begin - first) * pitch), inside, part)

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
        last, lanes = how.sums.rows(self.y.w) - 1, (self.y.w * self.y.c - 1) % n + 1
        even = [row for row in how.whole if row % 2 == part.odd]
        low, high = drain.clip
        src: dict[str, int] = {"rounding": drain.rounding}
        stage: dict[str, int] = {"d_dst": 1, "d_dtype": drain.dtype, "tail_dim": FUSE_DIMS.index("n")}
        common: dict[str, int | BufferRef] = {**place}
        if part.adds:
            common |= {"zp": drain.zp, "clip_lo": low, "clip_hi": high}
        else:
            stage |= {"reduce": Reduce.SUM, "post_rounding": drain.rounding}
            common |= {"post_zp": drain.zp, "post_lo": low, "post_hi": high}
        for rows in (even, *(edges for edges in _pairs(how.edges_of(part.odd)))):
            if not rows:
                continue
            own, words, distance = dict(common), (dict(src), dict(stage)), rows[-1] - rows[0]
            distance //= max(len(rows) - 1, 1)
            if rows is even:
                mult, exponent = int(drain.mult[0]), int(drain.exponent[0])
                if self.layer.counts:
                    mult, exponent = self.layer.counts[inside * int(how.columns_inside.max())]
                if part.adds:
                    words[0]["requant"] = Requant.IMM
                    own |= {"mult": mult, "shifts": bytes_word(exponent)}
                else:
                    words[1]["post"] = Post.SCALE
                    own |= {"post_mult": mult, "post_shift": exponent}
            else:
                slots = [self.kinds.index(inside) * len(how.edges) + how.edges.index(row) for row in rows]
                own |= {"p_base": self.slots.get(0, step).plus(slots[0]), "p_n": slots[-1] - slots[0]}
                words[not part.adds]["requant" if part.adds else "post"] = (
                    Requant.SLOT if part.adds else Post.SLOT
                )
            step.fuse.append(
                self.context.command(
                    Unit.FUSE,
                    **own,
                    src=FUSE_SRC.pack(**(words[0] if part.adds else {})),
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
