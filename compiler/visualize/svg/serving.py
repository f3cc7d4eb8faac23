"""Chart of the cycles per served request, with tuning events."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from compiler.serve.events import Document, in_words
from compiler.visualize.svg.chart import LABEL, SMALL, WIDTH, Chart, chart, count_axis
from compiler.visualize.svg.style import INK, OKABE_ITO, SOFT, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEFT, _RIGHT, _TOP, _TALL, _BETWEEN = 72.0, 16.0, 92.0, 200.0, 76.0
#: Range of the second panel above the minimum, as a fraction.
_CLOSE = 1.1
#: Minimum distance between event numbers; rows and columns of the event list below the chart.
_NUMBER, _ENTRY, _COLUMNS = 14.0, 16.0, 2
_COLOURS = {
    "reload": OKABE_ITO["green"],
    "rollback": OKABE_ITO["vermilion"],
    "drift": OKABE_ITO["orange"],
    "conditions": OKABE_ITO["purple"],
    "search lost": SOFT,
}


def draw_serving(name: str, cycles: Sequence[int], events: Sequence[Document]) -> str:
    """Return the chart as SVG.

    Parameters
    ----------
    name : str
        Name of the served network.
    cycles : sequence of int
        Cycles of each request.
    events : sequence of dict
        Tuning events, as printed by `mla serve`.
    """
    marked = [event for event in events if event["event"] in _COLOURS]
    rows = -(-len(marked) // _COLUMNS)
    panels = 2 if cycles else 1
    below = _TOP + panels * (_TALL + _BETWEEN) - 14
    with chart(f"{name}: cycles of each request", below + rows * _ENTRY + 10) as drawn:
        drawn.heading(name, "cycles of each request while better programs are loaded; a line is a decision")
        _kinds(drawn, marked)
        _panel(drawn, _TOP, cycles, marked, (0, max(cycles, default=1)))
        if cycles:
            top, least = _TOP + _TALL + _BETWEEN, min(cycles)
            drawn.text(16, top - 14, f"the same, up to {_CLOSE - 1:.0%} above the least", LABEL, color=SOFT)
            _panel(drawn, top, cycles, marked, (least, _CLOSE * least))
        for number, event in enumerate(marked):
            x = 16 + number // rows * (WIDTH - 32) / _COLUMNS
            y = below + 10 + number % rows * _ENTRY
            drawn.text(x + 16, y, str(number + 1), SMALL, weight="bold", ha="right", color=INK)
            words = shortened(in_words(event), (WIDTH - 32) / _COLUMNS - 34, SMALL)
            drawn.text(x + 22, y, words, SMALL)
        return drawn.svg()


def _kinds(drawn: Chart, marked: Sequence[Document]) -> None:
    """Draw a colour key, and a number above each event."""
    x = WIDTH - _RIGHT
    for kind in reversed([kind for kind in _COLOURS if any(event["event"] == kind for event in marked)]):
        drawn.text(x, 26, f"┃ {kind}", LABEL, ha="right", color=_COLOURS[kind])
        x -= 90


def _panel(
    drawn: Chart, top: float, cycles: Sequence[int], marked: Sequence[Document], shown: tuple[float, float]
) -> None:
    """Plot cycles over requests within the shown range; values outside are clipped to the edge."""
    axes = drawn.axes(_LEFT, top, WIDTH - _LEFT - _RIGHT, _TALL)
    low, high = shown
    margin = (high - low) * 0.04 or 1
    axes.set_xlim(0, max(len(cycles), 1))
    axes.set_ylim(low - (margin if low else 0), high + margin)
    count_axis(axes.xaxis, "requests")
    count_axis(axes.yaxis, "cycles")
    for event in marked:
        style = "-" if event["event"] == "reload" else (0, (4, 3))
        axes.axvline(event["request"], color=_COLOURS[event["event"]], linewidth=1.2, linestyle=style)
    _numbers(axes, marked, max(len(cycles), 1))
    clipped = [min(max(count, low), high) for count in cycles]
    axes.step(
        [*range(len(clipped) + 1)],
        [*clipped, *clipped[-1:]] or [0],
        where="post",
        color=OKABE_ITO["blue"],
        linewidth=1.6,
    )


def _numbers(axes: "Axes", marked: Sequence[Document], requests: int) -> None:
    """Draw numbers in one row above the event lines; numbers of close lines move to the right."""
    scale, free = (WIDTH - _LEFT - _RIGHT) / requests, 0.0
    for number, event in enumerate(marked, 1):
        x = max(event["request"] * scale, free)
        free = x + _NUMBER
        axes.annotate(
            str(number),
            (x / (WIDTH - _LEFT - _RIGHT), 1.0),
            (0, 3),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            size=SMALL,
            weight="bold",
            annotation_clip=False,
        )
