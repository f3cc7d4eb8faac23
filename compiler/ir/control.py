"""Control flow in the graph: how operands and outputs of `if` and `loop` correspond to inputs and outputs of subgraphs.

The operands of `if` are a condition and the tensors that its subgraphs capture. Each of the two subgraphs has an input
for each captured tensor and computes all outputs of the node.

The operands of `loop` are a condition, the maximum number of iterations (int64), the initial *states*, the *scanned*
tensors and the captured tensors. Each iteration reads one slice of each scanned tensor, along the first dimension. The
inputs of the subgraph are the iteration number (int64), the states, a slice of each scanned tensor and the captured
tensors. The subgraph computes the condition of the next iteration, the next states, and slices to be *stacked*. The
outputs of the loop are the final states and the stacked slices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from compiler.ir.tensor import IDENTITY, Quantization, Tensor

_T = TypeVar("_T")
#: Inputs and outputs of a subgraph.
Ends = tuple[Sequence[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class LoopOperands(Generic[_T]):
    """Operands of a loop, grouped by role."""

    condition: _T
    trips: _T
    states: list[_T]
    scanned: list[_T]
    rest: list[_T]


def loop_operands(attributes: Mapping[str, Any], operands: Sequence[_T]) -> LoopOperands[_T]:
    """Group the operands of a loop by role."""
    first, second = 2 + attributes["states"], 2 + attributes["states"] + len(attributes["scanned"])
    return LoopOperands(
        operands[0], operands[1], [*operands[2:first]], [*operands[first:second]], [*operands[second:]]
    )


def mismatch(
    op: str,
    attributes: Mapping[str, Any],
    operands: Sequence[Tensor],
    bodies: Sequence[Ends],
    outputs: Sequence[Tensor],
) -> str | None:
    """Return a description of the first inconsistency of a control-flow node; None if the node is valid."""
    if operands[0].dtype != "bool" or operands[0].elements != 1:
        return f"its condition {operands[0].name!r} must be one bool, not {kind(operands[0])}"
    return _if(operands, bodies, outputs) if op == "if" else _loop(attributes, operands, bodies[0], outputs)


def _if(operands: Sequence[Tensor], bodies: Sequence[Ends], outputs: Sequence[Tensor]) -> str | None:
    for name, (inside, made) in zip(("then", "else"), bodies, strict=True):
        wrong = _differ(operands[1:], inside, f"operand # of its subgraph {name!r}")
        wrong = wrong or _differ(outputs, made, f"output # of its subgraph {name!r}")
        if wrong:
            return wrong
    return None


def _loop(
    attributes: Mapping[str, Any], operands: Sequence[Tensor], body: Ends, outputs: Sequence[Tensor]
) -> str | None:
    states, stacked = attributes["states"], len(attributes["stacked"])
    wanted = 2 + states + len(attributes["scanned"])
    if len(operands) < wanted or len(outputs) != states + stacked:
        return f"must have {wanted} operands and {states + stacked} outputs"
    given = loop_operands(attributes, operands)
    if given.trips.dtype != "int64" or given.trips.elements != 1:
        return f"its trip count {given.trips.name!r} must be one int64, not {kind(given.trips)}"
    inside, made = body
    if len(inside) != len(operands) - 1 or len(made) != 1 + len(outputs):
        return f"its subgraph must have {len(operands) - 1} inputs and {1 + len(outputs)} outputs"
    if (inside[0].dtype, inside[0].shape) != ("int64", ()):
        return f"the iteration {inside[0].name!r} must be int64[], not {kind(inside[0])}"
    if made[0].dtype != "bool" or made[0].elements != 1:
        return f"the next condition {made[0].name!r} must be one bool, not {kind(made[0])}"
    for stack in (*given.scanned, *outputs[states:]):
        if not stack.shape:
            return f"{stack.name!r} has no first dimension to take slices along"
    slices, first, last = inside[1 + states : wanted - 1], given.states, outputs[:states]
    return (
        _differ(first, inside[1 : 1 + states], "state # going into its subgraph")
        or _differ(first, made[1 : 1 + states], "state # made by its subgraph")
        or _differ(first, last, "state # as an output")
        or _differ(given.scanned, slices, "scanned operand #", sliced=True)
        or _differ(outputs[states:], made[1 + states :], "stacked output #", sliced=True)
        or _differ(given.rest, inside[wanted - 1 :], "operand # of its subgraph")
    )


def _differ(
    outside: Sequence[Tensor], inside: Sequence[Tensor], what: str, *, sliced: bool = False
) -> str | None:
    """Describe the first difference between tensors outside and inside a subgraph; # in `what` becomes the index."""
    if len(outside) != len(inside):
        return f"{what.replace(' #', '')}: there must be {len(outside)}, not {len(inside)}"
    for number, (a, b) in enumerate(zip(outside, inside, strict=True)):
        shape = a.shape[1:] if sliced else a.shape
        if (shape, a.dtype, _meaning(a)) != (b.shape, b.dtype, _meaning(b)):
            slice_of = "a slice of " if sliced else ""
            return f"{what.replace('#', str(number))}: {b.name!r} must be {slice_of}{kind(a)}, not {kind(b)}"
    return None


def _meaning(tensor: Tensor) -> Quantization | None:
    """Return the quantization of a tensor; None for the identity quantization."""
    return None if tensor.quantization == IDENTITY else tensor.quantization


def kind(tensor: Tensor) -> str:
    """Return the type, shape and quantization of a tensor, for messages."""
    q = tensor.quantization
    meaning = "" if q is None else f" * {q.scale[0]:.6g} @ {q.zero_point[0]}" if q.whole else " by axis"
    return f"{tensor.dtype}{list(tensor.shape)}{meaning}"


def truth(value: Any) -> bool:
    """Return the value of a condition tensor as a bool."""
    return bool(value.reshape(-1)[0])


def whole(value: Any) -> int:
    """Return the value of a trip count tensor, or 0 if the value is negative."""
    return max(int(value.reshape(-1)[0]), 0)
