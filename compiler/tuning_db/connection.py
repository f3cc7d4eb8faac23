"""Connection to the tuning database (SQLite or another that SQLAlchemy supports), its schema, authenticated rows."""

import hashlib
import hmac
import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import (
    Connection,
    Engine,
    LargeBinary,
    Select,
    Table,
    case,
    cast,
    delete,
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError

from compiler.util.checks import DAMAGE, written
from cosim.rtl.cache import cache_folder
from hw.errors import InputError, MlaError, WorkError, shown

#: Schema version; databases with another version are rejected.
VERSION = 1
_DIGEST = 64

METADATA = sa.MetaData()
VERSIONS = sa.Table(
    "mla_store", METADATA, sa.Column("version", sa.Integer, primary_key=True, autoincrement=False)
)


def _entries(kind: str, *columns: sa.Column, found_by: tuple[str, ...]) -> sa.Table:
    """Return a table of entries; its unique column `digest`, a SHA-256 of table name and data, prevents duplicates."""
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite only numbers rows in INTEGER columns
    return sa.Table(
        f"mla_{kind}",
        METADATA,
        sa.Column("id", number, primary_key=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False, unique=True),
        *columns,
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("code", sa.LargeBinary, nullable=False),
        sa.Index(f"mla_{kind}_by", *found_by),
    )


def _key() -> list[sa.Column]:
    return [
        sa.Column(name, sa.String(_DIGEST), nullable=False) for name in ("subgraph", "profile", "options")
    ]


PROFILES = _entries(
    "profiles", sa.Column("profile", sa.String(_DIGEST), nullable=False), found_by=("profile",)
)
#: `cycles` is NULL for trials without a valid measurement.
TRIALS = _entries(
    "trials",
    *_key(),
    sa.Column("schedule", sa.String(_DIGEST), nullable=False),
    sa.Column("cycles", sa.BigInteger),
    found_by=("subgraph", "profile", "options", "cycles"),
)
PROGRAMS = _entries(
    "programs",
    *_key(),
    sa.Column("cost", sa.Float, nullable=False),
    found_by=("subgraph", "profile", "options"),
)
EXECUTIONS = _entries(
    "executions",
    *_key(),
    sa.Column("moment", sa.Float, nullable=False),
    found_by=("subgraph", "moment"),
)
#: Learned macro-instructions (`compiler.tuning_db.macro_instructions`), by the digest of their first layer.
MACROS = _entries(
    "learned_macros",
    *_key(),
    sa.Column("network", sa.String(_DIGEST), nullable=False),
    found_by=("profile", "options", "subgraph"),
)
#: Versions of the cost model that were retrained on this user's measurements.
MODELS = _entries("models", sa.Column("profile", sa.String(_DIGEST), nullable=False), found_by=("profile",))
#: Versions of the language model's policy, by the digest of the language model.
POLICIES = _entries(
    "policies",
    sa.Column("model", sa.String(_DIGEST), nullable=False),
    sa.Column("accepted", sa.Boolean, nullable=False),
    found_by=("model",),
)
#: Violated accuracy budgets, by the digest of the cascade and its budget.
VIOLATIONS = _entries(
    "violations", sa.Column("cascade", sa.String(_DIGEST), nullable=False), found_by=("cascade",)
)


#: Tables that databases of earlier versions lack.
_LATER_TABLES = (MACROS, MODELS, POLICIES, VIOLATIONS)


def key_conditions(table: sa.Table) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that select a key's entries; the fields of the key are query parameters."""
    return [table.c[name] == sa.bindparam(name) for name in ("subgraph", "profile", "options")]


_log = logging.getLogger(__name__)

#: Maximum bytes of a program, and of any other entry; larger ones are neither read nor written.
MAX_PROGRAM_BYTES, MAX_ENTRY_BYTES = 64 << 20, 4 << 20
_MAX_CODE_BYTES = 64
_CHUNK = 64

T = TypeVar("T")


class SealedRow(NamedTuple):
    """Entry as stored: its number, its data, and the code that authenticates the data."""

    number: int
    data: bytes
    code: bytes


class SealedRows:
    """Reader and writer of authenticated entries.

    Parameters
    ----------
    engine : Engine
        Engine of the database.
    secret : bytes or None
        Secret key of the user; None: no entry is trusted.
    """

    def __init__(self, engine: Engine, secret: bytes | None):
        self.engine, self.secret = engine, secret
        self._writer = engine.execution_options(writes=True)
        self._tables = frozenset(self.work(lambda connection: sa.inspect(connection).get_table_names()))

    def has(self, table: Table) -> bool:
        """Return True if the database contains a table: one that is opened for reading may be of an earlier version."""
        return table.name in self._tables

    def work(self, work: Callable[[Connection], T]) -> T:
        """Run a read transaction and return its result; raise WorkError if the database fails."""

        def run() -> T:
            with self.engine.connect() as connection:
                return work(connection)

        return guarded(self.engine, run)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run a durable, atomic write transaction and return its result; raise WorkError if the database fails."""

        def run() -> T:
            with self._writer.begin() as connection:
                return work(connection)

        def again() -> T:
            try:
                return run()
            except IntegrityError:  # another process has just written the same entry, which is now visible
                return run()

        return guarded(self.engine, again)

    def add(self, connection: Connection, table: Table, data: bytes, columns: Mapping[str, Any]) -> None:
        """Write a trusted entry, that is, an entry of this user."""
        known, digest = self._known(connection, table, data)
        values = {"data": data, "code": self._code(table, data), **columns}
        if known is None:
            connection.execute(insert(table).values(digest=digest, **values))
        else:  # an equal entry was imported before, or is damaged
            connection.execute(update(table).where(table.c.id == known).values(values))

    def add_foreign(
        self, connection: Connection, table: Table, data: bytes, columns: Mapping[str, Any]
    ) -> bool:
        """Write an untrusted entry unless an equal entry exists; return True if it was written."""
        return self._put(connection, table, {"data": data, "code": b"", **columns}, trusted=False)

    def add_sealed(
        self, connection: Connection, table: Table, data: bytes, code: bytes, columns: Mapping[str, Any]
    ) -> bool:
        """Write an entry of another database unless an equal entry exists; return True if it was written.

        The entry is trusted if its code was computed with this user's secret. It then replaces an entry with the same
        data that is not trusted.
        """
        trusted = self.secret is not None and hmac.compare_digest(code, self._code(table, data))
        values = {"data": data, "code": code if trusted else b"", **columns}
        return self._put(connection, table, values, trusted=trusted)

    def _put(self, connection: Connection, table: Table, values: Mapping[str, Any], *, trusted: bool) -> bool:
        """Write an entry unless an equal entry exists; a damaged one, or one with less trust, is replaced."""
        known, digest = self._known(connection, table, values["data"])
        if known is None:
            connection.execute(insert(table).values(digest=digest, **values))
            return True
        limits = {"data": MAX_PROGRAM_BYTES, "code": _MAX_CODE_BYTES}
        names = list(values) if trusted else ["data"]
        stored = [_bytes(table.c[name], limits[name]) if name in limits else table.c[name] for name in names]
        row = connection.execute(select(*stored).where(table.c.id == known)).one()
        if tuple(row) == tuple(values[name] for name in names):
            return False
        connection.execute(update(table).where(table.c.id == known).values(values))
        return True

    def sealed(self, connection: Connection, table: Table, after: int, limit: int) -> list[SealedRow]:
        """Return the next entries of a table, at most `limit`, whose numbers are greater than `after`.

        The data of damaged and of too large entries are empty.
        """
        query = entries(table).where(table.c.id > after).order_by(table.c.id).limit(limit)
        out = []
        for number, digest, data, code in connection.execute(query):
            if data is None or _digest(table, data) != digest:
                data = b""
            out.append(SealedRow(number, data, code or b""))
        return out

    def read(
        self,
        connection: Connection,
        table: Table,
        query: Select,
        read: Callable[[bytes], T],
        values: Mapping[str, Any] | None = None,
    ) -> Iterator[tuple[T, bool]]:
        """Yield the entries that a query built by `entries` finds, each with a flag that is True for trusted entries.

        Damaged entries are skipped with a warning. `values` are the parameters of the query.
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
            raise ValueError("it is empty or too large")
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
        read(json.loads(data))  # reports the field with a number that JSON cannot represent
        if len(data) > MAX_ENTRY_BYTES:
            raise ValueError(f"{len(data):,} bytes exceed the limit of {MAX_ENTRY_BYTES:,}")
    except DAMAGE as error:
        raise InputError(f"the database cannot store this entry: {error}") from None
    return data


def entries(table: Table, most: int = MAX_ENTRY_BYTES) -> Select:
    """Return a query for `SealedRows.read`; it casts columns to bytes, and returns NULL for values that are too large.

    The maximum size of the data of an entry is `most` bytes.
    """
    limits = ((table.c.digest, _MAX_CODE_BYTES), (table.c.data, most), (table.c.code, _MAX_CODE_BYTES))
    return select(table.c.id, *(_bytes(column, limit) for column, limit in limits))


def _bytes(column: sa.ColumnElement, limit: int) -> sa.ColumnElement:
    """Return a column cast to bytes, NULL for values of more than `limit` bytes."""
    return case((func.length(column) <= limit, cast(column, LargeBinary)))


def many(table: Table) -> Select:
    """Return the query of `entries` in a form that fetches many rows in chunks."""
    return entries(table).execution_options(yield_per=_CHUNK)


def _digest(table: Table, data: bytes) -> bytes:
    return hashlib.sha256(table.name.encode() + b"\0" + data).digest()


sa.Index("mla_trials_by_schedule", TRIALS.c.schedule, TRIALS.c.subgraph)


#: File name of the database in the cache.
_FILE = "profile.db"
#: Seconds that a process waits for others that write to the database: if its own entries would be lost otherwise, and
#: if it can do without the database.
BUSY_TIMEOUT_S, SHORT_TIMEOUT_S = 60, 2
#: Number of attempts to create the tables: one of several concurrent processes succeeds, and the others find the tables
#: on a retry.
_MAX_ATTEMPTS = 8


#: Environment variable that names the database that is used by default, or `_NO_DATABASE` for none.
DATABASE_VARIABLE, _NO_DATABASE = "MLA_DB", "off"


def default_database() -> str | Path | None:
    """Return the URL or the file of the database that `MLA_DB` names, by default that in the cache; None for none."""
    given = os.environ.get(DATABASE_VARIABLE)
    if given == _NO_DATABASE:
        return None
    if given:
        return given if "://" in given else Path(given)
    return cache_folder() / _FILE


def file_of(url: str | Path) -> Path | None:
    """Return the file of an SQLite database; None for other databases.

    Raises
    ------
    InputError
        The URL is invalid.
    """
    where = _named(url)
    return Path(where.database) if where.get_backend_name() == "sqlite" and where.database else None


def open_engine(
    url: str | Path | None, read_only: bool = False, timeout_s: int = BUSY_TIMEOUT_S
) -> sa.Engine:
    """Open a database and create its tables if they are missing.

    Parameters
    ----------
    url : str, Path or None
        SQLAlchemy URL, or path of an SQLite file; None: `profile.db` in the cache.
    read_only : bool
        True to write nothing. The tables must then exist, except that a missing `profile.db` in the cache is treated
        as an empty database.
    timeout_s : int
        Seconds to wait for other processes that write to an SQLite file.

    Raises
    ------
    InputError
        The URL is invalid, or the tables have another schema version.
    WorkError
        The database cannot be opened.
    """
    where = _url(url, read_only)
    sqlite = where.get_backend_name() == "sqlite"
    try:
        options = _connect_read_only(where) if sqlite and read_only else {}
        engine = sa.create_engine(where, pool_pre_ping=not sqlite, **options)
    except NoSuchModuleError:
        raise InputError(f"--db: unknown database type {shown(where.drivername)}") from None
    except ModuleNotFoundError as error:
        how = "make setup EXTRAS=postgres" if error.name == "psycopg" else f"install {error.name}"
        message = f"--db: {where.drivername} needs the package {error.name}, which is missing: {how}"
        raise InputError(message) from None
    read_only = read_only and bool(where.database)
    if sqlite:
        _prepare_sqlite(engine, read_only, timeout_s)
    try:
        guarded(engine, lambda: (_need_tables if read_only else _make_tables)(engine))
    except MlaError:
        engine.dispose()
        raise
    return engine


def guarded(engine: sa.Engine, work: Callable[[], T]) -> T:
    """Run a database operation and return its result.

    Raises
    ------
    InputError
        The file is not a database.
    WorkError
        The database reports an error; the message contains the reason.
    """
    try:
        return work()
    except (DBAPIError, sqlite3.Error) as error:
        own = error.orig if isinstance(error, DBAPIError) else error
        if getattr(own, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            raise InputError(f"{engine.url.database} is not a measurement database") from None
        reason = str(own).strip().splitlines()
        text = reason[0] if reason else type(own).__name__
        raise WorkError(f"the database {title(engine)} cannot be used: {text}") from None


def title(engine: sa.Engine) -> str:
    """Return the display name of the database: its URL without the password."""
    return engine.url.render_as_string(hide_password=True)


def _url(url: str | Path | None, read_only: bool) -> sa.URL:
    if url is not None:
        return _named(url)
    given = default_database()
    if given is None:
        raise InputError(f"{DATABASE_VARIABLE} is {_NO_DATABASE!r}: name a database with --db")
    file = cache_folder() / _FILE
    if given != file:
        return _named(given)
    if read_only:
        return _named(file) if file.exists() else sa.URL.create("sqlite")  # in memory
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkError(f"the cache {file.parent} cannot be created: {error.strerror}") from None
    return _named(file)


def _connect_read_only(url: sa.URL) -> dict[str, Any]:
    """Return engine options that open an SQLite file without writing to it."""
    if not url.database or url.database == ":memory:" or url.query.get("uri"):
        return {}
    path = Path(url.database).absolute()
    # In WAL mode SQLite creates two files even to read a database. In a read-only folder, `immutable` avoids them,
    # which is correct unless a log with newer entries exists.
    if os.access(path.parent, os.W_OK):
        mode = "mode=rw" if os.access(path, os.W_OK) else "mode=ro"
    else:
        log = path.with_name(f"{path.name}-wal")
        mode = "mode=ro" if log.exists() else "mode=ro&immutable=1"
    return {
        "creator": lambda: sqlite3.connect(
            f"file:{quote(str(path))}?{mode}", uri=True, check_same_thread=False
        )
    }


def _named(url: str | Path) -> sa.URL:
    if isinstance(url, Path):
        return sa.URL.create("sqlite", database=str(url))
    try:
        return sa.make_url(url)
    except ArgumentError:
        forms = "sqlite:///FILE or postgresql://USER@HOST/NAME"
        raise InputError(f"--db: a database URL must look like {forms}, not {shown(url)}") from None


def _prepare_sqlite(engine: sa.Engine, read_only: bool, timeout_s: int) -> None:
    """Configure an SQLite engine for durable writes, reads during writes by others, and waiting for other writers."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions are started by `begin` below
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {timeout_s * 1000}")
        cursor.execute("PRAGMA query_only = ON" if read_only else "PRAGMA journal_mode = WAL")
        # NORMAL would lose the last entries in a power failure. Waiting for the disk takes milliseconds per commit;
        # a measurement takes seconds.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute(
            "PRAGMA trusted_schema = OFF"
        )  # limits the functions that views and triggers of another user's file may call
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A read transaction that becomes a write transaction cannot wait for another writer: writers start as writers.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _make_tables(engine: sa.Engine) -> None:
    """Create the tables unless they exist."""
    for left in reversed(range(_MAX_ATTEMPTS)):
        try:
            if not _tables_exist(engine):
                with engine.execution_options(writes=True).begin() as connection:
                    METADATA.create_all(connection)
                    if connection.scalar(_version()) is None:
                        connection.execute(VERSIONS.insert().values(version=VERSION))
            return
        except (DBAPIError, sqlite3.OperationalError):
            if not left:
                raise


def _need_tables(engine: sa.Engine) -> None:
    if not _tables_exist(engine, METADATA.tables.keys() - {each.name for each in _LATER_TABLES}):
        raise InputError(
            f"the database {title(engine)} contains no measurements: it lacks this program's tables"
        )


def _tables_exist(engine: sa.Engine, needed: Set[str] = METADATA.tables.keys()) -> bool:
    """Return True if the needed tables exist; raise InputError if they have another schema version."""
    with engine.connect() as connection:
        names = set(sa.inspect(connection).get_table_names())
        found = connection.scalar(_version()) if VERSIONS.name in names else None
    if found is None:
        return False
    if found != VERSION:
        newer = isinstance(found, int) and found > VERSION
        how = (
            "a newer version of this program created it: update, or"
            if newer
            else "an older version created it:"
        )
        raise InputError(
            f"--db: {title(engine)} has tables of version {shown(found)}, not {VERSION}: {how} name another database"
        )
    return needed <= names


def _version() -> sa.Select:
    return sa.select(VERSIONS.c.version).order_by(VERSIONS.c.version.desc()).limit(1)
