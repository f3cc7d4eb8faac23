"""Flow chart of a view, which runs from top to bottom, in columns so that the picture is wide rather than tall."""

import re
from itertools import pairwise
from typing import Any

import networkx as nx

from compiler.visualize.layered_layout import Key, Layered, cut, folded, layered
from compiler.visualize.svg import (
    INK,
    LINE,
    PAGE,
    QUIET,
    SMALL,
    SOFT,
    Point,
    Svg,
    colours,
    point,
    shortened,
    text_width,
    wrapped,
)
from compiler.visualize.view import View, size

_TITLE, _LINE = 11.5, 9.5
_PAD, _STEP, _MAX_WIDTH = 9.0, 12.5, 230.0
_GAP, _DOWN = 22.0, 34.0
_GUTTER = 26.0
#: Display names of node kinds that are not self-explanatory.
_CALLED = {"host": "on the host", "control": "control flow"}
#: Target aspect ratio (width over height).
_SHAPE = 2.0
_TOP = 58.0
#: Least width to which lines below the picture are wrapped.
_SUMMARY_WIDTH = 640.0


def draw_flow(view: View) -> str:
    """Draw a view as a flow chart in SVG."""
    return _Flow(folded(view)).draw()


class _Flow:
    def __init__(self, view: View):
        self.view = view
        self.graph = nx.DiGraph()
        self.bytes: dict[tuple[Key, Key], int] = {}
        self.tips: dict[tuple[Key, Key], str] = {}
        self.lines: dict[Key, list[str]] = {}
        self._fold()
        self.width = {key: self._width(key) for key in self.graph}
        self.layout: Layered = layered(self.graph, self.width, _GAP)
        self.heights = [
            max((self._height(key) for key in rank if key in self.lines), default=0)
            for rank in self.layout.ranks
        ]
        self.svg = Svg(f"{view.graph['name']}: {view.graph['stage']}")
        self.at: dict[Key, Point] = {}
        self.column: dict[int, int] = {}
        self.edges: list[tuple[float, float]] = []  # left and right of each column
        self.feet: list[float] = []
        self.rank: dict[Key, int] = {}
        self.turns: dict[int, int] = {}  # number of edges that left each column so far

    def _fold(self) -> None:
        """Replace each constant with a line of text in the node that reads it."""
        folded: dict[Key, int] = {}
        for key, data in self.view.nodes(data=True):
            if data["kind"] != "constant":
                self.graph.add_node(key)
                self.lines[key] = [line for line in data["text"] if line != data["label"]]
                self.lines[key] += [data["group"]] if data["group"] else []
        for source, target, edge in self.view.edges(data=True):
            if edge.get("back"):
                self.lines[target].append("again while its condition holds")
            elif source not in self.graph:
                folded[target] = folded.get(target, 0) + edge["bytes"]
            else:
                self.graph.add_edge(source, target)
                self.bytes[source, target] = self.bytes.get((source, target), 0) + edge["bytes"]
                cost = f"{edge['bytes']:,} bytes, {edge['cycles']:,} cycles, {edge['pj'] / 1e3:,.1f} nJ"
                known = self.tips.get((source, target))
                self.tips[source, target] = "\n".join(
                    [*([known] if known else []), f"{edge['tensor']}: {cost}"]
                )
        for key, total in folded.items():
            if not any(line.startswith("weights") for line in self.lines[key]):
                self.lines[key].append(f"constants {size(total)}")

    def _data(self, key: Key) -> dict[str, Any]:
        return self.view.nodes[key]

    def _width(self, key: Key) -> float:
        lines = [text_width(line, _LINE) for line in self.lines[key]]
        title = text_width(self._data(key)["label"], _TITLE, bold=True)
        return min(max([title, *lines, 60]) + 2 * _PAD, _MAX_WIDTH)

    def _height(self, key: Key) -> float:
        return 2 * _PAD + 8 + _STEP * len(self.lines[key])

    def draw(self) -> str:
        """Draw edges, then nodes on top."""
        self._columns()
        for edge, route in self.layout.routes.items():
            self._edge(edge, route)
        self._labels()
        for key in self.graph:
            self._box(key)
        about = self.view.graph
        self.svg.text(16, 28, about["name"], 16, bold=True)
        self.svg.text(16, 45, f"{about['stage']}, {about['target']}", 11, fill=SOFT)
        self.svg.room(16 + text_width(about["name"], 16, bold=True), 50)
        self.svg.key(16, self.svg.height + 24, self._key(), max(self.svg.width, 320))
        self._summary(about.get("summary", []))
        return self.svg.render()

    def _summary(self, lines: list[str]) -> None:
        """Add lines of text below the picture, in columns where they have several spaces, wrapped to its width."""
        y, width = self.svg.height + 20, max(self.svg.width, _SUMMARY_WIDTH)
        cells = [re.split(r" {2,}", line.strip()) for line in lines]
        columns = max(map(len, cells), default=0)
        widths = [
            max(text_width(row[column], _LINE) for row in cells if len(row) == columns)
            for column in range(columns)
        ]
        for row in cells:
            if len(row) == columns > 1:
                x = 16.0
                for text, room in zip(row, widths, strict=True):
                    self.svg.text(x, y, text, _LINE, fill=INK)
                    x += room + 16
                self.svg.room(x, y)
                y += _STEP
                continue
            for text in wrapped(" ".join(row), width - 32, _LINE):
                self.svg.text(16, y, text, _LINE, fill=SOFT)
                self.svg.room(16 + text_width(text, _LINE), y)
                y += _STEP

    def _key(self) -> list[tuple[str, str, str, bool]]:
        """Return the legend entries for the kinds of nodes in the picture."""
        found: dict[str, tuple[str, str]] = {}
        for key in self.graph:
            data = self._data(key)
            kind = data["kind"]
            if kind in ("operator", "layer"):
                kind = f"{kind} without the array" if colours(data) == QUIET else f"{kind} on the array"
            elif kind in ("input", "output"):
                kind = "input, output"
            found.setdefault(_CALLED.get(kind, kind), colours(data))
        return [(name, *pair, False) for name, pair in found.items()]

    def _columns(self) -> None:
        """Arrange ranks in columns."""
        ranks = self.layout.ranks
        self.rank = {key: number_ for number_, keys in enumerate(ranks) for key in keys}
        total = sum(self.heights) + _DOWN * len(self.heights)
        low, high = self._extent([key for rank in ranks for key in rank])
        wide = max(high - low + 2 * _GUTTER, 1)
        # A picture wider than a page would be scaled down until it is illegible.
        count = max(1, min(round((_SHAPE * total / wide) ** 0.5), int(PAGE / wide)))
        passing = [len(rank) for rank in ranks]
        for route in self.layout.routes.values():
            for key in route[:-1]:
                passing[self.rank[key]] += 1
        x = 16.0
        for piece in cut([height + _DOWN for height in self.heights], passing, count):
            x = self._column(piece, x)

    def _extent(self, rank: list[Key]) -> tuple[float, float]:
        lefts = [self.layout.x[key] - self.width.get(key, 0) / 2 for key in rank]
        rights = [self.layout.x[key] + self.width.get(key, 0) / 2 for key in rank]
        return min(lefts), max(rights)

    def _column(self, ranks: range, x: float) -> float:
        extents = [self._extent(self.layout.ranks[rank]) for rank in ranks]
        left, right = min(low for low, _ in extents), max(high for _, high in extents)
        y = _TOP
        for rank in ranks:
            self.column[rank] = len(self.edges)
            for key in self.layout.ranks[rank]:
                self.at[key] = (x + self.layout.x[key] - left, y + self.heights[rank] / 2)
            y += self.heights[rank] + _DOWN
        self.edges.append((x, x + right - left))
        self.feet.append(y - _DOWN)
        self.svg.room(x + right - left, y - _DOWN)
        return x + right - left + 2 * _GUTTER

    def _half(self, key: Key) -> float:
        return self._height(key) / 2 if key in self.lines else 0.0

    def _edge(self, edge: tuple[Key, Key], route: list[Key]) -> None:
        """Draw one edge, which is vertical where it passes a rank."""
        x, y = self.at[route[0]]
        y += self._half(route[0])
        path = f"M{point((x, y))}"
        for a, b in pairwise(route):
            to_x, middle = self.at[b]
            to_y = middle - (self._half(b) if b in self.lines else self.heights[self.rank[b]] / 2)
            turn = self.column[self.rank[a]] != self.column[self.rank[b]]
            path += (
                self._over(self.column[self.rank[a]], x, y, to_x, to_y) if turn else _down(x, y, to_x, to_y)
            )
            x, y = to_x, to_y
            if b not in self.lines:
                y = middle + self.heights[self.rank[b]] / 2
                path += f" L{point((x, y))}"
        moved = self.bytes[edge]
        self.svg.curve(
            path, LINE, 1.0 + min(moved, 1 << 18) ** 0.5 / 200, dashed=not moved, tip=self.tips[edge]
        )

    def _labels(self) -> None:
        """Add the output size of each node on a side without edges, if there is one."""
        for key in self.graph:
            routes = [
                route for edge, route in self.layout.routes.items() if edge[0] == key and self.bytes[edge]
            ]
            sides = {self._side(route[0], route[1]) for route in routes}
            if routes and not {-1, 1} <= sides:
                x, y = self.at[key]
                left = 1 in sides
                count = max(self.bytes[route[0], route[-1]] for route in routes)
                x += -6 if left else 6
                anchor = "end" if left else "start"
                self.svg.text(x, y + self._half(key) + 13, size(count), SMALL, fill=SOFT, anchor=anchor)

    def _side(self, a: Key, b: Key) -> int:
        """Return the side to which an edge turns: -1 for left, 1 for right, 0 for neither."""
        if self.column[self.rank[a]] != self.column[self.rank[b]]:
            return 1
        distance = self.at[b][0] - self.at[a][0]
        return 0 if abs(distance) < 4 else 1 if distance > 0 else -1

    def _over(self, column: int, x: float, y: float, to_x: float, to_y: float) -> str:
        """Return a path from the foot of a column to the head of the next, slightly apart from earlier such paths."""
        place = self.turns.get(column, 0)
        self.turns[column] = place + 1
        shift = 7.0 * place
        gutter = self.edges[column][1] + _GUTTER + shift - 7
        low, high, r = max(y, self.feet[column]) + 12 + shift, _TOP - 14 - shift / 2, 7.0
        self.svg.room(gutter, low)
        corners = [(x, low), (gutter, low), (gutter, high), (to_x, high)]
        points = [(x, y), *corners, (to_x, to_y)]
        path = ""
        for before, corner, after in zip(points, points[1:], points[2:], strict=False):
            start, end = _toward(corner, before, r), _toward(corner, after, r)
            path += f" L{point(start)} Q{point(corner)} {point(end)}"
        return f"{path} L{point((to_x, to_y))}"

    def _box(self, key: Key) -> None:
        data, (x, y) = self._data(key), self.at[key]
        w, h = self.width[key], self._height(key)
        fill, outline = colours(data)
        x, y = x - w / 2, y - h / 2
        tip = "\n".join([data["label"], *data["text"]])
        self.svg.box(x, y, w, h, fill, outline, tip=tip)
        self.svg.text(
            x + _PAD,
            y + _PAD + 8,
            shortened(data["label"], w - 2 * _PAD, _TITLE, bold=True),
            _TITLE,
            bold=True,
            fill=INK,
        )
        for line, text in enumerate(self.lines[key], 1):
            cut = shortened(text, w - 2 * _PAD, _LINE)
            self.svg.text(x + _PAD, y + _PAD + 8 + _STEP * line, cut, _LINE, fill=SOFT)


def _toward(corner: Point, other: Point, distance: float) -> Point:
    """Return the point at a given distance from a corner, in the direction of another point."""
    (x, y), (to_x, to_y) = corner, other
    length = max(abs(to_x - x) + abs(to_y - y), 1e-9)  # one of the two is 0
    part = min(distance / length, 0.5)
    return x + (to_x - x) * part, y + (to_y - y) * part


def _down(x: float, y: float, to_x: float, to_y: float) -> str:
    if abs(to_x - x) < 1:
        return f" L{point((to_x, to_y))}"
    bend = (to_y - y) / 2
    return f" C{point((x, y + bend))} {point((to_x, to_y - bend))} {point((to_x, to_y))}"
