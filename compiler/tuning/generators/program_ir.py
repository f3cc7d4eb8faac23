"""Micro-programs taken apart: straight stretches of instructions and the loops between them, and put together again."""

from collections.abc import Iterator, Sequence
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
    def of(word: int) -> "Instruction | None":
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


def take_apart(words: Sequence[int]) -> list[Item] | None:
    """Instructions and loops; None if something in the program is not known here."""
    found = [Instruction.of(word) for word in words]
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


def put_together(items: Sequence[Item]) -> tuple[int, ...]:
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
