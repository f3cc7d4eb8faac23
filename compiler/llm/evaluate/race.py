"""Comparison of the language model with other search methods on held-out layers."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, log

import numpy as np

from compiler.llm.data.held_out import CorpusMachine, is_held_out
from compiler.llm.generate.candidate_pool import BanditTally, CandidateKind
from compiler.llm.generate.lm_generator import LmGenerator
from compiler.llm.model.numpy_transformer import Gpt
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import Measurement
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, singles
from compiler.tuning.layer_space import spaces_of
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import LLM
from compiler.tuning.search.tuner import tune
from hw.errors import InputError

#: Minimum number of tilings of a layer; layers with fewer are skipped.
_MIN_TILINGS = 4


@dataclass(frozen=True)
class Raced:
    """Results of all searches for one layer.

    Parameters
    ----------
    layer : str
        Name of the layer kind.
    point : CalibrationNetwork
        Network that consists of the layer.
    static : int
        Cycles of the static compiler's schedule.
    floor : int
        Lower bound of the cycles.
    curves : dict
        Best cycles after each trial, by method and seed; entry 0 is the static compiler's schedule.
    first : list of int or None
        Cycles of the model's first candidate for each seed; None if it could not be measured.
    kinds : dict
        Statistics of the model's candidates by kind, summed over all seeds.
    """

    layer: str
    point: CalibrationNetwork
    static: int
    floor: int
    curves: dict[str, list[list[int]]]
    first: list[int | None]
    kinds: dict[CandidateKind, BanditTally]


def held_out_points(
    n: int, seed: int, machine: CorpusMachine, *, shapes: bool = True
) -> Iterator[CalibrationNetwork]:
    """Yield single-layer networks indefinitely; with `shapes`, only networks with shapes excluded from training."""
    rng, seen = random.Random(f"held out {n} {seed}"), set()
    for point in singles(n, rng):
        if point not in seen and (not shapes or is_held_out(point)):
            seen.add(point)
            if _has_choices(point, machine):
                yield point


def _has_choices(point: CalibrationNetwork, machine: CorpusMachine) -> bool:
    try:
        prepared = ModelCompiler(point.graph(), machine.conditions.config, machine.options)
        stages = prepared.lowered(prepared.fusions)
    except InputError:
        return False
    spaces = spaces_of(prepared.config, stages, machine.conditions.dram).values()
    return len(spaces) == 1 and all(len(space.tilings) >= _MIN_TILINGS for space in spaces)


def race(
    measurer: Measurer,
    point: CalibrationNetwork,
    model: Gpt,
    trials: dict[str, int],
    seeds: int,
    temperature: float = 1.0,
    say: Callable[[str], None] = lambda _text: None,
) -> Raced:
    """Run searches with several methods for the schedule of one layer.

    Parameters
    ----------
    measurer : Measurer
        Measurer of the layer.
    point : CalibrationNetwork
        Network that consists of the layer.
    model : Gpt
        Language model to evaluate.
    trials : dict
        Number of measurements by method.
    seeds : int
        Number of searches per method.
    temperature : float
        Sampling temperature of the model.
    say : callable
        Called with progress messages.
    """
    baseline = measurer.baseline()
    curves: dict[str, list[list[int]]] = {}
    first: list[int | None] = []
    kinds = {kind: BanditTally() for kind in CandidateKind}
    for method, count in trials.items():
        curves[method] = []
        for seed in range(seeds):
            generator = LmGenerator(model, temperature) if method == LLM else None
            found = tune(measurer, method, count, seed=seed, language_model=generator)
            curves[method].append(expand_curve(found.curve, count))
            if generator is not None:
                for kind, tally in generator.tallies.items():
                    kinds[kind].add(tally)
                result = found.trials[0].result if found.trials else None
                first.append(result.cycles if isinstance(result, Measurement) and result.valid else None)
        say(f"{point.family}: {method} {min(curve[-1] for curve in curves[method]):,} of {baseline.cycles:,}")
    return Raced(point.family, point, baseline.cycles, baseline.floor, curves, first, kinds)


def expand_curve(curve: list[tuple[int, float]], count: int) -> list[int]:
    """Return the best cycles after each of trials 0 to `count`, from a curve that lists only improvements."""
    known, out, cost = dict(curve), [], 0
    for trial in range(count + 1):
        cost = int(known.get(trial, cost))
        out.append(cost)
    return out


def mean_ratio(raced: list[Raced], one: tuple[str, int], other: tuple[str, int]) -> float:
    """Return the ratio of two methods' median cycles, as the geometric mean over all layers.

    Parameters
    ----------
    raced : list of Raced
        Results of the layers.
    one, other : (str, int)
        Name of each method, and number of its trials.
    """
    logs = [
        log(float(np.median([curve[one[1]] for curve in each.curves[one[0]]])))
        - log(float(np.median([curve[other[1]] for curve in each.curves[other[0]]])))
        for each in raced
    ]
    return exp(sum(logs) / len(logs))
