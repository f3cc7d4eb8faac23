"""Conversion of ONNX matrix products, normalizations and softmax."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.frontends.onnx.function_bodies import BodyBuilder
from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.conv import bias_of, product_kind, weights_of
from compiler.frontends.onnx.ops.elementwise import binary, finite
from compiler.frontends.onnx.ops.shape import renamed, reshaped, with_ones, without_ones
from compiler.frontends.onnx.registry import CONVERSIONS, converts, known
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    UnsupportedNodeError,
    Value,
    ValueType,
    broadcast,
    counted_from_front,
    plain,
)
from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError, shown

#: Limit on the elements of a broadcast scale or bias of a normalization.
_MAX_BROADCAST_ELEMENTS = 1 << 20


def dense(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    x: DynamicValue,
    weights: ConstantValue,
    bias: Value | None,
    part: str = "",
    *,
    floats: bool = False,
) -> DynamicValue:
    """Add a dense node, which multiplies x by transposed weights (outputs, inputs) and adds the bias."""
    if len(weights.shape) != 2 or min(weights.shape) < 1 or x.shape[-1] != weights.shape[1]:
        raise InputError(f"weights {list(weights.shape[::-1])} do not fit x {list(x.shape)}")
    kind = FLOAT if floats else product_kind(emitter, node, x, weights, 0)
    weights = weights_of(weights, kind)
    biases = [] if bias is None else [bias_of(emitter, bias, x.tensor, weights, weights.shape[0], kind)]
    rows, weights = _in_memory_order(emitter, emitter.operand(x, plain(x.rank), kind), weights)
    operands = [rows, emitter.constant(weights.name, weights), *biases]
    return emitter.emit(node, "dense", operands, (*x.shape[:-1], weights.shape[0]), plain(x.rank), kind, part)


def _in_memory_order(
    emitter: OnnxGraphBuilder, rows: Tensor, weights: ConstantValue
) -> tuple[Tensor, ConstantValue]:
    """Return rows and weights of a dense node, with a transpose before the flattening moved into the weights."""
    graph = emitter.build.graph
    flat = graph.producer(rows.name)
    transpose = graph.producer(flat.inputs[0]) if flat is not None and flat.op == "reshape" else None
    if (
        transpose is None
        or transpose.op != "transpose"
        or transpose.attributes["perm"][0] != 0
        or len(rows.shape) != 2
    ):
        return rows, weights
    (source,), (result,) = graph.ins(transpose), (graph.tensors[name] for name in transpose.outputs)
    if result.shape[0] != rows.shape[0]:
        return rows, weights
    inverse = tuple(transpose.attributes["perm"].index(i) for i in range(len(result.shape)))
    data = weights.data.reshape(weights.shape[0], *result.shape[1:]).transpose(inverse).reshape(weights.shape)
    return emitter.reshape(source, rows.shape), ConstantValue(weights.name, data, weights.quantization)


@converts("MatMul", inputs=(2, 2))
def _matmul(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    a, b = inputs
    return [_product(emitter, node, a, b, None)]


@converts(":linear", inputs=(3, 3))
def _linear(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [_product(emitter, node, *inputs)]


def _product(emitter: OnnxGraphBuilder, node: FileNode, a: Value, b: Value, bias: Value | None) -> Value:
    if not a.shape or not b.shape:
        raise InputError(f"shapes {list(a.shape)} and {list(b.shape)} are not those of matrices")
    left, right = len(a.shape) == 1, len(b.shape) == 1
    name = node.outputs[0]
    x = emitter.flow(with_ones(emitter, a.name, a, {0}) if left else a)
    y = with_ones(emitter, b.name, b, {1}) if right else b
    if isinstance(y, ConstantValue) and len(y.shape) == 2:
        made = dense(emitter, node, x, y.transposed((1, 0)), bias)
    else:
        made = _stacks(emitter, node, x, y)
    dropped = ({made.rank - 2} if left else set()) | ({made.rank - 1} if right else set())
    return without_ones(emitter, name, made, dropped) if dropped else renamed(made, name)


def _stacks(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    x: DynamicValue,
    y: Value,
    kind: ValueType | None = None,
    part: str = "",
) -> DynamicValue:
    """Add a matrix product of two stacks of matrices."""
    if x.shape[-1] != y.shape[-2]:
        raise InputError(f"shapes {list(x.shape)} and {list(y.shape)} have no product")
    shape = (*broadcast([x.shape[:-2], y.shape[:-2]]), x.shape[-2], y.shape[-1])
    if isinstance(y, ConstantValue) and y.quantization is not None and not y.quantization.whole:
        y = ConstantValue(y.name, y.real())
    kind = kind or emitter.arithmetic(node, x, y)
    operands = [emitter.operand(v, plain(len(v.shape)), kind) for v in (x, y)]
    return emitter.emit(node, "matmul", operands, shape, plain(len(shape)), kind, part)


@converts("Gemm", inputs=(2, 3))
def _gemm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    a, b, c = inputs
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise InputError(f"shapes {list(a.shape)} and {list(b.shape)} are not those of matrices")
    alpha, beta = finite(node.float("alpha", 1.0)), finite(node.float("beta", 1.0))
    x = emitter.flow(a.transposed((1, 0), a.name) if node.int("transA", 0) else a)
    b = b.transposed((1, 0), b.name) if not node.int("transB", 0) else b
    if isinstance(b, ConstantValue):
        bias = _bias_row(c, b.shape[0], beta)
        separate = c is not None and bias is None
        made = dense(emitter, node, x, _times(b, alpha), bias, "product" if separate else "", floats=separate)
    else:
        separate = c is not None
        if alpha != 1 or separate:
            made = _stacks(emitter, node, x, b.transposed((1, 0), b.name), FLOAT, "product")
        else:
            made = _stacks(emitter, node, x, b.transposed((1, 0), b.name))
        if alpha != 1:
            made = binary(emitter, node, "mul", [made, _number(node, "alpha", alpha)], "alpha", FLOAT)
    if c is not None and separate:
        if broadcast([made.shape, c.shape]) != made.shape:
            raise InputError(f"shape {list(c.shape)} cannot be added to {list(made.shape)}")
        if beta != 1:
            c = binary(emitter, node, "mul", [c, _number(node, "beta", beta)], "beta", FLOAT)
        made = binary(emitter, node, "add", [made, c], "", FLOAT)
    return [renamed(made, node.outputs[0])]


def _number(node: FileNode, part: str, number: float) -> ConstantValue:
    return ConstantValue(f"{node.name}:{part}", np.array(number, np.float32))


def _times(value: ConstantValue, factor: float) -> ConstantValue:
    """Return a constant multiplied by a number."""
    if factor == 1:
        return value
    q = value.quantization
    if q is None or factor <= 0:
        return ConstantValue(value.name, value.real() * np.float32(factor))
    scales = tuple(float(np.float32(scale * factor)) for scale in q.scale)
    return ConstantValue(value.name, value.data, Quantization(scales, q.zero_point, q.axis))


def _bias_row(c: Value | None, outputs: int, beta: float) -> ConstantValue | None:
    """Return Gemm's operand c times beta, if c is one constant row for all rows of the product; None otherwise."""
    if (
        not isinstance(c, ConstantValue)
        or c.data.size not in (1, outputs)
        or (c.shape or (1,))[-1] != c.data.size
    ):
        return None
    if c.data.size != outputs:
        c = ConstantValue(c.name, np.full(outputs, c.real().reshape(-1)[0]))
    return _times(c.reshaped((outputs,)), beta)


@converts("Softmax", inputs=(1, 1))
def _softmax(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, name = emitter.flow(inputs[0]), node.outputs[0]
    later = node.opset >= 13
    axis = counted_from_front(node.int("axis", -1 if later else 1), x.rank)
    shape = x.shape
    if not later and axis != x.rank - 1 and math.prod(shape[axis + 1 :]) > 1:
        # Before operator set 13, softmax was computed over `axis` and all following dimensions.
        rows = reshaped(emitter, f"{name}:rows", x, (*shape[:axis], math.prod(shape[axis:])))
        x = emitter.flow(rows)
    kind = emitter.arithmetic(node, x)
    operand = emitter.operand(x, x.order, kind)
    made = emitter.emit(
        node, "softmax", [operand], x.shape, x.order, kind, axis=x.order.index(axis), beta=1.0
    )
    return [reshaped(emitter, name, made, shape) if made.shape != shape else made]


@converts("LayerNormalization", inputs=(1, 3))
def _layer_norm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, gamma, beta = inputs
    if gamma is None and beta is not None:
        raise InputError("has a bias but no scale")
    return [_normalized(emitter, node, "layer_norm", x, [gamma, beta])]


@converts("RMSNormalization", "SimplifiedLayerNormalization", inputs=(1, 2))
def _rms_norm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [_normalized(emitter, node, "rms_norm", inputs[0], inputs[1:])]


def _normalized(
    emitter: OnnxGraphBuilder, node: FileNode, op: str, x: Value, given: list[Value | None]
) -> Value:
    """Add a normalization over an axis and all following dimensions."""
    original, x, shape = x, emitter.movable(emitter.flow(x)), x.shape
    if not shape:
        raise InputError("normalizes a single element")
    only = "only" in node.attributes
    axis = counted_from_front(node.int("only" if only else "axis", -1), x.rank)
    if only and axis != x.rank - 1 and any(value is not None for value in given):
        raise UnsupportedNodeError("a normalization over one dimension that is scaled along another")
    normalized_shape = shape[axis : axis + 1] if only else shape[axis:]
    inner = math.prod(normalized_shape)
    if axis != x.rank - 1 and not only:
        x = emitter.flow(reshaped(emitter, f"{x.name}:rows", x, (*shape[:axis], inner)))
        axis = x.rank - 1
    order = x.order if x.order[-1] == axis else (*(i for i in plain(x.rank) if i != axis), axis)
    if any(isinstance(value, DynamicValue) for value in given):
        return _scaled_norm(emitter, node, original, given, op)
    kind = emitter.arithmetic(node, x)
    operands = [emitter.operand(x, order, kind)]
    for value in given:
        if value is None:
            continue
        row = known(value, "a scale or bias")
        if broadcast([row.shape, normalized_shape]) != normalized_shape:
            raise InputError(
                f"its scale and bias must have shape {list(normalized_shape)}, not {list(row.shape)}"
            )
        if inner > max(row.data.size, _MAX_BROADCAST_ELEMENTS):
            raise UnsupportedNodeError(f"one scale or bias for {inner:,} elements")
        data = np.broadcast_to(row.real(), normalized_shape).reshape(inner)
        operands.append(emitter.constant(row.name, ConstantValue(row.name, data)))
    epsilon = node.float("epsilon", 1e-5)
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise UnsupportedNodeError(f"an epsilon of {epsilon}")
    made = emitter.emit(node, op, operands, x.shape, order, kind, axis=x.rank - 1, epsilon=epsilon)
    return reshaped(emitter, node.outputs[0], made, shape) if made.shape != shape else made


def _scaled_norm(
    emitter: OnnxGraphBuilder, node: FileNode, x: Value, given: list[Value | None], op: str
) -> Value:
    """Add a normalization whose scale or bias is computed at run time, as separate product and sum."""
    body = BodyBuilder(node, [x, *given])
    name = "LayerNormalization" if op == "layer_norm" else "SimplifiedLayerNormalization"
    made = body.add(name, body.given(0), axis=node.int("axis", -1), epsilon=node.float("epsilon", 1e-5))
    for index, each in ((1, "Mul"), (2, "Add")):
        made = body.add(each, made, body.given(index)) if body.given(index) else made
    (result,) = body.converted(emitter, made)
    assert result is not None
    return result


#: First operator set in which GroupNormalization has a scale per channel rather than per group.
_PER_CHANNEL_OPSET = 21


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
    if node.opset < _PER_CHANNEL_OPSET:
        each = x.shape[1] // groups
        given = [
            ConstantValue(v.name, np.repeat(v.real(), each))
            for v in (known(v, "a scale or bias") for v in given)
        ]
    return [_grouped(emitter, node, x, groups, given)]


def _grouped(
    emitter: OnnxGraphBuilder, node: FileNode, x: Value, groups: int, given: Sequence[Value]
) -> Value:
    """Add a normalization over groups of channels, followed by a scale and bias per channel."""
    shape, name = x.shape, node.outputs[0]
    if len(shape) < 3:
        raise InputError(f"shape {list(shape)} has no channels of more than one element")
    factor, shift = (known(v, "a scale or bias").real().reshape(-1) for v in given)
    if factor.size != shape[1] or shift.size != shape[1]:
        raise InputError(f"its scale and bias must have {shape[1]} elements each")
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
