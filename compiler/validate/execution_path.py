"""One way through the programs: the sequencer's state, and everything its commands have done so far."""

from dataclasses import dataclass, field
from typing import NamedTuple

from compiler.util.lru_cache import LruCache
from compiler.validate.happens_before import HappensBefore
from compiler.validate.initialized import InitializedMemory
from compiler.validate.known_bits import Word
from compiler.validate.races import Clock
from compiler.validate.report import ProofFigures
from compiler.validate.unit_commands import CommandLine
from cosim.semantics.command_fields import default_fields
from cosim.semantics.instruction import decode_instruction
from cosim.semantics.limits import MAX_IN_FLIGHT
from hw.isa.enums import Unit
from hw.isa.micro_instruction import REGISTERS, MicroOp
from hw.isa.program import Program

#: Segment of the program that a call runs; pinned programs have their numbers.
OWN = -1
#: Words of all programs whose decoded form is cached.
MAX_CACHED_WORDS = 1 << 20
#: What a way takes in memory: by itself, and for each access.
_WAY_BYTES, _ACCESS_BYTES = 1 << 13, 24


class DecodedProgram(NamedTuple):
    """A program, decoded: operation, d, a, b and imm of each word."""

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
    """State after some instructions of some call.

    Parameters
    ----------
    timeline : Timeline
        Unit commands so far.
    call : int
        Index of the call that runs.
    choice : int
        Which of the programs that it may run: those behind guards come first.
    loops : list
        Open loops: start, end, trips that remain.
    frames : list
        Open calls: segment, pc to return to, loops open before.
    steps : int
        Instructions of this call.
    work : list of int
        Least cycles that this call's commands take in each unit.
    ends : dict
        For each call that may be in flight, how many commands of each unit had been issued when it halted.
    """

    timeline: HappensBefore
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
        """Start the next call; the machine does so when the one that is so many before it is complete."""
        if self.call >= 0:
            issued = self.timeline.issued
            self.ends[self.call] = (issued[0], issued[1], issued[2], issued[3])
        self.call, self.choice = self.call + 1, 0
        if done := self.ends.pop(self.call - MAX_IN_FLIGHT, None):
            self.timeline.wait_for(done)
        self.segment, self.pc, self.tag, self.steps = OWN, 0, tag, 0
        self.registers = [0] * REGISTERS
        self.fields = [list[Word](default_fields(unit)) for unit in Unit]
        self.loops, self.frames = [], []
        self.work = [0] * len(Unit)

    def fork(self) -> "ExecutionPath":
        """The same state, to go another way from here."""
        return ExecutionPath(
            self.timeline.copy(),
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
        """About how much memory this way takes by itself."""
        return (
            _WAY_BYTES
            + _ACCESS_BYTES * self.timeline.accesses.total
            + (self.written.size if self.written else 0)
        )

    @property
    def loop_base(self) -> int:
        """Loops that belong to callers."""
        return self.frames[-1][2] if self.frames else 0

    def fall_through(self, pc: int) -> None:
        """Go on at `pc`, going round the loops of this frame that end there."""
        loops = self.loops
        while loops and loops[-1][1] == pc and len(loops) > self.loop_base:
            start, end, remaining = loops.pop()
            if remaining > 1:
                loops.append((start, end, remaining - 1))
                pc = start
                break
        self.pc = pc

    def settle(self) -> tuple:
        """Forget a past that no longer matters and return what does; only when the timeline is quiet.

        Two ways that agree in it, steps and work apart, go on alike.
        """
        tokens = self.timeline.new_epoch()
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
