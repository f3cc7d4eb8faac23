"""Constant folding, dead code elimination, and unique node names."""

from dataclasses import replace
from typing import cast

from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.tensor import Tensor
from compiler.reference import run_node


def fold_constants(graph: Graph) -> Graph:
    """Replace nodes with constant inputs by their results, except nodes that compute outputs of the model."""
    changed: dict[str, Tensor] = {}
    remaining = []
    for node in graph:
        inputs = [changed.get(name, graph.tensors[name]) for name in node.inputs]
        wanted = set(node.outputs) & set(graph.outputs)  # outputs of the model must be computed by nodes
        if node.bodies or not inputs or wanted or not all(tensor.constant for tensor in inputs):
            remaining.append(node)
            continue
        results = run_node(graph, node, [cast(NDArray, tensor.data) for tensor in inputs])
        for name, data in zip(node.outputs, results, strict=True):
            old = graph.tensors[name]
            changed[name] = Tensor(name, old.shape, old.dtype, old.quantization, data)
    return rebuild(graph, remaining, changed=changed) if changed else graph


def remove_dead(graph: Graph) -> Graph:
    """Remove nodes whose results are not used."""
    needed = set(graph.outputs)
    live = []
    for node in reversed(list(graph)):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            live.append(node)
    return graph if len(live) == len(graph.nodes) else rebuild(graph, reversed(live))


def name_apart(graph: Graph) -> Graph:
    """Rename nodes in subgraphs if their names occur elsewhere in the model."""
    return _renamed(graph, set(graph.nodes), set(), "") if any(node.bodies for node in graph) else graph


def _renamed(graph: Graph, outer: set[str], used: set[str], prefix: str) -> Graph:
    nodes: list[Node] = []
    origins = dict(graph.origins)
    for node in graph:
        name, number = node.name, 1
        while prefix and (name in outer or name in used):
            name = f"{prefix}{node.name}" + (f".{number}" if number > 1 else "")
            number += 1
        used.add(name)
        bodies = tuple(_renamed(body, outer, used, f"{name}/") for body in node.bodies)
        if node.name in graph.origins:
            origins[name] = graph.origins[node.name]
        nodes.append(replace(node, name=name, bodies=bodies))
    made = rebuild(graph, nodes)
    made.origins = origins
    return made
