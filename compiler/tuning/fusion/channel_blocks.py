"""Results that stay in the scratchpad, made and read block by block of channels.

A convolution that makes one block of N channels after the other lets who reads them begin with the first, and one whose
sums are cut begins before the last block that it reads is there: neither waits for the other's pipeline to run dry. A
pool behind such a convolution has its share of FUSE while MATRIX makes the next block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from compiler.layers.conv.layer import ConvLayer
from compiler.layers.pool import PoolLayer
from compiler.lowering.lower import LoweredNetwork
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.fusion.channel_streaming import FusedPair
from compiler.tuning.space.layer_space import LayerSpace, Tiling
from compiler.util.tiles import ceil_div

#: Blocks of channels of a tile at most, and ways to cut a layer that are looked at.
_BLOCKS, _WAYS = 2, 3


def by_blocks(space: LayerSpace) -> list[Tiling]:
    """Tilings of a convolution by blocks of channels, its sums cut and whole; those of most rows at once first."""
    layer = space.layer
    if (
        not isinstance(layer, ConvLayer)
        or layer.groups > 1
        or not (space.spot.x_on_chip or space.spot.y_on_chip)
    ):
        return []
    found = [t for t in space.tilings if t.schedule.order == "channels" and t.schedule.columns <= _BLOCKS]
    found.sort(key=lambda tiling: (ceil_div(layer.shapes[layer.y].h, tiling.schedule.rows), tiling.estimate))
    deep = ceil_div(layer.weights.shape[3], space.spot.config.n)
    return [
        replace(tiling, schedule=replace(tiling.schedule, depth=depth))
        for tiling in found[:_WAYS]
        for depth in _depths(deep, tiling.schedule, cut=space.spot.x_on_chip)
    ]


def _depths(deep: int, schedule: LayerSchedule, *, cut: bool) -> Iterator[int]:
    """Blocks of input channels that are summed up by one command."""
    whole = not cut or schedule.fold_kernel_width or schedule.im2col or deep == 1
    yield from (deep,) if whole else dict.fromkeys((ceil_div(deep, 2), deep - 1, ceil_div(deep, 4), deep))


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
            for way in by_blocks(self.first)
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
        if len(readers) == 1 and first.spot.y_on_chip:
            out[number] = PooledPair(first, second)
    return out
