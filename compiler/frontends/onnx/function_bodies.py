"""Expansion of nodes into other ONNX operators: by the function bodies that ONNX defines, or by conversions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import AttributeProto, FunctionProto, TypeProto, defs, helper, numpy_helper

from compiler.frontends.onnx.file import read_body
from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode, OnnxModel
from compiler.frontends.onnx.subgraphs import inline
from compiler.frontends.onnx.values import (
    DTYPES,
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
)

#: Operators that are not expanded, because their bodies contain loops, sequences or random numbers, lose accuracy if
#: each step is rounded to 8 bits, or (Attention) depend on NaN for queries without keys, which quantized values lack.
_EXCLUDED = frozenset(("Attention", "Bernoulli", "FlexAttention", "LogSoftmax", "Range", "SequenceMap"))
#: Exceptions of ONNX's functions that construct a body.
_BODY_ERRORS = (RuntimeError, ValueError, TypeError, defs.SchemaError, onnx.checker.ValidationError)
#: Operator set of the operators into which conversions expand a node.
_OPSET = 22
_TYPES = {name: number for number, name in DTYPES.items()}


def function_body(node: FileNode, inputs: Sequence[Value | None]) -> OnnxModel | None:
    """Return the body of a node's operator as a subgraph; None if ONNX defines no body for these inputs.

    Inputs and outputs of the subgraph have the names of the node's inputs and outputs; all other names are prefixed
    with the node's name.

    Parameters
    ----------
    node : FileNode
        Node of the file; nodes that a rewrite created or changed have no body.
    inputs : sequence of Value or None
        Inputs of the node, whose types and shapes may determine the body.
    """
    source = node.source
    if source is None or node.op in _EXCLUDED:
        return None
    proto, versions = source.proto, {each.domain: each.version for each in source.versions}
    if tuple(proto.input) != node.inputs or tuple(proto.output) != node.outputs:
        return None
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    opset = versions.get(domain, versions.get("ai.onnx", 1)) if not domain else versions.get(domain, 1)
    if not defs.has(proto.op_type, opset, domain):
        return None
    function = _function(defs.get_schema(proto.op_type, opset, domain), proto, opset, inputs)
    if function is None:
        return None
    return _inlined(node, function, defs.get_schema(proto.op_type, opset, domain).attributes)


def _function(
    schema: Any, proto: onnx.NodeProto, opset: int, inputs: Sequence[Value | None]
) -> FunctionProto | None:
    """Return the function that defines an operator, for the given operator set version; None if there is none."""
    try:
        if schema.has_function:
            text = schema.get_function_with_opset_version(opset)
        elif schema.has_context_dependent_function:
            types = [_type(value) for value in inputs]
            text = schema.get_context_dependent_function_with_opset_version(
                opset, proto.SerializeToString(), types
            )
        else:
            return None
        function = FunctionProto.FromString(text) if text else None
    except _BODY_ERRORS:
        return None
    return function if function is not None and function.node else None


def _type(value: Value | None) -> bytes:
    """Return the serialized type of a value in the file."""
    if value is None:
        return TypeProto().SerializeToString()
    if isinstance(value, ConstantValue):
        dtype = value.numbers().dtype.name
    else:
        dtype = "float32" if value.real else value.tensor.dtype
    return helper.make_tensor_type_proto(_TYPES[dtype], value.shape).SerializeToString()


def _inlined(
    node: FileNode, function: FunctionProto, schema: Mapping[str, defs.OpSchema.Attribute]
) -> OnnxModel:
    """Return the nodes of a function with the names and attributes of the node that calls it."""
    assert node.source is not None
    attributes = {name: a.default_value for name, a in schema.items() if a.default_value.type}
    attributes |= {a.name: a for a in function.attribute_proto}
    attributes |= {a.name: a for a in node.source.proto.attribute}
    names = {"": ""}
    names |= dict(zip(function.input, (*node.inputs, *[""] * len(function.input)), strict=False))
    for formal, actual in zip(function.output, node.outputs, strict=False):
        names[formal] = actual or f"{node.name}/{formal}"
    graph = onnx.GraphProto(name=node.name)
    graph.node.extend(function.node)
    _rename(graph, node.name, names, attributes)
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(filter(None, node.inputs)))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(filter(None, node.outputs)))
    versions = {each.domain: each.version for each in function.opset_import}
    return read_body(
        graph, versions.get("", versions.get("ai.onnx", node.opset)), tuple(function.opset_import)
    )


def _rename(
    graph: onnx.GraphProto, prefix: str, names: dict[str, str], attributes: Mapping[str, AttributeProto]
) -> None:
    """Rename all values and nodes of a body and its subgraphs in place, and bind its attributes."""
    for number, call in enumerate(graph.node):
        call.name = f"{prefix}/{call.name or f'{call.op_type.lower()}_{number}'}"
        for field in (call.input, call.output):
            field[:] = [names.setdefault(name, f"{prefix}/{name}") for name in field]
        given = [_bound(attribute, attributes) for attribute in call.attribute]
        del call.attribute[:]
        call.attribute.extend(attribute for attribute in given if attribute is not None)
        for attribute in call.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _rename(attribute.g, prefix, names, attributes)
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = names.setdefault(value.name, f"{prefix}/{value.name}")


def _bound(attribute: AttributeProto, given: Mapping[str, AttributeProto]) -> AttributeProto | None:
    """Return an attribute of a body with the value that it refers to; None if the caller does not set it."""
    if not attribute.ref_attr_name:
        return attribute
    value = given.get(attribute.ref_attr_name)
    if value is None:
        return None
    bound = AttributeProto()
    bound.CopyFrom(value)
    bound.name = attribute.name
    return bound


#: Operators of expansions that compute, while all others move elements.
_ARITHMETIC = frozenset(("Add", "Mul", "MatMul", "ReduceSum"))


class BodyBuilder:
    """Builder of the expansion of a node into ONNX operators, which are then converted like nodes of the file.

    Parameters
    ----------
    node : FileNode
        The node to expand; names of the expansion are prefixed with its name.
    inputs : sequence of Value or None
        Inputs of the node.
    """

    def __init__(self, node: FileNode, inputs: Sequence[Value | None]):
        self.node = node
        self.values = {f"{node.name}/in{i}": value for i, value in enumerate(inputs) if value is not None}
        self._graph = onnx.GraphProto(name=node.name)

    def given(self, index: int) -> str:
        """Return the name of an input of the node; "" if it is omitted."""
        name = f"{self.node.name}/in{index}"
        return name if name in self.values else ""

    def constant(self, data: ArrayLike, dtype: DTypeLike = np.float32) -> str:
        """Add a constant and return its name."""
        name = f"{self.node.name}/constant{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(data, dtype), name))
        return name

    def add(self, op: str, *inputs: str, domain: str = "", outputs: int = 1, **attributes: Any) -> str:
        """Add an operator and return the name of its first output; further outputs have suffixes :1, :2, ..."""
        name = f"{self.node.name}/{op.lower()}_{len(self._graph.node)}"
        names = [name, *(f"{name}:{i}" for i in range(1, outputs))]
        self._graph.node.append(helper.make_node(op, inputs, names, name=name, domain=domain, **attributes))
        return name

    def reshaped(self, x: str, *shape: int) -> str:
        """Reshape a value."""
        return self.add("Reshape", x, self.constant(shape, np.int64))

    def check_exact(self, emitter: OnnxGraphBuilder) -> None:
        """Check that the conversion rounds as the operator does: in a float model, or once at the end.

        Raises
        ------
        UnsupportedNodeError
            A quantized value is an input, and the expansion has several steps of arithmetic, or their result is not
            quantized; or an input consists of plain integers.
        """
        dynamic = [value for value in self.values.values() if isinstance(value, DynamicValue)]
        if all(not value.real and value.tensor.dtype == "float32" for value in dynamic):
            return
        steps = sum(each.op_type in _ARITHMETIC for each in self._graph.node)
        known = all(value.quantized for value in dynamic) and emitter.targets.get(self.node.outputs[0])
        if not all(value.real for value in dynamic) or steps > 1 or (steps and not known):
            raise UnsupportedNodeError("values that are not those of a float model")

    def converted(self, emitter: OnnxGraphBuilder, *outputs: str) -> list[Value | None]:
        """Convert the operators and return the values called `outputs`, as the node's outputs; None for "".

        Raises
        ------
        UnsupportedNodeError
            One of the operators has no conversion.
        """
        computed = {name for each in self._graph.node for name in each.output}
        final = {
            name: output
            for name, output in zip(outputs, self.node.outputs, strict=False)
            if name in computed and output
        }
        wanted = [final.get(name, name) for name in outputs]
        for each in self._graph.node:
            for field in (each.input, each.output):
                field[:] = [final.get(name, name) for name in field]
        self._graph.input.extend(onnx.ValueInfoProto(name=name) for name in self.values)
        self._graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in dict.fromkeys(filter(None, wanted))
        )
        versions = (helper.make_operatorsetid("", _OPSET), helper.make_operatorsetid("com.microsoft", 1))
        body = read_body(self._graph, _OPSET, versions)
        made = dict(zip((o.name for o in body.outputs), inline(emitter, body, self.values), strict=True))
        return [made.get(name) for name in wanted]
