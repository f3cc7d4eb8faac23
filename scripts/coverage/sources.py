"""Lines of the source files of the hardware and of Amaranth."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from scripts.coverage.source_map import SourceLocation

ROOT = Path(__file__).parents[2]


def source_line(location: SourceLocation) -> str:
    """Return the text of a source line without its indentation; empty if the location has no line."""
    lines = source_lines(location.file)
    return lines[location.line - 1] if 0 < location.line <= len(lines) else ""


@cache
def source_lines(file: str) -> list[str]:
    """Return the lines of a file without their indentation; empty if the file does not exist."""
    path = ROOT / file
    spec = None if path.is_file() else find_spec("amaranth")
    if spec and spec.origin:
        path = Path(spec.origin).parents[1] / file
    return [line.strip() for line in path.read_text().splitlines()] if path.is_file() else []
