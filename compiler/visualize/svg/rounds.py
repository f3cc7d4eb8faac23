"""Line chart of metrics over rounds."""

from collections.abc import Mapping, Sequence

from compiler.visualize.svg.chart import LABEL, WIDTH, chart
from compiler.visualize.svg.style import INK, OKABE_ITO, SOFT

_LEFT, _TOP, _HEIGHT, _BELOW = 64.0, 66.0, 270.0, 52.0
_KEY = 250.0
_COLOURS = tuple(OKABE_ITO[name] for name in ("blue", "vermilion", "sky", "orange", "green", "purple"))
_MARKERS = "osD^vP"


def draw_rounds(
    title: str, unit: str, lines: Mapping[str, Sequence[float]], baseline: str = "no change"
) -> str:
    """Return a chart of ratios over rounds, one line per name; rounds count from 0.

    Parameters
    ----------
    title, unit : str
        Title of the chart, and label of the values.
    lines : mapping
        Values per round, equally many for each name, at least one.
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
