"""Serving with a database: it goes on from what is known, and a lost database does not end it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.ir.graph import Graph
from compiler.measure.conditions import Conditions
from compiler.measure.measurement import Measurement
from compiler.profile.agent import Agent
from compiler.schedule.dram import Dram
from compiler.search.goals import Goal
from compiler.serve.adapt import Adapter
from compiler.serve.diary import Diary
from compiler.serve.events import Events
from compiler.serve.room import serving_bytes
from compiler.serve.searcher import Job, Searcher
from compiler.serve.stream import Server
from compiler.store.database import Database
from compiler.store.engine import open_engine
from compiler.store.entries import Entry
from compiler.store.recall import Recall
from compiler.store.schema import METADATA
from cosim.rtl.rtl_device import RtlDevice
from hw.config import load_target
from tests.loop.conftest import OPTIONS
from tests.loop.serving import Model, Told

N4 = load_target("n4")


@pytest.fixture(scope="module")
def model(graph: Graph) -> Model:
    """The small network on n4."""
    return Model(graph, N4)


@pytest.fixture
def server(model: Model) -> Iterator[Server]:
    """It on the RTL."""
    with RtlDevice(N4, serving_bytes(model.first, versions=8)) as device:
        yield Server(device, model.first)


def test_a_search_goes_on_from_the_best_for_its_conditions(
    graph: Graph, model: Model, tmp_path: Path
) -> None:
    path = tmp_path / "profile.db"
    other, near = model.with_layers(on_chip=False), model.with_layers(joined=False, prefetch=0)
    result = Measurement(7000, (), 1.0, 1, True, 1)
    with Database(path) as database:
        for made, dram in ((other, Dram()), (near, Dram(200))):
            recall = Recall(database, model.prepared, Conditions(N4, dram), Goal.THROUGHPUT)
            recall.keep(made.schedule, result)
            database.put_best(
                Entry(
                    key=recall.best_key,
                    schedule=made.schedule,
                    cost=1.0,
                    result=result,
                    codes=tuple(made.codes),
                )
            )
    searcher = Searcher(Job(graph, N4, OPTIONS, "random", db=path))
    try:
        found = searcher.begin(Dram(), model.first.schedule)
        assert [each.kind for each in found] == ["served", "first", "known"]
        assert found[2].schedule == other.schedule and found[2].result == result  # remembered, not measured
        assert searcher.trial().schedule == near.schedule  # of the nearest other conditions
        assert searcher.trial().schedule not in (near.schedule, other.schedule)
        for latency, same in ((104, 100), (210, 200), (400, 400)):  # what is hardly different is the same
            assert searcher._same(Dram(latency)).latency == same
        assert [each.kind for each in searcher.begin(Dram(), other.schedule)] == ["served", "first"]
    finally:
        searcher.close()
    with Database(path) as database:
        assert (
            len(database.trials(Recall(database, model.prepared, Conditions(N4), Goal.THROUGHPUT).key)) == 4
        )


def test_what_is_known_is_swapped_in_and_watched(server: Server, model: Model) -> None:
    told = Told(model.plain, 7000)
    server.switch(server.versions.add(model.plain))
    events = Events()
    adapter = Adapter(server, lambda _dram: model.prepared, model.first, told, events, Dram())
    told.ready.append(replace(told.finding(model.first.schedule, 5500), kind="known"))
    for request in range(12):
        server.submit(model.inputs(request))
        adapter.tick()
        assert all(model.right(result) for result in server.results(wait=True))
    assert [(each["event"], each.get("why")) for each in events.seen] == [("reload", "known"), ("kept", None)]


def test_executions_are_kept_until_the_database_is_lost(server: Server, model: Model, tmp_path: Path) -> None:
    url, events = f"sqlite:///{tmp_path / 'profile.db'}", Events()
    agent = Agent(server.driver)
    diary = Diary(url, agent, events)

    def serve(requests: int) -> None:
        for _ in range(requests):
            server.submit(model.inputs(server.submitted))
            now = server.current.network, server.current.number, server.completed, Dram()
            agent.look(*now)
            diary.look(*now)
            server.results()

    serve(90)
    with Database(url) as database:
        recall = Recall(database, model.prepared, Conditions(N4), Goal.LATENCY)
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
