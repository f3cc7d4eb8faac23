"""Fusions of two layers in the language model's words: grammar, round trip, and candidates that run exactly."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from random import Random

import numpy as np
import pytest

from compiler.cost.learned_model import find_model
from compiler.llm.generate.candidate_pool import CandidateKind
from compiler.llm.generate.lm_generator import LmGenerator
from compiler.llm.generate.requests import Fusion, fusion_requests
from compiler.llm.generate.sampler import draw
from compiler.llm.model.weights import SHIPPED, load
from compiler.llm.tokens.layer_prompt import Ask
from compiler.llm.tokens.schedule_delta import (
    NEXT_LAYER,
    ONE_PASS,
    SPANS,
    PairDeltaGrammar,
    decode_pair_delta,
    encode_pair_delta,
)
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.fusion_engine import FusionEngine, FusionKind
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target
from tests.llm.lm_fixtures import random_model

#: A convolution whose result is streamed to a depthwise convolution, and a lookup table that can be split off.
POINT = CalibrationNetwork(
    (12, 12, 32), (CalibrationOp("conv", 48), CalibrationOp("depthwise", 0, 3), CalibrationOp("tanh"))
)
BASES = LayerSchedule(rows=3), LayerSchedule(columns=2, on_chip=True)


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(
        POINT.graph(5), HardwareProfile(load_target("n16")), CompileOptions(rounding="reference"), devices=1
    ) as made:
        yield made


@pytest.fixture
def task(measurer: Measurer) -> GeneratorTask:
    schedule = measurer.first.schedule
    return GeneratorTask(
        measurer.prepared, measurer.conditions, schedule, tuple(schedule.layers), measurer.baseline()
    )


def test_pairs_are_decoded_as_they_were_encoded() -> None:
    first, second = (
        replace(BASES[0], interleave=True, columns=3),
        replace(BASES[1], rows=300, interleave=True),
    )
    tokens = encode_pair_delta((first, second), BASES)
    assert " ".join(tokens) == "set columns 3 set overlap 1 layer set rows x2 1 44 set overlap 1 end"
    assert decode_pair_delta(tokens, BASES, None) == (first, second)
    assert encode_pair_delta(BASES, BASES) == [NEXT_LAYER, "end"]
    merged = encode_pair_delta([first], [BASES[0]])
    assert merged == [ONE_PASS, "set columns", "3", "set overlap", "1", "end"]
    assert decode_pair_delta(merged, BASES, BASES[0]) == (first,)


@pytest.mark.parametrize(
    "tokens",
    [[], ["end"], [ONE_PASS, "end"], ["layer"], ["layer", "end", "end"], ["set rows", "layer", "end"]],
)
def test_invalid_pairs(tokens: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_pair_delta(tokens, BASES, None)


def test_random_answers_of_the_grammar_are_decoded() -> None:
    rng, grammar = Random(1), PairDeltaGrammar(tuple(SPANS), ("rows", "interleave"), ("order", "columns"))
    kinds = set()
    for _ in range(200):
        tokens: list[str] = []
        while after := grammar.after(tokens):
            assert set(after) <= set(LANGUAGE.tokens)
            tokens.append(rng.choice(after if rng.random() < 0.7 else after[-1:]))
        found = decode_pair_delta(tokens, BASES, BASES[0])
        kinds.add(len(found))
        bases = BASES if len(found) == 2 else BASES[:1]
        again = encode_pair_delta(found, bases)
        assert decode_pair_delta(again, BASES, BASES[0]) == found
    assert kinds == {1, 2}


def test_options_of_the_fusion_engine_are_answers(task: GeneratorTask) -> None:
    """Each way to fuse two layers that the fusion engine knows can be written, and read back as the same schedule."""
    engine = FusionEngine(task.prepared, task.conditions, find_model(task.conditions))
    split = next(
        option.schedule
        for option in engine.options(task.schedule, engine.opportunities(task.schedule))
        if option.schedule.fusions != task.schedule.fusions
    )
    kinds = set()
    for schedule in (task.schedule, split):
        parts = [(name,) for name in schedule.layers]
        measured = replace(
            task.measured,
            layers=tuple(replace(task.measured.layers[0], names=names) for names in parts),
        )
        now = replace(task, schedule=schedule, layers=tuple(schedule.layers), measured=measured)
        requests = {request.names: request for request in fusion_requests(now)}
        for option in engine.options(schedule, engine.opportunities(schedule)):
            request = requests.get(option.opportunity.layers)  # type: ignore[call-overload]
            if request is None:  # a layer is split
                continue
            merged = option.schedule.fusions != schedule.fusions
            assert not merged or request.merged is not None
            if merged and request.merged is not None:
                layer, base = request.merged
                tokens = encode_pair_delta([option.schedule.layers[layer.name]], [base.layers[layer.name]])
            else:
                tokens = encode_pair_delta(
                    [option.schedule.layers[name] for name in request.names], request.bases
                )
            assert request.candidate(tokens).schedule == option.schedule
            allowed = request.grammar
            assert allowed is not None
            assert all(token in allowed.after(tokens[:at]) for at, token in enumerate(tokens))
            kinds.add(option.opportunity.kind)
    assert kinds == set(FusionKind) - {FusionKind.ROW_BLOCKS}  # it has no words


def test_sampled_fusions_run_exactly(measurer: Measurer, task: GeneratorTask) -> None:
    (request,) = fusion_requests(task)
    prompt = request.prompt()
    assert prompt.count(NEXT_LAYER) == 2 and prompt[-3] == Ask.FUSION and len(prompt) < 160
    assert request.grammar is not None
    model, _ = load(SHIPPED)
    answers = draw(model, LANGUAGE, prompt, request.grammar, 8, np.random.default_rng(2))
    assert all(answer.complete for answer in answers)
    found = [request.candidate(answer.tokens).schedule for answer in answers]
    schedules = list({each.to_json(): each for each in found}.values())
    for result in measurer.measure(schedules[:4]):
        assert isinstance(result, Measurement) and result.exact


def test_generator_proposes_fusions(task: GeneratorTask) -> None:
    generator = LmGenerator(random_model(), kinds=[CandidateKind.FUSIONS])
    found = list(islice(generator.propose(task), 4))
    assert len({candidate.schedule.to_json() for candidate in found}) == 4
    assert all(candidate.description.startswith(request_name(task)) for candidate in found)
    alone = replace(task, layers=task.layers[:1])
    assert not list(LmGenerator(random_model(), kinds=[CandidateKind.FUSIONS]).propose(alone))


def request_name(task: GeneratorTask) -> str:
    """Return the name of the only pair of layers."""
    (request,) = fusion_requests(task)
    assert isinstance(request, Fusion)
    return request.about
