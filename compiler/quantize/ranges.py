"""Calibration: samples, ranges of tensors with floors for softmax inputs, and the int8 quantizations of least error."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, random_input, rebuild
from compiler.ir.ops import MOVING
from compiler.ir.tensor import Quantization, Tensor
from compiler.passes.index_bounds import index_bounds
from hw.errors import InputError

#: All weights below the floor together are at most such a part of 1: a sixteenth of the output's step.
_LEAST = 2.0**-12
#: Rows whose greatest is so far below that of others are masked as a whole; no range serves both.
_APART = 1000.0

_Values = Mapping[str, NDArray]


class SoftmaxRange:
    """Floors of the tensors of a graph, over samples.

    Attributes
    ----------
    least : dict
        By tensor, constants among them: no smaller number makes a difference on any of the samples.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.least: dict[str, float] = {}
        self._none: set[str] = set()

    def add(self, values: _Values) -> dict[str, float]:
        """The floors of a sample, all of whose values are given."""
        found = _floors(self.graph, values)
        self._none |= self.graph.tensors.keys() - found.keys()
        self.least |= {name: min(floor, self.least.get(name, floor)) for name, floor in found.items()}
        for name in self._none & self.least.keys():
            del self.least[name]
        return found

    def cut(self, name: str, values: NDArray) -> NDArray:
        """Values of a tensor, no smaller than its floor."""
        least = self.least.get(name)
        return values if least is None else np.asarray(np.maximum(values, np.float32(least)))

    def graph_within(self) -> Graph:
        """The graph with constants that are no smaller than their floors."""
        changed = {}
        for name in self.least:
            tensor = self.graph.tensors[name]
            if tensor.data is not None and tensor.data.min() < self.least[name]:
                changed[name] = Tensor(name, tensor.shape, tensor.dtype, data=self.cut(name, tensor.data))
        return rebuild(self.graph, self.graph, changed=changed) if changed else self.graph


def _floors(graph: Graph, values: _Values) -> dict[str, float]:
    found: dict[str, float] = {}
    free = set(graph.outputs)  # what somebody reads who minds small numbers

    def value(name: str) -> NDArray:
        data = graph.tensors[name].data
        return values[name] if data is None else data

    for node in reversed(list(graph)):
        out = node.outputs[0]
        floor = found.get(out) if out not in free and len(node.outputs) == 1 else None
        told = dict.fromkeys(range(len(node.inputs)), None) | dict(_of_operands(node, floor, value))
        for place, least in told.items():
            name = node.inputs[place]
            if least is None or graph.tensors[name].dtype != "float32":
                free.add(name)
            else:
                found[name] = min(least, found.get(name, least))
    return {name: floor for name, floor in found.items() if name not in free}


def _of_operands(
    node: Node, floor: float | None, value: Callable[[str], NDArray]
) -> Iterator[tuple[int, float | None]]:
    """Floors of a node's operands, by place, from that of its output."""
    if node.op == "softmax":
        yield 0, _of_rows(value(node.inputs[0]), node.attributes["axis"], node.attributes["beta"])
    if floor is None:
        return
    if node.op in MOVING or node.op == "clip":
        yield from ((place, floor) for place in range(1 if node.op == "gather" else len(node.inputs)))
    elif node.attributes.get("operator") == "Where" and len(node.inputs) == 3:
        yield from ((1, floor), (2, floor))
    elif node.op in ("add", "sub", "mul"):
        a, b = (value(name) for name in node.inputs)
        yield from enumerate(_ARITHMETIC[node.op](floor, a, b))


def _of_rows(x: NDArray, axis: int, beta: float) -> float | None:
    """What has no weight in any row: e**(beta * (x - greatest)) of a whole row of it is nothing."""
    rows = x.max(axis).astype(np.float64)
    rows = rows[np.isfinite(rows)]
    if not rows.size or not beta > 0:
        return None
    least = float(rows[rows >= rows.max() - _APART].min())
    return least - math.log(x.shape[axis] / _LEAST) / beta


def _sum(floor: float, a: NDArray, b: NDArray) -> Sequence[float | None]:
    return [None if (most := _most(other)) is None else floor - most for other in (b, a)]


def _difference(floor: float, a: NDArray, b: NDArray) -> Sequence[float | None]:
    least = _most(-b)
    return [None if least is None else floor - least, None]


def _product(floor: float, a: NDArray, b: NDArray) -> Sequence[float | None]:
    """Of a factor of what is nowhere negative: where that is zero, the product is."""
    made: list[float | None] = []
    for other in (b, a):
        positive = other[other > 0]
        fits = floor < 0 and positive.size and not (other < 0).any()
        made.append(floor / float(positive.min()) if fits else None)
    return made


def _most(values: NDArray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else None


_ARITHMETIC: dict[str, Callable[[float, NDArray, NDArray], Sequence[float | None]]] = {
    "add": _sum,
    "sub": _difference,
    "mul": _product,
}

#: Of each tensor so many elements of a sample are kept, beside its extremes.
KEPT = 1 << 14
#: Smallest scale: products of two stay above the smallest float32.
LEAST_SCALE = 1e-18
#: Parts of the values that a percentile leaves out at either end.
_PERCENTILES = {"percentile 99.99": 1e-4, "percentile 99.9": 1e-3}
#: Fractions of the whole range among which the least mean squared error is looked for.
_FRACTIONS = np.linspace(0.3, 0.98, 35)
#: A narrower range must lower the error by so much before values are cut off for it.
_WORTH = 0.95


@dataclass
class InputRecorder:
    """Elements of one tensor over all samples: extremes, and a regular choice of the others."""

    low: float = 0.0
    high: float = 0.0
    parts: list[NDArray[np.float32]] = field(default_factory=list)
    #: All elements were numbers.
    finite: bool = True

    #: Some were below the floor.
    cut: bool = False

    def add(self, values: NDArray, floor: float | None = None) -> None:
        """Record a sample, ignoring non-finite values and those below the floor."""
        flat = values.reshape(-1)
        if floor is not None:
            self.cut = self.cut or bool((flat < floor).any())
            flat = np.maximum(flat, np.float32(floor))
        numbers = np.isfinite(flat)
        if not numbers.all():
            self.finite, flat = False, flat[numbers]
        if not flat.size:
            return
        low, high = float(flat.min()), float(flat.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        step = -(-flat.size // KEPT)
        # Extremes that the choice leaves out would make a range look better than it is.
        chosen = flat if step == 1 else np.append(flat[::step], [low, high])
        self.parts.append(chosen.astype(np.float32))


@dataclass(frozen=True)
class RangeChoice:
    """A quantization and the method that chose its range."""

    quantization: Quantization
    method: str


def affine_of(low: float, high: float) -> Quantization:
    """The finest int8 quantization of a range in which zero is exact, because padding is."""
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        return Quantization.of(1.0)
    scale = max(float(np.float32((high - low) / 255)), LEAST_SCALE)
    return Quantization.of(scale, int(np.clip(round(-128 - low / scale), -128, 127)))


def stored(values: NDArray, q: Quantization) -> NDArray[np.int8]:
    """Integers nearest to real numbers, for one scale."""
    steps = np.rint(values.astype(np.float64) / q.scale[0]) + q.zero_point[0]
    return np.clip(steps, -128, 127).astype(np.int8)


def choose(seen: Iterable[InputRecorder], *, whole: bool = False) -> RangeChoice:
    """The quantization of tensors that share one: of several ranges the one with the least mean squared error.

    If `whole`, the range from the least to the greatest, which what goes into an exponential needs.
    """
    group = list(seen)
    low, high = min(s.low for s in group), max(s.high for s in group)
    if whole:
        return RangeChoice(affine_of(low, high), "min/max")
    parts = [part for s in group for part in s.parts]
    values = np.concatenate(parts) if parts else np.zeros(1, np.float32)
    ranges = [("min/max", low, high)]
    for name, part in _PERCENTILES.items():
        below, above = np.quantile(values, [part, 1 - part])
        ranges.append((name, float(below), float(above)))
    ranges += [("least squares", low * part, high * part) for part in _FRACTIONS]
    errors = [_error(values, affine_of(below, above)) for _, below, above in ranges]
    best = int(np.argmin(errors))
    if errors[best] > _WORTH * errors[0]:
        best = 0
    name, below, above = ranges[best]
    return RangeChoice(affine_of(below, above), name)


def _error(values: NDArray[np.float32], q: Quantization) -> float:
    off = q.dequantized(stored(values, q)) - values
    return float(np.square(off, dtype=np.float64).mean())


Sample = dict[str, NDArray]
#: An array for each input whose first axis counts samples; or a list of samples, each an array for each input, or the
#: one array of a model with one input.
Calibration = Mapping[str, NDArray] | Sequence[Mapping[str, NDArray] | NDArray]
#: So many samples are made up where none are given.
RANDOM_SAMPLES = 2


def samples_of(graph: Graph, given: Calibration) -> list[Sample]:
    """Convert calibration data to a list of samples.

    Raises
    ------
    InputError
        There are no samples, or they do not fit the inputs of the graph.
    """
    whole = _split(graph, given) if isinstance(given, Mapping) else [_named(graph, each) for each in given]
    if not whole:
        raise InputError("calibration needs at least one sample")
    return [_checked(graph, sample) for sample in whole]


def random_samples(graph: Graph, seed: int, count: int = RANDOM_SAMPLES) -> list[Sample]:
    """Generate random samples: standard normal floats, and integers within the graph's bounds."""
    rng, places = np.random.default_rng(seed), index_bounds(graph)
    return [
        {name: random_input(rng, graph.tensors[name], places) for name in graph.inputs} for _ in range(count)
    ]


def _split(graph: Graph, given: Mapping[str, NDArray]) -> list[Sample]:
    """Arrays whose first axis counts samples, apart."""
    arrays = {name: np.asarray(array) for name, array in given.items()}
    counts = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1:
        raise InputError(
            f"calibration: all inputs of {graph.name!r} must have as many samples, not {sorted(counts)}"
        )
    return [{name: array[i] for name, array in arrays.items()} for i in range(counts.pop())]


def _named(graph: Graph, sample: Mapping[str, NDArray] | NDArray) -> Sample:
    if isinstance(sample, Mapping):
        return dict(sample)
    if len(graph.inputs) != 1:
        raise InputError(f"calibration: a sample must name the inputs {', '.join(graph.inputs)}")
    return {graph.inputs[0]: np.asarray(sample)}


def _checked(graph: Graph, sample: Sample) -> Sample:
    """A sample in the shapes of the inputs, whose own leading 1 may be left out."""
    if sample.keys() != set(graph.inputs):
        raise InputError(
            f"calibration: inputs must be {', '.join(graph.inputs)}, not {', '.join(sample) or 'none'}"
        )
    out = {}
    for name in graph.inputs:
        tensor, array = graph.tensors[name], np.asarray(sample[name])
        shapes = (tensor.shape, tensor.shape[1:] if tensor.shape[:1] == (1,) else tensor.shape)
        if array.shape not in shapes or array.dtype != tensor.dtype:
            raise InputError(
                f"calibration: input {name!r} must be {tensor.dtype}{list(tensor.shape)}, not "
                f"{array.dtype}{list(array.shape)}"
            )
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise InputError(f"calibration: input {name!r} must be numbers, not NaN")
        out[name] = array.reshape(tensor.shape)
    return out
