"""Memories over time: what lies where, and when."""

from compiler.draw.axes import Axis, hue
from compiler.draw.style import INK, SOFT, shortened
from compiler.draw.svg import Svg
from compiler.views.view import View

_LEFT, _TOP = 104.0, 70.0
#: Memories from top to bottom: name, height, unit.
_MAPS = (("sp", "scratchpad", 320.0), ("acc", "accumulator", 150.0), ("slot", "slots", 70.0))


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
        svg.text(16, top + 12, name, 11, bold=True)
        here = [data for _, data in nodes if data["memory"] == memory]
        used = max((at + data["size"] for data in here for at in data["starts"]), default=0)
        svg.text(16, top + 26, f"{used / capacity:.0%} used", 9, fill=SOFT)
        svg.box(_LEFT, top, axis.long(end), height, "#fafbfc", "#c9ced6", radius=0, stroke=0.8)
        for bank in range(1, banks):
            y = top + height * bank / banks
            svg.line([(_LEFT, y), (_LEFT + axis.long(end), y)], "#e3e6ea", 0.8)
        for data in here:
            layer = data["label"].rpartition(".")[0] or data["label"]
            fill, outline = hue(layers.setdefault(layer, len(layers)))
            for at, first, last in zip(data["starts"], data["first"], data["last"], strict=True):
                x, width = axis.at(first), max(axis.long(last - first), 0.8)
                y, tall = top + height * at / capacity, max(height * data["size"] / capacity, 0.8)
                svg.box(x, y, width, tall, fill, outline, radius=0, stroke=0.5,
                        tip="\n".join([data["label"], *data["text"], f"cycles {first:,}..{last:,}"]))  # fmt: skip
                if tall > 9 and width > 30:
                    svg.text(
                        x + 3,
                        y + min(tall / 2 + 3, 12),
                        shortened(data["label"], width - 5, 8.5),
                        8.5,
                        fill=INK,
                    )
        top += height + 18
    axis.draw(svg, top - 18, top - 18)
    return svg.render()
