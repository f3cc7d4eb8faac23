"""Generator that copies the best schedules of similar layers, and copies among the model's candidates."""

from collections.abc import Iterator
from itertools import islice

import pytest

from compiler.llm.generate.candidate_pool import CandidateKind, NearestGenerator
from compiler.llm.generate.known_layers import read_known_layers
from compiler.llm.generate.lm_generator import LmGenerator
from compiler.llm.tokens.layer_prompt import subjects_of
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.tuner import tune
from hw.config import load_target
from tests.llm.lm_fixtures import random_model

POINT = CalibrationNetwork((2, 1, 320), (CalibrationOp("dense", 48), CalibrationOp("norm")))


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(
        POINT.graph(), HardwareProfile(load_target("n16")), CompileOptions(rounding="reference"), devices=1
    ) as made:
        yield made


@pytest.fixture
def task(measurer: Measurer) -> GeneratorTask:
    schedule = measurer.first.schedule
    return GeneratorTask(
        measurer.prepared, measurer.conditions, schedule, tuple(schedule.layers), measurer.baseline()
    )


def test_copies_are_distinct_and_from_similar_layers(measurer: Measurer, task: GeneratorTask) -> None:
    generator = NearestGenerator()
    nearest = {name: read_known_layers().nearest(subject, 64) for name, subject in subjects_of(task).items()}
    found = []
    for candidate in islice(generator.propose(task), 6):
        assert candidate.generator == "nearest"
        ((name, schedule),) = (
            (name, each)
            for name, each in candidate.schedule.layers.items()
            if each != task.schedule.layers[name]
        )
        assert schedule in nearest[name]
        (result,) = measurer.measure([candidate.schedule])
        assert isinstance(result, Measurement) and result.exact
        generator.observe(candidate, result)
        found.append(candidate.schedule.to_json())
    assert len(set(found)) == len(found) > 1


def test_all_copies_are_proposed_once(task: GeneratorTask) -> None:
    generator = NearestGenerator()
    found = [candidate.schedule.to_json() for candidate in generator.propose(task)]
    assert len(set(found)) == len(found)
    assert not list(generator.propose(task))


def test_search_by_name(measurer: Measurer) -> None:
    found = tune(measurer, "generators", 3, generator="nearest")
    assert len(found.trials) == 3 and found.best.cost is not None and found.best.cost <= found.baseline.cycles


@pytest.mark.parametrize("copied", [0, 8])
def test_pool_of_the_model_contains_copies(task: GeneratorTask, copied: int) -> None:
    writer = LmGenerator(random_model(context=16), kinds=[CandidateKind.SCHEDULES], copied=copied)
    found = list(writer.propose(task))  # the model has no answers, because its context is too short
    assert bool(found) == bool(copied)
