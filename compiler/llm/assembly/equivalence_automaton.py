"""Automaton of the programs that are equivalent to a given one: its commands in any legal order and division.

`compiler.llm.assembly.decoder_state` restricts programs to safe ones; this automaton further restricts them to
equivalent ones. It has no loops: the commands of later iterations are unknown while a body is written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from compiler.codegen.semaphores import Issued
from compiler.llm.assembly.completion import HALT
from compiler.llm.assembly.tokenizer import words_of
from compiler.tuning.edits.edit import MOST_DIMS, ordered, reach_of
from compiler.tuning.edits.split import dims_of, split
from hw.config import MlaConfig
from hw.isa.commands import PACKED_FIELDS, UNIT_FIELDS, defaults, field_number
from hw.isa.enums import Unit
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
            if not any(ordered(self.config, before, command) for before in self.commands[:at])
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
    each = [reach_of(config, command) for command in (first, second)]
    return any(
        (a.write and not b.write if own else a.write or b.write) and a.meets(b)
        for a in each[0]
        for b in each[1]
    )


def _parts(config: MlaConfig, command: Issued) -> Iterator[tuple[Issued, Issued]]:
    """Yield pairs of commands that together are equivalent to one."""
    for dim in dims_of(command, config.n)[:MOST_DIMS]:
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
