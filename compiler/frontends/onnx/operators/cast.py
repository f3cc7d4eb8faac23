"""ONNX operators that change a value's type, or nothing of it, and those that tell its shape."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from compiler.frontends.onnx.emit import ONE, Emitter
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.operators.quantize import reread
from compiler.frontends.onnx.operators.shape import renamed
from compiler.frontends.onnx.registry import converts, known
from compiler.frontends.onnx.tensors import type_name, widened
from compiler.frontends.onnx.values import Fixed, Flow, UnsupportedError, Value

#: Types without their own in the graph: numbers beyond them start again from zero.
_WRAPPING: dict[int, type] = {TensorProto.UINT16: np.uint16, TensorProto.UINT32: np.uint32}


@converts("Identity", "Dropout", inputs=(1, 3))
def _identity(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x, _ratio, training) = inputs
    if node.op == "Dropout" and training is not None and known(training, "training mode").data.any():
        raise UnsupportedError("training")
    return [renamed(x, node.outputs[0])]


@converts("Cast", inputs=(1, 1))
def _cast(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    to = node.int("to", 0)
    dtype, x = widened(to), inputs[0]
    if dtype is None:
        raise UnsupportedError(f"a cast to {type_name(to)}")
    if to in _WRAPPING:
        if not isinstance(x, Fixed):
            raise UnsupportedError(f"a cast to {type_name(to)}")
        x = Fixed(x.name, x.numbers().astype(_WRAPPING[to]))
    return [_cast_to(emitter, node, x, dtype)]


@converts("CastLike", inputs=(2, 2))
def _cast_like(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, like = inputs
    real = like.quantization is not None if isinstance(like, Fixed) else like.real
    given = like.data.dtype.name if isinstance(like, Fixed) else like.tensor.dtype
    return [_cast_to(emitter, node, x, "float32" if real else given)]


def _cast_to(emitter: Emitter, node: FileNode, x: Value, dtype: str) -> Value:
    """A value as numbers of another type."""
    name = node.outputs[0]
    if isinstance(x, Fixed):
        return x if dtype == "float32" and x.quantization else Fixed(name, x.numbers().astype(dtype))
    have = "float32" if x.real else x.tensor.dtype
    if have == dtype:
        return renamed(x, name)
    if dtype == "float32" and have != "bool":
        if x.tensor.quantization is None:
            raise UnsupportedError(f"a cast of {have} numbers that are computed")
        as_real = Flow(x.name, x.tensor, x.order, real=True)
        if x.tensor.quantization == ONE:
            return renamed(as_real, name)
        return reread(emitter, node, x, ONE)
    raise UnsupportedError(f"a cast of {have} to {dtype}")


@converts("Shape", inputs=(1, 1))
def _shape(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    end = node.int("end", len(x.shape))
    return [Fixed(node.outputs[0], np.array(x.shape[node.int("start", 0) : end], np.int64))]


@converts("Size", inputs=(1, 1))
def _size(emitter: Emitter, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    (x,) = inputs
    return [Fixed(node.outputs[0], np.array(math.prod(x.shape), np.int64))]
