"""Tests of the report, trace and HTML page of `mla profile` on a network for n4."""

import json

import pytest

from compiler.cli.profile import memory_in_use
from hw.isa.counters import CAUSES
from scripts.networks.digits import MODEL


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    return tmp_path_factory.mktemp("profile")


def test_profile_reports(mla, profiled):
    trace, report = profiled / "trace.json", profiled / "report.html"
    result = mla(
        "profile",
        MODEL,
        "--target",
        "n4",
        "--trace",
        trace,
        "--report",
        report,
        "--clock",
        "50",
        "--json",
        profiled / "run.json",
    )
    assert result.status == 0, result.err
    document = json.loads((profiled / "run.json").read_text())
    assert document["cycles"] == sum(document["where"].values()) and set(document["where"]) == set(CAUSES)
    lines = result.out.splitlines()
    assert (
        len(lines) == len(document["layers"]) + 5 and "wait_fuse" in lines[1] and lines[1].endswith("earlier")
    )
    events = json.loads(trace.read_text())["traceEvents"]
    work = [event for event in events if event["ph"] == "X"]
    lanes = {event["cat"] for event in work}
    assert lanes == {"programs", "load", "matrix", "fuse", "store"}
    assert max(e["args"]["cycle"] + e["args"]["cycles"] for e in work) <= document["cycles_per_sample"]
    bus = [event["args"] for event in events if event["ph"] == "C"]
    windows = 256 / 4  # n4 transfers four bytes per beat
    read = sum(rates["read"] for rates in bus) * windows
    assert read >= document["dram_bytes_read"] / 4  # other beats transfer ring slots and programs
    text = report.read_text()
    assert "Units over time" in text
    assert '<th class="n">ms</th>' in text and "time per sample at 50 MHz" in text
    memory = document["memory"]
    for name in ("scratchpad", "accumulator"):
        assert f"<dt>{name} in use</dt><dd>{memory[name]['peak_bytes']:,} bytes</dd>" in text
    assert f"<dt>DRAM in use</dt><dd>{memory['dram']['total']:,} bytes</dd>" in text


def test_unknown_peaks_are_omitted():
    peaks = {"scratchpad": {"peak_bytes": None}, "accumulator": {"peak_bytes": 64}}
    assert memory_in_use(peaks | {"dram": {"total": 96}}) == {"DRAM": 96, "accumulator": 64}


def test_usage_errors_exit_2(complains, tmp_path):
    complains(2, "cannot be read", "profile", tmp_path / "absent.tflite")
    complains(2, f"{tmp_path} cannot be written", "profile", MODEL, "--trace", tmp_path)
    complains(
        2,
        f"{tmp_path / 'no' / 'x.html'} cannot be written",
        "profile",
        MODEL,
        "--report",
        tmp_path / "no" / "x.html",
    )
