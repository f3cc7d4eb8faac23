"""Channel-block streaming: a layer starts on the first channel blocks of its input while the rest is being computed.

If a convolution computes its result in blocks of N channels, a depthwise convolution can start with the first block,
and the scratchpad holds only a few blocks of the intermediate tensor.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product

from compiler.layers.conv.input_layout import Im2colLayout, can_fold
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv.tilings import ConvTiler
from compiler.layers.depthwise import DepthwiseLayer, stream_of
from compiler.layers.tiling_context import BUS_OVERHEAD, PREFETCH_STEPS, TilingContext, input_rows
from compiler.lowering.lower import LoweredNetwork
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.util.tiles import ceil_div, cuts

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
        weights = layer.weights[0].size * n * group
        depthwise_weights = self.second.weights.shape[0] * self.second.weights.shape[1] * n * group * 2
        out = 0 if self.y_on_chip else 2 * tiling.depthwise_rows * tiling.width * group * n
        w_buffers = min(2, ceil_div(self.blocks, group))
        left = self.context.free - tiling.channel_blocks * self.t.h * self.t.w * n - _BANDS * band_bytes
        if left < w_buffers * weights + depthwise_weights + out:
            return None
        tiles, groups = ceil_div(self.t.h, tiling.rows), ceil_div(self.blocks, group)
        tile = tiling.rows * self.t.w
        array = tiles * group * conv.passes * max(tile, n)
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
