"""What a program that is being written does, followed instruction by instruction with the validator's own sequencer."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import prod

from compiler.llm.assembly.limits import JUMPS, Limits
from compiler.validate.call import Call, Stream
from compiler.validate.errors import ValidationError
from compiler.validate.regions import Region
from compiler.validate.check import LIMIT
from compiler.validate.sequencer import Sequencer
from compiler.validate.timeline import Timeline
from compiler.validate.way import Way
from cosim.driver import WATCHDOG_CYCLES
from cosim.golden.alu import ALU, signed
from cosim.golden.interpreter import decoded
from hw.errors import InputError
from hw.isa.commands import FIELD_INDEX_BITS
from hw.isa.enums import SEMAPHORES_PER_PAIR, Unit
from hw.isa.micro import LOOP_IMM, REGISTERS, STATISTIC_BASE, MicroOp, Statistic, encode
from hw.isa.program import Program

#: Semaphores of a consumer.
TOKENS = SEMAPHORES_PER_PAIR * len(Unit)
#: Instructions of a loop's further turns that are followed; a loop that takes more is not ended.
_FOLLOWED = 1 << 10
#: Turns that must change nothing before those after them are taken to be the same.
_SETTLED = 3
_MASK = (1 << 32) - 1
#: What changes the order of commands.
_ORDER = frozenset({MicroOp.ISSUE, MicroOp.WAIT, MicroOp.FENCE, MicroOp.HALT})
#: What changes the fields of a unit.
_FIELDS = frozenset({MicroOp.SET, MicroOp.CLEAR})
#: Statistics that are the same whenever the program runs.
_READABLE = tuple(each for each in Statistic if each is not Statistic.CYCLE)


@dataclass(frozen=True)
class Loop:
    """A loop: its first instruction, how often it runs, and its body so far."""

    word: int
    trips: int
    body: "tuple[int | Loop, ...]" = ()


class Tracker:
    """The machine after some instructions; never changes.

    Parameters
    ----------
    sequencer : Sequencer
        Executes.
    way : Way
        Its state.
    jumps : bool
        Whether there may be branches and calls, behind which nothing is known any more.
    """

    def __init__(self, sequencer: Sequencer, way: Way, jumps: bool):
        self.sequencer, self.way, self.jumps = sequencer, way, jumps
        #: Loops that are open.
        self.loops: tuple[Loop, ...] = ()
        #: Registers that have been written, a bit for each; register 0 always has.
        self.written = 1
        #: Whether nothing is known any more, and whether an instruction did harm.
        self.lost = self.harm = False
        #: Instructions executed.
        self.steps = 0
        # Found out so far, as long as it is true: what commands touch (None: they would do harm), which of them may be
        # issued behind which tokens, statistics that may be read, and the counts of all semaphores.
        self._commands: dict[Unit, list[Region] | None] = {}
        self._issuable: dict[tuple[Unit, int], bool] = {}
        self._statistics: tuple[Statistic, ...] | None = None
        self._counts: tuple[int, ...] | None = None

    @staticmethod
    def of(limits: Limits) -> "Tracker":
        """The state when a program begins.

        Raises
        ------
        ValidationError
            What comes before it in the stream is not safe.
        InputError
            The limits make no sense.
        """
        assert limits.config
        own = Call(Program("program", (encode(MicroOp.HALT),)), limits.operands, limits.tag)
        stream = Stream(limits.config, [*limits.before, own], limits.windows, (), LIMIT)
        way = Way(Timeline(limits.config.queue_depth), None)
        for number, call in enumerate(limits.before):
            way.begin(call.tag)
            if call.instead:
                raise InputError(f"call {number} has programs behind guards: which of them runs is not known")
            _run(stream.sequencers[number][-1], way)
        way.begin(limits.tag)
        return Tracker(stream.sequencers[-1][-1], way, limits.jumps)

    # What may come next.

    @property
    def counts(self) -> tuple[int, ...]:
        """Tokens of all semaphores: by consumer (4: the sequencer), then producer and index."""
        if self._counts is None:
            self._counts = self.way.timeline.counts
        return self._counts

    @property
    def skipping(self) -> bool:
        """Whether what comes next is not executed."""
        return any(loop.trips < 1 for loop in self.loops)

    @property
    def turns(self) -> int:
        """Turns that the loops which are open make together."""
        return prod(max(1, loop.trips) for loop in self.loops)

    @property
    def blind(self) -> bool:
        """Whether nothing can be told of what comes next."""
        return self.lost or self.skipping

    def available(self, consumer: int) -> int:
        """Semaphores that a unit, or the sequencer, can take a token of now: a bit for each."""
        row = self.counts[TOKENS * consumer : TOKENS * (consumer + 1)]
        return sum(1 << number for number, count in enumerate(row) if count)

    def may_issue(self, unit: Unit, wait: int | None = None) -> bool:
        """Whether a unit's command may be issued behind some tokens; None: behind all there are."""
        key = unit, self.available(unit) if wait is None else wait
        if key not in self._issuable:
            regions = self._regions(unit)
            self._issuable[key] = regions is not None and not self.way.timeline.races(unit, key[1], regions)
        return self._issuable[key]

    def _regions(self, unit: Unit) -> list[Region] | None:
        if unit not in self._commands:
            try:
                self._commands[unit] = self.sequencer.command(self.way, unit)[1]
            except ValidationError:
                self._commands[unit] = None
        return self._commands[unit]

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """Those that may be read now."""
        if self.lost:
            return _READABLE
        if self._statistics is None:
            self._statistics = tuple(each for each in _READABLE if self._value(STATISTIC_BASE + each) is not None)
        return self._statistics

    def counts_to(self, selector: int, most: int) -> bool:
        """Whether a selector is a count of turns, at most so many, that does not depend on data."""
        value = self._value(selector)
        return isinstance(value, int) and 1 <= signed(value) <= most

    def _value(self, selector: int) -> object:
        try:
            return self.sequencer.value(self.way, selector)
        except ValidationError:
            return None

    # What comes next.

    def after(self, word: int) -> "Tracker":
        """The state after one more instruction, which is no loop with a body."""
        op, d, a, b, imm = decoded(word)
        out = self._copy(whole=op in _ORDER)
        if op in _FIELDS:
            out._forget(d >> FIELD_INDEX_BITS if op is MicroOp.SET else d)
        out._note(word)
        if not self.blind:
            out._execute(op, d, a, b, imm)
        return out

    def opened(self, word: int) -> "Tracker":
        """The state at the beginning of a loop's body."""
        out = self._copy(whole=False)
        out._step(1)
        trips = self._trips(word)
        out.lost |= trips is None
        if trips is not None:
            out.loops += (Loop(word, trips),)
        return out

    def closed(self) -> "Tracker":
        """The state behind the innermost loop, all its turns made."""
        out = self._copy(whole=True)
        if self.lost or not self.loops:
            return out
        loop, out.loops = out.loops[-1], out.loops[:-1]
        out._note(loop)
        if not out.blind and loop.trips > 0:
            out._repeat(loop.body, loop.trips - 1, _FOLLOWED)
        return out

    def _copy(self, whole: bool) -> "Tracker":
        """A copy to be changed; without `whole` the order of commands stays the same."""
        out = Tracker(self.sequencer, self.way.fork() if whole else copy(self.way), self.jumps)
        out.loops, out.written, out.lost, out.harm = self.loops, self.written, self.lost, self.harm
        out.steps = self.steps
        if not whole:
            out.way.registers = list(self.way.registers)
            out.way.fields = [list(fields) for fields in self.way.fields]
            out._commands, out._issuable = dict(self._commands), dict(self._issuable)
            out._statistics, out._counts = self._statistics, self._counts
        return out

    def _forget(self, unit: int) -> None:
        """Forget what was found out about a unit's command, whose fields change."""
        self._commands = {key: value for key, value in self._commands.items() if key != unit}
        self._issuable = {key: value for key, value in self._issuable.items() if key[0] != unit}

    def _note(self, item: "int | Loop") -> None:
        """Enter what came into the body of the innermost loop."""
        if self.loops:
            loop = self.loops[-1]
            self.loops = (*self.loops[:-1], replace(loop, body=(*loop.body, item)))

    def _execute(self, op: MicroOp, d: int, a: int, b: int, imm: int) -> None:
        self._step(1)
        if op is MicroOp.BREAK and not self.jumps:
            # The only ones that there are then end the loops they stand in.
            self.loops = (*self.loops[:-1], replace(self.loops[-1], trips=1))
            return
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

    def _step(self, count: int) -> None:
        self.steps += count
        if self.steps > LIMIT:
            self.harm = self.lost = True

    def _repeat(self, body: "Sequence[int | Loop]", times: int, room: int) -> int:
        """Run a body again, so many times; returns what is left of the instructions that are followed."""
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
                self._step(rest * (self.steps - steps))
                self._work([rest * (now - then) for now, then in zip(self.way.work, work, strict=True)])
                return room
        return room

    def _state(self) -> tuple:
        """What the next turn of a loop depends on, but for the order of commands."""
        return tuple(self.way.registers), tuple(map(tuple, self.way.fields)), self.way.timeline.counts

    def _work(self, cycles: list[int]) -> None:
        """The units have so much more to do."""
        self.way.work = [now + more for now, more in zip(self.way.work, cycles, strict=True)]
        if max(self.way.work) > WATCHDOG_CYCLES:
            self.harm = self.lost = True

    def _again(self, item: "int | Loop", room: int) -> int:
        """Run an instruction, or a loop, once more."""
        if room <= 0:
            self.harm = self.lost = True
        elif isinstance(item, int):
            self._execute(*decoded(item))
        else:
            self._step(1)
            trips = self._trips(item.word)
            if trips is None:
                self.lost = True
            else:
                return self._repeat(item.body, trips, room - 1)
        return room - 1

    def _trips(self, word: int) -> int | None:
        """How often a loop that begins now runs; None: the data say."""
        _, _, a, _, imm = decoded(word)
        count = self._value(a)
        if not isinstance(count, int):
            return None
        return signed(count + LOOP_IMM.unpack(imm & _MASK)["count"] & _MASK)


def _run(sequencer: Sequencer, way: Way) -> None:
    """Follow a call to its end, which the data must not decide about."""
    while (op := sequencer.run(way)) is not MicroOp.HALT:
        if op is None:
            raise sequencer.refuse(way, "statistics", "the data decide about what comes before the program")
