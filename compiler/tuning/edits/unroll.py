"""The commands that programs issue, with all their numbers: what `compiler.codegen.emit` wrote, read back."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from compiler.codegen.semaphores import Issued
from compiler.tuning.generators.rewrites import Instruction, Item, ProgramLoop, parse_items
from hw.isa.commands import UNIT_FIELDS, defaults, field_of
from hw.isa.enums import Unit
from hw.isa.micro_instruction import ISSUE_D, ISSUE_IMM, MAX_OPERANDS, OPERAND_BASE, REGISTERS, MicroOp
from hw.isa.program import Program

#: Commands of a program at most: more are not looked through in any sensible time.
MAX_COMMANDS = 4096
_WORD = (1 << 32) - 1
#: Every unit, as FENCE takes them.
_ALL = (1 << len(Unit)) - 1


@dataclass(frozen=True)
class UnrolledProgram:
    """A program as a plain sequence.

    Parameters
    ----------
    name : str
        Of the program.
    commands : tuple of Issued
        In order, with their semaphores; their `layer` is the tag that they count for.
    alone : bool
        Whether the program begins by waiting until everything issued before has left the machine.
    fenced : bool
        Whether it waits for units in between too: semaphores alone do not order its commands then.
    """

    name: str
    commands: tuple[Issued, ...]
    alone: bool
    fenced: bool = False


def unroll(program: Program) -> UnrolledProgram | None:
    """What a program issues; None: it does something else than to issue commands one after the other, or too many."""
    items = parse_items(program.words)
    if items is None or not items or not _plain(items[-1], MicroOp.HALT):
        return None
    alone = _plain(items[0], MicroOp.FENCE, _ALL)
    run = _Run()
    try:
        run.items(items[alone:-1])
    except _OtherError:
        return None
    return UnrolledProgram(program.name, tuple(run.commands), alone, run.fenced)


def _plain(item: Item, op: MicroOp, d: int = 0) -> bool:
    return isinstance(item, Instruction) and item.op is op and item.d == d


class _OtherError(Exception):
    """Something that is not known here."""


#: A field's value, and the operand that it is relative to (0: none).
_Setting = tuple[int, int]


@dataclass
class _Run:
    """The state of the sequencer as far as such programs need it."""

    commands: list[Issued] = field(default_factory=list)
    registers: list[int] = field(default_factory=lambda: [0] * REGISTERS)
    tag: int = 0
    fenced: bool = False
    fields: dict[Unit, dict[str, _Setting]] = field(
        default_factory=lambda: {
            unit: {name: (value, 0) for name, value in defaults(unit).items()} for unit in Unit
        }
    )

    def items(self, items: Sequence[Item]) -> None:
        """Carry out items in order."""
        for item in items:
            if isinstance(item, ProgramLoop):
                for _ in range(item.count):
                    self.items(item.body)
            else:
                self._instruction(item)

    def _instruction(self, one: Instruction) -> None:
        match one.op:
            case MicroOp.ADD if one.d < REGISTERS:
                value, operand = self._value(one)
                if operand:
                    raise _OtherError
                self.registers[one.d] = value if one.d else 0
            case MicroOp.TAG if not (one.a or one.b):
                self.tag = one.imm
            case MicroOp.SET if found := field_of(one.d):
                unit, what = found
                value, operand = self._value(one)
                if operand and what.name != "dram":
                    raise _OtherError
                self.fields[unit][what.name] = what.truncate(value), operand
            case MicroOp.ISSUE:
                self._issue(one)
            case MicroOp.FENCE:
                self.fenced = True
            case _:
                raise _OtherError

    def _value(self, one: Instruction) -> _Setting:
        """The sum that an instruction makes, but for an operand of the macro-instruction."""
        total, operand = one.imm, 0
        for selector in (one.a, one.b):
            if selector < REGISTERS:
                total += self.registers[selector]
            elif 0 <= selector - OPERAND_BASE < MAX_OPERANDS and not operand:
                operand = selector
            else:
                raise _OtherError
        return total, operand

    def _issue(self, one: Instruction) -> None:
        settings = self.fields[one.unit]
        _, operand = settings.get("dram", (0, OPERAND_BASE))
        if len(self.commands) == MAX_COMMANDS or ISSUE_D.unpack(one.d)["signal_seq"] or not operand:
            raise _OtherError
        values = tuple(settings[item.name][0] for item in UNIT_FIELDS[one.unit])
        tokens = ISSUE_IMM.unpack(one.imm & _WORD)
        region, wait, signal = operand - OPERAND_BASE, tokens["wait"], tokens["signal"]
        self.commands.append(Issued(one.unit, self.tag, values, region, wait, signal))
