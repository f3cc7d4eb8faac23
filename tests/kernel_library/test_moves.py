"""Tests of the library's transpose and copy."""

import numpy as np
import pytest

from compiler.kernel_library.elementwise import copy_operands, transpose_operands
from hw.config import load_target
from hw.errors import InputError
from tests.kernel_library.shapes import int8, size


@pytest.mark.parametrize("trial", range(6))
def test_transpose(ops, rng, trial):
    x = int8(rng, *((1, 1) if trial == 0 else (size(rng, ops.config.n, 300), size(rng, ops.config.n, 90))))
    assert np.array_equal(ops.transpose(x), x.T), x.shape


def test_transpose_in_several_steps(ops, rng):
    rows = ops.config.sp_bytes // (2 * ops.config.n) + ops.config.n + 1
    x = int8(rng, rows, 3)
    assert np.array_equal(ops.transpose(x), x.T)


@pytest.mark.parametrize("trial", range(6))
def test_copy(ops, rng, trial):
    x = int8(rng, int(rng.integers(1, 4)), int(rng.integers(1, 90)), int(rng.integers(1, 200)))
    assert np.array_equal(ops.copy(x), x), x.shape


def test_strided_copy(ops, rng):
    x, mark = int8(rng, 4, 9, 7), ops.driver.memory.mark()
    y = ops.driver.put(np.full((4, 9, 7), 99, np.int8))
    operands = copy_operands(
        ops.config,
        x=ops.driver.put(x),
        y=y,
        length=3,
        lines=5,
        planes=2,
        x_strides=(14, 63),
        y_strides=(7, 126),
    )
    ops.enqueue("copy", operands)
    ops.driver.run()
    expected = np.full((4, 9, 7), 99, np.int8)
    expected[[0, 2], :5, :3] = x[:2, ::2, :3]
    assert np.array_equal(ops.driver.fetch(y, (4, 9, 7)), expected)
    ops.driver.memory.release(mark)


def test_too_large_sizes_are_rejected():
    with pytest.raises(InputError, match="rows and columns must be in"):
        transpose_operands(load_target("n4"), x=0, y=0, rows=0, cols=1)
    with pytest.raises(InputError, match="lines of at most 32768 bytes"):
        copy_operands(load_target("n4"), x=0, y=0, length=1 << 16)
