"""How good single answers of the model are: what they cost, over what the static compiler's schedule does."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from compiler.llm.decode.sampler import draw
from compiler.llm.generate.requests import Schedules
from compiler.llm.model.numpy_transformer import Gpt
from compiler.llm.tokens.layer_prompt import subjects_of
from compiler.llm.tokens.vocabulary import LANGUAGE
from compiler.profile.measurement import Measurement
from compiler.tuning.generators.task import GeneratorTask
from compiler.tuning.measure.measurer import Measurer

#: An answer that cannot be measured, or is given up, counts as so many times the static compiler's cycles.
_FAILED = 3
#: Answers of which the best is taken.
TOGETHER = 4


@dataclass(frozen=True)
class Sampled:
    """Answers about one layer.

    Parameters
    ----------
    layer : str
        Its kind.
    static : int
        Cycles of the static compiler's schedule.
    cycles : list of int
        Of each answer, as they were drawn; to leave all as it is is an answer too.
    """

    layer: str
    static: int
    cycles: list[int]

    def ratios(self, together: int = 1) -> list[float]:
        """The best of so many answers at a time, over the static compiler's."""
        parts = range(0, len(self.cycles) - together + 1, together)
        return [min(self.cycles[at : at + together]) / self.static for at in parts]


def sampled(
    measurer: Measurer, layer: str, model: Gpt, count: int, seed: int, temperature: float = 1.0
) -> Sampled:
    """Ask about the slowest layer of a network, once, and measure all answers.

    Parameters
    ----------
    measurer : Measurer
        Of the network.
    layer : str
        What it is called.
    model : Gpt
        Who is asked.
    count : int
        Answers.
    seed : int
        Of chance.
    temperature : float
        Of the answers, as for `draw`.

    Raises
    ------
    WorkError
        The network cannot be measured.
    """
    measured, schedule = measurer.baseline(), measurer.first.schedule
    task = GeneratorTask(measurer.prepared, measurer.conditions, schedule, tuple(schedule.layers), measured)
    name, subject = next(iter(subjects_of(task).items()))
    request, rng = Schedules(task, name, subject), np.random.default_rng(seed)
    question = request.question(profile=model.profile)
    answers = draw(model, LANGUAGE, question, request.grammar, count, rng, temperature)
    asked = [request.candidate(each.words).schedule if each.complete else None for each in answers]
    wanted = {each.to_json(): each for each in asked if each is not None}
    results = dict(zip(wanted, measurer.measure(list(wanted.values())), strict=True))
    found = [None if each is None else results[each.to_json()] for each in asked]
    cycles = [
        each.cycles if isinstance(each, Measurement) and each.believable else _FAILED * measured.cycles
        for each in found
    ]
    return Sampled(layer, measured.cycles, cycles)


def figures(layers: Sequence[Sampled]) -> dict[str, float]:
    """What answers cost, over the static compiler's cycles.

    Returns
    -------
    dict
        `one`, `some`: of one answer, and of the best of some, the geometric mean; `one_median`, `some_median`: the
        median of what the layers have as theirs.
    """
    found = {}
    for name, number in (("one", 1), ("some", TOGETHER)):
        each = [layer.ratios(number) for layer in layers]
        found[name] = _mean([ratio for ratios in each for ratio in ratios])
        found[f"{name}_median"] = median(map(_mean, each))
    return found


def _mean(ratios: Sequence[float]) -> float:
    """The geometric one."""
    return float(np.exp(fmean(np.log(ratios))))
