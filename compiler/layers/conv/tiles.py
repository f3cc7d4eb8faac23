"""Input and output tiles of a convolution in the scratchpad."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product

from compiler.commands.commands import (
    BufferMemory,
    BufferRef,
    CircularBuffer,
    Command,
    TensorLayout,
    TileStep,
)
from compiler.commands.tile_buffers import (
    CodegenContext,
    ColumnStrip,
    image_lines,
    image_rows,
    pieces,
    plane_lines,
    tile_buffers,
)
from compiler.layers.conv.input_layout import Im2colLayout, reads_rows, strips_of
from compiler.layers.conv.layer import ConvLayer
from compiler.util.tiles import ceil_div
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, LOAD_WORD
from hw.isa.enums import Dtype, Unit

#: Maximum number of parts of a first tile; each part needs additional commands.
_MAX_FIRST_TILE_PARTS = 3


@dataclass(frozen=True)
class TilePart:
    """Output rows and blocks of output channels of a tile or of a part of a tile.

    `pitch` is the distance in image rows between blocks of sums. If the parts of a tile share its buffer, they have the
    pitch of the whole tile.
    """

    start: int
    rows: int
    block: int
    blocks: int
    pitch: int


@dataclass(frozen=True)
class RowGroups:
    """Groups of adjacent output rows whose channels a block has.

    Parameters
    ----------
    start, count : int
        First row of the first group, and number of groups.
    distance, rows : int
        Distance in rows between groups, and rows of each group.
    """

    start: int
    count: int
    distance: int = 1
    rows: int = 1


def first_tile_rows(rows: int, few: int, together: int = 1) -> list[int]:
    """Return the numbers of rows of the parts of a first tile; `few` rows fill the array.

    Parts, except the last one, consist of groups of `together` rows.
    """
    *halves, last = _halves(ceil_div(rows, together), ceil_div(few, together))
    sizes = [last, *reversed(halves)]
    if len(sizes) > _MAX_FIRST_TILE_PARTS:
        sizes = [sum(sizes[: 1 - _MAX_FIRST_TILE_PARTS]), *sizes[1 - _MAX_FIRST_TILE_PARTS :]]
    *sizes, last = (size * together for size in sizes)
    return [*sizes, rows - sum(sizes)]


def split_first_tile(part: TilePart, few: int, together: int) -> list[TilePart]:
    """Split the rows of a layer's first tile so that MATRIX can start as soon as the input of a small part is loaded.

    Parameters
    ----------
    few : int
        Minimum number of rows that fill the array.
    together : int
        Number of rows in groups that are not split.
    """
    out, start = [], part.start
    for rows in first_tile_rows(part.rows, few, together):
        out.append(replace(part, start=start, rows=rows))
        start += rows
    return out


def split_last_tile(tile: TilePart, name: str, few: int, width: int) -> list[tuple[TilePart, BufferRef]]:
    """Split a layer's last tile into all channel blocks but the last, and successive halves of the last block's rows.

    Each part has separate sums, in different banks if possible, because FUSE waits for a bank that MATRIX uses.
    """
    return [
        (
            part,
            BufferRef(
                CircularBuffer(
                    BufferMemory.ACC,
                    f"{name}.part{i}",
                    part.rows * width * part.blocks,
                    family=f"{name}.part",
                )
            ),
        )
        for i, part in enumerate(last_tile_parts(tile, few))
    ]


def last_tile_parts(tile: TilePart, few: int) -> list[TilePart]:
    """Return the parts of a last tile in order; `few` rows fill the array."""
    start, last = tile.start, tile.block + tile.blocks - 1
    parts = [replace(tile, blocks=tile.blocks - 1)] if tile.blocks > 1 else []
    for rows in _halves(tile.rows, few):
        parts.append(TilePart(start, rows, last, 1, rows))
        start += rows
    return parts


def _halves(rows: int, few: int) -> list[int]:
    """Split rows into halves, then the second half again, as long as parts have at least `few` rows."""
    out = []
    while rows:
        out.append(rows if rows < 2 * few else ceil_div(rows, 2))
        rows -= out[-1]
    return out


#: Depth of an image on chip, larger than its number of pieces.
_UNLIMITED_DEPTH = 1 << 24
#: First row and number of rows.
Rows = tuple[int, int]
#: First strip and number of strips.
_Run = tuple[int, int]


@dataclass(frozen=True)
class ConvWalk:
    """MATRIX fields for the inputs of some output columns, the first of which is `column`."""

    fields: dict[str, int | BufferRef]
    column: int = 0


@dataclass(frozen=True)
class _StripSources:
    """Runs of strips, one for each output column or for several, by the way in which MATRIX gets their pixels.

    Parameters
    ----------
    loaded : list of (int, int)
        Strips that are loaded from DRAM.
    gathered : list of (int, int)
        Strips that FUSE copies from image rows in the scratchpad.
    direct : list of (int, int)
        Strips that are not stored: MATRIX reads the image rows, in more passes.
    """

    loaded: list[_Run]
    gathered: list[_Run]
    direct: list[_Run]


@dataclass(frozen=True)
class ConvCut:
    """Split of the reduction dimension.

    `k_blocks` and `k_size` are the numbers of blocks of the reduction dimension in total and per tile. `rows_per_load`
    is the number of output rows whose input is loaded together. `excess` is the number of bytes by which the last block
    extends beyond a row.
    """

    k_blocks: int
    k_size: int
    rows_per_load: int
    excess: int

    @property
    def whole(self) -> bool:
        """True if the reduction dimension is not split."""
        return self.k_size == self.k_blocks


def _joined(runs: list[_Run]) -> list[_Run]:
    """Return runs in order, with adjacent runs joined."""
    out: list[_Run] = []
    for first, count in sorted(runs):
        if out and sum(out[-1]) == first:
            out[-1] = out[-1][0], out[-1][1] + count
        else:
            out.append((first, count))
    return out


class ConvImage:
    """Input rows of one channel group of a convolution, and their loads.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    layer : ConvLayer
        Layer to generate code for.
    name : str
        Name of the group, the prefix of its buffers.
    group : int
        Index of the channel group.
    layout : Im2colLayout
        Layout of the image rows in the scratchpad.
    cut : ConvCut
        Rows and blocks of each load.
    strips : list of ColumnStrip
        Strips of columns, each of which is loaded separately.
    columns : int
        Blocks of output channels of a tile. If the groups are blocks, only the inputs of these are loaded.
    """

    def __init__(
        self,
        context: CodegenContext,
        layer: ConvLayer,
        name: str,
        group: int,
        layout: Im2colLayout,
        cut: ConvCut,
        strips: list[ColumnStrip],
        columns: int,
    ):
        self.context, self.layer, self.group, self.layout, self.cut = context, layer, group, layout, cut
        self.n = context.config.n
        self.images, self.outputs = (context.layouts[name].parts(layer.batch) for name in (layer.x, layer.y))
        _, self.kernel_h, self.kernel_w, self.in_c = layer.weights.shape
        whole = self.outputs[0].w if len(strips) == 1 else 0
        wide, self.strip_pixels = strips_of(layer, layout, whole, self.n)
        #: Pixels of each row of a strip, and their distance between strips.
        self.strip_width, self.strip_stride = wide.weights.shape[2], wide.strides[1]
        self.grouped = layer.groups_are_blocks(self.n)
        #: Input channels that a tile with the whole reduction dimension needs.
        self.channels = self.in_c
        if self.grouped:
            self.channels = min(columns * self.in_c, self.images[0].c)
        #: Steps in which FUSE gathers strips for the next tile.
        self.gathers: list[TileStep] = []
        self.select(0, strips[0])
        if self.in_place:
            return
        row_groups = list(pieces(self.y.h, cut.rows_per_load))
        size = rows = 0
        for strip in strips:
            self.select(0, strip)
            size = max(size, *(self._size(*load_rows) for load_rows in row_groups))
            line = self._source_pitch[1]
            rows = max(rows, *(self._rows(*load_rows)[1] * line for load_rows in row_groups))
        count = len(row_groups) * ceil_div(cut.k_blocks, cut.k_size) * layer.batch * len(strips)
        count *= ceil_div(layer.groups, columns) if self.grouped else 1
        size += self.n
        if layer.joins_any_tiles(
            context.config
        ):  # the tiles begin at multiples of 2N, for wide and sparse mode
            size = ceil_div(size, 2 * self.n) * 2 * self.n
        depth = min(context.schedule.x_buffers, count)
        gathered, split = layout == Im2colLayout.GATHERED, context.schedule.width < self.y.w
        load = self._gather if gathered else self._begin
        # LOAD and FUSE may write two tiles at the same time, and FUSE and MATRIX may read two tiles of image rows.
        self.tiles = tile_buffers(f"{name}.x", size, depth, load, separate=split and not self._reads_rows)
        if gathered and not self.x.on_chip:
            self.source = tile_buffers(
                f"{name}.rows", rows + self.n, depth, self._load_source, separate=split and self._reads_rows
            )
        #: True if only the rows that the next part of a tile needs are loaded.
        self.load_partially = False
        #: Number of rows of each tile, or of its strips, that have been loaded so far.
        self.rows_loaded: dict[Hashable, int] = {}

    @property
    def depth(self) -> int:
        """Number of pieces that are in the scratchpad at the same time."""
        return _UNLIMITED_DEPTH if self.in_place else self.tiles.depth

    @property
    def loads(self) -> int:
        """Number of pieces that have been loaded or gathered so far."""
        return 0 if self.in_place else len(self.tiles.keys)

    @property
    def in_place(self) -> bool:
        """True if MATRIX reads the image on chip where it is."""
        return self.x.on_chip and self.layout != Im2colLayout.GATHERED

    def select(self, number: int, strip: ColumnStrip) -> None:
        """Select the image of the batch, and its columns, for which code is generated next."""
        self.number, self.strip = number, strip
        self.x = self.images[number].columns(strip.start, strip.size)
        self.y = self.outputs[number].columns(strip.first, strip.count)
        self.left = self.right = 0
        #: Distance in bytes between pixels, and between rows of the image or of the pixels under a kernel.
        self.pixel, self.row = self.x.pixel, self.x.row
        if self.in_place:
            return
        if self.layout == Im2colLayout.ROWS:
            self.left = max(-strip.before, 0)
            reach = (self.y.w - 1) * self.layer.strides[1] + self.kernel_w
            self.right = max(strip.before + reach - self.x.w, 0)
        self.pixel = self.channels if self.cut.whole else self.cut.k_size * self.n
        self.row = (self.left + self.x.w + self.right) * self.pixel
        if self._has_strips:
            self.row = self.strip_width * self.x.c

    @property
    def _strip_count(self) -> int:
        """Number of strips of a row of outputs."""
        return ceil_div(self.y.w, self.strip_pixels)

    @property
    def _has_strips(self) -> bool:
        """True if the scratchpad holds the pixels under the kernel for each output column."""
        return self.layout in (Im2colLayout.STRIPS, Im2colLayout.GATHERED)

    @property
    def _reads_rows(self) -> bool:
        """True if MATRIX reads image rows in place of the strips inside the image that FUSE does not gather."""
        return self.layout == Im2colLayout.GATHERED and reads_rows(self.layer, self.x.on_chip, self.n)

    @property
    def _strip_sources(self) -> _StripSources:
        """Strips by source.

        If FUSE gathers only a part of the columns, the other strips are loaded, or MATRIX reads the image rows instead.
        Of an image on chip, whose rows have no padding, FUSE gathers the strips at the edges.
        """
        count, schedule = self._strip_count, self.context.schedule
        if self.layout != Im2colLayout.GATHERED:
            return _StripSources([(0, count)], [], [])
        if schedule.width >= self.y.w:
            return _StripSources([], [(0, count)], [])
        many, low, high = min(schedule.width // self.strip_pixels, count), 0, count
        if self.x.on_chip:
            last = (self.x.w - self.strip_width - self.strip.before) // self.strip_stride
            high = min(max(last + 1, 0), count)
            low = min(ceil_div(max(-self.strip.before, 0), self.strip_stride), high)
            many = min(many, high - low)
        # Loaded strips at the left edge of the image and at the right one need separate commands.
        leftmost = self._reads_rows or self.strip.before >= 0
        first = low if leftmost else high - many
        gathered, rest = (
            [(0, low), (high, count), (first, first + many)],
            [(low, first), (first + many, high)],
        )
        shares = ([], gathered, rest) if self._reads_rows else (rest, gathered, [])
        return _StripSources(*(_joined([(a, b - a) for a, b in runs if b > a]) for runs in shares))

    @property
    def _source_padding(self) -> tuple[int, int]:
        """Columns of padding at the left and at the right of the image rows of which strips are gathered.

        Images on chip have none.
        """
        if self.x.on_chip:
            return 0, 0
        end = (self._strip_count - 1) * self.strip_stride + self.strip.before + self.strip_width
        return max(-self.strip.before, 0), max(end - self.x.w, 0)

    def _size(self, start: int, rows: int) -> int:
        if self._has_strips:
            return self._strip_count * self._pitch(rows)
        return self._rows(start, rows)[1] * self.row

    def _rows(self, start: int, rows: int) -> Rows:
        layer = self.layer
        reach = (self.kernel_h - 1) * layer.dilations[0] + 1
        return image_rows(start, rows, layer.strides[0], layer.pads[0], reach, self.x.h)

    def _height(self, rows: int) -> int:
        """Return the number of rows of a strip for some output rows, including padding."""
        return (rows - 1) * self.layer.strides[0] + self.kernel_h

    def _pitch(self, rows: int) -> int:
        """Return the distance in bytes between strips."""
        return self._height(rows) * self.row

    def get(
        self,
        step: TileStep,
        load_rows: Rows,
        part: TilePart,
        block: int,
        k: int,
        groups: RowGroups | None = None,
    ) -> list[ConvWalk]:
        """Return the input of a part of a tile: the addresses of its rows and the walks over them.

        Parameters
        ----------
        block : int
            First block of output channels of the tile.
        groups : RowGroups or None
            Output rows whose channels a block has; None: the rows of the part one by one.
        """
        layer, start, rows = self.layer, part.start, part.rows
        groups = groups or RowGroups(start, rows)
        channel = (block if self.grouped else self.group) * self.in_c
        key = (self.number, self.strip.first, channel, *load_rows, k)
        if self._has_strips:
            return self._strip_walks(step, key, load_rows, part, groups)
        if self.x.on_chip:
            base, first, count = self.x.address(0, 0, channel + k * self.n), 0, self.x.h
        else:
            first, count = self._rows(*load_rows)
            base = self._load_rows(key, (start, rows), step)
        if self.grouped:
            base = base.plus((part.block - block) * self.in_c)
        u0 = groups.start * layer.strides[0] - layer.pads[0] - first
        if self.flat and groups.distance == 1:
            flat = {"a_base": base.plus(u0 * self.row), "x_count": rows * self.y.w, "a_v": self.pixel}
            return [ConvWalk(flat)]
        walk: dict[str, int | BufferRef] = {
            "a_base": base,
            "x_count": self.y.w,
            "y_count": groups.count,
            "ky_count": self._height(groups.rows),
            "a_u": self.row,
            "a_v": self.pixel,
            "u0": u0,
            "u_y": groups.distance * layer.strides[0],
            "u_ky": layer.dilations[0],
            "v_x": layer.strides[1],
            "u_lim": count,
            "w_ky": self._w_row * self.kernel_w,
            "acc_y": self.y.w,
        }
        if self.layout == Im2colLayout.ROWS:
            return [ConvWalk(walk | {"a_base": base.plus(max(self.strip.before, 0) * self.pixel)})]
        across = {
            "kx_count": self.kernel_w,
            "v0": self.strip.before,
            "v_kx": layer.dilations[1],
            "v_lim": self.x.w,
            "w_kx": self._w_row,
        }
        return [ConvWalk(walk | across)]

    def _strip_walks(
        self,
        step: TileStep,
        key: tuple[int, int, int, int, int, int],
        load_rows: Rows,
        part: TilePart,
        groups: RowGroups,
    ) -> list[ConvWalk]:
        """Return the walks over strips, one for each of the output columns that share a strip, and over image rows."""
        layer, start, rows, pixels = self.layer, part.start, part.rows, self.strip_pixels
        if self.layout == Im2colLayout.GATHERED:
            address = self.tiles.get(key, step)
        else:
            address = self._load_rows(key, (start, rows), step)
        sources, pitch = self._strip_sources, self._pitch(load_rows[1])
        common: dict[str, int | BufferRef] = {
            "y_count": groups.count,
            "u_y": groups.distance * layer.strides[0],
            "acc_y": self.y.w,
        }
        strips = common | {
            "u0": (groups.start - load_rows[0]) * layer.strides[0],
            "a_u": self.row,
            "a_v": pitch,
            "v_x": 1,
            "acc_x": pixels,
        }
        walks = []
        for (first, count), pixel in product(_joined([*sources.loaded, *sources.gathered]), range(pixels)):
            offset = first * pitch + pixel * layer.strides[1] * self.in_c
            column = first * pixels + pixel
            if column < self.y.w:  # the last strip may have fewer output columns
                where = {
                    "a_base": address.plus(offset),
                    "x_count": min(count, ceil_div(self.y.w - column, pixels)),
                }
                walks.append(ConvWalk(strips | where, column))
        for first, count in sources.direct:
            base, top, height = self._source(key, load_rows, step)
            deep, column = self.kernel_w * self.in_c, self.strip.before + first * self.strip_stride
            pixel, row = self._source_pitch
            walk: dict[str, int | BufferRef] = {
                "a_base": base.plus((column + self._source_padding[0]) * pixel),
                "x_count": min(count * pixels, self.y.w - first * pixels),
                "ky_count": self._height(groups.rows),
                "ic_count": ceil_div(deep, self.n),
                "k_tail": (deep - 1) % self.n + 1,
                "u0": groups.start * layer.strides[0] - layer.pads[0] - top,
                "a_u": row,
                "a_v": pixel,
                "v_x": layer.strides[1],
                "u_ky": 1,
                "u_lim": height,
                "w_ky": self.strip_width * self.in_c * self.n,
            }
            walks.append(ConvWalk(common | walk, first * pixels))
        return walks

    @property
    def _w_row(self) -> int:
        """Bytes of the weights for one kernel position."""
        return (self.in_c if self.cut.whole else self.cut.k_size * self.n) * self.n

    @property
    def flat(self) -> bool:
        """True if every output pixel depends on one input pixel, so that row boundaries do not matter."""
        layer = self.layer
        return (
            (self.kernel_h, self.kernel_w) == (1, 1)
            and layer.strides == (1, 1)
            and layer.pads == (0, 0, 0, 0)
            and not self._has_strips
            and self.row == self.x.w * self.pixel
            and (self.y.h, self.y.w) == (self.x.h, self.x.w)
        )

    def _begin(self, key: Hashable, _: BufferRef) -> list[Command]:
        self.rows_loaded[key] = 0
        return []

    def _load_rows(self, key: tuple[int, int, int, int, int, int], part: Rows, step: TileStep) -> BufferRef:
        """Return the address of a tile and add loads of its missing rows, or only those needed by `part`, to `step`."""
        *_, channel, start, rows, k = key
        address, there = self.tiles.get(key, step), self.rows_loaded[key]
        needed = total = self._reach(start, (start, rows))
        if self.load_partially:  # including the rows into which reads of the last row extend
            needed = min(self._reach(start, part) + ceil_div(self.cut.excess, self.row), total)
        if there < needed:
            bring = self._strips if self.layout == Im2colLayout.STRIPS else self._load
            step.loads += bring((start, rows), (there, needed - there), channel + k * self.n, address)
            self.rows_loaded[key] = needed
        return address

    def _reach(self, start: int, part: Rows) -> int:
        """Return how many input rows of a tile the output rows `part` need; the tile begins with output row `start`."""
        if self.layout == Im2colLayout.STRIPS:
            return (part[0] - start) * self.layer.strides[0] + self._height(part[1])
        low, count = self._rows(*part)
        return low + count - self._rows(start, 1)[0]

    def _load(self, load_rows: Rows, part: Rows, channel: int, address: BufferRef) -> list[Command]:
        """Return the loads of some image rows of a tile, from input channel `channel` on."""
        count, address = part[1], address.plus(part[0] * self.row)
        end = self.x.c if self.grouped else (self.group + 1) * self.in_c
        length = min(self.pixel, end - channel)
        inner = address.plus(self.left * self.pixel)
        start = self._rows(*load_rows)[0] + part[0]
        borders = ((self.left, 0), (self.right, (self.left + self.x.w) * self.pixel))
        return [
            *(
                self._fill(address.plus(offset), columns * self.pixel, count, self.row)
                for columns, offset in borders
                if columns
            ),
            *self._image_loads(self.x, (start, count), channel, length, inner, (self.pixel, self.row)),
        ]

    def _image_loads(
        self,
        image: TensorLayout,
        part: Rows,
        channel: int,
        length: int,
        address: BufferRef,
        pitch: tuple[int, int],
    ) -> list[Command]:
        """Return the loads of `length` channels of some rows of an image, with distances of pixels and rows `pitch`."""
        (start, count), load = part, partial(self.context.command, Unit.LOAD)
        if image.plane:
            return [
                load(dram=image.address(start + y, x, channel), dst=address.plus(offset), **fields)
                for y, x, offset, fields in plane_lines(image, count, length, *pitch, self.n)
            ]
        lines = image_lines(image, count, length, "dst", *pitch)
        return [load(dram=image.address(start, 0, channel), dst=address, **lines)]

    def _strips(self, load_rows: Rows, part: Rows, _: int, address: BufferRef) -> list[Command]:
        """Return the loads of some rows of the strips that FUSE does not gather, and the fills of the padding."""
        runs = self._strip_sources.loaded
        return [each for run in runs for each in self._load_strips(load_rows, part, run, address)]

    def _load_strips(self, load_rows: Rows, part: Rows, run: _Run, address: BufferRef) -> list[Command]:
        """Return the loads of some rows of a run of strips."""
        layer, pitch, line = self.layer, self._pitch(load_rows[1]), self.row
        stride, before = self.strip_stride, self.strip.before
        first, count = self._rows(*load_rows)
        top = load_rows[0] * layer.strides[0] - layer.pads[0]
        count = count if top <= first else 0  # the strips may consist of padding below the image
        above = max(first - top, 0)
        low, high = part[0], part[0] + part[1]
        rows = min(high, above + count) - max(low, above)  # number of image rows; their offset follows
        source, offset = first + max(low - above, 0), max(low, above) * line
        out: list[Command] = []
        for begin, end in ((low, min(high, above)), (max(low, above + count), high)):
            if begin < end:
                length = (end - begin) * line
                out.append(self._fill(address.plus(run[0] * pitch + begin * line), length, run[1], pitch))
        if rows <= 0:
            return out
        for column, columns in self._columns(*run):
            at = column * stride + before
            skip, end = max(-at, 0), min(at + self.strip_width, self.x.w)
            if columns == 1 and (skip or end < at + self.strip_width):
                out.append(self._fill(address.plus(column * pitch + offset), rows * line, 1, 0))
            if end <= at + skip:
                continue
            out.append(
                self.context.command(
                    Unit.LOAD,
                    dram=self.x.address(source, at + skip),
                    dst=address.plus(column * pitch + offset + skip * self.x.c),
                    len=(end - at - skip) * self.x.c,
                    y_count=rows,
                    dram_y=self.x.row,
                    dst_y=line,
                    z_count=columns,
                    dram_z=stride * self.x.pixel,
                    dst_z=pitch,
                )
            )
        return out

    def _gather(self, key: Hashable, address: BufferRef) -> list[Command]:
        """Add the steps in which FUSE gathers strips of a load; their parts follow the tiles of the load.

        Returns
        -------
        list of Command
            Loads of the other strips if FUSE gathers none; otherwise, the first step loads them.
        """
        *_, start, rows, _ = key  # type: ignore[misc]
        height = self._height(rows)
        loads = self._strips((start, rows), (0, height), 0, address)
        steps = [
            TileStep(fuse=self._gather_rows(address, (start, rows), part))
            for part in pieces(height, ceil_div(height, self._tiles_per_load(rows)))
        ]
        if not steps[0].fuse:
            return loads
        base, first, count = self._source(key, (start, rows), steps[0])
        for step in steps:
            for command in step.fuse:
                at, low = command.fields["a_base"], command.fields["u0"]
                assert isinstance(at, int) and isinstance(low, int)
                command.fields |= {"a_base": base.plus(at), "u0": low - first, "u_lim": count}
        # The first strips are loaded before FUSE, which has priority at the memory, gathers the others.
        first_load = len(self.tiles.keys) == 1
        steps[0].loads = [*loads, *steps[0].loads] if first_load else [*steps[0].loads, *loads]
        self.gathers += steps
        return []

    def _source(self, key: Hashable, load_rows: Rows, step: TileStep) -> tuple[BufferRef, int, int]:
        """Return the address of the image rows of which strips are gathered, the first row and the number of rows."""
        if self.x.on_chip:
            return self.x.address(), 0, self.x.h
        return self.source.get(key, step), *self._rows(*load_rows)

    @property
    def _source_pitch(self) -> tuple[int, int]:
        """Distances in bytes between pixels, and between rows, of the image of which strips are gathered."""
        if self.x.on_chip:
            return self.x.pixel, self.x.row
        return self.x.c, (self.x.w + sum(self._source_padding)) * self.x.c

    def _tiles_per_load(self, rows: int) -> int:
        return ceil_div(rows, min(self.context.schedule.rows, rows))

    def _load_source(self, key: Hashable, address: BufferRef) -> list[Command]:
        """Return the load of the image rows of which strips are gathered, and the fills of their padding."""
        *_, start, rows, _ = key  # type: ignore[misc]
        first, count = self._rows(start, rows)
        left, right = self._source_columns
        before, after = self._source_padding
        pixel, row = self._source_pitch
        low, high = max(left, 0), min(right, self.x.w)
        image, inner = self.x.columns(low, high - low), address.plus((before + low) * pixel)
        borders = ((0, before * (left < 0)), (before + self.x.w, after * (right > self.x.w)))
        return [
            *(
                self._fill(address.plus(column * pixel), columns * pixel, count, row)
                for column, columns in borders
                if columns
            ),
            *self._image_loads(image, (first, count), 0, pixel, inner, (pixel, row)),
        ]

    @property
    def _source_columns(self) -> tuple[int, int]:
        """First column of the image rows that FUSE or MATRIX reads, and the column after the last one, with padding."""
        sources = self._strip_sources
        runs = _joined([*sources.gathered, *sources.direct])
        left = runs[0][0] * self.strip_stride + self.strip.before
        right = (sum(runs[-1]) - 1) * self.strip_stride + self.strip.before + self.strip_width
        return left, right

    def _gather_rows(self, address: BufferRef, load_rows: Rows, part: Rows) -> list[Command]:
        """Return the FUSE commands that gather some rows of strips of a load.

        A strip inside the image rows is copied in pieces of N bytes. At the edges of an image on chip, each pixel is
        copied separately, so that FUSE can replace those outside. Addresses and rows of the image are relative to its
        start.
        """
        layer, line, pitch = self.layer, self.row, self._pitch(load_rows[1])
        pixel, row = self._source_pitch
        stride, before = self.strip_stride, self.strip.before
        dtype = layer.shapes[layer.x].dtype
        low, high = (0, 255) if dtype == Dtype.U8 else (-128, 127)
        common: dict[str, int | BufferRef] = {
            "src": FUSE_SRC.pack(a_src=1, a_dtype=dtype),
            "stage": FUSE_STAGE.pack(d_dst=1, d_dtype=dtype, tail_dim=FUSE_DIMS.index("n")),
            "a_n": self.n,
            "d_n": self.n,
            "a_u": row,
            "y_count": part[1],
            "u0": load_rows[0] * layer.strides[0] - layer.pads[0] + part[0],
            "u_y": 1,
            "v_x": 1,
            "d_y": line,
            "zp_ab": layer.x_zp & 0xFFFF,
            "zp": layer.x_zp,
            "clip_lo": low,
            "clip_hi": high,
        }
        out = []
        padding = self._source_padding
        for column, columns in chain.from_iterable(
            self._columns(*run, padding) for run in self._strip_sources.gathered
        ):
            at = column * stride + before
            inside = -padding[0] <= at <= self.x.w + padding[1] - self.strip_width
            size = line if inside else self.x.c
            fields = common | {
                "d_base": address.plus(column * pitch + part[0] * line),
                "n_count": ceil_div(size, self.n),
                "lanes": min(size, self.n),
                "lanes_tail": (size - 1) % self.n + 1,
            }
            if inside:
                start = (at + padding[0]) * pixel
                fields |= {"a_base": start, "x_count": columns, "a_v": stride * pixel, "d_x": pitch}
            else:
                fields |= {
                    "a_base": 0,
                    "x_count": self.strip_width,
                    "a_v": pixel,
                    "d_x": self.x.c,
                    "v0": at,
                    "v_lim": self.x.w,
                }
            out.append(self.context.command(Unit.FUSE, **fields))
        return out

    def _columns(self, first: int, count: int, padding: tuple[int, int] = (0, 0)) -> list[_Run]:
        """Return the strips of a run as runs of similar strips; strips that extend beyond the image are single runs.

        `padding` is the number of columns that extend the image to the left and to the right.
        """
        stride, before, strips = self.strip_stride, self.strip.before, range(first, first + count)
        low, high = -padding[0], self.x.w + padding[1] - self.strip_width
        inside = [c for c in strips if low <= c * stride + before <= high]
        sides = [(c, 1) for c in strips if c not in inside]
        return [*sides, (inside[0], len(inside))] if inside else sides

    def _fill(self, address: BufferRef, length: int, lines: int, pitch: int) -> Command:
        """Return a LOAD command that fills padding with the zero point."""
        word = LOAD_WORD.pack(fill=1, fill_value=self.layer.x_zp & 0xFF)
        return self.context.command(
            Unit.LOAD, word=word, dram=0, dst=address, len=length, y_count=lines, dst_y=pitch
        )
