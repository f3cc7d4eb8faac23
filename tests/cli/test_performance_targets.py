"""Targets of latency, energy and throughput are judged by the reports of the verbs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    assert "missed" in mla("compile", MODEL, "-o", str(tmp_path / "n.mla"), "--target", "n4", *given).out
    (entry,) = json.loads(path.read_text())["performance_targets"]
    assert (entry["limit"], entry["met"], entry["lower_bound"]) == (100, False, True)
    given = ("--target-throughput", "10", "--clock", "100", "--json", str(path))
    result = mla("run", MODEL, "--device", "golden", "--target", "n4", *given)
    assert "target inferences per second 10 at 100 MHz: not measured" in result.out


def test_times_need_the_clock(complains: Callable[..., None]) -> None:
    for verb in (("run", MODEL), ("explore", MODEL, "--targets", "n4")):
        complains(2, "--target-latency with a time needs --clock MHZ", *verb, "--target-latency", "5ms")
        complains(2, "--target-throughput needs --clock MHZ", *verb, "--target-throughput", "5")
        complains(2, "must be a number above 0", *verb, "--target-energy", "nan")
