"""Memory map over time: addresses and lifetimes of buffers."""

from typing import TYPE_CHECKING, Any

from compiler.visualize.graphs.view import View
from compiler.visualize.svg.chart import LABEL, SMALL, WIDTH, Chart, chart, count_axis, key_rows, layer_key
from compiler.visualize.svg.style import GRID, INK, SOFT, hue, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEFT, _RIGHT, _TOP, _BETWEEN = 124.0, 16.0, 62.0, 18.0
_PIXELS = WIDTH - _LEFT - _RIGHT
#: Memories from top to bottom: name, height, unit.
_MAPS = (("sp", "scratchpad", 320.0), ("acc", "accumulator", 130.0), ("slot", "parameter slots", 80.0))
#: Minimum number of parameter slots shown; slots have no banks.
_STEP = 8
#: Pixels: minimum tile size, and minimum tile height for a name inside.
_LEAST, _NAMED = 0.8, 11.0


def draw_memory(view: View) -> str:
    """Return the chart as SVG."""
    about = view.graph
    nodes = [data for _, data in view.nodes(data=True) if "starts" in data]
    end = max((max(data["last"]) for data in nodes), default=1)
    names = list(
        dict.fromkeys(_layer(data) for memory, _, _ in _MAPS for data in nodes if data["memory"] == memory)
    )
    colours = {name: hue(number) for number, name in enumerate(names)}
    bottom = _TOP + sum(height + _BETWEEN for _, _, height in _MAPS) - _BETWEEN
    with chart(f"{about['name']}: memories over time", bottom + 62 + key_rows(names)) as drawn:
        drawn.heading(about["name"], f"placed, {about['target']}: what lies where over time, by estimate")
        top = _TOP
        for memory, name, height in _MAPS:
            here = [data for data in nodes if data["memory"] == memory]
            axes = _frame(drawn, (top, height), name, about["memories"][memory], here, max(end, 1))
            for data in here:
                _tiles(drawn, axes, data, height, colours[_layer(data)])
            if memory != _MAPS[-1][0]:
                axes.tick_params(axis="x", length=0, labelbottom=False)
                axes.set_xlabel("")
            top += height + _BETWEEN
        layer_key(drawn, bottom + 62, [(name, colours[name]) for name in names])
        return drawn.svg()


def _layer(data: dict[str, Any]) -> str:
    return data["label"].rpartition(".")[0] or data["label"]


def _frame(
    drawn: Chart,
    vertical: tuple[float, float],
    name: str,
    size: tuple[int, int],
    here: list[dict[str, Any]],
    end: int,
) -> "Axes":
    """Draw the axes of the used part of a memory, with bank boundaries; `vertical` is top and height."""
    (top, height), (capacity, banks) = vertical, size
    used = max((at + data["size"] for data in here for at in data["starts"]), default=0)
    bank = capacity // banks if banks > 1 else _STEP
    shown = min(max(-(-used // bank), 1) * bank, capacity)
    drawn.text(16, top + 12, name, LABEL, weight="bold")
    drawn.text(16, top + 26, f"{used / capacity:.0%} used", SMALL, color=SOFT)
    if banks > 1:
        drawn.text(16, top + 39, f"banks 0..{shown // bank - 1} of {banks}", SMALL, color=SOFT)
    axes = drawn.axes(_LEFT, top, _PIXELS, height)
    axes.set_xlim(0, end)
    axes.set_ylim(shown, 0)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    for line in range(bank, shown, bank):
        axes.axhline(line, color=GRID, linewidth=0.8)
    count_axis(axes.xaxis, "cycles")
    return axes


def _tiles(drawn: Chart, axes: "Axes", data: dict[str, Any], height: float, colours: tuple[str, str]) -> None:
    """Draw the tiles of a buffer over their lifetimes, in a memory of `height` pixels."""
    from matplotlib.patches import Rectangle

    across, down = axes.get_xlim()[1] / _PIXELS, axes.get_ylim()[0] / height
    for at, first, last in zip(data["starts"], data["first"], data["last"], strict=True):
        width, tall = max(last - first, _LEAST * across), max(data["size"], _LEAST * down)
        tile = Rectangle((first, at), width, tall, facecolor=colours[0], edgecolor=colours[1], linewidth=0.5)
        axes.add_patch(tile)
        drawn.tip(tile, "\n".join([data["label"], *data["text"], f"cycles {first:,}..{last:,}"]))
        label = shortened(data["label"], width / across - 6, SMALL)
        if tall / down > _NAMED and len(label) > 4:
            middle = at + min(tall / 2, 8 * down)
            axes.text(first + 3 * across, middle, label, size=SMALL, color=INK, va="center_baseline")
