"""The figures of the script study_program_edits equal new measurements; it resumes after an interruption."""

import json
import sys
from pathlib import Path

import pytest

from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.method import Trial
from hw.config import load_target
from scripts import study_program_edits

SMALL = ("--kinds", "add", "max_pool", "--shapes", "1", "--trials", "6", "--programs", "5", "--starts", "2")


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str) -> dict:
    """Run the script and return its report."""
    monkeypatch.setattr(sys, "argv", ["study_program_edits", *SMALL, "--folder", str(folder), *more])
    assert study_program_edits.main() == 0
    return json.loads((folder / "report.json").read_text("utf-8"))


def test_figures_are_reproducible_and_work_resumes(tmp_path, monkeypatch, capsys):
    report = run(monkeypatch, tmp_path, "--workers", "2")
    rows = [json.loads(line) for line in (tmp_path / "layers.jsonl").read_text("utf-8").splitlines()]
    assert (
        sorted(row["kind"] for row in rows)
        == ["add", "max_pool"]
        == sorted(each["kind"] for each in report["layers"])
    )
    for row, each in (
        (row, each) for row in rows for each in report["layers"] if row["key"].startswith(each["layer"])
    ):
        found = row["programs"]["edits"]
        assert (row["schedules"]["measured"], found["measured"]) == (6, 5)
        assert found["starts"] == sorted(found["starts"]) and row["schedules"]["cycles"] == found["starts"][0]
        assert each["gain"] == pytest.approx(100 * (1 - found["cycles"] / row["schedules"]["cycles"]))
        with Measurer(
            CalibrationNetwork.from_json(row["point"]).graph(),
            HardwareProfile(load_target("n16")),
            CompileOptions(rounding="reference"),
        ) as measurer:
            for one in (row["schedules"], found):
                (result,) = measurer.measure([Schedule.from_fields(one["schedule"])])
                assert isinstance(result, Measurement) and result.valid
                assert result.cycles == one["cycles"] == sum(one["where"].values())
    text = (tmp_path / "layers.jsonl").read_text("utf-8")
    (tmp_path / "layers.jsonl").write_text(text[:-100], "utf-8")  # simulates a kill while writing row 2
    measured = {path: path.read_bytes() for path in (tmp_path / "measured").iterdir()}
    again = run(monkeypatch, tmp_path, "--workers", "1")
    assert "2 layers, 1 of them done" in capsys.readouterr().out
    assert [row | {"seconds": 0} for row in again["layers"]] == [
        row | {"seconds": 0} for row in report["layers"]
    ]
    assert {path: path.read_bytes() for path in measured} == measured
    assert run(monkeypatch, tmp_path, "--only-render")["layers"] == again["layers"]


def test_invalid_options_are_rejected(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["study_program_edits", "--methods", "nonsense", "--folder", str(tmp_path)]
    )
    with pytest.raises(SystemExit):
        study_program_edits.main()
    assert "must be among" in capsys.readouterr().err
    for option in ("--shapes", "--trials", "--programs", "--starts", "--workers"):
        monkeypatch.setattr(sys, "argv", ["study_program_edits", option, "0", "--folder", str(tmp_path)])
        with pytest.raises(SystemExit):
            study_program_edits.main()
        assert f"{option} must be at least 1, not 0" in capsys.readouterr().err


def test_layers_are_selected_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study_program_edits, "run_job", lambda job: pytest.fail(f"{job.name} was looked at"))
    report = run(monkeypatch, tmp_path, "--among", "max_pool", "--only-render")
    assert report["layers"] == []
    assert "1 layers, 0 of them done" in capsys.readouterr().out
    monkeypatch.setattr(
        sys, "argv", ["study_program_edits", *SMALL, "--folder", str(tmp_path), "--among", "lstm"]
    )
    with pytest.raises(SystemExit):
        study_program_edits.main()
    assert "no layer name contains 'lstm'; layers are add " in capsys.readouterr().err


def test_recorded_edits_of_language_model(tmp_path, monkeypatch):
    """The recorded edits of the language model lead from the compiled program to the best one."""
    graph, conditions = (
        CalibrationNetwork((6, 3, 32), (CalibrationOp("softmax"),)).graph(),
        HardwareProfile(load_target("n16")),
    )
    with Measurer(graph, conditions, CompileOptions(rounding="reference")) as measurer:
        baseline = measurer.baseline()
        start = Trial(measurer.first.schedule, baseline, float(baseline.cycles))
        found = study_program_edits.programs_of(measurer, "llm", [start], 24, 1)
    assert found["measured"] == 24 and found["inexact"] == 0
    assert bool(found["said"]) == (found["cycles"] < baseline.cycles)
    assert all(" split " in f" {each}" or " move " in f" {each}" for each in found["said"])
