"""The content store returns an item only if the same user stored it, and otherwise nothing."""

import errno
import os
import tempfile
from multiprocessing import get_context
from pathlib import Path

import pytest

from compiler.cache.content_store import ContentStore

CONTENTS = bytes(range(256)) * 4


def entry(folder: Path) -> Path:
    (path,) = (each for each in folder.iterdir() if each.name.startswith("kind-"))
    return path


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_stored_contents_are_returned(store, folder):
    assert store.get("kind", "key") is None
    store.put("kind", "key", CONTENTS)
    for each in (store, ContentStore(), ContentStore(folder)):
        assert each.get("kind", "key") == CONTENTS
    assert store.get("kind", "other") is None and store.get("other", "key") is None
    store.put("kind", "key", b"new")
    assert ContentStore().get("kind", "key") == b"new"


@pytest.mark.parametrize("place", [0, 5, 6, 20, 38, 500, -1])
def test_flipped_bit_is_detected(store, folder, caplog, place):
    store.put("kind", "key", CONTENTS)
    data = bytearray(entry(folder).read_bytes())
    data[place] ^= 1
    entry(folder).write_bytes(data)
    assert store.get("kind", "key") is None
    assert "damaged or was written by another user" in caplog.text
    assert names(folder) == ["secret"]


@pytest.mark.parametrize("length", [0, 3, 6, 37, 38, 39, 1000])
def test_truncated_entry_is_detected(store, folder, length):
    store.put("kind", "key", CONTENTS)
    os.truncate(entry(folder), length)
    assert store.get("kind", "key") is None


def test_renamed_entry_is_rejected(store, folder):
    store.put("kind", "key", CONTENTS)
    for other in ("kind-other", "other-key"):
        (folder / other).write_bytes(entry(folder).read_bytes())
        assert store.get(*other.split("-")) is None


def test_entries_of_another_user_are_rejected(store, folder):
    store.put("kind", "key", CONTENTS)
    (folder / "secret").write_bytes(bytes(32))
    assert ContentStore().get("kind", "key") is None


@pytest.mark.parametrize("damage", ["readable by others", "short", "long", "a link"])
def test_invalid_secret_is_replaced(store, folder, damage):
    store.put("kind", "key", CONTENTS)
    secret = folder / "secret"
    before = secret.read_bytes()
    if damage == "readable by others":
        secret.chmod(0o644)
    elif damage == "a link":
        (folder.parent / "elsewhere").write_bytes(before)
        (folder.parent / "elsewhere").chmod(0o600)
        secret.unlink()
        secret.symlink_to(folder.parent / "elsewhere")
    else:
        secret.write_bytes(before[:-1] if damage == "short" else before + b"x")
    again = ContentStore()
    assert again.get("kind", "key") is None
    again.put("kind", "key", b"again")
    assert ContentStore().get("kind", "key") == b"again"
    assert secret.read_bytes() != before and secret.stat().st_mode & 0o777 == 0o600


def test_least_recently_used_entries_are_evicted(folder):
    store = ContentStore(folder, max_bytes=3 * (len(CONTENTS) + 38))
    for number in range(3):
        store.put("kind", str(number), CONTENTS)
        os.utime(folder / f"kind-{number}", (number, number))
    assert store.get("kind", "0") is not None  # marks the entry as the most recently used one
    store.put("kind", "3", CONTENTS)
    assert names(folder) == ["kind-0", "kind-2", "kind-3", "secret"]


def test_number_of_entries_is_bounded(folder):
    store = ContentStore(folder, max_entries=2)
    for number in range(5):
        store.put("kind", str(number), b"")
        os.utime(folder / f"kind-{number}", (number, number))
    assert names(folder) == ["kind-3", "kind-4", "secret"]


def test_a_process_looks_for_entries_to_remove_once_it_added_a_share_of_the_limit(folder):
    folder.mkdir(parents=True)
    for number in range(1000):
        (folder / f"kind-old{number}").write_bytes(b"")
    first, second = (ContentStore(folder, max_entries=640) for _ in range(2))
    counts = []
    for number in range(21):
        (first, second)[number % 2].put("kind", str(number), b"")
        counts.append(len(names(folder)) - 1)
    assert counts == [640, *range(641, 650), 640, *range(641, 650), 640]


def test_entry_larger_than_the_store_is_not_stored(folder):
    store = ContentStore(folder, max_bytes=100)
    store.put("kind", "key", CONTENTS)
    assert store.get("kind", "key") is None


def test_files_of_a_killed_process_are_removed(folder):
    store = ContentStore(folder, max_entries=10)
    store.put("kind", "key", CONTENTS)
    for name, age in ((".part-old", 7200), (".part-new", 0)):
        (folder / name).write_bytes(b"half")
        now = (folder / name).stat().st_mtime
        os.utime(folder / name, (now - age, now - age))
    store.put("kind", "key", CONTENTS)
    assert names(folder) == [".part-new", "kind-key", "secret"]


def test_folder_that_cannot_be_created_causes_one_warning(folder, caplog):
    folder.parent.write_text("a file in its place")
    store = ContentStore()
    store.put("kind", "key", CONTENTS)
    assert store.get("kind", "key") is None
    assert caplog.text.count("caching is disabled") == 1


def test_full_disk_causes_one_warning(store, folder, caplog, monkeypatch):
    def full(*_args: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store.put("kind", "old", CONTENTS)
    monkeypatch.setattr(tempfile, "mkstemp", full)
    for key in ("a", "b"):
        store.put("kind", key, CONTENTS)
    assert store.get("kind", "old") == CONTENTS and store.get("kind", "a") is None
    assert caplog.text.count("No space left on device") == 1


def _put_many(folder: Path, seed: int) -> None:
    store = ContentStore(folder, max_entries=4)
    for number in range(50):
        key = str(number % 7)
        store.put("kind", key, key.encode() * 1000)
        found = store.get("kind", str((number + seed) % 7))
        assert found is None or bytes(found) == str((number + seed) % 7).encode() * 1000


def test_processes_share_the_store(folder):
    context = get_context("spawn")
    writers = [context.Process(target=_put_many, args=(folder, seed)) for seed in range(3)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert [each.exitcode for each in writers] == [0, 0, 0]
    assert sum(each.name.startswith("kind-") for each in folder.iterdir()) <= 4
    assert not [each for each in folder.iterdir() if each.name.startswith(".")]
