"""Choice of the layers that are co-scheduled, and their shares of the memories."""

from collections.abc import Sequence
from dataclasses import replace

from compiler.layers.elementwise import ElementwiseLayer
from compiler.layers.norm import NormLayer
from compiler.layers.pool import PoolLayer
from compiler.layers.reduce import ReduceLayer
from compiler.layers.softmax import SoftmaxLayer
from compiler.layers.tiling_context import TilingContext
from compiler.lowering.lower import LoweredNetwork

#: Layers of FUSE alone.
_FUSE = (ElementwiseLayer, NormLayer, PoolLayer, ReduceLayer, SoftmaxLayer)
#: One of fewer cycles is not worth the memory that its neighbours lose.
_SLOW = 4000
#: Number of layers before and after a layer whose steps may overlap its own.
AROUND = 2
#: Shares of the free scratchpad and of the accumulator for a layer that only uses FUSE, and for another layer.
_FUSE_ONLY_SHARE, _OTHER_SHARE = (0.3, 0.5), (0.6, 0.25)
#: Number of preceding independent layers that may run concurrently with a layer that only uses FUSE.
_MAX_PRECEDING = 3


def sharing(lowered: LoweredNetwork, cycles: Sequence[float]) -> list[int]:
    """Numbers of the layers to interleave: slow FUSE-only layers, their neighbours and layers independent of them.

    Parameters
    ----------
    lowered : LoweredNetwork
        Layers of the network or stage.
    cycles : sequence of float
        Estimated cycles of each layer.
    """
    out: set[int] = set()
    for number, layer in enumerate(lowered.layers):
        if isinstance(layer, _FUSE) and cycles[number] >= _SLOW:
            first = min(_beside(lowered, number), default=number - 1)
            out |= {*range(max(first, 0), min(number + 2, len(lowered.layers)))}
    return sorted(out)


def _beside(lowered: LoweredNetwork, number: int) -> list[int]:
    """Layers shortly before a layer on which it does not depend."""
    needed = {lowered.root(name) for name in lowered.layers[number].inputs}
    out = []
    for before in range(number - 1, max(number - 1 - _MAX_PRECEDING, -1), -1):
        layer = lowered.layers[before]
        if lowered.root(layer.y) in needed:
            needed |= {lowered.root(name) for name in layer.inputs}
        else:
            out.append(before)
    return out


def shared(
    context: TilingContext, lowered: LoweredNetwork, number: int, cycles: Sequence[float]
) -> TilingContext:
    """Tiling context of an interleaved layer; `beside` has the cycles of its neighbours that only FUSE executes."""
    layers = lowered.layers
    free, rows = _FUSE_ONLY_SHARE if isinstance(layers[number], _FUSE) else _OTHER_SHARE
    beside = sum(
        cycles[other]
        for other in (number - 1, number + 1)
        if 0 <= other < len(layers) and isinstance(layers[other], _FUSE)
    )
    return replace(
        context,
        taper=False,
        alone=False,
        free=int(context.free * free),
        acc_rows=int(context.acc_rows * rows),
        beside=beside,
    )
