"""Entries in damaged tables are read as they were stored, are marked as another user's entries, or are dropped."""

import hmac
import json
import logging
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from compiler.codegen.split_programs import ProgramPart
from compiler.profile.measurement import HardwareProfile, Rejected
from compiler.tuning_db import json_codec, programs, trials
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import Entry, Execution, Profile, TrialEntry
from compiler.tuning_db.programs import to_bytes
from compiler.util.checks import DAMAGE
from hw.errors import InputError
from hw.isa.program import Program
from tests.tuning_db import random_entries
from tests.tuning_db.random_entries import SECRET, key

#: Number of damaged rows of all kinds together; seeds, each with this number.
ROWS, SEEDS = 110, (1, 2, 3)
TABLES = ("mla_trials", "mla_programs", "mla_executions", "mla_profiles")
#: Values that are invalid in every field of an entry.
HOSTILE = (
    "NaN",
    "-Infinity",
    "1e999",
    str(10**30),
    "-5",
    "null",
    "[]",
    "{}",
    '"\\ud800"',
    "true",
    "[" * 100_000,
    "0.5",
)


@dataclass
class Contents:
    """The entries that a user stores in a database."""

    trials: list[TrialEntry] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)

    def put(self, database: TuningDatabase) -> None:
        database.add_measurement(*self.trials)
        database.add_execution(*self.executions)
        for profile in self.profiles:
            database.put_profile(profile)
        for entry in self.entries:
            assert database.put_best(entry)


def contents(rng: random.Random) -> Contents:
    keys = [key(0, 0), key(1, 0), key(0, 1)]
    made = Contents()
    made.trials = [random_entries.trial(rng, each, good=True) for each in keys for _ in range(2)]
    for each in keys:
        rejected, other = random_entries.trial(rng, each), random_entries.layer_schedule(rng)
        made.trials.append(replace(rejected, schedule=other, result=Rejected("compile", "no room")))
    made.entries = [random_entries.entry(each, 100.0 + n, n % 2) for n, each in enumerate(keys)]
    made.executions = [random_entries.execution(rng, each) for each in keys for _ in range(2)]
    profiles = {each.conditions.key: each for each in (random_entries.profile(rng) for _ in range(6))}
    made.profiles = list(profiles.values())
    return made


def check(database: TuningDatabase, made: Contents, *, legal: bool = True) -> int:
    """Check that all entries that can be read were stored, and return their number.

    If an attacker with the secret wrote to the database (not `legal`), entries need only have the right key.
    """
    count = 0
    for entry in made.entries:
        hit = database.best(entry.key)
        assert hit is None or random_entries.same(hit, entry) or (not legal and hit.key == entry.key)
        count += hit is not None
        for trial, mine in database.trials(entry.key):
            assert trial.key == entry.key and (trial in made.trials or not mine or not legal)
            count += mine
        for candidate in database.candidates(entry.key, 100, nodes="abcd"):
            trial = candidate.trial
            assert trial.key.subgraph == entry.key.subgraph and trials.is_good(trial)
            assert trial in made.trials or not candidate.trusted or not legal
    for trial in made.trials:
        assert database.measured(trial.key, trial.schedule) in (trial.result, None) or not legal
    for subgraph in {each.key.subgraph for each in made.executions}:
        found = database.history(subgraph)
        assert all(each in made.executions or not legal for each in found)
        assert all(each.key.subgraph == subgraph for each in found)
        count += len(found)
    for profile in database.profiles():
        assert profile in made.profiles or not profile.trusted or not legal
        count += profile.trusted
    database.nearest(made.profiles[0].conditions, 3)
    return count


Row = dict[str, Any]


def sealed(table: str, row: Row, data: bytes, *, sign: bool) -> Row:
    """Return a row with other data and a valid digest; `sign` adds a valid signature, which needs the secret."""
    head = table.encode() + b"\0"
    code = hmac.digest(SECRET, b"database\0" + head + data, "sha256") if sign else b""
    return row | {"digest": sha256(head + data).digest(), "data": data, "code": code}


def _bits(rng: random.Random, _table: str, row: Row, _other: Row) -> Row:
    name = rng.choice(["data", "data", "code", "digest"])
    data = bytearray(row[name])
    for _ in range(rng.choice([1, 1, 1, 5])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return row | {name: bytes(data)}


def _length(rng: random.Random, _table: str, row: Row, _other: Row) -> Row:
    name = rng.choice(["data", "data", "code", "digest"])
    data = row[name]
    return row | {name: rng.choice([b"", data[: rng.randrange(len(data))], data + b"\0", data * 2])}


def _type(rng: random.Random, _table: str, row: Row, _other: Row) -> Row:
    name = rng.choice([name for name in row if name != "id"])
    return row | {name: rng.choice([0, -1, 1 << 62, 1.5, "", "text", float("inf"), b"\xff\xfe", Invalid])}


def _swap(rng: random.Random, _table: str, row: Row, other: Row) -> Row:
    """Return a row with some fields of another row, or with all contents of a row under another key."""
    names = rng.choice(
        [["data"], ["code"], ["digest"], ["data", "code"], ["data", "digest"], ["data", "digest", "code"]]
    )
    return row | {name: other[name] for name in names}


def _file(rng: random.Random, _table: str, row: Row, other: Row) -> Row:
    names = [name for name in row if name not in ("id", "digest", "data", "code")]
    return row | {
        name: other.get(name, "f" * 64) for name in rng.sample(names, rng.randrange(1, len(names) + 1))
    }


def _contents(rng: random.Random, table: str, row: Row, _other: Row) -> Row:
    """Return a row with contents that an attacker without the secret wrote."""
    return sealed(table, row, _hostile(rng, table, row), sign=False)


def _signed(rng: random.Random, table: str, row: Row, _other: Row) -> Row:
    """Return a row with mostly invalid contents and a valid signature, as a bug in the program could write."""
    return sealed(table, row, _hostile(rng, table, row), sign=True)


def _hostile(rng: random.Random, table: str, row: Row) -> bytes:
    text, head = _split(row["data"])
    values = json.loads(text)
    if table == "mla_programs" and rng.random() < 0.5:
        place = values["codes"][0]
        name = rng.choice(sorted(place))
        place[name] = rng.choice(
            ["x", -1, 1 << 40, [], [-1], [1 << 40], {}, None, [[99]], {"x": 99}, {"y": -1}]
        )
        changed = json.dumps(values)
    else:
        mark = "the place of a hostile value"
        place, name = rng.choice(list(_json_fields(values)))
        if rng.random() < 0.3:
            del place[name]
        else:
            place[name] = mark
        changed = json.dumps(values).replace(json.dumps(mark), rng.choice(HOSTILE))
    return _joined(changed.encode(), head)


#: Ways to damage a row.
WAYS: list[Callable[[random.Random, str, Row, Row], Row]] = [
    _bits,
    _length,
    _type,
    _swap,
    _file,
    _contents,
    _signed,
]


class Invalid:
    """Placeholder for text that is not valid UTF-8."""


def _split(data: bytes) -> tuple[bytes, bytes | None]:
    """Split the data of an entry into its JSON and, for programs, the rest of the data."""
    if not data.startswith(b"MLAC"):
        return data, None
    length = int.from_bytes(data[5:9], "little")
    return data[9 : 9 + length], data[9 + length :]


def _joined(text: bytes, rest: bytes | None) -> bytes:
    return text if rest is None else b"MLAC\1" + len(text).to_bytes(4, "little") + text + rest


def _json_fields(value: Any) -> Iterator[tuple[dict, str]]:
    """Yield every field of JSON objects, except free text and open-ended values, for which any value is valid."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name not in (
                "seed",
                "method",
                "generator",
                "bound",
                "layers",
                "where",
                "behaviour",
                "trap",
                "fusions",
            ):
                yield value, name
            yield from _json_fields(each)


def rows(path: Path) -> dict[str, list[Row]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return {
            t: [dict(row) for row in connection.execute(f"SELECT * FROM {t} ORDER BY id")] for t in TABLES
        }


def change(path: Path, table: str, new: list[Row], old: list[int] | None = None) -> None:
    """Delete the rows `old`, or all rows if `old` is None; then store the new rows in place of rows with equal ids."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        if old is None:
            connection.execute(f"DELETE FROM {table}")
        for number in old or []:
            connection.execute(f"DELETE FROM {table} WHERE id = ?", (number,))
        for row in new:
            texts = ["CAST(x'ff61' AS TEXT)" if row[name] is Invalid else "?" for name in row]
            values = [value for value in row.values() if value is not Invalid]
            statement = f"REPLACE INTO {table} ({', '.join(row)}) VALUES ({', '.join(texts)})"
            connection.execute(statement, values)


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_rows_are_misses(tmp_path, caplog, seed):
    print(f"seed {seed}")
    rng, path = random.Random(seed), tmp_path / "profile.db"
    made, done = contents(rng), dict.fromkeys([way.__name__ for way in WAYS], 0)
    caplog.set_level(logging.WARNING)
    with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
        made.put(database)
        whole, before = check(database, made), rows(path)
        for number in range(ROWS):
            table, way = rng.choice(TABLES), WAYS[number % len(WAYS)]
            row, other = rng.sample(before[table], 2)
            damaged = way(rng, table, row, other)
            if damaged == row:
                continue
            # The digests of rows must differ, so the other row is deleted.
            change(path, table, [damaged], [other["id"]] if damaged["digest"] == other["digest"] else [])
            caplog.clear()
            came = check(database, made, legal=way is not _signed)
            database.export(tmp_path / "out.jsonl")
            if table == "mla_programs" and way is not _signed:
                _replace_damaged(database, made)
            if way in (_bits, _length) and damaged["data"] != row["data"]:
                assert came < whole and "is not used" in caplog.text, (way.__name__, table, number)
            done[way.__name__] += 1
            change(path, table, before[table], None)
        assert check(database, made) == whole
    print(f"damaged rows: {done}")
    assert sum(done.values()) >= 100


def _replace_damaged(database: TuningDatabase, made: Contents) -> None:
    """Check that the next stored program replaces a damaged one, whatever cost the damaged entry claims."""
    for entry in made.entries:
        if database.best(entry.key) is None:
            assert database.put_best(entry)
            found = database.best(entry.key)
            assert found is not None and random_entries.same(found, entry)


def test_entries_moved_to_another_table_are_rejected(tmp_path):
    rng, path = random.Random(9), tmp_path / "profile.db"
    made = contents(rng)
    with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
        made.put(database)
    before = rows(path)
    for source in TABLES:
        for target in TABLES:
            if source != target:
                theirs = {name: before[source][0][name] for name in ("digest", "data", "code")}
                change(path, target, [before[target][0] | theirs], [])
                with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
                    check(database, made)
                change(path, target, [before[target][0]], [])


@pytest.mark.parametrize("seed", [1])
def test_damaged_code_raises_only_value_errors(seed):
    """For damaged bytes without a signature, `from_bytes` returns plausible code or raises a ValueError."""
    print(f"seed {seed}")
    rng, refused = random.Random(seed), 0
    good = to_bytes(random_entries.entry(key()))
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.choice([1, 1, 4])):
            data[rng.randrange(400) if rng.random() < 0.7 else rng.randrange(len(data))] ^= (
                1 << rng.randrange(8)
            )
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data))]
        try:
            _, made = programs.decode(bytes(data))
        except DAMAGE:
            refused += 1
            continue
        for code in made:
            assert code.image.size <= code.memory < 1 << 32 and len(code.programs) == len(code.parts) > 0
    assert refused > 150


def test_code_that_no_machine_could_have_is_rejected():
    """Code with an invalid value in any field of its header is rejected."""
    text, rest = _split(to_bytes(random_entries.entry(key())))
    assert rest is not None
    bad: list[tuple[str, Any, str]] = [
        ("config", {"n": 5}, "n must be one of"),
        ("programs", [], "bytes|programs are missing"),
        ("programs", ["x"], "a size or index must be a non-negative integer"),
        ("programs", [-8], "a size or index must be a non-negative integer"),
        ("programs", {}, "a list"),
        ("programs", [1 << 40], "cut short"),
        ("layers", [], "programs are missing"),
        ("layers", [[9]], "a program refers to a missing layer"),
        ("layers", [3], "must be a list"),
        ("tags", [99], "out of range"),
        ("tags", [], "a program refers to a missing layer"),
        ("image", 0, "bytes after its end"),
        ("image", 1 << 30, "cut short"),
        ("image", -1, "image must be"),
        ("memory", 1, "out of range"),
        ("memory", 1 << 32, "out of range"),
        ("places", {"x": 0}, "invalid operand index"),
        ("places", {"x": 48}, "invalid operand index"),
        ("places", 5, "places must be an object"),
    ]
    for name, value, why in bad:
        values = json.loads(text)
        values["codes"][0][name] = value
        with pytest.raises((ValueError, InputError), match=why):
            programs.decode(_joined(json.dumps(values).encode(), rest))
    for data, why in [
        (b"", "not an encoded program"),
        (b"MLAC\1", "not an encoded program"),
        (b"MLAC\1\xff\xff\xff\xff", "cut short"),
    ]:
        with pytest.raises(ValueError, match=why):
            programs.decode(data)
    with pytest.raises(ValueError, match="bytes after its end"):
        programs.decode(_joined(text, rest + b"x"))
    (code,) = random_entries.entry(key()).codes
    long = ProgramPart(Program("long", (0,) * (code.config.wis_words + 1)), (0,))
    with pytest.raises(ValueError, match="longer than the instruction store"):
        programs.decode(programs.encode({}, [replace(code, parts=(long,))]))


def test_too_large_entries_are_not_read(tmp_path, caplog):
    path = tmp_path / "profile.db"
    made = contents(random.Random(0))
    with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
        made.put(database)
    row = rows(path)["mla_trials"][0]
    change(path, "mla_trials", [sealed("mla_trials", row, b" " * (5 << 20) + row["data"], sign=True)], [])
    with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
        assert len(database.trials(made.trials[0].key)) == 2
    assert "is not used: it is empty or too large" in caplog.text


def test_profile_of_an_invalid_machine_is_skipped(tmp_path, caplog):
    path = tmp_path / "profile.db"
    profile = random_entries.profile(random.Random(0))
    bad: list[tuple[str, Any, str]] = [
        ("config", {"n": 5}, "n must be one of"),
        ("config", {"wings": 2}, "a machine has no such field"),
        ("config", 7, "not a JSON object"),
        ("latency", 0, "latency must be"),
        ("behaviour", {"a": "b"}, "a finite number"),
        ("bytes_per_cycle", 0.0, "bytes_per_cycle must be"),
        ("bytes_per_cycle", -2.0, "bytes_per_cycle must be"),
    ]
    for name, value, why in bad:
        with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
            database.put_profile(profile)
        (row,) = rows(path)["mla_profiles"]
        values = json_codec.profile_values(profile) | {name: value}
        change(
            path, "mla_profiles", [sealed("mla_profiles", row, json.dumps(values).encode(), sign=True)], []
        )
        caplog.clear()
        with TuningDatabase(f"sqlite:///{path}", secret=SECRET) as database:
            assert (
                database.profiles() == []
                and database.nearest(HardwareProfile(random_entries.network().config)) == []
            )
        assert why in caplog.text
        change(path, "mla_profiles", [], None)
