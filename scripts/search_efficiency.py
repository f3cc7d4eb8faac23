"""Measurement of search efficiency on layers with few tilings: trials until a method is near the optimum.

`python -m scripts.search_efficiency --seeds 5 --file FILE` prints a table. Measurements are cached across methods,
seeds and runs; every measurement that a method requests counts as a trial. `--random 256` also reports the number of
trials, at most a quarter of 256, after which the guided search reaches the best result of 256 random trials.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median

from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile, Measurement
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.layer_space import spaces_of
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import METHODS
from compiler.tuning.search.method import with_layer
from compiler.tuning.search.tuner import tune
from hw.config import load_target
from scripts.measurement_cache import FileCache

#: Layers with at most 200 tilings on n16.
LAYERS = {
    "conv 3x3": CalibrationNetwork((5, 5, 20), (CalibrationOp("conv", 24, 3),)),
    "conv 1x1": CalibrationNetwork((14, 14, 16), (CalibrationOp("conv", 48, 1),)),
    "conv 3x3 strided": CalibrationNetwork((14, 14, 20), (CalibrationOp("conv", 32, 3, 2),)),
    "depthwise": CalibrationNetwork((14, 14, 80), (CalibrationOp("depthwise", 0, 3),)),
    "dense": CalibrationNetwork((1, 1, 120), (CalibrationOp("dense", 300),)),
    "product": CalibrationNetwork((7, 6, 36), (CalibrationOp("matmul", 50),)),
    "softmax": CalibrationNetwork((9, 9, 40), (CalibrationOp("softmax"),)),
    "pool": CalibrationNetwork((15, 15, 50), (CalibrationOp("max_pool", 0, 3, 2),)),
}
#: Maximum cycles near the optimum, relative to it.
_NEAR = 1.02


def main() -> int:
    """Run the searches and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--layers", nargs="*", default=list(LAYERS))
    parser.add_argument(
        "--random",
        type=int,
        default=0,
        help="number of random trials for the comparison with the guided search",
    )
    parser.add_argument(
        "--file", type=Path, help="file that stores measurements, so that they are not repeated"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    conditions, rows = HardwareProfile(load_target("n16")), []
    for name in args.layers:
        with Measurer(LAYERS[name].graph(), conditions, CompileOptions(rounding="reference")) as measurer:
            measurer.cache = FileCache(measurer.prepared, conditions, args.file)
            rows.append(_row(name, measurer, args))
            print(_shown(rows[-1]), flush=True)
            if args.random:
                rows[-1]["race"] = [_race(measurer, args.random, seed) for seed in range(args.seeds)]
                print("   ", _raced(rows[-1]["race"]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), "utf-8")
    return 0


def _row(name: str, measurer: Measurer, args: argparse.Namespace) -> dict:
    first = measurer.first.schedule
    spaces = spaces_of(
        measurer.conditions.config, measurer.prepared.lowered(first.fusions), measurer.conditions.dram
    )
    ((layer, space),) = spaces.items()
    tilings = [
        with_layer(first, layer, space.with_context(each.schedule, first.layers[layer]))
        for each in space.tilings
    ]
    every = [r.cycles for r in measurer.measure([first, *tilings]) if isinstance(r, Measurement) and r.valid]
    row = {"layer": name, "tilings": len(tilings), "first": every[0], "best": min(every), "methods": {}}
    for method in args.methods:
        found = [tune(measurer, method, args.trials, seed=seed) for seed in range(args.seeds)]
        after = [
            next((trial for trial, cost in each.curve if cost <= _NEAR * row["best"]), None) for each in found
        ]
        row["methods"][method] = {
            "after": after,
            "best": [each.curve[-1][1] for each in found],
            "predictor": [each.predictor.as_json() for each in found if each.predictor],
        }
    return row


def _race(measurer: Measurer, trials: int, seed: int) -> dict:
    """Return the numbers of trials after which random search and guided search reach the best cycles of random search.

    The guided search has a quarter of the trials of random search.
    """
    drawn = tune(measurer, "random", trials, seed=seed)
    guided = tune(measurer, "hpm", trials // 4, seed=seed)
    when, best = drawn.curve[-1]
    caught = next((trial for trial, cost in guided.curve if cost <= best), None)
    return {"best": best, "random": when, "hpm": caught, "hpm_best": guided.curve[-1][1]}


def _raced(race: list[dict]) -> str:
    return "; ".join(
        f"random {each['best']:g} after {each['random']}, hpm {each['hpm_best']:g}"
        + (f", as good after {each['hpm']}" if each["hpm"] is not None else ", never as good")
        for each in race
    )


def _shown(row: dict) -> str:
    parts = [f"{row['layer']}: {row['tilings']} tilings, first {row['first']:,}, best {row['best']:,}"]
    for method, each in row["methods"].items():
        known = [trial for trial in each["after"] if trial is not None]
        middle = f"{median(known):g}" if 2 * len(known) > len(each["after"]) else "never"
        parts.append(f"{method} {middle} ({len(known)}/{len(each['after'])}), {median(each['best']):g}")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
