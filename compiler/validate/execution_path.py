"""One execution path: the state of the sequencer and the effects of the commands issued so far."""

from dataclasses import dataclass, field
from typing import NamedTuple

from compiler.util.lru_cache import LruCache
from compiler.validate.errors import ProofFigures
from compiler.validate.footprint import InitializedMemory
from compiler.validate.happens_before import HappensBefore
from compiler.validate.known_bits import Word
from compiler.validate.races import Clock
from compiler.validate.unit_commands import CommandLine
from cosim.semantics.command_fields import default_fields
from cosim.semantics.instruction import decode_instruction
from cosim.semantics.limits import MAX_IN_FLIGHT
from hw.isa.enums import Unit
from hw.isa.micro_instruction import REGISTERS, MicroOp
from hw.isa.program import Program

#: Segment number of the call's own program; pinned programs are numbered from 0.
OWN = -1
#: Capacity of the cache of decoded programs, in instruction words.
MAX_CACHED_WORDS = 1 << 20
#: Estimated memory of a path: fixed part and part per recorded access.
_PATH_BYTES, _ACCESS_BYTES = 1 << 13, 24


class DecodedProgram(NamedTuple):
    """Program with the decoded operation, d, a, b and imm of each word."""

    program: Program
    words: tuple[tuple[MicroOp, int, int, int, int], ...]


def code_of(program: Program) -> DecodedProgram:
    """Decode a program."""
    words = _decoded.get(program.words)
    if words is None:
        words = tuple(decode_instruction(word) for word in program.words)
        _decoded.put(program.words, words, len(words))
    return DecodedProgram(program, words)


_decoded: LruCache[tuple[tuple[MicroOp, int, int, int, int], ...]] = LruCache(MAX_CACHED_WORDS)


@dataclass
class ExecutionPath:
    """State of the sequencer and of the units at the current point of an execution path.

    Parameters
    ----------
    order : HappensBefore
        Unit commands issued so far and their happens-before order.
    call : int
        Index of the current call.
    choice : int
        Index of the running program; the guarded alternatives come first, then the call's own program.
    loops : list
        Start, end and remaining trips of each active loop.
    frames : list
        Segment, return address and number of loops active before the call, for each active subroutine call.
    steps : int
        Number of instructions executed in the current call.
    work : list of int
        Minimum number of cycles that the commands of the current call take in each unit.
    ends : dict
        For each call that may be in flight, the number of commands issued to each unit before the call halted.
    """

    order: HappensBefore
    written: InitializedMemory | None
    figures: ProofFigures = field(default_factory=ProofFigures)
    call: int = -1
    choice: int = 0
    segment: int = OWN
    pc: int = 0
    tag: Word = 0
    steps: int = 0
    registers: list[Word] = field(default_factory=list)
    fields: list[list[Word]] = field(default_factory=list)
    loops: list[tuple[int, int, int]] = field(default_factory=list)
    frames: list[tuple[int, int, int]] = field(default_factory=list)
    work: list[int] = field(default_factory=list)
    line: CommandLine | None = None
    ends: dict[int, Clock] = field(default_factory=dict)

    def begin(self, tag: int) -> None:
        """Start the next call, which implies that the call MAX_IN_FLIGHT positions before it has completed."""
        if self.call >= 0:
            issued = self.order.issued
            self.ends[self.call] = (issued[0], issued[1], issued[2], issued[3])
        self.call, self.choice = self.call + 1, 0
        if done := self.ends.pop(self.call - MAX_IN_FLIGHT, None):
            self.order.wait_for(done)
        self.segment, self.pc, self.tag, self.steps = OWN, 0, tag, 0
        self.registers = [0] * REGISTERS
        self.fields = [list[Word](default_fields(unit)) for unit in Unit]
        self.loops, self.frames = [], []
        self.work = [0] * len(Unit)

    def fork(self) -> "ExecutionPath":
        """Return a copy of the state, from which another path can continue."""
        return ExecutionPath(
            self.order.copy(),
            self.written.copy() if self.written else None,
            self.figures.copy(),
            self.call,
            self.choice,
            self.segment,
            self.pc,
            self.tag,
            self.steps,
            list(self.registers),
            [list(fields) for fields in self.fields],
            list(self.loops),
            list(self.frames),
            list(self.work),
            self.line,
            dict(self.ends),
        )

    @property
    def bytes(self) -> int:
        """Estimated memory size of this path in bytes."""
        return (
            _PATH_BYTES
            + _ACCESS_BYTES * self.order.accesses.total
            + (self.written.size if self.written else 0)
        )

    @property
    def loop_base(self) -> int:
        """Number of active loops that were started by callers of the current subroutine."""
        return self.frames[-1][2] if self.frames else 0

    def fall_through(self, pc: int) -> None:
        """Continue at `pc`, or at the start of a loop of the current subroutine that ends there and has trips left."""
        loops = self.loops
        while loops and loops[-1][1] == pc and len(loops) > self.loop_base:
            start, end, remaining = loops.pop()
            if remaining > 1:
                loops.append((start, end, remaining - 1))
                pc = start
                break
        self.pc = pc

    def settle(self) -> tuple:
        """Drop the history that has no further effect and return the remaining state; the units must be quiet.

        Two paths for which this method returns equal states continue identically, except for their steps and work.
        """
        tokens = self.order.new_epoch()
        self.ends = dict.fromkeys(self.ends, (0, 0, 0, 0))
        return (
            self.call,
            self.choice,
            self.segment,
            self.pc,
            self.tag,
            tuple(self.registers),
            tuple(map(tuple, self.fields)),
            tuple(self.loops),
            tuple(self.frames),
            self.line,
            tuple(self.ends),
            tokens,
            self.written.digest() if self.written else None,
        )
