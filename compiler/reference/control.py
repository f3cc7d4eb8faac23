"""Control flow: which subgraph runs, and how often. Who runs it, numpy or the accelerator, is the caller's affair."""

from collections.abc import Callable, Sequence

import numpy as np

from compiler.ir.control import loop_operands, truth, whole
from compiler.ir.ops import Attributes
from compiler.ir.tensor import Tensor
from compiler.reference.node_invocation import Array
from hw.errors import WorkError

#: The loops of a model may take so many iterations for a sample, all together; with more, one of them is taken for
#: endless. The longest sequences that networks go through step by step are 16,000 samples of sound and texts of 32,000
#: words; on the golden model so many steps of a small layer take minutes.
MOST_TRIPS = 1 << 15

#: From the inputs of a subgraph, in order, to its outputs.
Body = Callable[[Sequence[Array]], Sequence[Array]]


class Trips:
    """Counts the iterations of all loops for one sample."""

    def __init__(self) -> None:
        self.left = MOST_TRIPS

    def take(self, name: str) -> None:
        """One more; WorkError if there may be none."""
        if not self.left:
            raise WorkError(
                f"loop {name!r} does not end: the loops of a model may take {MOST_TRIPS:,} iterations for a sample"
            )
        self.left -= 1


def run_control(
    name: str,
    op: str,
    attributes: Attributes,
    operands: Sequence[Array],
    bodies: Sequence[Body],
    outputs: Sequence[Tensor],
    trips: Trips,
) -> list[Array]:
    """Reference evaluation of control-flow nodes (compiler/ir/control.py).

    Parameters
    ----------
    name, op, attributes
        The node's.
    operands : sequence of arrays
        In the node's order, constants among them.
    bodies : sequence of functions
        Its subgraphs.
    outputs : sequence of Tensor
        What is to be made.
    trips : Trips
        Iterations that there may be.

    Raises
    ------
    WorkError
        A loop does not end, goes on behind the end of what it scans, or ends before its stacks are full.
    """
    if op == "if":
        return list(bodies[0 if truth(operands[0]) else 1](operands[1:]))
    return _loop(name, attributes, operands, bodies[0], outputs, trips)


def _loop(
    name: str,
    attributes: Attributes,
    operands: Sequence[Array],
    body: Body,
    outputs: Sequence[Tensor],
    counted: Trips,
) -> list[Array]:
    given = loop_operands(attributes, operands)
    going, trips, states = truth(given.condition), whole(given.trips), given.states
    stacks: list[list[Array]] = [[] for _ in attributes["stacked"]]
    count = 0
    while going and count < trips:
        counted.take(name)
        slices = [
            _slice(name, each, count, sign)
            for each, sign in zip(given.scanned, attributes["scanned"], strict=True)
        ]
        made = body([np.array(count, np.int64), *states, *slices, *given.rest])
        going, states = truth(made[0]), list(made[1 : 1 + len(states)])
        for stack, each in zip(stacks, made[1 + len(states) :], strict=True):
            stack.append(each)
        count += 1
    for stack, tensor in zip(stacks, outputs[len(states) :], strict=True):
        if len(stack) != tensor.shape[0]:
            raise WorkError(
                f"loop {name!r} ended after {len(stack)} iterations, but its output {tensor.name!r} takes a slice "
                f"from each of {tensor.shape[0]}"
            )
    pairs = zip(stacks, attributes["stacked"], strict=True)
    return [*states, *(np.stack(stack if sign > 0 else stack[::-1]) for stack, sign in pairs)]


def _slice(name: str, scanned: Array, count: int, sign: int) -> Array:
    if count >= len(scanned):
        raise WorkError(f"loop {name!r} goes on behind the {len(scanned)} slices of what it scans")
    return np.asarray(scanned[count if sign > 0 else len(scanned) - 1 - count])
