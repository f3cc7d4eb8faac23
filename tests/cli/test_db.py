"""Tests of `mla db`, and of the option `--db` of `mla tune` and `mla serve`."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from compiler.tuning.strategies import STRATEGY_ORDER
from scripts.networks.digits import MODEL
from tests.support.tflite_recurrent import svdf

N4 = ("--target", "n4")
TUNE = ("tune", MODEL, "--method", "random", "--devices", "1", *N4)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return the path of a database; the first test that needs the database fills it with a short search."""
    return tmp_path_factory.mktemp("db") / "measurements.db"


@pytest.fixture
def database(mla, file):
    if not file.exists():
        result = mla(*TUNE, "--trials", "2", "--db", file)
        assert result.status == 0 and "0 measurements came from the database" in result.out, result.err
    return file


def test_second_search_uses_stored_measurements(mla, database, tmp_path):
    out = tmp_path / "tune.json"
    result = mla(*TUNE, "--trials", "2", "--db", f"sqlite:///{database}", "--json", out)
    document = json.loads(out.read_text())
    assert result.status == 0 and document["trials"] == document["cache_hits"] == 2, result.err
    assert (
        "2 measurements came from the database" in result.out
        and "opening the simulated chip" not in result.err
    )


def test_default_database_is_in_cache(mla, database, tmp_path, monkeypatch):
    monkeypatch.setenv("MLA_CACHE", str(tmp_path))
    monkeypatch.delenv("MLA_DB")
    assert mla("db", "import", database).status == 2  # not a valid export
    assert mla("db", "show").out.startswith("0 profiles, 0 trials") and (tmp_path / "profile.db").exists()


def test_db_show_counts_entries(mla, database):
    result = mla("db", "show", "--db", database, "--json", "-")
    document = json.loads(result.out)
    assert document["schema_version"] == 1
    assert (document["profiles"], document["trials"], document["programs"]) == (1, 3, 1)
    listed = json.loads(mla("isa", "list", "--db", database, "--json", "-").out)["macros"]
    assert document["macros"] == len(listed)
    (searched,) = document["searched"]
    assert searched["trials"] == 3 and searched["machine"]["n"] == 4 and searched["cycles"] > 0
    text = mla("db", "show", "--db", database).out
    macros = f"{len(listed)} macro-instruction{'' if len(listed) == 1 else 's'}"
    assert f"1 profile, 3 trials, 1 program, {macros}, 0 executions" in text and "on n=4, " in text


def test_export_and_import(mla, database, tmp_path):
    lines, other = tmp_path / "entries.jsonl", tmp_path / "other.db"
    written = mla("db", "export", lines, "--db", database).out
    assert (
        written.endswith(" entries written\n") and int(written.split()[0]) >= 4
    )  # a profile and three trials
    assert mla("db", "import", lines, "--db", other).out == written.replace("written", "added")
    assert mla("db", "import", lines, "--db", other).out == "0 entries added\n"
    result = mla(
        *TUNE, "--trials", "2", "--db", other
    )  # imported measurements are not trusted, so they are repeated
    assert result.status == 0 and "0 measurements came from the database" in result.out, result.err


def test_usage_errors_are_one_line(complains, database, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("some text\n" * 1000)
    complains(2, "there is no database", "db", "show", "--db", tmp_path / "absent.db")
    complains(2, f"{text} is not a measurement database", "db", "show", "--db", text)
    complains(2, "unknown database type 'luck'", "db", "show", "--db", "luck://x")
    complains(2, "its first line must be", "db", "import", text, "--db", tmp_path / "new.db")
    complains(2, "cannot be read", "db", "import", tmp_path / "absent", "--db", tmp_path / "new.db")
    complains(2, "is an input", "db", "export", database, "--db", database)
    complains(2, "invalid choice", "db", "drop")
    complains(2, "--db: must be a file, or a URL", "db", "show", "--db", "")
    complains(2, "--no-cache disables the database", *TUNE, "--trials", "1", "--no-cache", "--db", database)
    complains(1, "unable to open database file", *TUNE, "--trials", "1", "--db", tmp_path / "none" / "x.db")
    complains(2, "--no-db cannot be combined with --db", "run", MODEL, "--no-db", "--db", database)
    assert text.read_text().startswith("some text")


def test_serving_reuses_its_measurements(mla, database):
    serve = ("serve", MODEL, *N4, "--adapt", "--trials-per-request", "0", "--requests", "2", "--db", database)
    # Each is stored once: the static and the served schedule, the best known one, are measured in a stream.
    for _ in range(2):
        result = mla(*serve)
        assert result.status == 0, result.err
        document = json.loads(mla("db", "show", "--db", database, "--json", "-").out)
        assert (document["trials"], document["programs"]) == (5, 2)


@pytest.mark.parametrize("action", ["show", "export"])
def test_read_only_actions_write_no_files(mla, database, tmp_path, monkeypatch, action):
    """`show` and `export` modify neither the database nor the cache, and create no files next to the database."""
    folder = tmp_path / "only # read"
    folder.mkdir()
    copy = folder / "x?.db"
    copy.write_bytes(database.read_bytes())
    before = copy.stat().st_mtime_ns
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "none"))
    # Root could write to every folder, so access to this one is denied here.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) not in (folder, copy))
    result = mla("db", action, *(["--db", copy] if action == "show" else [tmp_path / "out", "--db", copy]))
    assert (result.status, result.err) == (0, "")
    assert " trials, " in result.out or " entries written" in result.out
    assert list(folder.iterdir()) == [copy] and copy.stat().st_mtime_ns == before
    assert not (tmp_path / "none").exists()


def test_empty_cache_has_empty_database(mla, tmp_path, monkeypatch):
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "none"))
    monkeypatch.delenv("MLA_DB")
    assert mla("db", "show").out.startswith("0 profiles, 0 trials")
    assert not (tmp_path / "none").exists()


def test_file_without_tables_is_named(complains, tmp_path):
    (tmp_path / "empty.db").write_bytes(b"")
    complains(2, "lacks this program's tables", "db", "show", "--db", tmp_path / "empty.db")
    assert (tmp_path / "empty.db").read_bytes() == b""


def test_commands_report_the_source_of_each_layer(mla, tmp_path, monkeypatch):
    model = "scripts/networks/digits_int8.onnx"
    monkeypatch.setenv("MLA_DB", str(tmp_path / "known.db"))
    found = tmp_path / "tuned.json"
    tuned = mla("tune", model, "--target", "n4", "--trials", "8", "--seed", "1", "--json", found)
    assert tuned.status == 0, tuned.err
    improvers = {each["proposer"] for each in json.loads(found.read_text())["improvements"]}
    reports = []
    for option in ((), ("--no-db",)):
        result = mla("run", model, "--target", "n4", *option, "--json", tmp_path / "run.json")
        assert result.status == 0, result.err
        reports.append(json.loads((tmp_path / "run.json").read_text()))
        assert ("the database has better schedules for" in result.err) == (not option)
    known, static = reports
    assert known["cycles"] < static["cycles"] and known["outputs"] == static["outputs"]
    assert {each["source"] for each in static["programs"]} == {"static"}
    proposers = {each["proposer"] for each in known["programs"] if each["source"] == "database"}
    assert proposers and proposers <= improvers
    package = tmp_path / "digits.mla"
    made = mla("compile", model, "--target", "n4", "-o", package, "--json", tmp_path / "compile.json")
    assert made.status == 0, made.err
    assert json.loads((tmp_path / "compile.json").read_text())["schedules"] == known["programs"]
    result = mla("run", package, "--target", "n4", "--json", tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["cycles"] == known["cycles"], result.err


def test_databases_are_merged_pushed_and_pulled(mla, complains, database, tmp_path):
    other, third = tmp_path / "other.db", tmp_path / "third.db"
    count = int(mla("db", "export", tmp_path / "all.jsonl", "--db", database).out.split()[0])
    assert mla("db", "push", other, "--db", database).out == f"{count} entries added to sqlite:///{other}\n"
    assert mla("db", "pull", other, "--db", third).out == f"{count} entries added from sqlite:///{other}\n"
    merged = mla("db", "merge", database, other, "--db", third)
    assert merged.out.splitlines() == [f"0 entries added from sqlite:///{each}" for each in (database, other)]
    # The entries are this user's: they remain trusted, and nothing is measured again.
    tuned = mla(*TUNE, "--trials", "2", "--db", third)
    assert "2 measurements came from the database" in tuned.out, tuned.err
    complains(2, "there is no database", "db", "pull", tmp_path / "absent.db", "--db", third)
    complains(2, "is the database itself", "db", "merge", third, "--db", third)


def test_models_are_tuned_for_several_targets_ahead(mla, tmp_path):
    file, out = tmp_path / "ahead.db", tmp_path / "out.json"
    run = ("optimize", "--targets", "n4,n8", "--trials", "2", "--devices", "1", "--db", file, "--json", out)
    # A small network: its candidates are compiled and simulated in a tenth of the time that digits need.
    model = tmp_path / "svdf.tflite"
    model.write_bytes(svdf(np.random.default_rng(4), activation=1))
    result = mla(*run, model)
    assert result.status == 0, result.err
    rows = json.loads(out.read_text())["networks"]
    assert [row["target"] for row in rows] == ["n4", "n8"]
    assert all(0 < row["best_cycles"] <= row["baseline_cycles"] and row["trials"] == 2 for row in rows)
    assert "2 results stored in sqlite:///" in result.out
    assert mla(*run, model).status == 0
    again = json.loads(out.read_text())["networks"]
    # The best schedule for one target may be new to the other.
    assert all(row["cache_hits"] + row["neighbour_schedules"] >= 2 for row in again)
    assert all(now["best_cycles"] <= row["best_cycles"] for now, row in zip(again, rows, strict=True))
    # By now each target's schedules were measured for both.
    assert mla(*run, model).status == 0
    assert all(row["cache_hits"] == 2 for row in json.loads(out.read_text())["networks"])


def test_executions_of_layers_are_kept_and_strategies_are_shown(mla, tmp_path):
    kept = ("--db", tmp_path / "kept.db")
    run = (MODEL, *N4, "--limit", "1", "--json", "-")
    assert mla("run", *run, *kept).status == 0
    first, second = (json.loads(mla("profile", *run, *kept).out)["layers"] for _ in range(2))
    ran = [number for number, layer in enumerate(first) if layer["cycles"]]
    assert ran and all(first[each]["history"]["executions"] == 1 for each in ran)
    for each in ran:
        layer = second[each]
        assert layer["history"] == {
            "executions": 2,
            "conditions": 1,
            "least_cycles": layer["cycles"],
            "last_cycles": layer["cycles"],
        }
        assert layer["bottleneck"] in STRATEGY_ORDER
        assert layer["strategies"] == list(STRATEGY_ORDER[layer["bottleneck"]])
    assert "0 trials" in mla("db", "show", *kept).out
    assert mla("db", "strategies", *kept).out == "no trials\n"
    assert json.loads(mla("profile", *run, "--no-db").out)["layers"][ran[0]]["history"]["executions"] == 0
    tune = ("tune", MODEL, "--method", "strategies", "--devices", "1", *N4, "--trials", "4")
    assert mla(*tune, *kept).status == 0
    rows = json.loads(mla("db", "strategies", *kept, "--json", "-").out)["strategies"]
    assert rows and all(0 <= row["improvements"] <= row["trials"] and row["trials"] for row in rows)


def test_verbs_that_only_read_create_no_database(mla, tmp_path):
    absent = tmp_path / "absent.db"
    for verb in (
        ("compile", MODEL, *N4, "-o", tmp_path / "x.mla"),
        ("db", "models", "--rollback", "0"),
        ("db", "models"),
        ("isa", "remove", "any"),
        ("isa", "list"),
    ):
        result = mla(*verb, "--db", absent)
        assert result.status == 2 and f"there is no database {absent}" in result.err, verb
    assert not absent.exists()


def test_database_is_not_merged_with_itself(mla, database, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(database)
    for other in (database.parent / ".." / database.parent.name / database.name, link):
        result = mla("db", "push", other, "--db", database)
        assert result.status == 2 and "is the database itself" in result.err


def test_locked_database_is_not_needed_to_run(mla, database, tmp_path, caplog):
    locked = tmp_path / "locked.db"
    locked.write_bytes(database.read_bytes())
    with closing(sqlite3.connect(locked, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        result = mla("run", MODEL, *N4, "--device", "golden", "--limit", "1", "--db", locked)
    assert result.status == 0 and "the database of measurements is not used" in caplog.text, result.err
