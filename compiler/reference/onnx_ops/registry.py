"""Registry of ONNX operators implemented for the host, and cost estimates for rejecting expensive nodes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hw.errors import InputError, shown

Shape = tuple[int, ...]
#: Limit on the elementary operations of a node; the host executes several hundred million per second.
MAX_STEPS = 1 << 34
#: Limit on the operations of a node that is executed during import to determine its output types.
TRIED_STEPS = 1 << 31
#: Operations equivalent to one iteration of a Python loop.
_ITERATION_COST = 1000
#: Operators for which ONNX's reference has a Python loop over elements.
_LOOPS = frozenset(
    (
        "Col2Im",
        "DeformConv",
        "GatherND",
        "LinearAttention",
        "MaxUnpool",
        "MelWeightMatrix",
        "NegativeLogLikelihoodLoss",
        "ReverseSequence",
        "ScatterElements",
        "ScatterND",
        "SoftmaxCrossEntropyLoss",
        "TensorScatter",
        "TfIdfVectorizer",
        "CausalConvWithState",
    )
)

Array = NDArray[Any]


@dataclass(frozen=True)
class OnnxNodeSpec:
    """Operator, version and attributes of an ONNX node.

    Parameters
    ----------
    op : str
        Name of the operator, prefixed with its domain unless the domain is ONNX's own.
    version : int
        Version of the operator set.
    attributes : dict
        Attributes as Python values: lists as tuples or lists, strings as bytes.
    outputs : int
        Number of outputs to compute, starting from the first.
    """

    op: str
    version: int
    attributes: Mapping[str, Any]
    outputs: int = 1

    def get(self, key: str, default: Any) -> Any:
        """Return an attribute, or a default if it is not set."""
        return self.attributes.get(key, default)

    def text(self, key: str, default: str, *choices: str) -> str:
        """Return a string attribute; raise an error if choices are given and it is not one of them."""
        value = self.attributes.get(key, default.encode())
        value = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        if choices and value not in choices:
            raise InputError(f"attribute {key} must be one of {', '.join(choices)}, not {shown(value)}")
        return value


Estimate = Callable[[OnnxNodeSpec, Sequence[Shape | None], Sequence[Shape]], int]


def steps(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Estimate the number of elementary operations from the shapes of a node's inputs and outputs."""
    given = [shape for shape in inputs if shape is not None]
    estimate = _ESTIMATES.get(spec.op, _elements)
    elements = sum(math.prod(shape) for shape in (*given, *outputs))
    return max(elements, estimate(spec, inputs, outputs))


def _elements(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Estimate a few operations per element, or one Python iteration if the operator loops over elements or lists."""
    count = sum(math.prod(shape) for shape in (*(s for s in inputs if s is not None), *outputs))
    if spec.op.startswith("ai.onnx.ml:"):
        lists = [len(value) for value in spec.attributes.values() if isinstance(value, list | tuple)]
        rows = max((shape[0] for shape in inputs if shape), default=1)
        return count * _ITERATION_COST + rows * max(lists, default=1) * _ITERATION_COST
    return count * (_ITERATION_COST if spec.op in _LOOPS else 8)


def _conv(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    kernel = inputs[3 if spec.op == "QLinearConv" else 1] or (1,)
    return math.prod(outputs[0]) * math.prod(kernel[1:])


def _conv_transpose(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    return math.prod(inputs[0] or ()) * math.prod((inputs[1] or (1,))[1:])


def _product(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    return math.prod(outputs[0]) * (inputs[0] or (1,))[-1]


def _pool(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    return 4 * math.prod(outputs[0]) * math.prod(spec.get("kernel_shape", ()))


def _resize(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Estimate the cost of resizing one dimension at a time; antialiasing widens the kernel by the reduction factor."""
    shape, total = list(inputs[0] or ()), 0
    for axis, count in enumerate(outputs[0]):
        taps = {"nearest": 1, "linear": 2, "bilinear": 2}.get(spec.text("mode", "nearest"), 4)
        if spec.get("antialias", 0):
            taps = math.ceil(taps * max(1.0, shape[axis] / count)) + 1
        shape[axis] = count
        total += taps * (4 * math.prod(shape) + 20 * _ITERATION_COST)
    return total


def _grid(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    taps = {"nearest": 1, "linear": 2, "bilinear": 2}.get(spec.text("mode", "linear"), 4)
    dimensions = (inputs[1] or (1,))[-1]
    return (
        40 * math.prod((inputs[1] or (1,))[:-1]) * taps**dimensions
        + 4 * math.prod(outputs[0]) * taps**dimensions
    )


def _regions(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Estimate the operations of regions that may each cover the whole image."""
    (count, channels, *bins), image = outputs[0], inputs[0] or (1,)
    if spec.op == "MaxRoiPool":
        return count * math.prod(bins) * _ITERATION_COST + count * channels * math.prod(image[2:])
    ratio = spec.get("sampling_ratio", 0)
    samples = ratio**2 * math.prod(bins) if ratio > 0 else math.prod(image[2:])
    return 8 * count * channels * samples + 100 * _ITERATION_COST * count


def _einsum(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Return the number of combinations of all indices, over which numpy iterates."""
    sizes: dict[Any, int] = {}
    terms = spec.text("equation", "").split("->")[0].replace(" ", "").split(",")
    for term, shape in zip(terms, inputs, strict=False):
        before, _, after = term.partition("...")
        shape = shape or ()
        open_ = max(0, len(shape) - len(before) - len(after))
        names = [*before, *range(-open_, 0), *after]  # dimensions of "..." are numbered from the last
        for name, size in zip(names, shape, strict=False):
            sizes[name] = max(size, sizes.get(name, 1))
    return math.prod(sizes.values())


def _recurrent(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Estimate one multiplication by all weights at each time step."""
    x, weights = inputs[0] or (1,), sum(math.prod(shape) for shape in inputs[1:3] if shape)
    return x[0] * _ITERATION_COST * 20 + math.prod(x[:2]) * weights


def _attention(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Estimate the product of every query with every key."""
    query, key = inputs[0] or (1,), inputs[1] or (1, 1)
    return 8 * math.prod(query) * key[-2]


def _cubed(spec: OnnxNodeSpec, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    return 8 * math.prod(inputs[0] or ()) * (inputs[0] or (1,))[-1]


_ESTIMATES: dict[str, Estimate] = {
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _conv),
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul", "Gemm"), _product),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("RoiAlign", "MaxRoiPool"), _regions),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "ConvTranspose": _conv_transpose,
    "GridSample": _grid,
    "Einsum": _einsum,
    "Attention": _attention,
    "Det": _cubed,
}


#: Implementation of an operator: takes a node and its inputs (None if omitted) and returns the outputs.
Function = Callable[[OnnxNodeSpec, list[Any]], Sequence[Array]]
_FUNCTIONS: dict[str, tuple[Function, Callable[[OnnxNodeSpec], bool]]] = {}


def computes(
    *ops: str, when: Callable[[OnnxNodeSpec], bool] = lambda _: True
) -> Callable[[Function], Function]:
    """Register a function as the implementation of operators, for nodes that satisfy `when`."""

    def register(function: Function) -> Function:
        _FUNCTIONS.update(dict.fromkeys(ops, (function, when)))
        return function

    return register


def own(spec: OnnxNodeSpec) -> Function | None:
    """Return the implementation of a node's operator; None if ONNX's reference implementation is used."""
    function, when = _FUNCTIONS.get(spec.op, (None, None))
    return function if when is not None and when(spec) else None
