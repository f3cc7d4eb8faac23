"""Instructions that decide where a program goes on."""

from collections.abc import Callable, Sequence
from typing import Protocol

from compiler.validate.errors import ValidationError
from compiler.validate.execution_path import DecodedProgram, ExecutionPath
from compiler.validate.known_bits import Word, add
from cosim.semantics.alu import MASK, signed
from hw.config import MlaConfig
from hw.isa.micro_instruction import LOOP_IMM, MicroOp


class ControlInstructions(Protocol):
    """What these instructions need of the sequencer."""

    config: MlaConfig
    pinned: Sequence[DecodedProgram]

    def value(self, way: ExecutionPath, selector: int) -> Word:
        """What a selector names."""
        ...

    def refuse(self, way: ExecutionPath, kind: str, reason: str) -> ValidationError:
        """The refusal of the instruction that a way is at."""
        ...


def _halt(sequencer: ControlInstructions, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    way.timeline.end_call()


def _trap(sequencer: ControlInstructions, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    raise sequencer.refuse(way, "trap", f"the program traps here with {imm & MASK:#x}")


def _illegal(sequencer: ControlInstructions, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    raise sequencer.refuse(way, "illegal", "this word is no instruction")


def _loop(sequencer: ControlInstructions, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    packed = LOOP_IMM.unpack(imm & MASK)
    end, trips = packed["end"], add(sequencer.value(way, a), packed["count"] & MASK)
    if end <= way.pc + 1:
        reason = f"a loop must end behind its first instruction {way.pc + 1}, not at {end}"
        raise sequencer.refuse(way, "loop", reason)
    if not isinstance(trips, int):
        raise sequencer.refuse(way, "statistics", "how often a loop runs must not depend on the data")
    if signed(trips) <= 0:
        way.fall_through(end)
        return
    if len(way.loops) >= sequencer.config.loop_depth:
        raise sequencer.refuse(way, "loop", f"at most {sequencer.config.loop_depth} loops may be open")
    way.loops.append((way.pc + 1, end, signed(trips)))
    way.fall_through(way.pc + 1)


def _break(sequencer: ControlInstructions, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    if len(way.loops) <= way.loop_base:
        raise sequencer.refuse(way, "loop", "break needs a loop opened since the last call")
    way.loops.pop()
    way.pc = imm & MASK


def _call(sequencer: ControlInstructions, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    if len(way.frames) >= sequencer.config.call_depth:
        raise sequencer.refuse(way, "call", f"at most {sequencer.config.call_depth} calls may be open")
    way.frames.append((way.segment, way.pc + 1, len(way.loops)))
    way.pc = imm & MASK


def _callp(sequencer: ControlInstructions, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    if d >= sequencer.config.segments:
        reason = f"segments are 0..{sequencer.config.segments - 1}, not {d}"
        raise sequencer.refuse(way, "illegal", reason)
    if d >= len(sequencer.pinned):
        raise sequencer.refuse(way, "segment", f"segment {d} is not pinned; {len(sequencer.pinned)} are")
    _call(sequencer, way, d, a, b, imm)
    way.segment = d


def _ret(sequencer: ControlInstructions, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    if not way.frames:
        raise sequencer.refuse(way, "call", "ret needs a call that it returns from")
    way.segment, pc, loops = way.frames.pop()
    del way.loops[loops:]
    way.fall_through(pc)


FLOW: dict[MicroOp, Callable[[ControlInstructions, ExecutionPath, int, int, int, int], None]] = {
    MicroOp.ILLEGAL: _illegal,
    MicroOp.HALT: _halt,
    MicroOp.TRAP: _trap,
    MicroOp.LOOP: _loop,
    MicroOp.BREAK: _break,
    MicroOp.CALL: _call,
    MicroOp.CALLP: _callp,
    MicroOp.RET: _ret,
}
