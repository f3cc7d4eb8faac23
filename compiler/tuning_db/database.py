"""Tuning database: trials, best programs, hardware profiles and executions."""

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from compiler.cache.content_store import ContentStore
from compiler.profile.measurement import HardwareProfile, Result
from compiler.tuning_db import export, machines, programs, transfer_learning, trials
from compiler.tuning_db.connection import SealedRows, open_engine
from compiler.tuning_db.entries import (
    AnySchedule,
    Entry,
    EntryKey,
    Execution,
    Profile,
    StoredCandidate,
    TrialEntry,
)
from compiler.tuning_db.summary import DatabaseSummary, summary

#: Maximum total size of stored programs in bytes.
MAX_PROGRAMS_BYTES = 1 << 30


class TuningDatabase:
    """Access to the entries of one database.

    Use an instance as a context manager, or call `close`. Each process must open its own instance.

    Parameters
    ----------
    url : str, Path or None
        SQLAlchemy URL, or path of an SQLite file; None: `profile.db` in the cache (`MLA_CACHE`).
    secret : bytes or None
        Key that authenticates this user's entries; None: the secret of the user's cache.
    room : int
        Maximum total size of programs in bytes; the oldest are removed first.
    read_only : bool
        Open without writing, so that file and folder may be read-only. No entry is trusted then, because the secret is
        not read.

    Raises
    ------
    InputError
        The URL is invalid or the tables have another version; raised by methods for a value that cannot be stored.
    WorkError
        The database cannot be used; raised by every method.
    """

    def __init__(
        self,
        url: str | Path | None = None,
        *,
        secret: bytes | None = None,
        room: int = MAX_PROGRAMS_BYTES,
        read_only: bool = False,
    ):
        self._engine, self._room = open_engine(url, read_only), room
        self._rows = SealedRows(
            self._engine, ContentStore().secret if secret is None and not read_only else secret
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def add_measurement(self, *trials_: TrialEntry) -> None:
        """Store trials, measured or rejected, in one durable transaction."""
        trials.add(self._rows, trials_)

    def measured(self, key: EntryKey, schedule: AnySchedule) -> Result | None:
        """Return the result of this user's last trial of a schedule; None if there is none."""
        return trials.measured(self._rows, key, schedule)

    def trials(self, key: EntryKey) -> list[tuple[TrialEntry, bool]]:
        """Return all trials of a key in insertion order, each with a flag that is True for trials by this user."""
        return trials.of_key(self._rows, key)

    def best(self, key: EntryKey) -> Entry | None:
        """Return the best program that this user measured; None if there is no valid one."""
        return programs.best(self._rows, key)

    def put_best(self, entry: Entry) -> bool:
        """Store a program unless one with at most its cost exists; return True if stored."""
        return programs.put(self._rows, entry, self._room)

    def drop_best(self, key: EntryKey) -> None:
        """Remove the best program of a key, for example because it is faulty."""
        programs.drop(self._rows, key)

    def candidates(
        self,
        key: EntryKey,
        limit: int = 16,
        *,
        conditions: HardwareProfile | None = None,
        nodes: Iterable[str] | None = None,
        elsewhere: bool = False,
    ) -> list[StoredCandidate]:
        """Return promising schedules, which must be measured before use.

        They are sorted by the distance of their conditions; at equal distance, schedules with matching options come
        first, then this user's trials, then those with fewer cycles.

        Parameters
        ----------
        key : EntryKey
            Key to find schedules for.
        limit : int
            Maximum number of schedules.
        conditions : HardwareProfile or None
            Conditions of the key; None: those of its profile if stored.
        nodes : names or None
            Existing node names; schedules that name others are skipped.
        elsewhere : bool
            True to return only schedules of other keys.
        """
        names = None if nodes is None else frozenset(nodes)
        return self._rows.work(
            lambda connection: transfer_learning.candidates(
                self._rows, connection, key, limit, conditions, names, elsewhere=elsewhere
            )
        )

    def add_execution(self, *executions: Execution) -> None:
        """Store executions of subgraphs."""
        machines.add_executions(self._rows, executions)

    def history(self, subgraph: str, limit: int = 1000) -> list[Execution]:
        """Return the last executions of a subgraph under all conditions, in chronological order."""
        return machines.history(self._rows, subgraph, limit)

    def put_profile(self, profile: Profile) -> None:
        """Store a hardware profile; the latest one of a machine is used."""
        machines.put_profile(self._rows, profile)

    def profiles(self) -> list[Profile]:
        """Return the latest hardware profile of each machine."""
        return self._rows.work(lambda connection: machines.profiles(self._rows, connection))

    def nearest(self, conditions: HardwareProfile, limit: int = 1) -> list[tuple[float, Profile]]:
        """Return the stored profiles nearest to `conditions`, with their distances (`compiler.tuning_db.machines`)."""
        return machines.nearest(self.profiles(), conditions, limit)

    def summary(self) -> DatabaseSummary:
        """Return the number of entries by type and model."""
        return self._rows.work(lambda connection: summary(self._rows, connection))

    def export(self, path: Path) -> int:
        """Write profiles, trials and executions to a file of JSON lines; return their number."""
        return self._rows.work(lambda connection: export.export(self._rows, connection, path))

    def import_(self, path: Path) -> int:
        """Import missing entries from a file of `export` as untrusted; return their number."""
        return export.import_(self._rows, path)
