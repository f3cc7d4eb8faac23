"""Rendering of the report of `mla profile` as a self-contained HTML page."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from compiler.profile.counters import MEANINGS
from compiler.profile.perfetto_trace import LANES, Span
from compiler.util.tables import shorten_middle
from compiler.visualize.svg import CAUSE_COLOURS, hue

_TEMPLATE = "profile_page.html.j2"
#: Timeline layout in pixels: total width, left margin, lane height, lane pitch.
_WIDTH, _LEFT, _LANE, _STEP = 1200, 76, 22, 28
#: Number of spans above which adjacent spans are merged, since single spans are not visible.
_MOST_SPANS = 4000
_TICKS = 10
#: Maximum characters of a layer name in the table; the tooltip has the full name.
_NAME = 40
_DEPTHWISE = "depthwise_conv2d"


def page(
    document: Mapping[str, Any],
    work: Sequence[Span],
    *,
    clock_hz: float | None = None,
    memory: Mapping[str, int] | None = None,
) -> str:
    """Render a report as an HTML page.

    Parameters
    ----------
    document : mapping
        Report of `mla profile`. The page shows only the file name of the model, not its folder.
    work : sequence of Span
        Timeline of the first sample.
    clock_hz : float or None
        Clock frequency in hertz. If it is given, the page shows milliseconds, and the report must contain
        `inferences_per_second`.
    memory : mapping or None
        Number of bytes in use, by memory name, such as {"DRAM": 4096}.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("compiler", "visualize"), autoescape=True, undefined=StrictUndefined
    )
    total, longest = document["cycles"], max((layer["cycles"] for layer in document["layers"]), default=1)
    name = PurePath(document["model"]).name
    return environment.get_template(_TEMPLATE).render(
        title=f"{name} on {document['target']}",
        facts=_facts(document, clock_hz, memory or {}),
        whole=_bar(document["where"], total, total),
        causes=[
            {
                "name": cause,
                "colour": CAUSE_COLOURS[cause],
                "meaning": meaning,
                "share": f"{document['where'][cause] / max(total, 1):.1%}",
            }
            for cause, meaning in MEANINGS.items()
            if document["where"].get(cause)
        ],
        layers=[
            _layer(number, layer, total, longest, clock_hz) for number, layer in enumerate(document["layers"])
        ],
        timed=clock_hz is not None,
        depthwise=any(
            _DEPTHWISE in layer.get("ops", ()) and layer["cycles"] > layer["floor_cycles"]
            for layer in document["layers"]
        ),
        timeline=_timeline(document, work),
    )


def _facts(
    document: Mapping[str, Any], clock_hz: float | None, memory: Mapping[str, int]
) -> list[tuple[str, str]]:
    each, samples, dram = document["cycles_per_sample"], document["samples"], document["dram"]
    timed = (
        []
        if clock_hz is None
        else [
            (f"time per sample at {clock_hz / 1e6:g} MHz", f"{each / clock_hz * 1e3:,.3f} ms"),
            ("samples per second", f"{document['inferences_per_second']:,.1f}"),
        ]
    )
    return [
        ("samples", f"{samples:,}"),
        ("cycles per sample", f"{each:,.0f}"),
        *timed,
        ("utilization of the array", f"{document['utilization']:.1%}"),
        ("lower bound", f"{document['floor_cycles'] // samples:,} cycles"),
        ("lower bound, layer by layer", f"{document['floor_layerwise_cycles'] // samples:,} cycles"),
        ("energy in all (45 nm estimate)", f"{document['energy_uj']:,.1f} µJ"),
        ("nodes on the host", f"{len(document['host_ops']):,}"),
        ("DRAM", f"{dram['bytes_per_cycle']:g} bytes a cycle, latency {dram['latency']} cycles"),
        *((f"{name} in use", f"{count:,} bytes") for name, count in memory.items()),
    ]


def _bar(where: Mapping[str, int], cycles: int, longest: int) -> list[dict[str, str]]:
    """Return the segments of a bar that shows cycles by cause; `longest` cycles fill the available width."""
    return [
        {
            "width": f"{100 * where[cause] / max(longest, 1):.3f}",
            "colour": colour,
            "tip": f"{cause}: {where[cause]:,} cycles, {where[cause] / max(cycles, 1):.1%}",
        }
        for cause, colour in CAUSE_COLOURS.items()
        if where.get(cause)
    ]


def _layer(
    number: int, layer: Mapping[str, Any], total: int, longest: int, clock_hz: float | None
) -> dict[str, Any]:
    first, *rest = layer["names"]
    return {
        "name": shorten_middle(first, _is_short) + (f" + {len(rest)}" if rest else ""),
        "names": ", ".join(layer["names"]),
        "colour": hue(number)[0],
        "cycles": f"{layer['cycles']:,}",
        "share": f"{layer['cycles'] / max(total, 1):.1%}",
        "ms": "" if clock_hz is None else f"{layer['cycles'] / clock_hz * 1e3:,.3f}",
        "floor": f"{layer['floor_cycles']:,}",
        "utilized": "" if layer["utilization"] is None else f"{layer['utilization']:.1%}",
        "bound": layer["bound"] if layer["cycles"] else "",
        "parts": _bar(layer["where"], layer["cycles"], longest),
    }


def _is_short(name: str) -> bool:
    return len(name) <= _NAME


def _timeline(document: Mapping[str, Any], work: Sequence[Span]) -> dict[str, Any]:
    """Return the timeline, with one lane per unit and one color per layer."""
    from compiler.visualize.charts import round_ticks

    end = max((span.end for span in work), default=1)
    scale = (_WIDTH - _LEFT - 24) / end
    numbers = {layer["tag"]: number for number, layer in enumerate(document["layers"])}
    spans = []
    for span in joined(work, end):
        number = numbers.get(span.tag, len(numbers))
        name = document["layers"][number]["names"][0] if span.tag in numbers else f"tag {span.tag}"
        spans.append(
            {
                "x": f"{_LEFT + span.start * scale:.1f}",
                "y": LANES.index(span.lane) * _STEP,
                "width": f"{max((span.end - span.start) * scale, 0.3):.1f}",
                "colour": hue(number)[0],
                "tip": f"{name}: cycles {span.start:,} to {span.end:,}",
            }
        )
    bottom = len(LANES) * _STEP
    return {
        "width": _WIDTH,
        "height": bottom + 38,
        "bottom": bottom,
        "lane": _LANE,
        "spans": spans,
        "ticks": [{"x": f"{_LEFT + at * scale:.1f}", "text": f"{at:,}"} for at in round_ticks(end, _TICKS)],
        "lanes": [{"name": lane, "y": number * _STEP + 16} for number, lane in enumerate(LANES)],
    }


def joined(work: Sequence[Span], end: int) -> list[Span]:
    """Merge spans of the same lane and layer if the gaps between them are too small to see."""
    gap = 0 if len(work) <= _MOST_SPANS else end / _WIDTH
    out: list[Span] = []
    for span in work:
        last = out[-1] if out else None
        if last and (last.lane, last.tag) == (span.lane, span.tag) and span.start - last.end <= gap:
            out[-1] = Span(last.lane, last.tag, last.start, span.end)
        else:
            out.append(span)
    return out
