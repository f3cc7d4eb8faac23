"""Trip count analysis of loops."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.ir.control import loop_operands, truth, whole
from compiler.ir.graph import Graph, Node
from compiler.reference import run_node
from hw.errors import InputError, shown

#: Loops of more iterations stay loops. Each iteration gets layers and programs of its own, which are worth it as long
#: as they fit the instruction store together: programs that do not are loaded again for every sample.
MOST_UNROLLED = 32
#: The same for loops that would become more nodes than large networks have, all loops of a graph together.
MOST_NODES = 1024

#: Nodes that loops in loops may carry out for a sample: they multiply, and calibration carries them out.
MOST_WORK = 1 << 18

Known = NDArray | None


def known_trips(node: Node, operands: Sequence[Known], room: int = MOST_NODES) -> int | None:
    """Number of iterations of a loop that is to be unrolled; None if it stays one.

    Parameters
    ----------
    node : Node
        The loop.
    operands : sequence of array or None
        Contents of the loop's operands; None where unknown.
    room : int
        Maximum number of nodes after unrolling.
    """
    given = loop_operands(node.attributes, operands)
    if given.condition is None or given.trips is None:
        return None
    (body,) = node.bodies
    most = min(MOST_UNROLLED, room // max(_size(body, _inside(node, operands)), 1))
    going, states, trips = truth(given.condition), given.states, whole(given.trips)
    slices: list[Known] = [None] * len(given.scanned)
    count = 0
    while going and count < trips:
        if count == most:
            return None
        inputs = [np.array(count, np.int64), *states, *slices, *given.rest]
        made = _known(body, inputs)
        if made[0] is None:
            return None
        going, states = truth(made[0]), made[1 : 1 + len(states)]
        count += 1
    return count


def unrolled_nodes(node: Node, operands: Sequence[Known], trips: int) -> int:
    """Nodes that so many iterations of a loop become, at most."""
    (body,) = node.bodies
    return trips * _size(body, _inside(node, operands))


def _inside(node: Node, operands: Sequence[Known]) -> list[Known]:
    """What is known of the inputs of a loop's subgraph in each iteration."""
    given = loop_operands(node.attributes, operands)
    return [*[None] * (1 + len(given.states) + len(given.scanned)), *given.rest]


def _size(graph: Graph, inputs: Sequence[Known]) -> int:
    """Nodes of a graph, at most, when the loops in it are unrolled too."""
    values, size = _values(graph, inputs), 0
    for node in graph:
        size += 1
        operands = [values[name] for name in node.inputs]
        if node.op == "loop":
            trips = loop_operands(node.attributes, operands).trips
            size += unrolled_nodes(node, operands, MOST_UNROLLED if trips is None else _few(trips))
        else:
            size += sum(_size(body, operands[1:]) for body in node.bodies)
    return size


def check_work(graph: Graph) -> None:
    """Check that nested loops do not execute an excessive number of nodes.

    Raises
    ------
    InputError
        The limit is exceeded; the message names the outermost loop.
    """
    values = _values(graph, [None] * len(graph.inputs))
    for node in graph:
        if node.op == "loop" and any(inner.op == "loop" for _, inner in node.bodies[0].walk()):
            work = _work(node, [values[name] for name in node.inputs])
            if work > MOST_WORK:
                raise InputError(
                    f"loop {shown(node.name)} and its inner loops execute {work:,} nodes per sample; "
                    f"the limit is {MOST_WORK:,}"
                )


def _work(node: Node, operands: Sequence[Known]) -> int:
    """Nodes that a loop carries out for certain: those whose end depends on the data count as one iteration."""
    (body,), trips = node.bodies, loop_operands(node.attributes, operands).trips
    values, work = _values(body, _inside(node, operands)), 0
    for inner in body:
        known = [values[name] for name in inner.inputs]
        work += 1 + (_work(inner, known) if inner.op == "loop" else 0)
    going = values[body.outputs[0]]
    certain = trips is not None and going is not None and truth(going)
    return work * (whole(trips) if certain else 1)


def _few(trips: NDArray) -> int:
    """Iterations of a loop that is unrolled, at least one: it may stay a loop."""
    return max(1, min(whole(trips), MOST_UNROLLED))


def _known(graph: Graph, inputs: Sequence[Known]) -> list[Known]:
    """Outputs of a graph, as far as they follow from the inputs that are known."""
    values = _values(graph, inputs)
    return [values[name] for name in graph.outputs]


def _values(graph: Graph, inputs: Sequence[Known]) -> dict[str, Known]:
    """All tensors of a graph, as far as they follow from the inputs that are known."""
    values: dict[str, Known] = {name: tensor.data for name, tensor in graph.tensors.items()}
    values |= zip(graph.inputs, inputs, strict=True)
    for node in graph:
        operands = [values[name] for name in node.inputs]
        known = [value for value in operands if value is not None]
        if not node.bodies and operands and len(known) == len(operands):
            values |= zip(node.outputs, run_node(graph, node, known), strict=True)
    return values
