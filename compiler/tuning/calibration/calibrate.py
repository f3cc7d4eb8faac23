"""A performance model made from measurements of small networks, and how good it is on those kept out."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from compiler import __version__
from compiler.cost.learned.features import FeatureRow, rows_of
from compiler.cost.learned.model import CycleModel, PredictionErrors, train
from compiler.cost.learned.online_model import apportion
from compiler.ir.identity import stored
from compiler.lowering.lower import LoweredNetwork
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.calibration.collect import (
    CalibrationCollector,
    CalibrationJournal,
    CalibrationSample,
    Spaces,
)
from hw.errors import WorkError

#: Every so many-th point is kept out of training while the error is measured.
_HELD_OUT = 6
_LEAST_POINTS = 2 * _HELD_OUT
_TIMED = 200


@dataclass(frozen=True)
class Measured:
    """Layers of a sample: their features and cycles."""

    sample: CalibrationSample
    rows: list[FeatureRow]
    cycles: list[float]


@dataclass(frozen=True)
class Calibration:
    """What came of it.

    Parameters
    ----------
    model : Model
        Trained with all measurements.
    samples, fresh : int
        Measurements, and those of them that were made now.
    single, chain : Errors
        On points that the model for this figure was not trained with: networks of one operator, and of several.
    everything : Errors
        Of both together.
    prediction_us : float
        Median microseconds of a prediction from features, in process.
    features_us : float
        The same of the features of a layer.
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
    """Measure for so long, with what the journal has already, and learn.

    Raises
    ------
    WorkError
        Too few points could be measured, a simulator died, or a disk is full.
    """
    fresh = CalibrationCollector(conditions, journal, seed, spaces, log).run(seconds, devices)
    if len({sample.index for sample in journal.samples}) < _LEAST_POINTS:
        raise WorkError(
            f"fewer than {_LEAST_POINTS} networks could be measured in {seconds:g} s: give it more time"
        )
    log(f"learning from {len(journal.samples)} measurements")
    return learn(conditions, journal.samples, fresh, seed)


def learn(
    conditions: HardwareProfile, samples: Sequence[CalibrationSample], fresh: int, seed: int = 0
) -> Calibration:
    """A model of samples, and its errors on points kept out."""
    measured = features_of(samples, conditions)
    kept = [each for each in measured if each.sample.index % _HELD_OUT == 0]
    judged = _train([each for each in measured if each.sample.index % _HELD_OUT], seed)
    pairs = [
        (len(each.sample.point.ops), sum(judged.predict_many(each.rows)[0]), each.sample.cycles)
        for each in kept
    ]

    def errors(least: int, most: int) -> PredictionErrors:
        chosen = [(p, m) for ops, p, m in pairs if least <= ops <= most]
        return PredictionErrors.of([p for p, _ in chosen], [m for _, m in chosen])

    single, chain, everything = errors(1, 1), errors(2, 99), errors(1, 99)
    about = {
        "compiler": __version__,
        "config": stored(conditions.config),
        "dram_latency": conditions.dram.latency,
        "dram_bytes_per_cycle": conditions.rate,
        "conditions": conditions.key,
        "samples": len(samples),
        "seed": seed,
        "single": single.as_json(),
        "chain": chain.as_json(),
    }
    model = CycleModel(_train(measured, seed).members, about)
    rows = [row for each in kept for row in each.rows][:_TIMED]
    return Calibration(
        model,
        len(samples),
        fresh,
        single,
        chain,
        everything,
        _microseconds(lambda row: model.predict(row), rows),
        _features_time(kept[:_TIMED], conditions),
    )


def features_of(samples: Sequence[CalibrationSample], conditions: HardwareProfile) -> list[Measured]:
    """Features of the layers of samples, in the samples' order."""
    stage: LoweredNetwork | None = None
    point, out = None, []
    for sample in samples:
        if stage is None or sample.point != point:
            point, stage = sample.point, stage_of(sample, conditions)
        rows = rows_of(stage, sample.schedules, conditions)
        cycles = apportion(stage.layers, sample.layers, {name: row.base for name, row in rows.items()})
        out.append(Measured(sample, list(rows.values()), [cycles[name] for name in rows]))
    return out


def stage_of(sample: CalibrationSample, conditions: HardwareProfile) -> LoweredNetwork:
    """The layers of a sample's network."""
    prepared = ModelCompiler(
        sample.point.graph(), conditions.config, CompileOptions(rounding="reference", dram=conditions.dram)
    )
    (stage,) = prepared.lowered(prepared.fusions)
    return stage


def _train(measured: Sequence[Measured], seed: int) -> CycleModel:
    rows = [row for each in measured for row in each.rows]
    return train(rows, [cycles for each in measured for cycles in each.cycles], seed)


def _microseconds(work: Callable[[FeatureRow], object], rows: Sequence[FeatureRow]) -> float:
    taken = []
    for row in rows:
        begin = time.perf_counter()
        work(row)
        taken.append(time.perf_counter() - begin)
    return 1e6 * median(taken)


def _features_time(measured: Sequence[Measured], conditions: HardwareProfile) -> float:
    taken = []
    for each in measured:
        stage = stage_of(each.sample, conditions)
        begin = time.perf_counter()
        rows = rows_of(stage, each.sample.schedules, conditions)
        taken.append((time.perf_counter() - begin) / len(rows))
    return 1e6 * median(taken)
