"""How many entries of what a database holds, for people."""

from dataclasses import dataclass

from sqlalchemy import Connection, LargeBinary, Table, cast, func, select

from compiler.measure.conditions import Conditions
from compiler.store import machines
from compiler.store.keys import is_digest
from compiler.store.rows import Rows
from compiler.store.schema import EXECUTIONS, PROFILES, PROGRAMS, TRIALS


@dataclass(frozen=True)
class Searched:
    """A model on a machine.

    Parameters
    ----------
    subgraph, profile : str
        Their digests.
    conditions : Conditions or None
        The machine and its memory, if they are known.
    trials : int
        Schedules tried, by anybody.
    cycles : int or None
        The least that is claimed for any of them.
    """

    subgraph: str
    profile: str
    conditions: Conditions | None
    trials: int
    cycles: int | None


@dataclass(frozen=True)
class Summary:
    """Entries of each kind, and what was searched."""

    profiles: int
    trials: int
    programs: int
    executions: int
    searched: tuple[Searched, ...]


def summary(rows: Rows, connection: Connection) -> Summary:
    """Of all entries, this user's and others'; only counted, not checked."""

    def count(table: Table) -> int:
        return connection.scalar(select(func.count()).select_from(table)) or 0

    return Summary(
        profiles=count(PROFILES), trials=count(TRIALS), programs=count(PROGRAMS),
        executions=count(EXECUTIONS), searched=tuple(_searched(rows, connection)),
    )  # fmt: skip


def _searched(rows: Rows, connection: Connection) -> list[Searched]:
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
            out.append(Searched(names[0], names[1], known.get(names[1]), trials, least))
    return out
