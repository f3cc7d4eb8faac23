"""Context for tiling a layer (machine, memory shares, tensor locations, constraints), and shared cost estimates."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from compiler.layers.base import Image, Layer
from compiler.options import DEFAULT_DRAM, DramTiming
from compiler.schedule.schedule import LayerSchedule
from compiler.util.tiles import ceil_div
from hw.config import MlaConfig


@dataclass(frozen=True)
class LayerContext:
    """Machine, tensor locations and neighboring layers of a layer, for its tile model.

    Parameters
    ----------
    config, dram : MlaConfig, DramTiming
        Configuration of the machine and timing of its DRAM.
    x_on_chip, y_on_chip : bool
        True if the input, or the output, stays in the scratchpad.
    on_chip : callable
        Returns True if a tensor, given by name, stays in the scratchpad.
    before, after : float
        Estimated cycles of the previous and the next layer; 0 if absent.
    lead : float
        Cycles before the end of the previous layer at which LOAD becomes idle.
    kind_before, kind_after : int
        Indices of the kinds of the previous and the next layer in `LAYER_KINDS`; -1 if absent.
    interleaved_before, interleaved_after : bool
        True if the schedule of the previous, or the next, layer permits interleaving.
    same_program_after : bool
        True if the next layer is part of this layer's program.
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
    interleaved_before: bool = False
    interleaved_after: bool = False
    same_program_after: bool = False

    @property
    def beat(self) -> float:
        """Bus cycles for N bytes.

        A bus of 2N bytes is assumed to need a beat for them, too, as for lines of at most N bytes; schedules that count
        half a beat for them take more cycles (docs/machine.md).
        """
        return self.dram.beat(self.config.beat_bytes)

    @property
    def line_beats(self) -> float:
        """Minimum bus beats per line of a load, because the number of bursts in flight is limited."""
        return self.dram.chip_latency / (_BURSTS * self.beat)


#: Number of bursts that LOAD may have in flight (`hw/bus/axi_outstanding.py`).
_BURSTS = 510
#: Steps by which weights are prefetched if memory permits; practically unlimited.
PREFETCH_STEPS = 256
#: Cycles of the sequencer for the commands of a tile.
TILE_CYCLES = 60
#: Ratio of actual bus cycles to beats, due to read/write turnarounds, short lines and full buffers.
BUS_OVERHEAD = 1.15
#: Maximum number of accumulator buffers; more buffers give no further speedup.
MAX_SUM_BUFFERS = 4

#: Maximum number of strip widths that are tried.
_MAX_STRIP_WIDTHS = 12

#: Cycles of units and semaphores from the end of a load to the use of the tile and its release.
_TILE_LATENCY = 60
#: Cycles of units and semaphores until a buffer that FUSE has read or written can be used again; chosen above the
#: measured 100 cycles, because a tile that is slightly too small waits in every round.
_FILL = 110

#: Cycles that a further tile is worth if it does not delay the units, so that large layers do not consist of thousands
#: of commands, which take long to compile.
_TILE_COST = 4

#: Pairs of estimated cycles and the corresponding schedule.
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
        True if the input, or the output, stays in the scratchpad.
    on_chip : callable
        Returns True if a tensor, given by name, stays in the scratchpad.
    neighbour_cycles : float
        Cycles of the neighboring layers that are interleaved with this one; the share of one tile cannot be hidden.
    split_last_tile : bool
        True if the next layer waits for the last tile of this layer, which is therefore drained in parts.
    alone : bool
        True if the layer is not interleaved with other layers.
    first : bool
        True if no layer precedes this one.
    consecutive : bool
        True if the layer consists of several convolutions, two of which use the accumulator at the same time.
    dram : DramTiming
        Timing of the DRAM.
    """

    config: MlaConfig
    free: int
    acc_rows: int
    x_on_chip: bool
    y_on_chip: bool
    on_chip: Callable[[str], bool]
    neighbour_cycles: float = 0
    split_last_tile: bool = False
    alone: bool = True
    first: bool = False
    consecutive: bool = False
    dram: DramTiming = DEFAULT_DRAM

    @property
    def beat(self) -> float:
        """Bus cycles for N bytes.

        A bus of 2N bytes is assumed to need a beat for them, too, as for lines of at most N bytes; schedules that count
        half a beat for them take more cycles (docs/machine.md).
        """
        return self.dram.beat(self.config.beat_bytes)

    @property
    def latency(self) -> float:
        """Latency of loading a tile, in cycles, excluding the transfer of its bytes."""
        return self.dram.chip_latency + _TILE_LATENCY


def stream_cycles(
    context: TilingContext,
    tiles: float,
    load: float,
    fuse: float,
    store: float,
    x_buffers: int,
    y_buffers: int = 2,
) -> float:
    """Return the estimated cycles of a layer whose tiles only pass LOAD, FUSE and STORE.

    Each tile takes as long as the bus or FUSE is busy with it, or as the round trip through the buffers takes.

    Parameters
    ----------
    context : TilingContext
        Timing of the memory.
    tiles : float
        Number of tiles; the last one may be incomplete.
    load, store : float
        Bus beats of a tile; 0 for tensors on chip.
    fuse : float
        Cycles of FUSE for a tile.
    x_buffers, y_buffers : int
        Number of buffers for operands and for results.
    """
    load, store = load * context.beat, store * context.beat
    fuse *= context.config.fuse_rate
    begin = load + context.latency if load else 0.0
    end = store + _TILE_LATENCY if store else 0.0
    each = max(load + store, fuse, TILE_CYCLES)
    if load:
        each = max(each, (begin + fuse + _FILL) / x_buffers)
    if store:
        each = max(each, (fuse + end + _FILL) / y_buffers)
    return begin + fuse + end + max(tiles - 1, 0.0) * each + tiles * _TILE_COST


def input_rows(rows: int, stride: int, reach: int, height: int) -> int:
    """Return the number of image rows that `rows` output rows depend on."""
    return min(height, (rows - 1) * stride + reach)


def images(layer: Layer) -> tuple[Image, Image]:
    """Return the shapes of one image of the input and of the output of a layer."""
    x, y = layer.shapes[layer.x], layer.shapes[layer.y]
    if layer.batch == 1:
        return x, y
    return replace(x, h=x.h // layer.batch), replace(y, h=y.h // layer.batch)


def strip_images(x: Image, y: Image, width: int, stride: int, reach: int) -> tuple[int, Image, Image]:
    """Return the number of strips of `width` output columns, and the shapes of a strip of input and output.

    Parameters
    ----------
    x, y : Image
        Shapes of one image of the input and of the output.
    width : int
        Maximum number of output columns of a strip.
    stride : int
        Distance between the windows, in input columns.
    reach : int
        Number of input columns that a window covers.
    """
    if width >= y.w:
        return 1, x, y
    return ceil_div(y.w, width), replace(x, w=(width - 1) * stride + reach), replace(y, w=width)


def strip_widths(width: int, most: int, n: int) -> list[int]:
    """Return candidate widths, up to `most`, of strips of an image of `width` columns; largest first.

    Wide strips are multiples of `n`, so that they begin at the start of a bus beat.
    """
    found: list[int] = []
    size = min(most, width - 1)
    while size > 0 and len(found) < _MAX_STRIP_WIDTHS:
        even = ceil_div(width, ceil_div(width, size))
        if even >= n:
            even = min(ceil_div(even, n) * n, size // n * n)
        if even not in found:
            found.append(even)
        size = min(size * 2 // 3, even - 1)
    return found


def param_blocks_per_buffer(config: MlaConfig, blocks: int, columns: int) -> int:
    """Return the number of parameter blocks per buffer: all if a quarter of the slots suffices, or those of a tile."""
    return blocks if blocks <= config.param_slots // 4 else columns


def sum_buffers(context: TilingContext, sums: int) -> int:
    """Return the number of accumulator buffers for tiles of sums: two, or as many as fit half of the accumulator.

    A tile is drained about a hundred cycles after it is complete, so two buffers do not suffice for small tiles.
    """
    return max(2, min(MAX_SUM_BUFFERS, context.acc_rows // 2 // sums))
