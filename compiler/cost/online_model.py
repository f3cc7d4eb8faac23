"""Online cost model: predictions for one network, which are corrected by measurements during a search.

Measured cycles are first attributed to layers. While FUSE executes a FUSE-only layer, the next layer's MATRIX command
may already be waiting, and the cycles may be attributed to either layer. Only the sum of both layers' cycles is
reliable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import hypot, log, log2

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import FeatureRow, row_maker
from compiler.cost.learned_model import (
    CycleModel,
    PredictionErrors,
    fit_machine,
    layer_of,
    train,
    train_spread,
)
from compiler.layers.base import Layer
from compiler.layers.conv.layer import ConvLayer
from compiler.layers.conv_transpose import ConvTransposeLayer
from compiler.layers.depthwise import DepthwiseLayer
from compiler.layers.matmul import MatmulLayer
from compiler.layers.resize_runs import ResizeLayer
from compiler.lowering.lower import LoweredNetwork
from compiler.profile.measurement import HardwareProfile
from compiler.schedule.schedule import LayerSchedule

_MATRIX = (ConvLayer, DepthwiseLayer, ConvTransposeLayer, MatmulLayer, ResizeLayer)


def attribution_groups(layers: Sequence[Layer]) -> list[tuple[str, ...]]:
    """Return groups of layers with reliable total cycles: any layers without MATRIX, then one with MATRIX."""
    out: list[tuple[str, ...]] = []
    waiting: list[str] = []
    for layer in layers:
        waiting.append(layer.name)
        if isinstance(layer, _MATRIX):
            out.append(tuple(waiting))
            waiting = []
    return out + [(name,) for name in waiting]


def apportion(
    layers: Sequence[Layer], cycles: Mapping[str, float], expected: Mapping[str, float]
) -> dict[str, float]:
    """Distribute the measured cycles of each group over its layers, in proportion to their expected cycles."""
    out = {}
    for names in attribution_groups(layers):
        total, of_all = (sum(each[name] for name in names) for each in (cycles, expected))
        out |= {name: total * expected[name] / of_all for name in names}
    return out


Floats = NDArray[np.float64]
Schedules = Mapping[str, LayerSchedule]

#: Number of trials between trainings; minimum number of measured layers for a training; number of trees of a member.
_TRAINING_INTERVAL_TRIALS, _MIN_TRAINING_LAYERS, _TREES_PER_MEMBER = 4, 24, 30
#: Similarity decays as exp(-0.7 d), d = log2 of the size ratios plus differing flags.
_DECAY_PER_OCTAVE = 0.7
#: Weight of a measurement of an identical or similar schedule, relative to that of the model's prediction.
_SAMPLE_WEIGHT = 4.0
#: Prior relative error of predictions, and its weight as a number of measurements.
_PRIOR_ERROR, _PRIOR_WEIGHT = 0.03, 4
#: Weight of a measurement of exactly the predicted schedule.
_EXACT_WEIGHT = 1e6


@dataclass(frozen=True)
class _Known:
    """Measured layer: its features, its schedule as a vector, and its cycles."""

    row: FeatureRow
    schedule_vector: Floats
    cycles: float


@dataclass(frozen=True)
class CostPrediction:
    """Predicted cycles of a layer, or nanojoules, under several schedules, and the expected relative errors."""

    cost: Floats
    spread: Floats


class OnlineCostModel:
    """Cost model of the layers of one network, which learns from measurements of the network.

    Parameters
    ----------
    conditions : HardwareProfile
        Configuration of the machine and timing of its memory.
    stages : sequence of LoweredNetwork
        Stages of the network, with their layers.
    model : CycleModel
        Model trained on other networks.
    seed : int
        Random seed of the training.
    energy : bool
        True if the model predicts, and learns from, nanojoules instead of cycles (`energy_model`).
    """

    def __init__(
        self,
        conditions: HardwareProfile,
        stages: Sequence[LoweredNetwork],
        model: CycleModel,
        seed: int,
        *,
        energy: bool = False,
    ):
        self.conditions, self.model, self.seed, self.energy = conditions, model, seed, energy
        makers = [row_maker(stage, conditions) for stage in stages]
        self._maker = {layer.name: maker for maker in makers for layer in maker.layers}
        self._own = CycleModel((), {})
        self._known: dict[str, list[_Known]] = {}
        self._energy_rows: dict[int, tuple[FeatureRow, FeatureRow]] = {}
        #: Rows whose costs were predicted, by identity, with the log cost and the spread of `model` and of both models.
        self._of_model: dict[int, tuple[FeatureRow, float, float]] = {}
        self._of_both: dict[int, tuple[float, float]] = {}
        #: Logarithms of measured to predicted cycles of the known schedules of a layer, while both stay the same.
        self._wrong: dict[str, Floats] = {}
        self._trials = self._count = 0
        self._squares = _PRIOR_WEIGHT * _PRIOR_ERROR**2
        self._pairs: list[tuple[float, float]] = []

    def predict(self, name: str, candidates: Sequence[LayerSchedule], now: Schedules) -> CostPrediction:
        """Return the predicted cycles of one layer under candidate schedules, with all other layers unchanged."""
        return self.predict_in(name, [{**now, name: candidate} for candidate in candidates])

    def predict_in(self, name: str, networks: Sequence[Schedules]) -> CostPrediction:
        """Return the predicted cycles of one layer under several schedules of all layers."""
        logs, spread = self._log_predictions([self._row(name, layers[name], layers) for layers in networks])
        correction, near = self._nearby(
            name, np.array([_schedule_vector(layers[name]) for layers in networks])
        )
        error = (self._squares / (_PRIOR_WEIGHT + self._count)) ** 0.5
        return CostPrediction(np.exp(logs + correction), np.sqrt(spread**2 + error**2) * (1 - near))

    def learn(self, name: str, schedule: LayerSchedule, now: Schedules, cycles: float) -> None:
        """Record the measured cycles of a layer."""
        cycles = max(cycles, 1.0)
        expected = float(self.predict(name, [schedule], now).cost[0])
        self._squares += min(log(cycles / expected) ** 2, 1.0)
        self._count += 1
        row = self._row(name, schedule, now)
        self._wrong.pop(name, None)
        self._known.setdefault(name, []).append(_Known(row, np.array(_schedule_vector(schedule)), cycles))

    def trial(self, predicted: float, measured: float) -> None:
        """Record a measurement of the whole network, and every few trials, train on all measured layers."""
        self._pairs.append((predicted, measured))
        self._trials += 1
        if self._trials % _TRAINING_INTERVAL_TRIALS == 0 and self._count >= _MIN_TRAINING_LAYERS:
            known = [each for of_layer in self._known.values() for each in of_layer]
            rows = [each.row for each in known]
            before, _ = self.model.predict_many(rows)
            offsets = np.log(before / np.array([row.base for row in rows]))
            self._wrong.clear()
            self._of_both.clear()
            self._own = train(
                rows, [each.cycles for each in known], self.seed, rounds=_TREES_PER_MEMBER, offsets=offsets
            )

    @property
    def errors(self) -> PredictionErrors:
        """Errors of the cycles that were predicted for the whole network before each measurement."""
        return PredictionErrors.from_pairs([a for a, _ in self._pairs], [b for _, b in self._pairs])

    def _log_predictions(self, rows: Sequence[FeatureRow]) -> tuple[Floats, Floats]:
        """Return log cycles and spreads from the calibrated model, corrected by the model of this network."""
        new = {id(row): row for row in rows if id(row) not in self._of_model}
        cycles, spreads = self.model.predict_many(list(new.values()))
        for (key, row), *found in zip(new.items(), np.log(cycles).tolist(), spreads.tolist(), strict=True):
            self._of_model[key] = row, *found  # the row is kept, so that its identity remains unique
        stale = {id(row): row for row in rows if id(row) not in self._of_both}
        more, own = self._own.predict_many(list(stale.values()))
        for (key, row), ratio, spread in zip(stale.items(), more.tolist(), own.tolist(), strict=True):
            _, logs, of_model = self._of_model[key]
            self._of_both[key] = logs + log(ratio / row.base), hypot(of_model, spread)
        found = np.array([self._of_both[id(row)] for row in rows]).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def _nearby(self, name: str, vectors: Floats) -> tuple[Floats, Floats]:
        """Return corrections to log cycles from similar measured schedules of a layer, and the largest similarities."""
        known = self._known.get(name, [])
        if not known or not len(vectors):
            return np.zeros(len(vectors)), np.zeros(len(vectors))
        if name not in self._wrong:
            logs, _ = self._log_predictions([each.row for each in known])
            self._wrong[name] = np.log([each.cycles for each in known]) - logs
        wrong = self._wrong[name]
        distance = np.abs(vectors[:, None, :] - np.array([each.schedule_vector for each in known])[None]).sum(
            axis=2
        )
        like = np.exp(-_DECAY_PER_OCTAVE * distance)
        weight = like**2 * _SAMPLE_WEIGHT
        exact = like == 1.0
        weight[exact] = _EXACT_WEIGHT
        return (weight @ wrong) / (weight.sum(axis=1) + 1), like.max(axis=1)

    def _row(self, name: str, schedule: LayerSchedule, now: Schedules) -> FeatureRow:
        row = self._maker[name].rows({**now, name: schedule}, (name,))[name]
        if not self.energy:
            return row
        if id(row) not in self._energy_rows:
            self._energy_rows[id(row)] = row, row.for_energy
        return self._energy_rows[id(row)][1]


@dataclass(frozen=True)
class LayerSample:
    """Measured layer: its features and its cycles."""

    row: FeatureRow
    cycles: float


@dataclass(frozen=True)
class Retraining:
    """Retrained model that is better than the current one.

    Parameters
    ----------
    model : CycleModel
        Model that was trained on all samples; `layers` are those of the samples if it is only better for them.
    samples : list of LayerSample
        Distinct samples that it was trained on.
    before, after : float
        Mean absolute errors of the current and of the retrained model on held-out samples, as fractions.
    """

    model: CycleModel
    samples: list[LayerSample]
    before: float
    after: float


#: Minimum number of distinct samples; reciprocal of the fraction that is held out; folds of the layers that are left
#: out in turn; minimum relative reduction of the error by a model that replaces another.
_MIN_SAMPLES, _HELD_OUT, _LAYER_FOLDS, _MIN_REDUCTION = 100, 4, 4, 0.05
#: Number of trees of a member of a retrained model.
_RETRAINED_TREES = 80


def samples_of(
    layers: Sequence[Layer], rows: Mapping[str, FeatureRow], cycles: Mapping[str, float]
) -> list[LayerSample]:
    """Return the samples of a measured stage; `cycles` are those of the layers that have a counter of their own."""
    out = []
    for names in attribution_groups(layers):
        if all(cycles.get(name, 0) > 0 for name in names):
            total, of_all = sum(cycles[name] for name in names), sum(rows[name].base for name in names)
            out += [LayerSample(rows[name], total * rows[name].base / of_all) for name in names]
    return out


def retrained(
    current: CycleModel, samples: Sequence[LayerSample], standard: CycleModel, seed: int = 0
) -> Retraining | None:
    """Train a model on samples, and return it if it is better than the current one on held-out samples.

    Trees that are also better on layers that they have not been trained on predict all layers. Otherwise, they predict
    the layers of the samples only, and the standard model predicts all others.

    Parameters
    ----------
    current : CycleModel
        Model that is replaced if the new one is better.
    samples : sequence of LayerSample
        Measured layers, oldest first; of samples with equal features, the last one is used.
    standard : CycleModel
        Model of layers of which there is no sample.
    seed : int
        Random seed of the training.

    Returns
    -------
    Retraining or None
        None if there are fewer than 100 distinct samples, or if the new model is not better by at least 5%.
    """
    distinct = list({tuple(each.row.numbers): each for each in samples}.values())
    if len(distinct) < _MIN_SAMPLES:
        return None
    rows, cycles = [each.row for each in distinct], np.array([each.cycles for each in distinct])
    held = np.arange(len(distinct)) % _HELD_OUT == 0
    part = _with_spread(rows, cycles, ~held, seed)
    before = _mean_error(current, rows, cycles, held)
    after = _mean_error(part, rows, cycles, held)
    if not after < before * (1 - _MIN_REDUCTION):
        return None
    model = _with_spread(rows, cycles, np.ones(len(rows), bool), seed)
    if not _better_elsewhere(standard, rows, cycles, seed):
        model = replace(model, layers=frozenset(map(layer_of, rows)))
    return Retraining(model, distinct, before, after)


def _with_spread(
    rows: Sequence[FeatureRow], cycles: Floats, chosen: NDArray[np.bool_], seed: int
) -> CycleModel:
    """Train a model on the chosen rows, with the spread of its errors on rows that were held out in turn."""
    numbers = np.flatnonzero(chosen).tolist()
    own, measured = [rows[number] for number in numbers], cycles[numbers]
    fold, errors = np.arange(len(own)) % _HELD_OUT, np.zeros(len(own))
    for each in range(_HELD_OUT):
        there, here = np.flatnonzero(fold != each).tolist(), np.flatnonzero(fold == each).tolist()
        guess = _for_machine([own[number] for number in there], measured[there], seed)
        errors[here] = np.abs(
            np.log(guess.predict_many([own[number] for number in here])[0] / measured[here])
        )
    features = np.array([row.numbers for row in own])
    spread = train_spread(features, errors, list(range(len(own))), seed)
    return replace(_for_machine(own, measured, seed), error=spread)


def _for_machine(rows: Sequence[FeatureRow], cycles: Floats, seed: int) -> CycleModel:
    """Train a model on measurements of one machine: a fit of the estimate, which trees correct."""
    machine = fit_machine(rows, cycles)
    model = CycleModel((), {}, machine=machine)
    offsets = np.log(model.bases(rows) / np.array([row.base for row in rows]))
    trees = train(rows, cycles.tolist(), seed, rounds=_RETRAINED_TREES, offsets=offsets)
    return replace(trees, machine=machine)


def _better_elsewhere(standard: CycleModel, rows: Sequence[FeatureRow], cycles: Floats, seed: int) -> bool:
    """Return True if trees are better than the standard model on layers that they have not been trained on."""
    known = {layer: number for number, layer in enumerate(dict.fromkeys(map(layer_of, rows)))}
    fold = np.array([known[layer_of(row)] % _LAYER_FOLDS for row in rows])
    guess = np.zeros(len(rows))
    for each in range(_LAYER_FOLDS):
        there, here = np.flatnonzero(fold != each).tolist(), np.flatnonzero(fold == each).tolist()
        if not len(there) or not len(here):
            return False
        model = _for_machine([rows[number] for number in there], cycles[there], seed)
        guess[here] = model.predict_many([rows[number] for number in here])[0]
    wrong = float(np.abs(guess / cycles - 1).mean())
    return wrong < (1 - _MIN_REDUCTION) * _mean_error(standard, rows, cycles, np.ones(len(rows), bool))


def _mean_error(
    model: CycleModel, rows: Sequence[FeatureRow], cycles: Floats, chosen: NDArray[np.bool_]
) -> float:
    numbers = np.flatnonzero(chosen).tolist()
    guess, _ = model.predict_many([rows[number] for number in numbers])
    return float(np.abs(guess / cycles[numbers] - 1).mean())


@lru_cache(maxsize=1 << 16)
def _schedule_vector(schedule: LayerSchedule) -> list[float]:
    """Return a schedule as a vector whose L1 distance measures dissimilarity."""
    out = []
    for value in (getattr(schedule, each.name) for each in fields(schedule)):
        if isinstance(value, str):
            out.append(float(value == "rows"))
        else:
            out.append(float(value) if isinstance(value, bool) else log2(1 + value))
    return out
