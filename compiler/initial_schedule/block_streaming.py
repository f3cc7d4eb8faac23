"""Block streaming: a layer starts on the first blocks of its input while the rest is being computed.

If a convolution computes its result in blocks of N channels, a depthwise convolution can start with the first block; if
a product computes rows of scores, their softmax and the product with its result can start with the first rows. The
scratchpad then holds only a few blocks of the intermediate tensors.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product

from compiler.codegen.block_streaming import row_stream_obstacle
from compiler.layers.conv.input_layout import Im2colLayout, can_fold
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv.tilings import ConvTiler
from compiler.layers.depthwise import DepthwiseLayer, stream_of
from compiler.layers.matmul import MatmulLayer
from compiler.layers.softmax import SoftmaxLayer, softmax_row_cycles
from compiler.layers.tile_pipeline import STATISTICS_BUFFERS
from compiler.layers.tiling_context import BUS_OVERHEAD, PREFETCH_STEPS, TilingContext, input_rows
from compiler.lowering.lower import LoweredNetwork
from compiler.options import DramTiming
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.util.tiles import ceil_div, cuts
from hw.config import MlaConfig
from hw.isa.enums import DTYPE_BYTES

#: Overhead cycles of a FUSE command, in addition to its rows.
_COMMAND_CYCLES = 60
#: Cycles from the last sum of one layer until the other layer processes it, for both directions together.
_SWITCH_CYCLES = 300
#: Cycles from the last sum of a tile until its accumulator slot is free again, without the epilogue itself.
_RELEASE_CYCLES = 150
#: Choices for the number of channel blocks per group, and for the number of buffered groups.
_GROUPS, _BUFFERED_GROUPS = (1, 2), (1, 2)
#: Choices for the number of accumulator buffers of a layer.
_SUMS = (2, 3, 4)
#: Maximum number of vertical strips of a depthwise convolution.
_MAX_STRIPS = 4
#: Number of buffered bands of the input image.
_BANDS = 2


@dataclass(frozen=True)
class _PairTiling:
    """Tiling of both layers of a pair.

    Parameters
    ----------
    group : int
        Number of channel blocks computed per group.
    channel_blocks : int
        Number of buffered channel blocks of the intermediate tensor.
    rows, sums : int
        Rows of a tile and number of accumulator buffers of the convolution.
    depthwise_rows, width, depthwise_sums : int
        Rows and width of a tile, and number of accumulator buffers, of the depthwise convolution.
    """

    group: int
    channel_blocks: int
    rows: int
    sums: int
    depthwise_rows: int
    width: int
    depthwise_sums: int


def streaming_obstacle(lowered: LoweredNetwork, number: int) -> str:
    """Return the reason why a layer and the next one cannot be a streaming pair; an empty string if they can."""
    first, *after = lowered.layers[number : number + 2]
    if not isinstance(first, ConvLayer) or first.groups > 1 or first.batch > 1:
        return "the first layer is not a convolution with one group and batch size 1"
    if not after or not isinstance(after[0], DepthwiseLayer) or after[0].x != first.y:
        return "the next layer is not a depthwise convolution that reads its result"
    if after[0].dilations != (1, 1) or after[0].multiplier > 1:
        return "the depthwise convolution is dilated or has several outputs per channel"
    readers = sum(first.y in layer.inputs for layer in lowered.layers)
    if readers > 1 or first.y in lowered.graph.outputs:
        return "other layers or the host read the intermediate tensor too"
    return ""


@dataclass(frozen=True)
class FusedPair:
    """Schedules of a pair of layers, with their estimated cycles.

    Parameters
    ----------
    estimate : float
        Estimated cycles of both layers.
    first, second : LayerSchedule
        Schedules of the two layers.
    start : float
        Estimated cycles until the first weights arrive, which are fewer if LOAD starts during the previous layer.
    """

    estimate: float
    first: LayerSchedule
    second: LayerSchedule
    start: float = 0.0


class ChannelBlockPair:
    """Convolution and depthwise convolution that may stream channel blocks.

    Parameters
    ----------
    first : ConvLayer
        Convolution that writes channel blocks.
    second : DepthwiseLayer
        Depthwise convolution that reads them.
    context : TilingContext
        Resources available to the first layer.
    y_on_chip : bool
        True if the result of the second layer stays in the scratchpad.
    """

    def __init__(self, first: ConvLayer, second: DepthwiseLayer, context: TilingContext, y_on_chip: bool):
        self.first, self.second, self.context, self.y_on_chip = first, second, context, y_on_chip
        self.n = context.config.n
        self.t, self.y = first.shapes[first.y], second.shapes[second.y]
        self.blocks = ceil_div(self.t.c, self.n)

    def candidates(self) -> list[FusedPair]:
        """Return the schedules that fit into memory by estimate, fastest first."""
        found = [self._fused(layout, tiling) for layout in self._layouts() for tiling in self._tilings()]
        return sorted((fused for fused in found if fused), key=lambda each: each.estimate)

    def _layouts(self) -> list[Im2colLayout]:
        return [
            layout
            for layout in Im2colLayout
            if layout != Im2colLayout.GATHERED
            and (layout == Im2colLayout.PIXELS or can_fold(self.first, self.context.x_on_chip, layout))
        ]

    def _tilings(self) -> Iterator[_PairTiling]:
        """Yield the tilings that fit the accumulator."""
        widths = sorted({ceil_div(self.y.w, strips) for strips in range(1, _MAX_STRIPS + 1)})
        for group, buffered in product(_GROUPS, _BUFFERED_GROUPS):
            if group > self.blocks:
                continue
            for rows, sums, width, depthwise_sums in product(cuts(self.t.h), _SUMS, widths, _SUMS):
                left = self.context.acc_rows - sums * rows * self.t.w * group
                depthwise_rows = self._even(left // (depthwise_sums * width * group))
                if depthwise_rows:
                    yield _PairTiling(
                        group,
                        group * min(buffered, ceil_div(self.blocks, group)),
                        rows,
                        sums,
                        depthwise_rows,
                        width,
                        depthwise_sums,
                    )

    def _even(self, most: int) -> int:
        """Return the number of rows, up to `most`, for which tiles have nearly equal heights; 0 if `most` <= 0."""
        return ceil_div(self.y.h, ceil_div(self.y.h, most)) if most > 0 else 0

    def _fused(self, layout: Im2colLayout, tiling: _PairTiling) -> FusedPair | None:
        layer, n, group = self.first, self.n, tiling.group
        conv = ConvTiler(self.context, layer, layout, 1)
        band_bytes, band_beats = conv.image(tiling.rows, 1.0, group)
        weights = len(layer.summands) * layer.weights[0].size * n * group
        depthwise_weights = len(self.second.summands) * n * group * 2
        depthwise_weights *= self.second.weights.shape[0] * self.second.weights.shape[1]
        out = 0 if self.y_on_chip else 2 * tiling.depthwise_rows * tiling.width * group * n
        w_buffers = min(2, ceil_div(self.blocks, group))
        left = self.context.free - tiling.channel_blocks * self.t.h * self.t.w * n - _BANDS * band_bytes
        if left < w_buffers * weights + depthwise_weights + out:
            return None
        tiles, groups = ceil_div(self.t.h, tiling.rows), ceil_div(self.blocks, group)
        tile = tiling.rows * self.t.w
        array = tiles * group * conv.passes * max(tile, self.context.config.tile_cycles)
        drain = tiles * (tile * group + _COMMAND_CYCLES)
        slot_cycles = tiles * (array / tiles + tile * group + _RELEASE_CYCLES) / tiling.sums
        bands = tiles * (array / tiles + band_beats * self.context.beat + self.context.latency) / _BANDS
        makes = max(array, drain, slot_cycles, tiles * band_beats * self.context.beat * BUS_OVERHEAD)
        makes = makes if self.context.x_on_chip else max(makes, bands)
        first = LayerSchedule(
            rows=tiling.rows,
            rows_per_load=tiling.rows,
            columns=group,
            depth=1 << 16,
            param_blocks=group,
            order="channels",
            x_buffers=_BANDS,
            w_buffers=w_buffers,
            acc_buffers=tiling.sums,
            fold_kernel_width=layout == Im2colLayout.ROWS,
            im2col=layout == Im2colLayout.STRIPS,
            prefetch=PREFETCH_STEPS,
            stream_channel_blocks=tiling.channel_blocks,
        )
        second = LayerSchedule(
            rows=tiling.depthwise_rows,
            width=tiling.width,
            columns=group,
            param_blocks=group,
            acc_buffers=tiling.depthwise_sums,
            prefetch=PREFETCH_STEPS,
            on_chip=self.y_on_chip,
        )
        # With buffers for more planes, one layer can run while the other waits.
        switches = groups if tiling.channel_blocks == group else 1
        # The weights of the first group must arrive before anything starts; those of others load meanwhile.
        weighted = (weights + depthwise_weights) / n * self.context.beat
        start = weighted + self.context.latency
        both = makes + self._reads(tiling)
        cycles = start + both + (groups - 1) * max(both, weighted) + tile * group + switches * _SWITCH_CYCLES
        return FusedPair(cycles, first, second, start)

    def _reads(self, tiling: _PairTiling) -> float:
        """Return the cycles of the depthwise convolution for a group of channel blocks."""
        layer, config = self.second, self.context.config
        stream = stream_of(config, layer, self.t.w, self.y.w, tiling.width)
        strips, tiles = ceil_div(self.y.w, tiling.width), ceil_div(self.y.h, tiling.depthwise_rows)
        keep = tiling.group == 1 and stream.continues
        again = 0 if keep else (layer.weights.shape[0] - 1) * (tiles - 1)
        rows = input_rows(self.y.h, layer.strides[0], layer.weights.shape[0], self.t.h) + again
        array = rows * stream.pitch * strips * stream.work * tiling.group
        drain = strips * (self.y.h * tiling.width * tiling.group + tiles * _COMMAND_CYCLES)
        store = 0 if self.y_on_chip else self.y.h * self.y.w * tiling.group * self.context.beat
        slot_cycles = (
            array + strips * (self.y.h * tiling.width * tiling.group + tiles * _RELEASE_CYCLES)
        ) / tiling.depthwise_sums
        return max(array, drain, store, slot_cycles)


def streaming_pairs(lowered: LoweredNetwork, contexts: list[TilingContext]) -> dict[int, ChannelBlockPair]:
    """Return the streaming pairs by the index of their first layer."""
    out = {}
    for number, (first, second) in enumerate(pairwise(lowered.layers)):
        if not streaming_obstacle(lowered, number):
            assert isinstance(first, ConvLayer) and isinstance(second, DepthwiseLayer)
            out[number] = ChannelBlockPair(first, second, contexts[number], contexts[number + 1].y_on_chip)
    return out


def apply(schedule: Schedule, pair: ChannelBlockPair, fused: FusedPair) -> Schedule:
    """Return a schedule in which the layer schedules of a pair are replaced."""
    layers = {pair.first.name: fused.first, pair.second.name: fused.second}
    kept = {
        name: replace(layer, same_program_as_previous=schedule.layers[name].same_program_as_previous)
        for name, layer in layers.items()
    }
    return replace(schedule, layers=schedule.layers | kept)


Fusions = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class AttentionTiling:
    """Schedules of a product, a softmax and a product that stream blocks of rows, with their estimated cycles.

    Parameters
    ----------
    cycles : float
        Estimated cycles of the three layers together.
    schedules : tuple of LayerSchedule
        Schedule of each layer.
    """

    cycles: float
    schedules: tuple[LayerSchedule, LayerSchedule, LayerSchedule]


#: Numbers of blocks of scores, and of softmax results, in the scratchpad.
_BLOCKS_IN_FLIGHT = (3, 2)
#: Cycles of a FUSE command in addition to its points, from the last sum of a product to its end, from the last point of
#: a pass to its results, and of the sequencer for a command.
_FUSE_COMMAND, _LAST_SUM, _RESULT_CYCLES, _ISSUE = 15, 150, 75, 40
#: Share of the bus cycles that is added to the estimate, so that tilings do not load operands again without a gain.
_BUS_SHARE = 0.02
#: Number of steps before the first step of a layer during which its operands may be loaded, in such streams.
_STREAM_PREFETCH = 32


def attentions(lowered: LoweredNetwork) -> list[int]:
    """Return the indices of the products whose results are streamed through a softmax to another product."""
    return [
        number
        for number in range(len(lowered.layers) - 2)
        if isinstance(lowered.layers[number], MatmulLayer)
        and not row_stream_obstacle(lowered, number)
        and not row_stream_obstacle(lowered, number + 1)
    ]


class AttentionTiler:
    """Memory use and estimated cycles of attention under tilings.

    Parameters
    ----------
    layers : (MatmulLayer, SoftmaxLayer, MatmulLayer)
        Product with the scores, softmax of them, and product with its result.
    on_chip : callable
        Returns True if a tensor, given by name, stays in the scratchpad.
    """

    def __init__(
        self,
        config: MlaConfig,
        dram: DramTiming,
        layers: tuple[MatmulLayer, SoftmaxLayer, MatmulLayer],
        on_chip: Callable[[str], bool],
    ):
        self.config, self.dram, self.on_chip = config, dram, on_chip
        self.first, self.softmax, self.second = layers
        #: Maximum rows of sums of a tile, so that all banks but one, for statistics, have room for two tiles.
        self.most = config.acc_rows // config.acc_banks // (1 if config.acc_banks > 2 else 2)
        self.batches = len(self.first.out.starts)
        self.m, self.k, self.width = self.first.size
        self.depth, self.across, self.out = (
            ceil_div(size, config.n) for size in (self.k, self.width, self.second.size[2])
        )

    def tilings(self, free: int) -> list[AttentionTiling]:
        """Return the tilings whose buffers take at most `free` bytes of the scratchpad, fastest first."""
        found = [
            tiling
            for rows in cuts(self.m)
            if rows <= self.most
            for blocks in _BLOCKS_IN_FLIGHT
            for kept in (True, False)
            for columns in cuts(self.out)
            if (tiling := self.tiling(rows, blocks, columns, kept=kept, free=free))
        ]
        return sorted(found, key=lambda each: each.cycles)

    def tiling(
        self, rows: int, blocks: int, columns: int, *, kept: bool, free: int
    ) -> AttentionTiling | None:
        """Return a tiling if it fits `free` bytes of the scratchpad and the accumulator.

        Parameters
        ----------
        rows, blocks : int
            Rows of a block, and number of blocks of scores and of results of the softmax in the scratchpad.
        columns : int
            Blocks of N columns of a tile of the second product.
        kept : bool
            True if the right operands of a matrix stay in the scratchpad for all blocks of its rows.
        """
        n = self.config.n
        if rows * columns > self.most:
            return None
        wide = _even(self.across, self.most // rows)
        # FUSE drains a tile before MATRIX has computed the next one only if no pass of the softmax takes longer.
        part = ceil_div(rows, ceil_div(self.across, wide * self.depth))
        if part * STATISTICS_BUFFERS > self.config.acc_rows // self.config.acc_banks:
            return None
        tiles, last = ceil_div(self.across, wide), ceil_div(self.out, columns)
        w_buffers = [count + 1 if kept else 2 for count in (tiles, last)]
        used = blocks * 2 * (ceil_div(rows * self.width, n) * n + n)
        used += 0 if self.on_chip(self.first.a.name) else 2 * (rows * self.k + n)
        used += 0 if self.on_chip(self.first.b.name) else w_buffers[0] * (wide * n * self.k + n)
        right = ceil_div(self.width, n) * n * min(columns * n, self.second.size[2]) + n
        used += 0 if self.on_chip(self.second.b.name) else w_buffers[1] * right
        size = DTYPE_BYTES[self.second.out.dtype]
        used += 0 if self.on_chip(self.second.y) else 2 * (rows * columns * n + n) * size
        masks, mask_bytes = self._masks(rows, wide, free - used)
        if used + masks * mask_bytes > free:
            return None
        common = LayerSchedule(rows=rows, interleave=True, prefetch=_STREAM_PREFETCH)
        schedules = (
            replace(
                common,
                columns=wide,
                depth=self.depth,
                w_buffers=w_buffers[0],
                y_buffers=max(masks, 1),
                stream_row_blocks=blocks,
            ),
            replace(common, rows=part, stream_row_blocks=blocks),
            replace(
                common,
                columns=columns,
                depth=self.across,
                w_buffers=w_buffers[1],
                on_chip=self.on_chip(self.second.y),
            ),
        )
        return AttentionTiling(self._cycles(rows, part, wide, columns, blocks, kept=kept), schedules)

    def _masks(self, rows: int, wide: int, left: int) -> tuple[int, int]:
        """Return the number of tiles of a tensor that is added to the scores, and their size, in the scratchpad.

        All tiles that the matrices share stay there if `left` bytes suffice.
        """
        mask, n = self.first.summand, self.config.n
        if mask is None or self.on_chip(mask.name):
            return 0, 0
        size = (rows if mask.pitch else 1) * min(wide * n, self.width) + n
        tiles = ceil_div(self.across, wide)
        matrices = len(set(mask.starts))
        every = tiles * (ceil_div(self.m, rows) if mask.pitch else 1) * min(matrices, 2)
        again = matrices < self.batches or not mask.pitch
        return (every if again and every * size <= left else 2 * tiles), size

    def _cycles(self, rows: int, part: int, wide: int, columns: int, blocks: int, *, kept: bool) -> float:
        """Return the estimated cycles: those of the busiest unit, and those before its start and after its end."""
        config, n, beat = self.config, self.config.n, self.dram.beat(self.config.beat_bytes)
        down = ceil_div(self.m, rows)
        count, through = (
            self.batches * down,
            self.batches * sum(max(min(rows, self.m - row), n) for row in range(0, self.m, rows)),
        )
        passes = self.softmax.passes * ceil_div(rows, part)
        tiles = ceil_div(self.across, wide) + ceil_div(self.out, columns)
        product, mixed = rows * self.across * self.depth, rows * self.across * self.out
        array = through * self.across * (self.depth + self.out)
        of_row = softmax_row_cycles(self.softmax, self.across, config) + self.across + self.out
        fuse = self.batches * self.m * of_row * config.fuse_rate
        fuse += count * (passes + tiles) * _FUSE_COMMAND
        bus = 0.0
        for stack, size, times in (
            (self.first.a, self.m * self.k, 1),
            (self.first.b, self.width * self.k, 1 if kept else down),
            (self.second.b, self.width * self.second.size[2], 1 if kept else down),
            (self.second.out, self.m * self.second.size[2] * DTYPE_BYTES[self.second.out.dtype], 1),
        ):
            bus += 0 if self.on_chip(stack.name) else self.batches * size * times / n * beat
        if self.first.summand is not None and not self.on_chip(self.first.summand.name):
            matrices = len(set(self.first.summand.starts))
            bus += matrices * (self.m if self.first.summand.pitch else 1) * self.width / n * beat
        loads = self.dram.chip_latency + (rows + wide * n) * self.k / n * beat
        first = product * wide / self.across
        softmax = rows * (self.softmax.passes + 1) * self.across * config.fuse_rate
        # The last softmax is hidden by the products of the blocks before it.
        shown = max(softmax + passes * _RESULT_CYCLES - min(count - 1, blocks - 1) * mixed, 0)
        busiest = max(array + shown, fuse + first + mixed, bus, count * (passes + 2 * tiles) * _ISSUE)
        end = rows * columns * config.fuse_rate + _LAST_SUM
        return loads + busiest + end + _BUS_SHARE * bus


def _even(total: int, most: int) -> int:
    """Return the size, up to `most`, of parts of nearly equal sizes into which `total` is divided."""
    return ceil_div(total, ceil_div(total, most))
