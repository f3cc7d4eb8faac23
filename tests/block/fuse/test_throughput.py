"""FUSE commands take the documented number of cycles per row."""

import random
from itertools import pairwise

import pytest

from hw.config import MlaConfig
from hw.fuse.pipeline import early_latency, latency
from tests.block.fuse.commands import defaults
from tests.block.fuse.testbench import FuseTestbench

CONFIG = {"n": 4, "param_slots": 8, "table_slots": 1, "sp_bytes": 16384, "acc_bytes": 16384}
ROWS = 40


def drain(number: int) -> dict[str, int]:
    """Return a command that drains a convolution: accumulator, slot parameters, int8 residual, int8 result."""
    return defaults() | {
        "a_src": 0,
        "requant": 1,
        "bias_en": 1,
        "residual": 1,
        "d_dst": 1,
        "d_dtype": 0,
        "x_count": ROWS,
        "a_v": 1,
        "a_base": ROWS * number,
        "r_base": 1024,
        "r_x": 4,
        "d_base": 8192,
        "d_x": 4,
        "p_base": number,
    }


def finished(commands: list[dict[str, int]], rate: int = 1) -> list[int]:
    """Return the cycles at which commands retire."""
    bench = FuseTestbench(MlaConfig(**CONFIG | {"n": max(4, rate)}, fuse_rate=rate), random.Random(1))
    bench.run(commands)
    return [f.cycle for f in bench.finished]


def spacing(commands: list[dict[str, int]], rate: int = 1) -> list[int]:
    """Return the cycles between the retirements of successive commands."""
    return [b - a for a, b in pairwise(finished(commands, rate))]


@pytest.mark.parametrize("rate", [1, 2, 4, 8])
def test_drain_rate_within_and_across_commands(rate: int) -> None:
    assert spacing([drain(i) for i in range(5)], rate) == [ROWS * rate] * 4


CHANGES = [
    ({"a_src": 1, "a_dtype": 2}, 3),  # two reads of A, one of the residual
    ({"a_src": 1, "a_dtype": 3, "residual": 0}, 4),
    ({"b_src": 1, "op": 1, "b_x": 1}, 2),  # two accumulator reads
    ({"b_src": 2, "op": 1, "b_x": 0}, 1),  # one read of B
    ({"d_dtype": 2, "d_x": 8}, 2),
    ({"d_dtype": 3, "d_x": 16}, 4),
    ({"d_dst": 0, "d_base": 512, "d_x": 1}, 1),
]


def test_each_extra_access_takes_one_cycle() -> None:
    got = spacing([drain(i) | change for change, _ in CHANGES for i in range(4)])
    for number, (change, cycles) in enumerate(CHANGES):
        # From the third command of a kind on, the pipeline holds no command of the previous kind.
        assert abs(got[4 * number + 2] - ROWS * cycles) <= 1, (change, got)


def test_short_commands_overlap() -> None:
    assert max(spacing([drain(0) | {"x_count": 12}] * 10)) <= 13


def test_commands_without_late_steps_leave_early() -> None:
    """A command that follows another one of its kind, or none, saves the stages after step 3."""
    early = drain(0) | {"residual": 0, "x_count": 1}
    whole = drain(0) | {"x_count": 1}
    saved = latency(MlaConfig(**CONFIG)) - early_latency()
    assert saved > 10
    for others in ([], [early]):
        (first, *_), (second, *_) = (finished([*others, each])[::-1] for each in (early, whole))
        assert second - first == saved
    # Behind a command that takes all steps, it takes them as well.
    first, second = finished([whole, early])
    assert second - first == finished([whole, whole])[1] - finished([whole])[0]
