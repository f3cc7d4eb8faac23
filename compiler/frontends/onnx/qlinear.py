"""ONNX's QLinear operators as operators on real numbers between dequantizations and quantizations."""

from dataclasses import replace

import numpy as np

from compiler.frontends.onnx.node import FileNode, Model
from compiler.frontends.onnx.operators.elementwise import finite
from compiler.frontends.onnx.rewrite import Parts, expands
from compiler.frontends.onnx.values import UnsupportedError
from hw.errors import InputError


def _bias(parts: Parts, name: str, x_scale: str, w_scale: str, factor: float = 1.0) -> tuple[str, ...]:
    """An int32 bias has the scale of the products, with the factor that they are multiplied by."""
    if not name:
        return ()
    scales = parts.fixed(x_scale, "a scale").real() * parts.fixed(w_scale, "a scale").real()
    if not factor > 0:  # which is no scale
        numbers = parts.fixed(name, "a bias").real() * scales * np.float32(factor)
        return (parts.constant("bias", numbers),)
    scales = scales * np.float32(factor)
    scale = parts.constant("bias_scale", scales.reshape(-1) if scales.size > 1 else scales.reshape(()))
    return (parts.add("DequantizeLinear", (name, scale), "bias", axis=0),)


@expands("QLinearConv")
def _conv(model: Model, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 8, 9)
    _images_only(node)
    for at, what in ((3, "a kernel"), (8, "a bias")):
        if parts.inputs[at]:
            given = parts.fixed(parts.inputs[at], what)
            if len(given.shape) > 4:
                raise UnsupportedError(f"a convolution over {len(given.shape) - 2} dimensions")
    operands = (parts.real(0, "x"), parts.real(3, "w", axis=0))
    return parts.finish("Conv", operands + _bias(parts, parts.inputs[8], parts.inputs[1], parts.inputs[4]), 6)


@expands("QLinearMatMul")
def _matmul(model: Model, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 8, 8)
    parts.whole(0, 1, 2)
    parts.whole(3, 4, 5)
    return parts.finish("MatMul", (parts.real(0, "a", axis=-2), parts.real(3, "b", axis=-1)), 6)


@expands("QGemm")
def _gemm(model: Model, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 6, 9)
    if not parts.inputs[7]:
        raise UnsupportedError("a real output")
    axis = 0 if node.int("transB", 0) else 1
    operands = (parts.real(0, "a"), parts.real(3, "b", axis=axis))
    factor = finite(node.float("alpha", 1.0))
    bias = _bias(parts, parts.inputs[6], parts.inputs[1], parts.inputs[4], factor)
    return parts.finish("Gemm", operands + bias, 7)


@expands("QLinearAdd", "QLinearMul")
def _binary(model: Model, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 7, 8)
    return parts.finish(node.op[len("QLinear") :], (parts.real(0, "a"), parts.real(3, "b")), 6)


@expands(
    "QLinearSigmoid",
    "QLinearLeakyRelu",
    "QLinearAveragePool",
    "QLinearGlobalAveragePool",
    "QLinearReduceMean",
)
def _unary(model: Model, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 4, 5)
    _images_only(node)
    return parts.finish(node.op[len("QLinear") :], (parts.real(0, "x"),), 3)


@expands("QLinearSoftmax")
def _softmax(model: Model, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 4, 5)
    made = parts.finish("Softmax", (parts.real(0, "x"),), 3)
    return [replace(n, opset=node.int("opset", node.opset)) if n.op == "Softmax" else n for n in made]


@expands("QLinearConcat")
def _concat(model: Model, node: FileNode) -> list[FileNode]:
    parts = Parts(model, node, 5, max(5, len(node.inputs)))
    if len(parts.inputs) % 3 != 2:
        raise InputError(f"must have two inputs and three for each part, not {len(parts.inputs)} in all")
    operands = tuple(parts.real(at, f"x{at // 3}") for at in range(2, len(parts.inputs), 3))
    return parts.finish("Concat", operands, 0)


def _images_only(node: FileNode) -> None:
    if node.int("channels_last", 0):
        raise UnsupportedError("channels last")
