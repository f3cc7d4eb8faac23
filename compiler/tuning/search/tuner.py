"""Search driver: runs a search method for a number of trials."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from compiler.cost.learned_model import PredictionErrors
from compiler.profile.measurement import Measurement, Rejected
from compiler.tuning.constraints import NO_TARGETS, UNCONSTRAINED, Constraints, Objective, Targets
from compiler.tuning.edits.editable_programs import templates_of
from compiler.tuning.generators.generator import Generator, GeneratorFailure
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import (
    GENERATORS_METHOD,
    LLM,
    METHODS,
    RETRIEVAL,
    GeneratorSpec,
    make_generators,
)
from compiler.tuning.search.coordinate import StrategySearch
from compiler.tuning.search.generator_search import GeneratorSearch
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.tuning.search.portfolio import PortfolioSearch, RetrievalSearch
from compiler.tuning.strategies import learned
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.schedule.schedule import Schedule
    from compiler.tuning_db.session import DatabaseSession

#: Language model, or a function that returns it when it is needed.
LanguageModel = Generator | Callable[[], Generator] | None


@dataclass
class ProposerRecord:
    """Results of a proposer in a search.

    Parameters
    ----------
    trials, improvements : int
        Number of trials that it proposed, and number of those that were the best so far.
    gain : float
        Sum of the costs that the improvements saved, as a fraction of the baseline's cost.
    """

    trials: int = 0
    improvements: int = 0
    gain: float = 0.0


@dataclass(frozen=True)
class TuningResult:
    """Result of a search.

    Parameters
    ----------
    baseline : Measurement
        Measurement of the static compiler's schedule.
    best : Trial
        Best trial with correct outputs, or the trial that met the targets.
    curve : list of (int, float)
        Trial number and cost of each improvement; the baseline is trial 0.
    trials : list of Trial
        All trials, in order.
    cached_count : int
        Number of trials whose measurements were found in the database.
    predictor : PredictionErrors or None
        Errors of the method's predictions; None if the method makes no predictions.
    left_out : tuple of GeneratorFailure
        Failures of generators, which were no longer queried.
    proposers : dict of str to ProposerRecord
        Results of each method that proposed schedules, by name.
    target_met : bool or None
        True if the search ended because `best` meets the targets; None if there were no targets.
    """

    baseline: Measurement
    best: Trial
    curve: list[tuple[int, float]]
    trials: list[Trial]
    cached_count: int = 0
    predictor: PredictionErrors | None = None
    left_out: tuple[GeneratorFailure, ...] = ()
    proposers: dict[str, ProposerRecord] = field(default_factory=dict)
    target_met: bool | None = None

    @property
    def transferred_count(self) -> int:
        """Number of trials of known schedules of the database."""
        return self.proposers.get(RETRIEVAL, ProposerRecord()).trials

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
    language_model: LanguageModel = None,
    generator: "GeneratorSpec | Sequence[GeneratorSpec] | None" = None,
    targets: Targets = NO_TARGETS,
) -> TuningResult:
    """Search for a schedule with a lower cost than the static compiler's schedule.

    Parameters
    ----------
    measurer : Measurer
        Measurer of the network.
    method : str, subclass of SearchMethod, or SearchMethod
        A key of METHODS, `LLM`, `RETRIEVAL`, `module:Class`, a class, or an instance for this measurer, goal and
        constraints.
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
    language_model : Generator, callable or None
        Language model that the method `LLM` and the portfolio query, or a function that returns it when it is needed.
    generator : str, subclass of Generator, Generator, or sequence of them, optional
        Generators that a `GeneratorSearch` or the portfolio queries, in this order, instead of all registered ones.
    targets : Targets
        Values of a measurement at which the search ends.

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
    searcher = make_method(
        method, measurer, goal, baseline, seed, constraints, language_model, generator, session
    )
    if session is not None and isinstance(searcher, StrategySearch):
        # without this network's own trials, so that a repeated search proposes the same schedules
        searcher.statistics.earlier = learned(session.database.histories(without=session.key))
    before = measurer.cached_count
    store_best(session, searcher, baseline)
    done: list[Trial] = []
    curve = [(0, goal.cost(baseline))]
    records: dict[str, ProposerRecord] = {}
    met = searcher.best if targets.met(baseline) else None
    while met is None and len(done) < trials and (end is None or monotonic() < end):
        schedules = _proposals(searcher, min(measurer.devices, trials - len(done)))
        if not schedules:
            break
        for schedule, result in zip(schedules, measurer.measure(schedules), strict=True):
            trial = searcher.record(schedule, result)
            done.append(trial)
            record = records.setdefault(trial.proposer, ProposerRecord())
            record.trials += 1
            best = searcher.best.cost
            if best is not None and best < curve[-1][1]:
                record.improvements += 1
                record.gain += (curve[-1][1] - best) / curve[0][1]
                curve.append((len(done), best))
                store_best(session, searcher, baseline)
            elif session is not None:
                learn(session, searcher, trial, baseline)
            if met is None and targets.met(result):
                met = trial
            on_trial(len(done), trial, searcher.best)
    if session is not None:
        session.store_learned()
    return TuningResult(
        baseline,
        met or searcher.best,
        curve,
        done,
        measurer.cached_count - before,
        searcher.predictor,
        searcher.left_out,
        records,
        met is not None if targets else None,
    )


def _proposals(searcher: SearchMethod, count: int) -> "list[Schedule]":
    """Return the next schedules to measure, at most `count`, or fewer if the method is exhausted."""
    out: list[Schedule] = []
    while len(out) < count:
        schedule = searcher.propose()
        if searcher.exhausted:
            break
        out.append(schedule)
    return out


def make_method(
    method: str | type[SearchMethod] | SearchMethod,
    measurer: Measurer,
    goal: Objective,
    baseline: Measurement,
    seed: int,
    constraints: Constraints = UNCONSTRAINED,
    language_model: LanguageModel = None,
    generator: "GeneratorSpec | Sequence[GeneratorSpec] | None" = None,
    session: "DatabaseSession | None" = None,
) -> SearchMethod:
    """Return an instance of a search method; `baseline` is the measurement of the first schedule.

    The other parameters and the exceptions are those of `tune`.
    """
    if isinstance(method, SearchMethod):
        _check_instance(method, measurer, goal, constraints, generator)
        searcher = method
    else:
        check_generators(method, generator)
        searcher = _made(
            method,
            (measurer, goal, baseline, seed, constraints),
            language_model,
            None if generator is None else make_generators(generator),
            session,
        )
        searcher.name = method if isinstance(method, str) else method.__qualname__
    if session is not None:
        session.proposer_of, session.proposers_of = searcher.proposer_of, searcher.proposers_of_best
    return searcher


def _made(
    method: str | type[SearchMethod],
    given: tuple[Measurer, Objective, Measurement, int, Constraints],
    language_model: LanguageModel,
    generators: list[Generator] | None,
    session: "DatabaseSession | None",
) -> SearchMethod:
    """Return an instance of a search method for the arguments `given` of its constructor."""
    if method == RETRIEVAL:
        if session is None:
            raise InputError(f"the method {RETRIEVAL} needs a database")
        return RetrievalSearch(*given, session=session)
    if method == LLM:
        if language_model is None:
            raise InputError(f"the method {LLM} needs a language model")
        model = language_model if isinstance(language_model, Generator) else language_model()
        return GeneratorSearch(*given, generators=[model])
    kind = METHODS.resolve(method)
    if issubclass(kind, PortfolioSearch):
        model = language_model
        return kind(
            *given,
            session=session,
            language_model=(lambda: model) if isinstance(model, Generator) else model,
            generators=generators,
        )
    asked = {} if generators is None else {"generators": generators}
    return kind(*given, **asked)


def check_generators(
    method: str | type[SearchMethod], generator: "GeneratorSpec | Sequence[GeneratorSpec] | None"
) -> None:
    """Load a method and generators like `tune`, to report errors before anything is measured.

    Raises
    ------
    InputError
        A method or generator does not exist, or the method does not use generators.
    """
    kind = None if method in (LLM, RETRIEVAL) else METHODS.resolve(method)
    if generator is None:
        return
    make_generators(generator)
    if kind is None or not issubclass(kind, GeneratorSearch | PortfolioSearch):
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


def learn(session: "DatabaseSession", searcher: SearchMethod, trial: Trial, baseline: Measurement) -> None:
    """Keep what a trial that is not the best one has improved in single layers; `baseline` is as in `store_best`."""
    if trial.cost is not None and isinstance(trial.result, Measurement):
        prepared = searcher.prepared
        session.learn(
            trial.schedule, trial.result, baseline, prepared.network, partial(templates_of, prepared)
        )


def rejection_reason(trial: Trial) -> str | None:
    """Return the reason why a trial's schedule must not be used; None if it may be used."""
    if isinstance(trial.result, Rejected):
        return f"{trial.result.stage}: {trial.result.reason}"
    if not trial.result.exact:
        return "its outputs are wrong"
    return None if trial.result.valid else f"{trial.result.cycles} cycles are below the lower bound"
