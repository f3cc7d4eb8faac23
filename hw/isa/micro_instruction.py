"""Micro-instructions: 64-bit words of the writable instruction store.

Every operand selector selects a scalar register, an operand of the macro-instruction or a statistic. The second operand
of an instruction is `value(b) + imm`, so it can be a register, an immediate or the sum of both. Program counters are
word addresses relative to the start of the segment.
"""

from dataclasses import dataclass
from enum import IntEnum

from hw.isa.fields import Field, Packed

#: Layout of a micro-instruction.
WORD = Packed(
    "micro-instruction",
    (
        Field("imm", 32, signed=True, doc="immediate"),
        Field("b", 8, doc="second operand selector"),
        Field("a", 8, doc="first operand selector"),
        Field(
            "d",
            10,
            doc="destination register, configuration field, or a number that depends on the operation",
        ),
        Field("opcode", 6, doc="micro-operation"),
    ),
)

REGISTERS = 32
#: Selector of the first macro operand, and maximum number of macro operands.
OPERAND_BASE = 64
MAX_OPERANDS = 48
STATISTIC_BASE = 128


class Statistic(IntEnum):
    """Read-only values that an instruction can use as an operand (selector STATISTIC_BASE + value).

    The statistics of FUSE and MATRIX describe the unit's last retired command; a program must read them after waiting
    for the command's semaphore.
    """

    FUSE_ROWS = 0
    FUSE_ZEROS = 1
    FUSE_MIN = 2
    FUSE_MAX = 3
    MATRIX_ZEROS = 4
    N = 5
    OPERANDS = 6
    TAG = 7
    CYCLE = 8


class MicroOp(IntEnum):
    """Micro-operations."""

    ILLEGAL = 0
    HALT = 1
    TRAP = 2
    ADD = 3
    SUB = 4
    MUL = 5
    MIN = 6
    MAX = 7
    AND = 8
    OR = 9
    XOR = 10
    SHL = 11
    SHR = 12
    SAR = 13
    SLT = 14
    SLTU = 15
    SEQ = 16
    SET = 17
    CLEAR = 18
    ISSUE = 19
    WAIT = 20
    FENCE = 21
    TAG = 22
    BEQ = 23
    BNE = 24
    BLT = 25
    BGE = 26
    BLTU = 27
    BGEU = 28
    LOOP = 29
    BREAK = 30
    CALL = 31
    CALLP = 32
    RET = 33


class Class(IntEnum):
    """Classes of micro-instructions; each class has a counter."""

    SCALAR = 0
    CONFIG = 1
    ISSUE = 2
    CONTROL = 3
    SYNC = 4


@dataclass(frozen=True)
class Form:
    """Assembly form of a micro-operation.

    `operands` lists the operands after the mnemonic: d (register), field (unit.field), unit, a, b, imm, target, sem,
    mask, wait, signal. If `a`, `b` and `imm` follow a `d` or `field`, they are summed or combined as specified in
    docs/machine.md.
    """

    cls: Class
    operands: tuple[str, ...]
    doc: str


_ALU = ("d", "a", "b", "imm")
_BRANCH = ("a", "b", "target")

FORMS: dict[MicroOp, Form] = {
    MicroOp.HALT: Form(
        Class.CONTROL,
        (),
        "end of the program; the macro-instruction completes when all its commands have retired",
    ),
    MicroOp.TRAP: Form(Class.CONTROL, ("imm",), "software trap; the address in the trap record is imm"),
    MicroOp.ADD: Form(Class.SCALAR, _ALU, "d = a + (b + imm)"),
    MicroOp.SUB: Form(Class.SCALAR, _ALU, "d = a - (b + imm)"),
    MicroOp.MUL: Form(Class.SCALAR, _ALU, "d = a * (b + imm), low 32 bits"),
    MicroOp.MIN: Form(Class.SCALAR, _ALU, "d = signed minimum of a and (b + imm)"),
    MicroOp.MAX: Form(Class.SCALAR, _ALU, "d = signed maximum of a and (b + imm)"),
    MicroOp.AND: Form(Class.SCALAR, _ALU, "d = a & (b + imm)"),
    MicroOp.OR: Form(Class.SCALAR, _ALU, "d = a | (b + imm)"),
    MicroOp.XOR: Form(Class.SCALAR, _ALU, "d = a ^ (b + imm)"),
    MicroOp.SHL: Form(Class.SCALAR, _ALU, "d = a << ((b + imm) & 31)"),
    MicroOp.SHR: Form(Class.SCALAR, _ALU, "d = a >> ((b + imm) & 31), zero-extended"),
    MicroOp.SAR: Form(Class.SCALAR, _ALU, "d = a >> ((b + imm) & 31), sign-extended"),
    MicroOp.SLT: Form(Class.SCALAR, _ALU, "d = 1 if a < (b + imm) as signed numbers, else 0"),
    MicroOp.SLTU: Form(Class.SCALAR, _ALU, "d = 1 if a < (b + imm) as unsigned numbers, else 0"),
    MicroOp.SEQ: Form(Class.SCALAR, _ALU, "d = 1 if a == (b + imm), else 0"),
    MicroOp.SET: Form(Class.CONFIG, ("field", "a", "b", "imm"), "field = low bits of a + b + imm"),
    MicroOp.CLEAR: Form(Class.CONFIG, ("unit",), "all fields of the unit return to their defaults"),
    MicroOp.ISSUE: Form(
        Class.ISSUE, ("unit", "wait", "signal"), "send a snapshot of the unit's fields to its queue"
    ),
    MicroOp.WAIT: Form(Class.SYNC, ("sem",), "wait for a token of a semaphore of the sequencer and take it"),
    MicroOp.FENCE: Form(
        Class.SYNC, ("mask",), "wait until the units have retired every command issued so far"
    ),
    MicroOp.TAG: Form(
        Class.CONTROL,
        ("a", "b", "imm"),
        "commands issued and instructions counted from here on carry tag a + b + imm",
    ),
    MicroOp.BEQ: Form(Class.CONTROL, _BRANCH, "branch if a == b"),
    MicroOp.BNE: Form(Class.CONTROL, _BRANCH, "branch if a != b"),
    MicroOp.BLT: Form(Class.CONTROL, _BRANCH, "branch if a < b as signed numbers"),
    MicroOp.BGE: Form(Class.CONTROL, _BRANCH, "branch if a >= b as signed numbers"),
    MicroOp.BLTU: Form(Class.CONTROL, _BRANCH, "branch if a < b as unsigned numbers"),
    MicroOp.BGEU: Form(Class.CONTROL, _BRANCH, "branch if a >= b as unsigned numbers"),
    MicroOp.LOOP: Form(
        Class.CONTROL,
        ("a", "imm", "target"),
        "repeat the instructions before target a + imm times; 0 or less: skip them",
    ),
    MicroOp.BREAK: Form(Class.CONTROL, ("target",), "leave the innermost loop and continue at target"),
    MicroOp.CALL: Form(Class.CONTROL, ("target",), "call a subroutine of the same segment"),
    MicroOp.CALLP: Form(Class.CONTROL, ("segment", "target"), "call a pinned segment"),
    MicroOp.RET: Form(Class.CONTROL, (), "return from a call"),
}

#: Immediate of LOOP: end of the body in bits 15..0, immediate count (signed) in bits 31..16.
LOOP_IMM = Packed("loop.imm", (Field("end", 16), Field("count", 16, signed=True)))
#: Immediate of ISSUE: wait mask in bits 15..0 (producer << 2 | index), signal mask in bits 31..16 (consumer << 2 |
#: index). Field d of ISSUE: unit in bits 1..0, signals to the sequencer in bits 5..2.
ISSUE_IMM = Packed("issue.imm", (Field("wait", 16), Field("signal", 16)))
ISSUE_D = Packed("issue.d", (Field("unit", 2), Field("signal_seq", 4), Field("unused", 4)))
#: Field d of WAIT: producer << 2 | index; of FENCE: mask of units; of CLEAR: unit; of CALLP: segment.

_IMM, _B, _A, _D, _ = WORD.fields
_B_AT, _A_AT, _D_AT, _OPCODE_AT = (WORD.offset(name) for name in ("b", "a", "d", "opcode"))
_IMM_MASK = (1 << _IMM.width) - 1


def encode(op: MicroOp, *, d: int = 0, a: int = 0, b: int = 0, imm: int = 0) -> int:
    """Return the 64-bit word of an instruction, or raise ValueError, which names a field that is out of range."""
    if imm > _IMM.high:
        imm -= 1 << 32
    if not (0 <= d <= _D.high and 0 <= a <= _A.high and 0 <= b <= _B.high and imm >= _IMM.low):
        return WORD.pack(
            opcode=int(op), d=d, a=a, b=b, imm=imm
        )  # raises an error with the name of the field that is out of range
    return op << _OPCODE_AT | d << _D_AT | a << _A_AT | b << _B_AT | imm & _IMM_MASK


def decode(word: int) -> dict[str, int]:
    """Return the fields of a 64-bit word, by name."""
    return WORD.unpack(word)
