"""Coverage report of merged counts: totals, a table by source file, unreached lines."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from compiler.util.tables import Column, figures, format_table
from scripts.coverage.merge import CoveragePoint
from scripts.coverage.source_map import SourceLocation
from scripts.coverage.sources import source_line
from scripts.coverage.waivers import Waiver

SCHEMA = 1
GOAL = 95.0
"""Minimum percentage of reached line points, and of reached line and branch points together."""
NAMED = 6
"""Maximum number of points of a line that the text report names."""

PAGES = {"v_line": "line points", "v_branch": "branch points"}


@dataclass
class Share:
    """Number of reached points, and total number of points."""

    reached: int = 0
    points: int = 0

    def add(self, count: int) -> None:
        """Count a point."""
        self.points += 1
        self.reached += count > 0

    @property
    def percent(self) -> float:
        """Percentage of reached points; 100 if there are none."""
        return 100 * self.reached / self.points if self.points else 100.0

    def __str__(self) -> str:
        return f"{self.percent:.2f}% ({self.reached:,} of {self.points:,})"


@dataclass
class Unreached:
    """Unreached points of a line, and the waivers that cover them."""

    location: SourceLocation
    total: int = 0
    points: list[CoveragePoint] = field(default_factory=list)
    waivers: list[Waiver] = field(default_factory=list)
    open: list[CoveragePoint] = field(default_factory=list)


class Report:
    """Comparison of counts with waivers.

    Parameters
    ----------
    counts : dict
        Counts of the coverage points, returned by `merge`.
    waivers : list of Waiver
        Waivers returned by `read_waivers`.
    """

    def __init__(self, counts: dict[CoveragePoint, int], waivers: list[Waiver]):
        self.pages = {page: Share() for page in PAGES}
        self.total = Share()
        self.files: dict[str, Share] = defaultdict(Share)
        self.unreached: dict[SourceLocation, Unreached] = {}
        used: set[Waiver] = set()
        for point, count in sorted(counts.items()):
            for share in (self.pages[point.page], self.total, self.files[point.location.file]):
                share.add(count)
            if count == 0:
                used.update(self._add(point, waivers))
        for point in counts:
            if point.location in self.unreached:
                self.unreached[point.location].total += 1
        self.stale = [waiver for waiver in waivers if waiver not in used]

    def _add(self, point: CoveragePoint, waivers: list[Waiver]) -> list[Waiver]:
        """Record an unreached point; return the waivers that cover it."""
        entry = self.unreached.setdefault(point.location, Unreached(point.location))
        entry.points.append(point)
        covering = [waiver for waiver in waivers if waiver.covers(point)]
        entry.waivers += [waiver for waiver in covering if waiver not in entry.waivers]
        if not covering:
            entry.open.append(point)
        return covering

    def failures(self) -> list[str]:
        """Return the failures as text; empty if there are none."""
        wrong = []
        for share, what in ((self.pages["v_line"], "the line points"), (self.total, "all points")):
            if share.percent < GOAL:
                wrong.append(f"{share} of {what} reached, {GOAL:g}% are wanted")
        missing = [entry for entry in self.unreached.values() if entry.open]
        if missing:
            first = missing[0].location
            wrong.append(
                f"{len(missing)} lines are not reached and not explained, the first {first.file}:{first.line}"
            )
        wrong += [
            f"stale explanation: nothing unreached in {waiver.file} is {waiver.line!r}"
            + (f" where {waiver.where!r}" if waiver.where else "")
            for waiver in self.stale
        ]
        return wrong

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        totals = [*((name, self.pages[page]) for page, name in PAGES.items()), ("all", self.total)]
        files = sorted(self.files.items(), key=lambda item: (item[1].percent, item[0]))
        for heading, shares in (("points", totals), ("file", files)):
            rows = [
                [name, f"{share.percent:.2f}%", f"{share.reached:,}", f"{share.points:,}"]
                for name, share in shares
            ]
            yield format_table([Column(heading), *figures("share", "reached", "of")], rows)
            yield ""
        for entry in self.unreached.values():
            yield from _entry_lines(entry)
            yield ""

    def json(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        shares = {**{page: self.pages[page] for page in PAGES}, "all": self.total}
        return {
            "schema_version": SCHEMA,
            "goal_percent": GOAL,
            "totals": {name: _share_json(share) for name, share in shares.items()},
            "files": {name: _share_json(share) for name, share in sorted(self.files.items())},
            "unreached": [_entry_json(entry) for entry in self.unreached.values()],
            "failures": self.failures(),
        }


def _entry_lines(entry: Unreached) -> Iterator[str]:
    yield f"{entry.location.file}:{entry.location.line}: {source_line(entry.location)}"
    yield f"    {len(entry.points)} of {entry.total} points: {_where(entry.points)}"
    for waiver in entry.waivers:
        yield f"    because {waiver.reason}"
    if entry.open:
        yield f"    NOT EXPLAINED: {_where(entry.open)}"


def _where(points: list[CoveragePoint]) -> str:
    names = list(dict.fromkeys(point.about for point in points))
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _share_json(share: Share) -> dict[str, Any]:
    return {"reached": share.reached, "points": share.points, "percent": round(share.percent, 3)}


def _entry_json(entry: Unreached) -> dict[str, Any]:
    return {
        "file": entry.location.file,
        "line": entry.location.line,
        "text": source_line(entry.location),
        "points": entry.total,
        "unreached": list(dict.fromkeys(point.about for point in entry.points)),
        "reasons": [waiver.reason for waiver in entry.waivers],
        "explained": not entry.open,
    }
