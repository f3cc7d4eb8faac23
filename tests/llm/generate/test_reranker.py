"""The model's schedules are ordered by their measurements if available, otherwise by the cost model's prediction."""

import random
from collections.abc import Iterator
from itertools import zip_longest

import pytest

from compiler.llm.generate.candidate_pool import CandidatePool, CostReranker
from compiler.llm.generate.requests import Schedules
from compiler.llm.tokens.layer_prompt import subjects_of
from compiler.llm.tokens.schedule_delta import encode_schedule_delta
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.schedule.schedule import LayerSchedule
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.layer_space import spaces_of
from compiler.tuning.measure.measurer import Measurer
from hw.config import load_target
from tests.llm.lm_fixtures import POINTS


@pytest.fixture(scope="module", params=["conv", "chain"])
def measurer(request: pytest.FixtureRequest) -> Iterator[Measurer]:
    """Yield a measurer of a small network on n16."""
    graph = POINTS[request.param].graph(5)
    with Measurer(
        graph, HardwareProfile(load_target("n16")), CompileOptions(rounding="reference"), devices=1
    ) as made:
        yield made


@pytest.fixture
def task(measurer: Measurer) -> GeneratorTask:
    schedule = measurer.first.schedule
    return GeneratorTask(
        measurer.prepared, measurer.conditions, schedule, tuple(schedule.layers), measurer.baseline()
    )


def distinct_schedules(task: GeneratorTask, name: str) -> list[LayerSchedule]:
    """Return up to six schedules of a layer that give different programs, starting with the current schedule."""
    stages = task.prepared.lowered(task.schedule.fusions)
    spaces = spaces_of(task.prepared.config, stages, task.conditions.dram, task.constraints.frozen_fields)
    rng, now = random.Random(0), task.schedule.layers[name]
    drawn = (spaces[name].draw(rng, now) for _ in range(20 if name in spaces else 0))
    found: dict[str, LayerSchedule] = {}
    for layer in (now, *drawn):
        candidate = task.with_layers({name: layer}, "test", "")
        found.setdefault(task.prepared.network(candidate.schedule).digest, layer)
    return list(found.values())[:6]


def test_current_schedule_has_no_gain(task: GeneratorTask) -> None:
    for name, now in task.schedule.layers.items():
        (promise,) = CostReranker().predict(task, name, [now])
        assert promise.gain == pytest.approx(0, abs=1e-3)


def test_gain_of_a_measured_schedule(measurer: Measurer, task: GeneratorTask) -> None:
    """The predicted gain of a measured schedule is its measured gain."""
    name = list(task.layers)[-1]
    ranking, schedules = CostReranker(), distinct_schedules(task, name)
    assert len(schedules) > 1
    for schedule in schedules[1:]:
        candidate = task.with_layers({name: schedule}, "test", "")
        (result,) = measurer.measure([candidate.schedule])
        assert isinstance(result, Measurement)
        ranking.learn(task, name, schedule, result.cycles)
        (promise,) = ranking.predict(task, name, [schedule])
        saved = task.measured.cycles - result.cycles
        assert promise.gain * task.measured.cycles == pytest.approx(saved, abs=1 + 0.01 * abs(saved))


def filled_pool(
    task: GeneratorTask, ranking: CostReranker | None
) -> tuple[list[LayerSchedule], CandidatePool]:
    """Return schedules in the order in which a model writes them, and a pool of these schedules."""
    found = {name: distinct_schedules(task, name)[1:] for name in subjects_of(task)}
    name, schedules = next((name, schedules) for name, schedules in found.items() if schedules)
    subject = subjects_of(task)[name]
    request = Schedules(task, name, subject)
    words = [[*encode_schedule_delta(each, subject.schedule)] for each in schedules]
    return schedules, CandidatePool(request, lambda: iter(words), ranking, set())


def test_most_likely_schedule_is_first_without_predictions(task: GeneratorTask) -> None:
    schedules, pool = filled_pool(task, None)
    pool.fill(1)
    assert [pool.request.meaning(words) for words in pool.best()] == schedules
    assert not list(pool.best())


def test_most_promising_schedule_is_first(task: GeneratorTask) -> None:
    ranking = CostReranker()
    schedules, pool = filled_pool(task, ranking)
    predict = ranking.predict(task, pool.request.about, schedules)
    gains = dict(zip(schedules, (each.gain for each in predict), strict=True))
    pool.fill(1)
    first = [gains[pool.request.meaning(words)] for words in pool.best(2)]
    assert first == sorted(gains.values(), reverse=True)[:2]
    assert not list(pool.best(minimum=max(gains.values()) + 0.01))
    rest = [gains[pool.request.meaning(words)] for words in pool.best()]
    assert rest == sorted(gains.values(), reverse=True)[2:]


def test_two_consumers_share_a_pool(task: GeneratorTask) -> None:
    schedules, pool = filled_pool(task, CostReranker())
    pool.fill(1)
    pairs = zip_longest(pool.best(), pool.best())
    taken = [words for pair in pairs for words in pair if words is not None]
    assert sorted(map(str, map(pool.request.meaning, taken))) == sorted(map(str, schedules))
    assert not list(pool.best(3))
