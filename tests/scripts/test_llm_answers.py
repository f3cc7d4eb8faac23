"""Counts of outcomes of the language model's answers add up, and no question is asked twice."""

import json
import sys
from pathlib import Path

import pytest

from compiler.llm.data.held_out import MACHINES
from compiler.profile.measurement import Measurement, Rejected
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.measure.measurer import Measurer
from scripts import llm_latency, llm_validity
from scripts.llm_validity import KINDS, MODES, STAGES, Unconstrained, stage_of


def run(script, monkeypatch: pytest.MonkeyPatch, file: Path, *more: str) -> None:
    monkeypatch.setattr(sys, "argv", ["script", "--file", str(file), *more])
    assert script.main() == 0


def test_counts_of_answers_per_stage(tmp_path, monkeypatch, capsys):
    file, asked = tmp_path / "a.jsonl", ("--layers", "2", "--answers", "2", "--workers", "1")
    run(llm_validity, monkeypatch, file, *asked)
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    report = json.loads(file.with_suffix(".json").read_text("utf-8"))
    asked_about = [(each["kind"], each["way"]) for each in report]
    assert asked_about == [(kind, way) for kind in KINDS for way in MODES] and len(rows) == 2 * len(KINDS)
    for each in report:
        counts = [each[stage] for stage in STAGES]
        assert each["answers"] == 4 >= counts[0] and counts == sorted(counts, reverse=True)
        mine = [row for row in rows if row["kind"] == each["kind"]]
        assert counts == [sum(row[each["way"]][at] for row in mine) for at in range(len(STAGES))]
    assert (
        report[0]["complete"] == report[0]["compiled"] == 4
    )  # the grammar allows only schedules that compile
    text = file.read_text("utf-8")
    file.write_text(text[:-20], "utf-8")
    run(llm_validity, monkeypatch, file, *asked)
    assert "6 jobs, 5 of them done" in capsys.readouterr().out
    assert json.loads(file.read_text("utf-8").splitlines()[-1]) == rows[-1]
    file.write_text(text, "utf-8")
    run(llm_validity, monkeypatch, file, *asked, "--only-render")
    assert json.loads(file.with_suffix(".json").read_text("utf-8")) == report


def test_stage_of_each_outcome():
    machine, point = MACHINES["usual"], CalibrationNetwork((4, 4, 16), (CalibrationOp("add"),))
    with Measurer(point.graph(), machine.conditions, machine.options) as measurer:
        good = Measurement(100, (), 1.0, 10, exact=True, floor=50)
        ends = {
            0: None,
            1: Rejected("compile", ""),
            2: Rejected("validate", ""),
            3: Rejected("trap", ""),
            4: Measurement(90, (), 1.0, 10, exact=False, floor=50),
            5: good,
            6: Measurement(99, (), 1.0, 10, True, 50),
        }
        for stage, result in ends.items():
            answer = None if result is None else measurer.first.schedule
            known = {} if result is None else {measurer.first.schedule.to_json(): result}
            assert stage_of(answer, measurer, known, 100) == stage
        assert stage_of(Schedule((), {}), measurer, {}, 100) == 1  # measured only now: it does not compile
    assert Unconstrained("end").after(["end"]) == () and "end" in Unconstrained("stop").after(["end"])


def test_times_are_measured_once(tmp_path, monkeypatch):
    file, asked = tmp_path / "a.jsonl", ("--layers", "1", "--times", "2")
    run(llm_latency, monkeypatch, file, *asked)
    (line,) = file.read_text("utf-8").splitlines()
    report = json.loads(file.with_suffix(".json").read_text("utf-8"))
    for name, (_, _) in llm_latency.TIMED.items():
        assert (
            report[name]["times"]
            == len(json.loads(line)[name])
            == (2 if name in ("answer", "candidate") else 1)
        )
        assert 0 < report[name]["median_s"] <= report[name]["p95_s"]
    run(llm_latency, monkeypatch, file, *asked)
    assert file.read_text("utf-8").splitlines() == [line]
