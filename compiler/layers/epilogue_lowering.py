"""Lowering of the epilogue: requantization of sums and the operators fused after it."""

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node
from compiler.ir.tensor import Quantization, Tensor
from compiler.kernel_library.elementwise import LEFT_SHIFT, raw_fields, residual_fields
from compiler.layers.base import Addend, Drain, Residual
from compiler.layers.lowering_context import (
    DTYPES,
    LoweringContext,
    UnsupportedLoweringError,
    affine,
    clip_range,
    is_unary,
    same_quantization,
    table_of,
)
from compiler.util.scaling import (
    double_ratio,
    float32_multiplier,
    float32_ratio,
    quantize_multiplier,
    quantize_multiplier_16,
)
from hw.isa.commands import FUSE_SRC
from hw.isa.enums import BSource, Dtype, Op, Requant, Rounding


def rounding_of(low: LoweringContext, reference: Rounding) -> Rounding:
    """Return the rounding mode of sums of products (docs/numerics.md).

    The mode is `reference` for the reference kernels, otherwise rounding to nearest, ties to even.
    """
    return reference if low.rounding == "reference" else Rounding.EVEN


def drain_of(low: LoweringContext, weights: Tensor, bias: Tensor | None, rounding: Rounding) -> Drain:
    """Return the epilogue parameters of an anchor node and of the nodes fused after it."""
    graph, rest = low.graph, list(low.nodes[1:])
    if rest and rest[0].op == "requantize_sum":
        return _drain_of_sums(low, rest[0], bias)
    out = graph.out(low.anchor)
    clip = clip_range(out)
    table = None
    if rest and rest[0].op == "clip" and same_quantization(out, graph.out(rest[0])):
        out, clip = _clip(graph, rest.pop(0), out, clip)
    scaled = out
    if rest and is_unary(graph, rest[0]):  # including the addition of a constant scalar
        table = table_of(graph, rest[0], low.rounding)
        out = graph.out(rest.pop(0))
    channels = weights.shape[-1] if low.anchor.op == "depthwise_conv2d" else weights.shape[0]
    q, x, y = weights.quantization, affine(low.x), affine(scaled)
    if q is None:
        raise UnsupportedLoweringError(f"weights {weights.name!r} are not quantized")
    scales = np.broadcast_to(np.array(q.scale, np.float64), channels)
    pairs = np.array(
        [multiplier_of(low, x.scale, float(scale), y.scale, rounding) for scale in scales], np.int64
    )
    values = np.zeros(channels, np.int64)
    if bias is not None:
        assert bias.data is not None
        values = bias.data.astype(np.int64)
    residual = None
    if rest:
        residual = residual_of(low, rest, out)
    return Drain(
        bias=values,
        mult=pairs[:, 0],
        exponent=pairs[:, 1],
        zp=y.zero_point,
        clip=clip,
        rounding=rounding,
        dtype=DTYPES[out.dtype],
        residual=residual,
        table=table,
    )


def _drain_of_sums(low: LoweringContext, node: Node, bias: Tensor | None) -> Drain:
    """Return the epilogue parameters of a product whose sums are added to those of another product."""
    other, y = low.graph.ins(node)[0], low.graph.out(node)
    how, channels = node.attributes, y.shape[-1]
    rounding, pairs = scales_of_sum(node)
    mult, exponent = (
        np.broadcast_to(np.array(each, np.int64), channels) for each in zip(*pairs, strict=True)
    )
    values = np.zeros(channels, np.int64)
    if bias is not None and bias.data is not None:
        values = bias.data.astype(np.int64)
    src = FUSE_SRC.pack(
        requant=Requant.SLOT, rounding=rounding, bias_en=1, op=Op.ADD, b_src=BSource.SP, b_dtype=Dtype.I32
    )
    return Drain(
        bias=values,
        mult=mult,
        exponent=exponent,
        zp=affine(y).zero_point,
        clip=(how["low"], how["high"]),
        rounding=rounding,
        dtype=DTYPES[y.dtype],
        residual=Addend(other.name, {}, {"src": src}),
    )


#: Maximum exponent of a scale; FUSE saturates larger results.
_MAX_EXPONENT = 31
#: Rounding mode of each of LiteRT's kernels for int16, and the fixed-point form of its ratios.
_KERNELS_16 = {
    "single": (Rounding.SINGLE, quantize_multiplier_16),
    "double": (Rounding.DOUBLE, quantize_multiplier),
    "away": (Rounding.AWAY, quantize_multiplier),
}


def scales_of_sum(node: Node) -> tuple[Rounding, list[tuple[int, int]]]:
    """Return the rounding mode of a `requantize_sum`, and its multipliers and exponents.

    Raises
    ------
    UnsupportedLoweringError
        The sum does not fit 32 bits, or FUSE does not round it exactly as LiteRT's kernel does.
    """
    how = node.attributes
    if len(node.inputs) != 2 or any(how["shifts"]):
        exact = how["kernel"] in ("single", "double")
        why = "the sum may exceed 32 bits" if exact else "LiteRT does not round the sum as FUSE does"
        raise UnsupportedLoweringError(f"the host adds and requantizes the products of bytes, because {why}")
    rounding, quantized = _KERNELS_16[how["kernel"]]
    pairs = [quantized(ratio) for ratio in how["ratios"]]
    if max(exponent for _, exponent in pairs) > _MAX_EXPONENT:
        raise UnsupportedLoweringError(f"sums are scaled by more than 2 to the power of {_MAX_EXPONENT}")
    return rounding, pairs


def multiplier_of(
    low: LoweringContext, x: float, weight: float, y: float, rounding: Rounding
) -> tuple[int, int]:
    """Return the multiplier and exponent of x * weight / y, computed in the precision implied by the rounding mode."""
    if rounding == Rounding.EVEN:
        return float32_multiplier(float32_ratio(x, weight, y))
    return quantize_multiplier(float(double_ratio(low.anchor.op, low.x.dtype, x, weight, y)))


def _clip(graph: Graph, node: Node, before: Tensor, clip: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """Fold a clip node into the output range of the preceding operator."""
    after = graph.out(node)
    if affine(after) != affine(before) or after.dtype != before.dtype:
        raise UnsupportedLoweringError(f"clip {node.name!r} changes the quantization")
    low, high = clip_range(after, node.attributes["low"], node.attributes["high"])
    return after, (max(low, clip[0]), min(high, clip[1]))


def residual_of(low: LoweringContext, rest: list[Node], before: Tensor) -> Residual:
    """Return the addition of another tensor to the result `before`; `rest` is the addition and, optionally, a clip."""
    graph, add = low.graph, rest.pop(0)
    a, b = graph.ins(add)
    other = b if a.name == before.name else a
    out = graph.out(add)
    clip = clip_range(out)
    if rest:
        out, clip = _clip(graph, rest.pop(0), out, clip)
    raw = low.rounding == "xnnpack"
    fields = (raw_fields if raw else residual_fields)(affine(before), affine(other), affine(out))
    stage = {"r_raw": int(raw), "r_ls": 0 if raw else LEFT_SHIFT}
    return Residual(other.name, stage, {**cast(dict[str, int], fields), "r_lo": clip[0], "r_hi": clip[1]})


def weights_of(low: LoweringContext) -> tuple[Tensor, Tensor | None]:
    """Return the weights and bias of the anchor node.

    Raises
    ------
    UnsupportedLoweringError
        The weights or the bias are not constant.
    """
    _, weights, *bias = low.graph.ins(low.anchor)
    if weights.data is None or (bias and bias[0].data is None):
        raise UnsupportedLoweringError("weights and bias must be constants")
    return _one_zero(weights), bias[0] if bias else None


def _one_zero(weights: Tensor) -> Tensor:
    """Convert weights to a single zero point if they still fit 8 bits; otherwise return them unchanged."""
    q = weights.quantization
    if q is None or q.axis is None or weights.data is None or len(set(q.zero_point)) == 1:
        return weights
    centred = _centred(weights.data, q)
    fits = centred.min() >= -128 and centred.max() <= 127
    zero = 0 if fits else int(np.clip(-128 - centred.min(), -128, 127))
    if (centred + zero).max() > 127 or (centred + zero).min() < -128:
        return weights
    moved = Quantization(q.scale, (zero,) * len(q.scale), q.axis)
    return Tensor(weights.name, weights.shape, "int8", moved, (centred + zero).astype(np.int8))


class StoredWeights(NamedTuple):
    """Weights as the array reads them: `data - zero + correction` are the weights minus their zero points.

    `data` and `correction` are arrays of equal shape; without a correction, `data` may be uint8, and otherwise both are
    int8.
    """

    data: NDArray
    zero: int
    correction: NDArray[np.int8] | None

    def map(self, change: Callable[[NDArray], NDArray]) -> "StoredWeights":
        """Return the weights with both arrays changed in the same way."""
        correction = None if self.correction is None else change(self.correction)
        return StoredWeights(change(self.data), self.zero, correction)


def stored_weights(weights: Tensor) -> StoredWeights:
    """Return constant weights with a single zero point, and a correction if they do not fit 8 bits with any.

    The zero point is that with which the fewest elements of the correction are not 0.
    """
    q = weights.quantization
    assert q is not None and weights.data is not None
    if len(set(q.zero_point)) == 1:
        return StoredWeights(weights.data, q.zero_point[0], None)
    assert q.axis is not None
    centred = _centred(weights.data, q)
    # Both arrays cover the range if the first one lacks at most 128 at its lower and 127 at its upper end.
    zeros = np.arange(max(-256 - int(centred.min()), -128), min(254 - int(centred.max()), 127) + 1)
    inside = [np.count_nonzero((centred >= -128 - zero) & (centred <= 127 - zero)) for zero in zeros]
    zero = int(max(zip(inside, -np.abs(zeros), zeros, strict=True))[2])
    data = np.clip(centred + zero, -128, 127)
    return StoredWeights(data.astype(np.int8), zero, (centred + zero - data).astype(np.int8))


def _centred(data: NDArray, q: Quantization) -> NDArray[np.int64]:
    """Return weights minus their zero points of each channel."""
    shape = [1] * data.ndim
    shape[q.axis or 0] = -1
    return data.astype(np.int64) - np.array(q.zero_point, np.int64).reshape(shape)


def zero_of(weights: Tensor) -> int:
    """Return the single zero point of weights.

    Raises
    ------
    UnsupportedLoweringError
        The weights have several zero points.
    """
    assert weights.quantization is not None
    zeros = set(weights.quantization.zero_point)
    if len(zeros) != 1:
        raise UnsupportedLoweringError("the zero points of the weights must be equal in all channels")
    return zeros.pop()
