"""A search with a database measures nothing twice, charges for every measurement, and keeps the best schedule."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.ir.graph import Graph
from compiler.options import DramTiming
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile, Measurement, Rejected
from compiler.tuning.constraints import Objective
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.measure.worker_pool import WorkerGroup
from compiler.tuning.registry import METHODS, PORTFOLIO, RETRIEVAL
from compiler.tuning.search.tuner import TuningResult, tune
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import TrialEntry
from compiler.tuning_db.session import DatabaseSession
from hw.config import load_target
from tests.support.small_network import HERE, OPTIONS, two_convolutions
from tests.tuning_db.random_entries import OTHER_SECRET, SECRET

TRIALS = 6
N4 = HardwareProfile(load_target("n4"))


class NoWorkers(WorkerGroup):
    """Worker group without workers, which fails if a measurement is ordered."""

    def __init__(self, _subject: object = None):
        pass

    def results(self, orders):
        assert not orders
        return iter(())

    def close(self) -> None:
        """Do nothing, since no resource is open."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a database that the tests of this module share."""
    return tmp_path_factory.mktemp("remembered") / "profile.db"


@pytest.fixture
def database(path: Path) -> Iterator[TuningDatabase]:
    with TuningDatabase(path, secret=SECRET) as database:
        yield database


def search_with(
    database: TuningDatabase,
    measurer: Measurer,
    method: str = "random",
    seed: int = 0,
    goal: Objective = Objective.LATENCY,
    trials: int = TRIALS,
) -> TuningResult:
    """Run a search with the database."""
    recall = DatabaseSession(database, measurer.prepared, measurer.conditions, goal, method, seed)
    measurer.cache = recall
    try:
        return tune(measurer, method, trials, goal, seed, session=recall)
    finally:
        measurer.cache = None


def test_repeated_search_needs_no_simulator(
    database: TuningDatabase, measurer: Measurer, graph: Graph
) -> None:
    first = search_with(database, measurer)
    assert first.cached_count == 0 and len(first.trials) == TRIALS
    with Measurer(graph, N4, OPTIONS, workers=NoWorkers) as other:
        again = search_with(database, other)
        assert other.measurement_count == TRIALS + 1  # all measurements are charged
    assert again.cached_count == TRIALS and again.trials == first.trials and again.curve == first.curve
    longer = search_with(database, measurer, trials=TRIALS + 2)
    assert longer.cached_count == TRIALS and longer.trials[:TRIALS] == first.trials


def test_methods_seeds_and_goals_share_measurements(database: TuningDatabase, measurer: Measurer) -> None:
    for method in METHODS:
        search_with(database, measurer, method, seed=3, trials=4)
    for method in METHODS:
        assert search_with(database, measurer, method, seed=3, trials=4).cached_count == 4
    recall = DatabaseSession(database, measurer.prepared, N4, Objective.LATENCY)
    entry, other = (
        recall.best(),
        DatabaseSession(database, measurer.prepared, N4, Objective.THROUGHPUT).best(),
    )
    results = [trial.result for trial, mine in database.trials(recall.key) if mine]
    least = min(each.cycles for each in results if isinstance(each, Measurement) and each.valid)
    assert entry is not None and entry.cost == entry.result.cycles == least and other is None
    made = measurer.prepared.network(entry.schedule)  # type: ignore[arg-type]
    assert [each.words for code in entry.codes for each in code.programs] == [
        each.words for code in made.codes for each in code.programs
    ]


def test_new_dram_timing_starts_from_the_nearest_neighbour(
    database: TuningDatabase, graph: Graph, measurer: Measurer
) -> None:
    search_with(database, measurer)
    best = DatabaseSession(database, measurer.prepared, N4, Objective.LATENCY).best()
    assert best is not None
    with Measurer(graph, HardwareProfile(N4.config, DramTiming(latency=120)), OPTIONS) as other:
        for method in (RETRIEVAL, PORTFOLIO):
            found = search_with(database, other, method, trials=4)
            assert found.transferred_count >= 1 and found.trials[0].proposer == RETRIEVAL
            assert isinstance(found.trials[0].result, Measurement)  # the schedule is measured before its use
            assert found.best.cost is not None and found.trials[0].cost is not None
            assert found.best.cost <= found.trials[0].cost
            texts = [trial.schedule.to_json() for trial in found.trials]
            assert len(set(texts)) == len(texts)


def test_imported_entries_are_measured_again(
    path: Path, graph: Graph, measurer: Measurer, tmp_path: Path
) -> None:
    """Imported schedules are tried if they fit, but their measurements are not trusted."""
    first = measurer.first.schedule
    name = next(iter(first.layers))
    tempting = replace(first, layers=first.layers | {name: replace(first.layers[name], rows=1)})
    wrong = [replace(first, layers={}), replace(first, fusions=(("nobody", "else"),), layers=first.layers)]
    with TuningDatabase(tmp_path / "theirs.db", secret=OTHER_SECRET) as theirs:
        for conditions in (N4, HardwareProfile(N4.config, DramTiming(latency=90))):
            key = DatabaseSession(theirs, measurer.prepared, conditions, Objective.LATENCY).key
            for schedule in (*wrong, tempting, first):
                theirs.add_measurement(
                    TrialEntry(key=key, schedule=schedule, result=Measurement(1, (), 0.0, 0, True, 1))
                )
        theirs.export(tmp_path / "theirs.jsonl")
    with TuningDatabase(tmp_path / "mine.db", secret=SECRET) as mine:
        assert mine.import_(tmp_path / "theirs.jsonl") > 0
        found = search_with(mine, measurer, PORTFOLIO)
        assert (
            found.cached_count == 0 and found.transferred_count == 1 and found.trials[0].schedule == tempting
        )
        assert found.baseline.cycles > 1 and found.best.cost is not None and found.best.cost > 1


def test_databases_are_independent(tmp_path: Path, measurer: Measurer) -> None:
    with TuningDatabase(tmp_path / "empty.db", secret=SECRET) as empty:
        recall = DatabaseSession(empty, measurer.prepared, N4, Objective.LATENCY)
        assert recall.best() is None and recall.transfer_candidates(measurer.first.schedule, 4) == []
        assert len(empty.profiles()) == 1
        DatabaseSession(empty, measurer.prepared, N4, Objective.LATENCY)
        assert len(empty.profiles()) == 1


def test_models_options_and_conditions_have_distinct_keys(database: TuningDatabase, graph: Graph) -> None:
    made = []
    for rounding in ("reference", "xnnpack"):
        for batch in (1, 2):
            prepared = ModelCompiler(graph, N4.config, replace(OPTIONS, rounding=rounding, batch=batch))
            made += [
                DatabaseSession(
                    database, prepared, HardwareProfile(N4.config, DramTiming(latency)), goal
                ).best_keys.plain
                for latency in (100, 200)
                for goal in Objective
            ]
    assert len(set(made)) == len(made) == 2 * 2 * 2 * len(Objective)


_SEARCH = """
import sys
from pathlib import Path
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning_db.database import TuningDatabase
from tests.support.small_network import OPTIONS, two_convolutions
from tests.tuning.test_search_with_database import N4, SECRET, search_with

if __name__ == "__main__":
    with TuningDatabase(Path(sys.argv[1]), secret=SECRET) as database:
        with Measurer(two_convolutions(), N4, OPTIONS, int(sys.argv[2])) as measurer:
            keep = TuningDatabase.add_measurement
            def add(self, *trials):
                keep(self, *trials)
                print("kept", flush=True)
            TuningDatabase.add_measurement = add
            search_with(database, measurer, seed=77, trials=1000)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_search_keeps_its_measurements(tmp_path: Path, how: int) -> None:
    script, kept = tmp_path / "search.py", tmp_path / "kept.db"
    script.write_text(_SEARCH)
    with subprocess.Popen(
        [sys.executable, script, kept, "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=HERE,
    ) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(4)]
        os.kill(process.pid, how)
        told += process.stdout.readlines()
    assert told.count("kept\n") >= 4
    graph = two_convolutions()
    with TuningDatabase(kept, secret=SECRET) as database:
        recall = DatabaseSession(database, ModelCompiler(graph, N4.config, OPTIONS), N4, Objective.LATENCY)
        assert len(database.trials(recall.key)) >= told.count("kept\n")
        assert recall.best() is not None


def test_refused_programs_are_remembered(tmp_path: Path, measurer: Measurer) -> None:
    """Another search, under other conditions and for another goal, knows the user's own refusals only."""
    refused = Rejected("same", "program 'x' writes wrong values", "ab" * 32)
    slow = HardwareProfile(N4.config, DramTiming(latency=700))
    with TuningDatabase(tmp_path / "profile.db", secret=SECRET) as database:
        mine = DatabaseSession(database, measurer.prepared, N4, "latency")
        for result in (refused, replace(refused, reason="another"), Rejected("time", "too slow")):
            mine.put(measurer.first.schedule, result)
        assert DatabaseSession(database, measurer.prepared, slow, "throughput").refusals() == {
            refused.form: refused.reason
        }
    with TuningDatabase(tmp_path / "profile.db", secret=OTHER_SECRET) as database:
        assert DatabaseSession(database, measurer.prepared, N4, "latency").refusals() == {}
