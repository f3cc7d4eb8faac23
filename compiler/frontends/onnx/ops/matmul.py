"""Conversion of ONNX matrix products, normalizations and softmax."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.frontends.onnx.function_bodies import BodyBuilder
from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.conv import bias_of, block_dense, product_kind, weights_of
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
    if weights.blocks is not None and weights.blocks.axis == 1 and not floats:
        made = block_dense(emitter, node, x, plain(x.rank), weights.name, weights.blocks, bias, part)
        if made is not None:
            return made
    kind = FLOAT if floats else product_kind(emitter, node, x, weights, 0)
    weights = weights_of(weights, kind, 0)
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
        raise InputError(f"both operands must be matrices, not shapes {list(a.shape)} and {list(b.shape)}")
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
        raise InputError(f"the inner dimensions of shapes {list(x.shape)} and {list(y.shape)} must be equal")
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
        raise InputError(f"both operands must be matrices, not shapes {list(a.shape)} and {list(b.shape)}")
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
        raise InputError("its input scale must be given, because it has a bias")
    return [_normalized(emitter, node, "layer_norm", x, [gamma, beta])]


@converts("RMSNormalization", "SimplifiedLayerNormalization", inputs=(1, 2))
def _rms_norm(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [_normalized(emitter, node, "rms_norm", inputs[0], inputs[1:])]


def _normalized(
    emitter: OnnxGraphBuilder, node: FileNode, op: str, x: Value, given: list[Value | None]
) -> Value:
    """Add a normalization over an axis and all following dimensions, or over the axes of a recognized pattern."""
    if "only" in node.attributes:
        return _over_axes(emitter, node, op, x, [value for value in given if value is not None])
    original, x, shape = x, emitter.movable(emitter.flow(x)), x.shape
    if not shape:
        raise InputError("its input must have at least one dimension")
    axis = counted_from_front(node.int("axis", -1), x.rank)
    normalized_shape = shape[axis:]
    inner = math.prod(normalized_shape)
    if axis != x.rank - 1:
        x = emitter.flow(reshaped(emitter, f"{x.name}:rows", x, (*shape[:axis], inner)))
    if any(isinstance(value, DynamicValue) for value in given):
        return _scaled_norm(emitter, node, original, given, op)
    rows = []
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
        rows.append(ConstantValue(row.name, np.broadcast_to(row.real(), normalized_shape).reshape(inner)))
    made = _norm_along(emitter, node, op, x, x.rank - 1, rows)
    return reshaped(emitter, node.outputs[0], made, shape) if made.shape != shape else made


def _norm_along(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    op: str,
    x: DynamicValue,
    axis: int,
    rows: Sequence[ConstantValue],
) -> DynamicValue:
    """Add a normalization along one axis; its scale and bias have as many elements as the axis."""
    order = x.order if x.order[-1] == axis else (*(i for i in plain(x.rank) if i != axis), axis)
    kind = emitter.arithmetic(node, x)
    operands = [emitter.operand(x, order, kind), *(emitter.constant(row.name, row) for row in rows)]
    epsilon = node.float("epsilon", 1e-5)
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise UnsupportedNodeError(f"its epsilon must be finite and not negative, not {epsilon}")
    return emitter.emit(node, op, operands, x.shape, order, kind, axis=x.rank - 1, epsilon=epsilon)


def _over_axes(emitter: OnnxGraphBuilder, node: FileNode, op: str, x: Value, given: Sequence[Value]) -> Value:
    """Add the normalization of a recognized pattern (`patterns.py`) over the axes in its attribute `only`.

    The attribute `count` is the divisor of the sum of squares, and `mean_count` is the divisor of the sum; 0 stands
    for the number of elements.
    """
    x, shape = emitter.movable(emitter.flow(x)), x.shape
    axes = sorted({counted_from_front(axis, x.rank) for axis in node.ints("only") or ()})
    inner = math.prod(shape[axis] for axis in axes)
    mean_count, count = (node.float(key, 0.0) or inner for key in ("mean_count", "count"))
    if not axes or not inner or not count > 0:
        raise UnsupportedNodeError(
            f"a normalization over axes {axes} of {list(shape)} with divisor {count:g}"
        )
    if mean_count != inner:
        raise UnsupportedNodeError(f"a mean of {inner} elements as their sum divided by {mean_count:g}")
    # With s the sum of squares, 1 / sqrt(s / count + e) = sqrt(share) / sqrt(s / inner + e * share).
    share = count / inner
    rows = [np.full(1, math.sqrt(share), np.float32)] if share != 1 else []
    factors = [known(value, "a scale or bias") for value in given]
    fused = [_along(value, x.rank, axes) for value in factors]
    separate = any(row is None or inner > max(row.size, _MAX_BROADCAST_ELEMENTS) for row in fused)
    for number, row in enumerate(() if separate else fused):
        assert row is not None
        rows = [row * rows[0], *rows[1:]] if rows and not number else [*rows, row]
    name = node.outputs[0]
    attributes = {"epsilon": node.float("epsilon", 1e-5) * share}
    outputs = (f"{name}:normal",) if separate else node.outputs
    inner_name = f"{node.name}:normal" if separate else node.name
    inner_node = replace(node, name=inner_name, attributes=attributes, outputs=outputs)
    wanted = tuple(shape[axis] for axis in axes)
    made = _norm_over(emitter, inner_node, op, x, axes, [np.broadcast_to(row, wanted) for row in rows])
    for number, value in enumerate(factors if separate else ()):
        last = number == len(factors) - 1
        made = binary(
            emitter,
            node,
            "add" if number else "mul",
            [made, ConstantValue(f"{node.name}:{value.name}", value.real())],
            "" if last else "scaled",
            FLOAT,
        )
    return made


def _norm_over(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    op: str,
    x: DynamicValue,
    axes: Sequence[int],
    rows: Sequence[np.ndarray],
) -> Value:
    """Add a normalization over axes; each of `rows` has the sizes of these axes."""
    shape, name = x.shape, node.outputs[0]
    constants = [
        ConstantValue(f"{name}:{part}", row.astype(np.float32).reshape(-1))
        for part, row in zip(("gamma", "beta"), rows, strict=False)
    ]
    if len(axes) == 1:
        return _norm_along(emitter, node, op, x, axes[0], constants)
    kept = [axis for axis in range(x.rank) if axis not in axes]
    perm = (*kept, *axes)
    value: Value = x
    if perm != plain(x.rank):
        value = _transposed(emitter, node, f"{name}:last", x, perm)
    sizes = (*(shape[axis] for axis in kept), math.prod(shape[axis] for axis in axes))
    flat = emitter.flow(reshaped(emitter, f"{name}:rows", value, sizes))
    made: Value = _norm_along(
        emitter, replace(node, outputs=(f"{name}:flat",)), op, flat, len(kept), constants
    )
    if perm == plain(x.rank):
        return reshaped(emitter, name, made, shape)
    shaped = reshaped(emitter, f"{name}:shaped", made, tuple(shape[axis] for axis in perm))
    back = tuple(perm.index(axis) for axis in range(x.rank))
    return _transposed(emitter, node, name, shaped, back)


def _transposed(
    emitter: OnnxGraphBuilder, node: FileNode, name: str, x: Value, perm: tuple[int, ...]
) -> Value:
    """Add a transposition as a part of another node."""
    attributes = {"perm": perm}
    inner = replace(
        node, name=f"{name}:moved", op="Transpose", outputs=(name,), attributes=attributes, source=None
    )
    (made,) = CONVERSIONS["Transpose"](emitter, inner, [x])
    return made


def _along(value: ConstantValue, rank: int, axes: Sequence[int]) -> np.ndarray | None:
    """Return a constant operand with the dimensions of some axes; None if it varies along others."""
    shape = (*(1,) * (rank - len(value.shape)), *value.shape)
    if len(shape) > rank or any(size != 1 for axis, size in enumerate(shape) if axis not in axes):
        return None
    return value.real().reshape([shape[axis] for axis in axes])


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
