"""A run: calls one behind the other on a machine at rest, their commands put in order and all accesses compared."""

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
    """Calls that do no harm from a machine at rest on, and leave no token.

    Parameters
    ----------
    figures : Figures
        Of all of them.
    line : Line or None
        What the line buffers hold behind them; None: what they held before.
    steps : int
        Instructions of the call that takes most.
    """

    figures: ProofFigures
    line: CommandLine | None
    steps: int


class _Clocks:
    """In place of accesses: what each command knows when it starts."""

    compared, total, crowded = 0, 0, False

    def __init__(self) -> None:
        self.known: list[list[Clock]] = [[] for _ in Unit]

    def clash(
        self, unit: Unit, known: Clock, regions: Sequence[StridedRegion]
    ) -> tuple[StridedRegion, Clash] | None:
        """Write down what a command knows; whether it races is looked at later."""
        self.known[unit].append(known)

    def enter(
        self, unit: Unit, number: int, regions: Sequence[StridedRegion], place: InstructionLocation
    ) -> None:
        """What it touches is known from its trace."""

    def forget(self, known: Clock) -> "_Clocks":
        """Nothing: there is one way."""
        return self


def run_of(config: MlaConfig, traces: Sequence[Trace]) -> SequenceProof | None:
    """Calls from a machine at rest on; None if they do harm, leave a token, or it is not certain that they do not."""
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
    """Let a call's commands take their order; the most of them in flight."""
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
    """The logs of calls that come one behind the other, each with the commands of its unit before it."""
    return Log(
        np.concatenate([log.numbers + before for before, log in logs]),
        np.concatenate([log.low for _, log in logs]),
        np.concatenate([log.high for _, log in logs]),
        [item for _, log in logs for item in log.regions],
    )
