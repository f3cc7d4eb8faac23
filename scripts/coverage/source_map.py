"""Mapping of coverage points in annotated Verilog to lines of the hardware sources.

`tests.support.coverage_verilog` writes the annotations: `src` comments before cases, a `branches` attribute before an
`if`, and `src` attributes in other lines.
"""

import re
from pathlib import Path
from typing import NamedTuple

from scripts.coverage.counts import VerilatorPoint

_SRC = re.compile(r'src = "(?P<location>[^"]*)"')
_CASE_SRC = re.compile(r'\s*/\* src = "(?P<location>[^"]*)" \*/$')
_BRANCHES = re.compile(r'\s*\(\* branches = "(?P<branches>[^"]*)" \*\)$')
_ATTRIBUTE = re.compile(r"\s*\(\* .* \*\)$")
_FIRST = re.compile(r"(?P<indent>\s*)if \(")
_NEXT = re.compile(r"(?P<indent>\s*)end else")
_DUMMY = "$auto$verilog_backend"
_LABEL = re.compile(r"\s*(?P<label>\S.*?):$")


class SourceLocation(NamedTuple):
    """Line of the sources; line 0 denotes code that the Verilog writer generates, such as memories."""

    file: str
    line: int


WRITER = SourceLocation("hw/verilog/writer.py", 0)


class SourceMap:
    """Map from the coverage points of one chip to source lines and labels.

    Parameters
    ----------
    verilog : str
        Annotated Verilog text.
    """

    def __init__(self, verilog: str):
        self._lines = verilog.splitlines()
        self._own: dict[int, SourceLocation] = {}  # by line of a case or a condition
        self._otherwise: dict[int, SourceLocation] = {}  # by line of a condition: its `else` branch
        self._scan()

    def _scan(self) -> None:
        """Assign a source line to each case, `if` and `else`."""
        case: SourceLocation | None = None
        branches: list[str] = []
        open_chains: dict[
            str, tuple[int, list[str]]
        ] = {}  # by indentation: line of the last condition, and remaining branches
        for number, line in enumerate(self._lines, 1):
            if found := _CASE_SRC.match(line):
                case = _location(found["location"])
            elif found := _BRANCHES.match(line):
                branches = found["branches"].split("|")
            elif found := _NEXT.match(line):
                last, left = open_chains.get(found["indent"], (0, []))
                if left:
                    location, left = _location(left[0]), left[1:]
                    (self._own if "else if (" in line else self._otherwise)[
                        number if "else if (" in line else last
                    ] = location
                    open_chains[found["indent"]] = (number, left)
            elif not _ATTRIBUTE.match(line):
                if case and _LABEL.match(line):
                    self._own[number] = case
                if found := _FIRST.match(line):
                    if branches:
                        self._own[number] = _location(branches[0])
                    open_chains[found["indent"]] = (number, branches[1:])
                case, branches = None, []

    def counts(self, point: VerilatorPoint) -> bool:
        """Return whether a point belongs to the hardware, and not to the never-true condition that Yosys adds to a
        block.
        """
        return _DUMMY not in self._lines[point.line - 1]

    def location(self, point: VerilatorPoint) -> SourceLocation:
        """Return the source line of a point."""
        if point.kind == "else" and point.line in self._otherwise:
            return self._otherwise[point.line]
        if point.line in self._own:
            return self._own[point.line]
        line = self._lines[point.line - 1]
        found = _SRC.search(line, point.column - 1) or _SRC.search(line)
        if not found and point.line > 1 and _ATTRIBUTE.match(self._lines[point.line - 2]):
            found = _SRC.search(self._lines[point.line - 2])
        if found:
            return _location(found["location"])
        return self._following(point.line)

    def _following(self, number: int) -> SourceLocation:
        """Return the source line of the first branch of a block; `WRITER` if it has none."""
        for line in range(number, min(number + 8, len(self._lines)) + 1):
            if line in self._own:
                return self._own[line]
        return WRITER

    def label(self, point: VerilatorPoint) -> str:
        """Return the label of a point within its line: the pattern of a case, or the text of a memory."""
        line = self._lines[point.line - 1]
        if self.location(point) == WRITER:
            return re.sub(r"\d+", "#", line.strip())
        found = _LABEL.match(line)
        return found["label"] if point.kind == "case" and found else ""


def _location(text: str) -> SourceLocation:
    """Parse "file:line"; if several locations are joined by `|`, use the first."""
    file, _, line = text.split("|")[0].rpartition(":")
    if not (file and line.isdigit()):
        return WRITER
    return SourceLocation(
        Path(file).name if file.startswith("/") else file, int(line)
    )  # an absolute path is in the Python standard library
