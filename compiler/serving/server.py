"""Request server: pipelined requests on a live machine, replaceable versions, dynamic batches."""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, Protocol

from numpy.typing import NDArray

from compiler.cache.content_store import ContentStore
from compiler.reference import evaluate
from compiler.reference.control import Trips
from compiler.runtime.compiled import CompiledNetwork, split_batch, stack_batch
from compiler.runtime.session import run_control_flow
from compiler.runtime.stages import Stage
from compiler.serving.issue_queue import IssueQueue, StageIO
from compiler.serving.request import Arrays, InFlightRequest, Request, RequestResult, RequestTime, Steps
from compiler.serving.versions import PAGE, Buffers, FirstFitAllocator, Version, Versions, coded
from cosim.device import Device
from cosim.driver import Driver
from cosim.golden import GoldenDevice
from cosim.status import TrapError, TrapReport
from hw.errors import InputError
from hw.isa.macro_instruction import SLOT_BYTES

#: Signals that end a stream of requests; the exit status is 128 plus the number of the signal.
_ENDING = (signal.SIGINT, signal.SIGTERM)


class InterruptHandler:
    """Records Ctrl-C and SIGTERM; the stream of requests then ends once the requests in flight are complete.

    Attributes
    ----------
    requested : bool
        True if the stream should end.
    status : int
        Exit status of a run that a signal has ended; 0 if none has.
    """

    def __init__(self) -> None:
        self.requested = self._waiting = False
        self.status = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Return a context manager for waiting for input, under which a signal interrupts immediately."""
        self._waiting = True
        try:
            if self.requested:  # the signal came just before
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Handle SIGINT, the signal that Ctrl-C sends, or SIGTERM."""
        again, self.requested = self.requested, True
        self.status = 128 + number
        if again and number == signal.SIGTERM:
            raise SystemExit(self.status)
        if self._waiting or again:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[InterruptHandler]:
    """Install the handler of Ctrl-C and SIGTERM; a second signal interrupts immediately."""
    stop = InterruptHandler()
    previous: dict[int, Callable[..., Any] | int | None] = {
        number: signal.signal(number, stop.on_signal) for number in _ENDING
    }
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _RestartedError(Exception):
    """Raised if a request was restarted while it was inside a subgraph."""


RING_SLOTS = 256
#: Maximum number of requests in flight.
MAX_IN_FLIGHT = 4
#: Maximum number of streams whose states the server stores.
MAX_STREAMS = 1 << 16


class Server:
    """Serves requests on a live machine, with results in order; versions can be changed between requests.

    Each request runs on a single version. Requests are interleaved if some stages run on the host, but run one at a
    time if the network has control flow or programs for several lengths of a sequence. If the network has states, each
    request reads and updates the states of its stream, and waits for the previous request of that stream.

    Parameters
    ----------
    device : Device
        RTL or golden model, with DRAM of at least `serving_bytes`.
    network : CompiledNetwork
        First version of the network.
    max_in_flight : int
        Maximum number of requests in flight.
    proofs : ContentStore or None
        Cache of safety proofs.

    Raises
    ------
    ValidationError
        A program could not be proved safe.

    Attributes
    ----------
    current : Version
        Version that new requests use.
    rejects : callable
        Called with each result before delivery. If it returns True, the result is discarded, and the request and all
        later ones are rerun on the version that is then current.
    trapped : callable
        Called with the version and report of a trap. If it returns True, requests continue on the current version;
        otherwise, TrapError is raised.
    """

    def __init__(
        self,
        device: Device,
        network: CompiledNetwork,
        max_in_flight: int = MAX_IN_FLIGHT,
        proofs: ContentStore | None = None,
    ):
        self.device, self.clocked = device, not isinstance(device, GoldenDevice)
        self.driver = Driver(device, RING_SLOTS)
        self.queue = IssueQueue(self.driver)
        # A proof of a stream with requests of several lengths would hold for their order only.
        decided = network.lengths is not None or any(stage.control for stage in network.stages)
        self.max_in_flight = 1 if decided else max_in_flight
        memory = self.driver.memory
        room = device.dram.size - memory.used - 8 * network.config.wis_words - PAGE
        arena = FirstFitAllocator(memory.alloc(room, name="versions and requests"), room)
        buffers = Buffers(arena, network, self.max_in_flight)
        self._stage_io = StageIO(self.driver, self.queue, buffers)
        self.versions = Versions(self.driver, arena, buffers, proofs)
        self.current = self.versions.add(network)
        self.rejects: Callable[[RequestResult], bool] = lambda _result: False
        self.trapped: Callable[[Version, TrapReport], bool] = lambda _version, _report: False
        self._index = 0
        self._last: Version | None = None  # version of the previous result
        self._in_flight: deque[InFlightRequest] = deque()
        self._streams: dict[str, Arrays] = {}  # states by name of the stream
        self._ready: deque[RequestResult] = deque()
        self.prefetch(self.current)
        self.driver.counters.read(
            "cycles", 0
        )  # the chip clears them after reset, and a change of tag waits for that

    @property
    def submitted(self) -> int:
        """Number of submitted requests."""
        return self._index

    @property
    def completed(self) -> int:
        """Number of completed requests."""
        return self._index - len(self._in_flight)

    @property
    def busy(self) -> int:
        """Number of requests in flight."""
        return len(self._in_flight)

    def submit(
        self,
        inputs: Arrays,
        count: int | None = None,
        *,
        stream: str = "",
        reset: bool = False,
        version: Version | None = None,
    ) -> int:
        """Submit a request and return its index; block while there is no free slot.

        Parameters
        ----------
        inputs : dict
            Input arrays by name.
        count : int or None
            Number of samples of the batch that are used, from the first; None for all.
        stream : str
            Name of the stream whose states the request reads and updates, if the network has states.
        reset : bool
            True to start from the initial states.
        version : Version or None
            Version that runs the request; None for the current one.

        Raises
        ------
        InputError
            An input is missing or unknown, or its shape or type differs from the model's; or there are too many
            streams.
        """
        network = self.current.network.for_inputs(inputs)
        checked, count = network.check(inputs), network.batch if count is None else count
        network.count(count)
        self.versions.prove_length(version or self.current, network.length)
        states = self._states(stream, reset=reset) if network.states else {}
        while len(self._in_flight) == self.max_in_flight:
            self._wait()
        taken = {flight.slot for flight in self._in_flight}
        slot = min(set(range(self.max_in_flight)) - taken)
        chosen = version or self.current
        flight = InFlightRequest(self._index, checked, slot, chosen, count, network.length, stream, states)
        self._index += 1
        self._in_flight.append(flight)
        self._begin(flight)
        return flight.index

    def _states(self, stream: str, *, reset: bool) -> Arrays:
        """Return the states of a stream after its requests in flight are complete."""
        while any(flight.stream == stream for flight in self._in_flight):
            self._wait()
        if stream not in self._streams and len(self._streams) == MAX_STREAMS:
            raise InputError(
                f"there are states of {MAX_STREAMS:,} streams already; use the name of one of them"
            )
        initial = self.current.network.initial
        states = initial if reset else self._streams.get(stream, initial)
        self._streams[stream] = states
        return states

    def results(self, *, wait: bool = False) -> list[RequestResult]:
        """Return the results since the last call, in order; with `wait`, block until no request is in flight."""
        self._collect()
        while wait and self._in_flight:
            self._wait()
        out = list(self._ready)
        self._ready.clear()
        return out

    def serve(self, requests: Iterable[Arrays]) -> Iterator[RequestResult]:
        """Submit requests as slots become free, and yield their results."""
        for inputs in requests:
            self.submit(inputs)
            yield from self.results()
        yield from self.results(wait=True)

    def switch(self, version: Version) -> None:
        """Use another version for later requests; requests in flight continue on their version."""
        self.current = version

    def add(self, network: CompiledNetwork) -> tuple[Version, bool]:
        """Add a version that is proved safe alone and next to the current one, then load its programs.

        Returns
        -------
        version : Version
            The new version.
        resident : bool
            True if all its programs are resident.

        Raises
        ------
        InputError, ValidationError
            As in `Versions.add`; no program has been loaded.
        """
        version = self.versions.add(network, self.current)
        self.queue.resident_programs.load_all(version.parts)
        return version, self.prefetch(version)

    def prefetch(self, version: Version) -> bool:
        """Load the programs of a version without evicting programs in use; return True if all are resident."""
        keep = [*self.current.parts, *version.parts, *self.queue.needed]
        resident = [self.queue.resident_programs.load(part, keep) for part in version.parts]
        return all(resident)

    def uses(self, version: Version) -> bool:
        """Return True if a version is current or if a request in flight uses it."""
        return version is self.current or any(flight.version is version for flight in self._in_flight)

    def drop(self, version: Version) -> None:
        """Free the memory of an unused version and unload its programs."""
        self.versions.drop(version)
        self.queue.resident_programs.unload(version.parts, self.current.parts)

    def _begin(self, flight: InFlightRequest) -> None:
        flight.runs, flight.macros, flight.delay = [0] * len(flight.version.bases), [], 0
        flight.values, flight.inside = {**flight.inputs, **flight.states}, 0
        flight.begun, flight.loads = flight.begun + 1, self.queue.resident_programs.loads
        flight.steps = self._steps(flight, flight.network.stages, flight.values)
        self._advance(flight, None)

    def _steps(self, flight: InFlightRequest, stages: Iterable[Stage], values: dict[str, NDArray]) -> Steps:
        """Run the host stages, and yield the accelerator stages in order."""
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
        """Run the stages of a subgraph to completion on behalf of a request."""
        outer, begun = flight.steps, flight.begun
        flight.inside += 1
        flight.steps = self._steps(flight, stages, values)
        self._advance(flight, None)
        while flight.steps is not None and flight.begun == begun:
            self._wait()
        if flight.begun != begun:
            raise _RestartedError
        flight.inside -= 1
        flight.steps = outer

    def _advance(self, flight: InFlightRequest, answer: Arrays | None) -> None:
        """Resume a request with the outputs of its stage, and issue the next stage."""
        assert flight.steps is not None
        try:
            stage, inputs = flight.steps.send(answer)  # type: ignore[arg-type] # None starts it
        except StopIteration:
            flight.steps = None
            return
        except _RestartedError:
            return
        self._stage_io.issue(flight, stage, inputs)
        self.queue.send()

    def _wait(self) -> None:
        self.queue.wait()
        self._collect()

    def _collect(self) -> None:
        """Process completed macro-instructions and deliver finished requests."""
        done, trapped = self.queue.completed()
        for macro in done:
            if macro.last:
                self._advance(macro.flight, self._stage_io.read_outputs(macro))
        if trapped:
            self._recover()
        self.queue.send()
        self._deliver()

    def _deliver(self) -> None:
        while self._in_flight and self._in_flight[0].steps is None and not self._in_flight[0].inside:
            flight = self._in_flight[0]
            same = flight.version is self._last and flight.loads == self.queue.resident_programs.loads
            result = flight.result(disturbed=not same, queued_after=len(self._in_flight) - 1)
            if self.rejects(result):
                self._rerun()
                return
            if flight.states:
                self._streams[flight.stream] = result.next_states
            self._in_flight.popleft()
            self._last = flight.version
            self._ready.append(result)

    def _recover(self) -> None:
        """Rerun requests on the current version after a trap; raise TrapError unless `trapped` returns True."""
        trap, flight = self.queue.trap()
        self.queue.clear()
        if not self.trapped(flight.version, trap):
            raise TrapError(trap)
        self._rerun()

    def _rerun(self) -> None:
        """Rerun all requests in flight on the current version."""
        self.queue.clear()
        self.versions.restore()
        for flight in list(self._in_flight):
            flight.version = self.current
            self._begin(flight)


class RequestServer(Protocol):
    """Object that requests are submitted to; it chooses the versions that run them."""

    @property
    def submitted(self) -> int:
        """Number of submitted requests."""
        ...

    def submit(self, request: Request) -> object:
        """Submit a request; block while there is no free slot."""
        ...

    def results(self, *, wait: bool = False) -> list[RequestResult]:
        """Return the results since the last call, in order; with `wait`, block until all requests are complete."""
        ...


#: Minimum number of versions that fit into DRAM together, if all are as large as the first.
VERSIONS = 4


class BatchingServer:
    """Server that combines requests into batches, and knows the first request of each.

    Parameters
    ----------
    server : Server
        Server that receives batches from this object only.

    Attributes
    ----------
    submitted : int
        Number of submitted requests.
    """

    def __init__(self, server: Server):
        self.server, self.submitted = server, 0
        self._starts, self._batched, self._before = list[int](), 0, server.submitted

    def _add_batch(self, count: int) -> None:
        """Note that the next requests form a batch."""
        self._starts.append(self._batched)
        self._batched += count

    def first_request(self, batch: int) -> int:
        """Return the index of the first request of a batch, given the batch's index; of the next request for others."""
        number = batch - self._before
        return self._starts[number] if number < len(self._starts) else self._batched


class DynamicBatcher(BatchingServer):
    """Combines single-sample requests for a server whose network has a batch dimension.

    A request is submitted immediately if the server has a free slot. Requests that arrive while no slot is free are
    batched if that reduces the work per request. The hardware selects the smallest sufficient program by the number of
    samples, which is an operand of the macro-instruction.

    Parameters
    ----------
    server : Server
        Server that receives requests from this batcher only.
    """

    def __init__(self, server: Server):
        super().__init__(server)
        self._waiting: list[Arrays] = []
        self._sent: deque[list[Arrays]] = deque()

    def submit(self, request: Request) -> None:
        """Queue a request; block while the server has no free slot and the batch is full.

        Raises
        ------
        InputError
            An input is missing or unknown, or its shape or type differs from the model's.
        """
        network, server = self.server.current.network, self.server
        self._waiting.append(network.for_inputs(request.inputs).check_sample(request.inputs))
        self.submitted += 1
        if server.busy < server.max_in_flight or len(self._waiting) == network.batch:
            self._send()

    def results(self, *, wait: bool = False) -> list[RequestResult]:
        """Return the results since the last call, in order; with `wait`, block until all requests are complete."""
        while wait and self._waiting:
            self._send()
        out = [each for result in self.server.results(wait=wait) for each in self._each(result)]
        if self._waiting and self.server.busy < self.server.max_in_flight:
            self._send()
        return out

    def _send(self) -> None:
        count = self.server.current.network.best_batch(len(self._waiting))
        self._add_batch(count)
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        self._sent.append(group)
        self.server.submit(stack_batch(self.server.current.network, group), len(group))

    def _each(self, result: RequestResult) -> list[RequestResult]:
        """Split the result of a batch into the results of its requests."""
        group, first = self._sent.popleft(), self.first_request(result.index)
        parts = split_batch(result.version.network, result.outputs, len(group))
        return [
            replace(result, index=first + number, inputs=inputs, outputs=outputs, batch_size=len(group))
            for number, (inputs, outputs) in enumerate(zip(group, parts, strict=True))
        ]


class TimedServer(BatchingServer):
    """Runs requests that arrive at given times, in batches of those that have arrived when the machine becomes free.

    Parameters
    ----------
    server : Server
        Server on a machine with a clock, which receives requests from this object only.
    clock : float
        Frequency of the machine's clock in MHz.
    chooser : RequestServer or None
        Object that submits requests to the server if it chooses among several versions; None to use the current one.
    """

    def __init__(self, server: Server, clock: float, chooser: RequestServer | None = None):
        super().__init__(server)
        self.clock, self.chooser, self.now = clock, chooser, 0.0
        self._waiting: deque[tuple[int, float, Request]] = deque()
        self._measured: dict[int, float] = {}  # cycles of a batch by the batch size of its programs
        self._ready: list[RequestResult] = []

    def submit(self, request: Request) -> None:
        """Queue a request, and run those that start before it arrives.

        Raises
        ------
        InputError
            An input is missing or unknown, or its shape or type differs from the model's.
        """
        network = self.server.current.network
        if network.batch > 1:
            request = replace(request, inputs=network.check_sample(request.inputs))
        else:
            network.for_inputs(request.inputs).check(request.inputs)
        arrival = self.now if request.arrival is None else request.arrival
        while self._waiting and max(self.now, self._waiting[0][1]) < arrival:
            self._run()
        self._waiting.append((self.submitted, arrival, request))
        self.submitted += 1

    def results(self, *, wait: bool = False) -> list[RequestResult]:
        """Return the results since the last call, in order; with `wait`, those of all requests."""
        while wait and self._waiting:
            self._run()
        out, self._ready = self._ready, []
        return out

    def _run(self) -> None:
        """Run one batch of the requests that have arrived when it starts."""
        server, network = self.server, self.server.current.network
        start = max(self.now, self._waiting[0][1])
        arrived = sum(arrival <= start for _, arrival, _ in self._waiting)
        count = network.best_batch(arrived, self._measured)
        self._add_batch(count)
        group = [self._waiting.popleft() for _ in range(count)]
        if network.batch > 1:
            server.submit(stack_batch(network, [request.inputs for _, _, request in group]), count)
            (result,) = server.results(wait=True)
        else:
            ((_, _, request),) = group
            if self.chooser is not None:
                self.chooser.submit(request)
                (result,) = self.chooser.results(wait=True)
            else:
                server.submit(request.inputs, stream=request.stream, reset=request.reset)
                (result,) = server.results(wait=True)
        self._measured[network.batch_for(count)] = result.cycles
        self.now = start + (result.cycles + result.delay) / (self.clock * 1e3)
        parts = split_batch(network, result.outputs, count) if network.batch > 1 else [result.outputs]
        for (index, arrival, request), outputs in zip(group, parts, strict=True):
            time = RequestTime(arrival, start, self.now)
            self._ready.append(
                replace(
                    result, index=index, inputs=request.inputs, outputs=outputs, batch_size=count, time=time
                )
            )


def serving_bytes(
    network: CompiledNetwork, max_in_flight: int = MAX_IN_FLIGHT, versions: int = VERSIONS
) -> int:
    """Return the DRAM size in bytes that a server of a network needs."""
    io = sum(t.bytes + 64 for stage in coded(network) for t in (*stage.inputs, *stage.outputs))
    program = 8 * network.config.wis_words
    total = RING_SLOTS * SLOT_BYTES + 2 * PAGE + program + max_in_flight * io
    return -(-total // PAGE) * PAGE + versions * version_bytes(network)


def version_bytes(network: CompiledNetwork) -> int:
    """Return the DRAM size in bytes that a version of a network needs."""
    return -(-sum(code.memory + 64 for code in network.codes) // PAGE) * PAGE + PAGE
