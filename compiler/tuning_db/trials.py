"""Append-only table of trials in the database."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, bindparam

from compiler.cache.digest import name
from compiler.profile.measurement import Measurement, Result
from compiler.schedule.schedule import Schedule
from compiler.tuning_db import json_codec
from compiler.tuning_db.connection import TRIALS, SealedRows, as_bytes, key_conditions, many
from compiler.tuning_db.entries import AnySchedule, EntryKey, TrialEntry
from compiler.util.checks import parsed


def columns(trial: TrialEntry) -> dict[str, Any]:
    """Return the values of a trial's index columns."""
    result = trial.result
    cycles = result.cycles if isinstance(result, Measurement) and result.valid else None
    return json_codec.key_values(trial.key) | {"schedule": name(trial.schedule), "cycles": cycles}


def is_good(trial: TrialEntry) -> bool:
    """Return True if a trial was measured, its outputs are correct and its cycles are not below the lower bound."""
    return isinstance(trial.result, Measurement) and trial.result.valid


def read(data: bytes) -> TrialEntry:
    """Decode a trial from an entry's data."""
    return json_codec.read_trial(parsed(data))


def add(rows: SealedRows, trials: Iterable[TrialEntry]) -> None:
    """Write trials in one transaction; trials without a time get the current time."""
    now = time.time()
    dated = [trial if trial.when else replace(trial, when=now) for trial in trials]
    made = [(trial, as_bytes(json_codec.trial_values(trial), json_codec.read_trial)) for trial in dated]

    def work(connection: Connection) -> None:
        for trial, data in made:
            rows.add(connection, TRIALS, data, columns(trial))

    rows.write(work)


def matching(
    rows: SealedRows, connection: Connection, key: EntryKey, query: Select, **values: Any
) -> Iterator[tuple[TrialEntry, bool]]:
    """Yield the trials of a key that a query finds, each with a flag that is True if the trial is trusted.

    `values` are additional parameters of the query.
    """
    query = query.where(*key_conditions(TRIALS))
    for trial, trusted in rows.read(connection, TRIALS, query, read, json_codec.key_values(key) | values):
        if trial.key == key:  # index columns of an imported entry may be wrong
            yield trial, trusted


def of_key(rows: SealedRows, key: EntryKey) -> list[tuple[TrialEntry, bool]]:
    """Return all trials of a key in insertion order, each with a flag that is True if the trial is trusted."""
    query = many(TRIALS).order_by(TRIALS.c.id)
    return rows.work(lambda connection: list(matching(rows, connection, key, query)))


def own_networks(rows: SealedRows) -> dict[EntryKey, list[tuple[Schedule, Result]]]:
    """Return this user's trials of schedules of networks by key, in insertion order."""
    query = many(TRIALS).order_by(TRIALS.c.id)

    def work(connection: Connection) -> dict[EntryKey, list[tuple[Schedule, Result]]]:
        out: dict[EntryKey, list[tuple[Schedule, Result]]] = {}
        for trial, trusted in rows.read(connection, TRIALS, query, read):
            if trusted and isinstance(trial.schedule, Schedule):
                out.setdefault(trial.key, []).append((trial.schedule, trial.result))
        return out

    return rows.work(work)


def measured(rows: SealedRows, key: EntryKey, schedule: AnySchedule) -> Result | None:
    """Return the result of this user's last trial of a schedule; None if there is none."""
    query = many(TRIALS).where(TRIALS.c.schedule == bindparam("schedule")).order_by(TRIALS.c.id.desc())

    def work(connection: Connection) -> Result | None:
        for trial, trusted in matching(rows, connection, key, query, schedule=name(schedule)):
            if trusted and trial.schedule == schedule:
                return trial.result
        return None

    return rows.work(work)
