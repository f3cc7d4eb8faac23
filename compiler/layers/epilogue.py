"""Epilogue of a layer that computes sums: requantization parameters, FUSE and STORE commands."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from compiler.commands.commands import (
    BlockedLayout,
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
    SharedRows,
    TileBuffers,
    image_lines,
    row_groups,
)
from compiler.layers.base import Addend, Drain
from compiler.util.scaling import bias_image, bytes_word, param_image
from compiler.util.tiles import ceil_div
from hw.errors import InputError
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, BSource, Dtype, Op, Requant, Space, Unit


def parameters(context: CodegenContext, name: str, drain: Drain, columns: int) -> "Parameters":
    """Return the parameter buffers that a layer's schedule selects, for tiles of `columns` channel blocks.

    Raises
    ------
    InputError
        The schedule requires a common multiplier, but the channels have different ones.
    """
    return (Biases if context.schedule.common_scale else Slots)(context, name, drain, columns)


class Parameters(ABC):
    """Buffers for a layer's parameters, which are loaded in groups of channel blocks; a group covers one or more tiles.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    name : str
        Name of the layer, the prefix of its buffers.
    drain : Drain
        Biases, multipliers and exponents of all channels.
    columns : int
        Number of channel blocks of a tile.

    Raises
    ------
    InputError
        The schedule requires a common multiplier, but the channels have different ones.
    """

    def __init__(self, context: CodegenContext, name: str, drain: Drain, columns: int):
        self.context, self.n = context, context.config.n
        self.blocks = ceil_div(len(drain.bias), self.n)
        self.size = min(max(context.schedule.param_blocks // columns, 1) * columns, self.blocks)
        depth = min(context.schedule.param_buffers, ceil_div(self.blocks, self.size))
        self.tiles = TileBuffers(self._make(name, drain, depth), self._load)

    def _address(self, block: int, step: TileStep, pitch: int) -> BufferRef:
        """Return the address of the parameters of channel block `block`; blocks are `pitch` apart."""
        first = block // self.size * self.size
        return self.tiles.get(first, step).plus((block - first) * pitch)

    @abstractmethod
    def fields(self, block: int, step: TileStep) -> dict[str, int | BufferRef]:
        """Return the FUSE fields that select a tile's parameters; `block` is the tile's first channel block."""

    @abstractmethod
    def _make(self, name: str, drain: Drain, depth: int) -> CircularBuffer:
        """Add the parameters as constants in DRAM and return a buffer for `depth` groups of blocks."""

    @abstractmethod
    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        """Return the commands that load the group of channel blocks that begins with block `key`."""


class Slots(Parameters):
    """Parameter slots with the bias, multiplier and exponent of each channel."""

    def _make(self, name: str, drain: Drain, depth: int) -> CircularBuffer:
        self.source = FUSE_SRC.pack(requant=Requant.SLOT, rounding=drain.rounding, bias_en=1)
        image = param_image(self.n, drain.bias, drain.mult, drain.exponent, drain.negative)
        self.image, self.block = self.context.constant(f"{name}.parameters", image), image.size // self.blocks
        return CircularBuffer(BufferMemory.SLOT, f"{name}.slots", self.size, depth)

    def get(self, block: int, step: TileStep) -> BufferRef:
        """Return the address of a tile's first slot; `block` is the tile's first channel block."""
        return self._address(block, step, 1)

    def fields(self, block: int, step: TileStep) -> dict[str, int | BufferRef]:
        """Return the FUSE fields that select a tile's parameters; `block` is the tile's first channel block."""
        return {"src": self.source, "p_base": self.get(block, step), "p_n": 1}

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        assert isinstance(key, int)
        block, slot = self.block, 16 * self.n
        return [
            self.context.command(
                Unit.LOAD,
                word=Space.PARAM,
                dram=BufferRef(self.image, 0, key * block),
                dst=BufferRef(address.buffer, address.index, address.offset, slot),
                len=block,
                y_count=min(self.size, self.blocks - key),
                dram_y=block,
                dst_y=slot,
            )
        ]


class Biases(Parameters):
    """Biases in the scratchpad, added as int32 values; the common multiplier is part of the command."""

    def _make(self, name: str, drain: Drain, depth: int) -> CircularBuffer:
        if not drain.common_scale:
            raise InputError(
                f"schedule: layer {name!r}: common_scale needs one multiplier for all channels; it has several"
            )
        self.block = DTYPE_BYTES[Dtype.I32] * self.n
        self.same = {
            "src": FUSE_SRC.pack(
                requant=Requant.IMM, rounding=drain.rounding, op=Op.ADD, b_src=BSource.SP, b_dtype=Dtype.I32
            ),
            "mult": int(drain.mult[0]),
            "shifts": bytes_word(int(drain.exponent[0])),
        }
        self.image = self.context.constant(f"{name}.biases", bias_image(self.n, drain.bias))
        return CircularBuffer(BufferMemory.SP, f"{name}.biases", self.size * self.block, depth)

    def fields(self, block: int, step: TileStep) -> dict[str, int | BufferRef]:
        """Return the FUSE fields that select a tile's parameters; `block` is the tile's first channel block."""
        return {"b_base": self._address(block, step, self.block), "b_n": self.block, **self.same}

    def _load(self, key: Hashable, address: BufferRef) -> list[Command]:
        assert isinstance(key, int)
        length = min(self.size, self.blocks - key) * self.block
        return [
            self.context.command(
                Unit.LOAD, dram=BufferRef(self.image, 0, key * self.block), dst=address, len=length
            )
        ]


class StoredTile(NamedTuple):
    """Results that one STORE writes: output rows and channel blocks, given by the first one and their number."""

    start: int
    rows: int
    block: int
    blocks: int


class Epilogue:
    """Code generator that drains tiles of an image from the accumulator.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts for which code is generated.
    name : str
        Name of the layer, the prefix of its buffers.
    drain : Drain
        Requantization parameters, lookup table and residual addition.
    y : list of TensorLayout
        Layouts of the output image, or of the images of a batch.
    rows, columns : int
        Image rows and channel blocks of a full tile.
    channel : int
        First channel of y that is written.
    width : int or None
        Image columns of a full tile; None: all columns.
    block_channels : int or None
        Channels of a block, at most N; None: N.
    summands : list of TensorLayout or None
        Layouts of the images of the second summand; None: those of the batch.
    """

    #: True if the rows of a tile are a separate dimension even if all pixels are contiguous.
    rows_apart = False

    def __init__(
        self,
        context: CodegenContext,
        name: str,
        drain: Drain,
        y: list[TensorLayout],
        rows: int,
        columns: int,
        channel: int = 0,
        width: int | None = None,
        block_channels: int | None = None,
        summands: list[TensorLayout] | None = None,
    ):
        self.context, self.drain, self.images, self.channel = context, drain, y, channel
        if summands is None and drain.residual is not None:
            summands = context.layouts[drain.residual.tensor].parts(len(y))
        self.summands = summands or []
        self.select(0, 0, y[0].w if width is None else width)
        #: Channels of a block, which are the lanes of FUSE that are in use.
        self.lanes = block_channels or context.config.n
        self.channels = len(drain.bias)
        self.bytes = DTYPE_BYTES[drain.dtype]
        size = rows * self.y.w * min(columns * self.lanes, self.channels) + context.config.n
        buffers = context.schedule.y_buffers
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size * self.bytes, buffers)
        #: Results that are stored together and are not complete, and their address.
        self.stored: tuple[StoredTile, BufferRef] | None = None
        self.table = None if drain.table is None else context.tables(name, drain.table)
        #: Bytes of an element of the second summand.
        self.other_bytes = DTYPE_BYTES[Dtype.I32] if self._adds_sums else self.bytes
        self.other = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.r", size * self.other_bytes, buffers), self._load_other
        )

    @property
    def _adds_sums(self) -> bool:
        """True if an int32 tensor is added to the sums before requantization."""
        return isinstance(self.drain.residual, Addend)

    def select(self, number: int, column: int, width: int) -> None:
        """Select the image of the batch, and the `width` columns from `column`, that are drained next."""
        self.number, self.column = number, column
        self.y = self.images[number].columns(column, width)

    def add(
        self,
        step: TileStep,
        acc: BufferRef,
        parameters: dict[str, int | BufferRef],
        start: int,
        rows: int,
        block: int,
        blocks: int,
        shared: SharedRows | None = None,
        of_shared: Sequence[dict[str, int | BufferRef]] = (),
        stored: StoredTile | None = None,
    ) -> None:
        """Add to a step the drain of `rows` output rows from `start`, for `blocks` channel blocks from `block`.

        Parameters
        ----------
        parameters : dict
            Fields that select the parameters of the first block.
        shared : SharedRows or None
            Blocks with channels of several rows in place of the last block: their sums follow those of the other
            blocks, group by group.
        of_shared : sequence of dict
            Fields that select the parameters of each of these blocks.
        stored : StoredTile or None
            Results that are stored together when the last ones of them are drained; None: those that are drained.
        """
        whole = stored or StoredTile(start, rows, block, blocks)
        lanes = min(blocks * self.lanes, self.channels - block * self.lanes)
        first, width = self._bytes_of(whole)
        pixels = rows * self.y.w
        if self.y.on_chip:
            own = (self.channel + block * self.lanes) * self.bytes
            base, pixel = self.y.address(start, 0, own), self.y.pixel
            address = base
        else:
            base, pixel = self._target(stored), width
            address = base.plus(_offset(whole, start, block, self.y.w * width, self.lanes * self.bytes))
        fields: dict[str, int | BufferRef] = {
            "stage": self._stage(step),
            "a_base": acc,
            "a_n": pixels,
            **self._walk(rows),
            "n_count": blocks,
            **parameters,
            "d_base": address,
            "d_x": pixel,
            "d_y": self.y.row if self.y.on_chip else self.y.w * pixel,
            "d_n": self.y.block(self.lanes * self.bytes),
            "lanes": self.lanes,
            "lanes_tail": (lanes - 1) % self.lanes + 1,
            "zp": self.drain.zp,
            "clip_lo": self.drain.clip[0],
            "clip_hi": self.drain.clip[1],
        }
        apart = self.rows_apart or shared is not None or not self.y.even
        fields |= self._residual(step, start, block, whole, apart=apart)
        commands = self._parts(fields, start, rows)
        if shared:
            commands = self._shared_rows(fields, rows, blocks - 1, shared, of_shared)
        step.fuse += [self.context.command(Unit.FUSE, **each) for each in commands]
        if not self.y.on_chip and self._completes(whole, start + rows, block + blocks):
            self.stored = None
            step.stores += [
                self.context.command(Unit.STORE, **each)
                for each in self._stored(base, whole.start, whole.rows, first, width)
            ]

    def _bytes_of(self, tile: StoredTile) -> tuple[int, int]:
        """Return the first byte of each pixel of a tile, and the number of bytes."""
        lanes = min(tile.blocks * self.lanes, self.channels - tile.block * self.lanes)
        return (self.channel + tile.block * self.lanes) * self.bytes, lanes * self.bytes

    def _completes(self, tile: StoredTile, row: int, block: int) -> bool:
        """Return True if all results of a tile are drained with those up to a row and a block."""
        return (row, block) == (tile.start + tile.rows, tile.block + tile.blocks)

    def _target(self, stored: StoredTile | None) -> BufferRef:
        """Return the address of the results of a tile: a new one, unless some of its results are there."""
        if stored is not None and self.stored is not None and self.stored[0] == stored:
            return self.stored[1]
        address = self.out.next()
        self.stored = None if stored is None else (stored, address)
        return address

    def _stored(
        self, address: BufferRef, start: int, rows: int, first: int, width: int
    ) -> Iterable[dict[str, int | BufferRef]]:
        """Return the fields of the STOREs of `width` bytes, from byte `first` on, of the pixels of some rows."""
        if isinstance(self.y, BlockedLayout):
            return self.y.stores(start, rows, range(first, first + width), address)
        lines = image_lines(self.y, rows, width, "src", width)
        return [{"dram": self.y.address(start, 0, first), "src": address, **lines}]

    def _parts(
        self, fields: dict[str, int | BufferRef], start: int, rows: int
    ) -> Iterable[dict[str, int | BufferRef]]:
        """Return the fields of the commands that drain `rows` output rows from `start`: all pixels at once."""
        return [fields]

    def _shared_rows(
        self,
        fields: dict[str, int | BufferRef],
        rows: int,
        whole: int,
        shared: SharedRows,
        of_shared: Sequence[dict[str, int | BufferRef]],
    ) -> Iterator[dict[str, int | BufferRef]]:
        """Yield the fields of the commands that drain `whole` blocks, and blocks with channels of several rows.

        FUSE writes the first lanes of a sum, up to those of a row's channels. The lanes before these overwrite bytes
        before the channels in the scratchpad: of whole blocks, which are therefore drained last, or, without whole
        blocks, of pixels to the left and of rows above. Rows are therefore drained from the last to the first one,
        pixels from right to left, and the channels in the first lanes of a block after the others of their row. If
        whole blocks follow and no pixels of other tiles, one command writes all lanes for each row. Elements have one
        byte, and no sums are added (`compiler/layers/conv/input_layout.py`).
        """
        width, streams = self.y.w, ("d",) if self.drain.residual is None else ("d", "r")
        for first, groups, size in row_groups(rows, shared.rows):
            blocks = shared.blocks_of(size)
            at_once = whole > 0 and len(shared.blocks) == 1 and not self.y.on_chip
            drained = [(number, segment) for number, block in enumerate(blocks) for segment in block.segments]
            drained.sort(key=lambda each: (each[1].row, each[1].lane), reverse=True)
            for number, (row, channel, lane, own) in drained[-1:] if at_once else drained:
                lanes, across, column = lane + own, -1, width - 1
                if at_once:
                    lanes, across, column = size * own, 1, 0
                at = (first // shared.rows * len(shared.blocks) + number) * width + column
                same = {name: 0 for name in ("p_n", "b_n") if name in of_shared[number]}
                made = fields | of_shared[number] | same
                made |= {
                    "a_base": _moved(fields, "a", n=whole).plus(at),
                    "a_n": 0,
                    "a_u": len(shared.blocks) * width,
                    "a_v": across,
                    "x_count": width,
                    "y_count": groups,
                    "u_y": 1,
                    "v_x": 1,
                    "n_count": size if at_once else 1,
                    "lanes": lanes,
                    "lanes_tail": lanes,
                }
                for stream in streams:
                    line = _distance(fields, stream, "y")
                    start = _moved(fields, stream, n=whole, y=first + row, x=column)
                    made[f"{stream}_base"] = start.plus(channel - lane)
                    made[f"{stream}_x"] = across * _distance(fields, stream, "x")
                    made[f"{stream}_y"] = size * line
                    made[f"{stream}_n"] = line - own
                yield made
        if whole:
            yield fields | {"n_count": whole, "lanes_tail": self.lanes}

    def _stage(self, step: TileStep) -> int | BufferRef:
        parts = {"d_dst": 1, "d_dtype": self.drain.dtype, "tail_dim": FUSE_DIMS.index("n")}
        if self.drain.residual and not self._adds_sums:
            parts |= self.drain.residual.stage | {"residual": 1, "r_dtype": self.drain.dtype}
        return self.table.word(step, **parts, table=1) if self.table else FUSE_STAGE.pack(**parts)

    def _walk(self, rows: int) -> dict[str, int]:
        """Return the walk over a tile's pixels as fields; rows are a separate dimension if they are not contiguous."""
        if self.y.even:
            return {"x_count": rows * self.y.w, "a_v": 1}
        return {"x_count": self.y.w, "y_count": rows, "a_u": self.y.w, "a_v": 1, "u_y": 1, "v_x": 1}

    def _residual(
        self, step: TileStep, start: int, block: int, whole: StoredTile, *, apart: bool
    ) -> dict[str, int | BufferRef]:
        """Return the fields that read the second summand from row `start` and from a block of channels on.

        The summand of all results of `whole` is loaded at once. `apart` is True if rows are a separate dimension.
        """
        residual = self.drain.residual
        if residual is None:
            return {}
        first, width = (each // self.bytes * self.other_bytes for each in self._bytes_of(whole))
        pitch, layout = self.lanes * self.other_bytes, self._summand()
        if layout.on_chip:
            address = layout.address(start, 0, first + (block - whole.block) * pitch)
            pixel, row = layout.pixel, layout.row
        else:
            pixel, row = width, self.y.w * width
            key = (self.number, self.column, whole.start, whole.rows * self.y.w, first, width)
            address = self.other.get(key, step).plus(_offset(whole, start, block, row, pitch))
        stream = "b" if self._adds_sums else "r"
        rows = {f"{stream}_y": row} if apart else {}
        walk = {
            f"{stream}_base": address,
            f"{stream}_x": pixel,
            f"{stream}_n": pitch,
        }
        return {**walk, **rows, **residual.fields}

    def _summand(self) -> TensorLayout:
        """Return the layout of the second operand of the residual addition, for the selected image."""
        return self.summands[self.number].columns(self.column, self.y.w)

    def _load_other(self, key: Hashable, address: BufferRef) -> list[Command]:
        *_, start, pixels, first, width = key  # type: ignore[misc]
        layout = self._summand()
        lines = image_lines(layout, pixels // layout.w, width, "dst", width)
        return [self.context.command(Unit.LOAD, dram=layout.address(start, 0, first), dst=address, **lines)]


def _offset(whole: StoredTile, start: int, block: int, row: int, pitch: int) -> int:
    """Return the distance of a row and a block from the first ones of a tile, given the distances of adjacent ones."""
    return (start - whole.start) * row + (block - whole.block) * pitch


def _distance(fields: dict[str, int | BufferRef], stream: str, dimension: str) -> int:
    """Return the distance between two elements of a stream along a dimension."""
    found = fields.get(f"{stream}_{dimension}", 0)
    assert isinstance(found, int)
    return found


def _moved(fields: dict[str, int | BufferRef], stream: str, **steps: int) -> BufferRef:
    """Return the first address of a stream, moved by a number of steps along each dimension."""
    base = fields[f"{stream}_base"]
    assert isinstance(base, BufferRef)
    return base.plus(sum(count * _distance(fields, stream, name) for name, count in steps.items()))
