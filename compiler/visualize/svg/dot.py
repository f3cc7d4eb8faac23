"""Writes views as Graphviz dot."""

from collections.abc import Iterator
from typing import Any

from compiler.visualize.graphs.view import View, size
from compiler.visualize.svg.style import COLOURS, FONT, colours

_SHAPES = {"input": "cds", "output": "cds", "constant": "note", "buffer": "cylinder", "program": "component"}


def to_dot(view: View) -> str:
    """Return a digraph; groups become clusters."""
    font = _quoted(FONT.split(",")[1].strip(" '"))
    lines = [
        f"digraph {_quoted(view.graph['name'])} {{",
        f"  label={_quoted(view.graph['name'] + ': ' + view.graph['stage'])}; labelloc=t; fontname={font};",
        f'  node [shape=box style="filled,rounded" fontname={font} fontsize=10];',
        f"  edge [fontname={font} fontsize=8 color={_quoted(COLOURS['buffer'][1])}];",
    ]
    groups: dict[str, list[str]] = {}
    for key, data in view.nodes(data=True):
        groups.setdefault(data["group"], []).append(_node(key, data))
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


def _node(key: str, data: dict[str, Any]) -> str:
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
