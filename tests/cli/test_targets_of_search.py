"""Tests of the portfolio and of targets on the command line."""

import json
from pathlib import Path


def test_command_reports_proposers_and_targets(mla, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    tuned = ("tune", "scripts/networks/digits_int8.onnx", "--target", "n4", "--devices", "1", "--no-db")
    result = mla(*tuned, "--trials", "3", "--target-latency", "1s", "--clock", "1", "--json", str(report))
    assert result.status == 0, result.err
    document = json.loads(report.read_text())
    assert document["method"] == "portfolio" and document["target_met"] is True
    assert document["trials"] == 0 and document["targets"] == {"cycles": 1e6, "energy_uj": None}
    assert "the target was met in 0 trials" in result.out
    result = mla(*tuned, "--trials", "2", "--target-energy", "0.001", "--json", str(report))
    document = json.loads(report.read_text())
    assert (
        document["target_met"] is False
        and sum(each["trials"] for each in document["proposers"].values()) == 2
    )
    assert {each["proposer"] for each in document["improvements"]} <= document["proposers"].keys()


def test_invalid_targets_are_rejected(complains) -> None:
    tuned = ("tune", "scripts/networks/digits_int8.onnx", "--trials", "1")
    complains(2, "must be a number of cycles above 0, or a time", *tuned, "--target-latency", "5min")
    complains(2, "--target-latency with a time needs --clock MHZ", *tuned, "--target-latency", "5ms")
    complains(2, "--target-throughput needs --clock MHZ", *tuned, "--target-throughput", "5")
    complains(
        2,
        "--target-throughput needs --goal throughput, not latency",
        *tuned,
        "--target-throughput",
        "5",
        "--clock",
        "50",
    )
    complains(2, "the method retrieval needs a database", *tuned, "--method", "retrieval", "--no-db")
    serve = ("serve", "scripts/networks/digits_int8.onnx", "--target-latency", "5")
    complains(2, "--target-latency requires --adapt", *serve)
