"""LiteRT's quantized hard swish: x * relu6(x + 3) / 6 in 16-bit fixed point."""

import numpy as np

from compiler.reference.fixed import Int64
from compiler.reference.node_invocation import NodeInvocation
from compiler.util.scaling import quantize_multiplier
from cosim.semantics.fixed_point import half_away, half_up, saturate

_HIGH, _LOW = (1 << 15) - 1, -(1 << 15)


def _multiplier(scale: np.float32) -> tuple[int, int]:
    """16-bit multiplier and exponent."""
    multiplier, exponent = quantize_multiplier(float(scale))
    return min((multiplier + (1 << 15)) >> 16, _HIGH), exponent


def _left(value: Int64, bits: int) -> Int64:
    return saturate(value << bits, _LOW, _HIGH)


def hard_swish_steps(call: NodeInvocation) -> Int64:
    """Stored results."""
    fine_scale = np.float32(1 / 128) * call.scale()
    multiplier, exponent = _multiplier(fine_scale / call.output_scale)
    if exponent > 0:
        raise call.error(
            f"the output's scale must be above {fine_scale:.3g}, 1/128 of the input's, not {call.output_scale:.3g}"
        )
    fine = call.centred() << 7
    scaled = half_up(fine * multiplier, 15)
    product = _truncated(_gate(fine, fine_scale) * scaled)
    return half_away(product, -exponent) + call.output_zero


def _truncated(product: Int64) -> Int64:
    """Product of two numbers in units of 2**-15, cut towards zero."""
    return np.sign(product) * (np.abs(product) >> 15)


def _gate(fine: Int64, fine_scale: np.float32) -> Int64:
    """relu6(x + 3) / 6 in units of 2**-15: x in units of 3 * 2**-15, saturated, then from -1..1 to 0..1."""
    multiplier, exponent = _multiplier(fine_scale / np.float32(3 / 32768))
    value = _left(fine, exponent - 1) if exponent > 0 else fine
    value = saturate(half_up(value * multiplier, 15), _LOW, _HIGH)
    if exponent > 0:
        value = _left(value, 1)
    elif exponent < 0:
        value = half_away(value, -exponent)
    return (value + (1 << 15)) >> 1
