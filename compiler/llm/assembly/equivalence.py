"""Programs equivalent to a given one: their automaton, and the decoding state that admits only them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product

from compiler.codegen.semaphores import Issued
from compiler.llm.assembly.abstract_machine import TOKENS, ProgramTracker
from compiler.llm.assembly.completion import FENCE, HALT, Counts, index_of
from compiler.llm.assembly.decoder_state import GrammarState
from compiler.llm.assembly.lexicon import SIGNALS, STOP, WAITS
from compiler.llm.assembly.tokenizer import words_of
from compiler.tuning.edits.edit import MAX_DIMS, dims_of, footprint_of, must_precede, split
from hw.config import MlaConfig
from hw.isa.commands import PACKED_FIELDS, UNIT_FIELDS, defaults, field_number
from hw.isa.enums import SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.isa.micro_instruction import ISSUE_D, OPERAND_BASE, MicroOp, encode
from hw.isa.program import Program

#: Number of pending commands considered for the next one.
_AHEAD = 12
#: Tokens of a command besides setting fields and naming semaphores: a fence and the issue, and a tag.
_BESIDE, _TAG = 2, 2
#: Maximum number of tokens of a number.
_NUMBER = 5
#: Field values of a unit, and the operand to which its DRAM address is relative (-1: none).
Fields = tuple[int, ...]
_DRAM = {
    unit: next(index for index, item in enumerate(UNIT_FIELDS[unit]) if item.name == "dram")
    for unit in (Unit.LOAD, Unit.STORE)
}
_BEGIN = {unit: (*defaults(unit).values(), -1 if unit in _DRAM else 0) for unit in Unit}


def fields_of(command: Issued) -> Fields:
    """Return the field values of a command."""
    return (*command.values, command.region)


@dataclass(frozen=True)
class CommandTrack:
    """Command that may be issued next.

    Parameters
    ----------
    command : Issued
        A pending command, or the first part of one.
    rest : WaitingCommands
        Commands that remain afterwards.
    first : bool
        True if it is the first pending command, undivided.
    """

    command: Issued
    rest: "WaitingCommands"
    first: bool

    @cached_property
    def fields(self) -> Fields:
        """Return the field values of the command."""
        return fields_of(self.command)


class WaitingCommands:
    """Commands that have not been issued yet.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration.
    commands : sequence of Issued
        Commands in the order of the original program; `layer` is their tag.
    parts : sequence of bool
        True for the rest of a divided command, which is not divided again.
    """

    def __init__(self, config: MlaConfig, commands: Sequence[Issued], parts: Sequence[bool]):
        self.config, self.commands, self.parts = config, tuple(commands), tuple(parts)

    @cached_property
    def ways(self) -> dict[Unit, list[CommandTrack]]:
        """Return the commands that may be issued next, by unit."""
        found: dict[tuple[Unit, Fields], CommandTrack] = {}
        for way in self._ways():
            found.setdefault((way.command.unit, way.fields), way)
        return {unit: [way for (own, _), way in found.items() if own == unit] for unit in Unit}

    def _ways(self) -> Iterator[CommandTrack]:
        """Yield candidates, whole commands first, since a part may equal one."""
        free = [
            at
            for at, command in enumerate(self.commands[:_AHEAD])
            if not any(must_precede(self.config, before, command) for before in self.commands[:at])
        ]
        for at in free:
            yield CommandTrack(self.commands[at], self._with(at, ()), at == 0)
        for at in free:
            if not self.parts[at]:
                for first, second in _parts(self.config, self.commands[at]):
                    yield CommandTrack(first, self._with(at, (second,)), False)

    def _with(self, at: int, left: tuple[Issued, ...]) -> "WaitingCommands":
        """Return the commands with one replaced by its remaining parts."""
        commands = (*self.commands[:at], *left, *self.commands[at + 1 :])
        return WaitingCommands(
            self.config, commands, (*self.parts[:at], *[True] * len(left), *self.parts[at + 1 :])
        )

    def hears(self, command: Issued, unit: int) -> tuple[bool, bool]:
        """Return whether commands of a unit depend on the issued one, and whether one cannot wait for a later command.

        Parameters
        ----------
        command : Issued
            Command that is issued.
        unit : int
            Unit of the dependent commands. One that also depends on a later command of the first unit can wait for it.
        """
        config, found = self.config, False
        for at, each in enumerate(self.commands):
            if each.unit == unit and _conflict(config, command, each):
                found = True
                before = (other for other in self.commands[:at] if other.unit == command.unit)
                if not any(_conflict(config, other, each) for other in before):
                    return True, True
        return found, False

    def words(self, fields: dict[Unit, Fields], tag: int) -> int:
        """Return the tokens needed to issue all commands in order, without semaphores."""
        total, now = 0, dict(fields)
        for command in self.commands:
            wanted = fields_of(command)
            total += _BESIDE + _setting_words(command.unit, now[command.unit], wanted)
            total += _TAG * (command.layer != tag)
            now[command.unit], tag = wanted, command.layer
        return total

    @cached_property
    def detour(self) -> int:
        """Return the maximum extra tokens if another command, or the first part of one, is issued first."""
        ways = [way.command for found in self.ways.values() for way in found]
        every = [*ways, *self.commands]
        most = 0
        for unit in Unit:
            columns = zip(*(fields_of(each) for each in every if each.unit == unit), strict=True)
            varying = [at for at, column in enumerate(columns) if len(set(column)) > 1]
            most = max(most, sum(_LONGEST[unit][min(at, len(_LONGEST[unit]) - 1)] for at in varying))
        return 3 * most + _BESIDE + _TAG


def _conflict(config: MlaConfig, first: Issued, second: Issued) -> bool:
    """Return whether a command must wait for an earlier one; in the same unit only read-after-write conflicts count."""
    own = first.unit == second.unit
    each = [footprint_of(config, command) for command in (first, second)]
    return any(
        (a.write and not b.write if own else a.write or b.write) and a.meets(b)
        for a in each[0]
        for b in each[1]
    )


def _parts(config: MlaConfig, command: Issued) -> Iterator[tuple[Issued, Issued]]:
    """Yield pairs of commands that together are equivalent to one."""
    for dim in dims_of(command, config.n)[:MAX_DIMS]:
        for eighths in range(1, 8):
            try:
                first, second = split(command, dim, eighths)
            except ValueError:  # a field has no room for what it would be
                continue
            yield replace(first, layer=command.layer), replace(second, layer=command.layer)


@dataclass(frozen=True)
class EquivalenceAutomaton:
    """Automaton state: progress of a program.

    Parameters
    ----------
    waiting : WaitingCommands
        Commands that are not issued yet.
    fields : dict
        Current field values of each unit.
    tag : int
        Current counter tag; -1 if unknown.
    unit : Unit or None
        Unit whose fields are being set.
    fixed : frozenset of int
        Fields set since its last command; the next command must have these values.
    straight : bool
        True if that command must be the first pending one, for lack of tokens.
    """

    waiting: WaitingCommands
    fields: dict[Unit, Fields]
    tag: int = -1
    unit: Unit | None = None
    fixed: frozenset[int] = frozenset()
    straight: bool = False

    @staticmethod
    def of(config: MlaConfig, commands: Sequence[Issued]) -> "EquivalenceAutomaton":
        """Return the initial state."""
        return EquivalenceAutomaton(WaitingCommands(config, commands, [False] * len(commands)), dict(_BEGIN))

    @property
    def done(self) -> bool:
        """Return whether all commands are issued."""
        return not self.waiting.commands

    def count(self, unit: int) -> int:
        """Return the number of pending commands of a unit."""
        return sum(command.unit == unit for command in self.waiting.commands)

    def words(self) -> int:
        """Return the tokens needed to finish, excluding semaphores."""
        return self.waiting.words(self.fields, self.tag) + 2

    @property
    def issuable(self) -> CommandTrack | None:
        """Return the command that the current field values describe, if any."""
        for unit in Unit if self.unit is None else (self.unit,):
            for way in self.waiting.ways[unit]:
                if way.fields == self.fields[unit]:
                    return way
        return None

    def next(self, room: int) -> dict[tuple[str, ...], "EquivalenceAutomaton"]:
        """Return the instructions that may come next and the state after each; without semaphores.

        Parameters
        ----------
        room : int
            Remaining token budget; if it is small, commands are issued in order and undivided.
        """
        if self.done:
            return {(HALT,): self}
        first = self.waiting.commands[0]
        if self.tag != first.layer:
            return {_said(encode(MicroOp.TAG, imm=first.layer)): replace(self, tag=first.layer)}
        if self.unit is None and room < self.words() + self.waiting.detour:
            return replace(self, straight=True)._ahead()
        return self._ahead()

    def _ahead(self) -> dict[tuple[str, ...], "EquivalenceAutomaton"]:
        """Return the instructions that lead to a command."""
        out: dict[tuple[str, ...], EquivalenceAutomaton] = {}
        for unit in Unit if self.unit is None else (self.unit,):
            own = self.fields[unit]
            for way in self.waiting.ways[unit]:
                if way.first >= self.straight and all(way.fields[at] == own[at] for at in self.fixed):
                    out.update(self._towards(unit, way))
        return out

    def _towards(
        self, unit: Unit, way: CommandTrack
    ) -> Iterator[tuple[tuple[str, ...], "EquivalenceAutomaton"]]:
        """Yield instructions that set a field towards a command, or issue it."""
        own = self.fields[unit]
        if own == way.fields:
            yield ISSUES[unit], replace(self, waiting=way.rest, unit=None, fixed=frozenset(), straight=False)
        for at in _different(unit, own, way.fields):
            fields = _with(unit, own, at, way.fields)
            more = replace(
                self, fields=self.fields | {unit: fields}, unit=unit, fixed=self.fixed | _places(unit, at)
            )
            yield _set(unit, at, *_values(unit, at, way.fields)), more


#: Issue instruction of each unit, without semaphores.
ISSUES = {
    unit: tuple(words_of(Program("", (encode(MicroOp.ISSUE, d=ISSUE_D.pack(unit=unit)),)))[:-1])
    for unit in Unit
}


def _different(unit: Unit, one: Fields, other: Fields) -> list[int]:
    """Return the fields that differ; an address and its operand count as one."""
    found = [at for at, (own, wanted) in enumerate(zip(one, other, strict=True)) if own != wanted]
    if unit in _DRAM and found and found[-1] == len(one) - 1:
        found = sorted({*found[:-1], _DRAM[unit]})
    return found


def _places(unit: Unit, at: int) -> frozenset[int]:
    return frozenset((at, len(UNIT_FIELDS[unit])) if _DRAM.get(unit) == at else (at,))


def _with(unit: Unit, fields: Fields, at: int, wanted: Fields) -> Fields:
    """Return field values with one replaced by that of another command."""
    places = _places(unit, at)
    return tuple(wanted[i] if i in places else value for i, value in enumerate(fields))


def _values(unit: Unit, at: int, fields: Fields) -> tuple[int, int]:
    """Return the value to set a field to, and the selector that is added."""
    return fields[at], OPERAND_BASE + fields[-1] if _DRAM.get(unit) == at else 0


def _setting_words(unit: Unit, now: Fields, wanted: Fields) -> int:
    return sum(len(_set(unit, at, *_values(unit, at, wanted))) for at in _different(unit, now, wanted))


@cache
def _set(unit: Unit, at: int, value: int, selector: int) -> tuple[str, ...]:
    """Return the tokens that set a field."""
    return _said(encode(MicroOp.SET, d=field_number(unit, UNIT_FIELDS[unit][at].name), b=selector, imm=value))


def _said(word: int) -> tuple[str, ...]:
    """Return the tokens of an instruction."""
    return tuple(words_of(Program("", (word,)))[:-1])


def _longest(unit: Unit, at: int) -> int:
    """Return the maximum number of tokens that set a field."""
    name = f"{unit.name.lower()}.{UNIT_FIELDS[unit][at].name}"
    parts = len(PACKED_FIELDS[name].fields) if name in PACKED_FIELDS else 0
    return 3 + max(1 + _NUMBER, parts * (1 + _NUMBER))


_LONGEST = {unit: [_longest(unit, at) for at in range(len(UNIT_FIELDS[unit]))] for unit in Unit}

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
