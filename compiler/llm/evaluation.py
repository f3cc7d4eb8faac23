"""Evaluation of the language model on held-out layers: comparison with other search methods, and single answers."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from compiler.llm.data.held_out import CorpusMachine, is_held_out
from compiler.llm.generate.candidate_pool import BanditTally, CandidateKind
from compiler.llm.generate.lm_generator import LmGenerator
from compiler.llm.generate.requests import Schedules
from compiler.llm.generate.sampler import DecoderState, TokenReader, draw
from compiler.llm.model.numpy_transformer import Floats, Gpt
from compiler.llm.tokens.layer_prompt import subjects_of
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.pipeline import ModelCompiler
from compiler.profile.measurement import Measurement
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, singles
from compiler.tuning.generators.generator import GeneratorTask
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
            if has_choices(point, machine):
                yield point


def has_choices(point: CalibrationNetwork, machine: CorpusMachine, max_layers: int = 1) -> bool:
    """Return whether a network can be compiled to at most `max_layers` layers, each with several tilings."""
    try:
        prepared = ModelCompiler(point.graph(), machine.conditions.config, machine.options)
        stages = prepared.lowered(prepared.fusions)
    except InputError:
        return False
    spaces = spaces_of(prepared.config, stages, machine.conditions.dram).values()
    return len(spaces) <= max_layers and all(len(space.tilings) >= _MIN_TILINGS for space in spaces)


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


#: Cycle ratio of answers that are truncated or cannot be measured.
_FAILED_RATIO = 3
#: Number of answers of a group, of which the best answer is evaluated.
GROUP_SIZE = 4


@dataclass(frozen=True)
class Sampled:
    """Measured answers about one layer.

    Parameters
    ----------
    layer : str
        Name of the layer kind.
    static : int
        Cycles of the static compiler's schedule.
    cycles : list of int
        Cycles of each answer in sampling order, including answers that leave the schedule unchanged.
    """

    layer: str
    static: int
    cycles: list[int]

    def ratios(self, group_size: int = 1) -> list[float]:
        """Return, for each group of `group_size` answers, the fewest cycles relative to the static schedule."""
        starts = range(0, len(self.cycles) - group_size + 1, group_size)
        return [min(self.cycles[start : start + group_size]) / self.static for start in starts]


def sampled(
    measurer: Measurer, layer: str, model: Gpt, count: int, seed: int, temperature: float = 1.0
) -> Sampled:
    """Sample answers about the slowest layer of a network, and measure all of them.

    Parameters
    ----------
    measurer : Measurer
        Measurer of the network.
    layer : str
        Name of the layer kind for the report.
    model : Gpt
        Language model to sample from.
    count : int
        Number of answers.
    seed : int
        Random seed for sampling.
    temperature : float
        Sampling temperature, as in `draw`.

    Raises
    ------
    WorkError
        The network cannot be measured.
    """
    measured, schedule = measurer.baseline(), measurer.first.schedule
    task = GeneratorTask(measurer.prepared, measurer.conditions, schedule, tuple(schedule.layers), measured)
    name, subject = next(iter(subjects_of(task).items()))
    request, rng = Schedules(task, name, subject, known=model.known), np.random.default_rng(seed)
    prompt = request.prompt(profile=model.profile)
    answers = draw(model, LANGUAGE, prompt, request.grammar, count, rng, temperature)
    schedules = [request.candidate(each.tokens).schedule if each.complete else None for each in answers]
    distinct = {each.to_json(): each for each in schedules if each is not None}
    results = dict(zip(distinct, measurer.measure(list(distinct.values())), strict=True))
    found = [None if each is None else results[each.to_json()] for each in schedules]
    cycles = [
        each.cycles if isinstance(each, Measurement) and each.valid else _FAILED_RATIO * measured.cycles
        for each in found
    ]
    return Sampled(layer, measured.cycles, cycles)


def figures(layers: Sequence[Sampled]) -> dict[str, float]:
    """Summarize the ratios of the answers' cycles to the cycles of the static compiler's schedules.

    Returns
    -------
    dict
        Geometric means of the ratio of one answer (`one`) and of the best of several (`some`); `one_median` and
        `some_median` are medians over layers of the mean ratio of each layer.
    """
    found = {}
    for name, number in (("one", 1), ("some", GROUP_SIZE)):
        each = [layer.ratios(number) for layer in layers]
        found[name] = _mean([ratio for ratios in each for ratio in ratios])
        found[f"{name}_median"] = median(map(_mean, each))
    return found


def _mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(fmean(np.log(ratios))))


@dataclass
class AgreementTally:
    """Number of compared positions, and of positions at which the most likely tokens of both models are equal."""

    tokens: int = 0
    same: int = 0

    def add(self, first: Floats, second: Floats) -> None:
        """Compare two arrays of logits and add the result to the counts."""
        self.tokens += len(first)
        self.same += int((first.argmax(axis=1) == second.argmax(axis=1)).sum())


class AgreementMeter:
    """Model that also compares its predictions with those of a second model.

    Parameters
    ----------
    first, second : TokenReader
        Model that provides the scores, and model to compare with.
    """

    def __init__(self, first: TokenReader, second: TokenReader):
        self.first, self.second, self.tally = first, second, AgreementTally()

    def read(self, tokens: Sequence[int]) -> "PairedDecoder":
        """Return the state of both models after a prompt."""
        return PairedDecoder(self.first.read(tokens), self.second.read(tokens), self.tally)


class PairedDecoder:
    """Pair of decoding states that behaves like the state of the first model."""

    def __init__(
        self, first: DecoderState, second: DecoderState, tally: AgreementTally, *, known: bool = False
    ):
        self._first, self._second, self._tally = first, second, tally
        if not known:
            tally.add(first.scores, second.scores)

    @property
    def scores(self) -> Floats:
        """Logits of the first model."""
        return self._first.scores

    @property
    def full(self) -> bool:
        """True if either context is full."""
        return self._first.full or self._second.full

    def fork(self, count: int) -> "PairedDecoder":
        """Return a state with `count` copies of the single continuation."""
        return PairedDecoder(self._first.fork(count), self._second.fork(count), self._tally, known=True)

    def select(self, which: Sequence[int]) -> None:
        """Select continuations by index and drop the others."""
        self._first.select(which)
        self._second.select(which)

    def push(self, tokens: NDArray[np.integer]) -> None:
        """Append tokens to every continuation."""
        self._first.push(tokens)
        self._second.push(tokens)
        self._tally.add(self._first.scores, self._second.scores)
