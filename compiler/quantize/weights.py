"""Rounding of weights to few bits: scales, error compensation, and scaling by the activations."""

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from compiler.ir.graph import Graph, Node, rebuild, unused_name
from compiler.ir.tensor import Tensor
from compiler.quantize.plan import without_hybrids
from compiler.quantize.ranges import Calibration, samples_of, with_states
from compiler.reference import evaluate
from compiler.util import checks
from hw.errors import InputError, shown

Real = NDArray[np.float64]
#: What names a matrix of a model.
Name = TypeVar("Name", bound=Hashable)

#: Smallest and largest number of bits of a weight.
MIN_BITS, MAX_BITS = 2, 8
#: Weights after which the errors of all previous ones are applied to the rest at once.
_COMPENSATED_TOGETHER = 128
#: Largest difference of two moments that should be equal, relative to the largest moment.
_ASYMMETRY = 1e-4
#: Regularization of moments, relative to their mean diagonal, which limits the compensation by few samples.
_DAMPING = 0.01
#: The same for the moments of gradients, which vary more from sample to sample.
_GRADIENT_DAMPING = 0.05
#: Mean diagonal of moments up to which the elements count as constant, so that nothing is compensated.
_LEAST_MOMENT = 1e-100
#: Variance that elements have at least on other samples, relative to the mean of their squares.
_LEAST_VARIANCE = 1e-4
#: Steps that are tried for a row of weights, relative to the step that clips nothing.
_FRACTIONS = np.linspace(1.0, 0.5, 26)
#: Maximum number of passes over the weights in `refined`.
_SWEEPS = 4
#: Largest scale of a group of weights, an unsigned 8-bit integer.
_MAX_GROUP_SCALE = 255
#: Maximum magnitude of an int32 bias, which leaves half of the range for the sum of products, and of an int64 bias, as
#: in TFLite's kernels for int16 activations.
MAX_BIAS, MAX_WIDE_BIAS = 1 << 30, 1 << 38
#: Significant bits of the scales that are chosen for weights that multiply int16 activations, and of those of a model.
_SCALE_BITS, GIVEN_SCALE_BITS = 12, 15
#: Least scale of an output, the smallest normal float32 number, and largest magnitude of a weight, at which the real
#: numbers of rounded weights are finite.
_LEAST_UNIT, _MAX_WEIGHT = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max) / 2
#: Patterns of pruned weights, and share of zeros from which weights count as pruned; other weights have at most 10%.
PATTERNS, _PRUNED = ("2:4", "tiles"), 0.2
#: Decay of the mean gradients and mean squared gradients in `tune_groups`.
_MEAN_DECAY, _SQUARE_DECAY = 0.9, 0.98
#: Largest distance of a real number from its integer at the start of `tune_groups`, and beyond the range of integers.
_START_DISTANCE, _RANGE_DISTANCE = 0.45, 0.49
#: Exponents of the importance of the operand's elements that `activation_scales` tries.
_EXPONENTS = (0.0, 0.15, 0.3, 0.45, 0.6)
#: Exponents of the root mean square of the columns by which it divides them, and the least mean square that it
#: distinguishes, relative to the largest.
_SIZE_EXPONENTS, _LEAST_POWER = (0.0, 0.25, 0.5, 0.75), 1e-4
#: Share of the channels with a limit whose factors keep their ratios, and largest factor of a channel with a limit.
_KEPT_RATIOS, MAX_FACTOR = 0.9, 8.0


def weight_range(bits: int) -> tuple[int, int]:
    """Return the smallest and the largest value of a weight; that of 8 bits is symmetric, as TFLite requires.

    Raises
    ------
    InputError
        The number of bits is not an integer from 2 to 8.
    """
    if not checks.is_integer(bits) or not MIN_BITS <= bits <= MAX_BITS:
        raise InputError(f"bits must be an integer from {MIN_BITS} to {MAX_BITS}, not {shown(bits)}")
    high = (1 << (int(bits) - 1)) - 1
    return (-high if bits == MAX_BITS else -high - 1), high


def damped(moments: NDArray, share: float = _DAMPING) -> Real:
    """Return moments with a share of their mean diagonal added to the diagonal; 1 if that is too small to be used."""
    size = len(moments)
    mean = float(np.trace(moments)) / size
    return np.asarray(moments + (share * mean if mean > _LEAST_MOMENT else 1.0) * np.eye(size))


def steps_of_rows(weights: NDArray, bits: int, importance: Real | None = None) -> Real:
    """Return the step of each row of weights with the smallest error of the weights, rounded one by one.

    Parameters
    ----------
    weights : (rows, products) array
        Exact weights of each row.
    bits : int
        Number of bits of the integers.
    importance : (products,) float64 array or None
        Weight of the squared error in each column; None for equal weights.

    Returns
    -------
    (rows,) float64 array
        Positive steps: the one that clips nothing, or a fraction of it; 1 for a row of zeros.
    """
    low, high = weight_range(bits)
    exact = weights.astype(np.float64)
    largest = np.abs(exact).max(1) / high
    best, least = np.where(largest > 0, largest, 1.0), np.full(len(exact), np.inf)
    for fraction in _FRACTIONS:
        step = (np.where(largest > 0, largest, 1.0) * fraction)[:, None]
        errors = np.square(np.clip(np.rint(exact / step), low, high) * step - exact)
        errors = errors.sum(1) if importance is None else errors @ importance
        best = np.where(errors < least, step[:, 0], best)
        least = np.minimum(errors, least)
    return np.asarray(best)


def with_few_bits(scales: NDArray, bits: int = _SCALE_BITS) -> NDArray[np.float32]:
    """Return positive scales, rounded up to few significant bits.

    LiteRT multiplies sums of products of int16 by 16-bit multipliers, which represent scales of up to 15 bits exactly
    if those of the activations are powers of two.
    """
    mantissa, exponent = np.frexp(scales.astype(np.float64))
    return np.ldexp(np.ceil(mantissa * (1 << bits)), exponent - bits).astype(np.float32)


def compensated(weights: Real, moments: Real, scale: Real, low: int = -127, high: int = 127) -> Real:
    """Round weights one by one, and adjust the remaining ones to compensate the error of the outputs.

    This is the method of Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
    Transformers, 2022: columns in descending order of the moments' diagonal, damped moments, the Cholesky
    factor of their inverse, and updates of the remaining columns in blocks.

    Parameters
    ----------
    weights : (outputs, products) float64 array
        Exact weights of each output.
    moments : (products, products) float64 array
        Mean products of any two of the elements that the weights multiply (the Hessian of half the squared
        error).
    scale : (outputs,) or (outputs, products) float64 array
        Step of the weights of each output, or of each weight.
    low, high : int
        Smallest and largest integer.

    Returns
    -------
    (outputs, products) float64 array
        Integers between `low` and `high`.
    """
    steps = np.broadcast_to(scale[:, None] if scale.ndim == 1 else scale, weights.shape)
    rounded, free = np.zeros_like(weights), ~_stay_zero(weights)

    def nearest(i: int, column: Real) -> Real:
        rounded[:, i] = np.clip(np.rint(column / steps[:, i]), low, high) * free[:, i]
        return rounded[:, i] * steps[:, i]

    _compensate(weights, moments, nearest)
    return rounded


def _compensate(weights: Real, moments: Real, choose: Callable[[int, Real], Real]) -> None:
    """Choose the weights of one product after the other, each time with the remaining ones adjusted to the errors.

    `choose` receives the index of a product and its adjusted weights, and returns its new weights. The method is that
    of `compensated`.
    """
    count = weights.shape[1]
    order = np.argsort(-np.diag(moments), kind="stable")
    rest = weights[:, order].copy()
    inverse = np.linalg.inv(damped(moments)[np.ix_(order, order)])
    upper = np.linalg.cholesky((inverse + inverse.T) / 2).T
    for start in range(0, count, _COMPENSATED_TOGETHER):
        stop = min(start + _COMPENSATED_TOGETHER, count)
        errors = np.zeros((len(weights), stop - start))
        for i in range(start, stop):
            errors[:, i - start] = (rest[:, i] - choose(int(order[i]), rest[:, i])) / upper[i, i]
            rest[:, i + 1 : stop] -= np.outer(errors[:, i - start], upper[i, i + 1 : stop])
        rest[:, stop:] -= errors @ upper[start:stop, stop:]


def _stay_zero(weights: Real) -> NDArray[np.bool_]:
    """Return which weights stay zero: all that are zero, if they are so many that the weights have been pruned."""
    zero = weights == 0
    return np.asarray(zero if zero.mean() >= _PRUNED else np.zeros_like(zero))


def prune_mask(
    weights: ArrayLike,
    pattern: str,
    *,
    share: float = 0.5,
    tile: int = 16,
    importance: ArrayLike | None = None,
) -> NDArray[np.bool_]:
    """Return which weights of a product remain if it is pruned.

    Parameters
    ----------
    weights : (outputs, inputs) or (outputs, kernel rows, kernel columns, inputs) array
        Weights of a dense layer or of a convolution.
    pattern : str
        "2:4": of each four consecutive inputs, for each output and kernel position, two remain, and of a last group of
        fewer inputs at most two. "tiles": tiles of `tile` outputs and as many inputs, at one kernel position, remain
        or are zero as a whole.
    share : float
        Share of the tiles that become zero, 0 to 1.
    tile : int
        Outputs and inputs of a tile: N of the machine.
    importance : array or None
        Factor of the square of each weight, by which weights are compared, in a shape that broadcasts to that of the
        weights; None for 1.

    Returns
    -------
    bool array
        True for weights that remain, of the same shape.

    Raises
    ------
    InputError
        The pattern is unknown, a number is out of range, the weights are not finite numbers in two or four dimensions,
        or the importance does not fit them.
    """
    check_pattern(pattern, share, tile)
    exact = _finite("weights", weights)
    if exact.ndim not in (2, 4) or not exact.size:
        raise InputError(f"weights must have two or four dimensions, not the shape {list(exact.shape)}")
    factors = np.ones(()) if importance is None else _finite("importance", importance)
    try:
        score = np.square(exact) * np.broadcast_to(factors, exact.shape)
    except ValueError:
        raise InputError(
            f"importance of shape {list(factors.shape)} must fit weights of shape {list(exact.shape)}"
        ) from None
    inputs = score.shape[-1]
    if pattern == "2:4":
        padded = np.full((*score.shape[:-1], -(-inputs // 4) * 4), -1.0)
        padded[..., :inputs] = score
        groups = padded.reshape(*score.shape[:-1], -1, 4)
        ranks = np.argsort(np.argsort(-groups, -1, kind="stable"), -1)
        return np.asarray((ranks < 2).reshape(padded.shape)[..., :inputs])
    tiles = np.add.reduceat(score, np.arange(0, len(score), tile), 0)
    tiles = np.add.reduceat(tiles, np.arange(0, inputs, tile), -1)
    remain = np.ones(tiles.size, np.bool_)
    remain[np.argsort(tiles.reshape(-1), kind="stable")[: round(share * tiles.size)]] = False
    wide = np.repeat(np.repeat(remain.reshape(tiles.shape), tile, 0), tile, -1)
    return wide[: len(score), ..., :inputs]


def _finite(name: str, values: ArrayLike) -> Real:
    """Return real numbers as a float64 array; raise InputError for others."""
    made = checks.array(name, values).astype(np.float64)
    if not np.isfinite(made).all():
        raise InputError(f"{name} must be finite numbers")
    return made


def check_pattern(pattern: str, share: float, tile: int) -> None:
    """Check the arguments of `prune_mask`.

    Raises
    ------
    InputError
        The pattern is unknown, or a number is out of range.
    """
    if pattern not in PATTERNS:
        raise InputError(f"pattern must be {' or '.join(map(repr, PATTERNS))}, not {pattern!r}")
    if not checks.is_number(share) or not 0 <= share <= 1:
        raise InputError(f"share must be a number from 0 to 1, not {shown(share)}")
    checks.integer("tile", tile, 1)


def pruned(
    weights: NDArray, pattern: str, *, share: float = 0.5, tile: int = 16, moments: Real | None = None
) -> NDArray:
    """Return weights of a product of which some are zero, and the others compensate the error of the outputs.

    Weights are compared by the error that their removal causes after compensation, and removed one after the other as
    `compensated` rounds them (Frantar and Alistarh, SparseGPT: Massive Language Models Can Be Accurately Pruned in
    One-Shot, 2023).

    The parameters are those of `prune_mask`, and `moments`: mean products of any two elements that the weights of an
    output multiply, as a (products, products) array; None to leave the remaining weights as they are.
    """
    if moments is None:
        return weights * prune_mask(weights, pattern, share=share, tile=tile)
    error = 1 / np.diag(np.linalg.inv(damped(moments)))
    mask = prune_mask(
        weights, pattern, share=share, tile=tile, importance=error.reshape(weights.shape[1:])[None]
    )
    rows = weights.astype(np.float64).reshape(len(weights), -1)
    remain = mask.reshape(rows.shape)
    made = np.zeros_like(rows)

    def masked(i: int, column: Real) -> Real:
        made[:, i] = column * remain[:, i]
        return made[:, i]

    _compensate(rows, moments, masked)
    a = damped(moments)
    slope = (made - rows) @ a
    for _ in range(_SWEEPS):  # towards the remaining weights with the smallest error of the outputs
        for i in range(rows.shape[1]):
            change = -slope[:, i] / a[i, i] * remain[:, i]
            made[:, i] += change
            slope += change[:, None] * a[i]
    return made.reshape(weights.shape).astype(weights.dtype)


def refined(
    weights: Real,
    rounded: Real,
    scale: Real,
    moments: Real,
    low: int,
    high: int,
    gradients: Real | None = None,
) -> Real:
    """Change rounded weights one at a time as long as this reduces the error of the outputs.

    The error is tr(G D A D^T), where D are the errors of the weights, A the moments of the operand and G
    those of the gradients at the outputs. With G = 1 it is the squared error of the outputs; otherwise it is
    the Kronecker-factored approximation of the loss of the whole network (Martens and Grosse, Optimizing
    Neural Networks with Kronecker-factored Approximate Curvature, 2015; used for rounding by Tseng et al.,
    Model-Preserving Adaptive Rounding, 2025), in which the errors of several outputs compensate each other.

    Parameters
    ----------
    weights, rounded : (outputs, products) float64 arrays
        Exact weights, and integers to start from.
    scale : (outputs, products) float64 array
        Step of each weight.
    moments : (products, products) float64 array
        Mean products of any two elements of the operand.
    low, high : int
        Smallest and largest integer.
    gradients : (outputs, outputs) float64 array or None
        Mean products of the gradients of the loss at any two outputs; None for the squared error of the
        outputs.

    Returns
    -------
    (outputs, products) float64 array
        Integers between `low` and `high`.
    """
    a, made, free = damped(moments), rounded.copy(), ~_stay_zero(weights)
    g = None if gradients is None else damped(gradients, _GRADIENT_DAMPING)
    slope: Real = (made * scale - weights) @ a
    slope = slope if g is None else np.asarray(g @ slope, np.float64)
    for _ in range(_SWEEPS):
        changed = False
        for i in range(weights.shape[1]):
            if g is None:
                wanted = made[:, i] - slope[:, i] / (a[i, i] * scale[:, i])
                moved = (np.clip(np.rint(wanted), low, high) - made[:, i]) * scale[:, i] * free[:, i]
                shift: Real = moved
            else:
                ends = low * free[:, i], high * free[:, i]
                moved = _moved(made[:, i], scale[:, i], slope[:, i], a[i, i], g, *ends)
                shift = np.asarray(g @ moved, np.float64)
            if moved.any():
                made[:, i] = np.rint(made[:, i] + moved / scale[:, i])
                slope += shift[:, None] * a[i]
                changed = True
        if not changed:
            break
    return made


def _moved(
    column: Real, scale: Real, slope: Real, curvature: float, g: Real, low: NDArray, high: NDArray
) -> Real:
    """Return the changes of one column of weights that reduce the error, each output after the other.

    `low` and `high` are the smallest and the largest integer of each weight.
    """
    slope, moved = slope.copy(), np.zeros(len(column))
    for row in range(len(column)):
        wanted = round(float(column[row] - slope[row] / (g[row, row] * curvature * scale[row])))
        change = (min(max(wanted, low[row]), high[row]) - column[row]) * scale[row]
        if change:
            moved[row] = change
            slope += g[:, row] * (change * curvature)
    return moved


def output_error(errors: NDArray, moments: Real, gradients: Real | None = None) -> float:
    """Return tr(G D A D^T) for errors D of weights; see `refined`."""
    through = errors @ moments
    return float(np.sum(errors * (through if gradients is None else gradients @ through)))


@dataclass(frozen=True)
class GroupWeights:
    """Weights with a scale for each output and group of products, and a scale of these for each output.

    Parameters
    ----------
    values : (outputs, products) int8 array
        Integers in the range of `bits` bits; -8..7 for 4 bits.
    group_scales : (outputs, groups) uint8 array
        Scale of each group, 1..255.
    channel_scales : (outputs,) float32 array
        Value of one unit of the group scales of each output.
    group : int
        Number of products of a group; the last group of an output may be smaller.
    bits : int
        Number of bits of a value.
    """

    values: NDArray[np.int8]
    group_scales: NDArray[np.uint8]
    channel_scales: NDArray[np.float32]
    group: int
    bits: int

    @property
    def scales(self) -> Real:
        """The step of the weights of each group, as (outputs, groups)."""
        return np.asarray(self.group_scales * self.channel_scales[:, None].astype(np.float64))

    @property
    def steps(self) -> Real:
        """The step of each weight, as (outputs, products)."""
        return np.repeat(self.scales, self.group, 1)[:, : self.values.shape[1]]

    def dequantized(self) -> NDArray[np.float32]:
        """Return the real numbers that the integers represent."""
        return np.asarray((self.values * self.steps).astype(np.float32))


def quantize_groups(
    weights: ArrayLike,
    bits: int = 4,
    *,
    group: int = 32,
    moments: ArrayLike | None = None,
    gradients: ArrayLike | None = None,
) -> GroupWeights:
    """Quantize a matrix of weights with a scale for each group of the reduction and output.

    Parameters
    ----------
    weights : (outputs, products) array
        Exact weights; each output is the sum of the products of a row with the operand.
    bits : int
        Number of bits of the integers, 2 to 8.
    group : int
        Number of consecutive products that share a scale.
    moments : (products, products) array or None
        Mean products of any two elements of the operand on calibration samples, for rounding with error
        compensation (`compensated`, `refined`). None: each weight is rounded to the nearest step.
    gradients : (outputs, outputs) array or None
        Mean products of the gradients of the loss at any two outputs, for `refined`; requires `moments`.

    Raises
    ------
    InputError
        `bits` or `group` is out of range, the weights are not a matrix of finite numbers that float32 represents, or
        moments or gradients do not fit them or are not positive semidefinite.
    """
    (low, high), bits, group = weight_range(bits), int(bits), checks.integer("group", group, 1)
    exact = _finite("weights", weights)
    if exact.ndim != 2 or not exact.size:
        raise InputError(
            f"weights must be a matrix of finite numbers, not an array of shape {list(exact.shape)}"
        )
    if np.abs(exact).max() > _MAX_WEIGHT:
        raise InputError(
            f"weights must be at most {_MAX_WEIGHT:.3g}, so that float32 represents them, not {np.abs(exact).max():.3g}"
        )
    if gradients is not None and moments is None:
        raise InputError("gradients must come with moments")
    moments = _checked_moments("moments", moments, exact.shape[1])
    gradients = _checked_moments("gradients", gradients, exact.shape[0])
    importance = None if moments is None else np.diag(moments)
    parts = [slice(start, start + group) for start in range(0, exact.shape[1], group)]
    ideal = [
        steps_of_rows(exact[:, part], bits, None if importance is None else importance[part])
        * np.any(exact[:, part], 1)
        for part in parts
    ]
    real = np.stack(ideal, 1)
    largest = real.max(1)
    unit = np.where(largest > 0, np.maximum(largest / _MAX_GROUP_SCALE, _LEAST_UNIT), 1 / _MAX_GROUP_SCALE)
    unit = unit.astype(np.float32)
    scales = np.clip(np.rint(real / unit[:, None].astype(np.float64)), 1, _MAX_GROUP_SCALE).astype(np.uint8)
    made = GroupWeights(np.zeros(exact.shape, np.int8), scales, unit, group, bits)
    steps = made.steps
    if moments is None:
        rounded = np.clip(np.rint(exact / steps), low, high)
    else:
        rounded = compensated(exact, moments, steps, low, high)
        rounded = refined(exact, rounded, steps, moments, low, high)
        if gradients is not None:
            rounded = refined(exact, rounded, steps, moments, low, high, gradients)
    return GroupWeights(rounded.astype(np.int8), scales, unit, group, bits)


def tune_groups(
    made: Mapping[Name, GroupWeights],
    exact: Mapping[Name, NDArray],
    gradients: Callable[[dict[Name, NDArray[np.float32]]], Mapping[Name, NDArray]],
    *,
    steps: int = 200,
    rate: float = 0.005,
) -> dict[Name, GroupWeights]:
    """Change the integers of all matrices of a model, together, so that a loss of the whole model decreases.

    `quantize_groups` rounds each matrix by statistics of the exact model. Here the errors of one matrix compensate
    those of the others. Each weight has a real number, in units of its step, that the integer rounds. Gradients of the
    loss at the rounded weights change the real numbers (straight-through estimation: Bengio et al., Estimating or
    Propagating Gradients Through Stochastic Neurons, 2013) by Adam (Kingma and Ba, 2014), with a rate that falls to 0
    as half a cosine. The scales remain as they are. A suitable loss is the divergence of the outputs from those of the
    exact model, on texts or images that need no labels (Hinton et al., Distilling the Knowledge in a Neural Network,
    2015): it has its minimum at the exact weights.

    Parameters
    ----------
    made : mapping of GroupWeights
        Quantized matrices by name, for example by `quantize_groups` with moments.
    exact : mapping of (outputs, products) arrays
        The same matrices before quantization.
    gradients : function
        Receives the quantized matrices as real numbers, and returns the gradient of the loss at each of them, of the
        same shape. It is called once for each step; each call should use other samples.
    steps : int
        Number of steps.
    rate : float
        Change of a real number in the first step, in units of the weight's step.

    Returns
    -------
    dict of GroupWeights
        Matrices with other integers in the range of their bits. As in `quantize_groups`, zeros of pruned weights stay.

    Raises
    ------
    InputError
        `steps` or `rate` is out of range, the names or shapes differ, or a gradient is not finite.
    """
    steps = checks.integer("steps", steps, 1)
    if not checks.is_number(rate) or not 0 < rate < math.inf:
        raise InputError(f"rate must be a positive number, not {shown(rate)}")
    checks.of_type("made", made, Mapping, "a dict of GroupWeights by name")
    for each in made.values():
        checks.of_type("each of made", each, GroupWeights, "a GroupWeights")
    if not callable(gradients):
        raise InputError(f"gradients must be a function, not {shown(gradients)}")
    real = _matrices("exact", {name: each.values for name, each in made.items()}, exact)
    tuned = {name: _Tuned(each, real[name]) for name, each in made.items()}
    for step in range(steps):
        given = gradients({name: each.rounded().dequantized() for name, each in tuned.items()})
        found = _matrices("gradients", real, given)
        for name, each in tuned.items():
            each.change(found[name], rate * (1 + math.cos(math.pi * step / steps)) / 2)
    return {name: each.rounded() for name, each in tuned.items()}


class _Tuned:
    """Real numbers that the integers of a matrix round, and the means of their gradients.

    Parameters
    ----------
    made : GroupWeights
        Quantized weights to start from.
    exact : (outputs, products) float64 array
        The same weights before quantization.
    """

    def __init__(self, made: GroupWeights, exact: Real):
        self._made, self._steps = made, made.steps
        integers = made.values.astype(np.float64)
        distance = np.clip(exact / self._steps - integers, -_START_DISTANCE, _START_DISTANCE)
        self._real, self._free = integers + distance, ~_stay_zero(exact)
        self._mean, self._square, self._count = np.zeros_like(integers), np.zeros_like(integers), 0

    def rounded(self) -> GroupWeights:
        """Return the matrix with the integers of the real numbers."""
        return replace(self._made, values=np.rint(self._real * self._free).astype(np.int8))

    def change(self, gradient: NDArray, rate: float) -> None:
        """Change the real numbers by about `rate`, given the gradient of the loss at the weights."""
        scaled, self._count = gradient * self._steps, self._count + 1
        self._mean += (1 - _MEAN_DECAY) * (scaled - self._mean)
        self._square += (1 - _SQUARE_DECAY) * (np.square(scaled) - self._square)
        mean = self._mean / (1 - _MEAN_DECAY**self._count)
        deviation = np.sqrt(self._square / (1 - _SQUARE_DECAY**self._count))
        change = np.divide(mean, deviation, out=np.zeros_like(mean), where=deviation > 0)
        low, high = weight_range(self._made.bits)
        self._real = np.clip(self._real - rate * change, low - _RANGE_DISTANCE, high + _RANGE_DISTANCE)


def _matrices(name: str, wanted: Mapping[Name, NDArray], given: Any) -> dict[Name, Real]:
    """Return matrices; raise InputError unless they have the names and shapes of others and are finite."""
    checks.of_type(name, given, Mapping, "a dict of arrays by name")
    if given.keys() != wanted.keys():
        raise InputError(f"{name} must have the matrices {list(wanted)}, not {list(given)}")
    made: dict[Name, Real] = {}
    for key in wanted:
        each = checks.array(f"{name} of {key!r}", given[key])
        if each.shape != wanted[key].shape or not np.isfinite(each).all():
            shape = " x ".join(map(str, wanted[key].shape))
            raise InputError(f"{name} of {key!r} must be {shape} finite numbers")
        made[key] = each.astype(np.float64)
    return made


def group_weights(
    graph: Graph,
    nodes: Sequence[str] | None = None,
    *,
    bits: int = 4,
    group: int = 32,
    samples: Calibration | None = None,
) -> Graph:
    """Quantize weights of a float model to integers with a scale for each group of products and output.

    The weights are those of dense nodes and of 1x1 convolutions without strides, pads and groups, which become dense.

    `compile` and `quantize` keep these integers, with a factor for each group, if the target has scaled sums.

    Parameters
    ----------
    graph : Graph
        A float model.
    nodes : sequence of str or None
        Names of such nodes; None: all with constant weights whose number of products is a multiple of `group`.
    bits, group : int
        As in `quantize_groups`.
    samples : Calibration or None
        Samples of the inputs, on which later weights compensate the errors of earlier ones; None: each weight is
        rounded to the nearest step.

    Raises
    ------
    InputError
        `bits` or `group` is out of range, a name is not that of such a node with constant float weights, the samples
        do not match the inputs or have infinite values, or the graph is not a Graph.
    """
    checks.of_type("graph", graph, Graph, "a Graph, for example of compiler.frontends.model.read_model")
    weight_range(bits)
    group = checks.integer("group", group, 1)
    nodes = None if nodes is None else checks.texts("nodes", nodes)
    graph, _ = without_hybrids(graph)
    chosen = [
        node
        for node in graph
        if (node.op == "dense" or _is_pointwise(graph, node))
        and all(tensor.data is not None and tensor.dtype == "float32" for tensor in graph.ins(node)[1:])
        and (graph.ins(node)[1].shape[-1] % group == 0 if nodes is None else node.name in nodes)
    ]
    for name in {*(nodes or ())} - {node.name for node in chosen}:
        raise InputError(
            f"nodes: {name!r} is not a dense node or 1x1 convolution with constant float weights"
        )
    given = samples_of(graph, samples) if samples is not None else []
    values = [evaluate(graph, sample, keep=True) for sample in with_states(graph, given)]
    changed: dict[str, Tensor] = {}
    made: dict[str, Node] = {}
    for node in chosen:
        exact = graph.ins(node)[1]
        assert exact.data is not None
        moments = moments_of_samples(graph, node, values)
        found = quantize_groups(
            exact.data.reshape(len(exact.data), -1),
            bits,
            group=group,
            moments=None if moments is None else moments[0],
        )
        parts = {"integers": found.values, "scales": found.scales.astype(np.float32)}
        names = [unused_name(f"{node.name}:{part}", graph.tensors) for part in parts]
        for name, data in zip(names, parts.values(), strict=True):
            changed[name] = Tensor(name, data.shape, data.dtype.name, data=data)
        inputs = (node.inputs[0], *names, *node.inputs[2:])
        made[node.name] = replace(node, op="block_dense", inputs=inputs, attributes={"block": group})
    return rebuild(graph, [made.get(node.name, node) for node in graph], changed=changed)


def _is_pointwise(graph: Graph, node: Node) -> bool:
    """Return whether a node is a convolution that multiplies the channels of each pixel by the same matrix."""
    if node.op != "conv2d" or any(node.attributes["pads"]) or node.attributes["groups"] != 1:
        return False
    return graph.ins(node)[1].shape[1:3] == (1, 1) == tuple(node.attributes["strides"])


def _checked_moments(name: str, moments: ArrayLike | None, size: int) -> Real | None:
    """Return moments as an array; raise InputError unless they are a positive semidefinite matrix of `size` rows."""
    if moments is None:
        return None
    if np.shape(moments) != (size, size):
        raise InputError(
            f"{name} must be {size} x {size} finite numbers, not of shape {list(np.shape(moments))}"
        )
    made = _finite(name, moments)
    largest = _ASYMMETRY * np.abs(made).max()
    symmetric = np.abs(made - made.T).max() <= largest
    made = (made + made.T) / 2
    try:
        np.linalg.cholesky(damped(made))
    except np.linalg.LinAlgError:
        symmetric = False
    if not symmetric or np.diag(made).min() < -largest:
        raise InputError(
            f"{name} must be a symmetric, positive semidefinite matrix: mean products of elements"
        )
    np.fill_diagonal(made, np.maximum(np.diag(made), 0))  # negative by rounding errors only
    return made


@dataclass(frozen=True)
class WeightReader:
    """A matrix of weights and the statistics with which to round it.

    Parameters
    ----------
    weights : (outputs, products) array
        Exact weights of each output.
    moments : (products, products) array
        Mean products of any two elements of the operand.
    gradients : (outputs, outputs) array or None
        Mean products of the gradients of the loss at any two outputs.
    """

    weights: NDArray
    moments: Real
    gradients: Real | None = None

    def scaled(self, factors: Real) -> "WeightReader":
        """Return the matrix for an operand whose elements are divided by factors."""
        return WeightReader(self.weights * factors, self.moments / np.outer(factors, factors), self.gradients)


def activation_scales(
    readers: Sequence[WeightReader],
    quantize: Callable[[WeightReader], NDArray],
    share: float = _DAMPING,
    *,
    channels: NDArray[np.intp] | None = None,
    least: Real | None = None,
    step: float = 0.0,
) -> Real:
    """Return factors by which to multiply the columns of weights before they are rounded.

    Elements of the operand that matter more get larger factors, and thereby finer steps (Lin et al., AWQ:
    Activation-aware Weight Quantization, 2023). The caller divides the operand by the factors, which is exact where a
    preceding operator has a factor of its own for each element: the gain of a normalization, or the scales of the
    rows of weights that compute the operand without a nonlinear function in between, or with one that commutes with
    positive factors, such as ReLU. An element matters by its variance given the later elements, which error
    compensation cannot remove; factors are a power of it, and the power with the smallest error of the outputs is
    chosen. With `least`, the factors are divided by a power of the root mean square of the column, too: columns of
    small weights would otherwise use little of the range of a step that larger ones determine, and elements that they
    multiply need few of the operand's integers.

    Parameters
    ----------
    readers : sequence of WeightReader
        All matrices that multiply the operand.
    quantize : function
        Returns the quantized weights of a reader, as real numbers.
    share : float
        Regularization of the moments.
    channels : (products,) int array or None
        Channel whose factor each element of the operand has; None if each element has its own.
    least : (channels,) float64 array or None
        Smallest factor of each channel of an operand of integers, with which its values fit their range. None: any
        factor is possible, and their geometric mean is 1.
    step : float
        Step of the operand's integers, whose rounding errors are multiplied by the factors; 0 for an exact operand.

    Returns
    -------
    (channels,) float64 array
        Positive factors; all 1 if no scaling reduces the error.

    Raises
    ------
    InputError
        There are no readers, or their moments or gradients do not fit them or are not positive semidefinite.

    Examples
    --------
    >>> readers = [WeightReader(weights, moments) for weights in (query, key, value)]
    >>> factors = activation_scales(
    ...     readers, lambda each: quantize_groups(each.weights, moments=each.moments).dequantized()
    ... )
    >>> gain, query = gain / factors, query * factors  # also key and value
    """
    if not readers:
        raise InputError("readers must be at least one WeightReader")
    products = readers[0].weights.shape[-1]
    for each in readers:
        if _finite("weights", each.weights).ndim != 2:
            raise InputError(f"weights must be a matrix, not an array of shape {list(each.weights.shape)}")
        _checked_moments("moments", each.moments, products)
        _checked_moments("gradients", each.gradients, len(each.weights))
    index = np.arange(products) if channels is None else channels
    count = int(index.max()) + 1
    total = sum(each.moments * _importance(each) for each in readers)
    upper = np.linalg.cholesky(np.linalg.inv(damped(np.asarray(total), share)))
    variance = np.bincount(index, np.square(1 / np.diag(upper)), count) / np.bincount(index, minlength=count)
    power = np.bincount(index, sum(np.square(each.weights).sum(0) for each in readers), count)
    size = np.maximum(power, power.max() * _LEAST_POWER) if power.any() else np.ones(count)
    best, fewest = np.ones(count), math.inf
    opposites = _SIZE_EXPONENTS[: 1 if least is None else None]
    for exponent, opposite in itertools.product(_EXPONENTS, opposites):
        factors = variance ** (exponent / 2) / size ** (opposite / 2)
        for tried in _shifted(factors / np.exp(np.log(factors).mean()), least):
            error = step**2 / 12 * float(np.square(tried) @ power)
            for each in readers:
                made = each.scaled(tried[index])
                error += output_error(quantize(made) - made.weights, made.moments, made.gradients)
            if error < fewest:
                best, fewest = tried, error
    return best


def _shifted(factors: Real, least: Real | None) -> list[Real]:
    """Return factors that are not less than the least ones: with the same ratios, and with most ratios the same."""
    if least is None:
        return [factors]
    needed = least / factors
    shifts = (needed.max(), np.quantile(needed, _KEPT_RATIOS), np.median(needed))
    return [np.minimum(np.maximum(factors * shift, least), MAX_FACTOR) for shift in shifts]


def _importance(reader: WeightReader) -> float:
    return 1.0 if reader.gradients is None else float(np.trace(reader.gradients))


def as_rows(weights: NDArray, axis: int, groups: int) -> NDArray:
    """Return weights as (groups, outputs of a group, products of an output)."""
    channels = weights.shape[axis]
    return np.moveaxis(weights, axis, 0).reshape(groups, channels // groups, -1)


def from_rows(rows: NDArray, axis: int, shape: tuple[int, ...]) -> NDArray:
    """Reverse `as_rows`."""
    others = tuple(size for i, size in enumerate(shape) if i != axis)
    return np.moveaxis(rows.reshape(shape[axis], *others), 0, axis)


#: Maximum number of products of an output, and of outputs per sample, whose moments are measured.
MAX_PRODUCTS, _MAX_OUTPUTS = 1536, 512


def moments_of(node: Node, weights: NDArray, values: Sequence[NDArray]) -> Real | None:
    """Return the mean products of any two elements that contribute to one output, for each group of channels.

    Parameters
    ----------
    node : Node
        Product with constant weights.
    weights : array
        Weights in the operator's layout.
    values : list of array
        Values of the operand for some samples.

    Returns
    -------
    (groups, products, products) array or None
        None for transposed convolutions, for too many products, and without finite samples.
    """
    found = statistics_of(node, weights, values)
    return None if found is None else found[0]


def moments_of_samples(graph: Graph, node: Node, values: Sequence[Mapping[str, NDArray]]) -> Real | None:
    """Return the moments of the operand of a product with constant weights, as `moments_of`.

    Parameters
    ----------
    graph : Graph
        The graph of the node.
    node : Node
        The product with constant weights.
    values : list of dict
        Values of all tensors for some samples.

    Raises
    ------
    InputError
        An operand has infinite values.
    """
    name, weights = node.inputs[0], graph.ins(node)[1].data
    assert weights is not None
    operands = [each[name] for each in values]
    if not all(np.isfinite(each).all() for each in operands):
        what = f"input {name!r}" if name in graph.inputs else f"{name!r}, which {node.name!r} multiplies,"
        raise InputError(f"samples: {what} must be finite, but has infinite values")
    return moments_of(node, weights, operands)


def statistics_of(
    node: Node, weights: NDArray, values: Sequence[NDArray], *, centred: bool = False
) -> tuple[Real, Real] | None:
    """Return the mean products of any two elements that contribute to one output, and their means.

    Parameters and conditions are those of `moments_of`; shapes are (groups, products, products) and (groups,
    products). With `centred`, moments are those of the deviations from the means, with the variance that elements
    which are constant on the samples may have on others. They are summed without cancellation, as one sample after the
    other is added (Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances,
    1979).
    """
    depthwise = node.op == "depthwise_conv2d"
    products = weights[..., 0].size if depthwise else weights[0].size
    if node.op == "conv_transpose2d" or products > MAX_PRODUCTS or not values:
        return None
    total, means, power, count = 0.0, 0.0, 0.0, 0
    for each in values:
        rows = _multiplied(node, weights, each.astype(np.float64))
        added = rows.shape[1]
        if centred:
            own = rows.mean(1)
            apart = own - means
            power = power + np.square(rows).sum((1, 2))
            rows = rows - own[:, None]
            total = total + apart[:, :, None] * apart[:, None] * (count * added / (count + added))
            means = means + apart * (added / (count + added))
        else:
            means = means + (rows.mean(1) - means) * (added / (count + added))
        total, count = total + rows.swapaxes(1, 2) @ rows, count + added
    moments, found = np.asarray(total) / count, np.asarray(means)
    if centred:
        least = _LEAST_VARIANCE * np.asarray(power) / (count * products)
        moments = moments + least[:, None, None] * np.eye(products)
    return (moments, found) if np.isfinite(moments).all() else None


def _multiplied(node: Node, weights: NDArray, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the elements that some outputs multiply, as (groups, outputs, products)."""
    if node.op == "dense":
        rows = x.reshape(1, -1, x.shape[-1])
        return rows[:, :: -(-rows.shape[1] // _MAX_OUTPUTS)]
    depthwise = node.op == "depthwise_conv2d"
    kernel = weights.shape[:2] if depthwise else weights.shape[1:3]
    (top, left, bottom, right), (dy, dx) = node.attributes["pads"], node.attributes["dilations"]
    sy, sx = node.attributes["strides"]
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    extent = ((kernel[0] - 1) * dy + 1, (kernel[1] - 1) * dx + 1)
    windows = sliding_window_view(padded, extent, (1, 2))[:, ::sy, ::sx, :, ::dy, ::dx]
    step = -(-windows.shape[0] * windows.shape[1] * windows.shape[2] // _MAX_OUTPUTS)
    places = np.unravel_index(np.arange(0, math.prod(windows.shape[:3]), step), windows.shape[:3])
    taken = windows[places]  # (outputs, channels, kernel height, kernel width)
    groups = taken.shape[1] if depthwise else node.attributes["groups"]
    split = taken.reshape(len(taken), groups, -1, *kernel).transpose(1, 0, 3, 4, 2)
    return split.reshape(groups, len(taken), -1)
