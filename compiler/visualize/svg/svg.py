"""Reproducible SVG writer."""

from collections.abc import Sequence
from html import escape

from compiler.visualize.svg.style import FONT, INK, LINE, SOFT, text_width

Point = tuple[float, float]
#: Pixels: width of a rendered page, and minimum legible text size.
PAGE, SMALL = 830.0, 9.0
_SWATCH = 16.0


def point(at: Point) -> str:
    """Format the coordinates of a point."""
    return f"{number(at[0])} {number(at[1])}"


def number(value: float) -> str:
    """Format a coordinate with at most one decimal."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


class Svg:
    """SVG picture that grows with its contents; the background is white on any page.

    Parameters
    ----------
    title : str
        Accessible title of the picture.
    """

    def __init__(self, title: str):
        self.title, self.parts = title, list[str]()
        self.arrows: dict[str, str] = {}  # colour -> name of its arrow
        self.width = self.height = 0.0

    def room(self, x: float, y: float) -> None:
        """Extend the picture to include a point."""
        self.width, self.height = max(self.width, x), max(self.height, y)

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        fill: str,
        outline: str = "none",
        *,
        radius: float = 5,
        dashed: bool = False,
        tip: str = "",
        stroke: float = 1.2,
    ) -> None:
        """Draw a rectangle."""
        more = ' stroke-dasharray="4 3"' if dashed else ""
        shape = (
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(w)}" height="{number(h)}" rx="{number(radius)}" '
            f'fill="{fill}" stroke="{outline}" stroke-width="{number(stroke)}"{more}'
        )
        self.parts.append(f"{shape}><title>{escape(tip)}</title></rect>" if tip else f"{shape}/>")
        self.room(x + w, y + h)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 11,
        *,
        fill: str = INK,
        bold: bool = False,
        anchor: str = "start",
        halo: bool = False,
    ) -> None:
        """Draw a line of text; y is its baseline."""
        more = f' x="{number(x)}" y="{number(y)}" font-size="{number(size)}"'
        more += ' font-weight="600"' if bold else ""
        more += f' text-anchor="{anchor}"' if anchor != "start" else ""
        if halo:
            self.parts.append(f'<text{more} stroke="#ffffff" stroke-width="3">{escape(text)}</text>')
        self.parts.append(f'<text{more} fill="{fill}">{escape(text)}</text>')

    def key(
        self, x: float, y: float, entries: Sequence[tuple[str, str, str, bool]], width: float = PAGE
    ) -> None:
        """Draw a colour key, wrapped to a width; y is the baseline of the first line.

        Parameters
        ----------
        x, y : float
            Left end of the first line, in pixels.
        entries : sequence
            Name, fill, outline and whether the outline is dashed, for each entry.
        width : float
            Right end of the lines, in pixels from the left of the picture.
        """
        left = x
        for name, fill, outline, dashed in entries:
            room = _SWATCH + 5 + text_width(name, SMALL)
            if x > left and x + room > width:
                x, y = left, y + 16
            self.box(x, y - 9, _SWATCH, 10, fill, outline, radius=2, dashed=dashed)
            self.text(x + _SWATCH + 5, y, name, SMALL, fill=SOFT)
            self.room(x + room, y + 4)
            x += room + 14

    def line(
        self, points: Sequence[Point], colour: str = LINE, width: float = 1.0, dashed: bool = False
    ) -> None:
        """Draw a line through points."""
        path = "M" + " L".join(f"{number(x)} {number(y)}" for x, y in points)
        self._path(path, colour, width, dashed=dashed)

    def curve(
        self, path: str, colour: str = LINE, width: float = 1.2, *, dashed: bool = False, tip: str = ""
    ) -> None:
        """Draw a path that ends in an arrow."""
        name = self.arrows.setdefault(colour, f"arrow{len(self.arrows)}")
        self._path(path, colour, width, dashed=dashed, more=f' marker-end="url(#{name})"', tip=tip)

    def _path(
        self, path: str, colour: str, width: float, *, dashed: bool = False, more: str = "", tip: str = ""
    ) -> None:
        more += ' stroke-dasharray="4 3"' if dashed else ""
        shape = f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{number(width)}"{more}'
        self.parts.append(f"{shape}><title>{escape(tip)}</title></path>" if tip else f"{shape}/>")

    def render(self, margin: float = 16) -> str:
        """Return the SVG file as text."""
        w, h = number(self.width + margin), number(self.height + margin)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" '
            f'font-family="{escape(FONT)}" role="img">'
        )
        arrows = "".join(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'markerUnits="userSpaceOnUse" orient="auto">'
            f'<path d="M0.5 0.8 L7.2 4 L0.5 7.2 z" fill="{colour}"/></marker>'
            for colour, name in self.arrows.items()
        )
        ground = f'<rect width="{w}" height="{h}" rx="8" fill="#ffffff"/>'
        lines = [
            head,
            f"<title>{escape(self.title)}</title>",
            f"<defs>{arrows}</defs>",
            ground,
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"
