"""Trials in the database: they are only ever added to."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, bindparam

from compiler.cache.digest import name
from compiler.profile.measurement import Measurement, Result
from compiler.tuning_db import json_codec
from compiler.tuning_db.connection import TRIALS, SealedRows, as_bytes, at, many
from compiler.tuning_db.entries import AnySchedule, EntryKey, TrialEntry
from compiler.util.checks import parsed


def columns(trial: TrialEntry) -> dict[str, Any]:
    """What a trial is found by."""
    result = trial.result
    cycles = result.cycles if isinstance(result, Measurement) and result.believable else None
    return json_codec.key_values(trial.key) | {"schedule": name(trial.schedule), "cycles": cycles}


def is_good(trial: TrialEntry) -> bool:
    """It was measured, and can be believed: every output was right."""
    return isinstance(trial.result, Measurement) and trial.result.believable


def read(data: bytes) -> TrialEntry:
    """A trial from an entry's data."""
    return json_codec.read_trial(parsed(data))


def add(rows: SealedRows, trials: Iterable[TrialEntry]) -> None:
    """Write trials, all of them or none; those without a time get this one."""
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
    """Trials of a key in the order of a query, which may have other parameters; and whether they are trusted."""
    query = query.where(*at(TRIALS))
    for trial, trusted in rows.read(connection, TRIALS, query, read, json_codec.key_values(key) | values):
        if trial.key == key:  # else somebody filed it under another
            yield trial, trusted


def of_key(rows: SealedRows, key: EntryKey) -> list[tuple[TrialEntry, bool]]:
    """All trials of a key in the order in which they came."""
    query = many(TRIALS).order_by(TRIALS.c.id)
    return rows.work(lambda connection: list(matching(rows, connection, key, query)))


def measured(rows: SealedRows, key: EntryKey, schedule: AnySchedule) -> Result | None:
    """What the user's last trial of a schedule gave."""
    query = many(TRIALS).where(TRIALS.c.schedule == bindparam("schedule")).order_by(TRIALS.c.id.desc())

    def work(connection: Connection) -> Result | None:
        for trial, trusted in matching(rows, connection, key, query, schedule=name(schedule)):
            if trusted and trial.schedule == schedule:
                return trial.result
        return None

    return rows.work(work)
