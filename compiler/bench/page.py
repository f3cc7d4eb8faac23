"""Benchmark page of the documentation: tables, and a chart of cycles by cause."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from compiler.bench.published_results import peer_of
from compiler.visualize.svg.style import CAUSE_COLOURS, SOFT, shortened
from compiler.visualize.svg.svg import Svg

Documents = Mapping[str, Mapping[str, Any]]

TITLES = {
    "gemm": "Matrix products: rows x columns x depth",
    "conv": "Convolutions: height x width x channels - outputs - kernel - stride (dw: depthwise)",
    "tiny": "Trained networks of MLPerf Tiny",
    "nets": "Published architectures, seeded weights, quantized after training",
    "conditions": "Other machines, other memories, batches",
}
#: Suites of whole networks.
ENERGY = ("tiny", "nets")
#: Chart layout in pixels: name width, bar length, width of the cycle count, row pitch.
_NAME, _BAR, _COUNT, _ROW = 156.0, 562.0, 64.0, 24.0


def benchmark_page(documents: Documents, picture: str) -> str:
    """Return the page as Markdown.

    Parameters
    ----------
    documents : dict
        Documents of `mla bench` by suite.
    picture : str
        Path of the chart, relative to the page.
    """
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`. Cycles are exact: from the doorbell to the interrupt on the RTL, everything in DRAM "
        "before and after, memories cold. The limit is, layer by layer, the larger of multiply-accumulates over N*N "
        "and bytes over the bus. Every result was compared with its reference in the same run. What the peers' figures "
        "are for and where they come from: `compiler/bench/published_results.py`.",
        "",
        f"![where the cycles went]({picture})",
    ]
    for suite, title in TITLES.items():
        if suite in documents:
            table = _conditions if suite == "conditions" else partial(_table, suite)
            lines += ["", f"## {title}", "", *table(documents[suite])]
        if suite in ENERGY and suite in documents:
            lines += ["", *_energy(documents[suite])]
    return "\n".join(lines) + "\n"


def _table(suite: str, document: Mapping[str, Any]) -> Iterator[str]:
    dram = document["dram"]
    yield (
        f"`mla bench {suite}` on {document['target']}, DRAM {dram['bytes_per_cycle']:g} bytes a cycle, latency "
        f"{dram['latency']}."
    )
    yield ""
    yield "| case | cycles | limit | of the limit | array utilized | best peer | reference | largest difference |"
    yield "| --- | --: | --: | --: | --: | --- | --- | --: |"
    for result in document["results"]:
        cycles, limit = result["cycles"], result["floor_layerwise_cycles"]
        peer = peer_of(suite, result["name"])
        text = "" if peer is None else f"{peer.cycles:,} ({peer.name}): {peer.cycles / cycles:.2f} x"
        yield (
            f"| {result['name']} | {cycles:,} | {limit:,} | {limit / cycles:.1%} | {result['utilization']:.1%} | "
            f"{text} | {result['reference']} | {result['max_abs_diff']} |"
        )


def _conditions(document: Mapping[str, Any]) -> Iterator[str]:
    yield "`mla bench conditions`: each case against the limit of that machine and memory; batches as a whole."
    yield ""
    names = list(dict.fromkeys(result["condition"] for result in document["results"]))
    cases = list(dict.fromkeys(result["name"] for result in document["results"]))
    yield f"| cycles (of the limit) | {' | '.join(names)} |"
    yield "| --- |" + " --: |" * len(names)
    found = {(result["condition"], result["name"]): result for result in document["results"]}
    for case in cases:
        cells = []
        for name in names:
            result = found.get((name, case))
            share = result and result["floor_layerwise_cycles"] / result["cycles"]
            cells.append(f"{result['cycles']:,} ({share:.1%})" if result else "")
        yield f"| {case} | {' | '.join(cells)} |"


def _energy(document: Mapping[str, Any]) -> Iterator[str]:
    yield "Energy of an inference, from the counters and a published table of energy per event (45 nm; Horowitz, ISSCC"
    yield "2014; `compiler/cost/energy.py`): it compares schedules, and is no measurement of a chip."
    yield ""
    yield "| case | microjoules | array | memories on the chip | DRAM |"
    yield "| --- | --: | --: | --: | --: |"
    for result in document["results"]:
        whole, parts = result["energy_uj"], result["energy_parts_uj"]
        shares = " | ".join(f"{parts[part] / whole:.1%}" for part in ("array", "memories", "dram"))
        yield f"| {result['name']} | {whole:,.1f} | {shares} |"


def benchmark_picture(documents: Documents) -> str:
    """Return a chart with one bar per case, cycles by cause."""
    svg = Svg("where the cycles went")
    svg.text(16, 26, "Where the cycles went", 15, bold=True)
    svg.key(16, 49, [(cause, colour, "none", False) for cause, colour in CAUSE_COLOURS.items()])
    y = svg.height + 20
    for suite in (name for name in TITLES if name != "conditions"):
        for result in documents.get(suite, {"results": []})["results"]:
            _bar(svg, y, result)
            y += _ROW
        y += _ROW / 2 if suite in documents else 0
    return svg.render()


def _bar(svg: Svg, y: float, result: Mapping[str, Any]) -> None:
    svg.text(16, y + 12, shortened(result["name"], _NAME - 8, 10), 10)
    x, cycles = 16 + _NAME, result["cycles"]
    for cause, colour in CAUSE_COLOURS.items():
        count = result["where"][cause]
        if count:
            width = _BAR * count / cycles
            svg.box(
                x,
                y,
                width,
                _ROW - 8,
                colour,
                radius=0,
                tip=f"{cause}: {count:,} cycles, {count / cycles:.1%}",
            )
            x += width
    svg.text(16 + _NAME + _BAR + 8, y + 12, f"{cycles:,}", 10, fill=SOFT)
    svg.room(16 + _NAME + _BAR + 8 + _COUNT, y + _ROW)
