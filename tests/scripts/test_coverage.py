"""Tests of the coverage report: parsing, source positions, merging, explanations, and every message."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from hw.errors import InputError
from scripts.coverage.__main__ import WAIVERS, main
from scripts.coverage.counts import VerilatorPoint, read_counts, write_counts
from scripts.coverage.merge import CoveragePoint, merge
from scripts.coverage.report import Report
from scripts.coverage.source_map import WRITER, SourceLocation, SourceMap
from scripts.coverage.sources import source_line, source_lines
from scripts.coverage.waivers import Waiver, read_waivers

VERILOG = """\
module \\mla_chip.core$7 (clk);
  assign \\$18 = bad ? (* src = "hw/chip.py:3" *) 2'h2 : 2'h0;
  always @* begin
    if (\\$auto$verilog_backend.cc:2355:dump_module$1 ) begin end
    \\$67  = state;
    (* branches = "hw/chip.py:4|hw/chip.py:5" *)
    casez (state)
      /* src = "hw/chip.py:4" */
      2'h0:
          (* full_case = 32'd1 *)
          (* branches = "hw/chip.py:6|hw/chip.py:7|hw/chip.py:8" *)
          if (a) begin
            \\$67  = 2'h1;
          end else if (b) begin
            \\$67  = 2'h2;
          end else begin
            \\$67  = 2'h3;
          end
      /* src = "hw/chip.py:5" */
      2'h1:
          \\$67  = 2'h0;
    endcase
  end
endmodule
module mla_ram(clk);
  always @(posedge clk) if (w_en) mem[w_addr] <= w_data;
endmodule
"""
CORE, SOURCE_MAP = "mla_chip.core$7", SourceMap(VERILOG)
THEN = VerilatorPoint(2, 15, "v_branch", "cond_then", CORE, "2")
BLOCK = VerilatorPoint(3, 3, "v_line", "block", CORE, "3,5")
DUMMY = VerilatorPoint(4, 5, "v_branch", "if", CORE, "4")
CASE = VerilatorPoint(9, 11, "v_line", "case", CORE, "9")
IF = VerilatorPoint(12, 11, "v_line", "elsif", CORE, "12-13")
ELSIF = VerilatorPoint(14, 20, "v_line", "if", CORE, "14-15")
ELSE = VerilatorPoint(14, 21, "v_line", "else", CORE, "16-17")
LAST = VerilatorPoint(20, 11, "v_line", "case", CORE, "20-21")
RAM = VerilatorPoint(26, 3, "v_line", "block", "mla_ram", "26")
ALL = (THEN, BLOCK, DUMMY, CASE, IF, ELSIF, ELSE, LAST, RAM)


def folder_of(tmp_path: Path, *counts: dict[VerilatorPoint, int], verilog: str | None = VERILOG) -> Path:
    if verilog is not None:
        (tmp_path / "chip1.v").write_text(verilog)
    for number, one in enumerate(counts):
        write_counts(tmp_path / f"chip1.{number}.dat", Counter(dict.fromkeys(ALL, 0) | one))
    return tmp_path


def reached(**but: int) -> dict[VerilatorPoint, int]:
    named = {"last": LAST, "ternary": THEN}
    return dict.fromkeys(ALL, 1) | {named[name]: count for name, count in but.items()}


def coverage_point(line: int, kind: str = "case", label: str = "2'h1") -> CoveragePoint:
    return CoveragePoint(SourceLocation("hw/chip.py", line), "core", "v_line", kind, label, 0)


def test_counts_round_trip(tmp_path: Path):
    write_counts(tmp_path / "a.dat", Counter({THEN: 3, ELSE: 0}))
    assert read_counts(tmp_path / "a.dat") == {THEN: 3, ELSE: 0}


def test_instances_are_summed_and_other_files_ignored(tmp_path: Path):
    line = "C '\x01f\x02/x/{file}\x01l\x029\x01n\x0211\x01page\x02v_line/m\x01o\x02case\x01S\x029\x01h\x02{path}' {n}\n"
    (tmp_path / "a.dat").write_text(
        "# SystemC::Coverage-3\n"
        + line.format(file="chip.v", path="TOP.a", n=2)
        + line.format(file="chip.v", path="TOP.b", n=3)
        + line.format(file="mla_top.sv", path="TOP", n=9)
    )
    assert read_counts(tmp_path / "a.dat") == {VerilatorPoint(9, 11, "v_line", "case", "m", "9"): 5}


@pytest.mark.parametrize(
    "line", ["C 'x' 1", "D '\x01f\x02chip.v' 1", "C '\x01f\x02chip.v\x01l\x02a' 1", "nothing"]
)
def test_malformed_line_is_rejected(tmp_path: Path, line: str):
    (tmp_path / "a.dat").write_text(f"# SystemC::Coverage-3\n{line}\n")
    with pytest.raises(InputError, match=r"a\.dat, line 2: not a count of Verilator's coverage data"):
        read_counts(tmp_path / "a.dat")


def test_unreadable_data_is_rejected(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be read as coverage data"):
        read_counts(tmp_path / "absent.dat")


@pytest.mark.parametrize(
    ("point", "line"), [(THEN, 3), (BLOCK, 4), (CASE, 4), (IF, 6), (ELSIF, 7), (ELSE, 8), (LAST, 5)]
)
def test_points_map_to_source_lines(point: VerilatorPoint, line: int):
    assert SOURCE_MAP.location(point) == SourceLocation("hw/chip.py", line)


def test_memory_maps_to_verilog_writer():
    assert SOURCE_MAP.location(RAM) == WRITER


def test_dummy_condition_is_not_counted():
    assert [point for point in ALL if not SOURCE_MAP.counts(point)] == [DUMMY]


def test_counts_of_processes_are_summed(tmp_path: Path):
    merged = merge(folder_of(tmp_path, {CASE: 2}, {CASE: 3, LAST: 1}))
    assert {s.location.line: n for s, n in merged.items() if s.kind == "case"} == {4: 5, 5: 1}


def test_equal_points_of_chips_are_merged(tmp_path: Path):
    folder_of(tmp_path, {LAST: 1})
    (tmp_path / "chip2.v").write_text("// other lines\n" + VERILOG.replace("core$7", "core$9"))
    moved = VerilatorPoint(21, 11, "v_line", "case", "mla_chip.core$9", "21-22")
    write_counts(tmp_path / "chip2.0.dat", Counter({moved: 4}))
    assert merge(tmp_path)[coverage_point(5)] == 5


def test_empty_folder_is_rejected(tmp_path: Path):
    with pytest.raises(InputError, match=r"has no coverage data; fill it with pytest --hw-coverage"):
        merge(tmp_path)


def test_missing_verilog_is_rejected(tmp_path: Path):
    with pytest.raises(InputError, match=r"chip1.v is missing: the data chip1\.\*\.dat counts its lines"):
        merge(folder_of(tmp_path, {}, verilog=None))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[unreached]", "cannot be read"),
        ("unreached = " + 9000 * "[", "cannot be read"),
        ("unreached = 3", r"explanations must be tables \[\[unreached\]\], not 3"),
        ("[unreached]\nfile = 1", "explanations must be tables"),
        ('[[unreached]]\nfile = "a"\nline = "b"', "explanation 1 needs the strings file, line and reason"),
        ('[[unreached]]\nfile = "a"\nline = 3\nreason = "c"', "explanation 1 needs the strings"),
        (
            '[[unreached]]\nfile = "a"\nline = "b"\nreason = "c"\nwhere = "("',
            "explanation 1: where is no pattern",
        ),
    ],
)
def test_malformed_explanations_are_rejected(tmp_path: Path, text: str, message: str):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_waivers(tmp_path / "r.toml")


def test_explanations_must_be_utf8(tmp_path: Path):
    (tmp_path / "r.toml").write_bytes(b"# \xff\n")
    with pytest.raises(InputError, match=r"r\.toml cannot be read: .*utf-8"):
        read_waivers(tmp_path / "r.toml")


def test_committed_explanations_name_lines_that_exist():
    for waiver in read_waivers(WAIVERS):
        assert waiver.line in source_lines(waiver.file), waiver


def test_full_coverage_has_no_failures():
    report = Report({coverage_point(4): 1}, [])
    assert report.failures() == []
    assert next(report.lines()).splitlines()[1].split() == ["line", "points", "100.00%", "1", "1"]


def test_unreached_line_needs_explanation():
    report = Report({coverage_point(4): 1, coverage_point(5): 0}, [])
    low, low_all, missing = report.failures()
    assert low == "50.00% (1 of 2) of the line points reached, 95% are wanted"
    assert low_all == "50.00% (1 of 2) of all points reached, 95% are wanted"
    assert missing == "1 lines are not reached and not explained, the first hw/chip.py:5"
    assert "    NOT EXPLAINED: core case 2'h1" in report.lines()


def test_explanation_applies_to_matching_points_only():
    line = source_line(SourceLocation("hw/chip.py", 5))
    counts = {coverage_point(4): 1, coverage_point(5): 0, coverage_point(5, label="2'h2"): 0}
    report = Report(counts, [Waiver("hw/chip.py", line, "it cannot", "2'h1$")])
    assert [s.label for s in report.unreached[SourceLocation("hw/chip.py", 5)].open] == ["2'h2"]
    assert "    because it cannot" in report.lines()
    assert "1 lines are not reached" in report.failures()[-1]


@pytest.mark.parametrize("line", ["", "gone"])
def test_stale_explanation_fails(line: str):
    waiver = Waiver("hw/chip.py", line or source_line(SourceLocation("hw/chip.py", 4)), "it cannot", "case")
    (failure,) = Report({coverage_point(4): 1}, [waiver]).failures()
    assert failure == f"stale explanation: nothing unreached in hw/chip.py is {waiver.line!r} where 'case'"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "none.toml").write_text("")
    arguments = ["--waivers", str(tmp_path / "none.toml"), "--json", str(tmp_path / "report.json")]
    assert main([str(folder_of(tmp_path, reached())), *arguments]) == 0
    assert "line points    100.00%" in capsys.readouterr().out
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["schema_version"] == 1
    assert document["totals"]["all"] == {"reached": 8, "points": 8, "percent": 100.0}
    assert main([str(folder_of(tmp_path, reached(last=0))), *arguments]) == 1
    assert "coverage: 1 lines are not reached and not explained" in capsys.readouterr().err
    assert json.loads((tmp_path / "report.json").read_text())["unreached"][0]["line"] == 5
    assert main([str(tmp_path / "empty"), *arguments]) == 2
    assert "coverage: " in capsys.readouterr().err


@pytest.mark.parametrize("place", ["absent/report.json", "."])
def test_unwritable_report_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str):
    (tmp_path / "none.toml").write_text("")
    arguments = ["--waivers", str(tmp_path / "none.toml"), "--json", str(tmp_path / place)]
    assert main([str(folder_of(tmp_path, reached())), *arguments]) == 2
    assert re.fullmatch(r"coverage: .* cannot be written: .*\n", capsys.readouterr().err)
