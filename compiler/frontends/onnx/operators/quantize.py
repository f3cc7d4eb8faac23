"""QuantizeLinear and DequantizeLinear: what they say about the integers around them, and their conversion."""

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from compiler.frontends.onnx.emit import ONE, Emitter
from compiler.frontends.onnx.node import FileNode, Model
from compiler.frontends.onnx.registry import converts
from compiler.frontends.onnx.tensors import DTYPES
from compiler.frontends.onnx.values import (
    FLOAT,
    Fixed,
    Flow,
    Kind,
    UnsupportedError,
    Value,
    counted_from_front,
)
from compiler.ir.tensor import Quantization
from hw.errors import InputError, shown

#: Operators whose output has the elements of their first input, in another place.
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
    )
)
#: Operators that may compute in the scale that their output gets next.
_PASSING = MOVES | {"Relu", "Clip", "Concat"}
_QUANTIZED = ("int8", "uint8", "int16")
_FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def parameters(
    node: FileNode, scale: Fixed, zero: Fixed | None, shape: tuple[int, ...] | None
) -> Quantization:
    """The quantization of a QuantizeLinear or DequantizeLinear.

    Parameters
    ----------
    shape : tuple of int or None
        Of what is quantized, as far as it is known.
    """
    if node.int("block_size", 0):
        raise UnsupportedError("scales by blocks")
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
            raise UnsupportedError("scales along an axis of an unknown shape")
        axis = counted_from_front(node.int("axis", 1), len(shape))
        if shape[axis] != scales.size:
            raise InputError(f"{scales.size} scales do not fit dimension {axis} of shape {list(shape)}")
    return Quantization(
        tuple(float(v) for v in scales.reshape(-1)), tuple(int(v) for v in zeros.reshape(-1)), axis
    )


def quantized_type(node: FileNode, zero: Fixed | None) -> str:
    """Type that a QuantizeLinear makes."""
    wanted = DTYPES.get(node.int("output_dtype", 0))
    dtype = zero.data.dtype.name if zero is not None else wanted or "uint8"
    narrow = zero is not None and zero.narrow
    if narrow or dtype not in _QUANTIZED or (zero is None and node.int("output_dtype", 0) and wanted is None):
        raise UnsupportedError(f"quantized numbers must be {', '.join(_QUANTIZED)}; others")
    return dtype


def _whole(node: FileNode, constants: dict[str, Fixed]) -> Kind | None:
    """What a QuantizeLinear or DequantizeLinear makes or reads, if that has one scale and is well formed."""
    scale, zero = (constants.get(name) for name in (*node.inputs[1:3], "", "")[:2])
    if scale is None or scale.data.size != 1 or (zero is None and len(node.inputs) > 2 and node.inputs[2]):
        return None
    try:
        dtype = quantized_type(node, zero) if node.op == "QuantizeLinear" else "int8"
        return Kind(dtype, parameters(node, scale, zero, None), True)
    except InputError:
        return None  # the conversion of the node will say it


def targets(model: Model) -> dict[str, Kind]:
    """For each value that is only quantized, perhaps after being moved and clipped: into what."""
    found: dict[str, Kind] = {}
    users: dict[str, list[FileNode]] = {}
    for node in model.nodes:
        for name in dict.fromkeys(node.inputs):
            users.setdefault(name, []).append(node)
    outputs = {output.name for output in model.outputs}

    def wanted(user: FileNode, name: str) -> Kind | None:
        if user.op == "QuantizeLinear" and user.inputs[0] == name:
            return _whole(user, model.constants)
        if user.op == ":integers":
            return Kind("int32", ONE, True)
        if user.op not in _PASSING or (user.op != "Concat" and user.inputs[0] != name):
            return None
        kinds = {found.get(made) for made in (user.outputs if user.op == "Split" else user.outputs[:1])}
        return kinds.pop() if len(kinds) == 1 else None

    for node in reversed(model.nodes):
        for name in node.outputs:
            kinds = {wanted(user, name) for user in users.get(name, ())}
            if len(kinds) == 1 and name not in outputs and (kind := kinds.pop()) is not None:
                found[name] = kind
    return found


def meanings(model: Model) -> dict[str, Quantization]:
    """For integers of the file: what those who write or read them say that they mean."""
    found = _along_axes(model)
    for node in model.nodes:
        name = {"QuantizeLinear": node.outputs[0], "DequantizeLinear": (*node.inputs, "")[0]}.get(node.op)
        kind = None if name is None else _whole(node, model.constants)
        if name is not None and kind is not None and kind.quantization is not None:
            found.setdefault(name, kind.quantization)
    for node in reversed(model.nodes):
        if node.op in MOVES | {"Concat"} and node.outputs[0] in found:
            for name in node.inputs if node.op == "Concat" else node.inputs[:1]:
                found.setdefault(name, found[node.outputs[0]])
    for node in model.nodes:
        if node.op == "Cast" and node.inputs and node.int("to", 0) in _FLOAT_TYPES:
            found.setdefault(node.inputs[0], ONE)
    return found


def _along_axes(model: Model) -> dict[str, Quantization]:
    """Inputs of the model that have scales along an axis."""
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
            continue  # the conversion of the node will say it
        if q.axis is not None:
            found.setdefault(name, q)
    return found


@converts("QuantizeLinear", inputs=(2, 3))
def _quantize(emitter: Emitter, node: FileNode, inputs: list[Value | None]) -> Sequence[Value]:
    x, scale, zero = inputs
    assert x is not None
    if not isinstance(scale, Fixed) or not (zero is None or isinstance(zero, Fixed)):
        raise UnsupportedError("a scale that is not constant")
    q, dtype = parameters(node, scale, zero, x.shape), quantized_type(node, zero)
    name = node.outputs[0]
    if isinstance(x, Fixed):
        return [Fixed(name, quantized(x.real(), q, dtype))]
    x = _channels_last(emitter, x, q)
    kind = Kind(dtype, _along(q, x), True)
    if x.kind == kind:
        return [Flow(name, x.tensor, x.order)]
    op = "requantize" if x.quantized else "quantize"
    source = x.tensor if x.quantized else emitter.operand(x, x.order, FLOAT)
    return [Flow(name, emitter.convert(op, source, kind), x.order)]


@converts("DynamicQuantizeLinear", inputs=(1, 1))
def _dynamic(emitter: Emitter, node: FileNode, inputs: list[Value]) -> Sequence[Value]:
    x = emitter.flow(inputs[0])
    tensor = emitter.operand(x, x.order, FLOAT)
    made = [emitter.emit(node, "dynamic_quantize", [tensor], x.shape, x.order, Kind("uint8"))]
    for index, (part, dtype) in enumerate((("scale", "float32"), ("zero", "uint8")), 1):
        if node.outputs[index:] and node.outputs[index]:
            kind = Kind(dtype)
            made.append(emitter.emit(node, f"dynamic_{part}", [tensor], (), (), kind, part, index))
    return made


@converts(":integers", inputs=(1, 1))
def _integers(emitter: Emitter, node: FileNode, inputs: list[Value]) -> Sequence[Value]:
    """Real numbers that are integers, as such."""
    (x,) = inputs
    if isinstance(x, Fixed):
        return [Fixed(node.outputs[0], np.rint(x.real()).astype(np.int32))]
    exact = x.tensor.dtype == "int32" and x.tensor.quantization == ONE
    return [Flow(node.outputs[0], x.tensor, x.order, x.real and not exact)]


@converts("DequantizeLinear", inputs=(2, 3))
def _dequantize(emitter: Emitter, node: FileNode, inputs: list[Value | None]) -> Sequence[Value]:
    x, scale, zero = inputs
    assert x is not None
    if not isinstance(scale, Fixed) or not (zero is None or isinstance(zero, Fixed)):
        raise UnsupportedError("a scale that is not constant")
    name = node.outputs[0]
    if isinstance(x, Fixed):
        if node.int("block_size", 0):
            return [Fixed(name, _by_blocks(node, x, scale, zero))]
        if x.data.dtype.kind not in "iu":
            raise InputError(f"dequantizes {x.data.dtype}, which must be integers")
        return [Fixed(x.name, x.data, parameters(node, scale, zero, x.shape))]
    q = parameters(node, scale, zero, x.shape)
    if x.tensor.quantization == _along(q, x) and not x.real:
        return [Flow(name, x.tensor, x.order, real=True)]
    return [reread(emitter, node, x, _along(q, x))]


def _channels_last(emitter: Emitter, x: Flow, q: Quantization) -> Flow:
    """The same value with the axis of its scales last, where the machine has a scale for each lane."""
    if q.axis is None:
        return x
    return emitter.in_order(x, (*(axis for axis in x.order if axis != q.axis), q.axis))


def _along(q: Quantization, x: Flow) -> Quantization:
    """A quantization whose axis is one of the tensor, not of the file."""
    return q if q.axis is None else Quantization(q.scale, q.zero_point, x.order.index(q.axis))


def reread(emitter: Emitter, node: FileNode, x: Flow, q: Quantization) -> Flow:
    """Integers with another meaning than they were made with: scale * (q - zero), computed from what they meant."""
    made = x.tensor.quantization if x.tensor.dtype != "float32" else ONE
    if made is None or x.real:
        raise UnsupportedError(
            f"integers {x.name!r} that are computed as real numbers, or have no one scale,"
        )
    if not (made.whole and q.whole):
        raise UnsupportedError(f"integers of {x.name!r} with different scales along an axis")
    factor = q.scale[0] / made.scale[0]
    shift = q.scale[0] * (made.zero_point[0] - q.zero_point[0])
    tensor, shape = emitter.operand(x, x.order, FLOAT), x.shape
    for part, op, number, neutral in (("factor", "mul", factor, 1.0), ("shift", "add", shift, 0.0)):
        if number != neutral:
            constant = emitter.constant(
                f"{node.name}:{part}", Fixed(node.name, np.full((1,) * x.rank, number, np.float32))
            )
            tensor = emitter.emit(node, op, [tensor, constant], shape, x.order, FLOAT, part).tensor
    return Flow(node.outputs[0], tensor, x.order)


def quantized(real: np.ndarray, q: Quantization, dtype: str) -> np.ndarray:
    """Integers that come nearest to real numbers, ties to even, as the format rounds them."""
    shape = [1] * real.ndim
    if q.axis is not None:
        shape[q.axis] = -1
    if not np.isfinite(real).all():
        raise InputError("quantizes a constant that is not finite")
    steps = np.rint(real / np.array(q.scale, np.float32).reshape(shape))
    limits = np.iinfo(dtype)
    return np.clip(steps + np.array(q.zero_point).reshape(shape), limits.min, limits.max).astype(dtype)


def _by_blocks(node: FileNode, x: Fixed, scale: Fixed, zero: Fixed | None) -> np.ndarray:
    """Real numbers of a constant that has a scale for every few elements along an axis."""
    size, axis = node.int("block_size", 0), counted_from_front(node.int("axis", 1), len(x.shape))
    wanted = tuple(-(-n // size) if i == axis else n for i, n in enumerate(x.shape)) if size > 0 else ()
    if scale.shape != wanted or (zero is not None and zero.shape != wanted):
        raise InputError(
            f"blocks of {shown(size)} need scales of shape {list(wanted)}, not {list(scale.shape)}"
        )
    size = min(size, x.shape[axis])
    scales, zeros = (
        np.repeat(part.data.astype(np.float32), size, axis).take(range(x.shape[axis]), axis)
        for part in (scale, zero or Fixed("", np.zeros(wanted, np.int8)))
    )
    return ((x.data - zeros) * scales).astype(np.float32)
