"""Intact entries of an exported file are imported as untrusted entries."""

import json
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.tuning_db import export
from compiler.tuning_db.database import TuningDatabase
from hw.errors import InputError, WorkError
from tests.tuning_db import random_entries
from tests.tuning_db.random_entries import OTHER_SECRET, SECRET, key

HEAD = '{"format":"mla profiles","schema_version":1}\n'


def filled(database: TuningDatabase, seed: int = 1) -> list:
    """Store trials, executions, a profile and a program in the database, and return the trials."""
    rng = random.Random(seed)
    made = [random_entries.trial(rng, key(), good=True) for _ in range(7)]
    database.add_measurement(*made)
    database.add_execution(*(random_entries.execution(rng, key()) for _ in range(3)))
    database.put_profile(random_entries.profile(rng))
    database.put_best(random_entries.entry(key()))
    return made


def test_everything_except_programs_is_imported(tmp_path, database):
    path = tmp_path / "out.jsonl"
    made = filled(database)
    assert database.export(path) == 11
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == {"format": "mla profiles", "schema_version": 1}
    assert [line["kind"] for line in lines[1:]] == ["profile"] + ["trial"] * 7 + ["execution"] * 3
    with TuningDatabase(f"sqlite:///{tmp_path}/theirs.db", secret=OTHER_SECRET) as theirs:
        assert theirs.import_(path) == 11
        assert theirs.import_(path) == 0
        assert theirs.trials(key()) == [(trial, False) for trial in made]
        assert theirs.best(key()) is None and theirs.history(key().subgraph) == []
        assert [profile.trusted for profile in theirs.profiles()] == [False]
        again = tmp_path / "again.jsonl"
        assert theirs.export(again) == 11 and again.read_bytes() == path.read_bytes()


def test_own_entries_are_imported_as_untrusted(tmp_path, database):
    made = filled(database)
    database.export(tmp_path / "out.jsonl")
    with TuningDatabase(f"sqlite:///{tmp_path}/mine.db", secret=SECRET) as mine:
        mine.import_(tmp_path / "out.jsonl")
        assert not any(trusted for _, trusted in mine.trials(key()))
        assert all(mine.measured(key(), trial.schedule) is None for trial in made)
        # Entries measured again here are trusted. An equal measurement with an equal time is the same entry.
        first, *others = mine.candidates(key(), 10)
        mine.add_measurement(replace(first.trial, key=key(), result=random_entries.result(3), when=5.0))
        for other in others:
            mine.add_measurement(other.trial)
        assert sum(trusted for _, trusted in mine.trials(key())) == 7 and len(mine.trials(key())) == 8
        assert [c.trusted for c in mine.candidates(key(), 10)] == [True] * 7


def test_import_does_not_remove_trust(tmp_path, database):
    made = filled(database)
    database.export(tmp_path / "out.jsonl")
    assert database.import_(tmp_path / "out.jsonl") == 0
    assert database.trials(key()) == [(trial, True) for trial in made]


@pytest.mark.parametrize("damage", ["imported", "data", "code", "columns"])
def test_merge_restores_damaged_entries_and_trust(tmp_path, database, damage):
    made = filled(database)
    database.export(tmp_path / "out.jsonl")
    with TuningDatabase(f"sqlite:///{tmp_path}/mine.db", secret=SECRET) as mine:
        if damage == "imported":
            assert mine.import_(tmp_path / "out.jsonl") == 11
        else:
            assert mine.merge(database) == 11
        values = {"data": "data = x'7b7d'", "code": "code = x''", "columns": "subgraph = 'other'"}
        with sqlite3.connect(tmp_path / "mine.db") as raw:
            if damage in values:
                raw.execute(f"update mla_trials set {values[damage]}")
        assert not any(trusted for _, trusted in mine.trials(key()))
        assert mine.merge(database) == {"imported": 11}.get(damage, 7)
        assert mine.merge(database) == 0
        assert mine.trials(key()) == [(trial, True) for trial in made]


def test_merge_does_not_remove_trust(tmp_path, database):
    made = filled(database)
    with TuningDatabase(f"sqlite:///{tmp_path}/theirs.db", secret=OTHER_SECRET) as theirs:
        theirs.merge(database)
        assert database.merge(theirs) == 0
    assert database.trials(key()) == [(trial, True) for trial in made]


def test_invalid_lines_are_skipped(tmp_path, database, caplog):
    path, rng = tmp_path / "in.jsonl", random.Random(2)
    trial = random_entries.trial(rng, key(), good=True)
    with TuningDatabase(f"sqlite:///{tmp_path}/theirs.db", secret=SECRET) as theirs:
        theirs.add_measurement(trial)
        theirs.export(path)
    good = path.read_text().splitlines()[1]
    entry = json.loads(good)["entry"]
    bad = [
        "",
        "x",
        "[]",
        "7",
        good[:-5],
        good.replace('"trial"', '"program"'),
        good.replace('"trial"', "5"),
        good.replace('"trial"', '"execution"'),
        good.replace(key().subgraph, "0" * 63),
        json.dumps({"kind": "trial"}),
        json.dumps({"kind": "trial", "entry": entry | {"seed": float("nan")}}),
        "[" * 200_000,
        json.dumps({"kind": "trial", "entry": entry | {"seed": 10**5000 if False else 1 << 80}}),
        json.dumps({"kind": "trial", "entry": {k: v for k, v in entry.items() if k != "result"}}),
        json.dumps({"kind": "trial", "entry": entry | {"result": {"stage": "trap", "reason": 4}}}),
        '{"kind": "trial", "entry": {"seed": ' + "9" * 5000 + "}}",
    ]
    path.write_bytes(
        (HEAD + "\n".join([*bad, good, *bad])).encode() + b"\n\xff\xfe\n" + b"x" * (5 << 20) + b"\n"
    )
    assert database.import_(path) == 1
    assert database.trials(key()) == [(trial, False)]
    assert "in.jsonl, line 2 is left out: " in caplog.text
    assert f"{2 * len(bad) + 3} lines were left out in all" in caplog.text
    assert caplog.text.count("is left out: ") == 10


@pytest.mark.parametrize(
    "head",
    [
        "",
        "x",
        "[]",
        '{"format":"mla profiles","schema_version":2}',
        '{"format":"other","schema_version":1}',
        "{",
    ],
)
def test_foreign_file_is_rejected(tmp_path, database, head):
    path = tmp_path / "in.jsonl"
    path.write_text(head + "\n")
    with pytest.raises(InputError) as caught:
        database.import_(path)
    assert str(caught.value).startswith(
        f'{path}: its first line must be {{"format": "mla profiles", "schema_version": 1}}'
    )


def test_missing_files_are_named(tmp_path, database):
    with pytest.raises(InputError, match=r"none\.jsonl: cannot be read: No such file"):
        database.import_(tmp_path / "none.jsonl")
    with pytest.raises(WorkError, match="cannot be written: "):
        database.export(tmp_path / "none" / "out.jsonl")


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_files_are_never_hits(tmp_path, seed):
    print(f"seed {seed}")
    rng, path = random.Random(seed), tmp_path / "out.jsonl"
    with TuningDatabase(f"sqlite:///{tmp_path}/a.db", secret=SECRET) as database:
        made = filled(database)
        database.export(path)
    good = path.read_bytes()
    start = good.index(b"\n") + 1
    for number in range(30):
        data = bytearray(good)
        for _ in range(rng.choice([1, 10, 100])):
            data[rng.randrange(start, len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.randrange(start, len(data))] if rng.random() < 0.3 else data)
        with TuningDatabase(f"sqlite:///{tmp_path}/b{number}.db", secret=SECRET) as database:
            database.import_(path)
            assert database.best(key()) is None and not any(mine for _, mine in database.trials(key()))
            assert database.history(key().subgraph) == []
            assert all(database.measured(key(), trial.schedule) is None for trial in made)
            assert not any(candidate.trusted for candidate in database.candidates(key(), 100))


def test_entries_are_imported_in_batches(tmp_path, database, monkeypatch):
    monkeypatch.setattr(export, "_BATCH_SIZE", 3)
    rng = random.Random(4)
    base = random_entries.trial(rng, key(), good=True)
    database.add_measurement(*(replace(base, when=float(n + 1)) for n in range(10)))
    database.export(tmp_path / "out.jsonl")
    with TuningDatabase(f"sqlite:///{tmp_path}/theirs.db", secret=SECRET) as theirs:
        assert theirs.import_(Path(tmp_path / "out.jsonl")) == 10
        assert [trial.when for trial, _ in theirs.trials(key())] == [n + 1.0 for n in range(10)]
