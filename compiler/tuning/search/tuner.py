"""A search from its first trial to its last."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from compiler.cost.learned.model import PredictionErrors
from compiler.profile.measurement import Measurement, Rejected
from compiler.tuning.generators.generator import Generator
from compiler.tuning.generators.library import GeneratorSpec, make_generators
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.search.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.search.generator_search import GeneratorSearch
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.tuning.search.methods import GENERATORS_METHOD, LLM, METHODS
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.schedule.schedule import Schedule
    from compiler.tuning_db.session import DatabaseSession

#: Of the trials a part that schedules of other conditions may have, and how many at most.
_STARTS_PART, _STARTS = 4, 4


@dataclass(frozen=True)
class TuningResult:
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
    cached_count : int
        Trials whose measurement was known.
    transferred_count : int
        Trials of schedules that were good under other conditions: the first ones.
    predictor : Errors or None
        How good the method's predictions were; None: it makes none.
    """

    baseline: Measurement
    best: Trial
    curve: list[tuple[int, float]]
    trials: list[Trial]
    cached_count: int = 0
    transferred_count: int = 0
    predictor: PredictionErrors | None = None


def tune(
    measurer: Measurer,
    method: str | type[SearchMethod] | SearchMethod,
    trials: int,
    goal: Objective = Objective.LATENCY,
    seed: int = 0,
    constraints: Constraints = UNCONSTRAINED,
    seconds: float | None = None,
    on_trial: Callable[[int, Trial, Trial], None] = lambda _number, _trial, _best: None,
    session: "DatabaseSession | None" = None,
    language_model: Generator | None = None,
    generator: "GeneratorSpec | Sequence[GeneratorSpec] | None" = None,
) -> TuningResult:
    """Search for a schedule of less cost.

    Parameters
    ----------
    measurer : Measurer
        Of the network.
    method : str, subclass of Method, or Method
        A key of METHODS, `LLM`, `module:Class`, a class, or an instance made for this measurer, goal and constraints.
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
    on_trial : callable
        Hears the number of each trial, the trial, and the best so far.
    session : Recall or None
        What is known of earlier searches; the measurer has the same as its memory.
    language_model : Generator or None
        The language model that `LLM` asks.
    generator : str, subclass of Generator, Generator, or sequence of them, optional
        Generators that a method of kind `Generated` asks, in this order, instead of all registered ones.

    Raises
    ------
    InputError
        There is no such method or generator, they do not go together, a plug-in fails, or there is no language model
        to ask.
    WorkError
        The baseline cannot be measured.
    """
    end = None if seconds is None else monotonic() + seconds
    baseline = measurer.baseline()
    searcher = make_method(method, measurer, goal, baseline, seed, constraints, language_model, generator)
    before = measurer.cached_count
    store_best(session, searcher)
    starts = initial_schedules(session, searcher, -(-trials // _STARTS_PART))
    done: list[Trial] = []
    curve = [(0, goal.cost(baseline))]
    while len(done) < trials and (end is None or monotonic() < end):
        count = min(measurer.devices, trials - len(done))
        schedules = starts[len(done) :][:count] or [searcher.propose() for _ in range(count)]
        for schedule, result in zip(schedules, measurer.measure(schedules), strict=True):
            trial = searcher.record(schedule, result)
            done.append(trial)
            best = searcher.best.cost
            if best is not None and best < curve[-1][1]:
                curve.append((len(done), best))
                store_best(session, searcher)
            on_trial(len(done), trial, searcher.best)
    remembered = measurer.cached_count - before
    return TuningResult(baseline, searcher.best, curve, done, remembered, len(starts), searcher.predictor)


def make_method(
    method: str | type[SearchMethod] | SearchMethod,
    measurer: Measurer,
    goal: Objective,
    baseline: Measurement,
    seed: int,
    constraints: Constraints = UNCONSTRAINED,
    language_model: Generator | None = None,
    generator: "GeneratorSpec | Sequence[GeneratorSpec] | None" = None,
) -> SearchMethod:
    """An instance of a search method; parameters and errors as in `tune`."""
    if isinstance(method, SearchMethod):
        _check_instance(method, measurer, goal, constraints, generator)
        return method
    check_generators(method, generator)
    if method == LLM:
        if language_model is None:
            raise InputError(f"the method {LLM} needs a language model to ask")
        return GeneratorSearch(measurer, goal, baseline, seed, constraints, [language_model])
    kind = METHODS.resolve(method)
    if generator is None:
        return kind(measurer, goal, baseline, seed, constraints)
    asked = {"generators": make_generators(generator)}
    return kind(measurer, goal, baseline, seed, constraints, **asked)


def check_generators(
    method: str | type[SearchMethod], generator: "GeneratorSpec | Sequence[GeneratorSpec] | None"
) -> None:
    """Load a method and generators, as `tune` has them, before anything is measured.

    Raises
    ------
    InputError
        There is no such method or generator, or the method asks no generators.
    """
    kind = None if method == LLM else METHODS.resolve(method)
    if generator is None:
        return
    make_generators(generator)
    if kind is None or not issubclass(kind, GeneratorSearch):
        name = method if isinstance(method, str) else method.__qualname__
        raise InputError(
            f"generators are for a method that asks them, such as {GENERATORS_METHOD}, not for {name}"
        )


def _check_instance(
    method: SearchMethod, measurer: Measurer, goal: Objective, constraints: Constraints, generator: object
) -> None:
    """InputError if a method was made for another search."""
    if generator is not None:
        raise InputError("generators are for a method that is named: give them to this one when it is made")
    if method.prepared is not measurer.prepared:
        raise InputError("the method was made for another measurer")
    for name, own, asked in (
        ("goal", method.goal, goal),
        ("constraints", method.constraints, constraints),
    ):
        if own != asked:
            raise InputError(f"the method was made for the {name} {shown(own)}, not {shown(asked)}")


def initial_schedules(
    session: "DatabaseSession | None", searcher: SearchMethod, limit: int = _STARTS
) -> "list[Schedule]":
    """Schedules to try before a method proposes any."""
    found = [] if session is None else session.transfer_candidates(searcher.first, min(limit, _STARTS))
    return [schedule for schedule in found if searcher.register(schedule)]


def store_best(session: "DatabaseSession | None", searcher: SearchMethod) -> None:
    """Keep the program of a method's best schedule, if it is better than what is kept."""
    best = searcher.best
    if session is not None and best.cost is not None and isinstance(best.result, Measurement):
        session.put_best(best.schedule, best.result, best.cost, searcher.prepared.network)


def rejection_reason(trial: Trial) -> str | None:
    """Why a trial's schedule must not be used; None if it may."""
    if isinstance(trial.result, Rejected):
        return f"{trial.result.stage}: {trial.result.reason}"
    if not trial.result.exact:
        return "its outputs are wrong"
    return None if trial.result.believable else f"{trial.result.cycles} cycles are fewer than the work takes"
