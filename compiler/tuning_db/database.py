"""The hardware profile database: what was measured on which machine, and the best programs for it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from compiler.cache.content_store import ContentStore
from compiler.profile.hardware_profile import HardwareProfile
from compiler.profile.measurement import Result
from compiler.tuning_db import export, machines, programs, transfer_learning, trials
from compiler.tuning_db.connection import open_engine
from compiler.tuning_db.entries import AnySchedule, Entry, Execution, Profile, StoredCandidate, TrialEntry
from compiler.tuning_db.keys import EntryKey
from compiler.tuning_db.sealed_rows import SealedRows
from compiler.tuning_db.summary import DatabaseSummary, summary

#: Bytes of all programs.
MOST_PROGRAMS = 1 << 30


class TuningDatabase:
    """Entries of one database. Use it as a context manager, or call `close`; each process opens its own.

    Parameters
    ----------
    url : str, Path or None
        SQLAlchemy's name of the database, or a file of SQLite's; None: `profile.db` in the cache (`MLA_CACHE`).
    secret : bytes or None
        What tells this user's entries from those of others; None: the secret of the user's cache.
    room : int
        Bytes of all programs: beyond them the oldest go.
    read_only : bool
        Open it without writing anything, so that its file and folder may be read-only. No entry counts as this user's
        then: the secret is not looked up.

    Raises
    ------
    InputError
        The URL names no database, or one of another version. Methods: a value is none that can be kept.
    WorkError
        The database cannot be used; raised by every method.
    """

    def __init__(
        self,
        url: str | Path | None = None,
        *,
        secret: bytes | None = None,
        room: int = MOST_PROGRAMS,
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
        """Leave the database."""
        self._engine.dispose()

    def add_measurement(self, *trials_: TrialEntry) -> None:
        """Keep trials, measured or rejected. All of them are on the disk when this returns, or none."""
        trials.add(self._rows, trials_)

    def measured(self, key: EntryKey, schedule: AnySchedule) -> Result | None:
        """What this user's last trial of a schedule gave; None if there was none."""
        return trials.measured(self._rows, key, schedule)

    def trials(self, key: EntryKey) -> list[tuple[TrialEntry, bool]]:
        """All trials of a key in the order in which they came, each with whether this user made it."""
        return trials.of_key(self._rows, key)

    def best(self, key: EntryKey) -> Entry | None:
        """The best program that this user measured; None if there is none that can be believed."""
        return programs.best(self._rows, key)

    def put_best(self, entry: Entry) -> bool:
        """Keep a program unless one of the same cost or less is there; returns whether it was kept."""
        return programs.put(self._rows, entry, self._room)

    def drop_best(self, key: EntryKey) -> None:
        """Forget the best program of a key: it has turned out to be none."""
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
        """Schedules that were good, to be measured before use.

        First those of the nearest conditions, of these the same options, this user's own, the best.

        Parameters
        ----------
        key : Key
            What they are wanted for.
        limit : int
            How many at most.
        conditions : Conditions or None
            Those of the key; None: if its profile is known, those.
        nodes : names or None
            Nodes that there are: schedules that name others are left out.
        elsewhere : bool
            Only those of other keys.
        """
        names = None if nodes is None else frozenset(nodes)
        return self._rows.work(
            lambda connection: transfer_learning.candidates(
                self._rows, connection, key, limit, conditions, names, elsewhere=elsewhere
            )
        )

    def add_execution(self, *executions: Execution) -> None:
        """Keep how subgraphs ran."""
        machines.add_executions(self._rows, executions)

    def history(self, subgraph: str, limit: int = 1000) -> list[Execution]:
        """The execution profile of a subgraph: its last executions under all conditions, in time's order."""
        return machines.history(self._rows, subgraph, limit)

    def put_profile(self, profile: Profile) -> None:
        """Keep what was measured of a machine; of several the last counts."""
        machines.put_profile(self._rows, profile)

    def profiles(self) -> list[Profile]:
        """Machines that are known, each once."""
        return self._rows.work(lambda connection: machines.profiles(self._rows, connection))

    def nearest(self, conditions: HardwareProfile, limit: int = 1) -> list[tuple[float, Profile]]:
        """The known machines nearest to one, with their distances (`compiler.tuning_db.machine_distance`)."""
        return machines.nearest(self.profiles(), conditions, limit)

    def summary(self) -> DatabaseSummary:
        """How many entries there are of what."""
        return self._rows.work(lambda connection: summary(self._rows, connection))

    def export(self, path: Path) -> int:
        """Write profiles, trials and executions to a file of JSON lines; returns how many."""
        return self._rows.work(lambda connection: export.export(self._rows, connection, path))

    def import_(self, path: Path) -> int:
        """Take what is not there yet from such a file, as somebody else's; returns how many."""
        return export.import_(self._rows, path)
