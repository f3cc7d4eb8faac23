"""The loop while serving: candidates that measured better are swapped in, watched, kept or rolled back."""

from collections.abc import Callable
from dataclasses import replace

from compiler.options import DramTiming
from compiler.pipeline import ModelCompiler
from compiler.profile.counters import ByTag, growth
from compiler.profile.measurement import Measurement
from compiler.runtime.compiled import CompiledNetwork
from compiler.serve.canary import PROBATION, CanaryRequest, canary_failure, reject_reason
from compiler.serve.dram_identification import read_loads
from compiler.serve.events import LlmUsage, ServingEvents
from compiler.serve.search_process import LostError, Proposer
from compiler.serve.search_worker import Begin, Changed, SearchFinding
from compiler.server.request import RequestResult
from compiler.server.server import Server
from compiler.server.versions import Version
from cosim.status import TrapReport
from hw.errors import InputError

#: What a new version must gain by its measurement.
_GAIN = 0.002
#: Requests during which the counters of LOAD are read after a change.
_LOOKED_AT = 8
#: Orders that a search in a process of its own has at a time.
_AHEAD = 2


class OnlineTuner:
    """Improves what a server serves.

    Parameters
    ----------
    server : Server
        Serves the first version already.
    prepared : callable
        The model, to be compiled for a memory.
    reference : Network
        What outputs are compared with, on the golden model.
    proposer : Proposer
        Who finds candidates.
    events : Events
        Takes note of decisions.
    dram : Dram
        What the memory is like, as far as is known.
    pace : int or None
        Trials for each request: its findings are waited for at the next one, so that runs repeat; None: as they come.

    Attributes
    ----------
    served : Served
        The version that new requests get.
    """

    def __init__(
        self,
        server: Server,
        prepared: Callable[[DramTiming], ModelCompiler],
        reference: CompiledNetwork,
        proposer: Proposer,
        events: ServingEvents,
        dram: DramTiming,
        pace: int | None = None,
    ):
        self.server, self.prepared, self.reference = server, prepared, reference
        self.proposer, self.events, self.dram, self.pace = proposer, events, dram, pace
        self.served = CanaryRequest(server.current, server.current.network.schedule, None)
        self._before: CanaryRequest | None = None  # what a version on probation has replaced
        self._best: SearchFinding | None = None
        self._known: dict[DramTiming, SearchFinding] = {}
        self._refused: set[str] = set()
        self._leaving: list[Version] = []
        self._looking: tuple[int, ByTag] | None = None
        self._candidate: SearchFinding | None = None
        self._lost, self.asked = False, LlmUsage(events)
        self._changes = 0  # in the memory, that are being looked into
        server.refuses, server.trapped = self._refuses, self._trapped
        self.proposer.order(Begin(dram, self.served.schedule))

    def tick(self) -> None:
        """Between two requests: hear of findings, swap in the best, ask for more."""
        if not self._lost:
            try:
                for finding in self.proposer.findings(wait=self.pace is not None):
                    self._hear(finding)
                self._ask()
            except LostError as error:
                self._lose(error)
        ready = self._before is None and self.served.count >= PROBATION and self.served.settled
        if self._best is not None and ready and not self._changes:
            finding, self._best = self._best, None
            self._swap_in(finding)
        self._let_go()

    def _ask(self) -> None:
        """Keep the search busy, or have it do trials that are waited for at the next request."""
        count = _AHEAD - self.proposer.waiting if self.pace is None else self.pace
        for _ in range(0 if self._changes else count):
            self.proposer.order(None)

    def _hear(self, finding: SearchFinding) -> None:
        """Take note of a finding; keep the best of those that are better than what is served."""
        result = finding.result
        self.asked.hear(finding.asked, self.server.submitted)
        if finding.kind == "served":
            self._change_to(finding)
        if self._changes or finding.dram != self.dram:
            return  # it was measured under conditions that are no more
        if why := reject_reason(result):
            self._reject(finding, why)
        elif isinstance(result, Measurement) and finding.schedule != self.served.schedule:
            self._compare(finding, result.cycles)

    def _compare(self, finding: SearchFinding, cycles: int) -> None:
        best = self.served.measured
        if self._best is not None and isinstance(self._best.result, Measurement):
            best = self._best.result.cycles
        if best is not None and cycles >= best * (1 - _GAIN):
            self._reject(finding, f"{cycles:,} cycles, no improvement on {best:,}")
        elif finding.schedule.to_json() in self._refused:
            self._reject(finding, "it has been rolled back before")
        else:
            self._best = finding

    def _change_to(self, finding: SearchFinding) -> None:
        """Conditions are known: what is served was measured under them."""
        if self._changes:
            self._changes -= 1
            self._refused.clear()  # it may have been the memory's fault
            rate = finding.dram.bytes_per_cycle or self.server.driver.config.n
            self.events.note(
                "conditions",
                request=self.server.submitted,
                latency=finding.dram.latency,
                bytes_per_cycle=rate,
            )
        self.dram, self._best = finding.dram, None
        if isinstance(finding.result, Measurement):
            self.served.measured = finding.result.cycles
            known = self._known.setdefault(finding.dram, finding)
            if known is not finding:
                self._hear(replace(known, kind="known"))

    def _swap_in(self, finding: SearchFinding) -> None:
        """Bring a version in and let new requests have it."""
        assert isinstance(finding.result, Measurement)
        server, residency = self.server, self.server.line.residency
        loads, cycles = residency.loads, residency.load_cycles
        try:
            network = self.prepared(self.dram).network(finding.schedule)
            version = server.versions.add(network, server.current)
        except InputError as error:
            self._reject(finding, str(error))
            return
        resident = server.prefetch(version)
        server.switch(version)
        self._before, self._candidate = self.served, finding
        self.served = CanaryRequest(version, finding.schedule, finding.result.cycles)
        self.events.note(
            "reload",
            request=server.submitted,
            version=version.number,
            replaces=self._before.version.number,
            why=finding.kind,
            trial=finding.number,
            measured_cycles=finding.result.cycles,
            programs_loaded=residency.loads - loads,
            load_cycles=residency.load_cycles - cycles,
            resident=resident,
        )

    def _reject(self, finding: SearchFinding, reason: str) -> None:
        self.events.note("rejected", kind=finding.kind, trial=finding.number, reason=reason)

    def _refuses(self, result: RequestResult) -> bool:
        """Look at a result before it comes out; whether it must not."""
        served = self.served
        if result.version is not served.version:
            return False
        served.take(result)
        if self._before is not None:
            served.drift.take(result)
            fault, wrong = canary_failure(
                result, served, self._before, self.reference, self.dram if self.server.clocked else None
            )
            if fault:
                self._roll_back(fault, result.index)
                return wrong
            if served.count >= PROBATION:
                self._keep(result.index)
        elif self.server.clocked:
            self._watch(result)
        return False

    def _keep(self, request: int) -> None:
        assert self._before is not None and self._candidate is not None
        self.events.note(
            "kept", request=request, version=self.served.version.number, cycles=self.served.usual
        )
        self._leaving.append(self._before.version)
        self._known[self.dram] = self._candidate
        self._before = None

    def _roll_back(self, reason: str, request: int) -> None:
        assert self._before is not None
        bad, self.served, self._before = self.served, self._before, None
        self.served.returned()
        self.server.switch(self.served.version)
        self._refused.add(bad.schedule.to_json())
        self._leaving.append(bad.version)
        self.events.note(
            "rollback",
            request=request,
            version=bad.version.number,
            to=self.served.version.number,
            reason=reason,
        )

    def _trapped(self, version: Version, report: TrapReport) -> bool:
        """After a trap: back to the version before, if it was the new one that trapped."""
        if self._before is None or version is not self.served.version:
            return False
        self._roll_back(f"trap: {report}", self.server.completed)
        return True

    def _watch(self, result: RequestResult) -> None:
        """Notice that what is served takes other cycles than it did, and find out what that comes from."""
        if self._looking is not None:
            self._look(result.index, *self._looking)
            return
        drift = self.served.drift.take(result)
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
        self._looking = result.index, read_loads(self.server.driver, result.version.network)

    def _look(self, request: int, since: int, before: ByTag) -> None:
        """Once some requests have come out under the new conditions, ask what these are."""
        if request < since + _LOOKED_AT:
            return
        network = self.served.version.network
        loads = growth(before, read_loads(self.server.driver, network))
        self._looking = None
        self.served.forget()
        try:
            self.proposer.order(Changed(self.served.schedule, loads, self.dram))
        except LostError as error:
            self._lose(error)

    def _lose(self, error: LostError) -> None:
        """Nobody searches any more; serving goes on."""
        self._lost = True
        self.events.note("search lost", request=self.server.submitted, reason=str(error))

    def _let_go(self) -> None:
        """Versions that no request is on its way with leave DRAM and instruction store."""
        for version in [each for each in self._leaving if not self.server.uses(each)]:
            self._leaving.remove(version)
            self.server.drop(version)
