"""Entries as a file of JSON lines, for other machines: data only, and nobody's word is taken for it.

The first line is a head; each other one has a kind and an entry's fields. Programs are left out: who takes a
schedule compiles, validates and measures it anew.
"""

import json
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import Connection, Table

from compiler.tuning_db import json_codec, machines, trials
from compiler.tuning_db.schema import EXECUTIONS, PROFILES, TRIALS
from compiler.tuning_db.sealed_rows import MOST_BYTES, SealedRows, many
from compiler.util.checks import DAMAGE, Fields, parsed, written
from hw.errors import InputError, WorkError, shown

_log = logging.getLogger(__name__)

FORMAT, VERSION = "mla profiles", 1
#: For each kind: its table, how its fields are read and written, what it is found by.
_KINDS: dict[str, tuple[Table, Callable[[Any], Any], Callable[[Any], dict], Callable[[Any], dict]]] = {
    "profile": (PROFILES, json_codec.read_profile, json_codec.profile_values, machines.profile_columns),
    "trial": (TRIALS, json_codec.read_trial, json_codec.trial_values, trials.columns),
    "execution": (
        EXECUTIONS,
        json_codec.read_execution,
        json_codec.execution_values,
        machines.execution_columns,
    ),
}
_AT_ONCE = 500
_MOST_LINE = MOST_BYTES + 256
_MOST_WARNINGS = 10


def export(rows: SealedRows, connection: Connection, path: Path) -> int:
    """Write all that is whole, this user's and that of others; returns how many entries."""
    count = 0
    try:
        with path.open("wb") as file:
            file.write(written({"schema_version": VERSION, "format": FORMAT}) + b"\n")
            for kind, (table, *_) in _KINDS.items():
                query = many(table).order_by(table.c.id)
                for values, _ in rows.read(connection, table, query, parsed):
                    file.write(written({"kind": kind, "entry": values}) + b"\n")
                    count += 1
    except OSError as error:
        raise WorkError(f"{path}: cannot be written: {error.strerror or error}") from None
    return count


def import_(rows: SealedRows, path: Path) -> int:
    """Take entries that are not there yet, as somebody else's; returns how many. Lines that are none cost a warning."""
    try:
        with path.open("rb") as file:
            _check_head(path, file.readline(_MOST_LINE))
            entries, count = _entries(path, file), 0
            while chunk := list(islice(entries, _AT_ONCE)):
                count += rows.write(lambda connection, chunk=chunk: _add(rows, connection, chunk))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    return count


def _add(rows: SealedRows, connection: Connection, chunk: list[tuple[Table, bytes, dict[str, Any]]]) -> int:
    return sum(rows.add_foreign(connection, table, data, columns) for table, data, columns in chunk)


def _check_head(path: Path, line: bytes) -> None:
    wanted = f'{{"format": {json.dumps(FORMAT)}, "schema_version": {VERSION}}}'
    try:
        head = parsed(line)
    except DAMAGE:
        raise InputError(f"{path}: its first line must be {wanted}") from None
    if (head.get("format"), head.get("schema_version")) != (FORMAT, VERSION):
        raise InputError(f"{path}: its first line must be {wanted}, not {shown(head)}")


def _entries(path: Path, file: BinaryIO) -> Iterator[tuple[Table, bytes, dict[str, Any]]]:
    """The entries of a file's lines."""
    bad = 0
    for number, line in enumerate(_lines(file), 2):
        try:
            fields = Fields(parsed(line))
            kind = fields.text("kind")
            if kind not in _KINDS:
                raise ValueError(f"kind must be one of {', '.join(_KINDS)}, not {shown(kind)}")
            table, read, values, columns = _KINDS[kind]
            entry = read(fields.get("entry"))
            yield table, written(values(entry)), columns(entry)
        except DAMAGE as error:
            bad += 1
            if bad <= _MOST_WARNINGS:
                _log.warning("%s, line %d is left out: %s", path, number, error)
    if bad > _MOST_WARNINGS:
        _log.warning("%s: %d lines were left out in all", path, bad)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines, of which a part of one that is too long counts as one."""
    while line := file.readline(_MOST_LINE):
        yield line
