"""Transfer of schedules that were best under similar conditions, and of layers' schedules to other networks."""

import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, LargeBinary, bindparam, cast, delete, select

from compiler.cache.digest import name
from compiler.profile.measurement import HardwareProfile
from compiler.runtime.stages import LayerInfo
from compiler.schedule.schedule import Schedule
from compiler.tuning_db import json_codec, machines, trials
from compiler.tuning_db.connection import LAYERS, TRIALS, SealedRows, as_bytes, entries, many
from compiler.tuning_db.entries import AnySchedule, EntryKey, LayerEntry, StoredCandidate, is_digest
from compiler.tuning_db.machines import distance
from compiler.util.checks import parsed

#: Number of neighbours of a layer; its schedule is likely to help where all of them are the same.
BOTH_NEIGHBOURS = 2


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
    for trial, trusted in trials.matching(rows, connection, key, query):
        if not trials.is_good(trial) or not _fits(trial.schedule, nodes):
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


#: Query built once, so that SQLAlchemy caches its compiled form.
_WITH_SHAPES = entries(LAYERS).where(
    LAYERS.c.profile == bindparam("profile"),
    LAYERS.c.options == bindparam("options"),
    LAYERS.c.subgraph.in_(bindparam("shapes", expanding=True)),
)


def _read_layer(data: bytes) -> LayerEntry:
    return json_codec.read_layer(parsed(data))


def layer_columns(entry: LayerEntry) -> dict[str, Any]:
    """Return the values of a layer's index columns."""
    return json_codec.key_values(entry.key) | {"network": entry.network}


def put_layers(rows: SealedRows, layers: Sequence[LayerEntry]) -> None:
    """Write the layers of a network in one transaction, in place of the layers that were stored for it before."""
    now = time.time()
    dated = [each if each.when else replace(each, when=now) for each in layers]
    made = [(each, as_bytes(json_codec.layer_values(each), json_codec.read_layer)) for each in dated]
    owners = {(each.network, each.key.profile, each.key.options) for each in layers}

    def work(connection: Connection) -> None:
        for network, profile, options in owners:
            columns = LAYERS.c
            connection.execute(
                delete(LAYERS).where(
                    columns.network == network, columns.profile == profile, columns.options == options
                )
            )
        for each, data in made:
            rows.add(connection, LAYERS, data, layer_columns(each))

    rows.write(work)


def layers(rows: SealedRows, keys: Collection[EntryKey]) -> list[LayerEntry]:
    """Return this user's layers with any of the keys, the latest first."""
    if not rows.has_layers:
        return []
    pairs = {(key.profile, key.options) for key in keys}
    shapes = sorted({key.subgraph for key in keys})

    def work(connection: Connection) -> list[LayerEntry]:
        found = []
        for profile, options in pairs:
            values = {"profile": profile, "options": options, "shapes": shapes}
            for each, trusted in rows.read(connection, LAYERS, _WITH_SHAPES, _read_layer, values):
                if trusted and each.key in keys:
                    found.append(each)
        return found

    return sorted(rows.work(work), key=lambda each: -each.when)


class LayerMatch(NamedTuple):
    """Entry for a layer, the number of its neighbours (at most two) that are also neighbours of the layer, its gain."""

    neighbours: int
    gain: float
    entry: LayerEntry


def layer_matches(
    infos: Sequence[LayerInfo], entries: Iterable[LayerEntry]
) -> Iterator[tuple[str, LayerMatch]]:
    """Yield the best match of each layer that has one, with the layer's name."""
    by_shape: dict[str, list[LayerEntry]] = {}
    for entry in entries:
        by_shape.setdefault(entry.key.subgraph, []).append(entry)
    shapes = ["", *(info.shape for info in infos), ""]
    for number, info in enumerate(infos):
        before, after = shapes[number], shapes[number + 2]
        matches = [
            LayerMatch(
                (each.before == before) + (each.after == after),
                (each.static_cycles - each.cycles) / max(each.static_cycles, 1),
                each,
            )
            for each in by_shape.get(info.shape, [])
        ]
        if matches:
            yield info.name, max(matches, key=lambda match: match[:2])
