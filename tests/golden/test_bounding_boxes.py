"""Overlap tests of the boxes of two commands miss no overlap, and are exact for interleaved channel blocks."""

import random
from itertools import product

import pytest

from cosim.semantics.bounding_box import BoundingBox, box


def touched(base: int, steps: list[tuple[int, int]], width: int) -> set[int]:
    """Return every address unit that a walk touches."""
    at = (
        base + sum(i * stride for i, (_, stride) in zip(index, steps, strict=True))
        for index in product(*(range(count) for count, _ in steps))
    )
    return {unit + i for unit in at for i in range(width)}


def walk(rng: random.Random) -> tuple[int, list[tuple[int, int]], int]:
    steps = [
        (rng.randint(1, 5), rng.choice((-24, -8, 0, 1, 2, 4, 6, 8, 12, 16, 24, 48)))
        for _ in range(rng.randint(0, 3))
    ]
    return rng.randint(0, 60), steps, rng.randint(1, 9)


@pytest.mark.parametrize("seed", range(20))
def test_disjoint_boxes_share_no_address(seed: int) -> None:
    rng = random.Random(seed)
    apart = 0
    for _ in range(500):
        first, second = walk(rng), walk(rng)
        a, b = box("sp", *first), box("sp", *second)
        share = not touched(*first).isdisjoint(touched(*second))
        assert a.meets(b) == b.meets(a)
        assert a.meets(b) or not share, (first, second)
        apart += not a.meets(b) and a.low <= b.high and b.low <= a.high
    assert apart  # boxes separate some walks whose ranges overlap


def test_interleaved_channel_blocks_do_not_meet() -> None:
    pixels, channels, n = 30, 64, 16
    blocks = [box("sp", 7 + block * n, [(pixels, channels)], n) for block in range(channels // n)]
    assert not any(a.meets(b) for i, a in enumerate(blocks) for b in blocks[:i])
    assert all(a.meets(box("sp", 7, [(pixels * channels, 1)], 1)) for a in blocks)
    assert not blocks[0].meets(BoundingBox("sp", 7 + n, 7 + channels - 1))
    assert blocks[0].meets(BoundingBox("sp", 7 + n, 7 + channels))
    assert not blocks[0].meets(BoundingBox("acc", 0, 1000))


def test_lines_within_gap_of_strided_walk() -> None:
    """A walk over a few close lines fits into a gap of another walk, although their strides have a common divisor."""
    strips = box("sp", 9, [(32, 90), (2, 16)], 16)
    assert not strips.meets(box("sp", 57, [(2, 9)], 6, True))
    assert strips.meets(box("sp", 57, [(6, 9)], 6, True))
