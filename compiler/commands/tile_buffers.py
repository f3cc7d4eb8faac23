"""Helpers for the code generators of layers: tiles loaded on demand into rotating buffers, ranges, fuse words."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, product
from typing import NamedTuple

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
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div
from hw.config import MlaConfig
from hw.isa.commands import FUSE_STAGE, LOAD_WORD
from hw.isa.enums import Space, Unit


@dataclass(frozen=True)
class CodegenContext:
    """Context of code generation for one layer.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    layer : int
        Index of the layer in the network.
    schedule : LayerSchedule
        Schedule of the layer.
    layouts : dict
        Layouts of the tensors of the layer, by name.
    tables_by_content : dict
        Lookup tables of the layer by contents, so that equal tables are stored once.
    """

    config: MlaConfig
    layer: int
    schedule: LayerSchedule
    layouts: dict[str, TensorLayout]
    tables_by_content: dict[bytes, "Tables"] = field(default_factory=dict, repr=False)

    def command(self, unit: Unit, **fields: int | BufferRef) -> Command:
        """Return a new command of this layer."""
        return Command(unit, self.layer, fields)

    def constant(self, name: str, data: NDArray) -> CircularBuffer:
        """Return a new buffer in DRAM with constant contents."""
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        return CircularBuffer(BufferMemory.DRAM, name, flat.size, data=flat)

    def tables(self, name: str, tables: NDArray[np.int16]) -> "Tables":
        """Return the buffer of lookup tables of this layer; equal tables are stored once."""
        return self.tables_by_content.setdefault(tables.tobytes(), Tables(self, name, tables))


class TileBuffers:
    """Circular buffer of tiles that are loaded on demand.

    Parameters
    ----------
    buffer : CircularBuffer
        Buffer into which the tiles are loaded.
    load : callable
        Function that returns the commands to load a tile, given its key and its address.
    """

    def __init__(self, buffer: CircularBuffer, load: Callable[[Hashable, BufferRef], list[Command]]):
        self.buffer, self.load = buffer, load
        self.keys: list[Hashable] = []

    @property
    def depth(self) -> int:
        """Number of tiles that are in the scratchpad at the same time."""
        return self.buffer.depth

    def get(self, key: Hashable, step: TileStep) -> BufferRef:
        """Return the address of a tile; if the tile is not loaded, add its loads to the step."""
        recent = self.keys[-self.depth :]
        if key in recent:
            return self._address(len(self.keys) - len(recent) + recent.index(key))
        address = self._address(len(self.keys))
        self.keys.append(key)
        step.loads += self.load(key, address)
        return address

    def _address(self, number: int) -> BufferRef:
        """Return the address of the tile that is loaded as number `number`."""
        return BufferRef(self.buffer, number)


#: End of the names of buffers whose contents stay for later layers.
KEPT_SUFFIX = ".kept"


class KeptTileBuffers(TileBuffers):
    """Tiles that are loaded on demand, some of which, at even distances, have buffers of their own.

    Parameters
    ----------
    buffer : CircularBuffer
        Buffer for the other tiles.
    load : callable
        Function that returns the commands to load a tile, given its key and its address.
    kept : int
        Number of tiles with buffers of their own.
    tiles : int
        Number of all tiles.
    number_of : callable
        Function that returns the number of a tile, given its key.
    """

    def __init__(
        self,
        buffer: CircularBuffer,
        load: Callable[[Hashable, BufferRef], list[Command]],
        kept: int,
        tiles: int,
        number_of: Callable[[Hashable], int],
    ):
        super().__init__(buffer, load)
        self.kept = CircularBuffer(
            buffer.memory, f"{buffer.name}{KEPT_SUFFIX}", buffer.size, max(kept, 1), kept=True
        )
        self.count, self.tiles, self.number_of = kept, tiles, number_of
        self.loaded: set[int] = set()

    def get(self, key: Hashable, step: TileStep) -> BufferRef:
        """Return the address of a tile; if the tile is not loaded, add its loads to the step."""
        tile = self.number_of(key)
        number, following = (at * self.count // self.tiles for at in (tile, tile + 1))
        if number == following:
            return super().get(key, step)
        address = BufferRef(self.kept, number)
        if number not in self.loaded:
            self.loaded.add(number)
            step.loads += self.load(key, address)
        return address


class _SeparateTileBuffers(TileBuffers):
    """Tiles that are loaded on demand into several buffers in turn, each of which is a buffer of one tile."""

    def __init__(self, buffers: list[CircularBuffer], load: Callable[[Hashable, BufferRef], list[Command]]):
        super().__init__(buffers[0], load)
        self.buffers = buffers

    @property
    def depth(self) -> int:
        """Number of tiles that are in the scratchpad at the same time."""
        return len(self.buffers)

    def _address(self, number: int) -> BufferRef:
        return BufferRef(self.buffers[number % self.depth])


def tile_buffers(
    name: str,
    size: int,
    depth: int,
    load: Callable[[Hashable, BufferRef], list[Command]],
    *,
    separate: bool,
    wide: bool = False,
) -> TileBuffers:
    """Return buffers in the scratchpad for tiles that are loaded on demand.

    Parameters
    ----------
    name : str
        Name of the buffers in listings.
    size : int
        Size of a tile in bytes.
    depth : int
        Number of tiles.
    load : callable
        Function that returns the commands to load a tile, given its key and its address.
    separate : bool
        True if units access two tiles at the same time, which are therefore in different banks if possible.
    wide : bool
        True if MATRIX reads rows of 2N bytes, a multiple of which `size` then is.
    """
    if separate:
        tiles = [
            CircularBuffer(BufferMemory.SP, f"{name}{i}", size, family=name, wide=wide) for i in range(depth)
        ]
        return _SeparateTileBuffers(tiles, load)
    return TileBuffers(CircularBuffer(BufferMemory.SP, name, size, depth, wide=wide), load)


class BufferRotation:
    """Rotation of `depth` buffers, in different banks if possible, for tiles that the units write.

    Parameters
    ----------
    memory : BufferMemory
        Memory that contains the buffers.
    name : str
        Name of the buffers in listings.
    size : int
        Size of a tile, in units of the memory.
    depth : int
        Number of buffers.
    wide : bool
        True if MATRIX reads rows of 2N bytes, a multiple of which `size` then is.
    """

    def __init__(self, memory: BufferMemory, name: str, size: int, depth: int, *, wide: bool = False):
        self.buffers = [
            CircularBuffer(memory, f"{name}{i}", size, family=name, wide=wide) for i in range(depth)
        ]
        self.count = 0

    def next(self) -> BufferRef:
        """Return the address of the next tile."""
        self.count += 1
        return BufferRef(self.buffers[(self.count - 1) % len(self.buffers)])


def pieces(total: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the start and length of each piece when `total` elements are split into pieces of at most `size`."""
    for start in range(0, total, size):
        yield start, min(size, total - start)


def row_groups(rows: int, together: int) -> list[tuple[int, int, int]]:
    """Split rows into groups of `together` rows and a smaller last group.

    Returns
    -------
    list of (int, int, int)
        First row, number of groups and rows of each group, for each size of groups.
    """
    whole = rows // together
    runs = [(0, whole, together), (whole * together, 1, rows % together)]
    return [(first, groups, size) for first, groups, size in runs if groups and size]


class Segment(NamedTuple):
    """Outputs of a row in a block: row of the group, first channel, first lane of the block, and number of lanes."""

    row: int
    channel: int
    lane: int
    lanes: int


@dataclass(frozen=True)
class SharedBlock:
    """Block of outputs of several rows; the segments have increasing rows and lanes."""

    segments: tuple[Segment, ...]

    @property
    def top(self) -> int:
        """First row."""
        return self.segments[0].row

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.segments[-1].row - self.top + 1

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return sum(segment.lanes for segment in self.segments)


@dataclass(frozen=True)
class SharedRows:
    """Outputs of a convolution beyond whole blocks of N channels, of a group of adjacent rows, in blocks of N lanes.

    The outputs of a group are numbered row by row, and each block has N consecutive ones.

    Parameters
    ----------
    rows : int
        Rows of a group.
    outputs : int
        Outputs of each row, at most N.
    n : int
        Lanes of a block.
    """

    rows: int
    outputs: int
    n: int

    @cached_property
    def blocks(self) -> list[SharedBlock]:
        """Blocks of a group."""
        return self.blocks_of(self.rows)

    def blocks_of(self, rows: int) -> list[SharedBlock]:
        """Return the blocks of the first `rows` rows of a group; the outputs of the other rows are missing."""
        out = []
        for start, lanes in pieces(self.rows * self.outputs, self.n):
            segments, lane = [], 0
            while lane < lanes:
                row, channel = divmod(start + lane, self.outputs)
                segments.append(Segment(row, channel, lane, min(self.outputs - channel, lanes - lane)))
                lane += segments[-1].lanes
            out.append(SharedBlock(tuple(segment for segment in segments if segment.row < rows)))
        return [block for block in out if block.segments]

    @property
    def segments(self) -> int:
        """Number of segments of a group."""
        return sum(len(block.segments) for block in self.blocks)

    def more_rows(self, kernel: int, stride: int) -> int:
        """Return the kernel rows of all blocks in addition to the `kernel` rows of a block of outputs of one row."""
        return sum(kernel + (block.rows - 1) * stride for block in self.blocks) - kernel

    def sum_rows(self, rows: int, columns: int, blocks: int) -> int:
        """Return the rows of sums of a tile of `rows` output rows and `columns` of `blocks` blocks of outputs."""
        if columns < blocks:
            return rows * columns
        return rows * (blocks - 1) + ceil_div(rows, self.rows) * len(self.blocks)


def image_rows(start: int, rows: int, stride: int, top: int, reach: int, height: int) -> tuple[int, int]:
    """Return the first input row that output rows need, and the number of input rows, which is at least 1.

    Rows outside the image are excluded. `reach` is the number of input rows that the kernel covers for one output row,
    and `top` is the padding above the image.
    """
    low = start * stride - top
    high = low + (rows - 1) * stride + reach - 1
    first = min(max(low, 0), height - 1)
    return first, max(min(high, height - 1) - first + 1, 1)


def window_runs(size: int, kernel: int, stride: int, pad: int, outputs: int) -> list[tuple[int, int, int]]:
    """Return runs of windows with equally many elements inside the image: (first window, windows, elements each)."""
    counts = [min(i * stride - pad + kernel, size) - max(i * stride - pad, 0) for i in range(outputs)]
    runs, start = [], 0
    for count, group in groupby(counts):
        length = len(list(group))
        runs.append((start, length, count))
        start += length
    return runs


def rectangles(
    runs: Sequence[Sequence[tuple[int, int, int]]], rows: tuple[int, int], columns: tuple[int, int]
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the rectangles of a tile whose windows have equally many elements inside the image.

    Parameters
    ----------
    runs : (runs of rows, runs of columns)
        Results of `window_runs` for both dimensions of the image.
    rows, columns : (int, int)
        First row and number of rows, and first column and number of columns, of the tile.

    Yields
    ------
    (top, height, left, width, count)
        First row and column, relative to the tile, rows and columns, and number of elements of each window.
    """
    for (first, many, high), (left, wide, across) in product(*runs):
        top, end = max(first, rows[0]), min(first + many, sum(rows))
        near, far = max(left, columns[0]), min(left + wide, sum(columns))
        if top < end and near < far:
            yield top - rows[0], end - top, near - columns[0], far - near, high * across


@dataclass(frozen=True)
class ColumnStrip:
    """Adjacent columns of an output image, and the columns of the input image that they need.

    Parameters
    ----------
    first, count : int
        First output column, and the number of output columns.
    start, size : int
        First input column, and the number of input columns, at least 1.
    before : int
        Column of the kernel's first element, relative to `start`; negative for padding.
    """

    first: int
    count: int
    start: int
    size: int
    before: int


def column_strips(
    outputs: int, width: int, stride: int, left: int, reach: int, inputs: int
) -> list[ColumnStrip]:
    """Return strips of at most `width` of the `outputs` columns of a window operator.

    Parameters
    ----------
    outputs, inputs : int
        Number of columns of the output and of the input image.
    width : int
        Maximum number of output columns of a strip.
    stride : int
        Distance between the windows, in input columns.
    left : int
        Columns of padding before the image.
    reach : int
        Number of input columns that a window covers.
    """
    strips = []
    for first, count in pieces(outputs, width):
        start, size = image_rows(first, count, stride, left, reach, inputs)
        if count == outputs:  # so that the image is loaded as a whole
            start, size = 0, inputs
        strips.append(ColumnStrip(first, count, start, size, first * stride - left - start))
    return strips


def image_lines(
    image: TensorLayout, rows: int, width: int, side: str, pixel: int, row: int | None = None
) -> dict[str, int]:
    """Return the LOAD or STORE fields that transfer `width` bytes of each pixel of some rows of an image in DRAM.

    Parameters
    ----------
    image : TensorLayout
        Image, or a strip of its columns, in DRAM.
    rows : int
        Number of image rows.
    width : int
        Bytes of each pixel that are transferred.
    side : str
        Prefix of the fields for the scratchpad: "dst" for a LOAD, "src" for a STORE.
    pixel, row : int
        Distance between pixels, and between rows, in the scratchpad; rows are contiguous if `row` is None.
    """
    line = image.w * pixel
    row = line if row is None else row
    together = rows == 1 or (image.even and row == line)
    if width == image.pixel == pixel:
        if together:
            return {"len": rows * line}
        return {"len": line, "y_count": rows, "dram_y": image.row, f"{side}_y": row}
    lines = {"len": width, "dram_y": image.pixel, f"{side}_y": pixel}
    if together:
        return lines | {"y_count": rows * image.w}
    return lines | {"y_count": image.w, "z_count": rows, "dram_z": image.row, f"{side}_z": row}


def plane_lines(
    image: TensorLayout, rows: int, width: int, pixel: int, row: int, n: int
) -> Iterator[tuple[int, int, int, dict[str, int]]]:
    """Yield the LOADs that transpose some rows of the planes of an image in DRAM to rows of pixels.

    Blocks of up to N columns are transposed: all blocks of an image row, or the same block of all rows, by a command.

    Parameters
    ----------
    image : TensorLayout
        Image, or a strip of its columns, in DRAM.
    rows : int
        Number of image rows.
    width : int
        Number of planes, at most N.
    pixel, row : int
        Distance between pixels, and between rows, in the scratchpad.
    n : int
        Number of lanes.

    Yields
    ------
    y, x, offset : int
        Row and column of the first pixel, and its offset in the scratchpad.
    fields : dict
        Fields of the LOAD command.
    """
    columns = image.w
    if image.even and row == columns * pixel:
        rows, columns = 1, rows * columns
    fields = {"word": LOAD_WORD.pack(transpose=1), "y_count": width, "dram_y": image.plane, "dst_y": pixel}
    blocks, rest = divmod(columns, n)
    down = {"z_count": rows, "dram_z": image.row, "dst_z": row}
    if blocks and rows <= blocks:
        across = {"z_count": blocks, "dram_z": n, "dst_z": n * pixel}
        for y in range(rows):
            yield y, 0, y * row, fields | across | {"len": n}
    else:
        for x in range(0, blocks * n, n):
            yield 0, x, x * pixel, fields | down | {"len": n}
    if rest:
        yield 0, blocks * n, blocks * n * pixel, fields | down | {"len": rest}


class Tables:
    """Lookup tables of a layer, loaded once into table slots.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    name : str
        Name of the layer, which is the prefix of the buffer names.
    tables : (count * 256,) int16 array
        One or more tables of 256 entries.
    """

    def __init__(self, context: CodegenContext, name: str, tables: NDArray[np.int16]):
        self.context = context
        self.source = context.constant(f"{name}.tables", tables.astype("<i2"))
        self.tiles = TileBuffers(
            CircularBuffer(BufferMemory.TABLE, f"{name}.table", tables.size // 256), self._load
        )

    def word(self, step: TileStep, which: int = 0, **parts: int) -> BufferRef:
        """Return the second half of a fuse word that selects a table; the first step that uses tables loads them."""
        slot = self.tiles.get(0, step)
        word = FUSE_STAGE.pack(**parts)
        return BufferRef(slot.buffer, slot.index, which, FUSE_STAGE.pack(**parts, table_slot=1) - word, word)

    def _load(self, _: Hashable, address: BufferRef) -> list[Command]:
        to = BufferRef(address.buffer, address.index, 0, 512)
        length = address.buffer.size * 512
        return [
            self.context.command(Unit.LOAD, word=Space.TABLE, dram=BufferRef(self.source), dst=to, len=length)
        ]
