"""Tests of the measurement of schedules on the RTL: cycles, outputs, rejections."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.ir.graph import Graph
from compiler.options import DramTiming
from compiler.profile.measurement import HardwareProfile, Measurement, Rejected
from compiler.runtime.session import Session, dram_bytes
from compiler.tuning.measure.golden_inputs import GoldenIO, GoldenModelReference
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.measure.throughput import measure_network
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.errors import InputError
from hw.isa.counters import CAUSES
from tests.support.graphs import Draft
from tests.support.small_network import OPTIONS


def test_cycles_equal_those_of_a_session(measurer: Measurer) -> None:
    found = measurer.baseline()
    golden = GoldenModelReference(measurer.first).golden_io(0)
    with RtlDevice(measurer.conditions.config, dram_bytes(measurer.first)) as device:
        _, cycles = Session(device, measurer.first).measure(golden.inputs)
    assert abs(found.cycles - cycles) <= 2  # the doorbell is not aligned with the cycles of the memory model
    assert found.exact and found.valid
    assert sum(layer.cycles for layer in found.layers) == found.cycles
    for layer in found.layers:
        assert set(layer.where) == set(CAUSES) and sum(layer.where.values()) == layer.cycles
    assert [name for layer in found.layers for name in layer.names] == [
        layer.name for layer in measurer.first.layers
    ]


def test_the_same_schedule_takes_the_same_cycles(measurer: Measurer) -> None:
    first, second = measurer.measure([measurer.first.schedule] * 2)
    assert isinstance(first, Measurement) and isinstance(second, Measurement)
    assert first.cycles == second.cycles
    reference = GoldenModelReference(measurer.first)
    references = [
        reference.golden_io(number)
        for number in range(measurer.measurement_count - 2, measurer.measurement_count)
    ]
    assert any(
        not np.array_equal(references[0].inputs[name], references[1].inputs[name])
        for name in references[0].inputs
    )


def test_slow_memory_takes_longer(graph: Graph) -> None:
    config = load_target("n4")
    taken = []
    for dram in (DramTiming(), DramTiming(latency=400, bytes_per_cycle=1.0)):
        with Measurer(graph, HardwareProfile(config, dram), OPTIONS) as measurer:
            taken.append(measurer.baseline().cycles)
    assert taken[1] >= taken[0] + 2 * 300  # at least the first weights and the last results are delayed


def test_illegal_schedules_are_rejected_with_a_reason(measurer: Measurer) -> None:
    first = measurer.first.schedule
    name = measurer.first.layers[0].name
    missing = replace(first, fusions=(("nobody", "else"),))
    unknown = replace(first, layers={name: first.layers[name]})
    results = measurer.measure([missing, unknown])
    assert all(isinstance(result, Rejected) and result.stage == "compile" for result in results), results
    assert "there is no such node" in str(results[0]) and "no schedule for layer" in str(results[1])


def test_wrong_outputs_are_detected(measurer: Measurer) -> None:
    golden = GoldenModelReference(measurer.first).golden_io(1)
    wrong = GoldenIO(golden.inputs, {name: array ^ 1 for name, array in golden.outputs.items()})
    with RtlDevice(measurer.conditions.config, dram_bytes(measurer.first)) as device:
        result = measure_network(device, measurer.first, wrong, 4.0)
    assert isinstance(result, Measurement) and not result.exact and not result.valid


def test_fewer_cycles_than_the_lower_bound_are_not_believed(measurer: Measurer) -> None:
    found = measurer.baseline()
    assert not replace(found, cycles=found.floor - 1).valid


def test_model_without_accelerator_operators_is_rejected() -> None:
    draft = Draft(np.random.default_rng(1))
    x = draft.input((2, 3))
    graph = draft.graph.finish([x.name])
    with pytest.raises(InputError, match="nothing to measure"):
        Measurer(graph, HardwareProfile(load_target("n4")), OPTIONS)


def test_conditions_have_distinct_keys() -> None:
    n4, n8 = load_target("n4"), load_target("n8")
    each = [
        HardwareProfile(n4),
        HardwareProfile(n8),
        HardwareProfile(n4, DramTiming(latency=101)),
        HardwareProfile(n4, DramTiming(bytes_per_cycle=2.0)),
    ]
    assert len({conditions.key for conditions in each}) == len(each)
    assert (
        HardwareProfile(n4).key == HardwareProfile(n4, DramTiming(bytes_per_cycle=4.0)).key
    )  # one row per cycle, the default
