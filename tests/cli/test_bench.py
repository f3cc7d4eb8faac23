"""`mla bench`: what the command line adds to the suites, which are tested with the library."""

import json
import re
from typing import Any

import pytest

from compiler.bench.suite import SUITES
from hw.config import MlaConfig


def test_help_names_the_suites(mla):
    *others, last = SUITES
    assert re.search(rf"^  SUITE +{', '.join(others)} or {last}$", mla("bench", "--help").out, re.MULTILINE)


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
