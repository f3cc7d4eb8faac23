"""What pictures over time share: the axis, and a colour for each layer."""

from colorsys import hls_to_rgb
from math import log10

from compiler.draw.style import SOFT
from compiler.draw.svg import Svg

#: How long the axis is.
PIXELS = 1080.0


class Axis:
    """Cycles, or something else that is counted, from left to right.

    Parameters
    ----------
    left : float
        Where cycle 0 is.
    cycles : int
        How many there are.
    unit : str
        What is counted.
    """

    def __init__(self, left: float, cycles: int, unit: str = "cycles"):
        self.left, self.cycles, self.unit = left, max(cycles, 1), unit

    def at(self, cycle: float) -> float:
        """Where a cycle is."""
        return self.left + self.long(cycle)

    def long(self, cycles: float) -> float:
        """How long so many cycles are."""
        return cycles * PIXELS / self.cycles

    def draw(self, svg: Svg, top: float, bottom: float) -> None:
        """Lines at round numbers, and the numbers under them."""
        step = round_step(self.cycles, 12)
        for tick in range(int(self.cycles / step) + 1):
            x = self.at(tick * step)
            svg.line([(x, top), (x, bottom)], "#e3e6ea", 0.8)
            svg.text(x, bottom + 14, f"{tick * step:,.0f}", 9, fill=SOFT, anchor="middle")
        svg.text(self.left + PIXELS, bottom + 28, self.unit, 9, fill=SOFT, anchor="end")
        svg.room(self.left + PIXELS, bottom + 30)


def round_step(most: float, count: int) -> float:
    """The least distance of round numbers of which so many at most are up to `most`."""
    step = 10 ** int(log10(most))
    return next(
        size for size in (step / 10, step / 5, step / 2, step, 2 * step, 5 * step) if most / size <= count
    )


def hue(index: int) -> tuple[str, str]:
    """Fill and outline: neighbours differ."""
    angle = (0.58 + index * 0.381966) % 1
    return _hex(*hls_to_rgb(angle, 0.74, 0.55)), _hex(*hls_to_rgb(angle, 0.42, 0.5))


def _hex(*parts: float) -> str:
    return "#" + "".join(f"{round(part * 255):02x}" for part in parts)
