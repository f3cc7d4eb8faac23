"""Results that stay in the scratchpad, made and read block by block of channels.

A convolution that makes one block of N channels after the other lets who reads them begin with the first, and one whose
sums are cut begins before the last block that it reads is there: neither waits for the other's pipeline to run dry. A
pool behind such a convolution has its share of FUSE while MATRIX makes the next block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from compiler.ir.graph import Graph
from compiler.layers.conv.input_layout import Im2colLayout, can_fold
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv.tilings import ConvTiler
from compiler.layers.depthwise import DepthwiseLayer, stream_passes, stream_pitch
from compiler.layers.pool import PoolLayer
from compiler.layers.tiling_context import CROWDED, PREFETCH, TilingContext, input_rows
from compiler.lowering.fusion_groups import ANCHORS
from compiler.lowering.lower import LoweredNetwork
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.search.layer_space import LayerSpace, Tiling
from compiler.util.tiles import ceil_div, cuts

#: Blocks of channels of a tile at most, and ways to cut a layer that are looked at.
_BLOCKS, _WAYS = 2, 3


def channel_block_tilings(space: LayerSpace) -> list[Tiling]:
    """Tilings of a convolution by blocks of channels, its sums cut and whole; those of most rows at once first."""
    layer = space.layer
    if (
        not isinstance(layer, ConvLayer)
        or layer.groups > 1
        or not (space.context.x_on_chip or space.context.y_on_chip)
    ):
        return []
    found = [t for t in space.tilings if t.schedule.order == "channels" and t.schedule.columns <= _BLOCKS]
    found.sort(key=lambda tiling: (ceil_div(layer.shapes[layer.y].h, tiling.schedule.rows), tiling.estimate))
    deep = ceil_div(layer.weights.shape[3], space.context.config.n)
    return [
        replace(tiling, schedule=replace(tiling.schedule, depth=depth))
        for tiling in found[:_WAYS]
        for depth in _depths(deep, tiling.schedule, cut=space.context.x_on_chip)
    ]


def _depths(deep: int, schedule: LayerSchedule, *, cut: bool) -> Iterator[int]:
    """Blocks of input channels that are summed up by one command."""
    whole = not cut or schedule.fold_kernel_width or schedule.im2col or deep == 1
    yield from (deep,) if whole else dict.fromkeys((ceil_div(deep, 2), deep - 1, ceil_div(deep, 4), deep))


#: Cycles of a command of FUSE beside its rows.
_COMMAND = 60
#: Cycles from the last sum of one layer until the other works on it, and back again.
_TURN = 300
#: Cycles from the last sum of a tile until its place is free again, its draining left out.
_DRAINED = 150
#: Blocks that go together, and groups of them that there is room for.
_GROUPS, _AHEAD = (1, 2), (1, 2)
#: Sums of a layer that there is room for at once, at most.
_SUMS = (2, 3, 4)
#: Strips of a depthwise convolution at most.
_STRIPS = 4
#: Bands of the image that there is room for.
_BANDS = 2


@dataclass(frozen=True)
class _Way:
    """Blocks together, planes, rows and places for sums of the convolution; rows, width and places of the other."""

    group: int
    planes: int
    rows: int
    sums: int
    its_rows: int
    width: int
    its_sums: int


def pair_refusal(lowered: LoweredNetwork, number: int) -> str:
    """Why a layer and the next one are no such pair; empty if they are."""
    first, *after = lowered.layers[number : number + 2]
    if not isinstance(first, ConvLayer) or first.groups > 1 or first.batch > 1:
        return "the first is no convolution of one group and one image"
    if not after or not isinstance(after[0], DepthwiseLayer) or after[0].x != first.y:
        return "no depthwise convolution right behind it reads its result"
    readers = sum(first.y in layer.inputs for layer in lowered.layers)
    if readers > 1 or first.y in lowered.graph.outputs:
        return "others read its result too"
    return ""


@dataclass(frozen=True)
class FusedPair:
    """A way to carry out a pair, with its estimated cycles.

    Parameters
    ----------
    estimate : float
        Cycles of both.
    first, second : LayerSchedule
        How each is carried out.
    start : float
        Cycles of the estimate until the first weights are there: fewer if LOAD is ahead of the layer before.
    """

    estimate: float
    first: LayerSchedule
    second: LayerSchedule
    start: float = 0.0


@dataclass(frozen=True)
class PooledPair:
    """A convolution and the pool that alone reads it.

    Parameters
    ----------
    first, second : LayerSpace
        Of both.
    """

    first: LayerSpace
    second: LayerSpace

    def candidates(self) -> list[FusedPair]:
        """The convolution's ways by blocks, and the pool that takes turns with it."""
        pools = [tiling for tiling in self.second.tilings if tiling.schedule.columns == 1][:1]
        return [
            FusedPair(
                way.estimate,
                replace(way.schedule, interleave=True),
                replace(pool.schedule, columns=way.schedule.columns, interleave=True),
            )
            for way in channel_block_tilings(self.first)
            for pool in pools
        ]


def pooled_pairs(lowered: LoweredNetwork, spaces: Sequence[LayerSpace]) -> dict[int, PooledPair]:
    """Pairs by the number of their first layer."""
    out = {}
    for number, (first, second) in enumerate(pairwise(spaces)):
        conv, pool = first.layer, second.layer
        if not isinstance(conv, ConvLayer) or not isinstance(pool, PoolLayer) or pool.x != conv.y:
            continue
        readers = [layer for layer in lowered.layers if conv.y in layer.inputs]
        if len(readers) == 1 and first.context.y_on_chip:
            out[number] = PooledPair(first, second)
    return out


class PlanePair:
    """A pair that may be carried out together.

    Parameters
    ----------
    first : ConvLayer
        Makes planes.
    second : DepthwiseLayer
        Reads them.
    context : Spot
        What the first one finds.
    y_on_chip : bool
        Whether the second one's result stays in the scratchpad.
    """

    def __init__(self, first: ConvLayer, second: DepthwiseLayer, context: TilingContext, y_on_chip: bool):
        self.first, self.second, self.context, self.y_on_chip = first, second, context, y_on_chip
        self.n = context.config.n
        self.t, self.y = first.shapes[first.y], second.shapes[second.y]
        self.blocks = ceil_div(self.t.c, self.n)

    def candidates(self) -> list[FusedPair]:
        """Ways that fit by estimate, best first."""
        found = [self._fused(layout, way) for layout in self._layouts() for way in self._ways()]
        return sorted((fused for fused in found if fused), key=lambda each: each.estimate)

    def _layouts(self) -> list[Im2colLayout]:
        return [
            layout
            for layout in Im2colLayout
            if layout == Im2colLayout.PIXELS or can_fold(self.first, self.context.x_on_chip, layout)
        ]

    def _ways(self) -> Iterator[_Way]:
        """All that the accumulator holds."""
        widths = sorted({ceil_div(self.y.w, strips) for strips in range(1, _STRIPS + 1)})
        for group, ahead in product(_GROUPS, _AHEAD):
            if group > self.blocks:
                continue
            for rows, sums, width, its_sums in product(cuts(self.t.h), _SUMS, widths, _SUMS):
                left = self.context.acc_rows - sums * rows * self.t.w * group
                its_rows = self._even(left // (its_sums * width * group))
                if its_rows:
                    yield _Way(
                        group,
                        group * min(ahead, ceil_div(self.blocks, group)),
                        rows,
                        sums,
                        its_rows,
                        width,
                        its_sums,
                    )

    def _even(self, most: int) -> int:
        """So many rows, or fewer, that all tiles are about as high."""
        return ceil_div(self.y.h, ceil_div(self.y.h, most)) if most > 0 else 0

    def _fused(self, layout: Im2colLayout, way: _Way) -> FusedPair | None:
        layer, n, group = self.first, self.n, way.group
        conv = ConvTiler(self.context, layer, layout, 1)
        band_bytes, band_beats = conv.image(way.rows, 1.0)
        weights = layer.weights[0].size * n * group
        its_weights = self.second.weights.shape[0] * self.second.weights.shape[1] * n * group * 2
        out = 0 if self.y_on_chip else 2 * way.its_rows * way.width * group * n
        w_buffers = min(2, ceil_div(self.blocks, group))
        left = self.context.free - way.planes * self.t.h * self.t.w * n - _BANDS * band_bytes
        if left < w_buffers * weights + its_weights + out:
            return None
        tiles, groups = ceil_div(self.t.h, way.rows), ceil_div(self.blocks, group)
        tile = way.rows * self.t.w
        array = tiles * group * conv.passes * max(tile, n)
        drain = tiles * (tile * group + _COMMAND)
        places = tiles * (array / tiles + tile * group + _DRAINED) / way.sums
        bands = tiles * (array / tiles + band_beats * self.context.beat + self.context.latency) / _BANDS
        makes = max(array, drain, places, tiles * band_beats * self.context.beat * CROWDED)
        makes = makes if self.context.x_on_chip else max(makes, bands)
        first = LayerSchedule(
            rows=way.rows,
            rows_per_load=way.rows,
            columns=group,
            depth=1 << 16,
            param_blocks=group,
            order="channels",
            x_buffers=_BANDS,
            w_buffers=w_buffers,
            acc_buffers=way.sums,
            fold_kernel_width=layout == Im2colLayout.ROWS,
            im2col=layout == Im2colLayout.STRIPS,
            prefetch=PREFETCH,
            stream_channel_blocks=way.planes,
        )
        second = LayerSchedule(
            rows=way.its_rows,
            width=way.width,
            columns=group,
            param_blocks=group,
            acc_buffers=way.its_sums,
            prefetch=PREFETCH,
            on_chip=self.y_on_chip,
        )
        # With room for more planes one layer works while the other waits.
        turns = groups if way.planes == group else 1
        # The weights of the first group come before anything can begin, those of others meanwhile.
        weighted = (weights + its_weights) / n * self.context.beat
        start = weighted + self.context.latency
        both = makes + self._reads(way)
        cycles = start + both + (groups - 1) * max(both, weighted) + tile * group + turns * _TURN
        return FusedPair(cycles, first, second, start)

    def _reads(self, way: _Way) -> float:
        """Cycles of the depthwise convolution for a group of planes."""
        layer, config = self.second, self.context.config
        pitch = stream_pitch(layer, self.t.w, self.y.w, way.width)
        passes = stream_passes(config, layer, pitch)
        strips, tiles = ceil_div(self.y.w, way.width), ceil_div(self.y.h, way.its_rows)
        keep = way.group == 1 and passes == 1
        again = 0 if keep else (layer.weights.shape[0] - 1) * (tiles - 1)
        rows = input_rows(self.y.h, layer.strides[0], layer.weights.shape[0], self.t.h) + again
        array = rows * pitch * strips * passes * way.group
        drain = strips * (self.y.h * way.width * way.group + tiles * _COMMAND)
        store = 0 if self.y_on_chip else self.y.h * self.y.w * way.group * self.context.beat
        places = (array + strips * (self.y.h * way.width * way.group + tiles * _DRAINED)) / way.its_sums
        return max(array, drain, store, places)


def streaming_pairs(lowered: LoweredNetwork, contexts: list[TilingContext]) -> dict[int, PlanePair]:
    """Pairs by the number of their first layer."""
    out = {}
    for number, (first, second) in enumerate(pairwise(lowered.layers)):
        if not pair_refusal(lowered, number):
            assert isinstance(first, ConvLayer) and isinstance(second, DepthwiseLayer)
            out[number] = PlanePair(first, second, contexts[number], contexts[number + 1].y_on_chip)
    return out


def apply(schedule: Schedule, pair: PlanePair, fused: FusedPair) -> Schedule:
    """A schedule with a pair carried out so."""
    layers = {pair.first.name: fused.first, pair.second.name: fused.second}
    kept = {
        name: replace(layer, same_program_as_previous=schedule.layers[name].same_program_as_previous)
        for name, layer in layers.items()
    }
    return replace(schedule, layers=schedule.layers | kept)


Fusions = tuple[tuple[str, ...], ...]


def movable_additions(graph: Graph, fusions: Fusions) -> list[str]:
    """Additions that another maker of their operands could carry."""
    return [name for names in fusions for name in names[1:] if _other(graph, fusions, name)]


def move_addition(graph: Graph, fusions: Fusions, addition: str) -> Fusions:
    """Fusions in which an addition, and what goes with it, is carried by the other maker; the same if there is none.

    The carrier is carried out last. Where it is the longer one, draining, and a pool behind, are hidden by its work.
    """
    other = _other(graph, fusions, addition)
    if other is None:
        return fusions
    groups = {names[0]: names for names in fusions}
    mine = next(names for names in fusions if addition in names)
    at = mine.index(addition)
    groups |= {mine[0]: mine[:at], other[0]: other + mine[at:]}
    return tuple(group for group in groups.values() if len(group) > 1)


def _other(graph: Graph, fusions: Fusions, addition: str) -> tuple[str, ...] | None:
    """The group that could carry an addition and does not."""
    node = graph.nodes.get(addition)
    if node is None or node.op != "add":
        return None
    mine = next((names for names in fusions if addition in names), ())
    heads = (_head(graph, operand, fusions) for operand in node.inputs)
    return next((head for head in heads if head and mine and head[0] != mine[0]), None)


def _head(graph: Graph, operand: str, fusions: Fusions) -> tuple[str, ...] | None:
    """The group that ends in an operand that nobody else reads, if a convolution or the like begins it."""
    maker = graph.producer(operand)
    if maker is None or len(graph.consumers(operand)) > 1 or operand in graph.outputs:
        return None
    group = next((names for names in fusions if names[-1] == maker.name), (maker.name,))
    return group if graph.nodes[group[0]].op in ANCHORS else None
