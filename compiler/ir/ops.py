"""The operators of the graph: a small set that every model is rewritten into.

Images lie as (batch, height, width, channels), weights of convolutions as (output channels, kernel height, kernel
width, input channels of a group), those of depthwise convolutions as (kernel height, kernel width, channels), those of
dense layers as (outputs, inputs). A front end transposes what its format has otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Attributes = dict[str, Any]


def _int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ints(value: Any) -> bool:
    return isinstance(value, tuple) and all(_int(v) for v in value)


def _positive(value: Any) -> bool:
    return _int(value) and value > 0


def _pair(value: Any) -> bool:
    return _ints(value) and len(value) == 2 and min(value) > 0


def _pads(value: Any) -> bool:
    return _ints(value) and len(value) == 4 and min(value) >= 0


def _real(value: Any) -> bool:
    return isinstance(value, float) or _int(value)


def _bool(value: Any) -> bool:
    return isinstance(value, bool)


def _count(value: Any) -> bool:
    return _int(value) and value >= 0


def _signs(value: Any) -> bool:
    return _ints(value) and all(v in (-1, 1) for v in value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _bytes(value: Any) -> bool:
    return _ints(value) and len(value) == 256 and min(value) >= -128 and max(value) <= 255


def _edges(value: Any) -> bool:
    return isinstance(value, tuple) and all(_ints(v) and len(v) == 2 and min(v) >= 0 for v in value)


#: Kinds of attributes: what they must be, and how that is called in a message.
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_int, "an integer"),
    "ints": (_ints, "a tuple of integers"),
    "positive": (_positive, "a positive integer"),
    "pair": (_pair, "two positive integers"),
    "pads": (_pads, "four integers (top, left, bottom, right), none negative"),
    "real": (_real, "a number"),
    "bool": (_bool, "true or false"),
    "count": (_count, "an integer, not negative"),
    "signs": (_signs, "a tuple of 1 (forward) and -1 (backward)"),
    "text": (_text, "text"),
    "bytes": (_bytes, "256 integers of 8 bits"),
    "edges": (_edges, "a pair of integers for each dimension, none negative"),
}


@dataclass(frozen=True)
class Spec:
    """What a node of an operator must look like.

    Parameters
    ----------
    inputs : (int, int or None)
        Least and greatest number of inputs; None: any.
    attributes : dict
        Kind of each attribute, all of them required.
    text : str
        What it computes.
    bodies : tuple of str
        What its subgraphs are called, if it is control flow.
    """

    inputs: tuple[int, int | None]
    text: str
    attributes: dict[str, str] = field(default_factory=dict)
    bodies: tuple[str, ...] = ()


_WINDOW = {"kernel": "pair", "strides": "pair", "pads": "pads"}
_CONV = {"strides": "pair", "pads": "pads", "dilations": "pair"}

#: Operators by name. Optional inputs come last; a bias has the scale of input times weights and no zero point.
OPS: dict[str, Spec] = {
    "conv2d": Spec((2, 3), "convolution of x with weights, plus bias", _CONV | {"groups": "positive"}),
    "depthwise_conv2d": Spec((2, 3), "convolution of each channel with weights of its own, plus bias", _CONV),
    "conv_transpose2d": Spec(
        (2, 3), "transposed convolution, plus bias", _CONV | {"groups": "positive", "output_pads": "ints"}
    ),
    "dense": Spec((2, 3), "x times transposed weights, plus bias, over the last dimension"),
    "matmul": Spec((2, 2), "product of two stacks of matrices"),
    "add": Spec((2, 2), "sum"),
    "sub": Spec((2, 2), "difference"),
    "mul": Spec((2, 2), "product"),
    "clip": Spec((1, 1), "x within low..high, in real numbers", {"low": "real", "high": "real"}),
    "leaky_relu": Spec((1, 1), "x, times alpha where negative", {"alpha": "real"}),
    "prelu": Spec((2, 2), "x, times the slope of its channel, or of its element, where negative"),
    "sigmoid": Spec((1, 1), "1 / (1 + exp(-x))"),
    "tanh": Spec((1, 1), "hyperbolic tangent"),
    "hard_swish": Spec((1, 1), "x * clip(x + 3, 0, 6) / 6"),
    "gelu": Spec((1, 1), "x * Phi(x), or its tanh approximation", {"tanh": "bool"}),
    "silu": Spec((1, 1), "x * sigmoid(x)"),
    "exp": Spec((1, 1), "exponential"),
    "log": Spec((1, 1), "natural logarithm"),
    "abs": Spec((1, 1), "magnitude"),
    "sqrt": Spec((1, 1), "square root"),
    "rsqrt": Spec((1, 1), "1 / sqrt(x)"),
    "elu": Spec((1, 1), "x, or alpha * (exp(x) - 1) where negative", {"alpha": "real"}),
    "softplus": Spec((1, 1), "log(1 + exp(x))"),
    "mish": Spec((1, 1), "x * tanh(log(1 + exp(x)))"),
    "max_pool2d": Spec((1, 1), "greatest of each window; padding is never greatest", _WINDOW),
    "avg_pool2d": Spec(
        (1, 1), "mean of each window, padding left out unless counted", _WINDOW | {"count_pads": "bool"}
    ),
    "reduce_sum": Spec((1, 1), "sum over axes", {"axes": "ints", "keep": "bool"}),
    "reduce_mean": Spec((1, 1), "mean over axes", {"axes": "ints", "keep": "bool"}),
    "reduce_max": Spec((1, 1), "maximum over axes", {"axes": "ints", "keep": "bool"}),
    "reduce_min": Spec((1, 1), "minimum over axes", {"axes": "ints", "keep": "bool"}),
    "cumsum": Spec(
        (1, 1),
        "sum of each element and those before it along an axis, or after it if reverse; without itself if exclusive",
        {"axis": "int", "exclusive": "bool", "reverse": "bool"},
    ),
    "softmax": Spec((1, 1), "softmax of beta * x along an axis", {"axis": "int", "beta": "real"}),
    "layer_norm": Spec(
        (1, 3), "(x - mean) / sqrt(variance + epsilon) * gamma + beta", {"axis": "int", "epsilon": "real"}
    ),
    "rms_norm": Spec((1, 2), "x / sqrt(mean square + epsilon) * gamma", {"axis": "int", "epsilon": "real"}),
    "transpose": Spec((1, 1), "permutation of the dimensions", {"perm": "ints"}),
    "reshape": Spec((1, 1), "the same elements in another shape", {"shape": "ints"}),
    "concat": Spec((1, None), "concatenation along an axis", {"axis": "int"}),
    "slice": Spec((1, 1), "part of each dimension", {"starts": "ints", "sizes": "ints", "steps": "ints"}),
    "pad": Spec((1, 1), "a value around x", {"pads": "edges", "value": "real"}),
    "gather": Spec((2, 2), "rows of x along an axis, by index", {"axis": "int"}),
    "resize_nearest": Spec((1, 1), "nearest neighbour", {"size": "pair", "centers": "bool"}),
    "quantize": Spec((1, 1), "x rounded to the output's quantization"),
    "dequantize": Spec((1, 1), "real values of x"),
    "dynamic_quantize": Spec((1, 1), "x in 8 bits with a scale of 1/255 of its range"),
    "dynamic_scale": Spec((1, 1), "scale of dynamic_quantize"),
    "dynamic_zero": Spec((1, 1), "zero point of dynamic_quantize"),
    "requantize": Spec((1, 1), "x converted to the output's quantization"),
    "table": Spec(
        (1, 1),
        "entry q & 255 of 256, for each integer q of 8 bits: what a chain of `operator`s makes of it",
        {"table": "bytes", "operator": "text"},
    ),
    "function": Spec(
        (1, 1),
        "a function of each number, by ONNX's reference; `model`, in base 64, is of that node",
        {"operator": "text", "model": "text"},
    ),
    "onnx": Spec(
        (0, None),
        "an output of an operator of ONNX that only the host has; `model`, in base 64, is of that node",
        {"operator": "text", "model": "text", "number": "int", "why": "text"},
    ),
    "floor_div": Spec((2, 2), "quotient of the stored numbers, rounded down to a whole number"),
    "equal": Spec((2, 2), "1 where x = y"),
    "less": Spec((2, 2), "1 where x < y"),
    "less_equal": Spec((2, 2), "1 where x <= y"),
    "logical_and": Spec((2, 2), "logical and"),
    "logical_or": Spec((2, 2), "logical or"),
    "logical_not": Spec((1, 1), "logical not"),
    # Control flow; compiler/ir/control.py says what operands, subgraphs and outputs are to one another.
    "if": Spec((1, None), "one subgraph or the other, by a condition", {}, ("then", "else")),
    "loop": Spec(
        (2, None),
        "a subgraph again and again, while a condition holds",
        {"states": "count", "scanned": "signs", "stacked": "signs"},
        ("body",),
    ),
}

#: Operators that move elements and compute nothing; of `gather` the second operand says where they are.
MOVING = frozenset(("reshape", "transpose", "slice", "pad", "concat", "gather", "resize_nearest"))
