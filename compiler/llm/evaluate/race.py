"""How good the model is on layers that it has never seen, beside other methods of search."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, log

import numpy as np

from compiler.llm.data.held_out import is_held_out
from compiler.llm.data.machines import CorpusMachine
from compiler.llm.generate.bandit import BanditTally, CandidateKind
from compiler.llm.generate.lm_generator import LmGenerator
from compiler.llm.model.numpy_transformer import Gpt
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import Measurement
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, singles
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.methods import LLM
from compiler.tuning.search.tuner import tune
from compiler.tuning.space.layer_space import spaces_of
from hw.errors import InputError

#: Layers with fewer tilings leave nothing to choose.
_LEAST_TILINGS = 4


@dataclass(frozen=True)
class Raced:
    """Searches for a schedule of one layer.

    Parameters
    ----------
    layer : str
        Its kind.
    point : Point
        The network that it is.
    static : int
        Cycles of the static compiler's schedule.
    floor : int
        Cycles that nothing beats.
    curves : dict
        For each method and each seed the least cycles after each trial; the static compiler's are trial 0.
    first : list of int or None
        For each seed the cycles of the model's first candidate; None: it could not be measured.
    kinds : dict
        What came of the model's candidates of each kind, all seeds together.
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
    """Single layers without end; with `shapes` only of shapes that are kept out of training."""
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
    return len(spaces) == 1 and all(len(space.tilings) >= _LEAST_TILINGS for space in spaces)


def race(
    measurer: Measurer,
    point: CalibrationNetwork,
    model: Gpt,
    trials: dict[str, int],
    seeds: int,
    temperature: float = 1.0,
    say: Callable[[str], None] = lambda _text: None,
) -> Raced:
    """Let methods look for schedules of one layer.

    Parameters
    ----------
    measurer : Measurer
        Of the layer.
    point : Point
        What it is.
    model : Gpt
        The language model.
    trials : dict
        Measurements that each method may ask for.
    seeds : int
        Searches of each.
    temperature : float
        Of the model's answers.
    say : callable
        Hears of progress.
    """
    baseline = measurer.baseline()
    curves: dict[str, list[list[int]]] = {}
    first: list[int | None] = []
    kinds = {kind: BanditTally() for kind in CandidateKind}
    for method, count in trials.items():
        curves[method] = []
        for seed in range(seeds):
            author = LmGenerator(model, temperature) if method == LLM else None
            found = tune(measurer, method, count, seed=seed, author=author)
            curves[method].append(filled(found.curve, count))
            if author is not None:
                for kind, tally in author.tallies.items():
                    kinds[kind].add(tally)
                result = found.trials[0].result if found.trials else None
                first.append(result.cycles if isinstance(result, Measurement) and result.believable else None)
        say(f"{point.family}: {method} {min(curve[-1] for curve in curves[method]):,} of {baseline.cycles:,}")
    return Raced(point.family, point, baseline.cycles, baseline.floor, curves, first, kinds)


def filled(curve: list[tuple[int, float]], count: int) -> list[int]:
    """The least cycles after each of so many trials, 0 included, from where they went down."""
    known, out, cost = dict(curve), [], 0
    for trial in range(count + 1):
        cost = int(known.get(trial, cost))
        out.append(cost)
    return out


def mean_ratio(raced: list[Raced], one: tuple[str, int], other: tuple[str, int]) -> float:
    """Geometric mean over layers of what one method has after so many trials over what another has (medians)."""
    logs = [
        log(float(np.median([curve[one[1]] for curve in each.curves[one[0]]])))
        - log(float(np.median([curve[other[1]] for curve in each.curves[other[0]]])))
        for each in raced
    ]
    return exp(sum(logs) / len(logs))
