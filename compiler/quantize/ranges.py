"""Calibrated ranges of tensors, and the choice of int8 quantizations with minimum error."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compiler.ir.tensor import Quantization

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
