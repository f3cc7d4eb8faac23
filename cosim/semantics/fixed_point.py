"""Exact fixed-point scaling and rounding on int64 arrays."""

import math

import numpy as np

from hw.isa.enums import Rounding

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1


def wrap32(value: np.ndarray) -> np.ndarray:
    """Return the signed value of the low 32 bits."""
    return value.astype(np.int32).astype(np.int64)


def saturate(value: np.ndarray, low: int = INT32_MIN, high: int = INT32_MAX) -> np.ndarray:
    """Clip to low..high; the result is `high` if `low` exceeds `high`."""
    return np.minimum(np.maximum(value, low), high)


def half_up(p: np.ndarray, s: np.ndarray | int) -> np.ndarray:
    """Divide p by 2**s, rounding halves up, without overflow."""
    if isinstance(s, int):
        return p if s == 0 else (p >> (s - 1)) + 1 >> 1
    rounded = (p >> np.maximum(s - 1, 0)) + 1 >> 1
    return np.where(s == 0, p, rounded) if (s == 0).any() else rounded


def half_away(p: np.ndarray, s: np.ndarray | int) -> np.ndarray:
    """Divide p by 2**s, rounding halves away from zero."""
    if isinstance(s, int):
        return p if s == 0 else half_up(p - (p < 0), s)
    rounded = half_up(p - (p < 0), s)
    return np.where(s == 0, p, rounded) if (s == 0).any() else rounded


def half_even(p: np.ndarray, s: np.ndarray | int) -> np.ndarray:
    """Divide p by 2**s, rounding halves to even."""
    up = half_up(p, s)
    shift = np.maximum(np.asarray(s, np.int64) - 1, 0)
    halves = p >> shift  # an odd number of halves without lower bits is a tie
    tie = (np.asarray(s) > 0) & (halves & 1 == 1) & (halves << shift == p)
    return up - (tie & (up & 1 == 1))


def half_even_single(p: np.ndarray, s: np.ndarray | int) -> np.ndarray:
    """Divide p by 2**s, rounding halves to even, after rounding p to the 24 bits of a float32 in the same way.

    The first rounding never drops integer bits of the quotient; a quotient of more than 24 bits is rounded only once.
    """
    single = p.astype(np.float32).astype(np.int64)
    top = np.minimum(np.asarray(s, np.int64) + 24, 63)
    return half_even(np.where((p >> top) + (p < 0) == 0, single, p), s)


def scale(x: np.ndarray, m: np.ndarray | int, e: np.ndarray | int, ls: int, mode: Rounding) -> np.ndarray:
    """Return `scale` of docs/machine.md: x * m * 2**(e + ls - 31), rounded and saturated to int32.

    Parameters
    ----------
    x : numpy.ndarray
        Values to scale, int64.
    m : numpy.ndarray or int
        Multiplier, a single value or one per element.
    e : numpy.ndarray or int
        Exponent, a single value or one per element.
    ls : int
        Additional left shift of the product.
    mode : Rounding
        Rounding mode of the result.
    """
    product = x * m
    if isinstance(e, int):
        s: np.ndarray | int = min(max(31 - ls - e, 0), 63)
    else:
        s = np.clip(31 - ls - e.astype(np.int64), 0, 63)
    if mode == Rounding.DOUBLE:
        result = _double(product, e, s, ls)
    else:
        result = {Rounding.SINGLE: half_up, Rounding.EVEN: half_even_single, Rounding.AWAY: half_away}[mode](
            product, s
        )
    return saturate(result)


def _double(product: np.ndarray, e: np.ndarray | int, s: np.ndarray | int, ls: int) -> np.ndarray:
    if isinstance(e, int):
        return half_up(product, s) if e >= 0 else half_away(saturate(half_up(product, 31 - ls)), min(-e, 31))
    e = e.astype(np.int64)
    if (e >= 0).all():
        return half_up(product, s)
    right = half_away(saturate(half_up(product, 31 - ls)), np.clip(-e, 0, 31))
    return right if (e < 0).all() else np.where(e >= 0, half_up(product, s), right)


def reciprocal(x: int) -> tuple[int, int]:
    """Return the multiplier and the exponent k that represent 1/x, as computed by FUSE; x below 1 is treated as 1."""
    x = max(x, 1)
    k = x.bit_length() - 1
    return min((1 << 62) // (x << (31 - k)), INT32_MAX), k


def reciprocal_root(x: int) -> tuple[int, int]:
    """Return the multiplier and the exponent k that represent 1/sqrt(x), as computed by FUSE; x below 1 is treated as
    1.
    """
    x = max(x, 1)
    k = (x.bit_length() - 1) // 2
    return min((1 << 62) // math.isqrt(x << (62 - 2 * k)), INT32_MAX), k
