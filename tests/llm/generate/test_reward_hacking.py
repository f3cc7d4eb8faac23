"""Programs that save cycles by omitting work are rejected, each by the intended check."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement, Rejected, Result
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target

FIRST, SECOND, POOL = "conv2d t4", "conv2d t7", "max_pool2d t8"


@pytest.fixture
def measurer() -> Iterator[Measurer]:
    """Yield a measurer of two convolutions and a pool that hides most of their results.

    Each test has a separate measurer, since the inputs of a measurement depend on the earlier measurements.
    """
    graph = CalibrationNetwork(
        (6, 6, 8),
        (CalibrationOp("conv", 8, 3), CalibrationOp("conv", 8, 3), CalibrationOp("max_pool", 0, 3, 3)),
    ).graph(5)
    with Measurer(
        graph, HardwareProfile(load_target("n4")), CompileOptions(rounding="reference"), devices=1
    ) as made:
        made.baseline()
        yield made


@pytest.fixture
def task(measurer: Measurer) -> GeneratorTask:
    """Return a task with one program per layer and one tile per program."""
    layers = {
        name: replace(
            layer,
            same_program_as_previous=False,
            split_first_tile=False,
            split_last_tile=False,
            rows=6,
            rows_per_load=6,
            columns=2,
            depth=2,
        )
        for name, layer in measurer.first.schedule.layers.items()
    }
    schedule = replace(measurer.first.schedule, layers=layers)
    (measured,) = measurer.measure([schedule])
    assert isinstance(measured, Measurement) and list(layers) == [FIRST, SECOND, POOL]
    return GeneratorTask(measurer.prepared, measurer.conditions, schedule, tuple(layers), measured)


def measure_edited(measurer: Measurer, task: GeneratorTask, program: str, *edits: tuple[str, str]) -> Result:
    """Measure a program with fragments of its text replaced. Fragments may span lines; comments are removed."""
    text = re.sub(r" *;.*", "", task.programs[program])
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    (result,) = measurer.measure([task.with_texts({program: text}, "test", "edited").schedule])
    return result


def test_omitted_command_is_rejected(measurer: Measurer, task: GeneratorTask) -> None:
    """A program without the given command is rejected: the pool would read stale scratchpad contents."""
    result = measure_edited(
        measurer, task, SECOND, ("    issue fuse, wait(load:0, matrix:0), signal(fuse:0)\n", "")
    )
    assert isinstance(result, Rejected) and result.stage == "validate"


def test_reading_back_the_previous_result_is_rejected(measurer: Measurer, task: GeneratorTask) -> None:
    """A program that reads back the previous result from DRAM, which is correct only for a constant input, is
    rejected.
    """
    (size,) = re.findall(r"set store.len, (\d+)", task.programs[POOL])
    read = f"set load.word, default\n set load.dram, r0, op2\n set load.dst, 12000\n set load.len, {size}\n"
    read += "set load.y_count, 1\n issue load, signal(store:0)\n"
    result = measure_edited(
        measurer,
        task,
        POOL,
        ("set store.dram", f"{read} set store.dram"),
        ("store.src, 8768", "store.src, 12000"),
        ("issue store, wait(fuse:0)", "issue store, wait(fuse:0, load:0)"),
    )
    assert isinstance(result, Measurement) and not result.exact, result


def test_errors_hidden_in_the_outputs_are_rejected(measurer: Measurer, task: GeneratorTask) -> None:
    """Clipping negative values is detected, although the maximum of nine values is rarely negative."""
    result = measure_edited(measurer, task, SECOND, ("set fuse.clip_lo, -128", "set fuse.clip_lo, -20"))
    assert isinstance(result, Rejected) and result.stage == "same", result
    assert re.search(
        r"program '.*' writes wrong values to tensor '.*': \d+ of \d+ bytes differ, the first at offset",
        result.reason,
    )


def test_errors_that_random_inputs_do_not_reach_are_rejected(measurer: Measurer, task: GeneratorTask) -> None:
    """Clipping the maximum is detected, although no sum of random inputs reaches it."""
    result = measure_edited(measurer, task, FIRST, ("set fuse.clip_hi, 127", "set fuse.clip_hi, 126"))
    assert isinstance(result, Rejected) and result.stage == "same", result
    assert re.search(
        r"program '.*' writes wrong values to tensor '.*': \d+ of \d+ bytes differ, the first at offset",
        result.reason,
    )


def test_cycles_attributed_to_another_layer_are_rejected(measurer: Measurer, task: GeneratorTask) -> None:
    for edit in (
        ("tag 1", "tag 0"),
        ("tag 1\n", "\n"),
        ("halt", "tag 0\n    halt"),
        ("tag 1", "add r1, op0, 0\n    tag r1"),
    ):
        result = measure_edited(measurer, task, SECOND, edit)
        assert isinstance(result, Rejected) and result.stage == "compile"
        assert "must be counted for the same layers" in result.reason, result


def test_access_to_counters_is_rejected(measurer: Measurer, task: GeneratorTask) -> None:
    for line in ("set counter.cycles, 0", "csr COUNTER_SELECT, 0"):
        result = measure_edited(measurer, task, SECOND, ("halt", f"{line}\n    halt"))
        assert isinstance(result, Rejected) and result.stage == "compile"


def test_fewer_cycles_than_the_lower_bound_are_not_believed(measurer: Measurer, task: GeneratorTask) -> None:
    """A measurement below the lower bound is rejected, as for a program that sums over only one of two channel
    blocks.
    """
    for program in (FIRST, SECOND):
        result = measure_edited(measurer, task, program, ("set matrix.ic_count, 2", "set matrix.ic_count, 1"))
        assert isinstance(result, Measurement) and not result.valid
    fast = replace(task.measured, cycles=task.measured.floor - 1)
    assert fast.exact and not fast.valid
