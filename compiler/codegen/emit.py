"""Emission of micro-instructions for a command sequence, in which repetitions are first rerolled into loops."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import compress
from operator import ne

from compiler.codegen.semaphores import Issued
from hw.errors import InputError
from hw.isa.commands import UNIT_FIELDS, field_number
from hw.isa.enums import Unit
from hw.isa.micro_instruction import ISSUE_D, ISSUE_IMM, LOOP_IMM, OPERAND_BASE, REGISTERS, MicroOp, encode
from hw.isa.program import Program


class ProgramLengthError(InputError):
    """Error for a loop whose end address exceeds the range of its instruction; the commands need several programs."""


class RegistersError(InputError):
    """Error for nested loops that need more induction variables than there are registers."""


#: Value of a field: the sum of a register, a constant and an operand (its selector); 0 means absent.
_Value = tuple[int, int, int]
#: Unit and index of a field. The tag is represented as a field of a pseudo-unit after the last unit.
_Field = tuple[int, int]
_TAG: _Field = (len(Unit), 0)
#: Induction variable of a field: pairs of an enclosing loop and the change per iteration, outermost loop first.
_InductionVariable = tuple[tuple[int, int], ...]

_NUMBERS: dict[_Field, int] = {
    (unit, index): field_number(unit, item.name)
    for unit in Unit
    for index, item in enumerate(UNIT_FIELDS[unit])
}
#: Values of the fields at the start of a program; the tag is unknown.
_DEFAULTS: list[list[_Value | None]] = [
    *([(0, item.default, 0) for item in UNIT_FIELDS[unit]] for unit in Unit),
    [None],
]
_INDICES = [range(len(UNIT_FIELDS[unit])) for unit in Unit]
#: Index of the field with an address in DRAM.
_DRAM = {
    unit: next(i for i, item in enumerate(UNIT_FIELDS[unit]) if item.name == "dram")
    for unit in (Unit.LOAD, Unit.STORE)
}


def _operand(command: Issued, index: int) -> int:
    """Return the selector of the operand that is added to a field; 0 if there is none."""
    return OPERAND_BASE + command.region if index == _DRAM.get(command.unit) else 0


@lru_cache(maxsize=1 << 10)
def _issue_word(unit: Unit, wait: int, signal: int) -> int:
    masks = ISSUE_IMM.pack(wait=wait, signal=signal & 0xFFFF)
    return encode(MicroOp.ISSUE, d=ISSUE_D.pack(unit=unit, signal_seq=signal >> 16), imm=masks)


@lru_cache(maxsize=1 << 13)
def _set_word(number: int, register: int, operand: int, constant: int) -> int:
    return encode(MicroOp.SET, d=number, a=register, b=operand, imm=constant)


def _trimmed(variables: _InductionVariable) -> _InductionVariable:
    """Return the induction variable without the innermost loops that do not change the field."""
    while variables and not variables[-1][1]:
        variables = variables[:-1]
    return variables


#: Maximum length of a loop body, in commands or inner loops.
_MAX_BODY_ITEMS = 40
#: Minimum number of commands that a loop must save, because the loop itself needs instructions.
MIN_SAVED_COMMANDS = 3

#: Largest address at which a loop can end.
_MAX_WORDS = 0xFFFF

Delta = dict[int, int]


@dataclass(frozen=True, eq=False)
class CommandLoop:
    """Repeated sequence of commands.

    Parameters
    ----------
    count : int
        Number of iterations.
    body : tuple
        Items of the first iteration.
    deltas : tuple of dict
        Changes to the fields per iteration, for each command of the body, including the commands of inner loops.
    """

    count: int
    body: tuple["Item", ...]
    deltas: tuple[Delta, ...]

    @cached_property
    def leaves(self) -> tuple[Issued, ...]:
        """Commands of the body, including the commands of inner loops."""
        return tuple(leaf for item in self.body for leaf in leaves(item))

    @cached_property
    def key(self) -> tuple:
        """Key that two loops share if they can be iterations of one outer loop."""
        deltas = tuple(tuple(sorted(delta.items())) for delta in self.deltas)
        return "loop", self.count, tuple(key(item) for item in self.body), deltas

    @cached_property
    def depth(self) -> int:
        """Nesting depth, including this loop."""
        return 1 + max((item.depth for item in self.body if isinstance(item, CommandLoop)), default=0)


Item = Issued | CommandLoop


def emit(name: str, items: Sequence[Item], tags: Sequence[int], *, alone: bool = False) -> Program:
    """Emit a program that issues commands and halts.

    Parameters
    ----------
    name : str
        Name of the program.
    items : sequence
        Commands and loops, in order.
    tags : sequence of int
        Tag of each layer.
    alone : bool
        True to wait first until all previously issued commands have completed.

    Raises
    ------
    RegistersError
        A loop nest needs more induction variables than there are registers.
    ProgramLengthError
        A loop ends at an address that its instruction cannot contain.
    """
    return ProgramEmitter(name, tags).program(items, alone=alone)


def emit_fragment(
    items: Sequence[Item], tags: Sequence[int], known: Mapping[tuple[Unit, int], int]
) -> tuple[int, ...]:
    """Return the words of a part of a program, which sets all registers and all fields that are not known.

    Parameters
    ----------
    items : sequence
        Commands and loops, in order.
    tags : sequence of int
        Tag of each layer.
    known : mapping of (Unit, int) to int
        Values of fields before this part, by unit and index; each is a constant.

    Raises
    ------
    RegistersError, ProgramLengthError
        As for `emit`.
    """
    emitter = ProgramEmitter("", tags)
    emitter.state = [[None] * len(values) for values in _DEFAULTS]
    emitter.constants = [[None] * len(values) for values in _DEFAULTS]
    for (unit, index), value in known.items():
        emitter.state[unit][index], emitter.constants[unit][index] = (0, value, 0), value
    emitter.modified_registers = set(range(1, REGISTERS))
    emitter.items(items, {})
    return tuple(emitter.words)


class ProgramEmitter:
    """Emitter of the words of a program, which tracks the fields and registers that earlier instructions have set."""

    #: Number of registers, including register 0, which is always 0.
    registers_available = REGISTERS

    def __init__(self, name: str, tags: Sequence[int]):
        self.name, self.tags = name, tags
        self.words: list[int] = []
        #: Known values of the fields of each unit, and of the tag; None if unknown.
        self.state: list[list[_Value | None]] = [list(values) for values in _DEFAULTS]
        #: Values of the fields that are known constants; None for the others.
        self.constants: list[list[int | None]] = [
            [value and value[1] for value in values] for values in _DEFAULTS
        ]
        self.registers: dict[_InductionVariable, int] = {}
        self.loops: list[tuple[int, int]] = []  # (number, count) of the enclosing loops
        self.loop_count = 0
        self.modified_registers: set[int] = set()  # registers that are no longer zero

    def program(self, items: Sequence[Item], *, alone: bool) -> Program:
        """Emit a whole program; parameters and errors as for `emit`."""
        if alone:
            self.add(MicroOp.FENCE, d=(1 << len(Unit)) - 1)
        self.items(items, {})
        self.add(MicroOp.HALT)
        return Program(self.name, tuple(self.words))

    def add(self, op: MicroOp, **parts: int) -> None:
        """Append an instruction."""
        self.words.append(encode(op, **parts))

    def write_field(self, number: int, register: int, operand: int, constant: int) -> None:
        """Append the instruction that sets a field to the sum of a register, an operand and a constant."""
        self.words.append(_set_word(number, register, operand, constant))

    def increase(self, register: int, step: int) -> None:
        """Append the instruction that adds a constant to a register."""
        # Registers wrap, so that a step is needed modulo 2**32 only.
        self.add(MicroOp.ADD, d=register, a=register, imm=(step + (1 << 31)) % (1 << 32) - (1 << 31))

    def items(self, items: Sequence[Item], variables: dict[int, dict[int, _InductionVariable]]) -> None:
        """Emit items; `variables` maps the `id` of each command to its fields that change in the enclosing loops."""
        for item in items:
            if isinstance(item, CommandLoop):
                self._loop(item, variables)
            else:
                self._issue(item, variables.get(id(item), {}))

    def _issue(self, command: Issued, variables: dict[int, _InductionVariable]) -> None:
        unit = command.unit
        self._set(_TAG, (0, self.tags[command.layer], 0))
        # Most fields keep their value, and most others change to a constant.
        changed = list(compress(_INDICES[unit], map(ne, command.values, self.constants[unit])))
        moving = {*variables, _DRAM[unit]} if unit in _DRAM else variables
        for index in sorted({*changed, *moving}) if moving else changed:
            if index not in moving:
                value = command.values[index]
                self.state[unit][index], self.constants[unit][index] = (0, value, 0), value
                self.write_field(_NUMBERS[unit, index], 0, 0, value)
                continue
            setting = (
                self._register(variables.get(index, ())),
                command.values[index],
                _operand(command, index),
            )
            self._set((unit, index), setting)
        self.words.append(_issue_word(unit, command.wait, command.signal))

    def _register(self, variables: _InductionVariable) -> int:
        return self.registers[_trimmed(variables)] if _trimmed(variables) else 0

    def _set(self, field: _Field, value: _Value) -> None:
        unit, index = field
        if self.state[unit][index] == value:
            return
        self._record_value(unit, index, value)
        register, constant, operand = value
        if field == _TAG:
            self.add(MicroOp.TAG, imm=constant)
        else:
            self.write_field(_NUMBERS[field], register, operand, constant)

    def _record_value(self, unit: int, index: int, value: _Value | None) -> None:
        """Record the value to which a field is set; None if the value is unknown."""
        self.state[unit][index] = value
        self.constants[unit][index] = value[1] if value and not value[0] and not value[2] else None

    def _loop(self, loop: CommandLoop, outer: dict[int, dict[int, _InductionVariable]]) -> None:
        outermost = not self.loops
        number, self.loop_count = self.loop_count, self.loop_count + 1
        variables = self._induction_variables(loop, number, outer, tuple(around for around, _ in self.loops))
        if outermost:
            self._allocate(loop, variables)
        self._hoist(loop, outer)
        self.loops.append((number, loop.count))
        start = len(self.words)
        self.words.append(0)
        self.items(loop.body, variables)
        self._advance(number)
        if len(self.words) > _MAX_WORDS:
            raise ProgramLengthError(f"program {self.name!r} has more than {_MAX_WORDS:,} words")
        self.words[start] = encode(MicroOp.LOOP, imm=LOOP_IMM.pack(end=len(self.words), count=loop.count))
        self.loops.pop()
        if outermost:
            self._invalidate(set(self.registers.values()))
            self.registers = {}

    def _induction_variables(
        self,
        loop: CommandLoop,
        number: int,
        outer: dict[int, dict[int, _InductionVariable]],
        around: tuple[int, ...],
    ) -> dict[int, dict[int, _InductionVariable]]:
        """Return the induction variables of the commands in the body; `around` lists the enclosing loops."""
        still = tuple((n, 0) for n in around)
        out = {}
        for leaf, delta in zip(loop.leaves, loop.deltas, strict=True):
            variables = dict(outer.get(id(leaf), {}))
            for index in variables.keys() | delta.keys():
                variables[index] = (*variables.get(index, still), (number, delta.get(index, 0)))
            out[id(leaf)] = variables
        return out

    def _allocate(self, loop: CommandLoop, variables: dict[int, dict[int, _InductionVariable]]) -> None:
        """Allocate a register for each distinct induction variable of a loop nest, and clear it if it was modified."""
        kinds: dict[_InductionVariable, None] = {}
        counts = {self.loop_count - 1: loop.count}
        self._collect(loop.body, variables, (self.loop_count - 1,), self.loop_count, kinds, counts)
        if len(kinds) >= self.registers_available:
            raise RegistersError(
                f"program {self.name!r}: {len(kinds)} fields change differently in a loop nest: "
                f"only {self.registers_available - 1} registers are available"
            )
        self.registers = {kind: 1 + i for i, kind in enumerate(kinds)}
        self.counts = counts
        for register in self.registers.values():
            if register in self.modified_registers:
                self.add(MicroOp.ADD, d=register)

    def _collect(
        self,
        body: Sequence[Item],
        variables: dict[int, dict[int, _InductionVariable]],
        around: tuple[int, ...],
        number: int,
        kinds: dict[_InductionVariable, None],
        counts: dict[int, int],
    ) -> int:
        """Collect the distinct induction variables, with loops numbered as in `_loop`."""
        for item in body:
            if isinstance(item, CommandLoop):
                counts[number] = item.count
                inside = self._induction_variables(item, number, variables, around)
                number = self._collect(item.body, inside, (*around, number), number + 1, kinds, counts)
            else:
                kinds.update(dict.fromkeys(_trimmed(m) for m in variables[id(item)].values() if _trimmed(m)))
        return number

    def _hoist(self, loop: CommandLoop, outer: dict[int, dict[int, _InductionVariable]]) -> None:
        """Set loop-invariant fields before the loop, and mark all other fields as unknown."""
        moving = {(leaf.unit, index) for leaf, delta in self._inner(loop) for index in delta}
        tags = {self.tags[leaf.layer] for leaf in loop.leaves}
        self._set_invariant(_TAG, {(0, tag, 0) for tag in tags})
        by_unit: dict[Unit, list[Issued]] = {}
        for leaf in loop.leaves:
            by_unit.setdefault(leaf.unit, []).append(leaf)
        for unit, leaves in by_unit.items():
            around = {index for leaf in leaves for index in outer.get(id(leaf), ())} | {_DRAM.get(unit, -1)}
            for index, values in enumerate(zip(*(leaf.values for leaf in leaves), strict=True)):
                if (unit, index) in moving:
                    self._record_value(unit, index, None)
                elif index in around:
                    self._set_invariant((unit, index), {self._setting(leaf, index, outer) for leaf in leaves})
                elif len(set(values)) > 1:
                    self._record_value(unit, index, None)
                elif self.constants[unit][index] != values[0]:
                    self._set((unit, index), (0, values[0], 0))

    def _setting(self, leaf: Issued, index: int, outer: dict[int, dict[int, _InductionVariable]]) -> _Value:
        register = self._register(outer.get(id(leaf), {}).get(index, ()))
        return register, leaf.values[index], _operand(leaf, index)

    def _set_invariant(self, field: _Field, settings: set[_Value]) -> None:
        """Set a field that has one value for all iterations, or mark it as unknown."""
        if len(settings) == 1:
            self._set(field, *settings)
        else:
            self._record_value(*field, None)

    def _inner(self, loop: CommandLoop) -> Iterator[tuple[Issued, dict[int, int]]]:
        yield from zip(loop.leaves, loop.deltas, strict=True)
        for item in loop.body:
            if isinstance(item, CommandLoop):
                yield from self._inner(item)

    def _advance(self, number: int) -> None:
        """Advance the registers at the end of a loop body, and undo the changes that inner loops made."""
        touched = set()
        for kind, register in self.registers.items():
            loops = [n for n, _ in kind]
            if number not in loops:
                continue
            at = loops.index(number)
            step = kind[at][1]
            if at + 1 < len(kind):
                inner, inner_step = kind[at + 1]
                step -= self.counts[inner] * inner_step
            touched.add(register)
            if step:
                self.modified_registers.add(register)
                self.increase(register, step)
        self._invalidate(touched)

    def _invalidate(self, registers: set[int]) -> None:
        for unit, values in enumerate(self.state):
            for index, value in enumerate(values):
                if value and value[0] in registers:
                    self._record_value(unit, index, None)


def leaves(item: Item) -> Sequence[Issued]:
    """Return the commands of an item; the commands of a loop body are included once."""
    return item.leaves if isinstance(item, CommandLoop) else (item,)


def key(item: Item) -> tuple:
    """Return a key that two items share if they can be iterations of one loop."""
    return (
        item.key
        if isinstance(item, CommandLoop)
        else (item.unit, item.layer, item.region, item.wait, item.signal)
    )


def reroll(commands: Sequence[Issued], most_depth: int, least: int = MIN_SAVED_COMMANDS) -> list[Item]:
    """Reroll a command sequence into loops nested at most `most_depth` deep, each of which saves `least` commands."""
    items: list[Item] = list(commands)
    for _ in range(most_depth):
        rolled = _pass(items, most_depth, least)
        if len(rolled) == len(items):
            break
        items = rolled
    return items


def _pass(items: list[Item], most_depth: int, least: int) -> list[Item]:
    """Replace repetitions by loops, from left to right, choosing the largest saving at each position."""
    names: dict[tuple, int] = {}
    keys = [names.setdefault(key(item), len(names)) for item in items]
    blocked = [isinstance(item, CommandLoop) and item.depth >= most_depth for item in items]
    out: list[Item] = []
    at = 0
    while at < len(items):
        best: tuple[int, int, tuple[Delta, ...]] | None = None
        for length in range(1, min(_MAX_BODY_ITEMS, (len(items) - at) // 2) + 1):
            if blocked[at + length - 1]:
                break
            if keys[at] != keys[at + length]:
                continue
            found = _repeats(items, keys, at, length)
            if found and (best is None or (found[0] - 1) * length > (best[0] - 1) * best[1]):
                best = (found[0], length, found[1])
        if best and sum(len(leaves(item)) for item in items[at : at + best[1]]) * (best[0] - 1) >= least:
            count, length, deltas = best
            out.append(CommandLoop(count, tuple(items[at : at + length]), deltas))
            at += count * length
        else:
            out.append(items[at])
            at += 1
    return out


def _repeats(
    items: list[Item], keys: list[int], at: int, length: int
) -> tuple[int, tuple[Delta, ...]] | None:
    """Return the repetition count of a sequence and the field changes per iteration; None if it does not repeat."""
    if keys[at : at + length] != keys[at + length : at + 2 * length]:
        return None
    deltas = _differences(items[at : at + length], items[at + length : at + 2 * length])
    count, here = 2, at + length
    while keys[at : at + length] == keys[here + length : here + 2 * length]:
        following = items[here + length : here + 2 * length]
        if _differences(items[here : here + length], following) != deltas:
            break
        count, here = count + 1, here + length
    return count, deltas


def _differences(first: Sequence[Item], second: Sequence[Item]) -> tuple[Delta, ...]:
    return tuple(
        {i: y.values[i] - x.values[i] for i in compress(range(len(x.values)), map(ne, x.values, y.values))}
        if x.values != y.values
        else {}
        for left, right in zip(first, second, strict=True)
        for x, y in zip(leaves(left), leaves(right), strict=True)
    )
