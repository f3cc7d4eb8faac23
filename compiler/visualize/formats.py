"""Output formats of views: text, JSON, Graphviz and SVG."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import networkx as nx

from compiler.visualize.flowchart import draw_flow
from compiler.visualize.gantt import draw_memory, draw_units
from compiler.visualize.svg import COLOURS, FONT, colours
from compiler.visualize.swimlanes import draw_lanes
from compiler.visualize.view import View, size


def to_text(view: View) -> str:
    """Format a view as text, with one line per node, followed by one line per incoming edge of the node."""
    about = view.graph
    lines = [f"{about['name']}: {about['stage']}, {about['target']}", about["note"], ""]
    if "cycles" in about:
        lines.insert(1, f"{about['cycles']:,} cycles")
    lines[-1:-1] = about.get("removed", [])
    if "summary" in about:
        lines[-1:-1] = ["", *about["summary"]]
    groups: dict[str, list[str]] = {}
    for key, data in view.nodes(data=True):
        groups.setdefault(data["group"], []).append(key)
    for group, keys in groups.items():
        lines += [f"-- {group}"] if group else []
        for key in keys:
            lines.append(_node(key, view.nodes[key]))
            edges = view.in_edges(key, data=True)
            lines += [f"    <- {source:<44} {_cost(edge)}" for source, _, edge in edges]
    return "\n".join(lines)


def _node(key: str, data: dict[str, Any]) -> str:
    what = "; ".join(line for line in data["text"] if line not in (key, f"{data.get('cycles', -1):,} cycles"))
    begin = f" {data['begin']:,}..{data['end']:,}" if "begin" in data else ""
    cost = [f"{data['cycles']:,} cycles"] if "cycles" in data else []
    cost += [f"{data['pj'] / 1e3:,.1f} nJ"] if "pj" in data else []
    label = "" if key.endswith(data["label"]) else data["label"]
    parts = [part for part in (f"{label}{begin}".strip(), what, *cost) if part]
    return f"{key}: {'; '.join(parts)}"


def _cost(edge: dict[str, Any]) -> str:
    return f"{edge['bytes']:>12,} B {edge['cycles']:>10,} cycles {edge['pj'] / 1e3:>12,.1f} nJ"


def to_json(view: View) -> str:
    """Format a view as JSON, in the node-link format of networkx."""
    return json.dumps({"schema_version": 1} | nx.node_link_data(view, edges="edges"), indent=1)


_SHAPES = {"input": "cds", "output": "cds", "constant": "note", "buffer": "cylinder", "program": "component"}


def to_dot(view: View) -> str:
    """Format a view as a Graphviz digraph, with node groups as clusters."""
    font = _quoted(FONT.split(",")[1].strip(" '"))
    lines = [
        f"digraph {_quoted(view.graph['name'])} {{",
        f"  label={_quoted(view.graph['name'] + ': ' + view.graph['stage'])}; labelloc=t; fontname={font};",
        f'  node [shape=box style="filled,rounded" fontname={font} fontsize=10];',
        f"  edge [fontname={font} fontsize=8 color={_quoted(COLOURS['buffer'][1])}];",
    ]
    groups: dict[str, list[str]] = {}
    for key, data in view.nodes(data=True):
        groups.setdefault(data["group"], []).append(_dot_node(key, data))
    for number, (group, nodes) in enumerate(groups.items()):
        lines += (
            nodes
            if not group
            else [
                f"  subgraph cluster_{number} {{",
                f"    label={_quoted(group)};",
                *(f"  {n}" for n in nodes),
                "  }",
            ]
        )
    lines += [*_edges(view), "}"]
    return "\n".join(lines)


def _dot_node(key: str, data: dict[str, Any]) -> str:
    fill, outline = colours(data)
    shape = f" shape={_SHAPES[data['kind']]} style=filled" if data["kind"] in _SHAPES else ""
    label = _quoted("\n".join([data["label"], *data["text"]]))
    return f"  {_quoted(key)} [label={label} fillcolor={_quoted(fill)} color={_quoted(outline)}{shape}];"


def _edges(view: View) -> Iterator[str]:
    for source, target, edge in view.edges(data=True):
        label = f"{size(edge['bytes'])}\n{edge['cycles']:,} cycles" if edge["bytes"] else ""
        style = " style=dashed" if not edge["bytes"] else ""
        tip = f" tooltip={_quoted(edge['tensor'])}"
        yield f"  {_quoted(source)} -> {_quoted(target)} [label={_quoted(label)} weight=1{tip}{style}];"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def to_svg(view: View) -> str:
    """Draw a view and return the text of the SVG file."""
    draw = {"scheduled": draw_lanes, "placed": draw_memory, "timeline": draw_units}
    return draw.get(view.graph["stage"], draw_flow)(view)


#: Functions that format a view, by the name used in `mla graph --format`.
FORMATS: dict[str, Callable[[View], str]] = {
    "text": to_text,
    "dot": to_dot,
    "svg": to_svg,
    "json": to_json,
}
