"""Expansion of ONNX operators that have no conversion, by the function bodies that ONNX defines for them."""

from collections.abc import Mapping, Sequence

import onnx
from onnx import AttributeProto, FunctionProto, TypeProto, defs, helper

from compiler.frontends.onnx.file import read_body
from compiler.frontends.onnx.node import FileNode, OnnxModel
from compiler.frontends.onnx.values import DTYPES, ConstantValue, Value

#: Operators whose bodies contain loops, sequences or random numbers.
_EXCLUDED = frozenset(("Bernoulli", "Range", "SequenceMap"))
#: Exceptions of ONNX's functions that construct a body.
_BODY_ERRORS = (RuntimeError, ValueError, TypeError, defs.SchemaError, onnx.checker.ValidationError)
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
    schema: defs.OpSchema, proto: onnx.NodeProto, opset: int, inputs: Sequence[Value | None]
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


def _inlined(node: FileNode, function: FunctionProto, schema: Mapping[str, defs.OpSchema.Attribute]) -> OnnxModel:
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
    for number, each in enumerate(function.node):
        call = graph.node.add()
        call.CopyFrom(each)
        call.name = f"{node.name}/{each.name or f'{each.op_type.lower()}_{number}'}"
        for field in (call.input, call.output):
            field[:] = [names.setdefault(name, f"{node.name}/{name}") for name in field]
        given = [_bound(attribute, attributes) for attribute in each.attribute]
        del call.attribute[:]
        call.attribute.extend(attribute for attribute in given if attribute is not None)
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(filter(None, node.inputs)))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(filter(None, node.outputs)))
    versions = {each.domain: each.version for each in function.opset_import}
    return read_body(graph, versions.get("", versions.get("ai.onnx", node.opset)), tuple(function.opset_import))


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
