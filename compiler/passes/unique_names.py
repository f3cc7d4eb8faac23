"""Makes node names unique in the whole model, because schedules and reports identify nodes by name."""

from dataclasses import replace

from compiler.ir.graph import Graph, Node
from compiler.ir.rebuild import rebuild


def name_apart(graph: Graph) -> Graph:
    """Rename nodes of subgraphs whose names occur elsewhere in the model."""
    return _renamed(graph, set(graph.nodes), set(), "") if any(node.bodies for node in graph) else graph


def _renamed(graph: Graph, outer: set[str], taken: set[str], prefix: str) -> Graph:
    nodes: list[Node] = []
    for node in graph:
        name, number = node.name, 1
        while prefix and (name in outer or name in taken):
            name = f"{prefix}{node.name}" + (f".{number}" if number > 1 else "")
            number += 1
        taken.add(name)
        bodies = tuple(_renamed(body, outer, taken, f"{name}/") for body in node.bodies)
        nodes.append(replace(node, name=name, bodies=bodies))
    return rebuild(graph, nodes)
