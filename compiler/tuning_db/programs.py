"""Best programs in the database: one per key, within a total size limit."""

import logging
import time

from sqlalchemy import Connection, bindparam, func, select

from compiler.profile.measurement import Measurement
from compiler.tuning_db import json_codec, program_codec
from compiler.tuning_db.connection import (
    MAX_PROGRAM_BYTES,
    PROGRAMS,
    VERSIONS,
    SealedRows,
    entries,
    key_conditions,
    remove,
)
from compiler.tuning_db.entries import Entry, EntryKey
from compiler.util.checks import DAMAGE
from hw.errors import InputError

_log = logging.getLogger(__name__)

#: Queries built once, so that SQLAlchemy caches their compiled form.
_NUMBERS = select(PROGRAMS.c.id).where(*key_conditions(PROGRAMS)).order_by(PROGRAMS.c.cost, PROGRAMS.c.id)
_ONE = entries(PROGRAMS, MAX_PROGRAM_BYTES).where(PROGRAMS.c.id == bindparam("number"))

_WRITER_LOCK = select(VERSIONS.c.version).with_for_update()


def to_bytes(entry: Entry) -> bytes:
    """Encode an entry and check that it can be decoded.

    Raises
    ------
    InputError
        The measurement is not valid, or a value cannot be stored.
    """
    if not entry.result.valid:
        raise InputError(
            "a program is stored only if its outputs were correct and its cycles not below the lower bound"
        )
    values = json_codec.key_values(entry.key) | {
        "schedule": json_codec.schedule_values(entry.schedule),
        "result": json_codec.result_values(entry.result),
        "cost": entry.cost,
        "when": entry.when or time.time(),
    }
    try:
        data = program_codec.to_bytes(values, entry.codes)
        read(data)
    except DAMAGE as error:
        raise InputError(f"the database cannot store this program: {error}") from None
    return data


def read(data: bytes) -> Entry:
    """Decode an entry from its data."""
    fields, made = program_codec.from_bytes(data)
    result = json_codec.read_result(fields.get("result"))
    if not isinstance(result, Measurement) or not result.valid or not made:
        raise ValueError("a program's outputs must be correct and its cycles not below the lower bound")
    return Entry(
        key=json_codec.read_key(fields),
        schedule=json_codec.read_schedule(fields.get("schedule")),
        cost=fields.number("cost"),
        result=result,
        codes=made,
        when=fields.number("when"),
    )


def best(rows: SealedRows, key: EntryKey) -> Entry | None:
    """Return the best program of a key that this user measured; None if there is none."""
    return rows.work(lambda connection: _best(rows, connection, key))


def put(rows: SealedRows, entry: Entry, room: int) -> bool:
    """Write a program unless a stored program is at least as good; return True if it was written.

    Older programs are removed if the total size exceeds `room` bytes.
    """
    data = to_bytes(entry)
    if len(data) > min(room, MAX_PROGRAM_BYTES):
        _log.warning(
            "a program of %s bytes is too large for the database and is not stored", f"{len(data):,}"
        )
        return False
    columns = json_codec.key_values(entry.key) | {"cost": entry.cost}

    def work(connection: Connection) -> bool:
        # Serialize writers, so that concurrent updates are visible. SQLite always does.
        connection.execute(_WRITER_LOCK)
        known = _best(rows, connection, entry.key)
        if known is not None and known.cost <= entry.cost:
            return False
        _drop(connection, entry.key)
        rows.add(connection, PROGRAMS, data, columns)
        _prune(connection, room)
        return True

    return rows.write(work)


def drop(rows: SealedRows, key: EntryKey) -> None:
    """Remove the program of a key."""
    rows.write(lambda connection: _drop(connection, key))


def _best(rows: SealedRows, connection: Connection, key: EntryKey) -> Entry | None:
    tried: list[int] = []
    # Another process may replace a program between the two queries, which are then repeated.
    while (numbers := _numbers(connection, key)) != tried:
        for number in numbers:
            for entry, trusted in rows.read(connection, PROGRAMS, _ONE, read, {"number": number}):
                if trusted and entry.key == key:
                    return entry
        tried = numbers
    return None


def _numbers(connection: Connection, key: EntryKey) -> list[int]:
    return list(connection.scalars(_NUMBERS, json_codec.key_values(key)))


def _drop(connection: Connection, key: EntryKey) -> None:
    remove(connection, PROGRAMS, _numbers(connection, key))


def _prune(connection: Connection, room: int) -> None:
    """Remove the oldest programs until the total size is within the limit; their schedules remain in the trials."""
    query = select(PROGRAMS.c.id, func.length(PROGRAMS.c.data)).order_by(PROGRAMS.c.id.desc())
    total, late = 0, []
    for number, size in connection.execute(query):
        total += size or 0
        if total > room:
            late.append(number)
    remove(connection, PROGRAMS, late)
