"""Time of one prediction of the cost model: feature extraction and tree evaluation.

`python -m scripts.hpm_time` prints median times in microseconds over tilings of random layers; the time of a tiling is
the minimum of five runs.
"""

import random
import sys
from collections.abc import Iterator
from statistics import median
from time import perf_counter

from compiler.cost.features import RowMaker
from compiler.cost.learned_model import CycleModel, find_model
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.calibration.calibration_networks import chains, singles
from compiler.tuning.layer_space import spaces_of
from hw.config import load_target
from hw.errors import InputError

_SEED, _POINTS, _TILINGS, _TIMES = 5, 15, 30, 5


def main() -> int:
    """Measure the predictions and print the median times."""
    conditions = HardwareProfile(load_target("n16"))
    model, rng = find_model(conditions), random.Random(_SEED)
    times: list[tuple[float, float, float]] = []
    for drawn in (singles(16, rng), chains(16, rng)):
        for _ in range(_POINTS):
            try:
                prepared = ModelCompiler(
                    next(drawn).graph(), conditions.config, CompileOptions(rounding="reference")
                )
                times += _times(prepared, conditions, model)
            except InputError:  # an operator is not supported by this configuration
                continue
    features, trees, both = ([1e6 * each for each in column] for column in zip(*times, strict=True))
    print(
        f"seed {_SEED}, {len(times)} schedules: features {median(features):.0f} us, trees {median(trees):.0f} us, "
        f"together {median(both):.0f} us"
    )
    return 0


def _times(
    prepared: ModelCompiler, conditions: HardwareProfile, model: CycleModel
) -> Iterator[tuple[float, float, float]]:
    """Yield, for each tiling of each layer, the time in seconds of the features, of the trees, and of both."""
    (stage,) = prepared.lowered(prepared.fusions)
    now = dict(prepared.network().schedule.layers)
    for name, space in spaces_of(conditions.config, [stage], conditions.dram).items():
        for tiling in space.tilings[:_TILINGS]:
            schedules = now | {name: space.with_context(tiling.schedule, now[name])}
            found = []
            for _ in range(_TIMES):
                maker = RowMaker(stage, conditions)
                maker.rows(now)
                start = perf_counter()
                row = maker.rows(schedules, (name,))[name]
                between = perf_counter()
                model.predict(row)
                found.append((between - start, perf_counter() - between))
            features, trees = (min(column) for column in zip(*found, strict=True))
            yield features, trees, features + trees


if __name__ == "__main__":
    sys.exit(main())
