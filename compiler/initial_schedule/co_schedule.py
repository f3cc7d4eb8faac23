"""Selection of the layers whose steps are interleaved, and their shares of the memories."""

from collections.abc import Sequence
from dataclasses import replace

from compiler.layers.elementwise import ElementwiseLayer
from compiler.layers.norm import NormLayer
from compiler.layers.pool import PoolLayer
from compiler.layers.reduce import ReduceLayer
from compiler.layers.softmax import SoftmaxLayer
from compiler.layers.tiling_context import TilingContext
from compiler.lowering.lower import LoweredNetwork

#: Layer classes that use only FUSE.
_FUSE = (ElementwiseLayer, NormLayer, PoolLayer, ReduceLayer, SoftmaxLayer)
#: Minimum cycles of a FUSE-only layer at which interleaving outweighs the memory that its neighbors lose.
_MIN_FUSE_CYCLES = 4000
#: Maximum number of layers before and after a layer whose steps may overlap those of the layer.
MAX_OVERLAPPED_LAYERS = 2
#: Shares of the free scratchpad and of the accumulator for a layer that uses only FUSE, and for other layers.
_FUSE_ONLY_SHARE, _OTHER_SHARE = (0.3, 0.5), (0.6, 0.25)
#: Number of preceding independent layers that may run concurrently with a layer that uses only FUSE.
_MAX_PRECEDING = 3


def co_scheduled(lowered: LoweredNetwork, cycles: Sequence[float]) -> list[int]:
    """Return the indices of the layers to interleave: slow FUSE-only layers, their neighbors and independent layers.

    Parameters
    ----------
    lowered : LoweredNetwork
        Layers of the network or stage.
    cycles : sequence of float
        Estimated cycles of each layer.
    """
    out: set[int] = set()
    for number, layer in enumerate(lowered.layers):
        if isinstance(layer, _FUSE) and cycles[number] >= _MIN_FUSE_CYCLES:
            first = min(_independent_before(lowered, number), default=number - 1)
            together = range(max(first, 0), min(number + 2, len(lowered.layers)))
            out |= set(together) if len(together) > 1 else set()
    return sorted(out)


def _independent_before(lowered: LoweredNetwork, number: int) -> list[int]:
    """Return the indices of the layers shortly before layer `number` on which layer `number` does not depend."""
    needed = {lowered.root(name) for name in lowered.layers[number].inputs}
    out = []
    for before in range(number - 1, max(number - 1 - _MAX_PRECEDING, -1), -1):
        layer = lowered.layers[before]
        if lowered.root(layer.y) in needed:
            needed |= {lowered.root(name) for name in layer.inputs}
        else:
            out.append(before)
    return out


def memory_share(
    context: TilingContext, lowered: LoweredNetwork, number: int, cycles: Sequence[float]
) -> TilingContext:
    """Return the tiling context of an interleaved layer: its memory share and the cycles of FUSE-only neighbors."""
    layers = lowered.layers
    free, rows = _FUSE_ONLY_SHARE if isinstance(layers[number], _FUSE) else _OTHER_SHARE
    neighbour_cycles = sum(
        cycles[other]
        for other in (number - 1, number + 1)
        if 0 <= other < len(layers) and isinstance(layers[other], _FUSE)
    )
    return replace(
        context,
        split_last_tile=False,
        alone=False,
        free=int(context.free * free),
        acc_rows=int(context.acc_rows * rows),
        neighbour_cycles=neighbour_cycles,
    )
