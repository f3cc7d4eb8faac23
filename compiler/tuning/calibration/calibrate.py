"""Training of the learned cost model on measurements of small networks, and its errors on held-out networks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from compiler import __version__
from compiler.cost.features import NAMES, FeatureRow, rows_of
from compiler.cost.learned_model import CycleModel, PredictionErrors, train, train_spread
from compiler.cost.online_model import apportion
from compiler.ir.identity import stored
from compiler.lowering.lower import LoweredNetwork
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.calibration.collect import (
    CalibrationCollector,
    CalibrationJournal,
    CalibrationSample,
    Spaces,
    calibration_options,
)
from hw.errors import WorkError

#: Reciprocal of the fraction of networks that are held out of training to measure the error.
_HELD_OUT_INTERVAL = 6
#: Number of parts of the networks that are held out in turn to measure the errors on which the spread is trained.
_FOLDS = 3
#: Minimum number of measured networks.
_MIN_NETWORKS = 2 * _HELD_OUT_INTERVAL
#: Maximum number of predictions that are timed.
_MAX_TIMED = 200


@dataclass(frozen=True)
class MeasuredLayers:
    """Features and measured cycles of the layers of a sample, in the order of the layers' names."""

    sample: CalibrationSample
    rows: list[FeatureRow]
    cycles: list[float]
    names: list[str]


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration.

    Parameters
    ----------
    model : CycleModel
        Cost model trained on all measurements.
    samples, fresh : int
        Total number of measurements, and number of measurements made in this run.
    single, chain : PredictionErrors
        Errors on held-out networks with one and with several operators, for a model trained on the other networks.
    everything : PredictionErrors
        Errors on all held-out networks.
    prediction_us : float
        Median time of a prediction from features, in microseconds.
    features_us : float
        Median time to compute the features of a layer, in microseconds.
    """

    model: CycleModel
    samples: int
    fresh: int
    single: PredictionErrors
    chain: PredictionErrors
    everything: PredictionErrors
    prediction_us: float
    features_us: float


def calibrate(
    conditions: HardwareProfile,
    seconds: float,
    journal: CalibrationJournal,
    spaces: Spaces,
    seed: int = 0,
    devices: int | None = 1,
    log: Callable[[str], None] = lambda _text: None,
) -> Calibration:
    """Measure networks for a given time, and train the model on these and the journal's earlier measurements.

    Parameters
    ----------
    conditions : HardwareProfile
        Machine configuration and DRAM timing.
    seconds : float
        Time limit of the measurements in seconds.
    journal : CalibrationJournal
        File with earlier measurements, to which new ones are appended.
    spaces : callable
        Returns the search spaces of a network's layers.
    seed : int
        Seed of the networks and of the training.
    devices : int or None
        Number of simulators that run concurrently; None for one per core.
    log : callable
        Called with each progress message.

    Raises
    ------
    WorkError
        Too few networks could be measured, a simulator died, or a disk is full.
    """
    fresh = CalibrationCollector(conditions, journal, seed, spaces, log).run(seconds, devices)
    if len({sample.index for sample in journal.samples}) < _MIN_NETWORKS:
        raise WorkError(
            f"fewer than {_MIN_NETWORKS} networks could be measured in {seconds:g} s: increase the time limit"
        )
    log(f"training on {len(journal.samples)} measurements")
    return learn(conditions, journal.samples, fresh, seed)


def learn(
    conditions: HardwareProfile, samples: Sequence[CalibrationSample], fresh: int, seed: int = 0
) -> Calibration:
    """Train a model on samples, and measure its errors on held-out networks."""
    return learn_from(features_of(samples, conditions), conditions, fresh, seed)


def learn_from(
    measured: Sequence[MeasuredLayers],
    conditions: HardwareProfile,
    fresh: int,
    seed: int = 0,
    names: tuple[str, ...] = NAMES,
) -> Calibration:
    """Train a model on measured layers, and measure its errors on held-out networks.

    The trees are kept only if the median error on held-out networks is lower than without them. `names` are the names
    of the features.
    """
    held_out = [each for each in measured if each.sample.index % _HELD_OUT_INTERVAL == 0]
    others = [each for each in measured if each.sample.index % _HELD_OUT_INTERVAL]
    evaluated, without = (_train(others, seed, names, trees=trees) for trees in (True, False))
    better = bool(_median_error(evaluated, held_out) < _median_error(without, held_out))
    evaluated = evaluated if better else without
    pairs = [
        (len(each.sample.point.ops), sum(evaluated.predict_many(each.rows)[0]), each.sample.cycles)
        for each in held_out
    ]

    def errors(min_ops: int, max_ops: int) -> PredictionErrors:
        chosen = [(p, m) for ops, p, m in pairs if min_ops <= ops <= max_ops]
        return PredictionErrors.from_pairs([p for p, _ in chosen], [m for _, m in chosen])

    single, chain, everything = errors(1, 1), errors(2, 99), errors(1, 99)
    about = {
        "compiler": __version__,
        "config": stored(conditions.config),
        "dram_latency": conditions.dram.latency,
        "dram_bytes_per_cycle": conditions.rate,
        "conditions": conditions.key,
        "samples": len(measured),
        "seed": seed,
        "trees": better,
        "covered": round(_covered(evaluated, held_out), 4),
        "single": single.as_json(),
        "chain": chain.as_json(),
    }
    model = replace(_train(measured, seed, names, trees=better), about=about)
    rows = [row for each in held_out for row in each.rows][:_MAX_TIMED]
    return Calibration(
        model,
        len(measured),
        fresh,
        single,
        chain,
        everything,
        _microseconds(lambda row: model.predict(row), rows),
        _features_time(held_out[:_MAX_TIMED], conditions),
    )


def features_of(samples: Sequence[CalibrationSample], conditions: HardwareProfile) -> list[MeasuredLayers]:
    """Return the features and cycles of the layers of each sample, in the order of the samples."""
    stage: LoweredNetwork | None = None
    point, out = None, []
    for sample in samples:
        if stage is None or sample.point != point:
            point, stage = sample.point, stage_of(sample, conditions)
        rows = rows_of(stage, sample.schedules, conditions)
        cycles = apportion(stage.layers, sample.layers, {name: row.base for name, row in rows.items()})
        out.append(MeasuredLayers(sample, list(rows.values()), [cycles[name] for name in rows], list(rows)))
    return out


def with_energy(measured: Sequence[MeasuredLayers]) -> list[MeasuredLayers]:
    """Return the samples whose energy was recorded, with rows and measured values of the energy in nanojoules.

    Prefetched loads are counted for the layer before. The energy of a network is therefore distributed over its layers
    in proportion to the estimates.
    """
    out = []
    for each in measured:
        if each.sample.energy_uj is not None:
            rows = [row.for_energy for row in each.rows]
            ratio = 1e3 * sum(each.sample.energy_uj.values()) / sum(row.base for row in rows)
            energy = {name: ratio * row.base for name, row in zip(each.names, rows, strict=True)}
            sample = replace(each.sample, layers={name: round(value) for name, value in energy.items()})
            out.append(MeasuredLayers(sample, rows, list(energy.values()), each.names))
    return out


def stage_of(sample: CalibrationSample, conditions: HardwareProfile) -> LoweredNetwork:
    """Return the lowered layers of a sample's network."""
    prepared = ModelCompiler(sample.point.graph(), conditions.config, calibration_options(conditions))
    (stage,) = prepared.lowered(prepared.fusions)
    return stage


def _train(
    measured: Sequence[MeasuredLayers], seed: int, names: tuple[str, ...], *, trees: bool
) -> CycleModel:
    """Train the cycles, if `trees`, and the spread, on errors of networks that the trees have not been trained on."""
    rows = [row for each in measured for row in each.rows]
    cycles = np.array([cycles for each in measured for cycles in each.cycles], float)
    groups = [(each.sample.point, each.sample.index) for each in measured for _ in each.rows]
    guess = np.array([row.base for row in rows])
    model = CycleModel((), {}, names=names)
    if trees:
        fold = np.array([index % _FOLDS for _, index in groups])
        for each in range(_FOLDS):
            known, new = np.flatnonzero(fold != each), np.flatnonzero(fold == each)
            if len(known) and len(new):
                part = train([rows[i] for i in known], cycles[known].tolist(), seed, names=names)
                guess[new] = part.predict_many([rows[i] for i in new])[0]
        model = train(rows, cycles.tolist(), seed, names=names)
    errors = np.abs(np.log(np.maximum(cycles, 1.0) / guess))
    spread = train_spread(np.array([row.numbers for row in rows]), errors, groups, seed)
    return replace(model, error=spread)


def _median_error(model: CycleModel, measured: Sequence[MeasuredLayers]) -> float:
    errors = [abs(sum(model.predict_many(each.rows)[0]) / each.sample.cycles - 1) for each in measured]
    return median(errors) if errors else 0.0


def _covered(model: CycleModel, measured: Sequence[MeasuredLayers]) -> float:
    """Return the share of layers whose error is at most twice the stated spread."""
    inside = []
    for each in measured:
        cycles, spread = model.predict_many(each.rows)
        inside += (np.abs(np.log(np.maximum(each.cycles, 1.0) / cycles)) <= 2 * spread).tolist()
    return float(np.mean(inside)) if inside else 1.0


def _microseconds(work: Callable[[FeatureRow], object], rows: Sequence[FeatureRow]) -> float:
    taken = []
    for row in rows:
        begin = time.perf_counter()
        work(row)
        taken.append(time.perf_counter() - begin)
    return 1e6 * median(taken)


def _features_time(measured: Sequence[MeasuredLayers], conditions: HardwareProfile) -> float:
    taken = []
    for each in measured:
        stage = stage_of(each.sample, conditions)
        begin = time.perf_counter()
        rows = rows_of(stage, each.sample.schedules, conditions)
        taken.append((time.perf_counter() - begin) / len(rows))
    return 1e6 * median(taken)
