"""Abstract execution of a partially written program: machine state, and a tracker for each prefix of instructions."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import prod

from compiler.llm.assembly.limits import JUMPS, ProgramLimits
from compiler.validate.errors import ValidationError
from compiler.validate.execution_path import ExecutionPath
from compiler.validate.explore import LIMIT
from compiler.validate.footprint import StridedRegion
from compiler.validate.happens_before import HappensBefore
from compiler.validate.known_bits import Word
from compiler.validate.macro_call import CallStream, MacroCall
from compiler.validate.sequencer import SymbolicSequencer
from cosim.driver import WATCHDOG_CYCLES
from cosim.semantics.alu import ALU, signed
from cosim.semantics.instruction import decode_instruction
from hw.errors import InputError
from hw.isa.commands import FIELD_INDEX_BITS
from hw.isa.enums import SEMAPHORES_PER_PAIR, Unit
from hw.isa.micro_instruction import ISSUE_D, LOOP_IMM, REGISTERS, STATISTIC_BASE, MicroOp, Statistic, encode
from hw.isa.program import Program

#: Number of semaphores from which one consumer can take tokens.
SEMAPHORES_PER_CONSUMER = SEMAPHORES_PER_PAIR * len(Unit)
#: Instructions after which cached properties of a unit's command are invalid.
_UNIT_INSTRUCTIONS = frozenset({MicroOp.SET, MicroOp.CLEAR, MicroOp.ISSUE})
#: Statistics whose values are the same in every run.
_READABLE = tuple(each for each in Statistic if each is not Statistic.CYCLE)

#: Instructions that affect the order of commands.
ORDER = frozenset({MicroOp.ISSUE, MicroOp.WAIT, MicroOp.FENCE, MicroOp.HALT})
#: Maximum number of instructions executed for the iterations of a loop after the first; other loops are rejected.
_MAX_REPEATED_INSTRUCTIONS = 1 << 10
#: Maximum number of executed commands, so that the validator can compare those that no fence orders.
_MAX_COMMANDS = 1 << 14
#: Number of iterations without a state change after which the remaining iterations are assumed to be equal.
_STABLE_ITERATIONS = 3
_MASK = (1 << 32) - 1


@dataclass(frozen=True)
class AbstractLoop:
    """Loop of a partially written program.

    Parameters
    ----------
    word : int
        Encoded loop instruction.
    trips : int
        Iteration count; 1 if it is unknown.
    body : tuple
        Instructions and nested loops of the body written so far.
    """

    word: int
    trips: int
    body: "tuple[int | AbstractLoop, ...]" = ()


class AbstractMachine:
    """Abstract state of the chip, updated by executing instructions.

    Parameters
    ----------
    sequencer : SymbolicSequencer
        Sequencer that executes the instructions symbolically.
    path : ExecutionPath
        Symbolic state of the execution.

    Attributes
    ----------
    unknown : bool
        True if the state is unknown after an unsafe instruction or a jump.
    unsafe : bool
        True if an instruction was unsafe.
    steps : int
        Number of executed instructions.
    commands : int
        Number of issued commands.
    written : int
        Bit mask of registers that have been written, always including register 0.
    """

    def __init__(self, sequencer: SymbolicSequencer, path: ExecutionPath):
        self.sequencer, self.path = sequencer, path
        self.unknown = self.unsafe = False
        self.steps = self.commands = 0
        self.written = 1

    @staticmethod
    def at_start(limits: ProgramLimits) -> "AbstractMachine":
        """Return the state at the start of a program.

        Raises
        ------
        ValidationError
            A call that precedes the program is not safe.
        InputError
            A call that precedes the program has guarded variants, or the limits are inconsistent.
        """
        assert limits.config
        own = MacroCall(Program("program", (encode(MicroOp.HALT),)), limits.operands, limits.tag)
        stream = CallStream(limits.config, [*limits.before, own], limits.windows, (), LIMIT)
        path = ExecutionPath(HappensBefore(limits.config.queue_depth), None)
        for number, call in enumerate(limits.before):
            if call.instead:
                raise InputError(
                    f"call {number} has guarded program variants: the one that runs is not known"
                )
            path.begin(call.tag)
            _execute_call(stream.sequencers[number][-1], path)
        path.begin(limits.tag)
        return AbstractMachine(stream.sequencers[-1][-1], path)

    def copy(self, *, order: bool) -> "AbstractMachine":
        """Return a copy that can be modified; it shares the command order with the original if `order` is False."""
        out = copy(self)
        if order:
            out.path = self.path.fork()
            return out
        out.path = copy(self.path)
        out.path.registers = list(self.path.registers)
        out.path.fields = [list(fields) for fields in self.path.fields]
        return out

    def value(self, selector: int) -> Word | None:
        """Return the value of a selector; None if the selector must not be read in this state."""
        try:
            return self.sequencer.value(self.path, selector)
        except ValidationError:
            return None

    def trips(self, word: int) -> int | None:
        """Return the iteration count of a loop that would begin here; None if it depends on data."""
        _, _, a, _, imm = decode_instruction(word)
        count = self.value(a)
        if not isinstance(count, int):
            return None
        return signed(count + LOOP_IMM.unpack(imm & _MASK)["count"] & _MASK)

    def execute(self, word: int) -> None:
        """Execute an instruction that is not a loop with a body."""
        op, d, a, b, imm = decode_instruction(word)
        self.step(1)
        if op in JUMPS or op in (MicroOp.TRAP, MicroOp.LOOP):
            self.unknown = True
            return
        try:
            self.sequencer.execute(self.path, op, d, a, b, imm)
        except ValidationError:
            self.unsafe = True
        # The command would block in its queue, and no known signal unblocks it.
        self.unsafe |= op is MicroOp.ISSUE and self.path.order.waiting
        self._add_commands(op is MicroOp.ISSUE)
        self.unknown |= self.unsafe
        if op in ALU:
            self.written |= 1 << d % REGISTERS

    def _add_commands(self, count: int) -> None:
        """Add to the number of issued commands; the program is unsafe beyond `_MAX_COMMANDS`."""
        self.commands += count
        self.unsafe |= self.commands > _MAX_COMMANDS

    def step(self, count: int) -> None:
        """Add to the number of executed instructions; the program is unsafe beyond the limit of the validator."""
        self.steps += count
        if self.steps > LIMIT:
            self.unsafe = self.unknown = True

    def repeat(self, body: Sequence[int | AbstractLoop], times: int) -> None:
        """Execute a loop body `times` times."""
        self._repeat_body(body, times, _MAX_REPEATED_INSTRUCTIONS)

    def _repeat_body(self, body: Sequence[int | AbstractLoop], times: int, budget: int) -> int:
        """Execute a loop body `times` times; return the remaining budget of executed instructions."""
        stable = 0
        for iteration in range(times):
            before, work, steps = self._state(), list(self.path.work), self.steps
            commands = self.commands
            for item in body:
                if self.unknown:
                    return budget
                budget = self._repeat_item(item, budget)
            stable = stable + 1 if self._state() == before else 0
            if stable == _STABLE_ITERATIONS:
                # The remaining iterations repeat the last one.
                rest = times - 1 - iteration
                self.step(rest * (self.steps - steps))
                self._add_commands(rest * (self.commands - commands))
                self.unknown |= self.unsafe
                self._add_work([rest * (now - then) for now, then in zip(self.path.work, work, strict=True)])
                return budget
        return budget

    def _repeat_item(self, item: int | AbstractLoop, budget: int) -> int:
        """Execute an instruction or a loop once; return the remaining budget of executed instructions."""
        if budget <= 0:
            self.unsafe = self.unknown = True
        elif isinstance(item, int):
            self.execute(item)
        else:
            self.step(1)
            trips = self.trips(item.word)
            if trips is not None:
                return self._repeat_body(item.body, trips, budget - 1)
            self.unsafe = self.unknown = True
        return budget - 1

    def _state(self) -> tuple:
        """Return the state on which the next iteration depends, except for the command order."""
        return tuple(self.path.registers), tuple(map(tuple, self.path.fields)), self.path.order.counts

    def _add_work(self, cycles: list[int]) -> None:
        """Add cycles of work to each unit; the program is unsafe beyond the watchdog limit."""
        self.path.work = [now + more for now, more in zip(self.path.work, cycles, strict=True)]
        if max(self.path.work) > WATCHDOG_CYCLES:
            self.unsafe = self.unknown = True


class ProgramTracker:
    """Immutable abstract machine after a prefix of a program; each further instruction creates a new tracker.

    Parameters
    ----------
    machine : AbstractMachine
        Current abstract state.
    jumps : bool
        True if branches and calls are allowed; the state after them is unknown.
    """

    def __init__(self, machine: AbstractMachine, jumps: bool):
        self.machine, self.jumps = machine, jumps
        #: Open loops.
        self.loops: tuple[AbstractLoop, ...] = ()
        # Caches, valid until the state changes: regions accessed by commands (None: unsafe), legality of commands
        # after given waits, readable statistics, and the counts of all semaphores, also as bit masks.
        self._commands: dict[Unit, list[StridedRegion] | None] = {}
        self._issuable: dict[tuple[Unit, int], bool] = {}
        self._statistics: tuple[Statistic, ...] | None = None
        self._counts: tuple[int, ...] | None = None
        self._available: list[int] | None = None

    # Queries about the next instruction.

    @property
    def unsafe(self) -> bool:
        """True if an instruction was unsafe."""
        return self.machine.unsafe

    @property
    def written(self) -> int:
        """Bit mask of registers that may have been written."""
        return -1 if self.unknown else self.machine.written

    @property
    def iterations(self) -> int:
        """Product of the iteration counts of all open loops."""
        return prod(loop.trips for loop in self.loops)

    @property
    def unknown(self) -> bool:
        """True if the state is unknown."""
        return self.machine.unknown

    @property
    def counts(self) -> tuple[int, ...]:
        """Semaphore counts, ordered by consumer (4: the sequencer), producer and index."""
        if self._counts is None:
            self._counts = self.machine.path.order.counts
        return self._counts

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """Statistics that the next instruction may read."""
        if self.unknown:
            return _READABLE
        if self._statistics is None:
            value = self.machine.value
            self._statistics = tuple(each for each in _READABLE if value(STATISTIC_BASE + each) is not None)
        return self._statistics

    def is_iteration_count(self, selector: int, maximum: int) -> bool:
        """Return whether a selector is a data-independent iteration count of at most `maximum`."""
        value = self.machine.value(selector)
        return isinstance(value, int) and 1 <= signed(value) <= maximum

    def available(self, consumer: int) -> int:
        """Return the bit mask of semaphores from which a unit or the sequencer can currently take a token."""
        if self._available is None:
            rows = [
                self.counts[start : start + SEMAPHORES_PER_CONSUMER]
                for start in range(0, len(self.counts), SEMAPHORES_PER_CONSUMER)
            ]
            self._available = [sum(1 << i for i, count in enumerate(row) if count) for row in rows]
        return self._available[consumer]

    def may_issue(self, unit: Unit, wait: int | None = None) -> bool:
        """Return whether a unit's command may be issued after the waits in `wait`, a bit mask (None: all available)."""
        key = unit, self.available(unit) if wait is None else wait
        if key not in self._issuable:
            regions = self._regions(unit)
            order = self.machine.path.order
            self._issuable[key] = regions is not None and not order.races(unit, key[1], regions)
        return self._issuable[key]

    def _regions(self, unit: Unit) -> list[StridedRegion] | None:
        """Return the regions that the command of a unit accesses; None if the command is unsafe."""
        if unit not in self._commands:
            try:
                self._commands[unit] = self.machine.sequencer.command(self.machine.path, unit)[1]
            except ValidationError:
                self._commands[unit] = None
        return self._commands[unit]

    # Transitions.

    def after(self, word: int) -> "ProgramTracker":
        """Return the tracker after one more instruction, which must not be a loop with a body."""
        op, d, *_ = decode_instruction(word)
        out = self._copy(order=op in ORDER)
        if op in _UNIT_INSTRUCTIONS:
            out._invalidate(d >> FIELD_INDEX_BITS if op is MicroOp.SET else ISSUE_D.unpack(d)["unit"])
        out._append_to_loop(word)
        if op is MicroOp.BREAK and not self.jumps:
            # Without jumps, `break` only leaves the innermost loop.
            out.loops = (*out.loops[:-1], replace(out.loops[-1], trips=1))
        elif not self.unknown:
            out.machine.execute(word)
        return out

    def opened(self, word: int) -> "ProgramTracker":
        """Return the tracker at the start of a loop body."""
        out = self._copy(order=False)
        out.machine.step(1)
        trips = self.machine.trips(word)
        out.machine.unknown |= trips is None
        out.loops += (AbstractLoop(word, 1 if trips is None else trips),)
        return out

    def closed(self) -> "ProgramTracker":
        """Return the tracker after all iterations of the innermost loop."""
        out = self._copy(order=True)
        loop, out.loops = out.loops[-1], out.loops[:-1]
        out._append_to_loop(loop)
        out._commands = {}
        if not out.unknown:
            out.machine.repeat(loop.body, loop.trips - 1)
        return out

    def _copy(self, *, order: bool) -> "ProgramTracker":
        """Return a copy that can be modified; it shares the command order with the original if `order` is False."""
        out = ProgramTracker(self.machine.copy(order=order), self.jumps)
        out.loops = self.loops
        out._commands = dict(self._commands)
        if not order:
            out._issuable, out._statistics = dict(self._issuable), self._statistics
            out._counts, out._available = self._counts, self._available
        return out

    def _invalidate(self, unit: int) -> None:
        """Invalidate the cached properties of a unit's command."""
        self._commands = {key: value for key, value in self._commands.items() if key != unit}
        self._issuable = {key: value for key, value in self._issuable.items() if key[0] != unit}

    def _append_to_loop(self, item: int | AbstractLoop) -> None:
        """Append an item to the body of the innermost loop."""
        if self.loops:
            loop = self.loops[-1]
            self.loops = (*self.loops[:-1], replace(loop, body=(*loop.body, item)))


def _execute_call(sequencer: SymbolicSequencer, path: ExecutionPath) -> None:
    """Execute a call to its end; raise ValidationError if its control flow depends on data."""
    while (op := sequencer.run(path)) is not MicroOp.HALT:
        if op is None:
            raise sequencer.error_at(path, "statistics", "control flow before the program depends on data")
