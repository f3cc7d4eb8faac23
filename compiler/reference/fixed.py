"""Integer scaling as LiteRT and XNNPACK do it, on whole arrays."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.util.scaling import quantize_multiplier
from cosim.semantics.fixed_point import scale
from hw.isa.enums import Rounding

Int64 = NDArray[np.int64]

#: LiteRT multiplies 64-bit sums by multipliers cut to 16 bits; this is the greatest.
_MOST_16 = 0x7FFF


def round_half_away(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Nearest whole numbers, halves away from zero, exactly."""
    whole = np.trunc(values)
    return whole + np.sign(values) * (np.abs(values - whole) >= 0.5)


def multiplied(values: Int64, ratio: ArrayLike, rounding: Rounding = Rounding.DOUBLE, left: int = 0) -> Int64:
    """Values << left, times a ratio (or one for each index of the last axis) in 31-bit fixed point.

    LiteRT's MultiplyByQuantizedMultiplier: `Rounding.DOUBLE` is how its reference kernels round. A negative ratio
    negates the product of its magnitude.
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
    """The same for the 64-bit sums of int16 operators: multipliers of 16 bits, rounded once."""
    pairs = [quantize_multiplier(float(r)) for r in np.atleast_1d(np.asarray(ratio, np.float64))]
    multipliers = np.array([min((m + (1 << 15)) >> 16, _MOST_16) for m, _ in pairs], np.int64)
    shifts = np.array([15 - e for _, e in pairs], np.int64)
    return (values * multipliers + (np.int64(1) << (shifts - 1))) >> shifts


def multiplied_real(values: Int64, ratio: ArrayLike) -> Int64:
    """XNNPACK's: a float32 product, rounded to even; the ratio is made of float32 numbers in float32."""
    return np.rint(values.astype(np.float32) * np.asarray(ratio, np.float32)).astype(np.int64)


def multiplied_away(values: Int64, ratio: ArrayLike) -> Int64:
    """LiteRT's reference dense layer: a product in double precision, halves away from zero."""
    return round_half_away(values * np.asarray(ratio, np.float64)).astype(np.int64)
