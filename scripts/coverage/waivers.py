"""Waivers, each with a reason, for hardware lines that tests do not reach."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from hw.errors import InputError
from scripts.coverage.merge import CoveragePoint
from scripts.coverage.sources import source_line

FIELDS = {"file", "line", "reason", "where"}


@dataclass(frozen=True)
class Waiver:
    """Waiver for unreached points of a line.

    Parameters
    ----------
    file, line : str
        Source file, and text of the line without its indentation.
    reason : str
        Reason why the points are not reached.
    where : str
        Regular expression that must match a part of a point's `about`; the default matches all points.
    """

    file: str
    line: str
    reason: str
    where: str = ""

    def covers(self, point: CoveragePoint) -> bool:
        """Return whether the waiver covers a point."""
        return (
            point.location.file == self.file
            and source_line(point.location) == self.line
            and re.search(self.where, point.about) is not None
        )


def read_waivers(path: Path) -> list[Waiver]:
    """Read the waivers of a TOML file: tables `[[unreached]]` with the fields of `Waiver`.

    Raises
    ------
    InputError
        The file does not have this form.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8")).get("unreached", [])
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: invalid UTF-8 or TOML, or a number with too many digits
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{path}: explanations must be tables [[unreached]], not {tables!r}")
    waivers = []
    for number, table in enumerate(tables, 1):
        if not FIELDS - {"where"} <= table.keys() <= FIELDS or not all(
            isinstance(v, str) for v in table.values()
        ):
            rule = "needs the strings file, line and reason, and may have where"
            raise InputError(f"{path}: explanation {number} {rule}, not {sorted(table)}")
        try:
            re.compile(table.get("where", ""))
        except re.error as error:
            raise InputError(f"{path}: explanation {number}: where is no pattern: {error}") from error
        waivers.append(Waiver(**table))
    return waivers
