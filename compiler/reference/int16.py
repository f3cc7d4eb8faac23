"""LiteRT's int16 kernels for nonlinear functions.

Most interpolate small tables in integer arithmetic. Sigmoid and tanh of recurrent operators, and of tensors whose scale
is a power of two, are gemmlowp's functions of fixed-point numbers, tabulated for all 65,536 values.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from compiler.reference.fixed_point import Int64, round_half_away
from compiler.reference.node_invocation import Array, NodeInvocation
from compiler.util.scaling import quantize_multiplier
from cosim.semantics.fixed_point import half_away, half_up, scale
from hw.isa.enums import Rounding

#: Fraction of the linear interpolation's midpoint error by which entries of the sigmoid's table are corrected.
_MIDPOINT_CORRECTION = 0.5
#: Number of intervals of the other tables, each for 128 values of x.
_STEPS = 512
#: Number of units per 1.0 of a scaled x.
_UNITS = 3.0 * 4096
#: Largest difference of the base-2 logarithm of a scale from an integer at which LiteRT (`CheckedLog2`) rounds it.
_POWER_OF_TWO_TOLERANCE = np.float32(1e-3)
_INT16_MIN, INT16_MAX = -(1 << 15), (1 << 15) - 1
#: exp(-2**k) for k = -2..4, in units of 2**-31.
_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
#: exp(-1/8), 1/3 in units of 2**-31; 48/17 and -32/17 in units of 2**-29.
_EXP_EIGHTH, _THIRD, _NEWTON_START = 1895147668, 715827883, (1515870810, -1010580540)
#: Number of integer bits of the values of gemmlowp's sigmoid and tanh.
_GEMMLOWP_BITS = 3
#: Scale of the input of the softmax's exponential, which covers -10..0.
_EXP_STEP = 10.0 / 65535
#: Scale of the results of the softmax's tables.
_UNIT_STEP = 2.0 / 65535


def saturate16(values: Int64) -> Int64:
    """Saturate to int16."""
    return np.clip(values, _INT16_MIN, INT16_MAX)


def _constant(value: int) -> int:
    """Return a 31-bit constant with 15 bits, as gemmlowp rounds it."""
    return min(INT16_MAX, int(half_away(np.asarray(value, np.int64), 16)))


def _times(a: Int64, b: Int64 | int) -> Int64:
    """Multiply values in units of 2**-15, with ties rounded up; -1 * -1 saturates."""
    return saturate16(half_up(a * b, 15))


def _shifted(a: Int64, bits: int) -> Int64:
    """Shift values; left shifts saturate, right shifts round with ties away from zero."""
    return saturate16(a << bits) if bits >= 0 else half_away(a, -bits)


def _exp(a: Int64, integer_bits: int) -> Int64:
    """Compute exp(a) for a <= 0 with the given number of integer bits; the result has none."""
    fraction = 15 - integer_bits
    quarter = 1 << (fraction - 2)
    low = (a & (quarter - 1)) - quarter
    x = _shifted(low, integer_bits) + (1 << 12)
    x2 = _times(x, x)
    x3, x4 = _times(x2, x), _times(x2, x2)
    tail = _shifted(_times(_shifted(x4, -2) + x3, _constant(_THIRD)) + x2, -1)
    eighth = _constant(_EXP_EIGHTH)
    result, rest = saturate16(eighth + _times(x + tail, eighth)), low - a
    for k, power in enumerate(_POWERS[: integer_bits + 2]):
        result = np.where(rest >> (fraction - 2 + k) & 1, _times(result, _constant(power)), result)
    if integer_bits > 5:  # the powers end at exp(-16)
        result = np.where(a < -(32 << fraction), 0, result)
    return np.where(a == 0, INT16_MAX, result)


def _newton(a: Int64) -> Int64:
    """Compute 2 / (1 + a) for 0 <= a < 1 with two integer bits."""
    half = (a + INT16_MAX + 1) >> 1
    x = _constant(_NEWTON_START[0]) + _times(half, _constant(_NEWTON_START[1]))
    for _ in range(3):
        x = x + _shifted(_times(x, (1 << 13) - _times(half, x)), 2)
    return x


@cache
def _all_int16() -> Int64:
    return np.arange(_INT16_MIN, INT16_MAX + 1, dtype=np.int64)


@cache
def _sigmoids(integer_bits: int) -> Int64:
    """Return the sigmoid of all int16 numbers with the given number of integer bits, in units of 2**-15."""
    x = _all_int16()
    positive = _shifted(_newton(_exp(-np.abs(x), integer_bits)), 1)
    return np.where(x == 0, 1 << 14, np.where(x > 0, positive, INT16_MAX - positive))


@cache
def _tanhs(integer_bits: int) -> Int64:
    """Return the tanh of all int16 numbers with the given number of integer bits, in units of 2**-15."""
    x = _all_int16()
    size = _shifted(_newton(_exp(-np.abs(x), integer_bits + 1)) - (1 << 13), 2)
    return np.sign(x) * size


def gemmlowp_sigmoid(integer_bits: int, x: Int64) -> Int64:
    """Compute gemmlowp's sigmoid of int16 numbers with the given number of integer bits, in units of 2**-15."""
    return _sigmoids(integer_bits)[x - _INT16_MIN]


def gemmlowp_tanh(integer_bits: int, x: Int64) -> Int64:
    """Compute gemmlowp's tanh of int16 numbers with the given number of integer bits, in units of 2**-15."""
    return _tanhs(integer_bits)[x - _INT16_MIN]


def is_int16(call: NodeInvocation) -> bool:
    """Return True if LiteRT's int16 kernels apply."""
    return call.in_integers() and (call.tensors[0].dtype, call.output.dtype) == ("int16", "int16")


def is_unit(call: NodeInvocation) -> bool:
    """Return True if LiteRT's int16 sigmoid, tanh and softmax apply: result scale 2**-15, zero points 0."""
    if not is_int16(call):
        return False
    return call.output_scale == 2.0**-15 and not (call.zero() or call.output_zero)


def sigmoid(call: NodeInvocation) -> Int64:
    """Compute 1 / (1 + exp(-x)) in units of 2**-15."""
    left = _shift_of_power(call, 0)
    if left is not None and call.kernels == "xnnpack":
        return gemmlowp_sigmoid(_GEMMLOWP_BITS, call.values[0].astype(np.int64))
    x = _scaled(call, left)
    found = _interpolated(np.abs(x), 9, INT16_MAX << 10)
    found = np.where(x >= 0, found + (1 << 9), (1 << 25) - found + (1 << 9) - 1)
    return found >> 10


def tanh(call: NodeInvocation) -> Int64:
    """Compute the hyperbolic tangent, 2 * sigmoid(2 * x) - 1, in units of 2**-15."""
    left = _shift_of_power(call, 1)
    if left is not None and call.kernels == "xnnpack":
        return gemmlowp_tanh(_GEMMLOWP_BITS, saturate16(call.values[0].astype(np.int64) << left))
    x = _scaled(call, left)
    found = _interpolated(np.abs(x), 8, 0xFFFF << 8)
    found = np.where(x >= 0, found - (1 << 23) + (1 << 7), -found + (1 << 23) + (1 << 7) - 1)
    return found >> 8


def _shift_of_power(call: NodeInvocation, most: int) -> int | None:
    """Return the left shift of x to 12 fraction bits if its scale is, for LiteRT, a power of two; else None.

    LiteRT (`CheckedLog2`) rounds the logarithm of the scale.

    Parameters
    ----------
    call : NodeInvocation
        Node with an int16 operand.
    most : int
        Largest left shift for which LiteRT has a kernel.
    """
    logarithm = np.log(np.float32(call.scale())) * np.float32(1 / np.log(2))
    left = 12 + int(np.rint(logarithm))
    near = abs(logarithm - np.rint(logarithm)) < _POWER_OF_TWO_TOLERANCE
    return left if near and 0 <= left <= most else None


def _scaled(call: NodeInvocation, left: int | None) -> Int64:
    """Return the operand in units of 1 / (3 * 4096); `left` is the result of `_shift_of_power`."""
    x = call.values[0].astype(np.int64)
    if left is not None:
        return x * (3 << left)
    multiplier, shift = float(call.scale()) * _UNITS, 0
    while multiplier <= INT16_MAX / 2 and shift <= 30:
        multiplier, shift = multiplier * 2, shift + 1
    return x * int(multiplier) + (1 << shift >> 1) >> shift


def _interpolated(x: Int64, bits: int, saturated: int) -> Int64:
    """Interpolate the sigmoid at x >= 0 with `bits` fraction bits; the result is `saturated` beyond the table."""
    index = np.minimum(x >> bits, 254)
    low = _SIGMOID[index]
    between = (low << bits) + (x & (1 << bits) - 1) * (_SIGMOID[index + 1] - low)
    return np.where(x >> bits >= 255, saturated, between)


def softmax(call: NodeInvocation, away: Int64) -> Int64:
    """Compute a softmax in units of 2**-15.

    Parameters
    ----------
    call : NodeInvocation
        The softmax node with its operand.
    away : int64 array (..., columns)
        Difference between each value and the maximum of its row, 0 or negative.
    """
    # LiteRT multiplies the two factors in single precision.
    ratio = float(np.float32(call.scale()) * np.float32(call["beta"])) / _EXP_STEP
    multiplier, exponent = quantize_multiplier(ratio)
    # Shifted differences that exceed 32 bits wrap, as in LiteRT.
    wide = (away << max(exponent, 0)).astype(np.int32).astype(np.int64)
    scaled = scale(wide, multiplier, min(exponent, 0), 0, Rounding.DOUBLE)
    powers = _looked_up(_exponentials(), np.clip(scaled + INT16_MAX, _INT16_MIN, INT16_MAX))
    sums = powers.sum(-1, keepdims=True)
    headroom = 32 - np.frexp(sums.astype(np.float64))[1].astype(np.int64)  # leading zeros
    fraction = ((sums << (headroom - 1)) + (1 << 13) >> 14) - (1 << 15) - (1 << 16)
    inverse = _looked_up(_reciprocals(), np.clip(fraction, _INT16_MIN, INT16_MAX))
    shift = 31 - headroom
    return np.clip(powers * inverse + (np.int64(1) << (shift - 1)) >> shift, 0, INT16_MAX)


def _looked_up(table: Int64, x: Int64) -> Int64:
    """Interpolate a table of 513 entries at int16 values."""
    index = (x >> 7) + 256
    slope = table[index + 1] - table[index]
    return table[index] + (slope * (x & 0x7F) + 64 >> 7)


def _sigmoid_table() -> Int64:
    """Return the sigmoid's table at multiples of 1/24, in units of 2**-16, corrected by half the midpoint error."""
    indices = np.arange(256)
    here, middle, there = (65536 / (1 + np.exp(-(indices + offset) / 24)) for offset in (0, 0.5, 1))
    entries = np.rint(here + _MIDPOINT_CORRECTION * (middle - (here + there) / 2)).astype(np.int64)
    entries[-1] = 0xFFFF
    return entries


_SIGMOID = _sigmoid_table()


@cache
def _exponentials() -> Int64:
    return _table(np.exp, (_EXP_STEP, INT16_MAX), (_UNIT_STEP, 0), np.float64)


@cache
def _reciprocals() -> Int64:
    return _table(lambda x: 1 / (1 + x), (1.0 / 65535, _INT16_MIN), (_UNIT_STEP, 0), np.float64)


def by_table(call: NodeInvocation, function: Callable[[Array], Array]) -> Int64:
    """Apply a function of single-precision values by interpolating a table of 513 entries."""
    quantizations = ((float(call.scale()), call.zero()), (float(call.output_scale), call.output_zero))
    return _looked_up(_table(function, *quantizations, np.float32), call.values[0].astype(np.int64))


def of_positive(call: NodeInvocation, function: Callable[[Array], Array], *, greatest: bool) -> Int64:
    """Look up a function of positive values in a table; values up to 0 yield the largest or the smallest integer."""
    bound = INT16_MAX if greatest else _INT16_MIN
    limit = call.output_scale * np.float32(bound - call.output_zero)

    def single(x: Array) -> Array:
        return np.where(x > 0, function(np.where(x > 0, x, np.float32(1))), limit)

    return by_table(call, single)


def _table(
    function: Callable[[Array], Array], given: tuple[float, int], made: tuple[float, int], kind: type
) -> Int64:
    """Return the table of a function, with entries corrected by half the midpoint error of linear interpolation.

    Parameters
    ----------
    function : callable
        Function of real numbers.
    given, made : (float, int)
        Scale and zero point of the function's operand and of its result.
    kind : type
        float32 or float64, the type in which LiteRT computes the table.
    """
    first, last = (kind(given[0]) * kind(each - given[1]) for each in (_INT16_MIN, INT16_MAX))
    lowest, highest = (kind(made[0]) * kind(each - made[1]) for each in (_INT16_MIN, INT16_MAX))
    inverse = kind(65536) / (highest - lowest)
    width = (last - first) / kind(_STEPS)
    indices = np.arange(_STEPS).astype(kind)

    def units(x: Array) -> Array:
        return function(x).astype(kind) * inverse

    def nearest(x: Array) -> Array:
        return round_half_away(x.astype(np.float64)).astype(kind)

    here, there = units(first + indices * width), units(first + (indices + kind(1)) * width)
    middle = nearest(units(first + indices * width + width / kind(2)))
    interpolated = nearest((there + nearest(here)) / kind(2))
    entries = nearest(here) - nearest((interpolated - middle) / kind(2))
    entries = np.append(entries, nearest(units(np.array([last]))))
    return np.clip(entries, _INT16_MIN, INT16_MAX).astype(np.int64)
