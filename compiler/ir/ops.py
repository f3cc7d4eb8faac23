"""The operators of the graph, a small set to which every model is converted.

Images have the layout (batch, height, width, channels). Weights of convolutions have the layout (output channels,
kernel height, kernel width, input channels of a group), weights of depthwise convolutions (kernel height, kernel width,
channels), and weights of dense layers (outputs, inputs). Front ends transpose the tensors of formats with other
layouts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from compiler.ir.tensor import Quantization

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


def _reals(value: Any) -> bool:
    return isinstance(value, tuple) and all(_real(v) for v in value)


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


#: Kinds of attributes: the check of a value, and its description in messages.
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_int, "an integer"),
    "ints": (_ints, "a tuple of integers"),
    "positive": (_positive, "a positive integer"),
    "pair": (_pair, "two positive integers"),
    "pads": (_pads, "four integers (top, left, bottom, right), none negative"),
    "real": (_real, "a number"),
    "reals": (_reals, "a tuple of numbers"),
    "bool": (_bool, "true or false"),
    "count": (_count, "an integer, not negative"),
    "signs": (_signs, "a tuple of 1 (forward) and -1 (backward)"),
    "text": (_text, "text"),
    "bytes": (_bytes, "256 integers of 8 bits"),
    "edges": (_edges, "a pair of integers for each dimension, none negative"),
}


class QuantizedForm(StrEnum):
    """Form in which an operator of a float model is quantized: how its operands and its result get their scales."""

    OWN = "own"  # operands and result have separate scales
    SHARED = "shared"  # operands and result share one quantization
    WEIGHTED = "weighted"  # constant weights are quantized symmetrically, optionally per output channel
    NORM = "norm"  # constant scales remain float32
    BLOCKS = "blocks"  # weights are integers with a scale for each block, which becomes a factor


class BatchRule(StrEnum):
    """Condition under which an operator processes the samples of a batch independently of one another."""

    ALWAYS = "always"
    WEIGHTS = "weights"  # weights are constant
    ALIGNED = "aligned"  # operands are broadcast and have the same first axis
    AXIS = "axis"  # `axis` is not the first axis
    AXES = "axes"  # `axes` do not include the first axis
    DENSE = "dense"
    MATMUL = "matmul"
    CONCAT = "concat"
    TRANSPOSE = "transpose"
    RESHAPE = "reshape"
    SLICE = "slice"
    PAD = "pad"
    GATHER = "gather"


@dataclass(frozen=True)
class Spec:
    """Properties of an operator, for passes, quantization and lowering.

    Parameters
    ----------
    inputs : (int, int or None)
        Smallest and largest number of inputs; None: unlimited.
    text : str
        Formula or description of the result, as in docs/operators.md.
    attributes : dict
        Kind of each attribute (a key of `KINDS`); all attributes are required.
    bodies : tuple of str
        Names of the subgraphs of a control-flow operator.
    table : bool
        True for an elementwise function of one operand, which the accelerator executes on 8-bit integers by a lookup
        table of 256 entries.
    binary : bool
        True for a function of two broadcast operands that FUSE computes.
    elementwise : bool
        True if each element of the result depends only on the elements of the operands at the same index, so that
        reshaping the result equals applying the operator to reshaped operands.
    moves : bool
        True if the result consists only of elements of the operands and padding.
    last_axis : bool
        True if the accelerator executes the operator only along the last axis.
    quantized : QuantizedForm or None
        Quantized form of the operator in a float model; None: the operator remains in floating point, on the host.
    weights_axis : int or None
        Axis of the output channels of the weights, for `QuantizedForm.WEIGHTED`.
    symmetric : bool
        True if a constant operand is quantized without a zero point.
    output : Quantization or None
        Quantization that TFLite requires for the result.
    batch : BatchRule or None
        Rule for batches; None: a graph with the operator cannot process batches.
    """

    inputs: tuple[int, int | None]
    text: str
    attributes: dict[str, str] = field(default_factory=dict)
    bodies: tuple[str, ...] = ()
    table: bool = False
    binary: bool = False
    elementwise: bool = False
    moves: bool = False
    last_axis: bool = False
    quantized: QuantizedForm | None = None
    weights_axis: int | None = None
    symmetric: bool = False
    output: Quantization | None = None
    batch: BatchRule | None = None


def unary(text: str, attributes: Mapping[str, str] | None = None, output: Quantization | None = None) -> Spec:
    """Return the Spec of an elementwise function of one operand, which a lookup table computes for 8-bit integers.

    Parameters
    ----------
    text : str
        Formula of the function, for docs/operators.md.
    attributes : dict or None
        Kind of each attribute (a key of `KINDS`).
    output : Quantization or None
        Quantization that TFLite requires for the result.
    """
    return Spec(
        (1, 1),
        text,
        dict(attributes or {}),
        table=True,
        elementwise=True,
        quantized=QuantizedForm.OWN,
        output=output,
        batch=BatchRule.ALWAYS,
    )


_WINDOW = {"kernel": "pair", "strides": "pair", "pads": "pads"}
_LSTM = {
    "cifg": "bool",
    "peephole": "bool",
    "norm": "bool",
    "scales": "reals",
    "outputs": "positive",
    "flat": "bool",
}
_CONV = {"strides": "pair", "pads": "pads", "dilations": "pair"}

#: Operators by name. Optional inputs are last. A bias has no zero point, and its scale is that of the input times that
#: of the weights.
OPS: dict[str, Spec] = {
    "conv2d": Spec(
        (2, 3),
        "convolution of x with weights, plus bias",
        _CONV | {"groups": "positive"},
        quantized=QuantizedForm.WEIGHTED,
        weights_axis=0,
        batch=BatchRule.WEIGHTS,
    ),
    "depthwise_conv2d": Spec(
        (2, 3),
        "convolution of each channel with its own weights, plus bias",
        _CONV,
        quantized=QuantizedForm.WEIGHTED,
        weights_axis=2,
        batch=BatchRule.WEIGHTS,
    ),
    "conv_transpose2d": Spec(
        (2, 3),
        "transposed convolution, plus bias",
        _CONV | {"groups": "positive", "output_pads": "ints"},
        quantized=QuantizedForm.WEIGHTED,
        weights_axis=0,
        batch=BatchRule.WEIGHTS,
    ),
    "dense": Spec(
        (2, 3),
        "x times transposed weights, plus bias, over the last dimension",
        quantized=QuantizedForm.WEIGHTED,
        weights_axis=0,
        batch=BatchRule.DENSE,
    ),
    "block_dense": Spec(
        (3, 4),
        "x times transposed weights, each times the factor or scale of its output and of its block of inputs, plus "
        "bias, over the last dimension",
        {"block": "positive"},
        quantized=QuantizedForm.BLOCKS,
        batch=BatchRule.DENSE,
    ),
    "matmul": Spec(
        (2, 2),
        "product of two stacks of matrices",
        quantized=QuantizedForm.OWN,
        symmetric=True,
        batch=BatchRule.MATMUL,
    ),
    "add": Spec(
        (2, 2), "sum", binary=True, elementwise=True, quantized=QuantizedForm.OWN, batch=BatchRule.ALIGNED
    ),
    "sub": Spec(
        (2, 2),
        "difference",
        binary=True,
        elementwise=True,
        quantized=QuantizedForm.OWN,
        batch=BatchRule.ALIGNED,
    ),
    "mul": Spec(
        (2, 2),
        "product",
        binary=True,
        elementwise=True,
        quantized=QuantizedForm.OWN,
        symmetric=True,
        batch=BatchRule.ALIGNED,
    ),
    **{
        op: Spec((2, 2), f"{which} of two elements", quantized=QuantizedForm.SHARED, batch=BatchRule.ALIGNED)
        for op, which in (("maximum", "greater"), ("minimum", "lesser"))
    },
    "clip": unary("x within low..high, in real numbers", {"low": "real", "high": "real"}),
    "leaky_relu": unary("x, times alpha where negative", {"alpha": "real"}),
    "prelu": Spec(
        (2, 2),
        "x, times the slope of its channel, or of its element, where negative",
        quantized=QuantizedForm.OWN,
        symmetric=True,
        batch=BatchRule.ALIGNED,
    ),
    "sigmoid": unary("1 / (1 + exp(-x))", output=Quantization.per_tensor(1 / 256, -128)),
    "tanh": unary("hyperbolic tangent", output=Quantization.per_tensor(1 / 128, 0)),
    "hard_swish": unary("x * clip(x + 3, 0, 6) / 6"),
    "gelu": unary("x * Phi(x), or its tanh approximation", {"tanh": "bool"}),
    "silu": unary("x * sigmoid(x)"),
    "exp": unary("exponential"),
    "log": unary("natural logarithm"),
    "abs": unary("magnitude"),
    "sqrt": unary("square root"),
    "rsqrt": unary("1 / sqrt(x)"),
    "elu": unary("x, or alpha * (exp(x) - 1) where negative", {"alpha": "real"}),
    "softplus": unary("log(1 + exp(x))"),
    "mish": unary("x * tanh(log(1 + exp(x)))"),
    "softcap": unary("limit * tanh(x / limit)", {"limit": "real"}),
    "max_pool2d": Spec(
        (1, 1),
        "maximum of each window, ignoring padding",
        _WINDOW,
        quantized=QuantizedForm.SHARED,
        batch=BatchRule.ALWAYS,
    ),
    "avg_pool2d": Spec(
        (1, 1),
        "mean of each window, ignoring padding unless `count_pads`; padding that counts has the value 0",
        _WINDOW | {"count_pads": "bool"},
        quantized=QuantizedForm.SHARED,
        batch=BatchRule.ALWAYS,
    ),
    "reduce_sum": Spec(
        (1, 1),
        "sum over axes",
        {"axes": "ints", "keep": "bool"},
        quantized=QuantizedForm.OWN,
        batch=BatchRule.AXES,
    ),
    "reduce_mean": Spec(
        (1, 1),
        "mean over axes",
        {"axes": "ints", "keep": "bool"},
        quantized=QuantizedForm.OWN,
        batch=BatchRule.AXES,
    ),
    "reduce_max": Spec(
        (1, 1),
        "maximum over axes",
        {"axes": "ints", "keep": "bool"},
        quantized=QuantizedForm.SHARED,
        batch=BatchRule.AXES,
    ),
    "reduce_min": Spec(
        (1, 1),
        "minimum over axes",
        {"axes": "ints", "keep": "bool"},
        quantized=QuantizedForm.SHARED,
        batch=BatchRule.AXES,
    ),
    "argmax": Spec(
        (1, 1),
        "index of the first maximum along an axis, or of the last one if `last`",
        {"axis": "int", "keep": "bool", "last": "bool"},
        batch=BatchRule.AXIS,
    ),
    "argmin": Spec(
        (1, 1),
        "index of the first minimum along an axis, or of the last one if `last`",
        {"axis": "int", "keep": "bool", "last": "bool"},
        batch=BatchRule.AXIS,
    ),
    "top_values": Spec(
        (1, 1),
        "the `k` largest elements along an axis in descending order, or the smallest in ascending order if `least`",
        {"axis": "int", "k": "positive", "least": "bool"},
        batch=BatchRule.AXIS,
    ),
    "top_indices": Spec(
        (1, 1),
        "positions of the elements that `top_values` selects; of equal elements, the first is selected first",
        {"axis": "int", "k": "positive", "least": "bool"},
        batch=BatchRule.AXIS,
    ),
    "index_key": Spec(
        (2, 2),
        "256 * q + i - 32768 for each 8-bit integer q, counted from the smallest integer of its type (from the largest "
        "one downwards if `least`), and the number i of its position",
        {"least": "bool"},
        batch=BatchRule.ALIGNED,
    ),
    "key_index": Spec(
        (1, 1),
        "the low byte i of a key, or 255 - i if `reversed`",
        {"reversed": "bool"},
        batch=BatchRule.ALWAYS,
    ),
    "cumsum": Spec(
        (1, 1),
        "cumulative sum along an axis, from the end if `reverse`, without the element itself if `exclusive`",
        {"axis": "int", "exclusive": "bool", "reverse": "bool"},
        last_axis=True,
        quantized=QuantizedForm.OWN,
    ),
    "softmax": Spec(
        (1, 1),
        "softmax of beta * x along an axis",
        {"axis": "int", "beta": "real"},
        last_axis=True,
        quantized=QuantizedForm.OWN,
        output=Quantization.per_tensor(1 / 256, -128),
        batch=BatchRule.AXIS,
    ),
    "approximate_softmax": Spec(
        (1, 1),
        "softmax of beta * x along the last axis of 8-bit integers, with exponentials relative to that of the type's "
        "largest integer instead of the maximum of the row",
        {"axis": "int", "beta": "real"},
        last_axis=True,
        batch=BatchRule.AXIS,
    ),
    "layer_norm": Spec(
        (1, 3),
        "(x - mean) / sqrt(variance + epsilon) * gamma + beta",
        {"axis": "int", "epsilon": "real"},
        quantized=QuantizedForm.NORM,
        batch=BatchRule.AXIS,
    ),
    "rms_norm": Spec(
        (1, 2),
        "x / sqrt(mean square + epsilon) * gamma",
        {"axis": "int", "epsilon": "real"},
        quantized=QuantizedForm.NORM,
        batch=BatchRule.AXIS,
    ),
    "transpose": Spec(
        (1, 1),
        "permuted dimensions",
        {"perm": "ints"},
        moves=True,
        quantized=QuantizedForm.SHARED,
        batch=BatchRule.TRANSPOSE,
    ),
    "reshape": Spec(
        (1, 1),
        "the same elements in another shape",
        {"shape": "ints"},
        moves=True,
        quantized=QuantizedForm.SHARED,
        batch=BatchRule.RESHAPE,
    ),
    "concat": Spec(
        (1, None),
        "concatenation along an axis",
        {"axis": "int"},
        moves=True,
        quantized=QuantizedForm.SHARED,
        batch=BatchRule.CONCAT,
    ),
    "slice": Spec(
        (1, 1),
        "strided slice of each dimension",
        {"starts": "ints", "sizes": "ints", "steps": "ints"},
        moves=True,
        quantized=QuantizedForm.SHARED,
        batch=BatchRule.SLICE,
    ),
    "pad": Spec(
        (1, 1),
        "x padded with a value",
        {"pads": "edges", "value": "real"},
        moves=True,
        quantized=QuantizedForm.SHARED,
        batch=BatchRule.PAD,
    ),
    "gather": Spec(
        (2, 2),
        "rows of x along an axis, by index",
        {"axis": "int"},
        moves=True,
        quantized=QuantizedForm.SHARED,
        batch=BatchRule.GATHER,
    ),
    "resize_nearest": Spec(
        (1, 1),
        "nearest-neighbour resizing",
        {"size": "pair", "centers": "bool"},
        moves=True,
        quantized=QuantizedForm.SHARED,
        batch=BatchRule.ALWAYS,
    ),
    "resize_bilinear": Spec(
        (1, 1),
        "resizing by bilinear interpolation of four pixels",
        {"size": "pair", "corners": "bool", "centers": "bool"},
        quantized=QuantizedForm.SHARED,
        batch=BatchRule.ALWAYS,
    ),
    "quantize": Spec((1, 1), "x rounded to integers of the output's quantization", batch=BatchRule.ALWAYS),
    "dequantize": Spec((1, 1), "the real numbers that x represents", batch=BatchRule.ALWAYS),
    "dynamic_quantize": Spec((1, 1), "x quantized to uint8 by its range, extended to include zero"),
    "dynamic_scale": Spec((1, 1), "the scale of dynamic_quantize"),
    "dynamic_zero": Spec((1, 1), "the zero point of dynamic_quantize"),
    "requantize": Spec(
        (1, 1), "x converted to the output's quantization", table=True, batch=BatchRule.ALWAYS
    ),
    "high_byte": Spec((1, 1), "x / 256, rounded down, of int16 x", batch=BatchRule.ALWAYS),
    "low_byte": Spec((1, 1), "x - 256 * high_byte(x) of int16 x", batch=BatchRule.ALWAYS),
    "requantize_sum": Spec(
        (2, 4),
        "sum of the operands, each times 2 to the power of its shift, converted to the output's quantization by ratios "
        "(one, or one for each channel) as in one of LiteRT's kernels (single, double or away), and clipped",
        {"shifts": "ints", "ratios": "reals", "kernel": "text", "low": "int", "high": "int"},
        batch=BatchRule.ALWAYS,
    ),
    "table": Spec(
        (1, 1),
        "entry q & 255 of a table for each 8-bit integer q; the table is the chain of functions `operator`",
        {"table": "bytes", "operator": "text"},
        table=True,
        batch=BatchRule.ALWAYS,
    ),
    "function": Spec(
        (1, 1),
        "an elementwise ONNX function; `model` is the single-node model in base 64",
        {"operator": "text", "model": "text"},
        table=True,
        quantized=QuantizedForm.OWN,
        batch=BatchRule.ALWAYS,
    ),
    "onnx": Spec(
        (0, None),
        "an output of an ONNX operator that only the host supports; `model` is the single-node model in base 64",
        {"operator": "text", "model": "text", "number": "int", "why": "text"},
    ),
    "floor_div": Spec((2, 2), "quotient of the stored numbers, rounded down", batch=BatchRule.ALIGNED),
    "equal": Spec((2, 2), "a == b", batch=BatchRule.ALIGNED),
    "less": Spec((2, 2), "a < b", batch=BatchRule.ALIGNED),
    "less_equal": Spec((2, 2), "a <= b", batch=BatchRule.ALIGNED),
    "logical_and": Spec((2, 2), "a and b", batch=BatchRule.ALIGNED),
    "logical_or": Spec((2, 2), "a or b", batch=BatchRule.ALIGNED),
    "logical_not": Spec((1, 1), "not x", batch=BatchRule.ALWAYS),
    "where": Spec((3, 3), "a where the condition holds, otherwise b", batch=BatchRule.ALIGNED),
    # LiteRT's integer kernels of recurrent operators (compiler/reference/recurrent.py); their matrix products are dense
    # nodes with int32 results.
    "lstm_cell": Spec(
        (3, 6),
        "new cell state of an int8 LSTM, from the sums of products of the input and of the hidden state, and the cell "
        "state",
        _LSTM | {"clip": "count"},
    ),
    "lstm_hidden": Spec(
        (3, 6), "hidden state of an int8 LSTM, from the same sums and the new cell state", _LSTM
    ),
    "rescale": Spec(
        (1, 1),
        "integers times `scale` in 31-bit fixed point, plus a zero point, within low..high",
        {"scale": "real", "low": "int", "high": "int"},
    ),
    "svdf_state": Spec(
        (2, 2),
        "state of an int8 SVDF, moved by one step, with the products of the new input",
        {"scale": "real"},
    ),
    "svdf": Spec(
        (2, 3),
        "products of an int8 SVDF's state and weights, summed over time and ranks, plus bias",
        {"rank": "positive", "scale": "real"},
    ),
    # Control flow; compiler/ir/control.py describes the operands, subgraphs and outputs.
    "if": Spec((1, None), "one of two subgraphs, selected by a condition", {}, ("then", "else")),
    "loop": Spec(
        (2, None),
        "a subgraph repeated while a condition holds",
        {"states": "count", "scanned": "signs", "stacked": "signs"},
        ("body",),
    ),
}

#: Elementwise functions of one operand, which are lookup tables on 8-bit integers.
TABLE_OPS = frozenset(name for name, spec in OPS.items() if spec.table)
#: Functions of two broadcast operands that FUSE computes.
BINARY_OPS = frozenset(name for name, spec in OPS.items() if spec.binary)
#: Comparisons of two broadcast operands, and functions of booleans; their results are booleans.
COMPARISONS = frozenset(("equal", "less", "less_equal"))
LOGIC_OPS = COMPARISONS | {"logical_and", "logical_or", "logical_not"}
#: Operators that find extreme elements along an axis.
ORDERING = frozenset(("argmax", "argmin", "top_values", "top_indices"))
#: Operators that only move elements; the second operand of `gather` contains their indices.
MOVING = frozenset(name for name, spec in OPS.items() if spec.moves)
