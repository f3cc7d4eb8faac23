"""Random micro-programs."""

import random

from hw.isa.commands import UNIT_FIELDS
from hw.isa.enums import Unit
from hw.isa.micro_instruction import ISSUE_D, LOOP_IMM, MicroOp, encode

ALU = [MicroOp(i) for i in range(MicroOp.ADD, MicroOp.SEQ + 1)]
BRANCHES = [MicroOp(i) for i in range(MicroOp.BEQ, MicroOp.BGEU + 1)]


def selector(rng: random.Random, wild: float) -> int:
    kind = rng.random()
    if kind < wild:
        return rng.randrange(256)
    if kind < 0.7:
        return rng.randrange(6)
    if kind < 0.75:
        return rng.randrange(32)
    return rng.choice((64 + rng.randrange(12), 128 + rng.randrange(9)))


def immediate(rng: random.Random) -> int:
    return rng.choice((0, 1, -1, rng.randrange(-20, 20), rng.randrange(-(1 << 31), 1 << 31)))


def issue(unit: int, wait: int = 0, signal: int = 0) -> int:
    d = ISSUE_D.pack(unit=unit, signal_seq=signal >> 16)
    word = wait | (signal & 0xFFFF) << 16
    return encode(MicroOp.ISSUE, d=d, imm=word)


def dump(registers: range) -> list[int]:
    """Return instructions that output registers as fields of LOAD commands."""
    words = []
    for r in registers:
        words += [encode(MicroOp.SET, d=1, a=r), issue(int(Unit.LOAD))]
    return words


def loop(end: int, *, a: int = 0, count: int = 0) -> int:
    return encode(MicroOp.LOOP, a=a, imm=LOOP_IMM.pack(end=end, count=count))


def instruction(rng: random.Random, pc: int, length: int, wild: float) -> int:
    """Return a random instruction; most instructions are harmless, and most branch targets are forward."""
    kind = rng.random()
    ahead = rng.randrange(pc + 1, min(length, pc + 9) + 1)
    target = ahead if rng.random() < 0.9 else rng.randrange(length)
    if rng.random() < wild:
        target = rng.choice((length, 1 << 14, (1 << 14) + pc, -1, 1 << 20))
    a, b = selector(rng, wild), selector(rng, wild)
    if kind < 0.35:
        return encode(
            rng.choice(ALU), d=rng.randrange(6) | rng.choice((0, 0, 0, 32, 512)), a=a, b=b, imm=immediate(rng)
        )
    if kind < 0.5:
        unit = rng.randrange(4)
        d = unit << 7 | rng.randrange(len(UNIT_FIELDS[unit])) if rng.random() >= wild else rng.randrange(1024)
        return encode(MicroOp.SET, d=d, a=a, b=b, imm=immediate(rng))
    if kind < 0.53:
        return encode(MicroOp.CLEAR, d=rng.randrange(4) if rng.random() >= wild else rng.randrange(1024))
    if kind < 0.55:
        return issue(rng.randrange(4), rng.getrandbits(16), rng.getrandbits(20))
    if kind < 0.59:
        return encode(rng.choice((MicroOp.WAIT, MicroOp.FENCE)), d=rng.randrange(1024))
    if kind < 0.63:
        return encode(MicroOp.TAG, a=a, b=b, imm=immediate(rng))
    if kind < 0.75:
        return encode(rng.choice(BRANCHES), a=a, b=b, imm=target)
    if kind < 0.9:
        end = ahead if rng.random() < 0.95 else rng.choice((pc + 1, pc, 0, 0xFFFF, 1 << 14))
        return loop(end, a=rng.choice((0, 0, rng.randrange(6))), count=rng.choice((0, 1, 2, 3, 3, 4, -1)))
    if kind < 0.91:
        return encode(MicroOp.BREAK, imm=target)
    if kind < 0.93:
        return encode(MicroOp.CALL, imm=target)
    if kind < 0.935:
        return encode(MicroOp.CALLP, d=rng.randrange(20), imm=rng.randrange(8))
    if kind < 0.94:
        return encode(MicroOp.RET)
    if kind < 0.945:
        return encode(rng.choice((MicroOp.TRAP, MicroOp.HALT)), imm=immediate(rng))
    return rng.getrandbits(64) if rng.random() < wild * 5 else encode(MicroOp.ADD, d=1, a=1, imm=1)


def program(rng: random.Random) -> list[int]:
    """Return a random program that outputs its registers in LOAD commands if it reaches its end."""
    length = rng.randrange(4, 40)
    wild = rng.choice((0.0, 0.0, 0.01, 0.05))
    body = [instruction(rng, pc, length, wild) for pc in range(length)]
    return [*body, *dump(range(1, 6)), encode(MicroOp.HALT)]
