"""Test inputs of networks, with outputs of the golden model, and of programs: contents of tensors for which programs
that omit or simplify work give wrong results.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from compiler.quantize.ranges import random_samples
from compiler.runtime.compiled import CompiledNetwork

Values = NDArray[np.int64]
Arrays = dict[str, NDArray]


@dataclass(frozen=True)
class TensorForm:
    """Form of the test inputs of a tensor.

    Parameters
    ----------
    shape : tuple of int
        Height, width and channels.
    low, high : int
        Range of the elements.
    real : numpy.ndarray
        Contents of the tensor when the network runs, int64 of shape `shape`.
    """

    shape: tuple[int, int, int]
    low: int
    high: int
    real: Values

    @property
    def middle(self) -> int:
        """Middle of the range, rounded down."""
        return (self.low + self.high) // 2

    def full(self, value: int) -> Values:
        """Return a tensor whose elements all have one value."""
        return np.full(self.shape, value, np.int64)

    def uniform(self, rng: np.random.Generator, low: int, high: int) -> Values:
        """Return independent elements, uniform between two values, both included."""
        low, high = max(low, self.low), min(high, self.high)
        return rng.integers(low, max(low, high), self.shape, np.int64, endpoint=True)


#: Function that returns a test input.
Pattern = Callable[[np.random.Generator, TensorForm], Values]


def _constants() -> Iterator[Pattern]:
    yield lambda _, form: form.full(form.low)
    yield lambda _, form: form.full(form.high)
    yield lambda _, form: form.full(0)
    yield lambda _, form: form.full(form.middle)
    yield lambda rng, form: form.full(int(rng.integers(form.low, form.high, endpoint=True)))


def _one_hot(inside: str, outside: str) -> Pattern:
    def make(rng: np.random.Generator, form: TensorForm) -> Values:
        out = form.full(getattr(form, outside))
        out.reshape(-1)[rng.integers(out.size)] = getattr(form, inside)
        return out

    return make


def _ramps() -> Iterator[Pattern]:
    def along(axis: int | None, *, falling: bool) -> Pattern:
        def make(_: np.random.Generator, form: TensorForm) -> Values:
            index = np.arange(np.prod(form.shape)).reshape(form.shape)
            if axis is not None:
                index = np.indices(form.shape)[axis]
            span = form.high - form.low
            out = form.low + (index if index.max() <= span else index % (span + 1))
            return form.high + form.low - out if falling else out

        return make

    for axis in (None, 0, 1, 2):
        yield along(axis, falling=False)
    yield along(2, falling=True)
    yield along(None, falling=True)


def _slab(axis: int, at: int, *, level: str) -> Pattern:
    """Return a pattern that is constant except in one row, column or channel."""

    def make(rng: np.random.Generator, form: TensorForm) -> Values:
        out = form.full(getattr(form, level))
        places = [slice(None)] * 3
        places[axis] = slice(at, at + 1) if at >= 0 else slice(at, None)
        out[tuple(places)] = form.uniform(rng, form.low, form.high)[tuple(places)]
        return out

    return make


def _repeated(axis: int) -> Pattern:
    """Return a pattern that is equal along an axis."""

    def make(rng: np.random.Generator, form: TensorForm) -> Values:
        out = form.uniform(rng, form.low, form.high)
        return np.broadcast_to(np.take(out, [0], axis), form.shape).copy()

    return make


def _below(level: str, distance: int) -> Pattern:
    """Return a pattern of elements at most `distance` below a level: nearly equal maxima, small variances."""

    def make(rng: np.random.Generator, form: TensorForm) -> Values:
        top = getattr(form, level)
        return form.uniform(rng, top - distance, top)

    return make


def _peaks(rng: np.random.Generator, form: TensorForm) -> Values:
    """Return pixels with one maximum each, and other channels at distances that differ from pixel to pixel."""
    distance = np.exp(rng.uniform(0, np.log(max(form.high - form.low, 2)), (*form.shape[:2], 1)))
    out = form.high - np.rint(distance * rng.uniform(0, 1, form.shape)).astype(np.int64)
    peak = rng.integers(0, form.shape[2], (*form.shape[:2], 1))
    np.put_along_axis(out, peak, form.high, axis=2)
    return out


def _normal(deviation: float) -> Pattern:
    """Return a pattern of normal elements; the deviation is a fraction of the range."""

    def make(rng: np.random.Generator, form: TensorForm) -> Values:
        scale = deviation * (form.high - form.low)
        return np.rint(rng.normal(form.middle, scale, form.shape)).astype(np.int64)

    return make


def _runs(rng: np.random.Generator, form: TensorForm) -> Values:
    """Return runs of minima and maxima, so that sums saturate."""
    size = int(np.prod(form.shape))
    runs = np.cumsum(rng.random(size) < 1 / rng.integers(1, 33))
    return np.array([form.low, form.high])[rng.integers(0, 2, size + 1)[runs]].reshape(form.shape)


def _sparse(rng: np.random.Generator, form: TensorForm) -> Values:
    return np.where(rng.random(form.shape) < 0.1, form.uniform(rng, form.low, form.high), 0)


def _alternating(_: np.random.Generator, form: TensorForm) -> Values:
    return np.where(np.indices(form.shape).sum(axis=0) % 2, form.low, form.high)


def _real(rng: np.random.Generator, form: TensorForm) -> Values:
    return form.real


def _real_shuffled(rng: np.random.Generator, form: TensorForm) -> Values:
    return rng.permutation(form.real.reshape(-1)).reshape(form.shape)


def _real_disturbed(rng: np.random.Generator, form: TensorForm) -> Values:
    return form.real + rng.integers(-1, 2, form.shape)


def _real_with_change(rng: np.random.Generator, form: TensorForm) -> Values:
    out = form.real.copy()
    out.reshape(-1)[rng.integers(out.size)] = rng.integers(form.low, form.high, endpoint=True)
    return out


def _real_scaled(factor: float) -> Pattern:
    return lambda _, form: np.rint(form.real * factor).astype(np.int64)


def _uniform(part: int) -> Pattern:
    """Return a pattern of uniform elements in 1/`part` of the range."""

    def make(rng: np.random.Generator, form: TensorForm) -> Values:
        width = (form.high - form.low) // part
        low = int(rng.integers(form.low, form.high - width, endpoint=True))
        return form.uniform(rng, low, low + width)

    return make


#: Patterns in the order of their use; related tensors use the same pattern first and then different ones.
PATTERNS: tuple[Pattern, ...] = (
    _uniform(1),
    *_constants(),
    _one_hot("high", "low"),
    _one_hot("low", "high"),
    _one_hot("high", "middle"),
    *_ramps(),
    *(_slab(axis, at, level=level) for axis in range(3) for at, level in ((-1, "low"), (0, "high"))),
    *(_repeated(axis) for axis in range(3)),
    _uniform(1),
    *(_below("high", distance) for distance in (1, 2, 4, 8, 16, 32, 64)),
    *(_below("middle", distance) for distance in (1, 3, 12)),
    _below("low", 0),
    _peaks,
    _peaks,
    _peaks,
    *(_normal(deviation) for deviation in (0.005, 0.02, 0.08, 0.3, 1.0)),
    _runs,
    _runs,
    _alternating,
    _sparse,
    *(_uniform(part) for part in (1, 2, 4, 8, 32)),
    _real,
    _real_shuffled,
    _real_disturbed,
    _real_with_change,
    _real_scaled(0.25),
    _real_scaled(2.0),
)


#: Maximum numbers of inputs with one maximum, or minimum, in each pixel.
_MAX_PEAKS = {"high": 256, "low": 64}
#: Distance of rows and columns with extreme elements, so that each window of this size contains one.
_PERIOD = 4
#: Maximum number of inputs with one extreme element in each channel.
_MAX_SINGLE = 128


def _extreme(form: TensorForm, inside: str, where: NDArray[np.bool_]) -> Values:
    """Return a tensor that is at one end of the range where a mask is true, and at the other end elsewhere."""
    ends = {"high": form.high, "low": form.low}
    return np.where(where, ends[inside], form.low + form.high - ends[inside])


def _covering(form: TensorForm, inside: str, lanes: int) -> Iterator[Values]:
    """Yield inputs in which every element that a program may omit from a reduction decides at least one result.

    First, each pixel has one extreme channel. Over all inputs, it is in each block of lanes and at each position of a
    block, and in each channel of some pixel unless there are too many. Second, extreme pixels have a fixed distance, so
    that windows contain one, at each of their positions. Third, each channel has one extreme pixel, which is in each
    row and in each column for the channels of every block.
    """
    height, width, channels = form.shape
    pixels = height * width
    y, x, c = np.indices(form.shape)
    pixel, blocks = y * width + x, -(-channels // lanes)
    tail = channels - (blocks - 1) * lanes
    every = lanes * blocks
    count = min(every, _MAX_PEAKS[inside], max(blocks, lanes, -(-every // pixels)))
    for number in range(count if channels > 1 else 0):
        turn = (number + pixel * count) % every
        block = turn % blocks
        lane = (turn // blocks + 5 * block) % lanes
        yield _extreme(form, inside, c == block * lanes + np.where(block == blocks - 1, lane % tail, lane))
    if pixels == 1:
        return
    rows, columns, longest = min(height, _PERIOD), min(width, _PERIOD), max(height, width)
    for row, column in np.ndindex(rows, columns):
        yield _extreme(form, inside, ((y + c) % rows == row) & ((x + c // rows) % columns == column))
    for number in range(min(-(-longest // tail), _MAX_SINGLE)):
        turn = number * tail + c % lanes
        yield _extreme(form, inside, (y == turn % height) & (x == (turn + turn // longest) % width))


def covering_inputs(seed: Sequence[int], forms: Sequence[TensorForm], lanes: int) -> Iterator[list[Values]]:
    """Yield test inputs in which each block of lanes, row and column decides results of reductions.

    Their number grows with the tensors. In each input, one tensor has extreme elements, and the others are random.

    Parameters
    ----------
    seed : sequence of int
        Seed of the random elements.
    forms : sequence of TensorForm
        Form of each tensor.
    lanes : int
        Number of lanes in which the machine processes channels.
    """
    rng = np.random.default_rng(seed)
    for at, mine in enumerate(forms):
        for inside in _MAX_PEAKS:
            for values in _covering(mine, inside, lanes):
                yield [
                    values if other == at else form.uniform(rng, form.low, form.high)
                    for other, form in enumerate(forms)
                ]


def golden_inputs(seed: Sequence[int], forms: Sequence[TensorForm], count: int) -> list[list[Values]]:
    """Return `count` test inputs, each of which contains the values of all tensors.

    Parameters
    ----------
    seed : sequence of int
        Seed of the random elements.
    forms : sequence of TensorForm
        Form of each tensor.
    count : int
        Number of test inputs.
    """
    rng = np.random.default_rng(seed)
    out: list[list[Values]] = []
    for number in range(count):
        turn = number // len(PATTERNS)
        patterns = [PATTERNS[(number + turn * at * 7) % len(PATTERNS)] for at in range(len(forms))]
        out.append(
            [
                np.clip(make(rng, form), form.low, form.high)
                for make, form in zip(patterns, forms, strict=True)
            ]
        )
    return out


#: Maximum number of cached references, which all search methods in a comparison share.
_MAX_CACHED = 128


@dataclass(frozen=True)
class GoldenIO:
    """Inputs of a model with the expected outputs."""

    inputs: Arrays
    outputs: Arrays

    def matches(self, outputs: Arrays) -> bool:
        """Return True if the given outputs equal the expected outputs bit for bit."""
        return all(np.array_equal(outputs[name], array) for name, array in self.outputs.items())


class GoldenModelReference:
    """Numbered random inputs of a model, with expected outputs computed by the golden model.

    The golden model runs the static compiler's programs, so no candidate affects the expected outputs.

    Parameters
    ----------
    network : CompiledNetwork
        Network compiled under the static compiler's schedule.
    seed : int
        Seed of the random inputs.
    """

    def __init__(self, network: CompiledNetwork, seed: int = 0):
        self.network, self.seed = network, seed
        self._known: OrderedDict[int, GoldenIO] = OrderedDict()
        self._lock = Lock()

    def golden_io(self, number: int) -> GoldenIO:
        """Return the inputs and outputs with index `number`; they depend only on this index and the seed."""
        with self._lock:
            if number not in self._known:
                self._known[number] = self._make(number)
                while len(self._known) > _MAX_CACHED:
                    self._known.popitem(last=False)
            return self._known[number]

    def _make(self, number: int) -> GoldenIO:
        assert self.network.graph is not None
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        inputs = random_samples(self.network.graph, seed, 1)[0]
        return GoldenIO(inputs, self.network(**inputs))
