"""What a program has still to do: the commands of the one that it stands for, in any order and parts that they allow.

`compiler.llm.assembly.grammar` has programs that do no harm; those that follow this too do what they are to do. Loops
are none of them: what the turns of one will issue is not known while its body is written.
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

#: Commands that are looked at for what may come next.
_AHEAD = 12
#: Words that a command needs beside those that set its fields and name semaphores: a fence and itself; and a tag.
_BESIDE, _TAG = 2, 2
#: Words of a number, at most.
_NUMBER = 5
#: What the fields of a unit hold, and the operand that its address in DRAM is relative to (-1: none).
Fields = tuple[int, ...]
_DRAM = {
    unit: next(index for index, item in enumerate(UNIT_FIELDS[unit]) if item.name == "dram")
    for unit in (Unit.LOAD, Unit.STORE)
}
_BEGIN = {unit: (*defaults(unit).values(), -1 if unit in _DRAM else 0) for unit in Unit}


def fields_of(command: Issued) -> Fields:
    """What the fields of its unit must hold."""
    return (*command.values, command.region)


@dataclass(frozen=True)
class CommandTrack:
    """A command that may be issued next.

    Parameters
    ----------
    command : Issued
        It: one that waits, or the first part of one.
    rest : Waiting
        What waits then.
    first : bool
        Whether it is the first of those that wait, as a whole.
    """

    command: Issued
    rest: "WaitingCommands"
    first: bool

    @cached_property
    def fields(self) -> Fields:
        """What the fields of its unit must hold."""
        return fields_of(self.command)


class WaitingCommands:
    """The commands that were not issued yet.

    Parameters
    ----------
    config : MlaConfig
        The machine.
    commands : sequence of Issued
        In the order of the program that is stood for; `layer` is their tag.
    parts : sequence of bool
        Which of them are what is left of one: no other parts are made of those.
    """

    def __init__(self, config: MlaConfig, commands: Sequence[Issued], parts: Sequence[bool]):
        self.config, self.commands, self.parts = config, tuple(commands), tuple(parts)

    @cached_property
    def ways(self) -> dict[Unit, list[CommandTrack]]:
        """What may be issued next, by unit."""
        found: dict[tuple[Unit, Fields], CommandTrack] = {}
        for way in self._ways():
            found.setdefault((way.command.unit, way.fields), way)
        return {unit: [way for (own, _), way in found.items() if own == unit] for unit in Unit}

    def _ways(self) -> Iterator[CommandTrack]:
        """Whole commands first: a part may look like one."""
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
        """The same with what is left of a command in its place."""
        commands = (*self.commands[:at], *left, *self.commands[at + 1 :])
        return WaitingCommands(
            self.config, commands, (*self.parts[:at], *[True] * len(left), *self.parts[at + 1 :])
        )

    def hears(self, command: Issued, unit: int) -> tuple[bool, bool]:
        """Whether some command of a unit must not overtake one that is issued, and whether one may not wait for more.

        Parameters
        ----------
        command : Issued
            That is issued.
        unit : int
            Of the others. One that must not overtake a further command of the first unit can wait for that.
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
        """So many words issue them one after the other as they are, without semaphores."""
        total, now = 0, dict(fields)
        for command in self.commands:
            wanted = fields_of(command)
            total += _BESIDE + _setting_words(command.unit, now[command.unit], wanted)
            total += _TAG * (command.layer != tag)
            now[command.unit], tag = wanted, command.layer
        return total

    @cached_property
    def detour(self) -> int:
        """At most so many words more are needed if another command comes first, or the first part of one."""
        ways = [way.command for found in self.ways.values() for way in found]
        every = [*ways, *self.commands]
        most = 0
        for unit in Unit:
            columns = zip(*(fields_of(each) for each in every if each.unit == unit), strict=True)
            varying = [at for at, column in enumerate(columns) if len(set(column)) > 1]
            most = max(most, sum(_LONGEST[unit][min(at, len(_LONGEST[unit]) - 1)] for at in varying))
        return 3 * most + _BESIDE + _TAG


def _conflict(config: MlaConfig, first: Issued, second: Issued) -> bool:
    """Whether a command must wait for the end of another one; those of its own unit it only must not read too soon."""
    own = first.unit == second.unit
    each = [reach_of(config, command) for command in (first, second)]
    return any(
        (a.write and not b.write if own else a.write or b.write) and a.meets(b)
        for a in each[0]
        for b in each[1]
    )


def _parts(config: MlaConfig, command: Issued) -> Iterator[tuple[Issued, Issued]]:
    """Two commands that do what one does."""
    for dim in dims_of(command, config.n)[:MOST_DIMS]:
        for eighths in range(1, 8):
            try:
                first, second = split(command, dim, eighths)
            except ValueError:  # a field has no room for what it would be
                continue
            yield replace(first, layer=command.layer), replace(second, layer=command.layer)


@dataclass(frozen=True)
class EquivalenceAutomaton:
    """How far a program has come.

    Parameters
    ----------
    waiting : Waiting
        What is not done yet.
    fields : dict
        What the fields of each unit hold.
    tag : int
        That commands count for; -1: not known.
    unit : Unit or None
        Whose fields are being set.
    fixed : frozenset of int
        Those of its fields that have been set since its last command: it will be one that has them so.
    straight : bool
        Whether that command must be the first of those that wait, for lack of room.
    """

    waiting: WaitingCommands
    fields: dict[Unit, Fields]
    tag: int = -1
    unit: Unit | None = None
    fixed: frozenset[int] = frozenset()
    straight: bool = False

    @staticmethod
    def of(config: MlaConfig, commands: Sequence[Issued]) -> "EquivalenceAutomaton":
        """All of it."""
        return EquivalenceAutomaton(WaitingCommands(config, commands, [False] * len(commands)), dict(_BEGIN))

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return not self.waiting.commands

    def count(self, unit: int) -> int:
        """Commands of a unit that wait."""
        return sum(command.unit == unit for command in self.waiting.commands)

    def words(self) -> int:
        """So many words bring it to its end, those of semaphores apart."""
        return self.waiting.words(self.fields, self.tag) + 2

    @property
    def issuable(self) -> CommandTrack | None:
        """The command that would be issued as the fields are."""
        for unit in Unit if self.unit is None else (self.unit,):
            for way in self.waiting.ways[unit]:
                if way.fields == self.fields[unit]:
                    return way
        return None

    def next(self, room: int) -> dict[tuple[str, ...], "EquivalenceAutomaton"]:
        """Instructions that may come next, and what is left behind each; without semaphores.

        Parameters
        ----------
        room : int
            Words that may still come: if that is little, commands come as they are, one after the other.
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
        """Those that lead to a command."""
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
        """Instructions that bring a command nearer, or issue it."""
        own = self.fields[unit]
        if own == way.fields:
            yield ISSUES[unit], replace(self, waiting=way.rest, unit=None, fixed=frozenset(), straight=False)
        for at in _different(unit, own, way.fields):
            fields = _with(unit, own, at, way.fields)
            more = replace(
                self, fields=self.fields | {unit: fields}, unit=unit, fixed=self.fixed | _places(unit, at)
            )
            yield _set(unit, at, *_values(unit, at, way.fields)), more


#: The instruction that issues a unit's command, its semaphores apart.
ISSUES = {
    unit: tuple(words_of(Program("", (encode(MicroOp.ISSUE, d=ISSUE_D.pack(unit=unit)),)))[:-1])
    for unit in Unit
}


def _different(unit: Unit, one: Fields, other: Fields) -> list[int]:
    """Fields to be set: an address and its operand are one."""
    found = [at for at, (own, wanted) in enumerate(zip(one, other, strict=True)) if own != wanted]
    if unit in _DRAM and found and found[-1] == len(one) - 1:
        found = sorted({*found[:-1], _DRAM[unit]})
    return found


def _places(unit: Unit, at: int) -> frozenset[int]:
    return frozenset((at, len(UNIT_FIELDS[unit])) if _DRAM.get(unit) == at else (at,))


def _with(unit: Unit, fields: Fields, at: int, wanted: Fields) -> Fields:
    """Fields of which one is as another command has it."""
    places = _places(unit, at)
    return tuple(wanted[i] if i in places else value for i, value in enumerate(fields))


def _values(unit: Unit, at: int, fields: Fields) -> tuple[int, int]:
    """What a field is set to, and the selector that is added."""
    return fields[at], OPERAND_BASE + fields[-1] if _DRAM.get(unit) == at else 0


def _setting_words(unit: Unit, now: Fields, wanted: Fields) -> int:
    return sum(len(_set(unit, at, *_values(unit, at, wanted))) for at in _different(unit, now, wanted))


@cache
def _set(unit: Unit, at: int, value: int, selector: int) -> tuple[str, ...]:
    """The words that set a field."""
    return _said(encode(MicroOp.SET, d=field_number(unit, UNIT_FIELDS[unit][at].name), b=selector, imm=value))


def _said(word: int) -> tuple[str, ...]:
    """An instruction in words."""
    return tuple(words_of(Program("", (word,)))[:-1])


def _longest(unit: Unit, at: int) -> int:
    """Words that set a field, at most."""
    name = f"{unit.name.lower()}.{UNIT_FIELDS[unit][at].name}"
    parts = len(PACKED_FIELDS[name].fields) if name in PACKED_FIELDS else 0
    return 3 + max(1 + _NUMBER, parts * (1 + _NUMBER))


_LONGEST = {unit: [_longest(unit, at) for at in range(len(UNIT_FIELDS[unit]))] for unit in Unit}
