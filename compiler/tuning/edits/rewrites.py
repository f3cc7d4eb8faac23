"""Micro-programs as instructions and loops: rewrites that preserve each unit's commands, and unrolling.

Unrolling returns the commands that a program issues; it is the inverse of `compiler.codegen.emit`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from compiler.codegen.semaphores import Issued
from hw.isa.commands import UNIT_FIELDS, defaults, field_number, field_of
from hw.isa.enums import Unit
from hw.isa.micro_instruction import (
    ISSUE_D,
    ISSUE_IMM,
    LOOP_IMM,
    MAX_OPERANDS,
    OPERAND_BASE,
    REGISTERS,
    MicroOp,
    decode,
    encode,
)
from hw.isa.program import Program

#: Supported instructions; programs with others are not parsed.
_SUPPORTED = frozenset(
    {
        MicroOp.HALT,
        MicroOp.ADD,
        MicroOp.SET,
        MicroOp.ISSUE,
        MicroOp.FENCE,
        MicroOp.TAG,
        MicroOp.LOOP,
    }
)
_UNITS = {field_number(unit, item.name): unit for unit in Unit for item in UNIT_FIELDS[unit]}
#: Value of each field at the start of a program: two registers and a constant.
DEFAULTS = {
    field_number(unit, item.name): (0, 0, item.default) for unit in Unit for item in UNIT_FIELDS[unit]
}


@dataclass(frozen=True)
class Instruction:
    """Instruction word with its decoded fields."""

    word: int
    op: MicroOp
    d: int
    a: int
    b: int
    imm: int

    @staticmethod
    def from_word(word: int) -> "Instruction | None":
        """Decode a word; return None if the instruction is not supported."""
        values = decode(word)
        if values["opcode"] not in _SUPPORTED:
            return None
        op = MicroOp(values["opcode"])
        return Instruction(word, op, values["d"], values["a"], values["b"], values["imm"])

    @property
    def unit(self) -> Unit:
        """Unit whose field is set or whose command is issued."""
        return Unit(ISSUE_D.unpack(self.d)["unit"]) if self.op is MicroOp.ISSUE else _UNITS[self.d]

    @property
    def value(self) -> tuple[int, int, int]:
        """Value that a field is set to: two registers and a constant."""
        return self.a, self.b, self.imm

    @property
    def registers(self) -> frozenset[int]:
        """Registers that the instruction reads, except register 0, which is always zero."""
        return frozenset(each for each in (self.a, self.b) if 0 < each < REGISTERS)


@dataclass(frozen=True)
class ProgramLoop:
    """Loop body that is repeated a fixed number of times."""

    count: int
    body: "tuple[Item, ...]"


Item = Instruction | ProgramLoop


def parse_items(words: Sequence[int]) -> list[Item] | None:
    """Parse a program into instructions and loops; return None if it contains unsupported instructions."""
    found = [Instruction.from_word(word) for word in words]
    plain = [each for each in found if each is not None]
    if len(plain) < len(found):
        return None
    return _items(plain, 0, len(plain))


def _items(found: list[Instruction], start: int, stop: int) -> list[Item] | None:
    out: list[Item] = []
    at = start
    while at < stop:
        each = found[at]
        if each.op is MicroOp.SET and each.d not in _UNITS:
            return None
        if each.op is not MicroOp.LOOP:
            out.append(each)
            at += 1
            continue
        packed = LOOP_IMM.unpack(each.imm & 0xFFFFFFFF)
        body = _items(found, at + 1, packed["end"]) if at + 1 < packed["end"] <= stop else None
        if each.a or packed["count"] < 1 or body is None:
            return None
        out.append(ProgramLoop(packed["count"], tuple(body)))
        at = packed["end"]
    return out


def encode_items(items: Sequence[Item]) -> tuple[int, ...]:
    """Encode instructions and loops as the words of a program."""
    out: list[int] = []
    _append(out, items)
    return tuple(out)


def _append(out: list[int], items: Sequence[Item]) -> None:
    for item in items:
        if isinstance(item, Instruction):
            out.append(item.word)
            continue
        start = len(out)
        out.append(0)
        _append(out, item.body)
        out[start] = encode(MicroOp.LOOP, imm=LOOP_IMM.pack(end=len(out), count=item.count))


def fields_set(items: Sequence[Item]) -> set[int]:
    """Return the numbers of the fields that the items set."""
    return {each.d for each in instructions(items) if each.op is MicroOp.SET}


def instructions(items: Sequence[Item]) -> Iterator[Instruction]:
    """Yield all instructions; the instructions of loop bodies are yielded once."""
    for item in items:
        if isinstance(item, ProgramLoop):
            yield from instructions(item.body)
        else:
            yield item


Values = dict[int, tuple[int, int, int] | None]
Rewrite = Callable[[Sequence[Item]], list[Item]]


def defer_fields(items: Sequence[Item]) -> list[Item]:
    """Set fields just before the command that uses them, and only if they change, so that commands issue earlier."""
    values: Values = dict(DEFAULTS)
    return _FieldDeferral(values).run(items, last=True)


class _FieldDeferral:
    """Defers SET instructions until their values are needed; `values` holds the field values, None if unknown."""

    def __init__(self, values: Values):
        self.values = values
        self.deferred: dict[int, Instruction] = {}
        self.out: list[Item] = []

    def run(self, items: Sequence[Item], *, last: bool) -> list[Item]:
        """Return the rewritten items; `last` is True if no later item needs the deferred fields."""
        for item in items:
            if isinstance(item, ProgramLoop):
                self._loop(item)
            elif item.op is MicroOp.SET:
                self.deferred.pop(item.d, None)
                self.deferred[item.d] = item
            else:
                self._release(item)
                self.out.append(item)
        if not last:
            self._flush(list(self.deferred))
        return self.out

    def _release(self, item: Instruction) -> None:
        """Emit the deferred SET instructions whose fields an instruction uses or whose registers it changes."""
        if item.op is MicroOp.ISSUE:
            self._flush([d for d, each in self.deferred.items() if each.unit == item.unit])
        elif item.op is MicroOp.ADD:
            self._flush([d for d, each in self.deferred.items() if item.d in each.registers])
            for d, value in self.values.items():
                if value and item.d in value[:2]:
                    self.values[d] = None

    def _flush(self, numbers: Sequence[int]) -> None:
        for d in numbers:
            item = self.deferred.pop(d)
            if self.values[d] != item.value:
                self.values[d] = item.value
                self.out.append(item)

    def _loop(self, loop: ProgramLoop) -> None:
        """Emit all deferred fields, then the rewritten loop; fields that the body affects are unknown at its start."""
        self._flush(list(self.deferred))
        changed = fields_set(loop.body)
        self.values |= dict.fromkeys(changed)
        registers = _changed_registers(loop.body)
        for d, value in self.values.items():
            if value and registers & set(value[:2]):
                self.values[d] = None
        inner = _FieldDeferral(dict(self.values))
        body = inner.run(loop.body, last=False)
        self.values = inner.values
        self.out.append(ProgramLoop(loop.count, tuple(body)))


def _changed_registers(items: Sequence[Item]) -> set[int]:
    """Return the registers that the items change."""
    out: set[int] = set()
    for item in items:
        if isinstance(item, ProgramLoop):
            out |= _changed_registers(item.body)
        elif item.op is MicroOp.ADD:
            out.add(item.d)
    return out


def advance_fields(items: Sequence[Item]) -> list[Item]:
    """Set fields as early as possible, so that a full queue of one unit delays no other unit."""
    out: list[Item] = []
    for item in items:
        if isinstance(item, ProgramLoop):
            out.append(ProgramLoop(item.count, tuple(advance_fields(item.body))))
        elif item.op is MicroOp.SET:
            out.insert(_earliest(out, item), item)
        else:
            out.append(item)
    return out


def _earliest(before: Sequence[Item], item: Instruction) -> int:
    """Return the first index at which a field may be set: after the last item that must precede it."""
    for at in range(len(before), 0, -1):
        other = before[at - 1]
        if isinstance(other, ProgramLoop) or other.op is MicroOp.FENCE:
            return at
        if other.op is MicroOp.ADD and other.d in item.registers:
            return at
        if other.op is MicroOp.SET and other.d == item.d:
            return at
        if other.op is MicroOp.ISSUE and other.unit == item.unit:
            return at
    return 0


def peel_loops(items: Sequence[Item]) -> list[Item]:
    """Peel the first iteration of each outermost loop, so that its first command waits for fewer field settings."""
    out: list[Item] = []
    for item in items:
        if isinstance(item, ProgramLoop) and item.count > 1:
            out += item.body
            left = item.count - 1
            out += item.body if left == 1 else [ProgramLoop(left, item.body)]
        else:
            out.append(item)
    return out


def move_commands(items: Sequence[Item], unit: Unit, steps: int) -> list[Item]:
    """Move commands of a unit, with their field settings, past commands of other units.

    Parameters
    ----------
    items : sequence of Item
        Instructions and loops of a program.
    unit : Unit
        Unit whose commands move.
    steps : int
        Number of commands of other units to move past; positive for earlier, negative for later positions.
    """
    return _move_groups(defer_fields(items), unit, steps)


def _move_groups(items: Sequence[Item], unit: Unit, steps: int) -> list[Item]:
    groups = _grouped(items)
    direction = -1 if steps > 0 else 1
    for number in range(len(groups))[::-direction]:
        at = number
        for _ in range(abs(steps) if _unit(groups[number]) is unit else 0):
            neighbour = at + direction
            other = _unit(groups[neighbour]) if 0 <= neighbour < len(groups) else None
            if other is None or other is unit:
                break
            groups[at], groups[neighbour] = groups[neighbour], groups[at]
            at = neighbour
    return [
        ProgramLoop(item.count, tuple(_move_groups(item.body, unit, steps)))
        if isinstance(item, ProgramLoop)
        else item
        for group in groups
        for item in group
    ]


def _grouped(items: Sequence[Item]) -> list[list[Item]]:
    """Group each command with the field settings before it; each other item forms a separate group."""
    out: list[list[Item]] = []
    waiting: list[Item] = []
    for item in items:
        if isinstance(item, Instruction) and item.op is MicroOp.SET:
            waiting.append(item)
        elif isinstance(item, Instruction) and item.op is MicroOp.ISSUE:
            out.append([*waiting, item])
            waiting = []
        else:
            out += [[each] for each in waiting]
            out.append([item])
            waiting = []
    return out + [[each] for each in waiting]


def _unit(group: Sequence[Item]) -> Unit | None:
    """Return the unit whose command a group issues; None if the group issues no command and must not move."""
    last = group[-1]
    return last.unit if isinstance(last, Instruction) and last.op is MicroOp.ISSUE else None


#: Maximum number of commands of an unrolled program, which bounds the time of edits.
MAX_COMMANDS = 4096
_WORD = (1 << 32) - 1
#: Mask of all units for FENCE.
_ALL_UNITS = (1 << len(Unit)) - 1


@dataclass(frozen=True)
class UnrolledProgram:
    """Program as a sequence of commands.

    Parameters
    ----------
    name : str
        Name of the program.
    commands : tuple of Issued
        Commands in order, with semaphores; their `layer` is the counter tag.
    alone : bool
        True if the program starts with a fence that waits for all earlier commands.
    fenced : bool
        True if the program contains other fences too, so that semaphores alone do not order its commands.
    """

    name: str
    commands: tuple[Issued, ...]
    alone: bool
    fenced: bool = False


def unroll(program: Program) -> UnrolledProgram | None:
    """Unroll a program; return None if it has unsupported instructions or more than `MAX_COMMANDS` commands."""
    items = parse_items(program.words)
    if items is None or not items or not _plain(items[-1], MicroOp.HALT):
        return None
    alone = _plain(items[0], MicroOp.FENCE, _ALL_UNITS)
    run = _Run()
    try:
        run.execute(items[alone:-1])
    except _UnsupportedInstructionError:
        return None
    return UnrolledProgram(program.name, tuple(run.commands), alone, run.fenced)


def _plain(item: Item, op: MicroOp, d: int = 0) -> bool:
    return isinstance(item, Instruction) and item.op is op and item.d == d


class _UnsupportedInstructionError(Exception):
    """Raised for an instruction that cannot be unrolled."""


#: Value of a field without its macro-instruction operand, and the selector of that operand (0: none).
_Setting = tuple[int, int]


@dataclass
class _Run:
    """Sequencer state during the unrolling of a program."""

    commands: list[Issued] = field(default_factory=list)
    registers: list[int] = field(default_factory=lambda: [0] * REGISTERS)
    tag: int = 0
    fenced: bool = False
    fields: dict[Unit, dict[str, _Setting]] = field(
        default_factory=lambda: {
            unit: {name: (value, 0) for name, value in defaults(unit).items()} for unit in Unit
        }
    )

    def execute(self, items: Sequence[Item]) -> None:
        """Execute items in order."""
        for item in items:
            if isinstance(item, ProgramLoop):
                for _ in range(item.count):
                    self.execute(item.body)
            else:
                self._instruction(item)

    def _instruction(self, one: Instruction) -> None:
        match one.op:
            case MicroOp.ADD if one.d < REGISTERS:
                value, operand = self._value(one)
                if operand:
                    raise _UnsupportedInstructionError
                self.registers[one.d] = value if one.d else 0
            case MicroOp.TAG if not (one.a or one.b):
                self.tag = one.imm
            case MicroOp.SET if found := field_of(one.d):
                unit, what = found
                value, operand = self._value(one)
                if operand and what.name != "dram":
                    raise _UnsupportedInstructionError
                self.fields[unit][what.name] = what.truncate(value), operand
            case MicroOp.ISSUE:
                self._issue(one)
            case MicroOp.FENCE:
                self.fenced = True
            case _:
                raise _UnsupportedInstructionError

    def _value(self, one: Instruction) -> _Setting:
        """Return an instruction's sum without the macro-instruction operand, and the selector of that operand."""
        total, operand = one.imm, 0
        for selector in (one.a, one.b):
            if selector < REGISTERS:
                total += self.registers[selector]
            elif 0 <= selector - OPERAND_BASE < MAX_OPERANDS and not operand:
                operand = selector
            else:
                raise _UnsupportedInstructionError
        return total, operand

    def _issue(self, one: Instruction) -> None:
        settings = self.fields[one.unit]
        _, operand = settings.get("dram", (0, OPERAND_BASE))
        if len(self.commands) == MAX_COMMANDS or ISSUE_D.unpack(one.d)["signal_seq"] or not operand:
            raise _UnsupportedInstructionError
        values = tuple(settings[item.name][0] for item in UNIT_FIELDS[one.unit])
        tokens = ISSUE_IMM.unpack(one.imm & _WORD)
        region, wait, signal = operand - OPERAND_BASE, tokens["wait"], tokens["signal"]
        self.commands.append(Issued(one.unit, self.tag, values, region, wait, signal))
