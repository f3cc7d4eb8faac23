"""Partition of a network into stages on the accelerator and on the host."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.identity import identity
from compiler.lowering.lower import boundary_conversions, lower
from hw.config import MlaConfig
from hw.errors import InputError

#: Reason for control flow on the host; the key is True if nodes of its subgraphs run on the accelerator.
CONTROL_FLOW_REASONS = {
    True: "the host executes control flow; the accelerator runs the layers of the subgraphs",
    False: "the host executes control flow, and no layer of the subgraphs runs on the accelerator",
}

#: Reason for conversions at the model boundary.
BOUNDARY_REASON = "float inputs and outputs are converted on the host"


@dataclass(frozen=True, eq=False)
class GraphPart:
    """Stage of nodes that are executed together on the accelerator or on the host.

    Parameters
    ----------
    graph : Graph
        Graph of the nodes, with their inputs and outputs.
    device : bool
        True for the accelerator, False for the host.
    bodies : tuple of tuples of GraphPart
        Stages of each subgraph, if the part is a control-flow node.
    """

    graph: Graph
    device: bool
    bodies: "tuple[tuple[GraphPart, ...], ...]" = ()

    @property
    def on_device(self) -> bool:
        """True if the part, or any part of its subgraphs, runs on the accelerator."""
        return self.device or any(part.on_device for body in self.bodies for part in body)


def parts_in(parts: Iterable[GraphPart]) -> Iterator[GraphPart]:
    """Iterate over all parts, including the parts of subgraphs."""
    for part in parts:
        yield part
        for body in part.bodies:
            yield from parts_in(body)


Bodies = tuple[tuple[GraphPart, ...], ...]


def partition(
    graph: Graph, rounding: str, config: MlaConfig, cut: str | None = None
) -> tuple[list[GraphPart], dict[str, str]]:
    """Split a graph into a minimal number of stages that alternate between accelerator and host.

    A control-flow node is a separate stage, whose subgraphs are split recursively. On the accelerator, readers of the
    tensor `cut` are in a later stage than its producer.

    Returns
    -------
    parts, reasons
        The stages in execution order, and for each node on the host, by name, the reason why it runs there.
    """
    inside = {
        node.name: [partition(body, rounding, config) for body in node.bodies]
        for node in graph
        if node.bodies
    }
    reasons = lower(graph, [(node,) for node in graph if not node.bodies], rounding, config).refused
    reasons |= dict.fromkeys(boundary_conversions(graph, reasons), BOUNDARY_REASON)
    for name, found in inside.items():
        device = any(part.on_device for parts, _ in found for part in parts)
        reasons[name] = CONTROL_FLOW_REASONS[device]
        for _, why in found:
            reasons |= why
    while True:
        bodies = {name: tuple(tuple(p) for p, _ in found) for name, found in inside.items()}
        parts = _parts(graph, reasons, bodies, cut)
        idle = {
            node.name: why
            for part in parts
            if part.device and (why := _idle(graph, part))
            for node in part.graph
        }
        if not idle:
            return parts, reasons
        reasons |= idle


def _idle(graph: Graph, part: GraphPart) -> str:
    """Return the reason why a stage is not worth a transfer to the accelerator; "" if it is."""
    if all(node.op == "reshape" for node in part.graph):
        return "its stage would consist of reshapes only"
    operands = [t for node in part.graph for t in part.graph.ins(node) if not t.constant]
    booleans = all(tensor.dtype == "bool" for tensor in operands)
    if booleans and any(graph.producer(name) is not None for name in part.graph.inputs):
        return "its stage would only combine booleans that the host computes"
    return ""


def _parts(
    graph: Graph, reasons: Mapping[str, str], inside: Mapping[str, Bodies], cut: str | None
) -> list[GraphPart]:
    """Return the stages in execution order; nodes that are listed in `reasons` run on the host."""
    stages: dict[int, list[Node]] = {}
    stage_of: dict[str, int] = {}
    for node in graph:
        device = node.name not in reasons
        number = 0 if device else -1  # stages of the accelerator have even numbers
        for name in node.inputs:
            producer = graph.producer(name)
            if producer is not None:
                before = stage_of[producer.name]
                crosses = (producer.name not in reasons) != device
                number = max(number, before + (2 if name == cut and device and not crosses else crosses))
        stage_of[node.name] = number
        stages.setdefault(number, []).append(node)
    pieces = [(number, piece) for number in sorted(stages) for piece in _pieces(stages[number])]
    return [
        GraphPart(_subgraph(graph, piece), number % 2 == 0, inside.get(piece[0].name, ()))
        for number, piece in pieces
    ]


def _pieces(nodes: list[Node]) -> list[list[Node]]:
    """Split the nodes of one stage so that each control-flow node is separate."""
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
    # The model's outputs are first, in the model's order.
    order = {name: number for number, name in enumerate(graph.outputs)}
    outputs.sort(key=lambda name: order.get(name, len(order)))
    return rebuild(graph, nodes, inputs=inputs, outputs=outputs)


@identity("HostNode", "node", "op", "reason", "edge")
@dataclass(frozen=True)
class HostNode:
    """A node that runs on the host.

    Parameters
    ----------
    node, op : str
        Name and operator of the node.
    reason : str
        Reason why the accelerator does not execute it.
    edge : bool
        True if the node only converts, or changes the layout of, inputs or outputs of the model.
    """

    node: str
    op: str
    reason: str
    edge: bool = False


def check_strict(name: str, host: Iterable[HostNode]) -> None:
    """Check that the host executes only conversions at the boundary of the model called `name`.

    Raises
    ------
    InputError
        The host executes other nodes; the message lists all of them.
    """
    found = [f"{each.node} ({each.op}): {each.reason}" for each in host if not each.edge]
    if found:
        raise InputError(f"{name}: not for the accelerator: {'; '.join(found)}")
