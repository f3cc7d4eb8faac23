"""Coverage report of merged counts: totals, a table by source file, unreached lines."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from scripts.coverage.merge import CoveragePoint
from scripts.coverage.source_map import SourceLocation
from scripts.coverage.sources import source_line
from scripts.coverage.waivers import Waiver

SCHEMA = 1
GOAL = 95.0
"""Percent of Verilator's line points, and of line and branch points together, that a run has to reach."""
NAMED = 6
"""Spots of a line that the text names."""

PAGES = {"v_line": "line points", "v_branch": "branch points"}


@dataclass
class Share:
    """Number of reached points out of a total."""

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
    """Unreached spots of a line, and the waivers that cover them."""

    place: SourceLocation
    points: int = 0
    spots: list[CoveragePoint] = field(default_factory=list)
    reasons: list[Waiver] = field(default_factory=list)
    open: list[CoveragePoint] = field(default_factory=list)


class Report:
    """Comparison of counts with waivers.

    Parameters
    ----------
    counts : dict
        Counts returned by `merge`.
    reasons : list
        Waivers returned by `read_reasons`.
    """

    def __init__(self, counts: dict[CoveragePoint, int], reasons: list[Waiver]):
        self.pages = {page: Share() for page in PAGES}
        self.total = Share()
        self.files: dict[str, Share] = defaultdict(Share)
        self.unreached: dict[SourceLocation, Unreached] = {}
        used: set[Waiver] = set()
        for spot, count in sorted(counts.items()):
            for share in (self.pages[spot.page], self.total, self.files[spot.place.file]):
                share.add(count)
            if count == 0:
                used.update(self._add(spot, reasons))
        for spot in counts:
            if spot.place in self.unreached:
                self.unreached[spot.place].points += 1
        self.stale = [reason for reason in reasons if reason not in used]

    def _add(self, spot: CoveragePoint, reasons: list[Waiver]) -> list[Waiver]:
        """Record an unreached spot; return the waivers that cover it."""
        entry = self.unreached.setdefault(spot.place, Unreached(spot.place))
        entry.spots.append(spot)
        mine = [reason for reason in reasons if reason.covers(spot)]
        entry.reasons += [reason for reason in mine if reason not in entry.reasons]
        if not mine:
            entry.open.append(spot)
        return mine

    def failures(self) -> list[str]:
        """Return the failures as text; empty if there are none."""
        wrong = []
        for share, what in ((self.pages["v_line"], "the line points"), (self.total, "all points")):
            if share.percent < GOAL:
                wrong.append(f"{share} of {what} reached, {GOAL:g}% are wanted")
        missing = [entry for entry in self.unreached.values() if entry.open]
        if missing:
            first = missing[0].place
            wrong.append(
                f"{len(missing)} lines are not reached and not explained, the first {first.file}:{first.line}"
            )
        wrong += [
            f"stale explanation: nothing unreached in {reason.file} is {reason.line!r}"
            + (f" where {reason.where!r}" if reason.where else "")
            for reason in self.stale
        ]
        return wrong

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        for page, name in PAGES.items():
            yield f"{name:<14} {self.pages[page]}"
        yield f"{'all':<14} {self.total}"
        yield ""
        width = max((len(name) for name in self.files), default=0)
        for name, share in sorted(self.files.items(), key=lambda item: (item[1].percent, item[0])):
            yield f"{name:<{width}}  {share}"
        for entry in self.unreached.values():
            yield ""
            yield from _entry_lines(entry)

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
    yield f"{entry.place.file}:{entry.place.line}: {source_line(entry.place)}"
    yield f"    {len(entry.spots)} of {entry.points} points: {_where(entry.spots)}"
    for reason in entry.reasons:
        yield f"    because {reason.reason}"
    if entry.open:
        yield f"    NOT EXPLAINED: {_where(entry.open)}"


def _where(spots: list[CoveragePoint]) -> str:
    names = list(dict.fromkeys(spot.about for spot in spots))
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _share_json(share: Share) -> dict[str, Any]:
    return {"reached": share.reached, "points": share.points, "percent": round(share.percent, 3)}


def _entry_json(entry: Unreached) -> dict[str, Any]:
    return {
        "file": entry.place.file,
        "line": entry.place.line,
        "text": source_line(entry.place),
        "points": entry.points,
        "unreached": list(dict.fromkeys(spot.about for spot in entry.spots)),
        "reasons": [reason.reason for reason in entry.reasons],
        "explained": not entry.open,
    }
