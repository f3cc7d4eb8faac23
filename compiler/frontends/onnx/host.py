"""ONNX operators without another form in the graph: types, shapes and nodes that the host computes."""

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
    Kind,
    UnsupportedNodeError,
    Value,
    check_size,
    plain,
    type_name,
)
from compiler.ir.tensor import MOST_ELEMENTS, Tensor
from compiler.reference.onnx_node_model import (
    REFUSALS,
    Given,
    LeftOutError,
    NodeModel,
    check_reference,
    check_work,
    line_of,
    node_model,
    text_of,
)
from compiler.reference.onnx_ops import Array, own
from compiler.reference.onnx_ops.registry import TRIED_STEPS
from hw.errors import InputError

#: An output of such an operator may have so many elements.
_MOST = 1 << 26
#: Constants up to this size may decide a shape.
SHAPES = 1 << 12
#: What onnx's shape inference raises.
_REFUSALS = (
    *REFUSALS,
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
)


class Made(NamedTuple):
    """Type and shape of an output; no shape where none follows.

    Attributes
    ----------
    told : bool
        Only the model's declaration says the shape: it depends on what flows.
    """

    dtype: str
    shape: tuple[int, ...] | None
    told: bool = False


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of one node with types of its outputs, as far as they can be known.

    Constants stay only if no tensor can hold them.
    """
    try:
        made = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except _REFUSALS as error:
        raise UnsupportedNodeError(f"ONNX refuses it: {line_of(error)}") from None
    names = {value.name for value in made.graph.input}
    kept = [each for each in made.graph.initializer if each.name not in names]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    return made


def types_of(
    model: onnx.ModelProto, inputs: Sequence[Value | None], declared: Sequence[Declared | None]
) -> list[Made | None]:
    """Type and shape of each output of a model of one node; None where there is no such output.

    Raises
    ------
    UnsupportedError
        An output is of a type that no tensor has.
    InputError
        An output would be too large.
    """
    (node,) = model.graph.node
    types = {output.name: output for output in model.graph.output}
    found: list[Made | None] = []
    for name, told in zip(node.output, declared, strict=True):
        made = _type_of(types[name], told) if name else None
        found.append(made)
        if made is not None and made.shape is None:
            _check_told(node, inputs)
    return found


def _check_told(proto: onnx.NodeProto, inputs: Sequence[Value | None]) -> None:
    """Refuse a node of unknown output shape that is told of a size which no tensor has."""
    told = {
        f"input {i}": v.data for i, v in enumerate(inputs, 1) if isinstance(v, ConstantValue) and v.data.size
    }
    told |= {f"attribute {a.name}": np.array([a.i, *a.ints]) for a in proto.attribute}
    for what, numbers in told.items():
        far = [int(n) for n in numbers.reshape(-1)[:SHAPES]] if numbers.dtype.kind in "iu" else []
        far = [n for n in far if abs(n) > MOST_ELEMENTS]
        if far:
            raise InputError(
                f"its {what} holds {far[0]}; a tensor can have {MOST_ELEMENTS:,} elements, and the shape of its output "
                "is not known"
            )


def _type_of(output: onnx.ValueInfoProto, declared: Declared | None) -> Made:
    """Type and shape of an output: as they follow from the inputs, or as the model declares them."""
    kind = output.type.tensor_type
    sizes: list[int | str | None] | None = None
    if kind.HasField("shape"):
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
    told = sizes is None or None in sizes
    wished = declared.shape if declared is not None else None
    if sizes is None:
        sizes = None if wished is None else list(wished)
    elif wished is not None and len(wished) == len(sizes):
        sizes = [b if a is None else a for a, b in zip(sizes, wished, strict=True)]
    dtype = DTYPES.get(kind.elem_type) or (declared.held if declared and not kind.elem_type else None)
    if dtype is None:
        named = type_name(kind.elem_type) if output.type.WhichOneof("value") == "tensor_type" else "no tensor"
        raise UnsupportedNodeError(f"its output is of type {named}, which the graph does not have")
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return Made(dtype, None)
    shape = tuple(size for size in sizes if isinstance(size, int))
    check_size(shape, _MOST)
    return Made(dtype, shape, told)


#: Type and shape of an output.
Known = tuple[str, tuple[int, ...]]


def infer_by_running(
    text: str, tensors: Sequence[Tensor], found: Sequence[Made | None]
) -> list[Known | None]:
    """Types and shapes of a node's outputs, after it was seen to make them.

    Parameters
    ----------
    text : str
        The model of the node.
    tensors : sequence of Tensor
        Its inputs, with their contents if they are constant.
    found : sequence
        Types and shapes as they follow from the inputs.

    Raises
    ------
    UnsupportedError
        It cannot be computed, takes too much work, or makes something else.
    """
    node = node_model(text)
    named = dict(zip(node.inputs, tensors, strict=True))
    given = [
        Given(tensor.shape, tensor.data) if (tensor := named.get(name)) else None for name in node.proto.input
    ]
    shapes = [made.shape for made in found if made is not None and made.shape is not None]
    here = own(node.asked) is not None
    if len(shapes) < sum(made is not None for made in found) and not here:
        raise UnsupportedNodeError(
            "the shape of its output depends on its input's numbers, and must be known beforehand"
        )
    try:
        steps = check_work(node.asked, given, shapes or [tensor.shape for tensor in tensors[:1]])
    except InputError as error:
        raise UnsupportedNodeError(str(error)) from None
    told = any(made is not None and made.told for made in found)
    if steps > TRIED_STEPS or (told and not here):
        if len(shapes) < len(found) - found.count(None):
            raise UnsupportedNodeError(
                "the shape of its output depends on its input's numbers, and must be known beforehand"
            )
        _known(node)
        return [None if each is None else (each.dtype, each.shape or ()) for each in found]
    return [
        None if each is None else _agreed(here, each, _made(node, tensors, number))
        for number, each in enumerate(found)
    ]


def _known(node: NodeModel) -> None:
    """Refuse a node that takes long, and that the reference does not have."""
    try:
        node.known()
    except REFUSALS as error:
        raise UnsupportedNodeError(f"ONNX's reference does not have it: {line_of(error)}") from None


def _made(node: NodeModel, tensors: Sequence[Tensor], number: int) -> Array:
    """One output for inputs that are made up; integers, which may be places, zeros or ones, real numbers any or
    from 0 to 1, which may be probabilities.
    """
    said = ""
    for whole in (0, 1):
        try:
            with np.errstate(all="ignore"):
                return node.computed([_sample(tensor, whole) for tensor in tensors], number)
        except (*REFUSALS, DecodeError, binascii.Error) as error:
            said = said or line_of(error)
    raise UnsupportedNodeError(said if own(node.asked) else f"ONNX's reference cannot compute it: {said}")


def _sample(tensor: Tensor, whole: int) -> Array:
    if tensor.data is not None:
        return tensor.data
    random = np.random.default_rng(0)
    dtype = np.dtype(tensor.dtype)
    if dtype.kind == "f":
        numbers = random.uniform(size=tensor.shape) if whole else random.standard_normal(tensor.shape)
        return numbers.astype(dtype)
    if dtype.itemsize == 1:
        return random.integers(0, 2, tensor.shape).astype(dtype)
    return np.full(tensor.shape, whole, dtype)


def _agreed(here: bool, wanted: Made, array: Array) -> Known:
    """Type and shape of an output; those of ONNX's reference must be the ones that follow from the inputs."""
    if array.dtype.name != wanted.dtype and array.dtype.kind not in "fiub":
        raise UnsupportedNodeError(f"its output is of type {array.dtype}, which the graph does not have")
    if not array.size:
        raise UnsupportedNodeError("its output has no elements")
    if array.shape != wanted.shape and not here:
        raise UnsupportedNodeError(
            f"ONNX's reference makes shape {list(array.shape)} of it, not {list(wanted.shape or ())}"
        )
    return wanted.dtype, array.shape


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
