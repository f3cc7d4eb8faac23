"""ONNX operators that the graph has no other form for: the host computes them, each by itself."""

from collections.abc import Mapping

import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.host_shape_inference import infer_by_running
from compiler.frontends.onnx.host_types import SHAPES, Made, inferred, types_of
from compiler.frontends.onnx.node import Declared, FileNode
from compiler.frontends.onnx.tensors import DTYPES
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    Kind,
    UnsupportedNodeError,
    Value,
    plain,
)
from compiler.ir.tensor import Tensor
from compiler.reference.onnx_node_model import text_of
from compiler.reference.onnx_reference import Given, LeftOutError, check_reference

_TYPES = {name: number for number, name in DTYPES.items()}
#: Operators that the reference has from a later operator set on, where they still do what they did.
_SAME_FROM = {"DequantizeLinear": 19}
#: Why the accelerator does not have an operator at all.
NO_WAY = "there is no way to do it on the accelerator"
#: An input of a node: a tensor, or a constant that none can be, as it has no elements.
_Operand = Tensor | NDArray


def on_host(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    inputs: list[Value | None],
    why: str,
    declared: Mapping[str, Declared],
) -> list[Value | None]:
    """Nodes, one for each output, that the host computes.

    Parameters
    ----------
    why : str
        Why the accelerator does not.
    declared : dict
        The model's outputs, which may tell a shape that nothing else does.

    Raises
    ------
    UnsupportedError
        The host has no such operator either, or a shape or type of it is none that the graph has.
    """
    proto = _source(node, why)
    try:
        check_reference(proto, [value and _given(value) for value in inputs])
    except LeftOutError as error:
        raise UnsupportedNodeError(str(error)) from None
    if any(isinstance(value, ConstantValue) and value.narrow for value in inputs):
        raise UnsupportedNodeError(why)  # its type would be another here
    operands = [None if value is None else _operand(emitter, value) for value in inputs]
    model = inferred(_model(node, proto, operands))
    text, known = text_of(model), [tensor for tensor in operands if isinstance(tensor, Tensor)]
    found = infer_by_running(
        text, known, types_of(model, inputs, [declared.get(name) for name in node.outputs])
    )
    made: list[Value | None] = []
    for index, (name, kind) in enumerate(zip(node.outputs, found, strict=True)):
        if kind is None:
            made.append(None)
            continue
        dtype, shape = kind
        meaning = None if dtype in ("float32", "bool") else emitter.meanings.get(name)
        made.append(
            emitter.emit(
                node,
                "onnx",
                known,
                shape,
                plain(len(shape)),
                Kind(dtype, meaning),
                part=f"output{index}" if index else "",
                index=index,
                operator=proto.op_type,
                why=why,
                model=text,
                number=index,
            )
        )
    return made


def function(emitter: OnnxGraphBuilder, node: FileNode, x: Value, *constants: ConstantValue) -> DynamicValue:
    """A node that computes a function of each number, and of constants that are the same for all.

    Raises
    ------
    UnsupportedError
        ONNX's reference does not have it, or it is one of integers.
    """
    proto, x = _source(node, "an operator"), emitter.flow(x)
    kind = emitter.arithmetic(node, x)
    if kind != FLOAT and not kind.real:
        raise UnsupportedNodeError("a function of integers")
    fixed = (Tensor("", v.shape, v.data.dtype.name, data=v.data) for v in constants)
    stand_ins = [Tensor("", (1,), "float32"), *fixed]
    model = _model(node, proto, list(stand_ins))
    del model.graph.input[1:]
    text = text_of(inferred(model))
    infer_by_running(text, [Tensor("", (1,), "float32")], [Made("float32", (1,))])
    operand = emitter.operand(x, x.order, kind)
    return emitter.emit(
        node, "function", [operand], x.shape, x.order, kind, operator=proto.op_type, model=text
    )


def _given(value: Value) -> Given:
    return Given(value.shape, value.data if isinstance(value, ConstantValue) else None)


def _source(node: FileNode, why: str) -> onnx.NodeProto:
    """The node in the file's words, if it still is what the file says and the reference has its operator."""
    source = node.source
    if (
        source is None
        or tuple(source.proto.input) != node.inputs
        or tuple(source.proto.output) != node.outputs
    ):
        raise UnsupportedNodeError(why)
    proto = source.proto
    graphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    if any(attribute.type in graphs for attribute in proto.attribute):
        raise UnsupportedNodeError(why)
    versions = {v.domain: v.version for v in source.versions}
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    if not onnx.defs.has(proto.op_type, versions.get(domain, 1), domain):
        raise UnsupportedNodeError("" if why == NO_WAY else why)  # an unknown operator is reason enough
    return proto


def _operand(emitter: OnnxGraphBuilder, value: Value) -> _Operand:
    """A value as ONNX has it: real numbers as such, its dimensions in the file's order."""
    if isinstance(value, ConstantValue):
        if not value.data.size:
            return value.numbers()
        return emitter.constant(value.name, ConstantValue(value.name, value.numbers()))
    if value.real or value.tensor.dtype == "float32":
        return emitter.operand(value, plain(value.rank), FLOAT)
    return emitter.in_order(value, plain(value.rank)).tensor


def _model(node: FileNode, proto: onnx.NodeProto, operands: list[_Operand | None]) -> onnx.ModelProto:
    """A model of the node alone, whose inputs are called by their numbers."""
    assert node.source is not None
    alone = onnx.NodeProto()
    alone.CopyFrom(proto)
    del alone.input[:], alone.output[:]
    alone.input.extend("" if each is None else f"input{i}" for i, each in enumerate(operands))
    alone.output.extend(f"output{i}" if name else "" for i, name in enumerate(proto.output))
    given, constants = [], []
    for i, each in enumerate(operands):
        name = f"input{i}"
        if isinstance(each, Tensor):
            given.append(helper.make_tensor_value_info(name, _TYPES[each.dtype], each.shape))
        data = each.data if isinstance(each, Tensor) else each
        if data is not None and data.size <= SHAPES:
            constants.append(numpy_helper.from_array(data, name))
    made = [onnx.ValueInfoProto(name=name) for name in alone.output if name]
    graph = helper.make_graph([alone], "node", given, made, constants)
    versions = [_readable(proto, each) for each in node.source.versions]
    return helper.make_model(graph, opset_imports=versions, ir_version=10)


def _readable(proto: onnx.NodeProto, version: onnx.OperatorSetIdProto) -> onnx.OperatorSetIdProto:
    """An operator set that the reference has the node's operator of, if a later one has the same."""
    later = _SAME_FROM.get(proto.op_type, 0)
    if version.domain or version.version >= later:
        return version
    return helper.make_operatorsetid("", later)
