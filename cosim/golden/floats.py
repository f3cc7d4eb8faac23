"""float32 numbers at the edges of FUSE, as integers: the formats of IEEE 754 without subnormal results."""

import numpy as np

_FRACTION = 23
_BIAS = 127
#: Least normal number, and what is beyond the largest.
_LEAST, _BEYOND = 2.0**-126, 2.0**128


def unpack(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Significand and exponent of each number: it is significand * 2**exponent. Infinity and what is not a number
    count as numbers one binade beyond the largest.
    """
    field = bits >> _FRACTION & 255
    magnitude = (bits & (1 << _FRACTION) - 1) + np.where(field > 0, 1 << _FRACTION, 0)
    return np.where(bits < 0, -magnitude, magnitude), np.maximum(field, 1) - (_BIAS + _FRACTION)


def pack(product: np.ndarray, exponent: np.ndarray | int) -> np.ndarray:
    """The bits of product * 2**exponent, rounded half to even; 0 if too small for a normal number, infinity if
    too large.
    """
    single = product.astype(np.float32).astype(np.float64)
    number = np.ldexp(single, np.asarray(exponent, np.int64).astype(np.int32))
    size = np.abs(number)
    number = np.where(size < _LEAST, 0.0, np.where(size >= _BEYOND, np.copysign(np.inf, number), number))
    return number.astype(np.float32).view(np.int32).astype(np.int64)
