"""Append-only table of trials in the database, and transfer of schedules that were best under similar conditions."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, LargeBinary, Select, bindparam, cast, select

from compiler.cache.digest import name
from compiler.profile.measurement import HardwareProfile, Measurement, Result
from compiler.schedule.schedule import Schedule
from compiler.tuning_db import json_codec, machines
from compiler.tuning_db.connection import TRIALS, SealedRows, as_bytes, key_conditions, many
from compiler.tuning_db.entries import AnySchedule, EntryKey, StoredCandidate, TrialEntry, is_digest
from compiler.tuning_db.machines import distance
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
    return rows.work(lambda connection: _last(rows, connection, key, schedule))


def _last(rows: SealedRows, connection: Connection, key: EntryKey, schedule: AnySchedule) -> Result | None:
    query = many(TRIALS).where(TRIALS.c.schedule == bindparam("schedule")).order_by(TRIALS.c.id.desc())
    for trial, trusted in matching(rows, connection, key, query, schedule=name(schedule)):
        if trusted and trial.schedule == schedule:
            return trial.result
    return None


#: Query for a trial of a schedule that is not valid.
_ANY_FAILED = (
    select(TRIALS.c.id)
    .where(*key_conditions(TRIALS), TRIALS.c.schedule == bindparam("schedule"), TRIALS.c.cycles.is_(None))
    .limit(1)
)
#: Query for the valid trials of a key with fewer cycles than a number, the best first.
_BEST = many(TRIALS).where(TRIALS.c.cycles < bindparam("below")).order_by(TRIALS.c.cycles, TRIALS.c.id)


class BestTrial(NamedTuple):
    """Best trial of a network: its schedule, its measurement, and the method that proposed it."""

    schedule: Schedule
    result: Measurement
    method: str


def best(rows: SealedRows, key: EntryKey, below: int) -> BestTrial | None:
    """Return this user's valid trial of a network with the fewest cycles, less than `below`; None if there is none.

    A schedule whose last trial is not valid, for example because it failed in use, is skipped.
    """

    def work(connection: Connection) -> BestTrial | None:
        for trial, trusted in matching(rows, connection, key, _BEST, below=below):
            schedule, result = trial.schedule, trial.result
            if not trusted or not isinstance(schedule, Schedule) or not isinstance(result, Measurement):
                continue
            if not result.valid:
                continue
            given = json_codec.key_values(key) | {"schedule": name(schedule)}
            last = _last(rows, connection, key, schedule) if connection.scalar(_ANY_FAILED, given) else result
            if isinstance(last, Measurement) and last.valid:
                return BestTrial(schedule, result, trial.method)
        return None

    return rows.work(work)


def candidates(
    rows: SealedRows,
    connection: Connection,
    key: EntryKey,
    limit: int,
    conditions: HardwareProfile | None,
    nodes: frozenset[str] | None,
    *,
    elsewhere: bool,
) -> list[StoredCandidate]:
    """Return promising schedules as documented in `TuningDatabase.candidates`."""
    found: dict[str, StoredCandidate] = {}
    for away, other in _related_keys(rows, connection, key, conditions):
        best = _best_of(rows, connection, other, away, limit, nodes)
        # A search with the same key finds this user's measurements by their schedules.
        own = {name(each.trial.schedule) for each in best if elsewhere and other == key and each.trusted}
        for candidate in best:
            schedule = name(candidate.trial.schedule)
            if schedule not in own:
                found.setdefault(schedule, candidate)
        if len(found) >= limit:
            break
    return list(found.values())[:limit]


def _related_keys(
    rows: SealedRows, connection: Connection, key: EntryKey, conditions: HardwareProfile | None
) -> list[tuple[float, EntryKey]]:
    """Return the keys with valid trials of the same subgraph, with their distances from `key`.

    They are sorted by distance; at equal distance, keys with the same options come first.
    """
    known = {profile.conditions.key: profile.conditions for profile in machines.profiles(rows, connection)}
    here = conditions or known.get(key.profile)
    parts = (cast(column, LargeBinary) for column in (TRIALS.c.profile, TRIALS.c.options))
    query = select(*parts).where(TRIALS.c.subgraph == key.subgraph, TRIALS.c.cycles.is_not(None)).distinct()
    out = []
    for found in connection.execute(query).all():
        profile, options = (bytes(part).decode(errors="replace") for part in found)
        if not is_digest(profile) or not is_digest(options):
            continue
        if profile == key.profile:
            away = 0.0
        else:
            away = distance(here, known[profile]) if here and profile in known else math.inf
        out.append((away, EntryKey(key.subgraph, profile, options)))
    return sorted(out, key=lambda each: (each[0], each[1].options != key.options, each[1]))


def _best_of(
    rows: SealedRows,
    connection: Connection,
    key: EntryKey,
    away: float,
    limit: int,
    nodes: frozenset[str] | None,
) -> list[StoredCandidate]:
    """Return the best distinct schedules of one key: first this user's schedules, then imported schedules."""
    own: dict[str, StoredCandidate] = {}
    foreign: dict[str, StoredCandidate] = {}
    query = many(TRIALS).where(TRIALS.c.cycles.is_not(None)).order_by(TRIALS.c.cycles, TRIALS.c.id)
    for trial, trusted in matching(rows, connection, key, query):
        if not is_good(trial) or not _fits(trial.schedule, nodes):
            continue
        group = own if trusted else foreign
        if len(group) < limit:
            group.setdefault(
                name(trial.schedule), StoredCandidate(trial=trial, trusted=trusted, distance=away)
            )
        if len(own) == limit:
            break
    return [*own.values(), *foreign.values()]


def _fits(schedule: AnySchedule, nodes: frozenset[str] | None) -> bool:
    """Return True if all nodes that a schedule names are in `nodes`, or if `nodes` is None."""
    if nodes is None or not isinstance(schedule, Schedule):
        return True
    return schedule.layers.keys() <= nodes and all(nodes.issuperset(group) for group in schedule.fusions)
