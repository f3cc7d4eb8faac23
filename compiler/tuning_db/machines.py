"""Hardware profiles, executions and violated budgets in the database, and the distance between machines."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from itertools import islice
from typing import Any

from sqlalchemy import Connection, select

from compiler.ir.identity import stored
from compiler.profile.measurement import HardwareProfile
from compiler.tuning_db import json_codec
from compiler.tuning_db.connection import EXECUTIONS, PROFILES, VIOLATIONS, SealedRows, as_bytes, many, remove
from compiler.tuning_db.entries import BudgetViolation, Execution, Profile
from compiler.util.checks import parsed
from hw.config import MlaConfig

#: Distance per factor of two in a size. The array size has the largest weight, because tile sizes are multiples of it.
_WEIGHTS = {"n": 4.0, "sp_bytes": 1.0, "acc_bytes": 1.0, "latency": 1.0, "rate": 1.0, "throttle": 1.0}
#: Weight of all other parameters: small, but different machines never have distance 0.
_DEFAULT_WEIGHT = 0.125
#: Boolean parameters, with coordinates 0 or 1.
_FLAGS = ("packed_loads", "wide", "sparse", "serial_commands", "pipelined")
#: Maximum number of stored executions of a subgraph.
MAX_EXECUTIONS = 1000


def distance(one: HardwareProfile, other: HardwareProfile) -> float:
    """Return the weighted sum of the base-2 logarithms of all size ratios; 0 only for equal conditions."""
    a, b = _coordinates(one), _coordinates(other)
    return sum(_WEIGHTS.get(name, _DEFAULT_WEIGHT) * abs(a[name] - b[name]) for name in a)


def _coordinates(conditions: HardwareProfile) -> dict[str, float]:
    """Return the coordinates of a machine by name: flags, and logarithms of sizes and of the bandwidths of bus and DRAM
    per lane.
    """
    config = conditions.config
    sizes = {item.name: getattr(config, item.name) for item in fields(MlaConfig)}
    sizes["bus_bytes"] = config.beat_bytes // config.n
    out = {name: float(size) if name in _FLAGS else math.log2(size) for name, size in sizes.items()}
    rate = conditions.rate / config.n
    dram = conditions.dram
    return out | {
        "latency": math.log2(dram.latency),
        "rate": math.log2(rate),
        "throttle": math.log2(dram.stretch),
    }


def profile_columns(profile: Profile) -> dict[str, Any]:
    """Return the values of a profile's index columns."""
    return {"profile": profile.conditions.key}


def read_profile(data: bytes) -> Profile:
    """Decode a profile from an entry's data."""
    return json_codec.read_profile(parsed(data))


def put_profile(rows: SealedRows, profile: Profile) -> None:
    """Write a profile to the database."""
    data = as_bytes(json_codec.profile_values(profile), json_codec.read_profile)
    rows.write(lambda connection: rows.add(connection, PROFILES, data, profile_columns(profile)))


def profiles(rows: SealedRows, connection: Connection) -> list[Profile]:
    """Return the latest profile of each machine and DRAM timing; trusted profiles take precedence."""
    found: dict[str, Profile] = {}
    for profile, trusted in rows.read(
        connection, PROFILES, many(PROFILES).order_by(PROFILES.c.id), read_profile
    ):
        key = profile.conditions.key
        if key not in found or (trusted, profile.when) >= (found[key].trusted, found[key].when):
            found[key] = replace(profile, trusted=trusted)
    return list(found.values())


def nearest(known: Iterable[Profile], conditions: HardwareProfile, limit: int) -> list[tuple[float, Profile]]:
    """Return the profiles nearest to some conditions, with their distances."""
    apart = [(distance(conditions, profile.conditions), profile) for profile in known]
    return sorted(apart, key=lambda each: (each[0], each[1].conditions.key))[:limit]


def execution_columns(execution: Execution) -> dict[str, Any]:
    """Return the values of an execution's index columns."""
    return json_codec.key_values(execution.key) | {"moment": execution.when}


def read_execution(data: bytes) -> Execution:
    """Decode an execution from an entry's data."""
    return json_codec.read_execution(parsed(data))


def add_executions(rows: SealedRows, executions: Iterable[Execution]) -> None:
    """Write executions in one transaction; of each subgraph, only the last `MAX_EXECUTIONS` are kept."""
    made = [
        (each, as_bytes(json_codec.execution_values(each), json_codec.read_execution)) for each in executions
    ]

    def work(connection: Connection) -> None:
        for each, data in made:
            rows.add(connection, EXECUTIONS, data, execution_columns(each))
        for subgraph in {each.key.subgraph for each, _ in made}:
            newest = select(EXECUTIONS.c.id).where(EXECUTIONS.c.subgraph == subgraph)
            newest = newest.order_by(EXECUTIONS.c.moment.desc(), EXECUTIONS.c.id.desc())
            remove(connection, EXECUTIONS, list(connection.scalars(newest.offset(MAX_EXECUTIONS))))

    rows.write(work)


def history(rows: SealedRows, subgraph: str, limit: int) -> list[Execution]:
    """Return this user's last executions of a subgraph, in chronological order."""
    query = many(EXECUTIONS).where(EXECUTIONS.c.subgraph == subgraph)
    query = query.order_by(EXECUTIONS.c.moment.desc(), EXECUTIONS.c.id.desc())

    def own(connection: Connection) -> Iterator[Execution]:
        for each, trusted in rows.read(connection, EXECUTIONS, query, read_execution):
            if trusted and each.key.subgraph == subgraph:
                yield each

    return rows.work(lambda connection: list(islice(own(connection), limit)))[::-1]


def put_violation(rows: SealedRows, violation: BudgetViolation) -> None:
    """Write a violation, which replaces earlier ones of the same cascade."""
    data = as_bytes(stored(violation), json_codec.read_violation)

    def work(connection: Connection) -> None:
        same = VIOLATIONS.c.cascade == violation.cascade
        earlier = list(connection.scalars(select(VIOLATIONS.c.id).where(same)))
        remove(connection, VIOLATIONS, earlier)
        rows.add(connection, VIOLATIONS, data, {"cascade": violation.cascade})

    rows.write(work)


def violation(rows: SealedRows, cascade: str) -> BudgetViolation | None:
    """Return this user's last violation by a cascade; None if there is none."""
    if not rows.has(VIOLATIONS):
        return None
    query = many(VIOLATIONS).where(VIOLATIONS.c.cascade == cascade).order_by(VIOLATIONS.c.id.desc())

    def work(connection: Connection) -> BudgetViolation | None:
        found = rows.read(connection, VIOLATIONS, query, lambda data: json_codec.read_violation(parsed(data)))
        return next((each for each, trusted in found if trusted and each.cascade == cascade), None)

    return rows.work(work)
