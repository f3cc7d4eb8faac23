"""What a program does whose way neither data nor timing decide, wherever the memory lies that its operands name.

Such a program uses its operands for nothing but the addresses of LOAD and STORE, added to what it reckons itself. So
one look at it is enough for all calls: what it touches in DRAM is known from each operand on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from compiler.validate.errors import InstructionLocation, ValidationError
from compiler.validate.execution_path import DecodedProgram, ExecutionPath
from compiler.validate.happens_before import HappensBefore
from compiler.validate.report import ProofFigures
from compiler.validate.sequencer import SymbolicSequencer
from compiler.validate.strided_regions import StridedRegion
from compiler.validate.unit_commands import CommandLine, examine
from cosim.semantics.alu import ALU
from cosim.semantics.command_checks import DramWindow
from cosim.semantics.command_fields import CommandFields
from hw.config import MlaConfig
from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS
from hw.isa.enums import Unit
from hw.isa.micro_instruction import MAX_OPERANDS, OPERAND_BASE, REGISTERS, MicroOp

#: Commands of a trace at most: a program of more is followed each time.
MOST_COMMANDS = 1 << 14
#: Instructions of such a program at most.
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
#: Windows are looked at once it is known where the memory lies.
_ANYWHERE: DramWindow = (0, 1 << 40, 3)

#: Accesses of one kind by one unit: unit, memory (that behind operand i is `dram<i>`), written or not.
Kind = tuple[Unit, str, bool]


@dataclass(frozen=True, eq=False)
class Log:
    """Accesses of one kind, in the order of their commands.

    Parameters
    ----------
    numbers : array of int
        Their commands, counted by unit.
    low, high : array of int
        First and last address of each.
    regions : list of Region
        All of each.
    """

    numbers: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    regions: list[StridedRegion]


@dataclass(frozen=True, eq=False)
class Trace:
    """A call of such a program.

    Parameters
    ----------
    events : list of (int, int, int)
        Commands: unit, what they wait for, what they signal; else (`WAIT`, semaphore, 0) and (`FENCE`, units, 0).
    logs : dict
        What they touch.
    figures : Figures
        Without the commands in flight, which depend on what came before.
    steps : int
        Instructions.
    line : Line or None
        What the line buffers hold behind it; None: what they held before.
    """

    events: list[tuple[int, int, int]]
    logs: dict[Kind, Log]
    figures: ProofFigures
    steps: int
    line: CommandLine | None


WAIT, FENCE = len(Unit), len(Unit) + 1


def operands_of(code: DecodedProgram) -> frozenset[int] | None:
    """The operands that a program uses; None if it may do what a trace does not show."""
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
    """Whether it waits for all units before anything else."""
    op, d, *_ = code.words[0]
    return op is MicroOp.FENCE and d & 15 == _ALL


def follow(
    config: MlaConfig, code: DecodedProgram, operands: frozenset[int], line: CommandLine | None
) -> Trace | None:
    """The trace of a call, `line` being in the line buffers; None if it does harm or is too long."""
    tape = _Tape(config)
    follower = _Follower(config, code, operands)
    way = ExecutionPath(tape, None, line=line)
    way.begin(0)
    try:
        while follower.run(way) is not MicroOp.HALT:
            pass
    except (ValidationError, _TooLongError):
        return None
    way.figures.peak = 0
    return Trace(tape.events, tape.logs(), way.figures, way.steps, way.line)


class _TooLongError(Exception):
    """More commands than a trace may have."""


class _Tape(HappensBefore):
    """Writes down what the sequencer asks of the units; nothing is ordered yet."""

    def __init__(self, config: MlaConfig):
        super().__init__(config.queue_depth)
        self.events: list[tuple[int, int, int]] = []
        self._touched: dict[Kind, tuple[list[int], list[StridedRegion]]] = {}

    def issue(
        self, unit: Unit, wait: int, signal: int, regions: Sequence[StridedRegion], place: InstructionLocation
    ) -> None:
        """Write down a command."""
        if len(self.events) >= MOST_COMMANDS:
            raise _TooLongError
        self.events.append((unit, wait, signal))
        for item in regions:
            numbers, mine = self._touched.setdefault((unit, item.space, item.write), ([], []))
            numbers.append(self.issued[unit])
            mine.append(item)
        self.issued[unit] += 1

    def wait(self, number: int, place: InstructionLocation) -> None:
        """Write down that the sequencer takes a token."""
        self.events.append((WAIT, number, 0))

    def fence(self, mask: int, place: InstructionLocation) -> None:
        """Write down that the sequencer waits for units."""
        self.events.append((FENCE, mask, 0))

    def logs(self) -> dict[Kind, Log]:
        """What all commands touch."""
        out = {}
        for kind, (numbers, regions) in self._touched.items():
            low = np.array([item.low for item in regions], np.int64)
            high = np.array([item.high for item in regions], np.int64)
            out[kind] = Log(np.array(numbers, np.int64), low, high, regions)
        return out


class _Follower(SymbolicSequencer):
    """Executes a program whose operands are all 0, and keeps in mind which of them an address begins at."""

    def __init__(self, config: MlaConfig, code: DecodedProgram, operands: frozenset[int]):
        zeros = (0,) * (max(operands, default=-1) + 1)
        super().__init__(config, [_ANYWHERE], code, (), zeros, _LIMIT)
        self._spaces = dict.fromkeys(Unit, "dram")

    def _set(self, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        super()._set(way, d, a, b, imm)
        if d in _DRAM:
            operand = max(a, b) - OPERAND_BASE
            self._spaces[Unit(d >> FIELD_INDEX_BITS)] = f"dram{operand}" if operand >= 0 else "dram"

    def _examined(self, unit: Unit, fields: list[int]) -> tuple[CommandFields, list[StridedRegion]]:
        c, regions = _known(self.config, unit, tuple(fields))
        space = self._spaces[unit]
        return c, [item._replace(space=space) if item.space == "dram" else item for item in regions]


@lru_cache(maxsize=1 << 12)
def _known(
    config: MlaConfig, unit: Unit, fields: tuple[int, ...]
) -> tuple[CommandFields, list[StridedRegion]]:
    """What a command touches, in a memory without end."""
    return examine(config, [_ANYWHERE], unit, list(fields))
