"""What a program that is being written does so far, and what it may do next."""

from dataclasses import replace
from math import prod

from compiler.llm.assembly.machine import ORDER, Loop, Machine
from compiler.validate.errors import ValidationError
from compiler.validate.regions import Region
from cosim.golden.alu import signed
from cosim.golden.interpreter import decoded
from hw.isa.commands import FIELD_INDEX_BITS
from hw.isa.enums import SEMAPHORES_PER_PAIR, Unit
from hw.isa.micro_instruction import ISSUE_D, STATISTIC_BASE, MicroOp, Statistic

#: Semaphores of a consumer.
TOKENS = SEMAPHORES_PER_PAIR * len(Unit)
#: What changes what a unit's command would be, or whether the unit has time for it.
_OF_UNIT = frozenset({MicroOp.SET, MicroOp.CLEAR, MicroOp.ISSUE})
#: Statistics that are the same whenever the program runs.
_READABLE = tuple(each for each in Statistic if each is not Statistic.CYCLE)


class Tracker:
    """The machine after some instructions; what comes next gives another one.

    Parameters
    ----------
    machine : Machine
        Its state.
    jumps : bool
        Whether there may be branches and calls, behind which nothing is known any more.
    """

    def __init__(self, machine: Machine, jumps: bool):
        self.machine, self.jumps = machine, jumps
        #: Loops that are open.
        self.loops: tuple[Loop, ...] = ()
        # Found out so far, as long as it is true: what commands touch (None: they would do harm), which of them may be
        # issued behind which tokens, statistics that may be read, and the counts of all
        # semaphores, also as masks.
        self._commands: dict[Unit, list[Region] | None] = {}
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

    def _regions(self, unit: Unit) -> list[Region] | None:
        """What a unit's command touches."""
        if unit not in self._commands:
            try:
                self._commands[unit] = self.machine.sequencer.command(self.machine.way, unit)[1]
            except ValidationError:
                self._commands[unit] = None
        return self._commands[unit]

    # What comes next.

    def after(self, word: int) -> "Tracker":
        """The state after one more instruction, which is no loop with a body."""
        op, d, *_ = decoded(word)
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

    def opened(self, word: int) -> "Tracker":
        """The state at the beginning of a loop's body."""
        out = self._copy(order=False)
        out.machine.step(1)
        trips = self.machine.trips(word)
        out.machine.lost |= trips is None
        out.loops += (Loop(word, 1 if trips is None else trips),)
        return out

    def closed(self) -> "Tracker":
        """The state behind the innermost loop, all its turns made."""
        out = self._copy(order=True)
        loop, out.loops = out.loops[-1], out.loops[:-1]
        out._note(loop)
        out._commands = {}
        if not out.lost:
            out.machine.repeat(loop.body, loop.trips - 1)
        return out

    def _copy(self, *, order: bool) -> "Tracker":
        """A copy to be changed; without `order` the order of commands stays as it is."""
        out = Tracker(self.machine.copy(order=order), self.jumps)
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

    def _note(self, item: int | Loop) -> None:
        """Enter what came into the body of the innermost loop."""
        if self.loops:
            loop = self.loops[-1]
            self.loops = (*self.loops[:-1], replace(loop, body=(*loop.body, item)))
