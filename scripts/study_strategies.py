"""Study of search strategies on networks with one known bottleneck each.

`python -m scripts.study_strategies --trials 24 --seeds 3` prints, for each of ten networks, the bottleneck, the
strategy of the first change and whether it acts on the known bottleneck, and the number of trials after which four
searches reach 90% of the best gain that any of them found with the same seed: changes by bottleneck and expected gain
(`strategies`), the same in random orders of strategies, without and with expected gains, and the coordinate search.
`--networks further` selects ten other networks.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from compiler.options import DEFAULT_DRAM, CompileOptions, DramTiming
from compiler.profile.measurement import HardwareProfile
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.constraints import Objective
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.coordinate import CoordinateSearch, StrategySearch
from compiler.tuning.search.search_units import Choice, SearchUnit
from compiler.tuning.search.tuner import tune
from compiler.tuning.strategies import STRATEGIES
from hw.config import load_target
from scripts.measurement_cache import FileCache

#: Share of the final gain that counts as reached.
_SHARE = 0.9

_SLOW, _LATE = DramTiming(bytes_per_cycle=1.0), DramTiming(latency=1000)


@dataclass(frozen=True)
class StrategyCase:
    """Network whose bottleneck is known from its shape or its conditions.

    Parameters
    ----------
    network : CalibrationNetwork
        Network with one layer, or with two layers.
    right : frozenset of str
        Classes of strategies that act on the bottleneck.
    dram : DramTiming
        Timing of the DRAM.
    """

    network: CalibrationNetwork
    right: frozenset[str]
    dram: DramTiming = DEFAULT_DRAM


def _case(shape: tuple[int, int, int], ops: str, right: str, dram: DramTiming = DEFAULT_DRAM) -> StrategyCase:
    made = []
    for text in ops.split("; "):
        op, *given = text.split()
        numbers = [*map(int, given), *(0, 1, 1, 1)[len(given) :]]
        size, window, stride, groups = numbers
        made.append(CalibrationOp(op, size, window, stride, groups))
    return StrategyCase(CalibrationNetwork(shape, tuple(made)), frozenset(right.split()), dram)


#: Networks, fixed before the table of strategies (compiler/tuning/strategies.py) was written.
CASES = {
    "one input channel": _case((12, 12, 1), "conv 16 3", "layout"),
    "deep and small image": _case((3, 3, 64), "conv 32 3", "tiling layout"),
    "pointwise, late memory": _case((12, 12, 16), "conv 16 1", "prefetch split", _LATE),
    "3x3, late memory": _case((10, 10, 16), "conv 16 3", "prefetch split", _LATE),
    "pointwise, slow memory": _case((12, 12, 16), "conv 32 1", "tiling fuse", _SLOW),
    "3x3, slow memory": _case((12, 12, 12), "conv 24 3", "tiling fuse", _SLOW),
    "dense, slow memory": _case((1, 1, 120), "dense 100", "tiling batch fuse", _SLOW),
    "dense, late memory": _case((1, 1, 64), "dense 100", "prefetch split", _LATE),
    "pool": _case((15, 15, 24), "max_pool 0 3 2", "tiling split"),
    "depthwise": _case((12, 12, 24), "depthwise 0 3", "layout tiling"),
}

#: Further networks, fixed before the search with predicted gains was measured on any of them.
FURTHER_CASES = {
    "three input channels": _case((16, 16, 3), "conv 8 5", "layout"),
    "5x5, late memory": _case((9, 9, 8), "conv 16 5", "prefetch split", _LATE),
    "wide dense, slow memory": _case((1, 1, 200), "dense 48", "tiling batch fuse", _SLOW),
    "strided 3x3, slow memory": _case((17, 17, 8), "conv 32 3 2", "tiling fuse", _SLOW),
    "pool, late memory": _case((14, 14, 32), "max_pool 0 2 2", "prefetch split", _LATE),
    "softmax": _case((8, 8, 10), "softmax", "tiling split"),
    "depthwise, slow memory": _case((16, 16, 16), "depthwise 0 3", "tiling fuse", _SLOW),
    "pointwise and depthwise, slow memory": _case(
        (10, 10, 16), "conv 32 1; depthwise 0 3", "tiling fuse", _SLOW
    ),
    "3x3 and pool, late memory": _case(
        (10, 10, 8), "conv 16 3; max_pool 0 2 2", "prefetch split fuse", _LATE
    ),
    "deep dense": _case((1, 1, 256), "dense 16", "tiling batch"),
}


class PredictedRandomOrderSearch(StrategySearch):
    """Search with the same changes as `StrategySearch` in a random order of strategies."""

    def rates(self, unit: SearchUnit) -> Mapping[str, float]:
        """Return the rates of the prior positions, but in a random order of strategies."""
        return {
            name: 1 / (1 + rank)
            for rank, name in enumerate(self.rng.sample(list(STRATEGIES), len(STRATEGIES)))
        }


class RandomOrderSearch(PredictedRandomOrderSearch):
    """Search with a random order of strategies, whose changes keep the order of the static estimates."""

    def gains(self, unit: SearchUnit, choices: Sequence[Choice]) -> Sequence[float]:
        """Return equal gains, so that the candidates of a strategy keep their order."""
        return [1.0] * len(choices)


_METHODS: dict[str, type[CoordinateSearch]] = {
    "strategies": StrategySearch,
    "random order": RandomOrderSearch,
    "random order, predicted": PredictedRandomOrderSearch,
    "coordinate": CoordinateSearch,
}


def main() -> None:
    """Run the searches and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="n4")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument(
        "--networks", choices=("first", "further"), default="first", help="set of ten networks"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--file", type=Path, help="file that stores measurements")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    rows = []
    for name, case in (CASES if args.networks == "first" else FURTHER_CASES).items():
        conditions = HardwareProfile(load_target(args.target), case.dram)
        with Measurer(case.network.graph(), conditions, CompileOptions(rounding="reference")) as measurer:
            measurer.cache = FileCache(measurer.prepared, conditions, args.file)
            rows.append({"network": name, **_row(measurer, case, args.trials, args.seeds)})
        print(_shown(rows[-1]), flush=True)
    right = sum(row["right"] for row in rows)
    totals = {method: sum(row["after"][method] for row in rows) for method in _METHODS}
    print(f"right class first: {right} of {len(rows)}")
    print("sum of the trials: " + ", ".join(f"{name} {count:.0f}" for name, count in totals.items()))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), "utf-8")


def _row(measurer: Measurer, case: StrategyCase, trials: int, seeds: int) -> dict[str, Any]:
    after: dict[str, list[int]] = {name: [] for name in _METHODS}
    best: dict[str, list[float]] = {name: [] for name in _METHODS}
    first: dict[str, tuple[str, str]] = {}
    base = measurer.baseline().cycles
    for seed in range(seeds):
        curves = {}
        for name, kind in _METHODS.items():
            search = kind(measurer, Objective.LATENCY, measurer.baseline(), seed)
            curves[name] = tune(measurer, search, trials, seed=seed).curve
            if name == "strategies" and isinstance(search, StrategySearch) and not first:
                first = search.first_strategies
        least = min(curve[-1][1] for curve in curves.values())
        for name, curve in curves.items():
            goal = base - _SHARE * (base - least)
            after[name].append(next((number for number, cost in curve if cost <= goal), trials + 1))
            best[name].append(curve[-1][1])
    bottleneck, strategy = next(iter(first.values()), ("", ""))
    return {
        "bottleneck": bottleneck,
        "first": strategy,
        "right": strategy in case.right,
        "static": base,
        "best": {name: mean(costs) for name, costs in best.items()},
        "after": {name: mean(counts) for name, counts in after.items()},
    }


def _shown(row: dict[str, Any]) -> str:
    parts = [f"{name} {row['after'][name]:.1f} trials ({row['best'][name]:,.0f})" for name in _METHODS]
    return (
        f"{row['network']}: {row['bottleneck']}, first {row['first']}{'' if row['right'] else ' (wrong)'}, "
        f"static {row['static']:,}; {'; '.join(parts)}"
    )


if __name__ == "__main__":
    main()
