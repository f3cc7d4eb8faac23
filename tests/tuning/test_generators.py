"""Tests of generators: schedule and program candidates, their evaluation, and the results reported to generators."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement, Rejected, Result
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.package_writer import read_package, to_bytes
from compiler.schedule.program_override import ProgramText, digest_of
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.constraints import UNCONSTRAINED, Objective
from compiler.tuning.generators.generator import Candidate, Generator, GeneratorTask
from compiler.tuning.generators.included import PeepholeGenerator, TilingGenerator
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.generator_search import GeneratorSearch
from compiler.tuning.search.tuner import rejection_reason
from compiler.tuning_db.json_codec import read_schedule, schedule_values
from hw.config import load_target
from hw.errors import InputError


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    """Yield a measurer of two convolutions whose results cover the whole range."""
    graph = CalibrationNetwork((9, 9, 8), (CalibrationOp("conv", 12, 3), CalibrationOp("conv", 8))).graph(5)
    with Measurer(
        graph, HardwareProfile(load_target("n4")), CompileOptions(rounding="reference"), devices=1
    ) as made:
        yield made


@pytest.fixture(scope="module")
def baseline(measurer: Measurer) -> Measurement:
    return measurer.baseline()


@pytest.fixture
def task(measurer: Measurer, baseline: Measurement) -> GeneratorTask:
    layers = tuple(layer.name for layer in measurer.first.layers)
    return GeneratorTask(measurer.prepared, measurer.conditions, measurer.first.schedule, layers, baseline)


def measure(measurer: Measurer, candidate: Candidate) -> Result:
    (result,) = measurer.measure([candidate.schedule])
    return result


def test_task_describes_the_network(task: GeneratorTask) -> None:
    _, second = task.layers
    assert sum(task.where.values()) == task.measured.cycles and task.bound in ("compute", "bus", "dispatch")
    one = replace(task, layers=(second,))
    assert sum(one.where.values()) < task.measured.cycles
    assert list(one.programs) == [name for name, layers in task.layers_of.items() if second in layers]
    assert all(text.startswith(f".name {name}\n") for name, text in task.programs.items())


def test_unchanged_text_gives_the_same_program(measurer: Measurer, task: GeneratorTask) -> None:
    candidate = task.with_texts(task.programs, "test", "nothing")
    network = measurer.prepared.network(candidate.schedule)
    assert [code.programs for code in network.codes] == [code.programs for code in measurer.first.codes]
    result = measure(measurer, candidate)
    assert isinstance(result, Measurement) and result.exact and result.cycles == task.measured.cycles
    assert Schedule.from_json(candidate.schedule.to_json()) == candidate.schedule


def edited(task: GeneratorTask, old: str, new: str, count: int = 1) -> Candidate:
    """Return a candidate in which a text fragment is replaced in the first program that contains the fragment."""
    name = next(name for name, text in task.programs.items() if old in text)
    return task.with_texts({name: task.programs[name].replace(old, new, count)}, "test", "edited")


def test_bad_programs_are_rejected_with_a_reason(measurer: Measurer, task: GeneratorTask) -> None:
    for old, new, stage, words in (
        ("halt", "stop", "compile", "'stop' is not an instruction"),
        ("issue matrix", "issue matrix, wait(store:3)\n    issue matrix", "validate", "deadlock"),
        ("issue load", "set load.len, 1048575\n    issue load", "validate", "bounds"),
        ("issue fuse", "issue fuse, signal(matrix:3)\n    issue fuse", "validate", "semaphore"),
    ):
        result = measure(measurer, edited(task, old, new))
        assert isinstance(result, Rejected) and result.stage == stage, (old, result)
        assert words in result.reason and "program" in result.reason


def test_wrong_results_are_rejected(measurer: Measurer, task: GeneratorTask) -> None:
    """A program with another clip limit passes the validator, but its wrong results are detected."""
    result = measure(measurer, edited(task, "set fuse.clip_hi, 127", "set fuse.clip_hi, 5"))
    assert isinstance(result, Measurement) and not result.exact and not result.valid


def test_text_replaces_one_specific_program(measurer: Measurer, task: GeneratorTask) -> None:
    name, text = next(iter(task.programs.items()))
    prepared, schedule = measurer.prepared, task.schedule
    stale = replace(schedule, programs={name: ProgramText("0" * 64, text)})
    with pytest.raises(InputError, match="its text replaces another program"):
        prepared.network(stale)
    with pytest.raises(InputError, match="no program has this name, only"):
        prepared.network(replace(schedule, programs={"nobody": ProgramText("0" * 64, text)}))
    made = next(p for code in measurer.first.codes for p in code.programs if p.name == name)
    empty = replace(schedule, programs={name: ProgramText(digest_of(made), "; nothing")})
    with pytest.raises(InputError, match="must have 1"):
        prepared.network(empty)


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        ([], '"programs" must be an object'),
        ({"a": 3}, "program 'a' must have the fields replaces, text"),
        ({"a": {"replaces": "", "text": 3}}, "text of a program must be text, not 3"),
        ({"a": {"replaces": "", "text": " " * (1 << 22)}}, "at most 2,097,152 characters"),
    ],
)
def test_damaged_texts_are_rejected(programs: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Schedule.from_json(json.dumps({"schema_version": 1, "programs": programs}))


def test_polish_preserves_results(measurer: Measurer, task: GeneratorTask) -> None:
    polish, count = PeepholeGenerator(), 0
    for candidate in polish.propose(task):
        result = measure(measurer, candidate)
        polish.observe(candidate, result)
        assert not isinstance(result, Measurement) or result.valid, candidate.description
        count += isinstance(result, Measurement)
    assert count >= 2


def test_polish_drops_programs_the_validator_rejected(task: GeneratorTask) -> None:
    apart = {
        name: replace(layer, same_program_as_previous=False) for name, layer in task.schedule.layers.items()
    }
    peephole = PeepholeGenerator()
    found = peephole.propose(replace(task, schedule=replace(task.schedule, layers=apart)))
    candidate = next(each for each in found if len(each.schedule.programs) > 1)
    bad = next(iter(candidate.schedule.programs))
    peephole.observe(
        candidate, Rejected("validate", f"call 0, program {bad!r}, instruction 3: deadlock: why")
    )
    again = next(found)
    assert set(again.schedule.programs) == set(candidate.schedule.programs) - {bad}


class Scripted(Generator):
    """Generator that proposes the given texts and records the reported results."""

    name = "scripted"

    def __init__(self, *texts: str):
        self.texts, self.observed, self.tasks = texts, list[tuple[Candidate, Result]](), list[GeneratorTask]()

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        self.tasks.append(task)
        name = next(iter(task.programs))
        for text in self.texts:
            yield task.with_texts({name: text or task.programs[name]}, self.name, "scripted")

    def observe(self, candidate: Candidate, result: Result) -> None:
        self.observed.append((candidate, result))


def test_generators_alternate_and_observe_results(measurer: Measurer, baseline: Measurement) -> None:
    one, two = Scripted("nonsense", ""), Scripted()
    method = GeneratorSearch(measurer, Objective.LATENCY, baseline, 3, UNCONSTRAINED, [one, two])
    for _ in range(4):
        schedule = method.propose()
        (result,) = measurer.measure([schedule])
        trial = method.record(schedule, result)
        assert (rejection_reason(trial) is None) == (trial.cost is not None)
    # Neither text used a trial: one cannot be assembled, the other equals the current program.
    (_, told), *_ = one.observed
    assert isinstance(told, Rejected) and told.stage == "compile" and "line 1" in told.reason
    about = [task.layers for task in one.tasks]
    assert (
        set(about[0]) == {layer.name for layer in measurer.first.layers} and len(about) == len(two.tasks) == 3
    )
    assert method.best.cost is not None and method.best.cost <= baseline.cycles


def test_generator_is_asked_again_after_its_turn(measurer: Measurer, baseline: Measurement) -> None:
    """A generator of forty candidates proposes twelve per turn; the remaining candidates follow in later turns."""
    generator = ClipLimits(40)
    method = GeneratorSearch(measurer, Objective.LATENCY, baseline, 3, UNCONSTRAINED, [generator])
    said = []
    for _ in range(41):
        schedule = method.propose()
        said.append(schedule.to_json())
        method.record(schedule, Rejected("time", "it takes too long"))
    assert len(set(said)) == 41
    assert [bool(Schedule.from_json(text).programs) for text in said] == [True] * 40 + [False]


class ClipLimits(Generator):
    """Generator that proposes a sequence of clip limits."""

    name = "limits"

    def __init__(self, count: int):
        self.count = count

    def propose(self, task: GeneratorTask) -> Iterator[Candidate]:
        for number in range(self.count):
            yield edited(task, "set fuse.clip_hi, 127", f"set fuse.clip_hi, {number}")


def test_predictions_of_tilings_are_recorded(
    measurer: Measurer, task: GeneratorTask, baseline: Measurement
) -> None:
    proposed = list(TilingGenerator().propose(task))
    assert all(each.predicted is not None and not each.schedule.programs for each in proposed)
    assert [each.predicted for each in proposed] == sorted(each.predicted or 0 for each in proposed)
    method = GeneratorSearch(measurer, Objective.LATENCY, baseline, 3, UNCONSTRAINED, [TilingGenerator()])
    schedule = method.propose()
    method.record(schedule, measurer.measure([schedule])[0])
    assert method.predictor.count == min(len(proposed), 1)


def test_programs_survive_files_and_the_database(measurer: Measurer, task: GeneratorTask, tmp_path) -> None:
    network: CompiledNetwork = measurer.prepared.network(task.with_texts(task.programs, "test", "").schedule)
    path = tmp_path / "x.mla"
    path.write_bytes(to_bytes(network))
    assert read_package(path).schedule == network.schedule
    entry = json.loads(json.dumps(schedule_values(network.schedule)))
    assert read_schedule(entry) == network.schedule and network.schedule.programs
