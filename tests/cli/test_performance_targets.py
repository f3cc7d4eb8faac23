"""Targets of latency, energy and throughput are judged by the reports of the verbs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from compiler.options import PerformanceTargets, target_lines

MODEL = "scripts/networks/digits_int8.onnx"


def test_targets_are_met_or_missed() -> None:
    found = PerformanceTargets(1000.0, 2.0, 500.0, 1.0).judged(1500, 1000, 1.0)
    assert [each["met"] for each in found] == [False, True, True]
    assert [each["ratio"] for each in found] == [1.5, 0.5, 2.0]
    assert "at 1 MHz: missed, measured 1,500 (150.0% of the target)" in target_lines(found)[0]
    bound = PerformanceTargets(1000.0, 2.0).judged(900, 900, None, bound=True)
    assert [each["met"] for each in bound] == [None, None]
    assert "possible" in target_lines(bound)[0] and "not measured" in target_lines(bound)[1]
    assert PerformanceTargets(1000.0).judged(1001, None, None, bound=True)[0]["met"] is False
    assert PerformanceTargets().judged(1, 1, 1.0) == []


def test_reports_of_verbs(mla: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    given = ("--target-latency", "1us", "--clock", "100", "--json", str(path))
    result = mla("compile", MODEL, "-o", str(tmp_path / "n.mla"), "--target", "n4", *given)
    assert result.status == 1 and "missed" in result.out
    assert "missed targets: latency cycles" in result.err
    (entry,) = json.loads(path.read_text())["performance_targets"]
    assert (entry["limit"], entry["met"], entry["lower_bound"]) == (100, False, True)
    given = ("--target-throughput", "10", "--clock", "100", "--json", str(path))
    result = mla("run", MODEL, "--device", "golden", "--target", "n4", *given)
    assert "target inferences per second 10 at 100 MHz: not measured" in result.out and not result.status
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 1, 8, 8), np.float32), y=np.zeros(2, np.int64))
    result = mla(
        "eval", MODEL, "--data", tmp_path / "data.npz", "--device", "golden", "--target", "n4", *given
    )
    assert "target inferences per second 10 at 100 MHz: not measured" in result.out and not result.status
    program = tmp_path / "halt.s"
    program.write_text("halt\n")
    given = ("--target-latency", "1", "--target", "n4", "--json", str(path))
    for device, status in (("golden", 0), ("rtl", 1)):
        result = mla("exec", program, "--device", device, *given)
        assert (result.status, "missed" in result.out) == (status, bool(status))
        assert [each["met"] for each in json.loads(path.read_text())["performance_targets"]] == [
            None if device == "golden" else False
        ]


def test_targets_end_the_searches_of_optimize(mla: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    given = ("--targets", "n4", "--trials", "3", "--db", tmp_path / "mla.db", "--json", path)
    result = mla("optimize", *given, MODEL, "--target-latency", "1s", "--clock", "1")
    (row,) = json.loads(path.read_text())["networks"]
    assert (result.status, row["trials"], row["target_met"]) == (0, 0, True)


def test_times_need_the_clock(complains: Callable[..., None]) -> None:
    for verb in (("run", MODEL), ("explore", MODEL, "--targets", "n4"), ("eval", MODEL, "--data", "y.npz")):
        complains(2, "--target-latency with a time needs --clock MHZ", *verb, "--target-latency", "5ms")
        complains(2, "--target-throughput needs --clock MHZ", *verb, "--target-throughput", "5")
        complains(2, "must be a number above 0", *verb, "--target-energy", "nan")
