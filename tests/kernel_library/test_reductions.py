"""Tests of the library's pooling, row reductions and softmax."""

import numpy as np
import pytest

from compiler.kernel_library.conv import Conv
from compiler.kernel_library.reduce import pool_operands
from hw.config import load_target
from hw.errors import InputError
from hw.isa.enums import Dtype, Reduce
from tests.kernel_library import reference
from tests.kernel_library.shapes import image_shape, int8, size


def check_pool(ops, rng, pool, *, average, clip=(-128, 127)):
    print(pool)
    x = int8(rng, pool.in_h, pool.in_w, pool.in_c)
    expected = np.zeros((pool.out_h, pool.out_w, pool.in_c), np.int64)
    for y, x0, taps in reference.windows(x, pool.kernel, pool.stride, pool.pads):
        expected[y, x0] = reference.average(taps) if average else taps.max(axis=0)
    assert np.array_equal(ops.pool(x, pool, average=average, clip=clip), np.clip(expected, *clip))


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("trial", range(5))
def test_pool(ops, rng, trial, average):
    check_pool(ops, rng, image_shape(rng, ops.config.n, dilated=False), average=average)


@pytest.mark.parametrize("average", [False, True])
def test_pool_clips(ops, rng, average):
    check_pool(ops, rng, Conv(9, 7, 5, 5, (2, 3), (1, 2)), average=average, clip=(-20, 30))


@pytest.mark.parametrize("average", [False, True])
def test_global_pool(ops, rng, average):
    check_pool(ops, rng, Conv(7, 7, 35, 35, (7, 7)), average=average)
    check_pool(ops, rng, Conv(1, 1, 1, 1, (1, 1)), average=average)


def test_size_of_averages_is_limited():
    with pytest.raises(InputError, match="at most 255 taps, not 16 x 16"):
        pool_operands(load_target("n4"), Conv(16, 16, 1, 1, (16, 16)), x=0, y=0, average=True)


@pytest.mark.parametrize("dtype", [Dtype.I8, Dtype.I16, Dtype.I32])
@pytest.mark.parametrize("how", [Reduce.SUM, Reduce.MAX, Reduce.MIN])
def test_reduce(ops, rng, how, dtype):
    rows, cols = size(rng, ops.config.n, 60), size(rng, ops.config.n, 200)
    x, zp = int8(rng, rows, cols), int(rng.integers(-128, 128))
    centred = x.astype(np.int64) - zp
    exact = {Reduce.SUM: centred.sum, Reduce.MAX: centred.max, Reduce.MIN: centred.min}[how](axis=1)
    bits = 8 * (1, 1, 2, 4)[dtype] - 1
    expected = np.clip(exact, -(1 << bits), (1 << bits) - 1)
    assert np.array_equal(ops.reduce(x, how, x_zp=zp, dtype=dtype), expected)


def test_mean(ops, rng):
    x = int8(rng, 33, 49)
    result = ops.reduce(x, Reduce.SUM, scale=1 / 49, x_zp=4, y_zp=4, dtype=Dtype.I8)
    exact = reference.scaled((x.astype(np.int64) - 4).sum(axis=1), 1 / 49) + 4
    assert np.array_equal(result, np.clip(exact, -128, 127))


@pytest.mark.parametrize("trial", range(5))
def test_softmax(ops, rng, trial):
    rows, cols = (1, 1) if trial == 0 else (size(rng, ops.config.n, 40), size(rng, ops.config.n, 150))
    x, scale = int8(rng, rows, cols), float(rng.choice([0.004, 0.03, 0.1, 0.6]))
    print(rows, cols, scale)
    powers = np.exp(scale * (x.astype(float) - x.max(axis=1, keepdims=True)))
    exact = np.clip(256 * powers / powers.sum(axis=1, keepdims=True) - 128, -128, 127)
    assert np.abs(ops.softmax(x, scale) - exact).max() < 1
