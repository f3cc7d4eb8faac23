"""Timelines of commands respect queues, semaphores and the memory, and agree with cycles measured on the RTL."""

from itertools import pairwise, product

import pytest

from compiler.codegen.executable import CommandStream
from compiler.cost.timeline import fuse_cycles, timeline, timeline_cycles, waits
from compiler.options import DEFAULT_DRAM, CompileOptions, DramTiming
from compiler.pipeline import CompilationTrace, ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.measure.measurer import Measurer
from cosim.semantics.command_fields import CommandFields, unpack_fields
from hw.config import load_target
from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import BSource, Unit

CHAIN = CalibrationNetwork(
    (12, 12, 16), (CalibrationOp("conv", 48, 3), CalibrationOp("depthwise", 0, 3), CalibrationOp("conv", 24))
)
DENSE = CalibrationNetwork((1, 1, 64), tuple(CalibrationOp("dense", 80) for _ in range(3)))
POOL = CalibrationNetwork((16, 16, 20), (CalibrationOp("conv", 32, 3), CalibrationOp("max_pool", 0, 2, 2)))


def streams(point: CalibrationNetwork, target: str, dram: DramTiming = DEFAULT_DRAM) -> list[CommandStream]:
    trace = CompilationTrace()
    options = CompileOptions(rounding="reference", dram=dram)
    ModelCompiler(point.graph(), load_target(target), options).network(None, trace)
    return trace.streams


@pytest.mark.parametrize("target", ["n4", "n16", "n16-bus32", "ulx3s-85f"])
@pytest.mark.parametrize("point", [CHAIN, DENSE, POOL], ids=["chain", "dense", "pool"])
def test_commands_start_in_order_and_after_those_for_which_they_wait(
    point: CalibrationNetwork, target: str
) -> None:
    config = load_target(target)
    for stream in streams(point, target):
        times = timeline(config, stream, DramTiming())
        for unit in Unit:
            mine = [time for time, each in zip(times, stream.issued, strict=True) if each.unit == unit]
            assert all(a.begin <= b.begin and a.retired <= b.retired for a, b in pairwise(mine))
            assert all(a.end <= b.begin for a, b in pairwise(mine))
        for time, needed in zip(times, waits(stream), strict=True):
            assert time.begin <= time.end <= time.retired
            assert all(times[number].retired <= time.begin for number in needed)


def test_a_slower_memory_takes_longer() -> None:
    config, chain = load_target("n16"), streams(CHAIN, "n16")
    first, late, narrow = (
        timeline_cycles(config, chain, DramTiming(*timing)) for timing in ((100, None), (400, None), (100, 2))
    )
    assert late > first + 299 and narrow > 1.5 * first


def test_a_wider_bus_only_helps_if_the_memory_is_faster() -> None:
    config, wide, dense = load_target("n16"), load_target("n16-bus32"), streams(DENSE, "n16")
    beat, half = (timeline_cycles(wide, dense, DramTiming(100, rate)) for rate in (None, config.n))
    usual = timeline_cycles(config, dense, DramTiming())
    assert beat < usual <= half < 1.1 * usual
    assert beat > usual / 2  # latencies remain


def test_second_reads_shorten_commands_with_two_operands_in_one_memory() -> None:
    """A sum of two int8 rows of the scratchpad takes two reads, one with a row of the accumulator does not."""
    config = load_target("n16")
    fields = {"n_count": 10, "a_src": 1, "b_src": int(BSource.SP), "b_n": 16, "a_dtype": 0, "b_dtype": 0}
    default = vars(unpack_fields(Unit.FUSE, [item.default for item in UNIT_FIELDS[Unit.FUSE]]))
    both = CommandFields(**default | fields | {"d_dst": 1})
    one = CommandFields(**default | fields | {"a_src": 0, "d_dst": 1})
    assert [fuse_cycles(config, both, reads) for reads in (1, 2)] == [20, 10]
    assert [fuse_cycles(config, one, reads) for reads in (1, 2)] == [10, 10]


@pytest.mark.parametrize(
    ("target", "timing"),
    [
        *product(("n4", "n8", "n16"), ((100, None), (400, 2))),
        ("n16-bus32", (100, None)),
    ],
)
@pytest.mark.parametrize("point", [CHAIN, DENSE, POOL], ids=["chain", "dense", "pool"])
def test_cycles_agree_with_the_rtl(
    point: CalibrationNetwork, timing: tuple[int, int | None], target: str
) -> None:
    dram = DramTiming(*timing)
    conditions = HardwareProfile(load_target(target), dram)
    with Measurer(point.graph(), conditions, CompileOptions(rounding="reference"), devices=1) as measurer:
        measured = measurer.baseline().cycles
    predicted = timeline_cycles(conditions.config, streams(point, target, dram), dram)
    assert predicted == pytest.approx(measured, rel=0.05)
