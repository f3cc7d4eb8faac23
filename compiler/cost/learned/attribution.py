"""Attribution of measured cycles to layers that the counters cannot distinguish.

While FUSE works on a layer of its own, the next layer's MATRIX command may be waiting already, and the cycles may
count for either of the two: only their sum is sure.
"""

from collections.abc import Mapping, Sequence

from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv_transpose import ConvTransposeLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.matmul import MatmulLayer

_MATRIX = (ConvLayer, DepthwiseLayer, ConvTransposeLayer, MatmulLayer)


def attribution_groups(layers: Sequence[Layer]) -> list[tuple[str, ...]]:
    """Names of layers, grouped where only the sum of cycles is known: layers without MATRIX, and the next one with."""
    out: list[tuple[str, ...]] = []
    waiting: list[str] = []
    for layer in layers:
        waiting.append(layer.name)
        if isinstance(layer, _MATRIX):
            out.append(tuple(waiting))
            waiting = []
    return out + [(name,) for name in waiting]


def apportion(
    layers: Sequence[Layer], cycles: Mapping[str, float], expected: Mapping[str, float]
) -> dict[str, float]:
    """Measured cycles of layers that were counted together, distributed in proportion to their expected cycles."""
    out = {}
    for names in attribution_groups(layers):
        total, of_all = (sum(each[name] for name in names) for each in (cycles, expected))
        out |= {name: total * expected[name] / of_all for name in names}
    return out
