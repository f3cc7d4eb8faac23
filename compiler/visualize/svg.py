"""Reproducible SVG writer, with colors and text widths for all pictures."""

from collections.abc import Sequence
from colorsys import hls_to_rgb
from html import escape
from typing import Any
from unicodedata import east_asian_width

from compiler.profile.counters import THROTTLED
from compiler.util.tables import shorten_middle
from hw.isa.counters import CAUSES

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


#: Fill and outline of each node kind.
COLOURS = {
    "input": ("#e8f1ec", "#4a7c62"),
    "output": ("#e8f1ec", "#4a7c62"),
    "constant": ("#f5f1e6", "#a08a52"),
    "operator": ("#eaf1fb", "#4472b5"),
    "host": ("#fbe9e7", "#c0503c"),
    "control": ("#fbf3d9", "#b58a1b"),
    "guard": ("#f8e6f0", "#a8447f"),
    "layer": ("#eaf1fb", "#4472b5"),
    "buffer": ("#f1f2f4", "#7b8491"),
    "load": ("#dff2ea", "#2c8c69"),
    "matrix": ("#dfeafb", "#2f67c0"),
    "fuse": ("#fdeedd", "#d07f1f"),
    "store": ("#f0e6f8", "#8455ab"),
    "program": ("#eaf1fb", "#4472b5"),
}
#: Okabe and Ito's color-blind safe palette ("Color Universal Design", 2008).
OKABE_ITO = {
    "green": "#009e73",
    "sky": "#56b4e9",
    "yellow": "#f0e442",
    "orange": "#e69f00",
    "vermilion": "#d55e00",
    "blue": "#0072b2",
    "purple": "#cc79a7",
}
#: One color per cause of cycles; the two grays in the middle are for causes that the chip never counts, and
#: black is for cycles in which its clock is stalled.
CAUSE_COLOURS: dict[str, str] = dict(
    zip(
        (*CAUSES, THROTTLED),
        (
            *(OKABE_ITO[name] for name in ("green", "sky", "yellow", "orange")),
            "#4d4d4d",
            "#808080",
            *(OKABE_ITO[name] for name in ("vermilion", "blue", "purple")),
            "#c9c9c9",
            "#000000",
        ),
        strict=True,
    )
)
#: Paler colors for operators with little computation.
QUIET = ("#f4f5f7", "#8a93a0")
#: Operators that run on the array.
HEAVY = ("conv2d", "depthwise_conv2d", "conv_transpose2d", "dense", "block_dense", "matmul")

INK, SOFT, LINE, GRID = "#1f2733", "#5d6773", "#97a1ae", "#e3e6ea"


class Svg:
    """SVG picture that grows with its contents and always has a white background.

    Parameters
    ----------
    title : str
        Accessible title of the picture.
    """

    def __init__(self, title: str):
        self.title, self.parts = title, list[str]()
        self.arrows: dict[str, str] = {}  # color -> name of its arrow
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
        """Draw a line of text, whose baseline is at y."""
        more = f' x="{number(x)}" y="{number(y)}" font-size="{number(size)}"'
        more += ' font-weight="600"' if bold else ""
        more += f' text-anchor="{anchor}"' if anchor != "start" else ""
        if halo:
            self.parts.append(f'<text{more} stroke="#ffffff" stroke-width="3">{escape(text)}</text>')
        self.parts.append(f'<text{more} fill="{fill}">{escape(text)}</text>')

    def key(
        self, x: float, y: float, entries: Sequence[tuple[str, str, str, bool]], width: float = PAGE
    ) -> None:
        """Draw a color key, wrapped to a width; the baseline of its first line is at y.

        Parameters
        ----------
        x, y : float
            Left end of the baseline of the first line, in pixels.
        entries : sequence
            Name, fill color and outline color of each entry, and True if its outline is dashed.
        width : float
            Right end of the lines, in pixels from the left edge of the picture.
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
        """Draw straight lines that connect points in order."""
        path = "M" + " L".join(f"{number(x)} {number(y)}" for x, y in points)
        self._path(path, colour, width, dashed=dashed)

    def curve(
        self, path: str, colour: str = LINE, width: float = 1.2, *, dashed: bool = False, tip: str = ""
    ) -> None:
        """Draw a path, in SVG syntax, that ends in an arrow."""
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


FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"

#: Character widths of DejaVu Sans in thousandths of the font size.
_CHARACTERS = "".join(map(chr, range(32, 127))) + "…≈µ"
_REGULAR = dict(
    zip(
        _CHARACTERS,
        (
            318,
            401,
            460,
            838,
            636,
            950,
            780,
            275,
            390,
            390,
            500,
            838,
            318,
            361,
            318,
            337,
            636,
            636,
            636,
            636,
            636,
            636,
            636,
            636,
            636,
            636,
            337,
            337,
            838,
            838,
            838,
            531,
            1000,
            684,
            686,
            698,
            770,
            632,
            575,
            775,
            752,
            295,
            295,
            656,
            557,
            863,
            748,
            787,
            603,
            787,
            695,
            635,
            611,
            732,
            684,
            989,
            685,
            611,
            685,
            390,
            337,
            390,
            838,
            500,
            500,
            613,
            635,
            550,
            635,
            615,
            352,
            635,
            634,
            278,
            278,
            579,
            278,
            974,
            634,
            612,
            635,
            635,
            411,
            521,
            392,
            634,
            592,
            818,
            592,
            592,
            525,
            636,
            337,
            636,
            838,
            1000,
            838,
            636,
        ),
        strict=True,
    )
)
_BOLD = dict(
    zip(
        _CHARACTERS,
        (
            348,
            456,
            521,
            838,
            696,
            1002,
            872,
            306,
            457,
            457,
            523,
            838,
            380,
            415,
            380,
            365,
            696,
            696,
            696,
            696,
            696,
            696,
            696,
            696,
            696,
            696,
            400,
            400,
            838,
            838,
            838,
            580,
            1000,
            774,
            762,
            734,
            830,
            683,
            683,
            821,
            837,
            372,
            372,
            775,
            637,
            995,
            837,
            850,
            733,
            850,
            770,
            720,
            682,
            812,
            774,
            1103,
            771,
            724,
            725,
            457,
            365,
            457,
            838,
            500,
            500,
            675,
            716,
            593,
            716,
            678,
            435,
            716,
            712,
            343,
            343,
            665,
            343,
            1042,
            712,
            687,
            716,
            716,
            493,
            595,
            478,
            712,
            652,
            924,
            645,
            652,
            582,
            712,
            365,
            712,
            838,
            1000,
            838,
            736,
        ),
        strict=True,
    )
)
#: Widths of other characters: letters, and double-width characters.
_OTHER, _WIDEST = 800, 1000


def colours(data: dict[str, Any]) -> tuple[str, str]:
    """Return the fill color and the outline color of a node."""
    ops = data.get("ops", [data.get("op", "")])
    if data["kind"] in ("operator", "layer") and not any(op in HEAVY for op in ops):
        return QUIET
    return COLOURS[data["kind"]]


def hue(index: int) -> tuple[str, str]:
    """Return the fill color and the outline color of a layer by its index; adjacent layers get different colors."""
    angle = (0.58 + index * 0.381966) % 1
    return _hex(*hls_to_rgb(angle, 0.74, 0.55)), _hex(*hls_to_rgb(angle, 0.42, 0.5))


def _hex(*parts: float) -> str:
    return "#" + "".join(f"{round(part * 255):02x}" for part in parts)


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a text in DejaVu Sans; this is the widest common sans-serif font, so the text fits in all."""
    widths = _BOLD if bold else _REGULAR
    return sum(widths.get(c, _WIDEST if east_asian_width(c) in "WF" else _OTHER) for c in text) * size / 1000


def wrapped(text: str, width: float, size: float) -> list[str]:
    """Divide a text at spaces into lines of at most a given width; a longer word is a line of its own."""
    lines, line = list[str](), ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and text_width(longer, size) > width:
            lines.append(line)
            longer = word
        line = longer
    return [*lines, line]


def shortened(text: str, width: float, size: float, *, bold: bool = False) -> str:
    """Shorten a text to a maximum width by removing its middle, since names often differ only at their ends."""
    return shorten_middle(text, lambda each: text_width(each, size, bold=bold) <= width + 0.5)
