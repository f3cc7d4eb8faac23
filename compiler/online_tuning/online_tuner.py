"""Online tuner: deploys faster candidates as canary versions, checks them, and accepts them or rolls back."""

from collections.abc import Callable
from dataclasses import asdict, replace

from compiler.online_tuning.canary import (
    CANARY_REQUESTS,
    CanaryRequest,
    canary_failure,
    reject_reason,
    tuned_part,
)
from compiler.online_tuning.change_detection import ChangeDetector, DetectedChange
from compiler.online_tuning.dram_identification import read_loads
from compiler.online_tuning.observers import TARGET_MET, LlmUsage, ServingEvents
from compiler.online_tuning.search_process import LostError, SearchClient
from compiler.online_tuning.search_worker import Begin, Changed, SearchFinding, Withdrawn
from compiler.options import DramTiming
from compiler.profile.counters import ByTag, growth
from compiler.profile.measurement import Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.schedule.schedule import Schedule
from compiler.serving.request import RequestResult
from compiler.serving.server import Server
from compiler.serving.versions import Version
from compiler.tuning.constraints import NO_TARGETS, Targets
from compiler.tuning.generators.generator import GeneratorFailure
from cosim.status import TrapReport
from hw.errors import InputError

#: Minimum relative gain of a candidate over the served version.
_MIN_GAIN = 0.002
#: Number of requests over which the counters of LOAD are sampled after a change.
_SAMPLED_REQUESTS = 8
#: Number of decimal digits to which the share of stalled cycles is rounded.
_THROTTLE_DIGITS = 2
#: Maximum pending orders of the search process.
_MAX_PENDING_ORDERS = 2


class OnlineTuner:
    """Tunes the network of a running server.

    Parameters
    ----------
    server : Server
        Server that already runs the first version.
    compiled : callable
        Returns the network that is served under a schedule, for a given DRAM timing.
    reference : CompiledNetwork
        Network that computes the expected outputs on the golden model.
    search : SearchClient
        Client of the search that supplies candidates.
    events : ServingEvents
        Record of the tuner's decisions.
    dram : DramTiming
        Assumed timing of the DRAM.
    trials_per_request : int or None
        Number of trials per request, completed before the next request so that runs are reproducible; None for an
        asynchronous search.
    targets : Targets
        Targets of the served version, with its cycles as the serving chip counts them; once they are met, no more
        candidates are tried until the conditions change.
    schedule : Schedule or None
        Schedule of the tuned programs of the first version; None: that of the network.
    batch : int or None
        Batch size of the tuned programs; None: that of the network.
    accepted : callable
        Called with each accepted schedule.

    Attributes
    ----------
    served : CanaryRequest
        Version that new requests use, with its measured and observed cycles.
    """

    def __init__(
        self,
        server: Server,
        compiled: Callable[[DramTiming, Schedule], CompiledNetwork],
        reference: CompiledNetwork,
        search: SearchClient,
        events: ServingEvents,
        dram: DramTiming,
        trials_per_request: int | None = None,
        targets: Targets = NO_TARGETS,
        schedule: Schedule | None = None,
        batch: int | None = None,
        accepted: Callable[[Schedule], None] = lambda _schedule: None,
    ):
        self.server, self.compiled, self.reference = server, compiled, reference
        self.batch, self.accepted = reference.batch if batch is None else batch, accepted
        self.search, self.events, self.dram = search, events, dram
        self.trials_per_request, self.targets, self.target_met = trials_per_request, targets, False
        self.served = CanaryRequest(server.current, schedule or server.current.network.schedule, None)
        self._before: CanaryRequest | None = None  # the version that the canary replaced
        self._best: SearchFinding | None = None
        self._known: dict[DramTiming, SearchFinding] = {}
        self._rolled_back: set[str] = set()
        self._withdrawn: list[Schedule] = []  # rolled back, but the search does not know yet
        self._measurement: Measurement | None = None  # of the served version, by the search
        self._retired: list[Version] = []
        self._sampling: tuple[int, ByTag] | None = None
        self._candidate: SearchFinding | None = None
        self._lost, self.llm_usage = False, LlmUsage(events)
        self._left_out: set[GeneratorFailure] = set()
        self._changes = 0  # changes of DRAM timing that are being identified
        server.rejects, server.trapped = self._rejects, self._trapped
        self.search.submit(Begin(dram, self.served.schedule))

    @property
    def idle(self) -> bool:
        """True if no version is on probation or waits to be dropped, and no DRAM timing is being identified."""
        return not (self._before or self._changes or self._sampling or self._retired)

    def tick(self) -> None:
        """Process findings, deploy the best candidate, and submit more trials; called between requests."""
        if not self._lost:
            try:
                for finding in self.search.findings(wait=self.trials_per_request is not None):
                    self._on_finding(finding)
                self._withdraw()
                self._ask()
            except LostError as error:
                self._lose(error)
        ready = self._before is None and self.served.count >= CANARY_REQUESTS and self.served.settled
        if ready and not self._changes:
            self._check_targets()
        if self._best is not None and ready and not self._changes:
            finding, self._best = self._best, None
            self._swap_in(finding)
        self._drop_unused()

    def _ask(self) -> None:
        """Submit `trials_per_request` trials or, in an asynchronous search, as many as may be pending."""
        count = self.trials_per_request
        if count is None:
            count = _MAX_PENDING_ORDERS - self.search.waiting
        for _ in range(0 if self._changes or self.target_met else count):
            self.search.submit(None)

    def _withdraw(self) -> None:
        """Tell the search which schedules were rolled back, once it is clear that the conditions have not changed."""
        if self._before is None and self.served.settled and not self._changes:
            for schedule in self._withdrawn:
                self.search.submit(Withdrawn(schedule))
            self._withdrawn.clear()

    def _check_targets(self) -> None:
        """End the search if the served version meets the targets."""
        measured, cycles = self._measurement, self.served.typical
        if self.target_met or measured is None or cycles is None:
            return
        if self.targets.met(replace(measured, cycles=round(cycles))):
            self.target_met, self._best = True, None
            self.events.note(
                TARGET_MET,
                request=self.server.submitted,
                version=self.served.version.number,
                cycles=cycles,
                energy_uj=measured.energy_uj,
            )

    def _on_finding(self, finding: SearchFinding) -> None:
        """Process a finding; remember the best candidate that beats the served version."""
        result = finding.result
        self.llm_usage.update(finding.llm_usage, self.server.submitted)
        for failure in (each for each in finding.left_out if each not in self._left_out):
            self._left_out.add(failure)
            self.events.note("left out", request=self.server.submitted, **asdict(failure))
        if finding.kind == "served":
            self._change_to(finding)
        if self._changes or finding.dram != self.dram:
            return  # measured under outdated conditions
        if why := reject_reason(result):
            self._reject(finding, why)
        elif isinstance(result, Measurement) and finding.schedule != self.served.schedule:
            self._compare(finding, result.cycles)

    def _compare(self, finding: SearchFinding, cycles: int) -> None:
        best = self.served.measured
        if self._best is not None and isinstance(self._best.result, Measurement):
            best = self._best.result.cycles
        if best is not None and cycles >= best * (1 - _MIN_GAIN):
            self._reject(finding, f"{cycles:,} cycles, no improvement on {best:,}")
        elif self.target_met:
            self._reject(finding, "the served version meets the targets")
        elif finding.schedule.to_json() in self._rolled_back:
            self._reject(finding, "rolled back before under the same DRAM timing")
        else:
            self._best = finding

    def _change_to(self, finding: SearchFinding) -> None:
        """Adopt a newly identified DRAM timing, and the served version's measurement under it."""
        if self._changes:
            self._changes -= 1
            self._rolled_back.clear()  # rolled-back candidates may do well under the new timing
            rate = finding.dram.bytes_per_cycle or self.server.driver.config.beat_bytes
            self.events.note(
                "conditions",
                request=self.server.submitted,
                latency=finding.dram.latency,
                bytes_per_cycle=rate,
                throttle=finding.dram.throttle,
            )
        self.dram, self._best, self.target_met = finding.dram, None, False
        if isinstance(finding.result, Measurement):
            self.served.measured, self._measurement = finding.result.cycles, finding.result
            known = self._known.setdefault(finding.dram, finding)
            if known is not finding:
                self._on_finding(replace(known, kind="known"))

    def _swap_in(self, finding: SearchFinding) -> None:
        """Deploy a candidate as the canary version for new requests."""
        assert isinstance(finding.result, Measurement)
        server, resident_programs = self.server, self.server.queue.resident_programs
        loads, cycles = resident_programs.loads, resident_programs.load_cycles
        try:
            network = self.compiled(self.dram, finding.schedule)
            version, resident = server.add(network)
        except InputError as error:
            self._reject(finding, str(error))
            return
        server.switch(version)
        self._before, self._candidate = self.served, finding
        cycles_expected = finding.result.cycles * self.served.scale
        self.served = CanaryRequest(
            version, finding.schedule, finding.result.cycles, ChangeDetector(cycles_expected)
        )
        self.events.note(
            "reload",
            request=server.submitted,
            version=version.number,
            replaces=self._before.version.number,
            why=finding.kind,
            trial=finding.number,
            proposer=finding.proposer,
            strategy=finding.strategy,
            measured_cycles=finding.result.cycles,
            programs_loaded=resident_programs.loads - loads,
            load_cycles=resident_programs.load_cycles - cycles,
            resident=resident,
        )

    def _reject(self, finding: SearchFinding, reason: str) -> None:
        self.events.note("rejected", kind=finding.kind, trial=finding.number, reason=reason)

    def _rejects(self, result: RequestResult) -> bool:
        """Check a result before it is delivered; return True if it must be discarded."""
        served = self.served
        if result.version is not served.version:
            self._watch_replaced(result)
            return False
        tuned = tuned_part(result, self.batch)
        if tuned is not None:
            served.record(tuned)
        if self._before is not None:
            change = None if tuned is None else served.drift.add(tuned)
            dram = self.dram if self.server.clocked and tuned is not None else None
            fault, wrong = canary_failure(tuned or result, served, self._before, self.reference, dram)
            if fault:
                self._roll_back(fault, result.index)
                if not wrong:  # only slow, which may be due to the conditions
                    self._notice(self.served.drift.prime(), result)
                return wrong
            if served.count >= CANARY_REQUESTS:
                self._accept(result.index)
                self._notice(change, result)
        elif self.server.clocked and tuned is not None:
            self._watch(tuned)
        return False

    def _watch_replaced(self, result: RequestResult) -> None:
        """Check the last requests of the version that the canary version has replaced for a change of cycles."""
        before = self._before
        if before is None or result.version is not before.version or not self.server.clocked:
            return
        tuned = tuned_part(result, self.batch)
        change = None if tuned is None else before.drift.add(tuned)
        if change is not None:
            self._roll_back("the cycles of the replaced version have changed", result.index)
            self._notice(change, result)

    def _accept(self, request: int) -> None:
        """Accept the canary version, which has passed its checks."""
        assert self._before is not None and self._candidate is not None
        self.events.note(
            "kept", request=request, version=self.served.version.number, cycles=self.served.typical
        )
        self._retired.append(self._before.version)
        self._known[self.dram] = self._candidate
        if isinstance(self._candidate.result, Measurement):
            self._measurement = self._candidate.result
        self._before = None
        self.accepted(self.served.schedule)

    def _roll_back(self, reason: str, request: int) -> None:
        assert self._before is not None
        bad, self.served, self._before = self.served, self._before, None
        self.served.start_cooldown()
        self.server.switch(self.served.version)
        self._rolled_back.add(bad.schedule.to_json())
        self._withdrawn.append(bad.schedule)
        self._retired.append(bad.version)
        self.events.note(
            "rollback",
            request=request,
            version=bad.version.number,
            to=self.served.version.number,
            reason=reason,
        )

    def _trapped(self, version: Version, report: TrapReport) -> bool:
        """Roll back if the canary version trapped; return False if another version did."""
        if self._before is None or version is not self.served.version:
            return False
        self._roll_back(f"trap: {report}", self.server.completed)
        return True

    def _watch(self, result: RequestResult) -> None:
        """Check for a change in the cycles of the served version; if there is one, start sampling LOAD counters."""
        if self._sampling is not None:
            self._sample(result, *self._sampling)
            return
        self._notice(self.served.drift.add(result), result)

    def _notice(self, drift: DetectedChange | None, result: RequestResult) -> None:
        """Report a detected change, and start sampling LOAD counters."""
        if drift is None or self._lost:
            return
        self.events.note(
            "drift",
            request=result.index,
            program=drift.program,
            usual_cycles=drift.usual,
            cycles=drift.now,
            requests=drift.requests,
        )
        self._changes, self._best = self._changes + 1, None
        self._withdrawn.clear()  # rolled back because of the change, perhaps
        self._sampling = result.index, read_loads(self.server.driver, result.version.network)

    def _sample(self, result: RequestResult, since: int, before: ByTag) -> None:
        """Order the identification of the new timing, once enough requests have run under it."""
        if result.index < since + _SAMPLED_REQUESTS:
            return
        network = self.served.version.network
        loads = growth(before, read_loads(self.server.driver, network))
        self._sampling = None
        self.served.reset()
        try:
            throttle = round(result.throttle, _THROTTLE_DIGITS)
            self.search.submit(Changed(self.served.schedule, loads, self.dram, throttle))
        except LostError as error:
            self._lose(error)

    def _lose(self, error: LostError) -> None:
        """Stop tuning because the search failed; serving continues."""
        self._lost = True
        self.events.note("search lost", request=self.server.submitted, reason=str(error))

    def _drop_unused(self) -> None:
        """Drop replaced versions that no request in flight uses."""
        for version in [each for each in self._retired if not self.server.uses(each)]:
            self._retired.remove(version)
            self.server.drop(version)
