"""Automaton of the programs that are equivalent to a given program, and a decoder that admits only these programs."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product

from compiler.codegen.emit import (
    CommandLoop,
    ProgramLengthError,
    RegistersError,
    emit_fragment,
    reroll,
)
from compiler.codegen.semaphores import Issued, synchronize
from compiler.llm.assembly.abstract_machine import SEMAPHORES_PER_CONSUMER, ProgramTracker
from compiler.llm.assembly.grammar import GrammarState
from compiler.llm.assembly.program_completer import FENCE, HALT, Counts, semaphore_index
from compiler.llm.assembly.tokenizer import encode_program
from compiler.llm.tokens.assembly_tokens import SIGNALS, STOP, WAITS
from compiler.tuning.edits.edit import MAX_DIMS, dims_of, footprint_of, must_precede, split
from compiler.tuning.edits.rewrites import Instruction, ProgramLoop, encode_items, parse_items
from hw.config import MlaConfig
from hw.isa.commands import PACKED_FIELDS, UNIT_FIELDS, defaults, field_number
from hw.isa.enums import SEMAPHORES_PER_PAIR, SEQUENCER, Unit
from hw.isa.micro_instruction import ISSUE_D, OPERAND_BASE, MicroOp, encode
from hw.isa.program import Program

#: Number of pending commands that are candidates for the next command.
_LOOKAHEAD_COMMANDS = 12
#: Number of tokens of a command in addition to those for fields and semaphores: `fence` and `issue`; `tag` with its
#: number.
_ISSUE_TOKENS, _TAG_TOKENS = 2, 2
#: Maximum number of tokens of an integer.
_MAX_NUMBER_TOKENS = 5
#: Field values of a unit, followed by the operand to which its DRAM address is relative (-1: none).
Fields = tuple[int, ...]
_DRAM = {
    unit: next(index for index, item in enumerate(UNIT_FIELDS[unit]) if item.name == "dram")
    for unit in (Unit.LOAD, Unit.STORE)
}
_INITIAL_FIELDS = {unit: (*defaults(unit).values(), -1 if unit in _DRAM else 0) for unit in Unit}


def fields_of(command: Issued) -> Fields:
    """Return the field values of a command."""
    return (*command.values, command.region)


@dataclass(frozen=True)
class NextCommand:
    """Command that may be issued next.

    Parameters
    ----------
    command : Issued
        A pending command, or the first half of a split one.
    rest : PendingCommands
        Commands that remain after this one.
    first : bool
        True if the command is the first pending command and is not split.
    """

    command: Issued
    rest: "PendingCommands"
    first: bool

    @cached_property
    def fields(self) -> Fields:
        """Field values of the command."""
        return fields_of(self.command)


@dataclass(frozen=True)
class LoopRegion:
    """Repeated commands of the original program, and the text of a loop that issues them.

    The text begins and ends with a fence for all units, and so does each iteration. The commands of an iteration take
    all tokens that they signal. The text therefore depends on nothing that precedes it.

    Parameters
    ----------
    tail : int
        Number of commands from the first of the region to the last of the program.
    commands : tuple of Issued
        Commands of the region, in order.
    tokens : tuple of str
        Text of the loop, and of what precedes and follows it.
    known : dict
        Values of fields on which the tokens rely, by unit and index.
    """

    tail: int
    commands: tuple[Issued, ...]
    tokens: tuple[str, ...]
    known: dict[tuple[Unit, int], int]

    def text(self, fields: Mapping[Unit, Fields]) -> tuple[str, ...]:
        """Return the tokens after a state of the fields: those on which the loop relies are set if they differ."""
        changed = [
            _set_tokens(unit, index, value, 0)
            for (unit, index), value in self.known.items()
            if fields[unit][index] != value
        ]
        return (FENCE, *(token for tokens in changed for token in tokens), *self.tokens[1:])


def loop_regions(config: MlaConfig, commands: Sequence[Issued]) -> list[LoopRegion]:
    """Return the repetitions in a program, as the compiler finds them.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the program.
    commands : sequence of Issued
        Commands of the program, in order; the attribute `layer` is the counter tag.
    """
    out, at = [], 0
    for item in reroll([_without_semaphores(each) for each in commands], 1):
        count, length = (item.count, len(item.body)) if isinstance(item, CommandLoop) else (1, 1)
        own = tuple(commands[at : at + count * length])
        if count > 1:
            known = _known_fields(commands, at)
            text = _loop_text(config, own, length, known)
            out += [LoopRegion(len(commands) - at, own, text, known)] if text else []
        at += count * length
    return out


def _without_semaphores(command: Issued) -> Issued:
    return Issued(command.unit, command.layer, command.values, command.region)


def _known_fields(commands: Sequence[Issued], at: int) -> dict[tuple[Unit, int], int]:
    """Return the fields that have the same values before command `at`, in whichever order the commands are issued."""
    out: dict[tuple[Unit, int], int] = {}
    for unit in Unit:
        if not any(command.unit == unit for command in commands[:at]):
            out |= {(unit, index): value for index, value in enumerate(defaults(unit).values())}
            continue
        columns = zip(*(command.values for command in commands if command.unit == unit), strict=True)
        for index, values in enumerate(columns):
            if len(set(values)) == 1 and index != _DRAM.get(unit):
                out[unit, index] = values[0]
    return out


def _loop_text(
    config: MlaConfig, commands: Sequence[Issued], length: int, known: Mapping[tuple[Unit, int], int]
) -> tuple[str, ...]:
    """Return the tokens of a loop that issues commands, `length` in each iteration; empty if there is none."""
    made: list[Issued] = []
    for at in range(0, len(commands), length):
        iteration = [_without_semaphores(each) for each in commands[at : at + length]]
        synchronize(config, iteration)
        if not _takes_own_tokens(iteration):
            return ()
        made += iteration
    items = reroll(made, 1)
    try:
        words = emit_fragment(items, range(config.tags), known)
    except (RegistersError, ProgramLengthError):
        return ()
    program = parse_items(words)
    fence = Instruction.from_word(encode(MicroOp.FENCE, d=(1 << len(Unit)) - 1))
    if len(items) > 1 or program is None or fence is None:
        return ()
    fenced = [
        replace(each, body=(*each.body, fence)) if isinstance(each, ProgramLoop) else each for each in program
    ]
    return (FENCE, *encode_program(Program("", encode_items(fenced)))[:-1], FENCE)


def _takes_own_tokens(commands: Sequence[Issued]) -> bool:
    """Return whether commands take as many tokens from each semaphore as they signal."""
    sent, taken = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for each in commands:
        for number in range(SEMAPHORES_PER_CONSUMER):
            sent[each.unit, number // SEMAPHORES_PER_PAIR] += each.signal >> number & 1
            taken[number // SEMAPHORES_PER_PAIR, each.unit] += each.wait >> number & 1
    return +sent == +taken


class PendingCommands:
    """Commands that have not been issued yet.

    Parameters
    ----------
    config : MlaConfig
        Hardware configuration of the programs.
    commands : sequence of Issued
        Commands in the order of the original program; the attribute `layer` is the counter tag.
    halves : sequence of bool
        For each command, True if it is the second half of a split command; halves are not split again.
    regions : sequence of LoopRegion
        Repetitions among the commands, in order, which are written as loops or, if there is room, unrolled. No command
        is moved across the start of a loop that has not been unrolled.
    """

    def __init__(
        self,
        config: MlaConfig,
        commands: Sequence[Issued],
        halves: Sequence[bool],
        regions: Sequence[LoopRegion] = (),
    ):
        self.config, self.commands, self.halves = config, tuple(commands), tuple(halves)
        self.regions = tuple(regions)

    @cached_property
    def window(self) -> tuple[Issued, ...]:
        """Commands before the next loop, among which the next command is chosen."""
        return self.commands[: -self.regions[0].tail] if self.regions else self.commands

    @cached_property
    def singles(self) -> tuple[Issued, ...]:
        """Commands that are not part of loops."""
        inside = {
            at for start, loop in self._starts.items() for at in range(start, start + len(loop.commands))
        }
        return tuple(command for at, command in enumerate(self.commands) if at not in inside)

    @cached_property
    def _starts(self) -> dict[int, LoopRegion]:
        """Loops by the index of their first command."""
        return {len(self.commands) - loop.tail: loop for loop in self.regions}

    @property
    def loop(self) -> LoopRegion | None:
        """Loop that comes next; None if a single command does."""
        return self.regions[0] if self.regions and not self.window else None

    def after_loop(self) -> "PendingCommands":
        """Return the commands that remain after the loop that comes next."""
        count = len(self.regions[0].commands)
        return PendingCommands(self.config, self.commands[count:], self.halves[count:], self.regions[1:])

    def unrolled(self) -> "PendingCommands":
        """Return the same commands, those of the next loop as single commands."""
        return PendingCommands(self.config, self.commands, self.halves, self.regions[1:])

    @cached_property
    def candidates(self) -> dict[Unit, list[NextCommand]]:
        """Commands that may be issued next, by unit."""
        found: dict[tuple[Unit, Fields], NextCommand] = {}
        for candidate in self._candidates():
            found.setdefault((candidate.command.unit, candidate.fields), candidate)
        return {unit: [candidate for (own, _), candidate in found.items() if own == unit] for unit in Unit}

    def _candidates(self) -> Iterator[NextCommand]:
        """Yield candidates, whole commands before halves, since a half may equal a whole command."""
        free = [
            at
            for at, command in enumerate(self.window[:_LOOKAHEAD_COMMANDS])
            if not any(must_precede(self.config, before, command) for before in self.commands[:at])
        ]
        for at in free:
            yield NextCommand(self.commands[at], self._with(at, ()), at == 0)
        for at in free:
            if not self.halves[at]:
                for first, second in _splits(self.config, self.commands[at]):
                    yield NextCommand(first, self._with(at, (second,)), False)

    def _with(self, at: int, left: tuple[Issued, ...]) -> "PendingCommands":
        """Return the pending commands with command `at` replaced by the commands `left`."""
        commands = (*self.commands[:at], *left, *self.commands[at + 1 :])
        halves = (*self.halves[:at], *[True] * len(left), *self.halves[at + 1 :])
        return PendingCommands(self.config, commands, halves, self.regions)

    def dependents(self, command: Issued, unit: int) -> tuple[bool, bool]:
        """Return whether commands of a unit depend on an issued command, and whether one of them must wait for it.

        A dependent command that also depends on a later command of the issuing unit can wait for the later command
        instead.

        Parameters
        ----------
        command : Issued
            Command that is issued.
        unit : int
            Unit of the dependent commands.
        """
        config, found = self.config, False
        for at, each in enumerate(self.window):
            if each.unit == unit and _conflict(config, command, each):
                found = True
                before = (other for other in self.commands[:at] if other.unit == command.unit)
                if not any(_conflict(config, other, each) for other in before):
                    return True, True
        return found, False

    def tokens(self, fields: dict[Unit, Fields], tag: int) -> int:
        """Return the number of tokens needed to issue all commands in order and to write all loops, without semaphores.

        Parameters
        ----------
        fields : dict
            Current field values of each unit.
        tag : int
            Current counter tag.
        """
        total, now, at = 0, dict(fields), 0
        while at < len(self.commands):
            if at in self._starts:
                region = self._starts[at]
                total += len(region.text(now))
                now |= {command.unit: fields_of(command) for command in region.commands}
                tag = region.commands[-1].layer
                at += len(region.commands)
                continue
            command, at = self.commands[at], at + 1
            wanted = fields_of(command)
            total += _ISSUE_TOKENS + _setting_tokens(command.unit, now[command.unit], wanted)
            total += _TAG_TOKENS * (command.layer != tag)
            now[command.unit], tag = wanted, command.layer
        return total

    @cached_property
    def max_detour(self) -> int:
        """Maximum number of additional tokens if a command other than the first, or a half, is issued first."""
        candidates = [candidate.command for found in self.candidates.values() for candidate in found]
        every = [*candidates, *self.singles]
        maximum = 0
        for unit in Unit:
            columns = zip(*(fields_of(each) for each in every if each.unit == unit), strict=True)
            varying = [at for at, column in enumerate(columns) if len(set(column)) > 1]
            maximum = max(maximum, sum(_LONGEST[unit][min(at, len(_LONGEST[unit]) - 1)] for at in varying))
        return 3 * maximum + _ISSUE_TOKENS + _TAG_TOKENS


def _conflict(config: MlaConfig, first: Issued, second: Issued) -> bool:
    """Return whether `second` must wait for `first`; within a unit, only read-after-write conflicts count."""
    own = first.unit == second.unit
    each = [footprint_of(config, command) for command in (first, second)]
    return any(
        (a.write and not b.write if own else a.write or b.write) and a.meets(b)
        for a in each[0]
        for b in each[1]
    )


def _splits(config: MlaConfig, command: Issued) -> Iterator[tuple[Issued, Issued]]:
    """Yield the pairs of commands into which a command can be split."""
    for dim in dims_of(command, config.n)[:MAX_DIMS]:
        for eighths in range(1, 8):
            try:
                first, second = split(command, dim, eighths)
            except ValueError:  # a value exceeds the range of its field
                continue
            yield replace(first, layer=command.layer), replace(second, layer=command.layer)


@dataclass(frozen=True)
class EquivalenceAutomaton:
    """Immutable automaton state: pending commands and field values after a prefix of a program.

    Parameters
    ----------
    pending : PendingCommands
        Commands that have not been issued yet.
    fields : dict
        Current field values of each unit.
    tag : int
        Current counter tag; -1 if unknown.
    unit : Unit or None
        Unit whose fields are being set.
    fixed : frozenset of int
        Fields of `unit` set since its last command; its next command must have these values.
    in_order : bool
        True if the next command must be the first pending one, because the token budget is small.
    """

    pending: PendingCommands
    fields: dict[Unit, Fields]
    tag: int = -1
    unit: Unit | None = None
    fixed: frozenset[int] = frozenset()
    in_order: bool = False

    @staticmethod
    def initial(
        config: MlaConfig, commands: Sequence[Issued], regions: Sequence[LoopRegion] = ()
    ) -> "EquivalenceAutomaton":
        """Return the initial state; `regions` are written as loops, or unrolled if there is room."""
        pending = PendingCommands(config, commands, [False] * len(commands), regions)
        return EquivalenceAutomaton(pending, dict(_INITIAL_FIELDS))

    @property
    def done(self) -> bool:
        """True if all commands have been issued."""
        return not self.pending.commands

    def count(self, unit: int) -> int:
        """Return the number of pending commands of a unit outside of loops."""
        return sum(command.unit == unit for command in self.pending.singles)

    def tokens(self) -> int:
        """Return the number of tokens needed to complete the program, excluding semaphores."""
        return self.pending.tokens(self.fields, self.tag) + 2

    @property
    def issuable(self) -> NextCommand | None:
        """Candidate command that has the current field values; None if there is no such command."""
        for unit in Unit if self.unit is None else (self.unit,):
            for candidate in self.pending.candidates[unit]:
                if candidate.fields == self.fields[unit]:
                    return candidate
        return None

    def next(self, budget: int) -> dict[tuple[str, ...], "EquivalenceAutomaton"]:
        """Return the possible next instructions, without semaphores, and the state after each.

        Parameters
        ----------
        budget : int
            Remaining token budget; if the budget is small, commands are issued in order and not split.
        """
        if self.done:
            return {(HALT,): self}
        first, loop = self.pending.commands[0], self.pending.loop
        if loop is not None:
            return self._with_loop(loop, budget)
        if self.tag != first.layer:
            return {_tokens(encode(MicroOp.TAG, imm=first.layer)): replace(self, tag=first.layer)}
        if self.unit is None and budget < self.tokens() + self.pending.max_detour:
            return replace(self, in_order=True)._instructions()
        return self._instructions()

    def _with_loop(self, loop: LoopRegion, budget: int) -> dict[tuple[str, ...], "EquivalenceAutomaton"]:
        """Return the loop that comes next and, if there is room, what may be written instead."""
        fields = self.fields | {command.unit: fields_of(command) for command in loop.commands}
        after = replace(self, pending=self.pending.after_loop(), fields=fields, tag=loop.commands[-1].layer)
        plain = replace(self, pending=self.pending.unrolled())
        out: dict[tuple[str, ...], EquivalenceAutomaton] = {loop.text(self.fields): after}
        if budget >= plain.tokens() + plain.pending.max_detour:
            out |= plain.next(budget)
        return out

    def _instructions(self) -> dict[tuple[str, ...], "EquivalenceAutomaton"]:
        """Return the instructions that issue a candidate or set one of its fields, and the state after each."""
        out: dict[tuple[str, ...], EquivalenceAutomaton] = {}
        for unit in Unit if self.unit is None else (self.unit,):
            own = self.fields[unit]
            for candidate in self.pending.candidates[unit]:
                if candidate.first >= self.in_order and all(
                    candidate.fields[at] == own[at] for at in self.fixed
                ):
                    out.update(self._instructions_towards(unit, candidate))
        return out

    def _instructions_towards(
        self, unit: Unit, candidate: NextCommand
    ) -> Iterator[tuple[tuple[str, ...], "EquivalenceAutomaton"]]:
        """Yield instructions that set one differing field or issue the candidate, each with the state after it."""
        own = self.fields[unit]
        if own == candidate.fields:
            yield (
                ISSUE_TOKENS[unit],
                replace(self, pending=candidate.rest, unit=None, fixed=frozenset(), in_order=False),
            )
        for at in _differing_fields(unit, own, candidate.fields):
            fields = _with(unit, own, at, candidate.fields)
            after = replace(
                self,
                fields=self.fields | {unit: fields},
                unit=unit,
                fixed=self.fixed | _field_indices(unit, at),
            )
            yield _set_tokens(unit, at, *_values(unit, at, candidate.fields)), after


#: Tokens of the issue instruction of each unit, without semaphores.
ISSUE_TOKENS = {
    unit: tuple(encode_program(Program("", (encode(MicroOp.ISSUE, d=ISSUE_D.pack(unit=unit)),)))[:-1])
    for unit in Unit
}


def _differing_fields(unit: Unit, one: Fields, other: Fields) -> list[int]:
    """Return the indices of differing fields; an address and its operand count as one field."""
    found = [at for at, (own, wanted) in enumerate(zip(one, other, strict=True)) if own != wanted]
    if unit in _DRAM and found and found[-1] == len(one) - 1:
        found = sorted({*found[:-1], _DRAM[unit]})
    return found


def _field_indices(unit: Unit, at: int) -> frozenset[int]:
    return frozenset((at, len(UNIT_FIELDS[unit])) if _DRAM.get(unit) == at else (at,))


def _with(unit: Unit, fields: Fields, at: int, wanted: Fields) -> Fields:
    """Return the field values `fields` with the value of one field taken from `wanted`."""
    indices = _field_indices(unit, at)
    return tuple(wanted[i] if i in indices else value for i, value in enumerate(fields))


def _values(unit: Unit, at: int, fields: Fields) -> tuple[int, int]:
    """Return the value of a field, and the selector whose value is added to the field."""
    return fields[at], OPERAND_BASE + fields[-1] if _DRAM.get(unit) == at else 0


def _setting_tokens(unit: Unit, now: Fields, wanted: Fields) -> int:
    return sum(
        len(_set_tokens(unit, at, *_values(unit, at, wanted))) for at in _differing_fields(unit, now, wanted)
    )


@cache
def _set_tokens(unit: Unit, at: int, value: int, selector: int) -> tuple[str, ...]:
    """Return the tokens of the instruction that sets a field."""
    return _tokens(
        encode(MicroOp.SET, d=field_number(unit, UNIT_FIELDS[unit][at].name), b=selector, imm=value)
    )


def _tokens(word: int) -> tuple[str, ...]:
    """Return the tokens of an instruction."""
    return tuple(encode_program(Program("", (word,)))[:-1])


def _longest(unit: Unit, at: int) -> int:
    """Return the maximum number of tokens of an instruction that sets a field."""
    name = f"{unit.name.lower()}.{UNIT_FIELDS[unit][at].name}"
    parts = len(PACKED_FIELDS[name].fields) if name in PACKED_FIELDS else 0
    return 3 + max(1 + _MAX_NUMBER_TOKENS, parts * (1 + _MAX_NUMBER_TOKENS))


_LONGEST = {unit: [_longest(unit, at) for at in range(len(UNIT_FIELDS[unit]))] for unit in Unit}

#: Number of tokens to signal a semaphore and to wait for it.
_SEMAPHORE_TOKENS = 2
_SEMAPHORES = [(*pair, number) for pair in product(Unit, Unit) for number in range(SEMAPHORES_PER_PAIR)]
_WAIT = {token: number for number, token in enumerate(WAITS)}
_SIGNAL = {token: number for number, token in enumerate(SIGNALS)}
_UNIT = {token: unit for unit, (token,) in ISSUE_TOKENS.items()}


def signal_counts(commands: Sequence[Issued]) -> list[int]:
    """Return how often the commands signal each semaphore, in the order of `ProgramTracker.counts`."""
    out = [0] * (SEMAPHORES_PER_CONSUMER * (SEQUENCER + 1))
    for command in commands:
        for number in range(SEMAPHORES_PER_CONSUMER):
            out[_signal_index(command.unit, number)] += command.signal >> number & 1
    return out


class EquivalenceDecoder:
    """Decoder of programs that are equivalent to a sequence of commands.

    A command must signal another unit if a pending command of that unit depends on it, but on no later command of the
    issuing unit. If the pending command also depends on a later command, the signal is optional, as long as enough
    commands remain to wait for it. Only the first semaphore of each pair of units is used, as in
    `compiler.codegen.semaphores`. The number of signals never exceeds the number of commands that can wait for them.
    Signals for the counts that the original program leaves are sent as late as possible, after all work that they
    represent.

    Parameters
    ----------
    initial : EquivalenceAutomaton
        Initial state of the automaton.
    goal, own : sequence of int
        Semaphore counts after the program, and the share of each count that the program itself signals.
    budget : int
        Token budget of the program.
    alone : bool
        True if the program begins with a fence for all units.
    """

    def __init__(self, initial: EquivalenceAutomaton, goal: Counts, own: Counts, budget: int, *, alone: bool):
        self._work, self._goal, self._own, self._left, self._alone = initial, goal, own, budget, alone
        self._tokens: tuple[str, ...] = ()
        self._options: dict[tuple[str, ...], EquivalenceAutomaton] = {(FENCE,): initial} if alone else {}
        self._next_states: dict[tuple[str, ...], EquivalenceAutomaton] | None = None

    def feasible(self, counts: Counts) -> bool:
        """Return whether a program exists within the token budget for the given initial semaphore counts."""
        surplus = self._surplus(counts)
        for producer, consumer, number in _SEMAPHORES:
            index = semaphore_index(producer, consumer, number)
            if not 0 <= surplus[index] <= self._work.count(consumer) or self._own[index] > self._work.count(
                producer
            ):
                return False
        return self._alone + self._work.tokens() <= self._token_budget(counts)

    def advance(self, token: str, counts: Counts) -> None:
        """Append a token; `counts` are the semaphore counts before the current instruction."""
        extended = (*self._tokens, token)
        if not self._continues(extended):
            found = self._next_instructions(counts)
            loop = any(option[0] == FENCE for option in found)  # loops begin with a fence
            options = found if loop or token != FENCE else {(FENCE,): self._state_after}
            self._work, self._options, extended = self._state_after, options, (token,)
        self._tokens, self._next_states = extended, None
        self._left -= 1

    def tokens(self, state: GrammarState) -> set[str]:
        """Return the tokens that may follow; if the set is empty, only a fence for all units may follow.

        Parameters
        ----------
        state : GrammarState
            State of the assembly grammar for the same program.
        """
        at = len(self._tokens)
        out = {option[at] for option in self._options if len(option) > at and option[:at] == self._tokens}
        ends = self._tokens in self._options or not (self._tokens or self._alone)
        if self._unit is not None:
            semaphores, ends = self._semaphores(self._unit, state.before)
            out |= semaphores
        return out | (self._heads(state) if ends else set())

    def _heads(self, state: GrammarState) -> set[str]:
        """Return the possible first tokens of the next instruction."""
        counts = state.before.counts
        heads = {option[0] for option in self._next_instructions(counts)}
        surplus = self._surplus(counts)
        return {
            token
            for token in heads
            if token not in _UNIT
            or state.tracker_after.may_issue(_UNIT[token], _surplus_waits(_UNIT[token], surplus))
        }

    def _surplus(self, counts: Counts) -> list[int]:
        """Return by how much the semaphore counts after the current instruction exceed the counts that must remain."""
        surplus = [
            count - goal + owed
            for count, goal, owed in zip(counts, self._goal, self._owed_signals, strict=True)
        ]
        if self._unit is not None:
            for token in self._tokens[1:]:
                if token in _WAIT:
                    surplus[SEMAPHORES_PER_CONSUMER * self._unit + _WAIT[token]] -= 1
                else:
                    surplus[_signal_index(self._unit, _SIGNAL[token])] += 1
        return surplus

    @property
    def _owed_signals(self) -> list[int]:
        """Numbers of signals for the final counts that the current and later commands must still send."""
        owed = [0] * len(self._goal)
        for producer, consumer, number in _SEMAPHORES:
            index = semaphore_index(producer, consumer, number)
            if self._own[index]:
                owed[index] = min(self._own[index], self._state_after.count(producer))
        if self._unit is not None:
            for number in self._required_signals(self._unit):
                owed[_signal_index(self._unit, number)] += 1
        return owed

    def _required_signals(self, unit: Unit) -> list[int]:
        """Return the semaphores that the current command must still signal for the final counts."""
        before, after, out = self._work.count(unit), self._state_after.count(unit), []
        for number in range(SEMAPHORES_PER_CONSUMER):
            own = self._own[_signal_index(unit, number)]
            if min(own, before) > min(own, after) and SIGNALS[number] not in self._tokens:
                out.append(number)
        return out

    def _token_budget(self, counts: Counts) -> int:
        """Return the remaining token budget, reduced by the tokens of waits and signals."""
        return self._left - sum(map(abs, self._surplus(counts))) - sum(self._owed_signals)

    @property
    def _unit(self) -> Unit | None:
        """Unit whose command is being issued, if any."""
        return _UNIT.get(self._tokens[0]) if self._tokens else None

    @property
    def _state_after(self) -> EquivalenceAutomaton:
        """Automaton state after the current instruction."""
        if not self._tokens:
            return self._work
        return self._options[self._tokens[:1] if self._unit is not None else self._tokens]

    def _next_instructions(self, counts: Counts) -> dict[tuple[str, ...], EquivalenceAutomaton]:
        """Return the instructions that may follow the current one, as in `EquivalenceAutomaton.next`."""
        if self._next_states is None:
            halted = self._tokens == (HALT,)
            found = (
                {(STOP,): self._state_after} if halted else self._state_after.next(self._token_budget(counts))
            )
            surplus = self._surplus(counts)
            self._next_states = {
                option: state
                for option, state in found.items()
                if option[0] != FENCE or self._can_wait(surplus, state)
            }
        return self._next_states

    def _can_wait(self, surplus: Sequence[int], state: EquivalenceAutomaton) -> bool:
        """Return whether the commands after a loop can take all tokens and send those that must remain."""
        return all(
            surplus[index] <= state.count(consumer) and self._own[index] <= state.count(producer)
            for producer, consumer, number in _SEMAPHORES
            for index in (semaphore_index(producer, consumer, number),)
        )

    def _continues(self, extended: tuple[str, ...]) -> bool:
        if self._unit is not None:
            return extended[-1] in _WAIT or extended[-1] in _SIGNAL
        return any(option[: len(extended)] == extended for option in self._options)

    def _semaphores(self, unit: Unit, tracker: ProgramTracker) -> tuple[set[str], bool]:
        """Return the semaphore tokens that may follow, and whether the command already has all required signals."""
        counts = tracker.counts
        candidate, after = self._work.issuable, self._state_after
        assert candidate
        waits = [_WAIT[token] for token in self._tokens[1:] if token in _WAIT]
        signals = [_SIGNAL[token] for token in self._tokens[1:] if token in _SIGNAL]
        surplus = self._surplus(counts)
        missing_waits = [
            number
            for number in range(SEMAPHORES_PER_CONSUMER)
            if surplus[SEMAPHORES_PER_CONSUMER * unit + number] > after.count(unit)
        ]
        last = min(missing_waits, default=SEMAPHORES_PER_CONSUMER - 1)
        waited, free = (
            sum(1 << number for number in waits),
            _surplus_waits(unit, surplus) & tracker.available(unit),
        )

        def enables(number: int) -> bool:
            others = free >> number << number
            return bool(free >> number & 1) and tracker.may_issue(unit, waited | others)

        wait_names = _named(WAITS, _after(waits), last, enables)
        if missing_waits:
            return wait_names, False
        required, optional = set(self._required_signals(unit)), set[int]()
        for consumer in Unit if self._token_budget(counts) >= after.tokens() + _SEMAPHORE_TOKENS else ():
            number = consumer * SEMAPHORES_PER_PAIR
            free = after.count(consumer) - surplus[_signal_index(unit, number)]
            if free > 0 and SIGNALS[number] not in self._tokens:
                dependents, cannot_wait_longer = after.pending.dependents(candidate.command, consumer)
                optional |= {number} if dependents and free > 1 else set()
                required |= {number} if cannot_wait_longer else set()
        signal_names = _named(
            SIGNALS,
            _after(signals),
            min(required, default=SEMAPHORES_PER_CONSUMER - 1),
            (optional | required).__contains__,
        )
        return signal_names if signals else wait_names | signal_names, not required


def _surplus_waits(unit: Unit, surplus: Sequence[int]) -> int:
    """Return the bit mask of a unit's semaphores whose counts exceed the final counts."""
    return sum(
        1 << number
        for number in range(SEMAPHORES_PER_CONSUMER)
        if surplus[SEMAPHORES_PER_CONSUMER * unit + number] > 0
    )


def _signal_index(producer: Unit, number: int) -> int:
    """Return the index of a signal's semaphore among all counts."""
    return semaphore_index(producer, number // SEMAPHORES_PER_PAIR, number % SEMAPHORES_PER_PAIR)


def _after(numbers: list[int]) -> int:
    return numbers[-1] + 1 if numbers else 0


def _named(names: Sequence[str], first: int, last: int, which: Callable[[int], bool]) -> set[str]:
    """Return the names of the indices in first..last that satisfy a condition."""
    return {names[number] for number in range(first, last + 1) if which(number)}
