"""Expected results of the operators in numpy int64: a reimplementation of TFLite's reference kernels."""

import math

import numpy as np


def multiplier(scale):
    """Return the mantissa and exponent of a scale, like TFLite's QuantizeMultiplier."""
    fraction, exponent = math.frexp(scale)
    mantissa = int(fraction * 2**31 + 0.5)
    if mantissa == 2**31:
        mantissa, exponent = 2**30, exponent + 1
    return (0, 0) if exponent < -31 else (mantissa, exponent)


def scaled(x, scale, left=0):
    """Return MultiplyByQuantizedMultiplier of x << left; `scale` may have one value per index of the last axis."""
    x = np.asarray(x, np.int64) << left
    pairs = np.array([multiplier(float(s)) for s in np.atleast_1d(scale)], np.int64)
    mantissa, exponent = pairs[:, 0], pairs[:, 1]
    product = (x << np.maximum(exponent, 0)) * mantissa
    # SaturatingRoundingDoublingHighMul truncates product + nudge towards zero.
    nudged = product + np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    high = np.where(nudged >= 0, nudged >> 31, -(-nudged >> 31))
    right = np.maximum(-exponent, 0)
    half = (np.int64(1) << right) >> 1
    return np.where(high >= 0, (high + half) >> right, -((-high + half) >> right))


def narrow(x, zp, low=-128, high=127):
    """Add the zero point and clip."""
    return np.clip(x + zp, low, high)


def add(a, b, a_affine, b_affine, y_affine):
    """Return the result of TFLite's ADD on int8."""
    (a_scale, a_zp), (b_scale, b_zp), (y_scale, y_zp) = a_affine, b_affine, y_affine
    twice = 2 * max(a_scale, b_scale)
    total = scaled(a - a_zp, a_scale / twice, 20) + scaled(b - b_zp, b_scale / twice, 20)
    return narrow(scaled(total, twice / (2**20 * y_scale)), y_zp)


def windows(x, kernel, stride, pads):
    """Yield the row and column of each output pixel, and its taps inside the image as (taps, channels)."""
    top, left, bottom, right = pads
    h, w = x.shape[:2]
    rows = (h + top + bottom - kernel[0]) // stride[0] + 1
    columns = (w + left + right - kernel[1]) // stride[1] + 1
    for oy in range(rows):
        for ox in range(columns):
            y0, x0 = oy * stride[0] - top, ox * stride[1] - left
            part = x[max(y0, 0) : max(y0 + kernel[0], 0), max(x0, 0) : max(x0 + kernel[1], 0)]
            yield oy, ox, part.reshape(-1, x.shape[2]).astype(np.int64)


def average(taps):
    """Return the result of AVERAGE_POOL, which rounds half away from zero."""
    total, count = taps.sum(axis=0), len(taps)
    return np.where(total > 0, (total + count // 2) // count, -((-total + count // 2) // count))


def conv(x, weights, stride, pads, dilation, groups, x_zp):
    """Return the sums of a convolution; weights are (out channels, kernel h, kernel w, group channels)."""
    out_c, kh, kw, in_c = weights.shape
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.int64) - x_zp, ((top, bottom), (left, right), (0, 0)))
    rows = (padded.shape[0] - (kh - 1) * dilation[0] - 1) // stride[0] + 1
    columns = (padded.shape[1] - (kw - 1) * dilation[1] - 1) // stride[1] + 1
    out = np.zeros((rows, columns, out_c), np.int64)
    for oy in range(rows):
        for ox in range(columns):
            y0, x0 = oy * stride[0], ox * stride[1]
            patch = padded[y0 : y0 + (kh - 1) * dilation[0] + 1 : dilation[0]]
            patch = patch[:, x0 : x0 + (kw - 1) * dilation[1] + 1 : dilation[1]]
            for group in range(groups):
                part = slice(group * out_c // groups, (group + 1) * out_c // groups)
                channels = patch[:, :, group * in_c : (group + 1) * in_c]
                out[oy, ox, part] = (channels * weights[part].astype(np.int64)).sum(axis=(1, 2, 3))
    return out
