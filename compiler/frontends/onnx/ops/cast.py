"""ONNX casts, identities and shape queries."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from compiler.frontends.onnx.graph_builder import ONE, OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.quantize import reread
from compiler.frontends.onnx.ops.shape import renamed
from compiler.frontends.onnx.registry import converts, known
from compiler.frontends.onnx.tensors import type_name, widened
from compiler.frontends.onnx.values import ConstantValue, DynamicValue, UnsupportedNodeError, Value

#: Types without their own in the graph: numbers beyond them start again from zero.
_WRAPPING: dict[int, type] = {TensorProto.UINT16: np.uint16, TensorProto.UINT32: np.uint32}


@converts("Identity", "Dropout", inputs=(1, 3))
def _identity(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x, _ratio, training) = inputs
    if node.op == "Dropout" and training is not None and known(training, "training mode").data.any():
        raise UnsupportedNodeError("training")
    return [renamed(x, node.outputs[0])]


@converts("Cast", inputs=(1, 1))
def _cast(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    to = node.int("to", 0)
    dtype, x = widened(to), inputs[0]
    if dtype is None:
        raise UnsupportedNodeError(f"a cast to {type_name(to)}")
    if to in _WRAPPING:
        if not isinstance(x, ConstantValue):
            raise UnsupportedNodeError(f"a cast to {type_name(to)}")
        x = ConstantValue(x.name, x.numbers().astype(_WRAPPING[to]))
    return [_cast_to(emitter, node, x, dtype)]


@converts("CastLike", inputs=(2, 2))
def _cast_like(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, like = inputs
    real = like.quantization is not None if isinstance(like, ConstantValue) else like.real
    given = like.data.dtype.name if isinstance(like, ConstantValue) else like.tensor.dtype
    return [_cast_to(emitter, node, x, "float32" if real else given)]


def _cast_to(emitter: OnnxGraphBuilder, node: FileNode, x: Value, dtype: str) -> Value:
    """A value as numbers of another type."""
    name = node.outputs[0]
    if isinstance(x, ConstantValue):
        return x if dtype == "float32" and x.quantization else ConstantValue(name, x.numbers().astype(dtype))
    have = "float32" if x.real else x.tensor.dtype
    if have == dtype:
        return renamed(x, name)
    if dtype == "float32" and have != "bool":
        if x.tensor.quantization is None:
            raise UnsupportedNodeError(f"a cast of {have} numbers that are computed")
        as_real = DynamicValue(x.name, x.tensor, x.order, real=True)
        if x.tensor.quantization == ONE:
            return renamed(as_real, name)
        return reread(emitter, node, x, ONE)
    raise UnsupportedNodeError(f"a cast of {have} to {dtype}")


@converts("Shape", inputs=(1, 1))
def _shape(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    end = node.int("end", len(x.shape))
    return [ConstantValue(node.outputs[0], np.array(x.shape[node.int("start", 0) : end], np.int64))]


@converts("Size", inputs=(1, 1))
def _size(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    return [ConstantValue(node.outputs[0], np.array(math.prod(x.shape), np.int64))]
