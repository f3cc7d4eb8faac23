"""Serving with a database starts the search from stored results, and continues if the database is lost."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.ir.graph import Graph
from compiler.online_tuning.observers import ExecutionLog, ServingEvents
from compiler.online_tuning.online_tuner import OnlineTuner
from compiler.online_tuning.sampling_profiler import SamplingProfiler
from compiler.online_tuning.search_worker import STATIC, SearchJob, SearchWorker
from compiler.options import DramTiming
from compiler.profile.measurement import HardwareProfile, LayerCycles, Measurement
from compiler.serving.server import Server, serving_bytes
from compiler.tuning.constraints import Objective
from compiler.tuning.registry import PORTFOLIO, RETRIEVAL
from compiler.tuning_db.connection import METADATA, open_engine
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import Entry
from compiler.tuning_db.session import DatabaseSession
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from tests.online_tuning.small_servers import Model, ScriptedProposer
from tests.support.small_network import OPTIONS

N4 = load_target("n4")


@pytest.fixture(scope="module")
def model(graph: Graph) -> Model:
    """Return the small network on n4."""
    return Model(graph, N4)


@pytest.fixture
def server(model: Model) -> Iterator[Server]:
    """Yield a server of the small network on the RTL."""
    with RtlDevice(N4, serving_bytes(model.first, versions=8)) as device:
        yield Server(device, model.first)


def test_search_starts_from_the_best_for_its_conditions(graph: Graph, model: Model, tmp_path: Path) -> None:
    path = tmp_path / "profile.db"
    other, near = (
        model.with_layers(on_chip=False),
        model.with_layers(same_program_as_previous=False, prefetch=0),
    )
    layers = (LayerCycles(tuple(model.first.schedule.layers), 7000, {}),)
    result = Measurement(7000, layers, 1.0, 1, True, 1)
    with TuningDatabase(path) as database:
        for made, dram in ((other, DramTiming()), (near, DramTiming(200))):
            recall = DatabaseSession(
                database, model.prepared, HardwareProfile(N4, dram), Objective.THROUGHPUT
            )
            recall.put(made.schedule, result)
            database.put_best(
                Entry(
                    key=recall.best_keys.plain,
                    schedule=made.schedule,
                    cost=1.0,
                    result=result,
                    codes=tuple(made.codes),
                )
            )
    searcher = SearchWorker(SearchJob(graph, N4, OPTIONS, PORTFOLIO, db=path))
    try:
        found = searcher.begin(DramTiming(), model.first.schedule)
        assert [each.kind for each in found] == ["served", "first", "known"]
        assert found[2].schedule == other.schedule and found[2].result == result  # not measured again
        assert (found[2].proposer, found[1].proposer) == (RETRIEVAL, STATIC)
        (recalled,), (new,) = searcher.trial(), searcher.trial()
        assert recalled.schedule == near.schedule  # from the most similar other conditions
        assert recalled.proposer == RETRIEVAL
        assert new.schedule not in (near.schedule, other.schedule) and new.proposer != RETRIEVAL
        for latency, same in ((104, 100), (210, 200), (400, 400)):  # nearly equal conditions count as equal
            assert searcher._match_known(DramTiming(latency)).latency == same
        assert [each.kind for each in searcher.begin(DramTiming(), other.schedule)] == ["served", "first"]
    finally:
        searcher.close()
    with TuningDatabase(path) as database:
        assert (
            len(
                database.trials(
                    DatabaseSession(database, model.prepared, HardwareProfile(N4), Objective.THROUGHPUT).key
                )
            )
            == 4
        )


def test_known_version_is_tried_and_monitored(server: Server, model: Model) -> None:
    proposer = ScriptedProposer(model.plain, 7000)
    server.switch(server.versions.add(model.plain))
    events = ServingEvents()
    adapter = OnlineTuner(
        server,
        lambda _dram, schedule: model.prepared.network(schedule),
        model.first,
        proposer,
        events,
        DramTiming(),
    )
    proposer.ready.append(replace(proposer.finding(model.first.schedule, 5500), kind="known"))
    for request in range(12):
        server.submit(model.inputs(request))
        adapter.tick()
        assert all(model.is_correct(result) for result in server.results(wait=True))
    assert [(each["event"], each.get("why")) for each in events.seen] == [("reload", "known"), ("kept", None)]


def test_executions_are_stored_until_the_database_is_lost(
    server: Server, model: Model, tmp_path: Path
) -> None:
    url, events = f"sqlite:///{tmp_path / 'profile.db'}", ServingEvents()
    agent = SamplingProfiler(server.driver)
    log = ExecutionLog(url, agent, events)

    def serve(requests: int) -> None:
        for _ in range(requests):
            server.submit(model.inputs(server.submitted))
            now = server.current.network, server.current.number, server.completed, DramTiming()
            agent.sample(*now)
            log.record(*now)
            server.results()

    serve(90)
    with TuningDatabase(url) as database:
        recall = DatabaseSession(database, model.prepared, HardwareProfile(N4), Objective.LATENCY)
        kept = database.history(recall.key.subgraph)
    assert [each.key for each in kept] == [recall.key]
    usual = [result.cycles for result in server.results(wait=True)]
    for each in kept:
        assert each.cycles == pytest.approx(usual[-1], rel=0.05)
        assert sum(each.where.values()) == pytest.approx(each.cycles, abs=10)
        assert 0 < each.utilization < 1 and each.load_bytes > each.store_bytes > 0 and each.bound
    engine = open_engine(url)
    METADATA.drop_all(engine)
    engine.dispose()
    serve(100)
    assert [each["event"] for each in events.seen] == ["database lost"]
    assert "no such table" in events.seen[0]["reason"]
