"""Tables of the tuning database, and the version of the schema."""

import sqlalchemy as sa

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


def key_conditions(table: sa.Table) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that select a key's entries; the fields of the key are query parameters."""
    return [table.c[name] == sa.bindparam(name) for name in ("subgraph", "profile", "options")]
