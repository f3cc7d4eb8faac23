"""The script llm_race resumes after an interruption, charges for cached results, and reports correct sums."""

import json
import math
import sys
from pathlib import Path
from statistics import median

import pytest

from scripts import llm_race
from scripts.llm_race_report import layers_of

SMALL = ("--layers", "1", "--seeds", "2", "--trials", "llm:4,hpm:4,random:4")


def run(monkeypatch: pytest.MonkeyPatch, file: Path, *more: str) -> dict:
    """Run the script and return its report."""
    monkeypatch.setattr(sys, "argv", ["llm_race", *SMALL, "--file", str(file), "--workers", "1", *more])
    assert llm_race.main() == 0
    return json.loads(file.with_suffix(".json").read_text("utf-8"))


def test_searches_resume_and_charge_for_cached_results(tmp_path, monkeypatch, capsys):
    file = tmp_path / "race.jsonl"
    report = run(monkeypatch, file)
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [(row["method"], row["seed"]) for row in rows] == [
        (method, seed) for seed in range(2) for method in ("llm", "hpm", "random")
    ]
    for row in rows:
        assert len(row["curve"]) == 5 and row["curve"] == sorted(row["curve"], reverse=True)
        assert row["curve"][0] == row["static"] > row["floor"]
        assert len(row["seconds"]) == 4 and 0 < row["own_seconds"] < row["seconds"][-1]
        assert row["seconds"] == sorted(row["seconds"])
    ends = {
        m: median(row["curve"][4] for row in rows if row["method"] == m) for m in ("llm", "hpm", "random")
    }
    (found,) = (
        each for each in report["equal_measurements"] if (each["trials"], each["method"]) == (4, "hpm")
    )
    assert found["ratio"] == pytest.approx(ends["llm"] / ends["hpm"])
    assert found["won"] + found["tied"] + found["lost"] == 1
    (first, last) = report["trials"]
    assert (first["trials"], last["trials"]) == (1, 4)
    assert last["hpm"] == pytest.approx(ends["hpm"] / rows[0]["static"])
    text = file.read_text("utf-8")
    file.write_text(text[:-50], "utf-8")  # simulates a kill during the write of the last row
    (measured,) = (tmp_path / "race").iterdir()
    known = measured.read_bytes()
    run(monkeypatch, file)
    assert "1 layers, 1 of 6 searches left" in capsys.readouterr().out
    assert measured.read_bytes() == known
    last = json.loads(file.read_text("utf-8").splitlines()[-1])
    assert last["curve"] == rows[-1]["curve"]
    # all measurements were cached, so only the time of the search itself differs
    assert last["seconds"][-1] - last["own_seconds"] == pytest.approx(
        rows[-1]["seconds"][-1] - rows[-1]["own_seconds"], abs=0.001
    )
    assert run(monkeypatch, file, "--only-render")["layers"] == 1


def test_incomplete_layers_are_omitted():
    rows = [
        {
            "number": number,
            "layer": f"{number}",
            "method": method,
            "seed": seed,
            "static": 10,
            "floor": 1,
            "curve": [10, 9, 8],
            "seconds": [0.5, 1.0],
        }
        for number in range(2)
        for method in ("llm", "hpm")
        for seed in range(2)
    ]
    (layer,) = layers_of(rows[:-1])
    assert layer.name == "0" and list(layer.runs) == ["llm", "hpm"]
    assert [layer.within("llm", at) for at in (0.4, 0.5, 0.9, math.inf)] == [
        [10] * 2,
        [9] * 2,
        [9] * 2,
        [8] * 2,
    ]
    assert layer.after("hpm", 1) == [9, 9] and layer.time("hpm", 2) == 1.0


@pytest.mark.parametrize("trials", ["llm", "llm:0", "nonsense:4", "hpm:4"])
def test_invalid_trials_are_rejected(trials, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["llm_race", "--trials", trials, "--file", str(tmp_path / "a.jsonl")])
    with pytest.raises(SystemExit):
        llm_race.main()
    assert "--trials" in capsys.readouterr().err
