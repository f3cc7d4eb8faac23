"""Tests of the page about FPGA boards: its example defines a valid second board."""

from pathlib import Path

from tests.docs.pages import ROOT, Runner


def test_example_board_has_the_documented_clock_and_constraints(tmp_path: Path) -> None:
    """The example is executed; `board.clock_mhz` and `board.constraints()` equal the text block that follows it."""
    Runner(ROOT / "docs" / "fpga.md", tmp_path).run()
