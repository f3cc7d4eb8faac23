"""The FUSE unit gives the same results as the plain integer reference."""

import random

import numpy as np
import pytest

from hw.config import MlaConfig
from tests.block.fuse.commands import random_command
from tests.block.fuse.testbench import FuseTestbench
from tests.numerics.reference import Machine

SMALL = {"param_slots": 8, "table_slots": 2, "sp_bytes": 16384, "acc_bytes": 16384}


#: Values of a command that leaves the pipeline after step 3.
EARLY = {"residual": 0, "table2": 0, "reduce": 0, "lane_reduce": 0, "post": 0}


def check(
    config: MlaConfig, seed: int, count: int, refuse: float, most_points: int = 32, early: float = 0.0
) -> None:
    """Compare random commands, of which a share leaves the pipeline early, with the reference."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    bench = FuseTestbench(config, rng, refuse)
    model = Machine(config.n, bench.sp.copy(), bench.acc.copy(), bench.params, bench.tables)
    sizes = config.sp_bytes, config.acc_rows, config.param_slots, config.table_slots
    commands = [
        random_command(rng, config.n, *sizes, most_points) | (EARLY if rng.random() < early else {})
        for _ in range(count)
    ]
    expected = [model.run(command) for command in commands]
    bench.run(commands)
    for number, (want, got) in enumerate(zip(expected, bench.finished, strict=True)):
        command = commands[number]
        assert got.tag == number % 64
        assert got.statistics == want.statistics, (number, command)
        assert got.events["fuse_points"] == want.points
        assert got.events["fuse_results"] == want.rows
        assert got.events["fuse_saturations"] == want.saturations, (number, command)
        assert got.events["fuse_scaled"] == want.points * (command["requant"] != 0)
        assert got.events["fuse_tables"] == want.points * (command["table"] or command["table2"])
        assert got.events["fuse_residuals"] == want.points * command["residual"]
        assert got.events["fuse_reduced"] == want.points * bool(command["reduce"] or command["lane_reduce"])
    assert np.array_equal(bench.sp, model.sp)
    assert np.array_equal(bench.acc, model.acc)


@pytest.mark.parametrize(
    ("n", "rate", "pipelined", "seed", "refuse"),
    [
        (4, 1, 0, 1, 0.0),
        (4, 1, 0, 2, 0.3),
        (4, 2, 0, 3, 0.2),
        (8, 4, 0, 4, 0.2),
        (8, 8, 0, 5, 0.2),
        (8, 4, 1, 6, 0.0),
        (8, 8, 1, 7, 0.2),
    ],
)
def test_random_commands(n: int, rate: int, pipelined: int, seed: int, refuse: float) -> None:
    config = MlaConfig(n=n, fuse_rate=rate, serial_commands=pipelined, pipelined=pipelined, **SMALL)
    check(config, seed, 12, refuse)


@pytest.mark.parametrize(
    ("n", "rate", "pipelined", "seed", "refuse"), [(4, 1, 0, 8, 0.0), (4, 2, 0, 9, 0.2), (8, 8, 1, 10, 0.1)]
)
def test_commands_that_leave_early_among_others(
    n: int, rate: int, pipelined: int, seed: int, refuse: float
) -> None:
    """Short commands follow each other closely, so that both kinds are in the pipeline together."""
    config = MlaConfig(n=n, fuse_rate=rate, serial_commands=pipelined, pipelined=pipelined, **SMALL)
    check(config, seed, 40, refuse, most_points=3, early=0.6)
