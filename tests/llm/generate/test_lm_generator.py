"""The built-in model as a generator: candidates are validated and measured; rejected ones are requested again."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from compiler.llm.generate.candidate_pool import CandidateBandit, CandidateKind
from compiler.llm.generate.lm_generator import LmGenerator
from compiler.llm.tokens.layer_prompt import REJECTIONS, Ask, Programs, rejected
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement, Rejected, Result
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.constraints import Constraints
from compiler.tuning.generators.generator import Candidate, GeneratorTask
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target
from tests.llm.lm_fixtures import POINTS, RecordingModel, random_model

REFUSED = Rejected("validate", "call 0, program 'p', instruction 3: race: two accesses that nothing orders")


@pytest.fixture(scope="module", params=["conv", "max_pool", "chain"])
def measurer(request: pytest.FixtureRequest) -> Iterator[Measurer]:
    """Yield a measurer of a small network on n16."""
    graph = POINTS[request.param].graph(5)
    with Measurer(
        graph, HardwareProfile(load_target("n16")), CompileOptions(rounding="reference"), devices=1
    ) as made:
        yield made


def task_of(measurer: Measurer, **options) -> GeneratorTask:
    measured = measurer.baseline()
    schedule = measurer.first.schedule
    layers = tuple(schedule.layers)
    return GeneratorTask(measurer.prepared, measurer.conditions, schedule, layers, measured, **options)


@pytest.fixture
def task(measurer: Measurer) -> GeneratorTask:
    return task_of(measurer)


@pytest.mark.parametrize("kind", [CandidateKind.SCHEDULES, CandidateKind.EDITS, CandidateKind.BOTH])
def test_all_candidates_are_safe_and_correct(
    measurer: Measurer, kind: CandidateKind, rng: np.random.Generator
) -> None:
    """Due to the grammar, all candidates of an untrained model are safe and correct."""
    task = task_of(measurer, seed=int(rng.integers(1 << 30)))
    writer = LmGenerator(random_model(), kinds=[kind])
    seen = 0
    for _, candidate in zip(range(3), writer.propose(task), strict=False):
        (result,) = measurer.measure([candidate.schedule])
        assert isinstance(result, Measurement) and result.exact, (candidate.description, result)
        writer.observe(candidate, result)
        seen += 1
    tally = writer.tallies[kind]
    assert seen == tally.valid == tally.made > 0


def test_what_the_model_cannot_be_asked_about_is_said_once(task: GeneratorTask) -> None:
    said: list[str] = []
    writer = LmGenerator(random_model(context=16), copied=0, say=said.append)
    assert not list(writer.propose(task)) and not list(writer.propose(task))
    assert said and len(said) == len(set(said))
    assert all(text.startswith("the language model cannot be asked about ") for text in said)


@pytest.mark.parametrize("op", ["dense", "attention"])
def test_deep_dense_layers_and_attention_have_answers(op: str, rng: np.random.Generator) -> None:
    """A dense layer with more than 16 blocks of inputs, and the products of attention."""
    point = CalibrationNetwork((20, 1, 640), (CalibrationOp(op, 128 if op == "dense" else 0, groups=20),))
    said: list[str] = []
    with Measurer(
        point.graph(), HardwareProfile(load_target("n16")), CompileOptions(rounding="reference"), devices=1
    ) as measurer:
        if op == "dense":
            assert max(each.x_buffers for each in measurer.first.schedule.layers.values()) > 16
        task = task_of(measurer, seed=int(rng.integers(1 << 30)))
        writer = LmGenerator(random_model(), kinds=[CandidateKind.SCHEDULES], say=said.append)
        candidate = next(writer.propose(task))
        (result,) = measurer.measure([candidate.schedule])
    assert isinstance(result, Measurement) and result.exact and not said


def propose(
    task: GeneratorTask, kind: CandidateKind, results: list[Result]
) -> tuple[RecordingModel, LmGenerator, list[Candidate]]:
    """Return a recording model, its generator, and the candidates that the generator proposes before and after the
    results.
    """
    model = RecordingModel(random_model())
    writer = LmGenerator(model, kinds=[kind])
    proposed = writer.propose(task)
    found = []
    for result in results:
        candidate = next(proposed)
        found.append(candidate)
        writer.observe(candidate, result)
    found.append(next(proposed))
    return model, writer, found


def test_rejected_candidate_is_asked_for_twice_more_with_the_reason(task: GeneratorTask) -> None:
    model, writer, found = propose(task, CandidateKind.EDITS, [REFUSED] * 3)
    first, *again = model.questions
    assert not [word for word in first if word in REJECTIONS.values()]
    for number, prompt in enumerate(again[:2], 1):
        at = len(first) - 3
        assert prompt == [*first[:at], *["rejected race"] * number, *first[at:]]
    # Then the next of the first answers is proposed without a further question.
    assert len(again) == 2 and len({each.description for each in found}) == 4
    assert writer.tallies[CandidateKind.EDITS].valid == 0


def test_measured_candidate_is_not_asked_for_again(task: GeneratorTask) -> None:
    model, writer, _ = propose(
        task, CandidateKind.EDITS, [task.measured, Rejected("search", "it was measured before")]
    )
    assert len(model.questions) == 1
    assert (writer.tallies[CandidateKind.EDITS].valid, writer.tallies[CandidateKind.EDITS].known) == (1, 1)


def test_schedule_is_proposed_without_rejected_edits(task: GeneratorTask) -> None:
    _, _, found = propose(task, CandidateKind.BOTH, [REFUSED] * 3)
    assert all(each.schedule.programs for each in found[:3]) and not found[3].schedule.programs
    assert found[3].schedule.layers == found[0].schedule.layers != task.schedule.layers


@pytest.mark.parametrize("name", ["max_pool", "add"])
def test_whole_programs_are_safe_and_correct(name: str, rng: np.random.Generator) -> None:
    """Whole programs that an untrained model writes do the same work as the programs that they replace."""
    graph = POINTS[name].graph(5)
    with Measurer(
        graph, HardwareProfile(load_target("n16")), CompileOptions(rounding="reference"), devices=1
    ) as measurer:
        model = RecordingModel(random_model())
        writer, seed = LmGenerator(model, kinds=[CandidateKind.PROGRAMS]), int(rng.integers(1 << 30))
        texts = set()
        for _, candidate in zip(range(3), writer.propose(task_of(measurer, seed=seed)), strict=False):
            (result,) = measurer.measure([candidate.schedule])
            assert isinstance(result, Measurement) and result.exact, (candidate.description, result)
            writer.observe(candidate, result)
            texts |= {text.text for text in candidate.schedule.programs.values()}
    assert len(model.questions) == len(texts) == 3
    assert all(Ask.PROGRAM in prompt and not {*prompt} & {*REJECTIONS.values()} for prompt in model.questions)


@pytest.mark.parametrize(
    ("result", "word"),
    [
        (REFUSED, "rejected race"),
        (Rejected("validate", "nonsense"), "rejected compile"),
        (Rejected("trap", ""), "rejected trap"),
        (Rejected("time", "not done"), "rejected time"),
        (Rejected("same", ""), "rejected same"),
    ],
)
def test_words_for_rejections(result: Rejected, word: str) -> None:
    assert rejected(result) == word


def test_edits_apply_to_edited_programs(task: GeneratorTask) -> None:
    """Edits apply to the program of the current schedule, even if that program is already edited."""
    _, _, (candidate,) = propose(task, CandidateKind.EDITS, [])
    edited = replace(task, schedule=candidate.schedule)
    before, after = (
        {piece.name: piece.unrolled.commands for piece in Programs(each).programs} for each in (task, edited)
    )
    changed = {name for name in before if [c.values for c in before[name]] != [c.values for c in after[name]]}
    assert changed == {candidate.description.split(":")[0]} or len(before) > 1


def test_forbidden_micro_programs_leave_schedules_only(task: GeneratorTask) -> None:
    _, _, found = propose(
        replace(task, constraints=Constraints(forbidden=frozenset({"micro-program"}))),
        CandidateKind.SCHEDULES,
        [],
    )
    assert not found[0].schedule.programs
    writer = LmGenerator(random_model(), kinds=[CandidateKind.EDITS, CandidateKind.PROGRAMS])
    assert not list(
        writer.propose(replace(task, constraints=Constraints(forbidden=frozenset({"micro-program"}))))
    )


def test_equal_seeds_give_equal_candidates(task: GeneratorTask) -> None:
    first, again = (
        [
            each.schedule.to_json()
            for each, _ in zip(LmGenerator(random_model()).propose(task), range(4), strict=False)
        ]
        for _ in range(2)
    )
    assert first == again


def test_helpful_kinds_are_chosen_more_often() -> None:
    chooser = CandidateBandit(np.random.default_rng(3))
    for _ in range(12):
        chooser.learn(CandidateKind.EDITS, helped=True)
        chooser.learn(CandidateKind.SCHEDULES, helped=False)
    drawn = [chooser.choose(list(CandidateKind)) for _ in range(200)]
    assert drawn.count(CandidateKind.EDITS) > 120 > 30 > drawn.count(CandidateKind.SCHEDULES)
    assert {chooser.choose([CandidateKind.PROGRAMS]) for _ in range(5)} == {CandidateKind.PROGRAMS}
