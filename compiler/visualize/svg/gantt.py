"""Gantt chart of commands over time, one row per unit."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from compiler.visualize.graphs.view import View
from compiler.visualize.svg.chart import LABEL, SMALL, WIDTH, chart, count_axis, key_rows, layer_key
from compiler.visualize.svg.style import SOFT, hue

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROWS = ("load", "matrix", "fuse", "store")
_LEFT, _RIGHT, _TOP, _ROW, _BAR = 84.0, 16.0, 62.0, 42.0, 28.0
_PIXELS = WIDTH - _LEFT - _RIGHT
#: Pixels: gap below which adjacent commands are merged, and minimum width of a bar.
_APART, _LEAST = 1.2, 0.8


def draw_units(view: View) -> str:
    """Return the chart as SVG."""
    from matplotlib.patches import Rectangle

    about = view.graph
    cycles = max(about["cycles"], 1)
    names = list(dict.fromkeys(data["group"] for _, data in view.nodes(data=True)))
    colours = {name: hue(number) for number, name in enumerate(names)}
    bottom = _TOP + _ROW * len(_ROWS)
    with chart(f"{about['name']}: units over time", bottom + 62 + key_rows(names)) as drawn:
        drawn.heading(about["name"], f"timeline, {about['target']}: {about['cycles']:,} cycles by estimate")
        axes = drawn.axes(_LEFT, _TOP, _PIXELS, _ROW * len(_ROWS))
        _frame(axes, cycles)
        for row, unit in enumerate(_ROWS):
            busy = sum(data["cycles"] for _, data in view.nodes(data=True) if data["kind"] == unit)
            y = _TOP + _ROW * row
            drawn.text(16, y + 19, unit.upper(), LABEL, weight="bold")
            drawn.text(16, y + 32, f"{busy / cycles:.0%} busy", SMALL, color=SOFT)
        for unit, layer, begin, end, tip in _bars(view, cycles):
            fill, outline = colours[layer]
            corner = begin, _ROWS.index(unit) + (1 - _BAR / _ROW) / 2
            width = max(end - begin, _LEAST * cycles / _PIXELS)
            bar = Rectangle(corner, width, _BAR / _ROW, facecolor=fill, edgecolor=outline, linewidth=0.5)
            axes.add_patch(bar)
            drawn.tip(bar, tip)
        layer_key(drawn, bottom + 62, [(name, colours[name]) for name in names])
        return drawn.svg()


def _frame(axes: "Axes", cycles: int) -> None:
    axes.set_xlim(0, cycles)
    axes.set_ylim(len(_ROWS), 0)
    axes.set_yticks(range(len(_ROWS) + 1), [""] * (len(_ROWS) + 1))
    axes.tick_params(axis="y", length=0)
    count_axis(axes.xaxis, "cycles")


def _bars(view: View, cycles: int) -> Iterator[tuple[str, str, int, int, str]]:
    """Yield unit, layer, begin, end and tooltip; commands too short to distinguish are merged."""
    apart = _APART * cycles / _PIXELS
    for unit in _ROWS:
        waiting: tuple[str, int, int, int] | None = None  # layer, begin, end, commands
        for _, data in view.nodes(data=True):
            if data["kind"] != unit or not data["cycles"]:
                continue
            layer, begin, end, count = data["group"], data["begin"], data["end"], 1
            if waiting and waiting[0] == layer and end - waiting[2] < apart:
                begin, count = waiting[1], waiting[3] + 1
            elif waiting:
                yield _bar(unit, *waiting)
            waiting = (layer, begin, end, count)
        if waiting:
            yield _bar(unit, *waiting)


def _bar(unit: str, layer: str, begin: int, end: int, count: int) -> tuple[str, str, int, int, str]:
    times = f" x {count}" if count > 1 else ""
    return unit, layer, begin, end, f"{layer}: {unit.upper()}{times}, cycles {begin:,}..{end:,}"
