"""If a database cannot be opened, the message gives the reason and a remedy."""

import random
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from compiler.tuning_db import connection
from compiler.tuning_db.connection import METADATA
from compiler.tuning_db.database import TuningDatabase
from hw.errors import InputError, WorkError
from tests.tuning_db import random_entries
from tests.tuning_db.random_entries import SECRET, key


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (
            "profile.db",
            "a database URL must look like sqlite:///FILE or postgresql://USER@HOST/NAME, not 'profile.db'",
        ),
        ("", "a database URL must look like"),
        ("nonsense://x/y", "unknown database type 'nonsense'"),
    ],
)
def test_invalid_urls_are_named(url, why):
    with pytest.raises(InputError) as caught:
        TuningDatabase(url)
    assert str(caught.value).startswith(f"--db: {why}")


def test_missing_driver_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        InputError, match="needs the package psycopg, which is missing: make setup EXTRAS=postgres"
    ):
        TuningDatabase("postgresql+psycopg://nobody@localhost/none")
    monkeypatch.setitem(sys.modules, "oracledb", None)
    with pytest.raises(InputError, match="needs the package oracledb, which is missing: install oracledb"):
        TuningDatabase("oracle+oracledb://nobody@localhost/none")


def test_unreachable_server_is_named_without_the_password():
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed: make setup EXTRAS=postgres")
    with pytest.raises(WorkError) as caught:
        TuningDatabase("postgresql://user:hidden@127.0.0.1:1/none")
    assert "postgresql://user:***@127.0.0.1:1/none cannot be used: " in str(caught.value)


@pytest.mark.parametrize(
    "contents", [b"no database, but some text that is long enough to be a header" * 40, b"\0" * 5000]
)
def test_foreign_file_is_not_modified(tmp_path, contents):
    path = tmp_path / "profile.db"
    path.write_bytes(contents)
    with pytest.raises(InputError, match=r"profile\.db is not a measurement database"):
        TuningDatabase(f"sqlite:///{path}")
    assert path.read_bytes() == contents


def test_check_finds_damage(tmp_path):
    path = tmp_path / "profile.db"
    with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
        rng = random.Random(1)
        database.add_execution(*(random_entries.execution(rng, key()) for _ in range(200)))
        database.check()
    with closing(sqlite3.connect(path)) as raw:
        page = raw.execute("pragma page_size").fetchone()[0]
        root = raw.execute("select rootpage from sqlite_master where name = 'mla_executions'").fetchone()[0]
    data = bytearray(path.read_bytes())
    data[(root - 1) * page : root * page] = b"\xff" * page
    path.write_bytes(data)
    with (
        TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database,
        pytest.raises(WorkError, match=r"profile\.db cannot be used: "),
    ):
        database.check()


def test_check_finds_files_that_cannot_be_written(tmp_path):
    path = tmp_path / "profile.db"
    with (
        TuningDatabase(f"sqlite:///{path}", secret=SECRET, timeout_s=0) as database,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        database.check()
        other.execute("begin immediate")
        with pytest.raises(WorkError, match="locked"):
            database.check()


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(WorkError, match=r"none/profile\.db cannot be used: unable to open database file"):
        TuningDatabase(f"sqlite:///{tmp_path}/none/profile.db")


def test_cache_that_cannot_be_created_is_named(cache):
    cache.write_text("a file in its place")
    with pytest.raises(WorkError, match=r"the cache .* cannot be created: "):
        TuningDatabase()


@pytest.mark.parametrize(
    ("version", "why"),
    [(2, "a newer version of this program created it"), (0, "an older version created it")],
)
def test_tables_of_another_version_are_not_modified(url, version, why, monkeypatch):
    monkeypatch.setattr(connection, "VERSION", version)
    TuningDatabase(url, secret=SECRET).close()
    monkeypatch.undo()
    with pytest.raises(InputError) as caught:
        TuningDatabase(url, secret=SECRET)
    assert f"has tables of version {version}, not {connection.VERSION}: {why}" in str(caught.value)
    assert "name another database" in str(caught.value)


@pytest.mark.parametrize("value", ["'two'", "NULL", "x'00'", "-7"])
def test_invalid_version(tmp_path, value):
    path = tmp_path / "profile.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE mla_store (version)")
        connection.execute(f"INSERT INTO mla_store VALUES ({value})")
    if value == "NULL":  # as if no version had been stored
        TuningDatabase(f"sqlite:///{path}", secret=SECRET).close()
    else:
        with pytest.raises(InputError, match=r"has tables of version .*, not 1: "):
            TuningDatabase(f"sqlite:///{path}")


@pytest.mark.parametrize("table", connection._LATER_TABLES, ids=lambda table: table.name)
def test_databases_of_earlier_versions_are_read(tmp_path, table):
    path = tmp_path / "profile.db"
    with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
        database.put_best(random_entries.entry(key()))
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(f"DROP TABLE {table.name}")
    with TuningDatabase(f"sqlite:///{path}", secret=SECRET, read_only=True) as database:
        assert database.best(key()) is not None
        assert database.violation("x") is None and database.policies("x") == []
        assert database.macros([key()]) == [] and database.summary()


def test_tables_of_other_programs_are_preserved(tmp_path):
    path = tmp_path / "profile.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.execute("INSERT INTO theirs VALUES (5)")
    with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
        database.put_best(random_entries.entry(key()))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT x FROM theirs").fetchall() == [(5,)]


def test_tables_with_other_columns_are_an_error(tmp_path):
    path = tmp_path / "profile.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE mla_programs (x)")
    with (
        pytest.raises(WorkError, match=r"no such column|has no column"),
        TuningDatabase(f"sqlite:///{path}") as database,
    ):
        database.best(key())


def test_missing_tables_are_created(tmp_path):
    path = tmp_path / "profile.db"
    for missing in METADATA.tables:
        with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
            database.put_best(random_entries.entry(key()))
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"DROP TABLE {missing}")
        with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
            assert (database.best(key()) is None) == (missing == "mla_programs")


def test_table_dropped_during_use_is_an_error(tmp_path):
    path = tmp_path / "profile.db"
    with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DROP TABLE mla_trials")
        with pytest.raises(WorkError, match=r"profile\.db cannot be used: no such table: mla_trials"):
            database.trials(key())


def test_database_in_memory():
    with TuningDatabase("sqlite://", secret=SECRET) as database:
        database.put_best(random_entries.entry(key()))
        assert database.best(key()) is not None


def test_damaged_file_is_an_error_and_never_a_hit(tmp_path):
    """SQLite or the digest of an entry detects an overwritten page; a damaged entry is never returned."""
    path = tmp_path / "profile.db"
    with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
        for number in range(20):
            database.put_best(random_entries.entry(key(number), 5.0 + number))
    good = Path(path).read_bytes()
    for page in range(1, len(good) // 4096):
        path.write_bytes(good[: page * 4096] + b"\xa5" * 4096 + good[(page + 1) * 4096 :])
        try:
            with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
                for number in range(20):
                    hit = database.best(key(number))
                    assert hit is None or random_entries.same(
                        hit, random_entries.entry(key(number), 5.0 + number)
                    )
        except WorkError as error:
            assert "cannot be used: " in str(error)
