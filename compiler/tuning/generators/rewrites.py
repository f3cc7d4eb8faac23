"""Micro-programs taken apart: straight stretches of instructions and the loops between them, and put together again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hw.isa.commands import UNIT_FIELDS, field_number
from hw.isa.enums import Unit
from hw.isa.micro_instruction import ISSUE_D, LOOP_IMM, REGISTERS, MicroOp, decode, encode

#: What is taken apart; programs with other instructions are left as they are.
_KNOWN = frozenset(
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
#: What every field is when a program begins: registers and constant.
DEFAULTS = {
    field_number(unit, item.name): (0, 0, item.default) for unit in Unit for item in UNIT_FIELDS[unit]
}


@dataclass(frozen=True)
class Instruction:
    """One word, with what reordering must know of it."""

    word: int
    op: MicroOp
    d: int
    a: int
    b: int
    imm: int

    @staticmethod
    def from_word(word: int) -> "Instruction | None":
        """A word taken apart; None: it is none of those that are known here."""
        values = decode(word)
        if values["opcode"] not in _KNOWN:
            return None
        op = MicroOp(values["opcode"])
        return Instruction(word, op, values["d"], values["a"], values["b"], values["imm"])

    @property
    def unit(self) -> Unit:
        """Whose field is set, or whose command is issued."""
        return Unit(ISSUE_D.unpack(self.d)["unit"]) if self.op is MicroOp.ISSUE else _UNITS[self.d]

    @property
    def value(self) -> tuple[int, int, int]:
        """What a field is set to."""
        return self.a, self.b, self.imm

    @property
    def registers(self) -> frozenset[int]:
        """Registers that it reads; register 0 is always zero."""
        return frozenset(each for each in (self.a, self.b) if 0 < each < REGISTERS)


@dataclass(frozen=True)
class ProgramLoop:
    """A body that is repeated a fixed number of times."""

    count: int
    body: "tuple[Item, ...]"


Item = Instruction | ProgramLoop


def parse_items(words: Sequence[int]) -> list[Item] | None:
    """Instructions and loops; None if something in the program is not known here."""
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
    """The words of a program."""
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
    """Fields that anything in these items sets."""
    return {each.d for each in instructions(items) if each.op is MicroOp.SET}


def instructions(items: Sequence[Item]) -> Iterator[Instruction]:
    """All instructions, those of loops once."""
    for item in items:
        if isinstance(item, ProgramLoop):
            yield from instructions(item.body)
        else:
            yield item


Values = dict[int, tuple[int, int, int] | None]
Rewrite = Callable[[Sequence[Item]], list[Item]]


def defer_fields(items: Sequence[Item]) -> list[Item]:
    """Fields are set right before the command that needs them, and only if they change: commands go out earlier."""
    values: Values = dict(DEFAULTS)
    return _FieldDeferral(values).run(items, last=True)


class _FieldDeferral:
    """Holds settings back until they are needed; `values` are what the machine's fields hold, None if unknown."""

    def __init__(self, values: Values):
        self.values = values
        self.held: dict[int, Instruction] = {}
        self.out: list[Item] = []

    def run(self, items: Sequence[Item], *, last: bool) -> list[Item]:
        """The items; `last`: nothing comes behind them that needs what is held back."""
        for item in items:
            if isinstance(item, ProgramLoop):
                self._loop(item)
            elif item.op is MicroOp.SET:
                self.held.pop(item.d, None)
                self.held[item.d] = item
            else:
                self._release(item)
                self.out.append(item)
        if not last:
            self._flush(list(self.held))
        return self.out

    def _release(self, item: Instruction) -> None:
        """What an instruction needs, or would change."""
        if item.op is MicroOp.ISSUE:
            self._flush([d for d, held in self.held.items() if held.unit == item.unit])
        elif item.op is MicroOp.ADD:
            self._flush([d for d, held in self.held.items() if item.d in held.registers])
            for d, value in self.values.items():
                if value and item.d in value[:2]:
                    self.values[d] = None

    def _flush(self, numbers: Sequence[int]) -> None:
        for d in numbers:
            item = self.held.pop(d)
            if self.values[d] != item.value:
                self.values[d] = item.value
                self.out.append(item)

    def _loop(self, loop: ProgramLoop) -> None:
        """All that is held goes before it; of what it sets or counts with nothing is known in it."""
        self._flush(list(self.held))
        changed = fields_set(loop.body)
        self.values |= dict.fromkeys(changed)
        counted = _counted(loop.body)
        for d, value in self.values.items():
            if value and counted & set(value[:2]):
                self.values[d] = None
        inner = _FieldDeferral(dict(self.values))
        body = inner.run(loop.body, last=False)
        self.values = inner.values
        self.out.append(ProgramLoop(loop.count, tuple(body)))


def _counted(items: Sequence[Item]) -> set[int]:
    """Registers that change."""
    out: set[int] = set()
    for item in items:
        if isinstance(item, ProgramLoop):
            out |= _counted(item.body)
        elif item.op is MicroOp.ADD:
            out.add(item.d)
    return out


def advance_fields(items: Sequence[Item]) -> list[Item]:
    """Fields are set right behind the command before: what waits for room in one queue holds up no other."""
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
    """The first place at which a field may be set: behind the last thing that the order matters with."""
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
    """The first turn of each outermost loop by itself: its first command need not wait for all that others set."""
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
    """Commands of a unit, with their settings, past so many commands of others: forward if that is positive."""
    return _moved(defer_fields(items), unit, steps)


def _moved(items: Sequence[Item], unit: Unit, steps: int) -> list[Item]:
    groups = _grouped(items)
    way = -1 if steps > 0 else 1
    for number in range(len(groups))[::-way]:
        at = number
        for _ in range(abs(steps) if _unit(groups[number]) is unit else 0):
            beside = at + way
            other = _unit(groups[beside]) if 0 <= beside < len(groups) else None
            if other is None or other is unit:
                break
            groups[at], groups[beside] = groups[beside], groups[at]
            at = beside
    return [
        ProgramLoop(item.count, tuple(_moved(item.body, unit, steps)))
        if isinstance(item, ProgramLoop)
        else item
        for group in groups
        for item in group
    ]


def _grouped(items: Sequence[Item]) -> list[list[Item]]:
    """Commands with the settings before them; everything else by itself."""
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
    """Whose command a group is; None: it is none, and stays where it is."""
    last = group[-1]
    return last.unit if isinstance(last, Instruction) and last.op is MicroOp.ISSUE else None
