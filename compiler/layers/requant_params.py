"""Requantization parameters of each output channel, and how they reach FUSE: in slots, or as inline biases."""

from abc import ABC, abstractmethod
from collections.abc import Hashable

from compiler.commands.commands import BufferMemory, BufferRef, CircularBuffer, Command, TileStep
from compiler.commands.tile_buffers import CodegenContext, TileBuffers
from compiler.layers.base import Drain
from compiler.util.scaling import bias_image, bytes_word, param_image
from compiler.util.tiles import ceil_div
from hw.errors import InputError
from hw.isa.commands import FUSE_SRC
from hw.isa.enums import DTYPE_BYTES, BSource, Dtype, Op, Requant, Space, Unit


def parameters(context: CodegenContext, name: str, drain: Drain, columns: int) -> "Parameters":
    """Parameters of a layer as its schedule wants them, for tiles of `columns` blocks of channels.

    Raises
    ------
    InputError
        The multiplier is to go with the command, but the channels have several.
    """
    return (Biases if context.schedule.common_scale else Slots)(context, name, drain, columns)


class Parameters(ABC):
    """Parameters of a layer: `schedule.slots` blocks of channels are brought in together, whole tiles of them.

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
        The schedule cannot load them that way.
    """

    def __init__(self, context: CodegenContext, name: str, drain: Drain, columns: int):
        self.context, self.n = context, context.config.n
        self.blocks = ceil_div(len(drain.bias), self.n)
        self.size = min(max(context.schedule.param_blocks // columns, 1) * columns, self.blocks)
        depth = min(context.schedule.param_buffers, ceil_div(self.blocks, self.size))
        self.tiles = TileBuffers(self._make(name, drain, depth), self._load)

    def _place(self, block: int, step: TileStep, pitch: int) -> BufferRef:
        """Address of the parameters of the tile that begins with a block; blocks are `pitch` apart."""
        first = block // self.size * self.size
        return self.tiles.get(first, step).plus((block - first) * pitch)

    @abstractmethod
    def fields(self, block: int, step: TileStep) -> dict[str, int | BufferRef]:
        """Fields of FUSE for a tile that begins with this block."""

    @abstractmethod
    def _make(self, name: str, drain: Drain, depth: int) -> CircularBuffer:
        """Put what is brought in into DRAM; the ring for `depth` groups of blocks of it."""

    @abstractmethod
    def _load(self, key: Hashable, place: BufferRef) -> list[Command]:
        """Bring a group of blocks in."""


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
    """Biases in the scratchpad, added as int32 numbers; the channels' one multiplier goes with the command."""

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
