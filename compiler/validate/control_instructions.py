"""Control-flow instructions of the symbolic sequencer."""

from collections.abc import Callable, Sequence
from typing import Protocol

from compiler.validate.errors import ValidationError
from compiler.validate.execution_path import DecodedProgram, ExecutionPath
from compiler.validate.known_bits import Word, add
from cosim.semantics.alu import MASK, signed
from hw.config import MlaConfig
from hw.isa.micro_instruction import LOOP_IMM, MicroOp


class ControlInstructions(Protocol):
    """Interface of the symbolic sequencer that control-flow instructions use."""

    config: MlaConfig
    pinned: Sequence[DecodedProgram]

    def value(self, path: ExecutionPath, selector: int) -> Word:
        """Return the value of the register, operand or statistic that a selector names."""
        ...

    def error_at(self, path: ExecutionPath, kind: str, reason: str) -> ValidationError:
        """Return a validation error that names the current instruction of a path."""
        ...


def _halt(sequencer: ControlInstructions, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    path.order.end_call()


def _trap(sequencer: ControlInstructions, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    raise sequencer.error_at(path, "trap", f"the program traps here with {imm & MASK:#x}")


def _illegal(sequencer: ControlInstructions, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    raise sequencer.error_at(path, "illegal", "this word is not a valid instruction")


def _loop(sequencer: ControlInstructions, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    packed = LOOP_IMM.unpack(imm & MASK)
    end, trips = packed["end"], add(sequencer.value(path, a), packed["count"] & MASK)
    if end <= path.pc + 1:
        reason = f"a loop must end after its first instruction {path.pc + 1}, not at {end}"
        raise sequencer.error_at(path, "loop", reason)
    if not isinstance(trips, int):
        raise sequencer.error_at(path, "statistics", "the trip count of a loop must not depend on the data")
    if signed(trips) <= 0:
        path.fall_through(end)
        return
    if len(path.loops) >= sequencer.config.loop_depth:
        raise sequencer.error_at(
            path, "loop", f"loops may be nested at most {sequencer.config.loop_depth} deep"
        )
    path.loops.append((path.pc + 1, end, signed(trips)))
    path.fall_through(path.pc + 1)


def _break(sequencer: ControlInstructions, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    if len(path.loops) <= path.loop_base:
        raise sequencer.error_at(path, "loop", "break needs an enclosing loop in the same subroutine")
    path.loops.pop()
    path.pc = imm & MASK


def _call(sequencer: ControlInstructions, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    if len(path.frames) >= sequencer.config.call_depth:
        raise sequencer.error_at(
            path, "call", f"calls may be nested at most {sequencer.config.call_depth} deep"
        )
    path.frames.append((path.segment, path.pc + 1, len(path.loops)))
    path.pc = imm & MASK


def _callp(sequencer: ControlInstructions, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    if d >= sequencer.config.segments:
        reason = f"the segment must be in 0..{sequencer.config.segments - 1}, not {d}"
        raise sequencer.error_at(path, "illegal", reason)
    if d >= len(sequencer.pinned):
        raise sequencer.error_at(
            path, "segment", f"segment {d} holds no pinned program; {len(sequencer.pinned)} are pinned"
        )
    _call(sequencer, path, d, a, b, imm)
    path.segment = d


def _ret(sequencer: ControlInstructions, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    if not path.frames:
        raise sequencer.error_at(path, "call", "ret outside a subroutine: no call is active")
    path.segment, pc, loops = path.frames.pop()
    del path.loops[loops:]
    path.fall_through(pc)


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
