"""Tests of `mla isa`."""

import json
from dataclasses import replace

import pytest

import compiler
from compiler.profile.measurement import HardwareProfile
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import Execution
from compiler.tuning_db.macro_instructions import use_of
from compiler.tuning_db.session import layer_key_of
from tests.support.learned import FIRST, OTHER, fill, prepared


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def database(tmp_path):
    fill(tmp_path / "macros.db")
    return tmp_path / "macros.db"


def listed(mla, database):
    result = mla("isa", "list", "--db", database, "--json", "-")
    assert result.status == 0, result.err
    return json.loads(result.out)["macros"]


def test_list_and_show(mla, database):
    macros = listed(mla, database)
    assert macros and len({each["name"] for each in macros}) == len(macros)
    each = next(each for each in macros if each["own_commands"])
    assert each["proof"] == "symbols" and each["rules"] and each["words"] > 0 and each["uses"] == []
    (measured,) = each["measurements"]
    assert (measured["static_cycles"], measured["cycles"], measured["trusted"]) == (100, 90, True)
    assert measured["machine"]["n"] == 4 and measured["network"] == "point"
    assert (each["from"], each["cycles"], each["saved_cycles"], each["used_by"]) == ("point", 90, 10, [])
    assert len(each["subgraph"]) == 64
    text = mla("isa", "list", "--db", database).out
    assert each["name"] in text and "saved" in text
    text = mla("isa", "show", each["name"], "--db", database).out
    for part in (
        each["name"],
        "in i8 8x8x",
        "proved equivalent for all inputs",
        "no network has used it yet",
    ):
        assert part in text
    shown = mla("isa", "show", each["name"], "--db", database, "--json", "-")
    assert json.loads(shown.out)["name"] == each["name"]


def test_uses_are_shown_with_the_cycles_saved(mla, database):
    network = compiler.compile(OTHER.graph(2), "n4", database=database)
    used = next(each for each in network.sources if each.macro)
    assert used.macro is not None
    key = layer_key_of(used.subgraph, network.rounding, HardwareProfile(network.config))
    with TuningDatabase(database) as opened:
        opened.add_execution(
            Execution(key=key, when=1.0, cycles=500, network="other"),
            Execution(key=key, when=2.0, cycles=450, network="other", macro=used.macro),
        )
        opened.add_execution(
            Execution(
                key=replace(key, subgraph=use_of(used.macro)),
                when=1.0,
                cycles=9,
                network="third",
                macro=used.macro,
            )
        )
    found = next(each for each in listed(mla, database) if each["name"] == used.macro)
    assert found["used_by"] == ["other", "third"]
    use, shared = found["uses"]
    assert shared["network"] == "third" and shared["cycles"] is None  # counted with other layers
    assert (use["network"], use["cycles"], use["static_cycles"]) == ("other", 450, 500)
    assert "450" in mla("isa", "show", used.macro, "--db", database).out


def test_export_import_and_remove(mla, database, tmp_path):
    names = [each["name"] for each in listed(mla, database)]
    file, other = tmp_path / "macros.jsonl", tmp_path / "other.db"
    assert mla("isa", "export", file, names[0], "--db", database).status == 0
    result = mla("isa", "import", file, "--db", other)
    assert result.status == 0 and "added" in result.out
    (imported,) = listed(mla, other)
    assert imported["name"] == names[0] and not imported["measurements"][0]["trusted"]
    assert compiler.compile(FIRST.graph(1), "n4", database=other).sources == ()
    assert "imported, not measured here" in mla("isa", "show", names[0], "--db", other).out
    assert mla("isa", "remove", names[0], "--db", other).out == "1 macro-instruction removed\n"
    assert listed(mla, other) == []
    assert mla("isa", "list", "--db", other).out == "no macro-instructions\n"


def test_wrong_names_and_files_are_one_line(mla, database, tmp_path):
    name = listed(mla, database)[0]["name"]
    for action in ("show", "remove"):
        result = mla("isa", action, name[:-1], "--db", database)
        assert result.status == 2 and f"did you mean {name}?" in result.err and result.err.count("\n") == 1
    assert mla("isa", "list", "--db", tmp_path / "none.db").status == 2
    assert mla("isa", "export", tmp_path / "x", "none", "--db", database).status == 2
    for junk in (b"", b"\xff\xfe", b"{}", b'{"format": "mla profiles", "schema_version": 9}', b"[" * 100_000):
        (tmp_path / "junk").write_bytes(junk)
        result = mla("isa", "import", tmp_path / "junk", "--db", database)
        assert result.status == 2 and result.err.count("\n") == 1
    assert len(listed(mla, database)) > 0


def test_executions_are_not_imported(mla, database, tmp_path, caplog):
    """A file of `mla db export` may contain macro-instructions, of which only these and profiles are imported."""
    file = tmp_path / "all.jsonl"
    with TuningDatabase(database) as opened:
        made = prepared(FIRST, 1)
        key = layer_key_of("a" * 64, "reference", HardwareProfile(made.machine))
        opened.add_execution(Execution(key=key, when=1.0, cycles=5))
    assert mla("db", "export", file, "--db", database).status == 0
    result = mla("isa", "import", file, "--db", tmp_path / "other.db")
    assert result.status == 0
    assert "is left out: kind must be one of profile, macro" in caplog.text + result.err
