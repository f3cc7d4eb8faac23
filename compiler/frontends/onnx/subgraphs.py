"""Conversion of ONNX subgraphs to separate graphs, inlining of subgraphs and functions, and unrolling of loops."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, defs, inliner

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode, OnnxModel
from compiler.frontends.onnx.ops.quantize import quantized
from compiler.frontends.onnx.ops.shape import renamed
from compiler.frontends.onnx.registry import CONVERSIONS, DEFAULT, check_version, versions_of
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    Order,
    UnsupportedNodeError,
    Value,
    ValueType,
    check_size,
    counted_from_front,
    plain,
)
from compiler.ir.control import truth
from compiler.ir.graph import Graph
from compiler.ir.tensor import IDENTITY, Quantization, Tensor
from hw.errors import InputError, shown

#: Representation of a value in the graph: its type and the order of its dimensions.
Form = tuple[ValueType, Order]


def body_of(node: FileNode, key: str) -> OnnxModel:
    """Return the subgraph attribute `key` of a node."""
    body = node.attributes.get(key)
    if not isinstance(body, OnnxModel):
        raise InputError(f"attribute {key} must be a graph")
    return body


def apart(node: FileNode, inputs: Sequence[Value | None]) -> tuple[list[Value | None], dict[str, Value]]:
    """Split the inputs of a node into its own inputs and the values that its subgraphs capture, by name."""
    bodies = [body for body in node.attributes.values() if isinstance(body, OnnxModel)]
    names = dict.fromkeys(name for body in bodies for name in body.captured)
    own = len(node.inputs) - len(names)
    values = dict(zip(names, inputs[own:], strict=True)) if names else {}
    given = [*inputs[:own], *[None] * (own - len(inputs))]
    return given, {name: value for name, value in values.items() if value is not None}


def inline(emitter: OnnxGraphBuilder, model: OnnxModel, values: Mapping[str, Value]) -> list[Value]:
    """Inline the nodes of a subgraph into the enclosing graph and return the outputs of the subgraph."""
    assert emitter.reader is not None
    constants = {name: value for name, value in values.items() if isinstance(value, ConstantValue)}
    inner, inner_values = emitter.reader.inside(model, constants), dict(values)
    own = inner.emitter(0, emitter.targets)
    saved = (emitter.targets, emitter.meanings, emitter.reader)
    emitter.targets, emitter.meanings = own.targets, saved[1] | own.meanings
    emitter.reader = inner
    try:
        inner.convert(emitter, inner_values)
    finally:
        emitter.targets, emitter.meanings, emitter.reader = saved
    return [inner_values[output.name] for output in model.outputs]


@dataclass
class Subgraph:
    """Subgraph that has been converted to a separate graph; its outputs are added one by one.

    Parameters
    ----------
    emitter : OnnxGraphBuilder
        Builder of the separate graph.
    values : dict
        Inputs of the subgraph and outputs of its nodes, by name.
    outputs : list of Tensor
        Outputs that have been added to the graph.
    """

    emitter: OnnxGraphBuilder
    values: dict[str, Value]
    outputs: list[Tensor] = field(default_factory=list)

    def add(self, value: Value, form: Form) -> None:
        """Append a value, converted to a form, to the outputs."""
        self.outputs.append(operand(self.emitter, value, form))

    def graph(self) -> Graph:
        """Return the finished graph."""
        return self.emitter.build.graph.finish([tensor.name for tensor in self.outputs])


def subgraph(
    emitter: OnnxGraphBuilder,
    model: OnnxModel,
    forms: Mapping[str, tuple[Form, tuple[int, ...]]],
    values: Mapping[str, Value],
) -> Subgraph:
    """Convert a subgraph to a separate graph.

    Parameters
    ----------
    emitter : OnnxGraphBuilder
        Builder of the enclosing graph.
    model : OnnxModel
        The subgraph to convert.
    forms : dict
        Form (type and order of dimensions) and shape (in the file's order) of each input by name, in the order of the
        inputs.
    values : dict
        Captured values by name; dynamic values become additional inputs and keep their form.
    """
    assert emitter.reader is not None
    constants = {name: value for name, value in values.items() if isinstance(value, ConstantValue)}
    inner = emitter.reader.inside(model, constants)
    own = inner.emitter(emitter.room)
    inner_values: dict[str, Value] = dict(constants)
    for name, ((kind, order), shape) in forms.items():
        inner_values[name] = _input(own, name, kind, order, tuple(shape[i] for i in order))
    for name, value in values.items():
        if isinstance(value, DynamicValue):
            inner_values[name] = _input(own, name, value.kind, value.order, value.tensor.shape)
    inner.convert(own, inner_values)
    emitter.room = own.room
    return Subgraph(own, inner_values)


def _input(
    emitter: OnnxGraphBuilder, name: str, kind: ValueType, order: Order, shape: tuple[int, ...]
) -> DynamicValue:
    q = kind.quantization
    if not kind.real and q is None and kind.dtype not in ("float32", "bool"):
        q = emitter.meanings.get(name)
        q = q if q == IDENTITY else None
    tensor = Tensor(emitter.build.fresh(name), shape, kind.dtype, q)
    return DynamicValue(name, emitter.build.graph.add_input(tensor), order, kind.real)


def flows(values: Mapping[str, Value]) -> list[Tensor]:
    """Return the tensors of the captured values that are dynamic; they become operands of the control-flow node."""
    return [value.tensor for value in values.values() if isinstance(value, DynamicValue)]


def natural(value: Value) -> Form:
    """Return the form that a value has in the graph; for a constant, its type and dimension order in the file."""
    if isinstance(value, DynamicValue):
        return value.kind, value.order
    numbers = value.numbers()
    kind = FLOAT if numbers.dtype.kind == "f" else ValueType(numbers.dtype.name)
    return kind, plain(numbers.ndim)


def common(values: Sequence[Value], what: str) -> Form:
    """Return a form to which all values can be converted without loss; `what` names the values in errors."""
    forms = [natural(value) for value in values]
    if len({form for form, value in zip(forms, values, strict=True)}) == 1:
        return forms[0]
    if len({value.shape for value in values}) != 1:
        shapes = " and ".join(str(list(value.shape)) for value in values)
        raise UnsupportedNodeError(f"{what} of shapes {shapes}")
    if all(kind.real or kind == FLOAT for kind, _ in forms):
        order = forms[0][1] if all(order == forms[0][1] for _, order in forms) else plain(len(forms[0][1]))
        return FLOAT, order
    kinds = {
        (kind.dtype, kind.real, None if kind.quantization == IDENTITY else kind.quantization)
        for kind, _ in forms
    }
    if len(kinds) != 1:
        raise UnsupportedNodeError(f"{what} of types {' and '.join(kind.dtype for kind, _ in forms)}")
    dtype, real, q = kinds.pop()
    return ValueType(dtype, q, real), plain(len(forms[0][1]))


def operand(emitter: OnnxGraphBuilder, value: Value, form: Form) -> Tensor:
    """Convert a value to a form that `common` returned or `exact` permits, and return the resulting tensor."""
    kind, order = form
    if isinstance(value, DynamicValue):
        return emitter.operand(value, order, kind)
    if kind.real and kind.quantization is not None:
        stored = quantized(value.real(), kind.quantization, kind.dtype)
        value = ConstantValue(value.name, stored, kind.quantization)
    elif kind == FLOAT:
        value = ConstantValue(value.name, value.real())
    else:
        value = ConstantValue(value.name, value.numbers().astype(kind.dtype))
    return emitter.constant(value.name or "value", value.transposed(order))


def exact(value: Value, kind: ValueType) -> bool:
    """Return True if a value can be converted to a quantized type without loss."""
    if isinstance(value, DynamicValue):
        return value.kind == kind
    q = kind.quantization
    if q is None or not q.whole or value.numbers().dtype.kind != "f" or not np.isfinite(value.real()).all():
        return False
    return bool(np.array_equal(q.dequantized(quantized(value.real(), q, kind.dtype)), value.real()))


def outside(
    emitter: OnnxGraphBuilder, name: str, tensor: Tensor, form: Form, shape: tuple[int, ...] | None = None
) -> DynamicValue:
    """Return the output of a control-flow node for output `tensor` of its subgraph, with another `shape` if given."""
    kind, order = form
    q: Quantization | None = tensor.quantization
    if not kind.real and q is None and kind.dtype not in ("float32", "bool"):
        meaning = emitter.meanings.get(name)
        q = meaning if meaning == IDENTITY else None
    check_size(shape or tensor.shape)
    output = Tensor(emitter.build.fresh(name or "unused"), shape or tensor.shape, tensor.dtype, q)
    return DynamicValue(name, output, order, kind.real)


@dataclass(frozen=True)
class ScanAxis:
    """Dimension along which a Scan reads or stacks slices, and the direction.

    Parameters
    ----------
    axis : int
        Dimension of the value in the file's order.
    sign : int
        1: from the first slice to the last; -1: from the last to the first.
    """

    axis: int
    sign: int


@dataclass(frozen=True)
class Loop:
    """A Loop or Scan node with its operands.

    Parameters
    ----------
    node : FileNode
        The Loop or Scan node.
    body : OnnxModel
        Subgraph of one iteration.
    trips, condition : Value
        Maximum number of iterations, and condition of the first iteration.
    states, scanned : list of Value
        Initial states, and the values that are read slice by slice.
    values : dict
        Values that the subgraph captures, by name.
    ins : int
        Number of the subgraph's inputs before the states: 2 for a Loop (iteration number, condition), 0 for a Scan.
    axes, stacks : list of ScanAxis
        Axes of the scanned values, and of the stacked outputs.
    """

    node: FileNode
    body: OnnxModel
    trips: Value
    condition: Value
    states: list[Value]
    scanned: list[Value]
    values: dict[str, Value]
    ins: int
    axes: list[ScanAxis]
    stacks: list[ScanAxis]

    @property
    def names(self) -> list[str]:
        """Names of the inputs of the subgraph."""
        return [each.name for each in self.body.inputs]

    def made(self, values: Mapping[str, Value]) -> tuple[Value, list[Value], list[Value]]:
        """Return the outputs of the subgraph: the next condition, the next states and the slices to be stacked."""
        outputs = [values[each.name] for each in self.body.outputs]
        condition = outputs.pop(0) if self.ins else true()
        return condition, outputs[: len(self.states)], outputs[len(self.states) :]


def true() -> ConstantValue:
    """Return the constant True, for a loop that has no condition."""
    return ConstantValue("true", np.array(True))


def unrolled(
    emitter: OnnxGraphBuilder, loop: Loop, trips: int, error: UnsupportedNodeError
) -> Sequence[Value]:
    """Unroll a loop into the graph and return its outputs, or raise `error` if the trip count is data-dependent."""
    condition, states, count = loop.condition, loop.states, 0
    stacks: list[list[Value]] = [[] for _ in loop.stacks]
    while count < trips and isinstance(condition, ConstantValue) and truth(condition.data):
        values, names = dict(loop.values), loop.names
        if loop.ins:
            values[names[0]] = ConstantValue(names[0], np.array(count, np.int64))
            values[names[1]] = replace(true(), name=names[1])
        slices = [
            _slice(emitter, loop.node, value, each, count)
            for value, each in zip(loop.scanned, loop.axes, strict=True)
        ]
        values |= zip(names[loop.ins :], [*states, *slices], strict=True)
        outputs = inline(emitter, loop.body, values)
        condition, states, slices = loop.made(
            dict(zip((o.name for o in loop.body.outputs), outputs, strict=True))
        )
        for stack, each in zip(stacks, slices, strict=True):
            stack.append(each)
        count += 1
    if count < trips and not isinstance(condition, ConstantValue):
        raise error
    results = [renamed(value, name) for value, name in zip(states, loop.node.outputs, strict=False)]
    names = loop.node.outputs[len(states) :]
    for name, stack, each in zip(names, stacks, loop.stacks, strict=False):
        results.append(_stacked(emitter, loop.node, name, stack, each))
    return results


def _slice(emitter: OnnxGraphBuilder, node: FileNode, value: Value, each: ScanAxis, count: int) -> Value:
    """Return the slice of a scanned value that iteration `count` reads."""
    index = count if each.sign > 0 else value.shape[each.axis] - 1 - count
    if isinstance(value, ConstantValue):
        return ConstantValue(f"{value.name}:{count}", value.numbers().take(index, each.axis))
    where = ConstantValue("index", np.array(index, np.int64))
    gather = replace(
        node, op="Gather", inputs=("", ""), outputs=(f"{value.name}:{count}",), attributes={"axis": each.axis}
    )
    return CONVERSIONS["Gather"](emitter, gather, [value, where])[0]


def _stacked(
    emitter: OnnxGraphBuilder, node: FileNode, name: str, parts: list[Value], each: ScanAxis
) -> Value:
    """Return the slices `parts`, stacked along a new axis."""
    if not parts:
        raise UnsupportedNodeError("an output has a slice for each iteration, but there are no iterations")
    axis = counted_from_front(each.axis, len(parts[0].shape) + 1)
    axes = ConstantValue("axes", np.array([axis], np.int64))
    rows: list[Value | None] = []
    for number, part in enumerate(parts[:: each.sign]):
        row = replace(
            node, op="Unsqueeze", inputs=("", ""), outputs=(f"{name}:{number}",), attributes={}, opset=13
        )
        rows.append(CONVERSIONS["Unsqueeze"](emitter, row, [part, axes])[0])
    concat = replace(node, op="Concat", inputs=("",) * len(rows), outputs=(name,), attributes={"axis": axis})
    return CONVERSIONS["Concat"](emitter, concat, rows)[0]


#: Limit on the nodes after inlining, which can grow exponentially with the nesting depth of functions.
_MAX_INLINED_NODES = 1 << 18
Key = tuple[str, str]


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its local functions inlined.

    Raises
    ------
    InputError
        The functions are recursive or damaged, would expand to too many nodes, or use operator sets that are
        incompatible with those of the model.
    """
    if not model.functions:
        return model
    _check(model)
    model = _of_one_version(model)
    try:
        return inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, TypeError, onnx.checker.ValidationError) as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"its functions cannot be inlined: {text[:200]}") from None


def _check(model: onnx.ModelProto) -> None:
    """Reject functions that are recursive or expand to too many nodes, which ONNX's inliner does not check."""
    import networkx as nx  # imported on demand: few models contain functions, and loading it takes a tenth of a second

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
    inlined_nodes = sum(total.get(key, 1) for key in _keys(model.graph.node))
    if inlined_nodes > _MAX_INLINED_NODES:
        raise InputError(f"its functions make {inlined_nodes:,} nodes, more than {_MAX_INLINED_NODES:,}")


def _keys(nodes: Iterable[Any]) -> Iterator[Key]:
    """Yield the domain and operator of each node, including the nodes of subgraphs."""
    for node in nodes:
        yield node.domain, node.op_type
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _keys(attribute.g.node)


def _of_one_version(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its operator set versions in all functions, whose own versions the inliner ignores."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    versions = versions_of(model.opset_import)
    for function in result.functions:
        try:
            _check_versions(function, versions)
        except InputError as error:
            raise InputError(f"function {shown(function.name)}: {error}") from None
        for each in function.opset_import:
            each.version = versions.get(_normalized_domain(each.domain), each.version)
    return result


def _check_versions(function: onnx.FunctionProto, versions: dict[str, int]) -> None:
    """Reject a function that uses an operator whose definition differs in the model's operator set."""
    own, used = (
        versions_of(function.opset_import),
        {(_normalized_domain(d), op) for d, op in _keys(function.node)},
    )
    if DEFAULT in own:
        check_version(own[DEFAULT])
    for domain, op in sorted(used):
        if domain not in own:
            raise InputError(f"uses {shown(op)} of domain {shown(domain)} and imports no operator set of it")
        version, imported = own[domain], versions.get(domain, own[domain])
        if version != imported and not _same(op, domain, version, imported):
            raise InputError(
                f"{shown(op)} of its operator set {version} is not that of {imported}, which the model imports"
            )


def _same(op: str, domain: str, version: int, other: int) -> bool:
    """Return True if an operator has the same definition in two versions of its operator set."""
    if not all(defs.has(op, each, domain) for each in (version, other)):
        return False
    first, second = (defs.get_schema(op, each, domain).since_version for each in (version, other))
    return first == second


def _normalized_domain(domain: str) -> str:
    return DEFAULT if domain == "ai.onnx" else domain
