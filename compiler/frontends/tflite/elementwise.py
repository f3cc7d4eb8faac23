"""Conversion of elementwise TFLite operators: arithmetic, unary functions, quantization, minima and maxima."""

import base64
import math

import numpy as np
import tflite
from onnx import TensorProto, helper

from compiler.frontends.tflite.fallback import on_host
from compiler.frontends.tflite.registry import TfliteConversion, converts
from compiler.ir.tensor import Tensor, same_values
from compiler.layers.elementwise import broadcast_of, one_row
from compiler.layers.lowering_context import EIGHT_BITS

_BINARY = {"ADD": tflite.AddOptions, "SUB": tflite.SubOptions, "MUL": tflite.MulOptions}
#: Unary operators of the graph with their attributes, by TFLite operator.
_UNARY = {
    "LOGISTIC": ("sigmoid", {}),
    "TANH": ("tanh", {}),
    "HARD_SWISH": ("hard_swish", {}),
    "EXP": ("exp", {}),
    "ELU": ("elu", {"alpha": 1.0}),
    "LOG": ("log", {}),
    "ABS": ("abs", {}),
    "SQRT": ("sqrt", {}),
    "RSQRT": ("rsqrt", {}),
    "RELU": ("clip", {"low": 0.0, "high": math.inf}),
    "RELU6": ("clip", {"low": 0.0, "high": 6.0}),
    "RELU_N1_TO_1": ("clip", {"low": -1.0, "high": 1.0}),
    "RELU_0_TO_1": ("clip", {"low": 0.0, "high": 1.0}),
}


def broadcast(c: TfliteConversion, *operands: Tensor) -> tuple[int, ...]:
    """Return the broadcast shape of operands, or raise InputError if the output has another shape."""
    try:
        shape = np.broadcast_shapes(*(tensor.shape for tensor in operands))
    except ValueError:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in operands)
        raise c.error(f"shapes {shapes} cannot be broadcast") from None
    c.expect(shape)
    return shape


@converts(*_BINARY)
def _binary(c: TfliteConversion) -> None:
    activation = 0
    if c.operator.options is not None:
        options = c.options(_BINARY[c.kind])
        activation = options.FusedActivationFunction()
        if c.kind != "MUL" and options.PotScaleInt16():
            _check_shifts(c)
    operands = c.given(2)[:2]
    broadcast(c, *operands)
    c.make_activated(c.kind.lower(), operands, activation)


def _check_shifts(c: TfliteConversion) -> None:
    """Raise InputError for a sum of int16 that LiteRT computes with shifts, which round differently.

    LiteRT does so if the option `pot_scale_int16` is set and all scales are powers of two.
    """
    tensors = [*c.given(2)[:2], c.output]
    scales = {t.quantization.scale[0] for t in tensors if t.dtype == "int16" and t.quantization is not None}
    if len(scales) > 1 and all(math.frexp(scale)[0] == 0.5 for scale in scales):
        raise c.error(
            "its option pot_scale_int16 selects a kernel of LiteRT for scales that are powers of two, which is "
            "supported for equal scales only; clear the option"
        )


@converts("DIV")
def _divide(c: TfliteConversion) -> None:
    """Multiply by the reciprocal of a constant float32 divisor without zeros; divide by others on the host."""
    x, divisor = c.given(2)[:2]
    broadcast(c, x, divisor)
    activation = 0 if c.operator.options is None else c.options(tflite.DivOptions).FusedActivationFunction()
    if divisor.data is None or divisor.dtype != "float32" or not divisor.data.all():
        if activation:
            raise c.error("an activation after a division is supported for constant float32 divisors only")
        on_host(c, "Div", [x, divisor])
        return
    reciprocal = c.build.constant(f"{divisor.name}:reciprocal", np.float32(1) / divisor.data)
    c.make_activated("mul", [x, reciprocal], activation)


@converts("FLOOR_DIV")
def _floor_divide(c: TfliteConversion) -> None:
    a, b = c.given(2)[:2]
    broadcast(c, a, b)
    if not a.dtype == b.dtype == c.output.dtype:
        raise c.error(
            f"operands and result must be of one type, not {a.dtype}, {b.dtype} and {c.output.dtype}"
        )
    c.make("floor_div", [a, b])


@converts("NEG")
def _negative(c: TfliteConversion) -> None:
    x = c.given(1)[0]
    c.expect(x.shape)
    dtype, q = np.dtype(x.dtype), x.quantization
    if q is not None and (any(q.zero_point) or not same_values(q, c.output.quantization)):
        raise c.error(
            "LiteRT negates the stored integers, which is the negative number only if operand and result have the "
            "same scale and no zero points"
        )
    c.make("mul", [x, c.build.constant(f"{c.operator.name}:minus", np.array(-1, dtype))])


@converts("SQUARE")
def _square(c: TfliteConversion) -> None:
    x = c.given(1)[0]
    c.expect(x.shape)
    c.make("mul", [x, x])


@converts("ADD_N")
def _add_all(c: TfliteConversion) -> None:
    """Convert a sum of any number of operands to a chain of additions."""
    total, *others = c.given(2)
    for tensor in others:
        if tensor.shape != total.shape or tensor.quantization is not None:
            raise c.error("summands must have one shape and must not be quantized")
    for i, tensor in enumerate(others[:-1]):
        total = c.step(f"sum{i}", "add", [total, tensor], total.shape)
    broadcast(c, total, others[-1])
    c.make("add", [total, others[-1]])


@converts("SQUARED_DIFFERENCE")
def _squared_difference(c: TfliteConversion) -> None:
    a, b = c.given(2)[:2]
    if a.quantization is not None:
        raise c.error("is supported for float32 only")
    difference = c.step("difference", "sub", [a, b], broadcast(c, a, b))
    c.make("mul", [difference, difference])


@converts(*_UNARY)
def _unary(c: TfliteConversion) -> None:
    op, attributes = _UNARY[c.kind]
    x = c.given(1)[0]
    c.expect(x.shape)
    c.make(op, [x], **attributes)


@converts("GELU")
def _gelu(c: TfliteConversion) -> None:
    x = c.given(1)[0]
    c.expect(x.shape)
    tanh = c.operator.options is not None and bool(c.options(tflite.GeluOptions).Approximate())
    c.make("gelu", [x], tanh=tanh)


@converts("LEAKY_RELU")
def _leaky_relu(c: TfliteConversion) -> None:
    x, alpha = c.given(1)[0], float(c.options(tflite.LeakyReluOptions).Alpha())
    c.expect(x.shape)
    if not math.isfinite(alpha):
        raise c.error(f"alpha must be finite, not {alpha}")
    c.make("leaky_relu", [x], alpha=alpha)


@converts("PRELU")
def _prelu(c: TfliteConversion) -> None:
    x, slope = c.given(2)[:2]
    if broadcast(c, x, slope) != x.shape:
        raise c.error(f"slopes {list(slope.shape)} do not fit x {list(x.shape)}")
    c.make("prelu", [x, slope])


@converts("QUANTIZE")
def _quantize(c: TfliteConversion) -> None:
    x = c.given(1)[0]
    c.expect(x.shape)
    if c.output.quantization is None:
        raise c.error(f"{c.output.name!r} has no scale to quantize to")
    c.make("quantize" if x.quantization is None else "requantize", [x])


@converts("DEQUANTIZE")
def _dequantize(c: TfliteConversion) -> None:
    x = c.given(1)[0]
    c.expect(x.shape)
    c.make("dequantize", [x])


#: ONNX names of unary functions.
_FUNCTIONS = {
    "SIN": "Sin",
    "COS": "Cos",
    "FLOOR": "Floor",
    "CEIL": "Ceil",
    "ROUND": "Round",
    "SIGN": "Sign",
}
#: ONNX operator set of the functions.
_OPSET = 18


@converts(*_FUNCTIONS)
def _function(c: TfliteConversion) -> None:
    x = c.given(1)[0]
    c.expect(x.shape)
    if x.dtype != "float32":
        raise c.error(f"is supported for float32 only, not {x.dtype}")
    c.make("function", [x], operator=_FUNCTIONS[c.kind], model=_model(_FUNCTIONS[c.kind]))


@converts("POW")
def _power(c: TfliteConversion) -> None:
    """Convert to a product or a unary function for one constant exponent of float32 x, otherwise to Pow on the host."""
    x, exponent = c.given(2)[:2]
    if x.dtype != "float32" or exponent.data is None or exponent.elements != 1:
        on_host(c, "Pow", [x, exponent])
        return
    c.expect(x.shape)
    number = float(exponent.data.reshape(-1)[0])
    if number == 2:
        c.make("mul", [x, x])
        return
    c.make("function", [x], operator="Pow", model=_model("Pow", number))


def _model(op: str, *constants: float) -> str:
    """Return an ONNX model of one node, serialized and encoded as Base64."""
    names = [f"input{i}" for i in range(1 + len(constants))]
    given = helper.make_tensor_value_info("input0", TensorProto.FLOAT, [None])
    fixed = [
        helper.make_tensor(name, TensorProto.FLOAT, [], np.array([value], np.float32))
        for name, value in zip(names[1:], constants, strict=True)
    ]
    output = helper.make_tensor_value_info("output0", TensorProto.FLOAT, [None])
    graph = helper.make_graph([helper.make_node(op, names, ["output0"])], "node", [given], [output], fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
    return base64.b64encode(model.SerializeToString(deterministic=True)).decode()


#: Limit on the elements of a broadcast constant.
_MAX_ELEMENTS = 1 << 26


@converts("MAXIMUM", "MINIMUM", stored=True)
def _extreme(c: TfliteConversion) -> None:
    a, b = c.given(2)[:2]
    shape, greatest = broadcast(c, a, b), c.kind == "MAXIMUM"
    if a.constant and not b.constant:
        a, b = b, a
    limit = _scalar(b)
    if limit is not None and a.shape == shape:
        low, high = (limit, math.inf) if greatest else (-math.inf, limit)
        c.make("clip", [a], low=low, high=high)
        return
    if a.shape != shape:
        a, b = b, a
    types = {(each.dtype, each.quantization) for each in (a, b, c.output)}
    how = broadcast_of(b.shape, shape)
    if len(types) == 1 and a.dtype in EIGHT_BITS and a.shape == shape and how is not None and one_row(how):
        c.make("maximum" if greatest else "minimum", [a, b])
        return
    rows = [_rows(c, f"operand{i}", tensor, shape) for i, tensor in enumerate((a, b))]
    both = c.build.between(c.output, f"{c.output.name}:both", (*rows[0].shape[:1], 2, *rows[0].shape[2:]))
    both = c.build.node(f"{c.operator.name}:both", "concat", rows, both, axis=1)
    flat = c.build.between(c.output, f"{c.output.name}:flat", (both.shape[0], both.shape[2]))
    op = "reduce_max" if greatest else "reduce_min"
    if flat.shape == shape:
        c.make(op, [both], axes=(1,), keep=False)
        return
    c.build.node(f"{c.operator.name}:extreme", op, [both], flat, axes=(1,), keep=False)
    c.make_shaped(flat)


def _scalar(tensor: Tensor) -> float | None:
    """Return the value that all elements of a constant share; None if they differ or the tensor is not constant."""
    if tensor.data is None or (tensor.quantization is not None and not tensor.quantization.whole):
        return None
    if np.unique(tensor.data).size != 1:
        return None
    first = tensor.data.reshape(-1)[:1]
    number = float((first if tensor.quantization is None else tensor.quantization.dequantized(first))[0])
    return None if math.isnan(number) else number


def _rows(c: TfliteConversion, part: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return an operand broadcast to a shape and reshaped to (first dimension, 1, product of the other dimensions)."""
    first = shape[0] if shape else 1
    rows_shape = (first, 1, math.prod(shape) // first)
    if x.data is not None:
        if math.prod(shape) > _MAX_ELEMENTS:
            raise c.error(f"a constant broadcast to {list(shape)} has more than {_MAX_ELEMENTS:,} elements")
        data = np.ascontiguousarray(np.broadcast_to(x.data, shape)).reshape(rows_shape)
        return c.build.constant(f"{x.name}:{part}", data, x.quantization)
    x = c.reshaped(f"{part}:rank", x, (1,) * (len(shape) - len(x.shape)) + x.shape)
    for axis, size in enumerate(shape):
        if x.shape[axis] != size:
            x = c.rows(f"{part}:spread{axis}", x, axis, [0] * size)
    return c.reshaped(part, x, rows_shape)
