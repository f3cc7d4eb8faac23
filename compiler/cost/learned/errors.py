"""Error measures of predictions against measurements."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class PredictionErrors:
    """Errors of a set of predictions.

    Parameters
    ----------
    count : int
        Number of predictions.
    mape : float
        Mean absolute error, in percent of the measured values.
    spearman : float
        Rank correlation; 1 for fewer than two predictions.
    """

    count: int
    mape: float
    spearman: float

    @classmethod
    def of(cls, predicted: ArrayLike, measured: ArrayLike) -> "PredictionErrors":
        """Errors of pairs of predicted and measured values."""
        a, b = np.asarray(predicted, float), np.asarray(measured, float)
        mape = 100 * float(np.mean(np.abs(a / b - 1))) if len(a) else 0.0
        return cls(len(a), mape, spearman(a, b))

    def as_json(self) -> dict[str, float]:
        """Values for JSON, by name."""
        return {"count": self.count, "mape": round(self.mape, 3), "spearman": round(self.spearman, 5)}


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Correlation of the ranks of two series; those that are equal share the mean of their ranks."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 1.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]
