"""What a layer is tiled for: machine, memory shares, tensor locations, constraints."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from compiler.layers.base import Image, Layer
from compiler.options import DEFAULT_DRAM, DramTiming
from compiler.schedule.schedule import LayerSchedule
from hw.config import MlaConfig
from hw.errors import InputError


@dataclass(frozen=True)
class LayerContext:
    """Surroundings of a layer.

    Parameters
    ----------
    config, dram : MlaConfig, Dram
        The machine and its memory.
    x_on_chip, y_on_chip : bool
        Its input, its output stay in the scratchpad.
    on_chip : callable
        The same of any tensor by name.
    before, after : float
        Estimated cycles of the layers before and behind it; 0: there is none.
    lead : float
        So many cycles before the end of the layer before it LOAD is free.
    kind_before, kind_after : int
        Numbers of the kinds of the layers before and behind it; -1: there is none.
    turns_before, turns_after : bool
        The schedules of the layers before and behind it let their steps take turns with others.
    joined_after : bool
        The layer behind it is part of its program.
    """

    config: MlaConfig
    dram: DramTiming
    x_on_chip: bool
    y_on_chip: bool
    on_chip: Callable[[str], bool]
    before: float = 0.0
    after: float = 0.0
    lead: float = 0.0
    kind_before: int = -1
    kind_after: int = -1
    turns_before: bool = False
    turns_after: bool = False
    joined_after: bool = False

    @property
    def beat(self) -> float:
        """Cycles that the bus takes for N bytes."""
        return self.dram.beat(self.config.n)


#: Steps that weights are brought in ahead, if memory allows: as good as any number.
PREFETCH = 256
#: Cycles the sequencer takes for the commands of a tile.
TILE = 60
#: What the bus takes more than its beats: reads and writes, short lines and waits for room come between.
CROWDED = 1.15
#: Tiles of sums that are worth having room for.
MOST_SUMS = 4

#: Cycles of units and semaphores until a tile that is brought in is in use, and left again.
_WAY = 60

#: Estimated cycles and what they are for.
Tilings = Iterator[tuple[float, LayerSchedule]]


@dataclass(frozen=True)
class TilingContext:
    """Resources available to a layer, from which its tilings are chosen.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the target machine.
    free : int
        Free bytes of the scratchpad.
    acc_rows : int
        Free rows of the accumulator.
    x_on_chip, y_on_chip : bool
        The input, the output stays in the scratchpad.
    on_chip : callable
        Returns for any tensor, by name, if it stays in the scratchpad.
    beside : float
        Cycles of the neighbours that are interleaved with the layer: those of one tile are not hidden.
    taper : bool
        The following layer waits for the last tile of this one.
    alone : bool
        The layer is not interleaved with others.
    first : bool
        There is no layer before this one.
    dram : DramTiming
        Timing of the memory.
    """

    config: MlaConfig
    free: int
    acc_rows: int
    x_on_chip: bool
    y_on_chip: bool
    on_chip: Callable[[str], bool]
    beside: float = 0
    taper: bool = False
    alone: bool = True
    first: bool = False
    dram: DramTiming = DEFAULT_DRAM

    @property
    def beat(self) -> float:
        """Bus cycles for N bytes."""
        return self.dram.beat(self.config.n)

    @property
    def latency(self) -> float:
        """Cycles to bring a tile in, without those of its bytes."""
        return self.dram.latency + _WAY


def input_rows(rows: int, stride: int, reach: int, height: int) -> int:
    """Number of image rows that `rows` output rows depend on."""
    return min(height, (rows - 1) * stride + reach)


def images(layer: Layer) -> tuple[Image, Image]:
    """Shapes of one image of the input and of the output of a layer."""
    x, y = layer.shapes[layer.x], layer.shapes[layer.y]
    if layer.batch == 1:
        return x, y
    return replace(x, h=x.h // layer.batch), replace(y, h=y.h // layer.batch)


def slots_together(config: MlaConfig, blocks: int, columns: int) -> int:
    """All parameters at once if a quarter of the slots holds them, else two tiles in turn."""
    return blocks if blocks <= config.param_slots // 4 else columns


def sums_together(context: TilingContext, sums: int) -> int:
    """Tiles of sums there is room for at once: two, or as many more as half of the accumulator holds.

    A tile is drained a hundred cycles after it is complete: small ones would come too fast for two places.
    """
    return max(2, min(MOST_SUMS, context.acc_rows // 2 // sums))


def check_row(context: "TilingContext", layer: Layer, elements: int, held: int) -> None:
    """Refuse rows that need more of the accumulator than there is, as they cannot be cut.

    Raises
    ------
    InputError
        They do.
    """
    if held > context.acc_rows:
        raise InputError(
            f"layer {layer.name!r}: {layer.ops[0]} of {elements} elements holds {held} rows of the accumulator, "
            f"which has {context.acc_rows}"
        )
