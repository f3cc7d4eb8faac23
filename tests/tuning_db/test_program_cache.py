"""The in-memory program cache avoids unnecessary database queries and validations."""

import random
import threading
from dataclasses import replace

import pytest

from compiler.cache.content_store import ContentStore
from compiler.runtime import validation
from compiler.runtime.session import Session, dram_bytes
from compiler.tuning_db import program_cache
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import Entry, EntryKey
from compiler.tuning_db.program_cache import Placement, ProgramCache
from cosim.golden import GoldenDevice
from tests.tuning_db import random_entries
from tests.tuning_db.random_entries import key


class CountingDatabase:
    """Wrapper of a database that records the key of each query."""

    def __init__(self, database: TuningDatabase):
        self.database = database
        self.asked: list[EntryKey] = []

    def best(self, where: EntryKey) -> Entry | None:
        self.asked.append(where)
        return self.database.best(where)

    def put_best(self, entry: Entry) -> bool:
        return self.database.put_best(entry)

    def drop_best(self, where: EntryKey) -> None:
        self.database.drop_best(where)


@pytest.fixture
def counted(database) -> CountingDatabase:
    return CountingDatabase(database)


@pytest.fixture
def validated(monkeypatch) -> list:
    """Return a list that records every validated stream."""
    streams: list = []
    validate = validation.validate
    monkeypatch.setattr(validation, "validate", lambda *stream: (streams.append(stream), validate(*stream)))
    return streams


@pytest.fixture
def placement() -> Placement:
    network = random_entries.network()
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        return Placement.of_session(Session(device, network))


def test_database_is_queried_once(counted):
    cache = ProgramCache(counted)
    assert cache.best(key()) is None and cache.best(key()) is None
    assert counted.asked == [key()] * 2  # misses are not cached, since another process may store an entry
    counted.put_best(random_entries.entry(key()))
    first = cache.best(key())
    assert first is not None and all(cache.best(key()) is first for _ in range(100))
    assert counted.asked == [key()] * 3 and (cache.hits, cache.misses) == (100, 3)
    cache.forget(key())
    again = cache.best(key())
    assert again is not None and again is not first and random_entries.same(again, first)


def test_stored_program_is_available_at_once(counted):
    cache = ProgramCache(counted)
    assert cache.put_best(random_entries.entry(key(), 50.0)) and counted.asked == []
    found = cache.best(key())
    assert found is not None and found.cost == 50.0 and counted.asked == []
    counted.put_best(random_entries.entry(key(), 20.0, seed=1))  # by another process
    assert not cache.put_best(random_entries.entry(key(), 30.0))
    found = cache.best(key())
    assert found is not None and found.cost == 20.0 and len(counted.asked) == 1
    cache.drop_best(key())
    assert cache.best(key()) is None


def test_least_recently_used_programs_are_evicted(counted):
    for number in range(4):
        counted.put_best(random_entries.entry(key(number)))
    cache = ProgramCache(counted, max_entries=3)
    for number in (0, 1, 2, 0, 3):
        cache.best(key(number))
    counted.asked.clear()
    for number in (0, 2, 3, 1):
        cache.best(key(number))
    assert counted.asked == [key(1)]


def test_bytes_are_bounded(counted):
    size = random_entries.entry(key()).bytes
    cache = ProgramCache(counted, max_bytes=2 * size)
    for number in range(3):
        cache.put_best(random_entries.entry(key(number)))
    for number in (1, 2, 0):
        cache.best(key(number))
    assert counted.asked == [key(0)]
    small = ProgramCache(counted, max_bytes=1)  # the program in use remains
    assert small.best(key(0)) is small.best(key(0)) is not None
    small.forget()
    assert small._bytes == 0


@pytest.mark.parametrize("seed", [1])
def test_eviction_order_is_lru(counted, seed):
    """The least recently used program is evicted first."""
    print(f"seed {seed}")
    rng, order = random.Random(seed), []
    for number in range(8):
        counted.put_best(random_entries.entry(key(number)))
    cache = ProgramCache(counted, max_entries=4)
    for _ in range(300):
        number = rng.randrange(8)
        counted.asked.clear()
        if rng.random() < 0.1:
            cache.forget(key(number))
            order = [each for each in order if each != number]
            continue
        found = cache.best(key(number))
        assert found is not None and found.key == key(number)
        assert counted.asked == ([] if number in order else [key(number)])
        order = [*[each for each in order if each != number], number][-4:]


def test_program_is_validated_once_per_placement(counted, placement, validated):
    counted.put_best(random_entries.entry(key()))
    cache = ProgramCache(counted)
    for _ in range(5):
        assert cache.runnable(key(), placement) is cache.best(key()) is not None
    assert len(validated) == 1
    moved = Placement(
        tuple(tuple(o + 64 for o in each) for each in placement.operands),
        tuple(tuple((a + 64, b + 64, how) for a, b, how in each) for each in placement.windows),
    )
    assert cache.runnable(key(), moved) is not None and cache.runnable(key(), placement) is not None
    assert len(validated) == 2
    cache.forget()
    assert cache.runnable(key(), placement) is not None and len(validated) == 3
    assert cache.runnable(key(9), placement) is None


def test_proofs_persist_between_runs(counted, placement, validated):
    """Program caches of later runs find the proof that a session has stored for the same stream."""
    counted.put_best(random_entries.entry(key()))
    network = random_entries.network()
    with GoldenDevice(network.config, dram_bytes(network)) as device:
        Session(device, network, proofs=ContentStore())
    for _ in range(2):
        assert ProgramCache(counted, ContentStore()).runnable(key(), placement) is not None
    assert len(validated) == 1


def test_unsafe_program_is_a_miss(counted, placement, caplog):
    counted.put_best(random_entries.entry(key()))
    cache = ProgramCache(counted)
    ((first, last, permissions), *_) = placement.windows[0]
    narrow = replace(placement, windows=(((first, first + 1, permissions),),))
    assert cache.runnable(key(), narrow) is None
    assert f"the best program of subgraph {key().subgraph} is not used: " in caplog.text
    assert last > first and cache.runnable(key(), placement) is not None


def test_threads_share_the_cache(counted, monkeypatch):
    for number in range(6):
        counted.put_best(random_entries.entry(key(number)))
    cache, wrong = ProgramCache(counted, max_entries=3), []

    def use(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            number = rng.randrange(6)
            found = cache.best(key(number))
            if found is None or found.key != key(number):
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and cache.hits + cache.misses == 240
    assert len(cache._entries) == 3 and cache._bytes == sum(
        held.entry.bytes for held in cache._entries.values()
    )
    assert program_cache.MAX_CACHED_ENTRIES > 3
