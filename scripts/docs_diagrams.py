"""Block diagrams of the chip and of the compiler for the documentation."""

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.visualize.svg import COLOURS, INK, SMALL, SOFT, Point, Svg, point

#: Text sizes of titles and lines, line spacing, and corner radius of edges, in pixels.
_TITLE, _LINE, _STEP, _RADIUS = 11.5, 9.5, 12.5, 6.0


@dataclass(frozen=True)
class Box:
    """Box of a block diagram.

    Parameters
    ----------
    x, y : float
        Top-left corner, in pixels.
    w, h : float
        Width and height, in pixels.
    colour : str
        Node type that determines the colors, a key of `COLOURS`.
    title : str
        First line of text, in bold.
    text : tuple of str
        Further lines of text.
    """

    x: float
    y: float
    w: float
    h: float
    colour: str
    title: str
    text: tuple[str, ...] = ()

    def draw(self, svg: Svg) -> None:
        """Draw the box with its text centered."""
        fill, outline = COLOURS[self.colour]
        svg.box(self.x, self.y, self.w, self.h, fill, outline)
        middle = self.x + self.w / 2
        y = self.y + (self.h - _STEP * len(self.text)) / 2 + 4
        svg.text(middle, y, self.title, _TITLE, bold=True, fill=INK, anchor="middle")
        for number, line in enumerate(self.text, 1):
            svg.text(middle, y + _STEP * number, line, _LINE, fill=SOFT, anchor="middle")


@dataclass(frozen=True)
class Edge:
    """Edge of a block diagram: a line of horizontal and vertical segments that ends in an arrow.

    Parameters
    ----------
    points : sequence of Point
        Start, corners and end, in pixels.
    both : bool
        True to draw an arrow at the start as well.
    """

    points: Sequence[Point]
    both: bool = False

    def draw(self, svg: Svg) -> None:
        """Draw the line with rounded corners."""
        svg.curve(_path(self.points))
        if self.both:
            svg.curve(_path(self.points[::-1]))
        for x, y in self.points:
            svg.room(x, y)


def _path(points: Sequence[Point]) -> str:
    """Return the SVG path through points, with rounded corners."""
    path = f"M{point(points[0])}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        path += f" L{point(_toward(corner, before))} Q{point(corner)} {point(_toward(corner, after))}"
    return f"{path} L{point(points[-1])}"


def _toward(corner: Point, other: Point) -> Point:
    """Return the point at a distance of one corner radius from a corner, in the direction of another point."""
    (x, y), (to_x, to_y) = corner, other
    share = _RADIUS / (abs(to_x - x) + abs(to_y - y))
    return x + (to_x - x) * share, y + (to_y - y) * share


def _draw(
    title: str, boxes: Sequence[Box], edges: Sequence[Edge], labels: Sequence[tuple[float, float, str]]
) -> str:
    """Return a diagram as SVG; a label consists of x and y of the left end of its baseline, and its text."""
    svg = Svg(title)
    for edge in edges:
        edge.draw(svg)
    for box in boxes:
        box.draw(svg)
    for x, y, text in labels:
        svg.text(x, y, text, SMALL, fill=SOFT)
    return svg.render()


def chip_diagram() -> str:
    """Return the block diagram of the chip."""
    boxes = [
        Box(16, 16, 88, 46, "input", "host"),
        Box(
            190,
            16,
            620,
            46,
            "control",
            "control",
            ("registers, command ring, dispatch, writable instruction store, segments, completion, traps",),
        ),
        Box(
            190, 96, 470, 46, "control", "sequencer core", ("registers, loops, calls, bounds checks, issue",)
        ),
        Box(690, 96, 120, 46, "buffer", "counters", ("events by tag",)),
        Box(190, 176, 620, 30, "control", "four command queues and the semaphores"),
        Box(16, 240, 88, 46, "input", "DRAM"),
        Box(190, 240, 120, 46, "load", "LOAD", ("DRAM to chip",)),
        Box(350, 240, 120, 46, "matrix", "MATRIX", ("systolic array",)),
        Box(530, 240, 120, 46, "fuse", "FUSE", ("requantize, table, ...",)),
        Box(690, 240, 120, 46, "store", "STORE", ("chip to DRAM",)),
        Box(190, 340, 230, 46, "buffer", "scratchpad", ("activations, weights",)),
        Box(436, 340, 124, 46, "buffer", "accumulator", ("sums, int32",)),
        Box(592, 340, 148, 46, "buffer", "parameters, tables", ("slots read by FUSE",)),
    ]
    edges = [
        Edge([(104, 32), (190, 32)], both=True),
        Edge([(60, 240), (60, 96), (148, 96), (148, 50), (190, 50)], both=True),
        Edge([(425, 62), (425, 96)]),
        Edge([(750, 96), (750, 62)]),
        Edge([(425, 142), (425, 176)]),
        *(Edge([(x, 206), (x, 240)]) for x in (250, 410, 590, 750)),
        Edge([(104, 263), (190, 263)]),
        Edge([(230, 286), (230, 340)]),
        Edge([(280, 286), (280, 312), (700, 312), (700, 340)]),
        Edge([(380, 340), (380, 286)]),
        Edge([(453, 286), (453, 340)], both=True),
        Edge([(545, 340), (545, 286)], both=True),
        Edge([(630, 340), (630, 286)]),
        Edge([(576, 286), (576, 408), (330, 408), (330, 386)], both=True),
        Edge([(240, 386), (240, 426), (765, 426), (765, 286)]),
        Edge([(810, 263), (826, 263), (826, 446), (60, 446), (60, 286)]),
    ]
    labels = [
        (112, 26, "AXI4-Lite, irq"),
        (66, 168, "ring, programs,"),
        (66, 180, "completion records"),
        (431, 83, "start, instructions"),
        (431, 163, "unit commands"),
        (136, 257, "AXI4"),
        (66, 440, "AXI4"),
    ]
    return _draw("Block diagram of the chip", boxes, edges, labels)


def compiler_diagram() -> str:
    """Return the block diagram of the compiler."""
    rows = [
        [
            ("input", "model file", ".tflite, .onnx, PyTorch"),
            ("layer", "front end", ""),
            ("buffer", "graph", "tensors, operators"),
            ("layer", "passes", "folding, unrolling"),
            ("layer", "partition", "host or accelerator"),
        ],
        [
            ("layer", "lowering", "operators to layers"),
            ("buffer", "layers", "with epilogues"),
            ("layer", "code generation", ""),
            ("buffer", "tile steps", "unit commands"),
            ("layer", "linearization", "one sequence"),
        ],
        [
            ("layer", "buffer allocation", "addresses"),
            ("layer", "semaphores", "order between units"),
            ("layer", "loop re-rolling", "repeated commands"),
            ("layer", "emission", "instructions"),
            ("output", "programs", "validated, then loaded"),
        ],
    ]
    x0, dx, w, h, tops = 16.0, 166.0, 132.0, 44.0, (16.0, 140.0, 226.0)
    boxes = [
        Box(x0 + dx * i, tops[j], w, h, colour, title, (text,) if text else ())
        for j, row in enumerate(rows)
        for i, (colour, title, text) in enumerate(row)
    ]
    across = range(len(rows[0]) - 1)
    edges = [
        Edge([(x0 + dx * i + w, tops[j] + h / 2), (x0 + dx * (i + 1), tops[j] + h / 2)])
        for j in range(len(rows))
        for i in across
    ]
    first, last = x0 + w / 2, x0 + dx * len(across) + w / 2
    for j in range(len(rows) - 1):  # from the end of a row to the start of the next
        low, turn = tops[j] + h, tops[j + 1] - 22
        edges.append(Edge([(last, low), (last, turn), (first, turn), (first, tops[j + 1])]))
    # Inputs from outside the sequence, between the rows.
    edges.append(
        Edge([(last - 40, tops[0] + h), (last - 40, tops[0] + h + 26), (x0 + dx * 3 + w, tops[0] + h + 26)])
    )
    boxes.append(Box(x0 + dx * 3, tops[0] + h + 10, w, 32, "host", "numpy on the host"))
    code = x0 + dx * 2 + w / 2
    edges.append(Edge([(code, tops[0] + h + 42), (code, tops[1])]))
    boxes.append(Box(x0 + dx * 2, tops[0] + h + 10, w, 32, "constant", "schedule"))
    return _draw("Stages of the compiler", boxes, edges, [])


def diagrams() -> dict[str, str]:
    """Return the SVG files by their names in docs/pictures."""
    return {"hardware.svg": chip_diagram(), "compiler.svg": compiler_diagram()}
