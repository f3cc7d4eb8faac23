"""Tables of the results of `scripts.study_program_edits`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.reports import write_report

#: Minimum gain at which a layer is regarded as improved, in percent of the cycles of the best schedule.
BAR = 3.0
#: Maximum number of causes that are listed, and minimum change of a listed cause as a fraction of all cycles.
_CAUSES, _SMALL = 4, 0.002

Row = dict[str, Any]


def render(rows: Sequence[Row], folder: Path) -> str:
    """Write the results as report.json and report.md into a folder; return the Markdown text."""
    found = [_found(row) for row in rows]
    kinds = _kinds(found)
    passed = [kind for kind in kinds if kind["best_gain"] >= BAR]
    lines = [
        "| layer | static | floor | schedules (requested) | best | programs | best | gain |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {each['layer']} | {each['static']:,} | {each['floor']:,} | "
        f"{each['schedules_measured']:,} ({each['asked']:,}) | "
        f"{each['schedule']:,} | {each['programs_measured']:,} | {each['program']:,} ({each['method']}) | "
        f"{each['gain']:.1f}% |"
        for each in found
    ]
    lines += ["", "| kind | layers | minimum gain | maximum gain |", "| --- | --: | --: | --: |"]
    lines += [
        f"| {each['kind']} | {each['layers']} | {each['least_gain']:.1f}% | {each['best_gain']:.1f}% |"
        for each in kinds
    ]
    lines += ["", f"{len(passed)} layer kinds have a layer with a gain of {BAR:g}% or more.", ""]
    for each in found:
        lines += _explained(each) if each["gain"] >= BAR else []
    whole = {"layers": found, "kinds": kinds, "kinds_passed": len(passed)}
    return write_report(folder / "report", whole, "\n".join(lines) + "\n")


def _found(row: Row) -> Row:
    """Return the best program of all methods and the best schedule of a layer."""
    schedule = row["schedules"]
    method = min(row["programs"], key=lambda name: row["programs"][name]["cycles"])
    best = row["programs"][method]
    causes = {
        cause: [schedule["where"].get(cause, 0), best["where"].get(cause, 0)]
        for cause in schedule["where"] | best["where"]
    }
    return {
        "kind": row["kind"],
        "layer": row["layer"],
        "point": row["point"],
        "static": row["static"],
        "floor": row["floor"],
        "asked": schedule["asked"],
        "schedules_measured": schedule["measured"],
        "schedule": schedule["cycles"],
        "programs_measured": {name: each["measured"] for name, each in row["programs"].items()}[method],
        "program": best["cycles"],
        "method": method,
        "gain": 100 * (1 - best["cycles"] / schedule["cycles"]),
        "gains": {
            name: 100 * (1 - each["cycles"] / schedule["cycles"]) for name, each in row["programs"].items()
        },
        "rejected": best["rejected"],
        "inexact": best["inexact"],
        "start": best["start"],
        "starts": best["starts"],
        "edits": best["edits"],
        "said": best["said"],
        "programs": sorted(best["schedule"]["programs"]),
        "causes": causes,
        "seconds": schedule["seconds"] + sum(each["seconds"] for each in row["programs"].values()),
    }


def _kinds(found: Sequence[Row]) -> list[Row]:
    """Return the minimum and maximum gain of each layer kind, largest maximum first."""
    gains: dict[str, list[float]] = {}
    for each in found:
        gains.setdefault(each["kind"], []).append(each["gain"])
    rows = [
        {"kind": kind, "layers": len(own), "least_gain": min(own), "best_gain": max(own)}
        for kind, own in gains.items()
    ]
    return sorted(rows, key=lambda row: -row["best_gain"])


def _explained(row: Row) -> list[str]:
    """Describe the saved cycles by cause, and the gain of each edit."""
    changes = sorted(row["causes"].items(), key=lambda item: -abs(item[1][1] - item[1][0]))
    small = _SMALL * row["schedule"]
    named = [
        f"{cause} {before:,} -> {after:,}"
        for cause, (before, after) in changes[:_CAUSES]
        if abs(after - before) > small
    ]
    start = f", from schedule {row['start'] + 1} ({row['starts'][row['start']]:,})" if row["start"] else ""
    lines = [
        f"**{row['layer']}**: {row['schedule']:,} -> {row['program']:,} cycles{start}: {', '.join(named)}",
        "",
    ]
    for each in row["edits"]:
        worth = "other edits depend on it" if each["worth"] is None else f"{each['worth']:+,} cycles without"
        lines.append(f"- `{each['program']}`: `{each['edit']}` ({worth})")
    lines += [f"- `{answer}`" for answer in row["said"]]
    if not row["edits"] and not row["said"]:
        lines.append(f"- programs: {', '.join(row['programs'])}")
    return [*lines, ""]
