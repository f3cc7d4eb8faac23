"""Several processes can use one database at the same time, even if some of them are killed."""

from multiprocessing import get_context
from pathlib import Path
from threading import Thread

import pytest

from compiler.cache import content_store
from compiler.cache.content_store import ContentStore
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import EntryKey
from hw.config import load_target
from tests.tuning_db import random_entries
from tests.tuning_db.killed_writer import check_killed_writers
from tests.tuning_db.random_entries import SECRET

#: Number of kills in one test; `tests/soak/test_killed_writers.py` has more.
KILLS = 15


@pytest.mark.parametrize("seed", [1])
def test_killed_writers_lose_nothing(tmp_path, seed):
    check_killed_writers(tmp_path, seed, KILLS)


def _key(target: str, number: int) -> EntryKey:
    return random_entries.key(number, load_target(target).n)


def _share(url: str, target: str, rounds: int) -> None:
    """Write entries of one configuration, and read the entries of both configurations."""
    with TuningDatabase(url, secret=SECRET) as database:
        for number in range(rounds):
            mine = _key(target, number % 3)
            database.put_best(random_entries.entry(mine, 1000.0 - number, target=target))
            for other in ("n4", "n8"):
                key = _key(other, number % 3)
                hit = database.best(key)
                assert hit is None or (hit.key == key and hit.codes[0].config == load_target(other))
                assert hit is None or random_entries.same(
                    hit, random_entries.entry(key, hit.cost, target=other)
                )
            hit = database.best(mine)
            assert hit is not None and hit.cost <= 1000.0 - number


def test_processes_and_configurations_share_a_database(url):
    """Four processes that start at the same time can share a database that does not exist yet."""
    context = get_context("forkserver")
    processes = [context.Process(target=_share, args=(url, target, 12)) for target in ("n4", "n8") * 2]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    with TuningDatabase(url, secret=SECRET) as database:
        for target in ("n4", "n8"):
            costs = [hit.cost for number in range(3) if (hit := database.best(_key(target, number)))]
            assert costs == [1000.0 - 9, 1000.0 - 10, 1000.0 - 11]


@pytest.mark.parametrize("damage", ["none", "short"])
def test_concurrent_processes_agree_on_one_secret(tmp_path, monkeypatch, damage):
    """Concurrent processes agree on one secret; otherwise entries signed with a replaced secret would be lost."""
    if damage == "short":
        (tmp_path / "secret").write_bytes(b"short")
    make, secrets = content_store._new_secret, []
    # Use `func`, since before Python 3.12 the property admits the threads of a process one at a time.
    other = Thread(target=lambda: secrets.append(ContentStore.secret.func(ContentStore(tmp_path))))

    def delayed(path: Path) -> bytes | None:
        monkeypatch.setattr(content_store, "_new_secret", make)
        other.start()  # finds no secret either
        other.join(0.3)  # would create a secret now if it did not have to wait
        return make(path)

    monkeypatch.setattr(content_store, "_new_secret", delayed)
    secrets.append(ContentStore(tmp_path).secret)
    other.join()
    assert {*secrets} == {ContentStore(tmp_path).secret} != {None} and len(secrets) == 2
