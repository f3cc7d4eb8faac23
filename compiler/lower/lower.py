"""From the graph to layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Tensor
from compiler.kernels.add import LEFT_SHIFT, raw_fields, residual_fields
from compiler.kernels.scaling import Affine, float32_multiplier, float32_ratio, quantize_multiplier
from compiler.lower.elementwise import lower_binary, lower_unary
from compiler.lower.groups import Group
from compiler.lower.layer import (
    ConvLayer,
    DepthwiseLayer,
    Drain,
    Layer,
    PoolLayer,
    Residual,
    SoftmaxLayer,
)
from compiler.lower.lowering import DTYPES, Lowering, Part, UnsupportedError, affine, clip_range
from compiler.lower.moves import MOVES
from compiler.lower.parts import find_parts
from compiler.lower.places import IN_PLACE
from compiler.lower.unary import BINARY, UNARY, table_of
from hw.isa.enums import Rounding

#: Whose rounding: LiteRT's reference kernels, its default ones (XNNPACK), onnxruntime.
ROUNDINGS = ("reference", "xnnpack", "onnxruntime")


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
            if lowering.anchor.op in IN_PLACE:
                out.layers += IN_PLACE[lowering.anchor.op](out, lowering)
            elif nodes[0].op in _LOWERINGS:
                out.layers.append(_LOWERINGS[nodes[0].op](lowering))
            else:
                raise UnsupportedError(f"no way to do {nodes[0].op} on the accelerator")
        except UnsupportedError as error:
            out.refused |= {node.name: str(error) for node in nodes}
    return out


def _rounding(low: Lowering, reference: Rounding) -> Rounding:
    """Of sums of products (docs/numerics.md): float32's in XNNPACK, an operator's own in the reference kernels."""
    return reference if low.rounding == "reference" else Rounding.EVEN


def _drain(low: Lowering, weights: Tensor, bias: Tensor | None, rounding: Rounding) -> Drain:
    """Parameters of an anchor and of the nodes behind it."""
    graph, rest = low.graph, list(low.nodes[1:])
    out = graph.out(low.anchor)
    clip = clip_range(out)
    table = None
    if rest and rest[0].op == "clip" and same_meaning(out, graph.out(rest[0])):
        out, clip = _clip(graph, rest.pop(0), out, clip)
    scaled = out
    if rest and rest[0].op != "add":
        table = table_of(graph, rest[0], low.rounding)
        out = graph.out(rest.pop(0))
    channels = weights.shape[-1] if low.anchor.op == "depthwise_conv2d" else weights.shape[0]
    q, x, y = weights.quantization, affine(low.x), affine(scaled)
    if q is None:
        raise UnsupportedError(f"weights {weights.name!r} are not quantized")
    scales = np.broadcast_to(np.array(q.scale, np.float64), channels)
    pairs = np.array([_multiplier(x.scale, float(scale), y.scale, rounding) for scale in scales], np.int64)
    values = np.zeros(channels, np.int64)
    if bias is not None:
        assert bias.data is not None
        values = bias.data.astype(np.int64)
    residual = None
    if rest:
        residual = _residual(low, rest, out)
    return Drain(
        bias=values, mult=pairs[:, 0], exponent=pairs[:, 1], zp=y.zero_point, clip=clip, rounding=rounding,
        dtype=DTYPES[out.dtype], residual=residual, table=table,
    )  # fmt: skip


def _multiplier(x: float, weight: float, y: float, rounding: Rounding) -> tuple[int, int]:
    """Multiplier and exponent of x * weight / y, in the precision that goes with the rounding."""
    if rounding == Rounding.EVEN:
        return float32_multiplier(float32_ratio(x, weight, y))
    return quantize_multiplier(x * weight / y)


def same_meaning(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same type and quantization."""
    return a.dtype == b.dtype and affine(a) == affine(b)


def _clip(graph: Graph, node: Node, before: Tensor, clip: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """A clip node folded into the range of what it follows."""
    after = graph.out(node)
    if affine(after) != affine(before) or after.dtype != before.dtype:
        raise UnsupportedError(f"clip {node.name!r} changes the quantization")
    low, high = clip_range(after, node.attributes["low"], node.attributes["high"])
    return after, (max(low, clip[0]), min(high, clip[1]))


def _residual(low: Lowering, rest: list[Node], before: Tensor) -> Residual:
    graph, add = low.graph, rest.pop(0)
    a, b = graph.ins(add)
    other = b if a.name == before.name else a
    out = graph.out(add)
    clip = clip_range(out)
    if rest:
        out, clip = _clip(graph, rest.pop(0), out, clip)
    raw = low.rounding != "reference"
    fields = (raw_fields if raw else residual_fields)(affine(before), affine(other), affine(out))
    stage = {"r_raw": int(raw), "r_ls": 0 if raw else LEFT_SHIFT}
    return Residual(other.name, stage, {**cast(dict[str, int], fields), "r_lo": clip[0], "r_hi": clip[1]})


def _weights(low: Lowering) -> tuple[Tensor, Tensor | None]:
    _, weights, *bias = low.graph.ins(low.anchor)
    if weights.data is None or (bias and bias[0].data is None):
        raise UnsupportedError("weights and bias must be constants")
    if weights.dtype not in ("int8", "uint8") or low.x.dtype not in ("int8", "uint8"):
        raise UnsupportedError(f"products of {low.x.dtype} and {weights.dtype} are not for the array")
    return weights, bias[0] if bias else None


def _conv(low: Lowering) -> Layer:
    weights, bias = _weights(low)
    assert weights.data is not None
    a = low.anchor.attributes
    drain = _drain(low, weights, bias, _rounding(low, Rounding.DOUBLE))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    y = common["shapes"][common["y"]]
    macs = y.h * y.w * weights.elements
    return ConvLayer(
        **common, macs=macs, weights=weights.data, drain=drain, strides=a["strides"], pads=a["pads"],
        dilations=a["dilations"], groups=a["groups"], x_zp=affine(low.x).zero_point, w_zp=_zero(weights),
    )  # fmt: skip


def _zero(weights: Tensor) -> int:
    assert weights.quantization is not None
    zeros = set(weights.quantization.zero_point)
    if len(zeros) != 1:
        raise UnsupportedError("weights have zero points that differ from channel to channel")
    return zeros.pop()


def _dense(low: Lowering) -> Layer:
    weights, bias = _weights(low)
    assert weights.data is not None
    drain = _drain(low, weights, bias, _rounding(low, Rounding.AWAY))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    rows = common["shapes"][common["x"]]
    return ConvLayer(
        **common, macs=rows.h * rows.w * weights.elements, weights=weights.data[:, None, None, :],
        drain=drain, x_zp=affine(low.x).zero_point, w_zp=_zero(weights),
    )  # fmt: skip


def _depthwise(low: Lowering) -> Layer:
    weights, bias = _weights(low)
    assert weights.data is not None
    a = low.anchor.attributes
    if a["dilations"] != (1, 1):
        raise UnsupportedError("dilated depthwise convolutions have no stream mode")
    if _zero(weights):
        raise UnsupportedError("depthwise weights have a zero point")
    drain = _drain(low, weights, bias, _rounding(low, Rounding.DOUBLE))
    common = low.common(*([drain.residual.tensor] if drain.residual else []))
    y = common["shapes"][common["y"]]
    return DepthwiseLayer(
        **common, macs=y.h * y.w * weights.elements, weights=weights.data, drain=drain, strides=a["strides"],
        pads=a["pads"], x_zp=affine(low.x).zero_point,
    )  # fmt: skip


def _pool(low: Lowering) -> Layer:
    a, average = low.anchor.attributes, low.anchor.op == "avg_pool2d"
    if affine(low.x) != affine(low.y):
        raise UnsupportedError("pooling changes the quantization")
    taps = a["kernel"][0] * a["kernel"][1]
    if average and ((a["count_pads"] and any(a["pads"])) or taps > 255):
        raise UnsupportedError(f"an average over {taps} taps, padding counted or more than 255 of them")
    return PoolLayer(
        **low.common(), kernel=a["kernel"], strides=a["strides"], pads=a["pads"], average=average,
        clip=clip_range(low.y),
    )  # fmt: skip


def _softmax(low: Lowering) -> Layer:
    a, x = low.anchor.attributes, low.x
    if a["axis"] != len(x.shape) - 1:
        raise UnsupportedError("softmax is along the last dimension only")
    if affine(low.y) != Affine(1 / 256, -128) or low.y.dtype != "int8":
        raise UnsupportedError("the output of softmax must be int8 of scale 1/256 and zero point -128")
    return SoftmaxLayer(**low.common(), scale=a["beta"] * affine(x).scale)


_LOWERINGS: dict[str, Callable[[Lowering], Layer]] = {
    "conv2d": _conv,
    "dense": _dense,
    "depthwise_conv2d": _depthwise,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "softmax": _softmax,
    **dict.fromkeys(BINARY, lower_binary),
    **dict.fromkeys(UNARY, lower_unary),
    **MOVES,
}
