"""The schedule as a band for each layer, with a lane for each memory and unit that data pass on their way."""

from dataclasses import dataclass
from typing import Any

from compiler.draw.style import COLOURS, INK, SOFT, shortened
from compiler.draw.svg import Svg, point
from compiler.views.view import View

#: Lanes from left to right: what stands in them, and how wide they are.
_LANES = (
    ("DRAM", 130.0), ("LOAD", 120.0), ("scratchpad, parameters", 150.0), ("MATRIX", 100.0), ("accumulator", 110.0),
    ("FUSE", 100.0), ("scratchpad", 130.0), ("STORE", 110.0), ("DRAM", 120.0),
)  # fmt: skip
_UNITS = {"load": 1, "matrix": 3, "fuse": 5, "store": 7}
#: What the host does takes the place of all units.
_HOST = {"host": 1, "control": 1}
_WORK = _UNITS | _HOST
_ACROSS, _LEFT, _TOP = 40.0, 130.0, 92.0
_ROW, _BOX, _BETWEEN = 46.0, 36.0, 14.0


@dataclass
class _Item:
    """A box in a band: a node, or a stand-in for a tensor that another band makes."""

    key: str
    lane: int
    made_elsewhere: bool = False
    host: bool = False
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        """Of its lane; what the host does reaches from the first unit's to the last one's."""
        lanes = _LANES[1:8] if self.host else _LANES[self.lane : self.lane + 1]
        return sum(width + _ACROSS for _, width in lanes) - _ACROSS


def draw_lanes(view: View) -> str:
    """The picture."""
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
        """Heads of the lanes, then band after band."""
        about = self.view.graph
        self.svg.text(16, 28, about["name"], 16, bold=True)
        self.svg.text(16, 45, f"scheduled, {about['target']}: what moves where, band by band", 11, fill=SOFT)
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
                x + width / 2, _TOP - 16, name, 10.5, bold=True, anchor="middle", fill=INK if unit else SOFT
            )
        self.svg.parts[head:head] = lanes.parts
        return self.svg.render()

    def _sorted(self) -> list[str]:
        """Layers in the order in which they compute; loads that come early do not count."""
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
        stacks: dict[int, list[_Item]] = {}
        for item in items.values():
            stacks.setdefault(item.lane, []).append(item)
        height = max(len(stack) for stack in stacks.values()) * _ROW + _BETWEEN
        if shaded:
            self.svg.box(8, y, self.right, height, "#f8f9fb", "none", radius=6)
        for lane, stack in stacks.items():
            stack.sort(key=lambda item: self._rank(item.key))
            for row, item in enumerate(stack):
                item.x, item.y = self.starts[lane], y + _BETWEEN / 2 + _ROW * row + _ROW / 2
        self.svg.text(18, y + 24, shortened(layer, _LEFT - 26, 12), 12, bold=True)
        self._summary(units, y + 40)
        for key in units:
            self._edges(items, key)
        for item in items.values():
            self._box(item, layer)
        self.svg.room(self.right, y + height)
        return y + height

    def _summary(self, units: list[str], y: float) -> None:
        """Busy cycles of each unit in a layer: the greatest is what it is bound by."""
        busy: dict[str, int] = {}
        for key in units:
            if self.view.nodes[key]["kind"] in _HOST:
                self.svg.text(18, y, "on the host", 9.5, fill=SOFT)
                return
            data = self.view.nodes[key]
            busy[data["kind"]] = busy.get(data["kind"], 0) + data["cycles"]
        kind = max(busy, key=lambda name: busy[name])
        self.svg.text(18, y, f"{kind.upper()} {busy[kind]:,} cycles", 9.5, fill=SOFT)

    def _rank(self, key: str) -> tuple[int, int]:
        """What comes first: tensors for the array, weights, tensors for FUSE alone, parameters and tables."""
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
        """The band's own work that reads a buffer."""
        return [unit for unit in self.view.successors(buffer) if unit in self.band]

    def _ends(self, unit: str) -> list[str]:
        """What a transfer fills, or empties."""
        store = self.view.nodes[unit]["kind"] == "store"
        return list(self.view.predecessors(unit) if store else self.view.successors(unit))

    def _buffers(self, items: dict[str, _Item], key: str, *, written: bool) -> None:
        """The buffers at one end of a unit's work, in the lanes that fit."""
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
                makers = {self.view.nodes[m]["kind"] for m in self.view.predecessors(other)
                          if self.view.nodes[m]["group"] == self.view.nodes[key]["group"]}  # fmt: skip
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
            self.svg.curve(_across(a, b), COLOURS[unit][1], width, tip=tip)

    def _box(self, item: _Item, layer: str) -> None:
        data: dict[str, Any] = self.view.nodes[item.key]
        fill, outline = COLOURS[data["kind"]]
        tip = "\n".join([data["label"], *data["text"], data.get("tensor", "")]).strip()
        y, width = item.y - _BOX / 2, item.width
        self.svg.box(item.x, y, width, _BOX, fill, outline, tip=tip, dashed=item.made_elsewhere)
        unit = data["kind"] in _WORK
        label = shortened(data["label"].removeprefix(f"{layer}."), width - 14, 10.5)
        self.svg.text(item.x + 8, y + 15, label, 10.5, bold=unit)
        detail = "; ".join(data["text"][:2] if unit else data["text"][:1])
        self.svg.text(item.x + 8, y + 28, shortened(detail, width - 12, 8.5), 8.5, fill=SOFT)


def _across(a: _Item, b: _Item) -> str:
    """From the right side of one box to the left of another; back the other way round, a little lower."""
    forward = a.lane < b.lane
    shift = 0 if forward else 8
    start = (a.x + (a.width if forward else 0), a.y + shift)
    end = (b.x + (0 if forward else b.width), b.y + shift)
    bend = max(abs(end[0] - start[0]) / 2, 18) * (1 if forward else -1)
    return (
        f"M{point(start)} C{point((start[0] + bend, start[1]))} {point((end[0] - bend, end[1]))} {point(end)}"
    )
