"""QuantizeLinear and DequantizeLinear: FUSE splits and assembles float32 numbers."""

import math

import numpy as np

from compiler.layers.base import Drain, Layer
from compiler.layers.elementwise import ElementwiseLayer
from compiler.layers.layer_kind import FLOAT, INTEGERS, ElementTypes, Lowering
from compiler.layers.lowering_context import LoweringContext, UnsupportedLoweringError
from compiler.util.scaling import bytes_word, halves_word
from hw.isa.enums import Requant, Rounding

#: How quotients become integers.
_NEAREST = {"reference": Rounding.AWAY, "xnnpack": Rounding.EVEN, "onnxruntime": Rounding.EVEN}
#: Greatest magnitude of a zero point that is subtracted from an operand.
_ZERO = 1 << 15


def multiplier(factor: float) -> tuple[int, int]:
    """31-bit multiplier and exponent of a positive factor: factor = multiplier * 2**(exponent - 31)."""
    mantissa, exponent = math.frexp(factor)
    whole = round(mantissa * (1 << 31))
    if whole == 1 << 31:
        whole, exponent = whole >> 1, exponent + 1
    if not -128 <= exponent <= 127:
        raise UnsupportedLoweringError(f"a factor of {factor:.3g} between integers and real numbers")
    return whole, exponent


def lower_quantize(low: LoweringContext) -> Layer:
    """float32 numbers to integers: times the reciprocal of the scale, which is exact to 31 bits."""
    scales, zeros = _parameters(low, low.y.name)
    if len(set(zeros)) > 1:
        raise UnsupportedLoweringError("integers with different zero points along an axis")
    one = np.float32(1)
    exact = low.rounding == "xnnpack"  # which multiplies by the float32 reciprocal itself
    pairs = [multiplier(float(one / np.float32(s)) if exact else 1 / s) for s in scales]
    limits, rounding = np.iinfo(low.y.dtype), _NEAREST[low.rounding]
    clip = int(limits.min), int(limits.max)
    return _layer(
        low,
        pairs,
        [0] * len(pairs),
        rounding,
        {"a_float": 1},
        {
            "zp": zeros[0],
            "clip_lo": clip[0],
            "clip_hi": clip[1],
        },
    )


def lower_dequantize(low: LoweringContext) -> Layer:
    """Integers to float32 numbers, rounded once."""
    scales, zeros = _parameters(low, low.x.name)
    if any(not -_ZERO <= zero < _ZERO for zero in zeros):
        raise UnsupportedLoweringError("a zero point of more than 16 bits")
    pairs = [multiplier(s) for s in scales]
    return _layer(low, pairs, [-z for z in zeros], Rounding.EVEN, {"to_float": 1}, {})


def _parameters(low: LoweringContext, name: str) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Scales and zero points of the integers: one for all, or one for each channel."""
    tensor = low.graph.tensors[name]
    q = tensor.quantization
    if q is None:
        return (1.0,), (0,)
    if q.axis is not None and len(q.scale) > 1 and q.axis != len(tensor.shape) - 1:
        raise UnsupportedLoweringError(f"scales along axis {q.axis}, which is not the last one")
    return q.scale, q.zero_point


def _layer(
    low: LoweringContext,
    pairs: list[tuple[int, int]],
    bias: list[int],
    rounding: Rounding,
    stage: dict[str, int],
    fields: dict[str, int],
) -> Layer:
    common = low.common()
    if len(pairs) == 1:
        (mult, exponent), (zero,) = pairs[0], bias
        src = {"requant": Requant.IMM, "rounding": rounding}
        fields = {**fields, "mult": mult, "shifts": bytes_word(exponent), "zp_ab": halves_word(-zero, 0)}
        return ElementwiseLayer(**common, src=src, stage=stage, fields=fields)
    clip = -(1 << 31), (1 << 31) - 1
    mults, exponents = (np.array(each, np.int64) for each in zip(*pairs, strict=True))
    drain = Drain(np.array(bias, np.int64), mults, exponents, 0, clip, rounding)
    return ElementwiseLayer(**common, src={"bias_en": 1}, stage=stage, fields=fields, drain=drain)


LOWERINGS = {
    "quantize": Lowering(lower_quantize, ElementTypes((FLOAT,), INTEGERS)),
    "dequantize": Lowering(lower_dequantize, ElementTypes((INTEGERS,), FLOAT)),
}
