"""Backward analysis that finds which integer inputs of a model contain indices, and their upper bounds."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from compiler.ir.graph import Graph
from compiler.ir.ops import MOVING
from compiler.ir.tensor import Tensor

if TYPE_CHECKING:
    from compiler.runtime.compiled import CompiledNetwork
    from compiler.runtime.stages import Stage

#: Bound assumed for integers from which an index is computed by arithmetic, for example masks that are summed.
_DEFAULT_BOUND = 2
#: ONNX operators whose output consists of values of their first operand.
_FORWARDING = frozenset(
    ("Cast", "CastLike", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Expand", "Tile")
)
#: ONNX operators whose second operand contains indices along one axis of the first operand, or along several axes.
_INDEX_ONE_AXIS = frozenset(("Gather", "GatherElements", "ScatterElements", "Scatter"))
_INDEX_MANY_AXES = frozenset(("GatherND", "ScatterND"))


class Item(NamedTuple):
    """Node of a graph or of a compiled network: operator, attributes, inputs, output names and subgraphs."""

    op: str
    attributes: dict[str, Any]
    inputs: Sequence[Tensor]
    outputs: Sequence[str]
    bodies: "Sequence[Region]" = ()


class Region(NamedTuple):
    """Graph or subgraph: nodes in execution order, and the names of its inputs and outputs."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    items: Sequence[Item]


def index_bounds(model: "Graph | CompiledNetwork") -> dict[str, int]:
    """Return the exclusive upper bound of each model input that contains indices, by name."""
    if isinstance(model, Graph):
        region = _of_graph(model)
    elif model.graph is not None:
        region = _of_graph(model.graph)
    else:
        region = _of_stages(model.inputs, model.outputs, model.stages)
    found = _limits(region, {})
    return {name: found[name] for name in region.inputs if name in found}


def _of_graph(graph: Graph) -> Region:
    items = [
        Item(n.op, n.attributes, graph.ins(n), n.outputs, [_of_graph(body) for body in n.bodies])
        for n in graph
    ]
    return Region(graph.inputs, graph.outputs, items)


def _of_stages(inputs: Iterable[Tensor], outputs: Iterable[Tensor], stages: "Iterable[Stage]") -> Region:
    """Return the region of a compiled network: nodes on the host, and an opaque node per stage on the accelerator."""
    items: list[Item] = []
    for stage in stages:
        if stage.graph is not None:
            items += _of_graph(stage.graph).items
        elif (node := stage.control) is not None:
            bodies = [_of_stages(body.inputs, body.outputs, body.stages) for body in node.bodies]
            items.append(Item(node.op, node.attributes, node.operands, _names(node.outputs), bodies))
        else:
            items.append(Item("device", {}, stage.inputs, _names(stage.outputs)))
    return Region(_names(inputs), _names(outputs), items)


def _names(tensors: Iterable[Tensor]) -> list[str]:
    return [tensor.name for tensor in tensors]


def _limits(region: Region, wanted: dict[str, int]) -> dict[str, int]:
    """Return exclusive upper bounds of tensors by name, given the bounds `wanted` of the outputs."""
    found = dict(wanted)

    def add(name: str, limit: int) -> None:
        found[name] = min(found.get(name, limit), limit)

    for item in reversed(region.items):
        for number, limit in _indexing(item):
            add(item.inputs[number].name, limit)
        if item.bodies:
            for name, limit in _control_flow_limits(item, found):
                add(name, limit)
            continue
        limit = min((found[name] for name in item.outputs if name in found), default=None)
        if limit is None:
            continue
        operator = item.attributes.get("operator", item.op)
        moved = item.op in MOVING or operator in _FORWARDING or operator in _INDEX_ONE_AXIS | _INDEX_MANY_AXES
        first = item.inputs if item.op == "concat" else item.inputs[:1]
        for tensor in first if moved else item.inputs:
            add(tensor.name, limit if moved else min(limit, _DEFAULT_BOUND))
    return found


def _control_flow_limits(item: Item, found: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Yield bounds of the operands of a control-flow node, from its subgraphs and the bounds of its outputs."""
    loop = item.op == "loop"
    operands, inner = item.inputs[2 if loop else 1 :], slice(1, None) if loop else slice(None)
    for body in item.bodies:
        ends = body.outputs[inner]
        wanted = {end: found[name] for end, name in zip(ends, item.outputs, strict=True) if name in found}
        if loop:  # a state is an input of the next iteration
            states = zip(ends, body.inputs[inner], strict=False)
            first = _limits(body, wanted)
            again = [(end, name) for end, name in states if name in first][: item.attributes["states"]]
            wanted |= {end: min(first[name], wanted.get(end, first[name])) for end, name in again}
        limits = _limits(body, wanted)
        for tensor, name in zip(operands, body.inputs[inner], strict=True):
            if name in limits:
                yield tensor.name, limits[name]


def _indexing(item: Item) -> Iterator[tuple[int, int]]:
    """Yield the position of each operand that contains indices, with the exclusive upper bound of the indices."""
    if item.op == "gather":
        yield 1, item.inputs[0].shape[item.attributes["axis"]]
    if item.op != "onnx" or len(item.inputs) < 2:
        return
    operator, (data, where, *_) = item.attributes["operator"], item.inputs
    if operator in _INDEX_ONE_AXIS and data.shape:
        axis = _attributes(item).get("axis", 0)
        yield 1, data.shape[axis]
    if operator in _INDEX_MANY_AXES and where.shape:
        first = _attributes(item).get("batch_dims", 0)
        yield 1, min(data.shape[first : first + where.shape[-1]], default=1)
    if operator == "OneHot" and where.data is not None:
        yield 0, max(math.floor(where.data.reshape(-1)[0]), 1)


def _attributes(item: Item) -> Mapping[str, Any]:
    """Return the attributes of an ONNX node."""
    from compiler.reference.onnx_node_model import node_model  # imported only if needed

    return node_model(item.attributes["model"]).spec.attributes
