"""Functions and subgraphs of ONNX nodes: inlined, unrolled, or as separate graphs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import networkx as nx
import numpy as np
import onnx
from onnx import AttributeProto, defs, inliner

from compiler.frontends.onnx.graph_builder import ONE, OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode, OnnxModel
from compiler.frontends.onnx.ops.quantize import quantized
from compiler.frontends.onnx.ops.shape import renamed
from compiler.frontends.onnx.registry import CONVERSIONS, DEFAULT, check_version, versions_of
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    Kind,
    Order,
    UnsupportedNodeError,
    Value,
    check_size,
    counted_from_front,
    plain,
)
from compiler.ir.control import truth
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError, shown

#: What a value is like in the graph: its type, and the order of its dimensions.
Form = tuple[Kind, Order]


def body_of(node: FileNode, key: str) -> OnnxModel:
    """A subgraph."""
    body = node.attributes.get(key)
    if not isinstance(body, OnnxModel):
        raise InputError(f"attribute {key} must be a graph")
    return body


def apart(node: FileNode, inputs: Sequence[Value | None]) -> tuple[list[Value | None], dict[str, Value]]:
    """A node's own inputs, and what its subgraphs read from outside, by name: these are the last of its inputs."""
    bodies = [body for body in node.attributes.values() if isinstance(body, OnnxModel)]
    names = dict.fromkeys(name for body in bodies for name in body.captured)
    own = len(node.inputs) - len(names)
    values = dict(zip(names, inputs[own:], strict=True)) if names else {}
    given = [*inputs[:own], *[None] * (own - len(inputs))]
    return given, {name: value for name, value in values.items() if value is not None}


def inline(emitter: OnnxGraphBuilder, model: OnnxModel, values: Mapping[str, Value]) -> list[Value]:
    """Outputs of a subgraph whose nodes become part of the graph around it."""
    assert emitter.reader is not None
    known = {name: value for name, value in values.items() if isinstance(value, ConstantValue)}
    inner, made = emitter.reader.inside(model, known), dict(values)
    own = inner.emitter(0)
    kept = (emitter.targets, emitter.meanings, emitter.reader)
    emitter.targets, emitter.meanings = kept[0] | own.targets, kept[1] | own.meanings
    emitter.reader = inner
    try:
        inner.convert(emitter, made)
    finally:
        emitter.targets, emitter.meanings, emitter.reader = kept
    return [made[output.name] for output in model.outputs]


@dataclass
class Subgraph:
    """A subgraph as a graph of its own.

    Parameters
    ----------
    emitter : Emitter
        Of that graph.
    values : dict
        What its nodes have made.
    outputs : list of Tensor
        Chosen so far.
    """

    emitter: OnnxGraphBuilder
    values: dict[str, Value]
    outputs: list[Tensor] = field(default_factory=list)

    def add(self, value: Value, form: Form) -> None:
        """Make a value in a certain form the next output."""
        self.outputs.append(operand(self.emitter, value, form))

    def graph(self) -> Graph:
        """The finished graph."""
        return self.emitter.build.graph.finish([tensor.name for tensor in self.outputs])


def subgraph(
    emitter: OnnxGraphBuilder,
    model: OnnxModel,
    forms: Mapping[str, tuple[Form, tuple[int, ...]]],
    values: Mapping[str, Value],
) -> Subgraph:
    """Convert a subgraph to a graph of its own.

    Parameters
    ----------
    emitter : Emitter
        Of the graph around it.
    model : Model
        The subgraph.
    forms : dict
        Its inputs in order, with the shapes that they have in the file.
    values : dict
        What it reads from outside; what flows becomes inputs behind the others, and stays as it is.
    """
    assert emitter.reader is not None
    known = {name: value for name, value in values.items() if isinstance(value, ConstantValue)}
    inner = emitter.reader.inside(model, known)
    own = inner.emitter(emitter.room)
    made: dict[str, Value] = dict(known)
    for name, ((kind, order), shape) in forms.items():
        made[name] = _input(own, name, kind, order, tuple(shape[i] for i in order))
    for name, value in values.items():
        if isinstance(value, DynamicValue):
            made[name] = _input(own, name, value.kind, value.order, value.tensor.shape)
    inner.convert(own, made)
    emitter.room = own.room
    return Subgraph(own, made)


def _input(
    emitter: OnnxGraphBuilder, name: str, kind: Kind, order: Order, shape: tuple[int, ...]
) -> DynamicValue:
    q = kind.quantization
    if not kind.real and q is None and kind.dtype not in ("float32", "bool"):
        q = emitter.meanings.get(name)
        q = q if q == ONE else None
    tensor = Tensor(emitter.build.fresh(name), shape, kind.dtype, q)
    return DynamicValue(name, emitter.build.graph.add_input(tensor), order, kind.real)


def flows(values: Mapping[str, Value]) -> list[Tensor]:
    """Operands of a node for what its subgraphs read from outside."""
    return [value.tensor for value in values.values() if isinstance(value, DynamicValue)]


def natural(value: Value) -> Form:
    """The form that a value has by itself; a constant is as the file has it."""
    if isinstance(value, DynamicValue):
        return value.kind, value.order
    numbers = value.numbers()
    kind = FLOAT if numbers.dtype.kind == "f" else Kind(numbers.dtype.name)
    return kind, plain(numbers.ndim)


def common(values: Sequence[Value], what: str) -> Form:
    """A form that values can have without being changed."""
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
        (kind.dtype, kind.real, None if kind.quantization == ONE else kind.quantization) for kind, _ in forms
    }
    if len(kinds) != 1:
        raise UnsupportedNodeError(f"{what} of types {' and '.join(kind.dtype for kind, _ in forms)}")
    dtype, real, q = kinds.pop()
    return Kind(dtype, q, real), plain(len(forms[0][1]))


def operand(emitter: OnnxGraphBuilder, value: Value, form: Form) -> Tensor:
    """A value in a certain form, which `common` or `exact` has found possible."""
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


def exact(value: Value, kind: Kind) -> bool:
    """Whether a value can have a type of quantized numbers without being changed."""
    if isinstance(value, DynamicValue):
        return value.kind == kind
    q = kind.quantization
    if q is None or not q.whole or value.numbers().dtype.kind != "f" or not np.isfinite(value.real()).all():
        return False
    return bool(np.array_equal(q.dequantized(quantized(value.real(), q, kind.dtype)), value.real()))


def outside(
    emitter: OnnxGraphBuilder, name: str, tensor: Tensor, form: Form, shape: tuple[int, ...] | None = None
) -> DynamicValue:
    """The output of a node of control flow, from its subgraph's; `shape` if it is not the same."""
    kind, order = form
    q: Quantization | None = tensor.quantization
    if not kind.real and q is None and kind.dtype not in ("float32", "bool"):
        meaning = emitter.meanings.get(name)
        q = meaning if meaning == ONE else None
    check_size(shape or tensor.shape)
    made = Tensor(emitter.build.fresh(name or "unused"), shape or tensor.shape, tensor.dtype, q)
    return DynamicValue(name, made, order, kind.real)


@dataclass(frozen=True)
class ScanAxis:
    """Along which dimension of a value slices are taken or put together, and whether from its end."""

    axis: int
    sign: int


@dataclass(frozen=True)
class Loop:
    """A Loop or Scan.

    Parameters
    ----------
    node : FileNode
        It.
    body : Model
        Its subgraph.
    trips, condition : Value
        Most iterations, and whether there is a first one.
    states, scanned : list of Value
        What goes in.
    values : dict
        What the subgraph reads from outside.
    ins : int
        The subgraph's inputs in front of its states: number of the iteration and condition, or none.
    axes, stacks : list of Axis
        Of what is scanned, and of what is stacked.
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
        """Inputs of the subgraph."""
        return [each.name for each in self.body.inputs]

    def made(self, values: Mapping[str, Value]) -> tuple[Value, list[Value], list[Value]]:
        """The next condition, the next states and slices to be stacked."""
        ends = [values[each.name] for each in self.body.outputs]
        going = ends.pop(0) if self.ins else true()
        return going, ends[: len(self.states)], ends[len(self.states) :]


def true() -> ConstantValue:
    """The condition of a loop that has none."""
    return ConstantValue("true", np.array(True))


def unrolled(
    emitter: OnnxGraphBuilder, loop: Loop, trips: int, error: UnsupportedNodeError
) -> Sequence[Value]:
    """All iterations one after the other; the error is raised if their number depends on the data after all."""
    going, states, count = loop.condition, loop.states, 0
    stacks: list[list[Value]] = [[] for _ in loop.stacks]
    while count < trips and isinstance(going, ConstantValue) and truth(going.data):
        values, names = dict(loop.values), loop.names
        if loop.ins:
            values[names[0]] = ConstantValue(names[0], np.array(count, np.int64))
            values[names[1]] = replace(true(), name=names[1])
        slices = [
            _slice(emitter, loop.node, value, each, count)
            for value, each in zip(loop.scanned, loop.axes, strict=True)
        ]
        values |= zip(names[loop.ins :], [*states, *slices], strict=True)
        made = inline(emitter, loop.body, values)
        going, states, parts = loop.made(dict(zip((o.name for o in loop.body.outputs), made, strict=True)))
        for stack, part in zip(stacks, parts, strict=True):
            stack.append(part)
        count += 1
    if count < trips and not isinstance(going, ConstantValue):
        raise error
    made = [renamed(value, name) for value, name in zip(states, loop.node.outputs, strict=False)]
    names = loop.node.outputs[len(states) :]
    for name, parts, each in zip(names, stacks, loop.stacks, strict=False):
        made.append(_joined(emitter, loop.node, name, parts, each))
    return made


def _slice(emitter: OnnxGraphBuilder, node: FileNode, value: Value, each: ScanAxis, count: int) -> Value:
    """A slice of what is scanned."""
    index = count if each.sign > 0 else value.shape[each.axis] - 1 - count
    if isinstance(value, ConstantValue):
        return ConstantValue(f"{value.name}:{count}", value.numbers().take(index, each.axis))
    where = ConstantValue("index", np.array(index, np.int64))
    wanted = replace(
        node, op="Gather", inputs=("", ""), outputs=(f"{value.name}:{count}",), attributes={"axis": each.axis}
    )
    return CONVERSIONS["Gather"](emitter, wanted, [value, where])[0]


def _joined(
    emitter: OnnxGraphBuilder, node: FileNode, name: str, parts: list[Value], each: ScanAxis
) -> Value:
    """Slices put together."""
    if not parts:
        raise UnsupportedNodeError("outputs with a slice from each of no iterations")
    axis = counted_from_front(each.axis, len(parts[0].shape) + 1)
    axes = ConstantValue("axes", np.array([axis], np.int64))
    rows: list[Value | None] = []
    for number, part in enumerate(parts[:: each.sign]):
        row = replace(
            node, op="Unsqueeze", inputs=("", ""), outputs=(f"{name}:{number}",), attributes={}, opset=13
        )
        rows.append(CONVERSIONS["Unsqueeze"](emitter, row, [part, axes])[0])
    whole_node = replace(
        node, op="Concat", inputs=("",) * len(rows), outputs=(name,), attributes={"axis": axis}
    )
    return CONVERSIONS["Concat"](emitter, whole_node, rows)[0]


#: Nodes that a file may have after that; functions that use others twice, those again, and so on make many of few.
_MOST = 1 << 18
Key = tuple[str, str]


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions of its own.

    Raises
    ------
    InputError
        They use themselves, would make too many nodes, are of operator sets that do not go with the model's, or are
        damaged.
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


def _of_one_version(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with functions of its own operator sets; the inliner leaves others where they are."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    versions = versions_of(model.opset_import)
    for function in made.functions:
        try:
            _check_versions(function, versions)
        except InputError as error:
            raise InputError(f"function {shown(function.name)}: {error}") from None
        for each in function.opset_import:
            each.version = versions.get(_called(each.domain), each.version)
    return made


def _check_versions(function: onnx.FunctionProto, versions: dict[str, int]) -> None:
    """Refuse a function whose operators are not those of the model's operator sets."""
    own, used = versions_of(function.opset_import), {(_called(d), op) for d, op in _keys(function.node)}
    if DEFAULT in own:
        check_version(own[DEFAULT])
    for domain, op in sorted(used):
        if domain not in own:
            raise InputError(f"uses {shown(op)} of domain {shown(domain)} and imports no operator set of it")
        version, wanted = own[domain], versions.get(domain, own[domain])
        if version != wanted and not _same(op, domain, version, wanted):
            raise InputError(
                f"{shown(op)} of its operator set {version} is not that of {wanted}, which the model imports"
            )


def _same(op: str, domain: str, version: int, wanted: int) -> bool:
    """Whether an operator is the same in two versions of its operator set."""
    if not all(defs.has(op, each, domain) for each in (version, wanted)):
        return False
    first, second = (defs.get_schema(op, each, domain).since_version for each in (version, wanted))
    return first == second


def _called(domain: str) -> str:
    return DEFAULT if domain == "ai.onnx" else domain
