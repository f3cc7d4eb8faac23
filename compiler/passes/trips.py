"""How often a loop runs, where that is known beforehand."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.host import run_node
from compiler.ir.control import loop_operands, truth, whole
from compiler.ir.graph import Graph, Node

#: Loops of more iterations stay loops. Each iteration gets layers and programs of its own, which are worth it as long
#: as they fit the instruction store together: programs that do not are loaded again for every sample.
MOST_UNROLLED = 32
#: The same for loops that would become more nodes than large networks have.
MOST_NODES = 4096

Known = NDArray | None


def known_trips(node: Node, operands: Sequence[Known]) -> int | None:
    """Number of iterations of a loop that is to be unrolled; None if it stays one.

    Parameters
    ----------
    node : Node
        The loop.
    operands : sequence of array or None
        Contents of its operands, where they are known.
    """
    given = loop_operands(node.attributes, operands)
    if given.condition is None or given.trips is None:
        return None
    (body,) = node.bodies
    most = min(MOST_UNROLLED, MOST_NODES // max(sum(1 for _ in body.walk()), 1))
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


def _known(graph: Graph, inputs: Sequence[Known]) -> list[Known]:
    """Outputs of a graph, as far as they follow from the inputs that are known."""
    values: dict[str, Known] = {name: tensor.data for name, tensor in graph.tensors.items()}
    values |= zip(graph.inputs, inputs, strict=True)
    for node in graph:
        operands = [values[name] for name in node.inputs]
        known = [value for value in operands if value is not None]
        if not node.bodies and operands and len(known) == len(operands):
            values |= zip(node.outputs, run_node(graph, node, known), strict=True)
    return [values[name] for name in graph.outputs]
