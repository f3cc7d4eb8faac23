"""From the graph to layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph
from compiler.lower.conv_transpose import lower_conv_transpose
from compiler.lower.cumsum import lower_cumsum
from compiler.lower.drains import drain_of, rounding_of, weights_of, zero_of
from compiler.lower.dynamic import QUANTIZED, SCALE, ZERO, lower_dynamic
from compiler.lower.elementwise import lower_binary, lower_unary
from compiler.lower.floats import lower_dequantize, lower_quantize
from compiler.lower.groups import Group
from compiler.lower.layer import (
    ConvLayer,
    DepthwiseLayer,
    Layer,
    PoolLayer,
    SoftmaxLayer,
)
from compiler.lower.lowering import Lowering, Part, UnsupportedError, affine, clip_range, same_meaning
from compiler.lower.matmul import lower_matmul
from compiler.lower.moves import MOVES
from compiler.lower.norm import lower_norm
from compiler.lower.parts import find_parts
from compiler.lower.places import IN_PLACE
from compiler.lower.pool import inside_counts
from compiler.lower.prelu import lower_prelu
from compiler.lower.reduce import lower_global_average, lower_reduce, scaled
from compiler.lower.types import check_types
from compiler.lower.unary import BINARY, TABLES
from compiler.passes.zeros import times_over
from hw.isa.enums import Rounding

#: Most channels of a group that stands for as many depthwise convolutions.
_TOGETHER = 16

#: Least scale of a softmax: finer, and its exponentials have too few bits.
_FINEST = 2.0**-16


@dataclass
class Lowered:
    """A network of layers.

    Parameters
    ----------
    graph : Graph
        Where it came from.
    layers : list of Layer
        In an order in which they can run.
    views : dict
        Tensors that are others in another shape: name -> name of the tensor whose bytes they are.
    parts : dict
        Tensors that lie within others.
    refused : dict
        Nodes that the machine cannot do, with the reason.
    """

    graph: Graph
    layers: list[Layer] = field(default_factory=list)
    views: dict[str, str] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def root(self, name: str) -> str:
        """The tensor whose bytes a tensor is, or is a part of."""
        while name in self.views or name in self.parts:
            name = self.views[name] if name in self.views else self.parts[name].of
        return name

    def part(self, name: str) -> Part | None:
        """What part of another a tensor is, perhaps in another shape."""
        while name in self.views:
            name = self.views[name]
        return self.parts.get(name)


def lower(graph: Graph, groups: Sequence[Group], rounding: str) -> Lowered:
    """Layers of all groups; what cannot be done is in `refused`."""
    out = Lowered(graph, parts=find_parts(graph, groups))
    for nodes in groups:
        lowering = Lowering(graph, nodes, rounding)
        try:
            op = lowering.anchor.op
            if all(t.constant for node in nodes for t in graph.ins(node)):
                raise UnsupportedError("all it reads is constant")
            if op == "onnx":
                raise UnsupportedError(lowering.anchor.attributes["why"])
            for node in nodes:
                check_types(graph, node)
            out.layers += IN_PLACE[op](out, lowering) if op in IN_PLACE else [LOWERINGS[op](lowering)]
        except UnsupportedError as error:
            out.refused |= {node.name: str(error) for node in nodes}
    return out


def _conv(low: Lowering) -> Layer:
    weights, bias = weights_of(low)
    assert weights.data is not None
    a = low.anchor.attributes
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.DOUBLE))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    y = common["shapes"][common["y"]]
    macs = y.h * y.w * weights.elements // times_over(low.graph, low.x.name)
    # Where every output pixel is one of the input, images need not be told apart.
    apart = weights.shape[1:3] != (1, 1) or a["strides"] != (1, 1) or any(a["pads"])
    return ConvLayer(
        **common, macs=macs, batch=low.x.shape[0] if apart else 1, weights=weights.data, drain=drain,
        strides=a["strides"], pads=a["pads"], dilations=a["dilations"], groups=a["groups"],
        x_zp=affine(low.x).zero_point, w_zp=zero_of(weights),
    )  # fmt: skip


def _dense(low: Lowering) -> Layer:
    weights, bias = weights_of(low)
    assert weights.data is not None
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.AWAY))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    rows = common["shapes"][common["x"]]
    macs = rows.h * rows.w * weights.elements // times_over(low.graph, low.x.name)
    return ConvLayer(
        **common, macs=macs, weights=weights.data[:, None, None, :],
        drain=drain, x_zp=affine(low.x).zero_point, w_zp=zero_of(weights),
    )  # fmt: skip


def _depthwise(low: Lowering) -> Layer:
    weights, bias = weights_of(low)
    assert weights.data is not None
    a = low.anchor.attributes
    drain = drain_of(low, weights, bias, rounding_of(low, Rounding.DOUBLE))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    y = common["shapes"][common["y"]]
    common |= {
        "macs": y.h * y.w * weights.elements, "drain": drain, "strides": a["strides"], "pads": a["pads"],
        "x_zp": affine(low.x).zero_point, "batch": low.x.shape[0],
    }  # fmt: skip
    zero = zero_of(weights)
    if a["dilations"] == (1, 1) and not zero:
        return DepthwiseLayer(**common, weights=weights.data)
    data, groups = _in_groups(weights.data, zero)
    return ConvLayer(**common, weights=data, groups=groups, dilations=a["dilations"], w_zp=zero)


def _in_groups(weights: NDArray, zero: int) -> tuple[NDArray, int]:
    """Depthwise weights as those of a convolution in groups, and how many: what the depthwise stream does not take.

    A group is of several channels, each of which sees the others with weights of zero: the array sums over as many
    at a time anyway.
    """
    rows, columns, channels = weights.shape
    size = next(size for size in range(min(_TOGETHER, channels), 0, -1) if channels % size == 0)
    out = np.full((channels, rows, columns, size), zero, weights.dtype)
    for channel in range(channels):
        out[channel, :, :, channel % size] = weights[:, :, channel]
    return out, channels // size


def _pool(low: Lowering) -> Layer:
    a, average = low.anchor.attributes, low.anchor.op == "avg_pool2d"
    taps = a["kernel"][0] * a["kernel"][1]
    window = {"kernel": a["kernel"], "strides": a["strides"], "pads": a["pads"], "average": average,
              "batch": low.x.shape[0]}  # fmt: skip
    counted = a.get("count_pads", False) or not any(a["pads"])
    if average and taps > 255 and not any(a["pads"]) and a["kernel"] == low.x.shape[1:3]:
        return lower_global_average(low)
    if average and taps <= 255 and low.rounding == "onnxruntime":
        counts = {taps} if counted else inside_counts(low)
        factors = {count: scaled(low, count)["fields"] for count in counts}
        return PoolLayer(
            **low.common(), **window, clip=clip_range(low.y), x_zp=affine(low.x).zero_point, scaled=factors
        )
    if not average and same_meaning(low.x, low.y):
        limits = np.iinfo(low.y.dtype)
        return PoolLayer(**low.common(), **window, clip=(int(limits.min), int(limits.max)))
    if affine(low.x) != affine(low.y):
        raise UnsupportedError("pooling changes the quantization")
    if average and ((a["count_pads"] and any(a["pads"])) or taps > 255):
        raise UnsupportedError(f"an average over {taps} taps, padding counted or more than 255 of them")
    return PoolLayer(**low.common(), **window, clip=clip_range(low.y))


def _softmax(low: Lowering) -> Layer:
    a, x = low.anchor.attributes, low.x
    if a["axis"] != len(x.shape) - 1:
        raise UnsupportedError("softmax is along the last dimension only")
    y = affine(low.y)
    if not _FINEST <= y.scale <= 1:
        raise UnsupportedError(f"steps of a probability must be within {_FINEST:.2g}..1, not {y.scale:.3g}")
    return SoftmaxLayer(
        **low.common(), scale=a["beta"] * affine(x).scale, step=y.scale, y_zp=y.zero_point,
        clip=clip_range(low.y),
    )  # fmt: skip


#: How nodes become layers, by the operator of their anchor.
LOWERINGS: dict[str, Callable[[Lowering], Layer]] = {
    "conv2d": _conv,
    "dense": _dense,
    "depthwise_conv2d": _depthwise,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "softmax": _softmax,
    "conv_transpose2d": lower_conv_transpose,
    "matmul": lower_matmul,
    "reduce_sum": lower_reduce,
    "reduce_mean": lower_reduce,
    "reduce_max": lower_reduce,
    "reduce_min": lower_reduce,
    "cumsum": lower_cumsum,
    "layer_norm": lower_norm,
    "rms_norm": lower_norm,
    "prelu": lower_prelu,
    **dict.fromkeys((QUANTIZED, SCALE, ZERO), lower_dynamic),
    "quantize": lower_quantize,
    "dequantize": lower_dequantize,
    **dict.fromkeys(BINARY, lower_binary),
    **dict.fromkeys(TABLES, lower_unary),
    **MOVES,
}
