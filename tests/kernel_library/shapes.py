"""Random tensors and shapes."""

import numpy as np

from compiler.kernel_library.conv import Conv


def int8(rng, *shape):
    """Return random int8 values among which the extremes are frequent."""
    x = rng.integers(-128, 128, shape, dtype=np.int8)
    return np.where(rng.random(shape) < 0.1, rng.choice(np.array([-128, 127], np.int8)), x)


def size(rng, n, most):
    """Return a random size from 1 to `most`; it is often 1 or close to a multiple of `n`."""
    near = n * rng.integers(1, 4) + rng.integers(-1, 2)
    return int(min(most, rng.choice([1, near, rng.integers(1, most + 1)])))


def affine(rng):
    """Return a random scale and zero point."""
    return float(rng.uniform(0.002, 0.2)), int(rng.integers(-128, 128))


def channel_scales(rng, count, terms):
    """Return scales with which most sums of `terms` products, but not all, fit in int8."""
    return rng.uniform(0.2, 3.0, count) * 40 / (74.0**2 * np.sqrt(terms))


def image_shape(rng, n, *, channels=40, kernel=5, dilated=True):
    """Return random shapes of a window operator whose output is not empty."""
    while True:
        window = (int(rng.integers(1, kernel + 1)), int(rng.integers(1, kernel + 1)))
        # A window that covers only padding has no average, so the padding is smaller than the window.
        top, left, bottom, right = (int(rng.integers(0, edge)) for edge in (*window, *window))
        stride = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        dilation = (int(rng.integers(1, 3)), int(rng.integers(1, 3))) if dilated else (1, 1)
        height, width = (int(edge) for edge in rng.integers(1, 16, 2))
        in_c, out_c = size(rng, n, channels), size(rng, n, channels)
        conv = Conv(height, width, in_c, out_c, window, stride, (top, left, bottom, right), dilation)
        if conv.out_h > 0 and conv.out_w > 0:
            return conv
