"""Quality of single answers: cycles relative to the static compiler's schedule, and agreement of two models."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from compiler.llm.generate.requests import Schedules
from compiler.llm.generate.sampler import DecoderState, TokenReader, draw
from compiler.llm.model.numpy_transformer import Floats, Gpt
from compiler.llm.tokens.layer_prompt import subjects_of
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.profile.measurement import Measurement
from compiler.tuning.generators.generator import GeneratorTask
from compiler.tuning.measure.measurer import Measurer

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
    request, rng = Schedules(task, name, subject), np.random.default_rng(seed)
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
