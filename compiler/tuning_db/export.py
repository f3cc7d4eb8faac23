"""Export and import of entries as JSON lines, and merging of databases; foreign entries are untrusted.

The first line is a header; each further line contains the type and the fields of an entry. Programs are not exported:
an imported schedule is compiled, validated and measured again.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import Connection, Table

from compiler.tuning_db import json_codec, machines, macro_instructions, trials
from compiler.tuning_db.connection import (
    EXECUTIONS,
    MACROS,
    MAX_ENTRY_BYTES,
    PROFILES,
    TRIALS,
    SealedRow,
    SealedRows,
    many,
)
from compiler.util.checks import DAMAGE, Fields, parsed, written
from hw.errors import InputError, WorkError, reason_of, shown

_log = logging.getLogger(__name__)

FORMAT, VERSION = "mla profiles", 1
#: For each entry type: table, reader, writer and index columns.
_KINDS: dict[str, tuple[Table, Callable[[Any], Any], Callable[[Any], dict], Callable[[Any], dict]]] = {
    "profile": (PROFILES, json_codec.read_profile, json_codec.profile_values, machines.profile_columns),
    "trial": (TRIALS, json_codec.read_trial, json_codec.trial_values, trials.columns),
    "macro": (MACROS, macro_instructions.read, macro_instructions.values, macro_instructions.columns),
    "execution": (
        EXECUTIONS,
        json_codec.read_execution,
        json_codec.execution_values,
        machines.execution_columns,
    ),
}
_BATCH_SIZE = 500
_MAX_LINE_BYTES = MAX_ENTRY_BYTES + 256
_MAX_WARNINGS = 10


def export(
    rows: SealedRows,
    connection: Connection,
    path: Path,
    macros: Callable[[macro_instructions.MacroInstruction], bool] | None = None,
) -> int:
    """Write undamaged entries, trusted or not; return the number of entries written.

    `macros` selects macro-instructions, which are written with the profiles only; None: write all entries.
    """
    count = 0
    try:
        with path.open("wb") as file:
            file.write(written({"schema_version": VERSION, "format": FORMAT}) + b"\n")
            for kind, (table, *_) in _KINDS.items():
                if (table is MACROS and not rows.has(MACROS)) or (macros and table not in (PROFILES, MACROS)):
                    continue
                query = many(table).order_by(table.c.id)
                chosen = _macro(macros) if macros and table is MACROS else parsed
                for values, _ in rows.read(connection, table, query, chosen):
                    if not values:
                        continue
                    file.write(written({"kind": kind, "entry": values}) + b"\n")
                    count += 1
    except OSError as error:
        raise WorkError(f"{path}: cannot be written: {reason_of(error)}") from None
    return count


def _macro(
    chosen: Callable[[macro_instructions.MacroInstruction], bool],
) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that returns the values of a macro-instruction, and no values if it is not chosen."""

    def read(data: bytes) -> dict[str, Any]:
        macro = macro_instructions.read_bytes(data)
        return macro_instructions.values(macro) if chosen(macro) else {}

    return read


def import_(rows: SealedRows, path: Path, kinds: Collection[str] = tuple(_KINDS)) -> int:
    """Import new entries as untrusted; return the number of imported entries.

    Entries that exist already are ignored; invalid lines, and entries of other kinds, are skipped with a warning.
    """
    try:
        with path.open("rb") as file:
            _check_head(path, file.readline(_MAX_LINE_BYTES))
            entries, count = _entries(path, file, kinds), 0
            while chunk := list(islice(entries, _BATCH_SIZE)):
                count += rows.write(lambda connection, chunk=chunk: _add(rows, connection, chunk))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason_of(error)}") from None
    return count


def merge(rows: SealedRows, other: SealedRows) -> int:
    """Copy the new entries of another database; return the number of copied entries.

    Entries that the user of this database measured, on any machine with the same secret, remain trusted. All others
    are untrusted. Programs are not copied: their schedules are among the trials, and are compiled and measured again.
    Damaged entries are skipped with a warning.
    """
    count = 0
    for table, read, values, columns in _KINDS.values():
        if table is MACROS and not other.has(MACROS):
            continue
        last = 0
        while chunk := other.work(partial(other.sealed, table=table, after=last, limit=_BATCH_SIZE)):
            last = chunk[-1].number
            checked = list(_checked(table, chunk, read, values, columns))
            count += rows.write(partial(_copy, rows, table=table, chunk=checked))
    return count


def _checked(
    table: Table,
    chunk: Iterable[SealedRow],
    read: Callable[[Any], Any],
    values: Callable[[Any], dict],
    columns: Callable[[Any], dict],
) -> Iterator[tuple[bytes, bytes, dict[str, Any]]]:
    """Yield data, code and index columns of the entries that can be decoded."""
    for row in chunk:
        try:
            entry = read(parsed(row.data))
            if written(values(entry)) != row.data:
                raise ValueError("it has unknown fields")
        except DAMAGE as error:
            _log.warning("entry %d of %s is left out: %s", row.number, table.name, error)
        else:
            yield row.data, row.code, columns(entry)


def _copy(
    rows: SealedRows, connection: Connection, table: Table, chunk: list[tuple[bytes, bytes, dict[str, Any]]]
) -> int:
    return sum(rows.add_sealed(connection, table, *each) for each in chunk)


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


def _entries(
    path: Path, file: BinaryIO, kinds: Collection[str]
) -> Iterator[tuple[Table, bytes, dict[str, Any]]]:
    """Yield the table, the data and the index columns of each valid entry in a file."""
    bad = 0
    for number, line in enumerate(_lines(file), 2):
        try:
            fields = Fields(parsed(line))
            kind = fields.text("kind")
            if kind not in kinds:
                raise ValueError(f"kind must be one of {', '.join(kinds)}, not {shown(kind)}")
            table, read, values, columns = _KINDS[kind]
            entry = read(fields.get("entry"))
            yield table, written(values(entry)), columns(entry)
        except DAMAGE as error:
            bad += 1
            if bad <= _MAX_WARNINGS:
                _log.warning("%s, line %d is left out: %s", path, number, error)
    if bad > _MAX_WARNINGS:
        _log.warning("%s: %d lines were left out in all", path, bad)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; lines that are too long are split."""
    while line := file.readline(_MAX_LINE_BYTES):
        yield line
