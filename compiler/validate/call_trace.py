"""Address-independent traces of programs without data-dependent control flow.

A program can be traced if it uses its operands only as base addresses of LOAD and STORE. One trace is then valid for
all calls of the program, because DRAM accesses are recorded as offsets from operands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.util.lru_cache import LruCache
from compiler.validate.errors import InstructionLocation, ProofFigures, ValidationError
from compiler.validate.execution_path import DecodedProgram, ExecutionPath
from compiler.validate.footprint import StridedRegion
from compiler.validate.happens_before import HappensBefore
from compiler.validate.sequencer import PAUSES, SymbolicSequencer
from compiler.validate.unit_commands import (
    BadCommandError,
    CommandLine,
    CommandShape,
    examiner,
    follow_line,
    known_fields,
)
from cosim.driver import WATCHDOG_CYCLES
from cosim.semantics.alu import ALU
from cosim.semantics.command_checks import DramWindow
from hw.config import MlaConfig
from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS
from hw.isa.enums import SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, REGISTERS, MicroOp

#: Maximum number of commands of a trace; a longer program is explored for each call.
MOST_COMMANDS = 1 << 14
#: Maximum number of instructions of a traced program.
_LIMIT = 1 << 16
_PLAIN = {
    MicroOp.SET,
    MicroOp.ISSUE,
    MicroOp.WAIT,
    MicroOp.FENCE,
    MicroOp.TAG,
    MicroOp.LOOP,
    MicroOp.BREAK,
    MicroOp.HALT,
    *ALU,
}
_DRAM = {
    int(unit) << FIELD_INDEX_BITS | index
    for unit in Unit
    for index, item in enumerate(UNIT_FIELDS[unit])
    if item.name == "dram"
}
_ALL = (1 << len(Unit)) - 1
_UNITS = tuple(Unit)
#: DRAM window for tracing; the actual windows are checked once the addresses are known.
_ANYWHERE: DramWindow = (0, 1 << 40, 3)

#: Kind of access: unit, memory (`dram<i>` for addresses relative to operand i), and True for writes.
Kind = tuple[Unit, str, bool]


@dataclass(frozen=True, eq=False)
class Log:
    """Memory accesses of one kind, in command order.

    Parameters
    ----------
    numbers : array of int
        Index, among the commands of the unit, of the command that makes each access.
    low, high : array of int
        First and last address of each access.
    regions : list of StridedRegion
        Exact region of each access.
    """

    numbers: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    regions: list[StridedRegion]


@dataclass(frozen=True, eq=False)
class Trace:
    """Record of a call of a program.

    Parameters
    ----------
    events : list of (int, int, int)
        Commands as (unit, wait mask, signal mask), waits as (`WAIT`, semaphore, 0), fences as (`FENCE`, unit mask, 0).
    logs : dict
        Memory accesses of all commands, by kind.
    figures : ProofFigures
        Figures of the call; `peak` is 0 because it depends on earlier calls.
    steps : int
        Number of instructions executed.
    line : CommandLine or None
        Contents of the line buffers after the call; None if the call leaves them unchanged.
    """

    events: list[tuple[int, int, int]]
    logs: dict[Kind, Log]
    figures: ProofFigures
    steps: int
    line: CommandLine | None


WAIT, FENCE = len(Unit), len(Unit) + 1


def operands_of(code: DecodedProgram) -> frozenset[int] | None:
    """Return the indices of the operands that a program uses; None if the program cannot be traced."""
    used: set[int] = set()
    for op, d, a, b, _ in code.words:
        if op not in _PLAIN:
            return None
        for selector in (a, b):
            if selector >= REGISTERS:
                if op is not MicroOp.SET or d not in _DRAM or not 0 <= selector - OPERAND_BASE < MAX_OPERANDS:
                    return None
                used.add(selector - OPERAND_BASE)
        if op is MicroOp.SET and a >= OPERAND_BASE and b >= OPERAND_BASE:
            return None
    return frozenset(used)


def begins_fenced(code: DecodedProgram) -> bool:
    """Return True if the first instruction of a program is a fence for all units."""
    op, d, *_ = code.words[0]
    return op is MicroOp.FENCE and d & 15 == _ALL


#: Number of commands in the cache of footprints of a machine.
_MAX_FOOTPRINTS = 1 << 13
#: Cache of the footprints of commands, by unit, address space of DRAM and fields.
Footprints = LruCache["Footprint"]


def footprints() -> Footprints:
    """Return an empty cache of footprints, for one hardware configuration."""
    return LruCache(_MAX_FOOTPRINTS)


class Footprint(NamedTuple):
    """Legal command by itself: its shape, and the regions that it accesses."""

    shape: CommandShape
    regions: list[StridedRegion]


def follow(
    config: MlaConfig,
    code: DecodedProgram,
    operands: frozenset[int],
    line: CommandLine | None,
    known: Footprints | None = None,
) -> Trace | None:
    """Trace a call, with the line buffers containing `line` at the start; return None if it is unsafe or too long.

    `known` is a cache of footprints for the same configuration.
    """
    tape = _Tape(config)
    follower = _Follower(config, code, operands, footprints() if known is None else known)
    path = ExecutionPath(tape, None, line=line)
    path.begin(0)
    try:
        while follower.run(path) is not MicroOp.HALT:
            pass
    except (ValidationError, BadCommandError, _TooLongError):
        return None
    logs = tape.logs()
    figures = ProofFigures(commands=list(tape.issued))
    for (_, space, write), log in logs.items():
        low, high = int(log.low.min()), int(log.high.max())
        before = figures.reach.get((space, write), (low, high))
        figures.reach[space, write] = min(low, before[0]), max(high, before[1])
    return Trace(tape.events, logs, figures, path.steps, path.line)


class _TooLongError(Exception):
    """A trace exceeds `MOST_COMMANDS`."""


class _Tape(HappensBefore):
    """Recorder of commands, waits and fences, which does not order them."""

    def __init__(self, config: MlaConfig):
        super().__init__(config.queue_depth)
        self.events: list[tuple[int, int, int]] = []
        self._touched: dict[Kind, tuple[list[int], list[StridedRegion]]] = {}

    def record(self, unit: Unit, wait: int, signal: int, regions: Sequence[StridedRegion]) -> None:
        """Record a command."""
        if len(self.events) >= MOST_COMMANDS:
            raise _TooLongError
        self.events.append((unit, wait, signal))
        number = self.issued[unit]
        for item in regions:
            touched = self._touched.get((unit, item.space, item.write))
            if touched is None:
                touched = self._touched[unit, item.space, item.write] = ([], [])
            touched[0].append(number)
            touched[1].append(item)
        self.issued[unit] = number + 1

    def wait(self, number: int, location: InstructionLocation) -> None:
        """Record that the sequencer consumes a token."""
        self.events.append((WAIT, number, 0))

    def fence(self, mask: int, location: InstructionLocation) -> None:
        """Record that the sequencer waits for all units in a mask."""
        self.events.append((FENCE, mask, 0))

    def logs(self) -> dict[Kind, Log]:
        """Return the memory accesses of all commands, by kind."""
        out = {}
        for kind, (numbers, regions) in self._touched.items():
            low = np.array([item.low for item in regions], np.int64)
            high = np.array([item.high for item in regions], np.int64)
            out[kind] = Log(np.array(numbers, np.int64), low, high, regions)
        return out


@lru_cache(maxsize=1 << 14)
def _constant(d: int, imm: int) -> tuple[int, int, int] | None:
    """Return the unit, the index and the value of a field that is set to a constant; None if there is no such field."""
    unit, index = d >> FIELD_INDEX_BITS, d & (1 << FIELD_INDEX_BITS) - 1
    if unit >= len(UNIT_FIELDS) or index >= len(UNIT_FIELDS[unit]):
        return None
    return unit, index, UNIT_FIELDS[unit][index].truncate(imm)


class _Follower(SymbolicSequencer):
    """Sequencer that sets all operands to 0 and tracks which operand is the base of each DRAM address.

    A program that can be traced has neither branches nor calls, and all its fields are known.
    """

    def __init__(self, config: MlaConfig, code: DecodedProgram, operands: frozenset[int], known: Footprints):
        zeros = (0,) * (max(operands, default=-1) + 1)
        super().__init__(config, [_ANYWHERE], code, (), zeros, _LIMIT)
        self._spaces = dict.fromkeys(Unit, "dram")
        self._known, self._examiner = known, examiner(config)

    def run(self, path: ExecutionPath) -> MicroOp | None:
        """Execute the program up to its next halt, wait or fence, most of whose instructions set constants."""
        words, loops, fields = self.code.words, path.loops, path.fields
        while path.pc < len(words) and path.steps < self.limit:
            op, d, a, b, imm = words[path.pc]
            if op is MicroOp.SET and not a and not b and d not in _DRAM and (found := _constant(d, imm)):
                fields[found[0]][found[1]] = found[2]
                if loops:
                    path.fall_through(path.pc + 1)
                else:
                    path.pc += 1
            elif op is MicroOp.ISSUE:
                self._issue(path, d, a, b, imm)
            else:
                self.execute(path, op, d, a, b, imm)
            path.steps += 1
            if op in PAUSES:
                return op
        return super().run(path)  # raises the error

    def _set(self, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        super()._set(path, d, a, b, imm)
        if d in _DRAM:
            operand = max(a, b) - OPERAND_BASE
            self._spaces[Unit(d >> FIELD_INDEX_BITS)] = f"dram{operand}" if operand >= 0 else "dram"

    def _issue(self, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        unit = _UNITS[d & 3]
        key = unit, self._spaces[unit], tuple(path.fields[unit])
        found = self._known.get(key)
        if found is None:
            found = self._footprint(unit, self._spaces[unit], known_fields(unit, path.fields[unit]))
            self._known.put(key, found)
        if unit == Unit.MATRIX and found.shape.fields.dw:
            path.line = follow_line(found.shape.fields, path.line)
        path.work[unit] += found.shape.work
        if path.work[unit] > WATCHDOG_CYCLES:
            raise _TooLongError
        signal = imm >> 16 & 0xFFFF | (d >> 2 & 15) << SEQUENCER * SEMAPHORES_PER_PAIR
        assert isinstance(path.order, _Tape)
        path.order.record(unit, imm & 0xFFFF, signal, found.regions)
        path.fall_through(path.pc + 1)

    def _footprint(self, unit: Unit, space: str, fields: list[int]) -> Footprint:
        shape, regions = self._examiner.examine(self.windows, unit, fields)
        return Footprint(
            shape, [item._replace(space=space) if item.space == "dram" else item for item in regions]
        )
