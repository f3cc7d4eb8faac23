"""Fixtures that give every test its own cache."""

from pathlib import Path

import pytest

from compiler.cache.content_store import ContentStore


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "compiled"


@pytest.fixture
def store(folder: Path) -> ContentStore:
    return ContentStore()
