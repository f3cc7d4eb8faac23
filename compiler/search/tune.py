"""A search from its first trial to its last."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from compiler.hpm.errors import Errors
from compiler.measure.measurement import Measurement, Rejected
from compiler.measure.measurer import Measurer
from compiler.search.constraints import FREE, Constraints
from compiler.search.coordinate import Coordinate
from compiler.search.drawn import RandomSearch
from compiler.search.edited import Edited
from compiler.search.evolution import Evolution
from compiler.search.generated import Generated
from compiler.search.goals import Goal
from compiler.search.guided import Guided
from compiler.search.method import Method, Trial
from compiler.specialize.generator import Generator
from hw.errors import InputError

if TYPE_CHECKING:
    from compiler.schedule.schedule import Schedule
    from compiler.store.recall import Recall

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (RandomSearch, Evolution, Coordinate, Guided, Generated, Edited)
}
#: The method that asks a language model.
LLM = "llm"
#: Of the trials a part that schedules of other conditions may have, and how many at most.
_STARTS_PART, _STARTS = 4, 4


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Parameters
    ----------
    baseline : Measurement
        Of the static compiler's schedule.
    best : Trial
        The best that was believable.
    curve : list of (int, float)
        After how many trials the best cost so far went down, and to what; the baseline is trial 0.
    trials : list of Trial
        All of them, in order.
    remembered : int
        Trials whose measurement was known.
    starts : int
        Trials of schedules that were good under other conditions: the first ones.
    predictor : Errors or None
        How good the method's predictions were; None: it makes none.
    """

    baseline: Measurement
    best: Trial
    curve: list[tuple[int, float]]
    trials: list[Trial]
    remembered: int = 0
    starts: int = 0
    predictor: Errors | None = None


def tune(
    measurer: Measurer, method: str, trials: int, goal: Goal = Goal.LATENCY, seed: int = 0,
    constraints: Constraints = FREE, seconds: float | None = None,
    hear: Callable[[int, Trial, Trial], None] = lambda _number, _trial, _best: None,
    recall: "Recall | None" = None, author: Generator | None = None,
) -> Tuned:  # fmt: skip
    """Search for a schedule of less cost.

    Parameters
    ----------
    measurer : Measurer
        Of the network.
    method : str
        A key of METHODS, or `LLM`.
    trials : int
        Measurements that may be asked for, beside the baseline's.
    goal : Goal
        What counts.
    seed : int
        Of the method's choices.
    constraints : Constraints
        What must not be changed.
    seconds : float or None
        No trial begins after so long; None: all trials.
    hear : callable
        Hears the number of each trial, the trial, and the best so far.
    recall : Recall or None
        What is known of earlier searches; the measurer has the same as its memory.
    author : Generator or None
        The language model that `LLM` asks.

    Raises
    ------
    InputError
        There is no language model to ask.
    WorkError
        The baseline cannot be measured.
    """
    end = None if seconds is None else monotonic() + seconds
    baseline = measurer.baseline()
    searcher = method_of(method, measurer, goal, baseline, seed, constraints, author)
    before = measurer.remembered
    keep_best(recall, searcher)
    starts = starts_of(recall, searcher, -(-trials // _STARTS_PART))
    done: list[Trial] = []
    curve = [(0, goal.cost(baseline))]
    while len(done) < trials and (end is None or monotonic() < end):
        count = min(measurer.devices, trials - len(done))
        schedules = starts[len(done) :][:count] or [searcher.propose() for _ in range(count)]
        for schedule, result in zip(schedules, measurer.measure(schedules), strict=True):
            trial = searcher.tell(schedule, result)
            done.append(trial)
            best = searcher.best.cost
            if best is not None and best < curve[-1][1]:
                curve.append((len(done), best))
                keep_best(recall, searcher)
            hear(len(done), trial, searcher.best)
    remembered = measurer.remembered - before
    return Tuned(baseline, searcher.best, curve, done, remembered, len(starts), searcher.predictor)


def method_of(
    name: str, measurer: Measurer, goal: Goal, baseline: Measurement, seed: int, constraints: Constraints = FREE,
    author: Generator | None = None,
) -> Method:  # fmt: skip
    """The method of a name; InputError: it asks a language model, and there is none."""
    if name != LLM:
        return METHODS[name](measurer, goal, baseline, seed, constraints)
    if author is None:
        raise InputError(f"the method {LLM} needs a language model to ask")
    return Generated(measurer, goal, baseline, seed, constraints, [author])


def starts_of(recall: "Recall | None", searcher: Method, limit: int = _STARTS) -> "list[Schedule]":
    """Schedules to try before a method proposes any."""
    found = [] if recall is None else recall.starts(searcher.first, min(limit, _STARTS))
    return [schedule for schedule in found if searcher.fresh(schedule)]


def keep_best(recall: "Recall | None", searcher: Method) -> None:
    """Keep the program of a method's best schedule, if it is better than what is kept."""
    best = searcher.best
    if recall is not None and best.cost is not None and isinstance(best.result, Measurement):
        recall.offer(best.schedule, best.result, best.cost, searcher.prepared.network)


def why_not(trial: Trial) -> str | None:
    """Why a trial's schedule must not be used; None if it may."""
    if isinstance(trial.result, Rejected):
        return f"{trial.result.stage}: {trial.result.reason}"
    if not trial.result.exact:
        return "its outputs are wrong"
    return None if trial.result.believable else f"{trial.result.cycles} cycles are fewer than the work takes"
