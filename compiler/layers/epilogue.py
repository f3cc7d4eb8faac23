"""The epilogue of a layer that sums: requantization parameters, FUSE, STORE."""

from abc import ABC, abstractmethod
from collections.abc import Hashable

from compiler.commands.commands import (
    BufferMemory,
    BufferRef,
    CircularBuffer,
    Command,
    TensorLayout,
    TileStep,
)
from compiler.commands.tile_buffers import BufferRotation, CodegenContext, TileBuffers
from compiler.layers.base import Drain, Residual
from compiler.util.scaling import bias_image, bytes_word, param_image
from compiler.util.tiles import ceil_div
from hw.errors import InputError
from hw.isa.commands import FUSE_DIMS, FUSE_SRC, FUSE_STAGE
from hw.isa.enums import DTYPE_BYTES, BSource, Dtype, Op, Requant, Space, Unit


def parameters(context: CodegenContext, name: str, drain: Drain, columns: int) -> "Parameters":
    """Parameter buffers of a layer as its schedule selects them, for tiles of `columns` blocks of channels.

    Raises
    ------
    InputError
        The multiplier is to go with the command, but the channels have several.
    """
    return (Biases if context.schedule.common_scale else Slots)(context, name, drain, columns)


class Parameters(ABC):
    """Parameter buffers of a layer, loaded in groups of `param_blocks` channel blocks, a multiple of a tile's.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts that code is generated for.
    name : str
        Name of the layer, the prefix of its buffers.
    drain : Drain
        Biases, multipliers and exponents of all channels.
    columns : int
        Blocks of channels of a tile.

    Raises
    ------
    InputError
        The schedule's group size is not possible.
    """

    def __init__(self, context: CodegenContext, name: str, drain: Drain, columns: int):
        self.context, self.n = context, context.config.n
        self.blocks = ceil_div(len(drain.bias), self.n)
        self.size = min(max(context.schedule.param_blocks // columns, 1) * columns, self.blocks)
        depth = min(context.schedule.param_buffers, ceil_div(self.blocks, self.size))
        self.tiles = TileBuffers(self._make(name, drain, depth), self._load)

    def _place(self, block: int, step: TileStep, pitch: int) -> BufferRef:
        """Address of the parameters of the tile that starts with a block; `pitch` is the distance between blocks."""
        first = block // self.size * self.size
        return self.tiles.get(first, step).plus((block - first) * pitch)

    @abstractmethod
    def fields(self, block: int, step: TileStep) -> dict[str, int | BufferRef]:
        """Fields of FUSE for a tile that begins with this block."""

    @abstractmethod
    def _make(self, name: str, drain: Drain, depth: int) -> CircularBuffer:
        """Add the parameters as constants in DRAM and return a ring for `depth` groups of blocks."""

    @abstractmethod
    def _load(self, key: Hashable, place: BufferRef) -> list[Command]:
        """Load a group of blocks."""


class Slots(Parameters):
    """Bias, multiplier and exponent of each channel in parameter slots."""

    def _make(self, name: str, drain: Drain, depth: int) -> CircularBuffer:
        self.source = FUSE_SRC.pack(requant=Requant.SLOT, rounding=drain.rounding, bias_en=1)
        self.image = self.context.constant(
            f"{name}.parameters", param_image(self.n, drain.bias, drain.mult, drain.exponent)
        )
        return CircularBuffer(BufferMemory.SLOT, f"{name}.slots", self.size, depth)

    def get(self, block: int, step: TileStep) -> BufferRef:
        """First slot of a tile that begins with this block."""
        return self._place(block, step, 1)

    def fields(self, block: int, step: TileStep) -> dict[str, int | BufferRef]:
        """Fields of FUSE for a tile that begins with this block."""
        return {"src": self.source, "p_base": self.get(block, step), "p_n": 1}

    def _load(self, key: Hashable, place: BufferRef) -> list[Command]:
        assert isinstance(key, int)
        block, slot = 9 * self.n, 16 * self.n
        return [
            self.context.command(
                Unit.LOAD,
                word=Space.PARAM,
                dram=BufferRef(self.image, 0, key * block),
                dst=BufferRef(place.ring, place.index, place.offset, slot),
                len=block,
                y_count=min(self.size, self.blocks - key),
                dram_y=block,
                dst_y=slot,
            )
        ]


class Biases(Parameters):
    """Biases in the scratchpad, added as int32 numbers; the common multiplier is part of the command."""

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
        """Fields of FUSE for a tile that begins with this block."""
        return {"b_base": self._place(block, step, self.block), "b_n": self.block, **self.same}

    def _load(self, key: Hashable, place: BufferRef) -> list[Command]:
        assert isinstance(key, int)
        length = min(self.size, self.blocks - key) * self.block
        return [
            self.context.command(
                Unit.LOAD, dram=BufferRef(self.image, 0, key * self.block), dst=place, len=length
            )
        ]


class Epilogue:
    """Drains tiles of an image from the accumulator.

    Parameters
    ----------
    context : CodegenContext
        Machine, schedule and tensor layouts that code is generated for.
    name : str
        Name of the layer, the prefix of its buffers.
    drain : Drain
        Requantization parameters, table and addition.
    y : list of TensorLayout
        Layouts of the output image, or of the images of a batch.
    rows, columns : int
        Image rows and channel blocks of a full tile.
    channel : int
        First channel of y that is written.
    column : int
        First column within the whole image, if y is a part of its columns.
    """

    def __init__(
        self,
        context: CodegenContext,
        name: str,
        drain: Drain,
        y: list[TensorLayout],
        rows: int,
        columns: int,
        channel: int = 0,
        column: int = 0,
    ):
        self.context, self.drain, self.images = context, drain, y
        self.channel, self.column = channel, column
        self.turn_to(0)
        self.n = context.config.n
        self.channels = len(drain.bias)
        self.bytes = DTYPE_BYTES[drain.dtype]
        size = (rows * self.y.w * min(columns * self.n, self.channels) + self.n) * self.bytes
        buffers = context.schedule.y_buffers
        self.out = BufferRotation(BufferMemory.SP, f"{name}.y", size, buffers)
        self.table = None if drain.table is None else context.tables(name, drain.table)
        self.other = TileBuffers(
            CircularBuffer(BufferMemory.SP, f"{name}.r", size, buffers), self._load_other
        )

    def turn_to(self, number: int) -> None:
        """Drain this image of a batch from now on."""
        self.number, self.y = number, self.images[number]

    def add(
        self,
        step: TileStep,
        acc: BufferRef,
        parameters: dict[str, int | BufferRef],
        start: int,
        rows: int,
        block: int,
        blocks: int,
    ) -> None:
        """Let a step drain output rows `start` on and `blocks` blocks of channels from `block` on."""
        lanes = min(blocks * self.n, self.channels - block * self.n)
        first, width = (self.channel + block * self.n) * self.bytes, lanes * self.bytes
        pixels = rows * self.y.w
        place, pixel = (
            (self.y.at(start, 0, first), self.y.pixel) if self.y.on_chip else (self.out.next(), width)
        )
        fields: dict[str, int | BufferRef] = {
            "stage": self._stage(step),
            "a_base": acc,
            "a_n": pixels,
            **self._walk(rows),
            "n_count": blocks,
            **parameters,
            "d_base": place,
            "d_x": pixel,
            "d_y": self.y.row if self.y.on_chip else self.y.w * pixel,
            "d_n": self.y.block(self.n * self.bytes),
            "lanes_tail": (lanes - 1) % self.n + 1,
            "zp": self.drain.zp,
            "clip_lo": self.drain.clip[0],
            "clip_hi": self.drain.clip[1],
        }
        fields |= self._residual(step, start, pixels, first, width)
        step.fuse.append(self.context.command(Unit.FUSE, **fields))
        if not self.y.on_chip:
            step.stores.append(
                self.context.command(
                    Unit.STORE,
                    dram=self.y.at(start, 0, first),
                    src=place,
                    **self._store(rows, width),
                )
            )

    def _stage(self, step: TileStep) -> int | BufferRef:
        parts = {"d_dst": 1, "d_dtype": self.drain.dtype, "tail_dim": FUSE_DIMS.index("n")}
        if self.drain.residual:
            parts |= self.drain.residual.stage | {"residual": 1, "r_dtype": self.drain.dtype}
        return self.table.word(step, **parts, table=1) if self.table else FUSE_STAGE.pack(**parts)

    def _walk(self, rows: int) -> dict[str, int]:
        """Walk over the pixels of a tile; rows are a separate dimension if there are gaps between them."""
        if self.y.even:
            return {"x_count": rows * self.y.w, "a_v": 1}
        return {"x_count": self.y.w, "y_count": rows, "a_u": self.y.w, "a_v": 1, "u_y": 1, "v_x": 1}

    def _store(self, rows: int, width: int) -> dict[str, int]:
        if self.y.even:
            return _lines(self.y, rows * self.y.w, width, "src_y")
        return {
            "len": width,
            "y_count": self.y.w,
            "dram_y": self.y.pixel,
            "src_y": width,
            "z_count": rows,
            "dram_z": self.y.row,
            "src_z": self.y.w * width,
        }

    def _residual(
        self, step: TileStep, start: int, pixels: int, first: int, width: int
    ) -> dict[str, int | BufferRef]:
        residual = self.drain.residual
        if residual is None:
            return {}
        home = self._summand(residual)
        if home.on_chip:
            place, pixel, row = home.at(start, 0, first), home.pixel, home.row
        else:
            place = self.other.get((self.number, start, pixels, first, width), step)
            pixel, row = width, self.y.w * width
        rows = {} if self.y.even else {"r_y": row}
        return {"r_base": place, "r_x": pixel, "r_n": self.n, **rows, **residual.fields}

    def _summand(self, residual: Residual) -> TensorLayout:
        """Layout of the second operand of the addition, for this image."""
        home = self.context.homes[residual.tensor].parts(len(self.images))[self.number]
        return home if self.y.even else home.columns(self.column, self.y.w)

    def _load_other(self, key: Hashable, place: BufferRef) -> list[Command]:
        _, start, pixels, first, width = key  # type: ignore[misc]
        residual = self.drain.residual
        assert residual is not None
        home = self._summand(residual)
        if self.y.even:
            lines = _lines(home, pixels, width, "dst_y")
        else:
            lines = {
                "len": width,
                "y_count": home.w,
                "dram_y": home.pixel,
                "dst_y": width,
                "z_count": pixels // home.w,
                "dram_z": home.row,
                "dst_z": home.w * width,
            }
        return [self.context.command(Unit.LOAD, dram=home.at(start, 0, first), dst=place, **lines)]


def _lines(home: TensorLayout, pixels: int, width: int, pitch: str) -> dict[str, int]:
    """Transfer of `width` channels of pixels that follow one another, packed in the scratchpad."""
    if width == home.pixel:
        return {"len": pixels * width}
    return {"len": width, "y_count": pixels, "dram_y": home.pixel, pitch: width}
