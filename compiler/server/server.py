"""Request server: several requests at once on a live machine, under the current version of a network."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from numpy.typing import NDArray

from compiler.cache.content_store import ContentStore
from compiler.reference import evaluate
from compiler.reference.control import Trips
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.control_flow import run_control_flow
from compiler.runtime.stages import Stage
from compiler.server.allocator import PAGE, FirstFitAllocator
from compiler.server.issue_queue import IssueQueue
from compiler.server.request import Arrays, InFlightRequest, RequestResult, Steps
from compiler.server.stage_io import StageIO
from compiler.server.versions import Buffers, Version, Versions, coded
from cosim.device import Device
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.status import TrapError, TrapReport
from hw.isa.macro_instruction import SLOT_BYTES


class _BegunAnewError(Exception):
    """A request has begun anew while it was inside a subgraph."""


RING_SLOTS = 256
#: Requests on their way at most.
FLIGHTS = 4


class Server:
    """A network on a live machine: requests go in, results come out in order, versions change in between.

    All of a request is carried out by one version. If the machine needs the host between stages, requests take turns
    on it; if the host decides which stages there are, there is one request at a time.

    Parameters
    ----------
    device : Device
        RTL or golden model, with DRAM of at least `serving_bytes`.
    network : Network
        The first version.
    flights : int
        Requests on their way at most.
    proofs : Store or None
        Remembers what has been proved.

    Raises
    ------
    ValidationError
        A program could do harm.

    Attributes
    ----------
    current : Version
        What new requests are carried out by.
    refuses : callable
        Asked about each result before it comes out; True: its outputs must not be used, and it and all later requests
        are carried out again by what is current then.
    trapped : callable
        Told of a trap and the version that was current; True: go on with what is current now. Otherwise it is raised.
    """

    def __init__(
        self,
        device: Device,
        network: CompiledNetwork,
        flights: int = FLIGHTS,
        proofs: ContentStore | None = None,
    ):
        self.device, self.clocked = device, not isinstance(device, GoldenDevice)
        self.driver = Driver(device, RING_SLOTS)
        self.line = IssueQueue(self.driver)
        decided = any(stage.control for stage in network.stages)
        self.flights = 1 if decided else flights
        memory = self.driver.memory
        room = device.dram.size - memory.used - 8 * network.config.wis_words - PAGE
        arena = FirstFitAllocator(memory.take(room, name="versions and requests"), room)
        buffers = Buffers(arena, network, self.flights)
        self._calls = StageIO(self.driver, self.line, buffers)
        self.versions = Versions(self.driver, arena, buffers, proofs)
        self.current = self.versions.add(network)
        self.refuses: Callable[[RequestResult], bool] = lambda _result: False
        self.trapped: Callable[[Version, TrapReport], bool] = lambda _version, _report: False
        self._index = 0
        self._last: Version | None = None  # what carried out the result before
        self._flights: deque[InFlightRequest] = deque()
        self._ready: deque[RequestResult] = deque()
        self.prefetch(self.current)
        self.driver.counters.read(
            "cycles", 0
        )  # after reset they are cleared, and changing tags waits for that

    @property
    def submitted(self) -> int:
        """Requests made so far."""
        return self._index

    @property
    def completed(self) -> int:
        """Requests that have come out so far."""
        return self._index - len(self._flights)

    @property
    def busy(self) -> int:
        """Requests that have not come out."""
        return len(self._flights)

    def submit(self, inputs: Arrays, count: int | None = None) -> int:
        """Send a request behind the others; returns its number. Waits until there is room for it.

        Of a batch the first `count` samples count (left out: all).

        Raises
        ------
        InputError
            An input is missing, one too many, or not of the model's shape and type.
        """
        network = self.current.network
        checked, count = network.check(inputs), network.batch if count is None else count
        network.count(count)
        while len(self._flights) == self.flights:
            self._wait()
        taken = {flight.slot for flight in self._flights}
        slot = min(set(range(self.flights)) - taken)
        flight = InFlightRequest(self._index, checked, slot, self.current, count)
        self._index += 1
        self._flights.append(flight)
        self._begin(flight)
        return flight.index

    def results(self, *, wait: bool = False) -> list[RequestResult]:
        """Requests that have come out since the last call, in order; if asked, waits for all that are on their way."""
        self._collect()
        while wait and self._flights:
            self._wait()
        out = list(self._ready)
        self._ready.clear()
        return out

    def serve(self, requests: Iterable[Arrays]) -> Iterator[RequestResult]:
        """Results of requests, which are taken as there is room for them."""
        for inputs in requests:
            self.submit(inputs)
            yield from self.results()
        yield from self.results(wait=True)

    def switch(self, version: Version) -> None:
        """From the next request on another version; those on their way stay with theirs."""
        self.current = version

    def prefetch(self, version: Version) -> bool:
        """Load its programs where that takes none from what is current or on its way; whether all of them are there."""
        keep = [*self.current.parts, *version.parts, *self.line.needed]
        resident = [self.line.residency.bring(part, keep) for part in version.parts]
        return all(resident)

    def uses(self, version: Version) -> bool:
        """Whether a request on its way is carried out by it."""
        return version is self.current or any(flight.version is version for flight in self._flights)

    def drop(self, version: Version) -> None:
        """Forget a version that nothing uses: its memory is free, and its programs leave the instruction store."""
        self.versions.drop(version)
        self.line.residency.leave(version.parts, self.current.parts)

    def _begin(self, flight: InFlightRequest) -> None:
        flight.runs, flight.macros, flight.delay = [0] * len(flight.version.bases), [], 0
        flight.values, flight.inside = dict(flight.inputs), 0
        flight.begun, flight.loads = flight.begun + 1, self.line.residency.loads
        flight.steps = self._steps(flight, flight.version.network.stages, flight.values)
        self._advance(flight, None)

    def _steps(self, flight: InFlightRequest, stages: Iterable[Stage], values: dict[str, NDArray]) -> Steps:
        """Ask for one stage on the accelerator after the other."""
        rounding, trips = flight.version.network.rounding, Trips()
        for stage in stages:
            mine = {tensor.name: values[tensor.name] for tensor in stage.inputs}
            if stage.control is not None:
                values |= run_control_flow(
                    stage.control, mine, lambda s, v: self._inside(flight, s, v), trips
                )
            elif stage.graph is not None:
                values |= evaluate(stage.graph, mine, rounding=rounding)  # type: ignore[arg-type]
            else:
                values |= yield stage, mine

    def _inside(self, flight: InFlightRequest, stages: Iterable[Stage], values: dict[str, NDArray]) -> None:
        """Carry out stages of a subgraph, while the request that they belong to waits for them."""
        outer, begun = flight.steps, flight.begun
        flight.inside += 1
        flight.steps = self._steps(flight, stages, values)
        self._advance(flight, None)
        while flight.steps is not None and flight.begun == begun:
            self._wait()
        if flight.begun != begun:
            raise _BegunAnewError
        flight.inside -= 1
        flight.steps = outer

    def _advance(self, flight: InFlightRequest, answer: Arrays | None) -> None:
        """Give a request what the machine made of its stage; it goes on to the next."""
        assert flight.steps is not None
        try:
            stage, inputs = flight.steps.send(answer)  # type: ignore[arg-type] # None begins it
        except StopIteration:
            flight.steps = None
            return
        except _BegunAnewError:
            return
        self._calls.make(flight, stage, inputs)
        self.line.send()

    def _wait(self) -> None:
        self.line.wait()
        self._collect()

    def _collect(self) -> None:
        """Take what has completed; requests that are done come out, unless they are refused."""
        done, trapped = self.line.completed()
        for macro in done:
            if macro.last:
                self._advance(macro.flight, self._calls.answer(macro))
        if trapped:
            self._recover()
        self.line.send()
        self._deliver()

    def _deliver(self) -> None:
        while self._flights and self._flights[0].steps is None and not self._flights[0].inside:
            flight = self._flights[0]
            same = flight.version is self._last and flight.loads == self.line.residency.loads
            result = flight.result(disturbed=not same, behind=len(self._flights) - 1)
            if self.refuses(result):
                self._again()
                return
            self._flights.popleft()
            self._last = flight.version
            self._ready.append(result)

    def _recover(self) -> None:
        """After a trap: go on with what is current now, if whoever watches says so."""
        trap, flight = self.line.trap()
        self.line.clear()
        if not self.trapped(flight.version, trap):
            raise TrapError(trap)
        self._again()

    def _again(self) -> None:
        """Carry out all requests that have not come out once more, by what is current now."""
        self.line.clear()
        for flight in list(self._flights):
            flight.version = self.current
            self._begin(flight)


#: Versions whose memory is in DRAM at the same time, at least, if they need as much as the first.
VERSIONS = 4


def serving_bytes(network: CompiledNetwork, flights: int = FLIGHTS, versions: int = VERSIONS) -> int:
    """DRAM that a server of a network needs."""
    io = sum(t.bytes + 64 for stage in coded(network) for t in (*stage.inputs, *stage.outputs))
    memory = PAGE + sum(code.memory + 64 for code in network.codes)
    program = 8 * network.config.wis_words
    total = RING_SLOTS * SLOT_BYTES + 2 * PAGE + program + flights * io + versions * memory
    return -(-total // PAGE) * PAGE
