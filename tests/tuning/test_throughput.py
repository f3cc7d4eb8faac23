"""Tests of the measurement of schedules with back-to-back requests."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice

import numpy as np
import pytest

from compiler.initial_schedule.initial import naive_schedule
from compiler.ir.graph import Graph
from compiler.options import DramTiming
from compiler.profile.measurement import HardwareProfile, Measurement, Rejected
from compiler.serving.server import Server
from compiler.tuning.measure.golden_inputs import GoldenIO, GoldenModelReference
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.measure.throughput import STREAM_INPUTS, measure_stream, stream_bytes
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.isa.counters import CAUSES
from tests.support.small_network import OPTIONS

RATE = 4.0


@pytest.fixture(scope="module")
def device(measurer: Measurer) -> Iterator[RtlDevice]:
    """Yield an RTL device with enough DRAM for the small network."""
    with RtlDevice(measurer.conditions.config, 4 * stream_bytes(measurer.first)) as made:
        yield made


def inputs_of(measurer: Measurer) -> list[GoldenIO]:
    """Return different inputs with the expected outputs."""
    reference = GoldenModelReference(measurer.first)
    return [reference.golden_io(number) for number in range(STREAM_INPUTS)]


def test_cycles_equal_those_of_serving(measurer: Measurer, device: RtlDevice) -> None:
    goldens = inputs_of(measurer)
    found = measure_stream(device, measurer.first, goldens, RATE)
    device.reset()
    served = list(islice(Server(device, measurer.first).serve(each.inputs for each in cycle(goldens)), 6))
    assert isinstance(found, Measurement) and found.exact and found.valid
    assert all(abs(found.cycles - result.cycles) <= 2 for result in served[1:])
    assert sum(layer.cycles for layer in found.layers) == found.cycles
    for layer in found.layers:
        assert set(layer.where) == set(CAUSES) and sum(layer.where.values()) == layer.cycles
    assert [name for layer in found.layers for name in layer.names] == [
        layer.name for layer in measurer.first.layers
    ]
    cold = measurer.baseline()
    assert found.cycles < cold.cycles and found.floor == cold.floor
    assert found.dram_bytes == pytest.approx(cold.dram_bytes, rel=0.05)
    assert found.energy_uj == pytest.approx(cold.energy_uj, rel=0.05)


def test_reset_during_traffic_leaves_no_state(measurer: Measurer, device: RtlDevice) -> None:
    goldens = inputs_of(measurer)
    found = measure_stream(device, measurer.first, goldens, RATE)
    for cycles in range(150, 1500, 190):
        device.reset()
        Server(device, measurer.first).submit(goldens[0].inputs)
        device.run_cycles(cycles)
        assert measure_stream(device, measurer.first, goldens, RATE) == found


def test_wrong_outputs_are_detected(measurer: Measurer, device: RtlDevice) -> None:
    golden = GoldenModelReference(measurer.first).golden_io(1)
    wrong = GoldenIO(golden.inputs, {name: array ^ 1 for name, array in golden.outputs.items()})
    result = measure_stream(device, measurer.first, [wrong], RATE)
    assert isinstance(result, Measurement) and not result.exact and not result.valid


def test_reused_results_are_detected(measurer: Measurer, device: RtlDevice) -> None:
    """The outputs of each request must be those of its own input: a repetition of the last result is wrong."""
    first, *others = inputs_of(measurer)
    repeated = [first, *(GoldenIO(each.inputs, first.outputs) for each in others)]
    result = measure_stream(device, measurer.first, repeated, RATE)
    assert isinstance(result, Measurement) and not result.exact and not result.valid


def test_slow_networks_are_rejected(measurer: Measurer, device: RtlDevice) -> None:
    goldens = inputs_of(measurer)
    for limit in (100, 4000):  # before the first request is complete, and after it
        result = measure_stream(device, measurer.first, goldens, RATE, limit)
        assert isinstance(result, Rejected) and result.stage == "time", (limit, result)
    assert isinstance(measure_stream(device, measurer.first, goldens, RATE), Measurement)


def test_network_that_does_not_fit_is_rejected(measurer: Measurer) -> None:
    (stage,) = measurer.first.stages
    assert stage.code is not None
    code = replace(stage.code, memory=1 << 24, image=np.zeros(1 << 20, np.uint8))
    large = replace(measurer.first, stages=(replace(stage, code=code),))
    with RtlDevice(measurer.conditions.config, 1 << 16) as small:
        result = measure_stream(small, large, inputs_of(measurer), RATE)
    assert isinstance(result, Rejected) and result.stage == "compile" and "no room" in result.reason


def test_measurer_of_streams(graph: Graph) -> None:
    conditions = HardwareProfile(load_target("n4"), DramTiming(latency=200))
    with Measurer(graph, conditions, OPTIONS, stream=True) as measurer:
        baseline = measurer.baseline()
        plain = naive_schedule(measurer.prepared.lowered(()))
        again, slow = measurer.measure([measurer.first.schedule, plain])
    assert isinstance(again, Measurement) and isinstance(slow, Measurement)
    assert abs(again.cycles - baseline.cycles) <= 2 and slow.exact and slow.cycles > again.cycles
