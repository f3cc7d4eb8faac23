"""Symbolic execution of the sequencer, which follows a call until it halts or a branch depends on the data."""

from collections.abc import Callable, Sequence

from compiler.codegen.dispatch_guard import Guard
from compiler.validate.errors import InstructionLocation, ValidationError
from compiler.validate.execution_path import OWN, DecodedProgram, ExecutionPath
from compiler.validate.footprint import StridedRegion
from compiler.validate.known_bits import UNKNOWN, Word, add, compute, parts, taken, word_of
from compiler.validate.unit_commands import BadCommandError, examiner, follow_line, known_fields
from cosim.driver import WATCHDOG_CYCLES
from cosim.semantics.alu import ALU, BRANCH, MASK, signed
from cosim.semantics.command_checks import DramWindow
from cosim.semantics.command_fields import CommandFields, default_fields, unpack_fields
from cosim.semantics.instruction import selected_statistic
from hw.config import MlaConfig
from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS
from hw.isa.enums import SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.isa.fields import Field
from hw.isa.micro_instruction import LOOP_IMM, OPERAND_BASE, REGISTERS, MicroOp, Statistic

#: Operations after which `run` returns.
PAUSES = frozenset({MicroOp.HALT, MicroOp.WAIT, MicroOp.FENCE})
_UNIT_OF = {
    Statistic.FUSE_ROWS: Unit.FUSE,
    Statistic.FUSE_ZEROS: Unit.FUSE,
    Statistic.FUSE_MIN: Unit.FUSE,
    Statistic.FUSE_MAX: Unit.FUSE,
    Statistic.MATRIX_ZEROS: Unit.MATRIX,
}


class SymbolicSequencer:
    """Sequencer that symbolically executes the program of one call.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration to validate for.
    windows : list of DramWindow
        DRAM ranges that programs may access.
    code : DecodedProgram
        Program of the call.
    pinned : sequence of DecodedProgram
        Programs that every program may call, in the order of their segments.
    operands : tuple of Word
        Operands of the call, which are 32-bit words.
    limit : int
        Maximum number of instructions that the call may execute.
    """

    def __init__(
        self,
        config: MlaConfig,
        windows: list[DramWindow],
        code: DecodedProgram,
        pinned: Sequence[DecodedProgram],
        operands: tuple[Word, ...],
        limit: int,
    ):
        self.config = config
        self.windows = windows
        self.code = code
        self.pinned = pinned
        self.operands = operands
        self.limit = limit

    def location(self, path: ExecutionPath) -> InstructionLocation:
        """Return the location of the current instruction of a path."""
        program = (self.code if path.segment == OWN else self.pinned[path.segment]).program
        line = program.lines[path.pc] if path.pc < len(program.lines) else 0
        return InstructionLocation(path.call, program.name, path.pc, line)

    def error_at(self, path: ExecutionPath, kind: str, reason: str) -> ValidationError:
        """Return a validation error that names the current instruction of a path."""
        return ValidationError(kind, self.location(path), reason)

    def run(self, path: ExecutionPath) -> MicroOp | None:
        """Execute instructions up to and including the next halt, wait or fence, and return its operation.

        If a branch depends on the data, stop before the branch and return None.

        Raises
        ------
        ValidationError
            An instruction is unsafe.
        """
        while True:
            words = self._words(path)
            if path.pc >= len(words):
                reason = f"the program has {len(words)} instructions and must end in halt or ret"
                raise self.error_at(path, "pc", reason)
            if path.steps >= self.limit:
                raise self.error_at(path, "endless", f"a call must end within {self.limit} instructions")
            op, d, a, b, imm = words[path.pc]
            if op in BRANCH:
                decision = taken(op, self.value(path, a), self.value(path, b))
                if decision is None:
                    return None
                self.branch(path, decision)
            else:
                self.execute(path, op, d, a, b, imm)
            path.steps += 1
            if op in PAUSES:
                return op

    def execute(self, path: ExecutionPath, op: MicroOp, d: int, a: int, b: int, imm: int) -> None:
        """Execute an instruction other than a branch; raise ValidationError if it is unsafe."""
        if op is MicroOp.SET:
            self._set(path, d, a, b, imm)
        elif op in ALU:
            result = compute(op, self.value(path, a), add(self.value(path, b), imm & MASK))
            if d & 31:
                path.registers[d & 31] = result
            path.fall_through(path.pc + 1)
        else:
            _OTHERS[op](self, path, d, a, b, imm)

    def _words(self, path: ExecutionPath) -> tuple[tuple[MicroOp, int, int, int, int], ...]:
        return (self.code if path.segment == OWN else self.pinned[path.segment]).words

    def branch(self, path: ExecutionPath, decision: bool) -> None:
        """Continue a path after a branch, which is taken if `decision` is True."""
        if decision:
            path.pc = self._words(path)[path.pc][4] & MASK
        else:
            path.fall_through(path.pc + 1)

    def decide(self, path: ExecutionPath, guard: Guard) -> bool | None:
        """Return True if a guard holds, False if not, and None if the data or an unknown operand decides."""
        if guard.operand is not None and guard.operand >= len(self.operands):
            return False
        word = self.value(path, guard.selector)
        return guard.holds(word) if isinstance(word, int) else None

    def value(self, path: ExecutionPath, selector: int) -> Word:
        """Return the value that a selector names; raise ValidationError if the selector is invalid."""
        if selector < REGISTERS:
            return path.registers[selector]
        if OPERAND_BASE <= selector < OPERAND_BASE + len(self.operands):
            return self.operands[selector - OPERAND_BASE]
        which = selected_statistic(selector)
        if which is None:
            index = selector - OPERAND_BASE
            has = f"operand {index} is read, the call has {len(self.operands)}" if 0 <= index < 64 else None
            raise self.error_at(
                path, "operand", has or f"there is no operand or statistic with selector {selector}"
            )
        if which == Statistic.OPERANDS:
            return len(self.operands)
        if which == Statistic.TAG:
            return path.tag
        if which == Statistic.N:
            return self.config.n
        if which == Statistic.CYCLE:
            raise self.error_at(
                path, "statistics", "%cycle differs from run to run: no result may depend on it"
            )
        unit = _UNIT_OF[which]
        if path.order.known[unit] < path.order.issued[unit]:
            name = unit.name.lower()
            reason = f"%{which.name.lower()} is read while {name} may still run: fence {name} first"
            raise self.error_at(path, "race", reason)
        return UNKNOWN

    def _set(self, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        unit, index = d >> FIELD_INDEX_BITS, d & (1 << FIELD_INDEX_BITS) - 1
        if unit >= len(UNIT_FIELDS) or index >= len(UNIT_FIELDS[unit]):
            raise self.error_at(path, "illegal", f"unit {unit} has no field {index}")
        va, vb = self.value(path, a), self.value(path, b)
        if isinstance(va, int) and isinstance(vb, int):
            path.fields[unit][index] = UNIT_FIELDS[unit][index].truncate(va + vb + imm)
        else:
            path.fields[unit][index] = _truncated(UNIT_FIELDS[unit][index], add(add(va, vb), imm & MASK))
        path.fall_through(path.pc + 1)

    def command(self, path: ExecutionPath, unit: Unit) -> tuple[CommandFields, list[StridedRegion], int]:
        """Return the command that a unit's fields describe, its regions, and the minimum cycles of the unit.

        The cycles are those of all commands of the call so far, including this command.

        Raises
        ------
        ValidationError
            The command is unsafe.
        """
        try:
            fields = known_fields(unit, path.fields[unit])
            shape, regions = examiner(self.config).examine(self.windows, unit, fields)
            c = unpack_fields(unit, fields)
            if unit == Unit.MATRIX and c.dw:
                follow_line(c, path.line)
        except BadCommandError as bad:
            raise self.error_at(path, bad.kind, f"{unit.name.lower()}: {bad.reason}") from None
        cycles = path.work[unit] + shape.work
        if cycles > WATCHDOG_CYCLES:
            reason = f"{unit.name.lower()} takes {cycles} cycles; the watchdog allows {WATCHDOG_CYCLES}"
            raise self.error_at(path, "endless", reason)
        return c, regions, cycles

    def _issue(self, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        unit = Unit(d & 3)
        c, regions, path.work[unit] = self.command(path, unit)
        if unit == Unit.MATRIX and c.dw:
            path.line = follow_line(c, path.line)
        if path.written and (missing := path.written.enter(unit, c)):
            reason = f"{unit.name.lower()} reads {missing[0]} {missing[1]:#x} before anything has written it"
            raise self.error_at(path, "uninitialized", reason)
        order = path.order
        signal = imm >> 16 & 0xFFFF | (d >> 2 & 15) << SEQUENCER * SEMAPHORES_PER_PAIR
        order.issue(unit, imm & 0xFFFF, signal, regions, self.location(path))
        path.figures.command(unit, regions, sum(order.issued) - sum(order.known))
        path.fall_through(path.pc + 1)

    def _clear(self, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        if d >= len(Unit):
            raise self.error_at(path, "illegal", f"there is no unit {d}; units are 0..{len(Unit) - 1}")
        path.fields[d] = list[Word](default_fields(d))
        path.fall_through(path.pc + 1)

    def _tag(self, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        value, unknown = parts(add(add(self.value(path, a), self.value(path, b)), imm & MASK))
        path.tag = word_of(value & 63, unknown & 63)
        path.fall_through(path.pc + 1)

    def _wait(self, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        path.order.wait(d & 15, self.location(path))
        path.fall_through(path.pc + 1)

    def _fence(self, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        path.order.fence(d & 15, self.location(path))
        path.fall_through(path.pc + 1)


def _truncated(field: Field, word: Word) -> Word:
    if isinstance(word, int):
        return field.truncate(word)
    mask = (1 << field.width) - 1
    narrow = word_of(word.value & mask, word.unknown & mask)
    return field.truncate(narrow) if isinstance(narrow, int) else narrow


def _halt(sequencer: SymbolicSequencer, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    path.order.end_call()


def _trap(sequencer: SymbolicSequencer, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    raise sequencer.error_at(path, "trap", f"the program traps here with {imm & MASK:#x}")


def _illegal(sequencer: SymbolicSequencer, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    raise sequencer.error_at(path, "illegal", "this word is not a valid instruction")


def _loop(sequencer: SymbolicSequencer, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
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


def _break(sequencer: SymbolicSequencer, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    if len(path.loops) <= path.loop_base:
        raise sequencer.error_at(path, "loop", "break needs an enclosing loop in the same subroutine")
    path.loops.pop()
    path.pc = imm & MASK


def _call(sequencer: SymbolicSequencer, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    if len(path.frames) >= sequencer.config.call_depth:
        raise sequencer.error_at(
            path, "call", f"calls may be nested at most {sequencer.config.call_depth} deep"
        )
    path.frames.append((path.segment, path.pc + 1, len(path.loops)))
    path.pc = imm & MASK


def _callp(sequencer: SymbolicSequencer, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    if d >= sequencer.config.segments:
        reason = f"the segment must be in 0..{sequencer.config.segments - 1}, not {d}"
        raise sequencer.error_at(path, "illegal", reason)
    if d >= len(sequencer.pinned):
        raise sequencer.error_at(
            path, "segment", f"segment {d} holds no pinned program; {len(sequencer.pinned)} are pinned"
        )
    _call(sequencer, path, d, a, b, imm)
    path.segment = d


def _ret(sequencer: SymbolicSequencer, path: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
    if not path.frames:
        raise sequencer.error_at(path, "call", "ret outside a subroutine: no call is active")
    path.segment, pc, loops = path.frames.pop()
    del path.loops[loops:]
    path.fall_through(pc)


_OTHERS: dict[MicroOp, Callable[[SymbolicSequencer, ExecutionPath, int, int, int, int], None]] = {
    MicroOp.ILLEGAL: _illegal,
    MicroOp.HALT: _halt,
    MicroOp.TRAP: _trap,
    MicroOp.LOOP: _loop,
    MicroOp.BREAK: _break,
    MicroOp.CALL: _call,
    MicroOp.CALLP: _callp,
    MicroOp.RET: _ret,
    MicroOp.CLEAR: SymbolicSequencer._clear,
    MicroOp.ISSUE: SymbolicSequencer._issue,
    MicroOp.WAIT: SymbolicSequencer._wait,
    MicroOp.FENCE: SymbolicSequencer._fence,
    MicroOp.TAG: SymbolicSequencer._tag,
}
