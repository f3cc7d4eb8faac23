"""Which nodes run on the accelerator and which on the host, and in which stages."""

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.ir.graph import Graph, Node
from compiler.lower.lower import lower
from compiler.passes.rebuild import rebuild


@dataclass(frozen=True, eq=False)
class Part:
    """Nodes that run in one go.

    Parameters
    ----------
    graph : Graph
        They, with what comes in and what goes out.
    device : bool
        On the accelerator, else on the host.
    """

    graph: Graph
    device: bool


def partition(graph: Graph, rounding: str) -> tuple[list[Part], dict[str, str]]:
    """Stages in turn on the accelerator and on the host, as few as there can be, and why nodes run on the host."""
    reasons = lower(graph, [(node,) for node in graph], rounding).refused
    while True:
        parts = _parts(graph, reasons)
        idle = [part for part in parts if part.device and all(node.op == "reshape" for node in part.graph)]
        if not idle:
            return parts, reasons
        reasons |= {
            node.name: "there is nothing but reshapes to do here" for part in idle for node in part.graph
        }


def _parts(graph: Graph, reasons: Mapping[str, str]) -> list[Part]:
    """Stages in turn; on the host run the nodes that have a reason to."""
    stages: dict[int, list[Node]] = {}
    stage_of: dict[str, int] = {}
    for node in graph:
        device = node.name not in reasons
        number = 0 if device else -1  # stages of the accelerator have even numbers
        for name in node.inputs:
            maker = graph.producer(name)
            if maker is not None:
                before = stage_of[maker.name]
                number = max(number, before + ((maker.name not in reasons) != device))
        stage_of[node.name] = number
        stages.setdefault(number, []).append(node)
    return [Part(_subgraph(graph, stages[number]), number % 2 == 0) for number in sorted(stages)]


def _subgraph(graph: Graph, nodes: list[Node]) -> Graph:
    inside = {node.name for node in nodes}
    made = {name for node in nodes for name in node.outputs}
    inputs = dict.fromkeys(
        name
        for node in nodes
        for name in node.inputs
        if name not in made and not graph.tensors[name].constant
    )
    outputs = [
        name
        for node in nodes
        for name in node.outputs
        if name in graph.outputs or any(user.name not in inside for user in graph.consumers(name))
    ]
    # The model's outputs in its own order, then the others.
    order = {name: number for number, name in enumerate(graph.outputs)}
    outputs.sort(key=lambda name: order.get(name, len(order)))
    return rebuild(graph, nodes, inputs=inputs, outputs=outputs)
