"""Operators that may need no layer: reshape, slice and concat as views, copies where a view will not do."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from compiler.layers.base import Layer
from compiler.layers.lowering_context import LoweringContext, image_of
from compiler.layers.move import concat, reshape
from compiler.layers.registry import LOWERINGS

if TYPE_CHECKING:
    from compiler.lowering.lower import LoweredNetwork


def _reshape(out: "LoweredNetwork", low: LoweringContext) -> list[Layer]:
    """Another view of the same bytes; a copy where these have gaps, where the user wants a part by itself, or where a
    program would have nothing to do.
    """
    image_of(low.x)  # of a type that the machine has
    part, graph = out.part(low.x.name), out.graph
    idle = not out.layers and out.root(low.x.name) in graph.inputs
    if (part and part.gaps) or (low.y.name in graph.outputs and (part or idle)):
        return [reshape(low)]
    out.views[low.y.name] = low.x.name
    return []


def _slice(out: "LoweredNetwork", low: LoweringContext) -> list[Layer]:
    """A copy, unless the part is read where it is."""
    part = out.parts.get(low.y.name)
    return [] if part and part.of == low.x.name else [LOWERINGS["slice"].lower(low)]


def _concat(out: "LoweredNetwork", low: LoweringContext) -> list[Layer]:
    """A copy of what is not made where it is wanted."""
    there = {name for name, part in out.parts.items() if part.of == low.y.name}
    made = concat(low, there)
    return [made] if made else []


#: What adds the layers they need, and notes views.
IN_PLACE: dict[str, Callable[["LoweredNetwork", LoweringContext], list[Layer]]] = {
    "reshape": _reshape,
    "slice": _slice,
    "concat": _concat,
}
