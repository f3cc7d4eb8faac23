"""Reference GEMM and convolution in numpy int64, with the rounding of LiteRT's reference kernels."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Name of the reference in reports.
REFERENCE = "numpy int64"

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class WindowShape:
    """Square kernel over an image of h x w pixels, padded by half the kernel on all sides."""

    h: int
    w: int
    kernel: int
    stride: int

    @property
    def pad(self) -> int:
        """Number of padding rows and columns on each side."""
        return self.kernel // 2

    def taps(self, x: Int64) -> Iterator[tuple[int, int, Int64]]:
        """Yield row and column of each kernel tap with the pixels it reads from `x`, an image with zero point 0."""
        padded = np.pad(x, ((self.pad, self.pad), (self.pad, self.pad), (0, 0)))
        down, across = (
            range(0, size + 2 * self.pad - self.kernel + 1, self.stride) for size in (self.h, self.w)
        )
        for ky in range(self.kernel):
            for kx in range(self.kernel):
                yield ky, kx, padded[np.ix_([y + ky for y in down], [x + kx for x in across])]


def multiplier(scale: float) -> tuple[int, int]:
    """Return the 31-bit multiplier and the exponent of a positive scale: scale = multiplier * 2**(exponent - 31)."""
    mantissa, exponent = math.frexp(scale)
    mult = math.floor(mantissa * (1 << 31) + 0.5)
    return (mult // 2, exponent + 1) if mult == 1 << 31 else (mult, exponent)


def requantize_dense(sums: Int64, ratios: NDArray[np.float64], zp: int) -> Int64:
    """Requantize a dense layer's int32 sums to int8 by double-precision ratios, rounding half away from zero."""
    scaled = sums * ratios
    return np.clip(
        np.sign(scaled).astype(np.int64) * np.floor(np.abs(scaled) + 0.5).astype(np.int64) + zp, -128, 127
    )


def requantize(sums: Int64, ratios: NDArray[np.float64], zp: int) -> Int64:
    """Requantize a convolution's int32 sums to int8 by one ratio per channel, with gemmlowp's double rounding."""
    multipliers, exponents = np.array([multiplier(float(ratio)) for ratio in ratios], np.int64).T
    left, right = np.maximum(exponents, 0), np.maximum(-exponents, 0)
    high = ((sums << left) * multipliers + (1 << 30)) >> 31
    mask = (np.int64(1) << right) - 1
    up = (high & mask) > (mask >> 1) + (high < 0)
    return np.clip((high >> right) + up + zp, -128, 127)


def conv_sums(x: Int64, weights: NDArray[np.int8], window: WindowShape) -> Int64:
    """Return sums with axes (row, column, output channel); weights have axes (output channel, row, column, channel)."""
    wide = weights.astype(np.int64)
    return np.sum([pixels @ wide[:, ky, kx].T for ky, kx, pixels in window.taps(x)], axis=0)


def depthwise_sums(x: Int64, weights: NDArray[np.int8], window: WindowShape) -> Int64:
    """Return depthwise sums with axes (row, column, channel); weights have axes (row, column, channel)."""
    return np.sum([pixels * weights[ky, kx].astype(np.int64) for ky, kx, pixels in window.taps(x)], axis=0)
