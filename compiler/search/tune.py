"""A search from its first trial to its last."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from compiler.hpm.errors import Errors
from compiler.measure.measurement import Measurement, Rejected
from compiler.measure.measurer import Measurer
from compiler.search.constraints import FREE, Constraints
from compiler.search.coordinate import Coordinate
from compiler.search.drawn import RandomSearch
from compiler.search.evolution import Evolution
from compiler.search.generated import Generated
from compiler.search.goals import Goal
from compiler.search.guided import Guided
from compiler.search.method import Method, Trial

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (RandomSearch, Evolution, Coordinate, Guided, Generated)
}


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
    predictor : Errors or None
        How good the method's predictions were; None: it makes none.
    """

    baseline: Measurement
    best: Trial
    curve: list[tuple[int, float]]
    trials: list[Trial]
    predictor: Errors | None = None


def tune(
    measurer: Measurer, method: str, trials: int, goal: Goal = Goal.LATENCY, seed: int = 0,
    constraints: Constraints = FREE, seconds: float | None = None,
    hear: Callable[[int, Trial, Trial], None] = lambda _number, _trial, _best: None,
) -> Tuned:  # fmt: skip
    """Search for a schedule of less cost.

    Parameters
    ----------
    measurer : Measurer
        Of the network.
    method : str
        A key of METHODS.
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

    Raises
    ------
    WorkError
        The baseline cannot be measured.
    """
    end = None if seconds is None else monotonic() + seconds
    baseline = measurer.baseline()
    searcher = METHODS[method](measurer, goal, baseline, seed, constraints)
    done: list[Trial] = []
    curve = [(0, goal.cost(baseline))]
    while len(done) < trials and (end is None or monotonic() < end):
        count = min(measurer.devices, trials - len(done))
        schedules = [searcher.propose() for _ in range(count)]
        for schedule, result in zip(schedules, measurer.measure(schedules), strict=True):
            trial = searcher.tell(schedule, result)
            done.append(trial)
            best = searcher.best.cost
            if best is not None and best < curve[-1][1]:
                curve.append((len(done), best))
            hear(len(done), trial, searcher.best)
    return Tuned(baseline, searcher.best, curve, done, searcher.predictor)


def why_not(trial: Trial) -> str | None:
    """Why a trial's schedule must not be used; None if it may."""
    if isinstance(trial.result, Rejected):
        return f"{trial.result.stage}: {trial.result.reason}"
    if not trial.result.exact:
        return "its outputs are wrong"
    return None if trial.result.believable else f"{trial.result.cycles} cycles are fewer than the work takes"
