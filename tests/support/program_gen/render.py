"""Rendering of program items to instruction words."""

from cosim.semantics.command_fields import PACKED
from hw.isa.commands import UNIT_FIELDS, field_number
from hw.isa.enums import Unit
from hw.isa.micro_instruction import ISSUE_D, ISSUE_IMM, LOOP_IMM, OPERAND_BASE, MicroOp, encode
from hw.isa.program import Program
from tests.support.program_gen.commands import raw_fields
from tests.support.program_gen.items import (
    Fence,
    Group,
    Instruction,
    Issue,
    Item,
    Observe,
    Pair,
    ProgramText,
    Scalar,
    Stop,
    Sync,
    Tag,
)
from tests.support.program_gen.order import Order

LIBRARY_SEGMENT = 0
_BASES = ("dst", "dram", "src", "a_base", "w_base", "acc_base", "b_base", "r_base", "d_base")
_SCRATCH = 31


def signed(value: int) -> int:
    """Return the low 32 bits as a signed integer."""
    return (value & 0xFFFFFFFF ^ 1 << 31) - (1 << 31)


class Renderer:
    """Words of one program under construction.

    Parameters
    ----------
    order : Order
        Semaphores of the commands.
    library : dict
        Start addresses of the bodies in pinned code, by id.
    operands : list of int
        Operands of the only macro-instruction that runs the program; empty if several run it.
    """

    def __init__(self, order: Order, library: dict[int, int], operands: list[int]):
        self.order = order
        self.library = library
        self.operands = operands
        self.code: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.later: list[tuple[str, list[Item]]] = []
        self._known: dict[Unit, list[int] | None] = dict.fromkeys(Unit)

    def program(self, text: ProgramText, name: str) -> Program:
        """Return the whole program."""
        for unit in Unit:
            self._known[unit] = [f.default for f in UNIT_FIELDS[unit]]
        if text.shared:
            self.emit(MicroOp.FENCE, d=15)
        self.body(text.body)
        if text.shared:
            self.emit(MicroOp.FENCE, d=15)
        if text.halt:
            self.emit(MicroOp.HALT)
        elif self.later:  # called bodies come first, so that execution can run past the end
            self.emit(MicroOp.BEQ, target="end")
        self.flush()
        self.labels["end"] = len(self.code)
        return Program(name, tuple(self.words()))

    def flush(self) -> None:
        """Append the bodies that the program calls."""
        while self.later:
            label, body = self.later.pop()
            self.subroutine(label, body)

    def subroutine(self, label: str, body: list[Item]) -> None:
        """Append a called body."""
        self.labels[label] = len(self.code)
        self._forget()
        self.body(body)
        self.emit(MicroOp.RET)

    def words(self) -> list[int]:
        """Return the encoded instructions."""
        out = []
        for item in self.code:
            imm = item.imm
            if item.target and item.op == MicroOp.LOOP:
                imm = LOOP_IMM.pack(end=self.labels[item.target], count=imm)
            elif item.target:
                imm = self.labels[item.target]
            out.append(encode(item.op, d=item.d, a=item.a, b=item.b, imm=signed(imm)))
        return out

    def emit(
        self, op: MicroOp, *, d: int = 0, a: int = 0, b: int = 0, imm: int = 0, target: str = ""
    ) -> None:
        """Append an instruction."""
        self.code.append(Instruction(op, d, a, b, imm, target))

    def body(self, body: list[Item]) -> None:
        """Append all items."""
        for item in body:
            match item:
                case Scalar():
                    if item.fenced:
                        self.emit(MicroOp.FENCE, d=15)
                    self.code += item.code
                case Issue():
                    self.issue(item)
                case Pair():
                    for command in item.commands:
                        self.issue(command)
                case Observe():
                    self._observe(item)
                case Fence():
                    self.emit(MicroOp.FENCE, d=item.mask)
                case Sync():
                    if self.order.syncs.get(id(item), -1) >= 0:
                        self.emit(MicroOp.WAIT, d=self.order.syncs[id(item)])
                case Tag():
                    self.emit(MicroOp.TAG, imm=item.tag)
                case Group():
                    self._group(item)
                case Stop():
                    for command in item.blocked:
                        self.issue(command)
                    offset = len(self.code)
                    self.code += [Instruction(i.op, i.d, i.a, i.b, i.imm, i.target) for i in item.code]
                    self.labels["stop"] = offset

    def issue(self, command: Issue) -> None:
        """Set the fields that differ from their last values, and issue the command."""
        unit = command.unit
        masks = self.order.masks.get(id(command))
        wait, signal = (masks.wait, masks.signal) if masks else (command.wait, command.signal)
        if id(command) in self.order.fences:
            self.emit(MicroOp.FENCE, d=15)
        known = self._known[unit]
        if command.fresh or known is None:
            self.emit(MicroOp.CLEAR, d=unit)
            known = [f.default for f in UNIT_FIELDS[unit]]
        wanted = raw_fields(unit, command.values)
        for item, old, new in zip(UNIT_FIELDS[unit], known, wanted, strict=True):
            if old == new:
                continue
            number = field_number(unit, item.name)
            if item.name in _BASES and 0 <= command.operand < len(self.operands):
                imm = new - self.operands[command.operand]
                self.emit(MicroOp.SET, d=number, a=OPERAND_BASE + command.operand, imm=imm)
            else:
                self.emit(MicroOp.SET, d=number, imm=new)
        self._known[unit] = wanted
        self.emit(
            MicroOp.ISSUE,
            d=ISSUE_D.pack(unit=unit, signal_seq=signal >> 16),
            imm=ISSUE_IMM.pack(wait=wait, signal=signal & 0xFFFF),
        )

    def _observe(self, item: Observe) -> None:
        word = PACKED[Unit.LOAD]["word"]
        self.emit(MicroOp.FENCE, d=15)
        self.emit(MicroOp.SHR, d=_SCRATCH, a=item.selector, imm=item.shift)
        self.emit(MicroOp.AND, d=_SCRATCH, a=_SCRATCH, imm=255)
        self.emit(MicroOp.SHL, d=_SCRATCH, a=_SCRATCH, imm=word.offset("fill_value"))
        self.emit(MicroOp.CLEAR, d=Unit.LOAD)
        self.emit(MicroOp.SET, d=field_number(Unit.LOAD, "dst"), imm=item.address)
        self.emit(MicroOp.SET, d=field_number(Unit.LOAD, "len"), imm=item.length)
        self.emit(MicroOp.SET, d=field_number(Unit.LOAD, "word"), a=_SCRATCH, imm=word.pack(fill=1))
        self.emit(MicroOp.ISSUE, d=Unit.LOAD)
        self.emit(MicroOp.FENCE, d=15)
        self._known[Unit.LOAD] = None

    def _group(self, item: Group) -> None:
        label = f"g{len(self.code)}"
        self._forget()
        if item.kind == "loop":
            self.emit(MicroOp.LOOP, imm=item.count, target=label)
            self.emit(MicroOp.FENCE, d=15)
            self.body(item.body)
            self.labels[label] = len(self.code)
        elif item.kind == "branch" and item.condition:
            self.emit(MicroOp.FENCE, d=15)
            c = item.condition
            self.emit(c.op, a=c.a, b=c.b, target=label)
            self.body(item.body)
            self.labels[label] = len(self.code)
        else:
            self.emit(MicroOp.FENCE, d=15)
            if id(item) in self.library:
                self.emit(MicroOp.CALLP, d=LIBRARY_SEGMENT, imm=self.library[id(item)])
            else:
                self.emit(MicroOp.CALL, target=label)
                self.later.append((label, item.body))
        self._forget()
        self.emit(MicroOp.FENCE, d=15)

    def _forget(self) -> None:
        self._known = dict.fromkeys(Unit)


def library_groups(body: list[Item]) -> list[Group]:
    """Return the bodies that must be in pinned code."""
    out = []
    for item in body:
        if isinstance(item, Group):
            out += [item] if item.kind == "callp" else []
            out += library_groups(item.body)
    return out
