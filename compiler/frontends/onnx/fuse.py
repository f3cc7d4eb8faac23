"""Fusion of ONNX batch normalizations and constant additions into preceding nodes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.frontends.onnx.def_use import DefUse
from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode, OnnxModel
from compiler.frontends.onnx.ops.elementwise import binary
from compiler.frontends.onnx.ops.shape import reshaped
from compiler.frontends.onnx.registry import CONVERSIONS, converts, known
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    channels_last,
)
from compiler.ir.tensor import Quantization
from hw.errors import InputError, shown


def fuse(model: OnnxModel) -> OnnxModel:
    """Batch normalizations into the convolutions before them, sums with constants into products before them."""
    for change in (_batch_norm, _linear, _conv_bias):
        view = DefUse(model)
        model = replace(model, nodes=[change(view, node) or node for node in model.nodes]).used()
    return model


def _batch_norm(view: DefUse, node: FileNode) -> FileNode | None:
    """The convolution with weights and bias that include the normalization."""
    conv = view.made_by(node.inputs[0], "Conv") if node.op == "BatchNormalization" and node.inputs else None
    if conv is None or view.only_user(conv.outputs[0]) is not node or len(node.inputs) != 5:
        return None
    names = (*conv.inputs[1:], "")[:2]
    weights, bias = view.constants.get(names[0]), view.constants.get(names[1])
    given = [view.constants.get(name) for name in node.inputs[1:]]
    if weights is None or len(view.users[names[0]]) > 1:  # many copies of one constant could take much memory
        return None
    if not weights.shape or (names[1] and bias is None) or node.int("training_mode", 0):
        return None
    channels = weights.shape[0]
    statistics = [v for v in given if v is not None]
    if len(statistics) < 4 or any(v.data.size != channels for v in (*statistics, *([bias] if bias else []))):
        return None
    try:
        factor, shift = batch_norm_constants(node, statistics, channels)
    except InputError as error:
        raise InputError(f"node {shown(node.name)}: {error}") from None
    scaled = weights.real() * factor.reshape(-1, *(1,) * (len(weights.shape) - 1))
    moved = shift if bias is None else bias.real().reshape(-1) * factor + shift
    made = [
        ConstantValue(f"{node.name}:{part}", data) for part, data in (("weights", scaled), ("bias", moved))
    ]
    view.constants.update({value.name: value for value in made})
    inputs = (conv.inputs[0], *(value.name for value in made))
    return replace(conv, inputs=inputs, outputs=node.outputs)


def _linear(view: DefUse, node: FileNode) -> FileNode | None:
    """The product of a MatMul by a constant whose result gets a row added."""
    if node.op != "Add" or len(node.inputs) != 2:
        return None
    for name, other in (node.inputs, node.inputs[::-1]):
        product = view.made_by(name, "MatMul")
        if product is None or view.only_user(name) is not node or len(product.inputs) != 2:
            continue
        weights, row = _shape_of(view, product.inputs[1]), _shape_of(view, other)
        if weights and row and len(weights) == 2 and row == weights[1:]:
            return replace(node, op=":linear", inputs=(*product.inputs, other), attributes={})
    return None


def _conv_bias(view: DefUse, node: FileNode) -> FileNode | None:
    """The convolution without bias whose channels get constants added."""
    if node.op != "Add" or len(node.inputs) != 2:
        return None
    for name, other in (node.inputs, node.inputs[::-1]):
        conv, row = view.made_by(name, "Conv"), view.constants.get(other)
        if conv is None or row is None or len(conv.inputs) != 2 or view.only_user(name) is not node:
            continue
        weights = _shape_of(view, conv.inputs[1])
        if not weights or len(weights) < 3:
            continue
        channels = (weights[0], *(1,) * (len(weights) - 2))
        if row.shape in (channels, (1, *channels)):
            bias = row.reshaped((weights[0],), f"{node.name}:bias")
            view.constants[bias.name] = bias
            return replace(conv, inputs=(*conv.inputs, bias.name), outputs=node.outputs)
    return None


def _shape_of(view: DefUse, name: str) -> tuple[int, ...] | None:
    """Shape of a constant."""
    value = view.constants.get(name)
    return None if value is None else value.shape


@converts("BatchNormalization", inputs=(5, 5))
def _convert_batch_norm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, *given = inputs
    if node.int("training_mode", 0):
        raise UnsupportedNodeError("training")
    if len(x.shape) < 2:
        raise InputError(f"shape {list(x.shape)} has no channels")
    factor, shift = batch_norm_constants(node, [known(v, "a statistic") for v in given], x.shape[1])
    x = emitter.flow(x)
    if x.rank in (3, 4) and emitter.arithmetic(node, x).real:
        return _as_conv(emitter, node, x, factor, shift)
    x = emitter.in_order(x, channels_last(x.rank))  # where a channel's numbers are those of a column
    shape = (x.shape[1], *(1,) * (len(x.shape) - 2))
    parts = [
        reshaped(emitter, f"{node.name}:{part}", ConstantValue(node.name, data), shape)
        for part, data in (("factor", factor), ("shift", shift))
    ]
    scaled = binary(emitter, node, "mul", [x, parts[0]], "scaled", FLOAT)
    return [binary(emitter, node, "add", [scaled, parts[1]], "", FLOAT)]


def _as_conv(
    emitter: OnnxGraphBuilder, node: FileNode, x: DynamicValue, factor: np.ndarray, shift: np.ndarray
) -> Sequence[Value]:
    """A normalization of integers: each channel by a weight, with a scale that makes it exact, and a bias."""
    q = x.tensor.quantization
    assert q is not None
    # A bias has 32 bits in the scale of the products.
    least = np.maximum(np.abs(shift) / (q.scale[0] * 2.0**30), 1e-30)
    scales = np.maximum(np.abs(factor) / 127, least).astype(np.float32)
    weights = np.rint(factor / scales).astype(np.int8).reshape(-1, *(1,) * (x.rank - 1))
    meaning = Quantization(tuple(map(float, scales)), (0,) * scales.size, 0)
    operands = [
        x,
        ConstantValue(f"{node.name}:weights", weights, meaning),
        ConstantValue(f"{node.name}:bias", shift),
    ]
    conv = replace(node, op="Conv", attributes={"group": scales.size}, source=None)
    return CONVERSIONS["Conv"](emitter, conv, operands)


def batch_norm_constants(
    node: FileNode, given: list[ConstantValue], channels: int
) -> tuple[np.ndarray, np.ndarray]:
    """What a batch normalization multiplies each channel with, and what it adds then."""
    if any(v.data.size != channels for v in given):
        raise InputError(f"its statistics must be {channels} numbers each")
    scale, bias, mean, variance = (v.real().astype(np.float64).reshape(-1) for v in given)
    factor = scale / np.sqrt(variance + node.float("epsilon", 1e-5))
    shift = bias - mean * factor
    factor, shift = factor.astype(np.float32), shift.astype(np.float32)
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        raise InputError("its statistics must be finite, variances not negative")
    return factor, shift
