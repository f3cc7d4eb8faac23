"""State of a macro-instruction in flight and of its program."""

from dataclasses import dataclass, field

from cosim.semantics.command_fields import default_fields
from hw.isa.enums import Unit
from hw.isa.micro_instruction import REGISTERS


@dataclass
class InFlightMacro:
    """State of a macro-instruction in flight.

    Parameters
    ----------
    number : int
        Sequence number of the macro-instruction since reset, modulo 2**32.
    slot : int
        DRAM address of the ring slot of the macro-instruction.
    tag : int
        Tag from the header of the macro-instruction.
    irq : bool
        True if completion of the macro-instruction raises an interrupt.
    dispatched : int
        Value of `cycle` at the dispatch of the macro-instruction.
    program, candidate : int
        Segment of the program that runs, and index of the chosen candidate.
    outstanding : int
        Number of commands that have been issued and have not retired.
    halted : bool
        True once the program has executed HALT.
    micros : int
        Number of micro-instructions executed so far.
    """

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
        """True if the program has halted and all its commands have retired."""
        return self.halted and self.outstanding == 0


@dataclass
class OpenLoop:
    """Active hardware loop.

    Parameters
    ----------
    start, end : int
        First instruction of the body, and the instruction after the body.
    remaining : int
        Number of iterations left, including the current one.
    """

    start: int
    end: int
    remaining: int


@dataclass
class CallFrame:
    """Return address of a subroutine call, and the number of loops that were active at the call.

    Parameters
    ----------
    segment, pc : int
        Segment and program counter to return to.
    loops : int
        Number of active loops that belong to the caller and its callers.
    """

    segment: int
    pc: int
    loops: int


@dataclass
class ProgramState:
    """State of the running program.

    Parameters
    ----------
    macro : InFlightMacro
        Macro-instruction that the program executes.
    operands : list of int
        Operands of the macro-instruction, which are 32-bit words.
    segment, pc : int
        Segment and program counter of the next instruction.
    tag : int
        Tag that is currently in effect.
    registers : list of int
        Values of the general registers, which are 32-bit words.
    fields : list of list of int
        Raw command fields of each unit.
    loops : list of OpenLoop
        Active loops, with the innermost loop last.
    frames : list of CallFrame
        Active subroutine calls, with the innermost call last.
    """

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
        """Number of active loops that belong to callers of the current subroutine."""
        return self.frames[-1].loops if self.frames else 0

    @property
    def segments(self) -> set[int]:
        """Segments of the current subroutine and its callers."""
        return {self.segment, *(frame.segment for frame in self.frames)}

    def fall_through(self, pc: int) -> None:
        """Continue at `pc`, after iterating or ending those loops of the current subroutine that end there."""
        while len(self.loops) > self.loop_base and self.loops[-1].end == pc:
            loop = self.loops[-1]
            loop.remaining -= 1
            if loop.remaining > 0:
                pc = loop.start
                break
            self.loops.pop()
        self.pc = pc
