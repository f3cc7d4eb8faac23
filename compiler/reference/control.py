"""Execution of `if` and `loop` nodes; the caller supplies functions that run the subgraphs in numpy or on a device."""

from collections.abc import Callable, Sequence

import numpy as np

from compiler.ir.control import loop_operands, truth, whole
from compiler.ir.ops import Attributes
from compiler.ir.tensor import Tensor
from compiler.reference.node_invocation import Array
from hw.errors import WorkError

#: Limit on the iterations of all loops of a model per sample, beyond which a loop is considered endless. The longest
#: sequences that networks process step by step are about 16,000 audio samples or 32,000 words.
MAX_ITERATIONS = 1 << 15

#: Function that runs a subgraph on inputs, given in order, and returns the outputs.
Body = Callable[[Sequence[Array]], Sequence[Array]]


class Trips:
    """Counter of the iterations of all loops for one sample."""

    def __init__(self) -> None:
        self.left = MAX_ITERATIONS

    def count_iteration(self, name: str) -> None:
        """Count an iteration of the named loop; raise WorkError if the limit is exceeded."""
        if not self.left:
            raise WorkError(
                f"loop {name!r} does not end: the loops of a model may take {MAX_ITERATIONS:,} iterations for a sample"
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
    """Execute a control-flow node (compiler/ir/control.py) and return its outputs.

    Parameters
    ----------
    name, op, attributes
        Name, operator and attributes of the node.
    operands : sequence of arrays
        Operands in the node's order, including constants.
    bodies : sequence of functions
        Functions that each run one of the node's subgraphs.
    outputs : sequence of Tensor
        Output tensors of the node.
    trips : Trips
        Counter of loop iterations.

    Raises
    ------
    WorkError
        A loop does not end, exceeds the length of a scanned value, or ends before its stacked outputs are complete.
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
        counted.count_iteration(name)
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
        raise WorkError(f"loop {name!r} runs past the {len(scanned)} slices of its scanned input")
    return np.asarray(scanned[count if sign > 0 else len(scanned) - 1 - count])
