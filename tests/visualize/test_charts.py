"""Charts are reproducible, their labels fit and are readable, and drawing modules are imported only when needed."""

import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from compiler.api import compile
from compiler.pipeline import CompilationTrace
from compiler.visualize.charts import chart, draw_rounds, draw_serving, round_ticks
from compiler.visualize.formats import to_svg
from compiler.visualize.gantt import _layer
from compiler.visualize.stages import view_of
from compiler.visualize.svg import shortened, text_width
from compiler.visualize.swimlanes import _Lanes
from compiler.visualize.view import View
from tests.visualize.test_graphs import mixed

SVG = "{http://www.w3.org/2000/svg}"
STAGES = ("imported", "layers", "scheduled", "placed", "timeline")
#: Width of a rendered documentation page in pixels.
PAGE = 830


@pytest.fixture(scope="module")
def views() -> dict[str, View]:
    record = CompilationTrace()
    compile(mixed(), "n8", record=record)
    return {stage: view_of(record, stage) for stage in STAGES}


def dejavu_width(text: str, size: float, bold: bool) -> float:
    """Return the width of a text in matplotlib's copy of DejaVu Sans."""
    font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")
    ends = [TextPath((0, 0), each, 100, prop=font).get_extents().x1 for each in (f"{text}|", "|")]
    return (ends[0] - ends[1]) * size / 100


@pytest.mark.parametrize("bold", [False, True])
def test_widths_are_those_of_dejavu_sans(bold: bool) -> None:
    seed = 11
    rng = np.random.default_rng(seed)
    for _ in range(20):
        text = "".join(chr(code) for code in rng.integers(33, 127, rng.integers(1, 40)))
        width = dejavu_width(text, 10, bold)
        # Kerning moves some pairs of letters closer together.
        assert width * 0.995 <= text_width(text, 10, bold=bold) <= width * 1.15 + 1, f"seed {seed}: {text}"
    assert text_width("卷", 10) == 10


def test_layers_of_buffers_may_have_dots_in_their_names() -> None:
    layers = {"block.0.conv", "scores"}
    found = {label: _layer({"label": label}, layers) for label in ("block.0.conv.w", "scores.0.part", "x.1")}
    assert found == {"block.0.conv.w": "block.0.conv", "scores.0.part": "scores", "x.1": "x.1"}


def test_shortened_names_keep_head_and_tail() -> None:
    names = [f"depthwise_conv2d_block_{number}" for number in range(12)]
    cut = [shortened(name, 90, 9) for name in names]
    assert len(set(cut)) == 12 and all(text_width(each, 9) <= 90.5 for each in cut)
    assert all(each.startswith("depthwise") and "…" in each for each in cut)


@pytest.mark.parametrize("stage", ["imported", "layers", "scheduled"])
def test_labels_fit_their_boxes_in_the_widest_font(views: dict[str, View], stage: str) -> None:
    root = ElementTree.fromstring(to_svg(views[stage]))
    boxes = [
        tuple(float(rect.get(name, "nan")) for name in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if rect.find(f"{SVG}title") is not None
    ]
    inside = 0
    for text in root.iter(f"{SVG}text"):
        x, y, size = (float(text.get(name, "nan")) for name in ("x", "y", "font-size"))
        for left, top, width, height in boxes:
            if left < x < left + width and top < y < top + height:
                inside += 1
                wide = dejavu_width(text.text or "", size, text.get("font-weight") is not None)
                assert x + wide <= left + width + 0.5, text.text
    assert inside >= len(boxes)


@pytest.mark.parametrize("stage", STAGES)
def test_labels_are_large_enough_on_a_page(views: dict[str, View], stage: str) -> None:
    svg = to_svg(views[stage])
    scale = min(PAGE / float(ElementTree.fromstring(svg).get("width", "0")), 1)
    sizes = {float(size) for size in re.findall(r'font-size(?:="|: )([\d.]+)', svg)}
    assert sizes and min(sizes) * scale >= 9, (stage, sizes, scale)


@pytest.mark.parametrize(
    ("stage", "entry"),
    [
        ("imported", "operator on the array"),
        ("layers", "layer on the array"),
        ("scheduled", "made by another layer"),
    ],
)
def test_charts_have_a_key_of_colours(views: dict[str, View], stage: str, entry: str) -> None:
    texts = [each.text for each in ElementTree.fromstring(to_svg(views[stage])).iter(f"{SVG}text")]
    assert entry in texts


@pytest.mark.parametrize("stage", ["placed", "timeline"])
def test_charts_over_time_have_an_axis_and_a_key_of_layers(views: dict[str, View], stage: str) -> None:
    view = views[stage]
    root = ElementTree.fromstring(to_svg(view))
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert "cycles" in texts and "0" in texts
    groups = {data["group"] for _, data in view.nodes(data=True) if data["group"]}
    assert any(group in texts for group in groups)
    tips = [each.text for each in root.iter(f"{SVG}title")]
    assert any(re.search(r"cycles [\d,]+\.\.[\d,]+", tip or "") for tip in tips)


def test_transfers_are_next_to_their_buffers(views: dict[str, View], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[_Lanes, dict]] = []
    rows = _Lanes._rows

    def spy(self: _Lanes, items: dict, units: list[str]) -> None:
        rows(self, items, units)
        seen.append((self, items))

    monkeypatch.setattr(_Lanes, "_rows", spy)
    view = views["scheduled"]
    to_svg(view)
    loads = 0
    for _, items in seen:
        assert len({(item.lane, item.row) for item in items.values()}) == len(items)
        for key, item in items.items():
            sources = [other for other in view.predecessors(key) if other in items]
            if view.nodes[key]["kind"] == "load" and len(sources) == 1 and view.out_degree(sources[0]) == 1:
                loads += 1
                assert items[sources[0]].row == item.row, key
    assert loads


def test_the_same_calls_give_the_same_bytes(views: dict[str, View]) -> None:
    lines = {"a": [1.2, 0.9], "b": [1.1, 1.0]}
    event = {"event": "reload", "request": 2, "why": "first", "trial": 0, "measured_cycles": 30}
    drawn = [
        (
            draw_rounds("t", "u", lines),
            draw_serving("n", [50, 40, 30, 30], [event]),
            to_svg(views["timeline"]),
        )
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    for svg in drawn[0]:
        assert "dc:date" not in svg and "matplotlib.org" not in svg
        assert not re.search(r"<[^<>]*\d\.\d\d[^<>]*>", svg)  # long fractions may differ between machines


def test_names_are_neither_markup_nor_formulas() -> None:
    name = '$x^2$ <b>&amp;"1.2345" 卷积'
    svg = draw_serving(name, [3, 2], [])
    texts = [each.text for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert name in texts


def test_chart_of_rounds_has_a_baseline_ticks_and_a_key() -> None:
    svg = draw_rounds("Title", "cycles", {"a": [1.0823, 1.012], "b": [0.97, 0.976]}, "the static compiler")
    texts = [each.text for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"1.0: the static compiler", "a 1.012", "b 0.976", "1.00", "1.02", "round 0", "round 1"} <= set(
        texts
    )


def test_serving_names_its_axes_and_numbers_its_decisions() -> None:
    events = [
        {
            "event": "reload",
            "request": at,
            "why": "trial",
            "trial": at,
            "proposer": "hpm",
            "measured_cycles": 30,
        }
        for at in (2, 3)
    ]
    texts = [e.text for e in ElementTree.fromstring(draw_serving("n", [50] * 400, events)).iter(f"{SVG}text")]
    assert texts.count("cycles") == 2 and texts.count("requests") == 2 and "┃ reload" in texts
    assert texts.count("1") == 3 and texts.count("2") == 3  # above both panels, and in the key


@pytest.mark.parametrize(
    ("end", "ticks"), [(0, [0]), (7, [0, 1, 2, 3, 4, 5, 6, 7]), (12_345, range(0, 12_345, 2000))]
)
def test_ticks_are_round(end: int, ticks: range | list[int]) -> None:
    assert round_ticks(end, 10) == list(ticks)


def test_size_of_figures() -> None:
    with chart("t", 100, 200) as drawn:
        root = ElementTree.fromstring(drawn.svg())
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("200", "100", "0 0 200 100")


def test_command_line_does_not_import_drawing() -> None:
    code = (
        "import sys, compiler.cli.main as p; p.build_parser(); import compiler.cli.run, compiler.visualize.svg; "
        "print([m for m in ('matplotlib', 'jinja2', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
