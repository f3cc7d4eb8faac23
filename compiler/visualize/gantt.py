"""Charts of commands over time, with one row per unit, and of buffers in memory over time."""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from compiler.visualize.charts import LABEL, SMALL, WIDTH, Chart, chart, count_axis, key_rows, layer_key
from compiler.visualize.svg import GRID, INK, SOFT, hue, shortened
from compiler.visualize.view import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROWS = ("load", "matrix", "fuse", "store")
_LEFT, _RIGHT, _TOP, _ROW, _BAR = 84.0, 16.0, 62.0, 42.0, 28.0
_PIXELS = WIDTH - _LEFT - _RIGHT
#: Pixels: gap below which adjacent commands are merged, and minimum width of a bar.
_MIN_GAP, _MIN_WIDTH = 1.2, 0.8


def draw_units(view: View) -> str:
    """Draw the commands of each unit over time as SVG."""
    from matplotlib.patches import Rectangle

    about = view.graph
    cycles = max(about["cycles"], 1)
    names = list(dict.fromkeys(data["group"] for _, data in view.nodes(data=True)))
    colours = {name: hue(number) for number, name in enumerate(names)}
    bottom = _TOP + _ROW * len(_ROWS)
    with chart(f"{about['name']}: units over time", bottom + 62 + key_rows(names)) as drawn:
        drawn.heading(about["name"], f"timeline, {about['target']}: {about['cycles']:,} cycles by estimate")
        axes = drawn.axes(_LEFT, _TOP, _PIXELS, _ROW * len(_ROWS))
        _frame(axes, cycles)
        for row, unit in enumerate(_ROWS):
            busy = sum(data["cycles"] for _, data in view.nodes(data=True) if data["kind"] == unit)
            y = _TOP + _ROW * row
            drawn.text(16, y + 19, unit.upper(), LABEL, weight="bold")
            drawn.text(16, y + 32, f"{busy / cycles:.0%} busy", SMALL, color=SOFT)
        for unit, layer, begin, end, tip in _bars(view, cycles):
            fill, outline = colours[layer]
            corner = begin, _ROWS.index(unit) + (1 - _BAR / _ROW) / 2
            width = max(end - begin, _MIN_WIDTH * cycles / _PIXELS)
            bar = Rectangle(corner, width, _BAR / _ROW, facecolor=fill, edgecolor=outline, linewidth=0.5)
            axes.add_patch(bar)
            drawn.tip(bar, tip)
        layer_key(drawn, bottom + 62, [(name, colours[name]) for name in names])
        return drawn.svg()


def _frame(axes: "Axes", cycles: int) -> None:
    axes.set_xlim(0, cycles)
    axes.set_ylim(len(_ROWS), 0)
    axes.set_yticks(range(len(_ROWS) + 1), [""] * (len(_ROWS) + 1))
    axes.tick_params(axis="y", length=0)
    count_axis(axes.xaxis, "cycles")


def _bars(view: View, cycles: int) -> Iterator[tuple[str, str, int, int, str]]:
    """Yield the unit, layer, begin, end and tooltip of each bar; consecutive commands of a layer that are too close
    together to be told apart are merged.
    """
    apart = _MIN_GAP * cycles / _PIXELS
    for unit in _ROWS:
        waiting: tuple[str, int, int, int] | None = None  # layer, begin, end, commands
        for _, data in view.nodes(data=True):
            if data["kind"] != unit or not data["cycles"]:
                continue
            layer, begin, end, count = data["group"], data["begin"], data["end"], 1
            if waiting and waiting[0] == layer and end - waiting[2] < apart:
                begin, count = waiting[1], waiting[3] + 1
            elif waiting:
                yield _bar(unit, *waiting)
            waiting = (layer, begin, end, count)
        if waiting:
            yield _bar(unit, *waiting)


def _bar(unit: str, layer: str, begin: int, end: int, count: int) -> tuple[str, str, int, int, str]:
    times = f" x {count}" if count > 1 else ""
    return unit, layer, begin, end, f"{layer}: {unit.upper()}{times}, cycles {begin:,}..{end:,}"


_MEMORY_MAP_LEFT, _MEMORY_MAP_RIGHT, _MEMORY_MAP_TOP, _BETWEEN = 124.0, 16.0, 62.0, 18.0
_MEMORY_MAP_PIXELS = WIDTH - _MEMORY_MAP_LEFT - _MEMORY_MAP_RIGHT
#: Memories from top to bottom: name, height, unit.
_MAPS = (("sp", "scratchpad", 320.0), ("acc", "accumulator", 130.0), ("slot", "parameter slots", 80.0))
#: Minimum number of parameter slots shown; slots have no banks.
_STEP = 8
#: Pixels: minimum tile size, and minimum height of a tile that contains a name.
_MIN_SIDE, _NAMED = 0.8, 11.0


def draw_memory(view: View) -> str:
    """Draw the buffers in each memory over time as SVG."""
    about = view.graph
    nodes = [data for _, data in view.nodes(data=True) if "starts" in data]
    end = max((max(data["last"]) for data in nodes), default=1)
    layers = {data["group"] for _, data in view.nodes(data=True)}
    names = list(
        dict.fromkeys(
            _layer(data, layers) for memory, _, _ in _MAPS for data in nodes if data["memory"] == memory
        )
    )
    colours = {name: hue(number) for number, name in enumerate(names)}
    bottom = _MEMORY_MAP_TOP + sum(height + _BETWEEN for _, _, height in _MAPS) - _BETWEEN
    with chart(f"{about['name']}: memories over time", bottom + 62 + key_rows(names)) as drawn:
        drawn.heading(about["name"], f"placed, {about['target']}: what lies where over time, by estimate")
        top = _MEMORY_MAP_TOP
        for memory, name, height in _MAPS:
            here = [data for data in nodes if data["memory"] == memory]
            axes = _memory_map_frame(drawn, (top, height), name, about["memories"][memory], here, max(end, 1))
            for data in here:
                _tiles(drawn, axes, data, height, colours[_layer(data, layers)])
            if memory != _MAPS[-1][0]:
                axes.tick_params(axis="x", length=0, labelbottom=False)
                axes.set_xlabel("")
            top += height + _BETWEEN
        layer_key(drawn, bottom + 62, [(name, colours[name]) for name in names])
        return drawn.svg()


def _layer(data: dict[str, Any], layers: Collection[str]) -> str:
    """Return the layer of a buffer with a label LAYER.SUFFIX, else the label; layer names may contain dots."""
    name = data["label"]
    while "." in name:
        name = name.rpartition(".")[0]
        if name in layers:
            return name
    return data["label"]


def _memory_map_frame(
    drawn: Chart,
    vertical: tuple[float, float],
    name: str,
    size: tuple[int, int],
    here: list[dict[str, Any]],
    end: int,
) -> "Axes":
    """Draw the axes for the used part of a memory, with bank boundaries; `vertical` is the top and the height."""
    (top, height), (capacity, banks) = vertical, size
    used = max((at + data["size"] for data in here for at in data["starts"]), default=0)
    bank = capacity // banks if banks > 1 else _STEP
    shown = min(max(-(-used // bank), 1) * bank, capacity)
    drawn.text(16, top + 12, name, LABEL, weight="bold")
    drawn.text(16, top + 26, f"{used / capacity:.0%} used", SMALL, color=SOFT)
    if banks > 1:
        drawn.text(16, top + 39, f"banks 0..{shown // bank - 1} of {banks}", SMALL, color=SOFT)
    axes = drawn.axes(_MEMORY_MAP_LEFT, top, _MEMORY_MAP_PIXELS, height)
    axes.set_xlim(0, end)
    axes.set_ylim(shown, 0)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    for line in range(bank, shown, bank):
        axes.axhline(line, color=GRID, linewidth=0.8)
    count_axis(axes.xaxis, "cycles")
    return axes


def _tiles(drawn: Chart, axes: "Axes", data: dict[str, Any], height: float, colours: tuple[str, str]) -> None:
    """Draw the tiles of a buffer over their lifetimes; the axes of the memory are `height` pixels high."""
    from matplotlib.patches import Rectangle

    across, down = axes.get_xlim()[1] / _MEMORY_MAP_PIXELS, axes.get_ylim()[0] / height
    for at, first, last in zip(data["starts"], data["first"], data["last"], strict=True):
        width, tall = (
            max(last - first, _MIN_SIDE * across),
            max(data["size"], _MIN_SIDE * down),
        )
        tile = Rectangle((first, at), width, tall, facecolor=colours[0], edgecolor=colours[1], linewidth=0.5)
        axes.add_patch(tile)
        drawn.tip(tile, "\n".join([data["label"], *data["text"], f"cycles {first:,}..{last:,}"]))
        label = shortened(data["label"], width / across - 6, SMALL)
        if tall / down > _NAMED and len(label) > 4:
            middle = at + min(tall / 2, 8 * down)
            axes.text(first + 3 * across, middle, label, size=SMALL, color=INK, va="center_baseline")
