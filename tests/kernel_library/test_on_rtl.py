"""For each operation, results and architectural counters on the RTL equal the golden model's."""

from collections.abc import Callable

import numpy as np
import pytest

from compiler.kernel_library.conv import Conv
from compiler.kernel_library.elementwise import add, mul, requantize, table, table_image
from compiler.kernel_library.run import Operators
from compiler.util.scaling import Affine
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.enums import Dtype, Reduce
from tests.kernel_library.conftest import DRAM_BYTES
from tests.kernel_library.shapes import channel_scales, int8

A, B, Y = Affine(0.05, 3), Affine(0.08, -7), Affine(0.11, 1)


def sums_of(rng: np.random.Generator, channels: int, terms: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(-3000, 3000, channels), channel_scales(rng, channels, terms)


def gemm(ops, rng):
    return ops.gemm(int8(rng, 37, 70), int8(rng, 70, 45), *sums_of(rng, 45, 70), zp=2, a_zp=-9)


def gemm_i32(ops, rng):
    c0 = rng.integers(-(1 << 20), 1 << 20, (21, 35))
    return ops.gemm_i32(int8(rng, 21, 50), int8(rng, 50, 35), c0, alpha=3, beta=-2, a_zp=1, b_zp=2)


def conv(ops, rng):
    shape = Conv(9, 8, 5, 19, (3, 3), (2, 1), (1, 1, 0, 1))
    return ops.conv(int8(rng, 9, 8, 5), int8(rng, 19, 3, 3, 5), *sums_of(rng, 19, 45), shape, a_zp=4)


def grouped_conv(ops, rng):
    shape = Conv(6, 5, 3, 4, (3, 2), (1, 1), (1, 0, 1, 1), (1, 2), 2)
    return ops.conv(int8(rng, 6, 5, 6), int8(rng, 8, 3, 2, 3), *sums_of(rng, 8, 18), shape, a_zp=4)


def depthwise(ops, rng):
    shape = Conv(11, 12, 21, 21, (3, 3), (1, 1), (1, 1, 1, 1))
    return ops.depthwise(int8(rng, 11, 12, 21), int8(rng, 3, 3, 21), *sums_of(rng, 21, 9), shape, a_zp=-3)


def max_pool(ops, rng):
    return ops.pool(int8(rng, 9, 10, 21), Conv(9, 10, 21, 21, (3, 2), (2, 2), (1, 1, 1, 0)))


def average_pool(ops, rng):
    return ops.pool(int8(rng, 9, 10, 3), Conv(9, 10, 3, 3, (3, 3), (2, 1), (1, 1, 1, 1)), average=True)


def addition(ops, rng):
    return ops.elementwise("add_i8", add(A, B, Y), int8(rng, 1500), int8(rng, 1500))


def product(ops, rng):
    return ops.elementwise("mul_i8", mul(A, B, Y), int8(rng, 333), int8(rng, 333))


def look_up(ops, rng):
    return ops.elementwise("table_i8", table(), int8(rng, 100), table=table_image(lambda v: 3 * v))


def leaky(ops, rng):
    return ops.elementwise("requantize_i8", requantize(A, Y, negative_slope=0.2), int8(rng, 100))


def softmax(ops, rng):
    return ops.softmax(int8(rng, 13, 37), 0.05)


def row_sums(ops, rng):
    return ops.reduce(int8(rng, 23, 50), Reduce.SUM, x_zp=5)


def means(ops, rng):
    return ops.reduce(int8(rng, 23, 50), Reduce.SUM, scale=1 / 50, dtype=Dtype.I8)


def row_maxima(ops, rng):
    return ops.reduce(int8(rng, 7, 9), Reduce.MAX, dtype=Dtype.I8)


def transposed(ops, rng):
    return ops.transpose(int8(rng, 45, 39))


def copied(ops, rng):
    return ops.copy(int8(rng, 2, 30, 41))


OPERATIONS: list[Callable] = [
    gemm,
    gemm_i32,
    conv,
    grouped_conv,
    depthwise,
    max_pool,
    average_pool,
    addition,
    product,
    look_up,
    leaky,
    softmax,
    row_sums,
    means,
    row_maxima,
    transposed,
    copied,
]


@pytest.fixture(scope="module", params=["n4", "n16"])
def pair(request):
    """Return the library on the RTL and on the golden model."""
    config = load_target(request.param)
    with RtlDevice(config, DRAM_BYTES) as device:
        yield Operators(Driver(device)), Operators(Driver(GoldenDevice(config, DRAM_BYTES)))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_rtl_equals_golden(pair, operation):
    found = []
    for ops in pair:
        before = ops.driver.counters.of_tag(0, architectural=True)
        result = operation(ops, np.random.default_rng(5))
        after = ops.driver.counters.of_tag(0, architectural=True)
        found.append((result, {name: after[name] - before[name] for name in after}))
        # Both devices count under one tag; the golden model has no clock, so it counts no cycles or causes.
        assert sum(ops.driver.counters.causes(0).values()) == ops.driver.counters.read("cycles", 0)
    (result, counters), (expected, expected_counters) = found
    assert np.array_equal(result, expected)
    assert counters == expected_counters
    assert pair[0].driver.counters.read("cycles", 0) > 0
