"""Writes views as text and as JSON."""

import json
from typing import Any

import networkx as nx

from compiler.visualize.graphs.view import View


def to_text(view: View) -> str:
    """Return one line per node, followed by one per incoming edge."""
    about = view.graph
    lines = [f"{about['name']}: {about['stage']}, {about['target']}", about["note"], ""]
    if "cycles" in about:
        lines.insert(1, f"{about['cycles']:,} cycles")
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
    """Return the node-link JSON of networkx."""
    return json.dumps({"schema_version": 1} | nx.node_link_data(view, edges="edges"), indent=1)
