"""Authenticated table rows: integrity checks, and detection of this user's entries.

An entry's code is an HMAC-SHA-256 over its table name and data with the user's secret
(`compiler.cache.content_store`). Entries with such a code are trusted. Intact ones without it are untrusted; damaged
ones are ignored.
"""

import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    LargeBinary,
    Select,
    Table,
    case,
    cast,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from compiler.tuning_db.connection import guarded, title
from compiler.util.checks import DAMAGE, written
from hw.errors import InputError

_log = logging.getLogger(__name__)

#: Bytes of a program, and of any other entry; larger ones are neither read nor written.
MOST_PROGRAM, MOST_BYTES = 64 << 20, 4 << 20
_MOST_CODE = 64
_CHUNK = 64

T = TypeVar("T")


class SealedRows:
    """Reads and writes authenticated entries.

    Parameters
    ----------
    engine : Engine
        Engine of the database.
    secret : bytes or None
        Secret key of the user; None: nothing is trusted.
    """

    def __init__(self, engine: Engine, secret: bytes | None):
        self.engine, self.secret = engine, secret
        self._writer = engine.execution_options(writes=True)

    def work(self, work: Callable[[Connection], T]) -> T:
        """Run a read transaction; WorkError if the database fails."""

        def run() -> T:
            with self.engine.connect() as connection:
                return work(connection)

        return guarded(self.engine, run)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run a durable, atomic write transaction."""

        def run() -> T:
            with self._writer.begin() as connection:
                return work(connection)

        def again() -> T:
            try:
                return run()
            except IntegrityError:  # another process wrote the same entry meanwhile: now it is seen
                return run()

        return guarded(self.engine, again)

    def add(self, connection: Connection, table: Table, data: bytes, columns: Mapping[str, Any]) -> None:
        """Write a trusted entry of this user."""
        known, digest = self._known(connection, table, data)
        values = {"data": data, "code": self._code(table, data), **columns}
        if known is None:
            connection.execute(insert(table).values(digest=digest, **values))
        else:  # it was imported before, or was damaged
            connection.execute(update(table).where(table.c.id == known).values(values))

    def add_foreign(
        self, connection: Connection, table: Table, data: bytes, columns: Mapping[str, Any]
    ) -> bool:
        """Write an untrusted entry; returns False if it exists already."""
        known, digest = self._known(connection, table, data)
        if known is None:
            connection.execute(insert(table).values(digest=digest, data=data, code=b"", **columns))
        return known is None

    def read(
        self,
        connection: Connection,
        table: Table,
        query: Select,
        read: Callable[[bytes], T],
        values: Mapping[str, Any] | None = None,
    ) -> Iterator[tuple[T, bool]]:
        """Entries that a query (`entries`) finds for values of its parameters, each with whether it is trusted.

        Damaged ones are skipped with a warning.
        """
        with closing(connection.execute(query, values)) as found:
            for number, digest, data, code in found:
                try:
                    entry, trusted = self._entry(table, digest, data, code, read)
                except DAMAGE as error:
                    where = f"entry {number} of {table.name} in {title(self.engine)}"
                    _log.warning("%s is not used: %s", where, error)
                else:
                    yield entry, trusted

    def _entry(
        self,
        table: Table,
        digest: bytes | None,
        data: bytes | None,
        code: bytes | None,
        read: Callable[[bytes], T],
    ) -> tuple[T, bool]:
        if data is None:
            raise ValueError("it is empty, or too large")
        trusted = self.secret is not None and hmac.compare_digest(code or b"", self._code(table, data))
        if not trusted and _digest(table, data) != digest:
            raise ValueError("it is damaged")
        return read(data), trusted

    def _known(self, connection: Connection, table: Table, data: bytes) -> tuple[int | None, bytes]:
        digest = _digest(table, data)
        return connection.scalar(select(table.c.id).where(table.c.digest == digest)), digest

    def _code(self, table: Table, data: bytes) -> bytes:
        if self.secret is None:
            return b""
        return hmac.digest(self.secret, b"database\0" + table.name.encode() + b"\0" + data, "sha256")


def remove(connection: Connection, table: Table, ids: Iterable[int]) -> None:
    """Remove entries by number."""
    for number in ids:
        connection.execute(delete(table).where(table.c.id == number))


def as_bytes(values: Mapping[str, Any], read: Callable[[Any], object]) -> bytes:
    """Encode an entry as JSON and check that it can be decoded.

    Raises
    ------
    InputError
        A value is not finite, is negative, is too large, or has the wrong type.
    """
    try:
        data = written(values)
        read(json.loads(data))  # says which field has a number that JSON has not
        if len(data) > MOST_BYTES:
            raise ValueError(f"{len(data):,} bytes are more than {MOST_BYTES:,}")
    except DAMAGE as error:
        raise InputError(f"the database cannot store this entry: {error}") from None
    return data


def entries(table: Table, most: int = MOST_BYTES) -> Select:
    """A query for entries as `SealedRows.read` takes it: bytes, whatever somebody put there, but not too many."""
    digest, data, code = (
        case((func.length(column) <= limit, cast(column, LargeBinary)))
        for column, limit in ((table.c.digest, _MOST_CODE), (table.c.data, most), (table.c.code, _MOST_CODE))
    )
    return select(table.c.id, digest, data, code)


def many(table: Table) -> Select:
    """The same for any number of entries, which are not in memory at once."""
    return entries(table).execution_options(yield_per=_CHUNK)


def _digest(table: Table, data: bytes) -> bytes:
    return hashlib.sha256(table.name.encode() + b"\0" + data).digest()
