"""Charts drawn by matplotlib as reproducible SVG text."""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from compiler.online_tuning.observers import Document, in_words
from compiler.visualize.svg import FONT, GRID, INK, LINE, OKABE_ITO, SOFT, shortened

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: SVG units per inch in matplotlib: figures of `n / INCH` inches are n pixels wide.
INCH = 72.0
#: Width of a chart, which equals the width of a rendered page, and text sizes, in pixels.
WIDTH, TITLE, LABEL, SMALL = 830.0, 14.0, 10.0, 9.0
#: Columns of a layer key, and row pitch in pixels.
_KEY_COLUMNS, _KEY_ROW = 4, 16.0
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mla",
    "font.family": "DejaVu Sans",
    "font.size": LABEL,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.labelsize": LABEL,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "path.simplify": False,
    "text.parse_math": False,
}


class Chart:
    """Figure with layout helpers, created by `chart`.

    Parameters
    ----------
    figure : Figure
        Matplotlib figure, whose pixels are 1/72 inch.
    title : str
        Accessible title of the picture.
    """

    def __init__(self, figure: "Figure", title: str):
        self.figure, self.title = figure, title
        self._tips: list[str] = []

    def axes(self, left: float, top: float, width: float, height: float) -> "Axes":
        """Add axes at a position in pixels from the upper left corner."""
        w, h = self.figure.get_size_inches() * INCH
        return self.figure.add_axes((left / w, 1 - (top + height) / h, width / w, height / h))

    def text(self, x: float, y: float, text: str, size: float = LABEL, **style: Any) -> None:
        """Add a line of text; y is the distance of its baseline from the top in pixels."""
        w, h = self.figure.get_size_inches() * INCH
        self.figure.text(x / w, 1 - y / h, text, size=size, **style)

    def heading(self, name: str, subtitle: str) -> None:
        """Add the title and subtitle above the axes."""
        self.text(16, 26, name, TITLE, weight="bold")
        self.text(16, 44, subtitle, LABEL, color=SOFT)

    def tip(self, artist: "Artist", text: str) -> None:
        """Attach a tooltip to an artist."""
        artist.set_gid(f"tip{len(self._tips)}")
        self._tips.append(text)

    def svg(self) -> str:
        """Render the figure as SVG text."""
        out = io.StringIO()
        with warnings.catch_warnings():
            # The layout font may lack glyphs, such as Chinese ones, that the viewer's font has.
            warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
            about = {"Date": None, "Creator": None, "Title": self.title}
            self.figure.savefig(out, format="svg", metadata=about)
        text = out.getvalue()
        for number, tip in enumerate(self._tips):
            text = text.replace(
                f'<g id="tip{number}">', f'<g id="tip{number}"><title>{escape(tip)}</title>', 1
            )
        text = (
            text[text.index("<svg ") :]
            .replace('pt" ', '" ', 2)
            .replace("'DejaVu Sans'", FONT.replace('"', "'"))
        )
        return re.sub(r"<[^<>]*>", lambda tag: _rounded(tag[0]), text)


def _rounded(tag: str) -> str:
    """Round the attributes of an element to one decimal, since further digits differ between platforms."""
    return re.sub(r"-?\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), tag)


@contextmanager
def chart(title: str, height: float, width: float = WIDTH) -> Iterator[Chart]:
    """Create a chart with a size in pixels; the style settings of charts apply until the block ends."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        yield Chart(Figure(figsize=(width / INCH, height / INCH), dpi=INCH, facecolor="#ffffff"), title)


def count_axis(axis: Any, label: str) -> None:
    """Format an axis of integers (`axes.xaxis` or `axes.yaxis`): label, few ticks, and thousands separators."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 5, 10], integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_label_text(label)


def round_ticks(end: int, count: int) -> list[int]:
    """Return about `count` round numbers from 0 to `end`."""
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(nbins=count, steps=[1, 2, 5, 10], integer=True).tick_values(0, max(end, 1))
    return [int(tick) for tick in ticks if 0 <= tick <= end]


def key_rows(names: Sequence[str]) -> float:
    """Return the height in pixels of the key drawn by `layer_key`."""
    return _KEY_ROW * -(-len(names) // _KEY_COLUMNS)


def layer_key(drawn: Chart, top: float, entries: Sequence[tuple[str, tuple[str, str]]]) -> None:
    """Draw a key of the layers below a chart.

    Parameters
    ----------
    drawn : Chart
        Chart to draw on.
    top : float
        Distance in pixels from the top of the chart.
    entries : sequence
        Name, fill color and outline color of each layer.
    """
    from matplotlib.patches import Rectangle

    w, h = drawn.figure.get_size_inches() * INCH
    column = (WIDTH - 32) / _KEY_COLUMNS
    for number, (name, (fill, outline)) in enumerate(entries):
        x, y = 16 + number % _KEY_COLUMNS * column, top + number // _KEY_COLUMNS * _KEY_ROW
        swatch = Rectangle(
            (x / w, 1 - (y - 1) / h), 10 / w, 10 / h, facecolor=fill, edgecolor=outline, linewidth=0.5
        )
        drawn.figure.add_artist(swatch)
        drawn.text(x + 15, y, shortened(name, column - 24, SMALL), SMALL)


_LEFT, _TOP, _HEIGHT, _BELOW = 64.0, 66.0, 270.0, 52.0
_KEY = 250.0
_COLOURS = tuple(OKABE_ITO[name] for name in ("blue", "vermilion", "sky", "orange", "green", "purple"))
_MARKERS = "osD^vP"


def draw_rounds(
    title: str, unit: str, lines: Mapping[str, Sequence[float]], baseline: str = "no change"
) -> str:
    """Draw a chart of ratios over rounds, with one line per name, as SVG; rounds count from 0.

    Parameters
    ----------
    title, unit : str
        Title of the chart, and label of the values.
    lines : mapping
        Values of each line, by name of the line; one value per round, and at least one round.
    baseline : str
        Label of the dashed line at 1.0.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with chart(title, _TOP + _HEIGHT + _BELOW) as drawn:
        drawn.heading(title, unit)
        axes = drawn.axes(_LEFT, _TOP, WIDTH - _LEFT - _KEY, _HEIGHT)
        axes.axhline(1.0, color=INK, linewidth=1.2, linestyle=(0, (5, 3)), label=f"1.0: {baseline}")
        for index, (name, figures) in enumerate(lines.items()):
            colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
            label = f"{name} {figures[-1]:.3f}"
            axes.plot(figures, color=colour, linewidth=1.8, marker=marker, markersize=5, label=label)
            for number, figure in enumerate(figures):
                (point,) = axes.plot([number], [figure], color=colour, marker=marker, markersize=9, alpha=0)
                drawn.tip(point, f"{name}: {figure:.4f}")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"round {value:.0f}"))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
        rounds = max(map(len, lines.values()))
        axes.set_xlim(-0.2, max(rounds - 1, 1) + 0.2)
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=LABEL, labelcolor=SOFT)
        return drawn.svg()


_SERVING_LEFT, _RIGHT, _SERVING_TOP, _TALL, _BETWEEN = 72.0, 16.0, 92.0, 200.0, 76.0
#: Range of the second panel above the minimum, as a fraction.
_CLOSE = 1.1
#: Minimum distance between event numbers; rows and columns of the event list below the chart.
_NUMBER, _ENTRY, _COLUMNS = 14.0, 16.0, 2
_SERVING_COLOURS = {
    "reload": OKABE_ITO["green"],
    "rollback": OKABE_ITO["vermilion"],
    "drift": OKABE_ITO["orange"],
    "conditions": OKABE_ITO["purple"],
    "left out": SOFT,
    "search lost": SOFT,
}


def draw_serving(name: str, cycles: Sequence[int], events: Sequence[Document]) -> str:
    """Draw the cycles of served requests and the tuning events as SVG.

    Parameters
    ----------
    name : str
        Name of the served network.
    cycles : sequence of int
        Number of cycles of each request.
    events : sequence of dict
        Tuning events, as printed by `mla serve`.
    """
    marked = [event for event in events if event["event"] in _SERVING_COLOURS]
    rows = -(-len(marked) // _COLUMNS)
    panels = 2 if cycles else 1
    below = _SERVING_TOP + panels * (_TALL + _BETWEEN) - 14
    with chart(f"{name}: cycles of each request", below + rows * _ENTRY + 10) as drawn:
        drawn.heading(name, "cycles of each request while better programs are loaded; a line is a decision")
        _kinds(drawn, marked)
        _panel(drawn, _SERVING_TOP, cycles, marked, (0, max(cycles, default=1)))
        if cycles:
            top, least = _SERVING_TOP + _TALL + _BETWEEN, min(cycles)
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
    """Draw a color key for the kinds of events."""
    x = WIDTH - _RIGHT
    for kind in reversed(
        [kind for kind in _SERVING_COLOURS if any(event["event"] == kind for event in marked)]
    ):
        drawn.text(x, 26, f"┃ {kind}", LABEL, ha="right", color=_SERVING_COLOURS[kind])
        x -= 90


def _panel(
    drawn: Chart, top: float, cycles: Sequence[int], marked: Sequence[Document], shown: tuple[float, float]
) -> None:
    """Plot cycles over requests within the range `shown`; values outside are clipped to the limits of the range."""
    axes = drawn.axes(_SERVING_LEFT, top, WIDTH - _SERVING_LEFT - _RIGHT, _TALL)
    low, high = shown
    margin = (high - low) * 0.04 or 1
    axes.set_xlim(0, max(len(cycles), 1))
    axes.set_ylim(low - (margin if low else 0), high + margin)
    count_axis(axes.xaxis, "requests")
    count_axis(axes.yaxis, "cycles")
    for event in marked:
        style = "-" if event["event"] == "reload" else (0, (4, 3))
        axes.axvline(event["request"], color=_SERVING_COLOURS[event["event"]], linewidth=1.2, linestyle=style)
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
    """Number the event lines in a row above them; if lines are close together, numbers move to the right."""
    scale, free = (WIDTH - _SERVING_LEFT - _RIGHT) / requests, 0.0
    for number, event in enumerate(marked, 1):
        x = max(event["request"] * scale, free)
        free = x + _NUMBER
        axes.annotate(
            str(number),
            (x / (WIDTH - _SERVING_LEFT - _RIGHT), 1.0),
            (0, 3),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            size=SMALL,
            weight="bold",
            annotation_clip=False,
        )
