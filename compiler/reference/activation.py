"""Elementwise functions of one operand, and their quantized forms as LiteRT, XNNPACK and onnxruntime compute them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from compiler.reference import int16, onnx_single
from compiler.reference.fixed_point import ONE, Int64, multiplied, round_half_away, shifted, times
from compiler.reference.node_invocation import Array, NodeInvocation, Operator, Real, eighth_bits
from compiler.reference.onnx_single import Single
from compiler.util.scaling import quantize_multiplier
from cosim.semantics.fixed_point import half_away, half_up, saturate, scale
from hw.isa.enums import Rounding

#: Multipliers that XNNPACK's leaky ReLU supports: smallest magnitude, largest positive and largest negative value.
_MIN_SLOPE, _MAX_SLOPE, _MIN_NEGATIVE_SLOPE = np.float32(1 / 256), np.float32(128), np.float32(-127.99609375)


def _erfc(x: Array) -> Array:
    """Compute the complementary error function."""
    from scipy.special import erfc  # imported on demand: loading takes longer than compiling a small network

    return erfc(x)


def sigmoid(x: Real) -> Real:
    """Compute 1 / (1 + exp(-x)) without overflow."""
    power = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, power) / (1 + power)


def gelu(x: Real, tanh: bool) -> Real:
    """Compute x * Phi(x), where Phi is the normal distribution function, or the approximation by tanh."""
    if tanh:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * _erfc(-x / np.sqrt(2))


def _by_table(call: NodeInvocation, function: Callable[[NodeInvocation], Array]) -> Array:
    """Evaluate a function of 8-bit values, through a table if the operand has at least 256 elements."""
    limits, x = np.iinfo(call.values[0].dtype), call.values[0]
    if limits.bits > 8 or x.size <= limits.max - limits.min:
        return function(call)
    domain = np.arange(limits.min, limits.max + 1).astype(x.dtype)
    return function(replace(call, values=(domain, *call.values[1:])))[x.astype(np.int64) - limits.min]


def _table_steps(call: NodeInvocation, function: Callable[[Single], Array], delegated: bool) -> Array:
    """Return the quantized results of a float32 function as in LiteRT's or, if `delegated`, XNNPACK's tables."""
    real = call.scale() * call.centred().astype(np.float32)
    limit = np.float32(1 << 30)
    steps = np.clip(function(real).astype(np.float32) * (np.float32(1) / call.output_scale), -limit, limit)
    steps = np.where(np.isnan(steps), -limit, steps)  # LiteRT's conversion of NaN gives the smallest integer
    if delegated:
        return np.rint(steps + np.float32(call.output_zero)).astype(np.int64)
    return round_half_away(steps.astype(np.float64)).astype(np.int64) + call.output_zero


def _unary(
    function: Callable[[Real], Real],
    single: Callable[[Single], Array] | None = None,
    *,
    in_xnnpack: bool = False,
    in_onnxruntime: Callable[[Single], Array] | None = None,
    in_int16: Callable[[NodeInvocation], Array] | None = None,
    int16_table: bool = False,
) -> Operator:
    """Return an elementwise operator of one operand.

    Parameters
    ----------
    function : callable
        The function in double precision.
    single : callable, optional
        The function in single precision, with which LiteRT fills its table for 8-bit operands; default: `function`
        rounded to single precision.
    in_xnnpack : bool
        True if XNNPACK has a table for 8-bit operands, filled in double precision.
    in_onnxruntime : callable, optional
        Float32 kernel of onnxruntime, applied to dequantized values, if it differs from `function` rounded to float32.
    in_int16 : callable, optional
        LiteRT's kernel for int16 operands.
    int16_table : bool
        True if LiteRT's kernel for int16 operands interpolates a table.
    """

    def double(x: Single) -> Array:
        return function(x.astype(np.float64))

    def steps(call: NodeInvocation) -> Array:
        delegated = in_xnnpack and call.delegated
        return _table_steps(call, double if delegated or single is None else single, delegated)

    def operator(call: NodeInvocation) -> Array:
        if in_int16 is not None and int16.is_unit(call):
            return in_int16(call)
        if int16_table and int16.is_int16(call):
            return int16.by_table(call, single or double)
        if call.in_integers():
            return _by_table(call, steps)
        if in_onnxruntime is not None and call.quantized():
            return in_onnxruntime(call.numbers().astype(np.float32))
        return function(call.numbers().astype(np.float64))

    return operator


def _single_sigmoid(x: Single) -> Array:
    return np.float32(1) / (np.float32(1) + np.exp(-x.astype(np.float64)).astype(np.float32))


def _single_gelu(x: Single, tanh: bool) -> Array:
    half = np.float32(0.5) * x
    if tanh:
        inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
        return half * (np.float32(1) + np.tanh(inner.astype(np.float64)).astype(np.float32))
    return half * _erfc((x * np.float32(-np.sqrt(0.5))).astype(np.float64)).astype(np.float32)


def _gelu(call: NodeInvocation) -> Array:
    tanh = call["tanh"]
    return _unary(lambda x: gelu(x, tanh), lambda x: _single_gelu(x, tanh), int16_table=True)(call)


def _elu(call: NodeInvocation) -> Array:
    alpha = call["alpha"]

    def double(x: Real) -> Real:
        return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)

    return _unary(double, in_xnnpack=True, in_onnxruntime=partial(onnx_single.elu, alpha=alpha))(call)


def softplus(x: Real) -> Real:
    """Compute the logarithm of 1 + exp(x) without overflow."""
    return np.logaddexp(0, x)


def _log(call: NodeInvocation) -> Array:
    if int16.is_int16(call):
        return int16.of_positive(call, lambda x: np.log(x.astype(np.float64)), greatest=False)
    return _unary(np.log)(call)


def _hard_swish(call: NodeInvocation) -> Array:
    if call.in_integers() and np.dtype(call.output.dtype).itemsize == 1:
        return _by_table(call, hard_swish_steps)
    if call.kernels == "onnxruntime" and call.quantized():
        return onnx_single.hard_swish(call.numbers().astype(np.float32))
    x = call.numbers().astype(np.float64)
    return x * np.clip(x + 3, 0, 6) / 6


def _leaky_relu(call: NodeInvocation) -> Array:
    if not call.in_integers():
        x = call.numbers().astype(np.float64)
        return np.where(x < 0, x * call["alpha"], x)
    return _by_table(call, _leaky_steps) + call.output_zero


def _leaky_steps(call: NodeInvocation) -> Array:
    x, alpha = call.centred(), np.float32(call["alpha"])
    plus = call.scale() / call.output_scale
    if call.delegated and _MIN_SLOPE <= plus <= _MAX_SLOPE:
        minus = plus * alpha
        if _MIN_NEGATIVE_SLOPE <= minus <= _MAX_SLOPE and abs(minus) >= _MIN_SLOPE:
            return np.where(x < 0, eighth_bits(x, minus), eighth_bits(x, plus))
    minus = call.scale() * alpha / call.output_scale
    return np.where(x < 0, multiplied(x, float(minus)), multiplied(x, float(plus)))


def _prelu(call: NodeInvocation) -> Array:
    if not call.in_integers(2):
        x = call.numbers(0)
        return np.where(x < 0, x * call.numbers(1), x)
    x, product = call.centred(0), call.centred(0) * call.centred(1)
    plus, minus = call.scale(0) / call.output_scale, call.scale(0) * call.scale(1) / call.output_scale
    steps = np.where(x < 0, multiplied(product, float(minus)), multiplied(x, float(plus)))
    return steps + call.output_zero


#: Fraction bits of an inverse square root before it is scaled.
_FRACTION_BITS = 20
#: Fixed-point constants: 1.5 with three integer bits, and sqrt(1/2) without integer bits.
_THREE_HALVES, _ROOT_HALF = (1 << 28) + (1 << 27), 1518500250
_NEWTON_STEPS = 5


def _in_bytes(call: NodeInvocation) -> bool:
    return call.in_integers() and np.dtype(call.tensors[0].dtype).itemsize == 1


def _magnitude(call: NodeInvocation) -> Array:
    """Compute the absolute value; if quantized, the magnitude is rescaled, so that ties round away from zero."""
    if not call.in_integers():
        return np.abs(call.numbers())
    if call.scale() == call.output_scale:
        return np.abs(call.centred()) + call.output_zero
    return multiplied(np.abs(call.centred()), float(call.scale() / call.output_scale)) + call.output_zero


def _root(call: NodeInvocation) -> Array:
    """Compute the square root; if quantized, the result is rounded down, and is 0 for negative values."""
    if not call.in_integers():
        return np.sqrt(call.numbers().astype(np.float64))
    real = np.maximum(call.centred(), 0).astype(np.float32) * call.scale()
    return (np.sqrt(real) / call.output_scale).astype(np.int64) + call.output_zero


def _inverse_root(call: NodeInvocation) -> Array:
    """Compute 1 / sqrt(x); if quantized, the result for x <= 0 is the largest value."""
    if int16.is_int16(call):
        return int16.of_positive(call, lambda x: np.float32(1) / np.sqrt(x), greatest=True)
    if not _in_bytes(call):
        return 1 / np.sqrt(call.numbers().astype(np.float64))
    x, limits = call.centred(), np.iinfo(call.output.dtype)
    mult, exponent = quantize_multiplier(1.0 / float(np.sqrt(call.scale()) * call.output_scale))
    table = np.full(256, limits.max, np.int64)
    for value in range(1, 256):
        root, shift = _newton(value)
        fine = scale(np.array([1], np.int64), root, shift + _FRACTION_BITS, 0, Rounding.DOUBLE)
        table[value] = scale(fine, mult, exponent - _FRACTION_BITS, 0, Rounding.DOUBLE)[0] + call.output_zero
    return table[np.clip(x, 0, 255)]


def _newton(value: int) -> tuple[int, int]:
    """Return 1 / sqrt(value) as a 31-bit multiplier and an exponent, by Newton's method starting from 1."""
    if value <= 1:
        return ONE, 0
    shift = 11
    while value >= 1 << 29:
        value, shift = value // 4, shift + 1
    pairs = (31 - value.bit_length()) // 2 - 1
    shift, value = shift - pairs, value << 2 * pairs
    half = shifted(np.array(value >> 1, np.int64), -1)
    x = np.array(1 << 28, np.int64)
    for _ in range(_NEWTON_STEPS):
        cube = shifted(times(times(x, x), x), 6)
        x = shifted(times(x, _THREE_HALVES) - times(half, cube), 3)
    root = int(times(x, _ROOT_HALF))
    return (root << -shift, 0) if shift < 0 else (root, -shift)


ROOTS: dict[str, Operator] = {"abs": _magnitude, "sqrt": _root, "rsqrt": _inverse_root}


ACTIVATION: dict[str, Operator] = {
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "sigmoid": _unary(
        sigmoid, _single_sigmoid, in_xnnpack=True, in_onnxruntime=onnx_single.sigmoid, in_int16=int16.sigmoid
    ),
    "tanh": _unary(np.tanh, in_xnnpack=True, in_onnxruntime=onnx_single.tanh, in_int16=int16.tanh),
    "hard_swish": _hard_swish,
    "gelu": _gelu,
    "silu": _unary(lambda x: x * sigmoid(x)),
    "exp": _unary(np.exp, int16_table=True),
    "log": _log,
    **ROOTS,
    "elu": _elu,
    "softplus": _unary(softplus),
    "mish": _unary(lambda x: x * np.tanh(softplus(x))),
    "softcap": lambda call: _unary(lambda x: call["limit"] * np.tanh(x / call["limit"]))(call),
}

_HIGH, _LOW = (1 << 15) - 1, -(1 << 15)


def _multiplier(scale: np.float32) -> tuple[int, int]:
    """Return a scale as a 16-bit multiplier and an exponent."""
    multiplier, exponent = quantize_multiplier(float(scale))
    return min((multiplier + (1 << 15)) >> 16, _HIGH), exponent


def _left(value: Int64, bits: int) -> Int64:
    return saturate(value << bits, _LOW, _HIGH)


def hard_swish_steps(call: NodeInvocation) -> Int64:
    """Return the quantized results of LiteRT's 8-bit hard swish."""
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
    """Convert a product in units of 2**-30 to units of 2**-15, truncated towards zero."""
    return np.sign(product) * (np.abs(product) >> 15)


def _gate(fine: Int64, fine_scale: np.float32) -> Int64:
    """Compute relu6(x + 3) / 6 in units of 2**-15, by saturating x / 3 to -1..1 and mapping it to 0..1."""
    multiplier, exponent = _multiplier(fine_scale / np.float32(3 / 32768))
    value = _left(fine, exponent - 1) if exponent > 0 else fine
    value = saturate(half_up(value * multiplier, 15), _LOW, _HIGH)
    if exponent > 0:
        value = _left(value, 1)
    elif exponent < 0:
        value = half_away(value, -exponent)
    return (value + (1 << 15)) >> 1
