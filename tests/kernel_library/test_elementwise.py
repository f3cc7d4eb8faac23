"""Tests of the library's addition, multiplication, tables and requantization."""

import numpy as np
import pytest

from compiler.kernel_library.elementwise import (
    Elementwise,
    add,
    elementwise_operands,
    mul,
    requantize,
    table,
    table_image,
)
from compiler.util.scaling import Affine
from hw.config import load_target
from hw.errors import InputError
from hw.isa.enums import Dtype, Rounding
from tests.kernel_library import reference
from tests.kernel_library.shapes import affine, int8, size


def length(rng, ops, trial):
    """Return a length of one element, of some elements, or of several chunks."""
    return (1, size(rng, ops.config.n, 600), int(rng.integers(3000, 9000)))[trial % 3]


@pytest.mark.parametrize("trial", range(6))
def test_add_equals_the_integer_reference(ops, rng, trial):
    count, parts = length(rng, ops, trial), [affine(rng) for _ in range(3)]
    a, b = int8(rng, count), int8(rng, count)
    result = ops.elementwise("add_i8", add(*(Affine(*part) for part in parts)), a, b)
    assert np.array_equal(result, reference.add(a.astype(np.int64), b.astype(np.int64), *parts)), parts


@pytest.mark.parametrize("trial", range(6))
def test_mul(ops, rng, trial):
    count, parts = length(rng, ops, trial), [affine(rng) for _ in range(3)]
    a, b = int8(rng, count), int8(rng, count)
    result = ops.elementwise("mul_i8", mul(*(Affine(*part) for part in parts), clip=(-90, 99)), a, b)
    (a_scale, a_zp), (b_scale, b_zp), (y_scale, y_zp) = parts
    product = (a.astype(np.int64) - a_zp) * (b.astype(np.int64) - b_zp)
    scale = np.float32(a_scale) * np.float32(b_scale) / np.float32(y_scale)
    expected = reference.narrow(reference.scaled(product, scale), y_zp, -90, 99)
    assert np.array_equal(result, expected), parts


@pytest.mark.parametrize("trial", range(3))
def test_table(ops, rng, trial):
    x, entries = int8(rng, length(rng, ops, trial)), rng.integers(-200, 200, 256)
    image = table_image(lambda value: int(entries[value + 128]))
    result = ops.elementwise("table_i8", table(), x, table=image)
    assert np.array_equal(result, np.clip(entries[x.astype(int) + 128], -128, 127))


@pytest.mark.parametrize("slope", [1.0, 0.1])
def test_requantize(ops, rng, slope):
    x, (a_scale, a_zp), (y_scale, y_zp) = int8(rng, 777), affine(rng), affine(rng)
    how = requantize(Affine(a_scale, a_zp), Affine(y_scale, y_zp), negative_slope=slope)
    centred = x.astype(np.int64) - a_zp
    above = reference.scaled(centred, a_scale / y_scale)
    below = reference.scaled(centred, slope * a_scale / y_scale)
    expected = reference.narrow(np.where(centred < 0, below, above), y_zp)
    assert np.array_equal(ops.elementwise("requantize_i8", how, x), expected)


def test_requantize_from_uint8(ops, rng):
    x = rng.integers(0, 256, 333, dtype=np.uint8)
    how = requantize(Affine(0.5, 128), Affine(0.5), a_dtype=Dtype.U8, rounding=Rounding.EVEN)
    assert np.array_equal(ops.elementwise("requantize_i8", how, x), x.astype(int) - 128)


def test_empty_tensor_is_rejected():
    with pytest.raises(InputError, match="at least one element, not 0"):
        elementwise_operands(load_target("n4"), Elementwise(), total=0, a=0, y=0)
