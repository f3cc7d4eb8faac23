"""Attention layers that begin with transposes have the same name in schedules, measurements and reports."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from compiler.ir.graph import Graph
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.constraints import Objective
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.tuner import tune
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import TrialEntry
from compiler.tuning_db.session import DatabaseSession
from hw.config import load_target
from hw.errors import WorkError
from tests.quantize.test_attention import attention
from tests.support.small_network import OPTIONS


@pytest.fixture(scope="module")
def block() -> Graph:
    """Return a graph of two attention heads with the transposes around their products."""
    draft, stages = attention(1, 2, 6, 8)
    return draft.graph.finish([stages[-1].name])


@pytest.fixture(scope="module")
def attending(block: Graph) -> Iterator[Measurer]:
    with Measurer(block, HardwareProfile(load_target("n4")), OPTIONS, devices=1) as made:
        yield made


def first_of(measurer: Measurer) -> tuple[Schedule, Measurement]:
    schedule = measurer.first.schedule
    (result,) = measurer.measure([schedule])
    assert isinstance(result, Measurement)
    return schedule, result


def test_layer_names_are_consistent(attending: Measurer):
    network = attending.first
    names = [layer.name for layer in network.layers]
    assert any(layer.nodes[0] != layer.name for layer in network.layers), "no layer begins with a transpose"
    assert [info.name for info in network.infos] == names
    schedule, result = first_of(attending)
    assert schedule.layers.keys() == set(names) == {name for entry in result.layers for name in entry.names}
    for name in names:
        assert name in result.layer_entry(name).names
    with pytest.raises(WorkError, match="layer 'other' was not measured"):
        result.layer_entry("other")


@pytest.mark.parametrize("method", ["random", "evolution", "coordinate", "hpm", "generators", "edits"])
def test_attention_is_tuned(attending: Measurer, method: str):
    found = tune(attending, method, 5, Objective.LATENCY, 0)
    assert len(found.trials) >= 2
    assert isinstance(found.best.result, Measurement) and found.best.result.valid


def test_measurement_with_old_layer_names_is_repeated(attending: Measurer, tmp_path):
    """Measurements stored under the layer names of earlier versions (the names of first nodes) are repeated."""
    schedule, result = first_of(attending)
    with TuningDatabase(tmp_path / "some.db", secret=b"s" * 32) as database:
        recall = DatabaseSession(database, attending.prepared, attending.conditions, "latency")
        names = {layer.name: layer.nodes[0] for layer in attending.first.layers}
        layers = tuple(
            replace(entry, names=tuple(names[name] for name in entry.names)) for entry in result.layers
        )
        database.add_measurement(
            TrialEntry(key=recall.key, schedule=schedule, result=replace(result, layers=layers))
        )
        assert recall.lookup(schedule) is None
        recall.put(schedule, result)
        assert recall.lookup(schedule) == result
