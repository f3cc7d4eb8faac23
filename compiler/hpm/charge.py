"""Which layers' cycles the counters tell apart.

While FUSE works on a layer of its own, the next layer's MATRIX command may be waiting already, and the cycles may
count for either of the two: only their sum is sure.
"""

from collections.abc import Mapping, Sequence

from compiler.lower.conv_transpose import ConvTransposeLayer
from compiler.lower.layer import ConvLayer, DepthwiseLayer, Layer
from compiler.lower.matmul import MatmulLayer

_MATRIX = (ConvLayer, DepthwiseLayer, ConvTransposeLayer, MatmulLayer)


def charged_together(layers: Sequence[Layer]) -> list[tuple[str, ...]]:
    """Names of layers, those whose cycles only their sum says together: ones without MATRIX, and the next one with."""
    out: list[tuple[str, ...]] = []
    waiting: list[str] = []
    for layer in layers:
        waiting.append(layer.name)
        if isinstance(layer, _MATRIX):
            out.append(tuple(waiting))
            waiting = []
    return out + [(name,) for name in waiting]


def shared_out(
    layers: Sequence[Layer], cycles: Mapping[str, float], expected: Mapping[str, float]
) -> dict[str, float]:
    """Cycles of layers that were counted together, shared out as they were expected."""
    out = {}
    for names in charged_together(layers):
        total, of_all = (sum(each[name] for name in names) for each in (cycles, expected))
        out |= {name: total * expected[name] / of_all for name in names}
    return out
