"""Charts drawn by matplotlib as reproducible SVG text.

Text stays text and is laid out for DejaVu Sans, the widest common font. The background is always white.
"""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from compiler.visualize.svg.style import FONT, GRID, INK, LINE, SOFT, shortened

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: SVG units per inch in matplotlib: figures of `n / INCH` inches are n pixels wide.
INCH = 72.0
#: Chart width, equal to that of a rendered page, and text sizes, in pixels.
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
    """Figure with layout helpers; created by `chart`.

    Parameters
    ----------
    figure : Figure
        Matplotlib figure; its units are pixels of 1/72 inch.
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
        """Add a line of text; y is the baseline in pixels from the top."""
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
            # The layout font may lack glyphs, such as Chinese; the font of the viewer need not.
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
    """Create a chart of a size in pixels, rendered when the block ends."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        yield Chart(Figure(figsize=(width / INCH, height / INCH), dpi=INCH, facecolor="#ffffff"), title)


def count_axis(axis: Any, label: str) -> None:
    """Label an axis (`axes.xaxis` or `axes.yaxis`) of integers: few ticks, with thousands separators."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 5, 10], integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_label_text(label)


def round_ticks(end: int, count: int) -> list[int]:
    """Return about `count` round numbers from 0 to an end."""
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(nbins=count, steps=[1, 2, 5, 10], integer=True).tick_values(0, max(end, 1))
    return [int(tick) for tick in ticks if 0 <= tick <= end]


def key_rows(names: Sequence[str]) -> float:
    """Return the height in pixels of the key drawn by `layer_key`."""
    return _KEY_ROW * -(-len(names) // _KEY_COLUMNS)


def layer_key(drawn: Chart, top: float, entries: Sequence[tuple[str, tuple[str, str]]]) -> None:
    """Draw a key of layers below a chart.

    Parameters
    ----------
    drawn : Chart
        Chart to draw on.
    top : float
        Distance in pixels from the top of the chart.
    entries : sequence
        Name, fill and outline colour of each layer.
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
