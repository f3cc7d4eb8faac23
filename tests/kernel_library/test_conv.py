"""Tests of the library's convolution and depthwise convolution."""

import numpy as np
import pytest

from compiler.kernel_library.conv import Conv, depthwise_tiles
from hw.config import load_target
from hw.errors import InputError
from tests.kernel_library import reference
from tests.kernel_library.shapes import channel_scales, image_shape, int8


def check_conv(ops, rng, conv):
    print(conv)
    channels, terms = conv.out_c * conv.groups, conv.in_c * conv.kernel[0] * conv.kernel[1]
    x = int8(rng, conv.in_h, conv.in_w, conv.in_c * conv.groups)
    weights, bias = int8(rng, channels, *conv.kernel, conv.in_c), rng.integers(-3000, 3000, channels)
    scales, zp, a_zp = (
        channel_scales(rng, channels, terms),
        int(rng.integers(-9, 9)),
        int(rng.integers(-128, 128)),
    )
    result = ops.conv(x, weights, bias, scales, conv, zp=zp, a_zp=a_zp, clip=(-100, 120))
    exact = reference.conv(x, weights, conv.stride, conv.pads, conv.dilation, conv.groups, a_zp)
    assert np.array_equal(result, reference.narrow(reference.scaled(exact + bias, scales), zp, -100, 120))


@pytest.mark.parametrize("trial", range(6))
def test_conv(ops, rng, trial):
    check_conv(ops, rng, image_shape(rng, ops.config.n))


@pytest.mark.parametrize(
    "conv",
    [
        Conv(1, 1, 1, 1, (1, 1)),
        Conv(5, 4, 3, 7, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3),
        Conv(4, 6, 5, 5, (2, 3), (2, 1), (1, 0, 0, 2), (1, 2), 2),
        Conv(2, 2, 4, 3, (5, 5), (1, 1), (4, 4, 4, 4)),  # some output rows read padding only
        Conv(40, 40, 8, 40, (3, 3), (1, 1), (1, 1, 1, 1)),  # several bands
    ],
    ids=str,
)
def test_conv_corner_cases(ops, rng, conv):
    check_conv(ops, rng, conv)


def check_depthwise(ops, rng, conv):
    print(conv)
    channels = conv.in_c
    x, weights = int8(rng, conv.in_h, conv.in_w, channels), int8(rng, *conv.kernel, channels)
    bias, scales = rng.integers(-3000, 3000, channels), channel_scales(rng, channels, 9)
    zp, a_zp = int(rng.integers(-9, 9)), int(rng.integers(-128, 128))
    result = ops.depthwise(x, weights, bias, scales, conv, zp=zp, a_zp=a_zp)
    exact = reference.conv(
        x, weights.transpose(2, 0, 1)[..., None], conv.stride, conv.pads, (1, 1), channels, a_zp
    )
    assert np.array_equal(result, reference.narrow(reference.scaled(exact + bias, scales), zp))


@pytest.mark.parametrize("trial", range(6))
def test_depthwise(ops, rng, trial):
    check_depthwise(ops, rng, image_shape(rng, ops.config.n, kernel=4, dilated=False))


@pytest.mark.parametrize(
    "conv",
    [
        Conv(1, 1, 1, 1, (1, 1)),
        Conv(19, 13, 9, 9, (3, 3), (1, 1), (1, 1, 1, 1)),
        Conv(25, 20, 6, 6, (3, 3), (2, 2), (0, 0, 1, 1)),
        Conv(6, 110, 5, 5, (3, 3), (1, 1), (1, 1, 1, 1)),  # too wide for three rows in the line buffers
    ],
    ids=str,
)
def test_depthwise_corner_cases(ops, rng, conv):
    check_depthwise(ops, rng, conv)


def test_too_wide_depthwise_kernel_is_rejected():
    with pytest.raises(InputError, match="at most 4 wide"):
        depthwise_tiles(load_target("n4"), Conv(9, 9, 4, 4, (5, 5)))
