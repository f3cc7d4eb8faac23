"""Partition of a network into stages on the accelerator and on the host."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from compiler.ir.graph import Graph, Node, rebuild
from compiler.ir.identity import identity
from compiler.lowering.lower import boundary_conversions, lower
from compiler.options import HostCosts
from compiler.util.scaling import DENSE
from hw.config import MlaConfig
from hw.errors import InputError, did_you_mean, shown

#: Reason for control flow on the host; the key is True if nodes of its subgraphs run on the accelerator.
CONTROL_FLOW_REASONS = {
    True: "the host executes control flow; the accelerator runs the layers of the subgraphs",
    False: "the host executes control flow, and no layer of the subgraphs runs on the accelerator",
}

#: Reason for conversions at the model boundary.
BOUNDARY_REASON = "conversion between float and integers at the model boundary"


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
    graph: Graph,
    rounding: str,
    config: MlaConfig,
    cut: str | None = None,
    moved: Mapping[str, str] | None = None,
) -> tuple[list[GraphPart], dict[str, str]]:
    """Split a graph into a minimal number of stages that alternate between accelerator and host.

    A control-flow node is a separate stage, whose subgraphs are split recursively. On the accelerator, readers of the
    tensor `cut` are in a later stage than its producer. The nodes `moved` run on the host for the reasons given there,
    also if the accelerator could execute them.

    Returns
    -------
    parts, reasons
        The stages in execution order, and for each node on the host, by name, the reason why it runs there.
    """
    inside = {
        node.name: [partition(body, rounding, config, moved=moved) for body in node.bodies]
        for node in graph
        if node.bodies
    }
    reasons = lower(graph, [(node,) for node in graph if not node.bodies], rounding, config).refused
    reasons |= {
        name: why for name, why in (moved or {}).items() if name in graph.nodes and name not in reasons
    }
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


#: Operators whose results on the accelerator may differ by 1 from those on the host (docs/numerics.md).
_INEXACT = frozenset({"softmax", "layer_norm", "rms_norm"})
#: Share of the time of a network by which a move to the host must shorten it.
_MIN_GAIN = 0.1
#: Maximum number of runs of layers that are tried on the host.
_MAX_TRIED = 8


def named_nodes(graph: Graph, names: Collection[str], purpose: str) -> set[str]:
    """Return the nodes with the given names or operators.

    Raises
    ------
    InputError
        A name is neither a node nor an operator of the graph.
    """
    nodes = [(each, node) for each, node in graph.walk() if not node.bodies]
    known = {name for each, node in nodes for name in each.names_of(node)}
    for name in names:
        if name not in known:
            raise InputError(
                f"{graph.name!r} has no node and no operator {shown(name)} to {purpose}{did_you_mean(name, known)}"
            )
    return {node.name for each, node in nodes if not each.names_of(node).isdisjoint(names)}


def work_of(graph: Graph, node: Node) -> tuple[int, int]:
    """Return the elements and the products of a node, which `HostCosts` counts."""
    ins, outs = graph.ins(node), [graph.tensors[name] for name in node.outputs]
    made, products = sum(each.elements for each in outs), 0
    if node.op in ("conv2d", *DENSE):
        products = made * ins[1].elements // ins[1].shape[0]
    elif node.op == "conv_transpose2d":
        products = ins[0].elements * ins[1].elements // ins[1].shape[3]
    elif node.op == "depthwise_conv2d":
        products = made * ins[1].shape[0] * ins[1].shape[1]
    elif node.op == "matmul":
        products = made * ins[0].shape[-1]
    elif node.op in ("max_pool2d", "avg_pool2d"):
        products = made * math.prod(node.attributes["kernel"])
    return made + sum(each.elements for each in ins), products


def host_microseconds(graph: Graph, names: Collection[str], costs: HostCosts) -> float:
    """Return the time that nodes take on the host."""
    return sum(costs.microseconds(node.op, *work_of(graph, node)) for node in graph if node.name in names)


def cheaper_on_host(
    graph: Graph,
    layers: Sequence[tuple[tuple[str, ...], float]],
    kept: Collection[str],
    costs: HostCosts,
    microseconds: Callable[[Mapping[str, str]], float],
) -> dict[str, str]:
    """Return the nodes that are to run on the host, with the reasons.

    Adjacent layers that take longer on the accelerator than on the host are tried together, those with the largest
    gain first, and stay on the host if the time of the whole network becomes at least a tenth shorter.

    Parameters
    ----------
    graph : Graph
        Graph before the partition.
    layers : sequence of (tuple of str, float)
        Names of the nodes of each layer on the accelerator, in order, and its estimated cycles.
    kept : collection of str
        Nodes that stay on the accelerator.
    costs : HostCosts
        Times on the host, and the clock.
    microseconds : function
        Returns the time of the whole network, on both sides, if the given nodes run on the host.
    """
    runs: list[list[str]] = [[]]
    gains: list[float] = [0.0]
    for nodes, cycles in layers:
        gain = cycles / costs.clock - host_microseconds(graph, nodes, costs)
        apart = any(name in kept or graph.nodes[name].op in _INEXACT for name in nodes)
        if gain > 0 and not apart:
            runs[-1] += nodes
            gains[-1] += gain
        elif runs[-1]:
            runs.append([])
            gains.append(0.0)
    order = sorted(range(len(runs)), key=lambda number: -gains[number])
    found: dict[str, str] = {}
    now = microseconds({})
    for number in order[:_MAX_TRIED]:
        if gains[number] < _MIN_GAIN * now:
            break
        alone = host_microseconds(graph, runs[number], costs)
        why = f"the host takes {alone:,.0f} us, the accelerator {alone + gains[number]:,.0f} us at {costs.clock:g} MHz"
        tried = found | dict.fromkeys(runs[number], why)
        time = microseconds(tried)
        if time <= (1 - _MIN_GAIN) * now:
            found, now = tried, time
    return found


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
