"""What FUSE needs to make the integers of each output channel, and how it gets there."""

from collections.abc import Hashable

from compiler.codegen.build import Context, Tiles
from compiler.codegen.command import Command, Memory, Ref, Ring, Step
from compiler.kernels.scaling import bias_image, bytes_word, param_image
from compiler.kernels.tiles import ceil_div
from compiler.lower.layer import Drain
from hw.errors import InputError
from hw.isa.commands import FUSE_SRC
from hw.isa.enums import BSource, Dtype, Op, Requant, Space, Unit

_I32 = 4


def parameters(context: Context, name: str, drain: Drain, columns: int) -> "Slots | Biases":
    """Parameters of a layer as its schedule wants them, for tiles of `columns` blocks of channels.

    Raises
    ------
    InputError
        The multiplier is to go with the command, but the channels have several.
    """
    return (Biases if context.schedule.common_scale else Slots)(context, name, drain, columns)


class Slots:
    """Parameter slots of a layer: `schedule.slots` blocks of channels are brought in together.

    Parameters
    ----------
    context : Context
        Where for.
    name : str
        Of the layer.
    drain : Drain
        The parameters.
    columns : int
        Blocks of channels of a tile.
    """

    def __init__(self, context: Context, name: str, drain: Drain, columns: int):
        self.context, n = context, context.config.n
        self.source = FUSE_SRC.pack(requant=Requant.SLOT, rounding=drain.rounding, bias_en=1)
        image = param_image(n, drain.bias, drain.mult, drain.exponent)
        self.block = 9 * n
        self.blocks = image.size // self.block
        self.size = _together(context, columns, self.blocks)
        self.image = context.constant(f"{name}.parameters", image)
        depth = min(context.schedule.slot_buffers, ceil_div(self.blocks, self.size))
        self.tiles = Tiles(Ring(Memory.SLOT, f"{name}.slots", self.size, depth), self._load)

    def get(self, block: int, step: Step) -> Ref:
        """First slot of a tile that begins with this block."""
        first = block // self.size * self.size
        return self.tiles.get(first, step).plus(block - first)

    def fields(self, block: int, step: Step) -> dict[str, int | Ref]:
        """Fields of FUSE for a tile that begins with this block."""
        return {"src": self.source, "p_base": self.get(block, step), "p_n": 1}

    def _load(self, key: Hashable, place: Ref) -> list[Command]:
        assert isinstance(key, int)
        n = self.context.config.n
        return [
            self.context.command(
                Unit.LOAD, word=Space.PARAM, dram=Ref(self.image, 0, key * self.block),
                dst=Ref(place.ring, place.index, place.offset, 16 * n), len=self.block,
                y_count=min(self.size, self.blocks - key), dram_y=self.block, dst_y=16 * n,
            )
        ]  # fmt: skip


class Biases:
    """Biases of a layer in the scratchpad, added as int32 numbers; the channels' one multiplier goes with the command.

    Parameters
    ----------
    context : Context
        Where for.
    name : str
        Of the layer.
    drain : Drain
        The parameters.
    columns : int
        Blocks of channels of a tile.

    Raises
    ------
    InputError
        The channels have several multipliers.
    """

    def __init__(self, context: Context, name: str, drain: Drain, columns: int):
        if not drain.common_scale:
            raise InputError(
                f"schedule: layer {name!r}: common_scale needs one multiplier for all channels; it has several"
            )
        self.context, n = context, context.config.n
        self.block = _I32 * n
        self.blocks = ceil_div(len(drain.bias), n)
        self.size = _together(context, columns, self.blocks)
        self.scale = {"mult": int(drain.mult[0]), "shifts": bytes_word(int(drain.exponent[0]))}
        self.source = FUSE_SRC.pack(
            requant=Requant.IMM, rounding=drain.rounding, op=Op.ADD, b_src=BSource.SP, b_dtype=Dtype.I32
        )
        self.image = context.constant(f"{name}.biases", bias_image(n, drain.bias))
        depth = min(context.schedule.slot_buffers, ceil_div(self.blocks, self.size))
        self.tiles = Tiles(Ring(Memory.SP, f"{name}.biases", self.size * self.block, depth), self._load)

    def fields(self, block: int, step: Step) -> dict[str, int | Ref]:
        """Fields of FUSE for a tile that begins with this block."""
        first = block // self.size * self.size
        place = self.tiles.get(first, step).plus((block - first) * self.block)
        return {"src": self.source, "b_base": place, "b_n": self.block, **self.scale}

    def _load(self, key: Hashable, place: Ref) -> list[Command]:
        assert isinstance(key, int)
        length = min(self.size, self.blocks - key) * self.block
        return [
            self.context.command(Unit.LOAD, dram=Ref(self.image, 0, key * self.block), dst=place, len=length)
        ]


def _together(context: Context, columns: int, blocks: int) -> int:
    """Blocks of channels whose parameters are brought in together: whole tiles."""
    return min(max(context.schedule.slots // columns, 1) * columns, blocks)
