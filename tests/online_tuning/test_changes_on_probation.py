"""A change of the cycles is noticed within nine requests, with and without a candidate on probation."""

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from compiler.online_tuning.observers import ServingEvents
from compiler.online_tuning.online_tuner import OnlineTuner
from compiler.options import DramTiming
from compiler.serving.request import MacroTime, RequestResult
from tests.online_tuning.small_servers import ScriptedProposer

#: Maximum number of requests from a change until it is noticed; requests in flight.
WITHIN, IN_FLIGHT = 9, 4
#: Cycles of the programs of the versions, in order of their deployment: array and memory.
VERSIONS = [(4000, 2400), (4000, 2300), (3800, 2300), (3800, 2200), (3700, 2200), (3700, 2100), (3600, 2100)]
#: Factors on the cycles of compute-bound and memory-bound programs: a throttled clock stalls all cycles alike, a slower
#: memory only those that wait for data.
CHANGES = {
    "clock throttled by a third": (1.5, 1.5),
    "clock throttled by a tenth": (1.1, 1.1),
    "clock restored": (0.7, 0.7),
    "memory latency": (1.0, 1.3),
    "memory bandwidth / 4": (1.1, 3.5),
    "faster memory": (0.95, 0.6),
}


@dataclass(frozen=True)
class FixedSchedule:
    """Schedule of the version with the given number."""

    number: int

    def to_json(self) -> str:
        """Return a text that identifies the schedule."""
        return str(self.number)


@dataclass(eq=False)
class FixedServer:
    """Server whose requests take the cycles of `VERSIONS`; stalls multiply them."""

    factors: tuple[float, float] = (1.0, 1.0)
    clocked: bool = True
    submitted: int = 0
    completed: int = 0
    queue: Any = field(
        default_factory=lambda: SimpleNamespace(resident_programs=SimpleNamespace(loads=0, load_cycles=0))
    )

    def __post_init__(self) -> None:
        self.versions, self.driver = (
            self,
            SimpleNamespace(config=SimpleNamespace(n=4, beat_bytes=4), counters=None),
        )
        self.current = self.version(0)
        self._last = self.current
        self._waiting: deque[Any] = deque()
        self.rejects: Any = None

    def version(self, number: int) -> Any:
        """Return a version with the given number."""
        work = SimpleNamespace(cycles=lambda *_: 1)
        network = SimpleNamespace(
            schedule=FixedSchedule(number),
            codes=(),
            config=self.driver.config,
            states=(),
            smaller=(),
            alternatives=frozenset(),
            for_samples=lambda _count: None,
            work=lambda _runs: work,
        )
        return SimpleNamespace(number=number, network=network)

    def add(self, network: Any) -> Any:
        """Return a version with the given network, whose programs are resident."""
        return SimpleNamespace(number=network.schedule.number, network=network), True

    def prefetch(self, _version: Any) -> bool:
        """Return that the programs of a version are resident."""
        return True

    def switch(self, version: Any) -> None:
        """Use a version for new requests."""
        self.current = version

    def uses(self, _version: Any) -> bool:
        """Return that no request in flight uses a version."""
        return False

    def drop(self, version: Any) -> None:
        """Keep a version, since none occupies memory."""

    def submit(self) -> None:
        """Submit a request, and complete the oldest one if the maximum is in flight."""
        self._waiting.append(self.current)
        self.submitted += 1
        if len(self._waiting) == IN_FLIGHT:
            self._complete(self._waiting.popleft())

    def _complete(self, version: Any) -> None:
        macros = tuple(
            MacroTime(f"{version.number} {name}", 0, cycles, cycles)
            for name, cycles in zip(
                ("array", "memory"),
                (round(f * c) for f, c in zip(self.factors, VERSIONS[version.number], strict=True)),
                strict=True,
            )
        )
        cycles, disturbed = sum(macro.cycles for macro in macros), version is not self._last
        result = RequestResult(
            self.completed, {}, {}, version, macros, cycles, 0, (1,), disturbed, IN_FLIGHT - 1
        )
        self._last = version
        self.completed += 1
        self.rejects(result)


def requests_until_noticed(
    factors: tuple[float, float], at: int, candidates_every: int, start: int, error: float = 1.0
) -> int | None:
    """Return the number of requests until a change is noticed, or None if it is not noticed in 60 requests.

    Parameters
    ----------
    factors : tuple of float
        Factors on the cycles after the change.
    at : int
        Number of requests from the first candidate to the change.
    candidates_every : int
        Number of requests between two candidates; 0 for no candidates.
    start : int
        Number of requests before the first candidate.
    error : float
        Ratio of the cycles that the search measures to those of the server.
    """
    server, events = FixedServer(), ServingEvents()
    proposer = ScriptedProposer(server.current.network, round(error * sum(VERSIONS[0])))  # type: ignore[arg-type]
    compiler = SimpleNamespace(network=lambda schedule: server.version(schedule.number).network)
    reference: Any = SimpleNamespace(batch=1, step=lambda _inputs, _states: ({}, {}))
    tuner = OnlineTuner(
        server,  # type: ignore[arg-type]
        lambda _dram, schedule: compiler.network(schedule),  # type: ignore[arg-type, return-value]
        reference,
        proposer,
        events,
        DramTiming(),
    )

    def serve() -> None:
        server.submit()
        tuner.tick()

    for _ in range(start):
        serve()
    changed = 0
    for number in range(at + 60):
        if candidates_every and number % candidates_every == 0:
            served: Any = tuner.served.schedule
            if served.number + 1 < len(VERSIONS):
                cycles = round(error * sum(VERSIONS[served.number + 1]))
                proposer.ready.append(proposer.finding(FixedSchedule(served.number + 1), cycles))  # type: ignore[arg-type]
        if number == at:
            assert not events.events_named("drift")
            changed, server.factors = server.completed, factors
        serve()
        if found := events.events_named("drift"):
            return found[0]["request"] - changed + 1
    return None


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("candidates_every", [0, 1, 5])
def test_change_is_noticed_within_nine_requests(change: str, candidates_every: int) -> None:
    late = {
        (at, start, error): found
        for start in (7, 15)
        for error in (1.0, 0.8)
        for at in range(24)
        if (found := requests_until_noticed(CHANGES[change], at, candidates_every, start, error)) is None
        or found > WITHIN
    }
    assert not late


@pytest.mark.parametrize("candidates_every", [0, 1, 5])
def test_new_versions_are_not_a_change(candidates_every: int) -> None:
    assert requests_until_noticed((1.0, 1.0), 30, candidates_every, 15) is None
