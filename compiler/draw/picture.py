"""Which picture a stage is drawn as."""

from compiler.draw.flow import draw_flow
from compiler.draw.lanes import draw_lanes
from compiler.draw.memory import draw_memory
from compiler.draw.units import draw_units
from compiler.views.view import View


def to_svg(view: View) -> str:
    """An SVG file."""
    draw = {"scheduled": draw_lanes, "placed": draw_memory, "timeline": draw_units}
    return draw.get(view.graph["stage"], draw_flow)(view)
