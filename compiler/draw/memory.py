"""Memories over time: what lies where, and when."""

from typing import Any

from compiler.draw.axes import Axis, hue
from compiler.draw.style import INK, SOFT, shortened
from compiler.draw.svg import Svg
from compiler.views.view import View

_LEFT, _TOP = 124.0, 70.0
#: Memories from top to bottom: name, height, unit.
_MAPS = (("sp", "scratchpad", 320.0), ("acc", "accumulator", 130.0), ("slot", "parameter slots", 80.0))
#: Slots have no banks: so many at least are shown.
_STEP = 8


def draw_memory(view: View) -> str:
    """The picture."""
    svg, about = Svg(f"{view.graph['name']}: memories over time"), view.graph
    nodes = [(key, data) for key, data in view.nodes(data=True) if "starts" in data]
    end = max((max(data["last"]) for _, data in nodes), default=1)
    axis = Axis(_LEFT, end)
    svg.text(16, 28, about["name"], 16, bold=True)
    svg.text(16, 45, f"placed, {about['target']}: what lies where over time, by estimate", 11, fill=SOFT)
    layers: dict[str, int] = {}
    top = _TOP
    for memory, name, height in _MAPS:
        capacity, banks = about["memories"][memory]
        here = [data for _, data in nodes if data["memory"] == memory]
        used = max((at + data["size"] for data in here for at in data["starts"]), default=0)
        bank = capacity // banks if banks > 1 else _STEP
        shown = min(max(-(-used // bank), 1) * bank, capacity)
        svg.text(16, top + 12, name, 11, bold=True)
        svg.text(16, top + 26, f"{used / capacity:.0%} used", 9, fill=SOFT)
        if banks > 1:
            svg.text(16, top + 39, f"banks 0..{shown // bank - 1} of {banks}", 9, fill=SOFT)
        svg.box(_LEFT, top, axis.long(end), height, "#fafbfc", "#c9ced6", radius=0, stroke=0.8)
        for line in range(bank, shown, bank):
            y = top + height * line / shown
            svg.line([(_LEFT, y), (_LEFT + axis.long(end), y)], "#e3e6ea", 0.8)
        for data in here:
            layer = data["label"].rpartition(".")[0] or data["label"]
            _tiles(svg, axis, data, (top, height / shown), hue(layers.setdefault(layer, len(layers))))
        top += height + 18
    axis.draw(svg, top - 18, top - 18)
    return svg.render()


def _tiles(
    svg: Svg, axis: Axis, data: dict[str, Any], vertical: tuple[float, float], colours: tuple[str, str]
) -> None:
    """The tiles of a buffer, each as long as it is in use; `vertical`: top of the memory, and how tall a unit is."""
    top, unit = vertical
    for at, first, last in zip(data["starts"], data["first"], data["last"], strict=True):
        x, width = axis.at(first), max(axis.long(last - first), 0.8)
        y, tall = top + unit * at, max(unit * data["size"], 0.8)
        tip = "\n".join([data["label"], *data["text"], f"cycles {first:,}..{last:,}"])
        svg.box(x, y, width, tall, *colours, radius=0, stroke=0.5, tip=tip)
        label = shortened(data["label"], width - 5, 8.5)
        if tall > 9 and len(label) > 4:
            svg.text(x + 3, y + min(tall / 2 + 3, 12), label, 8.5, fill=INK)
