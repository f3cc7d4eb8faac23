"""Programs that would look fast without doing their work are caught, each by the check that is meant for it."""

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
    """Of two convolutions and a pool that hides most of what they make; each test's own.

    So a test's inputs, which are others in each measurement, do not depend on which tests ran before.
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
    """A program for each layer, one tile in each."""
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


def tried(measurer: Measurer, task: GeneratorTask, program: str, *edits: tuple[str, str]) -> Result:
    """What comes of a program with pieces of its text replaced; a piece may span lines, comments left out."""
    text = re.sub(r" *;.*", "", task.programs[program])
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    (result,) = measurer.measure([task.with_texts({program: text}, "test", "edited").schedule])
    return result


def test_work_left_out_and_never_written(measurer: Measurer, task: GeneratorTask) -> None:
    """The pool would find what another network, or the last sample, has left in the scratchpad."""
    result = tried(measurer, task, SECOND, ("    issue fuse, wait(load:0, matrix:0), signal(fuse:0)\n", ""))
    assert isinstance(result, Rejected) and result.stage == "validate"


def test_the_last_answer_read_back(measurer: Measurer, task: GeneratorTask) -> None:
    """The result's place in DRAM still has that of the sample before: right as long as the input stays."""
    (size,) = re.findall(r"set store.len, (\d+)", task.programs[POOL])
    read = f"set load.word, default\n set load.dram, r0, op2\n set load.dst, 12000\n set load.len, {size}\n"
    read += "set load.y_count, 1\n issue load, signal(store:0)\n"
    result = tried(
        measurer,
        task,
        POOL,
        ("set store.dram", f"{read} set store.dram"),
        ("store.src, 8768", "store.src, 12000"),
        ("issue store, wait(fuse:0)", "issue store, wait(fuse:0, load:0)"),
    )
    assert isinstance(result, Measurement) and not result.exact, result


def test_work_that_the_outputs_do_not_show(measurer: Measurer, task: GeneratorTask) -> None:
    """Negative numbers clipped away: the greatest of nine is hardly ever one of them."""
    result = tried(measurer, task, SECOND, ("set fuse.clip_lo, -128", "set fuse.clip_lo, -20"))
    assert isinstance(result, Rejected) and result.stage == "same", result
    assert re.search(
        r"program '.*' writes wrong values to tensor '.*': \d+ of \d+ bytes differ, the first at offset",
        result.reason,
    )


def test_a_lucky_input(measurer: Measurer, task: GeneratorTask) -> None:
    """Right for every sum that random inputs come to, wrong for the greatest."""
    result = tried(measurer, task, FIRST, ("set fuse.clip_hi, 127", "set fuse.clip_hi, 126"))
    assert isinstance(result, Rejected) and result.stage == "same", result
    assert re.search(
        r"program '.*' writes wrong values to tensor '.*': \d+ of \d+ bytes differ, the first at offset",
        result.reason,
    )


def test_cycles_that_count_for_another_layer(measurer: Measurer, task: GeneratorTask) -> None:
    for edit in (
        ("tag 1", "tag 0"),
        ("tag 1\n", "\n"),
        ("halt", "tag 0\n    halt"),
        ("tag 1", "add r1, op0, 0\n    tag r1"),
    ):
        result = tried(measurer, task, SECOND, edit)
        assert isinstance(result, Rejected) and result.stage == "compile"
        assert "must be counted for the same layers" in result.reason, result


def test_counters_are_out_of_reach(measurer: Measurer, task: GeneratorTask) -> None:
    for line in ("set counter.cycles, 0", "csr COUNTER_SELECT, 0"):
        result = tried(measurer, task, SECOND, ("halt", f"{line}\n    halt"))
        assert isinstance(result, Rejected) and result.stage == "compile"


def test_less_time_than_the_work_takes(measurer: Measurer, task: GeneratorTask) -> None:
    """Sums over one block of channels in place of two."""
    for program in (FIRST, SECOND):
        result = tried(measurer, task, program, ("set matrix.ic_count, 2", "set matrix.ic_count, 1"))
        assert isinstance(result, Measurement) and not result.valid
    fast = replace(task.measured, cycles=task.measured.floor - 1)
    assert fast.exact and not fast.valid
