"""Networks whose programs have guards are tuned while they serve: batch sizes, zero skipping, reuse of results."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

import compiler.online_tuning.serve
from compiler.api import compile
from compiler.initial_schedule.initial import PLAIN
from compiler.ir.graph import Graph
from compiler.online_tuning.observers import ServingHistory, ServingObserver
from compiler.online_tuning.search_worker import SearchJob
from compiler.online_tuning.serve import Serving, open_machine, serve
from compiler.options import CompileOptions, DramTiming
from compiler.pipeline import ModelCompiler
from compiler.reference import evaluate
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from compiler.schedule.schedule import Schedule
from compiler.serving.request import Request, RequestResult, RequestSource
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from hw.errors import InputError
from tests.online_tuning.small_servers import ScriptedProposer
from tests.support.graphs import Draft

N4 = load_target("n4")
OPTIONS = CompileOptions(rounding="reference")
Arrays = dict[str, np.ndarray]


def layers(width: int = 32) -> Graph:
    """Return two dense layers."""
    draft = Draft(np.random.default_rng(7))
    x = draft.input((1, width))
    for _ in range(2):
        x = draft.node("dense", [x, draft.constant((width, width))], (1, width), scale=20.0)
    return draft.graph.finish([x.name])


def samples(graph: Graph, number: int, seed: int) -> list[Arrays]:
    """Return different random samples."""
    rng = np.random.default_rng(seed)
    (name,) = graph.inputs
    shape = graph.tensors[name].shape
    return [{name: rng.integers(1, 128, shape).astype(np.int8)} for _ in range(number)]


def slow(schedule: Schedule) -> Schedule:
    """Return a schedule with the smallest tiles and without prefetching."""
    return Schedule(schedule.fusions, dict.fromkeys(schedule.layers, PLAIN))


def cycles_of(network: CompiledNetwork) -> int:
    """Return the cycles of a sample on the RTL after another."""
    with RtlDevice(N4, dram_bytes(network)) as device:
        session = Session(device, network)
        first, second = (
            {t.name: np.full(t.shape, value, t.dtype) for t in network.inputs} for value in (1, 2)
        )
        session.run(first)
        return session.measure(second)[1]


class Search(ScriptedProposer):
    """Search that finds one schedule: the one that the compiler chooses, with other prefetching."""

    def __init__(self, job: SearchJob):
        prepared = ModelCompiler(job.graph, job.config, job.options)
        first = prepared.network()
        super().__init__(first, cycles_of(prepared.network(slow(first.schedule))))
        self.job = job
        changed = {name: replace(each, prefetch=1) for name, each in first.schedule.layers.items()}
        self.found = replace(first.schedule, layers=changed)
        self.ready.append(self.finding(self.found, cycles_of(prepared.network(self.found))))


class Results(ServingObserver):
    """Observer that keeps all results."""

    def __init__(self) -> None:
        self.all: list[RequestResult] = []

    def result(self, result: RequestResult) -> None:
        self.all.append(result)


Serve = Callable[[Serving, Iterable[Request]], tuple[list[RequestResult], ServingHistory, list[Search]]]


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Return a function that serves requests with scripted searches."""

    def run(
        serving: Serving, requests: Iterable[Request]
    ) -> tuple[list[RequestResult], ServingHistory, list[Search]]:
        searches: list[Search] = []

        def search(job: SearchJob) -> Search:
            searches.append(Search(job))
            return searches[-1]

        monkeypatch.setattr(compiler.online_tuning.serve, "SearchProcess", search)
        results, history = Results(), ServingHistory(clocked=True)
        with open_machine(serving) as device:
            assert serve(serving, device, RequestSource(iter(requests)), [results, history]) == 0
        return results.all, history, searches

    return run


def named(history: ServingHistory, name: str) -> list[dict]:
    """Return the events with a name."""
    return [each for each in history.events if each["event"] == name]


def check(graph: Graph, results: list[RequestResult]) -> None:
    """Check all outputs, and that no request was lost."""
    assert [each.index for each in results] == list(range(len(results)))
    for each in results:
        np.testing.assert_equal(each.outputs, evaluate(graph, dict(each.inputs)))


def test_programs_of_the_most_used_batch_size_are_tuned(tuned: Serve) -> None:
    graph = layers()
    one, four = (compile(graph, "n4", batch=size, database=False).schedule for size in (1, 4))
    schedules = {1: slow(one), 4: slow(four)}
    network = compile(graph, "n4", batches=(1, 2, 4), schedule=schedules, database=False)
    guarded = replace(OPTIONS, batches=(1, 2, 4), batch_schedules=tuple(schedules.items()))
    job = SearchJob(graph, N4, OPTIONS, "hpm")
    alone, burst = samples(graph, 30, 1), samples(graph, 200, 2)
    arrivals = [10.0 * number for number in range(len(alone))]
    arrivals += [1000 + 10.0 * (number // 4) for number in range(len(burst))]
    requests = [
        Request(each, arrival=arrival) for each, arrival in zip([*alone, *burst], arrivals, strict=True)
    ]
    serving = Serving(network, DramTiming(), job, clock=100.0, trials_per_request=1, guarded=guarded)
    results, history, searches = tuned(serving, requests)
    check(graph, results)
    assert [each.job.options.batch for each in searches] == [1, 4]
    assert [each["batch"] for each in named(history, "batch size")] == [1, 4]
    assert len(named(history, "kept")) == 2 and not named(history, "rollback")
    first, second = named(history, "reload")
    assert 8 <= first["request"] < len(alone) < second["request"] < len(results)
    before, after = results[0], results[len(alone) - 1]
    assert before.batch_size == after.batch_size == 1 and after.cycles < before.cycles
    before, after = results[len(alone)], results[-1]
    assert before.batch_size == after.batch_size == 4 and after.cycles < before.cycles
    last = results[-1].version.network
    assert last.smaller and len({each.version.number for each in results}) == 3


def test_network_that_skips_zeros_is_tuned(tuned: Serve) -> None:
    graph = layers()
    (name,) = graph.inputs
    schedule = compile(graph, "n4", database=False).schedule
    network = compile(graph, "n4", skip=name, schedule=slow(schedule), database=False)
    options = replace(OPTIONS, skip=name)
    given = samples(graph, 40, 3)
    for number in range(0, len(given), 2):
        zero = graph.tensors[name].quantization
        given[number] = {name: np.full_like(given[number][name], zero.zero_point[0] if zero else 0)}
    serving = Serving(
        network, DramTiming(), SearchJob(graph, N4, options, "hpm"), 1, trials_per_request=1, guarded=options
    )
    results, history, _ = tuned(serving, map(Request, given))
    check(graph, results)
    assert len(named(history, "kept")) == 1 and not named(history, "rollback")
    last = results[-1].version
    assert last is not results[1].version and last.network.alternatives
    assert results[-1].cycles < results[1].cycles
    assert results[-2].cycles < results[-1].cycles / 2
    ran = {macro.program for macro in results[-2].macros}
    assert ran & last.network.alternatives


@pytest.mark.parametrize("timed", [False, True])
def test_reusing_version_follows_accepted_schedules(tuned: Serve, timed: bool) -> None:
    graph = layers()
    schedule = compile(graph, "n4", database=False).schedule
    network = compile(graph, "n4", schedule=slow(schedule), database=False)
    reusing = compile(graph, "n4", schedule=slow(schedule), reuse=True, database=False)
    different = samples(graph, 20, 4)
    given = [*different, *[different[-1]] * 60, *samples(graph, 6, 5)]
    arrivals = count(0, 5.0) if timed else [None] * len(given)
    requests = [Request(each, arrival=at) for each, at in zip(given, arrivals, strict=False)]
    serving = Serving(
        network,
        DramTiming(),
        SearchJob(graph, N4, OPTIONS, "hpm"),
        1,
        trials_per_request=1,
        reusing=reusing,
        guarded=replace(OPTIONS, reuse=True),
        clock=100.0 if timed else None,
    )
    results, history, searches = tuned(serving, requests)
    check(graph, results)
    (kept,), (event,) = named(history, "kept"), named(history, "reuse")
    assert event["request"] >= kept["request"]
    reused = [each for each in results if each.variant == "reused"]
    assert len(reused) >= 15 and {each.version.number for each in reused} == {event["version"]}
    assert reused[0].version.network.schedule.layers.keys() == searches[0].found.layers.keys()
    assert all(each.prefetch == 1 for each in reused[0].version.network.schedule.layers.values())


def test_schedules_of_guarded_networks() -> None:
    graph = layers()
    (name,) = graph.inputs
    schedule = compile(graph, "n4", database=False).schedule
    sample = samples(graph, 1, 6)[0]
    options: list[dict[str, Any]] = [{"reuse": True}, {"skip": name}]
    for given in options:
        plain = compile(graph, "n4", **given, database=False)
        other = compile(graph, "n4", **given, schedule=slow(schedule), database=False)
        assert cycles_of(other) > cycles_of(plain)
        assert other.codes[-1].programs[-1].words != plain.codes[-1].programs[-1].words
        np.testing.assert_equal(other(**sample), evaluate(graph, dict(sample)))
    batch = compile(graph, "n4", batches=(1, 2), schedule={1: slow(schedule)}, database=False)
    usual = compile(graph, "n4", batches=(1, 2), database=False)
    (part,), (same,) = batch.codes[0].parts, usual.codes[0].parts
    assert len(part.program.words) == len(same.program.words)  # addresses of constants differ
    assert len(part.instead[0].program.words) != len(same.instead[0].program.words)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batches": (1, 2), "schedule": Schedule()}, "with batches, it must be a dict"),
        ({"batches": (1, 2), "schedule": {3: Schedule()}}, "there is no batch size 3, only 1, 2"),
        ({"batches": (1, 2), "schedule": {1: "x"}}, "must be a Schedule for each batch size, not 'x'"),
        ({"schedule": {1: Schedule()}}, "a dict of schedules for batch sizes needs batches"),
        ({"schedule": "x"}, "schedule must be a Schedule, a dict of them by batch size, or None, not 'x'"),
    ],
)
def test_errors(given: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compile(layers(), "n4", **given)
