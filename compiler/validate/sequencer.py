"""The sequencer, executed without data: one way through a call until it halts or the data decide."""

from collections.abc import Callable, Sequence

from compiler.codegen.dispatch_guard import Guard
from compiler.validate.control_instructions import FLOW
from compiler.validate.errors import InstructionLocation, ValidationError
from compiler.validate.execution_path import OWN, DecodedProgram, ExecutionPath
from compiler.validate.known_bits import UNKNOWN, Word, add, compute, parts, taken, word_of
from compiler.validate.strided_regions import StridedRegion
from compiler.validate.unit_commands import BadCommandError, examine, follow_line, known_fields, work
from cosim.driver import WATCHDOG_CYCLES
from cosim.semantics.alu import ALU, BRANCH, MASK
from cosim.semantics.command_checks import DramWindow
from cosim.semantics.command_fields import CommandFields, default_fields
from cosim.semantics.instruction import selected_statistic
from hw.config import MlaConfig
from hw.isa.commands import FIELD_INDEX_BITS, UNIT_FIELDS
from hw.isa.enums import SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.isa.fields import Field
from hw.isa.micro_instruction import OPERAND_BASE, REGISTERS, MicroOp, Statistic

#: What gives the caller of `run` a look at the state.
_PAUSES = frozenset({MicroOp.HALT, MicroOp.WAIT, MicroOp.FENCE})
_UNIT_OF = {
    Statistic.FUSE_ROWS: Unit.FUSE,
    Statistic.FUSE_ZEROS: Unit.FUSE,
    Statistic.FUSE_MIN: Unit.FUSE,
    Statistic.FUSE_MAX: Unit.FUSE,
    Statistic.MATRIX_ZEROS: Unit.MATRIX,
}


class SymbolicSequencer:
    """Executes the program of one call.

    Parameters
    ----------
    config : MlaConfig
        The machine.
    windows : list of Window
        Stretches of DRAM that programs may touch.
    code : Code
        The call's program.
    pinned : sequence of Code
        Code that every program may call, by segment.
    operands : tuple of Word
        Those of the call, 32-bit words.
    limit : int
        Instructions that the call may take.
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

    def place(self, way: ExecutionPath) -> InstructionLocation:
        """Where a way is."""
        program = (self.code if way.segment == OWN else self.pinned[way.segment]).program
        line = program.lines[way.pc] if way.pc < len(program.lines) else 0
        return InstructionLocation(way.call, program.name, way.pc, line)

    def refuse(self, way: ExecutionPath, kind: str, reason: str) -> ValidationError:
        """The refusal of the instruction that a way is at."""
        return ValidationError(kind, self.place(way), reason)

    def run(self, way: ExecutionPath) -> MicroOp | None:
        """Execute until a halt, a wait or a fence, and return it; None at a branch that the data decide.

        Raises
        ------
        ValidationError
            An instruction would do harm.
        """
        while True:
            words = self._words(way)
            if way.pc >= len(words):
                reason = f"the program has {len(words)} instructions and must end in halt or ret"
                raise self.refuse(way, "pc", reason)
            if way.steps >= self.limit:
                raise self.refuse(way, "endless", f"a call must end within {self.limit} instructions")
            op, d, a, b, imm = words[way.pc]
            if op in BRANCH:
                decision = taken(op, self.value(way, a), self.value(way, b))
                if decision is None:
                    return None
                self.branch(way, decision)
            else:
                self.execute(way, op, d, a, b, imm)
            way.steps += 1
            if op in _PAUSES:
                return op

    def execute(self, way: ExecutionPath, op: MicroOp, d: int, a: int, b: int, imm: int) -> None:
        """Execute an instruction that is no branch; ValidationError if it would do harm."""
        if op is MicroOp.SET:
            self._set(way, d, a, b, imm)
        elif op in ALU:
            result = compute(op, self.value(way, a), add(self.value(way, b), imm & MASK))
            if d & 31:
                way.registers[d & 31] = result
            way.fall_through(way.pc + 1)
        else:
            _OTHERS[op](self, way, d, a, b, imm)

    def _words(self, way: ExecutionPath) -> tuple[tuple[MicroOp, int, int, int, int], ...]:
        return (self.code if way.segment == OWN else self.pinned[way.segment]).words

    def branch(self, way: ExecutionPath, decision: bool) -> None:
        """Take a branch or not."""
        if decision:
            way.pc = self._words(way)[way.pc][4] & MASK
        else:
            way.fall_through(way.pc + 1)

    def decide(self, way: ExecutionPath, guard: Guard) -> bool | None:
        """Whether the guard of the call's program holds; None if the data, or an operand that may be any, decide."""
        if guard.operand is not None and guard.operand >= len(self.operands):
            return False
        word = self.value(way, guard.selector)
        return guard.holds(word) if isinstance(word, int) else None

    def value(self, way: ExecutionPath, selector: int) -> Word:
        """What a selector names; ValidationError if nothing."""
        if selector < REGISTERS:
            return way.registers[selector]
        if OPERAND_BASE <= selector < OPERAND_BASE + len(self.operands):
            return self.operands[selector - OPERAND_BASE]
        which = selected_statistic(selector)
        if which is None:
            index = selector - OPERAND_BASE
            has = f"operand {index} is read, the call has {len(self.operands)}" if 0 <= index < 64 else None
            raise self.refuse(
                way, "operand", has or f"there is no operand or statistic with selector {selector}"
            )
        if which == Statistic.OPERANDS:
            return len(self.operands)
        if which == Statistic.TAG:
            return way.tag
        if which == Statistic.N:
            return self.config.n
        if which == Statistic.CYCLE:
            raise self.refuse(way, "statistics", "%cycle differs from run to run: no result may depend on it")
        unit = _UNIT_OF[which]
        if way.timeline.known[unit] < way.timeline.issued[unit]:
            name = unit.name.lower()
            reason = f"%{which.name.lower()} is read while {name} may still run: fence {name} first"
            raise self.refuse(way, "race", reason)
        return UNKNOWN

    def _set(self, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        unit, index = d >> FIELD_INDEX_BITS, d & (1 << FIELD_INDEX_BITS) - 1
        if unit >= len(UNIT_FIELDS) or index >= len(UNIT_FIELDS[unit]):
            raise self.refuse(way, "illegal", f"there is no field {index} of unit {unit}")
        va, vb = self.value(way, a), self.value(way, b)
        if isinstance(va, int) and isinstance(vb, int):
            way.fields[unit][index] = UNIT_FIELDS[unit][index].truncate(va + vb + imm)
        else:
            way.fields[unit][index] = _truncated(UNIT_FIELDS[unit][index], add(add(va, vb), imm & MASK))
        way.fall_through(way.pc + 1)

    def command(self, way: ExecutionPath, unit: Unit) -> tuple[CommandFields, list[StridedRegion], int]:
        """The command that a unit's fields make now, what it touches, and the work of its unit with it.

        Raises
        ------
        ValidationError
            It would do harm.
        """
        try:
            fields = known_fields(unit, way.fields[unit])
            c, regions = self._examined(unit, fields)
            if unit == Unit.MATRIX and c.dw:
                follow_line(c, way.line)
        except BadCommandError as bad:
            raise self.refuse(way, bad.kind, f"{unit.name.lower()}: {bad.reason}") from None
        cycles = way.work[unit] + work(self.config, unit, c)
        if cycles > WATCHDOG_CYCLES:
            reason = f"{unit.name.lower()} takes {cycles} cycles; the watchdog allows {WATCHDOG_CYCLES}"
            raise self.refuse(way, "endless", reason)
        return c, regions, cycles

    def _examined(self, unit: Unit, fields: list[int]) -> tuple[CommandFields, list[StridedRegion]]:
        return examine(self.config, self.windows, unit, fields)

    def _issue(self, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        unit = Unit(d & 3)
        c, regions, way.work[unit] = self.command(way, unit)
        if unit == Unit.MATRIX and c.dw:
            way.line = follow_line(c, way.line)
        if way.written and (missing := way.written.enter(unit, c)):
            reason = f"{unit.name.lower()} reads {missing[0]} {missing[1]:#x}, which nothing has written"
            raise self.refuse(way, "uninitialized", reason)
        timeline = way.timeline
        signal = imm >> 16 & 0xFFFF | (d >> 2 & 15) << SEQUENCER * SEMAPHORES_PER_PAIR
        timeline.issue(unit, imm & 0xFFFF, signal, regions, self.place(way))
        way.figures.command(unit, regions, sum(timeline.issued) - sum(timeline.known))
        way.fall_through(way.pc + 1)

    def _clear(self, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        if d >= len(Unit):
            raise self.refuse(way, "illegal", f"there is no unit {d}; units are 0..{len(Unit) - 1}")
        way.fields[d] = list[Word](default_fields(d))
        way.fall_through(way.pc + 1)

    def _tag(self, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        value, unknown = parts(add(add(self.value(way, a), self.value(way, b)), imm & MASK))
        way.tag = word_of(value & 63, unknown & 63)
        way.fall_through(way.pc + 1)

    def _wait(self, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        way.timeline.wait(d & 15, self.place(way))
        way.fall_through(way.pc + 1)

    def _fence(self, way: ExecutionPath, d: int, a: int, b: int, imm: int) -> None:
        way.timeline.fence(d & 15, self.place(way))
        way.fall_through(way.pc + 1)


def _truncated(field: Field, word: Word) -> Word:
    if isinstance(word, int):
        return field.truncate(word)
    mask = (1 << field.width) - 1
    narrow = word_of(word.value & mask, word.unknown & mask)
    return field.truncate(narrow) if isinstance(narrow, int) else narrow


_OTHERS: dict[MicroOp, Callable[[SymbolicSequencer, ExecutionPath, int, int, int, int], None]] = {
    **FLOW,
    MicroOp.CLEAR: SymbolicSequencer._clear,
    MicroOp.ISSUE: SymbolicSequencer._issue,
    MicroOp.WAIT: SymbolicSequencer._wait,
    MicroOp.FENCE: SymbolicSequencer._fence,
    MicroOp.TAG: SymbolicSequencer._tag,
}
