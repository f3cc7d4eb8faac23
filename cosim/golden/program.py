"""A macro-instruction and the program that runs for it."""

from dataclasses import dataclass, field

from cosim.semantics.command_fields import default_fields
from hw.isa.enums import Unit
from hw.isa.micro_instruction import REGISTERS


@dataclass
class InFlightMacro:
    """A macro-instruction in flight."""

    number: int
    slot: int
    tag: int
    irq: bool
    dispatched: int
    program: int = 0xFF
    candidate: int = 0
    outstanding: int = 0
    halted: bool = False
    micros: int = 0

    @property
    def finished(self) -> bool:
        """Whether it can complete."""
        return self.halted and self.outstanding == 0


@dataclass
class OpenLoop:
    """An open hardware loop."""

    start: int
    end: int
    remaining: int


@dataclass
class CallFrame:
    """Where a call returns to, and how many loops were open."""

    segment: int
    pc: int
    loops: int


@dataclass
class ProgramState:
    """State of the running program."""

    macro: InFlightMacro
    operands: list[int]
    segment: int
    tag: int
    pc: int = 0
    registers: list[int] = field(default_factory=lambda: [0] * REGISTERS)
    fields: list[list[int]] = field(default_factory=lambda: [default_fields(unit) for unit in Unit])
    loops: list[OpenLoop] = field(default_factory=list)
    frames: list[CallFrame] = field(default_factory=list)

    @property
    def loop_base(self) -> int:
        """Loops that belong to callers."""
        return self.frames[-1].loops if self.frames else 0

    @property
    def segments(self) -> set[int]:
        """Segments in use."""
        return {self.segment, *(frame.segment for frame in self.frames)}

    def fall_through(self, pc: int) -> None:
        """Go on at `pc`, going round the loops of this frame that end there."""
        while len(self.loops) > self.loop_base and self.loops[-1].end == pc:
            loop = self.loops[-1]
            loop.remaining -= 1
            if loop.remaining > 0:
                pc = loop.start
                break
            self.loops.pop()
        self.pc = pc
