"""MATRIX has exactly the expected throughput and latency."""

import random
from dataclasses import replace

import numpy as np
import pytest

from hw.config import MlaConfig
from hw.units.matrix.layouts import done_after
from tests.block.units.matrix.reference import Reference, command
from tests.block.units.matrix.testbench import MatrixTestbench, Observations, fresh_memories, small_config

SIZES = (4, 8)


def observe(n: int, commands: list[dict[str, int]], config: MlaConfig | None = None) -> Observations:
    """Run the commands, check the result, and return the observations."""
    sp, acc = fresh_memories(n, np.random.default_rng(1))
    reference = Reference(n, sp, acc.copy())
    for c in commands:
        reference.run(c)
    seen = MatrixTestbench(n, sp, acc, config=config).run(commands)
    np.testing.assert_array_equal(seen.acc, reference.acc)
    assert not any(s["wait_weights"] for s in seen.states)
    return seen


def gaps(cycles: list[int]) -> set[int]:
    return set(np.diff(cycles).tolist())


@pytest.mark.parametrize("n", SIZES)
def test_latency(n: int):
    for k in (1, 2, n):
        seen = observe(n, [command(k_rows=k, x_count=5, a_v=n, w_row=n, acc_x=1)])
        fetched = -(-k // 2) if n > 5 else k  # in pairs of rows, if there are fewer than n activation rows
        assert seen.entered == list(range(seen.accepted[0] + fetched + 3, seen.entered[0] + 5))
        assert seen.done == [seen.entered[-1] + done_after(n)]
        assert [s["in_flight"] for s in seen.states] == [
            int(seen.entered[0] < c <= seen.done[0]) for c in range(len(seen.states))
        ]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("transposes", [(0,), (1,), (0, 1)])
def test_single_rows(n: int, transposes: tuple[int, ...]):
    """A matrix-vector product takes n / 2 cycles per tile, within a command and across commands."""
    tiles = [
        command(w_base=n * n * i, w_row=n, w_transpose=transposes[i % len(transposes)], acc_base=i % 3)
        for i in range(12)
    ]
    assert gaps(observe(n, tiles).entered) == {n // 2}
    long = [
        command(
            ic_count=6, w_ic=n * n, w_row=n, a_ic=n, accumulate=1, w_transpose=transposes[i % len(transposes)]
        )
        for i in range(3)
    ]
    assert gaps(observe(n, long).entered) == {n // 2}


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("change", ["w_row", "w_base", "w_ic"])
def test_unpaired_rows(n: int, change: str):
    """Rows that are not adjacent, or tiles that begin within a row, are read one row per cycle."""
    c = {"ic_count": 6, "w_ic": n * n, "w_row": n, "w_base": 0, "a_ic": n, "accumulate": 1}
    c[change] += 2 * n if change == "w_row" else 1
    assert gaps(observe(n, [command(**c)] * 3).entered) == {n}


@pytest.mark.parametrize("n", SIZES)
def test_one_row_of_weights_per_cycle(n: int):
    config = replace(small_config(n), weight_rows=1)
    tiles = [command(w_base=n * n * i, w_row=n, acc_base=i % 3) for i in range(6)]
    assert gaps(observe(n, tiles, config).entered) == {n}


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("rows", [(1, 0), (0, 0), (0, 3), (2, 1)])
def test_no_bubble(n: int, rows: tuple[int, int]):
    """With n or more rows per tile, one row starts in each cycle across tiles, blocks and commands, transposed or
    not.
    """
    x, y = n + rows[0], 1 + rows[1]
    commands = [
        command(
            x_count=x,
            y_count=y,
            kx_count=2,
            ic_count=2,
            oc_count=2,
            w_row=n,
            w_kx=64,
            w_ic=99,
            w_oc=31,
            a_u=64,
            a_v=n,
            acc_x=1,
            acc_y=x,
            w_transpose=i % 2,
        )
        for i in range(3)
    ]
    seen = observe(n, commands)
    assert len(seen.entered) == 3 * 8 * x * y
    assert gaps(seen.entered) == {1}
    assert all(
        d - e == done_after(n)
        for d, e in zip(seen.done, seen.entered[8 * x * y - 1 :: 8 * x * y], strict=True)
    )


@pytest.mark.parametrize("n", SIZES)
def test_fewer_rows(n: int):
    """Tiles with fewer than n rows start n / 2 cycles apart, or as many as they have rows."""
    for rows in (3, n - 1):
        c = command(x_count=rows, ic_count=4, w_row=n, w_ic=n * n, a_v=n, acc_x=1)
        assert gaps(observe(n, [c] * 3).entered[::rows]) == {max(n // 2, rows)}


@pytest.mark.parametrize("n", SIZES)
def test_depthwise(n: int):
    """A stream takes dw_len cycles, also across blocks of channels, commands and mode changes."""
    taps, groups, period = 2, 2, 6
    lead = period + 1
    shape = {"dw": 1, "taps": taps, "groups": groups, "x_count": period, "dw_out_w": period}
    one = shape | {
        "dw_lead": lead,
        "dw_len": lead + 4 * period,
        "a_v": n,
        "w_row": n,
        "acc_x": 1,
        "acc_y": period,
    }
    plain = command(x_count=2 * n, w_row=n, a_v=n, acc_x=1)
    more = one | {"keep": 1, "dw_lead": taps - 1}
    commands = [
        command(**one, oc_count=3, a_oc=5),
        command(**one),
        plain,
        command(**more),
        command(**more),
        plain,
        command(**one),
    ]
    seen = observe(n, commands)
    assert gaps(seen.entered) == {1}


@pytest.mark.parametrize("n", SIZES)
def test_depthwise_gaps(n: int):
    """The gap is taps - lead if the first sums use pixels before the stream, and n + 1 for a new kernel shape."""
    shape = {"dw": 1, "taps": 3, "groups": 1, "x_count": 6, "dw_out_w": 6}
    one = shape | {"dw_len": 12, "a_v": n, "w_row": n, "acc_x": 1}
    seen = observe(n, [command(**one), command(**one, keep=1), command(**one, oc_count=2, dw_lead=1)])
    assert np.diff(seen.entered)[11::12].tolist() == [3, 2, 2]
    seen = observe(n, [command(**one, dw_lead=2), command(**one | {"taps": 2}, dw_lead=2)])
    assert np.diff(seen.entered)[11] == n + 1


@pytest.mark.parametrize("n", SIZES)
def test_done_is_visible(n: int):
    """FUSE may read a row in the cycle in which `done` reports it, but not earlier."""
    rng = random.Random(n)
    sp, acc = fresh_memories(n, np.random.default_rng(2))
    c = command(x_count=rng.randrange(1, 9), a_v=n, w_row=n, acc_x=1, acc_base=5)
    reference = Reference(n, sp, acc.copy())
    reference.run(c)
    last = 5 + c["x_count"] - 1
    done = MatrixTestbench(n, sp, acc).run([c]).done[0]
    early, late = (
        MatrixTestbench(n, sp, acc, peek=(done + shift, last)).run([c]).peeked for shift in (-1, 0)
    )
    np.testing.assert_array_equal(late, reference.acc[last])
    np.testing.assert_array_equal(early, acc[last])


def test_refused_weights():
    """A tile reports cycles in which it waits for refused weight reads, and shifts no weights in these cycles."""
    n = 4
    sp, acc = fresh_memories(n, np.random.default_rng(3))
    commands = [command(ic_count=8, w_row=n, w_ic=16) for _ in range(2)]
    seen = MatrixTestbench(n, sp, acc, refuse_weight=0.7, seed=3).run(commands)
    assert any(s["wait_weights"] for s in seen.states)
    assert not any(s["wait_weights"] and s["weight_shift"] for s in seen.states)
