"""A performance model made from measurements of small networks, and how good it is on those kept out."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from compiler import __version__
from compiler.hpm.charge import shared_out
from compiler.hpm.collect import Collector, Spaces
from compiler.hpm.errors import Errors
from compiler.hpm.features import Row
from compiler.hpm.journal import Journal, Sample
from compiler.hpm.model import Model, train
from compiler.hpm.rows import rows_of
from compiler.ir.identity import stored
from compiler.lower.lower import Lowered
from compiler.measure.conditions import Conditions
from compiler.options import Options
from compiler.pipeline import Prepared
from hw.errors import WorkError

#: Every so many-th point is kept out of training while the error is measured.
_HELD_OUT = 6
_LEAST_POINTS = 2 * _HELD_OUT
_TIMED = 200


@dataclass(frozen=True)
class Measured:
    """Layers of a sample: their features and cycles."""

    sample: Sample
    rows: list[Row]
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

    model: Model
    samples: int
    fresh: int
    single: Errors
    chain: Errors
    everything: Errors
    prediction_us: float
    features_us: float


def calibrate(
    conditions: Conditions, seconds: float, journal: Journal, spaces: Spaces, seed: int = 0, devices: int | None = 1,
    say: Callable[[str], None] = lambda _text: None,
) -> Calibration:  # fmt: skip
    """Measure for so long, with what the journal has already, and learn.

    Raises
    ------
    WorkError
        Too few points could be measured, a simulator died, or a disk is full.
    """
    fresh = Collector(conditions, journal, seed, spaces, say).run(seconds, devices)
    if len({sample.index for sample in journal.samples}) < _LEAST_POINTS:
        raise WorkError(
            f"fewer than {_LEAST_POINTS} networks could be measured in {seconds:g} s: give it more time"
        )
    say(f"learning from {len(journal.samples)} measurements")
    return learn(conditions, journal.samples, fresh, seed)


def learn(conditions: Conditions, samples: Sequence[Sample], fresh: int, seed: int = 0) -> Calibration:
    """A model of samples, and its errors on points kept out."""
    measured = features_of(samples, conditions)
    kept = [each for each in measured if each.sample.index % _HELD_OUT == 0]
    judged = _train([each for each in measured if each.sample.index % _HELD_OUT], seed)
    pairs = [
        (len(each.sample.point.ops), sum(judged.predict_many(each.rows)[0]), each.sample.cycles)
        for each in kept
    ]

    def errors(least: int, most: int) -> Errors:
        chosen = [(p, m) for ops, p, m in pairs if least <= ops <= most]
        return Errors.of([p for p, _ in chosen], [m for _, m in chosen])

    single, chain, everything = errors(1, 1), errors(2, 99), errors(1, 99)
    about = {
        "compiler": __version__, "config": stored(conditions.config), "dram_latency": conditions.dram.latency,
        "dram_bytes_per_cycle": conditions.rate, "conditions": conditions.key, "samples": len(samples), "seed": seed,
        "single": single.as_json(), "chain": chain.as_json(),
    }  # fmt: skip
    model = Model(_train(measured, seed).members, about)
    rows = [row for each in kept for row in each.rows][:_TIMED]
    return Calibration(
        model, len(samples), fresh, single, chain, everything, _microseconds(lambda row: model.predict(row), rows),
        _features_time(kept[:_TIMED], conditions),
    )  # fmt: skip


def features_of(samples: Sequence[Sample], conditions: Conditions) -> list[Measured]:
    """Features of the layers of samples, in the samples' order."""
    stage: Lowered | None = None
    point, out = None, []
    for sample in samples:
        if stage is None or sample.point != point:
            point, stage = sample.point, stage_of(sample, conditions)
        rows = rows_of(stage, sample.schedules, conditions)
        cycles = shared_out(stage.layers, sample.layers, {name: row.base for name, row in rows.items()})
        out.append(Measured(sample, list(rows.values()), [cycles[name] for name in rows]))
    return out


def stage_of(sample: Sample, conditions: Conditions) -> Lowered:
    """The layers of a sample's network."""
    prepared = Prepared(
        sample.point.graph(), conditions.config, Options(rounding="reference", dram=conditions.dram)
    )
    (stage,) = prepared.lowered(prepared.fusions)
    return stage


def _train(measured: Sequence[Measured], seed: int) -> Model:
    rows = [row for each in measured for row in each.rows]
    return train(rows, [cycles for each in measured for cycles in each.cycles], seed)


def _microseconds(work: Callable[[Row], object], rows: Sequence[Row]) -> float:
    taken = []
    for row in rows:
        begin = time.perf_counter()
        work(row)
        taken.append(time.perf_counter() - begin)
    return 1e6 * median(taken)


def _features_time(measured: Sequence[Measured], conditions: Conditions) -> float:
    taken = []
    for each in measured:
        stage = stage_of(each.sample, conditions)
        begin = time.perf_counter()
        rows = rows_of(stage, each.sample.schedules, conditions)
        taken.append((time.perf_counter() - begin) / len(rows))
    return 1e6 * median(taken)
