"""Decoding state that restricts a program to those equivalent to a given one."""

from collections.abc import Callable, Sequence
from itertools import product

from compiler.codegen.semaphores import Issued
from compiler.llm.assembly.abstract_machine import TOKENS, ProgramTracker
from compiler.llm.assembly.completion import FENCE, HALT, Counts, index_of
from compiler.llm.assembly.decoder_state import GrammarState
from compiler.llm.assembly.equivalence_automaton import ISSUES, EquivalenceAutomaton
from compiler.llm.assembly.lexicon import SIGNALS, STOP, WAITS
from hw.isa.enums import SEMAPHORES_PER_PAIR, SEQUENCER, Unit

#: Tokens that signal and wait for a semaphore.
_TOKEN = 2
_PLACES = [(*pair, number) for pair in product(Unit, Unit) for number in range(SEMAPHORES_PER_PAIR)]
_WAIT = {word: number for number, word in enumerate(WAITS)}
_SIGNAL = {word: number for number, word in enumerate(SIGNALS)}
_UNIT = {word: unit for unit, (word,) in ISSUES.items()}


def given(commands: Sequence[Issued]) -> list[int]:
    """Return the number of signals of each semaphore by the commands, in the order of all semaphore counts."""
    out = [0] * (TOKENS * (SEQUENCER + 1))
    for command in commands:
        for number in range(TOKENS):
            out[_place(command.unit, number)] += command.signal >> number & 1
    return out


class EquivalenceDecoder:
    """Gives the tokens that lead to a program equivalent to a sequence of commands.

    A command signals a unit if one of its pending commands depends on it and on no later command of the same unit.
    It may also signal if there are later ones, as long as enough commands remain to wait. Always the first semaphore of
    a pair is used, as in `compiler.codegen.semaphores`, and there are never more signals than commands to wait for
    them. The signals that the original program leaves behind are given as late as possible, when all work that they
    represent is done.

    Parameters
    ----------
    work : EquivalenceAutomaton
        Initial state of the automaton.
    goal, own : sequence of int
        Semaphore counts that the program leaves, and how many of them are its own signals.
    room : int
        Token budget of the program.
    alone : bool
        True if the program begins by waiting for all units.
    """

    def __init__(self, work: EquivalenceAutomaton, goal: Counts, own: Counts, room: int, *, alone: bool):
        self._work, self._goal, self._own, self._left, self._alone = work, goal, own, room, alone
        self._said: tuple[str, ...] = ()
        self._options: dict[tuple[str, ...], EquivalenceAutomaton] = {(FENCE,): work} if alone else {}
        self._next: dict[tuple[str, ...], EquivalenceAutomaton] | None = None

    def may_begin(self, counts: Counts) -> bool:
        """Return whether a program exists within the token budget for the given initial semaphore counts."""
        more = self._more(counts)
        for producer, consumer, number in _PLACES:
            place = index_of(producer, consumer, number)
            if not 0 <= more[place] <= self._work.count(consumer) or self._own[place] > self._work.count(
                producer
            ):
                return False
        return self._alone + self._work.words() <= self._room(counts)

    def take(self, word: str, counts: Counts) -> None:
        """Append a token; `counts` as for `words`."""
        longer = (*self._said, word)
        if not self._goes_on(longer):
            options = {(FENCE,): self._behind} if word == FENCE else self._following(counts)
            self._work, self._options, longer = self._behind, options, (word,)
        self._said, self._next = longer, None
        self._left -= 1

    def words(self, state: GrammarState) -> set[str]:
        """Return the tokens that may follow; if empty, only waiting for all units can follow.

        Parameters
        ----------
        state : GrammarState
            State of the same program under the assembly grammar.
        """
        at = len(self._said)
        out = {option[at] for option in self._options if len(option) > at and option[:at] == self._said}
        ends = self._said in self._options or not (self._said or self._alone)
        if self._unit is not None:
            more, ends = self._semaphores(self._unit, state.before)
            out |= more
        return out | (self._heads(state) if ends else set())

    def _heads(self, state: GrammarState) -> set[str]:
        """Return the first tokens of instructions after the current one."""
        counts = state.before.counts
        heads = {option[0] for option in self._following(counts)}
        more = self._more(counts)
        return {
            word
            for word in heads
            if word not in _UNIT or state.behind.may_issue(_UNIT[word], _to_take(_UNIT[word], more))
        }

    def _more(self, counts: Counts) -> list[int]:
        """Return surplus semaphore counts after the current instruction, without those that stay."""
        more = [count - goal + owed for count, goal, owed in zip(counts, self._goal, self._owed, strict=True)]
        if self._unit is not None:
            for word in self._said[1:]:
                if word in _WAIT:
                    more[TOKENS * self._unit + _WAIT[word]] -= 1
                else:
                    more[_place(self._unit, _SIGNAL[word])] += 1
        return more

    @property
    def _owed(self) -> list[int]:
        """Return the signals that the last commands, including the current one, must still leave behind."""
        owed = [0] * len(self._goal)
        for producer, consumer, number in _PLACES:
            place = index_of(producer, consumer, number)
            if self._own[place]:
                owed[place] = min(self._own[place], self._behind.count(producer))
        if self._unit is not None:
            for number in self._to_give(self._unit):
                owed[_place(self._unit, number)] += 1
        return owed

    def _to_give(self, unit: Unit) -> list[int]:
        """Return the semaphores that the current command of a unit must still signal for the final counts."""
        before, after, out = self._work.count(unit), self._behind.count(unit), []
        for number in range(TOKENS):
            own = self._own[_place(unit, number)]
            if min(own, before) > min(own, after) and SIGNALS[number] not in self._said:
                out.append(number)
        return out

    def _room(self, counts: Counts) -> int:
        """Return the remaining token budget, without waits and signals."""
        return self._left - sum(map(abs, self._more(counts))) - sum(self._owed)

    @property
    def _unit(self) -> Unit | None:
        """Return the unit whose command is being issued."""
        return _UNIT.get(self._said[0]) if self._said else None

    @property
    def _behind(self) -> EquivalenceAutomaton:
        """Return the automaton state after the current instruction."""
        if not self._said:
            return self._work
        return self._options[self._said[:1] if self._unit is not None else self._said]

    def _following(self, counts: Counts) -> dict[tuple[str, ...], EquivalenceAutomaton]:
        """Return the instructions after the current one, as in `EquivalenceAutomaton.next`."""
        if self._next is None:
            halted = self._said == (HALT,)
            self._next = {(STOP,): self._behind} if halted else self._behind.next(self._room(counts))
        return self._next

    def _goes_on(self, longer: tuple[str, ...]) -> bool:
        if self._unit is not None:
            return longer[-1] in _WAIT or longer[-1] in _SIGNAL
        return any(option[: len(longer)] == longer for option in self._options)

    def _semaphores(self, unit: Unit, tracker: ProgramTracker) -> tuple[set[str], bool]:
        """Return the semaphores that the current command may name, and whether it has all required ones."""
        counts = tracker.counts
        way, after = self._work.issuable, self._behind
        assert way
        waits = [_WAIT[word] for word in self._said[1:] if word in _WAIT]
        signals = [_SIGNAL[word] for word in self._said[1:] if word in _SIGNAL]
        more = self._more(counts)
        must = [number for number in range(TOKENS) if more[TOKENS * unit + number] > after.count(unit)]
        last = min(must, default=TOKENS - 1)
        said, free = sum(1 << number for number in waits), _to_take(unit, more) & tracker.available(unit)

        def helps(number: int) -> bool:
            others = free >> number << number
            return bool(free >> number & 1) and tracker.may_issue(unit, said | others)

        taken = _named(WAITS, _after(waits), last, helps)
        if must:
            return taken, False
        give, may = set(self._to_give(unit)), set[int]()
        for consumer in Unit if self._room(counts) >= after.words() + _TOKEN else ():
            number = consumer * SEMAPHORES_PER_PAIR
            free = after.count(consumer) - more[_place(unit, number)]
            if free > 0 and SIGNALS[number] not in self._said:
                hears, waits_for_no_more = after.waiting.hears(way.command, consumer)
                may |= {number} if hears and free > 1 else set()
                give |= {number} if waits_for_no_more else set()
        given = _named(SIGNALS, _after(signals), min(give, default=TOKENS - 1), (may | give).__contains__)
        return given if signals else taken | given, not give


def _to_take(unit: Unit, more: Sequence[int]) -> int:
    """Return the bit mask of semaphores of a unit with more tokens than their final count."""
    return sum(1 << number for number in range(TOKENS) if more[TOKENS * unit + number] > 0)


def _place(producer: Unit, number: int) -> int:
    """Return the index of a signal's semaphore among all counts."""
    return index_of(producer, number // SEMAPHORES_PER_PAIR, number % SEMAPHORES_PER_PAIR)


def _after(numbers: list[int]) -> int:
    return numbers[-1] + 1 if numbers else 0


def _named(names: Sequence[str], first: int, last: int, which: Callable[[int], bool]) -> set[str]:
    """Return the names of the numbers in a range that satisfy a condition."""
    return {names[number] for number in range(first, last + 1) if which(number)}
