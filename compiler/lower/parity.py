"""Halves that go to the even number after a zero point is added, as XNNPACK's reductions round; FUSE rounds before."""

import numpy as np
from numpy.typing import NDArray

from compiler.kernels.scaling import Affine, quantize_multiplier
from compiler.lower.lowering import UnsupportedError
from cosim.golden.scale import scale
from hw.isa.enums import Rounding

#: Sums that are tried, from the least on.
_TRIED = 1 << 20
#: Greatest change of a zero point.
_FAR = 256
#: One in so many sums may be rounded otherwise: by the last bits of float32, not by a zero point.
_FEW = 10_000


def even_behind(
    x: Affine, y: Affine, dtype: str, count: int, divisor: int, limits: tuple[int, int]
) -> tuple[int, int]:
    """Zero points of elements and of their sum with which sums are rounded as XNNPACK does it.

    An odd one behind the rounding sends halves the other way. So every element becomes greater by a number that makes
    an odd one of the sum once it is scaled, and the second zero point less by that.

    Parameters
    ----------
    x, y : Affine
        Of the elements and of the result.
    dtype : str
        Of the elements.
    count : int
        Elements of a sum.
    divisor : int
        Of the sum: 1, or their count.
    limits : (int, int)
        Least and greatest result.

    Raises
    ------
    UnsupportedError
        Sums lie half-way, and there is no such number.
    """
    if y.zero_point % 2 == 0:
        return x.zero_point, y.zero_point
    least = np.iinfo(dtype).min * count
    sums = np.arange(least, least + min(255 * count + 1, _TRIED))
    wanted = np.clip(_in_float32(sums, x, y, count, divisor), *limits)
    change = float(np.float32(x.scale / y.scale) * np.float32(1 / divisor)) * count
    for more in range(_FAR):
        odd = round(more * change)
        if more and (odd % 2 == 0 or abs(more * change - odd) > odd / (1 << 22)):
            continue
        zeros = x.zero_point - more, y.zero_point - odd
        found = np.clip(_in_fuse(sums, x, y, count, divisor, zeros), *limits)
        wrong = np.count_nonzero(found != wanted)
        if wrong * _FEW <= sums.size:
            return zeros
    raise UnsupportedError("halves go to the even number behind an odd zero point")


def _in_float32(sums: NDArray[np.int64], x: Affine, y: Affine, count: int, divisor: int) -> NDArray[np.int64]:
    """Results of sums of stored integers in XNNPACK, not yet saturated."""
    ratio = np.float32(x.scale) / np.float32(y.scale) * np.float32(1 / divisor)
    zero = np.float32(y.zero_point) - np.float32(count * x.zero_point) * ratio
    return np.rint(sums.astype(np.float32) * ratio + zero).astype(np.int64)


def _in_fuse(
    sums: NDArray[np.int64], x: Affine, y: Affine, count: int, divisor: int, zeros: tuple[int, int]
) -> NDArray[np.int64]:
    mult, exponent = quantize_multiplier(x.scale / y.scale / divisor)
    return scale(sums - count * zeros[0], mult, exponent, 0, Rounding.EVEN) + zeros[1]
