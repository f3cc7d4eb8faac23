"""Conversion of elementwise ONNX operators: arithmetic, functions, clips, minima and maxima, and comparisons."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from compiler.frontends.onnx.function_bodies import BodyBuilder
from compiler.frontends.onnx.graph_builder import OnnxGraphBuilder
from compiler.frontends.onnx.host import function
from compiler.frontends.onnx.node import FileNode
from compiler.frontends.onnx.ops.indexing import broadcast_to
from compiler.frontends.onnx.ops.quantize import quantized
from compiler.frontends.onnx.ops.shape import renamed, with_ones
from compiler.frontends.onnx.registry import choice, converts, known
from compiler.frontends.onnx.values import (
    FLOAT,
    ConstantValue,
    DynamicValue,
    Order,
    UnsupportedNodeError,
    Value,
    ValueType,
    arranged,
    broadcast,
    channels_last,
    plain,
)
from compiler.ir.ops import OPS
from compiler.ir.tensor import Tensor
from compiler.layers.elementwise import broadcast_of, one_row, pair_broadcast
from compiler.layers.lowering_context import EIGHT_BITS
from hw.errors import InputError

#: Maximum number of elements of a result whose operands are repeated by the accelerator, or as constants.
_MAX_REPEATED, _MAX_REPEATED_CONSTANT = 1 << 24, 1 << 22
_FUNCTIONS = (
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Celu",
    "Cos",
    "Cosh",
    "Erf",
    "Floor",
    "Log",
    "Reciprocal",
    "Round",
    "Selu",
    "Shrink",
    "Sign",
    "Sin",
    "Sinh",
    "Softsign",
    "Sqrt",
    "Tan",
    "ThresholdedRelu",
)


@converts(*_FUNCTIONS, inputs=(1, 1))
def _function(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [function(emitter, node, inputs[0])]


_UNARY = {
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "HardSwish": "hard_swish",
    "Exp": "exp",
    "Silu": "silu",
    "Softplus": "softplus",
    "Mish": "mish",
}


def order_of(operands: Sequence[Value], rank: int) -> Order:
    """Return the order of dimensions in which most elements of the operands are stored."""
    elements: dict[Order, int] = {}
    for value in operands:
        if isinstance(value, DynamicValue) and value.rank == rank:
            elements[value.order] = elements.get(value.order, 0) + value.tensor.elements
    return max(elements, key=lambda o: (elements[o], o != plain(rank))) if elements else plain(rank)


def binary(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    op: str,
    operands: Sequence[Value],
    part: str = "",
    kind: ValueType | None = None,
) -> DynamicValue:
    """Add a node whose two operands are broadcast to a common shape."""
    shape = broadcast([v.shape for v in operands])
    rank = len(shape)
    if not any(isinstance(v, DynamicValue) for v in operands):
        operands = [emitter.flow(operands[0]), *operands[1:]]
    order = order_of(operands, rank)
    if order == plain(rank) and not _is_outer([v.shape for v in operands], shape):
        order = _vector_last([v.shape for v in operands], shape)
    equal = [_one_scale(emitter, v) for v in operands]
    kind = kind or emitter.arithmetic(node, *equal)
    if kind == FLOAT or kind.real:
        equal = _repeated(emitter, node, op, equal, shape, order)
    if order != plain(rank):
        equal = [with_ones(emitter, v.name, v, set(range(rank - len(v.shape)))) for v in equal]
    tensors = [
        emitter.operand(v, order if order != plain(rank) else plain(len(v.shape)), kind) for v in equal
    ]
    return emitter.emit(node, op, tensors, shape, order, kind, part)


def _repeated(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    op: str,
    operands: Sequence[Value],
    shape: tuple[int, ...],
    order: Order,
) -> list[Value]:
    """Return the operands, repeated to the full shape where the accelerator does not support their broadcast."""
    full, rank, elements = arranged(shape, order), len(shape), math.prod(shape)
    result = list(operands)

    def fits(value: Value) -> bool:
        if isinstance(value, ConstantValue) and value.data.size == 1:
            return True
        own = (1,) * (rank - len(value.shape)) + value.shape
        return broadcast_of(arranged(own, order), full) is not None

    both = order == plain(rank) and all(isinstance(value, DynamicValue) for value in operands)
    if both and _is_outer([value.shape for value in operands], shape):
        return result
    whole = [value.shape == shape and isinstance(value, DynamicValue) for value in operands]
    fitting = [fits(value) for value in operands]
    dynamic = [i for i, value in enumerate(operands) if isinstance(value, DynamicValue) and value.rank]
    if (all(fitting) and any(whole)) or not dynamic or elements > _MAX_REPEATED:
        return result
    largest = max(dynamic, key=lambda i: math.prod(operands[i].shape))
    repeated = [
        i for i, value in enumerate(operands) if value.shape != shape and (i == largest or not fitting[i])
    ]
    if elements > _MAX_REPEATED_CONSTANT and any(isinstance(operands[i], ConstantValue) for i in repeated):
        return result
    for i in repeated:
        ones = set(range(rank - len(operands[i].shape)))
        ranked = with_ones(emitter, operands[i].name, operands[i], ones)
        result[i] = broadcast_to(emitter, node, ranked, shape, f"repeated{i}")
    return result


def _is_outer(shapes: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> bool:
    """Return True if the accelerator repeats both operands in the file's order, and neither has the result's shape."""
    if len(shapes) != 2 or result in shapes:
        return False
    first, second = shapes
    return any(pair_broadcast(*pair, result) is not None for pair in ((first, second), (second, first)))


def _vector_last(shapes: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> Order:
    """Return the order with a broadcast vector's dimension last, as the hardware needs, or else the file's order."""
    rank = len(result)
    for shape in shapes:
        extended = [i for i, size in enumerate(shape, rank - len(shape)) if size > 1]
        if rank > 2 and len(extended) == 1 and extended[0] < rank - 1:
            axis = extended[0]
            if math.prod(result) > result[axis]:
                return (*(i for i in range(rank) if i != axis), axis)
    return plain(rank)


def _one_scale(emitter: OnnxGraphBuilder, value: Value) -> Value:
    """Return a value with at most one scale, dequantized if it has several."""
    if isinstance(value, ConstantValue) and value.quantization is not None and not value.quantization.whole:
        return ConstantValue(value.name, value.real())
    return emitter.movable(value) if isinstance(value, DynamicValue) and value.real else value


@converts("Add", "Sub", "Mul", inputs=(2, 2))
def _binary(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [binary(emitter, node, node.op.lower(), inputs)]


@converts("Sum", inputs=(1, None))
def _sum(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    total, kind = inputs[0], FLOAT if len(inputs) > 2 else None
    for i, value in enumerate(inputs[1:]):
        total = binary(emitter, node, "add", [total, value], f"{i}" if i < len(inputs) - 2 else "", kind)
    return [renamed(total, node.outputs[0])]


@converts("Mean", inputs=(1, None))
def _mean(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    reciprocal = ConstantValue(f"{node.name}:part", np.array(1 / len(inputs), np.float32))
    total = inputs[0]
    for i, value in enumerate(inputs[1:]):
        total = binary(emitter, node, "add", [total, value], f"{i}", FLOAT)
    return [binary(emitter, node, "mul", [total, reciprocal])]


@converts("Div", inputs=(2, 2))
def _divide(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    x, divisor = inputs
    if isinstance(divisor, DynamicValue):
        return _quotient(emitter, node, inputs)
    numbers = known(divisor, "a divisor")
    if isinstance(x, DynamicValue) and emitter.arithmetic(node, x) != FLOAT and not x.real:
        raise UnsupportedNodeError("integers are divided on the host only")
    reciprocal = ConstantValue(f"{numbers.name}:reciprocal", np.float32(1.0) / numbers.real())
    return [binary(emitter, node, "mul", [x, reciprocal])]


def _quotient(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value]) -> Sequence[Value | None]:
    """Convert a division by a value of a float model to a product with its reciprocal."""
    for value in inputs:
        if isinstance(value, DynamicValue) and (value.real or value.tensor.dtype != "float32"):
            raise UnsupportedNodeError("the divisor of quantized values must be constant")
    body = BodyBuilder(node, inputs)
    product = body.add("Mul", body.given(0), body.add("Reciprocal", body.given(1)))
    return body.converted(emitter, product)


@converts("Neg", inputs=(1, 1))
def _negative(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [
        binary(
            emitter, node, "mul", [inputs[0], ConstantValue(f"{node.name}:minus", np.array(-1, np.float32))]
        )
    ]


@converts("Pow", inputs=(2, 2))
def _power(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, exponent = inputs
    exponent = known(exponent, "an exponent")
    number = exponent.scalar()
    if number == 2:
        return [binary(emitter, node, "mul", [x, x])]
    if number == 3:
        return [
            binary(
                emitter, node, "mul", [binary(emitter, node, "mul", [x, x], "square", FLOAT), x], "", FLOAT
            )
        ]
    if number is None:
        raise UnsupportedNodeError("its exponent must be one constant")
    return [function(emitter, node, x, ConstantValue(exponent.name, np.array(number, np.float32)))]


def unary(emitter: OnnxGraphBuilder, node: FileNode, op: str, x: Value, **attributes: Any) -> DynamicValue:
    """Add a node with one operand."""
    x = emitter.flow(x)
    kind = emitter.arithmetic(node, x)
    return emitter.emit(node, op, [emitter.operand(x, x.order, kind)], x.shape, x.order, kind, **attributes)


@converts(*_UNARY, inputs=(1, 1))
def _unary(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [unary(emitter, node, _UNARY[node.op], inputs[0])]


@converts("Swish", inputs=(1, 1))
def _swish(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    if node.float("alpha", 1.0) != 1.0:
        raise UnsupportedNodeError(f"a steepness of {node.float('alpha', 1.0)}")
    return [unary(emitter, node, "silu", inputs[0])]


@converts("FastGelu", inputs=(1, 2))
def _fast_gelu(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    """Convert the tanh approximation of GELU, with an optional bias that is added to x first."""
    x, bias = inputs
    if bias is not None:
        x = binary(emitter, node, "add", [x, bias], "biased", FLOAT)
    return [unary(emitter, node, "gelu", x, tanh=True)]


@converts("Gelu", inputs=(1, 1))
def _gelu(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    tanh = choice(node, "approximate", "none", "none", "tanh") == "tanh"
    return [unary(emitter, node, "gelu", inputs[0], tanh=tanh)]


@converts("LeakyRelu", inputs=(1, 1))
def _leaky_relu(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [unary(emitter, node, "leaky_relu", inputs[0], alpha=finite(node.float("alpha", 0.01)))]


@converts("Elu", inputs=(1, 1))
def _elu(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [unary(emitter, node, "elu", inputs[0], alpha=finite(node.float("alpha", 1.0)))]


def finite(number: float) -> float:
    """Return the number; raise InputError if it is not finite."""
    if not math.isfinite(number):
        raise InputError(f"a constant or attribute must be finite, not {number}")
    return number


@converts("PRelu", inputs=(2, 2))
def _prelu(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    """Convert PReLU with a scalar slope (a leaky ReLU), a slope per channel, or slopes that broadcast to x."""
    x, slope = emitter.flow(inputs[0]), _slope(emitter.flow(inputs[0]), known(inputs[1], "a slope"))
    shape = broadcast([x.shape, slope.shape])
    if shape != x.shape:
        raise InputError(f"slopes of shape {list(slope.shape)} must broadcast to input shape {list(x.shape)}")
    number = slope.scalar()
    if number is not None:
        return [unary(emitter, node, "leaky_relu", x, alpha=finite(number))]
    slope = slope.reshaped((1,) * (x.rank - len(slope.shape)) + slope.shape)
    if slope.quantization is not None and not slope.quantization.whole:
        slope = ConstantValue(slope.name, slope.real())
    along = [i for i, size in enumerate(slope.shape) if size > 1]
    order = channels_last(x.rank) if along == [1] else plain(x.rank) if len(along) == 1 else x.order
    kind = emitter.arithmetic(node, x, slope)
    flat = slope.transposed(order)
    if len(along) == 1 and order[-1] == along[0]:
        flat = flat.reshaped((slope.data.size,))
    operands = [emitter.operand(x, order, kind), emitter.operand(flat, plain(len(flat.shape)), kind)]
    return [emitter.emit(node, "prelu", operands, shape, order, kind)]


def _slope(x: DynamicValue, slope: ConstantValue) -> ConstantValue:
    """Return the slope; a vector with one slope per channel, as in old exports, is reshaped to broadcast to x."""
    channels = x.shape[1] if x.rank > 1 else 0
    if slope.shape != (channels,) or channels in (1, x.shape[-1]):
        return slope
    return slope.reshaped((channels, *(1,) * (x.rank - 2)))


@converts("HardSigmoid", inputs=(1, 1))
def _hard_sigmoid(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    """Convert HardSigmoid: alpha * x + beta, clipped to 0..1."""
    alpha, beta = node.float("alpha", 0.2), node.float("beta", 0.5)
    numbers = [
        ConstantValue(f"{node.name}:{part}", np.array(finite(number), np.float32))
        for part, number in (("alpha", alpha), ("beta", beta))
    ]
    scaled = binary(emitter, node, "mul", [inputs[0], numbers[0]], "scaled", FLOAT)
    moved = binary(emitter, node, "add", [scaled, numbers[1]], "moved", FLOAT)
    return [emitter.emit(node, "clip", [moved.tensor], moved.shape, moved.order, FLOAT, low=0.0, high=1.0)]


def clipped(emitter: OnnxGraphBuilder, node: FileNode, x: Value, low: float, high: float) -> DynamicValue:
    """Add a node that clips a value to low..high."""
    x = emitter.flow(x)
    kind = emitter.arithmetic(node, x)
    if kind == FLOAT and x.quantized and low in (0.0, -math.inf) and high == math.inf:
        kind = x.kind  # zero is exactly representable
    operand = emitter.operand(x, x.order, kind)
    return emitter.emit(node, "clip", [operand], x.shape, x.order, kind, low=low, high=high)


@converts("Relu", inputs=(1, 1))
def _relu(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [clipped(emitter, node, inputs[0], 0.0, math.inf)]


@converts("Clip", inputs=(1, 3))
def _clip(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x, *limits = inputs
    low, high = (
        node.float(key, default) if value is None else known(value, "a limit").scalar()
        for key, default, value in zip(("min", "max"), (-math.inf, math.inf), limits, strict=True)
    )
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        raise InputError(f"limits must be two numbers, not {low} and {high}")
    return [clipped(emitter, node, x, low, high)]


@converts("Min", "Max", inputs=(1, None))
def _extreme(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    """Convert to a clip if all operands but one are scalar constants, or else to a reduction over stacked operands."""
    if len(inputs) == 1:
        return [renamed(inputs[0], node.outputs[0])]
    x, *limits = sorted(inputs, key=lambda value: isinstance(value, ConstantValue))
    numbers = [value.scalar() for value in limits if isinstance(value, ConstantValue)]
    clips = [number for number in numbers if number is not None and not math.isnan(number)]
    if (
        isinstance(x, DynamicValue)
        and len(clips) == len(limits)
        and broadcast([v.shape for v in inputs]) == x.shape
    ):
        low, high = (-math.inf, min(clips)) if node.op == "Min" else (max(clips), math.inf)
        return [clipped(emitter, node, x, low, high)]
    return [_reduced_stack(emitter, node, inputs)]


def _reduced_stack(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value]) -> DynamicValue:
    """Stack broadcast operands along a new dimension, and return their minimum or maximum over this dimension."""
    shape = broadcast([value.shape for value in inputs])
    if not shape:
        raise UnsupportedNodeError("its input must have at least one dimension")
    inputs = [emitter.movable(value) if isinstance(value, DynamicValue) else value for value in inputs]
    kind = emitter.arithmetic(node, *[value for value in inputs if isinstance(value, DynamicValue)])
    order, rows = order_of(inputs, len(shape)), list[Tensor]()
    ranked_values = list[Value]()
    for value in inputs:
        ones = set(range(len(shape) - len(value.shape)))
        ranked_values.append(with_ones(emitter, value.name, _in_kind(emitter, value, kind), ones))
    if kind.dtype in EIGHT_BITS:
        return _extremes(emitter, node, ranked_values, shape, order, kind)
    for number, ranked in enumerate(ranked_values):
        tensor = emitter.operand(broadcast_to(emitter, node, ranked, shape, f"operand{number}"), order, kind)
        rows.append(emitter.reshape(tensor, (1, *tensor.shape)))
    joined = emitter.emit(
        node, "concat", rows, (len(rows), *shape), (0, *(i + 1 for i in order)), kind, "both", axis=0
    )
    op = "reduce_max" if node.op == "Max" else "reduce_min"
    return emitter.emit(node, op, [joined.tensor], shape, order, kind, axes=(0,), keep=False)


def _extremes(
    emitter: OnnxGraphBuilder,
    node: FileNode,
    values: list[Value],
    shape: tuple[int, ...],
    order: Order,
    kind: ValueType,
) -> DynamicValue:
    """Return the minimum or maximum of 8-bit operands of equal rank, of two at a time.

    The first operand has the shape of the result; others are repeated unless they are one row of channels.
    """
    values = sorted(values, key=lambda value: (isinstance(value, ConstantValue), value.shape != shape))
    rows, full = list[Tensor](), arranged(shape, order)
    for number, value in enumerate(values):
        how = broadcast_of(arranged(value.shape, order), full)
        if number == 0 or how is None or not one_row(how):
            value = broadcast_to(emitter, node, value, shape, f"operand{number}")
        rows.append(emitter.operand(value, order, kind))
    op = "maximum" if node.op == "Max" else "minimum"
    first, *others, last = rows
    for number, other in enumerate(others, 2):
        first = emitter.emit(node, op, [first, other], shape, order, kind, f"first{number}").tensor
    return emitter.emit(node, op, [first, last], shape, order, kind)


def _in_kind(emitter: OnnxGraphBuilder, value: Value, kind: ValueType) -> Value:
    """Return an operand of Min or Max, which commute with rounding, converted to the output's type."""
    if kind == FLOAT or kind.quantization is None or not kind.real:
        return value
    if isinstance(value, DynamicValue):
        if value.kind == kind:
            return value
        return DynamicValue(
            value.name, emitter.convert("requantize", value.tensor, kind), value.order, value.real
        )
    numbers = value.real()
    if np.isnan(numbers).any():
        raise UnsupportedNodeError("a limit must be a number, not NaN")
    largest = np.finfo(np.float32).max
    stored = quantized(np.clip(numbers, -largest, largest), kind.quantization, kind.dtype)
    return ConstantValue(value.name, stored, kind.quantization)


_BOOL = ValueType("bool")
#: Operator of the graph, and True if the operands are swapped, for each ONNX operator.
_COMPARISONS = {
    "Equal": ("equal", False),
    "Less": ("less", False),
    "LessOrEqual": ("less_equal", False),
    "Greater": ("less", True),
    "GreaterOrEqual": ("less_equal", True),
}


@converts(*_COMPARISONS, inputs=(2, 2))
def _compare(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    op, swapped = _COMPARISONS[node.op]
    kinds = [_numbers(value) for value in inputs]
    if len({kind.dtype if kind is not FLOAT else "" for kind in kinds}) != 1:
        raise UnsupportedNodeError("the compared numbers must be of one type")
    return [_pointwise(emitter, node, op, inputs[::-1] if swapped else inputs, kinds[0])]


def _numbers(value: Value) -> ValueType:
    """Return the type that a value has in the file."""
    if isinstance(value, ConstantValue):
        name = value.numbers().dtype.name
        return FLOAT if name == "float32" else ValueType(name)
    return FLOAT if value.real or value.tensor.dtype == "float32" else ValueType(value.tensor.dtype)


def _pointwise(
    emitter: OnnxGraphBuilder, node: FileNode, op: str, inputs: list[Value], kind: ValueType, part: str = ""
) -> DynamicValue:
    shape = broadcast([value.shape for value in inputs])
    rank = len(shape)
    order = order_of(inputs, rank)
    equal = [with_ones(emitter, v.name, v, set(range(rank - len(v.shape)))) for v in inputs]
    operands = [
        emitter.operand(v, order, kind)
        if isinstance(v, ConstantValue) or kind == FLOAT
        else emitter.in_order(v, order).tensor
        for v in equal
    ]
    return emitter.emit(node, op, operands, shape, order, _BOOL, part)


@converts("And", "Or", inputs=(2, 2))
def _both(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    return [_pointwise(emitter, node, f"logical_{node.op.lower()}", inputs, _BOOL)]


@converts("Xor", inputs=(2, 2))
def _differ(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    same = _pointwise(emitter, node, "equal", inputs, _BOOL, "same")
    return [emitter.emit(node, "logical_not", [same.tensor], same.shape, same.order, _BOOL)]


@converts("Not", inputs=(1, 1))
def _not(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value]:
    x = emitter.flow(inputs[0])
    operand = emitter.in_order(x, plain(x.rank)).tensor
    return [emitter.emit(node, "logical_not", [operand], x.shape, plain(x.rank), _BOOL)]


@converts("Where", inputs=(3, 3))
def _where(emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Any]) -> Sequence[Value | None]:
    """Convert Where between 8-bit values to a selection, and between values of a float model to a * c + b * (1 - c).

    In the latter form, c is 1 or 0. If a or b is a constant, the host computes its term with Where, so that a scalar
    may be infinite.
    """
    _, a, b = inputs
    dynamic = [value for value in (a, b) if isinstance(value, DynamicValue)]
    if dynamic and all(value.real and value.tensor.dtype in EIGHT_BITS for value in dynamic):
        kind = emitter.arithmetic(node, a, b)
        if kind.dtype in EIGHT_BITS:
            return [_selected(emitter, node, inputs, kind)]
    if not dynamic or any(value.real or value.tensor.dtype != "float32" for value in dynamic):
        raise UnsupportedNodeError(
            "the values to choose from must be real, not quantized, and not both constant"
        )
    if any(_may_be_infinite(emitter, value.tensor) for value in dynamic):
        raise UnsupportedNodeError("a value to choose from may be infinite")  # 0 * inf is not 0
    body = BodyBuilder(node, inputs)
    terms = [_chosen(body, index, value, node) for index, value in ((1, a), (2, b))]
    present = [term for term in terms if term]
    total = body.add("Add", *present) if len(present) == 2 else present[0]
    shape = broadcast([value.shape for value in inputs])
    if len(present) == 1:
        total = body.add("Expand", total, body.constant(shape, np.int64))
    return body.converted(emitter, total)


def _selected(
    emitter: OnnxGraphBuilder, node: FileNode, inputs: list[Value], kind: ValueType
) -> DynamicValue:
    """Add a selection between values that are first converted to the output's quantization."""
    shape = broadcast([value.shape for value in inputs])
    order = order_of(inputs, len(shape))
    condition, *values = (
        with_ones(emitter, value.name, value, set(range(len(shape) - len(value.shape)))) for value in inputs
    )
    operands = [emitter.operand(condition, order, _BOOL)]
    operands += [emitter.operand(_in_kind(emitter, value, kind), order, kind) for value in values]
    return emitter.emit(node, "where", operands, shape, order, kind)


#: Functions with poles, undefined arguments or overflow: operators of the graph, and operators of ONNX.
_INFINITE_OPS = frozenset(("exp", "log", "sqrt", "rsqrt", "onnx"))
_INFINITE_FUNCTIONS = frozenset(
    ("Acos", "Acosh", "Asin", "Atanh", "Cosh", "Log", "Pow", "Reciprocal", "Sinh", "Sqrt", "Tan")
)


def _may_be_infinite(emitter: OnnxGraphBuilder, tensor: Tensor) -> bool:
    """Return True if elements of a tensor may be infinite or NaN, such as elements that Where does not select."""
    graph, waiting, seen = emitter.build.graph, [tensor.name], set[str]()
    while waiting:
        name = waiting.pop()
        node = graph.producer(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if node.op in _INFINITE_OPS or node.attributes.get("operator") in _INFINITE_FUNCTIONS or node.bodies:
            return True
        if OPS[node.op].elementwise or OPS[node.op].moves or node.op == "function":
            waiting.extend(node.inputs)
    return False


def _chosen(body: BodyBuilder, index: int, value: Value, node: FileNode) -> str:
    """Return the term of Where that equals `value` where it is selected and 0 elsewhere; "" if it is always 0."""
    flag = body.given(0)
    if isinstance(value, ConstantValue):
        if not np.isfinite(value.real()).all() and value.data.size > 1:
            raise UnsupportedNodeError("a constant to choose is infinite")
        number = value.scalar()
        if number == 0:
            return ""
        zero = body.constant(0.0)
        return body.add(
            "Where", flag, *((body.given(index), zero) if index == 1 else (zero, body.given(index)))
        )
    chosen = flag if index == 1 else body.add("Not", flag)
    return body.add("Mul", body.given(index), body.add("Cast", chosen, to=TensorProto.FLOAT))
