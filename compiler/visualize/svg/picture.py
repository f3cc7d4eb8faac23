"""Selects the drawing function of a stage."""

from compiler.visualize.graphs.view import View
from compiler.visualize.svg.flowchart import draw_flow
from compiler.visualize.svg.gantt import draw_units
from compiler.visualize.svg.memory_map import draw_memory
from compiler.visualize.svg.swimlanes import draw_lanes


def to_svg(view: View) -> str:
    """Return the view as an SVG file."""
    draw = {"scheduled": draw_lanes, "placed": draw_memory, "timeline": draw_units}
    return draw.get(view.graph["stage"], draw_flow)(view)
