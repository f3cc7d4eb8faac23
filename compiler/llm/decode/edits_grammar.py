"""Which words may come next in edits of a program."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache

from compiler.codegen.semaphores import Issued
from compiler.llm.tokens.integer_tokens import LONG, MINUS, number_of, number_words
from compiler.llm.tokens.program_edits import MOST, MOVE, SPLIT, edit_of, nearer
from compiler.llm.tokens.schedule_delta import END
from compiler.tuning.edits.edit import MOST_DIMS, MOST_RUN, Edit, applied, freedom, ordered, place_of
from compiler.tuning.edits.split import Dim, dims_of, split
from hw.config import MlaConfig

#: How much the first part of a split may do.
_EIGHTHS = range(1, 8)
_ALL = sum(1 << each for each in _EIGHTHS)
_number_words = lru_cache(1 << 14)(number_words)


class EditsGrammar:
    """The edits that a program allows, each after those in front of it; of which those end that change it.

    What is found out of the program after some edits is kept: answers have them in common.

    Parameters
    ----------
    config : MlaConfig
        The machine.
    commands : sequence of Issued
        The program's.
    tried : collection of tuples of Edit
        What is of no use any more; looked at anew for each answer.
    """

    def __init__(self, config: MlaConfig, commands: Sequence[Issued], tried: Collection[Hashable] = ()):
        self.tried = tried
        self._known = _Known(config)
        self._states: dict[tuple[Edit, ...], _State] = {(): _State(self._known, list(commands))}

    @property
    def any(self) -> bool:
        """Whether the program allows an edit at all."""
        return bool(self.after(()))

    def after(self, words: Sequence[str]) -> tuple[str, ...]:
        """Words that may follow those there are; none: they are complete."""
        edits, head, rest = _read(words)
        if head == END:
            return ()
        state = self._state(edits)
        if head is None:
            heads = [word for word in (SPLIT, MOVE) if state.choices(word, ())] if len(edits) < MOST else []
            return (*heads, *([END] if edits else []))
        numbers, part = _numbers(rest)
        return state.toward(head, numbers, part)

    def ends(self, words: Sequence[str]) -> bool:
        """Whether complete edits are new and change something."""
        edits, _, _ = _read(words)
        return edits not in self.tried and self._state(edits).commands != self._states[()].commands

    def _state(self, edits: tuple[Edit, ...]) -> "_State":
        if edits not in self._states:
            self._states[edits] = self._state(edits[:-1]).after(edits[-1])
        return self._states[edits]


class _Known:
    """What is known of commands and of pairs of them, whatever program they are in."""

    def __init__(self, config: MlaConfig):
        self.config = config
        self._parts: dict[Issued, list[int]] = {}
        self._ordered: dict[tuple[Issued, Issued], bool] = {}

    def parts(self, command: Issued) -> list[int]:
        """For each dimension that it can be split along the eighths that may be, a bit for each."""
        if command not in self._parts:
            dims = dims_of(command, self.config.n)[:MOST_DIMS]
            self._parts[command] = [_eighths(command, dim) for dim in dims]
        return self._parts[command]

    def ordered(self, first: Issued, second: Issued) -> bool:
        """Whether one must be issued before the other."""
        if (first, second) not in self._ordered:
            self._ordered[first, second] = ordered(self.config, first, second)
        return self._ordered[first, second]


def _eighths(command: Issued, dim: Dim) -> int:
    """Fields move evenly with the part: if both extremes are in range, so are all between them."""
    if all(_splits(command, dim, each) for each in (_EIGHTHS[0], _EIGHTHS[-1])):
        return _ALL
    return sum(1 << each for each in _EIGHTHS if _splits(command, dim, each))


def _splits(command: Issued, dim: Dim, eighths: int) -> bool:
    try:
        split(command, dim, eighths)
    except ValueError:
        return False
    return True


class _State:
    """A program after some edits."""

    def __init__(self, known: _Known, commands: list[Issued]):
        self.known, self.commands = known, commands
        self._choices: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        self._next: dict[tuple[str, tuple[int, ...]], dict[tuple[str, ...], dict[str, None]]] = {}

    def after(self, edit: Edit) -> "_State":
        """After one more."""
        return _State(self.known, applied(self.known.config, self.commands, [edit]))

    def toward(self, head: str, numbers: tuple[int, ...], part: Sequence[str]) -> tuple[str, ...]:
        """Words on the way to the next number of an edit, of which there is a part."""
        if (head, numbers) not in self._next:
            self._next[head, numbers] = _ways(self.choices(head, numbers))
        return tuple(self._next[head, numbers].get(tuple(part), ()))

    def choices(self, head: str, numbers: tuple[int, ...]) -> list[int]:
        """What the next number of an edit may be."""
        if (head, numbers) not in self._choices:
            self._choices[head, numbers] = list(self._found(head, numbers))
        return self._choices[head, numbers]

    def _found(self, head: str, numbers: tuple[int, ...]) -> Iterable[int]:
        count = len(self.commands)
        if not numbers:
            places = self._splits() if head == SPLIT else self._moves()
            return (nearer(at, count) for at in places)
        at = place_of(numbers[0], count)
        if head == MOVE:
            return (step for step in freedom(self.known.config, self.commands, at) if step)
        if len(numbers) == 1:
            return (run for run in range(1, min(MOST_RUN, count - at) + 1) if any(self._dims(at, run)))
        dims = self._dims(at, numbers[1])
        if len(numbers) == 2:
            return (number for number, eighths in enumerate(dims) if eighths)
        return (each for each in _EIGHTHS if dims[numbers[2]] >> each & 1)

    def _splits(self) -> Iterator[int]:
        """Places from which on a run can be split: the first that can be split at all decides."""
        distance, may = MOST_RUN, False
        found = []
        for at in range(len(self.commands) - 1, -1, -1):
            parts = self.known.parts(self.commands[at])
            distance, may = (0, any(parts)) if parts else (distance + 1, may)
            if may and distance < MOST_RUN:
                found.append(at)
        return reversed(found)

    def _dims(self, at: int, run: int) -> list[int]:
        """For each dimension that one of a run goes along the eighths that all of them allow."""
        each = [parts for command in self.commands[at : at + run] if (parts := self.known.parts(command))]
        out = []
        for number in range(max(map(len, each), default=0)):
            eighths = _ALL
            for parts in each:
                eighths &= parts[min(number, len(parts) - 1)]
            out.append(eighths)
        return out

    def _moves(self) -> Iterator[int]:
        """Places whose command may pass a neighbour."""
        free = [
            not self.known.ordered(first, second)
            for first, second in zip(self.commands, self.commands[1:], strict=False)
        ]
        return (at for at in range(len(self.commands)) if any(free[max(at - 1, 0) : at + 1]))


def _ways(numbers: Iterable[int]) -> dict[tuple[str, ...], dict[str, None]]:
    """For each part of some numbers' words those that may come next."""
    out: dict[tuple[str, ...], dict[str, None]] = {}
    for number in numbers:
        words = tuple(_number_words(number))
        for at, word in enumerate(words):
            out.setdefault(words[:at], {})[word] = None
    return out


def _read(words: Sequence[str]) -> tuple[tuple[Edit, ...], str | None, Sequence[str]]:
    """The edits that are complete, the first word of one that is not (or the end), and what follows it."""
    edits: list[Edit] = []
    at = 0
    while at < len(words):
        head = words[at]
        numbers, part = _numbers(words[at + 1 :], 4 if head == SPLIT else 2)
        if head == END or len(numbers) < (4 if head == SPLIT else 2):
            return tuple(edits), head, words[at + 1 :]
        edits.append(edit_of(head, numbers))
        at = len(words) - len(part)
    return tuple(edits), None, ()


def _numbers(words: Sequence[str], most: int = 4) -> tuple[tuple[int, ...], Sequence[str]]:
    """Numbers that are complete, at most so many, and what follows them."""
    out: list[int] = []
    at = 0
    while len(out) < most and at < len(words):
        sign = words[at] == MINUS
        first = words[at + 1] if sign and at + 1 < len(words) else words[at]
        end = at + sign + 1 + (int(first[1:]) if first in LONG else 0)
        if end > len(words):
            break
        out.append(number_of(words[at:end]))
        at = end
    return tuple(out), words[at:]
