"""Proof of a sequence of calls that starts with all units idle."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.validate.bulk_races import in_order
from compiler.validate.errors import InstructionLocation, ValidationError
from compiler.validate.happens_before import HappensBefore
from compiler.validate.races import Clash, Clock
from compiler.validate.report import ProofFigures
from compiler.validate.strided_regions import StridedRegion
from compiler.validate.trace import FENCE, WAIT, Kind, Log, Trace
from compiler.validate.unit_commands import CommandLine
from cosim.semantics.limits import MAX_IN_FLIGHT
from hw.config import MlaConfig
from hw.isa.enums import Unit

_UNITS = tuple(Unit)
_NOWHERE = InstructionLocation(0, "", -1)


@dataclass(frozen=True, eq=False)
class SequenceProof:
    """A sequence of calls that is safe when all units are idle, and leaves all semaphores at 0.

    Parameters
    ----------
    figures : ProofFigures
        Figures of the whole sequence.
    line : CommandLine or None
        Contents of the line buffers after the sequence; None: unchanged.
    steps : int
        Maximum number of instructions of one call.
    """

    figures: ProofFigures
    line: CommandLine | None
    steps: int


class _Clocks:
    """Records the vector clock of each command as it starts; races are checked later."""

    compared, total, crowded = 0, 0, False

    def __init__(self) -> None:
        self.known: list[list[Clock]] = [[] for _ in Unit]

    def clash(
        self, unit: Unit, known: Clock, regions: Sequence[StridedRegion]
    ) -> tuple[StridedRegion, Clash] | None:
        """Record the clock of a command."""
        self.known[unit].append(known)

    def enter(
        self, unit: Unit, number: int, regions: Sequence[StridedRegion], location: InstructionLocation
    ) -> None:
        """Ignore the accesses: the traces have them."""

    def forget(self, known: Clock) -> "_Clocks":
        """Return the object itself: all clocks are needed."""
        return self


def run_of(config: MlaConfig, traces: Sequence[Trace]) -> SequenceProof | None:
    """Proof of a sequence of calls from idle units; None if it is unsafe, leaves a token, or cannot be decided."""
    clocks = _Clocks()
    timeline = HappensBefore(config.queue_depth, clocks)
    figures = ProofFigures()
    ends: list[Clock] = []
    logs: dict[Kind, list[tuple[int, Log]]] = {}
    try:
        for number, trace in enumerate(traces):
            if number >= MAX_IN_FLIGHT:
                timeline.wait_for(ends[number - MAX_IN_FLIGHT])
            for kind, log in trace.logs.items():
                logs.setdefault(kind, []).append((timeline.issued[kind[0]], log))
            figures.add(trace.figures)
            figures.instructions += trace.steps
            figures.peak = max(figures.peak, _ordered(timeline, trace))
            timeline.end_call()
            ends.append(tuple(timeline.issued))  # type: ignore[arg-type]
        timeline.end()
    except ValidationError:
        return None
    known = [np.array(each, np.int64).reshape(-1, len(Unit)) for each in clocks.known]
    if not in_order({kind: _joined(each) for kind, each in logs.items()}, known):
        return None
    line = next((trace.line for trace in reversed(traces) if trace.line), None)
    return SequenceProof(figures, line, max(trace.steps for trace in traces))


def _ordered(timeline: HappensBefore, trace: Trace) -> int:
    """Simulate the commands of a call; returns the maximum number in flight."""
    peak = 0
    for what, number, signal in trace.events:
        if what == WAIT:
            timeline.wait(number, _NOWHERE)
        elif what == FENCE:
            timeline.fence(number, _NOWHERE)
        else:
            timeline.issue(_UNITS[what], number, signal, [], _NOWHERE)
            peak = max(peak, sum(timeline.issued) - sum(timeline.known))
    return peak


def _joined(logs: Sequence[tuple[int, Log]]) -> Log:
    """Concatenate the logs of consecutive calls, each given with the number of earlier commands of its unit."""
    return Log(
        np.concatenate([log.numbers + before for before, log in logs]),
        np.concatenate([log.low for _, log in logs]),
        np.concatenate([log.high for _, log in logs]),
        [item for _, log in logs for item in log.regions],
    )
