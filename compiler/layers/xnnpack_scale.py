"""Scales of sums that FUSE rounds as XNNPACK's reductions do: in float32, to the even number behind the zero point."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.layers.lowering_context import UnsupportedLoweringError
from compiler.util.scaling import Affine, quantize_multiplier
from cosim.semantics.fixed_point import scale
from hw.isa.enums import Rounding

#: Sums that are tried, from the least on.
_TRIED = 1 << 20
#: Greatest change of a zero point, and pairs of zero points that are tried.
_FAR, _PAIRS = 256, 8
#: Changes of the multiplier that are tried: a product that is a hair beside a half becomes one, or the other way.
_NUDGES = (0, *(sign << bit for bit in range(9) for sign in (1, -1)))


class SumScale(NamedTuple):
    """Scaling of a sum by FUSE: 31-bit multiplier and exponent, and both zero points."""

    mult: int
    exponent: int
    x_zero: int
    y_zero: int


def float32_scale(
    x: Affine, y: Affine, dtype: str, count: int, divisor: int, limits: tuple[int, int]
) -> SumScale:
    """The scale with which every sum is rounded as XNNPACK does it.

    XNNPACK adds the zero point before it rounds. So an odd one behind FUSE's rounding would send halves the other way:
    every element becomes greater by a number that makes an odd one of the sum once it is scaled, and the second zero
    point less by that. What float32 makes a half of, or takes from one, the multiplier's last bits may do too.

    Parameters
    ----------
    x, y : Affine
        Quantization of the elements and of the result.
    dtype : str
        Element type, int8 or uint8.
    count : int
        Number of elements in a sum.
    divisor : int
        Divisor of the sum: 1, or `count` for a mean.
    limits : (int, int)
        Least and greatest result.

    Raises
    ------
    UnsupportedLoweringError
        No such scale was found.
    """
    least = np.iinfo(dtype).min * count
    sums = np.arange(least, least + min(255 * count + 1, _TRIED))
    ratio = np.float32(x.scale) / np.float32(y.scale) * np.float32(1 / divisor)
    zero = np.float32(y.zero_point) - np.float32(count * x.zero_point) * ratio
    wanted = np.clip(np.rint(sums.astype(np.float32) * ratio + zero).astype(np.int64), *limits)
    mult, exponent = quantize_multiplier(x.scale / y.scale / divisor)
    for x_zero, y_zero in islice(_zero_points(x, y, float(ratio) * count), _PAIRS):
        for nudge in _NUDGES:
            found = SumScale(min(max(mult + nudge, 0), (1 << 31) - 1), exponent, x_zero, y_zero)
            if np.array_equal(np.clip(_in_fuse(sums, count, found), *limits), wanted):
                return found
    raise UnsupportedLoweringError("float32 rounds some of the sums as no multiplier does")


def _zero_points(x: Affine, y: Affine, change: float) -> Iterator[tuple[int, int]]:
    """Pairs of zero points that mean the same; `change` is that of a result when every element is one greater."""
    for more in range(_FAR):
        less = round(more * change)
        if abs(more * change - less) <= less / (1 << 22):
            yield x.zero_point - more, y.zero_point - less


def _in_fuse(sums: NDArray[np.int64], count: int, by: SumScale) -> NDArray[np.int64]:
    return scale(sums - count * by.x_zero, by.mult, by.exponent, 0, Rounding.EVEN) + by.y_zero
