"""Function `tune`, which searches for a better schedule of a model in one call."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.cache.model_source import ModelSource
from compiler.ir.graph import Graph
from compiler.options import CompileOptions
from compiler.profile.measurement import HardwareProfile
from compiler.quantize.report import log_warnings
from compiler.tuning.constraints import Constraints, Objective, Targets
from compiler.tuning.generators.generator import Generator
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import GENERATORS_METHOD, LLM, PORTFOLIO, RETRIEVAL
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.tuning.search.tuner import LanguageModel, TuningResult, check_generators
from compiler.tuning.search.tuner import tune as search_schedules
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.session import DatabaseSession
from compiler.util import checks
from hw.config import DEFAULT_TARGET, MlaConfig, load_target
from hw.errors import InputError, shown

if TYPE_CHECKING:
    from compiler.tuning.registry import GeneratorSpec

#: Search method if neither a method nor a generator is given.
DEFAULT_METHOD = PORTFOLIO

_log = logging.getLogger(__name__)


def tune(
    model: Path | str | Graph | ModelSource | Any,
    target: str | MlaConfig = DEFAULT_TARGET,
    *,
    trials: int,
    method: str | type[SearchMethod] | None = None,
    generator: "GeneratorSpec | Sequence[GeneratorSpec] | None" = None,
    goal: str | Objective = Objective.LATENCY,
    seed: int = 0,
    forbid: Sequence[str] = (),
    seconds: float | None = None,
    target_latency: float | None = None,
    target_energy: float | None = None,
    options: CompileOptions | None = None,
    database: TuningDatabase | str | Path | None = None,
    devices: int | None = 1,
    cluster: str | None = None,
    language_model: Generator | None = None,
    on_trial: Callable[[int, Trial, Trial], None] = lambda _number, _trial, _best: None,
    log: Callable[[str], None] = _log.info,
) -> TuningResult:
    """Search for a better schedule of a model than the compiler's own, by measurements on the simulated chip.

    Parameters
    ----------
    model : path, Graph, ModelSource or PyTorch module
        Model to tune, as for `compile`.
    target : str or MlaConfig
        Hardware configuration of the simulated chip: a name such as "n16", a TOML file, or an MlaConfig.
    trials : int
        Number of schedules to measure in addition to the compiler's own, at least 1.
    method : str or subclass of SearchMethod, optional
        Search strategy: a name as on the command line (`mla tune --help` lists them), `module:Class`, or a class.
        Default: "portfolio", which draws from the others, or "generators" if generators are given.
    generator : str, Generator, subclass of it, or a sequence of them, optional
        Generators that the method "generators" or "portfolio" queries.
    goal : str
        Metric to optimize: "latency", "energy" or "throughput".
    seed : int
        Seed of the search and of the random inputs with which schedules are measured.
    forbid : sequence of str
        Transformations that no schedule may use, such as "tiling"; docs/tuning.md lists them.
    seconds : float or None
        Seconds after which no trial starts; None: no limit.
    target_latency : float or None
        Cycles per request, measured as for the goal, at which the search ends; None: no target.
    target_energy : float or None
        Microjoules per request at which the search ends; None: no target. With both targets, both must be met.
    options : CompileOptions or None
        Options of the compiler, including the DRAM timing of the simulated chip; None: the defaults.
    database : TuningDatabase, str, Path or None
        Database in which measurements are looked up and stored, or its URL or file; None: no database.
    devices : int or None
        Number of simulators that run concurrently; None: one per core.
    cluster : str or None
        Address of a Dask scheduler whose workers measure the schedules; None: measure on this machine.
    language_model : Generator or None
        Language model of the methods "llm" and "portfolio"; None: the language model included with the compiler.
    on_trial : callable
        Function that is called after each trial with the trial's number, the trial, and the best trial so far.
    log : callable
        Function that is called with each progress message; by default, messages are logged.

    Returns
    -------
    TuningResult
        `best.schedule` is the best schedule, which can be passed to `compile`, and `best.cost` is its cost for the
        goal. `baseline` is the measurement of the compiler's own schedule. `trials` contains all trials, `proposers`
        the results of each member of a portfolio, and `target_met` is True if the targets were met.

    Raises
    ------
    InputError
        The model cannot be read or compiled, an argument is wrong, or a plug-in fails.
    WorkError
        The simulator cannot be built or run, or the database or the cluster cannot be reached.

    Examples
    --------
    >>> result = compiler.tune("network.tflite", "n4", trials=20)
    >>> network = compiler.compile("network.tflite", "n4", schedule=result.best.schedule)
    """
    trials, seed = checks.integer("trials", trials, 1), checks.integer("seed", seed, 0)
    config = load_target(target) if isinstance(target, str) else target
    checks.of_type("target", config, MlaConfig, "the name of a target, a TOML file, or an MlaConfig")
    checks.of_type("options", options, (CompileOptions, type(None)), "CompileOptions or None")
    if goal not in tuple(Objective):
        raise InputError(f"goal must be {', '.join(Objective)}, not {shown(goal)}")
    constraints = Constraints(frozenset(checks.texts("forbid", forbid)))
    method = method or (DEFAULT_METHOD if generator is None else GENERATORS_METHOD)
    check_generators(method, generator)
    if method == RETRIEVAL and database is None:
        raise InputError(f"the method {RETRIEVAL} needs a database")
    targets = Targets(target_latency, target_energy)
    source = model if isinstance(model, ModelSource) else ModelSource(model)
    if source.lengths is not None:
        raise InputError(f"sizes: tuning takes one size of {source.lengths[0]!r}, not several lengths")
    options = options or CompileOptions(rounding=source.rounding, seed=seed)
    workers = None
    if cluster is not None:
        from compiler.tuning.measure.worker_pool import DaskCluster

        workers = partial(DaskCluster, address=cluster, count=devices)
    with (
        _opened(database) as opened,
        Measurer(
            source.graph,
            HardwareProfile(config, options.dram),
            options,
            devices,
            seed,
            log,
            workers,
            stream=goal == Objective.THROUGHPUT,
        ) as measurer,
    ):
        log_warnings(measurer.prepared.graph.name, measurer.prepared.report, options.seed)
        session = None
        if opened is not None:
            name = method if isinstance(method, str) else method.__qualname__
            session = DatabaseSession(opened, measurer.prepared, measurer.conditions, str(goal), name, seed)
            measurer.cache = session
        author = language_model
        if author is None:
            author = _language_model(log, method, session)
        tuned = search_schedules(
            measurer,
            method,
            trials,
            Objective(goal),
            seed,
            constraints,
            seconds,
            on_trial,
            session,
            author,
            generator,
            targets,
        )
        if session is not None and (version := session.retrain()) is not None:
            log(
                f"cost model retrained on {len(version.samples)} measurements of layers: error of held-out ones "
                f"{version.before:.1%} -> {version.after:.1%}"
            )
        if session is not None and language_model is None and method in (LLM, PORTFOLIO):
            _retrain_policy(session, seed, log)
        return tuned


def _retrain_policy(session: DatabaseSession, seed: int, log: Callable[[str], None]) -> None:
    """Train a challenger of the language model's policy on the trials of a search, and log the gate's decision."""
    from compiler.llm.generate.policy import retrain_policy

    if (version := retrain_policy(session, seed)) is not None:
        decision = "replaces the present one" if version.accepted else "is refused"
        log(
            f"policy of the language model trained on {version.trained} layers {decision}: expected cost for "
            f"{version.held_out} held-out layers {version.before:.4f} -> {version.after:.4f}"
        )


def _language_model(
    log: Callable[[str], None], method: str | type[SearchMethod], session: DatabaseSession | None
) -> LanguageModel:
    """Return the language model included with the compiler if a method uses one; a portfolio loads it when needed."""
    if method not in (LLM, PORTFOLIO):
        return None
    from compiler.llm.generate.lm_generator import built_in_model, language_model
    from compiler.llm.generate.policy import current_weights

    weights = cache(lambda: current_weights(session))
    if method == PORTFOLIO:
        return built_in_model(log, weights)
    model = language_model(None, log, weights)
    model.check()
    return model


def _opened(database: TuningDatabase | str | Path | None) -> AbstractContextManager[TuningDatabase | None]:
    """Return a context with the open database, which is closed afterwards unless the caller opened it."""
    if database is None or isinstance(database, TuningDatabase):
        return nullcontext(database)
    return TuningDatabase(database)
