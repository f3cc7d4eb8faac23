"""Inference of types and quantizations from the QuantizeLinear and DequantizeLinear nodes of ONNX files."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from compiler.frontends.onnx.node import FileNode, OnnxModel
from compiler.frontends.onnx.values import (
    DTYPES,
    ConstantValue,
    UnsupportedNodeError,
    ValueType,
    counted_from_front,
    type_name,
)
from compiler.ir.tensor import IDENTITY, Quantization
from hw.errors import InputError

#: Operators whose output consists only of elements of their first input.
MOVES = frozenset(
    (
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Identity",
        "Dropout",
        "Slice",
        "Split",
        "Gather",
        "Pad",
        "MaxPool",
        "DepthToSpace",
        "SpaceToDepth",
        "Resize",
        "Upsample",
        "Expand",
        "Tile",
    )
)
#: Operators that move any integers without adding elements.
_PURE_MOVES = MOVES - {"Dropout", "Pad", "MaxPool", "Resize", "Upsample"} | {"Concat"}
#: Value that the int16 form of a uint16 value has less.
_UINT16_SHIFT = 1 << 15
#: Operators that may compute in the scale to which their output is quantized.
_PASSING = MOVES | {"Relu", "Clip", "Concat"}
_QUANTIZED = ("int8", "uint8", "int16")
_FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def parameters(
    node: FileNode, scale: ConstantValue, zero: ConstantValue | None, shape: tuple[int, ...] | None
) -> Quantization:
    """Return the quantization that a QuantizeLinear or DequantizeLinear node applies.

    Parameters
    ----------
    node : FileNode
        The QuantizeLinear or DequantizeLinear node.
    scale, zero : ConstantValue, ConstantValue or None
        Scales and zero points of the node; without zero points, they are 0.
    shape : tuple of int or None
        Shape of the quantized tensor; None if it is unknown.
    """
    if node.int("block_size", 0):
        raise UnsupportedNodeError("its scales must be one, or one for each channel, not one for each block")
    scales = scale.real()
    zeros = np.zeros(scales.shape, np.int64) if zero is None else zero.data
    if zeros.dtype.kind not in "iu" or zeros.size != scales.size or scales.ndim > 1:
        raise InputError(f"{scales.size} scales need as many integers as zero points, not {zeros.size}")
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        bad = scales.reshape(-1)[~(np.isfinite(scales) & (scales > 0)).reshape(-1)][0]
        raise InputError(f"a scale must be finite and positive, not {bad}")
    axis = None
    if scales.ndim and scales.size > 1:
        if shape is None:
            raise UnsupportedNodeError("the shape of a tensor with scales for each channel must be known")
        axis = counted_from_front(node.int("axis", 1), len(shape))
        if shape[axis] != scales.size:
            raise InputError(f"{scales.size} scales do not fit dimension {axis} of shape {list(shape)}")
    return Quantization(
        tuple(float(v) for v in scales.reshape(-1)), tuple(int(v) for v in zeros.reshape(-1)), axis
    )


def quantized_type(node: FileNode, zero: ConstantValue | None) -> str:
    """Return the output type of a QuantizeLinear node."""
    attribute = DTYPES.get(node.int("output_dtype", 0))
    dtype = zero.data.dtype.name if zero is not None else attribute or "uint8"
    narrow = zero is not None and zero.narrow
    unknown = zero is None and node.int("output_dtype", 0) and attribute is None
    if narrow or dtype not in _QUANTIZED or unknown:
        raise UnsupportedNodeError(
            f"quantized values must be {', '.join(_QUANTIZED)}, not {_type_text(node, zero)}"
        )
    return dtype


def _type_text(node: FileNode, zero: ConstantValue | None) -> str:
    """Return the name of a quantized type for messages, with a note if the type in the file has fewer bits."""
    if zero is None:
        return type_name(node.int("output_dtype", 0))
    return f"{zero.data.dtype.name} made of fewer bits" if zero.narrow else zero.data.dtype.name


def _per_tensor(node: FileNode, constants: dict[str, ConstantValue]) -> ValueType | None:
    """Return type and quantization of a QuantizeLinear or DequantizeLinear; None unless valid and per-tensor."""
    scale, zero = (constants.get(name) for name in (*node.inputs[1:3], "", "")[:2])
    if scale is None or scale.data.size != 1 or (zero is None and len(node.inputs) > 2 and node.inputs[2]):
        return None
    try:
        dtype = quantized_type(node, zero) if node.op == "QuantizeLinear" else "int8"
        return ValueType(dtype, parameters(node, scale, zero, None), True)
    except InputError:
        return None  # reported by the conversion of the node


def targets(model: OnnxModel, known: Mapping[str, ValueType] | None = None) -> dict[str, ValueType]:
    """Return, by name, type and quantization of values read only by quantizations, possibly after moves and clips.

    Parameters
    ----------
    model : OnnxModel
        The model, or the expansion of a node.
    known : dict or None
        Types of the values of the enclosing model, which include the outputs of an expansion.
    """
    found: dict[str, ValueType] = dict(known or {})
    users: dict[str, list[FileNode]] = {}
    for node in model.nodes:
        for name in dict.fromkeys(node.inputs):
            users.setdefault(name, []).append(node)
    outputs = {output.name for output in model.outputs}

    def wanted(user: FileNode, name: str) -> ValueType | None:
        if user.op == "QuantizeLinear" and user.inputs[0] == name:
            return _per_tensor(user, model.constants)
        if user.op == ":integers":
            return ValueType("int32", IDENTITY, True)
        if user.op not in _PASSING or (user.op != "Concat" and user.inputs[0] != name):
            return None
        kinds = {found.get(output) for output in (user.outputs if user.op == "Split" else user.outputs[:1])}
        return kinds.pop() if len(kinds) == 1 else None

    for node in reversed(model.nodes):
        for name in node.outputs:
            kinds = {wanted(user, name) for user in users.get(name, ())}
            if len(kinds) == 1 and name not in outputs and (kind := kinds.pop()) is not None:
                found[name] = kind
    return found


def meanings(model: OnnxModel) -> dict[str, Quantization]:
    """Return, by name, the quantizations of integer values of the file, inferred from producers and consumers."""
    found = _along_axes(model)
    for node in model.nodes:
        name = {"QuantizeLinear": node.outputs[0], "DequantizeLinear": (*node.inputs, "")[0]}.get(node.op)
        kind = None if name is None else _per_tensor(node, model.constants)
        if name is not None and kind is not None and kind.quantization is not None:
            found.setdefault(name, kind.quantization)
    for node in model.nodes:
        if node.op == "Cast" and node.inputs and node.int("to", 0) in _FLOAT_TYPES:
            found.setdefault(node.inputs[0], IDENTITY)
    for node in reversed(model.nodes):
        if node.op in MOVES | {"Concat"} and node.outputs[0] in found:
            for name in node.inputs if node.op == "Concat" else node.inputs[:1]:
                found.setdefault(name, found[node.outputs[0]])
    return found


def _along_axes(model: OnnxModel) -> dict[str, Quantization]:
    """Return, by name, the quantizations of the model inputs that have separate scales along an axis."""
    shapes = {each.name: each.shape for each in model.inputs}
    found: dict[str, Quantization] = {}
    for node in model.nodes:
        name, *given = (*node.inputs, "", "", "")[:3]
        scale, zero = (model.constants.get(each) for each in given)
        declared = shapes.get(name) or ()
        shape = tuple(size for size in declared if isinstance(size, int))
        if node.op != "DequantizeLinear" or scale is None or (given[1] and zero is None):
            continue
        try:
            q = parameters(node, scale, zero, shape if len(shape) == len(declared) else None)
        except InputError:
            continue  # reported by the conversion of the node
        if q.axis is not None:
            found.setdefault(name, q)
    return found


def signed_16(model: OnnxModel) -> OnnxModel:
    """Return the model with uint16 quantized values as int16: values and zero points are smaller by 32768.

    The dequantized values are the same. A value is converted if QuantizeLinear computes it or it is constant, and only
    DequantizeLinear and operators that move its elements read it; other values remain uint16.
    """
    zeros: dict[FileNode, ConstantValue | None] = {}  # zero points of the nodes that could be converted
    for node in model.nodes:
        if node.op in ("QuantizeLinear", "DequantizeLinear"):
            scale, zero = (model.constants.get(name) for name in (*node.inputs[1:3], "", "")[:2])
            if scale is not None and (zero is not None or not node.inputs[2:] or not node.inputs[2]):
                zeros[node] = zero
    dequantized = {
        name: value
        for name, value in model.constants.items()
        if value.quantization is not None and value.data.dtype == np.uint16
    }
    found = _unsigned_16(model, zeros) - dequantized.keys()
    if not found and not dequantized:
        return model
    constants, nodes = dict(model.constants), list[FileNode]()
    constants |= {name: _less(value, value.name) for name, value in dequantized.items()}
    for name in found & constants.keys():
        constants[f"{name}:int16"] = _less(constants[name], name)
    for node in model.nodes:
        inputs = tuple(f"{n}:int16" if n in found and n in constants else n for n in node.inputs)
        quantizes = node.op == "QuantizeLinear" and node.outputs[0] in found
        if quantizes or (node in zeros and node.inputs[0] in found):
            zero = zeros[node]
            shape = constants[node.inputs[1]].shape
            base = ConstantValue(node.name, np.zeros(shape, np.uint16)) if zero is None else zero
            name = f"{node.name}:{node.inputs[2] if zero else 'zero'}:int16"
            constants[name] = _less(base, name)
            attributes = {key: value for key, value in node.attributes.items() if key != "output_dtype"}
            node = replace(node, inputs=(*inputs[:2], name), attributes=attributes)
        elif inputs != node.inputs:
            node = replace(node, inputs=inputs)
        nodes.append(node)
    return replace(model, nodes=nodes, constants=constants)


def _less(value: ConstantValue, name: str) -> ConstantValue:
    """Return the int16 form of a uint16 constant."""
    q = value.quantization
    if q is not None:
        q = Quantization(q.scale, tuple(zero - _UINT16_SHIFT for zero in q.zero_point), q.axis)
    return ConstantValue(name, (value.data.astype(np.int32) - _UINT16_SHIFT).astype(np.int16), q)


def _unsigned_16(model: OnnxModel, zeros: dict[FileNode, ConstantValue | None]) -> set[str]:
    """Return the names of the uint16 values that can be converted to int16; `zeros` names the usable nodes."""
    found = {name for name, value in model.constants.items() if value.data.dtype == np.uint16}
    for node in model.nodes:
        zero = zeros.get(node)
        if node.op == "QuantizeLinear" and node in zeros:
            given = None if zero is not None else node.int("output_dtype", 0)
            if (zero is not None and zero.data.dtype == np.uint16) or given == TensorProto.UINT16:
                found.add(node.outputs[0])
        elif node.op in _PURE_MOVES and node.inputs[0] in found - model.constants.keys():
            found.update(node.outputs)
    found -= {output.name for output in model.outputs}
    read = {node.inputs[0] for node in zeros if node.op == "DequantizeLinear"}
    count = -1
    while count != len(
        found
    ):  # a value that cannot be converted prevents the conversion of those it is moved from
        count = len(found)
        for node in model.nodes:
            moved = node.op in _PURE_MOVES
            data = node.inputs if node.op == "Concat" else node.inputs[:1]
            connected = {*data, *node.outputs} if moved else set[str]()
            whole = moved and connected <= found
            converted = node in zeros and node.op == "DequantizeLinear"
            names = set(node.inputs) if not (whole or converted) else set(node.inputs) - set(data)
            found -= names | (connected if not whole else set())
    constants = found & model.constants.keys()
    return found - {name for name in constants if name not in read}
