"""Fixtures that give every test a separate cache and database."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from compiler.tuning_db.connection import METADATA
from compiler.tuning_db.database import TuningDatabase
from tests.tuning_db.random_entries import SECRET

#: Environment variable with the URL of another database. If it is set, the tests also run on that database and empty
#: it.
OTHER = "MLA_TEST_DB"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MLA_DB", "")
    return tmp_path / "cache"


@pytest.fixture(params=["sqlite", *(["other"] if OTHER in os.environ else [])])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'profile.db'}"
    engine = sa.create_engine(os.environ[OTHER])
    METADATA.drop_all(engine)
    engine.dispose()
    return os.environ[OTHER]


@pytest.fixture
def database(url: str) -> Iterator[TuningDatabase]:
    with TuningDatabase(url, secret=SECRET) as database:
        yield database
