"""The sequencer core behaves like the interpreter."""

import random
from dataclasses import replace

import pytest

from hw.config import MlaConfig
from hw.isa.enums import Trap, Unit
from hw.isa.micro_instruction import MicroOp, encode
from hw.layouts import DERIVED
from tests.block.checker.bounds_reference import verdict
from tests.block.sequencer.interpreter import Interpreter, Outcome, Segment
from tests.block.sequencer.programs import dump, issue, loop, program
from tests.block.sequencer.testbench import STATISTICS, CoreHarness, CoreTestbench

CONFIG = MlaConfig(n=4, sp_bytes=4096, acc_bytes=4096, wis_words=16384)
WINDOWS = [(0, 0xFFFFFFFF, 3), *[(0, 0, 0)] * (CONFIG.windows - 1)]


def place(programs: list[list[int]], pinned: int = 0) -> list[Segment]:
    """Return one segment for each program, placed one after another; some are invalid or pinned."""
    segments, base = [], 3
    for i, words in enumerate(programs):
        segments.append(
            Segment(base, words, valid=i % 5 != 1 or i >= pinned, pinned=i < pinned and i % 3 != 2)
        )
        base += len(words)
    return segments


def check(unit: Unit, fields: dict[str, int]):
    return verdict(CONFIG, unit, fields, WINDOWS)


def expect(segments: list[Segment], operands: list[int], jobs: list[dict]) -> list[Outcome]:
    interpreter = Interpreter(CONFIG, segments, operands, STATISTICS, check)
    return [interpreter.run(job["segment"], job["tag"], job["limit"], job["operands"]) for job in jobs]


def compare(got: Outcome, want: Outcome, note: str) -> None:
    for _, fields, _ in got.commands:
        for name in {name for unit in DERIVED.values() for name in unit}:
            fields.pop(name, None)
    packed = [(u, {k: _bits(v) for k, v in f.items()}, meta) for u, f, meta in want.commands]
    plain = [(u, {k: _bits(v) for k, v in f.items()}, meta) for u, f, meta in got.commands]
    assert plain == packed, note
    assert got.trap == want.trap, note
    assert replace(got, commands=[]) == replace(want, commands=[]), note


def _bits(value: int) -> int:
    return value & 0xFFFFFFFF


def run(
    programs: list[list[int]], *, stalls: bool = True, limit: int = 0, operands: int = 12, seed: int = 1
) -> tuple[list[Outcome], CoreTestbench]:
    """Run each program alone and compare it with the reference."""
    rng = random.Random(seed)
    values = [rng.getrandbits(32) for _ in range(48)]
    segments = place(programs)
    jobs = [
        {"segment": i, "tag": i & 63, "macro": i * 77, "operands": operands, "limit": limit}
        for i in range(len(programs))
    ]
    driver = CoreTestbench(CoreHarness(CONFIG, segments, values), seed, stalls)
    got = driver.run(jobs)
    for i, (mine, reference) in enumerate(zip(got, expect(segments, values, jobs), strict=True)):
        compare(mine, reference, f"program {i}")
    return got, driver


@pytest.mark.random_cases("seed")
@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed: int):
    print(f"seed {seed}")
    rng = random.Random(seed)
    operands = [
        rng.choice((rng.getrandbits(32), rng.randrange(8), -rng.randrange(8) & 0xFFFFFFFF)) for _ in range(48)
    ]
    segments = place([program(rng) for _ in range(120)], pinned=16)
    jobs = [
        {
            "segment": i,
            "tag": rng.randrange(64),
            "macro": rng.getrandbits(32),
            "operands": rng.choice((0, 5, 12, 48)),
            "limit": rng.choice((200, 200, 200, 30, 7)),
        }
        for i in range(len(segments))
        if segments[i].valid
    ]
    driver = CoreTestbench(CoreHarness(CONFIG, segments, operands), seed)
    got = driver.run(jobs)
    want = expect(segments, operands, jobs)
    for job, mine, reference in zip(jobs, got, want, strict=True):
        compare(mine, reference, f"seed {seed}, segment {job['segment']}")
    ended = sum(o.trap is None for o in want)
    print(f"{ended} of {len(jobs)} ended, {sum(o.steps for o in want)} instructions")
    assert ended >= 10


def straight(words: list[int]) -> int:
    """Return the number of cycles of a program that never waits."""
    _, driver = run([words], stalls=False)
    return driver.cycles[0]


HALT = encode(MicroOp.HALT)
ADD = encode(MicroOp.ADD, d=1, a=1, imm=1)


def test_one_instruction_each_cycle():
    base = straight([HALT])
    assert straight([ADD] * 20 + [HALT]) == base + 20
    sets = [encode(MicroOp.SET, d=1, a=64, b=1, imm=3), encode(MicroOp.CLEAR, d=0)] * 10
    assert straight([*sets, HALT]) == base + 20
    assert straight([encode(MicroOp.SET, d=1, a=64, b=65), HALT]) == base + 2
    assert straight([encode(MicroOp.BEQ, imm=2), HALT, HALT]) == base + 4
    assert straight([encode(MicroOp.MUL, d=1, a=64, b=1), HALT]) == base + 3


def test_loops_take_no_extra_cycles():
    base = straight([HALT])
    assert straight([loop(2, count=10), ADD, HALT]) == base + 4 + 10
    nested = [loop(6, count=3), loop(6, count=4), loop(6, count=2), ADD, ADD, ADD, HALT]
    assert straight(nested) == base + 4 + 3 * (4 + 4 * (4 + 2 * 3))


def test_issue_latency():
    base = straight([HALT])
    assert straight([issue(Unit.LOAD), HALT]) <= base + 7
    assert straight([issue(Unit.STORE), HALT]) <= base + 7
    assert straight([issue(Unit.MATRIX), HALT]) <= base + 10
    assert straight([issue(Unit.FUSE), HALT]) <= base + 10


TRAPS = {
    "illegal": ([0], Trap.ILLEGAL_INSTRUCTION),
    "undefined": ([34 << 58], Trap.ILLEGAL_INSTRUCTION),
    "field": ([encode(MicroOp.SET, d=10)], Trap.ILLEGAL_INSTRUCTION),
    "unit": ([encode(MicroOp.CLEAR, d=4)], Trap.ILLEGAL_INSTRUCTION),
    "segment number": ([encode(MicroOp.CALLP, d=CONFIG.segments)], Trap.ILLEGAL_INSTRUCTION),
    "segment": ([encode(MicroOp.CALLP, d=0)], Trap.SEGMENT_INVALID),
    "end": ([ADD], Trap.PC_RANGE),
    "far": ([encode(MicroOp.BEQ, imm=(1 << 14) | 1), HALT], Trap.PC_RANGE),
    "negative": ([encode(MicroOp.BEQ, imm=-1), HALT], Trap.PC_RANGE),
    "operand": ([encode(MicroOp.ADD, a=64 + 12)], Trap.BAD_OPERAND),
    "selector": ([encode(MicroOp.ADD, b=137)], Trap.BAD_OPERAND),
    "selector of a branch": ([encode(MicroOp.BEQ, a=40, b=255)], Trap.BAD_OPERAND),
    "empty loop": ([loop(1, count=2), HALT], Trap.LOOP_STACK),
    "deep loop": ([loop(9, count=2)] * 5 + [HALT] * 5, Trap.LOOP_STACK),
    "break": ([encode(MicroOp.BREAK)], Trap.LOOP_STACK),
    "break in a call": (
        [loop(4, count=2), encode(MicroOp.CALL, imm=3), HALT, encode(MicroOp.BREAK)],
        Trap.LOOP_STACK,
    ),
    "return": ([encode(MicroOp.RET)], Trap.CALL_STACK),
    "recursion": ([encode(MicroOp.CALL)], Trap.CALL_STACK),
    "software": ([encode(MicroOp.TRAP, imm=-7)], Trap.SOFTWARE),
    "steps": ([encode(MicroOp.BEQ)], Trap.STEP_LIMIT),
    "command": ([encode(MicroOp.SET, d=4), issue(Unit.LOAD)], Trap.BAD_COMMAND),
    "scratchpad": ([encode(MicroOp.SET, d=2, imm=4096), issue(Unit.LOAD)], Trap.SP_BOUNDS),
    "accumulator": ([encode(MicroOp.SET, d=128 + 3, imm=0xFFFF), issue(Unit.MATRIX)], Trap.ACC_BOUNDS),
    "slots": (
        [encode(MicroOp.SET, d=0, imm=1), encode(MicroOp.SET, d=2, imm=1 << 19), issue(Unit.LOAD)],
        Trap.BAD_COMMAND,
    ),
    "window": (
        [encode(MicroOp.SET, d=1, imm=-1), encode(MicroOp.SET, d=3, imm=2), issue(Unit.LOAD)],
        Trap.DRAM_WINDOW,
    ),
}


def test_every_trap():
    got, _ = run([words for words, _ in TRAPS.values()], limit=50)
    for (name, (_, cause)), outcome in zip(TRAPS.items(), got, strict=True):
        if name != "slots":
            assert outcome.trap is not None, name
            assert outcome.trap["cause"] == cause, name


def test_loop_and_call_corner_cases():
    ret = encode(MicroOp.RET)
    programs = [
        [loop(2, count=1), ADD, *dump(range(1, 3)), HALT],
        [loop(3, count=3), loop(3, count=0), ADD, *dump(range(1, 3)), HALT],  # skipped within a loop
        [
            loop(2, count=3),
            encode(MicroOp.CALL, imm=5),
            *dump(range(1, 2)),
            HALT,
            ADD,
            ret,
        ],  # a call as the last instruction of the loop body
        [
            loop(4, count=3),
            ADD,
            encode(MicroOp.BEQ, imm=4),
            ADD,
            *dump(range(1, 2)),
            HALT,
        ],  # a branch leaves the loop
        [loop(4, count=3), ADD, encode(MicroOp.BEQ, imm=0), ADD, HALT],
        [
            loop(5, count=3),
            loop(5, count=2),
            ADD,
            encode(MicroOp.BREAK, imm=5),
            ADD,
            ADD,
            *dump(range(1, 2)),
            HALT,
        ],
        [
            loop(3, count=4),
            encode(MicroOp.CALL, imm=8),
            ADD,
            *dump(range(1, 3)),
            HALT,
            loop(12, count=2),
            ADD,
            loop(12, count=3),
            ret,
            HALT,
        ],  # a return from within two loops
        [loop(3, a=64, count=0), ADD, ADD, HALT],
    ]
    run(programs, limit=100)
