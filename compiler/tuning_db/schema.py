"""Database schema.

The contents of an entry are in `data`, authenticated by `code`; the other columns only serve queries and are never
decoded, so that tampering with them cannot change what an entry says.
"""

import sqlalchemy as sa

#: Schema version; databases with another version are rejected.
VERSION = 1
_DIGEST = 64

METADATA = sa.MetaData()
VERSIONS = sa.Table(
    "mla_store", METADATA, sa.Column("version", sa.Integer, primary_key=True, autoincrement=False)
)


def _entries(kind: str, *columns: sa.Column, found_by: tuple[str, ...]) -> sa.Table:
    """A table of entries. `digest` is the SHA-256 of kind and data: an entry is there once."""
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite counts up only what it calls INTEGER
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
#: `cycles` of trials that can be believed.
TRIALS = _entries(
    "trials",
    *_key(),
    sa.Column("schedule", sa.String(_DIGEST), nullable=False),
    sa.Column("cycles", sa.BigInteger),
    found_by=("subgraph", "profile", "options", "cycles"),
)
sa.Index("mla_trials_by_schedule", TRIALS.c.schedule, TRIALS.c.subgraph)
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


def at(table: sa.Table) -> list[sa.ColumnElement[bool]]:
    """What the columns of a key's entries are, where the parts of the key are parameters of a query."""
    return [table.c[name] == sa.bindparam(name) for name in ("subgraph", "profile", "options")]
