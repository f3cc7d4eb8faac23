"""Unit commands before address assignment, their normal form, and the layout of tensors between layers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from math import ceil, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.util.tiles import ceil_div
from cosim.semantics.bounding_box import BoundingBox
from hw.config import MlaConfig
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE, LOAD_WORD, MATRIX_WORD
from hw.isa.enums import DTYPE_BYTES, PAIRS, BSource, Post, Unit


class BufferMemory(StrEnum):
    """Memory of a buffer, which determines the unit of its size."""

    SP = "sp"  # bytes
    ACC = "acc"  # rows
    SLOT = "slot"  # parameter slots
    TABLE = "table"  # table slots
    DRAM = "dram"  # bytes


@dataclass(eq=False)
class CircularBuffer:
    """Circular buffer of `depth` tiles of equal size.

    Parameters
    ----------
    memory : BufferMemory
        Memory that contains the buffer.
    name : str
        Name of the buffer in listings.
    size : int
        Size of one tile, in units of the memory.
    depth : int
        Number of tiles in the buffer; tile i is at position i modulo depth.
    data : array or None
        Initial contents of a buffer in DRAM: weights, parameters or tables.
    family : str
        Common name of buffers that are used in rotation; empty for other buffers.
    kept : bool
        True if the contents stay for later layers (`share_kept_buffers`).
    wide : bool
        True if MATRIX reads rows of 2N bytes of the buffer, which must begin at a multiple of 2N.
    transferred : tuple or None
        Cached bytes that the last commands on a buffer in DRAM transfer, with these commands.
    """

    memory: BufferMemory
    name: str
    size: int
    depth: int = 1
    data: NDArray[np.uint8] | None = field(default=None, repr=False)
    family: str = ""
    kept: bool = False
    wide: bool = False
    transferred: "tuple[list[Command], int] | None" = field(default=None, repr=False)

    @property
    def total(self) -> int:
        """Size of all tiles."""
        return self.size * self.depth


@dataclass(frozen=True)
class BufferRef:
    """Address in a buffer, with the field value (start of tile `index` + offset) * scale + base."""

    buffer: CircularBuffer
    index: int = 0
    offset: int = 0
    scale: int = 1
    base: int = 0

    def plus(self, offset: int) -> "BufferRef":
        """Return the address `offset` units after this one."""
        return BufferRef(self.buffer, self.index, self.offset + offset, self.scale, self.base)

    def resolve(self, start: int) -> int:
        """Return the field value, given the start address of the buffer."""
        tile = self.index % self.buffer.depth
        return (start + tile * self.buffer.size + self.offset) * self.scale + self.base


#: Fields with the addresses at which a command reads and writes.
READS = {
    Unit.LOAD: ("dram",),
    Unit.MATRIX: ("a_base", "w_base"),
    Unit.FUSE: ("a_base", "b_base", "r_base", "p_base", "stage"),
    Unit.STORE: ("src",),
}
WRITES = {Unit.LOAD: "dst", Unit.MATRIX: "acc_base", Unit.FUSE: "d_base", Unit.STORE: "dram"}


#: A buffer and the index of a tile in it.
Tile = tuple[CircularBuffer, int]


class ResolvedFields(NamedTuple):
    """Field values of a command for given buffer addresses.

    Parameters
    ----------
    starts : tuple of int
        Start addresses of the command's buffers.
    values : tuple of int
        All fields of the unit, in the order of its table.
    region : int
        Index of the operand to which the address in DRAM is relative.
    reach : list of BoundingBox
        Memory regions that the command reads and writes.
    """

    starts: tuple[int, ...]
    values: tuple[int, ...]
    region: int
    reach: list[BoundingBox]


@dataclass(eq=False)
class Command:
    """Unit command before address assignment; immutable except for cached values.

    Parameters
    ----------
    unit : Unit
        Unit that executes the command.
    layer : int
        Index of the layer to which the command belongs.
    fields : dict
        Values of the fields that differ from their defaults.
    cycles : int or None
        Cached lower bound on the command's cycles (`cycles`).
    resolved : ResolvedFields or None
        Cached field values for the last addresses of the command's buffers.
    template : tuple or None
        Cached field values with 0 for addresses, and the index and value of each address.
    origin : Command or None
        Command of which this one is a copy with other addresses; None if it is not a copy.
    """

    unit: Unit
    layer: int
    fields: dict[str, int | BufferRef]
    cycles: int | None = field(default=None, repr=False)
    resolved: ResolvedFields | None = field(default=None, repr=False)
    template: "tuple[tuple[int, ...], tuple[tuple[int, BufferRef], ...]] | None" = field(
        default=None, repr=False
    )
    origin: "Command | None" = field(default=None, repr=False)

    def reads(self) -> Iterator[BufferRef]:
        """Yield the addresses from which the command reads."""
        for name in READS[self.unit]:
            value = self.fields.get(name)
            if isinstance(value, BufferRef):
                yield value

    def write(self) -> BufferRef:
        """Return the address to which the command writes."""
        value = self.fields[WRITES[self.unit]]
        assert isinstance(value, BufferRef)
        return value

    def refs(self) -> Iterator[BufferRef]:
        """Yield all addresses from which the command reads or to which it writes."""
        yield from self.reads()
        yield self.write()

    @cached_property
    def sources(self) -> frozenset[Tile]:
        """Tiles that the command reads."""
        return frozenset((ref.buffer, ref.index % ref.buffer.depth) for ref in self.reads())

    @cached_property
    def target(self) -> Tile:
        """Tile that the command writes."""
        ref = self.write()
        return ref.buffer, ref.index % ref.buffer.depth

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """All tiles that the command reads or writes."""
        return (*self.sources, self.target)

    @cached_property
    def buffers(self) -> tuple[CircularBuffer, ...]:
        """All buffers that the command reads or writes."""
        return tuple(dict.fromkeys(ref.buffer for ref in self.refs()))


class UnitCycles(NamedTuple):
    """Cycles of a step's MATRIX and STORE commands, and of its slowest unit."""

    matrix: int
    stores: int
    whole: int


@dataclass(eq=False)
class TileStep:
    """Commands of one tile; MATRIX commands of the next step may run concurrently with FUSE commands of this step.

    `block` is the first block of output channels, for layers that stream channel blocks. `unit_cycles` caches the
    cycles by unit (`cycles`).
    """

    block: int = 0
    ahead: bool = False
    unit_cycles: UnitCycles | None = field(default=None, repr=False)
    loads: list[Command] = field(default_factory=list)
    matrix: list[Command] = field(default_factory=list)
    fuse: list[Command] = field(default_factory=list)
    stores: list[Command] = field(default_factory=list)

    def commands(self) -> Iterator[Command]:
        """Yield all commands of the step."""
        yield from self.loads
        yield from self.matrix
        yield from self.fuse
        yield from self.stores


Fields = dict[str, int | BufferRef]

#: Strides by the count that must exceed one for them to have an effect.
_STRIDES: dict[Unit, dict[str, tuple[str, ...]]] = {
    Unit.LOAD: {"y_count": ("dram_y", "dst_y"), "z_count": ("dram_z", "dst_z")},
    Unit.STORE: {"y_count": ("dram_y", "src_y"), "z_count": ("dram_z", "src_z")},
    Unit.MATRIX: {
        "x_count": ("v_x", "acc_x"),
        "y_count": ("u_y", "acc_y"),
        "kx_count": ("v_kx", "w_kx"),
        "ky_count": ("u_ky", "w_ky"),
        "ic_count": ("a_ic", "w_ic"),
        "oc_count": ("a_oc", "w_oc", "acc_oc"),
    },
    Unit.FUSE: {
        f"{dim}_count": (f"b_{dim}", f"r_{dim}", f"d_{dim}", *more)
        for dim, more in (
            ("wx", ("v_wx",)),
            ("wy", ("u_wy",)),
            ("x", ("v_x",)),
            ("y", ("u_y",)),
            ("n", ("a_n", "p_n")),
        )
    },
}
#: Counts that have another function in MATRIX's stream mode. The field dst_y of a transposing LOAD is the column
#: distance.
_STREAM = ("x_count", "y_count", "kx_count", "ky_count", "ic_count")
#: Fields whose value 0 selects all lanes.
_LANES = {Unit.MATRIX: ("k_rows", "k_tail", "n_cols", "n_tail"), Unit.FUSE: ("lanes", "lanes_tail")}


def simplify_fields(unit: Unit, fields: Fields, n: int) -> Fields:
    """Return the fields of a command without those that have no effect."""
    out = dict(fields)
    word = out.get("word", 0)
    stream = unit == Unit.MATRIX and isinstance(word, int) and MATRIX_WORD.unpack(word)["dw"]
    columns = unit == Unit.LOAD and isinstance(word, int) and LOAD_WORD.unpack(word)["transpose"]
    for count, strides in _STRIDES[unit].items():
        if out.get(count, 1) == 1 and not ((stream and count in _STREAM) or (columns and count == "y_count")):
            for name in strides:
                out.pop(name, None)
    for name in _LANES.get(unit, ()):
        if out.get(name) == n:
            out.pop(name)
    return out


@dataclass(frozen=True)
class RowBlocks:
    """Division of the rows of a stack of matrices into blocks.

    Parameters
    ----------
    rows : int
        Rows of a block; the last block of a matrix may have fewer.
    matrix_rows : int
        Rows of a matrix.
    """

    rows: int
    matrix_rows: int

    def locate(self, row: int) -> tuple[int, int]:
        """Return the index of the block that contains a row of the stack, and the index of the row in the block."""
        matrix, row = divmod(row, self.matrix_rows)
        block, row = divmod(row, self.rows)
        return matrix * -(-self.matrix_rows // self.rows) + block, row

    def pieces(self, total: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield the start and length of pieces of at most `size` rows, each within a block, of a stack of rows."""
        start = 0
        while start < total:
            _, row = self.locate(start)
            of_matrix = self.matrix_rows - start % self.matrix_rows
            count = min(size, self.rows - row, of_matrix, total - start)
            yield start, count
            start += count


@dataclass(frozen=True)
class TensorLayout:
    """Layout of an image (h, w, c) in DRAM or in the scratchpad.

    Parameters
    ----------
    buffer : CircularBuffer
        Buffer that contains the whole tensor.
    h, w, c : int
        Height, width and channels of the image; for a matrix, rows, 1 and columns.
    pixel, row : int
        Distance between pixels and between image rows, in bytes.
    offset : int
        Bytes from the start of the buffer to the first pixel.
    channel_block : int
        Number of channels per tile if the tiles of the buffer are blocks of channels; 0 if the channels of a pixel are
        contiguous.
    row_blocks : RowBlocks or None
        Blocks of rows if the tiles of the buffer are blocks of pixels, each a row of channels.
    plane : int
        Distance between the channels of an image in DRAM that consists of planes, in bytes; 0 if the channels of a
        pixel are contiguous.
    """

    buffer: CircularBuffer
    h: int
    w: int
    c: int
    pixel: int
    row: int
    offset: int = 0
    channel_block: int = 0
    row_blocks: RowBlocks | None = None
    plane: int = 0

    @property
    def on_chip(self) -> bool:
        """True if the tensor is in the scratchpad."""
        return self.buffer.memory == BufferMemory.SP

    @property
    def streamed(self) -> bool:
        """True if the buffer contains only some blocks of the tensor at a time."""
        return bool(self.channel_block) or self.row_blocks is not None

    def compact(self, size: int) -> bool:
        """Return True if the elements, of `size` bytes each, are contiguous."""
        return self.pixel == self.c * size and (self.h == 1 or self.row == self.w * self.pixel)

    @property
    def even(self) -> bool:
        """True if the distance between consecutive pixels is constant, even from the end of a row to the next row."""
        return self.h == 1 or self.row == self.w * self.pixel

    def parts(self, count: int) -> list["TensorLayout"]:
        """Return the layouts of the `count` images of a batch."""
        rows = self.h // count
        size = self.c * self.plane or rows * self.row
        return [replace(self, h=rows, offset=self.offset + i * size) for i in range(count)]

    def columns(self, start: int, count: int) -> "TensorLayout":
        """Return the layout of `count` columns from column `start`."""
        return replace(self, w=count, offset=self.offset + start * self.pixel)

    def byte_offset(self, element: int, size: int) -> int:
        """Return the distance in bytes from the first element to `element`, for elements of `size` bytes."""
        pixel, channel = divmod(element, self.c)
        return pixel * self.pixel + channel * size

    def element(self, index: int, size: int) -> BufferRef:
        """Return the address of the element with an index, for elements of `size` bytes."""
        if self.row_blocks is None:
            return self.address().plus(self.byte_offset(index, size))
        pixel, channel = divmod(index, self.c)
        block, row = self.row_blocks.locate(pixel)
        return BufferRef(self.buffer, block, self.offset + row * self.pixel + channel * size)

    def address(self, row: int = 0, column: int = 0, channel: int = 0) -> BufferRef:
        """Return the address of an element; `channel` is an offset in bytes, or the number of a plane."""
        channel *= self.plane or 1
        tile, channel = divmod(channel, self.channel_block) if self.channel_block else (0, channel)
        return BufferRef(self.buffer, tile, self.offset + row * self.row + column * self.pixel + channel)

    def block(self, size: int) -> int:
        """Return the distance in bytes between channel blocks of `size` bytes per pixel."""
        return self.buffer.size if self.channel_block else size


@dataclass(frozen=True, kw_only=True)
class BlockedLayout(TensorLayout):
    """Layout of an image each of whose pixels is a block of pixels of an image in DRAM, row by row.

    Parameters
    ----------
    image : TensorLayout
        Image in DRAM, whose pixels are contiguous.
    pixels : (int, int)
        Rows and columns of a block, in pixels of the image.
    first : (int, int)
        Row and column of the first pixel of the first block; negative if the block begins outside the image.
    step : int
        Distance between the rows of consecutive blocks.
    """

    image: TensorLayout
    pixels: tuple[int, int]
    first: tuple[int, int]
    step: int

    def parts(self, count: int) -> list[TensorLayout]:
        """Return the layouts of the images of a batch, which consists of one image."""
        assert count == 1
        return [self]

    def columns(self, start: int, count: int) -> "BlockedLayout":
        """Return the layout of `count` columns of blocks from column `start`."""
        row, column = self.first
        return replace(self, w=count, first=(row, column + start * self.pixels[1]))

    def stores(self, start: int, rows: int, channels: range, source: BufferRef) -> Iterator[Fields]:
        """Yield the fields of the STORE commands for some bytes of the pixels of some rows.

        Parameters
        ----------
        start, rows : int
            First row of blocks, and number of rows of blocks.
        channels : range
            Bytes of each block.
        source : BufferRef
            Address of these bytes in the scratchpad, where they are contiguous.
        """
        image, size = self.image, len(channels)
        line, width = self.pixels[1] * image.pixel, image.w * image.pixel
        for number in range(self.pixels[0]):
            low, high = max(channels.start, number * line), min(channels.stop, (number + 1) * line)
            top = self.first[0] + number
            begin = max(start, -(top // self.step))
            count = min(start + rows, -((top - image.h) // self.step)) - begin
            if low >= high or count <= 0:
                continue
            for column, columns, skip, length in self._runs(low - number * line, high - low, line, width):
                at = (self.first[1] * image.pixel) + column * line + low - number * line + skip
                target = image.address(begin * self.step + top, 0, at)
                offset = ((begin - start) * self.w + column) * size + low - channels.start + skip
                fields: Fields = {"dram": target, "src": source.plus(offset), "len": length}
                if columns > 1:
                    fields |= {"y_count": columns, "dram_y": line, "src_y": size}
                yield fields | {"z_count": count, "dram_z": self.step * image.row, "src_z": self.w * size}

    def _runs(self, low: int, length: int, line: int, width: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield runs of blocks of a row as (first block, number of blocks, first byte, bytes).

        `low` and `length` are the bytes of a row of a block that are stored, `line` the bytes of such a row, and
        `width` those of a row of the image. Whole rows of blocks are one run, of all bytes inside the image.
        """
        origin = self.first[1] * self.image.pixel + low
        if length == line == self.pixel:  # also of partial blocks
            begin, end = max(origin, 0), min(origin + self.w * line, width)
            if begin < end:
                yield 0, 1, begin - origin, end - begin
            return
        inside: list[int] = []
        for column in range(self.w):
            begin = origin + column * line
            skip, end = max(-begin, 0), min(length, width - begin)
            if (skip, end) == (0, length):
                inside.append(column)
            elif skip < end:
                yield column, 1, skip, end - skip
        if inside:
            yield inside[0], len(inside), 0, length


def whole(memory: BufferMemory, name: str, h: int, w: int, c: int, slack: int = 0) -> TensorLayout:
    """Return a contiguous layout in a new buffer, with `slack` readable but undefined bytes after the image."""
    return TensorLayout(CircularBuffer(memory, name, h * w * c + slack), h, w, c, c, w * c)


#: Sequencer cycles for the commands of a step.
_STEP = 50


def tile_cycles(strides: Sequence[int], config: MlaConfig, more: int = 0) -> int:
    """Return the minimum number of cycles from weight tile to weight tile of a MATRIX command that is not depthwise.

    A row of factors after each tile takes another cycle, which is not included.

    Parameters
    ----------
    strides : sequence of int
        Bytes from row to row of a tile, and those of the loops over tiles. The rows of a tile are read in pairs if
        they are adjacent, and all tiles begin at multiples of n.
    config : MlaConfig
        Configuration of the machine.
    more : int
        Number of rows of a tile after its n weight rows.
    """
    row, *tiles = strides
    single = row != config.n or any(each % config.n for each in tiles)
    least = config.n if single else config.tile_cycles
    return least + ceil_div(more * least, config.n)


def cycles(command: Command, config: MlaConfig) -> int:
    """Return the cycles of a command on the machine for which the command was generated.

    MATRIX needs at least `tile_cycles` to shift in a tile of weights. LOAD transfers a beat per cycle (n bytes to
    parameter slots and tables), STORE n bytes, and each line begins a new beat.
    """
    if command.cycles is None:
        command.cycles = _cycles(command, config)
    return command.cycles


def _cycles(command: Command, config: MlaConfig) -> int:
    n = config.n
    get = {name: value for name, value in command.fields.items() if isinstance(value, int)}.get
    if command.unit == Unit.MATRIX:
        word = get("word")
        modes = MATRIX_WORD.unpack(MATRIX_WORD.pack() if word is None else word)
        if modes["dw"]:
            return get("oc_count", 1) * get("dw_len", 1)
        tiles = prod(get(f"{dim}_count", 1) for dim in ("oc", "ic", "ky", "kx"))
        strides = [get("w_row", 0), *(get(f"w_{dim}", 0) for dim in ("oc", "ic", "ky", "kx"))]
        least = tile_cycles(strides, config, n // 4 if modes["sparse"] else 0) + modes["scaled"]
        return tiles * max(get("x_count", 1) * get("y_count", 1), least)
    if command.unit == Unit.FUSE:
        return _fuse_cycles(command, [get(f"{dim}_count", 1) for dim in FUSE_DIMS], config)
    lines, size = transfer(command)
    if command.unit == Unit.STORE:
        return lines * -(-size // n)
    modes = LOAD_WORD.unpack(get("word", 0))
    if modes["fill"]:
        return 0
    if modes["transpose"]:
        return get("z_count", 1) * max(get("y_count", 1), size)  # a column is written per cycle
    least = get("z_count", 1) if modes["packed"] else 0  # of packed weights, a group is written per cycle
    return lines * max(-(-size // (n if modes["space"] else config.beat_bytes)), least)


def transfer(command: Command) -> tuple[int, int]:
    """Return the number of lines of a LOAD or STORE command, and the number of bytes of a line in DRAM."""
    planes, lines, size = (command.fields.get(name, 1) for name in ("z_count", "y_count", "len"))
    assert isinstance(planes, int) and isinstance(lines, int) and isinstance(size, int)
    return lines if is_packed(command) else planes * lines, size


def is_packed(command: Command) -> bool:
    """Return True for a LOAD command that expands packed weights."""
    word = command.fields.get("word", 0)
    return command.unit == Unit.LOAD and isinstance(word, int) and bool(LOAD_WORD.unpack(word)["packed"])


def _fuse_cycles(command: Command, counts: list[int], config: MlaConfig) -> int:
    """Return the cycles of a FUSE command, which are limited by its reads or by its reciprocals."""
    src, stage = command.fields.get("src", 0), command.fields.get("stage", 0)
    assert isinstance(src, int)
    words = FUSE_SRC.unpack(src) | FUSE_STAGE.unpack(stage.base if isinstance(stage, BufferRef) else stage)
    reads = {"sp": 0, "acc": 0}
    reads["sp" if words["a_src"] else "acc"] += DTYPE_BYTES[words["a_dtype"]] if words["a_src"] else 1
    if words["b_src"]:
        sp = words["b_src"] == BSource.SP
        reads["sp" if sp else "acc"] += DTYPE_BYTES[words["b_dtype"]] if sp else 1
    if words["residual"]:
        reads["sp"] += DTYPE_BYTES[words["r_dtype"]]
    found = 0.0
    if words["post"] in PAIRS:
        results = prod(count for d, count in zip(FUSE_DIMS, counts, strict=True) if d in "nyx")
        found = results * config.reciprocal_cycles(root=words["post"] != Post.RECIP)
    return max(prod(counts) * max(reads.values()), ceil(found))


def unit_cycles(step: TileStep, config: MlaConfig) -> UnitCycles:
    """Return the cycles of a step by unit, excluding loads, on the machine for which the step was generated."""
    if step.unit_cycles is None:
        units = (step.matrix, step.fuse, step.stores)
        matrix, fuse, stores = (sum(cycles(command, config) for command in unit) for unit in units)
        step.unit_cycles = UnitCycles(matrix, stores, max(_STEP, matrix, fuse, stores))
    return step.unit_cycles
