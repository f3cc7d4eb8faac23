"""Conversion of subgraphs of ONNX nodes, inlined or as separate graphs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.frontends.onnx.graph_builder import ONE, OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode, OnnxModel
from compiler.frontends.onnx.ops.quantize import quantized
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    Kind,
    Order,
    UnsupportedNodeError,
    Value,
    check_size,
    plain,
)
from compiler.ir.graph import Graph
from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError

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
