"""Tests of the parser for nextpnr's reports."""

import json
from typing import Any

import pytest

from hw.boards.ecp5.device import Ecp5
from hw.boards.report import BoardReport, format_report, parse_seed
from hw.errors import WorkError


def step(kind: str, delay: float, start: str, end: str, net: str = "") -> dict[str, Any]:
    """Return one entry of a path in nextpnr's format."""
    ports = [dict(zip(("cell", "port"), name.split("."), strict=True)) for name in (start, end)]
    return {"type": kind, "delay": delay, "from": ports[0], "to": ports[1]} | ({"net": net} if net else {})


PATH = [
    step("clk-to-q", 0.5, "a_FF.Q", "a_FF.Q"),
    step("routing", 1.25, "a_FF.Q", "mul.A0", "a"),
    step("logic", 4.0, "mul.A0", "mul.P0"),
    step("routing", 1.0, "mul.P0", "add0.A", "product"),
    step("logic", 0.5, "add0.A", "add0.FCO"),
    step("routing", 0.0, "add0.FCO", "add1.FCI", "carry"),
    step("logic", 0.25, "add1.FCI", "add1.F"),
    step("routing", 0.5, "add1.F", "b_FF.DI", "sum"),
    step("setup", 0.0, "b_FF.DI", "b_FF.DI"),
]
CLOCK = "$glbnet$clk"


def placement(achieved: float) -> dict[str, Any]:
    """Return a report with one clock, which begins with paths to and from pins that must be ignored."""
    edge = f"posedge {CLOCK}"
    return {
        "fmax": {CLOCK: {"achieved": achieved, "constraint": 60.0}},
        "utilization": {
            "TRELLIS_COMB": {"used": 5000, "available": 83640},
            "TRELLIS_FF": {"used": 3000, "available": 83640},
            "MULT18X18D": {"used": 64, "available": 156},
            "DP16KD": {"used": 40, "available": 208},
        },
        "critical_paths": [
            {"from": "<async>", "to": edge, "path": PATH[:2]},
            {"from": edge, "to": edge, "path": PATH},
        ],
    }


def test_parse_seed():
    result = parse_seed(json.dumps(placement(75.004)), 3, Ecp5.resources)
    assert (result.seed, result.fmax_mhz) == (3, 75.0)
    assert result.resources["dsp"] == {"used": 64, "available": 156}
    assert result.resources["lut_ram"] == {"used": 0, "available": 0}
    path = result.critical_path
    assert (path.start, path.end, path.logic_ns, path.routing_ns) == ("a_FF.Q", "b_FF.DI", 5.25, 2.75)
    assert path.hops == (
        "a (1.25 ns) -> A0 (4.00 ns)",
        "product (1.00 ns) -> A (0.50 ns)",
        "sum (0.50 ns) -> DI (0.00 ns)",
    )


@pytest.mark.parametrize("key", ["fmax", "utilization", "critical_paths"])
def test_incomplete_report_is_rejected(key):
    document = placement(75)
    document[key] = {} if key != "critical_paths" else []
    if key == "utilization":
        del document[key]
    with pytest.raises(WorkError, match="report of seed 3 cannot be parsed"):
        parse_seed(json.dumps(document), 3, Ecp5.resources)


def test_damaged_report_is_rejected():
    with pytest.raises(WorkError, match="report of seed 1 cannot be parsed"):
        parse_seed("{", 1, Ecp5.resources)


def test_worst_seed_counts():
    seeds = tuple(
        parse_seed(json.dumps(placement(fmax)), n, Ecp5.resources)
        for n, fmax in ((1, 66.0), (2, 59.5), (3, 70.0))
    )
    report = BoardReport(board="b", part="p", clock_mhz=60.0, seeds=seeds, bitstream="b.bit")
    assert (report.worst.seed, report.best.seed, report.meets_clock) == (2, 3, False)
    document = report.to_document()
    assert json.loads(json.dumps(document))["worst"]["fmax_mhz"] == 59.5
    text = format_report(report)
    assert "Fmax of the worst seed: 59.5 MHz (60 MHz MISSED)" in text
    assert "dsp          64 of    156   41.0%" in text
