"""Commands over time, a row for each unit."""

from collections.abc import Iterator

from compiler.draw.axes import Axis, hue
from compiler.draw.style import INK, SOFT, shortened
from compiler.draw.svg import Svg
from compiler.views.view import View

_ROWS = ("load", "matrix", "fuse", "store")
_LEFT, _TOP, _ROW, _BAR = 84.0, 86.0, 40.0, 26.0
#: Commands that end so shortly after one another are drawn as one.
_APART = 1.2


def draw_units(view: View) -> str:
    """The picture."""
    svg, about = Svg(f"{view.graph['name']}: units over time"), view.graph
    axis = Axis(_LEFT, about["cycles"])
    layers = {name: i for i, name in enumerate(dict.fromkeys(d["group"] for _, d in view.nodes(data=True)))}
    svg.text(16, 28, about["name"], 16, bold=True)
    svg.text(16, 45, f"timeline, {about['target']}: {about['cycles']:,} cycles by estimate", 11, fill=SOFT)
    bottom = _TOP + _ROW * len(_ROWS)
    axis.draw(svg, _TOP, bottom)
    for row, unit in enumerate(_ROWS):
        y = _TOP + _ROW * row
        busy = sum(data["cycles"] for _, data in view.nodes(data=True) if data["kind"] == unit)
        svg.text(16, y + 17, unit.upper(), 11, bold=True)
        svg.text(16, y + 30, f"{busy / max(about['cycles'], 1):.0%} busy", 9, fill=SOFT)
    for unit, layer, begin, end, tip in _bars(view, axis):
        fill, outline = hue(layers[layer])
        y = _TOP + _ROW * _ROWS.index(unit) + (_ROW - _BAR) / 2
        width = max(axis.long(end - begin), 0.8)
        svg.box(axis.at(begin), y, width, _BAR, fill, outline, radius=1.5, tip=tip, stroke=0.5)
    _names(svg, view, axis)
    return svg.render()


def _bars(view: View, axis: Axis) -> Iterator[tuple[str, str, int, int, str]]:
    """Unit, layer, begin, end, explanation; commands too short to be told apart are one."""
    for unit in _ROWS:
        waiting: tuple[str, int, int, int] | None = None  # layer, begin, end, commands
        for _, data in view.nodes(data=True):
            if data["kind"] != unit or not data["cycles"]:
                continue
            layer, begin, end, count = data["group"], data["begin"], data["end"], 1
            if waiting and waiting[0] == layer and axis.long(end - waiting[2]) < _APART:
                begin, count = waiting[1], waiting[3] + 1
            elif waiting:
                yield _bar(unit, *waiting)
            waiting = (layer, begin, end, count)
        if waiting:
            yield _bar(unit, *waiting)


def _bar(unit: str, layer: str, begin: int, end: int, count: int) -> tuple[str, str, int, int, str]:
    times = f" x {count}" if count > 1 else ""
    return unit, layer, begin, end, f"{layer}: {unit.upper()}{times}, cycles {begin:,}..{end:,}"


def _names(svg: Svg, view: View, axis: Axis) -> None:
    """Layers over the part of the timeline in which they compute."""
    spans: dict[str, tuple[int, int]] = {}
    for _, data in view.nodes(data=True):
        if data["kind"] in ("matrix", "fuse"):
            first, last = spans.get(data["group"], (data["begin"], data["end"]))
            spans[data["group"]] = (min(first, data["begin"]), max(last, data["end"]))
    free = 0.0
    for name, (first, last) in spans.items():
        x, width = max(axis.at(first), free), axis.long(last - first)
        if width > 24:
            svg.text(x + 2, _TOP - 8, shortened(name, width - 4, 9), 9, fill=INK)
            free = x + width
