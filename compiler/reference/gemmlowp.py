"""The fixed-point numbers of gemmlowp that LiteRT's reference kernels compute with, as int64 arrays.

A number with i integer bits is a 32-bit integer in units of 2**(i - 31).
"""

import numpy as np

from compiler.reference.fixed import Int64
from cosim.semantics.fixed_point import half_away, half_up, saturate

ONE = (1 << 31) - 1
#: exp(-2**k) for k = -2..4, in units of 2**-31.
_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
_EXP_EIGHTH, _THIRD = 1895147668, 715827883
#: Newton's start for a reciprocal, 48/17 - 32/17 x, in units of 2**-29.
_NEWTON = (1515870810, -1010580540)


def times(a: Int64, b: Int64 | int) -> Int64:
    """Product of numbers in units of 2**-31, rounded to such units: halves up."""
    return saturate(half_up(a * b, 31))


def shifted(a: Int64, bits: int) -> Int64:
    """Times a power of two: saturated, or rounded with halves away from zero."""
    return saturate(a << bits) if bits >= 0 else half_away(a, -bits)


def _exp_near_zero(a: Int64) -> Int64:
    """exp(a) for -1/4 <= a < 0 without integer bits, by a series around -1/8."""
    x = a + (1 << 28)
    x2 = times(x, x)
    x3, x4 = times(x2, x), times(x2, x2)
    tail = shifted(times(shifted(x4, -2) + x3, _THIRD) + x2, -1)
    return _EXP_EIGHTH + times(x + tail, _EXP_EIGHTH)


def exp_negative(a: Int64, integer_bits: int) -> Int64:
    """exp(a) without integer bits, of a <= 0 with `integer_bits` of them, 5 at most."""
    fraction = 31 - integer_bits
    quarter = 1 << (fraction - 2)
    low = (a & (quarter - 1)) - quarter
    result, rest = _exp_near_zero(shifted(low, integer_bits)), low - a
    for k, power in enumerate(_POWERS[: integer_bits + 2]):
        result = np.where(rest >> (fraction - 2 + k) & 1, times(result, power), result)
    return np.where(a == 0, ONE, result)


def reciprocal(a: Int64) -> Int64:
    """1 / (1 + a) for 0 <= a < 1, both without integer bits."""
    half = (a + ONE + 1) >> 1
    x = _NEWTON[0] + times(half, _NEWTON[1])
    for _ in range(3):
        x = x + shifted(times(x, (1 << 29) - times(half, x)), 2)
    return shifted(x, 1)
