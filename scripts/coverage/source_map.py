"""Where each point of an annotated Verilog text comes from in the sources of the hardware.

The text is that of `tests.support.coverage_verilog`: comments before cases, `branches` before an `if`, `src` in a line.
"""

import re
from pathlib import Path
from typing import NamedTuple

from scripts.coverage.counts import Point

_SRC = re.compile(r'src = "(?P<place>[^"]*)"')
_CASE_SRC = re.compile(r'\s*/\* src = "(?P<place>[^"]*)" \*/$')
_BRANCHES = re.compile(r'\s*\(\* branches = "(?P<places>[^"]*)" \*\)$')
_ATTRIBUTE = re.compile(r"\s*\(\* .* \*\)$")
_FIRST = re.compile(r"(?P<indent>\s*)if \(")
_NEXT = re.compile(r"(?P<indent>\s*)end else")
_DUMMY = "$auto$verilog_backend"
_LABEL = re.compile(r"\s*(?P<label>\S.*?):$")


class Place(NamedTuple):
    """A line of the sources; line 0 is what the Verilog writer itself makes, a memory."""

    file: str
    line: int


WRITER = Place("hw/verilog/writer.py", 0)


class Places:
    """Place and label of every point of one chip.

    Parameters
    ----------
    verilog : str
        Annotated text.
    """

    def __init__(self, verilog: str):
        self._lines = verilog.splitlines()
        self._own: dict[int, Place] = {}  # of a case, or a condition
        self._otherwise: dict[int, Place] = {}  # of the else of a condition
        self._scan()

    def _scan(self) -> None:
        """Give each case, `if` and `else` its place."""
        case: Place | None = None
        branches: list[str] = []
        open_chains: dict[
            str, tuple[int, list[str]]
        ] = {}  # by indentation: line of the last condition, what is left
        for number, line in enumerate(self._lines, 1):
            if found := _CASE_SRC.match(line):
                case = _place(found["place"])
            elif found := _BRANCHES.match(line):
                branches = found["places"].split("|")
            elif found := _NEXT.match(line):
                last, left = open_chains.get(found["indent"], (0, []))
                if left:
                    place, left = _place(left[0]), left[1:]
                    (self._own if "else if (" in line else self._otherwise)[
                        number if "else if (" in line else last
                    ] = place
                    open_chains[found["indent"]] = (number, left)
            elif not _ATTRIBUTE.match(line):
                if case and _LABEL.match(line):
                    self._own[number] = case
                if found := _FIRST.match(line):
                    if branches:
                        self._own[number] = _place(branches[0])
                    open_chains[found["indent"]] = (number, branches[1:])
                case, branches = None, []

    def counts(self, point: Point) -> bool:
        """Whether a point is the hardware's: Yosys begins each block with a test that is never true."""
        return _DUMMY not in self._lines[point.line - 1]

    def place(self, point: Point) -> Place:
        """Where a point comes from."""
        if point.kind == "else" and point.line in self._otherwise:
            return self._otherwise[point.line]
        if point.line in self._own:
            return self._own[point.line]
        line = self._lines[point.line - 1]
        found = _SRC.search(line, point.column - 1) or _SRC.search(line)
        if not found and point.line > 1 and _ATTRIBUTE.match(self._lines[point.line - 2]):
            found = _SRC.search(self._lines[point.line - 2])
        if found:
            return _place(found["place"])
        return self._following(point.line)

    def _following(self, number: int) -> Place:
        """Place of a block: that of the first branch in it; a block without one is the writer's."""
        for line in range(number, min(number + 8, len(self._lines)) + 1):
            if line in self._own:
                return self._own[line]
        return WRITER

    def label(self, point: Point) -> str:
        """What tells a point from others of its line: a case's pattern, the text of a memory without its numbers."""
        line = self._lines[point.line - 1]
        if self.place(point) == WRITER:
            return re.sub(r"\d+", "#", line.strip())
        found = _LABEL.match(line)
        return found["label"] if point.kind == "case" and found else ""


def _place(text: str) -> Place:
    """Place of "file:line"; of several joined by `|`, the first."""
    file, _, line = text.split("|")[0].rpartition(":")
    if not (file and line.isdigit()):
        return WRITER
    return Place(Path(file).name if file.startswith("/") else file, int(line))  # "/": the standard library
