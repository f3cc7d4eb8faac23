"""Tests of the page that `make bench` writes, with made-up results, and of the cases on the stored page."""

import re
from xml.etree import ElementTree

from compiler.bench.page import TITLES, benchmark_page, benchmark_picture
from compiler.bench.suite import SUITES
from hw.isa.counters import CAUSES
from scripts.bench import PAGE


def document(suite: str, *names: str) -> dict:
    where = dict.fromkeys(CAUSES, 0) | {"useful": 750, "wait_bus": 250}
    result = {
        "cycles": 1000,
        "floor_layerwise_cycles": 800,
        "utilization": 0.75,
        "reference": "numpy int64",
        "max_abs_diff": 0,
        "where": where,
        "energy_uj": 20.0,
        "energy_parts_uj": {"array": 2.0, "memories": 8.0, "dram": 10.0},
    }
    dram = {"latency": 100, "bytes_per_cycle": 16}
    return {"suite": suite, "target": "n16", "dram": dram, "results": [{"name": n} | result for n in names]}


DOCUMENTS = {"gemm": document("gemm", "64x64x64", "9x9x9"), "tiny": document("tiny", "ad01_int8")}


def test_table_has_row_per_case_with_reference_accelerator():
    lines = benchmark_page(DOCUMENTS, "cycles.svg").splitlines()
    assert "![where the cycles went](cycles.svg)" in lines
    assert "| 64x64x64 | 1,000 | 800 | 80.0% | 75.0% | 2,392 (Gemmini): 2.39 x | numpy int64 | 0 |" in lines
    assert "| 9x9x9 | 1,000 | 800 | 80.0% | 75.0% |  | numpy int64 | 0 |" in lines
    assert "| ad01_int8 | 20.0 | 10.0% | 40.0% | 50.0% |" in lines
    assert sum(line.startswith("## ") for line in lines) == 2


def test_conditions_are_columns():
    results = document("conditions", "9x9x9", "8x8x8")["results"]
    usual = [{"condition": "as above"} | result for result in results]
    slow = {"condition": "slow"} | results[0] | {"cycles": 1600}
    lines = benchmark_page({"conditions": {"results": [*usual, slow]}}, "cycles.svg").splitlines()
    assert "| cycles (of the limit) | as above | slow |" in lines
    assert "| 9x9x9 | 1,000 (80.0%) | 1,600 (50.0%) |" in lines and "| 8x8x8 | 1,000 (80.0%) |  |" in lines


def test_bar_width_is_proportional_to_share():
    svg = ElementTree.fromstring(benchmark_picture(DOCUMENTS))
    bars = [each for each in svg.iter("{http://www.w3.org/2000/svg}rect") if len(each)]
    widths = {title.text: float(bar.get("width") or 0) for bar in bars for title in bar}
    assert len(bars) == 2 * 3
    assert widths["useful: 750 cycles, 75.0%"] == 3 * widths["wait_bus: 250 cycles, 25.0%"] > 0


def test_stored_page_has_the_cases_of_the_suites():
    """No row of docs/benchmarks.md is added by hand: each table has the cases of its suite, in their order."""
    sections = re.split("^## ", PAGE.read_text(), flags=re.MULTILINE)
    for suite in ("gemm", "conv", "tiny", "nets"):
        (section,) = (each for each in sections if each.startswith(TITLES[suite]))
        table = section.partition("\n| --- |")[2].partition("\n\n")[0]
        assert re.findall(r"^\| (\S+) \|", table, re.MULTILINE) == [case.name for case in SUITES[suite](None)]
