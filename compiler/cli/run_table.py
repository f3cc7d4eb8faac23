"""Formats the report of `mla run`."""

from collections.abc import Mapping
from typing import Any

from compiler.cli.clock_table import clock_lines
from compiler.cli.memory_table import memory_lines
from compiler.quantize.report import summary
from compiler.util.tables import Column, figures, format_table


def table(document: Mapping[str, Any]) -> str:
    """Format the cycles per layer, then totals, outputs and memory use."""
    lines = [
        f"{document['model']} on {document['target']} ({document['device']}), {document['samples']} samples",
    ]
    if document["cycles"] is None:
        lines += [f"  {short_name(layer)}" for layer in document["layers"]]
    else:
        lines += _cycles(document) + clock_lines(document)
    lines += [
        f"{each['program']} ran {each['runs']} times, {'otherwise' if each['guard'] is None else 'if ' + each['guard']}"
        for each in document.get("variants", ())
    ]
    lines += [
        f"output {name}: {each['dtype']}{each['shape']}, sha256 {each['sha256'][:16]}"
        for name, each in document["outputs"].items()
    ]
    lines += memory_lines(document["memory"])
    if document.get("quantization"):
        lines += summary(document["quantization"])
    return "\n".join(lines)


def _cycles(document: Mapping[str, Any]) -> list[str]:
    total = document["cycles"]
    columns = [
        Column("layer", shrinks=True),
        *figures("cycles", "share", "floor", "utilization"),
        Column("bound"),
    ]
    rows = [
        [
            short_name(layer),
            f"{layer['cycles']:,}",
            f"{layer['cycles'] / max(total, 1):.1%}",
            f"{layer['floor_cycles']:,}",
            "" if layer["utilization"] is None else f"{layer['utilization']:.1%}",
            layer["bound"],
        ]
        for layer in document["layers"]
    ]
    where = ", ".join(
        f"{cause} {cycles / total:.1%}"
        for cause, cycles in (document["where"] or {}).items()
        if cycles * 1000 > total
    )
    steady = document["steady_cycles_per_sample"]
    steady = (
        "not measured back to back (has host operators)" if steady is None else f"{steady:,.0f} back to back"
    )
    return [
        format_table(columns, rows),
        f"{document['cycles_per_sample']:,.0f} cycles per sample, {steady}; "
        f"utilization {document['utilization'] or 0:.1%}, "
        f"lower bound {document['floor_cycles'] // document['samples']:,}, "
        f"layerwise {document['floor_layerwise_cycles'] // document['samples']:,}",
        f"cycles by cause: {where}",
        f"{document['load_cycles']:,} cycles to load the programs; {document['dram_bytes_read']:,} bytes read, "
        f"{document['dram_bytes_written']:,} written; {document['energy_uj']:.1f} uJ",
    ]


def short_name(layer: Mapping[str, Any]) -> str:
    """Return the first node name of a layer and the number of further nodes."""
    first, *rest = layer["names"]
    return first + (f" + {len(rest)}" if rest else "")
