"""Proofs of the safety of call sequences, and a memo of earlier proofs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

import numpy as np

from compiler.util.lru_cache import LruCache
from compiler.validate.call_trace import (
    FENCE,
    WAIT,
    Kind,
    Log,
    Trace,
    begins_fenced,
    follow,
    footprints,
    operands_of,
)
from compiler.validate.errors import InstructionLocation, ProofFigures, ProofReport, ValidationError
from compiler.validate.execution_path import MAX_CACHED_WORDS, DecodedProgram
from compiler.validate.footprint import StridedRegion
from compiler.validate.happens_before import HappensBefore
from compiler.validate.macro_call import CallStream, MacroCall
from compiler.validate.races import Clash, Clock, in_order
from compiler.validate.unit_commands import CommandLine
from cosim.semantics.command_checks import DramWindow
from cosim.semantics.limits import MAX_IN_FLIGHT
from hw.config import MlaConfig
from hw.isa.enums import Unit

_UNITS = tuple(Unit)
_NOWHERE = InstructionLocation(0, "", -1)


@dataclass(frozen=True, eq=False)
class SequenceProof:
    """Proof that a sequence of calls is safe if all units are idle at its start, and leaves all semaphores at 0.

    Parameters
    ----------
    figures : ProofFigures
        Figures of the whole sequence.
    line : CommandLine or None
        Contents of the line buffers after the sequence; None if the sequence leaves them unchanged.
    steps : int
        Maximum number of instructions that one call executes.
    """

    figures: ProofFigures
    line: CommandLine | None
    steps: int


class _Clocks:
    """Recorder of the vector clock of each command when it starts; races are checked later."""

    compared, total, crowded = 0, 0, False

    def __init__(self) -> None:
        self.known: list[list[Clock]] = [[] for _ in Unit]

    def clash(
        self, unit: Unit, known: Clock, regions: Sequence[StridedRegion]
    ) -> tuple[StridedRegion, Clash] | None:
        """Record the vector clock of a command, without checking for races."""
        self.known[unit].append(known)

    def enter(
        self, unit: Unit, number: int, regions: Sequence[StridedRegion], location: InstructionLocation
    ) -> None:
        """Ignore the accesses of a command, since the traces contain them."""

    def forget(self, known: Clock) -> "_Clocks":
        """Return the recorder itself, since all clocks are needed."""
        return self


def run_of(config: MlaConfig, traces: Sequence[Trace]) -> SequenceProof | None:
    """Return the proof of a sequence of traced calls that starts with idle units.

    The result is None if the sequence is unsafe, if a token remains at the end, or if this cannot be decided.
    """
    clocks = _Clocks()
    order = HappensBefore(config.queue_depth, clocks)
    figures = ProofFigures()
    ends: list[Clock] = []
    logs: dict[Kind, list[tuple[int, Log]]] = {}
    try:
        for number, trace in enumerate(traces):
            if number >= MAX_IN_FLIGHT:
                order.wait_for(ends[number - MAX_IN_FLIGHT])
            for kind, log in trace.logs.items():
                logs.setdefault(kind, []).append((order.issued[kind[0]], log))
            figures.add(trace.figures)
            figures.instructions += trace.steps
            figures.peak = max(figures.peak, _ordered(order, trace))
            order.end_call()
            ends.append(tuple(order.issued))  # type: ignore[arg-type]
        order.end()
    except ValidationError:
        return None
    known = [np.array(each, np.int64).reshape(-1, len(Unit)) for each in clocks.known]
    if not in_order({kind: _joined(each) for kind, each in logs.items()}, known):
        return None
    line = next((trace.line for trace in reversed(traces) if trace.line), None)
    return SequenceProof(figures, line, max(trace.steps for trace in traces))


def _ordered(order: HappensBefore, trace: Trace) -> int:
    """Simulate the commands of a call; return the maximum number of commands in flight."""
    peak = 0
    for what, number, signal in trace.events:
        if what == WAIT:
            order.wait(number, _NOWHERE)
        elif what == FENCE:
            order.fence(number, _NOWHERE)
        else:
            order.issue(_UNITS[what], number, signal, [], _NOWHERE)
            peak = max(peak, sum(order.issued) - sum(order.known))
    return peak


def _joined(logs: Sequence[tuple[int, Log]]) -> Log:
    """Concatenate the logs of consecutive calls, each given with the number of commands that its unit ran before."""
    return Log(
        np.concatenate([log.numbers + before for before, log in logs]),
        np.concatenate([log.low for _, log in logs]),
        np.concatenate([log.high for _, log in logs]),
        [item for _, log in logs for item in log.regions],
    )


#: Capacities of the caches of traces (in commands) and of proved runs.
_MAX_COMMANDS, _MAX_RUNS = 1 << 16, 1 << 10
_READ, _WRITE = 1, 2


@dataclass(frozen=True, eq=False)
class ProofMemo:
    """Facts about a program.

    Parameters
    ----------
    number : int
        Unique ID of the program.
    code : DecodedProgram
        Program in decoded form.
    operands : frozenset of int or None
        Indices of the operands that the program uses; None if the program must be explored.
    fenced : bool
        True if the program starts with a fence for all units.
    """

    number: int
    code: DecodedProgram
    operands: frozenset[int] | None
    fenced: bool


def proved(stream: CallStream) -> ProofReport | None:
    """Return the report of a stream that the memo proves safe; None if it must be explored."""
    if stream.pinned or any(call.instead for call in stream.calls):
        return None
    memo = _memo(stream.config)
    each = [sequencers[0].code for sequencers in stream.sequencers]
    known = {key: memo.program(code) for key, code in {id(code.program): code for code in each}.items()}
    codes = [known[id(code.program)] for code in each]
    figures, line = ProofFigures(), None
    for start, stop in _runs(codes):
        operands = _operands(codes[start:stop], stream.calls[start:stop])
        run = None if operands is None else memo.run(codes[start:stop], line)
        if run is None or operands is None or run.steps > stream.limit:
            return None
        relocated = _relocated(run.figures, operands, stream.windows)
        if relocated is None:
            return None
        figures.add(relocated)
        line = run.line or line
    return figures.report(len(stream.calls), 1)


def _runs(codes: Sequence[ProofMemo]) -> list[tuple[int, int]]:
    """Return the half-open range of calls of each run; a run ends before a program that starts with a fence."""
    starts = [0, *(at for at, code in enumerate(codes) if at and code.fenced)]
    return list(zip(starts, [*starts[1:], len(codes)], strict=True)) if codes else []


def _operands(codes: Sequence[ProofMemo], calls: Sequence[MacroCall]) -> tuple[int | None, ...] | None:
    """Return the operands that all calls of a run share; None if calls differ, or a used operand has no known value."""
    operands = calls[0].operands
    for code, call in zip(codes, calls, strict=True):
        if code.operands is None or call.operands != operands:
            return None
        if any(number >= len(operands) or operands[number] is None for number in code.operands):
            return None
    return operands


def _relocated(
    figures: ProofFigures, operands: Sequence[int | None], windows: Sequence[DramWindow]
) -> ProofFigures | None:
    """Return figures with addresses instead of offsets from operands.

    The result is None if an address is outside the windows, or if a written buffer overlaps another buffer.
    """
    relocated = figures.copy()
    reach, stretches = dict[tuple[str, bool], tuple[int, int]](), []
    for (space, write), (low, high) in figures.reach.items():
        if space.startswith("dram"):
            base = (operands[int(space[4:])] or 0) & 0xFFFFFFFF if space[4:] else 0
            low, high = low + base, high + base
            if high >= 1 << 32 or not _inside(windows, low, high, _WRITE if write else _READ):
                return None
            stretches.append((low, high, space, write))
            space = "dram"
        before = reach.get((space, write), (low, high))
        reach[space, write] = min(low, before[0]), max(high, before[1])
    for number, (low, high, space, write) in enumerate(stretches):
        for other in stretches[:number]:
            if (write or other[3]) and space != other[2] and low <= other[1] and other[0] <= high:
                return None
    relocated.reach = reach
    return relocated


def _inside(windows: Sequence[DramWindow], low: int, high: int, permission: int) -> bool:
    return any(first <= low and high <= last and bits & permission for first, last, bits in windows)


class _Memo:
    """Memo of programs, traces and runs for one hardware configuration."""

    def __init__(self, config: MlaConfig):
        self.config = config
        self._numbers = count()
        self._programs: LruCache[ProofMemo] = LruCache(MAX_CACHED_WORDS)
        # Failures are cached as (None,).
        self._traces: LruCache[tuple[Trace | None]] = LruCache(_MAX_COMMANDS)
        self._footprints = footprints()
        self._proved: LruCache[tuple[SequenceProof | None]] = LruCache(_MAX_RUNS)

    def program(self, code: DecodedProgram) -> ProofMemo:
        """Return the facts about a program, which is identified by its words."""
        words = code.program.words
        known = self._programs.get(words)
        if known is None:
            known = ProofMemo(next(self._numbers), code, operands_of(code), begins_fenced(code))
            self._programs.put(words, known, len(words))
        return known

    def run(self, codes: Sequence[ProofMemo], line: CommandLine | None) -> SequenceProof | None:
        """Return the proof of consecutive calls; None if they cannot be proved safe."""
        # Most calls do not depend on the previous contents of the line buffers.
        numbers = tuple(code.number for code in codes)
        for before in dict.fromkeys((None, line)):
            found = self._proved.get((before, numbers))
            if found is None:
                traces = self._followed(codes, before)
                found = (None if traces is None else run_of(self.config, traces),)
                self._proved.put((before, numbers), found)
            if found[0] is not None:
                return found[0]
        return None

    def _followed(self, codes: Sequence[ProofMemo], line: CommandLine | None) -> list[Trace] | None:
        out: list[Trace] = []
        for code in codes:
            trace = self._trace(code, None) or self._trace(code, line)
            if trace is None:
                return None
            out.append(trace)
            line = trace.line or line
        return out

    def _trace(self, code: ProofMemo, line: CommandLine | None) -> Trace | None:
        found = self._traces.get((code.number, line))
        if found is None:
            assert code.operands is not None
            trace = follow(self.config, code.code, code.operands, line, self._footprints)
            found = (trace,)
            self._traces.put((code.number, line), found, 1 + len(trace.events if trace else ()))
        return found[0]


@lru_cache(maxsize=8)
def _memo(config: MlaConfig) -> _Memo:
    return _Memo(config)
