"""Fallback of the ONNX front end to operators on the host, and inference of their output types and shapes."""

import binascii
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import Declared, FileNode
from compiler.frontends.onnx.values import (
    DTYPES,
    FLOAT,
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    ValueType,
    check_size,
    plain,
    type_name,
)
from compiler.ir.tensor import MAX_ELEMENTS, Tensor
from compiler.reference.onnx_node_model import (
    REFUSALS,
    Given,
    NodeModel,
    check_work,
    line_of,
    node_model,
    text_of,
)
from compiler.reference.onnx_ops import Array, own
from compiler.reference.onnx_ops.registry import TRIED_STEPS
from hw.errors import InputError

#: Limit on the elements of a host operator's output.
_MAX_OUTPUT_ELEMENTS = 1 << 26
#: Constants of at most this many elements are passed to shape inference.
_MAX_SHAPE_ELEMENTS = 1 << 12
#: Exceptions of onnx's shape inference.
_INFERENCE_ERRORS = (
    *REFUSALS,
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
)


class InferredOutput(NamedTuple):
    """Type and shape of an output; the shape is None if it cannot be inferred.

    Attributes
    ----------
    data_dependent : bool
        True if the shape depends on run-time data, so that the shape that the model declares is used.
    """

    dtype: str
    shape: tuple[int, ...] | None
    data_dependent: bool = False


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of one node with the output types that ONNX's shape inference can infer.

    Constants that are also inputs are removed. The remaining constants have no elements, so that no tensor can
    represent them.
    """
    try:
        result = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except _INFERENCE_ERRORS as error:
        raise UnsupportedNodeError(f"ONNX rejects it: {line_of(error)}") from None
    names = {value.name for value in result.graph.input}
    remaining = [each for each in result.graph.initializer if each.name not in names]
    del result.graph.initializer[:]
    result.graph.initializer.extend(remaining)
    return result


def types_of(
    model: onnx.ModelProto, inputs: Sequence[Value | None], declared: Sequence[Declared | None]
) -> list[InferredOutput | None]:
    """Return the type and shape of each output of a model of one node; None for an omitted output.

    Parameters
    ----------
    model : onnx.ModelProto
        Model of one node, after shape inference.
    inputs : sequence of Value or None
        Inputs of the node.
    declared : sequence of Declared or None
        Declaration of each output that is an output of the network; None for other outputs.

    Raises
    ------
    UnsupportedNodeError
        An output has a type that the graph does not support.
    InputError
        An output would be too large.
    """
    (node,) = model.graph.node
    types = {output.name: output for output in model.graph.output}
    found: list[InferredOutput | None] = []
    for name, declaration in zip(node.output, declared, strict=True):
        output = _type_of(types[name], declaration) if name else None
        found.append(output)
        if output is not None and output.shape is None:
            _check_sizes(node, inputs)
    return found


def _check_sizes(proto: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
    """Reject a node with an unknown output shape if a constant or attribute exceeds the maximum tensor size."""
    arrays = {
        f"input {i}": v.data for i, v in enumerate(inputs, 1) if isinstance(v, ConstantValue) and v.data.size
    }
    arrays |= {f"attribute {a.name}": np.array([a.i, *a.ints]) for a in proto.attribute}
    for source, numbers in arrays.items():
        if numbers.dtype.kind not in "iu":
            continue
        too_large = [int(n) for n in numbers.reshape(-1)[:_MAX_SHAPE_ELEMENTS] if abs(int(n)) > MAX_ELEMENTS]
        if too_large:
            raise InputError(
                f"its {source} holds {too_large[0]}; a tensor can have {MAX_ELEMENTS:,} elements, and the shape of "
                "its output is not known"
            )


def _type_of(output: onnx.ValueInfoProto, declared: Declared | None) -> InferredOutput:
    """Return the type and shape of an output, inferred from the inputs or else as declared by the model."""
    kind = output.type.tensor_type
    sizes: list[int | str | None] | None = None
    if kind.HasField("shape"):
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
    data_dependent = sizes is None or None in sizes
    declared_shape = declared.shape if declared is not None else None
    if sizes is None:
        sizes = None if declared_shape is None else list(declared_shape)
    elif declared_shape is not None and len(declared_shape) == len(sizes):
        sizes = [b if a is None else a for a, b in zip(sizes, declared_shape, strict=True)]
    dtype = DTYPES.get(kind.elem_type) or (declared.held if declared and not kind.elem_type else None)
    if dtype is None:
        named = type_name(kind.elem_type) if output.type.WhichOneof("value") == "tensor_type" else "no tensor"
        raise UnsupportedNodeError(f"its output is of type {named}, which the graph does not support")
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return InferredOutput(dtype, None)
    shape = tuple(size for size in sizes if isinstance(size, int))
    check_size(shape, _MAX_OUTPUT_ELEMENTS)
    return InferredOutput(dtype, shape, data_dependent)


#: Type and shape of an output.
OutputType = tuple[str, tuple[int, ...]]


_UNKNOWN_SHAPE = (
    "the shape of its output depends on the values of its inputs and must be known at compile time"
)


def infer_by_running(
    text: str, tensors: Sequence[Tensor], found: Sequence[InferredOutput | None]
) -> list[OutputType | None]:
    """Check or complete the types and shapes of a node's outputs by running the node on random inputs.

    Parameters
    ----------
    text : str
        Serialized model of the node.
    tensors : sequence of Tensor
        Inputs of the node, with contents if they are constant.
    found : sequence of InferredOutput or None
        Types and shapes from shape inference.

    Raises
    ------
    UnsupportedNodeError
        The node cannot be executed or is too expensive, or its outputs contradict shape inference.
    """
    node = node_model(text)
    named = dict(zip(node.inputs, tensors, strict=True))
    given = [
        Given(tensor.shape, tensor.data) if (tensor := named.get(name)) else None for name in node.proto.input
    ]
    shapes = [output.shape for output in found if output is not None and output.shape is not None]
    here = own(node.spec) is not None
    if len(shapes) < sum(output is not None for output in found) and not here:
        raise UnsupportedNodeError(_UNKNOWN_SHAPE)
    try:
        steps = check_work(node.spec, given, shapes or [tensor.shape for tensor in tensors[:1]])
    except InputError as error:
        raise UnsupportedNodeError(str(error)) from None
    data_dependent = any(output is not None and output.data_dependent for output in found)
    if steps > TRIED_STEPS or (data_dependent and not here):
        if len(shapes) < len(found) - found.count(None):
            raise UnsupportedNodeError(_UNKNOWN_SHAPE)
        _check_in_reference(node)
        return [None if each is None else (each.dtype, each.shape or ()) for each in found]
    outputs: list[OutputType | None] = []
    for number, each in enumerate(found):
        if each is None:
            outputs.append(None)
            continue
        computed = _trial_output(node, tensors, number)
        if each.shape is None and computed.shape != _trial_output(node, tensors, number, first=1).shape:
            raise UnsupportedNodeError(_UNKNOWN_SHAPE)
        outputs.append(_checked_type(here, each, computed))
    return outputs


def _check_in_reference(node: NodeModel) -> None:
    """Reject a node that ONNX's reference does not implement, without running the node."""
    try:
        node.known()
    except REFUSALS as error:
        raise UnsupportedNodeError(f"ONNX's reference does not implement it: {line_of(error)}") from None


def _trial_output(node: NodeModel, tensors: Sequence[Tensor], number: int, first: int = 0) -> Array:
    """Compute one output of a node for generated inputs, beginning with attempt `first`.

    Integers may be indices, so they are 0 in the first attempt and 1 in the second. Floating-point values may have to
    be probabilities, so they are normally distributed in the first attempt and within 0..1 in the second.
    """
    message = ""
    for attempt in (first, 1 - first):
        try:
            with np.errstate(all="ignore"):
                return node.computed([_sample(tensor, attempt) for tensor in tensors], number)
        except (*REFUSALS, DecodeError, binascii.Error) as error:
            message = message or line_of(error)
    raise UnsupportedNodeError(
        message if own(node.spec) else f"ONNX's reference cannot compute it: {message}"
    )


def _sample(tensor: Tensor, attempt: int) -> Array:
    if tensor.data is not None:
        return tensor.data
    random = np.random.default_rng(0)
    dtype = np.dtype(tensor.dtype)
    if dtype.kind == "f":
        numbers = random.uniform(size=tensor.shape) if attempt else random.standard_normal(tensor.shape)
        return numbers.astype(dtype)
    if dtype.itemsize == 1:
        return random.integers(0, 2, tensor.shape).astype(dtype)
    return np.full(tensor.shape, attempt, dtype)


def _checked_type(here: bool, inferred: InferredOutput, array: Array) -> OutputType:
    """Return the checked type and shape of an output; ONNX's reference must compute the inferred shape."""
    if array.dtype.name != inferred.dtype and array.dtype.kind not in "fiub":
        raise UnsupportedNodeError(f"its output is of type {array.dtype}, which the graph does not support")
    if not array.size:
        raise UnsupportedNodeError("its output has no elements")
    if array.shape != inferred.shape and not here:
        raise UnsupportedNodeError(
            f"ONNX's reference computes shape {list(array.shape)}, not {list(inferred.shape or ())}"
        )
    return inferred.dtype, array.shape


_TYPES = {name: number for number, name in DTYPES.items()}
#: First operator set in which the reference implements an operator whose behavior has not changed since.
_REFERENCE_OPSETS = {"DequantizeLinear": 19}
#: Reason for an operator without any implementation on the accelerator.
NO_WAY = "not supported on the accelerator"
#: Input of a node: a tensor, or a constant without elements, which no tensor can represent.
_Operand = Tensor | NDArray


def on_host(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    inputs: list[Value | None],
    why: str,
    declared: Mapping[str, Declared],
) -> list[Value | None]:
    """Add one node that runs on the host for each output of a node, and return the outputs.

    Parameters
    ----------
    emitter : OnnxGraphBuilder
        Builder of the graph.
    node : FileNode
        The node to convert.
    inputs : list of Value or None
        Inputs of the node.
    why : str
        Reason why the accelerator does not compute the node.
    declared : dict
        Outputs of the model by name; the declared shape is used if the shape cannot be inferred.

    Raises
    ------
    UnsupportedNodeError
        The host does not implement the operator, or the graph does not support the shape or type of an output.
    """
    proto = _source(node, why)
    if any(isinstance(value, ConstantValue) and value.narrow for value in inputs):
        raise UnsupportedNodeError(why)  # the host would receive the widened type
    operands = [None if value is None else _operand(emitter, value) for value in inputs]
    model = inferred(_model(node, proto, operands))
    text, known = text_of(model), [tensor for tensor in operands if isinstance(tensor, Tensor)]
    found = infer_by_running(
        text, known, types_of(model, inputs, [declared.get(name) for name in node.outputs])
    )
    outputs: list[Value | None] = []
    for index, (name, output_type) in enumerate(zip(node.outputs, found, strict=True)):
        if output_type is None:
            outputs.append(None)
            continue
        dtype, shape = output_type
        meaning = None if dtype in ("float32", "bool") else emitter.meanings.get(name)
        outputs.append(
            emitter.emit(
                node,
                "onnx",
                known,
                shape,
                plain(len(shape)),
                ValueType(dtype, meaning),
                part=f"output{index}" if index else "",
                index=index,
                operator=proto.op_type,
                why=why,
                model=text,
                number=index,
            )
        )
    return outputs


def function(emitter: OnnxGraphBuilder, node: FileNode, x: Value, *constants: ConstantValue) -> DynamicValue:
    """Add a node that applies an operator to x elementwise; its other inputs are constants.

    Raises
    ------
    UnsupportedNodeError
        ONNX's reference does not implement the operator, or x consists of plain integers.
    """
    proto, x = _source(node, "an operator"), emitter.flow(x)
    kind = emitter.arithmetic(node, x)
    if kind != FLOAT and not kind.real:
        raise UnsupportedNodeError("its operand must be real or quantized, not plain integers")
    fixed = (Tensor("", v.shape, v.data.dtype.name, data=v.data) for v in constants)
    stand_ins = [Tensor("", (1,), "float32"), *fixed]
    model = _model(node, proto, list(stand_ins))
    del model.graph.input[1:]
    text = text_of(inferred(model))
    infer_by_running(text, [Tensor("", (1,), "float32")], [InferredOutput("float32", (1,))])
    operand = emitter.operand(x, x.order, kind)
    return emitter.emit(
        node, "function", [operand], x.shape, x.order, kind, operator=proto.op_type, model=text
    )


def _source(node: FileNode, why: str) -> onnx.NodeProto:
    """Return the protocol buffer of a node.

    Raises
    ------
    UnsupportedNodeError
        A rewrite created or changed the node, the node has subgraphs, or ONNX does not define its operator. The message
        is `why`.
    """
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
        raise UnsupportedNodeError("" if why == NO_WAY else why)  # the operator's name is sufficient
    for attribute in proto.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == onnx.TensorProto.DOUBLE:
            raise UnsupportedNodeError(f"attribute {attribute.name} is double, but its inputs are float32")
    return proto


def _operand(emitter: OnnxGraphBuilder, value: Value) -> _Operand:
    """Return a value as an ONNX input, with dimensions in the file's order and quantized values as float32."""
    if isinstance(value, ConstantValue):
        if not value.data.size:
            return value.numbers()
        return emitter.constant(value.name, ConstantValue(value.name, value.numbers()))
    if value.real or value.tensor.dtype == "float32":
        return emitter.operand(value, plain(value.rank), FLOAT)
    return emitter.in_order(value, plain(value.rank)).tensor


def _model(node: FileNode, proto: onnx.NodeProto, operands: list[_Operand | None]) -> onnx.ModelProto:
    """Return a model of the node alone, with inputs named input0, input1, ... and outputs output0, output1, ..."""
    assert node.source is not None
    single = onnx.NodeProto()
    single.CopyFrom(proto)
    del single.input[:], single.output[:]
    single.input.extend("" if each is None else f"input{i}" for i, each in enumerate(operands))
    single.output.extend(f"output{i}" if name else "" for i, name in enumerate(proto.output))
    given, constants = [], []
    for i, each in enumerate(operands):
        name = f"input{i}"
        if isinstance(each, Tensor):
            given.append(helper.make_tensor_value_info(name, _TYPES[each.dtype], each.shape))
        data = each.data if isinstance(each, Tensor) else each
        if data is not None and data.size <= _MAX_SHAPE_ELEMENTS:
            constants.append(numpy_helper.from_array(data, name))
    outputs = [onnx.ValueInfoProto(name=name) for name in single.output if name]
    graph = helper.make_graph([single], "node", given, outputs, constants)
    versions = [_reference_opset(proto, each) for each in node.source.versions]
    return helper.make_model(graph, opset_imports=versions, ir_version=10)


def _reference_opset(proto: onnx.NodeProto, version: onnx.OperatorSetIdProto) -> onnx.OperatorSetIdProto:
    """Return `version`, or a later operator set in which the reference implements the same operator."""
    later = _REFERENCE_OPSETS.get(proto.op_type, 0)
    if version.domain or version.version >= later:
        return version
    return helper.make_operatorsetid("", later)
