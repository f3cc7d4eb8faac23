"""Cycles of each request that was served, and the decisions that changed them."""

from collections.abc import Sequence
from itertools import pairwise

from compiler.draw.axes import Axis, round_step
from compiler.draw.style import INK, SOFT, shortened
from compiler.draw.svg import Point, Svg
from compiler.serve.events import Document, in_words

_LEFT, _TOP, _TALL, _BETWEEN, _LINES = 64.0, 84.0, 200.0, 62.0, 6
#: The close-up shows what is up to so much above the least.
_CLOSE = 1.1
#: Rows of the markers above the picture, how wide one is, how far names go below it and beside each other.
_ROWS, _MARKER, _ENTRY, _COLUMN = 3, 18.0, 17.0, 540.0
_CURVE, _GRID = "#2f67c0", "#e3e6ea"
_COLOURS = {
    "reload": "#2e9e5b", "rollback": "#d9534f", "drift": "#e0b03a", "conditions": "#7a6bd1", "search lost": "#5d6773"
}  # fmt: skip


def draw_serving(name: str, cycles: Sequence[int], events: Sequence[Document]) -> str:
    """The picture.

    Parameters
    ----------
    name : str
        What was served.
    cycles : sequence of int
        Of each request.
    events : sequence of dict
        Decisions, as `mla serve` prints them.
    """
    svg = Svg(f"{name}: cycles of each request")
    marked = [event for event in events if event["event"] in _COLOURS]
    svg.text(16, 28, name, 16, bold=True)
    svg.text(16, 45, "cycles of each request while better programs are loaded", 11, fill=SOFT)
    _panel(svg, _TOP, cycles, marked, (0, max(cycles, default=1)))
    below = _TOP + _TALL + _BETWEEN
    if cycles:
        svg.text(16, below - 12, "close up", 11, fill=SOFT)
        _panel(svg, below, cycles, marked, (min(cycles), int(_CLOSE * min(cycles)) + 1))
    _numbers(svg, marked, len(cycles))
    _legend(svg, below + _TALL + 46, marked)
    return svg.render()


def _panel(
    svg: Svg, above: float, cycles: Sequence[int], marked: Sequence[Document], shown: tuple[int, int]
) -> None:
    """Cycles over requests, from the least to the greatest shown; what is beyond that is at the edge."""
    axis, bottom = Axis(_LEFT, len(cycles), "requests"), above + _TALL
    step = round_step(max(shown[1] - shown[0], 1), _LINES)
    low, high = step * (shown[0] // step), step * -(-shown[1] // step)

    def height(count: float) -> float:
        return bottom - _TALL * (min(max(count, low), high) - low) / (high - low)

    axis.draw(svg, above, bottom)
    for line in range(round((high - low) / step) + 1):
        count = low + line * step
        svg.line([(_LEFT, height(count)), (axis.at(axis.cycles), height(count))], _GRID, 0.8)
        svg.text(_LEFT - 6, height(count) + 3, f"{count:,.0f}", 9, fill=SOFT, anchor="end")
    for event in marked:
        x, kind = axis.at(event["request"]), event["event"]
        svg.line([(x, above), (x, bottom)], _COLOURS[kind], 1.0, dashed=kind != "reload")
    if cycles:
        steps: list[Point] = [(_LEFT, height(cycles[0]))]
        for request, (one, other) in enumerate(pairwise(cycles), 1):
            if one != other:
                steps += [(axis.at(request), height(one)), (axis.at(request), height(other))]
        svg.line([*steps, (axis.at(len(cycles)), height(cycles[-1]))], _CURVE, 1.6)


def _numbers(svg: Svg, marked: Sequence[Document], requests: int) -> None:
    """A number above each decision."""
    axis = Axis(_LEFT, requests)
    for number, event in enumerate(marked):
        x, y = axis.at(event["request"]), _TOP - 6 - number % _ROWS * 11
        svg.text(x, y, str(number + 1), 9, fill=_COLOURS[event["event"]], bold=True, anchor="middle")


def _legend(svg: Svg, top: float, marked: Sequence[Document]) -> None:
    """The numbers explained, in two columns."""
    rows = -(-len(marked) // 2)
    for number, event in enumerate(marked):
        x, y = _LEFT + number // rows * _COLUMN, top + number % rows * _ENTRY
        svg.text(x + 12, y, str(number + 1), 9.5, fill=_COLOURS[event["event"]], bold=True, anchor="end")
        svg.text(x + _MARKER, y, shortened(in_words(event), _COLUMN - 30, 9.5), 9.5, fill=INK)
        svg.room(x, y + 6)
