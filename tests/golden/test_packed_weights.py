"""Packed weights: the decoder and the encoder agree with a decoder that reads bit by bit."""

import random

import numpy as np
import pytest

from cosim.semantics.packed_weights import expand, pack, packed_bytes
from tests.support.packed_reference import unpacked


@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_any_line_expands_as_defined(n: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(100):
        line = bytearray(rng.randbytes(rng.randrange(1, 12 * n)))
        if rng.random() < 0.5:
            line[0] = rng.randrange(9) * 17
        groups = rng.randrange(1, 12)
        found = expand(np.frombuffer(bytes(line), np.uint8), groups, n)
        assert found.tolist() == unpacked(bytes(line), groups, n)


@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_packed_lines_expand_to_the_data(n: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for _ in range(100):
        groups = int(rng.integers(1, 20))
        limits = 1 << rng.integers(0, 8, (2 * groups, 1))
        data = rng.integers(-limits, limits, (2 * groups, n)).astype(np.int8)
        data[rng.random(2 * groups) < 0.2] = 0
        raw = data.reshape(-1).view(np.uint8)
        line = pack(raw, n)
        assert unpacked(line.tobytes(), groups, n) == raw.tolist()
        assert line.size == packed_bytes(raw, n) <= groups * (2 * n + 1)


def test_each_width_is_the_smallest_one() -> None:
    for width in range(9):
        low, high = (-(1 << width >> 1), (1 << width >> 1) - 1) if width else (0, 0)
        for value in {low, high}:
            needed = 0 if value == 0 else width
            data = np.array([value] + 15 * [0] + 16 * [0], np.int8).view(np.uint8)
            assert pack(data, 16)[0] == needed, (width, value)
