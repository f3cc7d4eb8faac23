"""Entries of the build cache are complete or absent, whatever happens while they are created."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from cosim.rtl import cache
from cosim.rtl.errors import DiskFullError
from hw.errors import InputError, WorkError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "things"


def entries(folder: Path) -> list[str]:
    """Return the contents of the cache, except locks."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def fill(folder: Path, lock: int) -> None:
    (folder / "file").write_text("content")


def test_entry_is_made_once(folder: Path):
    made: list[Path] = []

    def make(place: Path, lock: int) -> None:
        made.append(place)
        fill(place, lock)

    for _ in range(3):
        assert (cache.cached("things", "key", make) / "file").read_text() == "content"
    assert len(made) == 1
    assert entries(folder) == ["key"]


def test_concurrent_callers_make_entry_once(folder: Path):
    made: list[Path] = []
    begun, go_on = threading.Event(), threading.Event()

    def make(place: Path, lock: int) -> None:
        made.append(place)
        begun.set()
        go_on.wait(10)
        fill(place, lock)

    threads = [threading.Thread(target=cache.cached, args=("things", "key", make)) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait(10)
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1


@pytest.mark.parametrize("blow", [KeyboardInterrupt, WorkError("no"), OSError(errno.EIO, "I/O error")])
def test_failure_leaves_nothing(folder: Path, blow: BaseException):
    def make(place: Path, lock: int) -> None:
        fill(place, lock)
        raise blow

    with pytest.raises((KeyboardInterrupt, WorkError)):
        cache.cached("things", "key", make)
    assert entries(folder) == []


def test_remains_of_killed_build_are_replaced(folder: Path):
    (folder / "key.part").mkdir(parents=True)
    (folder / "key.part" / "half").write_text("half")
    entry = cache.cached("things", "key", fill)
    assert [path.name for path in entry.iterdir()] == ["file"]
    assert entries(folder) == ["key"]


def test_remains_of_other_killed_builds_are_removed(folder: Path):
    for name in ("dead", "alive"):
        (folder / f"{name}.part").mkdir(parents=True)
    with (folder / "alive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cache.cached("things", "key", fill)
    assert entries(folder) == ["alive.part", "key"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_reported(folder: Path, code: int):
    def make(place: Path, lock: int) -> None:
        raise OSError(code, "full")

    with pytest.raises(DiskFullError, match=f"no room left on the disk of the cache {folder}"):
        cache.cached("things", "key", make)


def test_unusable_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    for bad in (str(tmp_path / "file"), "/proc/absent", "x" * 6000):
        monkeypatch.setenv("MLA_CACHE", bad)
        with pytest.raises(InputError, match=f"^MLA_CACHE must be a folder .* not '{bad[:20]}") as refusal:
            cache.cached("things", "key", fill)
        assert len(str(refusal.value)) < 300
    monkeypatch.delenv("MLA_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(WorkError, match="cannot be used: Not a directory; set MLA_CACHE to move it"):
        cache.cached("things", "key", fill)
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "with blank"))
    with pytest.raises(InputError, match="MLA_CACHE must be a path without blanks"):
        cache.cached("things", "key", fill)


def test_entry_in_read_only_cache_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch):
    cache.cached("things", "key", fill)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for where, name in ((os, "utime"), (os, "open"), (Path, "mkdir")):
        monkeypatch.setattr(where, name, refuse)
    assert cache.cached("things", "key", fill) == folder / "key"


def test_cache_folder_from_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache.cache_folder() == tmp_path / "cache"  # from MLA_CACHE
    monkeypatch.delenv("MLA_CACHE")
    assert cache.cache_folder() == tmp_path / "shared" / "mla"
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache.cache_folder() == Path("/home/me/.cache/mla")


def test_oldest_entries_are_evicted(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "MAX_ENTRIES", 3)
    for number in range(5):
        cache.cached("things", f"key{number}", fill)
    assert entries(folder) == ["key2", "key3", "key4"]


def test_key_separates_parts():
    assert cache.cache_key(["ab", "c"]) != cache.cache_key(["a", "bc"])
    assert cache.cache_key(["a", b"b"]) == cache.cache_key(["a", "b"])
