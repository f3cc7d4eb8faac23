"""What a program that is being written does so far: abstract execution for each prefix."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import prod

from compiler.llm.assembly.limits import JUMPS, ProgramLimits
from compiler.validate.errors import ValidationError
from compiler.validate.execution_path import ExecutionPath
from compiler.validate.explore import LIMIT
from compiler.validate.happens_before import HappensBefore
from compiler.validate.known_bits import Word
from compiler.validate.macro_call import CallStream, MacroCall
from compiler.validate.sequencer import SymbolicSequencer
from compiler.validate.strided_regions import StridedRegion
from cosim.driver import WATCHDOG_CYCLES
from cosim.semantics.alu import ALU, signed
from cosim.semantics.instruction import decode_instruction
from hw.errors import InputError
from hw.isa.commands import FIELD_INDEX_BITS
from hw.isa.enums import SEMAPHORES_PER_PAIR, Unit
from hw.isa.micro_instruction import ISSUE_D, LOOP_IMM, REGISTERS, STATISTIC_BASE, MicroOp, Statistic, encode
from hw.isa.program import Program

#: Semaphores of a consumer.
TOKENS = SEMAPHORES_PER_PAIR * len(Unit)
#: What changes what a unit's command would be, or whether the unit has time for it.
_OF_UNIT = frozenset({MicroOp.SET, MicroOp.CLEAR, MicroOp.ISSUE})
#: Statistics that are the same whenever the program runs.
_READABLE = tuple(each for each in Statistic if each is not Statistic.CYCLE)

#: What changes the order of commands.
ORDER = frozenset({MicroOp.ISSUE, MicroOp.WAIT, MicroOp.FENCE, MicroOp.HALT})
#: Instructions of a loop's further turns that are followed; a loop that takes more counts as harmful.
_FOLLOWED = 1 << 10
#: Turns that must change nothing before those after them are taken to be the same.
_SETTLED = 3
_MASK = (1 << 32) - 1


@dataclass(frozen=True)
class AbstractLoop:
    """A loop: its first instruction, how often it runs (before its end is known), and its body so far."""

    word: int
    trips: int
    body: "tuple[int | AbstractLoop, ...]" = ()


class AbstractMachine:
    """The state of a machine, and what executing instructions makes of it.

    Parameters
    ----------
    sequencer : Sequencer
        Executes.
    way : Way
        Its state.

    Attributes
    ----------
    lost : bool
        Nothing is known any more: an instruction did harm, or jumped.
    harm : bool
        An instruction did harm.
    steps : int
        Instructions executed.
    written : int
        Registers that have been written, a bit for each; register 0 always has.
    """

    def __init__(self, sequencer: SymbolicSequencer, way: ExecutionPath):
        self.sequencer, self.way = sequencer, way
        self.lost = self.harm = False
        self.steps = 0
        self.written = 1

    @staticmethod
    def of(limits: ProgramLimits) -> "AbstractMachine":
        """The state when a program begins.

        Raises
        ------
        ValidationError
            What comes before it in the stream is not safe.
        InputError
            The limits make no sense.
        """
        assert limits.config
        own = MacroCall(Program("program", (encode(MicroOp.HALT),)), limits.operands, limits.tag)
        stream = CallStream(limits.config, [*limits.before, own], limits.windows, (), LIMIT)
        way = ExecutionPath(HappensBefore(limits.config.queue_depth), None)
        for number, call in enumerate(limits.before):
            if call.instead:
                raise InputError(f"call {number} has programs behind guards: which of them runs is not known")
            way.begin(call.tag)
            _run(stream.sequencers[number][-1], way)
        way.begin(limits.tag)
        return AbstractMachine(stream.sequencers[-1][-1], way)

    def copy(self, *, order: bool) -> "AbstractMachine":
        """A copy to be changed; without `order` the order of commands must stay as it is."""
        out = copy(self)
        if order:
            out.way = self.way.fork()
            return out
        out.way = copy(self.way)
        out.way.registers = list(self.way.registers)
        out.way.fields = [list(fields) for fields in self.way.fields]
        return out

    def value(self, selector: int) -> Word | None:
        """What a selector names; None: it must not be read now."""
        try:
            return self.sequencer.value(self.way, selector)
        except ValidationError:
            return None

    def trips(self, word: int) -> int | None:
        """How often a loop that begins now runs; None: the data say."""
        _, _, a, _, imm = decode_instruction(word)
        count = self.value(a)
        if not isinstance(count, int):
            return None
        return signed(count + LOOP_IMM.unpack(imm & _MASK)["count"] & _MASK)

    def execute(self, word: int) -> None:
        """Execute an instruction that is no loop with a body."""
        op, d, a, b, imm = decode_instruction(word)
        self.step(1)
        if op in JUMPS or op in (MicroOp.TRAP, MicroOp.LOOP):
            self.lost = True
            return
        try:
            self.sequencer.execute(self.way, op, d, a, b, imm)
        except ValidationError:
            self.harm = True
        # A command that waits in its queue would do so for ever, for all that is known.
        self.harm |= op is MicroOp.ISSUE and self.way.timeline.waiting
        self.lost |= self.harm
        if op in ALU:
            self.written |= 1 << d % REGISTERS

    def step(self, count: int) -> None:
        """Count instructions."""
        self.steps += count
        if self.steps > LIMIT:
            self.harm = self.lost = True

    def repeat(self, body: Sequence[int | AbstractLoop], times: int) -> None:
        """Execute a body so many times."""
        self._repeat(body, times, _FOLLOWED)

    def _repeat(self, body: Sequence[int | AbstractLoop], times: int, room: int) -> int:
        """Execute a body so many times; returns what is left of the instructions that are followed."""
        settled = 0
        for turn in range(times):
            before, work, steps = self._state(), list(self.way.work), self.steps
            for item in body:
                if self.lost:
                    return room
                room = self._again(item, room)
            settled = settled + 1 if self._state() == before else 0
            if settled == _SETTLED:
                # The turns that are left do the same once more.
                rest = times - 1 - turn
                self.step(rest * (self.steps - steps))
                self._work([rest * (now - then) for now, then in zip(self.way.work, work, strict=True)])
                return room
        return room

    def _again(self, item: int | AbstractLoop, room: int) -> int:
        """Execute an instruction, or a loop, once more."""
        if room <= 0:
            self.harm = self.lost = True
        elif isinstance(item, int):
            self.execute(item)
        else:
            self.step(1)
            trips = self.trips(item.word)
            if trips is not None:
                return self._repeat(item.body, trips, room - 1)
            self.harm = self.lost = True
        return room - 1

    def _state(self) -> tuple:
        """What the next turn of a loop depends on, but for the order of commands."""
        return tuple(self.way.registers), tuple(map(tuple, self.way.fields)), self.way.timeline.counts

    def _work(self, cycles: list[int]) -> None:
        """The units have so much more to do."""
        self.way.work = [now + more for now, more in zip(self.way.work, cycles, strict=True)]
        if max(self.way.work) > WATCHDOG_CYCLES:
            self.harm = self.lost = True


class ProgramTracker:
    """The machine after some instructions; what comes next gives another one.

    Parameters
    ----------
    machine : Machine
        Its state.
    jumps : bool
        Whether there may be branches and calls, behind which nothing is known any more.
    """

    def __init__(self, machine: AbstractMachine, jumps: bool):
        self.machine, self.jumps = machine, jumps
        #: Loops that are open.
        self.loops: tuple[AbstractLoop, ...] = ()
        # Found out so far, as long as it is true: what commands touch (None: they would do harm), which of them may be
        # issued behind which tokens, statistics that may be read, and the counts of all
        # semaphores, also as masks.
        self._commands: dict[Unit, list[StridedRegion] | None] = {}
        self._issuable: dict[tuple[Unit, int], bool] = {}
        self._statistics: tuple[Statistic, ...] | None = None
        self._counts: tuple[int, ...] | None = None
        self._available: list[int] | None = None

    # What may come next.

    @property
    def harm(self) -> bool:
        """Whether an instruction did harm."""
        return self.machine.harm

    @property
    def written(self) -> int:
        """Registers that may have been written, a bit for each."""
        return -1 if self.lost else self.machine.written

    @property
    def turns(self) -> int:
        """Turns that the loops which are open make together."""
        return prod(loop.trips for loop in self.loops)

    @property
    def lost(self) -> bool:
        """Whether nothing is known any more."""
        return self.machine.lost

    @property
    def counts(self) -> tuple[int, ...]:
        """Tokens of all semaphores: by consumer (4: the sequencer), then producer and index."""
        if self._counts is None:
            self._counts = self.machine.way.timeline.counts
        return self._counts

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """Those that may be read now."""
        if self.lost:
            return _READABLE
        if self._statistics is None:
            value = self.machine.value
            self._statistics = tuple(each for each in _READABLE if value(STATISTIC_BASE + each) is not None)
        return self._statistics

    def counts_to(self, selector: int, most: int) -> bool:
        """Whether a selector is a count of turns, at most so many, that does not depend on data."""
        value = self.machine.value(selector)
        return isinstance(value, int) and 1 <= signed(value) <= most

    def available(self, consumer: int) -> int:
        """Semaphores that a unit, or the sequencer, can take a token of now: a bit for each."""
        if self._available is None:
            rows = [self.counts[start : start + TOKENS] for start in range(0, len(self.counts), TOKENS)]
            self._available = [sum(1 << i for i, count in enumerate(row) if count) for row in rows]
        return self._available[consumer]

    def may_issue(self, unit: Unit, wait: int | None = None) -> bool:
        """Whether a unit's command may be issued behind some tokens; None: behind all there are."""
        key = unit, self.available(unit) if wait is None else wait
        if key not in self._issuable:
            regions = self._regions(unit)
            timeline = self.machine.way.timeline
            self._issuable[key] = regions is not None and not timeline.races(unit, key[1], regions)
        return self._issuable[key]

    def _regions(self, unit: Unit) -> list[StridedRegion] | None:
        """What a unit's command touches."""
        if unit not in self._commands:
            try:
                self._commands[unit] = self.machine.sequencer.command(self.machine.way, unit)[1]
            except ValidationError:
                self._commands[unit] = None
        return self._commands[unit]

    # What comes next.

    def after(self, word: int) -> "ProgramTracker":
        """The state after one more instruction, which is no loop with a body."""
        op, d, *_ = decode_instruction(word)
        out = self._copy(order=op in ORDER)
        if op in _OF_UNIT:
            out._forget(d >> FIELD_INDEX_BITS if op is MicroOp.SET else ISSUE_D.unpack(d)["unit"])
        out._note(word)
        if op is MicroOp.BREAK and not self.jumps:
            # There are no others than those that end the loop they stand in.
            out.loops = (*out.loops[:-1], replace(out.loops[-1], trips=1))
        elif not self.lost:
            out.machine.execute(word)
        return out

    def opened(self, word: int) -> "ProgramTracker":
        """The state at the beginning of a loop's body."""
        out = self._copy(order=False)
        out.machine.step(1)
        trips = self.machine.trips(word)
        out.machine.lost |= trips is None
        out.loops += (AbstractLoop(word, 1 if trips is None else trips),)
        return out

    def closed(self) -> "ProgramTracker":
        """The state behind the innermost loop, all its turns made."""
        out = self._copy(order=True)
        loop, out.loops = out.loops[-1], out.loops[:-1]
        out._note(loop)
        out._commands = {}
        if not out.lost:
            out.machine.repeat(loop.body, loop.trips - 1)
        return out

    def _copy(self, *, order: bool) -> "ProgramTracker":
        """A copy to be changed; without `order` the order of commands stays as it is."""
        out = ProgramTracker(self.machine.copy(order=order), self.jumps)
        out.loops = self.loops
        out._commands = dict(self._commands)
        if not order:
            out._issuable, out._statistics = dict(self._issuable), self._statistics
            out._counts, out._available = self._counts, self._available
        return out

    def _forget(self, unit: int) -> None:
        """Forget what was found out about a unit's command, whose fields change."""
        self._commands = {key: value for key, value in self._commands.items() if key != unit}
        self._issuable = {key: value for key, value in self._issuable.items() if key[0] != unit}

    def _note(self, item: int | AbstractLoop) -> None:
        """Enter what came into the body of the innermost loop."""
        if self.loops:
            loop = self.loops[-1]
            self.loops = (*self.loops[:-1], replace(loop, body=(*loop.body, item)))


def _run(sequencer: SymbolicSequencer, way: ExecutionPath) -> None:
    """Follow a call to its end, which the data must not decide about."""
    while (op := sequencer.run(way)) is not MicroOp.HALT:
        if op is None:
            raise sequencer.refuse(way, "statistics", "the data decide about what comes before the program")
