"""Tests of the command line of `mla bench`; the tests of the library cover the suites."""

import json
from typing import Any

import pytest

from compiler.bench.suite import SUITES, bars
from hw.config import MlaConfig


def test_help_names_the_suites(mla):
    *others, last = SUITES
    text = " ".join(mla("bench", "--help").out.split())  # argparse wraps lines
    assert f" SUITE suite to measure: {', '.join(others)} or {last} " in text


@pytest.mark.parametrize(
    ("khz", "bare", "status", "lines"),
    [
        (200.0, 800.0, 0, ("200 kHz (bar: 150, met)", "800 kHz: 0.25 of that (bar: 0.25, met)")),
        (200.0, 801.0, 1, ("200 kHz (bar: 150, met)", "801 kHz: 0.24 of that (bar: 0.25, MISSED)")),
        (149.0, 400.0, 0, ("149 kHz (bar: 150, MISSED)", "0.37 of that (bar: 0.25, met)")),
    ],
)
def test_missed_ratio_exits_1(mla, monkeypatch, khz, bare, status, lines):
    def run_suite(suite: str, config: MlaConfig, *, target: str, **_options: Any) -> dict[str, Any]:
        dram = {"latency": 1, "bytes_per_cycle": config.n}
        speeds = {"sim_khz": khz, "bare_array_khz": bare, "bars": bars(khz, bare)}
        return {"suite": suite, "target": target, "dram": dram, "results": [], **speeds}

    monkeypatch.setattr("compiler.bench.run_suite", run_suite)
    result = mla("bench", "sim")
    assert result.status == status
    assert all(line in result.out for line in lines)
    help_text = " ".join(mla("bench", "--help").out.split())
    assert "less than a quarter of the speed of the bare array" in help_text and "150 kHz" in help_text


@pytest.mark.parametrize("as_file", [False, True])
def test_report_names_the_target(mla, monkeypatch, tmp_path, as_file):
    def run_suite(suite: str, config: MlaConfig, *, target: str, **_options: Any) -> dict[str, Any]:
        return {
            "suite": suite,
            "target": target,
            "dram": {"latency": 1, "bytes_per_cycle": config.n},
            "results": [],
            "sim_khz": None,
            "bare_array_khz": None,
        }

    monkeypatch.setattr("compiler.bench.run_suite", run_suite)
    own = tmp_path / "own.toml"
    own.write_text("n = 8\n")
    result = mla("bench", "gemm", "--target", own if as_file else "ulx3s-85f", "--json", "-")
    document = json.loads(result.out)
    assert (document["target"], document["dram"]["bytes_per_cycle"]) == ("own" if as_file else "ulx3s-85f", 8)


@pytest.mark.parametrize(
    ("suite", "case", "text"),
    [
        ("gemm", f"{'9' * 5000}x1x1", "a GEMM case must be MxNxK like 64x64x64, not '9999"),
        ("gemm", "0x1x1", "not '0x1x1'"),
        ("gemm", "1x1", "not '1x1'"),
        ("conv", f"{'9' * 5000}x1x1-1-1-1-dw", "a convolution case must be HxWxC-O-k-s or HxWxC-O-k-s-dw"),
        ("conv", "8x8x8-8-3-0", "not '8x8x8-8-3-0'"),
    ],
)
def test_invalid_cases(complains, suite, case, text):
    complains(2, text, "bench", suite, "--case", case)


def test_unwritable_report_is_rejected_before_any_work(complains, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "compiler.bench.run_suite", lambda *_args, **_options: pytest.fail("it has begun to measure")
    )
    monkeypatch.setattr(
        "hw.boards.flow.build", lambda *_args, **_options: pytest.fail("it has begun to build")
    )
    for path in (tmp_path / "absent" / "x.json", tmp_path, "/proc/x.json"):
        complains(2, f"{path} cannot be written", "bench", "gemm", "--json", path)
        complains(2, f"{path} cannot be written", "fpga", "--board", "ulx3s-85f", "--json", path)
    assert list(tmp_path.iterdir()) == []
