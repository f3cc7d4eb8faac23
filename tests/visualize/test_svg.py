"""Tests of views as text, JSON, Graphviz DOT and SVG."""

import json
import re
from itertools import combinations
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pytest

from compiler.api import compile
from compiler.pipeline import CompilationTrace
from compiler.visualize.formats import FORMATS, to_dot, to_json, to_svg, to_text
from compiler.visualize.layered_layout import cut, folded, layered
from compiler.visualize.stages import STAGES, view_of
from compiler.visualize.view import Cost, View, add_edge, add_node, start
from hw.config import MlaConfig
from tests.visualize.test_graphs import mixed

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def record() -> CompilationTrace:
    made = CompilationTrace()
    compile(mixed(), "n8", record=made)
    return made


def random_view(rng: np.random.Generator) -> View:
    """Return a random acyclic graph."""
    view = start("random", "quantized", MlaConfig(), "")
    count = int(rng.integers(1, 40))
    for i in range(count):
        add_node(
            view, f"{i}", "operator", "op" * int(rng.integers(1, 9)), *["text"] * int(rng.integers(0, 5))
        )
        for before in sorted(
            {int(rng.integers(max(i - 12, 0), i)) for _ in range(int(rng.integers(0, 4)))} if i else ()
        ):
            add_edge(view, f"{before}", f"{i}", "t", Cost(int(rng.integers(0, 10_000))))
    return view


def boxes(svg: str) -> list[tuple[float, ...]]:
    """Return the boxes of nodes, which are the rectangles with a tooltip."""
    root = ElementTree.fromstring(svg)
    rects = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    return [tuple(float(rect.get(name, "nan")) for name in ("x", "y", "width", "height")) for rect in rects]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_in_every_format(record: CompilationTrace, stage: str, form: str) -> None:
    view = view_of(record, stage)
    text = FORMATS[form](view)
    if form == "json":
        document = json.loads(text)
        assert document.pop("schema_version") == 1
        again = nx.node_link_graph(document, edges="edges")
        assert nx.utils.graphs_equal(again, view)
    elif form == "svg":
        root = ElementTree.fromstring(text)
        width, height = (float(root.get(name, "0")) for name in ("width", "height"))
        for x, y, w, h in boxes(text):
            assert 0 <= x <= x + w <= width
            assert 0 <= y <= y + h <= height
    elif form == "dot":
        assert text.count(" -> ") == view.number_of_edges()
        assert text.count("{") == text.count("}")
    else:
        assert all(key in text for key in view)


@pytest.mark.parametrize("seed", range(30))
def test_boxes_do_not_overlap(seed: int) -> None:
    view = random_view(np.random.default_rng(seed))
    found = boxes(to_svg(view))
    assert len(found) == len(view)
    for (x, y, w, h), (x2, y2, w2, h2) in combinations(found, 2):
        assert x + w <= x2 + 0.1 or x2 + w2 <= x + 0.1 or y + h <= y2 + 0.1 or y2 + h2 <= y + 0.1, (
            f"seed {seed}"
        )


@pytest.mark.parametrize("seed", range(10))
def test_edges_lead_down(seed: int) -> None:
    graph = nx.DiGraph(random_view(np.random.default_rng(seed)))
    layout = layered(graph, dict.fromkeys(graph, 50.0), 10.0)
    level = {key: number for number, rank in enumerate(layout.ranks) for key in rank}
    for (a, b), route in layout.routes.items():
        assert [level[key] for key in route] == list(range(level[a], level[b] + 1)), f"seed {seed}"


def test_columns_hold_every_rank_once() -> None:
    rng = np.random.default_rng(3)
    heights = rng.uniform(20, 90, 50).tolist()
    pieces = cut(heights, rng.integers(1, 4, 50).tolist(), 5)
    assert [rank for piece in pieces for rank in piece] == list(range(50))
    tall = [sum(heights[rank] for rank in piece) for piece in pieces]
    assert len(pieces) == 5
    assert max(tall) < 1.5 * min(tall)


def test_names_are_escaped() -> None:
    view = start('a <b> & "c"', "quantized", MlaConfig(), "")
    name = 'x"]; evil [<script>\\n&'
    add_node(view, name, "operator", name, name)
    add_node(view, "y", "output", "y")
    add_edge(view, name, "y", name, Cost(7))
    texts = [each.text for each in ElementTree.fromstring(to_svg(view)).iter(f"{SVG}text")]
    assert name in texts
    label = json.dumps(name, ensure_ascii=False)
    assert f"  {label} [label=" in to_dot(view)
    assert json.loads(to_json(view))["nodes"][0]["id"] == name
    assert name in to_text(view)


def test_coordinates_have_no_long_fractions(record: CompilationTrace) -> None:
    """Coordinates have at most one decimal place, so that charts are identical on all machines."""
    for stage in ("layers", "scheduled", "placed", "timeline"):
        assert not re.search(r'="[^"]*\.\d\d', to_svg(view_of(record, stage)))


def steps(count: int) -> View:
    """Return a sequence of steps of five nodes each; the last node of each step has an edge to the common output."""
    view = start("steps", "quantized", MlaConfig(), "")
    add_node(view, "x", "input", "x")
    add_node(view, "w", "constant", "w")
    before = "x"
    for i in range(count):
        for name in ("a", "b", "c", "d", "e"):
            key = f"step {i} {name}"
            add_node(view, key, "operator", name, key, "8 B")
            add_edge(view, before, key, before, Cost(8))
            before = key
        add_edge(view, "w", key, "w", Cost(64))
    add_node(view, "y", "output", "y")
    for i in range(count):
        add_edge(view, f"step {i} e", "y", "e", Cost(8))
    return view


def test_repeated_steps_are_folded() -> None:
    """The first two steps and the last step are drawn; one box with merged edges represents the others."""
    made = folded(steps(20))
    assert len(made) == 3 + 3 * 5 + 1 and nx.is_directed_acyclic_graph(made)
    (box,) = (key for key, data in made.nodes(data=True) if data["label"] == "17 more times")
    assert {(a, edge["bytes"]) for a, _, edge in made.in_edges(box, data=True)} == {
        ("step 1 e", 8),
        ("w", 17 * 64),
    }
    assert {(b, edge["bytes"]) for _, b, edge in made.out_edges(box, data=True)} == {
        ("step 19 a", 8),
        ("y", 17 * 8),
    }
    texts = [each.text for each in ElementTree.fromstring(to_svg(steps(20))).iter(f"{SVG}text")]
    assert texts.count("a") == 3 and "17 more times" in texts
    assert len(json.loads(to_json(steps(20)))["nodes"]) == 103


def test_short_or_differing_sequences_are_not_folded() -> None:
    assert folded(steps(4)).nodes == steps(4).nodes
    other = steps(20)
    for i in range(20):
        other.nodes[f"step {i} a"]["text"] = [f"{i} B"]
    assert len(folded(other)) == len(other)
