"""Tests of GEMM with int8 and int32 results."""

import numpy as np
import pytest

from compiler.kernel_library.gemm import gemm_tiles
from hw.config import load_target
from hw.errors import InputError
from hw.isa.enums import Rounding
from tests.kernel_library import reference
from tests.kernel_library.shapes import channel_scales, int8, size


def sums(a, b, a_zp, b_zp=0):
    return (a.astype(np.int64) - a_zp) @ (b.astype(np.int64) - b_zp)


@pytest.mark.parametrize("trial", range(6))
def test_gemm_i8(ops, rng, trial):
    shape = (1, 1, 1) if trial == 0 else (size(rng, ops.config.n, 90) for _ in range(3))
    m, n, k = shape
    print(f"{m}x{n}x{k}")
    a, b, bias = int8(rng, m, k), int8(rng, k, n), rng.integers(-3000, 3000, n)
    scales, zp, a_zp = channel_scales(rng, n, k), int(rng.integers(-20, 20)), int(rng.integers(-128, 128))
    low, high = sorted(int(v) for v in rng.integers(-128, 128, 2))
    result = ops.gemm(a, b, bias, scales, zp=zp, a_zp=a_zp, clip=(low, high))
    expected = reference.narrow(reference.scaled(sums(a, b, a_zp) + bias, scales), zp, low, high)
    assert np.array_equal(result, expected)


def test_many_tiles(ops, rng):
    # Several tiles of rows and columns, and k in pieces, since the matrices exceed the accumulator and the
    # scratchpad.
    n = ops.config.n
    m, cols, k = 3 * n + 5, ops.config.acc_rows * n // (2 * n) + 7, ops.config.sp_bytes // (8 * n) + 3
    m, cols, k = min(m, 40), min(cols, 300), min(k, 2500)
    a, b, bias = int8(rng, m, k), int8(rng, k, cols), rng.integers(-3000, 3000, cols)
    scales = channel_scales(rng, cols, k)
    result = ops.gemm(a, b, bias, scales, zp=1, a_zp=-7)
    expected = reference.narrow(reference.scaled(sums(a, b, -7) + bias, scales), 1)
    assert np.array_equal(result, expected)


def test_single_rounding(ops, rng):
    a, b = int8(rng, 9, 11), int8(rng, 11, 10)
    scale = 0.0015
    mantissa, exponent = reference.multiplier(scale)
    shift = 31 - exponent
    exact = (sums(a, b, 0) * mantissa + (1 << (shift - 1))) >> shift
    result = ops.gemm(a, b, np.zeros(10, int), [scale] * 10, rounding=Rounding.SINGLE)
    assert np.array_equal(result, np.clip(exact, -128, 127))


@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (-3, 0), (1, 1), (7, 1), (1, -2), (-2, 5), (0, 1)])
def test_gemm_i32(ops, rng, alpha, beta):
    m, n, k = (size(rng, ops.config.n, 70) for _ in range(3))
    print(f"{m}x{n}x{k}")
    a, b, c0 = int8(rng, m, k), int8(rng, k, n), rng.integers(-(1 << 24), 1 << 24, (m, n))
    result = ops.gemm_i32(a, b, c0, alpha=alpha, beta=beta, a_zp=-5, b_zp=9)
    assert np.array_equal(result, alpha * sums(a, b, -5, 9) + beta * c0)


def test_gemm_i32_in_tiles(ops, rng):
    n = ops.config.n
    m, cols, k = min(ops.config.acc_rows // 2 + 3, 700), n + 1, 5
    a, b, c0 = int8(rng, m, k), int8(rng, k, cols), rng.integers(-(1 << 24), 1 << 24, (m, cols))
    assert np.array_equal(ops.gemm_i32(a, b, c0, alpha=3, beta=-1), 3 * sums(a, b, 0) - c0)


def test_products_saturate(ops):
    a, b = np.full((1, 1), 127, np.int8), np.full((1, 1), -128, np.int8)
    assert ops.gemm_i32(a, b, alpha=1 << 20)[0, 0] == -(1 << 31)


@pytest.mark.parametrize("shape", [(0, 1, 1), (1, 1 << 20, 1)])
def test_sizes_are_checked(shape):
    with pytest.raises(InputError, match="GEMM sizes must be in"):
        gemm_tiles(load_target("n8"), *shape)
