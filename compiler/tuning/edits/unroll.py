"""Unrolling of programs into the commands that they issue, the inverse of `compiler.codegen.emit`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from compiler.codegen.semaphores import Issued
from compiler.tuning.edits.rewrites import Instruction, Item, ProgramLoop, parse_items
from hw.isa.commands import UNIT_FIELDS, defaults, field_of
from hw.isa.enums import Unit
from hw.isa.micro_instruction import ISSUE_D, ISSUE_IMM, MAX_OPERANDS, OPERAND_BASE, REGISTERS, MicroOp
from hw.isa.program import Program

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
