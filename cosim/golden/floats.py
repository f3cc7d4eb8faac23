"""Conversion between float32 and integers in FUSE, according to IEEE 754 but without subnormal results."""

import numpy as np

_FRACTION = 23
_BIAS = 127
#: Smallest normal float32 value, and the first power of two above the largest.
_MIN_NORMAL, _OVERFLOW = 2.0**-126, 2.0**128


def unpack(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the significand and the exponent of each float32 value; the value is significand * 2**exponent.

    Infinity and NaN are treated as numbers in the binade above the largest finite numbers.

    Parameters
    ----------
    bits : numpy.ndarray
        Bit patterns as signed 32-bit values, in an int64 array.
    """
    field = bits >> _FRACTION & 255
    magnitude = (bits & (1 << _FRACTION) - 1) + np.where(field > 0, 1 << _FRACTION, 0)
    return np.where(bits < 0, -magnitude, magnitude), np.maximum(field, 1) - (_BIAS + _FRACTION)


def pack(product: np.ndarray, exponent: np.ndarray | int) -> np.ndarray:
    """Return the bit patterns of the float32 values nearest to product * 2**exponent, with ties rounded to even.

    Results below the smallest normal value become 0; results above the largest finite value become infinity.
    """
    single = product.astype(np.float32).astype(np.float64)
    number = np.ldexp(single, np.asarray(exponent, np.int64).astype(np.int32))
    size = np.abs(number)
    number = np.where(
        size < _MIN_NORMAL, 0.0, np.where(size >= _OVERFLOW, np.copysign(np.inf, number), number)
    )
    return number.astype(np.float32).view(np.int32).astype(np.int64)
