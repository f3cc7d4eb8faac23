"""Conversion of QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear."""

from collections.abc import Sequence

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.qdq_analysis import parameters, quantized_type
from compiler.frontends.onnx.registry import converts
from compiler.frontends.onnx.values import (
    FLOAT,
    BlockWeights,
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    ValueType,
    counted_from_front,
)
from compiler.ir.tensor import IDENTITY, Quantization
from hw.errors import InputError, shown


@converts("QuantizeLinear", inputs=(2, 3))
def _quantize(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value | None]) -> Sequence[Value]:
    x, scale, zero = inputs
    assert x is not None
    if not isinstance(scale, ConstantValue) or not (zero is None or isinstance(zero, ConstantValue)):
        raise UnsupportedNodeError("its scale must be constant")
    q, dtype = parameters(node, scale, zero, x.shape), quantized_type(node, zero)
    name = node.outputs[0]
    if isinstance(x, ConstantValue):
        return [ConstantValue(name, quantized(x.real(), q, dtype))]
    x = _channels_last(emitter, x, q)
    kind = ValueType(dtype, _along(q, x), True)
    if x.kind == kind:
        return [DynamicValue(name, x.tensor, x.order)]
    op = "requantize" if x.quantized else "quantize"
    source = x.tensor if x.quantized else emitter.operand(x, x.order, FLOAT)
    return [DynamicValue(name, emitter.convert(op, source, kind), x.order)]


@converts("DynamicQuantizeLinear", inputs=(1, 1))
def _dynamic(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value]) -> Sequence[Value]:
    x = emitter.flow(inputs[0])
    tensor = emitter.operand(x, x.order, FLOAT)
    made = [emitter.emit(node, "dynamic_quantize", [tensor], x.shape, x.order, ValueType("uint8"))]
    for index, (part, dtype) in enumerate((("scale", "float32"), ("zero", "uint8")), 1):
        if node.outputs[index:] and node.outputs[index]:
            kind = ValueType(dtype)
            made.append(emitter.emit(node, f"dynamic_{part}", [tensor], (), (), kind, part, index))
    return made


@converts(":integers", inputs=(1, 1))
def _integers(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value]) -> Sequence[Value]:
    """Convert floating-point values that are whole numbers to integers."""
    (x,) = inputs
    if isinstance(x, ConstantValue):
        return [ConstantValue(node.outputs[0], np.rint(x.real()).astype(np.int32))]
    exact = x.tensor.dtype == "int32" and x.tensor.quantization == IDENTITY
    return [DynamicValue(node.outputs[0], x.tensor, x.order, x.real and not exact)]


@converts("DequantizeLinear", inputs=(2, 3))
def _dequantize(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value | None]) -> Sequence[Value]:
    x, scale, zero = inputs
    assert x is not None
    if not isinstance(scale, ConstantValue) or not (zero is None or isinstance(zero, ConstantValue)):
        raise UnsupportedNodeError("its scale must be constant")
    name = node.outputs[0]
    if isinstance(x, ConstantValue):
        if x.data.dtype.kind not in "iu":
            raise InputError(f"its input must be integers, not {x.data.dtype}")
        if node.int("block_size", 0):
            blocks = _by_blocks(node, x, scale, zero)
            return [ConstantValue(name, blocks.real(), blocks=blocks)]
        return [ConstantValue(x.name, x.data, parameters(node, scale, zero, x.shape))]
    q = parameters(node, scale, zero, x.shape)
    if x.tensor.quantization == _along(q, x) and not x.real:
        return [DynamicValue(name, x.tensor, x.order, real=True)]
    return [reread(emitter, node, x, _along(q, x))]


def _channels_last(emitter: OnnxGraphBuilder, x: DynamicValue, q: Quantization) -> DynamicValue:
    """Return the value with the axis of `q` last, because the hardware quantizes with a scale per lane."""
    if q.axis is None:
        return x
    return emitter.in_order(x, (*(axis for axis in x.order if axis != q.axis), q.axis))


def _along(q: Quantization, x: DynamicValue) -> Quantization:
    """Return a quantization with its axis converted from the file's order of dimensions to the tensor's."""
    return q if q.axis is None else Quantization(q.scale, q.zero_point, x.order.index(q.axis))


def reread(emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, q: Quantization) -> DynamicValue:
    """Dequantize integers with `q` instead of their tensor's quantization, by a multiplication and an addition.

    Integers that are computed in floating point have the identity quantization.
    """
    present = IDENTITY if x.real or x.tensor.dtype == "float32" else x.tensor.quantization
    if present is None:
        raise UnsupportedNodeError(f"tensor {x.name!r} must have one scale")
    if not (present.whole and q.whole):
        raise UnsupportedNodeError(f"tensor {x.name!r} must have one scale, not one for each channel")
    factor = q.scale[0] / present.scale[0]
    shift = q.scale[0] * (present.zero_point[0] - q.zero_point[0])
    if x.real and (factor, shift) == (1.0, 0.0):
        return DynamicValue(node.outputs[0], x.tensor, x.order, real=True)
    tensor, shape = emitter.operand(x, x.order, FLOAT), x.shape
    for part, op, number, neutral in (("factor", "mul", factor, 1.0), ("shift", "add", shift, 0.0)):
        if number != neutral:
            constant = emitter.constant(
                f"{node.name}:{part}", ConstantValue(node.name, np.full((1,) * x.rank, number, np.float32))
            )
            tensor = emitter.emit(node, op, [tensor, constant], shape, x.order, FLOAT, part).tensor
    return DynamicValue(node.outputs[0], tensor, x.order)


def quantized(real: np.ndarray, q: Quantization, dtype: str) -> np.ndarray:
    """Quantize floating-point values, rounding ties to even as ONNX does."""
    shape = [1] * real.ndim
    if q.axis is not None:
        shape[q.axis] = -1
    if not np.isfinite(real).all():
        raise InputError("its constant input must be finite")
    steps = np.rint(real / np.array(q.scale, np.float32).reshape(shape))
    limits = np.iinfo(dtype)
    return np.clip(steps + np.array(q.zero_point).reshape(shape), limits.min, limits.max).astype(dtype)


def _by_blocks(
    node: FileNode, x: ConstantValue, scale: ConstantValue, zero: ConstantValue | None
) -> BlockWeights:
    """Return the integers and scales of a constant that has a scale for each block of elements along an axis."""
    size, axis = node.int("block_size", 0), counted_from_front(node.int("axis", 1), len(x.shape))
    wanted = tuple(-(-n // size) if i == axis else n for i, n in enumerate(x.shape)) if size > 0 else ()
    if scale.shape != wanted or (zero is not None and zero.shape != wanted):
        raise InputError(
            f"blocks of {shown(size)} need scales of shape {list(wanted)}, not {list(scale.shape)}"
        )
    values = x.data.astype(np.int32)
    if zero is not None:
        zeros = np.repeat(zero.data.astype(np.int32), min(size, x.shape[axis]), axis)
        values = values - zeros.take(range(x.shape[axis]), axis)
    return BlockWeights(values, scale.data.astype(np.float32), size, axis)
