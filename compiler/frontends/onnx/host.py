"""ONNX operators that the graph has no other form for: the host computes them as ONNX's own reference does."""

import base64
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from compiler.frontends.onnx.emit import Emitter
from compiler.frontends.onnx.node import Declared, FileNode
from compiler.frontends.onnx.tensors import DTYPES, type_name
from compiler.frontends.onnx.values import (
    FLOAT,
    Fixed,
    Flow,
    Kind,
    UnsupportedError,
    Value,
    check_size,
    plain,
)
from compiler.host.onnx_reference import Given, LeftOutError, check_reference
from compiler.ir.tensor import MOST_ELEMENTS, Tensor
from hw.errors import InputError

#: An output of such an operator may have so many elements: what it takes to compute them is not known.
_MOST = 1 << 26
_TYPES = {name: number for number, name in DTYPES.items()}
#: What onnx's shape inference and reference raise.
_REFUSALS = (
    RuntimeError, NotImplementedError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError,
    onnx.shape_inference.InferenceError, onnx.checker.ValidationError, onnx.defs.SchemaError,
)  # fmt: skip
#: Constants up to this size may decide a shape.
_SHAPES = 1 << 12


def on_host(
    emitter: Emitter,
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
        raise UnsupportedError(str(error)) from None
    if any(isinstance(value, Fixed) and value.narrow for value in inputs):
        raise UnsupportedError(why)  # its type would be another here
    operands = [None if value is None else _operand(emitter, value) for value in inputs]
    model = _inferred(_model(node, proto, operands))
    types = {output.name: output for output in model.graph.output}
    text = _text(model)
    made: list[Value | None] = []
    for index, name in enumerate(node.outputs):
        if not name:
            made.append(None)
            continue
        try:
            dtype, shape = _type_of(types[f"output{index}"], declared.get(name))
        except _UnknownShapeError:
            raise _far(proto, inputs) or UnsupportedError(
                "the shape of its output depends on its input's numbers, and must be known beforehand"
            ) from None
        kind = Kind(dtype, None if dtype in ("float32", "bool") else emitter.meanings.get(name))
        made.append(
            emitter.emit(
                node, "onnx", [tensor for tensor in operands if tensor is not None], shape, plain(len(shape)),
                kind, part=f"output{index}" if index else "", index=index, operator=proto.op_type, why=why,
                model=text, number=index,
            )
        )  # fmt: skip
    return made


def function(emitter: Emitter, node: FileNode, x: Value, *constants: Fixed) -> Flow:
    """A node that computes a function of each number, and of constants that are the same for all.

    Raises
    ------
    UnsupportedError
        ONNX's reference does not have it, or it is one of integers.
    """
    proto, x = _source(node, "an operator"), emitter.flow(x)
    kind = emitter.arithmetic(node, x)
    if kind != FLOAT and not kind.real:
        raise UnsupportedError("a function of integers")
    fixed = (Tensor("", v.shape, v.data.dtype.name, data=v.data) for v in constants)
    stand_ins = [Tensor("", (1,), "float32"), *fixed]
    model = _model(node, proto, list(stand_ins))
    del model.graph.input[1:]
    _inferred(model)
    operand = emitter.operand(x, x.order, kind)
    return emitter.emit(
        node, "function", [operand], x.shape, x.order, kind, operator=proto.op_type, model=_text(model)
    )


def _given(value: Value) -> Given:
    return Given(value.shape, value.data if isinstance(value, Fixed) else None)


def _text(model: onnx.ModelProto) -> str:
    return base64.b64encode(model.SerializeToString(deterministic=True)).decode()


def _source(node: FileNode, why: str) -> onnx.NodeProto:
    """The node in the file's words, if it still is what the file says and the reference has its operator."""
    source = node.source
    if (
        source is None
        or tuple(source.proto.input) != node.inputs
        or tuple(source.proto.output) != node.outputs
    ):
        raise UnsupportedError(why)
    proto = source.proto
    graphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    if any(attribute.type in graphs for attribute in proto.attribute):
        raise UnsupportedError(why)
    versions = {v.domain: v.version for v in source.versions}
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    if not onnx.defs.has(proto.op_type, versions.get(domain, 1), domain):
        raise UnsupportedError("")
    return proto


def _operand(emitter: Emitter, value: Value) -> Tensor:
    """A value as ONNX has it: real numbers as such, its dimensions in the file's order."""
    if isinstance(value, Fixed):
        return emitter.constant(value.name, Fixed(value.name, value.numbers()))
    if value.real or value.tensor.dtype == "float32":
        return emitter.operand(value, plain(value.rank), FLOAT)
    return emitter.in_order(value, plain(value.rank)).tensor


def _model(node: FileNode, proto: onnx.NodeProto, operands: list[Tensor | None]) -> onnx.ModelProto:
    """A model of the node alone, whose inputs are called by their numbers."""
    assert node.source is not None
    alone = onnx.NodeProto()
    alone.CopyFrom(proto)
    del alone.input[:], alone.output[:]
    alone.input.extend("" if tensor is None else f"input{i}" for i, tensor in enumerate(operands))
    alone.output.extend(f"output{i}" if name else "" for i, name in enumerate(proto.output))
    given = [
        helper.make_tensor_value_info(f"input{i}", _TYPES[tensor.dtype], tensor.shape)
        for i, tensor in enumerate(operands)
        if tensor is not None
    ]
    made = [onnx.ValueInfoProto(name=name) for name in alone.output if name]
    constants = [
        numpy_helper.from_array(tensor.data, f"input{i}")
        for i, tensor in enumerate(operands)
        if tensor is not None and tensor.data is not None and tensor.data.size <= _SHAPES
    ]
    graph = helper.make_graph([alone], "node", given, made, constants)
    return helper.make_model(graph, opset_imports=list(node.source.versions), ir_version=10)


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with types of its outputs, as far as they can be known, and without constants."""
    try:
        made = onnx.shape_inference.infer_shapes(model, data_prop=True)
        del made.graph.initializer[:]
        ReferenceEvaluator(made)
    except _REFUSALS as error:
        raise UnsupportedError(f"ONNX's reference refuses it: {_line(error)}") from None
    return made


def _line(error: Exception) -> str:
    """The first line of what a library says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _far(proto: onnx.NodeProto, inputs: Sequence[Value | None]) -> InputError | None:
    """What is wrong with a node of unknown output shape that is told of a size which no tensor has."""
    told = {f"input {i}": v.data for i, v in enumerate(inputs, 1) if isinstance(v, Fixed) and v.data.size}
    told |= {f"attribute {a.name}": np.array([a.i, *a.ints]) for a in proto.attribute}
    for what, numbers in told.items():
        far = [int(n) for n in numbers.reshape(-1)[:_SHAPES]] if numbers.dtype.kind in "iu" else []
        far = [n for n in far if abs(n) > MOST_ELEMENTS]
        if far:
            return InputError(
                f"its {what} holds {far[0]}; a tensor can have {MOST_ELEMENTS:,} elements, and the shape of its output "
                "is not known"
            )
    return None


class _UnknownShapeError(Exception):
    """A shape does not follow from what is known beforehand."""


def _type_of(output: onnx.ValueInfoProto, declared: Declared | None) -> tuple[str, tuple[int, ...]]:
    """Type and shape of an output: as they follow from the inputs, or as the model declares them."""
    kind = output.type.tensor_type
    sizes: list[int | str | None] | None = None
    if kind.HasField("shape"):
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
    wished = declared.shape if declared is not None else None
    if sizes is None:
        sizes = None if wished is None else list(wished)
    elif wished is not None and len(wished) == len(sizes):
        sizes = [b if a is None else a for a, b in zip(sizes, wished, strict=True)]
    dtype = DTYPES.get(kind.elem_type) or (declared.dtype if declared and not kind.elem_type else None)
    if dtype is None:
        named = type_name(kind.elem_type) if output.type.WhichOneof("value") == "tensor_type" else "no tensor"
        raise UnsupportedError(f"its output is of type {named}, and must be of {', '.join(DTYPES.values())}")
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        raise _UnknownShapeError
    shape = tuple(size for size in sizes if isinstance(size, int))
    check_size(shape, _MOST)
    return dtype, shape
