"""Search driver: runs a search method for a number of trials."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from compiler.cost.learned.model import PredictionErrors
from compiler.profile.measurement import Measurement, Rejected
from compiler.tuning.constraints import UNCONSTRAINED, Constraints, Objective
from compiler.tuning.edits.edit import EditError
from compiler.tuning.edits.editable_programs import templates_of, with_templates
from compiler.tuning.generators.generator import Generator, GeneratorFailure
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import GENERATORS_METHOD, LLM, METHODS, GeneratorSpec, make_generators
from compiler.tuning.search.coordinate import StrategySearch
from compiler.tuning.search.generator_search import GeneratorSearch
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.tuning.strategies import learned
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.schedule.schedule import Schedule
    from compiler.tuning_db.session import DatabaseSession

#: The best schedules of other conditions are measured in at most one of `_TRANSFER_DIVISOR` trials, and in at most
#: `_MAX_TRANSFERRED` trials.
_TRANSFER_DIVISOR, _MAX_TRANSFERRED = 4, 4


@dataclass(frozen=True)
class TuningResult:
    """Result of a search.

    Parameters
    ----------
    baseline : Measurement
        Measurement of the static compiler's schedule.
    best : Trial
        Best trial with correct outputs.
    curve : list of (int, float)
        Trial number and cost of each improvement; the baseline is trial 0.
    trials : list of Trial
        All trials, in order.
    cached_count : int
        Number of trials whose measurements were found in the database.
    transferred_count : int
        Number of initial trials of schedules that were best under other conditions.
    predictor : PredictionErrors or None
        Errors of the method's predictions; None if the method makes no predictions.
    left_out : tuple of GeneratorFailure
        Failures of generators, which were no longer queried.
    """

    baseline: Measurement
    best: Trial
    curve: list[tuple[int, float]]
    trials: list[Trial]
    cached_count: int = 0
    transferred_count: int = 0
    predictor: PredictionErrors | None = None
    left_out: tuple[GeneratorFailure, ...] = ()

    def __repr__(self) -> str:
        found = f"best cost {self.best.cost} after {len(self.trials)} trials"
        return f"<TuningResult: {self.baseline.cycles:,} cycles, {found}>"


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
    """Search for a schedule with a lower cost than the static compiler's schedule.

    Parameters
    ----------
    measurer : Measurer
        Measurer of the network.
    method : str, subclass of SearchMethod, or SearchMethod
        A key of METHODS, `LLM`, `module:Class`, a class, or an instance for this measurer, goal and constraints.
    trials : int
        Maximum number of measurements in addition to the measurement of the baseline.
    goal : Objective
        Metric to minimize.
    seed : int
        Seed of the method's random choices.
    constraints : Constraints
        Transformations that no schedule may use.
    seconds : float or None
        Seconds after which no trial starts; None: no limit.
    on_trial : callable
        Function that is called after each trial with the trial's number, the trial, and the best trial so far.
    session : DatabaseSession or None
        Database session with the results of earlier searches; it should also be the measurer's cache.
    language_model : Generator or None
        Language model that the method `LLM` queries.
    generator : str, subclass of Generator, Generator, or sequence of them, optional
        Generators that a `GeneratorSearch` queries, in this order, instead of all registered generators.

    Raises
    ------
    InputError
        A method or generator does not exist, the method does not use generators, a plug-in fails, or the language
        model is missing.
    WorkError
        The baseline cannot be measured.
    """
    end = None if seconds is None else monotonic() + seconds
    baseline = measurer.baseline()
    searcher = make_method(method, measurer, goal, baseline, seed, constraints, language_model, generator)
    if session is not None and isinstance(searcher, StrategySearch):
        # without this network's own trials, so that a repeated search proposes the same schedules
        searcher.statistics.earlier = learned(session.database.histories(without=session.key))
    before = measurer.cached_count
    store_best(session, searcher, baseline)
    initial = initial_schedules(session, searcher, -(-trials // _TRANSFER_DIVISOR))
    done: list[Trial] = []
    curve = [(0, goal.cost(baseline))]
    while len(done) < trials and (end is None or monotonic() < end):
        count = min(measurer.devices, trials - len(done))
        schedules = initial[len(done) :][:count] or [searcher.propose() for _ in range(count)]
        for schedule, result in zip(schedules, measurer.measure(schedules), strict=True):
            trial = searcher.record(schedule, result)
            done.append(trial)
            best = searcher.best.cost
            if best is not None and best < curve[-1][1]:
                curve.append((len(done), best))
                store_best(session, searcher, baseline)
            on_trial(len(done), trial, searcher.best)
    cached = measurer.cached_count - before
    return TuningResult(
        baseline, searcher.best, curve, done, cached, len(initial), searcher.predictor, searcher.left_out
    )


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
    """Return an instance of a search method; `baseline` is the measurement of the first schedule.

    The other parameters and the exceptions are those of `tune`.
    """
    if isinstance(method, SearchMethod):
        _check_instance(method, measurer, goal, constraints, generator)
        return method
    check_generators(method, generator)
    if method == LLM:
        if language_model is None:
            raise InputError(f"the method {LLM} needs a language model")
        return GeneratorSearch(measurer, goal, baseline, seed, constraints, [language_model])
    kind = METHODS.resolve(method)
    if generator is None:
        return kind(measurer, goal, baseline, seed, constraints)
    asked = {"generators": make_generators(generator)}
    return kind(measurer, goal, baseline, seed, constraints, **asked)


def check_generators(
    method: str | type[SearchMethod], generator: "GeneratorSpec | Sequence[GeneratorSpec] | None"
) -> None:
    """Load a method and generators like `tune`, to report errors before anything is measured.

    Raises
    ------
    InputError
        A method or generator does not exist, or the method does not use generators.
    """
    kind = None if method == LLM else METHODS.resolve(method)
    if generator is None:
        return
    make_generators(generator)
    if kind is None or not issubclass(kind, GeneratorSearch):
        name = method if isinstance(method, str) else method.__qualname__
        raise InputError(f"generators need a method that uses them, such as {GENERATORS_METHOD}, not {name}")


def _check_instance(
    method: SearchMethod, measurer: Measurer, goal: Objective, constraints: Constraints, generator: object
) -> None:
    """Raise InputError if a method instance was created for another search."""
    if generator is not None:
        raise InputError(
            "generators must be passed to the constructor of a method that is given as an instance"
        )
    if method.prepared is not measurer.prepared:
        raise InputError("the method was created for another measurer")
    for name, own, given in (
        ("goal", method.goal, goal),
        ("constraints", method.constraints, constraints),
    ):
        if own != given:
            raise InputError(f"the method was created for the {name} {shown(own)}, not {shown(given)}")


def initial_schedules(
    session: "DatabaseSession | None", searcher: SearchMethod, limit: int = _MAX_TRANSFERRED
) -> "list[Schedule]":
    """Return schedules to try before the method proposes any.

    They consist of the macro-instructions that were learned in other networks or by others, and of the schedules that
    were best under other conditions.
    """
    if session is None:
        return []
    most = min(limit, _MAX_TRANSFERRED)
    found = [*_learned(session, searcher), *session.transfer_candidates(searcher.first, most)]
    return [schedule for schedule in found if searcher.register(schedule)][:most]


def _learned(session: "DatabaseSession", searcher: SearchMethod) -> "Iterator[Schedule]":
    """Yield schedules with learned macro-instructions that the constraints allow."""
    prepared, first = searcher.prepared, searcher.first
    for each in session.learned(prepared.network(first)):
        try:
            schedule = each.schedule
            if each.templates:
                schedule, _ = with_templates(prepared, schedule, each.templates)
        except (EditError, InputError):
            continue
        if searcher.constraints.violation(schedule, first) is None:
            yield schedule


def store_best(session: "DatabaseSession | None", searcher: SearchMethod, baseline: Measurement) -> None:
    """Store the programs of a method's best schedule in the database, if they are better than the stored programs.

    `baseline` is the measurement of the static compiler's schedule.
    """
    best = searcher.best
    if session is not None and best.cost is not None and isinstance(best.result, Measurement):
        prepared = searcher.prepared
        session.put_best(
            best.schedule,
            best.result,
            best.cost,
            prepared.network,
            baseline,
            partial(templates_of, prepared),
        )


def rejection_reason(trial: Trial) -> str | None:
    """Return the reason why a trial's schedule must not be used; None if it may be used."""
    if isinstance(trial.result, Rejected):
        return f"{trial.result.stage}: {trial.result.reason}"
    if not trial.result.exact:
        return "its outputs are wrong"
    return None if trial.result.valid else f"{trial.result.cycles} cycles are below the lower bound"
