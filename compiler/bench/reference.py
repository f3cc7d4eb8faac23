"""Requantized GEMM and convolution in numpy int64, with gemmlowp's double rounding."""

import numpy as np
from numpy.typing import NDArray

from compiler.kernels.conv import Conv

Int64 = NDArray[np.int64]


def requantize(sums: Int64, multipliers: Int64, exponents: Int64, zp: int) -> Int64:
    """int8 values of int32 sums; multiplier and exponent for each value of the last axis."""
    left, right = np.maximum(exponents, 0), np.maximum(-exponents, 0)
    high = ((sums << left) * multipliers + (1 << 30)) >> 31
    mask = (np.int64(1) << right) - 1
    up = (high & mask) > (mask >> 1) + (high < 0)
    return np.clip((high >> right) + up + zp, -128, 127)


def conv_sums(x: NDArray[np.int8], weights: NDArray[np.int8], conv: Conv, x_zp: int) -> Int64:
    """Sums of a convolution: weights (out channels, kernel h, kernel w, channels of a group)."""
    steps = [
        _tap(_padded(x, conv, x_zp), conv, ky, kx)
        for ky in range(conv.kernel[0])
        for kx in range(conv.kernel[1])
    ]
    taps = np.stack(steps)  # (tap, y, x, channel)
    groups = taps.reshape(*taps.shape[:3], conv.groups, conv.in_c).transpose(3, 1, 2, 0, 4)
    columns = groups.reshape(conv.groups, conv.out_h * conv.out_w, -1)
    kernels = weights.astype(np.int64).reshape(conv.groups, conv.out_c, -1).transpose(0, 2, 1)
    sums = columns @ kernels  # (group, pixel, channel)
    return sums.transpose(1, 0, 2).reshape(conv.out_h, conv.out_w, -1)


def depthwise_sums(x: NDArray[np.int8], weights: NDArray[np.int8], conv: Conv, x_zp: int) -> Int64:
    """Sums of a depthwise convolution: weights (kernel h, kernel w, channels)."""
    padded = _padded(x, conv, x_zp)
    sums = np.zeros((conv.out_h, conv.out_w, x.shape[2]), np.int64)
    for ky in range(conv.kernel[0]):
        for kx in range(conv.kernel[1]):
            sums += _tap(padded, conv, ky, kx) * weights[ky, kx].astype(np.int64)
    return sums


def _padded(x: NDArray[np.int8], conv: Conv, x_zp: int) -> Int64:
    top, left, bottom, right = conv.pads
    return np.pad(x.astype(np.int64) - x_zp, ((top, bottom), (left, right), (0, 0)))


def _tap(padded: Int64, conv: Conv, ky: int, kx: int) -> Int64:
    """Pixels that one tap of the kernel meets."""
    y, x = ky * conv.dilation[0], kx * conv.dilation[1]
    last_y, last_x = y + (conv.out_h - 1) * conv.stride[0], x + (conv.out_w - 1) * conv.stride[1]
    return padded[y : last_y + 1 : conv.stride[0], x : last_x + 1 : conv.stride[1]]
