"""Removes unused operands and outputs of control flow, and moves constant operands into the subgraphs."""

from collections.abc import Sequence
from dataclasses import replace

from compiler.ir.graph import Graph, Node
from compiler.ir.rebuild import rebuild
from compiler.ir.tensor import Tensor


def trim_control(graph: Graph) -> Graph:
    """The same graph with no more operands and outputs of control flow than it needs."""
    if not any(node.bodies for node in graph):
        return graph
    return rebuild(graph, [_trimmed(graph, node) if node.bodies else node for node in graph])


def _trimmed(graph: Graph, node: Node) -> Node:
    node = _without_outputs(graph, node)
    return _without_operands(graph, node)


def _without_outputs(graph: Graph, node: Node) -> Node:
    """States of a loop stay, which needs them itself."""
    states = node.attributes.get("states", 0)
    kept = [
        number
        for number, name in enumerate(node.outputs)
        if number < states or graph.consumers(name) or name in graph.outputs
    ]
    if len(kept) == len(node.outputs):
        return node
    outputs = tuple(node.outputs[number] for number in kept)
    attributes, first = dict(node.attributes), 0
    if node.op == "loop":
        first = 1
        attributes["stacked"] = tuple(attributes["stacked"][number - states] for number in kept[states:])
    bodies = []
    for body in node.bodies:
        made = [*body.outputs[:first], *(body.outputs[first + number] for number in kept)]
        bodies.append(rebuild(body, body, outputs=made))
    return replace(node, outputs=outputs, attributes=attributes, bodies=tuple(bodies))


def _without_operands(graph: Graph, node: Node) -> Node:
    """Constants become constants of the subgraphs; what no subgraph reads is no operand."""
    inner = 1 if node.op == "if" else 2
    first = inner if node.op == "if" else inner + node.attributes["states"] + len(node.attributes["scanned"])
    offset = inner - (0 if node.op == "if" else 1)  # of an operand's number over that of its input inside
    dropped = {
        number
        for number in range(first, len(node.inputs))
        if graph.tensors[node.inputs[number]].constant
        or not any(_read(body, body.inputs[number - offset]) for body in node.bodies)
    }
    if not dropped:
        return node
    inputs = tuple(name for number, name in enumerate(node.inputs) if number not in dropped)
    constants = {number - offset: graph.tensors[node.inputs[number]] for number in dropped}
    bodies = tuple(_with_constants(body, constants) for body in node.bodies)
    return replace(node, inputs=inputs, bodies=bodies)


def _read(body: Graph, name: str) -> bool:
    return bool(body.consumers(name)) or name in body.outputs


def _with_constants(body: Graph, constants: dict[int, Tensor]) -> Graph:
    """A subgraph with constants in place of some inputs, which are left out where nothing reads them."""
    changed = {
        body.inputs[number]: replace(body.tensors[body.inputs[number]], data=tensor.data)
        for number, tensor in constants.items()
    }
    inputs: Sequence[str] = [name for number, name in enumerate(body.inputs) if number not in constants]
    return rebuild(body, body, inputs=inputs, changed=changed)
