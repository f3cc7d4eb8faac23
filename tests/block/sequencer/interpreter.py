"""Interpreter of micro-programs in plain Python, based on docs/machine.md: the reference for tests of the core."""

from dataclasses import dataclass, field

from hw.isa.commands import field_of
from hw.isa.enums import Trap, Unit
from hw.isa.micro_instruction import MicroOp, Statistic, decode

M32 = (1 << 32) - 1


def s32(value: int) -> int:
    value &= M32
    return value - (1 << 32) if value >> 31 else value


class Trapped(Exception):  # noqa: N818
    """Exception raised when the program traps."""

    def __init__(self, cause: Trap, address: int = 0):
        super().__init__(cause.name)
        self.cause, self.address = cause, address & M32


@dataclass
class Segment:
    """Segment: a range of the instruction store that holds a program."""

    base: int
    words: list[int]
    valid: bool = True
    pinned: bool = True


@dataclass
class Outcome:
    """Externally visible effects of a program."""

    trap: dict | None = None
    steps: int = 0
    classes: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("scalar", "config", "issue", "control", "sync"), 0)
    )
    commands: list[tuple[int, dict[str, int], dict[str, int]]] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)


def default_fields(unit: int) -> dict[str, int]:
    from hw.isa.commands import UNIT_FIELDS

    return {f.name: f.default for f in UNIT_FIELDS[unit]}


class Interpreter:
    """Interpreter that runs one program to its end; waits and fences always succeed."""

    def __init__(
        self, config, segments: list[Segment], operands: list[int], statistics: dict[str, int], check=None
    ):
        self.config, self.segments, self.operands, self.statistics = config, segments, operands, statistics
        self.check = check or (lambda unit, fields: None)

    def run(self, segment: int, tag: int, limit: int, operands: int) -> Outcome:
        self.out = Outcome()
        self.regs, self.count, self.tag = [0] * 32, operands, tag
        self.fields = {u: default_fields(u) for u in Unit}
        self.segment, self.pc = segment, 0
        self.loops: list[list[int]] = []  # start, end, remaining trips including this one
        self.frames: list[tuple[int, int, int, int]] = []
        self.floor = 0
        try:
            while self._step(limit):
                pass
        except Trapped as trap:
            self.out.trap = {
                "cause": trap.cause,
                "pc": self.pc & 0x3FFF,
                "segment": self.segment,
                "tag": self.tag,
                "address": trap.address,
            }
        return self.out

    def _read(self, selector: int) -> int:
        if selector < 32:
            return self.regs[selector]
        if 64 <= selector < 64 + self.count and selector < 112:
            return self.operands[selector - 64] & M32
        number = selector - 128
        if 0 <= number <= 8:
            name = Statistic(number).name.lower()
            known = {"n": self.config.n, "operands": self.count, "tag": self.tag}
            return (known[name] if name in known else self.statistics[name]) & M32
        raise Trapped(Trap.BAD_OPERAND, selector)

    def _arrive(self, pc: int) -> None:
        while len(self.loops) > self.floor and self.loops[-1][1] == pc:
            if self.loops[-1][2] > 1:
                self.loops[-1][2] -= 1
                self.pc = self.loops[-1][0]
                return
            self.loops.pop()
        self.pc = pc

    def _step(self, limit: int) -> bool:
        words = self.segments[self.segment].words
        if self.pc >= len(words):
            raise Trapped(Trap.PC_RANGE)
        if limit and self.out.steps >= limit:
            raise Trapped(Trap.STEP_LIMIT)
        parts = decode(words[self.pc])
        number, d, sa, sb, imm = (parts[k] for k in ("opcode", "d", "a", "b", "imm"))
        if not 1 <= number <= 33:
            raise Trapped(Trap.ILLEGAL_INSTRUCTION)
        op = MicroOp(number)
        if (
            (op is MicroOp.SET and field_of(d) is None)
            or (op is MicroOp.CLEAR and d > 3)
            or (op is MicroOp.CALLP and d >= self.config.segments)
        ):
            raise Trapped(Trap.ILLEGAL_INSTRUCTION)
        cls = self._execute(op, d, sa, sb, imm)
        self.out.steps += 1
        self.out.classes[cls] += 1
        return op is not MicroOp.HALT

    def _execute(self, op: MicroOp, d: int, sa: int, sb: int, imm: int) -> str:
        name = op.name
        if MicroOp.ADD <= op <= MicroOp.SEQ:
            a, y = self._read(sa), 0
            y = (self._read(sb) + imm) & M32
            value = {
                "ADD": a + y,
                "SUB": a - y,
                "MUL": a * y,
                "MIN": min(s32(a), s32(y)),
                "MAX": max(s32(a), s32(y)),
                "AND": a & y,
                "OR": a | y,
                "XOR": a ^ y,
                "SHL": a << (y & 31),
                "SHR": a >> (y & 31),
                "SAR": s32(a) >> (y & 31),
                "SLT": int(s32(a) < s32(y)),
                "SLTU": int(a < y),
                "SEQ": int(a == y),
            }[name] & M32
            if d & 31:
                self.regs[d & 31] = value
            self._arrive(self.pc + 1)
            return "scalar"
        if MicroOp.BEQ <= op <= MicroOp.BGEU:
            a, b = self._read(sa), self._read(sb)
            taken = {
                "BEQ": a == b,
                "BNE": a != b,
                "BLT": s32(a) < s32(b),
                "BGE": s32(a) >= s32(b),
                "BLTU": a < b,
                "BGEU": a >= b,
            }[name]
            if taken:
                self.pc = imm & M32
            else:
                self._arrive(self.pc + 1)
            return "control"
        return getattr(self, f"_{name.lower()}")(d, sa, sb, imm)

    def _halt(self, d, sa, sb, imm) -> str:
        return "control"

    def _trap(self, d, sa, sb, imm) -> str:
        raise Trapped(Trap.SOFTWARE, imm)

    def _set(self, d, sa, sb, imm) -> str:
        value = self._read(sa) + self._read(sb) + imm
        place = field_of(d)
        assert place is not None, f"programs set existing fields only, not {d}"
        unit, target = place
        self.fields[unit][target.name] = target.truncate(value)
        self._arrive(self.pc + 1)
        return "config"

    def _clear(self, d, sa, sb, imm) -> str:
        self.fields[Unit(d)] = default_fields(d)
        self._arrive(self.pc + 1)
        return "config"

    def _issue(self, d, sa, sb, imm) -> str:
        unit = d & 3
        trap = self.check(Unit(unit), self.fields[Unit(unit)])
        if trap:
            raise Trapped(*trap)
        meta = {"wait": imm & 0xFFFF, "signal": (imm >> 16 & 0xFFFF) | (d >> 2 & 15) << 16, "tag": self.tag}
        self.out.commands.append((unit, dict(self.fields[Unit(unit)]), meta))
        self._arrive(self.pc + 1)
        return "issue"

    def _wait(self, d, sa, sb, imm) -> str:
        self.out.waits.append(d & 15)
        self._arrive(self.pc + 1)
        return "sync"

    def _fence(self, d, sa, sb, imm) -> str:
        self._arrive(self.pc + 1)
        return "sync"

    def _tag(self, d, sa, sb, imm) -> str:
        self.tag = (self._read(sa) + self._read(sb) + imm) & 63
        self._arrive(self.pc + 1)
        return "control"

    def _loop(self, d, sa, sb, imm) -> str:
        end, count = imm & 0xFFFF, imm >> 16
        trips = s32(self._read(sa) + count)
        if end <= self.pc + 1:
            raise Trapped(Trap.LOOP_STACK)
        if trips <= 0:
            self._arrive(end)
        elif len(self.loops) == self.config.loop_depth:
            raise Trapped(Trap.LOOP_STACK)
        else:
            self.loops.append([self.pc + 1, end, trips])
            self.pc += 1
        return "control"

    def _break(self, d, sa, sb, imm) -> str:
        if len(self.loops) == self.floor:
            raise Trapped(Trap.LOOP_STACK)
        self.loops.pop()
        self.pc = imm & M32
        return "control"

    def _call(self, d, sa, sb, imm) -> str:
        if len(self.frames) == self.config.call_depth:
            raise Trapped(Trap.CALL_STACK)
        self.frames.append((self.segment, self.pc + 1, len(self.loops), self.floor))
        self.floor = len(self.loops)
        self.pc = imm & M32
        return "control"

    def _callp(self, d, sa, sb, imm) -> str:
        target = self.segments[d] if d < len(self.segments) else None
        if target is None or not (target.valid and target.pinned):
            raise Trapped(Trap.SEGMENT_INVALID)
        self._call(d, sa, sb, imm)
        self.segment = d
        return "control"

    def _ret(self, d, sa, sb, imm) -> str:
        if not self.frames:
            raise Trapped(Trap.CALL_STACK)
        self.segment, pc, depth, self.floor = self.frames.pop()
        del self.loops[depth:]
        self._arrive(pc)
        return "control"
