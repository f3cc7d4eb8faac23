"""Calibration: samples, ranges of tensors with floors for softmax inputs, and int8 quantizations of minimal error."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Node, random_input, rebuild
from compiler.ir.ops import MOVING
from compiler.ir.tensor import Quantization, Tensor
from compiler.passes.index_bounds import index_bounds
from compiler.reference import evaluate
from compiler.util import checks
from hw.errors import InputError

#: Upper bound on the sum of softmax outputs below the floor, 1/16 of the output's quantization step.
_MAX_LOST_WEIGHT = 2.0**-12
#: Rows whose maximum is this far below that of another row are considered fully masked and are ignored.
_MASKED_DISTANCE = 1000.0

_Values = Mapping[str, NDArray]


class SoftmaxRange:
    """Lower bounds (floors), over all samples, of the tensors that affect only softmax inputs.

    Values below a tensor's floor, such as the values of attention masks, have no visible effect on the softmax outputs.

    Parameters
    ----------
    graph : Graph
        The float graph.

    Attributes
    ----------
    least : dict
        Floors by tensor name, including constants. Clipping to the floors has no visible effect for the samples.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.least: dict[str, float] = {}
        self._unbounded: set[str] = set()  # tensors that have no floor for some sample

    def add(self, values: _Values) -> dict[str, float]:
        """Add a sample, given the values of all tensors, and return its floors."""
        found = _floors(self.graph, values)
        self._unbounded |= self.graph.tensors.keys() - found.keys()
        self.least |= {name: min(floor, self.least.get(name, floor)) for name, floor in found.items()}
        for name in self._unbounded & self.least.keys():
            del self.least[name]
        return found

    def cut(self, name: str, values: NDArray) -> NDArray:
        """Return the values of a tensor, clipped to its floor."""
        least = self.least.get(name)
        return values if least is None else np.asarray(np.maximum(values, np.float32(least)))

    def graph_within(self) -> Graph:
        """Return the graph with constants clipped to their floors."""
        changed = {}
        for name in self.least:
            tensor = self.graph.tensors[name]
            if tensor.data is not None and tensor.data.min() < self.least[name]:
                changed[name] = Tensor(name, tensor.shape, tensor.dtype, data=self.cut(name, tensor.data))
        return rebuild(self.graph, self.graph, changed=changed) if changed else self.graph


def _floors(graph: Graph, values: _Values) -> dict[str, float]:
    """Return the floors of the tensors of a graph for one sample, propagated backwards from softmax inputs."""
    found: dict[str, float] = {}
    unbounded = set(graph.outputs)  # tensors with a reader that small values affect

    def value(name: str) -> NDArray:
        data = graph.tensors[name].data
        return values[name] if data is None else data

    for node in reversed(list(graph)):
        out = node.outputs[0]
        floor = found.get(out) if out not in unbounded and len(node.outputs) == 1 else None
        floors = dict.fromkeys(range(len(node.inputs)), None) | dict(_operand_floors(node, floor, value))
        for index, least in floors.items():
            name = node.inputs[index]
            if least is None or graph.tensors[name].dtype != "float32":
                unbounded.add(name)
            else:
                found[name] = min(least, found.get(name, least))
    return {name: floor for name, floor in found.items() if name not in unbounded}


def _operand_floors(
    node: Node, floor: float | None, value: Callable[[str], NDArray]
) -> Iterator[tuple[int, float | None]]:
    """Yield the index and floor of each operand of a node, derived from the floor of the node's output."""
    if node.op == "softmax":
        yield 0, _softmax_floor(value(node.inputs[0]), node.attributes["axis"], node.attributes["beta"])
    if floor is None:
        return
    if node.op in MOVING or node.op == "clip":
        yield from ((index, floor) for index in range(1 if node.op == "gather" else len(node.inputs)))
    elif node.attributes.get("operator") == "Where" and len(node.inputs) == 3:
        yield from ((1, floor), (2, floor))
    elif node.op in ("add", "sub", "mul"):
        a, b = (value(name) for name in node.inputs)
        yield from enumerate(_ARITHMETIC[node.op](floor, a, b))


def _softmax_floor(x: NDArray, axis: int, beta: float) -> float | None:
    """Return the floor of a softmax input, below which even a whole row of exp(beta * (x - maximum)) is negligible."""
    rows = x.max(axis).astype(np.float64)
    rows = rows[np.isfinite(rows)]
    if not rows.size or not beta > 0:
        return None
    least = float(rows[rows >= rows.max() - _MASKED_DISTANCE].min())
    return least - math.log(x.shape[axis] / _MAX_LOST_WEIGHT) / beta


def _sum(floor: float, a: NDArray, b: NDArray) -> Sequence[float | None]:
    return [None if (largest := _finite_max(other)) is None else floor - largest for other in (b, a)]


def _difference(floor: float, a: NDArray, b: NDArray) -> Sequence[float | None]:
    least = _finite_max(-b)
    return [None if least is None else floor - least, None]


def _product(floor: float, a: NDArray, b: NDArray) -> Sequence[float | None]:
    """Return the floor of each operand of a product; None if `floor` >= 0 or the other operand has negative values."""
    floors: list[float | None] = []
    for other in (b, a):
        positive = other[other > 0]
        fits = floor < 0 and positive.size and not (other < 0).any()
        floors.append(floor / float(positive.min()) if fits else None)
    return floors


def _finite_max(values: NDArray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else None


_ARITHMETIC: dict[str, Callable[[float, NDArray, NDArray], Sequence[float | None]]] = {
    "add": _sum,
    "sub": _difference,
    "mul": _product,
}

#: Maximum number of elements recorded per tensor and sample, in addition to the extremes.
KEPT = 1 << 14
#: Maximum number of values, of all tensors with one quantization, that are compared for the choice of a range.
_MAX_VALUES = 1 << 20
#: Smallest scale, so that the product of two scales is a normal float32 value.
MIN_SCALE = 1e-18
#: Fraction of the values that a percentile range excludes at either end.
_PERCENTILES = {"percentile 99.99": 1e-4, "percentile 99.9": 1e-3}
#: Fractions of the full range that are tried in the search for the minimal mean squared error.
_FRACTIONS = np.linspace(0.3, 0.98, 35)
#: A narrower range is used only if its error is at most this fraction of that of the full range.
_REQUIRED_ERROR_RATIO = 0.95


@dataclass
class RangeRecorder:
    """Elements of one tensor over all samples: extremes and a subsample.

    Parameters
    ----------
    low, high : float
        Smallest and largest finite element.
    parts : list of float32 array
        Subsampled elements of each sample.
    finite : bool
        True if all elements were finite.
    cut : bool
        True if some elements were below the floor.
    """

    low: float = 0.0
    high: float = 0.0
    parts: list[NDArray[np.float32]] = field(default_factory=list)
    finite: bool = True
    cut: bool = False

    def add(self, values: NDArray, floor: float | None = None) -> None:
        """Record a sample; non-finite values are ignored, and values below the floor are raised to it."""
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
        # Without the extremes, the error of a narrower range would be underestimated.
        recorded = flat if step == 1 else np.append(flat[::step], [low, high])
        self.parts.append(recorded.astype(np.float32))


@dataclass
class ChannelMeans:
    """Means of the elements of each channel (last dimension) of one tensor, sample by sample.

    Parameters
    ----------
    parts : list of (channels,) float64 array
        Means of each sample; samples with non-finite values are left out.
    """

    parts: list[NDArray[np.float64]] = field(default_factory=list)

    def add(self, values: NDArray) -> None:
        """Record a sample."""
        means = values.mean(tuple(range(values.ndim - 1)), dtype=np.float64)
        if np.isfinite(means).all():
            self.parts.append(means)

    def expected(self) -> NDArray[np.float64] | None:
        """Return the expected value of each channel; None if no sample was recorded.

        Means over few samples are shrunk towards 0 by their standard error, after James and Stein (Proceedings of the
        Fourth Berkeley Symposium, 1961), because a correction by the mean of noise would add noise on other samples.
        """
        if not self.parts:
            return None
        parts = np.stack(self.parts)
        mean, count = parts.mean(0), len(parts)
        if count == 1:
            return mean
        error = float((parts.var(0, ddof=1) / count).sum())
        power = float(np.square(mean).sum())
        return mean * max(0.0, 1 - error / power) if power else mean


@dataclass(frozen=True)
class RangeChoice:
    """Quantizations of a group of tensors.

    Parameters
    ----------
    quantization : Quantization
        Quantization of int8 values.
    method : str
        Method that chose the range of int8 values.
    wide : Quantization
        Quantization of int16 values.
    """

    quantization: Quantization
    method: str
    wide: Quantization

    def of(self, dtype: str) -> Quantization:
        """Return the quantization of values of a type, int8 or int16."""
        return self.wide if dtype == "int16" else self.quantization


def affine_of(low: float, high: float) -> Quantization:
    """Return the finest int8 quantization of a range that represents zero exactly, as padding requires."""
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        return Quantization.per_tensor(1.0)
    scale = max(float(np.float32((high - low) / 255)), MIN_SCALE)
    return Quantization.per_tensor(scale, int(np.clip(round(-128 - low / scale), -128, 127)))


def power_of_two(q: Quantization) -> Quantization:
    """Return the int8 quantization of at least the same range whose scale is a power of two.

    If the scales of all operands and of the result are powers of two, onnxruntime's float32 arithmetic is exact, and
    FUSE computes the same integers.
    """
    (scale,), (zero,) = q.scale, q.zero_point
    rounded = 2.0 ** math.ceil(math.log2(scale))
    return Quantization.per_tensor(rounded, round(-128 + (zero + 128) * scale / rounded))


#: Headroom of int16 values beyond the range of the calibration samples.
_HEADROOM = 1.25


def symmetric_16(low: float, high: float) -> Quantization:
    """Return the int16 quantization of a range: a power of two without a zero point, with some headroom.

    With powers of two, LiteRT's multipliers of sums have few significant bits, so that the accelerator is exact.
    """
    largest = max(-low, high) * _HEADROOM / 32767
    scale = 2.0 ** math.ceil(math.log2(largest)) if largest > MIN_SCALE else 2.0**-15
    return Quantization.per_tensor(scale)


def stored(values: NDArray, q: Quantization, dtype: str = "int8") -> NDArray:
    """Quantize floating-point values with a single scale to int8 or int16."""
    steps = np.rint(values.astype(np.float64) / q.scale[0]) + q.zero_point[0]
    limits = np.iinfo(dtype)
    return np.clip(steps, limits.min, limits.max).astype(dtype)


def choose(seen: Iterable[RangeRecorder], *, whole: bool = False, limit: float = math.inf) -> RangeChoice:
    """Choose the shared quantization of tensors: the range with minimal mean squared error.

    Parameters
    ----------
    seen : iterable of RangeRecorder
        Recorded elements of the tensors.
    whole : bool
        True to use the full range from minimum to maximum, as inputs of an exponential require.
    limit : float
        Magnitude beyond which the int8 values have no visible effect.
    """
    group = list(seen)
    low, high = min(s.low for s in group), max(s.high for s in group)
    wide = symmetric_16(low, high)
    low, high = max(low, -limit), min(high, limit)
    if whole:
        return RangeChoice(affine_of(low, high), "min/max", wide)
    parts = [part for s in group for part in s.parts]
    values = np.concatenate(parts) if parts else np.zeros(1, np.float32)
    step = -(-values.size // _MAX_VALUES)
    values = np.clip(values if step == 1 else np.append(values[::step], [low, high]), low, high)
    ranges = [("min/max", low, high)]
    for name, excluded in _PERCENTILES.items():
        below, above = np.quantile(values, [excluded, 1 - excluded])
        ranges.append((name, float(below), float(above)))
    ranges += [("least squares", low * fraction, high * fraction) for fraction in _FRACTIONS]
    errors = [_error(values, affine_of(below, above)) for _, below, above in ranges]
    best = int(np.argmin(errors))
    if errors[best] > _REQUIRED_ERROR_RATIO * errors[0]:
        best = 0
    name, below, above = ranges[best]
    return RangeChoice(affine_of(below, above), name, wide)


def _error(values: NDArray[np.float32], q: Quantization) -> float:
    difference = q.dequantized(stored(values, q)) - values
    return float(np.square(difference, dtype=np.float64).mean())


Sample = dict[str, NDArray]
#: Arrays by input name whose first axis indexes samples, or a list of samples. A sample is a dict of arrays by input
#: name or, for a model with one input, an array.
Calibration = Mapping[str, NDArray] | Sequence[Mapping[str, NDArray] | NDArray]
#: Default number of random samples.
RANDOM_SAMPLES = 2


def samples_of(graph: Graph, given: Calibration) -> list[Sample]:
    """Convert calibration data to a list of samples.

    Raises
    ------
    InputError
        There are no samples, or they do not match the inputs of the graph.
    """
    given = checks.calibration(given)
    if given is None:
        raise InputError(
            "calibration needs samples: a dict of arrays by the names of the inputs, or a list of samples"
        )
    samples = _split(graph, given) if isinstance(given, Mapping) else [_named(graph, each) for each in given]
    if not samples:
        raise InputError("calibration needs at least one sample")
    return [_checked(graph, sample) for sample in samples]


def with_states(graph: Graph, samples: Sequence[Sample]) -> list[Sample]:
    """Add the states to a sequence of samples: each sample starts from the states after the previous sample."""
    if not graph.states:
        return list(samples)
    states, out = {state.input: state.initial for state in graph.states}, []
    for sample in samples:
        out.append(sample | states)
        results = evaluate(graph, out[-1])
        states = {state.input: results[state.output] for state in graph.states}
    return out


def random_samples(graph: Graph, seed: int, count: int = RANDOM_SAMPLES) -> list[Sample]:
    """Generate random samples: standard normal floats, and integers within the graph's bounds."""
    rng, bounds = np.random.default_rng(seed), index_bounds(graph)
    return [
        {name: random_input(rng, graph.tensors[name], bounds) for name in graph.sample_inputs}
        for _ in range(count)
    ]


def _split(graph: Graph, given: Mapping[str, NDArray]) -> list[Sample]:
    """Split arrays along their first axis into samples."""
    arrays = {name: np.asarray(array) for name, array in given.items()}
    counts = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1:
        raise InputError(
            f"calibration: all inputs of {graph.name!r} must have the same number of samples, not {sorted(counts)}"
        )
    return [{name: array[i] for name, array in arrays.items()} for i in range(counts.pop())]


def _named(graph: Graph, sample: Mapping[str, NDArray] | NDArray) -> Sample:
    if isinstance(sample, Mapping):
        return dict(sample)
    names = graph.sample_inputs
    if len(names) != 1:
        raise InputError(f"calibration: a sample must name the inputs {', '.join(names) or 'none'}")
    return {names[0]: np.asarray(sample)}


def _checked(graph: Graph, sample: Sample) -> Sample:
    """Check a sample, and reshape its arrays to the shapes of the inputs; a leading dimension of 1 may be missing."""
    names = graph.sample_inputs
    if sample.keys() != set(names):
        raise InputError(
            f"calibration: inputs must be {', '.join(names) or 'none'}, not {', '.join(sample) or 'none'}"
        )
    out = {}
    for name in names:
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
