"""Baselines of the language model: their candidates are correct, copied schedules are known ones, nothing repeats."""

from itertools import islice

import pytest

from compiler.llm.generate.known_layers import read_known_layers
from compiler.llm.tokens.layer_prompt import subjects_of
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target
from scripts.llm_baselines import GENERATORS
from scripts.llm_held_out import TRANSFORMERS, layers_of
from tests.llm.lm_fixtures import random_model

POINT = CalibrationNetwork((4, 1, 320), (CalibrationOp("dense", 48),))


@pytest.mark.parametrize("name", ["copies", "uniform-schedules", "copies-schedules"])
def test_candidates_are_distinct_and_correct(name: str) -> None:
    with Measurer(
        POINT.graph(), HardwareProfile(load_target("n16")), CompileOptions(rounding="reference"), devices=1
    ) as measurer:
        measured, schedule = measurer.baseline(), measurer.first.schedule
        task = GeneratorTask(
            measurer.prepared, measurer.conditions, schedule, tuple(schedule.layers), measured, seed=3
        )
        generator = GENERATORS[name](random_model())
        texts = []
        for candidate in islice(generator.propose(task), 4):
            (result,) = measurer.measure([candidate.schedule])
            assert isinstance(result, Measurement) and result.exact
            generator.observe(candidate, result)
            texts.append(candidate.schedule.to_json())
            if name == "copies-schedules":
                ((layer, subject),) = subjects_of(task).items()
                assert candidate.schedule.layers[layer] in read_known_layers().nearest(subject, 500)
    assert len(set(texts)) == len(texts) == 4
    assert name == "copies" or not any('"programs": {"' in text for text in texts)


def test_layers_of_a_transformer() -> None:
    points = list(layers_of(TRANSFORMERS["BERT-tiny"]))
    assert len(points) == 12 and {point.family for point in points} == {"dense", "attention", "norm", "gelu"}
    assert {point.shape[0] for point in points} == {1, 16}
