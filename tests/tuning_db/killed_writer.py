"""A process that writes to a database until it is killed, and the check of the database afterwards."""

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

#: After every third measurement, a better program and an execution are stored.
_INTERVAL = 3
_KEY = key("killed")


def made(seed: int, number: int) -> TrialEntry:
    """Return the measurement with the given number."""
    trial = random_entries.trial(random.Random(seed << 32 | number), _KEY)
    return replace(trial, seed=number, when=float(number + 1))


def write(url: str, seed: int, start: int, reported: Connection) -> None:
    """Store measurements one by one and report the number of each once it is stored."""
    with TuningDatabase(url, secret=SECRET) as database:
        number = start
        while True:
            database.add_measurement(made(seed, number))
            reported.send(number)
            number += 1
            if number % _INTERVAL == 0:
                database.put_best(random_entries.entry(_KEY, 1e9 - number, number % 2))
                database.add_execution(random_entries.execution(random.Random(number), _KEY))


def kill_again_and_again(folder: Path, seed: int, times: int) -> tuple[int, int]:
    """Kill a writer at each of several random moments, and check the database after each kill.

    Returns
    -------
    int, int
        Number of measurements that the writers reported, and number of measurements found in the database.
    """
    rng, context = random.Random(seed), get_context("forkserver")
    context.set_forkserver_preload(["tests.tuning_db.killed_writer"])
    path, start, reported = folder / "killed.db", 0, set()
    all_reported = all_found = 0
    for _ in range(times):
        if rng.random() < 0.15:  # the creation of the tables may be interrupted too
            path, start, reported = folder / f"killed{rng.getrandbits(60)}.db", 0, set()
        known = len(reported)
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=write, args=(f"sqlite:///{path}", seed, start, theirs))
        process.start()
        theirs.close()
        for _ in range(rng.choice([0, 0, 1, 2, 5, 9])):
            reported.add(mine.recv())
        mine.poll(rng.random() * 0.05)  # a random moment after the creation
        process.kill()
        process.join()
        reported |= _remaining(mine)
        found = _check(path, seed, reported)
        all_reported += len(reported) - known
        all_found += len(found) - start
        start = len(found)
    return all_reported, all_found


def _remaining(connection: Connection) -> set[int]:
    """Return the numbers that a killed process left in the buffer; its last message may be truncated."""
    out = set()
    with connection:
        try:
            while connection.poll():
                out.add(connection.recv())
        except (EOFError, OSError):
            pass
    return out


def _check(path: Path, seed: int, reported: set[int]) -> set[int]:
    """Check that the stored numbers include all reported ones with correct contents, and return the stored numbers."""
    if not path.exists():
        assert not reported
        return set()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
        trials = database.trials(_KEY)
        best, notes = database.best(_KEY), database.history(_KEY.subgraph, 1 << 20)
        assert all(mine and trial == made(seed, trial.seed) for trial, mine in trials)
    found = {trial.seed for trial, _ in trials}
    assert found == set(range(len(trials))) and reported <= found
    assert best is not None or not notes
    if best is not None:
        number = round(1e9 - best.cost)
        assert number <= len(found) and random_entries.same(
            best, random_entries.entry(_KEY, best.cost, number % 2)
        )
    return found


def check_killed_writers(tmp_path: Path, seed: int, kills: int) -> None:
    """Kill writers and assert that the database contains all measurements that they reported."""
    print(f"seed {seed}")
    confirmed, found = kill_again_and_again(tmp_path, seed, kills)
    print(f"{kills} writers killed: {confirmed} measurements confirmed, {found} found")
    assert confirmed <= found
