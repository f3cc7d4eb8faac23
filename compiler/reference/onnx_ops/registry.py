"""Registry of ONNX operators implemented for the host, with cost estimates that reject excessive ones."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hw.errors import InputError, shown

Shape = tuple[int, ...]
#: So many steps may a node take; the host makes some hundred million of them in a second.
MOST_STEPS = 1 << 34
#: A node of at most so many is tried before anything runs.
TRIED_STEPS = 1 << 31
#: Steps of one turn of a loop in Python.
_TURN = 1000
#: Operators for whose elements ONNX's reference has such loops.
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
class Asked:
    """A node as its file has it.

    Parameters
    ----------
    op : str
        Operator.
    version : int
        Of the set of operators that it is one of.
    attributes : dict
        Lists as tuples or lists, text as bytes.
    outputs : int
        How many of its outputs are wanted, counted from the first.
    """

    op: str
    version: int
    attributes: Mapping[str, Any]
    outputs: int = 1

    def get(self, key: str, default: Any) -> Any:
        """An attribute, or what stands for it where it is left out."""
        return self.attributes.get(key, default)

    def text(self, key: str, default: str, *choices: str) -> str:
        """An attribute that is one of several texts; any text if there are no choices."""
        value = self.attributes.get(key, default.encode())
        value = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        if choices and value not in choices:
            raise InputError(f"attribute {key} must be one of {', '.join(choices)}, not {shown(value)}")
        return value


Estimate = Callable[[Asked, Sequence[Shape | None], Sequence[Shape]], int]


def steps(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """About how many numbers are computed, by the shapes of a node's inputs and of its outputs."""
    given = [shape for shape in inputs if shape is not None]
    estimate = _ESTIMATES.get(asked.op, _elements)
    least = sum(math.prod(shape) for shape in (*given, *outputs))
    return max(least, estimate(asked, inputs, outputs))


def _elements(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Some for each element, many where Python goes through them; trees and the like go through their lists."""
    count = sum(math.prod(shape) for shape in (*(s for s in inputs if s is not None), *outputs))
    if asked.op.startswith("ai.onnx.ml:"):
        lists = [len(value) for value in asked.attributes.values() if isinstance(value, list | tuple)]
        rows = max((shape[0] for shape in inputs if shape), default=1)
        return count * _TURN + rows * max(lists, default=1) * _TURN
    return count * (_TURN if asked.op in _LOOPS else 8)


def _conv(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    kernel = inputs[3 if asked.op == "QLinearConv" else 1] or (1,)
    return math.prod(outputs[0]) * math.prod(kernel[1:])


def _conv_transpose(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    return math.prod(inputs[0] or ()) * math.prod((inputs[1] or (1,))[1:])


def _product(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    return math.prod(outputs[0]) * (inputs[0] or (1,))[-1]


def _pool(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    return 4 * math.prod(outputs[0]) * math.prod(asked.get("kernel_shape", ()))


def _resize(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Each dimension in turn; where an image gets smaller, a smooth kernel takes as many more inputs."""
    shape, total = list(inputs[0] or ()), 0
    for axis, count in enumerate(outputs[0]):
        taps = {"nearest": 1, "linear": 2, "bilinear": 2}.get(asked.text("mode", "nearest"), 4)
        if asked.get("antialias", 0):
            taps = math.ceil(taps * max(1.0, shape[axis] / count)) + 1
        shape[axis] = count
        total += taps * (4 * math.prod(shape) + 20 * _TURN)
    return total


def _grid(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    taps = {"nearest": 1, "linear": 2, "bilinear": 2}.get(asked.text("mode", "linear"), 4)
    dimensions = (inputs[1] or (1,))[-1]
    return (
        40 * math.prod((inputs[1] or (1,))[:-1]) * taps**dimensions
        + 4 * math.prod(outputs[0]) * taps**dimensions
    )


def _regions(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Each region may be the whole image."""
    (count, channels, *bins), image = outputs[0], inputs[0] or (1,)
    if asked.op == "MaxRoiPool":
        return count * math.prod(bins) * _TURN + count * channels * math.prod(image[2:])
    ratio = asked.get("sampling_ratio", 0)
    samples = ratio**2 * math.prod(bins) if ratio > 0 else math.prod(image[2:])
    return 8 * count * channels * samples + 100 * _TURN * count


def _einsum(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """All combinations of all indices, as numpy goes through them."""
    sizes: dict[Any, int] = {}
    terms = asked.text("equation", "").split("->")[0].replace(" ", "").split(",")
    for term, shape in zip(terms, inputs, strict=False):
        before, _, after = term.partition("...")
        shape = shape or ()
        open_ = max(0, len(shape) - len(before) - len(after))
        names = [*before, *range(-open_, 0), *after]  # those of "..." are counted from the last
        for name, size in zip(names, shape, strict=False):
            sizes[name] = max(size, sizes.get(name, 1))
    return math.prod(sizes.values())


def _recurrent(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Every step multiplies by all weights."""
    x, weights = inputs[0] or (1,), sum(math.prod(shape) for shape in inputs[1:3] if shape)
    return x[0] * _TURN * 20 + math.prod(x[:2]) * weights


def _attention(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
    """Every query meets every key."""
    query, key = inputs[0] or (1,), inputs[1] or (1, 1)
    return 8 * math.prod(query) * key[-2]


def _cubed(asked: Asked, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> int:
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


#: From a node and its inputs, None where one is left out, to its outputs.
Function = Callable[[Asked, list[Any]], Sequence[Array]]
_FUNCTIONS: dict[str, tuple[Function, Callable[[Asked], bool]]] = {}


def computes(*ops: str, when: Callable[[Asked], bool] = lambda _: True) -> Callable[[Function], Function]:
    """Enter a function as that which computes operators, or those of their nodes of which `when` is true."""

    def enter(function: Function) -> Function:
        _FUNCTIONS.update(dict.fromkeys(ops, (function, when)))
        return function

    return enter


def own(asked: Asked) -> Function | None:
    """The implementation of a node's operator; None if ONNX's reference is used."""
    function, when = _FUNCTIONS.get(asked.op, (None, None))
    return function if when is not None and when(asked) else None
