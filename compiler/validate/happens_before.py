"""Happens-before order of unit commands: queues, semaphores and vector clocks.

Every semaphore has one producer and one consumer. An enabled command therefore stays enabled until it starts, and
starting it never disables another unit or the sequencer. All interleavings end in the same state, so it suffices to
simulate the eager interleaving: whenever the sequencer has issued a command or made room in a full semaphore, every
enabled command starts. For each command, a vector clock states which commands have retired, under any timing, before
the command starts.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from compiler.validate.errors import InstructionLocation, ValidationError
from compiler.validate.footprint import StridedRegion
from compiler.validate.races import (
    MAX_ACCESSES,
    MAX_COMPARED,
    START,
    Accesses,
    Clash,
    Clock,
    ComparisonLimitError,
    Races,
)
from hw.isa.enums import SEMAPHORE_MAX, SEMAPHORES_PER_PAIR, SEQUENCER, Unit

_UNITS = tuple(Unit)
_NAMES = [*(unit.name.lower() for unit in _UNITS), "seq"]


@dataclass(slots=True)
class Pending:
    """Unit command that waits in the queue of its unit.

    Parameters
    ----------
    unit : Unit
        Unit that executes the command.
    number : int
        Index of the command among the commands of its unit.
    waits, signals : tuple of int
        Semaphores to wait for, as `producer << 2 | index`, and semaphores to signal, as `consumer << 2 | index`.
    known : Clock
        Vector clock of the sequencer when it issued the command.
    """

    unit: Unit
    number: int
    waits: tuple[int, ...]
    signals: tuple[int, ...]
    known: Clock
    regions: Sequence[StridedRegion]
    location: InstructionLocation


@lru_cache(maxsize=1 << 10)
def bits(mask: int) -> tuple[int, ...]:
    """Return the indices of the set bits of a mask."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def later(a: Clock, b: Clock) -> Clock:
    """Return the element-wise maximum of two vector clocks."""
    if a is b:
        return a
    (p, q, r, s), (t, u, v, w) = a, b
    return (p if p > t else t, q if q > u else u, r if r > v else v, s if s > w else w)


def semaphore(producer: int, consumer: int, index: int) -> str:
    """Return the name of a semaphore for messages."""
    return f"{_NAMES[producer]}->{_NAMES[consumer]}:{index}"


class HappensBefore:
    """Eager simulation of the unit commands of a stream, with vector clocks.

    Parameters
    ----------
    depth : int
        Capacity of a command queue, in commands.
    """

    def __init__(self, depth: int, accesses: Races | None = None):
        self.depth = depth
        self.issued = [0] * len(Unit)
        self.known: Clock = START  # the sequencer's vector clock
        self.accesses: Races = Accesses() if accesses is None else accesses
        self._started: list[Clock] = [START] * len(Unit)  # clock of the last started command of each unit
        self._queues: tuple[deque[Pending], ...] = tuple(deque() for _ in Unit)
        # By consumer, then producer and index: clock and location of each signal that has not been consumed.
        self._tokens: list[list[deque[tuple[Clock, InstructionLocation]]]] = [
            [deque() for _ in range(SEMAPHORES_PER_PAIR * len(Unit))] for _ in range(SEQUENCER + 1)
        ]

    def copy(self) -> "HappensBefore":
        """Return a copy of the state, from which another path can continue."""
        other = HappensBefore(self.depth)
        other.issued, other.known, other._started = list(self.issued), self.known, list(self._started)
        other._queues = tuple(deque(replace(item) for item in queue) for queue in self._queues)
        other._tokens = [[deque(tokens) for tokens in row] for row in self._tokens]
        other.accesses = self.accesses.forget(self._least())
        return other

    def _least(self) -> Clock:
        """Return a lower bound for the clocks of all commands that start from now on."""
        clocks = [
            later(self._started[unit], self._queues[unit][0].known if self._queues[unit] else self.known)
            for unit in Unit
        ]
        return tuple(min(column) for column in zip(*clocks, strict=True))  # type: ignore[return-value]

    @property
    def quiet(self) -> bool:
        """True if the sequencer knows that every issued command has retired."""
        return list(self.known) == self.issued

    @property
    def waiting(self) -> bool:
        """True if any command waits in a queue."""
        return any(self._queues)

    def new_epoch(self) -> tuple[int, ...]:
        """Drop the history, with which nothing can race anymore, and return the counts of all semaphores.

        The units must be quiet.
        """
        self.accesses = self.accesses.forget(tuple(self.issued))  # type: ignore[arg-type]
        self.issued, self.known, self._started = [0] * len(Unit), START, [START] * len(Unit)
        for row in self._tokens:
            for tokens in row:
                for index, (_, location) in enumerate(tokens):
                    tokens[index] = (START, location)
        return self.counts

    @property
    def counts(self) -> tuple[int, ...]:
        """Counts of all semaphores, ordered by consumer (the sequencer last), then by producer and index."""
        return tuple(len(tokens) for row in self._tokens for tokens in row)

    def issue(
        self,
        unit: Unit,
        wait: int,
        signal: int,
        regions: Sequence[StridedRegion],
        location: InstructionLocation,
    ) -> None:
        """Append a command to its queue and start every command that is enabled.

        Raises
        ------
        ValidationError
            The queue is full and its first command can never start, or a command races.
        """
        queue = self._queues[unit]
        if len(queue) >= self.depth:
            raise ValidationError(
                "deadlock", location, f"the queue of {_NAMES[unit]} is full: {self._blocked(unit)}"
            )
        command = Pending(unit, self.issued[unit], bits(wait), bits(signal), self.known, regions, location)
        self.issued[unit] += 1
        queue.append(command)
        if self._move(unit):
            self._move_all()

    def _move_all(self) -> None:
        """Start commands until none is enabled."""
        while any(self._move(unit) for unit in _UNITS if self._queues[unit]):
            pass

    def _move(self, unit: Unit) -> bool:
        """Start all enabled commands of a unit; return True if there were any."""
        queue, moved = self._queues[unit], False
        while queue and self._startable(queue[0]):
            self._start(queue.popleft())
            moved = True
        return moved

    def _startable(self, command: Pending) -> bool:
        own, unit = self._tokens[command.unit], command.unit << 2
        for i in command.waits:
            if not own[i]:
                return False
        return not command.signals or all(
            len(self._tokens[i >> 2][unit | i & 3]) < SEMAPHORE_MAX for i in command.signals
        )

    def _start(self, command: Pending) -> None:
        unit = command.unit
        known = later(self._started[unit], command.known)
        for i in command.waits:
            known = later(known, self._tokens[unit][i].popleft()[0])
        self._started[unit] = known
        try:
            clash = self.accesses.clash(unit, known, command.regions)
        except ComparisonLimitError:
            reason = f"more than {MAX_COMPARED} comparisons of unordered accesses; add a fence to order them"
            raise ValidationError("endless", command.location, reason) from None
        if clash:
            raise _race(command, *clash)
        self.accesses.enter(unit, command.number, command.regions, command.location)
        if self.accesses.crowded:
            self.accesses = self.accesses.forget(self._least())
            if self.accesses.total > MAX_ACCESSES:
                reason = f"more than {MAX_ACCESSES} unordered accesses; add a fence to order them"
                raise ValidationError("endless", command.location, reason)
        if command.signals:
            token = (self._retired(unit, command.number + 1), command.location)
            for i in command.signals:
                self._tokens[i >> 2][unit << 2 | i & 3].append(token)

    def races(self, unit: Unit, wait: int, regions: Sequence[StridedRegion]) -> bool:
        """Return True if a command would race if it were issued now; its tokens must all be available."""
        known = later(self._started[unit], self.known)
        for i in bits(wait):
            known = later(known, self._tokens[unit][i][0][0])
        try:
            return self.accesses.clash(unit, known, regions) is not None
        except ComparisonLimitError:
            return True

    def _retired(self, unit: Unit, count: int) -> Clock:
        """Return the clock after a unit has retired `count` commands, that is, all commands that it has started."""
        known = self._started[unit]
        return (*known[:unit], count, *known[unit + 1 :])  # type: ignore[return-value]

    def wait(self, number: int, location: InstructionLocation) -> None:
        """Consume a token for the sequencer, which may unblock a unit; raise ValidationError if none ever arrives."""
        tokens = self._tokens[SEQUENCER][number]
        full = len(tokens) >= SEMAPHORE_MAX
        if not tokens:
            name = semaphore(number >> 2, SEQUENCER, number & 3)
            stuck = self._blocked(number >> 2) or "no earlier command does"
            raise ValidationError("deadlock", location, f"{name} is never signalled: {stuck}")
        self.known = later(self.known, tokens.popleft()[0])
        if full:
            self._move_all()

    def fence(self, mask: int, location: InstructionLocation) -> None:
        """Make the sequencer wait until the units in a mask are idle; raise ValidationError if this never happens."""
        for unit in bits(mask):
            if self._queues[unit]:
                raise ValidationError("deadlock", location, f"the fence waits forever: {self._blocked(unit)}")
            if self.issued[unit]:
                self.known = later(self.known, self._retired(Unit(unit), self.issued[unit]))

    def wait_for(self, counts: Clock) -> None:
        """Record that the sequencer knows that the first `counts[unit]` commands of each unit have retired."""
        self.known = later(self.known, counts)

    def end_call(self) -> None:
        """End a macro-instruction; raise ValidationError if a queued command depends on a later macro-instruction."""
        for unit in Unit:
            if self._queues[unit]:
                raise ValidationError(
                    "deadlock",
                    self._queues[unit][0].location,
                    f"the program halts and {self._blocked(unit)}; all commands must be able to finish without a"
                    " later macro-instruction",
                )
        self.accesses.compared = 0

    def end(self) -> None:
        """End the stream; raise ValidationError if a semaphore is not 0."""
        for consumer, row in enumerate(self._tokens):
            for i, tokens in enumerate(row):
                if tokens:
                    name = semaphore(i >> 2, consumer, i & 3)
                    raise ValidationError(
                        "semaphore",
                        tokens[-1][1],
                        f"{name} ends at {len(tokens)}; all semaphores must end at 0",
                    )

    def _blocked(self, unit: int) -> str:
        """Return the reason why the first command in a unit's queue cannot start; empty if the queue is empty."""
        if not self._queues[unit]:
            return ""
        head = self._queues[unit][0]
        lacks = [i for i in head.waits if not self._tokens[unit][i]]
        what = f"the {_NAMES[unit]} command of {head.location} "
        if lacks:
            return (
                what
                + f"waits for {semaphore(lacks[0] >> 2, unit, lacks[0] & 3)}, which has not been signalled"
            )
        full = next(i for i in head.signals if len(self._tokens[i >> 2][unit << 2 | i & 3]) >= SEMAPHORE_MAX)
        name = semaphore(unit, full >> 2, full & 3)
        return what + f"waits to signal {name}, which is at its maximum of {SEMAPHORE_MAX}"


def _race(command: Pending, region: StridedRegion, clash: Clash) -> ValidationError:
    verbs = ("reads", "writes")
    pair = f"{_NAMES[clash.unit]}->{_NAMES[command.unit]}"
    return ValidationError(
        "race",
        command.location,
        f"{_NAMES[command.unit]} {verbs[region.write]} {span(region)} without waiting for the"
        f" {_NAMES[clash.unit]} command of {clash.location}, which {verbs[clash.region.write]} {span(clash.region)};"
        f" a {pair} semaphore, or a wait of the sequencer between the two, would order them",
    )


def span(region: StridedRegion) -> str:
    """Return a description of a region for messages."""
    gaps = " (with gaps)" if region.steps else ""
    return f"{region.space} {region.low:#x}..{region.high:#x}{gaps}"
