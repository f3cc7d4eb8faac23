"""ONNX normalizations of images over groups of their channels, as layer normalizations of rows."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.elementwise import binary
from compiler.frontends.onnx.ops.shape import reshaped
from compiler.frontends.onnx.registry import CONVERSIONS, converts, known
from compiler.frontends.onnx.values import FLOAT, ConstantValue, Value
from hw.errors import InputError, shown

#: From this set on GroupNormalization has a scale for each channel, before for each group.
_BY_CHANNEL = 21


@converts("InstanceNormalization", inputs=(3, 3))
def _instance_norm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, *given = inputs
    return [_grouped(emitter, node, x, x.shape[1] if len(x.shape) > 1 else 1, given)]


@converts("GroupNormalization", inputs=(3, 3))
def _group_norm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, *given = inputs
    groups = node.int("num_groups", 0)
    if len(x.shape) > 1 and (groups < 1 or x.shape[1] % groups):
        raise InputError(f"num_groups must divide {x.shape[1]} channels, not be {shown(groups)}")
    if node.opset < _BY_CHANNEL:
        each = x.shape[1] // groups
        given = [
            ConstantValue(v.name, np.repeat(v.real(), each))
            for v in (known(v, "a scale or bias") for v in given)
        ]
    return [_grouped(emitter, node, x, groups, given)]


def _grouped(
    emitter: OnnxGraphBuilder, node: FileNode, x: Value, groups: int, given: Sequence[Value]
) -> Value:
    """Each group of channels of an image normalized, then each channel scaled and moved."""
    shape, name = x.shape, node.outputs[0]
    if len(shape) < 3:
        raise InputError(f"shape {list(shape)} has no channels of more than one element")
    factor, shift = (known(v, "a scale or bias").real().reshape(-1) for v in given)
    if factor.size != shape[1] or shift.size != shape[1]:
        raise InputError(f"its scale and bias must be {shape[1]} numbers each")
    rows = reshaped(emitter, f"{name}:rows", x, (shape[0], groups, math.prod(shape[1:]) // groups))
    epsilon = {"epsilon": node.float("epsilon", 1e-5)}
    inner = replace(
        node,
        name=f"{node.name}:rows",
        op="LayerNormalization",
        outputs=(f"{name}:normal",),
        attributes=epsilon,
    )
    (made,) = CONVERSIONS["LayerNormalization"](emitter, inner, [rows])
    made = reshaped(emitter, f"{name}:shaped", made, shape)
    wide = (shape[1], *(1,) * (len(shape) - 2))
    for part, op, data, neutral in (("factor", "mul", factor, 1.0), ("shift", "add", shift, 0.0)):
        if (data != neutral).any():
            constant = ConstantValue(f"{node.name}:{part}", data.reshape(wide))
            made = binary(emitter, node, op, [made, constant], "scaled" if op == "mul" else "", FLOAT)
    return reshaped(emitter, name, made, shape)
