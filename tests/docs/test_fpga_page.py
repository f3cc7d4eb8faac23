"""The example on the page about FPGA boards defines a valid second board."""

from pathlib import Path

from tests.docs.pages import ROOT, Runner


def test_example_board_has_the_documented_clock_and_constraints(tmp_path: Path) -> None:
    """The `board.clock_mhz` and `board.constraints()` of the example equal the text block that follows the example."""
    Runner(ROOT / "docs" / "fpga.md", tmp_path).run()
