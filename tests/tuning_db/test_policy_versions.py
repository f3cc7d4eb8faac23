"""Versions of the language model's policy: order, limit, rollback, and entries that are not trusted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from compiler.cli.main import main
from compiler.tuning_db import policy_versions
from compiler.tuning_db.connection import POLICIES
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.policy_versions import LayerTrials, PolicyVersion, current
from hw.errors import InputError

MODEL = "a" * 64
TRIALS = LayerTrials(
    "b" * 64, "c" * 64, "conv", ("rows",), ("machine", "answer"), ((("set rows", "2", "end"), 0.9),)
)
VERSION = PolicyVersion(
    model=MODEL,
    when=1.0,
    before=1.0,
    after=0.9,
    trained=4,
    held_out=2,
    accepted=True,
    weights={"conv": {"": {"set rows": 0.5}}},
    trials=(TRIALS,),
)


def policy(weight: float) -> PolicyVersion:
    """Return an accepted version with one weight."""
    return replace(VERSION, weights={"conv": {"": {"set rows": weight}}})


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    """Return an empty database."""
    return TuningDatabase(tmp_path / "own.db", secret=b"own")


def test_last_accepted_version_is_current(database: TuningDatabase) -> None:
    assert current(database.policies(MODEL)) is None
    for version in (policy(1.0), policy(2.0), replace(policy(3.0), accepted=False)):
        database.put_policy(version)
    found = database.policies(MODEL)
    assert [each.accepted for each in found] == [True, True, False]
    assert found[0] == replace(policy(1.0), number=1)
    assert current(found) == {"conv": {"": {"set rows": 2.0}}}
    database.put_policy(replace(policy(0.5), accepted=False))  # replaces the refused one
    assert [each.accepted for each in database.policies(MODEL)] == [True, True, False]
    assert database.policies("d" * 64) == []


def test_rollback_and_limit(database: TuningDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (policy(1.0), policy(2.0), replace(policy(3.0), accepted=False)):
        database.put_policy(version)
    database.roll_back_model(1)
    assert current(database.policies(MODEL)) == {"conv": {"": {"set rows": 1.0}}}
    with pytest.raises(InputError, match="there is no version 9"):
        database.roll_back_model(9)
    database.put_policy(replace(policy(2.5), accepted=False))
    refused = next(each.number for each in database.model_versions() if not each.document()["accepted"])
    with pytest.raises(InputError, match="was refused"):
        database.roll_back_model(refused)
    database.roll_back_model(0)
    assert current(database.policies(MODEL)) is None
    monkeypatch.setattr(policy_versions, "MAX_VERSIONS", 2)
    database.put_policy(policy(3.5))
    assert [each.weights for each in database.policies(MODEL)] == [None, policy(3.5).weights]


def test_foreign_and_damaged_versions_are_not_used(database: TuningDatabase, tmp_path: Path) -> None:
    with TuningDatabase(tmp_path / "own.db", secret=b"somebody else") as other:
        other.put_policy(VERSION)
        assert len(other.policies(MODEL)) == 1
    assert database.policies(MODEL) == []
    database.put_policy(replace(VERSION, when=2.0))
    with database._rows.engine.begin() as connection:
        data = connection.scalar(sa.select(POLICIES.c.data).order_by(POLICIES.c.id.desc()))
        assert data is not None
        values = json.loads(data) | {"after": 0.0}
        connection.execute(sa.update(POLICIES).values(data=json.dumps(values).encode()))
    assert database.policies(MODEL) == []


def trials_text(*layers: object) -> dict[str, Any]:
    """Return the field of trials with any content."""
    import base64
    import gzip

    return {"trials": base64.b64encode(gzip.compress(json.dumps(layers).encode())).decode()}


LAYER = ["b" * 64, "c" * 64, "conv", ["rows"], ["machine"], [[["end"], 1.0]]]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "x"},
        {"accepted": 1},
        {"weights": 3},
        {"weights": {"conv": 3}},
        {"weights": {"conv": {"": {"end": "1"}}}},
        {"weights": {"conv": {"": {"end": 4.5}}}},
        {"weights": {"conv": {"": {"end": True}}}},
        {"weights": {"conv": {"": {"e" * 65: 1.0}}}},
        {"weights": {"conv": {"": {str(number): 1.0 for number in range(4097)}}}},
        {"trials": 3},
        {"trials": "?"},
        {"trials": "AAAA"},
        trials_text(3),
        trials_text(*[LAYER] * 97),
        trials_text(["x", *LAYER[1:]]),
        trials_text([*LAYER[:4], [3], LAYER[5]]),
        trials_text([*LAYER[:4], ["machine"] * 513, LAYER[5]]),
        trials_text([*LAYER[:5], [[["end"], 0.0]]]),
        trials_text([*LAYER[:5], [[["end"], 1.0]] * 65]),
        trials_text([*LAYER[:5], [[["end"] * 97, 1.0]]]),
        trials_text([*LAYER[:5], [3]]),
    ],
)
def test_damaged_fields_are_errors(change: dict[str, Any]) -> None:
    values = policy_versions._values(VERSION)
    assert policy_versions._from_values(json.loads(json.dumps(values))) == VERSION
    assert policy_versions._from_values(values | trials_text(LAYER)).trials[0].word == "conv"
    with pytest.raises(ValueError, match=r"\w"):
        policy_versions._from_values(values | change)


def test_command_lists_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLA_CACHE", str(tmp_path))
    file = tmp_path / "own.db"
    with TuningDatabase(file) as database:
        database.put_policy(VERSION)
        database.put_policy(replace(policy(3.0), accepted=False))
    assert main(["db", "models", "--db", str(file), "--json", "-"]) == 0
    first, second = json.loads(capsys.readouterr().out)["models"]
    assert first["current"] and first["kind"] == "policy" and first["held_out_layers"] == 2
    assert not second["current"] and not second["accepted"]
    assert main(["db", "models", "--db", str(file)]) == 0
    out = capsys.readouterr().out
    assert "refused" in out and "1.0000 -> 0.9000" in out
    assert main(["db", "models", "--db", str(file), "--rollback", "0"]) == 0
    assert "model of the compiler" in capsys.readouterr().out
