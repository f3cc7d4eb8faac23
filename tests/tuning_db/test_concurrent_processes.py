"""Several processes, and some that are killed."""

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

#: Of these in one test; `tests/soak/test_killed_writers.py` has more.
KILLS = 15


@pytest.mark.parametrize("seed", [1])
def test_killed_writers_lose_nothing(tmp_path, seed):
    check_killed_writers(tmp_path, seed, KILLS)


def _key(target: str, number: int) -> EntryKey:
    return random_entries.key(number, load_target(target).n)


def _share(url: str, target: str, rounds: int) -> None:
    """Write for one configuration, and look for both."""
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
    """Four that begin at the same time with a database that is not there yet."""
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
def test_users_that_begin_together_have_one_secret(tmp_path, monkeypatch, damage):
    """Of entries signed with a secret that another process then replaces nothing would be believed again."""
    if damage == "short":
        (tmp_path / "secret").write_bytes(b"short")
    make, secrets = content_store._new_secret, []
    # `func`: the property itself lets threads of one process in one by one, until Python 3.12.
    other = Thread(target=lambda: secrets.append(ContentStore.secret.func(ContentStore(tmp_path))))

    def late(path: Path) -> bytes | None:
        monkeypatch.setattr(content_store, "_new_secret", make)
        other.start()  # finds no secret either
        other.join(0.3)  # and would make one now, if it did not have to wait
        return make(path)

    monkeypatch.setattr(content_store, "_new_secret", late)
    secrets.append(ContentStore(tmp_path).secret)
    other.join()
    assert {*secrets} == {ContentStore(tmp_path).secret} != {None} and len(secrets) == 2
