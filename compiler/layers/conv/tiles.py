"""Input and output tiles of a convolution in the scratchpad."""

from collections.abc import Hashable
from dataclasses import dataclass, replace

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tile_buffers import CodegenContext, TileBuffers, image_rows, pieces
from compiler.layers.conv.input_layout import Im2colLayout
from compiler.layers.conv.layer import ConvLayer
from compiler.util.tiles import ceil_div
from hw.isa.commands import LOAD_WORD
from hw.isa.enums import Unit

#: Maximum number of parts of a first tile; each part needs additional commands.
_MAX_RAMP_PARTS = 3


@dataclass(frozen=True)
class TilePart:
    """Output rows and blocks of output channels: a tile, or some of one.

    `pitch` is the distance between blocks in rows of sums: that of the whole tile if the parts share its buffer.
    """

    start: int
    rows: int
    block: int
    blocks: int
    pitch: int


def ramped(part: TilePart, acc: BufferRef, few: int, width: int) -> list[tuple[TilePart, BufferRef]]:
    """Split the rows of a first tile, starting with a few, so that MATRIX can start when their input is loaded.

    Parameters
    ----------
    acc : Ref
        Accumulator buffer for the sums of the whole tile.
    few : int
        Rows that fill the array.
    width : int
        Pixels of a row.
    """
    *halves, last = _halves(part.rows, few)
    sizes = [last, *reversed(halves)]
    if len(sizes) > _MAX_RAMP_PARTS:
        sizes = [sum(sizes[: 1 - _MAX_RAMP_PARTS]), *sizes[1 - _MAX_RAMP_PARTS :]]
    out, start = [], part.start
    for rows in sizes:
        out.append((replace(part, start=start, rows=rows), acc.plus((start - part.start) * width)))
        start += rows
    return out


def tapered(tile: TilePart, name: str, few: int, width: int) -> list[tuple[TilePart, BufferRef]]:
    """Split a last tile: all blocks but the last, then half of the remaining rows while those fill the array.

    Each part has separate sums, in different banks if possible, because FUSE waits for a bank that MATRIX uses.
    """
    start, last = tile.start, tile.block + tile.blocks - 1
    parts = [replace(tile, blocks=tile.blocks - 1)] if tile.blocks > 1 else []
    for rows in _halves(tile.rows, few):
        parts.append(TilePart(start, rows, last, 1, rows))
        start += rows
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
        for i, part in enumerate(parts)
    ]


def _halves(rows: int, few: int) -> list[int]:
    """Half of some rows, half of the others, ... while that is `few` or more."""
    out = []
    while rows:
        out.append(rows if rows < 2 * few else ceil_div(rows, 2))
        rows -= out[-1]
    return out


#: More pieces than any image has.
_ALL = 1 << 24
#: First row and number of rows.
Rows = tuple[int, int]


@dataclass(frozen=True)
class ConvCut:
    """Split of the reduction dimension: its blocks, blocks of a tile, output rows of a band, excess bytes of the last
    block.
    """

    k_blocks: int
    k_size: int
    band: int
    behind: int

    @property
    def whole(self) -> bool:
        """The reduction dimension is not split."""
        return self.k_size == self.k_blocks


class ConvImage:
    """Image rows of a group of channels of a convolution.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts that code is generated for.
    layer : ConvLayer
        Layer to generate code for.
    name : str
        Name of the group, the prefix of its buffers.
    group : int
        Index of the group of channels.
    layout : Im2colLayout
        Layout of the image rows in the scratchpad.
    cut : ConvCut
        Rows and blocks of each load.
    """

    def __init__(
        self,
        context: CodegenContext,
        layer: ConvLayer,
        name: str,
        group: int,
        layout: Im2colLayout,
        cut: ConvCut,
    ):
        self.context, self.layer, self.group, self.layout, self.cut = context, layer, group, layout, cut
        self.n, self.y = context.config.n, context.homes[layer.y].parts(layer.batch)[0]
        self.images = context.homes[layer.x].parts(layer.batch)
        self.turn_to(0)
        _, self.kernel_h, self.kernel_w, self.in_c = layer.weights.shape
        self.left = self.right = 0
        #: Bytes from pixel to pixel and from row to row; of strips from row to row.
        self.pixel, self.row = self.x.pixel, self.x.row
        if self.x.on_chip:
            return
        if layout == Im2colLayout.ROWS:
            self.left = layer.pads[1]
            reach = (self.y.w - 1) * layer.strides[1] + self.kernel_w
            self.right = max(reach - self.left - self.x.w, 0)
        self.pixel = self.x.c if cut.whole else cut.k_size * self.n
        self.row = (self.left + self.x.w + self.right) * self.pixel
        if layout == Im2colLayout.STRIPS:
            self.row = self.kernel_w * self.x.c
        bands = list(pieces(self.y.h, cut.band))
        size = max(self._size(*band) for band in bands) + self.n
        count = len(bands) * ceil_div(cut.k_blocks, cut.k_size) * layer.batch
        ring = CircularBuffer(BufferMemory.SP, f"{name}.x", size, min(context.schedule.x_buffers, count))
        self.tiles = TileBuffers(ring, self._begin)
        #: True to load only the rows of a tile that are needed.
        self.ramp = False
        #: Number of rows of each tile, or of each strip, that are loaded so far.
        self.there: dict[Hashable, int] = {}

    @property
    def depth(self) -> int:
        """Pieces that are in the scratchpad at a time."""
        return self.tiles.ring.depth if not self.x.on_chip else _ALL

    def turn_to(self, number: int) -> None:
        """Go on with this image of a batch."""
        self.number, self.x = number, self.images[number]

    def _size(self, start: int, rows: int) -> int:
        if self.layout == Im2colLayout.STRIPS:
            return self.y.w * self._pitch(rows)
        return self._rows(start, rows)[1] * self.row

    def _rows(self, start: int, rows: int) -> Rows:
        layer = self.layer
        reach = (self.kernel_h - 1) * layer.dilations[0] + 1
        return image_rows(start, rows, layer.strides[0], layer.pads[0], reach, self.x.h)

    def _height(self, rows: int) -> int:
        """Rows of a strip, padding too."""
        return (rows - 1) * self.layer.strides[0] + self.kernel_h

    def _pitch(self, rows: int) -> int:
        """Bytes from strip to strip."""
        return self._height(rows) * self.row

    def get(self, step: TileStep, band: Rows, start: int, rows: int, k: int) -> dict[str, int | BufferRef]:
        """Address of the image rows of a tile for MATRIX, and its walk over them."""
        layer = self.layer
        if self.layout == Im2colLayout.STRIPS:
            return {
                "a_base": self._bring((self.number, *band, k), (start, rows), step),
                "u0": (start - band[0]) * layer.strides[0],
                "x_count": self.y.w,
                "y_count": rows,
                "a_u": self.row,
                "a_v": self._pitch(band[1]),
                "u_y": layer.strides[0],
                "v_x": 1,
                "acc_y": self.y.w,
            }
        if self.x.on_chip:
            base, first, count = self.x.at(0, 0, self.group * self.in_c + k * self.n), 0, self.x.h
        else:
            first, count = self._rows(*band)
            base = self._bring((self.number, *band, k), (start, rows), step)
            if layer.groups > 1 and self.cut.whole:
                base = base.plus(self.group * self.in_c)
        u0 = start * layer.strides[0] - layer.pads[0] - first
        if self.flat:
            return {"a_base": base.plus(u0 * self.row), "x_count": rows * self.y.w, "a_v": self.pixel}
        walk: dict[str, int | BufferRef] = {
            "a_base": base,
            "x_count": self.y.w,
            "y_count": rows,
            "ky_count": self.kernel_h,
            "a_u": self.row,
            "a_v": self.pixel,
            "u0": u0,
            "u_y": layer.strides[0],
            "u_ky": layer.dilations[0],
            "v_x": layer.strides[1],
            "u_lim": count,
            "w_ky": self._w_row * self.kernel_w,
            "acc_y": self.y.w,
        }
        if self.layout == Im2colLayout.ROWS:
            return walk
        return walk | {
            "kx_count": self.kernel_w,
            "v0": -layer.pads[1],
            "v_kx": layer.dilations[1],
            "v_lim": self.x.w,
            "w_kx": self._w_row,
        }

    @property
    def _w_row(self) -> int:
        """Bytes of the weights of a kernel position."""
        return (self.in_c if self.cut.whole else self.cut.k_size * self.n) * self.n

    @property
    def flat(self) -> bool:
        """True if every output pixel depends on one input pixel, so that row boundaries do not matter."""
        layer = self.layer
        return (
            (self.kernel_h, self.kernel_w) == (1, 1)
            and layer.strides == (1, 1)
            and layer.pads == (0, 0, 0, 0)
            and self.layout != Im2colLayout.STRIPS
            and self.row == self.x.w * self.pixel
            and (self.y.h, self.y.w) == (self.x.h, self.x.w)
        )

    def _begin(self, key: Hashable, _: BufferRef) -> list[Command]:
        self.there[key] = 0
        return []

    def _bring(self, key: tuple[int, int, int, int], part: Rows, step: TileStep) -> BufferRef:
        """Address of a tile; missing rows are loaded in the step: all, or while ramping up those that are needed."""
        _, start, rows, k = key
        place, there = self.tiles.get(key, step), self.there[key]
        needed = total = self._reach(start, (start, rows))
        if self.ramp:  # and rows that reads of the last row extend into
            needed = min(self._reach(start, part) + ceil_div(self.cut.behind, self.row), total)
        if there < needed:
            bring = self._strips if self.layout == Im2colLayout.STRIPS else self._load
            step.loads += bring((start, rows), (there, needed - there), k, place)
            self.there[key] = needed
        return place

    def _reach(self, start: int, part: Rows) -> int:
        """Rows of the tile that begins with output row `start` up to the last one that some output rows need."""
        if self.layout == Im2colLayout.STRIPS:
            return (part[0] - start) * self.layer.strides[0] + self._height(part[1])
        low, count = self._rows(*part)
        return low + count - self._rows(start, 1)[0]

    def _load(self, band: Rows, part: Rows, k: int, place: BufferRef) -> list[Command]:
        """Load some image rows of a tile."""
        count, place = part[1], place.plus(part[0] * self.row)
        channel = k * self.n + (0 if self.cut.whole else self.group * self.in_c)
        length = min(self.pixel, self.x.c - channel)
        inner = place.plus(self.left * self.pixel)
        source = self.x.at(self._rows(*band)[0] + part[0], 0, channel)
        if length == self.x.c < self.x.pixel:
            lines = {
                "len": length,
                "y_count": self.x.w,
                "dram_y": self.x.pixel,
                "dst_y": self.pixel,
                "z_count": count,
                "dram_z": self.x.row,
                "dst_z": self.row,
            }
        elif length == self.x.c and not self.left + self.right:
            lines = {"len": count * self.x.w * self.x.c}
        elif length == self.x.c:
            lines = {"len": self.x.w * self.x.c, "y_count": count, "dram_y": self.x.row, "dst_y": self.row}
        else:
            lines = {
                "len": length,
                "y_count": count * self.x.w,
                "dram_y": self.x.pixel,
                "dst_y": self.pixel,
            }
        borders = ((self.left, 0), (self.right, (self.left + self.x.w) * self.pixel))
        return [
            *(
                self._fill(place.plus(offset), columns * self.pixel, count, self.row)
                for columns, offset in borders
                if columns
            ),
            self.context.command(Unit.LOAD, dram=source, dst=inner, **lines),
        ]

    def _strips(self, band: Rows, part: Rows, _: int, place: BufferRef) -> list[Command]:
        """Some rows of all strips: padding above and below, and of those at the sides all that is not image."""
        layer, pitch, line = self.layer, self._pitch(band[1]), self.row
        stride, left = layer.strides[1], layer.pads[1]
        first, count = self._rows(*band)
        above = max(first - (band[0] * layer.strides[0] - layer.pads[0]), 0)
        low, high = part[0], part[0] + part[1]
        rows = min(high, above + count) - max(low, above)  # of the image, from this one on:
        source, offset = first + max(low - above, 0), max(low, above) * line
        out: list[Command] = []
        for begin, end in ((low, min(high, above)), (max(low, above + count), high)):
            if begin < end:
                out.append(self._fill(place.plus(begin * line), (end - begin) * line, self.y.w, pitch))
        if rows <= 0:
            return out
        for column, columns in self._columns():
            at = column * stride - left
            skip, end = max(-at, 0), min(at + self.kernel_w, self.x.w)
            if columns == 1 and (skip or end < at + self.kernel_w):
                out.append(self._fill(place.plus(column * pitch + offset), rows * line, 1, 0))
            if end <= at + skip:
                continue
            out.append(
                self.context.command(
                    Unit.LOAD,
                    dram=self.x.at(source, at + skip),
                    dst=place.plus(column * pitch + offset + skip * self.x.c),
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

    def _columns(self) -> list[tuple[int, int]]:
        """Output columns, with the number of adjacent columns that have equal strips; edge columns are single."""
        stride, left = self.layer.strides[1], self.layer.pads[1]
        inside = [c for c in range(self.y.w) if 0 <= c * stride - left <= self.x.w - self.kernel_w]
        sides = [(c, 1) for c in range(self.y.w) if c not in inside]
        return [*sides, (inside[0], len(inside))] if inside else sides

    def _fill(self, place: BufferRef, length: int, lines: int, pitch: int) -> Command:
        """Stored padding: bytes of the zero point."""
        word = LOAD_WORD.pack(fill=1, fill_value=self.layer.x_zp & 0xFF)
        return self.context.command(
            Unit.LOAD, word=word, dram=0, dst=place, len=length, y_count=lines, dst_y=pitch
        )
