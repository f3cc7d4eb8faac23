"""Comparison of the language model with other search methods on held-out layers, for equal trials and equal time.

`python -m scripts.llm_race --layers 40 --seeds 5 --file build/llm_race.jsonl` writes one line per search to the file.
Run the same command again to continue an interrupted run; `--only-render` only writes the tables of existing results to
a .json and a .md file next to the results file. Measurements are cached in a folder next to the results file. The time
of a method includes the original time of every measurement that it requests, cached or not. Times are most accurate
with `--workers 1` on an otherwise idle computer.
"""

import argparse
import importlib
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

from compiler.cache.digest import name as digest
from compiler.llm.data.held_out import MACHINES, keys_of
from compiler.llm.evaluation import expand_curve, has_choices, held_out_points
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.model.weights import SHIPPED, load
from compiler.profile.measurement import Result
from compiler.schedule.schedule import Schedule
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import LLM, METHODS
from compiler.tuning.search.method import Trial
from compiler.tuning.search.tuner import tune
from hw.errors import InputError
from scripts.jsonl_log import JsonlLog
from scripts.llm_baselines import GENERATORS
from scripts.llm_held_out import TRANSFORMERS, layers_of
from scripts.llm_race_report import render
from scripts.measurement_cache import FileCache
from scripts.process_pool import run_parallel

TRIALS = {LLM: 64, "hpm": 256, "random": 128, "evolution": 128}
#: Number of the first layer of a published transformer.
FIRST_TRANSFORMER = 1000
#: Number of layers of attention: two products and a softmax.
_ATTENTION_LAYERS = 3
MACHINE = "usual"


@dataclass(frozen=True)
class Search:
    """One search for a schedule of one layer.

    Parameters
    ----------
    method : str
        Name of the method, a key of METHODS or of GENERATORS.
    trials : int
        Maximum number of measurements.
    seed : int
        Random seed of the search.
    """

    method: str
    trials: int
    seed: int


@dataclass(frozen=True)
class RaceJob:
    """Searches of one layer.

    Parameters
    ----------
    number, draw : int
        Index of the layer among the layers sampled with the random seed `draw`, and this seed.
    point : CalibrationNetwork
        Network that consists of the layer.
    searches : tuple of Search
        Searches that remain to be run.
    """

    number: int
    draw: int
    point: CalibrationNetwork
    searches: tuple[Search, ...]


class TimedMeasurer(Measurer):
    """Measurer that records its own run time.

    Attributes
    ----------
    inside : float
        Seconds spent in measurements so far.
    """

    inside: float = 0.0

    def measure(self, schedules: Sequence[Schedule]) -> list[Result]:
        """Measure schedules and record the time."""
        began = monotonic()
        try:
            return super().measure(schedules)
        finally:
            self.inside += monotonic() - began


def main() -> int:
    """Run all searches and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument(
        "--transformers",
        type=int,
        default=0,
        help="further layers, of published transformers (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--trials",
        default=",".join(f"{name}:{count}" for name, count in TRIALS.items()),
        help="number of trials of each method (default: %(default)s)",
    )
    parser.add_argument("--llm", type=Path, default=SHIPPED, help="model file")
    parser.add_argument("--draw", type=int, default=0, help="random seed for the selection of layers")
    parser.add_argument("--file", type=Path, default=Path("build/llm_race.jsonl"))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only-render", action="store_true")
    args = parser.parse_args()
    try:
        trials = trials_of(args.trials)
        load(args.llm)
    except InputError as error:
        parser.error(str(error))
    status = 0
    if not args.only_render:
        jobs = jobs_of(args, trials)
        left = sum(len(job.searches) for job in jobs)
        print(
            f"{len(jobs)} layers, {left} of {len(jobs) * args.seeds * len(trials)} searches left", flush=True
        )
        unfinished = [job for job in jobs if job.searches]
        status = run_parallel(run, unfinished, args.workers, args.file, args.llm)
    keys = {
        key(number, args.draw, search, args.llm)
        for number in (*range(args.layers), *range(FIRST_TRANSFORMER, FIRST_TRANSFORMER + args.transformers))
        for search in searches(trials, args.seeds)
    }
    rows = [row for row in JsonlLog(args.file).read() if row["key"] in keys]
    print(render(rows, args.file))
    return status


def trials_of(text: str) -> dict[str, int]:
    """Parse the number of trials by method, such as `hpm:256,random:128`.

    Raises
    ------
    InputError
        The text does not have this form.
    """
    found = {}
    for each in text.split(","):
        name, _, count = each.partition(":")
        if name not in (*METHODS, *GENERATORS) or not count.isdecimal() or not int(count):
            raise InputError(
                f"--trials must be a comma-separated list of METHOD:NUMBER, METHOD one of "
                f"{', '.join([*GENERATORS, *METHODS])}, not {each!r}"
            )
        found[name] = int(count)
    if LLM not in found:
        raise InputError(f"--trials must include {LLM}, with which the other methods are compared")
    return found


def searches(trials: dict[str, int], seeds: int) -> list[Search]:
    """Return all searches of a layer."""
    return [Search(name, count, seed) for seed in range(seeds) for name, count in trials.items()]


def jobs_of(args: argparse.Namespace, trials: dict[str, int]) -> list[RaceJob]:
    """Return a job for each layer, with the searches that have no results yet."""
    machine = MACHINES[MACHINE]
    done = {row["key"] for row in JsonlLog(args.file).read()}
    points = held_out_points(machine.conditions.config.n, args.draw, machine)
    numbered = [
        *enumerate(islice(points, args.layers)),
        *enumerate(islice(transformer_points(args.draw), args.transformers), FIRST_TRANSFORMER),
    ]
    return [
        RaceJob(
            number,
            args.draw,
            point,
            tuple(
                each
                for each in searches(trials, args.seeds)
                if key(number, args.draw, each, args.llm) not in done
            ),
        )
        for number, point in sorted(numbered, key=lambda each: each[0] % FIRST_TRANSFORMER)
    ]


def transformer_points(draw: int) -> Iterator[CalibrationNetwork]:
    """Yield the layers of published transformers, which are held out, in a random order, those with a choice."""
    points = [point for sizes in TRANSFORMERS.values() for point in layers_of(sizes)]
    random.Random(draw).shuffle(points)
    machine = MACHINES[MACHINE]
    yield from (point for point in points if has_choices(point, machine, _ATTENTION_LAYERS))


def key(number: int, draw: int, search: Search, model: Path) -> str:
    """Return the key of a layer's search, which contains the index of the layer and the sampling seed."""
    model_digest = f" {_digest(model)}" if search.method.startswith(LLM) else ""
    return f"{draw}.{number}: {search.method} {search.trials} {search.seed}{model_digest}"


@cache
def _digest(model: Path) -> str:
    return digest(model.read_bytes())[:12]


@cache
def _model(path: Path) -> Gpt:
    return load(path)[0]


def run(job: RaceJob, file: Path, model: Path) -> None:
    """Run searches and append their results to the file."""
    importlib.import_module("lightgbm")  # takes seconds, which must not be included in the time of a method
    machine, began = MACHINES[MACHINE], monotonic()
    with TimedMeasurer(job.point.graph(), machine.conditions, machine.options) as measurer:
        measurer.baseline()  # starts the simulator
        measured = file.with_suffix("") / f"{job.draw}.{job.number}.jsonl"
        cache = measurer.cache = FileCache(measurer.prepared, machine.conditions, measured)
        for search in job.searches:
            row = _searched(measurer, cache, search, _model(model))
            JsonlLog(file).add({"key": key(job.number, job.draw, search, model), **_about(job), **row})
    print(f"{job.number}: {keys_of(job.point)[0]}: {monotonic() - began:.0f} s", flush=True)


def _about(job: RaceJob) -> dict[str, Any]:
    return {"number": job.number, "layer": keys_of(job.point)[0], "point": job.point.as_json()}


def _searched(measurer: TimedMeasurer, cache: FileCache, search: Search, model: Gpt) -> dict[str, Any]:
    """Return the curve of a search, with the time of the method alone and the total times without caching."""
    cache.seconds, measurer.inside, began = 0.0, 0.0, monotonic()
    own: list[float] = []
    every: list[float] = []

    def on_trial(_number: int, _trial: Trial, _best: Trial) -> None:
        own.append(monotonic() - began - measurer.inside)
        every.append(own[-1] + cache.seconds)

    generator = GENERATORS[search.method](model) if search.method in GENERATORS else None
    method = search.method if generator is None else LLM
    found = tune(
        measurer, method, search.trials, seed=search.seed, language_model=generator, on_trial=on_trial
    )
    return {
        "method": search.method,
        "trials": search.trials,
        "seed": search.seed,
        "static": found.baseline.cycles,
        "floor": found.baseline.floor,
        "curve": expand_curve(found.curve, search.trials),
        "seconds": [round(each, 4) for each in every],
        "own_seconds": round(own[-1], 4),
    }


if __name__ == "__main__":
    sys.exit(main())
