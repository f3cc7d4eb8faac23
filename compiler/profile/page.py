"""The report of `mla profile` as a page that needs nothing but a browser."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from compiler.draw.axes import PIXELS, Axis, hue
from compiler.draw.style import CAUSE_COLOURS
from compiler.draw.svg import Svg
from compiler.profile.timeline import LANES, Span

_LEFT, _LANE = 84.0, 22.0
#: More spans than this are drawn together: nobody sees single ones.
_MOST_SPANS = 4000

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1240px; color: #222; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; }
td, th { padding: 3px 8px; border-bottom: 1px solid #eee; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: flex; height: 14px; min-width: 320px; } .bar span { display: block; height: 100%; }
.key span { display: inline-block; margin-right: 1.2em; } .key i { display: inline-block; width: 12px; height: 12px;
margin-right: 5px; vertical-align: -1px; } svg text { font: 12px system-ui, sans-serif; } h2 { margin-top: 2em; }
"""


def page(document: Mapping[str, Any], work: Sequence[Span]) -> str:
    """The page of a report of `mla profile`; `work` is the timeline of its first sample."""
    title = f"{document['model']} on {document['target']}"
    total = document["cycles"]
    facts = (
        f"samples: {document['samples']}; cycles of each: {document['cycles_per_sample']:,.0f}; utilization "
        f"{document['utilization']:.1%}; at least {document['floor_cycles'] // document['samples']:,} cycles, layer by "
        f"layer {document['floor_layerwise_cycles'] // document['samples']:,}; {document['energy_uj']:.1f} uJ in all; "
        f"DRAM {document['dram']['bytes_per_cycle']:g} bytes a cycle, latency {document['dram']['latency']}"
    )
    rows = "\n".join(_row(layer, total) for layer in document["layers"])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n<p>{escape(facts)}</p>\n"
        f'<p class="key">{_key()}</p>\n{_bar(document["where"], total, total)}\n'
        f"<h2>Layers</h2>\n<table><tr><th>layer</th><th class=n>cycles</th><th class=n>floor</th>"
        f"<th class=n>utilized</th><th>bound by</th><th>where its cycles went</th></tr>\n{rows}\n</table>\n"
        f"<h2>Units over time</h2>\n{_timeline(document, work)}\n</body></html>\n"
    )


def _key() -> str:
    return "".join(f'<span><i style="background:{c}"></i>{name}</span>' for name, c in CAUSE_COLOURS.items())


def _bar(where: Mapping[str, int], cycles: int, longest: int) -> str:
    """Cycles by cause, as long as `cycles` are of `longest`."""
    parts = "".join(
        f'<span style="width:{100 * where[cause] / longest:.3f}%;background:{colour}" '
        f'title="{cause}: {where[cause]:,} cycles, {where[cause] / max(cycles, 1):.1%}"></span>'
        for cause, colour in CAUSE_COLOURS.items()
        if where[cause]
    )
    return f'<div class="bar">{parts}</div>'


def _row(layer: Mapping[str, Any], total: int) -> str:
    names = ", ".join(layer["names"])
    short = names if len(names) <= 48 else names[:45] + "..."
    used = "" if layer["utilization"] is None else f"{layer['utilization']:.1%}"
    return (
        f'<tr><td title="{escape(names)}">{escape(short)}</td><td class=n>{layer["cycles"]:,}</td>'
        f"<td class=n>{layer['floor_cycles']:,}</td><td class=n>{used}</td><td>{layer['bound']}</td>"
        f'<td style="width:40%">{_bar(layer["where"], layer["cycles"], max(layer["cycles"], 1))}'
        f"</td></tr>"
    )


def _timeline(document: Mapping[str, Any], work: Sequence[Span]) -> str:
    """One lane for each unit; a colour for each layer."""
    end = max((span.end for span in work), default=1)
    svg, axis = Svg("units over time"), Axis(_LEFT, end)
    numbers = {layer["tag"]: number for number, layer in enumerate(document["layers"])}
    axis.draw(svg, 0, len(LANES) * (_LANE + 6))
    for number, lane in enumerate(LANES):
        svg.text(0, number * (_LANE + 6) + 16, lane, bold=True)
    for span in joined(work, end):
        number = numbers.get(span.tag, len(numbers))
        name = document["layers"][number]["names"][0] if span.tag in numbers else f"tag {span.tag}"
        svg.box(
            axis.at(span.start), LANES.index(span.lane) * (_LANE + 6), max(axis.long(span.end - span.start), 0.3),
            _LANE, hue(number)[0], radius=1, tip=f"{name}: cycles {span.start:,} to {span.end:,}",
        )  # fmt: skip
    return svg.render()


def joined(work: Sequence[Span], end: int) -> list[Span]:
    """Spans of one lane and layer with gaps too small to see are one."""
    gap = 0 if len(work) <= _MOST_SPANS else end / PIXELS
    out: list[Span] = []
    for span in work:
        last = out[-1] if out else None
        if last and (last.lane, last.tag) == (span.lane, span.tag) and span.start - last.end <= gap:
            out[-1] = Span(last.lane, last.tag, last.start, span.end)
        else:
            out.append(span)
    return out
