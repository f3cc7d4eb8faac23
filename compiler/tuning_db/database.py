"""Tuning database: trials, best programs, hardware profiles and executions."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, LargeBinary, Table, cast, func, select, text

from compiler.cache.content_store import ContentStore
from compiler.cost.learned_model import CycleModel
from compiler.cost.online_model import LayerSample
from compiler.profile.measurement import HardwareProfile, Result
from compiler.schedule.schedule import Schedule
from compiler.tuning_db import (
    export,
    machines,
    macro_instructions,
    model_versions,
    policy_versions,
    programs,
    trials,
)
from compiler.tuning_db.connection import (
    BUSY_TIMEOUT_S,
    EXECUTIONS,
    MACROS,
    PROFILES,
    PROGRAMS,
    TRIALS,
    SealedRows,
    open_engine,
    title,
)
from compiler.tuning_db.entries import (
    AnySchedule,
    BudgetViolation,
    Entry,
    EntryKey,
    Execution,
    Profile,
    StoredCandidate,
    TrialEntry,
    is_digest,
)
from compiler.tuning_db.macro_instructions import MacroInstruction
from compiler.tuning_db.model_versions import ModelVersion
from compiler.tuning_db.policy_versions import PolicyVersion
from hw.errors import InputError, WorkError


@dataclass(frozen=True)
class SearchedModel:
    """Model for which schedules were searched, on one machine.

    Parameters
    ----------
    subgraph, profile : str
        Digests of the model and of the hardware profile.
    conditions : HardwareProfile or None
        Machine configuration and DRAM timing; None if not stored.
    trials : int
        Number of trials, trusted or not.
    cycles : int or None
        Lowest number of cycles in all valid trials; None if there is no valid trial.
    """

    subgraph: str
    profile: str
    conditions: HardwareProfile | None
    trials: int
    cycles: int | None


@dataclass(frozen=True)
class DatabaseSummary:
    """Number of entries of each type, and the searched models."""

    profiles: int
    trials: int
    programs: int
    macros: int
    executions: int
    searched: tuple[SearchedModel, ...]


def summary(rows: SealedRows, connection: Connection) -> DatabaseSummary:
    """Count all entries, trusted or not, without checking them."""

    def count(table: Table) -> int:
        return connection.scalar(select(func.count()).select_from(table)) or 0

    return DatabaseSummary(
        profiles=count(PROFILES),
        trials=count(TRIALS),
        programs=count(PROGRAMS),
        macros=count(MACROS) if rows.has(MACROS) else 0,
        executions=count(EXECUTIONS),
        searched=tuple(_searched(rows, connection)),
    )


def _searched(rows: SealedRows, connection: Connection) -> list[SearchedModel]:
    known = {each.conditions.key: each.conditions for each in machines.profiles(rows, connection)}
    columns = (TRIALS.c.subgraph, TRIALS.c.profile)
    parts = (cast(column, LargeBinary) for column in columns)
    query = select(*parts, func.count(), func.min(TRIALS.c.cycles)).group_by(*columns).order_by(*columns)
    out = []
    for row in connection.execute(query).all():
        *parts, trials, cycles = tuple(row)
        names = [bytes(part).decode(errors="replace") for part in parts]
        if all(is_digest(name) for name in names):
            least = cycles if isinstance(cycles, int) else None
            out.append(SearchedModel(names[0], names[1], known.get(names[1]), trials, least))
    return out


#: Number above the cycles of all measurements.
MAX_CYCLES = (1 << 63) - 1
#: Maximum total size of stored programs in bytes.
MAX_PROGRAMS_BYTES = 1 << 30


class TuningDatabase:
    """Tuning database, with access to its entries.

    Use an instance as a context manager, or call `close`. Each process must open its own instance.

    Parameters
    ----------
    url : str, Path or None
        SQLAlchemy URL, or path of an SQLite file; None: `profile.db` in the cache (`MLA_CACHE`).
    secret : bytes or None
        Key that authenticates this user's entries; None: the secret of the user's cache.
    room : int
        Maximum total size of stored programs in bytes; the oldest programs are removed first.
    read_only : bool
        True to open the database without writing, so that the file and its folder may be read-only. In this case no
        entry is trusted unless `secret` is given, because the secret of the cache is not read.
    timeout_s : int
        Seconds to wait for other processes that write to an SQLite file.

    Raises
    ------
    InputError
        The URL is invalid, or the tables have another schema version. Methods also raise this error for values that
        cannot be stored.
    WorkError
        The database cannot be used. Every method may raise this error.
    """

    def __init__(
        self,
        url: str | Path | None = None,
        *,
        secret: bytes | None = None,
        room: int = MAX_PROGRAMS_BYTES,
        read_only: bool = False,
        timeout_s: int = BUSY_TIMEOUT_S,
    ):
        self._engine, self._room = open_engine(url, read_only, timeout_s), room
        self._rows = SealedRows(
            self._engine, ContentStore().secret if secret is None and not read_only else secret
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def title(self) -> str:
        """Name of the database for messages: its URL without the password."""
        return title(self._engine)

    def check(self) -> None:
        """Check that the database is intact and can be written.

        Raises
        ------
        WorkError
            The database is damaged, or cannot be written.
        """
        if self._engine.dialect.name == "sqlite":
            found = self._rows.work(lambda connection: connection.scalar(text("PRAGMA quick_check(1)")))
            if found != "ok":
                raise WorkError(f"the database {self.title} cannot be used: it is damaged: {found}")
        self._rows.write(lambda _connection: None)

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def add_measurement(self, *trials_: TrialEntry) -> None:
        """Store trials, measured or rejected, in one durable transaction."""
        trials.add(self._rows, trials_)

    def measured(self, key: EntryKey, schedule: AnySchedule) -> Result | None:
        """Return the result of this user's last trial of a schedule; None if there is none."""
        return trials.measured(self._rows, key, schedule)

    def best_trial(self, key: EntryKey, below: int = MAX_CYCLES) -> trials.BestTrial | None:
        """Return this user's valid trial of a network with the fewest cycles, if less than `below`, else None."""
        return trials.best(self._rows, key, below)

    def trials(self, key: EntryKey) -> list[tuple[TrialEntry, bool]]:
        """Return all trials of a key in insertion order, each with a flag that is True for trials by this user."""
        return trials.of_key(self._rows, key)

    def histories(
        self, without: EntryKey | None = None
    ) -> list[tuple[HardwareProfile, list[tuple[Schedule, Result]]]]:
        """Return this user's trials of networks, in chronological order per key, with the conditions of the key.

        Trials under conditions whose hardware profile is not stored are left out, and those of the key `without`.
        """
        known = {each.conditions.key: each.conditions for each in self.profiles()}
        return [
            (known[key.profile], found)
            for key, found in trials.own_networks(self._rows).items()
            if key.profile in known and key != without
        ]

    def best(self, key: EntryKey) -> Entry | None:
        """Return the best program of a key that this user measured; None if there is no valid program."""
        return programs.best(self._rows, key)

    def put_best(self, entry: Entry) -> bool:
        """Store a program unless a stored program has at most the same cost; return True if it was stored."""
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

        Schedules are sorted by the distance between the conditions under which they were measured and the requested
        ones. At equal distance, schedules with matching options come first, then this user's trials, then schedules
        with fewer cycles.

        Parameters
        ----------
        key : EntryKey
            Key for which schedules are searched.
        limit : int
            Maximum number of schedules.
        conditions : HardwareProfile or None
            Conditions of the key; None: the conditions of the key's profile, if it is stored.
        nodes : names or None
            Names of the nodes that exist; schedules that name other nodes are skipped. None: skip no schedules.
        elsewhere : bool
            True to return only schedules of other keys, and schedules that this user has not measured.
        """
        names = None if nodes is None else frozenset(nodes)
        return self._rows.work(
            lambda connection: trials.candidates(
                self._rows, connection, key, limit, conditions, names, elsewhere=elsewhere
            )
        )

    def put_macros(self, macros: Sequence[MacroInstruction]) -> None:
        """Store the macro-instructions of a network, in place of those that were stored for it before."""
        macro_instructions.put(self._rows, macros)

    def macros(self, keys: Collection[EntryKey], *, foreign: bool = False) -> list[MacroInstruction]:
        """Return the macro-instructions with any of the keys that this user measured, the latest first.

        `foreign` selects those of others, which must be measured before use.
        """
        return macro_instructions.with_keys(self._rows, keys, foreign=foreign)

    def all_macros(self) -> list[tuple[MacroInstruction, bool]]:
        """Return all macro-instructions, each with a flag that is True if this user measured it."""
        return macro_instructions.everything(self._rows)

    def drop_macros(self, chosen: Callable[[MacroInstruction], bool]) -> int:
        """Remove the macro-instructions that a function selects; return their number."""
        return macro_instructions.drop(self._rows, chosen)

    def add_execution(self, *executions: Execution) -> None:
        """Store executions of subgraphs."""
        machines.add_executions(self._rows, executions)

    def history(self, subgraph: str, limit: int = 1000) -> list[Execution]:
        """Return this user's last executions of a subgraph under all conditions, in chronological order."""
        return machines.history(self._rows, subgraph, limit)

    def put_violation(self, violation: BudgetViolation) -> None:
        """Store a violation of an accuracy budget, which replaces earlier ones of the same cascade."""
        machines.put_violation(self._rows, violation)

    def violation(self, cascade: str) -> BudgetViolation | None:
        """Return this user's last violation by a cascade, given by `violation_key`; None if there is none."""
        return machines.violation(self._rows, cascade)

    def put_profile(self, profile: Profile) -> None:
        """Store a hardware profile; the latest profile of each machine is used."""
        machines.put_profile(self._rows, profile)

    def cost_model(self, conditions: HardwareProfile) -> CycleModel:
        """Return the current version of the cost model of a hardware profile."""
        return model_versions.current(model_versions.versions(self._rows, conditions.key), conditions)

    def retrain(
        self, conditions: HardwareProfile, samples: Sequence[LayerSample], seed: int = 0
    ) -> ModelVersion | None:
        """Retrain the cost model of a hardware profile; return the new version, or None if it is not better."""
        return model_versions.retrain(self._rows, conditions, samples, seed)

    def policies(self, model: str) -> list[PolicyVersion]:
        """Return the versions of the policy of a language model, given by the digest of its file."""
        return policy_versions.versions(self._rows, model)

    def put_policy(self, version: PolicyVersion) -> None:
        """Store a version of the language model's policy, which becomes current if it was accepted."""
        policy_versions.add(self._rows, version)

    def model_versions(self) -> list[ModelVersion | PolicyVersion]:
        """Return the versions of the cost models of all hardware profiles, then those of the language model's policy.

        The versions of each are in the order in which they were stored.
        """
        found = [*model_versions.versions(self._rows), *policy_versions.versions(self._rows)]
        return [replace(version, number=number) for number, version in enumerate(found, 1)]

    def roll_back_model(self, number: int) -> None:
        """Make the version with a number in `model_versions` current again; 0: the compiler's models.

        Raises
        ------
        InputError
            There is no such version, or it was refused.
        """
        if not number:
            model_versions.reset(self._rows)
            policy_versions.reset(self._rows)
            return
        version = next((each for each in self.model_versions() if each.number == number), None)
        if version is None:
            raise InputError(f"there is no version {number}; mla db models lists the versions")
        if isinstance(version, PolicyVersion):
            policy_versions.roll_back(self._rows, version)
        else:
            model_versions.roll_back(self._rows, version)

    def profiles(self) -> list[Profile]:
        """Return the latest hardware profile of each machine."""
        return self._rows.work(lambda connection: machines.profiles(self._rows, connection))

    def nearest(self, conditions: HardwareProfile, limit: int = 1) -> list[tuple[float, Profile]]:
        """Return the stored profiles nearest to `conditions`, with their distances (`compiler.tuning_db.machines`)."""
        return machines.nearest(self.profiles(), conditions, limit)

    def summary(self) -> DatabaseSummary:
        """Return the number of entries of each type, and the searched models."""
        return self._rows.work(lambda connection: summary(self._rows, connection))

    def export(self, path: Path, macros: Callable[[MacroInstruction], bool] | None = None) -> int:
        """Write profiles, trials, macro-instructions and executions to a file of JSON lines; return their number.

        `macros` selects macro-instructions, which are written with the profiles only; None: write all entries.
        """
        return self._rows.work(lambda connection: export.export(self._rows, connection, path, macros))

    def import_(self, path: Path, *, only_macros: bool = False) -> int:
        """Import the new entries in a file written by `export` as untrusted; return the number of imported entries.

        `only_macros` skips all entries except macro-instructions and profiles, with a warning.
        """
        return export.import_(self._rows, path, *([("profile", "macro")] if only_macros else []))

    def merge(self, other: "TuningDatabase") -> int:
        """Copy the new entries of another database; return their number.

        Profiles, trials, macro-instructions and executions are copied. Entries that were written with this user's
        secret remain trusted; a search measures the best schedules of the others first.
        """
        return export.merge(self._rows, other._rows)
