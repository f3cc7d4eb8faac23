"""Summary of the contents of a database: number of entries of each type, and searched models."""

from dataclasses import dataclass

from sqlalchemy import Connection, LargeBinary, Table, cast, func, select

from compiler.profile.measurement import HardwareProfile
from compiler.tuning_db import machines
from compiler.tuning_db.connection import SealedRows
from compiler.tuning_db.entries import is_digest
from compiler.tuning_db.schema import EXECUTIONS, PROFILES, PROGRAMS, TRIALS


@dataclass(frozen=True)
class SearchedModel:
    """Model for which schedules were searched, on one machine.

    Parameters
    ----------
    subgraph, profile : str
        Digests of the model and of the hardware profile.
    conditions : HardwareProfile or None
        Machine configuration and DRAM timing; None if not stored.
    trials : int
        Number of trials, trusted or not.
    cycles : int or None
        Lowest number of cycles in all valid trials; None if there is no valid trial.
    """

    subgraph: str
    profile: str
    conditions: HardwareProfile | None
    trials: int
    cycles: int | None


@dataclass(frozen=True)
class DatabaseSummary:
    """Number of entries of each type, and the searched models."""

    profiles: int
    trials: int
    programs: int
    executions: int
    searched: tuple[SearchedModel, ...]


def summary(rows: SealedRows, connection: Connection) -> DatabaseSummary:
    """Count all entries, trusted or not, without checking them."""

    def count(table: Table) -> int:
        return connection.scalar(select(func.count()).select_from(table)) or 0

    return DatabaseSummary(
        profiles=count(PROFILES),
        trials=count(TRIALS),
        programs=count(PROGRAMS),
        executions=count(EXECUTIONS),
        searched=tuple(_searched(rows, connection)),
    )


def _searched(rows: SealedRows, connection: Connection) -> list[SearchedModel]:
    known = {each.conditions.key: each.conditions for each in machines.profiles(rows, connection)}
    columns = (TRIALS.c.subgraph, TRIALS.c.profile)
    parts = (cast(column, LargeBinary) for column in columns)
    query = select(*parts, func.count(), func.min(TRIALS.c.cycles)).group_by(*columns).order_by(*columns)
    out = []
    for row in connection.execute(query).all():
        *parts, trials, cycles = tuple(row)
        names = [bytes(part).decode(errors="replace") for part in parts]
        if all(is_digest(name) for name in names):
            least = cycles if isinstance(cycles, int) else None
            out.append(SearchedModel(names[0], names[1], known.get(names[1]), trials, least))
    return out
