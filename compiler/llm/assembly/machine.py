"""Instructions executed one after the other with the validator's own sequencer, and the further turns of loops."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from compiler.llm.assembly.limits import JUMPS, Limits
from compiler.validate.bits import Word
from compiler.validate.call import Call, Stream
from compiler.validate.check import LIMIT
from compiler.validate.errors import ValidationError
from compiler.validate.sequencer import Sequencer
from compiler.validate.timeline import Timeline
from compiler.validate.way import Way
from cosim.driver import WATCHDOG_CYCLES
from cosim.golden.alu import ALU, signed
from cosim.golden.interpreter import decoded
from hw.errors import InputError
from hw.isa.micro_instruction import LOOP_IMM, REGISTERS, MicroOp, encode
from hw.isa.program import Program

#: What changes the order of commands.
ORDER = frozenset({MicroOp.ISSUE, MicroOp.WAIT, MicroOp.FENCE, MicroOp.HALT})
#: Instructions of a loop's further turns that are followed; a loop that takes more counts as harmful.
_FOLLOWED = 1 << 10
#: Turns that must change nothing before those after them are taken to be the same.
_SETTLED = 3
_MASK = (1 << 32) - 1


@dataclass(frozen=True)
class Loop:
    """A loop: its first instruction, how often it runs (before its end is known), and its body so far."""

    word: int
    trips: int
    body: "tuple[int | Loop, ...]" = ()


class Machine:
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

    def __init__(self, sequencer: Sequencer, way: Way):
        self.sequencer, self.way = sequencer, way
        self.lost = self.harm = False
        self.steps = 0
        self.written = 1

    @staticmethod
    def of(limits: Limits) -> "Machine":
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
            if call.instead:
                raise InputError(f"call {number} has programs behind guards: which of them runs is not known")
            way.begin(call.tag)
            _run(stream.sequencers[number][-1], way)
        way.begin(limits.tag)
        return Machine(stream.sequencers[-1][-1], way)

    def copy(self, *, order: bool) -> "Machine":
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
        _, _, a, _, imm = decoded(word)
        count = self.value(a)
        if not isinstance(count, int):
            return None
        return signed(count + LOOP_IMM.unpack(imm & _MASK)["count"] & _MASK)

    def execute(self, word: int) -> None:
        """Execute an instruction that is no loop with a body."""
        op, d, a, b, imm = decoded(word)
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

    def repeat(self, body: Sequence[int | Loop], times: int) -> None:
        """Execute a body so many times."""
        self._repeat(body, times, _FOLLOWED)

    def _repeat(self, body: Sequence[int | Loop], times: int, room: int) -> int:
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

    def _again(self, item: int | Loop, room: int) -> int:
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


def _run(sequencer: Sequencer, way: Way) -> None:
    """Follow a call to its end, which the data must not decide about."""
    while (op := sequencer.run(way)) is not MicroOp.HALT:
        if op is None:
            raise sequencer.refuse(way, "statistics", "the data decide about what comes before the program")
