"""Fixed-point arithmetic of LiteRT, XNNPACK and gemmlowp on whole arrays."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.util.scaling import quantize_multiplier, quantize_multiplier_16
from cosim.semantics.fixed_point import half_away, half_up, saturate, scale
from hw.isa.enums import Rounding

Int64 = NDArray[np.int64]


def round_half_away(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round exactly to the nearest integers, with ties away from zero."""
    whole = np.trunc(values)
    return whole + np.sign(values) * (np.abs(values - whole) >= 0.5)


def multiplied(values: Int64, ratio: ArrayLike, rounding: Rounding = Rounding.DOUBLE, left: int = 0) -> Int64:
    """Compute LiteRT's MultiplyByQuantizedMultiplier: values << left times a ratio in 31-bit fixed point.

    Parameters
    ----------
    values : int64 array
        Integers to scale.
    ratio : float or array
        One ratio, or one for each index of the last axis; for a negative ratio, the product with its magnitude is
        negated.
    rounding : Rounding
        Rounding mode; LiteRT's reference kernels use `Rounding.DOUBLE`.
    left : int
        Number of bits by which the values are first shifted to the left.
    """
    ratios = np.atleast_1d(np.asarray(ratio, np.float64))
    pairs = [quantize_multiplier(abs(float(r))) for r in ratios]
    if len(pairs) == 1:
        product = scale(values, *pairs[0], left, rounding)
        return -product if ratios[0] < 0 else product
    multipliers, exponents = (
        np.broadcast_to(np.array(part, np.int64), values.shape) for part in zip(*pairs, strict=True)
    )
    return scale(values, multipliers, exponents, left, rounding) * np.where(ratios < 0, -1, 1)


def multiplied_16(values: Int64, ratio: ArrayLike) -> Int64:
    """Scale the 64-bit sums of int16 operators with 16-bit multipliers and a single rounding."""
    pairs = [quantize_multiplier_16(float(r)) for r in np.atleast_1d(np.asarray(ratio, np.float64))]
    multipliers = np.array([m >> 16 for m, _ in pairs], np.int64)
    shifts = np.array([15 - e for _, e in pairs], np.int64)
    return (values * multipliers + (np.int64(1) << (shifts - 1))) >> shifts


def multiplied_real(values: Int64, ratio: ArrayLike) -> Int64:
    """Scale like XNNPACK, by a float32 product with ties to even; the ratio must have been computed in float32."""
    return np.rint(values.astype(np.float32) * np.asarray(ratio, np.float32)).astype(np.int64)


def multiplied_away(values: Int64, ratio: ArrayLike) -> Int64:
    """Scale like LiteRT's reference dense layer, by a product in double precision with ties away from zero."""
    return round_half_away(values * np.asarray(ratio, np.float64)).astype(np.int64)


def multiplied_twice(values: Int64, ratio: ArrayLike) -> Int64:
    """Scale like LiteRT's optimized dense layer for int16: round the product to an integer, then the shifted integer.

    Ties are rounded up both times.
    """
    pairs = [quantize_multiplier(float(r)) for r in np.atleast_1d(np.asarray(ratio, np.float64))]
    multipliers, exponents = (np.array(part, np.int64) for part in zip(*pairs, strict=True))
    whole = half_up((values << np.maximum(exponents, 0)) * multipliers, 31)
    return half_up(whole, np.broadcast_to(np.maximum(-exponents, 0), whole.shape))


#: Requantization of sums of products of int16 activations, by name of the kernel.
KERNELS_16: Mapping[str, Callable[[Int64, ArrayLike], Int64]] = {
    "single": multiplied_16,
    "double": multiplied,
    "away": multiplied_away,
    "twice": multiplied_twice,
}


def kernel_16(op: str, bias: str | None, rounding: str) -> str:
    """Return the name of LiteRT's requantization of the sums of an operator with int16 activations.

    Parameters
    ----------
    op : str
        Operator of the graph.
    bias : str or None
        Type of the bias; None if there is no bias. LiteRT accumulates in 32 bits if it is int32.
    rounding : "reference" or "xnnpack"
        LiteRT's reference kernels, or the kernels of its default resolver.
    """
    if op == "dense":
        return "twice" if rounding == "xnnpack" and bias != "int64" else "away"
    return "double" if bias == "int32" else "single"


ONE = (1 << 31) - 1
#: exp(-2**k) for k = -2..4, in units of 2**-31.
_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
_EXP_EIGHTH, _THIRD = 1895147668, 715827883
#: Coefficients of the initial estimate 48/17 - 32/17 x of a reciprocal for Newton's method, in units of 2**-29.
_NEWTON = (1515870810, -1010580540)


def times(a: Int64, b: Int64 | int) -> Int64:
    """Multiply values in units of 2**-31; the product is rounded to the same unit, with ties up."""
    return saturate(half_up(a * b, 31))


def shifted(a: Int64, bits: int) -> Int64:
    """Shift values; left shifts saturate, right shifts round with ties away from zero."""
    return saturate(a << bits) if bits >= 0 else half_away(a, -bits)


def _exp_near_zero(a: Int64) -> Int64:
    """Compute exp(a) for -1/4 <= a < 0 by a series around -1/8; `a` and the result have no integer bits."""
    x = a + (1 << 28)
    x2 = times(x, x)
    x3, x4 = times(x2, x), times(x2, x2)
    tail = shifted(times(shifted(x4, -2) + x3, _THIRD) + x2, -1)
    return _EXP_EIGHTH + times(x + tail, _EXP_EIGHTH)


def exp_negative(a: Int64, integer_bits: int) -> Int64:
    """Compute exp(a) for a <= 0 with `integer_bits` integer bits, at most 5; the result has none."""
    fraction = 31 - integer_bits
    quarter = 1 << (fraction - 2)
    low = (a & (quarter - 1)) - quarter
    result, rest = _exp_near_zero(shifted(low, integer_bits)), low - a
    for k, power in enumerate(_POWERS[: integer_bits + 2]):
        result = np.where(rest >> (fraction - 2 + k) & 1, times(result, power), result)
    return np.where(a == 0, ONE, result)


def reciprocal(a: Int64) -> Int64:
    """Compute 1 / (1 + a) for 0 <= a < 1; `a` and the result have no integer bits."""
    half = (a + ONE + 1) >> 1
    x = _NEWTON[0] + times(half, _NEWTON[1])
    for _ in range(3):
        x = x + shifted(times(x, (1 << 29) - times(half, x)), 2)
    return shifted(x, 1)
