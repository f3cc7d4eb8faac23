"""Drawing of a schedule with one band per layer, and one lane per memory and unit along the data path."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from compiler.visualize.svg import COLOURS, INK, SMALL, SOFT, Point, Svg, point, shortened, text_width
from compiler.visualize.view import View

#: Lanes from left to right: contents and widths, which together fit a page.
_LANES = (
    ("DRAM", 70.0),
    ("LOAD", 82.0),
    ("scratchpad", 76.0),
    ("MATRIX", 82.0),
    ("accumulator", 70.0),
    ("FUSE", 82.0),
    ("scratchpad", 70.0),
    ("STORE", 82.0),
    ("DRAM", 66.0),
)
_FETCHED, _LOAD, _READ, _WRITTEN, _STORE, _STORED = 0, 1, 2, 6, 7, 8
_UNITS = {"load": _LOAD, "matrix": 3, "fuse": 5, "store": _STORE}
#: Host work spans the lanes of all units.
_HOST = {"host": 1, "control": 1}
_WORK = _UNITS | _HOST
_ACROSS, _LEFT, _TOP = 14.0, 14.0, 92.0
_ROW, _BOX, _HEAD, _BETWEEN = 51.0, 42.0, 24.0, 6.0
_NAME, _PITCH = 11.0, 11.5
#: Legend of box colors; units are labeled above their lanes.
_KEY = {
    "constant": "constants",
    "input": "input, output",
    "buffer": "tile in a memory",
    "host": "on the host",
    "control": "control flow",
}


@dataclass
class _Item:
    """Box in a band, which shows a node of the band, or a tensor from another band."""

    key: str
    lane: int
    made_elsewhere: bool = False
    host: bool = False
    row: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        """Width of the box: that of its lane, or for host work, that of all lanes from the first to the last unit."""
        lanes = _LANES[1:8] if self.host else _LANES[self.lane : self.lane + 1]
        return sum(width + _ACROSS for _, width in lanes) - _ACROSS


def draw_lanes(view: View) -> str:
    """Draw a schedule as swim lanes in SVG."""
    return _Lanes(view).draw()


class _Lanes:
    def __init__(self, view: View):
        self.view, self.svg = view, Svg(f"{view.graph['name']}: the schedule")
        self.layers = list(dict.fromkeys(d["group"] for _, d in view.nodes(data=True) if d["kind"] in _WORK))
        self.order = {name: number_ for number_, name in enumerate(self.layers)}
        self.number = {key: number_ for number_, key in enumerate(view)}
        self.band: set[str] = set()
        self.starts: list[float] = []
        at = _LEFT
        for _, width in _LANES:
            self.starts.append(at)
            at += width + _ACROSS
        self.right = at - _ACROSS

    def draw(self) -> str:
        """Draw the lane headings, then all bands."""
        about = self.view.graph
        self.svg.text(16, 28, about["name"], 16, bold=True)
        self.svg.text(
            16, 45, f"scheduled, {about['target']}: what moves where, a band for each layer", 11, fill=SOFT
        )
        y = _TOP
        head = len(self.svg.parts)
        for number_, layer in enumerate(self._sorted()):
            y = self._band(layer, y, shaded=number_ % 2 == 0)
        lanes = Svg("")
        for (name, width), x in zip(_LANES, self.starts, strict=True):
            unit = name.lower() in _UNITS
            fill = COLOURS[name.lower()][0] if unit else "#eceef1"
            lanes.box(x - 4, _TOP - 30, width + 8, 20, fill, "none", radius=4)
            lanes.text(
                x + width / 2, _TOP - 16, name, SMALL, bold=unit, anchor="middle", fill=INK if unit else SOFT
            )
        self.svg.parts[head:head] = lanes.parts
        kinds = {data["kind"] for _, data in self.view.nodes(data=True)}
        key = [(name, *COLOURS[kind], False) for kind, name in _KEY.items() if kind in kinds]
        self.svg.key(16, self.svg.height + 24, [*key, ("made by another layer", *COLOURS["buffer"], True)])
        return self.svg.render()

    def _sorted(self) -> list[str]:
        """Return the layers in the order in which their computation starts, regardless of early loads."""
        first: dict[str, int] = {}
        for number_, (_, data) in enumerate(self.view.nodes(data=True)):
            if data["kind"] in _WORK and data["kind"] != "load":
                first.setdefault(data["group"], number_)
        return sorted(self.layers, key=lambda name: first.get(name, 0))

    def _band(self, layer: str, y: float, *, shaded: bool) -> float:
        units = [
            key
            for key, data in self.view.nodes(data=True)
            if data["group"] == layer and data["kind"] in _WORK
        ]
        self.band = set(units)
        kinds = {key: self.view.nodes[key]["kind"] for key in units}
        items = {key: _Item(key, _WORK[kind], host=kind in _HOST) for key, kind in kinds.items()}
        for key in units:
            self._buffers(items, key, written=False)
        for key in units:
            self._buffers(items, key, written=True)
        self._rows(items, units)
        height = _HEAD + (max(item.row for item in items.values()) + 1) * _ROW + _BETWEEN
        if shaded:
            self.svg.box(8, y, self.right, height, "#f8f9fb", "none", radius=6)
        for item in items.values():
            item.x, item.y = self.starts[item.lane], y + _HEAD + _ROW * (item.row + 0.5)
        busy = self._busy(units)
        name = shortened(layer, self.right - 40 - text_width(busy, SMALL), _NAME, bold=True)
        self.svg.text(_LEFT, y + 17, name, _NAME, bold=True)
        self.svg.text(_LEFT + text_width(name, _NAME, bold=True) + 12, y + 17, busy, SMALL, fill=SOFT)
        for key in units:
            self._edges(items, key)
        for item in items.values():
            self._box(item, layer)
        self.svg.room(self.right, y + height)
        return y + height

    def _rows(self, items: dict[str, _Item], units: list[str]) -> None:
        """Assign rows to boxes, so that a transfer is next to its source and destination."""
        placed: set[str] = set()
        taken: set[tuple[int, int]] = set()

        def place(key: str, row: int) -> None:
            """Put a box into a row, or if the row is taken, into the next free row of its lane."""
            item = items[key]
            if key not in placed:
                while (item.lane, row) in taken:
                    row += 1
                item.row = row
                placed.add(key)
                taken.update((lane, row) for lane in (range(_LOAD, _STORED) if item.host else (item.lane,)))

        def ordered(lane: int) -> list[str]:
            return sorted((key for key, item in items.items() if item.lane == lane), key=self._rank)

        row = 0
        for key in ordered(_READ):
            loads = [
                unit for unit in ordered(_LOAD) if unit in self.view.predecessors(key) and unit not in placed
            ]
            place(key, row)
            for number, load in enumerate(loads):
                place(load, row + number)
                for source in self.view.predecessors(load):
                    if source in items and items[source].lane == _FETCHED:
                        place(source, items[load].row)
            row += max(len(loads), 1)
        for lane in (_LOAD, _FETCHED, 3, 4, 5, _WRITTEN):
            for key in ordered(lane):
                place(key, 0)
        for key in ordered(_STORE):
            place(key, min((items[end].row for end in self._ends(key) if end in items), default=0))
            for target in self.view.successors(key):
                if target in items and items[target].lane == _STORED:
                    place(target, items[key].row)
        for key in ordered(_STORED):
            place(key, 0)

    def _busy(self, units: list[str]) -> str:
        """Return a text with the busiest unit of a layer and its busy cycles."""
        busy: dict[str, int] = {}
        for key in units:
            if self.view.nodes[key]["kind"] in _HOST:
                return "on the host"
            data = self.view.nodes[key]
            busy[data["kind"]] = busy.get(data["kind"], 0) + data["cycles"]
        kind = max(busy, key=lambda name: busy[name])
        return f"{kind.upper()} {busy[kind]:,} cycles"

    def _rank(self, key: str) -> tuple[int, int]:
        """Return the sort key of a box.

        The order is: activations for the array, weights, tensors that only FUSE reads, parameters and tables.
        """
        if self.view.nodes[key]["kind"] in ("load", "store"):
            return min(self._rank(end) for end in self._ends(key))
        names = [key]
        if self.view.nodes[key].get("memory") == "dram":
            names = [end for unit in self._readers(key) for end in self.view.successors(unit)] or names
        memories = {self.view.nodes[name].get("memory") for name in names}
        readers = {self.view.nodes[unit]["kind"] for name in names for unit in self._readers(name)}
        order = (
            readers != {"fuse"},
            names[0].endswith(".w"),
            readers == {"fuse"},
            memories & {"slot", "table"},
        )
        kind = max(place for place, here in enumerate(order) if here)
        return kind, self.number[key]

    def _readers(self, buffer: str) -> list[str]:
        """Return the work nodes of this band that read a buffer."""
        return [unit for unit in self.view.successors(buffer) if unit in self.band]

    def _ends(self, unit: str) -> list[str]:
        """Return the on-chip buffers that a transfer fills or empties."""
        store = self.view.nodes[unit]["kind"] == "store"
        return list(self.view.predecessors(unit) if store else self.view.successors(unit))

    def _buffers(self, items: dict[str, _Item], key: str, *, written: bool) -> None:
        """Add boxes for the buffers that a work node reads or writes, each in the lane of its memory."""
        unit = self.view.nodes[key]["kind"]
        for other in self.view.successors(key) if written else self.view.predecessors(key):
            if other in items:
                continue
            memory = self.view.nodes[other]["memory"]
            if memory == "dram":
                lane = 8 if written else 0
            elif memory == "acc":
                lane = 4
            elif memory == "sp":
                makers = {
                    self.view.nodes[m]["kind"]
                    for m in self.view.predecessors(other)
                    if self.view.nodes[m]["group"] == self.view.nodes[key]["group"]
                }
                lane = 6 if "fuse" in makers or unit == "store" else 2
            else:
                lane = 2
            made = any(
                self.view.nodes[m]["group"] == self.view.nodes[key]["group"]
                for m in self.view.predecessors(other)
            )
            items[other] = _Item(other, lane, made_elsewhere=not made and self.view.in_degree(other) > 0)

    def _edges(self, items: dict[str, _Item], key: str) -> None:
        for source, target, edge in [
            *self.view.in_edges(key, data=True),
            *self.view.out_edges(key, data=True),
        ]:
            if edge.get("back"):
                continue
            a, b = items[source], items[target]
            unit = self.view.nodes[key]["kind"]
            width = 1.0 + min(edge["bytes"], 1 << 20) ** 0.5 / 250
            tip = f"{edge['bytes']:,} bytes, {edge['cycles']:,} cycles, {edge['pj'] / 1e3:,.1f} nJ"
            self.svg.curve(_across(a, b, items.values()), COLOURS[unit][1], width, tip=tip)

    def _box(self, item: _Item, layer: str) -> None:
        data: dict[str, Any] = self.view.nodes[item.key]
        fill, outline = COLOURS[data["kind"]]
        tip = "\n".join([data["label"], *data["text"], data.get("tensor", "")]).strip()
        y, width = item.y - _BOX / 2, item.width
        self.svg.box(item.x, y, width, _BOX, fill, outline, tip=tip, dashed=item.made_elsewhere)
        unit = data["kind"] in _WORK
        label = data["label"].removeprefix(f"{layer}.")
        self.svg.text(item.x + 5, y + 13, shortened(label, width - 9, SMALL, bold=unit), SMALL, bold=unit)
        for number, text in enumerate(data["text"][: 2 if unit else 1], 1):
            line = shortened(text, width - 9, SMALL)
            self.svg.text(item.x + 5, y + 13 + _PITCH * number, line, SMALL, fill=SOFT)


def _across(a: _Item, b: _Item, items: Iterable[_Item]) -> str:
    """Return a path from the right side of one box to the left side of another that avoids other boxes.

    A path to an earlier lane runs from the left side to the right side, and slightly lower.
    """
    if a.lane >= b.lane:
        start, end = (a.x, a.y + 8), (b.x + b.width, b.y + 8)
        bend = -max(abs(end[0] - start[0]) / 2, 18)
        return _bent(start, end, bend)
    start, end = (a.x + a.width, a.y), (b.x, b.y)
    between = [item for item in items if a.lane < item.lane < b.lane]
    if not between:
        return _bent(start, end, max((end[0] - start[0]) / 2, 6))
    # Pass the boxes straight at a free height: that of an end, or one between two rows.
    heights = (a.y, b.y, a.y + _ROW / 2, b.y + _ROW / 2)
    y = next((y for y in heights if all(abs(item.y - y) > _BOX / 2 + 2 for item in between)), a.y + _ROW / 2)
    first, last = start[0] + _ACROSS, end[0] - _ACROSS
    return (
        f"M{point(start)} C{point((start[0] + 8, a.y))} {point((first - 8, y))} {point((first, y))} "
        f"L{point((last, y))} C{point((last + 8, y))} {point((end[0] - 8, b.y))} {point(end)}"
    )


def _bent(start: Point, end: Point, bend: float) -> str:
    return (
        f"M{point(start)} C{point((start[0] + bend, start[1]))} {point((end[0] - bend, end[1]))} {point(end)}"
    )
