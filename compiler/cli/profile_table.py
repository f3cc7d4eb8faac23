"""Formats the report of `mla profile`: one line per layer, one column per cause with cycles."""

from collections.abc import Mapping
from typing import Any

from compiler.cli.run_report import clock_lines, short_name
from compiler.util.tables import Column, figures, format_table


def table(document: Mapping[str, Any]) -> str:
    """Format the cycles of each layer, their percentages by cause, and the bounding resource."""
    total, where = document["cycles"], document["where"]
    causes = [cause for cause, cycles in where.items() if cycles]
    rows = [
        [
            short_name(layer),
            f"{layer['cycles']:,}",
            f"{layer['floor_cycles']:,}",
            *(_share(layer["where"][cause], layer["cycles"]) for cause in causes),
            layer["bound"],
        ]
        for layer in document["layers"]
    ]
    shares = (_share(where[cause], total) for cause in causes)
    rows.append(["sum", f"{total:,}", f"{document['floor_cycles']:,}", *shares, ""])
    columns = [Column("layer", shrinks=True), *figures("cycles", "floor", *causes), Column("bound by")]
    return "\n".join(
        [
            f"{document['model']} on {document['target']}, {document['samples']} samples",
            format_table(columns, rows, total=True),
            f"utilization {document['utilization']:.1%}; layerwise lower bound {document['floor_layerwise_cycles']:,} "
            f"cycles; {document['dram_bytes_read']:,} bytes read, {document['dram_bytes_written']:,} written; "
            f"{document['energy_uj']:.1f} uJ",
            *clock_lines(document),
        ]
    )


def _share(cycles: int, total: int) -> str:
    return f"{cycles / total:.1%}" if cycles and total else "-"
