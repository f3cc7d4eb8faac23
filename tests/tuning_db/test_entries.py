"""The database returns entries unchanged, and only for the key under which they were stored."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from compiler.api import compile
from compiler.cache.content_store import ContentStore
from compiler.profile.measurement import HardwareProfile, LayerCycles, Measurement
from compiler.runtime.session import Session, dram_bytes
from compiler.schedule.schedule import LayerSchedule, Schedule
from compiler.tuning_db import machines
from compiler.tuning_db.connection import METADATA, PROGRAMS
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import Execution, Profile, TrialEntry
from compiler.tuning_db.programs import to_bytes
from cosim.golden import GoldenDevice
from hw.config import load_target
from hw.errors import InputError
from tests.tuning_db import random_entries
from tests.tuning_db.random_entries import OTHER_SECRET, SECRET, key, result

SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_trials_are_returned_as_stored(url, seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    keys = [
        key(subgraph, profile, options) for subgraph in (0, 1) for profile in (0, 1) for options in (0, 1)
    ]
    made = [random_entries.trial(rng, rng.choice(keys)) for _ in range(60)]
    with TuningDatabase(url, secret=SECRET) as database:
        for each in made[:20]:
            database.add_measurement(each)
        database.add_measurement(*made[20:])
    with TuningDatabase(url, secret=SECRET) as database:
        for each in keys:
            assert database.trials(each) == [(trial, True) for trial in made if trial.key == each]
        for each in made:
            last = [t for t in made if (t.key, t.schedule) == (each.key, each.schedule)][-1]
            assert database.measured(each.key, each.schedule) == last.result
            assert database.measured(key("another"), each.schedule) is None
        assert database.measured(keys[0], LayerSchedule(rows=7919)) is None


def test_layer_and_network_schedules_are_separate(database):
    for schedule in (LayerSchedule(), Schedule(), Schedule(layers={"": LayerSchedule()})):
        assert database.measured(key(), schedule) is None
        database.add_measurement(TrialEntry(key=key(), schedule=schedule, result=result(1)))
        assert database.measured(key(), schedule) == result(1)
    assert [type(trial.schedule) for trial, _ in database.trials(key())] == [
        LayerSchedule,
        Schedule,
        Schedule,
    ]


def test_latest_measurement_is_used_and_all_are_stored(database):
    first, second = (
        TrialEntry(key=key(), schedule=Schedule(), result=result(c), when=w) for c, w in ((5, 1), (9, 2))
    )
    database.add_measurement(first, second, first)  # storing the same measurement again adds nothing
    assert database.trials(key()) == [(first, True), (second, True)]
    assert database.measured(key(), Schedule()) == result(9)


def test_trial_without_a_time_gets_the_current_time(database):
    database.add_measurement(TrialEntry(key=key(), schedule=Schedule(), result=result(5)))
    ((trial, _),) = database.trials(key())
    assert trial.when > 1.6e9


def test_best_program_is_kept(url):
    with TuningDatabase(url, secret=SECRET) as database:
        assert database.best(key()) is None
        assert database.put_best(random_entries.entry(key(), 500.0))
        assert not database.put_best(random_entries.entry(key(), 500.0, seed=1))
        assert not database.put_best(random_entries.entry(key(), 501.0, seed=1))
        assert database.put_best(random_entries.entry(key(1), 7.0, seed=1))
    with TuningDatabase(url, secret=SECRET) as database:
        first = database.best(key())
        assert first is not None and random_entries.same(first, random_entries.entry(key(), 500.0))
        assert database.put_best(random_entries.entry(key(), 499.5, seed=1))
        second = database.best(key())
        assert second is not None and random_entries.same(second, random_entries.entry(key(), 499.5, seed=1))
        assert not second.codes[0].image.flags.writeable
        for other in (key(2), key(0, 1), key(0, 0, 1)):
            assert database.best(other) is None
        with database._engine.connect() as connection:  # worse entries are deleted
            assert connection.scalar(sa.select(sa.func.count()).select_from(PROGRAMS)) == 2
        database.drop_best(key())
        assert database.best(key()) is None and database.best(key(1)) is not None


def test_stored_program_runs(database):
    made = random_entries.network()
    database.put_best(random_entries.entry(key()))
    found = database.best(key())
    assert found is not None
    (stage,) = made.stages
    network = replace(made, stages=(replace(stage, code=found.codes[0]),))
    inputs = {t.name: np.arange(8, dtype=np.int8).reshape(t.shape) for t in made.inputs}
    with GoldenDevice(made.config, dram_bytes(made)) as device:
        out = Session(device, network).run(inputs)
    for tensor, array in made(**inputs).items():
        np.testing.assert_array_equal(out[tensor], array)


def test_size_of_stored_programs_is_bounded(url):
    with TuningDatabase(url, secret=SECRET) as database:
        for number in range(3):
            database.put_best(random_entries.entry(key(number)))
    size = len(to_bytes(random_entries.entry(key())))
    with TuningDatabase(url, secret=SECRET, room=3 * size) as database:
        database.put_best(random_entries.entry(key(3)))
        there = [database.best(key(number)) is not None for number in range(4)]
        assert there == [False, True, True, True]
        database.add_measurement(TrialEntry(key=key(0), schedule=Schedule(), result=result(1)))
    with TuningDatabase(url, secret=SECRET, room=100) as database:
        assert not database.put_best(random_entries.entry(key(9)))
        assert database.best(key(9)) is None and database.trials(key(0))


def test_network_of_several_stages_is_stored(database):
    codes = tuple(code for seed in (0, 1) for code in random_entries.network(seed).codes)
    entry = replace(random_entries.entry(key()), codes=codes)
    database.put_best(entry)
    found = database.best(key())
    assert found is not None and len(found.codes) == 2 and random_entries.same(found, entry)


def test_history_is_in_chronological_order(database):
    rng = random.Random(1)
    made = [random_entries.execution(rng, key(0, profile)) for profile in (0, 1, 2) for _ in range(5)]
    database.add_execution(*made, random_entries.execution(rng, key(1)))
    ordered = sorted(made, key=lambda each: each.when)
    assert database.history(key().subgraph) == ordered
    assert database.history(key().subgraph, 4) == ordered[-4:]
    assert database.history(key(7).subgraph) == []


def test_entries_of_another_user_are_only_candidates(url):
    rng = random.Random(3)
    good = [random_entries.trial(rng, key(), good=True) for _ in range(5)]
    with TuningDatabase(url, secret=OTHER_SECRET) as database:
        database.add_measurement(*good)
        database.put_best(random_entries.entry(key()))
        database.add_execution(random_entries.execution(rng, key()))
        database.put_profile(random_entries.profile(rng))
    with TuningDatabase(url, secret=SECRET) as database:
        assert database.best(key()) is None
        assert all(database.measured(key(), trial.schedule) is None for trial in good)
        assert database.history(key().subgraph) == []
        assert [profile.trusted for profile in database.profiles()] == [False]
        found = database.candidates(key())
        assert [candidate.trusted for candidate in found] == [False] * 5
        assert [c.trial for c in found] == sorted(good, key=lambda t: t.result.cycles)  # type: ignore[union-attr]
        assert database.put_best(
            random_entries.entry(key(), 1e6, seed=1)
        )  # whatever cost another user claims
        hit = database.best(key())
        assert hit is not None and hit.cost == 1e6


def test_without_a_secret_no_entry_is_trusted(url, monkeypatch):
    monkeypatch.setattr(ContentStore, "secret", None)
    with TuningDatabase(url) as database:
        database.put_best(random_entries.entry(key()))
        assert database.best(key()) is None


def test_each_user_has_a_secret(url):
    for _ in range(2):
        with TuningDatabase(url) as database:
            database.put_best(random_entries.entry(key()))
            assert database.best(key()) is not None
    with TuningDatabase(url, secret=OTHER_SECRET) as database:
        assert database.best(key()) is None


def test_candidates_are_from_the_nearest_machines(database):
    rng = random.Random(5)
    machines = [HardwareProfile(load_target(target)) for target in ("n4", "n8", "n16", "n32")]
    for machine in machines[1:]:
        database.put_profile(Profile(conditions=machine))
    own = machines[2].key
    made = []
    for profile in [*(machine.key for machine in machines), key(0, "unknown").profile]:
        for options in (0, 1):
            where = replace(key(0, 0, options), profile=profile)
            made += [
                replace(random_entries.trial(rng, where), schedule=random_entries.layer_schedule(rng))
                for _ in range(8)
            ]
    database.add_measurement(*made, random_entries.trial(rng, key(1), good=True))
    here = replace(key(), profile=own)
    found = database.candidates(here, 1000)
    good = [trial for trial in made if isinstance(trial.result, Measurement) and trial.result.valid]
    assert len(found) == len(good)
    known = {machine.key: sum_of_logs(machine, machines[2]) for machine in machines[1:]}

    def rank(trial):
        apart = known.get(trial.key.profile, math.inf)
        return apart, trial.key.options != here.options, trial.key, trial.result.cycles

    assert [c.trial for c in found] == sorted(good, key=rank)
    assert [c.distance for c in found] == pytest.approx([rank(c.trial)[0] for c in found])
    assert [c.trial for c in database.candidates(here, 5)] == [c.trial for c in found[:5]]
    # For a machine without entries, the candidates of the nearest machines come first.
    new = HardwareProfile(load_target("n4"))
    first = database.candidates(replace(key(), profile=new.key), 64, conditions=new)
    order = [c.trial.key.profile for c in first]
    assert order[0] == new.key
    assert [machines[i].key for i in (1, 2, 3)] == list(dict.fromkeys(p for p in order if p in known))


def sum_of_logs(one: HardwareProfile, other: HardwareProfile) -> float:
    """Return the distance between two targets, computed independently of the code under test."""
    weights = {"n": 4, "sp_bytes": 1, "acc_bytes": 1}
    total = 0.0
    for field, size in vars(one.config).items():
        total += weights.get(field, 0.125) * abs(math.log2((size or 1) / (getattr(other.config, field) or 1)))
    return total


def test_schedules_of_another_network_are_not_candidates(database):
    inside, outside = LayerSchedule(rows=3), Schedule((("a", "z"),), {})
    for number, schedule in enumerate(
        (Schedule((), {"a": inside}), Schedule((), {"x": inside}), outside, inside), 1
    ):
        database.add_measurement(TrialEntry(key=key(), schedule=schedule, result=result(number)))
    assert len(database.candidates(key())) == 4
    found = database.candidates(key(), nodes=["a", "b"])
    assert [c.trial.schedule for c in found] == [Schedule((), {"a": inside}), inside]


def test_candidates_are_distinct(database):
    for cycles in (9, 5, 7):
        database.add_measurement(TrialEntry(key=key(), schedule=Schedule(), result=result(cycles)))
        database.add_measurement(TrialEntry(key=key(0, 1), schedule=Schedule(), result=result(1)))
    (found,) = database.candidates(key())
    assert found.trial.result == result(5) and found.distance == 0


def test_candidates_can_exclude_the_own_key(database):
    for number, where in enumerate((key(), key(0, 1), key(0, 0, 1))):
        schedule = Schedule((), {"a": LayerSchedule(rows=number + 1)})
        database.add_measurement(TrialEntry(key=where, schedule=schedule, result=result(9)))
    assert [c.trial.schedule.layers["a"].rows for c in database.candidates(key())] == [1, 3, 2]
    assert [c.trial.schedule.layers["a"].rows for c in database.candidates(key(), elsewhere=True)] == [3, 2]


def test_latest_profiles_are_returned(url):
    rng = random.Random(7)
    made = [random_entries.profile(rng) for _ in range(12)]
    newer = [replace(each, behaviour={"bus": 2.0}, when=each.when + 1) for each in made[:5]]
    with TuningDatabase(url, secret=SECRET) as database:
        for each in (*made[:4], *newer, *made[4:]):
            database.put_profile(each)
        wanted = {each.conditions.key: each for each in (*made, *newer)}
        assert {each.conditions.key: each for each in database.profiles()} == wanted
        for each in made:
            (distance, found), *_ = database.nearest(each.conditions, 3)
            assert distance == 0 and found.conditions.key == each.conditions.key
        assert len(database.nearest(made[0].conditions, 3)) == 3
    with TuningDatabase(url, secret=OTHER_SECRET) as database:
        assert not any(each.trusted for each in database.profiles())
        mine = replace(made[0], when=0.0)
        database.put_profile(mine)
        assert [each for each in database.profiles() if each.trusted] == [mine]


def test_values_that_cannot_be_stored_are_rejected(database):
    trial = TrialEntry(key=key(), schedule=Schedule(), result=result(1))
    bad = [
        replace(trial, result=result(-1)),
        replace(trial, result=result(1 << 63)),
        replace(trial, result=result(1, energy_uj=math.nan)),
        replace(trial, result=result(1, floor=-1)),
        replace(trial, result=result(1, energy_uj=-1.0)),
        replace(trial, when=math.inf),
        replace(trial, result=result(1, layers=(LayerCycles(("a",), -1, {}),))),
        replace(trial, result=result(1, layers=(LayerCycles((7,), 1, {}),))),  # type: ignore[arg-type]
        replace(trial, method="x" * 5000),
        replace(trial, seed=1 << 70),
        replace(trial, seed=0.5),  # type: ignore[arg-type]
        replace(
            trial, result=result(1, layers=(LayerCycles(("a",), 1, {str(i): 1 for i in range(1 << 17)}),))
        ),
        replace(trial, result=result(1, layers=(LayerCycles(("a",), 1, {}),) * (1 << 17))),
    ]
    for each in bad:
        with pytest.raises(InputError, match="the database cannot store this entry: "):
            database.add_measurement(trial, each)
    assert database.trials(key()) == []
    with pytest.raises(InputError, match="cannot store this entry: utilization must be a finite number"):
        database.add_execution(
            replace(random_entries.execution(random.Random(0), key()), utilization=math.inf)
        )
    with pytest.raises(
        InputError, match="cannot store this entry: behaviour of 'bus' must be a finite number"
    ):
        database.put_profile(
            Profile(conditions=HardwareProfile(load_target("n4")), behaviour={"bus": math.nan})
        )
    with pytest.raises(InputError, match="cannot store this program: Infinity is not a JSON number"):
        database.put_best(replace(random_entries.entry(key()), cost=math.inf))
    for bad_result in (result(1, exact=False), result(1, floor=2)):
        with pytest.raises(
            InputError, match="only if its outputs were correct and its cycles not below the lower bound"
        ):
            database.put_best(replace(random_entries.entry(key()), result=bad_result))
    with pytest.raises(InputError, match="cannot store this program: a program's outputs must"):
        database.put_best(replace(random_entries.entry(key()), codes=()))


def test_default_database_is_a_file_in_the_cache(cache):
    with TuningDatabase() as database:
        database.put_best(random_entries.entry(key()))
    assert (cache / "profile.db").is_file()
    with TuningDatabase() as database:
        assert database.best(key()) is not None


def test_every_table_and_query_is_plain_sql():
    """All tables and queries compile for PostgreSQL and SQLite."""
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.schema import CreateTable

    from compiler.tuning_db.connection import entries

    for dialect in (postgresql.dialect(), sqlite.dialect()):
        for table in METADATA.sorted_tables:
            assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=dialect))
            if "data" in table.c:
                assert str(entries(table).compile(dialect=dialect)).startswith("SELECT")


def test_compiled_networks_are_restored_from_the_database(database):
    for target in random_entries.TARGETS:
        network = compile(random_entries.network().graph, target)  # type: ignore[arg-type]
        entry = replace(
            random_entries.entry(key(0, target)), codes=tuple(network.codes), schedule=network.schedule
        )
        database.put_best(entry)
        found = database.best(key(0, target))
        assert (
            found is not None
            and random_entries.same(found, entry)
            and found.codes[0].config == load_target(target)
        )


def test_sqlite_is_durable(tmp_path):
    with (
        TuningDatabase(f"sqlite:///{tmp_path}/a.db", secret=SECRET) as database,
        database._engine.connect() as connection,
    ):
        values = {
            each: connection.execute(sa.text(f"PRAGMA {each}")).scalar()
            for each in ("journal_mode", "synchronous")
        }
        assert values == {"journal_mode": "wal", "synchronous": 2}


def test_number_of_queries(database):
    """Finding a program takes two queries (list, program); storing a measurement takes one query and one write."""
    database.put_best(random_entries.entry(key()))
    asked: list[str] = []
    event.listen(database._engine, "before_cursor_execute", lambda *given: asked.append(given[2].split()[0]))
    for work, wanted in (
        (lambda: database.best(key()), ["SELECT"] * 2),
        (lambda: database.best(key(9)), ["SELECT"]),
        (
            lambda: database.add_measurement(random_entries.trial(random.Random(1), key())),
            ["SELECT", "INSERT"],
        ),
    ):
        asked.clear()
        work()
        assert [each for each in asked if each != "BEGIN"] == wanted


def test_last_executions_of_a_subgraph_are_kept(database, monkeypatch):
    monkeypatch.setattr(machines, "MAX_EXECUTIONS", 3)
    one, other = (
        [Execution(key=random_entries.key(name), when=float(when), cycles=when) for when in range(5)]
        for name in ("one", "other")
    )
    database.add_execution(*other[:2])
    for each in one:
        database.add_execution(each)
    assert database.history(one[0].key.subgraph) == one[2:]
    assert database.history(other[0].key.subgraph) == other[:2]
