"""Schedules that were good under conditions like those asked for."""

import math

from sqlalchemy import Connection, LargeBinary, cast, select

from compiler.cache.digest import name
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import Schedule
from compiler.tuning_db import machines, trials
from compiler.tuning_db.connection import TRIALS, SealedRows, many
from compiler.tuning_db.entries import AnySchedule, EntryKey, StoredCandidate, is_digest
from compiler.tuning_db.machines import distance


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
    """As `Database.candidates`."""
    found: dict[str, StoredCandidate] = {}
    places = _places(rows, connection, key, conditions)
    for apart, place in (each for each in places if not elsewhere or each[1] != key):
        for candidate in _of(rows, connection, place, apart, limit, nodes):
            found.setdefault(name(candidate.trial.schedule), candidate)
        if len(found) >= limit:
            break
    return list(found.values())[:limit]


def _places(
    rows: SealedRows, connection: Connection, key: EntryKey, conditions: HardwareProfile | None
) -> list[tuple[float, EntryKey]]:
    """Keys of the same subgraph that have good trials: the nearest first, of these the one with the same options."""
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
            apart = 0.0
        else:
            apart = distance(here, known[profile]) if here and profile in known else math.inf
        out.append((apart, EntryKey(key.subgraph, profile, options)))
    return sorted(out, key=lambda each: (each[0], each[1].options != key.options, each[1]))


def _of(
    rows: SealedRows,
    connection: Connection,
    place: EntryKey,
    apart: float,
    limit: int,
    nodes: frozenset[str] | None,
) -> list[StoredCandidate]:
    """The best of one key: this user's own, then those of others; each schedule once."""
    own: dict[str, StoredCandidate] = {}
    foreign: dict[str, StoredCandidate] = {}
    query = many(TRIALS).where(TRIALS.c.cycles.is_not(None)).order_by(TRIALS.c.cycles, TRIALS.c.id)
    for trial, trusted in trials.matching(rows, connection, place, query):
        if not trials.is_good(trial) or not _fits(trial.schedule, nodes):
            continue
        group = own if trusted else foreign
        if len(group) < limit:
            group.setdefault(
                name(trial.schedule), StoredCandidate(trial=trial, trusted=trusted, distance=apart)
            )
        if len(own) == limit:
            break
    return [*own.values(), *foreign.values()]


def _fits(schedule: AnySchedule, nodes: frozenset[str] | None) -> bool:
    """Whether a schedule names none but these nodes."""
    if nodes is None or not isinstance(schedule, Schedule):
        return True
    return schedule.layers.keys() <= nodes and all(nodes.issuperset(group) for group in schedule.fusions)
