"""Requests: source of inputs, state in flight, and results."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from numpy.typing import NDArray

from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.session import value_of
from compiler.runtime.stages import Stage
from compiler.serving.versions import Version

Arrays = Mapping[str, NDArray]
#: Coroutine of a request: yields stages with their inputs and receives the outputs.
Steps = Generator[tuple[Stage, Arrays], Arrays, None]
_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Request:
    """Request of a client.

    Parameters
    ----------
    inputs : dict
        Input arrays of one sample by name.
    stream : str
        Name of the stream whose states the request reads and updates, if the network has states.
    reset : bool
        True to start from the initial states.
    arrival : float or None
        Time of arrival in milliseconds of simulated time; None: when the previous request is complete.
    """

    inputs: Arrays
    stream: str = ""
    reset: bool = False
    arrival: float | None = None


@dataclass(frozen=True)
class MacroTime:
    """Timing of a completed macro-instruction.

    Parameters
    ----------
    program : str
        Name of the program.
    started, retired : int
        Times of start and retirement in cycles of the chip's clock, modulo 2**32.
    cycles : int
        Cycles from the start, or from the retirement of the predecessor if that was later, to the retirement. They
        include cycles in which the clock was stalled, as `started` and `retired` do not.
    stalled : int
        Cycles among them in which the clock was stalled.
    instructions : int
        Number of micro-instructions that the program executed.
    """

    program: str
    started: int
    retired: int
    cycles: int
    stalled: int = 0
    instructions: int = 0


@dataclass(frozen=True)
class RequestTime:
    """Milliseconds of simulated time to the arrival, the start and the completion of a request."""

    arrival_ms: float
    start_ms: float
    finish_ms: float

    @property
    def latency_ms(self) -> float:
        """Milliseconds from arrival to completion."""
        return self.finish_ms - self.arrival_ms


@dataclass(frozen=True)
class RequestPower:
    """Power state and energy of a request.

    Parameters
    ----------
    clock_mhz, volts : float
        Power state in which it ran.
    energy_uj, milliwatts : float
        Energy from start to completion, and mean power.
    deadline_met : bool or None
        True if it was complete before the deadline; None if there is none.
    """

    clock_mhz: float
    volts: float
    energy_uj: float
    milliwatts: float
    deadline_met: bool | None


@dataclass(frozen=True)
class RequestResult:
    """Result of a completed request.

    Parameters
    ----------
    index : int
        Index of the request, from 0.
    inputs, outputs : dict
        Input and output arrays by name.
    version : Version
        Version that ran the whole request.
    macros : tuple of MacroTime
        Timings of the request's macro-instructions.
    cycles : int
        Total cycles of the macro-instructions.
    delay : int
        Cycles in which the machine was idle while this request waited for programs to load.
    runs : tuple of int
        Number of runs of each accelerator stage.
    disturbed : bool
        True if programs were loaded while the request ran, or if the previous request used another version.
    queued_after : int
        Number of later requests in flight when this request completed.
    batch_size : int
        Number of requests in the batch of this request.
    stream : str
        Name of the stream of this request.
    states, next_states : dict
        States of the stream before and after the request, by name.
    variant, why : str
        Which of several variants of the programs, or which power state, ran, and why; empty if there is no choice.
    time : RequestTime or None
        Simulated times, if requests arrive at given times or power is managed.
    power : RequestPower or None
        Power state and energy, if power is managed.
    """

    index: int
    inputs: Arrays
    outputs: dict[str, NDArray]
    version: Version
    macros: tuple[MacroTime, ...]
    cycles: int
    delay: int
    runs: tuple[int, ...]
    disturbed: bool
    queued_after: int
    batch_size: int = 1
    stream: str = ""
    states: Arrays = field(default_factory=dict)
    next_states: Arrays = field(default_factory=dict)
    variant: str = ""
    why: str = ""
    time: RequestTime | None = None
    power: RequestPower | None = None

    @property
    def throttle(self) -> float:
        """Share of the cycles in which the clock of the chip was stalled."""
        return sum(macro.stalled for macro in self.macros) / max(self.cycles, 1)


@dataclass(eq=False)
class InFlightRequest:
    """Request in flight, with its buffer slot.

    `count` is the number of samples of the batch that are used, and `length` the length of the inputs if the network
    has programs for several lengths. `states` are the states of the stream before the request. `steps` is None when all
    stages are complete.
    `issued_at` is the cycle of the chip's clock in which the current stage was issued, and `inside` is the nesting
    depth of subgraphs.
    `begun` is the number of starts, and `loads` is the number of programs that the server had loaded at the last start.
    """

    index: int
    inputs: Arrays
    slot: int
    version: Version
    count: int
    length: int | None = None
    stream: str = ""
    states: Arrays = field(default_factory=dict)
    issued_at: int = 0
    loads: int = 0
    steps: Steps | None = None
    stage: Stage | None = None
    values: dict[str, NDArray] = field(default_factory=dict)
    inside: int = 0
    begun: int = 0
    macros: list[MacroTime] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    delay: int = 0

    @property
    def network(self) -> CompiledNetwork:
        """Network of the version, with the shapes for the length of the inputs."""
        network = self.version.network
        return network if self.length is None else network.at(self.length)

    def result(self, *, disturbed: bool, queued_after: int) -> RequestResult:
        """Return the result of the completed request."""
        outputs = {t.name: value_of(t, self.values) for t in self.network.outputs}
        cycles = sum(macro.cycles for macro in self.macros)
        return RequestResult(
            self.index,
            self.inputs,
            outputs,
            self.version,
            tuple(self.macros),
            cycles,
            self.delay,
            tuple(self.runs),
            disturbed,
            queued_after,
            batch_size=self.count,
            stream=self.stream,
            states=self.states,
            next_states=self.version.network.next_states(self.values),
        )


class Clock:
    """Computes the cycles of macro-instructions from completion records in ring order."""

    def __init__(self) -> None:
        self._before: int | None = None

    def time(
        self,
        flight: InFlightRequest,
        name: str,
        started: int,
        retired: int,
        stretch: float = 1.0,
        instructions: int = 0,
    ) -> None:
        """Record a completed macro-instruction.

        Parameters
        ----------
        flight : InFlightRequest
            Request of the macro-instruction.
        name : str
            Name of the program.
        started, retired : int
            Times of start and retirement in cycles of the chip's clock, modulo 2**32.
        stretch : float
            Number of cycles, stalled ones included, per cycle of the chip's clock.
        instructions : int
            Number of micro-instructions that the program executed.
        """
        wait = 0 if self._before is None else started - self._before & _MASK
        free = wait < 1 << 31  # it started after its predecessor had ended
        begin = started if self._before is None or free else self._before
        taken = retired - begin & _MASK
        cycles = round(taken * stretch)
        flight.macros.append(MacroTime(name, started, retired, cycles, cycles - taken, instructions))
        since = max(wait, 0) if free else 0
        waited = started - flight.issued_at & _MASK
        if waited < 1 << 31:
            flight.delay += round(min(since, waited) * stretch)
        self._before = retired


@dataclass(frozen=True)
class RequestSource:
    """Source of requests.

    Parameters
    ----------
    each : iterator
        Iterator over the requests.
    ready : callable
        Returns True if the next request is available without waiting. Otherwise, requests in flight are completed
        first.
    """

    each: Iterator[Request]
    ready: Callable[[], bool] = lambda: True

    def at(self, arrivals: Iterable[float]) -> "RequestSource":
        """Return a source of the same requests, which arrive at given times in milliseconds."""
        timed = zip(self.each, arrivals, strict=False)
        return replace(self, each=(replace(request, arrival=arrival) for request, arrival in timed))
