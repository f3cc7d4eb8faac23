"""Serving of a request stream, from opening the machine to the final report."""

import json
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter
from pathlib import Path

from compiler.cache.content_store import ContentStore
from compiler.cost.energy import PowerState
from compiler.online_tuning.observers import (
    SCHEMA_VERSION,
    Document,
    ExecutionLog,
    ServingEvents,
    ServingObserver,
    VersionStats,
    VersionWindow,
)
from compiler.online_tuning.online_tuner import OnlineTuner
from compiler.online_tuning.sampling_profiler import SamplingProfiler
from compiler.online_tuning.search_process import SearchProcess
from compiler.online_tuning.search_worker import SearchJob
from compiler.options import CompileOptions, DramTiming
from compiler.pipeline import ModelCompiler, build
from compiler.quantize.report import CascadeReport
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import Session, dram_bytes
from compiler.schedule.schedule import Schedule
from compiler.serving.audit import AuditedServer, LossBound
from compiler.serving.power import (
    STATES,
    PowerGovernor,
    PowerLimits,
    PowerManagedServer,
    PowerSegment,
    measured_segments,
    throttled,
    zero_inputs,
)
from compiler.serving.request import Request, RequestResult, RequestSource
from compiler.serving.reuse import ReusingServer
from compiler.serving.server import (
    VERSIONS,
    BatchingServer,
    DynamicBatcher,
    InterruptHandler,
    RequestServer,
    Server,
    TimedServer,
    interruptible,
    serving_bytes,
    version_bytes,
)
from compiler.tuning_db.database import TuningDatabase
from compiler.tuning_db.entries import BudgetViolation, violation_key
from compiler.util.progress import progress
from cosim.device import Device
from cosim.golden import GoldenDevice
from hw.config import MlaConfig
from hw.errors import InputError, WorkError


@dataclass(frozen=True)
class Change:
    """Change to the simulated DRAM timing and clock at request `at`.

    `rate` is in bytes per cycle (None: the bus width); `throttle` is the share of stalled cycles.
    """

    at: int
    latency: int
    rate: float | None
    throttle: float = 0.0


@dataclass(frozen=True)
class Audits:
    """Settings of a run in which a cascade answers, and a share of the requests is audited.

    Parameters
    ----------
    cascade : CompiledNetwork
        The network compiled with a budget that is a share of requests; it may have no threshold, so that all requests
        run exactly.
    seed : int
        Seed of the choice of audits.
    db : str, Path or None
        Database in which violations of the budget are kept; None for none.
    """

    cascade: CompiledNetwork
    seed: int = 0
    db: str | Path | None = None

    @property
    def report(self) -> CascadeReport:
        """Report of the compiler on the cascade."""
        report = self.cascade.quantization
        assert report is not None and report.cascade is not None
        return report.cascade

    @property
    def key(self) -> str | None:
        """Key of violations in the database; None if there is no threshold."""
        threshold, budget = self.report.threshold, self.report.budget
        return None if threshold is None else violation_key(self.cascade.digest, threshold, budget)


@dataclass(frozen=True)
class Serving:
    """Settings of a serving run.

    Parameters
    ----------
    network : CompiledNetwork
        First version of the network.
    dram : DramTiming
        Timing of the simulated DRAM and clock.
    job : SearchJob or None
        Settings of the online tuner's search; None to disable tuning.
    max_in_flight : int
        Maximum number of requests in flight.
    trials_per_request : int or None
        Number of candidates tried per request; None for an asynchronous search.
    adapt_from : int
        First request at which the tuner may act.
    changes : tuple of Change
        Scheduled changes to the timing of the DRAM and the clock.
    profile : Path or None
        Output file for layer profiles.
    proofs : ContentStore or None
        Cache of safety proofs.
    reusing : CompiledNetwork or None
        The network compiled with `reuse`, for requests whose inputs repeat.
    guarded : CompileOptions or None
        Options of the network whose programs have guards, if it is to be tuned: `network`, or `reusing` if given.
    power : PowerLimits or None
        Limits of power and time; None if power is not managed.
    clock : float or None
        Frequency of the clock in MHz if requests arrive at given times.
    audits : Audits or None
        Cascade within an accuracy budget; `network` computes exactly.
    """

    network: CompiledNetwork
    dram: DramTiming
    job: SearchJob | None = None
    max_in_flight: int = 4
    trials_per_request: int | None = None
    adapt_from: int = 0
    changes: tuple[Change, ...] = ()
    profile: Path | None = None
    proofs: ContentStore | None = None
    reusing: CompiledNetwork | None = None
    power: PowerLimits | None = None
    clock: float | None = None
    audits: Audits | None = None
    guarded: CompileOptions | None = None


def open_machine(serving: Serving, device: str = "rtl", *, waves: bool = False) -> Device:
    """Open a device with enough DRAM for serving.

    Parameters
    ----------
    device : str
        "rtl" or "golden".
    waves : bool
        True to support the recording of signals.
    """
    network = serving.network
    size = serving_bytes(network, serving.max_in_flight, 2 * VERSIONS if serving.job else 1)
    for more in (serving.reusing, serving.audits and serving.audits.cascade):
        size += (3 if serving.job else 1) * version_bytes(more) if more is not None else 0
    if device == "golden":
        return GoldenDevice(network.config, size)
    return _rtl(network.config, size, serving.dram, waves=waves)


def _rtl(config: MlaConfig, size: int, dram: DramTiming, *, waves: bool = False) -> Device:
    from compiler.util.progress import building
    from cosim.rtl.build import Variant
    from cosim.rtl.rtl_device import RtlDevice

    return RtlDevice(
        config,
        size,
        latency=dram.latency,
        bytes_per_cycle=dram.bytes_per_cycle or config.beat_bytes,
        throttle=dram.throttle,
        variant=Variant(waves=waves),
        monitor=building,
    )


def governed(serving: Serving) -> PowerGovernor | None:
    """Return the governor of the power states, if power is managed, after measuring a request in each state.

    Raises
    ------
    InputError
        The power cap cannot be kept, or the network has control flow.
    """
    network, limits = serving.network, serving.power
    if limits is None:
        return None
    if any(stage.control for stage in network.stages):
        raise InputError(
            f"{network.name} has control flow, so that the time of a request depends on its data: power states can "
            "only be chosen for networks without"
        )
    size = dram_bytes(network)
    with (
        _rtl(network.config, size, serving.dram) as device,
        progress("measuring a request in each power state", len(STATES), "states") as task,
    ):
        session = Session(device, network)
        session.run(zero_inputs(network))  # loads the programs

        def segments(state: PowerState) -> tuple[PowerSegment, ...]:
            found = measured_segments(session, throttled(serving.dram, state))
            task.advance(1)
            return found

        return PowerGovernor(network.config, segments, limits)


def serve(
    serving: Serving,
    device: Device,
    requests: RequestSource,
    listeners: Sequence[ServingObserver],
    governor: PowerGovernor | None = None,
) -> int:
    """Serve requests and return the exit status; a governor chooses the power state of each.

    Raises
    ------
    InputError
        An input does not fit the model; the results of earlier requests have been delivered.
    """
    with ExitStack() as stack:
        stop = stack.enter_context(interruptible())
        return _Run(serving, device, listeners, stack, governor).go(requests, stop)


class _Run:
    """State of one serving run."""

    def __init__(
        self,
        serving: Serving,
        device: Device,
        listeners: Sequence[ServingObserver],
        stack: ExitStack,
        governor: PowerGovernor | None,
    ):
        self.serving, self.device, self.listeners, self.governor = serving, device, listeners, governor
        self.server = Server(device, serving.network, serving.max_in_flight, serving.proofs)
        self.events = ServingEvents(self._event)
        self.requests: Server | RequestServer = self.server
        self.requests = self._submitter()
        clocked, db = self.server.clocked, serving.job.db if serving.job else None
        self.profiler = SamplingProfiler(self.server.driver) if (serving.profile or db) and clocked else None
        self.execution_log = ExecutionLog(db, self.profiler, self.events) if db and self.profiler else None
        if self.execution_log:
            stack.callback(self.execution_log.close)
        self.windows = VersionStats(self.server, self._window) if clocked else None
        self.tuning = _Tuning(self, serving.job, stack) if serving.job else None

    def _submitter(self) -> Server | RequestServer:
        """Return the object that receives the requests."""
        if self.governor is not None:
            return PowerManagedServer(self.server, self.governor, self.serving.dram)
        self.reusing: ReusingServer | None = None
        if self.serving.reusing is not None:
            version, _ = self.server.add(self.serving.reusing)
            self.reusing = ReusingServer(self.server, version)
        if self.serving.audits is not None:
            return self._audited(self.serving.audits)
        if self.serving.clock is not None:
            return TimedServer(self.server, self.serving.clock, self.reusing)
        return self.reusing or (
            DynamicBatcher(self.server) if self.serving.network.batch > 1 else self.server
        )

    def _audited(self, audits: Audits) -> AuditedServer:
        """Return the object that submits requests to a cascade, or computes all exactly and reports why."""
        report, version, reason = audits.report, None, ""
        if report.threshold is None:
            reason = "no network with fewer bits is expected to save cycles within the budget"
        elif found := self._violation(audits):
            day = time.strftime("%Y-%m-%d", time.gmtime(found.when))
            reason = (
                f"the budget of {report.budget:.3%} was violated on {day}: "
                f"{found.changed} of {found.audited} audited labels changed, at least {found.lower:.2%} of all"
            )
        else:
            version, _ = self.server.add(audits.cascade)
        if reason:
            self.events.note("no cascade", request=0, reason=reason)

        def violated(index: int, bound: LossBound) -> None:
            self._violated(audits, index, bound)

        return AuditedServer(self.server, version, report.budget, audits.seed, violated, reason)

    def _violation(self, audits: Audits) -> BudgetViolation | None:
        """Return the violation of the budget that the database remembers; None if there is none."""
        if audits.db is None or audits.key is None:
            return None
        try:
            with TuningDatabase(audits.db) as database:
                return database.violation(audits.key)
        except WorkError as error:
            self.events.note("database lost", reason=str(error))
            return None

    def _violated(self, audits: Audits, index: int, bound: LossBound) -> None:
        """Report a violation of the budget, and store it."""
        budget, lower = audits.report.budget, bound.lower
        reason = (
            f"{bound.changed} of {bound.audited} audited labels changed, at least {lower:.2%} of all, but the budget "
            f"is {budget:.3%}"
        )
        self.events.note("rollback", request=index, reason=reason, **bound.document(), budget=budget)
        if audits.db is None or audits.key is None:
            return
        found = BudgetViolation(
            cascade=audits.key,
            budget=budget,
            audited=bound.audited,
            changed=bound.changed,
            lower=lower,
            when=time.time(),
        )
        try:
            with TuningDatabase(audits.db) as database:
                database.put_violation(found)
        except WorkError as error:
            self.events.note("database lost", reason=str(error))

    def go(self, requests: RequestSource, stop: InterruptHandler) -> int:
        """Serve all requests and return the exit status."""
        error_to_raise: InputError | None = None
        while not stop.requested:
            try:
                if not requests.ready():
                    self._results(wait=True)
                with stop.waiting():
                    request = next(requests.each, None)
                if request is None:
                    break
                self._one(request)
            except InputError as error:
                error_to_raise = error
                break
            except KeyboardInterrupt:
                break
        self._results(wait=True)
        self._end()
        if error_to_raise is not None:
            raise error_to_raise
        return stop.status

    def _one(self, request: Request) -> None:
        server, number = self.server, self.requests.submitted
        for change in self.serving.changes:
            if change.at == number:
                self.device.set_dram_timing(change.latency, change.rate)
                self.device.set_throttle(change.throttle)
        if isinstance(self.requests, Server):
            self.requests.submit(request.inputs, stream=request.stream, reset=request.reset)
        else:
            self.requests.submit(request)
        self._results(wait=False)
        dram = self.serving.dram
        if self.tuning:
            dram = self.tuning.dram
            if number >= self.serving.adapt_from:
                self.tuning.tick()
        now = server.current.network, server.current.number, server.completed, dram
        if self.profiler:
            self.profiler.sample(*now)
        if self.execution_log and self._same_programs:
            self.execution_log.record(*now)

    @property
    def _same_programs(self) -> bool:
        """True if all requests run the same programs, so that the mean cycles of a layer are those of one request."""
        serving = self.serving
        return (
            serving.reusing is None
            and serving.audits is None
            and not self.server.current.network.alternatives
        )

    def _results(self, *, wait: bool) -> None:
        results = self.requests.results(wait=wait)
        for result in results:
            if self.tuning:
                self.tuning.note(result)
            for listener in self.listeners:
                listener.result(result)
        if results and self.windows:
            self.windows.sample(results[-1])

    def _event(self, document: Document) -> None:
        if isinstance(self.requests, BatchingServer) and "request" in document:
            document["request"] = self.requests.first_request(document["request"])
        for listener in self.listeners:
            listener.event(document)

    def _window(self, window: VersionWindow) -> None:
        for listener in self.listeners:
            listener.window(window)

    def _end(self) -> None:
        """Report the language-model usage and the audits, retrain the cost model, and write the profile."""
        if self.tuning:
            self.tuning.end()
        if isinstance(self.requests, AuditedServer):
            count, reason = self.requests.submitted, self.requests.summary()
            self.events.note("audit", request=count, reason=reason, audit=self.requests.document())
        job = self.serving.job
        if self.tuning and self.execution_log and job:
            prepared = self.tuning.prepared(self.tuning.dram)
            self.execution_log.retrain(
                prepared, str(job.goal), job.seed, self.server.submitted, policy=job.learns_policy
            )
        if self.windows:
            self.windows.close()
        if self.serving.profile:
            document = self.profiler.document() if self.profiler else {"bottlenecks": [], "layers": []}
            text = json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=2)
            self.serving.profile.write_text(text + "\n")


#: Number of results from which the batch size that is tuned first is chosen, and from which the next ones are.
_FIRST_RESULTS, _RECENT_RESULTS = 8, 64


class _Tuning:
    """Tuning of the programs that a server uses most.

    Parameters
    ----------
    run : _Run
        State of the serving run.
    job : SearchJob
        Settings of the search; its batch size is replaced by those that are tuned.
    stack : ExitStack
        Receives the end of the search.

    Notes
    -----
    In a network with several batch sizes, the programs of one size are tuned at a time: of the one that has taken most
    of the recent cycles. If the served network has guards, or another version has, each accepted schedule is used in
    the programs with guards, too.
    """

    def __init__(self, run: "_Run", job: SearchJob, stack: ExitStack):
        self.run, self.job = run, job
        self.tuner: OnlineTuner | None = None
        self.batch = job.options.batch
        self._compilers = cache(self._compiler)
        self._accepted_last: Schedule | None = None  # not used in the version that reuses results yet
        guarded = run.serving.guarded
        self._schedules = dict(guarded.batch_schedules) if guarded else {}  # and accepted ones, by batch size
        self._search: SearchProcess | None = None
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT_RESULTS)
        stack.callback(self._close)
        if not self._sizes:
            self._begin(self.batch)

    @property
    def dram(self) -> DramTiming:
        """Assumed timing of the DRAM."""
        return self.tuner.dram if self.tuner else self.run.serving.dram

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Batch sizes to choose from; empty if there is only one."""
        guarded = self.run.serving.guarded
        return guarded.batches if guarded else ()

    def tick(self) -> None:
        """Let the tuner act, after it has been set to the batch size that is used most."""
        if self._sizes and len(self._recent) >= (_RECENT_RESULTS if self.tuner else _FIRST_RESULTS):
            most = self._most_used()
            if self.tuner is None or (most != self.batch and self.tuner.idle):
                self._begin(most)
        if self.tuner:
            self.tuner.tick()
        if self._accepted_last is not None:
            schedule, self._accepted_last = self._accepted_last, None
            self._reuse_with(schedule)

    def note(self, result: RequestResult) -> None:
        """Note the batch size whose programs a request ran."""
        if self._sizes:
            size = result.version.network.batch_for(result.batch_size)
            self._recent.append((size, result.cycles / result.batch_size))

    def end(self) -> None:
        """Report the use of the language model."""
        if self.tuner:
            self.tuner.llm_usage.end(self.run.server.submitted)

    def _most_used(self) -> int:
        cycles = defaultdict[int, float](float)
        for size, taken in self._recent:
            cycles[size] += taken
        return max(sorted(cycles), key=cycles.__getitem__)

    def _begin(self, batch: int) -> None:
        """Begin a search for the programs of a batch size, and end the one before."""
        run, serving, server = self.run, self.run.serving, self.run.server
        dram = self.dram
        self.end()
        self._close()
        self.batch = batch
        self._recent.clear()
        job = replace(self.job, options=replace(self.job.options, batch=batch))
        self._search = SearchProcess(job)
        schedule = None
        if self._sizes:
            reason = f"the programs for batches of {batch}, which take most cycles, are tuned"
            run.events.note("batch size", request=server.submitted, batch=batch, reason=reason)
            schedule = self._schedules.get(batch) or self.prepared(dram).network().schedule
        self.tuner = OnlineTuner(
            server,
            self._compiled,
            serving.network,
            self._search,
            run.events,
            dram,
            serving.trials_per_request,
            job.targets,
            schedule,
            batch,
            self._accepted,
        )

    def _close(self) -> None:
        if self._search is not None:
            self._search.close()
            self._search = None

    def prepared(self, dram: DramTiming) -> ModelCompiler:
        """Return the compiler of the programs that are tuned."""
        return self._compilers(dram, self.batch)

    def _compiler(self, dram: DramTiming, batch: int) -> ModelCompiler:
        options = replace(self.job.options, dram=dram, batch=batch)
        return ModelCompiler(self.job.graph, self.job.config, options)

    def _compiled(self, dram: DramTiming, schedule: Schedule) -> CompiledNetwork:
        """Return the served network in which the tuned programs have a schedule."""
        guarded = self.run.serving.guarded
        if guarded is None or guarded.reuse:
            return self.prepared(dram).network(schedule)
        return self._with_guards(guarded, dram, schedule)

    def _with_guards(self, guarded: CompileOptions, dram: DramTiming, schedule: Schedule) -> CompiledNetwork:
        """Return the network with guards in which the tuned programs have a schedule, without its program texts."""
        plain = replace(schedule, programs={})
        if self._sizes:
            schedules = tuple(sorted({**self._schedules, self.batch: plain}.items(), key=itemgetter(0)))
            options = replace(guarded, dram=dram, batch_schedules=schedules)
        else:
            options = replace(guarded, dram=dram, schedule=plain)
        return build(self.job.graph, self.job.config, options)

    def _accepted(self, schedule: Schedule) -> None:
        """Remember an accepted schedule; called while a result is delivered."""
        self._schedules[self.batch] = replace(schedule, programs={})
        if self.run.reusing is not None:
            self._accepted_last = schedule

    def _reuse_with(self, schedule: Schedule) -> None:
        """Use an accepted schedule in the version that reuses results, too."""
        run, guarded = self.run, self.run.serving.guarded
        assert guarded is not None and run.reusing is not None
        try:
            version, _ = run.server.add(self._with_guards(guarded, self.dram, schedule))
        except InputError as error:
            run.events.note("reuse", request=run.server.submitted, version=None, reason=str(error))
        else:
            run.reusing.replace(version)
            reason = "the accepted schedule is used where results are reused, too"
            run.events.note("reuse", request=run.server.submitted, version=version.number, reason=reason)
