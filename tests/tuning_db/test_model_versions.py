"""Versions of the retrained cost model: gate, rollback, limits, and entries that are not trusted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from compiler.cli.main import main
from compiler.cost.features import NAMES, FeatureRow
from compiler.cost.learned_model import find_model
from compiler.cost.online_model import LayerSample, retrained
from compiler.options import DramTiming
from compiler.profile.measurement import HardwareProfile
from compiler.tuning_db import model_versions
from compiler.tuning_db.connection import MODELS
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.model_versions import ModelVersion
from hw.config import load_target
from hw.errors import InputError

N4 = HardwareProfile(load_target("n4"), DramTiming(latency=700))
SECRET = b"own"


def samples(factor: float, count: int = 160, seed: int = 1) -> list[LayerSample]:
    """Return made-up samples of two layers, whose cycles are the estimates times a factor."""
    rng = np.random.default_rng(seed)
    out = []
    for number in range(count):
        numbers = rng.integers(0, 3, len(NAMES)).astype(float)
        for name in ("width", "out_left", "in_left", "kernel", "stride", "groups", "residual", "table"):
            numbers[NAMES.index(name)] = 1.0
        for name in ("out_bytes", "inputs", "beat", "log_latency", "n"):
            numbers[NAMES.index(name)] = 2.0
        numbers[NAMES.index("kind")] = number % 2
        base = float(rng.uniform(1000, 5000))
        out.append(LayerSample(FeatureRow(numbers.tolist(), base), base * factor * rng.uniform(0.99, 1.01)))
    return out


def error(database: TuningDatabase, measured: list[LayerSample]) -> float:
    """Return the mean error of the database's current model."""
    cycles, _ = database.cost_model(N4).predict_many([each.row for each in measured])
    return float(np.mean(np.abs(cycles / [each.cycles for each in measured] - 1)))


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    """Return an empty database."""
    return TuningDatabase(tmp_path / "own.db", secret=SECRET)


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> ModelVersion:
    """Return a version that was retrained once for all tests of this module."""
    with TuningDatabase(tmp_path_factory.mktemp("versions") / "first.db", secret=SECRET) as database:
        found = database.retrain(N4, samples(1.4))
        assert found is not None and database.retrain(N4, []) is None  # the same samples are no gain
        assert len(database.model_versions()) == 1
    return found


def test_better_model_becomes_current(database: TuningDatabase, version: ModelVersion) -> None:
    before = error(database, samples(1.4, seed=9))
    assert version.after < 0.5 * version.before
    assert len(version.samples) == 160 and version.model is not None
    model_versions.add(database._rows, version)
    assert error(database, samples(1.4, seed=9)) < 0.5 * before
    (stored,) = database.model_versions()
    assert (stored.before, stored.after, stored.number) == (version.before, version.after, 1)
    other = HardwareProfile(load_target("n4"))
    assert database.cost_model(other) is find_model(other)


def test_version_of_another_process_is_not_replaced(
    tmp_path: Path, version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[int] = []

    def retrained_meanwhile(model, kept, standard, seed):
        known.append(len(kept))
        if len(known) == 1:
            model_versions.add(other._rows, version)
        return retrained(model, kept, standard, seed)

    with (
        TuningDatabase(tmp_path / "own.db", secret=SECRET) as database,
        TuningDatabase(tmp_path / "own.db", secret=SECRET) as other,
    ):
        monkeypatch.setattr(model_versions, "retrained", retrained_meanwhile)
        found = database.retrain(N4, samples(1.1, seed=5))
        assert known == [160, 320]  # the second time with the samples of the other process
        assert len(database.model_versions()) == (1 if found is None else 2)
        (first, *_) = database.model_versions()
        assert isinstance(first, ModelVersion) and first.samples == version.samples


def test_few_samples_are_not_enough(database: TuningDatabase) -> None:
    assert database.retrain(N4, samples(1.4, 60)) is None and database.model_versions() == []


def test_layers_without_samples_keep_the_standard_model() -> None:
    standard, rng = find_model(N4), np.random.default_rng(2)
    mixed = [  # the factor of a layer tells nothing about other layers
        replace(each, cycles=each.cycles * (1.5 if each.row.numbers[0] else 0.6)) for each in samples(1.0)
    ]
    found = retrained(standard, mixed, standard)
    assert found is not None and len(found.model.layers) == 2
    model = replace(found.model, elsewhere=standard)
    known = mixed[0].row
    foreign = FeatureRow([5.0, *rng.uniform(0, 1, len(NAMES) - 1).tolist()], 2000.0)
    assert model.predict(foreign) == standard.predict(foreign)
    assert model.predict(known).cycles == pytest.approx(mixed[0].cycles, rel=0.1)
    cycles, spreads = model.predict_many([known, foreign])
    assert cycles.tolist() == pytest.approx([model.predict(known).cycles, standard.predict(foreign).cycles])
    assert spreads.tolist() == pytest.approx([model.predict(known).spread, standard.predict(foreign).spread])


def test_rollback_and_limit(
    database: TuningDatabase, version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert version.model is not None
    for number in (1, 2):
        model = replace(version.model, about={"number": number})
        model_versions.add(database._rows, replace(version, model=model))
    assert database.cost_model(N4).about == {"number": 2}
    database.roll_back_model(1)
    assert database.cost_model(N4).about == {"number": 1}
    database.roll_back_model(0)
    assert database.cost_model(N4) is find_model(N4)
    assert [each.model is None for each in database.model_versions()] == [False, False, False, True]
    with pytest.raises(InputError, match="there is no version 9"):
        database.roll_back_model(9)
    monkeypatch.setattr(model_versions, "MAX_VERSIONS", 2)
    database.roll_back_model(1)
    assert len(database.model_versions()) == 2


def test_foreign_and_damaged_versions_are_not_used(
    database: TuningDatabase, version: ModelVersion, tmp_path: Path
) -> None:
    with TuningDatabase(tmp_path / "own.db", secret=b"somebody else") as other:
        model_versions.add(other._rows, version)
        assert len(other.model_versions()) == 1
    assert database.model_versions() == [] and database.cost_model(N4) is find_model(N4)
    model_versions.add(database._rows, replace(version, when=1.0))
    assert len(database.model_versions()) == 1
    with database._rows.engine.begin() as connection:
        data = connection.scalar(sa.select(MODELS.c.data).order_by(MODELS.c.id.desc()))
        assert data is not None
        values = json.loads(data) | {"after": 0.0}
        connection.execute(sa.update(MODELS).values(data=json.dumps(values).encode()))
    assert database.model_versions() == []


@pytest.mark.parametrize(
    "change", [{"model": "?"}, {"model": "AAAA"}, {"samples": 3}, {"samples": "AAAA"}, {"profile": "x"}]
)
def test_damaged_fields_are_errors(database: TuningDatabase, change: dict[str, object]) -> None:
    version = model_versions.ModelVersion(
        profile=N4.key,
        machine="",
        when=1.0,
        before=1.0,
        after=0.5,
        model=None,
        samples=tuple(samples(1.0, 3)),
    )
    values = model_versions._values(version)
    assert model_versions._from_values(values).samples[0].cycles == version.samples[0].cycles
    with pytest.raises((ValueError, InputError)):
        model_versions._from_values(values | change)


def test_command_lists_versions(
    tmp_path: Path,
    version: ModelVersion,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLA_CACHE", str(tmp_path))
    file = tmp_path / "own.db"
    with TuningDatabase(file) as database:
        model_versions.add(database._rows, version)
    assert main(["db", "models", "--db", str(file), "--json", "-"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert found["current"] and found["measurements"] == 160 and found["error"] < found["error_before"]
    assert main(["db", "models", "--db", str(file), "--rollback", "0"]) == 0
    assert "model of the compiler" in capsys.readouterr().out
