"""Partition of a network into stages on the accelerator and on the host."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.identity import identity
from compiler.lowering.lower import handed_over, lower
from hw.errors import InputError

#: Why control flow is the host's, by whether the accelerator has a part in it.
DECIDES = {
    True: "the host decides what runs; the accelerator runs the layers of the subgraphs",
    False: "the host decides what runs, and there is nothing for the accelerator in the subgraphs",
}

#: Why conversions of the caller's numbers are the host's.
HANDED_OVER = "the caller's float numbers are converted as they are handed over"


@dataclass(frozen=True, eq=False)
class GraphPart:
    """Nodes that run in one go.

    Parameters
    ----------
    graph : Graph
        They, with what comes in and what goes out.
    device : bool
        On the accelerator, else on the host.
    bodies : tuple of tuples of Part
        If it is one node of control flow: its subgraphs, each in parts.
    """

    graph: Graph
    device: bool
    bodies: "tuple[tuple[GraphPart, ...], ...]" = ()

    @property
    def on_device(self) -> bool:
        """True if any of it runs on the accelerator."""
        return self.device or any(part.on_device for body in self.bodies for part in body)


def parts_in(parts: Iterable[GraphPart]) -> Iterator[GraphPart]:
    """All parts, those of subgraphs among them."""
    for part in parts:
        yield part
        for body in part.bodies:
            yield from parts_in(body)


Bodies = tuple[tuple[GraphPart, ...], ...]


def partition(graph: Graph, rounding: str, cut: str | None = None) -> tuple[list[GraphPart], dict[str, str]]:
    """Stages in turn on the accelerator and on the host, as few as there can be, and why nodes run on the host.

    A node of control flow is a stage of its own, whose subgraphs have stages again. What reads the tensor `cut` on the
    accelerator is in another stage than what makes it.
    """
    inside = {node.name: [partition(body, rounding) for body in node.bodies] for node in graph if node.bodies}
    reasons = lower(graph, [(node,) for node in graph if not node.bodies], rounding).refused
    reasons |= dict.fromkeys(handed_over(graph, reasons), HANDED_OVER)
    for name, found in inside.items():
        device = any(part.on_device for parts, _ in found for part in parts)
        reasons[name] = DECIDES[device]
        for _, why in found:
            reasons |= why
    while True:
        bodies = {name: tuple(tuple(p) for p, _ in found) for name, found in inside.items()}
        parts = _parts(graph, reasons, bodies, cut)
        idle = [part for part in parts if part.device and all(node.op == "reshape" for node in part.graph)]
        if not idle:
            return parts, reasons
        reasons |= {
            node.name: "there is nothing but reshapes to do here" for part in idle for node in part.graph
        }


def _parts(
    graph: Graph, reasons: Mapping[str, str], inside: Mapping[str, Bodies], cut: str | None
) -> list[GraphPart]:
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
                apart = (maker.name not in reasons) != device
                number = max(number, before + (2 if name == cut and device and not apart else apart))
        stage_of[node.name] = number
        stages.setdefault(number, []).append(node)
    pieces = [(number, piece) for number in sorted(stages) for piece in _pieces(stages[number])]
    return [
        GraphPart(_subgraph(graph, piece), number % 2 == 0, inside.get(piece[0].name, ()))
        for number, piece in pieces
    ]


def _pieces(nodes: list[Node]) -> list[list[Node]]:
    """Nodes of one stage, those of control flow each by itself."""
    return [list(piece) for _, piece in groupby(nodes, key=lambda node: node.name if node.bodies else None)]


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


@identity("HostNode", "node", "op", "reason", "edge")
@dataclass(frozen=True)
class HostNode:
    """A node that runs on the host, and why; at the `edge` it only converts or lays out float inputs or outputs."""

    node: str
    op: str
    reason: str
    edge: bool = False


def check_strict(name: str, host: Iterable[HostNode]) -> None:
    """Refuse nodes on the host that are more than conversions at the edges of the model of this name.

    Raises
    ------
    InputError
        There are some; all are named.
    """
    found = [f"{each.node} ({each.op}): {each.reason}" for each in host if not each.edge]
    if found:
        raise InputError(f"{name}: not for the accelerator: {'; '.join(found)}")
