"""The database that entries are in: SQLite in the user's cache, or whatever an URL names."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from compiler.store.schema import METADATA, VERSION, VERSIONS
from cosim.rtl.cache import cache_folder
from hw.errors import InputError, MlaError, WorkError, shown

#: Seconds that a writer waits for others.
_PATIENCE = 60
#: Processes that come together to an empty database: all but one of them find tables when they try again.
_TRIES = 8

T = TypeVar("T")


def open_engine(url: str | Path | None) -> sa.Engine:
    """The database of an URL or in a file, with its tables; None: `profile.db` in the cache.

    Raises
    ------
    InputError
        The URL names no database, or one of another version.
    WorkError
        It cannot be opened.
    """
    where = _url(url)
    sqlite = where.get_backend_name() == "sqlite"
    try:
        engine = sa.create_engine(where, pool_pre_ping=not sqlite)
    except NoSuchModuleError:
        raise InputError(f"--db: no kind of database is called {shown(where.drivername)}") from None
    except ModuleNotFoundError as error:
        how = "make setup EXTRAS=postgres" if error.name == "psycopg" else f"install {error.name}"
        message = f"--db: {where.drivername} needs the package {error.name}, which is missing: {how}"
        raise InputError(message) from None
    if sqlite:
        _prepare_sqlite(engine)
    try:
        guarded(engine, lambda: _make_tables(engine))
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


def _url(url: str | Path | None) -> sa.URL:
    if isinstance(url, Path):
        return sa.URL.create("sqlite", database=str(url))
    if url is None:
        folder = cache_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WorkError(f"the cache {folder} cannot be made: {error.strerror}") from None
        return sa.URL.create("sqlite", database=str(folder / "profile.db"))
    try:
        return sa.make_url(url)
    except ArgumentError:
        forms = "sqlite:///FILE or postgresql://USER@HOST/NAME"
        raise InputError(f"--db: a database's URL is like {forms}, not {shown(url)}") from None


def _prepare_sqlite(engine: sa.Engine) -> None:
    """Durable writes, readers beside a writer, and writers that wait for one another."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # `begin` below says when a transaction begins
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {_PATIENCE * 1000}")
        cursor.execute("PRAGMA journal_mode = WAL")
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
