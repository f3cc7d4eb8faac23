"""What the tilings of all layers are chosen by."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from compiler.layers.base import Image, Layer
from compiler.options import USUAL, DramTiming
from compiler.schedule.schedule import LayerSchedule
from hw.config import MlaConfig
from hw.errors import InputError

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
    """What a layer finds: the machine, free bytes and rows of the accumulator, where its tensors are.

    `beside` are the cycles of neighbours that take turns with it: those of one tile are not hidden. With `taper` what
    follows waits for its last tile. `alone`: it takes no turns with others. `first`: there is no layer before it.
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
    dram: DramTiming = USUAL

    @property
    def beat(self) -> float:
        """Cycles that the bus takes for N bytes."""
        return self.dram.beat(self.config.n)

    @property
    def latency(self) -> float:
        """Cycles of a tile's way in beside those of its bytes."""
        return self.dram.latency + _WAY


def input_rows(rows: int, stride: int, reach: int, height: int) -> int:
    """Image rows that output rows need."""
    return min(height, (rows - 1) * stride + reach)


def images(layer: Layer) -> tuple[Image, Image]:
    """One image of what a layer reads, and of what it makes."""
    x, y = layer.shapes[layer.x], layer.shapes[layer.y]
    if layer.batch == 1:
        return x, y
    return replace(x, h=x.h // layer.batch), replace(y, h=y.h // layer.batch)


def slots_together(config: MlaConfig, blocks: int, columns: int) -> int:
    """All parameters at once if a quarter of the slots holds them, else two tiles in turn."""
    return blocks if blocks <= config.param_slots // 4 else columns


def sums_together(spot: TilingContext, sums: int) -> int:
    """Tiles of sums there is room for at once: two, or as many more as half of the accumulator holds.

    A tile is drained a hundred cycles after it is complete: small ones would come too fast for two places.
    """
    return max(2, min(MOST_SUMS, spot.acc_rows // 2 // sums))


def check_row(spot: "TilingContext", layer: Layer, elements: int, held: int) -> None:
    """Refuse rows that need more of the accumulator than there is, as they cannot be cut.

    Raises
    ------
    InputError
        They do.
    """
    if held > spot.acc_rows:
        raise InputError(
            f"layer {layer.name!r}: {layer.ops[0]} of {elements} elements holds {held} rows of the accumulator, "
            f"which has {spot.acc_rows}"
        )
