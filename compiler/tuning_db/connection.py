"""The database that entries are in: SQLite in the user's cache, or whatever an URL names."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from compiler.tuning_db.schema import METADATA, VERSION, VERSIONS
from cosim.rtl.cache import cache_folder
from hw.errors import InputError, MlaError, WorkError, shown

#: Name of the database in the cache.
_FILE = "profile.db"
#: Seconds that a writer waits for others.
_PATIENCE = 60
#: Processes that come together to an empty database: all but one of them find tables when they try again.
_TRIES = 8

T = TypeVar("T")


def open_engine(url: str | Path | None, read_only: bool = False) -> sa.Engine:
    """The database of an URL or in a file, with its tables; None: `profile.db` in the cache.

    Parameters
    ----------
    url : str, Path or None
        SQLAlchemy's name of the database, or a file of SQLite's.
    read_only : bool
        Write nothing: tables must be there, except that a missing `profile.db` in the cache is an empty database.

    Raises
    ------
    InputError
        The URL names no database, or one of another version.
    WorkError
        It cannot be opened.
    """
    where = _url(url, read_only)
    sqlite = where.get_backend_name() == "sqlite"
    try:
        options = _connect_read_only(where) if sqlite and read_only else {}
        engine = sa.create_engine(where, pool_pre_ping=not sqlite, **options)
    except NoSuchModuleError:
        raise InputError(f"--db: no kind of database is called {shown(where.drivername)}") from None
    except ModuleNotFoundError as error:
        how = "make setup EXTRAS=postgres" if error.name == "psycopg" else f"install {error.name}"
        message = f"--db: {where.drivername} needs the package {error.name}, which is missing: {how}"
        raise InputError(message) from None
    read_only = read_only and bool(where.database)
    if sqlite:
        _prepare_sqlite(engine, read_only)
    try:
        guarded(engine, lambda: (_need_tables if read_only else _make_tables)(engine))
    except MlaError:
        engine.dispose()
        raise
    return engine


def guarded(engine: sa.Engine, work: Callable[[], T]) -> T:
    """What some work on a database gives.

    Raises
    ------
    WorkError
        The database refused, with its reason.
    """
    try:
        return work()
    except (DBAPIError, sqlite3.Error) as error:
        own = error.orig if isinstance(error, DBAPIError) else error
        reason = str(own).strip().splitlines()
        text = reason[0] if reason else type(own).__name__
        raise WorkError(f"the database {title(engine)} cannot be used: {text}") from None


def title(engine: sa.Engine) -> str:
    """The database for people, without its password."""
    return engine.url.render_as_string(hide_password=True)


def _url(url: str | Path | None, read_only: bool) -> sa.URL:
    if url is not None:
        return _named(url)
    folder = cache_folder()
    if read_only:
        return _named(folder / _FILE) if (folder / _FILE).exists() else sa.URL.create("sqlite")  # in memory
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkError(f"the cache {folder} cannot be made: {error.strerror}") from None
    return _named(folder / _FILE)


def _connect_read_only(url: sa.URL) -> dict[str, Any]:
    """How SQLAlchemy opens a file of SQLite's without writing anything."""
    if not url.database or url.database == ":memory:" or url.query.get("uri"):
        return {}
    path = Path(url.database).absolute()
    # Beside a database in WAL mode SQLite makes two files even to read, and removes them if it may write. Where it
    # may not, `immutable` does without them, which is right as long as no log with newer entries is there.
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
        raise InputError(f"--db: a database's URL is like {forms}, not {shown(url)}") from None


def _prepare_sqlite(engine: sa.Engine, read_only: bool) -> None:
    """Durable writes, readers beside a writer, and writers that wait for one another."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # `begin` below says when a transaction begins
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {_PATIENCE * 1000}")
        cursor.execute("PRAGMA query_only = ON" if read_only else "PRAGMA journal_mode = WAL")
        # NORMAL too would lose nothing when a process is killed, but the last entries when the power fails. A commit
        # that waits for the disk takes milliseconds, the measurement before it seconds.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA trusted_schema = OFF")  # what views and triggers of a foreign file may call
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A reader that turns writer cannot wait for another writer, it is refused: so writers say so at once.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _make_tables(engine: sa.Engine) -> None:
    """Tables where there are none."""
    for left in reversed(range(_TRIES)):
        try:
            if not _there(engine):
                with engine.execution_options(writes=True).begin() as connection:
                    METADATA.create_all(connection)
                    if connection.scalar(_version()) is None:
                        connection.execute(VERSIONS.insert().values(version=VERSION))
            return
        except (DBAPIError, sqlite3.OperationalError):
            if not left:
                raise


def _need_tables(engine: sa.Engine) -> None:
    if not _there(engine):
        raise InputError(f"--db: {title(engine)} holds no measurements: it has none of this program's tables")


def _there(engine: sa.Engine) -> bool:
    """Whether all tables are there; InputError if they are those of another version."""
    with engine.connect() as connection:
        names = set(sa.inspect(connection).get_table_names())
        found = connection.scalar(_version()) if VERSIONS.name in names else None
    if found is None:
        return False
    if found != VERSION:
        newer = isinstance(found, int) and found > VERSION
        how = "a newer version of this program made it: update, or" if newer else "an older one made it:"
        raise InputError(
            f"--db: {title(engine)} has tables of version {shown(found)}, not {VERSION}: {how} name another database"
        )
    return METADATA.tables.keys() <= names


def _version() -> sa.Select:
    return sa.select(VERSIONS.c.version).order_by(VERSIONS.c.version.desc()).limit(1)
