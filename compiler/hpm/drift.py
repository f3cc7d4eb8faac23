"""Whether the conditions are still those that predictions are for, by the predictions' own errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from statistics import median

from compiler.hpm.model import Model
from compiler.hpm.rows import rows_of
from compiler.lower.lower import Lowered
from compiler.measure.conditions import Conditions
from compiler.schedule.dram import Dram
from compiler.schedule.schedule import LayerSchedule

#: Inferences from which each layer's usual error is taken.
_LEARN = 30
#: A layer's errors are taken to spread at least so much: in logarithms.
_LEAST_SPREAD = 0.01
#: No single error counts as more than so many spreads: a rare disturbance is no drift.
_MOST = 4.0
#: Spreads that an error must be beyond to count, and the sum of what they are beyond at which drift is called.
_SLACK, _ALARM = 1.5, 24.0
#: Median absolute deviation of a normal distribution, in standard deviations.
_MAD = 0.6745
#: What the memory may have become: its latency, and its bytes a cycle as a part of N.
_LATENCIES = (50, 100, 200, 400, 800)
_PARTS = (1.0, 0.5, 0.25, 0.125)


@dataclass
class _Cusum:
    """Page's test of one layer, to both sides.

    The sums grow by what a standardized error is beyond the slack, and fall to zero by as much else.
    """

    first: list[float] = field(default_factory=list)
    centre: float = 0.0
    spread: float = _LEAST_SPREAD
    up: float = 0.0
    down: float = 0.0

    def add(self, error: float) -> bool:
        """Take an error; whether it is drift by now."""
        if len(self.first) < _LEARN:
            self.first.append(error)
            if len(self.first) == _LEARN:
                self.centre = median(self.first)
                away = median(abs(each - self.centre) for each in self.first)
                self.spread = max(away / _MAD, _LEAST_SPREAD)
            return False
        z = max(-_MOST, min(_MOST, (error - self.centre) / self.spread))
        self.up, self.down = max(0.0, self.up + z - _SLACK), max(0.0, self.down - z - _SLACK)
        return max(self.up, self.down) > _ALARM


class Drift:
    """Watches a network's layers, inference by inference.

    The first inferences are taken to be as usual; a test then runs for each layer by itself, as a slower memory is felt
    by those layers that wait for it and by no others.

    Parameters
    ----------
    predicted : dict
        Cycles of each layer, by name.

    Attributes
    ----------
    drifted : tuple of str
        Layers that have drifted; () while none has.
    """

    def __init__(self, predicted: Mapping[str, float]):
        self.predicted = dict(predicted)
        self._tests = {name: _Cusum() for name in predicted}
        self.drifted: tuple[str, ...] = ()

    def add(self, measured: Mapping[str, float]) -> bool:
        """Take the cycles of an inference's layers; whether the conditions have changed by now."""
        gone = [
            name
            for name, cycles in measured.items()
            if name in self._tests and self._tests[name].add(_error(cycles, self.predicted[name]))
        ]
        self.drifted = tuple(dict.fromkeys((*self.drifted, *gone)))
        return bool(self.drifted)

    def usual(self) -> dict[str, float]:
        """Of each layer by how much predictions are usually wrong: logarithms of measured over predicted."""
        return {name: test.centre for name, test in self._tests.items()}


@dataclass(frozen=True)
class Fit:
    """Conditions, and how far they are from what was measured: a mean logarithm, about a relative error."""

    conditions: Conditions
    error: float


def memories(conditions: Conditions) -> list[Conditions]:
    """What the memory of a machine may have become, as it is now first."""
    n = conditions.config.n
    others = [Conditions(conditions.config, Dram(each, n * part)) for each in _LATENCIES for part in _PARTS]
    return [conditions, *(each for each in others if each.key != conditions.key)]


def fits(
    model: Model, stage: Lowered, schedules: Mapping[str, LayerSchedule], measured: Mapping[str, float],
    candidates: Sequence[Conditions], usual: Mapping[str, float] | None = None,
) -> list[Fit]:  # fmt: skip
    """Which conditions explain measured layers best, the best first.

    Parameters
    ----------
    model : Model
        Predicts cycles.
    stage : Lowered
        The layers.
    schedules : dict
        Of all of them.
    measured : dict
        Cycles by name, of those that were measured.
    candidates : sequence of Conditions
        What may be the case.
    usual : dict or None
        As `Drift.usual` gives it.
    """
    out = []
    for conditions in candidates:
        rows = rows_of(stage, schedules, conditions, tuple(measured))
        guess = {name: model.predict(row).cycles for name, row in rows.items()}
        total = sum(measured[name] for name in guess)
        errors = (
            abs(_error(measured[name], cycles) - (usual or {}).get(name, 0.0)) * measured[name]
            for name, cycles in guess.items()
        )
        out.append(Fit(conditions, sum(errors) / max(total, 1.0)))
    return sorted(out, key=lambda fit: fit.error)


def _error(measured: float, predicted: float) -> float:
    return log(max(measured, 1.0) / max(predicted, 1.0))
