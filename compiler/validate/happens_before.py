"""The order of unit commands: queues, semaphores, and what is known to have retired.

Every semaphore has one producer and one consumer, so a command that can start stays able to start until it does, and
starting it never takes away what another unit or the sequencer waits for. All interleavings therefore end in the same
state, and it is enough to follow the one where everybody moves as soon as possible: whenever the sequencer has issued
a command or made room in a full semaphore, every command that can start does. For each command a vector clock says
which commands have retired, whatever the timing, when it starts.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from compiler.validate.errors import InstructionLocation, ValidationError
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
from compiler.validate.strided_regions import StridedRegion
from hw.isa.enums import SEMAPHORE_MAX, SEMAPHORES_PER_PAIR, SEQUENCER, Unit

_UNITS = tuple(Unit)
_NAMES = [*(unit.name.lower() for unit in _UNITS), "seq"]


@dataclass(slots=True)
class Pending:
    """A command in its queue.

    Parameters
    ----------
    unit : Unit
        Whose.
    number : int
        Among the commands of its unit.
    waits, signals : tuple of int
        Semaphores: `producer << 2 | index` and `consumer << 2 | index`.
    known : Clock
        What the sequencer knew when it issued the command.
    """

    unit: Unit
    number: int
    waits: tuple[int, ...]
    signals: tuple[int, ...]
    known: Clock
    regions: Sequence[StridedRegion]
    place: InstructionLocation


@lru_cache(maxsize=1 << 10)
def bits(mask: int) -> tuple[int, ...]:
    """Positions of the ones."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def later(a: Clock, b: Clock) -> Clock:
    """What two clocks know together."""
    if a is b:
        return a
    (p, q, r, s), (t, u, v, w) = a, b
    return (p if p > t else t, q if q > u else u, r if r > v else v, s if s > w else w)


def semaphore(producer: int, consumer: int, index: int) -> str:
    """A semaphore as messages name it."""
    return f"{_NAMES[producer]}->{_NAMES[consumer]}:{index}"


class HappensBefore:
    """Commands of a stream, started as soon as their semaphores allow.

    Parameters
    ----------
    depth : int
        Commands that a queue holds.
    """

    def __init__(self, depth: int, accesses: Races | None = None):
        self.depth = depth
        self.issued = [0] * len(Unit)
        self.known: Clock = START  # by the sequencer
        self.accesses: Races = Accesses() if accesses is None else accesses
        self._started: list[Clock] = [START] * len(Unit)  # what the last command of each unit knew
        self._queues: tuple[deque[Pending], ...] = tuple(deque() for _ in Unit)
        # By consumer, then producer and number: what each signal that nobody has taken knows, and who gave it.
        self._tokens: list[list[deque[tuple[Clock, InstructionLocation]]]] = [
            [deque() for _ in range(SEMAPHORES_PER_PAIR * len(Unit))] for _ in range(SEQUENCER + 1)
        ]

    def copy(self) -> "HappensBefore":
        """The same state, to go another way from here."""
        other = HappensBefore(self.depth)
        other.issued, other.known, other._started = list(self.issued), self.known, list(self._started)
        other._queues = tuple(deque(replace(item) for item in queue) for queue in self._queues)
        other._tokens = [[deque(tokens) for tokens in row] for row in self._tokens]
        other.accesses = self.accesses.forget(self._least())
        return other

    def _least(self) -> Clock:
        """What every command that starts from now on knows to have retired."""
        clocks = [
            later(self._started[unit], self._queues[unit][0].known if self._queues[unit] else self.known)
            for unit in Unit
        ]
        return tuple(min(column) for column in zip(*clocks, strict=True))  # type: ignore[return-value]

    @property
    def quiet(self) -> bool:
        """Whether the sequencer knows that everything issued has retired."""
        return list(self.known) == self.issued

    @property
    def waiting(self) -> bool:
        """Whether a command waits in its queue."""
        return any(self._queues)

    def new_epoch(self) -> tuple[int, ...]:
        """Forget a past that nothing can race with any more; only when quiet. Returns the counts of all semaphores."""
        self.accesses = self.accesses.forget(tuple(self.issued))  # type: ignore[arg-type]
        self.issued, self.known, self._started = [0] * len(Unit), START, [START] * len(Unit)
        for row in self._tokens:
            for tokens in row:
                for index, (_, place) in enumerate(tokens):
                    tokens[index] = (START, place)
        return self.counts

    @property
    def counts(self) -> tuple[int, ...]:
        """Counts of all semaphores: by consumer, the sequencer last, then producer and number."""
        return tuple(len(tokens) for row in self._tokens for tokens in row)

    def issue(
        self, unit: Unit, wait: int, signal: int, regions: Sequence[StridedRegion], place: InstructionLocation
    ) -> None:
        """Queue a command and let all units move.

        Raises
        ------
        ValidationError
            The queue is full and nothing can move, or a command races.
        """
        queue = self._queues[unit]
        if len(queue) >= self.depth:
            raise ValidationError(
                "deadlock", place, f"the queue of {_NAMES[unit]} is full: {self._blocked(unit)}"
            )
        command = Pending(unit, self.issued[unit], bits(wait), bits(signal), self.known, regions, place)
        self.issued[unit] += 1
        queue.append(command)
        if self._move(unit):
            self._move_all()

    def _move_all(self) -> None:
        """Start commands until none can start."""
        while any(self._move(unit) for unit in _UNITS if self._queues[unit]):
            pass

    def _move(self, unit: Unit) -> bool:
        """Start what a unit can start; whether it was anything."""
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
            reason = (
                f"more than {MAX_COMPARED} comparisons of accesses that nothing orders; a fence orders them"
            )
            raise ValidationError("endless", command.place, reason) from None
        if clash:
            raise _race(command, *clash)
        self.accesses.enter(unit, command.number, command.regions, command.place)
        if self.accesses.crowded:
            self.accesses = self.accesses.forget(self._least())
            if self.accesses.total > MAX_ACCESSES:
                reason = f"more than {MAX_ACCESSES} accesses that nothing orders; a fence orders them"
                raise ValidationError("endless", command.place, reason)
        if command.signals:
            token = (self._retired(unit, command.number + 1), command.place)
            for i in command.signals:
                self._tokens[i >> 2][unit << 2 | i & 3].append(token)

    def races(self, unit: Unit, wait: int, regions: Sequence[StridedRegion]) -> bool:
        """Whether a command would race that is issued now and takes tokens which are all there."""
        known = later(self._started[unit], self.known)
        for i in bits(wait):
            known = later(known, self._tokens[unit][i][0][0])
        try:
            return self.accesses.clash(unit, known, regions) is not None
        except ComparisonLimitError:
            return True

    def _retired(self, unit: Unit, count: int) -> Clock:
        """What is known once the last command that `unit` has started has retired."""
        known = self._started[unit]
        return (*known[:unit], count, *known[unit + 1 :])  # type: ignore[return-value]

    def wait(self, number: int, place: InstructionLocation) -> None:
        """The sequencer takes a token, which may make room for a unit; ValidationError if it waits for ever."""
        tokens = self._tokens[SEQUENCER][number]
        full = len(tokens) >= SEMAPHORE_MAX
        if not tokens:
            name = semaphore(number >> 2, SEQUENCER, number & 3)
            stuck = self._blocked(number >> 2) or "no command issued before it does"
            raise ValidationError("deadlock", place, f"nobody signals {name}: {stuck}")
        self.known = later(self.known, tokens.popleft()[0])
        if full:
            self._move_all()

    def fence(self, mask: int, place: InstructionLocation) -> None:
        """The sequencer waits for units; ValidationError if it waits for ever."""
        for unit in bits(mask):
            if self._queues[unit]:
                raise ValidationError("deadlock", place, f"a fence waits for ever: {self._blocked(unit)}")
            if self.issued[unit]:
                self.known = later(self.known, self._retired(Unit(unit), self.issued[unit]))

    def wait_for(self, counts: Clock) -> None:
        """The sequencer learns that so many commands of each unit have retired."""
        self.known = later(self.known, counts)

    def end_call(self) -> None:
        """ValidationError if a command is left that can only start with the help of a later macro-instruction."""
        for unit in Unit:
            if self._queues[unit]:
                raise ValidationError(
                    "deadlock",
                    self._queues[unit][0].place,
                    f"the program halts and {self._blocked(unit)}; all commands must be able to finish without a"
                    " later macro-instruction",
                )
        self.accesses.compared = 0

    def end(self) -> None:
        """ValidationError if tokens are left."""
        for consumer, row in enumerate(self._tokens):
            for i, tokens in enumerate(row):
                if tokens:
                    name = semaphore(i >> 2, consumer, i & 3)
                    raise ValidationError(
                        "semaphore",
                        tokens[-1][1],
                        f"{len(tokens)} of {name} are left at the end; all semaphores must be back at 0",
                    )

    def _blocked(self, unit: int) -> str:
        """Why the head of a queue cannot start; empty if there is none."""
        if not self._queues[unit]:
            return ""
        head = self._queues[unit][0]
        lacks = [i for i in head.waits if not self._tokens[unit][i]]
        what = f"the {_NAMES[unit]} command of {head.place} "
        if lacks:
            return (
                what + f"waits for {semaphore(lacks[0] >> 2, unit, lacks[0] & 3)}, which nobody has signalled"
            )
        full = next(i for i in head.signals if len(self._tokens[i >> 2][unit << 2 | i & 3]) >= SEMAPHORE_MAX)
        name = semaphore(unit, full >> 2, full & 3)
        return what + f"waits for room in {name}, which holds {SEMAPHORE_MAX} that nobody takes"


def _race(command: Pending, region: StridedRegion, clash: Clash) -> ValidationError:
    verbs = ("reads", "writes")
    pair = f"{_NAMES[clash.unit]}->{_NAMES[command.unit]}"
    return ValidationError(
        "race",
        command.place,
        f"{_NAMES[command.unit]} {verbs[region.write]} {span(region)} and nothing makes it wait for the"
        f" {_NAMES[clash.unit]} command of {clash.place}, which {verbs[clash.region.write]} {span(clash.region)};"
        f" a {pair} semaphore, or a wait of the sequencer between the two, would order them",
    )


def span(region: StridedRegion) -> str:
    """A region as messages name it."""
    gaps = " (with gaps)" if region.steps else ""
    return f"{region.space} {region.low:#x}..{region.high:#x}{gaps}"
