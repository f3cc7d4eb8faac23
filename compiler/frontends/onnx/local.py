"""Functions that an ONNX file defines itself: put in place where they are used."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import networkx as nx
import onnx
from onnx import AttributeProto, inliner

from hw.errors import InputError, shown

#: Nodes that a file may have after that; functions that use others twice, those again, and so on make many of few.
_MOST = 1 << 18
Key = tuple[str, str]


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions of its own.

    Raises
    ------
    InputError
        They use themselves, would make too many nodes, or are damaged.
    """
    if not model.functions:
        return model
    _check(model)
    try:
        return inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, TypeError, onnx.checker.ValidationError) as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"its functions cannot be put in place: {text[:200]}") from None


def _check(model: onnx.ModelProto) -> None:
    """The inliner looks for neither cycles nor size."""
    functions = {(f.domain, f.name): f for f in model.functions}
    if len(functions) != len(model.functions):
        raise InputError("defines a function twice")
    uses = nx.DiGraph()
    uses.add_nodes_from(functions)
    sizes: dict[Key, Counter[Key]] = {}
    for key, function in functions.items():
        sizes[key] = Counter(_keys(function.node))
        uses.add_edges_from((key, used) for used in sizes[key] if used in functions)
    try:
        order = list(nx.topological_sort(uses))
    except nx.NetworkXUnfeasible:
        (first, _), *_ = nx.find_cycle(uses)
        raise InputError(f"function {shown(first[1])} uses itself") from None
    total: dict[Key, int] = {}
    for key in reversed(order):
        total[key] = sum(count * total.get(used, 1) for used, count in sizes[key].items())
    made = sum(total.get(key, 1) for key in _keys(model.graph.node))
    if made > _MOST:
        raise InputError(f"its functions make {made:,} nodes, more than {_MOST:,}")


def _keys(nodes: Iterable[Any]) -> Iterator[Key]:
    """Domain and operator of nodes, those of subgraphs among them."""
    for node in nodes:
        yield node.domain, node.op_type
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _keys(attribute.g.node)
