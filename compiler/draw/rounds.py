"""Figures that change from round to round, as lines."""

from collections.abc import Mapping, Sequence

from compiler.draw.axes import hue
from compiler.draw.style import SOFT
from compiler.draw.svg import Svg

_LEFT, _TOP, _STEP, _HEIGHT = 70.0, 60.0, 110.0, 260.0
_LINES = 6


def draw_rounds(title: str, unit: str, lines: Mapping[str, Sequence[float]]) -> str:
    """A picture of some figures, by name: of each round, the first of which is number 0.

    Parameters
    ----------
    title, unit : str
        What is shown; what the figures are.
    lines : mapping
        Figures of each round, as many for each name, at least one.
    """
    svg, figures = Svg(title), [each for line in lines.values() for each in line]
    low, high = min(figures), max(figures)
    margin = (high - low) * 0.08 or 0.01
    low, high = low - margin, high + margin
    rounds = max(map(len, lines.values()))
    wide = _STEP * max(rounds - 1, 1)

    def at(number: int, figure: float) -> tuple[float, float]:
        return _LEFT + number * _STEP, _TOP + (high - figure) / (high - low) * _HEIGHT

    svg.text(_LEFT - 40, 24, title, 13, bold=True)
    svg.text(_LEFT - 40, 42, unit, 10, fill=SOFT)
    for part in range(_LINES):
        figure = low + (high - low) * part / (_LINES - 1)
        (x, y) = at(0, figure)
        svg.line([(x, y), (x + wide, y)], "#e3e6ea", 0.8)
        svg.text(x - 8, y + 3, f"{figure:.3f}", 9, fill=SOFT, anchor="end")
    for number in range(rounds):
        svg.text(at(number, low)[0], _TOP + _HEIGHT + 18, f"round {number}", 9, fill=SOFT, anchor="middle")
    for index, (name, line) in enumerate(lines.items()):
        colour, points = hue(index)[1], [at(*each) for each in enumerate(line)]
        if len(points) > 1:
            svg.line(points, colour, 2)
        for (x, y), figure in zip(points, line, strict=True):
            svg.box(x - 3.5, y - 3.5, 7, 7, colour, radius=3.5, tip=f"{name}: {figure:.4f}")
        x, y = points[-1]
        svg.text(x + 10, y + 3.5, f"{name} {line[-1]:.3f}", 10, fill=colour)
    svg.room(_LEFT + wide + 190, _TOP + _HEIGHT + 24)
    return svg.render()
