"""Tests of the files and messages of `mla calibrate`, with made-up measurements."""

import json

import pytest

from compiler.cost.learned_model import CycleModel
from compiler.tuning.calibration.calibrate import learn
from tests.cost.test_learned_model import N4, samples


@pytest.fixture
def made_up(monkeypatch):
    """Replace the measurements of a calibration with made-up ones."""
    monkeypatch.setattr(
        "compiler.tuning.calibration.calibrate.calibrate",
        lambda conditions, _seconds, _journal, _spaces, *_rest: learn(conditions, samples(30, 2), 7),
    )


def test_calibrate(mla, made_up, tmp_path, monkeypatch):
    monkeypatch.setenv("MLA_CACHE", str(tmp_path / "cache"))
    out, document = tmp_path / "own.hpm", tmp_path / "report.json"
    result = mla("calibrate", "--target", "n4", "--seconds", "1", "-o", out, "--json", document)
    assert result.status == 0, result.err
    found = json.loads(document.read_text())
    assert found["model"] == str(out) and found["bytes"] == out.stat().st_size
    assert found["target"] == "n4" and found["dram"] == {
        "latency": 100,
        "bytes_per_cycle": 4.0,
        "throttle": 0.0,
    }
    assert found["measured_now"] == 7 and found["mape"] == found["held_out"]["single"]["mape"]
    assert found["prediction_us"] > 0 and -1 <= found["spearman"] <= 1
    assert CycleModel.load(out).about["conditions"] == N4.key
    assert "held-out measurements" in result.out and "a prediction takes" in result.out
    assert mla("calibrate", "--target", "n4", "--seconds", "1").status == 0
    assert (tmp_path / "cache" / "hpm" / f"{N4.key}.hpm").exists()


def test_usage_errors_exit_2(complains, tmp_path, monkeypatch):
    monkeypatch.setenv("MLA_CACHE", str(tmp_path))
    complains(2, "--seconds: must be an integer of at least 1", "calibrate", "--seconds", "0")
    complains(2, "absent", "calibrate", "--target", "absent")
    journal = tmp_path / "hpm" / f"{N4.key}.0.jsonl"
    journal.parent.mkdir()
    journal.write_text("other\n")
    complains(2, "remove it to start over", "calibrate", "--target", "n4")
