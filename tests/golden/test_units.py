"""Each unit of the golden model equals the element-by-element reference on random commands."""

import random
from importlib import import_module

import numpy as np
import pytest

from cosim.golden.dma import run_load, run_store
from cosim.golden.fuse import run_fuse
from cosim.golden.matrix import run_matrix
from cosim.golden.memory import Memories
from hw.config import MlaConfig
from hw.isa.enums import Unit
from tests.golden import reference
from tests.support.program_gen.commands import CommandRanges, attempt, config_of
from tests.support.program_gen.matrix import random_continued_pair

DRAM = (1024, 8192)
CASES = {Unit.LOAD: 150, Unit.STORE: 60, Unit.MATRIX: 40, Unit.FUSE: 150}


def small(n: int) -> MlaConfig:
    return MlaConfig(
        n=n, sp_bytes=16 * n * 16, acc_bytes=64 * n * 8, param_slots=4, table_slots=2, line_depth=64
    )


def fresh(config: MlaConfig, seed: int) -> tuple[Memories, dict]:
    """Return two copies of the same random memories, for the model and for the reference."""
    rng = np.random.default_rng(seed)
    memories = Memories(config, rng.integers(0, 256, 10240, np.uint8))
    for array in (memories.sp, memories.param, memories.table):
        array[:] = rng.integers(0, 256, array.size)
    memories.acc[:] = rng.integers(-(1 << 31), 1 << 31, memories.acc.shape)
    memories.acc[::2] >>= 20
    return memories, {
        "sp": memories.sp.tolist(),
        "acc": memories.acc.reshape(-1).tolist(),
        "param": memories.param.tolist(),
        "table": memories.table.tolist(),
        "dram": memories.dram.tolist(),
        "line": [],
    }


def check(memories: Memories, mem: dict, what: str) -> None:
    for name in ("sp", "param", "table", "dram"):
        assert getattr(memories, name).tolist() == mem[name], f"{name} differs after {what}"
    assert memories.acc.reshape(-1).tolist() == mem["acc"], f"acc differs after {what}"


@pytest.mark.parametrize("n", [4, 8, 16, 32])
@pytest.mark.parametrize("unit", list(Unit))
def test_unit_equals_reference(n: int, unit: Unit) -> None:
    config = small(n)
    for seed in range(CASES[unit] * 4 // n if n > 4 else CASES[unit]):
        rng = random.Random(f"{n}:{unit}:{seed}")
        command = attempt(CommandRanges(config, rng, DRAM), rng, unit)
        c = config_of(command)
        memories, mem = fresh(config, seed)
        what = f"{unit.name} n={n} seed={seed}: {command.values}"
        if unit == Unit.LOAD:
            planes = 1 if c.packed else c.z_count
            counted = run_load(memories, c)
            assert counted["load_bytes"] == (0 if c.fill else c.len * c.y_count * planes)
            assert counted.get("load_expanded", 0) == (2 * n * c.y_count * c.z_count if c.packed else 0)
            reference.load(mem, n, c)
        elif unit == Unit.STORE:
            run_store(memories, c)
            reference.store(mem, n, c)
        elif unit == Unit.MATRIX:
            assert run_matrix(memories, c) == reference.matrix(mem, n, c), what
        else:
            fuse = reference.Fuse(mem, n, c)
            fuse.run()
            counters, written = run_fuse(memories, c)
            assert counters == fuse.counters, what
            assert (written.rows, written.zeros, written.low, written.high) == fuse.statistics, what
        check(memories, mem, what)


@pytest.mark.parametrize("n", [4, 8])
def test_depthwise_streams_continue(n: int) -> None:
    config = small(n)
    done = 0
    for seed in range(400):
        rng = random.Random(f"{n}:{seed}")
        pair = random_continued_pair(CommandRanges(config, rng, DRAM), rng)
        if not pair:
            continue
        done += 1
        memories, mem = fresh(config, seed)
        for command in pair.commands:
            run_matrix(memories, config_of(command))
            reference.matrix(mem, n, config_of(command))
        check(memories, mem, f"n={n} seed={seed}")
    assert done > 20


@pytest.mark.parametrize("n", [4, 8])
def test_fuse_result_is_independent_of_chunk_size(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(n)
    for seed in range(40):
        rng = random.Random(seed)
        c = config_of(attempt(CommandRanges(config, rng, DRAM), rng, Unit.FUSE))
        whole, _ = fresh(config, seed)
        blocks, _ = fresh(config, seed)
        expected = run_fuse(whole, c)
        monkeypatch.setattr(import_module("cosim.golden.fuse"), "_CHUNK_ELEMENTS", 1)
        assert run_fuse(blocks, c) == expected
        monkeypatch.undo()
        assert np.array_equal(whole.sp, blocks.sp)
        assert np.array_equal(whole.acc, blocks.acc)
