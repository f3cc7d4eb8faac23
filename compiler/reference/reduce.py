"""Sums, means and extremes over axes."""

import math

import numpy as np

from compiler.reference.fixed import Int64, multiplied_away, multiplied_real, round_half_away
from compiler.reference.node_invocation import Array, NodeInvocation, Operator
from compiler.reference.quantize import requantized
from compiler.util.scaling import quantize_multiplier
from cosim.semantics.fixed_point import scale
from hw.isa.enums import Rounding


def _added(call: NodeInvocation, *, mean: bool) -> Array:
    stored = call.in_integers()
    x = call.values[0].astype(np.int64) if stored else call.numbers()
    count = math.prod(x.shape[axis] for axis in call["axes"])
    sums = x.sum(call["axes"], keepdims=call["keep"])
    if stored:
        return _scaled(call, np.asarray(sums), count, mean)
    if mean:
        return sums / count if sums.dtype.kind == "f" else np.trunc(sums / count)
    return sums


def _scaled(call: NodeInvocation, sums: Int64, count: int, mean: bool) -> Int64:
    """Sums of `count` stored integers, or their means, in the output's quantization."""
    if call.delegated:
        return _scaled_xnnpack(call, sums, count, mean)
    centred = sums - count * call.zero()
    if call.kernels == "xnnpack" and not mean:
        steps = round_half_away(
            (centred.astype(np.float32) * (call.scale() / call.output_scale)).astype(np.float64)
        )
        return steps.astype(np.int64) + call.output_zero
    return _scaled_reference(call, centred, count if mean else 1) + call.output_zero


def _scaled_xnnpack(call: NodeInvocation, sums: Int64, count: int, mean: bool) -> Int64:
    """All in float32, the zero points as well; halves to even."""
    ratio = call.scale() / call.output_scale * np.float32(1 / count if mean else 1)
    zero = np.float32(call.output_zero) - np.float32(count * call.zero()) * ratio
    return np.rint(sums.astype(np.float32) * ratio + zero).astype(np.int64)


def _scaled_reference(call: NodeInvocation, sums: Int64, count: int) -> Int64:
    """Double rounding, by a multiplier that is divided by the count."""
    multiplier, exponent = quantize_multiplier(float(call.scale()) / float(call.output_scale))
    shift = min(count.bit_length() - 1, 32, 31 + exponent)
    return scale(sums, (multiplier << shift) // count, exponent - shift, 0, Rounding.DOUBLE)


def _extreme(call: NodeInvocation, *, greatest: bool) -> Array:
    stored = call.quantized()
    x = call.values[0].astype(np.int64) if stored else call.numbers()
    result = np.asarray((np.max if greatest else np.min)(x, call["axes"], keepdims=call["keep"]))
    return requantized(call, result) if stored else result


def _cumulated(call: NodeInvocation) -> Array:
    """Sums along an axis up to each element, quantized as the dense layer that they are."""
    stored, axis = call.quantized(), call["axis"]
    x = np.moveaxis(call.centred() if stored else call.numbers(), axis, -1)
    x = x[..., ::-1] if call["reverse"] else x
    sums = x.cumsum(-1)
    if call["exclusive"]:
        sums = np.concatenate([np.zeros_like(sums[..., :1]), sums[..., :-1]], -1)
    sums = np.moveaxis(sums[..., ::-1] if call["reverse"] else sums, -1, axis)
    if not stored:
        return sums
    if call.kernels == "reference":
        return multiplied_away(sums, float(call.scale()) / float(call.output_scale)) + call.output_zero
    return multiplied_real(sums, call.scale() / call.output_scale) + call.output_zero


REDUCE: dict[str, Operator] = {
    "reduce_sum": lambda call: _added(call, mean=False),
    "reduce_mean": lambda call: _added(call, mean=True),
    "reduce_max": lambda call: _extreme(call, greatest=True),
    "reduce_min": lambda call: _extreme(call, greatest=False),
    "cumsum": _cumulated,
}
