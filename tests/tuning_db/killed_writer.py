"""A process that writes to a database until it is killed, and what must be found there afterwards."""

import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import TrialEntry
from tests.tuning_db import random_entries
from tests.tuning_db.random_entries import SECRET, key

#: Every so many measurements there is a better program, and a note of an execution.
_BETTER = 3
_KEY = key("killed")


def made(seed: int, number: int) -> TrialEntry:
    """The measurement of a number."""
    trial = random_entries.trial(random.Random(seed << 32 | number), _KEY)
    return replace(trial, seed=number, when=float(number + 1))


def write(url: str, seed: int, start: int, told: Connection) -> None:
    """Keep one measurement after the other, and tell the number of each that is kept."""
    with TuningDatabase(url, secret=SECRET) as database:
        number = start
        while True:
            database.add_measurement(made(seed, number))
            told.send(number)
            number += 1
            if number % _BETTER == 0:
                database.put_best(random_entries.entry(_KEY, 1e9 - number, number % 2))
                database.add_execution(random_entries.execution(random.Random(number), _KEY))


def kill_again_and_again(folder: Path, seed: int, times: int) -> tuple[int, int]:
    """Kill a writer at so many random moments and check the database after each.

    Returns
    -------
    int, int
        Measurements that the writers told of, and those found.
    """
    rng, context = random.Random(seed), get_context("forkserver")
    context.set_forkserver_preload(["tests.tuning_db.killed_writer"])
    path, start, told = folder / "killed.db", 0, set()
    all_told = all_found = 0
    for _ in range(times):
        if rng.random() < 0.15:  # the making of the tables is cut short too
            path, start, told = folder / f"killed{rng.getrandbits(60)}.db", 0, set()
        known = len(told)
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=write, args=(f"sqlite:///{path}", seed, start, theirs))
        process.start()
        theirs.close()
        for _ in range(rng.choice([0, 0, 1, 2, 5, 9])):
            told.add(mine.recv())
        mine.poll(rng.random() * 0.05)  # some moment after that
        process.kill()
        process.join()
        told |= _rest(mine)
        found = _check(path, seed, told)
        all_told += len(told) - known
        all_found += len(found) - start
        start = len(found)
    return all_told, all_found


def _rest(connection: Connection) -> set[int]:
    """What is still to be heard of a killed process; its last word may be cut short."""
    out = set()
    with connection:
        try:
            while connection.poll():
                out.add(connection.recv())
        except (EOFError, OSError):
            pass
    return out


def _check(path: Path, seed: int, told: set[int]) -> set[int]:
    """The numbers of the measurements that are there: all that were told of, each as it was made."""
    if not path.exists():
        assert not told
        return set()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
        trials = database.trials(_KEY)
        best, notes = database.best(_KEY), database.history(_KEY.subgraph, 1 << 20)
        assert all(mine and trial == made(seed, trial.seed) for trial, mine in trials)
    found = {trial.seed for trial, _ in trials}
    assert found == set(range(len(trials))) and told <= found
    assert best is not None or not notes
    if best is not None:
        number = round(1e9 - best.cost)
        assert number <= len(found) and random_entries.same(
            best, random_entries.entry(_KEY, best.cost, number % 2)
        )
    return found


def check_killed_writers(tmp_path: Path, seed: int, kills: int) -> None:
    """Kill writers and compare the database with what they confirmed; raises AssertionError for a lost measurement."""
    print(f"seed {seed}")
    confirmed, found = kill_again_and_again(tmp_path, seed, kills)
    print(f"{kills} writers killed: {confirmed} measurements confirmed, {found} found")
    assert confirmed <= found
