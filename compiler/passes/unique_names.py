"""Names of nodes that are unique in the whole model: schedules and reports know nodes by them."""

from dataclasses import replace

from compiler.ir.graph import Graph, Node
from compiler.ir.rebuild import rebuild


def name_apart(graph: Graph) -> Graph:
    """The same graph, nodes of subgraphs renamed where the model has another of their name."""
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
