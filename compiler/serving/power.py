"""Power management: power over time, and the power state in which each request runs."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.cost.energy import POWER_STATES, PowerState, energy_parts_uj, leakage_mw
from compiler.options import DramTiming
from compiler.profile.counters import growth, read_counts
from compiler.runtime.session import Session
from compiler.runtime.stages import StagedNetwork
from compiler.serving.request import Request, RequestPower, RequestResult, RequestTime
from compiler.serving.server import Server
from compiler.util.tables import counted
from hw.config import MlaConfig
from hw.errors import InputError

#: Length in milliseconds of the windows in which the mean power stays below the cap.
WINDOW_MS = 1.0
#: Power states, slowest first. In the first three, the clock of the table's slowest state is stalled in part.
STATES = tuple(PowerState(share, POWER_STATES[0].volts) for share in (0.1, 0.125, 0.1875)) + POWER_STATES
#: Share of the cap that plans use, since a request may take a few cycles more or less than expected.
_PLANNED_SHARE = 0.995
#: Ratio of costs up to which two states are equal, so that the faster one is chosen.
_SAME_COST = 1.001
#: Number of halvings of the interval that contains the earliest start.
_START_STEPS = 12


@dataclass(frozen=True)
class PowerSegment:
    """Work of a layer: cycles of the fastest clock, microjoules of events on the chip (by the table) and in DRAM."""

    cycles: float
    chip_uj: float
    dram_uj: float


@dataclass(frozen=True)
class PowerLimits:
    """Limits of power and time.

    Parameters
    ----------
    clock : float
        Frequency of the fastest power state in MHz.
    cap : float or None
        Maximum mean power in milliwatts in every window of `WINDOW_MS`.
    deadline : float or None
        Milliseconds after its arrival in which a request should be complete.
    """

    clock: float
    cap: float | None = None
    deadline: float | None = None


def throttled(dram: DramTiming, state: PowerState) -> DramTiming:
    """Return the timing in a power state: DRAM keeps its speed while the clock of the chip is stalled in part."""
    return replace(dram, throttle=1 - (1 - dram.throttle) * state.share)


def measured_segments(session: Session, timing: DramTiming) -> tuple[PowerSegment, ...]:
    """Measure the work of each layer of a network without control flow; it does not depend on the data.

    Parameters
    ----------
    session : Session
        Session on a device with a clock, whose programs have been loaded by an earlier run.
    timing : DramTiming
        Timing whose throttle is set.
    """
    network, driver = session.network, session.driver
    session.device.set_throttle(timing.throttle)
    tags = list(dict.fromkeys(info.tag for info in network.infos))
    before = read_counts(driver, max(tags, default=0) + 1)
    _, cycles = session.measure(zero_inputs(network))
    grown = growth(before, read_counts(driver, max(tags, default=0) + 1))
    counted = max(sum(grown[tag]["cycles"] for tag in tags), 1)
    parts = {tag: energy_parts_uj(network.config, grown[tag]) for tag in tags}
    return tuple(
        PowerSegment(
            grown[tag]["cycles"] * cycles / counted,
            parts[tag]["array"] + parts[tag]["memories"],
            parts[tag]["dram"],
        )
        for tag in tags
    )


def zero_inputs(network: StagedNetwork) -> dict[str, NDArray]:
    """Return inputs of zeros."""
    return {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in network.inputs}


#: Interval of constant power: milliseconds and microjoules.
Interval = tuple[float, float]


class PowerTrace:
    """Energy over time, as intervals of constant power from time 0."""

    def __init__(self) -> None:
        self._times, self._energy = [0.0], [0.0]  # milliseconds, microjoules

    @property
    def end(self) -> float:
        """End of the trace in milliseconds."""
        return self._times[-1]

    @property
    def total_uj(self) -> float:
        """Energy of the whole trace in microjoules."""
        return self._energy[-1]

    def extend(self, intervals: Sequence[Interval]) -> None:
        """Append intervals."""
        for milliseconds, microjoules in intervals:
            if milliseconds > 0:
                self._times.append(self._times[-1] + milliseconds)
                self._energy.append(self._energy[-1] + microjoules)

    def steps(self) -> Iterator[tuple[float, float]]:
        """Yield the end of each interval in milliseconds, and its power in milliwatts."""
        for number in range(1, len(self._times)):
            taken = self._times[number] - self._times[number - 1]
            yield self._times[number], (self._energy[number] - self._energy[number - 1]) / taken

    def peak_with(self, intervals: Sequence[Interval], idle: Interval = (0.0, 0.0)) -> float:
        """Return the maximum mean power in milliwatts of the windows that end within intervals after the trace.

        The mean power of a window that ends later is lower if the machine is idle then. An `idle` interval precedes the
        others; the windows that end in it do not count, since nothing that follows changes their power.
        """
        first = max(int(np.searchsorted(self._times, self.end - WINDOW_MS, side="right")) - 1, 0)
        after = PowerTrace()
        after._times, after._energy = self._times[first:], self._energy[first:]
        after.extend([idle, *intervals])
        return after._peak(self.end + idle[0])

    def peak(self) -> float:
        """Return the maximum mean power in milliwatts of all windows; before time 0, the power is 0."""
        return self._peak(0.0)

    def _peak(self, since: float) -> float:
        """Return the maximum for the windows that end after `since`: they end, or begin, where the power changes."""
        times, energy = np.asarray(self._times), np.asarray(self._energy)
        ends = np.concatenate((times, times + WINDOW_MS))
        ends = ends[(ends > since) & (ends <= times[-1])]
        used = np.interp(ends, times, energy) - np.interp(ends - WINDOW_MS, times, energy)
        return float(used.max(initial=0.0)) / WINDOW_MS


@dataclass(frozen=True)
class PowerPlan:
    """Start of a request in milliseconds, its power state, and the reason for the choice."""

    start: float
    state: PowerState
    why: str


class PowerGovernor:
    """Chooses the power state and the start of each request.

    With a deadline, it is the state that takes the least energy among those that meet the deadline. Without one, or if
    no state meets it, it is the state in which a long stream of requests ends first. Power stays below the cap, even if
    a deadline is missed.

    Parameters
    ----------
    config : MlaConfig
        Configuration of the machine.
    segments : callable
        Returns the work of the layers of a request in a power state.
    limits : PowerLimits
        Limits of power and time.

    Raises
    ------
    InputError
        The cap cannot be kept in any power state.

    Attributes
    ----------
    trace : PowerTrace
        Power over time up to the end of the last request.
    """

    def __init__(
        self,
        config: MlaConfig,
        segments: Callable[[PowerState], tuple[PowerSegment, ...]],
        limits: PowerLimits,
    ):
        self.config, self.limits, self.trace = config, limits, PowerTrace()
        self.missed = 0
        self._segments = {state: segments(state) for state in STATES}
        if limits.cap is not None:
            lowest = min(self._alone(state) for state in STATES)
            if lowest > _PLANNED_SHARE * limits.cap:
                raise InputError(
                    f"--power-cap: {limits.cap:g} mW cannot be kept: in the slowest power state, the machine takes "
                    f"{lowest / _PLANNED_SHARE:,.1f} mW"
                )

    @cached_property
    def idle_mw(self) -> float:
        """Power in milliwatts while no request runs: the leakage at the lowest voltage."""
        return leakage_mw(self.config, STATES[0].volts)

    def intervals(self, state: PowerState, cycles: float | None = None) -> list[Interval]:
        """Return the intervals of a request in a power state; its cycles of the fastest clock if they are known."""
        segments, leakage = self._segments[state], leakage_mw(self.config, state.volts)
        scale = 1.0 if cycles is None else cycles / max(sum(each.cycles for each in segments), 1.0)
        out = []
        for each in segments:
            milliseconds = each.cycles * scale / (self.limits.clock * 1e3)
            out.append((milliseconds, state.energy_uj(each.chip_uj, each.dram_uj) + leakage * milliseconds))
        return out

    def plan(self, arrival: float) -> PowerPlan:
        """Return when and in which power state a request runs that arrives at a time in milliseconds."""
        limits, earliest = self.limits, max(self.trace.end, arrival)
        starts = {state: self._start(state, earliest) for state in STATES}
        possible = {state: start for state, start in starts.items() if start is not None}
        cap = "" if limits.cap is None else f" below {limits.cap:g} mW"
        if limits.deadline is not None:
            last = arrival + limits.deadline
            meeting = [state for state in possible if possible[state] + self._milliseconds(state) <= last]
            if meeting:
                state = self._fastest_of_best(meeting, self._energy)
                return PowerPlan(possible[state], state, f"least energy that meets the deadline{cap}")
        state = self._fastest_of_best(possible, self._period)
        why = f"most requests per second{cap}"
        return PowerPlan(
            possible[state], state, why if limits.deadline is None else f"no state{cap} meets the deadline"
        )

    def _fastest_of_best(
        self, states: Collection[PowerState], cost: Callable[[PowerState], float]
    ) -> PowerState:
        """Return the fastest of the states whose cost is nearly the lowest."""
        most = _SAME_COST * min(map(cost, states))
        return min((each for each in states if cost(each) <= most), key=self._milliseconds)

    def record(self, plan: PowerPlan, arrival: float, cycles: float) -> tuple[RequestTime, RequestPower]:
        """Add a request to the trace, given its measured cycles of the fastest clock."""
        idle = plan.start - self.trace.end
        intervals = self.intervals(plan.state, cycles)
        self.trace.extend([(idle, self.idle_mw * idle), *intervals])
        energy = sum(microjoules for _, microjoules in intervals)
        met = None if self.limits.deadline is None else self.trace.end <= arrival + self.limits.deadline
        self.missed += met is False
        time = RequestTime(arrival, plan.start, self.trace.end)
        clock = self.limits.clock * plan.state.share
        taken = time.finish_ms - time.start_ms
        power = energy / taken if taken else 0.0  # all stages may run on the host
        return time, RequestPower(clock, plan.state.volts, energy, power, met)

    def summary(self) -> str:
        """Return the energy, the highest power and the missed deadlines as a line of text."""
        parts = [f"{self.trace.total_uj:,.1f} uJ, at most {self.trace.peak():,.1f} mW over {WINDOW_MS:g} ms"]
        if self.limits.deadline is not None:
            parts.append(f"{counted(self.missed, 'deadline')} missed")
        return "; ".join(parts)

    def document(self) -> dict[str, Any]:
        """Return limits, energy, highest power, missed deadlines, and power over time as JSON values."""
        limits = self.limits
        return {
            "clock_mhz": limits.clock,
            "cap_mw": limits.cap,
            "deadline_ms": limits.deadline,
            "window_ms": WINDOW_MS,
            "peak_mw": self.trace.peak(),
            "energy_uj": self.trace.total_uj,
            "milliseconds": self.trace.end,
            "deadlines_missed": None if limits.deadline is None else self.missed,
            "idle_mw": self.idle_mw,
            "trace": [[end, power] for end, power in self.trace.steps()],
        }

    def _alone(self, state: PowerState) -> float:
        return PowerTrace().peak_with(self.intervals(state), (WINDOW_MS, self.idle_mw * WINDOW_MS))

    def _milliseconds(self, state: PowerState) -> float:
        """Return the duration of a request."""
        return sum(milliseconds for milliseconds, _ in self.intervals(state))

    def _energy(self, state: PowerState) -> float:
        """Return the microjoules of a request in addition to those of an idle machine."""
        used = sum(microjoules for _, microjoules in self.intervals(state))
        return used - self.idle_mw * self._milliseconds(state)

    def _period(self, state: PowerState) -> float:
        """Return the shortest mean time between the requests of a long stream, in milliseconds."""
        taken, cap = self._milliseconds(state), self.limits.cap
        return taken if cap is None else max(taken, self._energy(state) / (cap - self.idle_mw))

    def _start(self, state: PowerState, earliest: float) -> float | None:
        """Return the first start from which the cap is kept; None if it is not kept at any time."""
        if self.limits.cap is None or self._kept(state, earliest):
            return earliest
        low, high = earliest, max(earliest, self.trace.end + WINDOW_MS)
        if not self._kept(state, high):
            return None
        for _ in range(_START_STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._kept(state, middle) else (middle, high)
        return high

    def _kept(self, state: PowerState, start: float) -> bool:
        assert self.limits.cap is not None
        idle = start - self.trace.end
        peak = self.trace.peak_with(self.intervals(state), (idle, self.idle_mw * idle))
        return peak <= _PLANNED_SHARE * self.limits.cap


class PowerManagedServer:
    """Runs one request at a time, each in the power state that a governor has chosen.

    Parameters
    ----------
    server : Server
        Server on a machine with a clock, which receives requests from this object only.
    governor : PowerGovernor
        Chooses the power states.
    dram : DramTiming
        Timing of the DRAM and of the fastest clock.
    """

    def __init__(self, server: Server, governor: PowerGovernor, dram: DramTiming):
        self.server, self.governor, self.dram = server, governor, dram
        self._ready: list[RequestResult] = []

    @property
    def submitted(self) -> int:
        """Number of submitted requests."""
        return self.server.submitted

    def submit(self, request: Request) -> None:
        """Run a request to completion.

        Raises
        ------
        InputError
            As in `Server.submit`.
        """
        governor = self.governor
        arrival = governor.trace.end if request.arrival is None else request.arrival
        plan = governor.plan(arrival)
        self.server.device.set_throttle(throttled(self.dram, plan.state).throttle)
        self.server.submit(request.inputs, stream=request.stream, reset=request.reset)
        (result,) = self.server.results(wait=True)
        time, power = governor.record(plan, arrival, self._cycles(result, plan.state))
        variant = f"{power.clock_mhz:g} MHz, {power.volts:g} V"
        self._ready.append(replace(result, variant=variant, why=plan.why, time=time, power=power))

    def _cycles(self, result: RequestResult, state: PowerState) -> float:
        """Return the cycles of the fastest clock, of which the chip's clock has a share."""
        counted = sum(macro.cycles - macro.stalled for macro in result.macros)
        return counted / (1 - throttled(self.dram, state).throttle)

    def results(self, *, wait: bool = False) -> list[RequestResult]:
        """Return the results since the last call; all requests are complete."""
        out, self._ready = self._ready, []
        return out
