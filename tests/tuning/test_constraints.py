"""Searches avoid transformations that users forbid, and respect limits on the machine's resources."""

import random
from dataclasses import fields, replace

import numpy as np
import pytest

from compiler.commands.commands import BufferMemory
from compiler.options import CompileOptions, MemoryLimits
from compiler.pipeline import CompilationTrace, ModelCompiler
from compiler.schedule.program_override import ProgramText
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.constraints import TRANSFORMATIONS, Constraints
from compiler.tuning.layer_space import spaces_of
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import METHODS
from compiler.tuning.search.tuner import tune
from hw.config import load_target
from hw.errors import InputError

GRAPH = CalibrationNetwork(
    (12, 12, 32), (CalibrationOp("conv", 64, 3), CalibrationOp("depthwise", 0, 3), CalibrationOp("conv", 32))
).graph(3)
N16 = load_target("n16")


def test_every_field_of_a_schedule_belongs_to_one_transformation() -> None:
    names = [name for each in TRANSFORMATIONS.values() for name in each]
    assert sorted(names) == sorted(item.name for item in fields(LayerSchedule))


def test_violated_constraint_is_named() -> None:
    first = Schedule((("a", "b"),), {"a": LayerSchedule()})
    assert Constraints().violation(Schedule(), first) is None
    everything = Constraints(frozenset(TRANSFORMATIONS))
    assert everything.violation(first, first) is None
    assert everything.violation(Schedule((), first.layers), first) == "chain"
    text = {"a": ProgramText("", "")}
    assert everything.violation(replace(first, programs=text), first) == "micro-program"
    for name, value in (("rows", 3), ("interleave", True), ("prefetch", 9), ("fold_kernel_width", True)):
        other = replace(first, layers={"a": replace(LayerSchedule(), **{name: value})})
        violation = everything.violation(other, first)
        assert violation is not None and name in TRANSFORMATIONS[violation]
    with pytest.raises(InputError, match=r"a transformation is one of tiling, order, .* not 'luck'"):
        Constraints(frozenset({"luck"}))


def test_former_names_of_transformations_are_accepted() -> None:
    former = Constraints(frozenset({"ramp", "planes", "turns", "program", "tag"}))
    assert former.forbidden == {
        "split_tiles",
        "channel_blocks",
        "interleave",
        "same_program",
        "counter_tag",
    } and former == Constraints(former.forbidden)


def test_spaces_preserve_frozen_fields() -> None:
    prepared = ModelCompiler(GRAPH, N16, CompileOptions(rounding="reference"))
    first = prepared.network().schedule
    kept = Constraints(frozenset({"tiling", "buffers", "on_chip"})).frozen_fields
    seed = 11
    print(f"seed {seed}")
    rng, changed = random.Random(seed), set()
    for name, space in spaces_of(
        N16, prepared.lowered(first.fusions), CompileOptions(rounding="reference").dram, kept
    ).items():
        for _ in range(60):
            for made in (space.change(rng, first.layers[name]), space.draw(rng, first.layers[name])):
                other = {f for f in vars(made) if getattr(made, f) != getattr(first.layers[name], f)}
                assert not other & kept
                changed |= other
    assert changed


@pytest.mark.parametrize("method", METHODS)
def test_every_method_respects_constraints(measurer: Measurer, method: str) -> None:
    constraints = Constraints(frozenset({"tiling", "program", "turns", "micro-program", "chain"}))
    found = tune(measurer, method, 6, seed=3, constraints=constraints)
    first = measurer.first.schedule
    assert all(constraints.violation(trial.schedule, first) is None for trial in found.trials)


def test_search_stops_at_time_limit(measurer: Measurer) -> None:
    found = tune(measurer, "random", 5, seed=3, seconds=1e-9)
    assert not found.trials and found.curve == [(0, float(found.baseline.cycles))]


@pytest.mark.parametrize(("sp", "acc"), [(65536, None), (100_000, 20_000), (40_000, 8192)])
def test_memory_limits_are_respected(sp: int, acc: int | None) -> None:
    inputs = {"x1": np.random.default_rng(1).integers(-128, 128, (1, 12, 12, 32)).astype(np.int8)}
    expected = ModelCompiler(GRAPH, N16, CompileOptions(rounding="reference")).network()
    record = CompilationTrace()
    limited = ModelCompiler(GRAPH, N16, CompileOptions(rounding="reference", limits=MemoryLimits(sp, acc)))
    network = limited.network(None, record)
    assert network.config == N16 and all(code.config == N16 for code in network.codes)
    (stream,) = record.streams
    ends: dict[str, int] = {}
    for ring, start in stream.starts.items():
        ends[ring.memory.value] = max(ends.get(ring.memory.value, 0), start + ring.total)
    assert ends[BufferMemory.SP.value] <= sp and 4 * N16.n * ends[BufferMemory.ACC.value] <= (
        acc or N16.acc_bytes
    )
    found, right = network(**inputs), expected(**inputs)
    assert all(np.array_equal(found[name], right[name]) for name in right)


def test_invalid_memory_limits_are_rejected() -> None:
    with pytest.raises(InputError, match="the limit of the scratchpad must be at least 512 bytes, not 511"):
        MemoryLimits(sp_bytes=511).within(N16)
    with pytest.raises(
        InputError, match="the limit of the accumulator must be at least 2,048 bytes, not 100"
    ):
        MemoryLimits(acc_bytes=100).within(N16)
    assert MemoryLimits(512, 2048).within(N16).sp_bytes == 512 and MemoryLimits(1 << 30).within(N16) == N16
    with pytest.raises(InputError, match=r"the network needs .* bytes of DRAM, but the limit is 1,000"):
        ModelCompiler(
            GRAPH, N16, CompileOptions(rounding="reference", limits=MemoryLimits(dram_bytes=1000))
        ).network()
