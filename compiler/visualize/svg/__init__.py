"""Output formats of views: text, JSON, Graphviz and SVG."""

from collections.abc import Callable

from compiler.visualize.graphs.view import View
from compiler.visualize.svg.flowchart import draw_flow
from compiler.visualize.svg.gantt import draw_memory, draw_units
from compiler.visualize.svg.swimlanes import draw_lanes
from compiler.visualize.svg.text_formats import to_dot, to_json, to_text


def to_svg(view: View) -> str:
    """Return the view as an SVG file."""
    draw = {"scheduled": draw_lanes, "placed": draw_memory, "timeline": draw_units}
    return draw.get(view.graph["stage"], draw_flow)(view)


#: Writers by the name used in `mla graph --format`.
FORMATS: dict[str, Callable[[View], str]] = {
    "text": to_text,
    "dot": to_dot,
    "svg": to_svg,
    "json": to_json,
}

__all__ = ["FORMATS", "to_dot", "to_json", "to_svg", "to_text"]
