"""The report of `mla profile` as text: a line for each layer, a column for each cause that has cycles."""

from collections.abc import Mapping
from typing import Any

from compiler.cli.clock_table import clock_lines
from compiler.cli.run_table import short_name


def table(document: Mapping[str, Any]) -> str:
    """Cycles of each layer in per cent by cause, and what it is bound by."""
    total, where = document["cycles"], document["where"]
    causes = [cause for cause, cycles in where.items() if cycles]
    head = f"{'layer':<44}{'cycles':>12}{'floor':>12}" + "".join(_heading(cause) for cause in causes)
    lines = [
        f"{document['model']} on {document['target']}, {document['samples']} samples",
        f"{head}  bound by",
    ]
    for layer in document["layers"]:
        shares = "".join(_share(layer["where"][cause], layer["cycles"], cause) for cause in causes)
        lines.append(
            f"{short_name(layer):<44}{layer['cycles']:>12,}{layer['floor_cycles']:>12,}{shares}  {layer['bound']}"
        )
    shares = "".join(_share(where[cause], total, cause) for cause in causes)
    lines.append(f"{'sum':<44}{total:>12,}{document['floor_cycles']:>12,}{shares}")
    lines.append(
        f"utilization {document['utilization']:.1%}; layer by layer at least {document['floor_layerwise_cycles']:,} "
        f"cycles; {document['dram_bytes_read']:,} bytes read, {document['dram_bytes_written']:,} written; "
        f"{document['energy_uj']:.1f} uJ"
    )
    return "\n".join([*lines, *clock_lines(document)])


def _heading(cause: str) -> str:
    return f"  {cause:>6}"


def _share(cycles: int, total: int, cause: str) -> str:
    width = max(6, len(cause))
    return f"  {cycles / total:>{width}.1%}" if cycles and total else f"  {'-':>{width}}"
