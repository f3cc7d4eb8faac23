"""Search worker of the online tuner: measures candidates on its own simulators."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.ir.graph import Graph
from compiler.llm.endpoint.settings import Endpoint
from compiler.online_tuning.dram_identification import estimate
from compiler.options import CompileOptions, DramTiming
from compiler.pipeline import ModelCompiler
from compiler.profile.counters import ByTag
from compiler.profile.measurement import HardwareProfile, Measurement, Result
from compiler.quantize.ranges import random_samples
from compiler.schedule.schedule import Schedule
from compiler.tuning.constraints import NO_TARGETS, Objective, Targets
from compiler.tuning.generators.generator import GeneratorFailure
from compiler.tuning.measure.measurer import Measurer
from compiler.tuning.registry import LLM, PORTFOLIO, RETRIEVAL
from compiler.tuning.search.method import SearchMethod, Trial
from compiler.tuning.search.tuner import learn, make_method, store_best
from compiler.tuning.strategies import strategies_between
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.program_cache import ProgramCache
from compiler.tuning_db.session import DatabaseSession
from cosim.device import Device
from hw.config import MlaConfig

if TYPE_CHECKING:
    from compiler.llm.endpoint.model import LanguageModelGenerator
    from compiler.tuning_db.policy_versions import Weights

#: Maximum relative difference at which two latencies or rates are treated as equal.
_MAX_DIFFERENCE = 0.1
#: Proposer of the static compiler's schedule.
STATIC = "static"
#: Minimum number of trials between two retrainings of the cost model in idle time, and between two of the policy.
_RETRAINING_TRIALS = 64


@dataclass(frozen=True)
class SearchJob:
    """Settings of a search for better schedules of a model on a machine.

    `method` is the search method: a name or `module:Class`. `generators` are the names of its candidate generators; ()
    means all. `db` is the database of measurements. `endpoint` is the language model endpoint of the methods `llm` and
    `portfolio`. When the served version meets the `targets`, no more candidates are tried.
    """

    graph: Graph
    config: MlaConfig
    options: CompileOptions
    method: str
    goal: Objective = Objective.THROUGHPUT
    seed: int = 0
    db: str | Path | None = None
    endpoint: Endpoint | None = None
    generators: tuple[str, ...] = ()
    targets: Targets = NO_TARGETS

    @property
    def learns_policy(self) -> bool:
        """True if the search uses the language model of the compiler, whose policy is learned from the trials."""
        return self.method in (LLM, PORTFOLIO) and self.endpoint is None


@dataclass(frozen=True)
class SearchFinding:
    """Result of a trial.

    Parameters
    ----------
    kind : str
        "served": the served schedule; "first": the initial schedule for the DRAM timing; "known": the best schedule in
        the database for the timing; "trial": a candidate of the search.
    dram : DramTiming
        DRAM timing of the measurement.
    schedule : Schedule
        Schedule that was measured.
    result : Measurement or Rejected
        Measurement of the schedule, or reason for its rejection.
    number : int
        Number of trials so far with this DRAM timing.
    llm_usage : dict or None
        Language-model usage and cost so far; None if there is no language model.
    left_out : tuple of GeneratorFailure
        Failures of generators, which the search no longer queries.
    proposer : str
        Name of the search method or portfolio member that proposed the schedule; `RETRIEVAL` for "known", "static" for
        "first".
    strategy : str or None
        Strategies by which the schedule differs from the best one at the time of the proposal, as in `Trial`.
    """

    kind: str
    dram: DramTiming
    schedule: Schedule
    result: Result
    number: int
    llm_usage: dict[str, Any] | None = None
    left_out: tuple[GeneratorFailure, ...] = ()
    proposer: str = STATIC
    strategy: str | None = None


@dataclass(frozen=True)
class Begin:
    """Order to start a search from the served schedule for a DRAM timing."""

    dram: DramTiming
    schedule: Schedule


@dataclass(frozen=True)
class Changed:
    """Order to identify a changed DRAM timing.

    Parameters
    ----------
    schedule : Schedule
        Schedule that was served.
    loads : dict
        Growth of the LOAD counters while it was served.
    known : DramTiming
        Timing before the change.
    throttle : float
        Share of the cycles in which the clock of the chip was stalled meanwhile.
    """

    schedule: Schedule
    loads: ByTag
    known: DramTiming
    throttle: float = 0.0


@dataclass(frozen=True)
class Withdrawn:
    """Order to drop a schedule from the best ones, because the serving chip rolled it back."""

    schedule: Schedule


class SearchWorker:
    """Executes the orders of the online tuner in sequence.

    Parameters
    ----------
    job : SearchJob
        Settings of the search.
    """

    def __init__(self, job: SearchJob):
        self.job = job
        self.measurer: Measurer | None = None
        self._method: SearchMethod | None = None
        self._baseline: Measurement | None = None
        self._number = self._retrained = self._learned = 0
        self._known = list[DramTiming]()
        self._database: TuningDatabase | None = None
        self._programs: ProgramCache | None = None
        self._session: DatabaseSession | None = None
        self._weights: Weights | None = None
        self._author = self._language_model()

    def begin(self, dram: DramTiming, served: Schedule) -> list[SearchFinding]:
        """Start a search for a DRAM timing; measure the served, the initial and the best known schedule."""
        self._end()
        job = self.job
        self.measurer = measurer = Measurer(
            job.graph,
            HardwareProfile(job.config, dram),
            job.options,
            1,
            job.seed,
            stream=job.goal is Objective.THROUGHPUT,
        )
        first = measurer.first.schedule
        self._session = measurer.cache = self._open_session(measurer)
        if self.job.learns_policy:
            from compiler.llm.generate.policy import current_weights

            self._weights = current_weights(self._session)
        self._number = self._retrained = self._learned = 0
        if dram not in self._known:
            self._known.append(dram)
        baseline = measurer.baseline()
        self._method = make_method(
            job.method,
            measurer,
            job.goal,
            baseline,
            job.seed,
            language_model=self._author or self._built_in_model(),
            generator=job.generators or None,
            session=self._session,
        )
        self._baseline = baseline
        store_best(self._session, self._method, baseline)
        out = [SearchFinding("first", dram, first, baseline, 0)]
        if served != first:
            out.insert(0, SearchFinding("served", dram, served, self._try(served).result, 0))
        else:
            out.insert(0, replace(out[0], kind="served"))
        best = None if self._session is None else self._session.best()
        if best is not None and isinstance(best.schedule, Schedule) and best.schedule not in (first, served):
            strategy = strategies_between(self._method.best.schedule, best.schedule)
            result = self._try(best.schedule).result
            out.append(
                SearchFinding("known", dram, best.schedule, result, 0, proposer=RETRIEVAL, strategy=strategy)
            )
        return out

    def _try(self, schedule: Schedule) -> Trial:
        """Measure a schedule, pass the result to the search method, and store what it has improved."""
        assert self.measurer is not None and self._method is not None and self._baseline is not None
        (result,) = self.measurer.measure([schedule])
        trial = self._method.record(schedule, result)
        if trial is self._method.best:
            store_best(self._session, self._method, self._baseline)
        elif self._session is not None:
            learn(self._session, self._method, trial, self._baseline)
            self._session.store_learned()
        return trial

    def withdraw(self, schedule: Schedule) -> list[SearchFinding]:
        """Drop a schedule from the best ones, also in the database, which then keeps the best one before it."""
        assert self._method is not None and self._baseline is not None
        self._method.withdraw(schedule)
        if self._session is not None:
            self._session.withdraw(schedule)
            store_best(self._session, self._method, self._baseline)
        return []

    def adapt(self, changed: Changed) -> list[SearchFinding]:
        """Identify the changed DRAM timing and restart the search for it."""
        job = self.job
        network = ModelCompiler(job.graph, job.config, replace(job.options, dram=changed.known)).network(
            changed.schedule
        )
        assert network.graph is not None
        sample = random_samples(network.graph, job.seed, 1)[0]
        known = [changed.known, *(each for each in self._known if each != changed.known)]
        found = estimate(network, changed.loads, sample, known, self._opener(), changed.throttle)
        return self.begin(self._match_known(found), changed.schedule)

    def _match_known(self, dram: DramTiming) -> DramTiming:
        """Return a known DRAM timing close to `dram`, or `dram` if there is none."""
        kept = [] if self._database is None else self._database.profiles()
        own = [each.conditions for each in kept if each.trusted and each.conditions.config == self.job.config]
        for known in (*self._known, *(each.dram for each in own)):
            pairs = [(known.latency, dram.latency), (self._rate(known), self._rate(dram))]
            pairs += [(known.stretch, dram.stretch)]
            if all(abs(one - other) <= _MAX_DIFFERENCE * max(one, other) for one, other in pairs):
                return known
        return dram

    def _rate(self, dram: DramTiming) -> float:
        return dram.bytes_per_cycle or self.job.config.beat_bytes

    def trial(self) -> list[SearchFinding]:
        """Measure the next candidate; return its finding, or none if the method has nothing more to propose."""
        assert self.measurer is not None and self._method is not None
        schedule = self._method.propose()
        if self._method.exhausted:
            return []
        trial = self._try(schedule)
        self._number += 1
        usage = self._author.document() if self._author else None
        dram, left_out = self.measurer.conditions.dram, self._method.left_out
        return [
            SearchFinding(
                "trial",
                dram,
                schedule,
                trial.result,
                self._number,
                usage,
                left_out,
                trial.proposer,
                trial.strategy,
            )
        ]

    def retrain(self) -> None:
        """Retrain the cost model if there are enough new trials; called in idle time."""
        if self._session is not None and self._number >= self._retrained + _RETRAINING_TRIALS:
            self._retrained = self._number
            self._session.retrain()

    def learn_policy(self) -> None:
        """Train the policy of the language model if there are enough new trials; the search uses a better one at once.

        Called between orders, since a training takes seconds only.
        """
        enough = self._number >= self._learned + _RETRAINING_TRIALS
        if self._session is not None and self.job.learns_policy and enough:
            from compiler.llm.generate.policy import current_weights, retrain_policy

            self._learned = self._number
            retrain_policy(self._session, self.job.seed)
            self._weights = current_weights(self._session)

    def close(self) -> None:
        """Close the simulators and the database; further calls have no effect."""
        self._end()
        if self._database is not None:
            self._database.close()
            self._database = self._programs = None

    def _language_model(self) -> "LanguageModelGenerator | None":
        """Return the language model of the method `llm`, or of an endpoint, with one budget for all timings."""
        if self.job.method != LLM and self.job.endpoint is None:
            return None
        from compiler.llm.generate.lm_generator import language_model

        return language_model(self.job.endpoint, weights=lambda: self._weights)

    def _built_in_model(self) -> "Callable[[], LanguageModelGenerator] | None":
        """Return a function that loads the language model for a portfolio; None for other methods."""
        if self.job.method != PORTFOLIO:
            return None
        from compiler.llm.generate.lm_generator import built_in_model

        return built_in_model(weights=lambda: self._weights)

    def _open_session(self, measurer: Measurer) -> DatabaseSession | None:
        """Return a database session for a measurer's hardware profile; None if there is no database."""
        job = self.job
        if job.db is None:
            return None
        database = self._database = self._database or TuningDatabase(job.db)
        programs = self._programs = self._programs or ProgramCache(database)
        return DatabaseSession(
            database, measurer.prepared, measurer.conditions, job.goal, job.method, job.seed, programs
        )

    def _end(self) -> None:
        """End the current search and close its simulators."""
        if self.measurer is not None:
            self.measurer.close()
            self.measurer = None

    def _opener(self) -> Callable[[int], Device]:
        from cosim.rtl.rtl_device import RtlDevice

        return lambda size: RtlDevice(self.job.config, size)
