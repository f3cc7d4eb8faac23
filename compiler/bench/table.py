"""Formats a document of `mla bench`."""

from collections.abc import Mapping
from typing import Any

from compiler.bench.speed import bare_array_share
from compiler.util.tables import Column, figures, format_table

_COLUMNS = (
    Column("case", shrinks=True),
    *figures("cycles", "floor", "of floor", "MACs", "utilized", "exact"),
    Column("cycles not useful"),
)
#: Minimum share of a cause to be listed; largest first.
_LEAST_SHARE = 0.005


def format_document(document: Mapping[str, Any]) -> str:
    """Format one line per result, then the simulation speed."""
    dram = document["dram"]
    lines = [
        f"{document['suite']} on {document['target']}, DRAM {dram['bytes_per_cycle']:g} bytes a cycle, "
        f"latency {dram['latency']}"
    ]
    lines.append(format_table(_COLUMNS, [_row(result) for result in document["results"]]))
    return "\n".join([*lines, *_speed(document)])


def _speed(document: Mapping[str, Any]) -> list[str]:
    """Format the simulation speed, with targets where they apply."""
    lines, bars = [], document.get("bars")
    khz, bare = document["sim_khz"], document["bare_array_khz"]
    if khz is not None:
        bar = f" (bar: {bars['sim_khz']:.0f}, {_verdict(bars['sim_khz_met'])})" if bars else ""
        lines.append(f"simulated at {khz:.0f} kHz{bar}")
    if bare is not None:
        hundredths = int(100 * bare_array_share(khz, bare))  # rounded down: a missed bar does not look met
        share = f"{hundredths / 100:.2f} of that"
        if bars:
            share += f" (bar: {bars['bare_array_share']:.2f}, {_verdict(bars['bare_array_share_met'])})"
        lines.append(f"the bare array, driven from C++, at {bare:.0f} kHz: {share}")
    return lines


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    cycles, floor = result["cycles"], result["floor_cycles"]
    if "condition" in result:
        name, floor = f"{result['condition']}: {result['name']}", result["floor_layerwise_cycles"]
        result = {**result, "name": name}
    exact = "yes" if result["exact"] else f"off by {result['max_abs_diff']}"
    if cycles is None:
        return result["name"], "-", f"{floor:,}", "-", f"{result['macs']:,}", "-", exact, "-"
    causes = sorted(((n, c) for c, n in result["where"].items() if c != "useful"), reverse=True)
    named = [f"{cause} {count / cycles:.1%}" for count, cause in causes if count >= _LEAST_SHARE * cycles]
    return (
        result["name"],
        f"{cycles:,}",
        f"{floor:,}",
        f"{floor / cycles:.1%}",
        f"{result['macs']:,}",
        f"{result['utilization']:.1%}",
        exact,
        ", ".join(named),
    )
