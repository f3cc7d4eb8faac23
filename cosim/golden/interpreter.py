"""Interpreter of micro-instructions."""

from collections.abc import Callable
from typing import Protocol

from cosim.golden.command import Command
from cosim.golden.program import CallFrame, OpenLoop, ProgramState
from cosim.golden.traps import TrapRaisedError
from cosim.semantics.alu import ALU, BRANCH, MASK, signed
from cosim.semantics.command_fields import default_fields, unpack_fields
from cosim.semantics.instruction import decode_instruction, selected_statistic
from hw.config import MlaConfig
from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS
from hw.isa.enums import SEMAPHORES_PER_PAIR, SEQUENCER, Trap, Unit
from hw.isa.micro_instruction import FORMS, LOOP_IMM, OPERAND_BASE, REGISTERS, MicroOp, Statistic

_CLASSES = {op: f"micro_{form.cls.name.lower()}" for op, form in FORMS.items()}
_USES_A = {op for op, form in FORMS.items() if "a" in form.operands}
_USES_B = {op for op, form in FORMS.items() if "b" in form.operands}


class SequencerContext(Protocol):
    """Interface through which the interpreter accesses the machine."""

    config: MlaConfig

    def fetch(self, segment: int, pc: int) -> int | None:
        """Return the word at index `pc` of a segment; None if the segment is shorter."""
        ...

    def statistic(self, which: Statistic) -> int:
        """Return the value of a statistic of the machine, which does not depend on the state of the program."""
        ...

    def segment_ready(self, segment: int) -> bool | None:
        """Return True if a program may call a segment, False if not, and None if no such segment exists."""
        ...

    def queue_full(self, unit: int) -> bool:
        """Return True if a unit's queue is full."""
        ...

    def check(self, command: Command) -> None:
        """Raise TrapRaisedError if a command is illegal."""
        ...

    def enqueue(self, command: Command) -> None:
        """Append a command to its unit's queue."""
        ...

    def take_semaphore(self, semaphore: int) -> bool:
        """Take a token from a semaphore of the sequencer; return False if none is available."""
        ...

    def drained(self, mask: int) -> bool:
        """Return True if no unit in `mask` has queued commands."""
        ...


def step(machine: SequencerContext, running: ProgramState, limit: int) -> str | None:
    """Execute one micro-instruction.

    Parameters
    ----------
    machine : SequencerContext
        Machine on which the program runs.
    running : ProgramState
        State of the program, updated in place.
    limit : int
        Maximum number of micro-instructions that a macro-instruction may execute; 0 for no limit.

    Returns
    -------
    str or None
        Name of the counter for the instruction's class; None if the instruction is blocked and has had no effect.

    Raises
    ------
    TrapRaisedError
        The instruction trapped; the program counter still points to it.
    """
    word = machine.fetch(running.segment, running.pc)
    if word is None:
        raise TrapRaisedError(Trap.PC_RANGE)
    if limit and running.macro.micros >= limit:
        raise TrapRaisedError(Trap.STEP_LIMIT)
    op, d, a, b, imm = decode_instruction(word)
    _check_encoding(machine, op, d)
    va = _value(machine, running, a) if op in _USES_A else 0
    vb = _value(machine, running, b) if op in _USES_B else 0
    if op in ALU:
        if d & 31:
            running.registers[d & 31] = int(ALU[op](va, vb + imm & MASK)) & MASK
        running.fall_through(running.pc + 1)
    elif op in BRANCH:
        if BRANCH[op](va, vb):
            running.pc = imm & MASK
        else:
            running.fall_through(running.pc + 1)
    elif op in _CONTROL:
        _CONTROL[op](machine, running, d, va, imm)
    elif not _other(machine, running, op, d, va + vb + imm, imm):
        return None
    return _CLASSES[op]


def _value(machine: SequencerContext, running: ProgramState, selector: int) -> int:
    if selector < REGISTERS:
        return running.registers[selector]
    if OPERAND_BASE <= selector < OPERAND_BASE + len(running.operands):
        return running.operands[selector - OPERAND_BASE]
    which = selected_statistic(selector)
    if which is None:
        raise TrapRaisedError(Trap.BAD_OPERAND, selector)
    if which == Statistic.OPERANDS:
        return len(running.operands)
    if which == Statistic.TAG:
        return running.tag
    return machine.statistic(which) & MASK


def _check_encoding(machine: SequencerContext, op: MicroOp, d: int) -> None:
    if op == MicroOp.SET:
        unit, index = d >> FIELD_INDEX_BITS, d & (1 << FIELD_INDEX_BITS) - 1
        legal = unit < len(UNIT_FIELDS) and index < len(UNIT_FIELDS[unit])
    elif op == MicroOp.CLEAR:
        legal = d < len(Unit)
    elif op == MicroOp.CALLP:
        legal = machine.segment_ready(d) is not None
    else:
        legal = op != MicroOp.ILLEGAL
    if not legal:
        raise TrapRaisedError(Trap.ILLEGAL_INSTRUCTION)


def _other(
    machine: SequencerContext, running: ProgramState, op: MicroOp, d: int, total: int, imm: int
) -> bool:
    """Execute a configuration, issue, tag or synchronization instruction; return False if it is blocked."""
    if op == MicroOp.SET:
        unit, index = d >> FIELD_INDEX_BITS, d & (1 << FIELD_INDEX_BITS) - 1
        running.fields[unit][index] = UNIT_FIELDS[unit][index].truncate(total)
    elif op == MicroOp.CLEAR:
        running.fields[d] = default_fields(d)
    elif op == MicroOp.ISSUE:
        if not _issue(machine, running, d, imm):
            return False
    elif op == MicroOp.TAG:
        running.tag = total & 63
    elif op == MicroOp.WAIT:
        if not machine.take_semaphore(d & 15):
            return False
    elif not machine.drained(d & 15):
        return False
    running.fall_through(running.pc + 1)
    return True


def _issue(machine: SequencerContext, running: ProgramState, d: int, imm: int) -> bool:
    unit = Unit(d & 3)
    command = Command(
        unit,
        unpack_fields(unit, running.fields[unit]),
        wait=imm & 0xFFFF,
        signal=imm >> 16 & 0xFFFF | (d >> 2 & 15) << SEQUENCER * SEMAPHORES_PER_PAIR,
        tag=running.tag,
        macro=running.macro.number,
    )
    machine.check(command)
    if machine.queue_full(unit):
        return False
    running.macro.outstanding += 1
    machine.enqueue(command)
    return True


def _halt(machine: SequencerContext, running: ProgramState, d: int, va: int, imm: int) -> None:
    running.macro.halted = True


def _trap(machine: SequencerContext, running: ProgramState, d: int, va: int, imm: int) -> None:
    raise TrapRaisedError(Trap.SOFTWARE, imm)


def _loop(machine: SequencerContext, running: ProgramState, d: int, va: int, imm: int) -> None:
    parts = LOOP_IMM.unpack(imm & MASK)
    trips, end = signed(va + parts["count"]), parts["end"]
    if end <= running.pc + 1:
        raise TrapRaisedError(Trap.LOOP_STACK)
    if trips <= 0:
        running.fall_through(end)
        return
    if len(running.loops) >= machine.config.loop_depth:
        raise TrapRaisedError(Trap.LOOP_STACK)
    running.loops.append(OpenLoop(running.pc + 1, end, trips))
    running.fall_through(running.pc + 1)


def _break(machine: SequencerContext, running: ProgramState, d: int, va: int, imm: int) -> None:
    if len(running.loops) <= running.loop_base:
        raise TrapRaisedError(Trap.LOOP_STACK)
    running.loops.pop()
    running.pc = imm & MASK


def _call(
    machine: SequencerContext, running: ProgramState, d: int, va: int, imm: int, segment: int | None = None
) -> None:
    if len(running.frames) >= machine.config.call_depth:
        raise TrapRaisedError(Trap.CALL_STACK)
    running.frames.append(CallFrame(running.segment, running.pc + 1, len(running.loops)))
    running.pc = imm & MASK
    if segment is not None:
        running.segment = segment


def _callp(machine: SequencerContext, running: ProgramState, d: int, va: int, imm: int) -> None:
    if not machine.segment_ready(d):
        raise TrapRaisedError(Trap.SEGMENT_INVALID)
    _call(machine, running, d, va, imm, segment=d)


def _ret(machine: SequencerContext, running: ProgramState, d: int, va: int, imm: int) -> None:
    if not running.frames:
        raise TrapRaisedError(Trap.CALL_STACK)
    frame = running.frames.pop()
    del running.loops[frame.loops :]
    running.segment = frame.segment
    running.fall_through(frame.pc)


_CONTROL: dict[MicroOp, Callable[[SequencerContext, ProgramState, int, int, int], None]] = {
    MicroOp.HALT: _halt,
    MicroOp.TRAP: _trap,
    MicroOp.LOOP: _loop,
    MicroOp.BREAK: _break,
    MicroOp.CALL: _call,
    MicroOp.CALLP: _callp,
    MicroOp.RET: _ret,
}
