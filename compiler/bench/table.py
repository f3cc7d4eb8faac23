"""A document of `mla bench` as text."""

from collections.abc import Mapping
from typing import Any

_HEADINGS = ("case", "cycles", "floor", "of floor", "MACs", "utilized", "exact", "cycles not useful")
#: Causes that a line names: those of at least this share, largest first.
_LEAST_SHARE = 0.005


def format_table(document: Mapping[str, Any]) -> str:
    """One line for each result, then the speed of the simulator."""
    rows = [_HEADINGS, *(_row(result) for result in document["results"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    dram = document["dram"]
    lines = [
        f"{document['suite']} on {document['target']}, DRAM {dram['bytes_per_cycle']:g} bytes a cycle, "
        f"latency {dram['latency']}"
    ]
    for row in rows:
        cells = [
            cell.ljust(width) if column in (0, 7) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    if document["sim_khz"] is not None:
        lines.append(f"simulated at {document['sim_khz']:.0f} kHz")
    if document["bare_array_khz"] is not None:
        ratio = (document["sim_khz"] or 0) / document["bare_array_khz"]
        lines.append(
            f"the bare array, driven from C++, at {document['bare_array_khz']:.0f} kHz: {ratio:.2f} of that"
        )
    return "\n".join(lines)


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    cycles, floor = result["cycles"], result["floor_cycles"]
    exact = "yes" if result["exact"] else f"off by {result['max_abs_diff']}"
    if cycles is None:
        return result["name"], "-", f"{floor:,}", "-", f"{result['macs']:,}", "-", exact, "-"
    causes = sorted(((n, c) for c, n in result["where"].items() if c != "useful"), reverse=True)
    named = [f"{cause} {count / cycles:.1%}" for count, cause in causes if count >= _LEAST_SHARE * cycles]
    return (
        result["name"], f"{cycles:,}", f"{floor:,}", f"{floor / cycles:.1%}", f"{result['macs']:,}",
        f"{result['utilization']:.1%}", exact, ", ".join(named),
    )  # fmt: skip
